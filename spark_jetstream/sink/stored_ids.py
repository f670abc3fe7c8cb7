"""The message ids that a stream holds of one batch, and as which messages. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.protocol.arrow import IntArray
from spark_jetstream.sink.id_keys import Keys, batch_keys, rows_of_keys

Marks = npt.NDArray[np.uint8]

SCHEDULED = np.uint8(1)
"""The message is a schedule, or a schedule has published it: its subject keeps the last of equal rows only."""
GUARDED = np.uint8(2)
"""The message expected a sequence, or is part of a group.

The server takes the first of equal rows.
"""


class StoredIds:
    """Message ids and sequences of one stream, 25 bytes for each id of the batch.

    `prefix` begins the ids of the batch (`WriteTask.prefix`). With `own` the ids of users are kept
    as well, as long as they are and some 100 bytes more.
    """

    def __init__(self, prefix: bytes, *, own: bool) -> None:
        self._prefix = prefix
        self._own: dict[bytes, int] | None = {} if own else None
        self._keys: Keys = np.zeros(0, "S16")  # in their order
        self._sequences: IntArray = np.zeros(0, np.int64)
        self._marks: Marks = np.zeros(0, np.uint8)
        self._added: list[tuple[Keys, IntArray, Marks]] = []
        # Messages with the id of an earlier one, by row, until `find` gives them away, by key:
        self._doubled: dict[bytes, list[int]] = {}
        self._given: dict[bytes, int] = {}

    def __len__(self) -> int:
        added = sum(len(keys) for keys, _, _ in self._added)
        return len(self._keys) + added + len(self._own or ())

    def add(self, ids: pa.BinaryArray, sequences: IntArray, marks: Marks) -> None:
        """Add messages by their ids; those of other batches are passed over."""
        keys, indices = batch_keys(ids, self._prefix)
        if len(keys):
            self._added.append((keys, sequences[indices], marks[indices]))
        if self._own is None:
            return
        for index in np.setdiff1d(np.arange(len(ids)), indices, assume_unique=True).tolist():
            self._own[ids[index].as_py()] = int(sequences[index])

    def use_doubled(self) -> None:
        """Let `find` return messages that have the id of an earlier one by now as other equal rows.

        Equal rows of two tasks have one id, and a stream that has forgotten it between the two
        tasks has stored both. If both rows are in one task now, the second one has an id with a
        number, which the stream does not have.
        """
        self._sort()
        again = np.zeros(len(self._keys), np.bool_)
        again[1:] = self._keys[1:] == self._keys[:-1]
        # A schedule shares its id with the messages that it has published, and is no other row. Of
        # guarded rows the stream takes one.
        at = np.flatnonzero(again & (self._marks == 0))
        rows, _ = rows_of_keys(self._keys[at])
        for row, sequence in zip(rows.tolist(), self._sequences[at].tolist(), strict=True):
            self._doubled.setdefault(row, []).append(sequence)

    def find(self, ids: pa.BinaryArray) -> IntArray:
        """Return the sequence of the message with each id, the first one if there are more, and 0 if there is none."""
        found = np.zeros(len(ids), np.int64)
        keys, indices = batch_keys(ids, self._prefix)
        self._sort()
        if len(self._keys) and len(keys):
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            found[indices] = np.where(self._keys[at] == keys, self._sequences[at], 0)
            if self._doubled:
                self._find_doubled(keys, indices, found)
        if self._own:
            for index in np.setdiff1d(np.arange(len(ids)), indices, assume_unique=True).tolist():
                found[index] = self._own.get(ids[index].as_py(), 0)
        return found

    def _find_doubled(self, keys: Keys, indices: IntArray, found: IntArray) -> None:
        """Give each id that is missing a message of an equal row, as long as there are some."""
        at = np.flatnonzero(found[indices] == 0)
        rows, _ = rows_of_keys(keys[at])
        for index, key, row in zip(
            indices[at].tolist(), keys[at].tolist(), rows.tolist(), strict=True
        ):
            # A message is one row for good: two rows with one message would count as one.
            if key not in self._given and self._doubled.get(row):
                self._given[key] = self._doubled[row].pop(0)
            found[index] = self._given.get(key, 0)

    def others(self) -> IntArray:
        """Return the sequences of messages with ids of users, which are only kept with `own`."""
        return np.array(list((self._own or {}).values()), np.int64)

    def messages(self) -> tuple[Keys, IntArray, Marks]:
        """Return keys, sequences and marks of the messages of the batch, in the order of their keys."""
        self._sort()
        return self._keys, self._sequences, self._marks

    def _sort(self) -> None:
        if not self._added:
            return
        parts = [(self._keys, self._sequences, self._marks), *self._added]
        keys, sequences, marks = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        # Of messages with one id the first comes first. A schedule names its id twice.
        order = np.lexsort((sequences, keys))
        distinct = np.ones(len(order), np.bool_)
        distinct[1:] = np.diff(sequences[order]) != 0
        order = order[distinct]
        self._keys = keys[order]
        self._sequences = sequences[order]
        self._marks = marks[order]
        self._added = []
