"""Rows of a DataFrame as the parts of messages, some of which can never be stored. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import (
    BoolArray,
    IntArray,
    as_arrow,
    as_vector,
    binaries,
    flags,
    piece,
)
from spark_jetstream.sink.commands import EXPECTED_HEADER, NO_COMMANDS, Commands

_ALL = piece(b"all")


@dataclass(frozen=True)
class Rows:
    """The parts of n messages.

    `subject`, `data` and `lines` are Arrow binary arrays of length n without nulls. `lines` holds
    the header lines of each row (`Name: value` CR LF ..., empty for a row without any), without the
    version line. `msg_id` is a binary array with nulls for rows without one, or None. `number`
    counts the rows of the task from 1 (int64).

    `faults` maps indices to the reason why the row can never be stored. A row with a fault keeps
    the subject that was given. A dead letter can hold its other parts: invalid headers and ids are
    left out, and null is empty.

    `left_out` maps the names of `SERVER_HEADERS` that column headers held to the first row of each,
    in the order of the rows. With `ends` they are groups: group i, which ends before row `ends[i]`,
    is stored whole or not at all.

    `origin` names the message that each row was read from, by stream and sequence, with nulls where
    a row does not say. It is None without these columns. `commands` are the requests that columns
    make of the server; `lines` make the same requests.
    """

    number: IntArray
    subject: pa.BinaryArray
    data: pa.BinaryArray
    lines: pa.BinaryArray
    msg_id: pa.BinaryArray | None
    faults: dict[int, str] = field(default_factory=dict)
    left_out: dict[bytes, int] = field(default_factory=dict)
    ends: IntArray | None = None
    origin: pa.BinaryArray | None = None
    commands: Commands = NO_COMMANDS

    @classmethod
    def of_messages(
        cls,
        number: IntArray,
        subject: pa.BinaryArray,
        data: pa.BinaryArray,
        lines: pa.BinaryArray,
    ) -> Rows:
        """Return messages as rows. Their header lines are not made of columns."""
        return cls(number, subject, data, lines, None, commands=Commands.in_lines(lines))

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return rows one after the other, without `left_out` and `ends`.

        All parts come from the same DataFrame: they have the same columns.
        """
        faults = {}
        begin = 0
        for part in parts:
            for index, reason in part.faults.items():
                faults[begin + index] = reason
            begin += len(part)
        return cls(
            np.concatenate([part.number for part in parts]),
            pa.concat_arrays([part.subject for part in parts]),
            pa.concat_arrays([part.data for part in parts]),
            pa.concat_arrays([part.lines for part in parts]),
            _joined([part.msg_id for part in parts]),
            faults,
            origin=_joined([part.origin for part in parts]),
            commands=Commands.joined([part.commands for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.number)

    def take(self, indices: IntArray) -> Rows:
        """Return the rows with these indices, no index twice, without `ends`."""
        pick = as_arrow(indices)
        return Rows(
            self.number[indices],
            self.subject.take(pick),
            self.data.take(pick),
            self.lines.take(pick),
            None if self.msg_id is None else self.msg_id.take(pick),
            self._faults_of(indices) if self.faults else {},
            origin=None if self.origin is None else self.origin.take(pick),
            commands=self.commands.take(pick),
        )

    def _faults_of(self, indices: IntArray) -> dict[int, str]:
        """Return the faults of the rows with these indices, by their places there."""
        faults = {}
        for place, index in enumerate(indices.tolist()):
            if index in self.faults:
                faults[place] = self.faults[index]
        return faults

    # Vectors of flags, one for each row

    @property
    def faulty(self) -> BoolArray:
        """The rows that can never be stored."""
        marked = np.zeros(len(self), np.bool_)
        marked[list(self.faults)] = True
        return marked

    @property
    def grouped(self) -> BoolArray:
        """The rows that are stored with others, or not at all."""
        return self._having(self.commands.group)

    @property
    def counting(self) -> BoolArray:
        """The rows that are increments of counters."""
        return self._having(self.commands.incr)

    @property
    def expecting(self) -> BoolArray:
        """The rows that are only stored after a certain message of their subject."""
        return self._having(self.commands.expected)

    @property
    def scheduled(self) -> BoolArray:
        """The rows that are schedules."""
        return self._having(self.commands.schedule)

    @property
    def rolling(self) -> BoolArray:
        """The rows that replace others of their subject, or all others."""
        # A subject keeps its last schedule: a schedule is a roll-up of its subject (ADR-51).
        return self.scheduled | self._having(self.commands.rollup)

    @property
    def rolling_all(self) -> BoolArray:
        """The rows that replace the messages of all subjects."""
        if self.commands.rollup is None:
            return np.zeros(len(self), np.bool_)
        return flags(pc.equal(self.commands.rollup, _ALL))

    def _having(self, column: pa.Array | None) -> BoolArray:
        """Mark the rows that have a value in a command column."""
        if column is None:
            return np.zeros(len(self), np.bool_)
        return as_vector(column.is_valid())


def _joined(parts: Sequence[pa.Array | None]) -> pa.Array | None:
    """Return arrays one after the other, None if they are None."""
    present = [part for part in parts if part is not None]
    return pa.concat_arrays(present) if present else None


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
        """The subject it was meant for, with U+FFFD for bytes that are not UTF-8."""
        return self.raw_subject.decode("utf-8", "replace")

    @property
    def raw_subject(self) -> bytes:
        """The bytes of that subject."""
        return bytes(self.rows.subject[self.index].as_py())

    @property
    def data(self) -> bytes:
        """The payload."""
        return bytes(self.rows.data[self.index].as_py())

    @property
    def lines(self) -> bytes:
        """The row's own header lines."""
        return bytes(self.rows.lines[self.index].as_py())

    @property
    def group(self) -> bytes | None:
        """The name of its group."""
        group: bytes | None = self._value(self.rows.commands.group)
        return group

    @property
    def expected(self) -> int | None:
        """The last sequence that its subject must have."""
        expected: int | None = self._value(self.rows.commands.expected)
        return expected

    def expecting(self, sequence: int) -> Rows:
        """Return the row, which expects a sequence, as one that expects another."""
        row = self.rows.take(np.array([self.index]))
        # The server reads the header line, and the sink the column: both change.
        line = EXPECTED_HEADER + b": %d\r\n"
        lines = self.lines.replace(line % self.expected, line % sequence)
        commands = replace(row.commands, expected=as_arrow(np.array([sequence])))
        return replace(row, lines=binaries([lines]), commands=commands)

    def command(self, column: str) -> bytes | None:
        """Return the value of a command column with binary values."""
        value: bytes | None = self._value(vars(self.rows.commands)[column])
        return value

    @property
    def number(self) -> int:
        """The number of the row in its task, from 1."""
        return int(self.rows.number[self.index])

    def _value(self, column: pa.Array | None) -> Any:
        return None if column is None else column[self.index].as_py()
