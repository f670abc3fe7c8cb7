"""Meta messages of an Object Store bucket as they come from its stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jetstream.columns import Messages
from spark_jetstream.errors import ProtocolError
from spark_jetstream.objects import ObjectMeta


@dataclass(frozen=True)
class StoredObject:
    """A meta message and where it lies: its subject, its stream sequence, and when it was stored, in ns."""

    meta: ObjectMeta
    subject: str
    sequence: int
    timestamp: int

    @classmethod
    def read(cls, payload: bytes, bucket: str, subject: str, sequence: int, timestamp: int) -> StoredObject:
        """From a message in ``bucket``; an empty one is a deleted object: a server leaves one in place of what expired
        (JETSTREAM ADR-43). Raises `ProtocolError` that names bucket and sequence.
        """
        gone = ObjectMeta(bucket=bucket, name=subject, deleted=True)
        try:
            meta = ObjectMeta.from_json(payload, bucket) if payload else gone
        except ProtocolError as error:
            raise ProtocolError(f"{error} (sequence {sequence}, subject {subject})") from None
        return cls(meta, subject, sequence, timestamp)

    @property
    def origin(self) -> str:
        """The bucket in the subjects: another one than was asked for where the stream is a mirror."""
        return self.subject.split(".")[1]

    @property
    def readable(self) -> bool:
        """Whether there is a row for it: it is not deleted, and no link to a bucket, which is like a directory."""
        return not self.meta.deleted and (self.meta.link is None or bool(self.meta.link[1]))


def stored_objects(messages: Messages, bucket: str) -> Iterator[StoredObject]:
    """What meta messages say, deleted objects and links to buckets included.

    Raises `ProtocolError` that names bucket and sequence.
    """
    rows = zip(
        messages.payloads().to_pylist(),
        messages.subjects().to_pylist(),
        messages.sequences.tolist(),
        messages.timestamps().tolist(),
        strict=True,
    )
    for payload, subject, sequence, timestamp in rows:
        yield StoredObject.read(payload, bucket, subject, sequence, timestamp)
