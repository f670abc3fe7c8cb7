"""Equal rows in several tasks of a batch: which of them have no message yet, and which messages have no row. Pure.

Equal rows of two tasks have the same message id, so that a row has its id in whichever partition it is. The server
keeps the first of two such messages, and each task claims it. The driver counts for each row, equal ones together, how
many tasks claim it and how many messages it has:

- If there are fewer messages than claims, copies are missing. They get the numbers that follow: after that the ids of
  a batch are the same, however its rows are divided among partitions.
- If there are more messages than claims, an earlier run has stored other rows, or the stream forgot an id and stored a
  message twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spark_jetstream.protocol.arrow import IntArray
from spark_jetstream.sink.id_keys import id_of_key, rows_of_keys
from spark_jetstream.sink.stored_ids import GUARDED, SCHEDULED, StoredIds


@dataclass(frozen=True)
class Missing:
    """Copies of a row that are to be stored: the sequences of its messages, and the ids of its copies."""

    sequences: list[int]
    ids: list[bytes]


@dataclass(frozen=True)
class Balance:
    """The messages of a stream compared with the claims of tasks.

    `strangers` messages are rows that no task has. `doubled` messages have the id of an earlier one. `lost` claims are
    for a message that another task claims as well, and that is gone.
    """

    missing: list[Missing]
    strangers: int
    doubled: int
    lost: int


def claimed_twice(claims: Mapping[str, IntArray]) -> set[str]:
    """Return the streams of which several tasks claim the same message."""
    found = set()
    for stream, sequences in claims.items():
        if len(np.unique(sequences)) < len(sequences):
            found.add(stream)
    return found


def balance(stored: StoredIds, claims: IntArray, prefix: bytes, *, numbered: bool) -> Balance:
    """Compare what a stream has stored of a batch with the claims of all tasks.

    `prefix` begins the ids of the batch. Without `numbered` equal rows count as one row.
    """
    keys, sequences, marks = stored.messages()
    rows, numbers = rows_of_keys(keys)
    distinct, row_of = np.unique(rows, return_inverse=True)
    count = len(distinct)
    # Rows with ids of users are not compared: two of them with one id are one row.
    others = stored.others()
    if len(others):
        claims = claims[~np.isin(claims, others)]
    claimed, gone = _claimed(sequences, claims)
    needed = np.bincount(row_of[claimed], minlength=count)
    held = np.bincount(row_of, minlength=count)
    named = _distinct_numbers(row_of, numbers, count)
    scheduled = np.bincount(row_of[marks & SCHEDULED > 0], minlength=count) > 0
    guarded = np.bincount(row_of[marks & GUARDED > 0], minlength=count) > 0

    # A message that is gone was that of a row, and the row may have other messages that nobody claims.
    unclaimed = int(held[(needed == 0) & ~scheduled].sum()) - len(np.unique(gone))
    strangers = max(0, unclaimed)
    lost = len(gone) - len(np.unique(gone))
    if not numbered:
        return Balance([], strangers, 0, 0)
    counted = (needed > 0) & ~scheduled
    different = np.where(counted, np.maximum(named - needed, 0), 0)
    surplus = np.where(counted, np.maximum(held - needed, 0), 0)
    missing = []
    order = np.argsort(row_of, kind="stable")
    ends = np.cumsum(held)
    for row in np.flatnonzero(counted & ~guarded & (needed > held)).tolist():
        mine = order[ends[row] - held[row] : ends[row]]
        new = _next_numbers(set(numbers[mine].tolist()), int(needed[row] - held[row]))
        ids = [id_of_key(bytes(distinct[row]), number, prefix) for number in new]
        missing.append(Missing(sequences[mine].tolist(), ids))
    return Balance(
        missing, strangers + int(different.sum()), int((surplus - different).sum()), lost
    )


def _claimed(sequences: IntArray, claims: IntArray) -> tuple[IntArray, IntArray]:
    """Return the indices of the messages that tasks claim, each as often as they do, and the claims of no message."""
    if not len(sequences):
        return np.zeros(0, np.int64), claims
    order = np.argsort(sequences)
    at = np.minimum(np.searchsorted(sequences[order], claims), len(sequences) - 1)
    there = sequences[order][at] == claims
    return order[at[there]], claims[~there]


def _distinct_numbers(row_of: IntArray, numbers: IntArray, count: int) -> IntArray:
    """Return how many numbers the messages of each row have."""
    pairs = np.unique(np.stack((row_of, numbers)), axis=1)
    return np.bincount(pairs[0], minlength=count)


def _next_numbers(taken: set[int], count: int) -> list[int]:
    """Return the first `count` numbers that are not taken."""
    found = list[int]()
    number = 0
    while len(found) < count:
        if number not in taken:
            found.append(number)
        number += 1
    return found
