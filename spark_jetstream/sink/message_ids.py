"""Message ids that are the same whenever the same task of the same batch writes the same row. Pure.

docs/delivery.md ("Message ids") says what an id consists of, and why a row's place in its partition is no part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.hashing import STABLE, Hashes, HashSet, subject_hashes
from spark_jetstream.protocol.wire import binaries, binary
from spark_jetstream.sink.rows import NOTHING, Rows, piece

_DIGEST = 12  # bytes: two different rows among 10**9 share one with a probability of 10**-11
_ID = re.compile(rb"([0-9a-f]{%d})(?:\.(\d+))?" % (2 * _DIGEST))  # what follows the prefix; others are dead letters'


@dataclass(frozen=True)
class WriteTask:
    """The write that the rows belong to: the same for every attempt of a task, and different for every other task.

    `write` is the id of the query or of the batch write, `batch` the number of the micro-batch (0 for a batch write).
    The ledger remembers the task for `expires` seconds, None for good.
    """

    write: str
    batch: int
    partition: int
    expires: float | None = None

    @property
    def prefix(self) -> str:
        """The beginning of its message ids."""
        return f"{self.write}.{self.batch}.{self.partition}"


class MessageIds:
    """Makes the message ids for the rows of one task, portion by portion, in the order of the task.

    `prefix` is the write and the partition. The object keeps 16 to 32 bytes for each row that `ids` has got.

    `content` tells the rows so far from other rows, in whatever order they came: the sum of a hash of each (of its own
    `msg_id`, or else of subject, headers and payload), modulo 2**64. `own` is the same of `msg_id` and subject of the
    rows with a `msg_id`, 0 if there are none: ids belong to streams, so the same one at another subject is another row.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode() + b"."
        self.content = self.own = 0
        self._seen = HashSet()
        self._repeats: dict[bytes, int] = {}

    def ids(self, rows: Rows) -> pa.BinaryArray:
        """Return the ids of rows, without nulls. A row's own `msg_id` stays as it is."""
        made = self._made(self.add(rows))
        if rows.msg_id is None:
            return made
        return pc.replace_with_mask(rows.msg_id, pc.is_null(rows.msg_id), made) if len(made) else rows.msg_id

    def add(self, rows: Rows) -> bytes:
        """Add rows to `content`. Return the digests of those without a `msg_id`, one after the other."""
        # Rows with ids of their own do not count among equal ones: they may come in another order the next time.
        subject, hashes = rows.subject, np.zeros(0, np.uint64)
        tails = pc.binary_join_element_wise(rows.lines, piece(b"\r\n"), rows.data, NOTHING)
        if rows.msg_id is not None:
            missing = pc.is_null(rows.msg_id)
            subject, tails = subject.filter(missing), tails.filter(missing)
            hashes = subject_hashes(rows.msg_id.drop_null(), STABLE)
            own = pc.binary_join_element_wise(rows.msg_id, rows.subject, piece(b"\r\n")).drop_null()
            self.own = (self.own + int(subject_hashes(own, STABLE).sum())) % 2**64
        digests = _digests(subject, tails)
        self.content = (self.content + int(hashes.sum()) + int(_keys(digests).sum())) % 2**64
        return digests

    def strangers(self, ids: Iterable[bytes]) -> int:
        """Return how many of these ids were made for a row of the task, and for none that `ids` has got."""
        texts = (name.removeprefix(self.prefix) for name in ids if name.startswith(self.prefix))
        own = [match for match in map(_ID.fullmatch, texts) if match]
        known = self._seen.has(_keys(bytes.fromhex(b"".join(match[1] for match in own).decode())))
        repeated = (int(match[2] or 0) <= self._repeats.get(bytes.fromhex(match[1].decode()), 0) for match in own)
        return len(own) - sum(map(all, zip(known.tolist(), repeated, strict=True)))

    def _made(self, digests: bytes) -> pa.BinaryArray:
        count = len(digests) // _DIGEST
        text = digests.hex().encode()
        width = 2 * _DIGEST
        offsets = np.arange(0, len(text) + 1, width, dtype=np.int32)
        return pc.binary_join_element_wise(
            piece(self.prefix), binary(count, offsets, text), self._ordinals(digests), NOTHING
        )

    def _ordinals(self, digests: bytes) -> pa.BinaryArray | pa.BinaryScalar:
        """What follows the hash: nothing for the first row with it, `.1` for the second, and so on.

        Two different rows that share 64 bits of their hashes still have different ids. It then depends on their order
        which of the two has no number.
        """
        keys = _keys(digests).copy()
        count = len(keys)
        keys[keys == 0] = 1  # the set takes 0 for 1, too
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
            digest = digests[index * _DIGEST : (index + 1) * _DIGEST]
            number = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            suffixes[index] = b".%d" % number
        return binaries(suffixes)


def _keys(digests: bytes) -> Hashes:
    """Return the first 64 bits of each digest."""
    keys: Hashes = np.ndarray((len(digests) // _DIGEST,), "<u8", digests, 0, (_DIGEST,))
    return keys


def _digests(subject: pa.BinaryArray, tails: pa.BinaryArray) -> bytes:
    # A subject has no blank, and an empty line ends the header lines after it: different rows give different texts.
    content = pc.binary_join_element_wise(subject, tails, piece(b" "))
    _, offset_buffer, data = content.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32, len(subject) + 1).tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    blake = hashlib.blake2b
    return b"".join([blake(view[begin:end], digest_size=_DIGEST).digest() for begin, end in pairwise(bounds)])
