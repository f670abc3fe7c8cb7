"""Turns: rows that may remove others wait for each other.

`sink.rollups` says which rows these are.
"""

from __future__ import annotations

import pyarrow as pa

from spark_jetstream.protocol.arrow import IntArray, as_arrow
from spark_jetstream.sink.order import Order
from spark_jetstream.sink.rollups import Rollups, ids_of_copies
from spark_jetstream.sink.rows import Rows
from spark_jetstream.sink.sender import Sender


class Turns(Order):
    """Sends roll-ups and schedules in turns: each turn is stored before the next one is sent."""

    def __init__(self, sender: Sender, rollups: Rollups) -> None:
        super().__init__(sender)
        self._rollups = rollups

    def accept(self, rows: Rows) -> Rows:
        """Note faults of rows at a subject that belongs to a schedule alone (`Rollups.check`)."""
        self._rollups.check(rows)
        return rows

    def send(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send the turns of a portion one after the other."""
        named = self._rollups.named(rows, ids)
        for at in self._rollups.turns(named):
            self._send_turn(named.take(at), _taken(ids, at))

    def _send_turn(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send a turn, and rows of it once more that were stored before rows that they must follow."""
        flight = self.sender.publish(rows, ids)
        self.wait()
        early, after = self._rollups.too_early(flight)
        while len(early):
            rows = rows.take(early)
            ids = None if ids is None else ids_of_copies(ids.take(as_arrow(early)), after)
            flight = self.sender.publish_copies(rows, ids)
            self.wait()
            early, after = self._rollups.too_early(flight)


def _taken(ids: pa.BinaryArray | None, at: IntArray) -> pa.BinaryArray | None:
    return None if ids is None else ids.take(as_arrow(at))
