"""Turns: rows that may remove others wait for each other.

`sink.rollups` says which rows these are.
"""

from __future__ import annotations

import pyarrow as pa

from spark_jetstream.sink.order import Order
from spark_jetstream.sink.rollups import Rollups, ids_of_copies
from spark_jetstream.sink.rows import Rows
from spark_jetstream.sink.sender import Sender, taken


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
            self._send_turn(*taken(named, ids, at))

    def _send_turn(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send a turn, and again its rows that are stored before others that they must follow."""
        flight = self.sender.publish(rows, ids)
        self.wait()
        early, after = self._rollups.too_early(flight)
        while len(early):
            rows, ids = taken(rows, ids, early)
            if ids is not None:
                # The stream would drop a second copy with the same id. Without an id a third
                # attempt would find the first copy again, and store the row another time.
                ids = ids_of_copies(ids, after)
            flight = self.sender.publish_copies(rows, ids)
            self.wait()
            early, after = self._rollups.too_early(flight)
