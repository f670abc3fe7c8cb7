"""Message ids that are the same whenever the same row is written by the same task of the same batch. Pure.

An id names the write (query, batch and partition, or `writeId` and partition) and what the row holds: a hash of
subject, headers and payload. Not its place: after a shuffle the rows of a partition may come in another order when the
task is run again, and an id made of places would then name another row, which the server would drop as a duplicate
of the first. Of equal rows the second, third, ... get their number beside the hash, so that each of them is stored.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.sink.rows import Rows, piece

KeyArray = npt.NDArray[np.uint64]

_DIGEST = 12  # bytes: two different rows among 10**9 share one with a probability of 10**-11
_FIRST_SLOTS = 1 << 12


class MessageIds:
    """Gives the rows of one task their message ids, portion by portion, in the order of the task.

    ``prefix`` names the write and the partition. Keeps 16 to 32 bytes for each row it has seen.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode() + b"."
        self._seen = _Keys()
        self._repeats: dict[bytes, int] = {}

    def ids(self, rows: Rows, tails: pa.BinaryArray) -> pa.BinaryArray:
        """The ids of rows, a binary array without nulls; a row's own ``msg_id`` is taken as it is.

        ``tails`` is what `encode.tails` makes of the same rows.
        """
        if rows.msg_id is None:
            return self._made(rows.subject, tails)
        missing = pc.is_null(rows.msg_id)
        made = self._made(rows.subject.filter(missing), tails.filter(missing))
        return pc.replace_with_mask(rows.msg_id, missing, made) if len(made) else rows.msg_id

    def _made(self, subject: pa.BinaryArray, tails: pa.BinaryArray) -> pa.BinaryArray:
        # Rows with ids of their own are not counted among equal ones: they may come in another order the next time.
        digests = _digests(subject, tails)
        text = digests.hex().encode()
        width = 2 * _DIGEST
        offsets = np.arange(0, len(text) + 1, width, dtype=np.int32)
        plain = pa.Array.from_buffers(pa.binary(), len(subject), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        ordinals = pa.array(self._ordinals(digests), pa.binary())
        return pc.binary_join_element_wise(piece(self.prefix), plain, ordinals, piece(b""))

    def _ordinals(self, digests: bytes) -> list[bytes]:
        """What follows the hash: nothing for the first row with it, ``.1`` for the second, and so on.

        Rows are told apart by 64 bits of their hashes. Two different rows that share them still have different ids;
        only which of the two goes without a number then depends on their order.
        """
        count = len(digests) // _DIGEST
        keys: KeyArray = np.ndarray((count,), "<u8", digests, 0, (_DIGEST,)).copy()
        keys[keys == 0] = 1  # stands for a free slot
        suffixes = [b""] * count
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        first = np.concatenate((np.ones(min(count, 1), np.bool_), ranked[1:] != ranked[:-1]))
        heads = order[first]
        again = np.zeros(count, np.bool_)
        again[heads] = self._seen.add(keys[heads])
        again[order[~first]] = True
        for index in np.flatnonzero(again).tolist():
            digest = digests[index * _DIGEST : (index + 1) * _DIGEST]
            number = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            suffixes[index] = b".%d" % number
        return suffixes


def _digests(subject: pa.BinaryArray, tails: pa.BinaryArray) -> bytes:
    """The hashes of what rows hold, one after the other."""
    # A subject has no blank, and what follows begins with the header lines, which an empty line ends: no two different
    # rows give the same text.
    content = pc.binary_join_element_wise(subject, tails, piece(b" "))
    _, offset_buffer, data = content.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32, len(subject) + 1).tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    blake = hashlib.blake2b
    return b"".join([blake(view[begin:end], digest_size=_DIGEST).digest() for begin, end in pairwise(bounds)])


class _Keys:
    """A set of 64-bit keys other than 0, in one flat table (open addressing, at most half full)."""

    def __init__(self) -> None:
        self._table: KeyArray = np.zeros(_FIRST_SLOTS, np.uint64)
        self._count = 0

    def add(self, keys: KeyArray) -> npt.NDArray[np.bool_]:
        """Put distinct keys in; for each of them whether it was there before."""
        while 2 * (self._count + len(keys)) > len(self._table):
            old = self._table[self._table != 0]
            self._table = np.zeros(2 * len(self._table), np.uint64)
            for first in range(0, len(old), _FIRST_SLOTS):  # in portions: what inserting needs besides stays small
                self._insert(old[first : first + _FIRST_SLOTS])
        known = self._insert(keys)
        self._count += len(keys) - int(known.sum())
        return known

    def _insert(self, keys: KeyArray) -> npt.NDArray[np.bool_]:
        table = self._table
        mask = len(table) - 1
        known = np.zeros(len(keys), np.bool_)
        # The low bits of a hash are as good as any.
        at: npt.NDArray[Any] = (keys & np.uint64(mask)).astype(np.int64)
        open_ = np.arange(len(keys))
        while len(open_):
            here = table[at[open_]]
            known[open_[here == keys[open_]]] = True
            free = open_[here == 0]
            # Several keys may want one slot: the last to write has it, the others look on.
            table[at[free]] = keys[free]
            lost = free[table[at[free]] != keys[free]]
            taken = open_[(here != 0) & (here != keys[open_])]
            at[taken] = (at[taken] + 1) & mask
            open_ = np.concatenate((taken, lost))
        return known
