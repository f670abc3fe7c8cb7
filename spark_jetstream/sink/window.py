"""Rows under way: which of them have no answer yet, and what the answers add up to. No socket."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.sink.encode import Encoded
from spark_jetstream.sink.rows import IntArray, Rows

_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)  # seconds before each next try of a row; the last one again and again


@dataclass
class Totals:
    """What is stored: rows, how many of them had been stored before, and each stream's first and last sequence."""

    stored: int = 0
    duplicates: int = 0
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, stream: str, first: int, last: int) -> None:
        """Sequences first to last of a stream are among those stored."""
        known = self.streams.get(stream, (first, last))
        self.streams[stream] = min(known[0], first), max(known[1], last)

    def note_duplicate(self, stream: str, sequence: int) -> None:
        """A row was stored before, as this message of a stream."""
        self.stored += 1
        self.duplicates += 1
        self.note(stream, sequence, sequence)


def subject_of(rows: Rows, index: int) -> str:
    """Where row `index` goes; with U+FFFD for what is no text."""
    return bytes(rows.subject[index].as_py()).decode("utf-8", "replace")


@dataclass(frozen=True)
class RefusedRow:
    """A row that can never be stored: row `index` of `rows`, with its message id if it has one."""

    rows: Rows
    index: int
    message_id: bytes | None
    reason: str
    err_code: int

    @property
    def subject(self) -> str:
        """Where it should have gone."""
        return subject_of(self.rows, self.index)

    @property
    def number(self) -> int:
        """Which row of the task it is, from 1."""
        return int(self.rows.number[self.index])


class InFlight:
    """A portion of rows under way.

    ``waiting`` says which have no answer yet, ``again`` which were sent more than once, ``tries`` how often each was
    refused for the time being, and ``silences`` how often they got no answer in time. ``after`` maps streams to the
    last sequence known when the rows were first sent: they can only be behind it. ``sequences`` are those that the
    stored ones have got, 0 for the others, and ``known`` says which of them the stream had stored before.
    """

    def __init__(
        self,
        rows: Rows,
        ids: pa.BinaryArray | None,
        encoded: Encoded,
        first: int,
        counted: Totals,
        after: Mapping[str, int],
    ) -> None:
        self.rows = rows
        self.ids = ids
        self.encoded = encoded
        self.first = first
        self.counted = counted
        self.after = after
        self.begun = time.monotonic()
        self.waiting: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        self.left = len(rows)
        self.again: npt.NDArray[np.bool_] = np.zeros(len(rows), np.bool_)
        self.sequences: IntArray = np.zeros(len(rows), np.int64)
        self.known: npt.NDArray[np.bool_] = np.zeros(len(rows), np.bool_)
        self.silences = 0
        self.tries: npt.NDArray[np.int32] = np.zeros(len(rows), np.int32)
        self.due: dict[int, float] = {}
        self.sent = 0.0

    @property
    def nbytes(self) -> int:
        return int(self.encoded.bounds[-1])

    def runs(self) -> Iterator[tuple[int, int]]:
        """The rows without an answer, as ranges of neighbours."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.waiting, [False])).astype(np.int8)))
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)

    def waiting_ids(self) -> Iterator[tuple[int, bytes]]:
        """Index and message id of each row without an answer; nothing when they have no ids."""
        if self.ids is not None:
            at = np.flatnonzero(self.waiting)
            yield from zip(at.tolist(), self.ids.take(pa.array(at)).to_pylist(), strict=True)

    def settle(self, index: int) -> None:
        """The row needs no answer any more."""
        if self.waiting[index]:
            self.waiting[index] = False
            self.left -= 1
            self.due.pop(index, None)

    def settle_as_duplicate(self, index: int, stream: str, sequence: int) -> None:
        """The row is stored, as this message of a stream, by an earlier try of which there is no answer."""
        self.settle(index)
        self.sequences[index] = sequence
        self.known[index] = True
        self.counted.note_duplicate(stream, sequence)

    def postpone(self, index: int) -> None:
        """The row is to be sent again after a pause, which is longer the more often it was."""
        self.due[index] = time.monotonic() + _PAUSES[min(int(self.tries[index]), len(_PAUSES) - 1)]
        self.tries[index] += 1

    def refuse_large(self, most: int) -> list[RefusedRow]:
        """Settle the rows that have more than ``most`` bytes, header and payload; these rows."""
        refused = []
        for index in np.flatnonzero(self.encoded.size > most).tolist():
            self.settle(index)
            size = int(self.encoded.size[index])
            why = f"header and payload have {size} bytes, and the server takes {most} (max_payload)"
            refused.append(self.refusal(index, why, 0))
        return refused

    def subject(self, index: int) -> str:
        """Where a row goes."""
        return subject_of(self.rows, index)

    def refusal(self, index: int, why: str, err_code: int) -> RefusedRow:
        message_id = None if self.ids is None else self.ids[index].as_py()
        return RefusedRow(self.rows, index, message_id, why, err_code)
