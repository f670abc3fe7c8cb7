"""Message ids that are the same whenever the same batch writes the same row. Pure.

docs/delivery.md ("Message ids") lists the parts of an id, and says why a row's place in its
partition is none of them::

    <write>.<batch>.<hash>[.<number>]               ids of a batch: the same in each partition
    <write>.<batch>.<partition>.<hash>[.<number>]   ids of a partition

The hash is that of subject, header lines and payload, and of the message that the row was read
from, where the row says so. Equal rows of a task have numbers; equal rows of several tasks share
ids of a batch (`sink.equal_rows`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.errors import DeliveryError
from spark_jetstream.protocol.arrow import NOTHING, as_vector, binaries, binary, flags, piece
from spark_jetstream.protocol.hashing import STABLE, Hashes, HashSet, subject_hashes
from spark_jetstream.sink.rows import Rows

DIGEST = 12
"""Bytes of a hash: two different rows among 10**9 share one with a probability of 10**-11."""

COPIES = -1
"""In place of a partition: the rows that the driver stores itself (`sink.equal_rows`)."""
UNKNOWN = -2
"""In place of a partition: the engine gives its tasks no numbers."""

DEAD = b"dead."
"""It precedes the hash in the id of a dead letter whose row never had an id."""


@dataclass(frozen=True)
class WriteTask:
    """The write that rows belong to: the same for all attempts of a task, and for no other task.

    `write` is the id of the query or of the batch write, `batch` the number of the micro-batch (0
    for a batch write). `run` names the job that writes the batch: a batch that is written again
    after a restart has another one, and maybe its rows in other partitions. The ledger remembers
    the task for `expires` seconds, None for good.
    """

    write: str
    batch: int
    partition: int
    expires: float | None = None
    run: str = ""

    @property
    def prefix(self) -> str:
        """The beginning of the message ids of its batch."""
        return f"{self.write}.{self.batch}."

    def has_made(self, message_id: bytes) -> bool:
        """Whether an id is one of the batch, and not of the user's."""
        return message_id.startswith(self.prefix.encode())

    @property
    def key_part(self) -> str:
        """Its part of the batch, as keys of the ledger name it."""
        return "copies" if self.partition == COPIES else str(self.partition)

    @property
    def part(self) -> str:
        """Its part of the batch, for error messages."""
        if self.partition == COPIES:
            return "the equal rows"
        if self.partition == UNKNOWN:
            return "a task"
        return f"partition {self.partition}"

    @property
    def where(self) -> str:
        """Its part and its batch, for error messages."""
        return f"{self.part} of batch {self.batch}"


@dataclass(frozen=True)
class Scheme:
    """The parts of the message ids of a write, beside the write, the batch and a row's content.

    `origin`: the stream and sequence of the message that the row was read from, where the row has
    them. `partition`: the row's partition, where it has no origin. `number`: the number of the row
    among equal ones of its partition.
    """

    partition: bool = True
    origin: bool = False
    number: bool = True

    @classmethod
    def of(cls, delivery: str, message_ids: str, columns: Collection[str]) -> Scheme | None:
        """Return the scheme for a write to subjects, by its options and columns.

        None if its messages have no ids.
        """
        if delivery == "at-least-once":
            return None
        if message_ids == "content":
            return cls(partition=False, number=False)
        origin = {"stream", "sequence"}.issubset(columns)
        if delivery == "exactly-once":
            return cls(partition=False, origin=origin)
        # A row that removes others is not stored again in place of an equal one
        # (`sink.equal_rows`).
        rolling = not {"rollup", "schedule"}.isdisjoint(columns)
        return cls(origin=origin and not rolling)

    @property
    def shared(self) -> bool:
        """Whether equal rows of two tasks have one id, and both are to be stored."""
        return self.number and (self.origin or not self.partition)


