"""TaskTotals: what became of the rows of one task. Pure."""

from __future__ import annotations

from spark_jetstream.sink.claims import Claims
from spark_jetstream.sink.report import Totals


class TaskTotals:
    """Counts the rows of one task by what became of them. Each row ends in one of the first three.

    `claims` gathers the messages that the rows are; None if the ids of the rows have the partition
    in them.
    """

    def __init__(self, claims: Claims | None) -> None:
        self.claims = claims
        #: Rows that the task has stored. Some of them a stream had stored before.
        self.stored = Totals(claims=claims)
        #: Rows that an earlier attempt has stored: the ledger says so, and they are not sent.
        self.skipped = Totals(claims=claims)
        self.dead_letters = Totals(claims=claims)
        #: Second copies of rows that are counted already: only their sequences are reported.
        self.copies = Totals()

    @property
    def done(self) -> int:
        """How many rows count as stored or as dead letters."""
        return self.stored.stored + self.skipped.stored + self.dead_letters.stored

    @property
    def streams(self) -> dict[str, tuple[int, int]]:
        """The first and the last sequence of rows in each stream, without dead letters."""
        all_rows = Totals()
        for totals in (self.stored, self.skipped, self.copies):
            all_rows.note_all(totals.streams)
        return all_rows.streams
