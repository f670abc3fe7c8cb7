"""Revisions of the keys of a Key-Value bucket, from the messages of its stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.columns import Messages
from spark_jetstream.kv import OPERATIONS, PUT, key_of, keys, operation, operations
from spark_jetstream.units import Timestamp


@dataclass(frozen=True)
class Entry:
    """A revision of a key. ``operation`` is ``PUT``, ``DELETE`` or ``PURGE``; only with PUT there is a value."""

    bucket: str
    key: str
    value: bytes
    revision: int
    created: Timestamp
    operation: str

    @property
    def live(self) -> bool:
        """Whether the key has a value here."""
        return self.operation == OPERATIONS[PUT]

    @property
    def text(self) -> str:
        """The value as UTF-8 text; `UnicodeDecodeError` when it is none."""
        return self.value.decode()


def entry_of(bucket: str, message: StoredMessage) -> Entry:
    """The revision that a message is. `ProtocolError` when its subject is not that of a key."""
    done = operation(message.headers)
    value = message.data if done == OPERATIONS[PUT] else b""
    return Entry(bucket, key_of(message.subject, message.seq), value, message.seq, message.time, done)


def entries_of(bucket: str, messages: Messages) -> Iterator[Entry]:
    """The revisions that a run of messages is. `ProtocolError` when the subject of one is not that of a key."""
    codes = operations(messages.headers())
    done = [PUT] * len(messages) if codes is None else codes.tolist()
    columns = (
        keys(messages).to_pylist(),
        messages.payloads().to_pylist(),
        messages.sequences.tolist(),
        messages.timestamps().tolist(),
        done,
    )
    for key, value, revision, nanoseconds, code in zip(*columns, strict=True):
        kept = value if code == PUT else b""
        yield Entry(bucket, key, kept, revision, Timestamp.of(nanoseconds), OPERATIONS[code])