class MessageIds:
    """Makes the message ids for the rows of one task, portion by portion, in the order of the task.

    With `dead` they are ids of dead letters. The object keeps 16 to 32 bytes for each row that
    `ids` has got.

    `content` tells the rows so far from other rows, in any order. It is the sum, modulo 2**64, of a
    hash of each row: of its own `msg_id`, or else of subject, headers, payload and origin. `own` is
    the same sum for `msg_id` and subject of the rows with a `msg_id`, 0 if there are none. It
    includes the subject because ids belong to streams: the same id at another subject is another
    row. `partitioned` says whether an id has the partition in it.
    """

    def __init__(self, task: WriteTask, scheme: Scheme = Scheme(), *, dead: bool = False) -> None:
        kind = DEAD if dead else b""
        self.task = task
        self._of_batch = task.prefix.encode() + kind
        self._of_partition = f"{task.prefix}{task.partition}.".encode() + kind
        self._scheme = scheme
        self.content = 0
        self.own = 0
        self.partitioned = False
        self._seen = HashSet()
        self._repeats: dict[bytes, int] = {}

    @property
    def prefix(self) -> bytes:
        """The beginning of the ids of rows without an origin."""
        return self._of_partition if self._scheme.partition else self._of_batch

    def ids(self, rows: Rows) -> pa.BinaryArray:
        """Return the ids of rows, without nulls. A row's own `msg_id` stays as it is."""
        nameless = _nameless(rows)
        made = self._made(self._add(rows, nameless), self._prefixes(nameless))
        if rows.msg_id is None or len(nameless) == 0:
            return made if rows.msg_id is None else rows.msg_id
        return pc.replace_with_mask(rows.msg_id, pc.is_null(rows.msg_id), made)

    def add(self, rows: Rows) -> None:
        """Add rows to `content` and `own`, without making ids for them."""
        self._add(rows, _nameless(rows))

    def _add(self, rows: Rows, nameless: Rows) -> bytes:
        """Add rows to `content` and `own`. Return the digests of `nameless`.

        These are the rows without a `msg_id`.
        """
        digests = _digests(_contents(nameless, origin=self._scheme.origin))
        hashes = int(_keys(digests).sum())
        # Rows with ids of their own do not count among equal ones: they may come in another order
        # the next time.
        if rows.msg_id is not None:
            hashes += int(subject_hashes(rows.msg_id.drop_null(), STABLE).sum())
            own = pc.binary_join_element_wise(rows.msg_id, rows.subject, piece(b"\r\n")).drop_null()
            self.own = (self.own + int(subject_hashes(own, STABLE).sum())) % 2**64
        self.content = (self.content + hashes) % 2**64
        return digests

    def _prefixes(self, rows: Rows) -> pa.BinaryArray | pa.BinaryScalar:
        """Return what the id of each row begins with."""
        if not self._scheme.partition or not len(rows):
            return piece(self._of_batch)
        if not self._scheme.origin or rows.origin is None:
            self._use_partition()
            return piece(self._of_partition)
        known = rows.origin.is_valid()
        if not flags(known).all():
            self._use_partition()
        return pc.if_else(known, piece(self._of_batch), piece(self._of_partition))

    def _use_partition(self) -> None:
        """Note that ids have the partition in them. Raise `DeliveryError` if tasks have no numbers."""
        # Tasks without numbers would give equal rows one id, and the server would drop all but one.
        if self.task.partition == UNKNOWN:
            raise DeliveryError(
                "a row has no usable id of its own (column msg_id is null or too long, or columns "
                "stream and sequence are null); the sink cannot make one, because the engine does "
                "not number its tasks; give each row a msg_id, or set option messageIds to content if "
                "the rows are distinct, or option delivery to at-least-once"
            )
        self.partitioned = True

    def _made(self, digests: bytes, prefixes: pa.BinaryArray | pa.BinaryScalar) -> pa.BinaryArray:
        count = len(digests) // DIGEST
        text = digests.hex().encode()
        offsets = np.arange(0, len(text) + 1, 2 * DIGEST, dtype=np.int32)
        ordinals = self._ordinals(digests) if self._scheme.number else NOTHING
        return pc.binary_join_element_wise(
            prefixes, binary(count, offsets, text), ordinals, NOTHING
        )

    def _ordinals(self, digests: bytes) -> pa.BinaryArray | pa.BinaryScalar:
        """Return the end of each id: nothing for the first row with a hash, `.1` for the second.

        Two different rows that share 64 bits of their hashes still have different ids. It then
        depends on their order which of the two has no number.
        """
        keys = _keys(digests).copy()
        count = len(keys)
        # The set takes 0 for 1, too.
        keys[keys == 0] = 1
        # The first row with each hash in this portion may have an equal one in an earlier portion.
        # The others have one here.
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        first = np.concatenate((np.ones(min(count, 1), np.bool_), ranked[1:] != ranked[:-1]))
        heads = order[first]
        again = np.zeros(count, np.bool_)
        again[heads] = self._seen.add(keys[heads])
        again[order[~first]] = True
        if not again.any():
            return NOTHING
        suffixes = [b""] * count
        for index in np.flatnonzero(again).tolist():
            digest = digests[index * DIGEST : (index + 1) * DIGEST]
            number = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            suffixes[index] = b".%d" % number
        return binaries(suffixes)


def _nameless(rows: Rows) -> Rows:
    """Return the rows without a `msg_id`."""
    if rows.msg_id is None:
        return rows
    return rows.take(np.flatnonzero(as_vector(pc.is_null(rows.msg_id))))


def _keys(digests: bytes) -> Hashes:
    """Return the first 64 bits of each digest."""
    keys: Hashes = np.ndarray((len(digests) // DIGEST,), "<u8", digests, 0, (DIGEST,))
    return keys


def _contents(rows: Rows, *, origin: bool) -> pa.BinaryArray:
    """Return the bytes that tell each row from others: different rows give different bytes.

    A subject has no blank, and an empty line ends the header lines after it. An origin begins with
    a zero byte, which no subject has.
    """
    parts = [rows.subject, piece(b" "), rows.lines, piece(b"\r\n"), rows.data]
    if origin and rows.origin is not None:
        before = pc.binary_join_element_wise(piece(b"\0"), rows.origin, piece(b"\r\n"), NOTHING)
        parts.insert(0, pc.fill_null(before, NOTHING))
    return pc.binary_join_element_wise(*parts, NOTHING)


def _digests(contents: pa.BinaryArray) -> bytes:
    _, offset_buffer, data = contents.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32, len(contents) + 1).tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    blake = hashlib.blake2b
    return b"".join(
        [blake(view[begin:end], digest_size=DIGEST).digest() for begin, end in pairwise(bounds)]
    )
