"""Hashes of subjects, and tables of hashes, all as vectors.

Two of n subjects have the same hash with a probability of about n * n / 2**65: one in a million for
six million. The hashes are this process's own, so that nobody can choose subjects whose hashes are
equal.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.protocol.arrow import BoolArray, IntArray
from spark_jetstream.protocol.vectors import load8

Hashes = npt.NDArray[np.uint64]

_WORD = 8
STABLE = np.uint64(0x2545F4914F6CDD1D)
"""The seed of hashes that are the same in every process and on every machine."""
_SECRET = np.frombuffer(os.urandom(8), np.uint64)[0]
_MUL_A = np.uint64(0x9E3779B97F4A7C15)
_MUL_B = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONES = np.uint64(2**64 - 1)
_FIRST_SLOTS = 1 << 12


def subject_hashes(subjects: pa.StringArray | pa.BinaryArray, seed: np.uint64 = _SECRET) -> Hashes:
    """Return a hash of 64 bits for each subject, of this process unless the seed is `STABLE`.

    Two subjects of the same length that differ in only one word of eight bytes never have the same
    hash.
    """
    count = len(subjects)
    # A slice shares the buffers of the whole array.
    _, offsets, data = subjects.buffers()
    whole = np.frombuffer(offsets, np.int32)
    bounds = whole[subjects.offset : subjects.offset + count + 1].astype(np.int64)
    first = int(bounds[0])
    end = int(bounds[-1])
    # Reading a word needs eight bytes, also behind the last subject.
    octets = np.zeros(end - first + _WORD, np.uint8)
    if end > first:
        octets[: end - first] = np.frombuffer(data, np.uint8, end - first, first)
    start = bounds[:-1] - first
    length = np.diff(bounds)
    # Mix in the length, and then one word of each subject after the other.
    hashes = _mixed(length.astype(np.uint64) ^ seed)
    for position in range(0, int(length.max(initial=0)), _WORD):
        # int64: the subjects that have a word at this position.
        rows = np.flatnonzero(length > position)
        left = np.minimum(length[rows] - position, _WORD).astype(np.uint64)
        # Of the last word, only the bytes of the subject.
        of_subject = _ONES >> (np.uint64(64) - left * np.uint64(8))
        word = load8(octets, start[rows] + position) & of_subject
        hashes[rows] = _mixed(hashes[rows] ^ word)
    return hashes


def _mixed(word: Hashes) -> Hashes:
    """Return a bijection of 64 bits that spreads each bit over all of them."""
    word = word * _MUL_A
    word ^= word >> _HALF
    word *= _MUL_B
    word ^= word >> _HALF
    return word


class HashSet:
    """A growing set of 64-bit hashes, with 16 to 32 bytes for each.

    It is one flat table with open addressing, at most half full.
    """

    def __init__(self) -> None:
        # 0 is a free slot. The table is doubled before it is half full.
        self._table: Hashes = np.zeros(_FIRST_SLOTS, np.uint64)
        self._count = 0  # hashes in the table

    def add(self, hashes: Hashes) -> BoolArray:
        """Add distinct hashes and return for each of them whether it was in the set before."""
        hashes = _not_zero(hashes)
        # All of them may be new, and a search in a full table would never end.
        while 2 * (self._count + len(hashes)) > len(self._table):
            self._grow()
        known = self._insert(hashes)
        self._count += len(hashes) - int(np.count_nonzero(known))
        return known

    def has(self, hashes: Hashes) -> BoolArray:
        """Return for each hash whether it is in the set."""
        hashes = _not_zero(hashes)
        found: BoolArray = self._table[self._slots(hashes)] == hashes
        return found

    def take_new(self, hashes: Hashes) -> IntArray:
        """Add `hashes` and return the indices of the new ones, ascending.

        If `hashes` has a hash more than once, the index of the last one is returned.
        """
        # `unique` returns the first index of each; here that is the last one.
        distinct, from_end = np.unique(hashes[::-1], return_index=True)
        new: IntArray = np.sort(len(hashes) - 1 - from_end[~self.add(distinct)])
        return new

    def _grow(self) -> None:
        old = self._table[self._table != 0]
        self._table = np.zeros(2 * len(self._table), np.uint64)
        # In portions: they bound the memory that inserting needs.
        for first in range(0, len(old), _FIRST_SLOTS):
            self._insert(old[first : first + _FIRST_SLOTS])

    def _insert(self, hashes: Hashes) -> BoolArray:
        """Put distinct hashes into free slots; return which were in the table."""
        known = np.zeros(len(hashes), np.bool_)
        at = self._first_slots(hashes)
        left = np.arange(len(hashes))
        while len(left):
            wanted, places = hashes[left], at[left]
            before = self._table[places]
            known[left] = before == wanted
            # Several hashes may want one free slot: the last one written has it, the others move
            # on.
            self._table[places] = np.where(before == 0, wanted, before)
            left = left[self._table[places] != wanted]
            at[left] = (at[left] + 1) & (len(self._table) - 1)
        return known

    def _slots(self, hashes: Hashes) -> IntArray:
        """Return the slot of each hash, or the free slot where it would be."""
        at = self._first_slots(hashes)
        left = np.arange(len(hashes))
        while len(left):
            there = self._table[at[left]]
            left = left[(there != 0) & (there != hashes[left])]
            at[left] = (at[left] + 1) & (len(self._table) - 1)
        return at

    def _first_slots(self, hashes: Hashes) -> IntArray:
        """Return where the search for each hash begins. The number of slots is a power of two."""
        slots: IntArray = (hashes & np.uint64(len(self._table) - 1)).astype(np.int64)
        return slots


class HashMap(HashSet):
    """A `HashSet` with a number for each hash, 0 by default; 32 to 64 bytes for each."""

    def __init__(self) -> None:
        super().__init__()
        # Of the hashes in the same slots of the table.
        self._numbers: IntArray = np.zeros(_FIRST_SLOTS, np.int64)

    def get(self, hashes: Hashes) -> IntArray:
        """Return the number of each hash, 0 for one that has none."""
        return self._numbers[self._slots(_not_zero(hashes))]

    def put(self, hashes: Hashes, numbers: IntArray) -> None:
        """Set the numbers of distinct hashes."""
        self.add(hashes)
        self._numbers[self._slots(_not_zero(hashes))] = numbers

    def _grow(self) -> None:
        hashes = self._table
        numbers = self._numbers
        super()._grow()
        self._numbers = np.zeros(len(self._table), np.int64)
        for first in range(0, len(hashes), _FIRST_SLOTS):
            used = first + np.flatnonzero(hashes[first : first + _FIRST_SLOTS])
            self._numbers[self._slots(hashes[used])] = numbers[used]


def _not_zero(hashes: Hashes) -> Hashes:
    """Return the hashes with 1 in place of 0, which marks a free slot."""
    changed: Hashes = hashes + (hashes == 0)
    return changed
