"""Equal rows in several tasks of a batch: rows without a message, and messages without a row. Pure.

Equal rows of two tasks have the same message id, so that a row has its id in whichever partition it
is. The server keeps the first message of an id, and each task claims it. The driver counts for each
row, equal ones together, how many tasks claim it and how many messages it has:

- If there are fewer messages than claims, copies are missing. They get the numbers that follow:
  after that the ids of a batch are the same, however its rows are divided among partitions.
- If there are more messages than claims, an earlier run has stored other rows, or the stream forgot
  an id and stored a message twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spark_jetstream.protocol.arrow import BoolArray, IntArray
from spark_jetstream.sink.id_keys import id_of_key, rows_of_keys
from spark_jetstream.sink.stored_ids import GUARDED, SCHEDULED, Marks, StoredIds


@dataclass(frozen=True)
class Missing:
    """Copies of a row that are to be stored.

    `sequences` are those of its messages, and `ids` those of the copies.
    """

    sequences: list[int]
    ids: list[bytes]


@dataclass(frozen=True)
class Balance:
    """The messages of a stream compared with the claims of tasks.

    `strangers` messages are rows that no task has. `doubled` messages have the id of an earlier
    one. `lost` claims are for a message that another task claims as well, and that is gone.
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
    # Equal rows together are one of `distinct`; `row_of` has its index for each message.
    distinct, row_of = np.unique(rows, return_inverse=True)
    count = len(distinct)
    # Rows with ids of users are not compared: two of them with one id are one row.
    others = stored.others()
    if len(others):
        claims = claims[~np.isin(claims, others)]
    claimed, gone = _claimed(sequences, claims)
    # By row: its claims, its messages, and the different ids of its messages.
    needed = np.bincount(row_of[claimed], minlength=count)
    held = np.bincount(row_of, minlength=count)
    named = _distinct_numbers(row_of, numbers, count)
    scheduled = _marked(row_of, marks, SCHEDULED, count)
    guarded = _marked(row_of, marks, GUARDED, count)

    messages_gone = len(np.unique(gone))
    # A message that is gone was that of a row, and the row may have other messages that nobody
    # claims.
    unclaimed = int(held[(needed == 0) & ~scheduled].sum()) - messages_gone
    strangers = max(0, unclaimed)
    lost = len(gone) - messages_gone
    if not numbered:
        return Balance([], strangers, 0, 0)
    counted = (needed > 0) & ~scheduled
    different = np.where(counted, np.maximum(named - needed, 0), 0)
    surplus = np.where(counted, np.maximum(held - needed, 0), 0)
    missing = []
    # The messages of row i are `order[ends[i] - held[i] : ends[i]]`.
    order = np.argsort(row_of, kind="stable")
    ends = np.cumsum(held)
    # The server takes one of equal rows with a guard, so the others get no copy.
    short = counted & ~guarded & (needed > held)
    for row in np.flatnonzero(short).tolist():
        mine = order[ends[row] - held[row] : ends[row]]
        new = _next_numbers(set(numbers[mine].tolist()), int(needed[row] - held[row]))
        ids = [id_of_key(bytes(distinct[row]), number, prefix) for number in new]
        missing.append(Missing(sequences[mine].tolist(), ids))
    return Balance(
        missing, strangers + int(different.sum()), int((surplus - different).sum()), lost
    )


def _marked(row_of: IntArray, marks: Marks, mark: np.uint8, count: int) -> BoolArray:
    """Return for each row whether one of its messages has a mark."""
    return np.bincount(row_of[marks & mark > 0], minlength=count) > 0


def _claimed(sequences: IntArray, claims: IntArray) -> tuple[IntArray, IntArray]:
    """Return the indices of claimed messages, each as often as tasks claim it.

    The second result has the claims for which there is no message.
    """
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
