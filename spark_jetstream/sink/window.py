"""Rows in flight: which of them lack an answer, and what the answers say. No socket."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.sink.encode import Encoded
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import IntArray, RefusedRow, Rows

_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)  # seconds before each retry of a row; the last one before all later retries


@dataclass(eq=False)
class InFlight:
    """A portion of rows in flight.

    `waiting` marks the rows without an answer, `left` is their number. `again` marks the rows that were sent more than
    once, `tries` counts how often the server refused each row for the time being, and `timeouts` how often the portion
    got no answer in time. `due` maps rows to the time of their next retry. `after` maps streams to the last sequence
    that was known when the rows were first sent: the rows can only be stored behind it. `sequences` holds the sequence
    of each stored row, 0 for the others, and `known` marks the rows that the stream had stored before.
    """

    rows: Rows
    ids: pa.BinaryArray | None
    encoded: Encoded
    first: int
    counted: Totals
    after: Mapping[str, int]
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
        self.tries: npt.NDArray[np.int32] = np.zeros(self.left, np.int32)

    @property
    def nbytes(self) -> int:
        """The size of the encoded frames in bytes."""
        return int(self.encoded.bounds[-1])

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the rows without an answer as ranges of neighbours: first index, last index + 1."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.waiting, [False])).astype(np.int8)))
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)

    def waiting_ids(self) -> Iterator[tuple[int, bytes]]:
        """Yield index and message id of each row without an answer; nothing if the rows have no ids."""
        if self.ids is not None:
            at = np.flatnonzero(self.waiting)
            yield from zip(at.tolist(), self.ids.take(pa.array(at)).to_pylist(), strict=True)

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
