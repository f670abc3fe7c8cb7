"""The revisions that the keys of a Key-Value bucket have got from one task. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spark_jetstream.sink.rows import IntArray

_FIRST_SLOTS = 1 << 12


class Revisions:
    """The latest revision that a task has got for each of its keys: one flat table of hashes, at most half full.

    Keeps 32 to 64 bytes for each key. Two keys that share 64 bits of hash share their revision.
    """

    def __init__(self) -> None:
        self._hashes: IntArray = np.zeros(_FIRST_SLOTS, np.int64)
        self._revisions: IntArray = np.zeros(_FIRST_SLOTS, np.int64)
        self._count = 0

    def get(self, hashes: IntArray) -> IntArray:
        """The revision of each of these keys, 0 where there is none. Hashes are those of `hashed`."""
        return self._revisions[self._slots(hashes)]

    def put(self, hashes: IntArray, revisions: IntArray) -> None:
        """Note the revisions of these keys, over those that there are. No key twice."""
        while 2 * (self._count + len(hashes)) > len(self._hashes):
            self._grow()
        self._insert(hashes, revisions)

    def _grow(self) -> None:
        kept = self._hashes != 0
        hashes, revisions = self._hashes[kept], self._revisions[kept]
        size = 2 * len(self._hashes)
        self._hashes, self._revisions, self._count = np.zeros(size, np.int64), np.zeros(size, np.int64), 0
        for first in range(0, len(hashes), _FIRST_SLOTS):  # in portions: what inserting needs besides stays small
            self._insert(hashes[first : first + _FIRST_SLOTS], revisions[first : first + _FIRST_SLOTS])

    def _insert(self, hashes: IntArray, revisions: IntArray) -> None:
        left = np.arange(len(hashes))
        while len(left):
            at = self._slots(hashes[left])
            self._count -= int(np.count_nonzero(self._hashes[at]))
            # Several keys may want one free slot: the last to write has it, the others look on.
            self._hashes[at] = hashes[left]
            won = self._hashes[at] == hashes[left]
            self._revisions[at[won]] = revisions[left[won]]
            self._count += int(np.count_nonzero(won))
            left = left[~won]

    def _slots(self, hashes: IntArray) -> IntArray:
        """Where each key stands, or the free slot where it would."""
        mask = len(self._hashes) - 1
        at: IntArray = hashes & mask
        open_ = np.arange(len(hashes))
        while len(open_):
            here = self._hashes[at[open_]]
            open_ = open_[(here != 0) & (here != hashes[open_])]
            at[open_] = (at[open_] + 1) & mask
        return at


def hashed(subjects: Iterable[bytes], count: int) -> IntArray:
    """Hashes of subjects, none of them 0; good in this process only."""
    found = np.fromiter(map(hash, subjects), np.int64, count)
    found[found == 0] = 1  # stands for a free slot
    return found
