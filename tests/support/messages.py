"""Runs of messages made up for tests: any class that has the methods of `columns.Messages` will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.headers import HEADERS_TYPE
from spark_jetstream.protocol.wire import IntArray


@dataclass(frozen=True)
class Made:
    """Messages with sequences from `first` on, stored a microsecond apart; implements `columns.Messages`."""

    rows: Sequence[tuple[str, bytes, Mapping[str, Sequence[str]] | None]]
    first: int = 1

    @property
    def sequences(self) -> IntArray:
        """As `Messages` has it."""
        return np.arange(self.first, self.first + len(self), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def timestamps(self) -> IntArray:
        """As `Messages` has it."""
        times: IntArray = self.sequences * 1000
        return times

    def subjects(self) -> pa.StringArray:
        """As `Messages` has it."""
        return pa.array([subject for subject, _, _ in self.rows], pa.string())

    def headers(self) -> pa.MapArray:
        """As `Messages` has it."""
        each = [None if given is None else [(name, list(values)) for name, values in given.items()]
                for _, _, given in self.rows]  # fmt: skip
        return pa.array(each, HEADERS_TYPE)

    def payloads(self) -> pa.BinaryArray:
        """As `Messages` has it."""
        return pa.array([data for _, data, _ in self.rows], pa.binary())
