"""Key-Value buckets: their configuration, their state, and revisions of their keys. Pure.

See ADR-8 "JetStream based Key-Value Stores" and ADR-48 "TTL Support for Key-Value Buckets".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spark_jetstream.admin.models.buckets import AnyBucketInfo, BucketLayout, FromStream
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import RePublish, StreamSource
from spark_jetstream.buckets.kv import (
    OPERATIONS,
    PUT,
    STREAM_PREFIX,
    key_of,
    keys,
    operation,
    operations,
)
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.units import Bytes, Nanoseconds, Timestamp

KEY_VALUE = BucketLayout("Key-Value", STREAM_PREFIX)


@dataclass(frozen=True)
class BucketInfo(AnyBucketInfo):
    """A Key-Value bucket: how it is set up, and what it holds.

    ``stream`` is all that the server says.
    """

    kind: ClassVar[BucketLayout] = KEY_VALUE

    values = FromStream[int]("state.messages")
    """How many revisions it holds, of all keys together, deletions included."""
    bytes = FromStream[Bytes]("state.bytes")
    """How many bytes it has."""
    history = FromStream[int]("config.max_msgs_per_subject")
    """How many revisions of each key are kept; -1 for any number."""
    max_value_size = FromStream[Bytes]("config.max_msg_size")
    """How many bytes a value may have; -1 for what the server allows."""
    limit_marker_ttl = FromStream[Nanoseconds]("config.subject_delete_marker_ttl")
    """How long a marker stays where a key expired; 0 for no markers."""
    republish = FromStream[RePublish | None]("config.republish")
    """The subjects that are published again, and where."""
    mirror = FromStream[StreamSource | None]("config.mirror")
    """The bucket's stream of which this is a copy."""
    sources = FromStream[tuple[StreamSource, ...]]("config.sources")
    """The buckets' streams that are copied into this one."""


@dataclass(frozen=True)
class Entry:
    """A revision of a key.

    ``operation`` is ``PUT``, ``DELETE`` or ``PURGE``; only with PUT there is a value.
    """

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
    """Return a message as a revision.

    Raises `ProtocolError` when its subject is not that of a key.
    """
    done = operation(message.headers)
    value = message.data if done == OPERATIONS[PUT] else b""
    return Entry(
        bucket,
        key_of(message.subject, message.seq),
        value,
        message.seq,
        message.time,
        done,
    )


def entries_of(bucket: str, messages: MessageRun) -> Iterator[Entry]:
    """Return a run of messages as revisions.

    Raises `ProtocolError` when a subject is not that of a key.
    """
    # An index in OPERATIONS for each message (int8); None if all of them are values.
    codes = operations(messages.headers())
    done = [PUT] * len(messages) if codes is None else codes.tolist()
    # Five lists with an item for each message; times are nanoseconds since the epoch.
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
