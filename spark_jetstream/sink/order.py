"""Orders: which rows of a task may be in flight together, and when.

| order | of | a row is sent |
|---|---|---|
| `Free` | rows of subjects | at once |
| `sink.turns` | rows that may remove others | when the rows before it that it concerns are stored |
| `sink.grouped` | rows of groups | with its group, when the task has got all rows |
| `sink.kv_task` | rows of a bucket | when the row before it with the same key is stored |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set

import pyarrow as pa

from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.sender import Sender


class Order(ABC):
    """Sends the rows of one task through a `Sender`, in portions.

    The task gives each portion to `accept`, and then the rows that can be stored to `send`. It
    calls `settle` after rows were refused, and `finish` when there are no more.

    Refused rows wait in one queue, whoever has refused them. Only `settle` takes from it, and
    `handle_refused` never calls `settle`.
    """

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    @property
    def groups(self) -> Set[bytes]:
        """The names of the groups that rows of the task belong to."""
        return frozenset()

    def accept(self, rows: Rows) -> Rows:
        """Take a portion as it was read. Return the rows to send now. May note faults in `rows`."""
        return rows

    @abstractmethod
    def send(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send rows without faults, with these message ids.

        Raises what `Publisher.publish` raises.
        """

    def handle_refused(self, rows: Sequence[RefusedRow]) -> None:
        """Decide about rows that were refused. The default gives them up (`Sender.give_up`)."""
        self.sender.give_up(rows)

    def settle(self) -> None:
        """Handle the rows that were refused, and those that are refused meanwhile."""
        # Handling rows may refuse others, such as a dead letter. A loop over the queue needs no
        # recursion.
        while rows := self.sender.publisher.take_refused():
            self.handle_refused(rows)

    def wait(self) -> None:
        """Wait until every row sent so far is stored or given up."""
        while self.sender.publisher.wait():
            self.settle()

    def finish(self) -> None:
        """Send what was held back, and wait until every row is stored or given up."""
        self.wait()


class Free(Order):
    """Sends rows in no particular order, thousands at a time."""

    def send(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send rows at once."""
        if len(rows):
            self.sender.publish(rows, ids, may_share=True)
            self.settle()
