"""Which subjects came already, remembered by hashes: eight bytes for each, whatever its length. Pure.

Two subjects of n have the same hash with a probability of about n * n / 2**65: one in a million for six million.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.protocol.vectors import load8
from spark_jetstream.protocol.wire import IntArray

Hashes = npt.NDArray[np.uint64]

_WORD = 8
_SEED = np.uint64(0x2545F4914F6CDD1D)
_MUL_A = np.uint64(0x9E3779B97F4A7C15)
_MUL_B = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONES = np.uint64(2**64 - 1)


def subject_hashes(subjects: pa.StringArray) -> Hashes:
    """A hash of 64 bits for each subject; equal in every process and on every machine.

    Of subjects of the same length no two that differ in no more than eight bytes in a row, counted from the first in
    steps of eight, have the same hash.
    """
    count = len(subjects)
    _, offsets, data = subjects.buffers()
    bounds = np.frombuffer(offsets, np.int32)[subjects.offset : subjects.offset + count + 1].astype(np.int64)
    first, end = int(bounds[0]), int(bounds[-1])
    octets = np.zeros(end - first + _WORD, np.uint8)
    if end > first:
        octets[: end - first] = np.frombuffer(data, np.uint8, end - first, first)
    start, length = bounds[:-1] - first, np.diff(bounds)
    hashes = _mixed(length.astype(np.uint64) ^ _SEED)
    for position in range(0, int(length.max(initial=0)), _WORD):
        rows = np.flatnonzero(length > position)
        left = np.minimum(length[rows] - position, _WORD).astype(np.uint64)
        word = load8(octets, start[rows] + position) & (_ONES >> (np.uint64(64) - left * np.uint64(8)))
        hashes[rows] = _mixed(hashes[rows] ^ word)
    return hashes


def _mixed(word: Hashes) -> Hashes:
    """A bijection of 64 bits that spreads each bit over all of them."""
    word = word * _MUL_A
    word ^= word >> _HALF
    word *= _MUL_B
    word ^= word >> _HALF
    return word


class HashSet:
    """A growing set of hashes."""

    def __init__(self) -> None:
        self._added: list[Hashes] = []
        self._sorted: list[Hashes] = []

    def add(self, hashes: Hashes) -> None:
        """Remember these."""
        self._added.append(hashes)

    def take_new(self, hashes: Hashes) -> IntArray:
        """The places of those that were not remembered, ascending, of equal ones the last; all are remembered now."""
        self._settle()
        values, from_end = np.unique(hashes[::-1], return_index=True)
        places = len(hashes) - 1 - from_end
        known = np.zeros(len(values), np.bool_)
        for some in self._sorted:
            at = np.minimum(some.searchsorted(values), len(some) - 1)
            known |= some[at] == values
        self.add(values[~known])
        new: IntArray = np.sort(places[~known])
        return new

    def _settle(self) -> None:
        """Sort what was added. Arrays of about one size become one, so there are few, and each is sorted few times."""
        added = [some for some in self._added if len(some)]
        self._added = []
        if added:
            self._sorted.append(np.sort(np.concatenate(added)))
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            self._sorted[-2:] = [np.sort(np.concatenate(self._sorted[-2:]), kind="stable")]


__all__ = ["HashSet", "Hashes", "subject_hashes"]
