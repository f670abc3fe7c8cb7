"""Rows in flight: which of them lack an answer, and what the answers say. No socket."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.protocol.pub_ack import StoredAcks
from spark_jetstream.sink.encode import Encoded
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import IntArray, RefusedRow, Rows

_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)  # seconds before each retry of a row; the last one before all later retries


class SharedReply:
    """The answers to rows that have one reply subject: they say how many rows are stored, but not which.

    They prove that all `rows` rows are stored if there are as many, all good, of stream and domain `place`, and each of
    a message of its own. A publish may have two answers, one of them late: streams of two domains may capture a
    subject. So answers of another place prove nothing, even if there are no others.
    """

    def __init__(self, rows: int, place: tuple[str, str]) -> None:
        self.rows = rows
        self.place = place
        self.stored = self.duplicates = self.refused = 0
        self._fresh: dict[tuple[str, str], list[IntArray]] = {}

    def take(self, stored: StoredAcks, mine: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """Take the marked answers; return how many they are, and how many of them are duplicates."""
        known = mine & stored.duplicate
        count, duplicates = int(np.count_nonzero(mine)), int(np.count_nonzero(known))
        self.stored += count
        self.duplicates += duplicates
        self._fresh.setdefault((stored.stream, stored.domain), []).append(stored.sequences[mine & ~known])
        return count, duplicates

    @property
    def complete(self) -> bool:
        """Whether there are as many answers as rows."""
        return self.stored + self.refused >= self.rows

    @property
    def proof(self) -> bool:
        """Whether all rows are stored."""
        fresh = self.sequences()
        if (self.stored, self.refused, list(fresh)) != (self.rows, 0, [self.place]):
            return False
        return len(np.unique(fresh[self.place])) == len(fresh[self.place])

    def sequences(self) -> dict[tuple[str, str], IntArray]:
        """Return the messages that the answers name by stream and domain, without those stored by earlier attempts."""
        return {place: np.concatenate(sequences) for place, sequences in self._fresh.items()}


@dataclass(eq=False)
class InFlight:
    """A portion of rows in flight.

    `shared` holds the answers as long as all rows have one reply subject, of number `first`; then `left` is the number
    of rows without an answer, and nobody knows which rows these are. Without it row i has number `first` + i.
    `waiting` marks the rows without an answer, `left` is their number. `again` marks the rows that were sent more than
    once, `tries` counts how often the server refused each row for the time being, and `timeouts` how often the portion
    got no answer in time. `due` maps rows to the time of their next retry. `after` maps streams to the last sequence
    that was known when the rows were first sent: the rows can only be stored behind it. `sequences` holds the sequence
    of each stored row, 0 for the others, and `known` marks the rows that the stream had stored before; both are only
    kept of rows with numbers of their own. `own` are the messages as which rows of the portion were stored that were
    sent again since.
    """

    rows: Rows
    ids: pa.BinaryArray | None
    stream: str | None
    encoded: Encoded
    first: int
    counted: Totals
    after: Mapping[str, int]
    shared: SharedReply | None = None
    begun: float = field(default_factory=time.monotonic)
    sent: float = 0.0
    timeouts: int = 0
    due: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = len(self.rows)
        self.waiting: npt.NDArray[np.bool_] = np.ones(self.left, np.bool_)
        self.again: npt.NDArray[np.bool_] = np.zeros(self.left, np.bool_)
        self.known: npt.NDArray[np.bool_] = np.zeros(self.left, np.bool_)
        self.sequences: IntArray = np.zeros(self.left, np.int64)
        self.own: IntArray = np.zeros(0, np.int64)
        self.tries: npt.NDArray[np.int32] = np.zeros(self.left, np.int32)

    @property
    def nbytes(self) -> int:
        """The size of the encoded frames in bytes."""
        return int(self.encoded.bounds[-1])

    def runs(self, marked: npt.NDArray[np.bool_] | None = None) -> Iterator[tuple[int, int]]:
        """Yield the marked rows (those without an answer) as ranges of neighbours: first index, last index + 1."""
        marked = self.waiting if marked is None else marked
        edges = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(np.int8)))
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)

    def waiting_ids(self) -> Iterator[tuple[int, bytes]]:
        """Yield index and message id of each row without an answer; nothing if the rows have no ids."""
        if self.ids is not None:
            at = np.flatnonzero(self.waiting)
            yield from zip(at.tolist(), self.ids.take(pa.array(at)).to_pylist(), strict=True)

    def answered_by(self, numbers: IntArray) -> npt.NDArray[np.bool_]:
        """Mark the numbers that are of this portion."""
        last = self.first if self.shared is not None else self.first + len(self.rows) - 1
        mine: npt.NDArray[np.bool_] = (numbers >= self.first) & (numbers <= last)
        return mine

    def take_shared(self, stored: StoredAcks, mine: npt.NDArray[np.bool_]) -> None:
        """Take the marked answers to the shared reply subject."""
        assert self.shared is not None
        count, duplicates = self.shared.take(stored, mine)
        self.counted.stored += count
        self.counted.duplicates += duplicates
        self.left -= count

    def separate(self, encoded: Encoded, first: int) -> None:
        """Go on with these frames, which give each row a number of its own, from `first` on."""
        assert self.shared is not None
        self.counted.stored -= self.shared.stored
        self.counted.duplicates -= self.shared.duplicates
        self.own = np.concatenate([*self.shared.sequences().values(), np.zeros(0, np.int64)])
        self.shared = None
        self.encoded, self.first = encoded, first
        self.left = int(np.count_nonzero(self.waiting))

    def settle_shared(self) -> None:
        """Mark all rows as stored: the answers to the shared reply subject prove it."""
        self.shared = None
        self.waiting[:] = False

    def settle(self, index: int) -> None:
        """Mark a row as one that needs no answer any more."""
        if self.waiting[index]:
            self.waiting[index] = False
            self.left -= 1
            self.due.pop(index, None)

    def settle_as_duplicate(self, index: int, stream: str, sequence: int) -> None:
        """Count a row whose acknowledgement was lost as stored, as this message of a stream."""
        self.settle(index)
        self.sequences[index] = sequence
        self.known[index] = True
        self.counted.note_duplicate(stream, sequence)

    def postpone(self, index: int) -> None:
        """Schedule a row for a retry, after a pause that grows with each try."""
        self.due[index] = time.monotonic() + _PAUSES[min(int(self.tries[index]), len(_PAUSES) - 1)]
        self.tries[index] += 1

    def refuse_large(self, most: int) -> list[RefusedRow]:
        """Settle and return the rows that have more than `most` bytes, header and payload."""
        refused = []
        for index in np.flatnonzero(self.encoded.size > most).tolist():
            size = int(self.encoded.size[index])
            why = f"header and payload have {size} bytes, and the server takes {most} (max_payload)"
            refused.append(self.refuse(index, why, 0))
        return refused

    def row(self, index: int, why: str = "", err_code: int = 0) -> RefusedRow:
        """Return one row by itself, with the reason why it is not stored."""
        message_id = None if self.ids is None else self.ids[index].as_py()
        return RefusedRow(self.rows, index, message_id, why, err_code)

    def refuse(self, index: int, why: str, err_code: int) -> RefusedRow:
        """Settle a row and return it with the reason why it can never be stored."""
        self.settle(index)
        return self.row(index, why, err_code)
