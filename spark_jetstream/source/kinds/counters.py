"""Counters: the value of each as a table, or their changes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.counters import counter_batch
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.kinds.kind import Driver, MessageKind, TaskInput
from spark_jetstream.source.kinds.tables import stream_tables


class CounterValues(MessageKind):
    """The counters of streams with ``allow_msg_counter``, option counters."""

    def check(self, state: StreamSummary) -> None:
        """Raise `OptionError` unless the stream holds counters."""
        # Of a mirror only its origin has the setting.
        if not (state.allow_msg_counter or state.mirror):
            raise OptionError(
                f"option counters: stream {state.name} holds no counters (allow_msg_counter is "
                "not set); read it without",
                option="counters",
            )

    def plan_batch(self, driver: Driver) -> Sequence[TaskInput]:
        """Return one task for each stream, or the ranges of all changes with history."""
        if not self.options.table:
            return driver.plan_ranges()
        return stream_tables(self, driver, "change of a counter")

    def batch(self, messages: MessageRun, stream: str, columns: Sequence[str]) -> pa.RecordBatch:
        """Return changes of counters with the named columns of `schema.COUNTER_COLUMNS`."""
        return counter_batch(messages, stream=stream, columns=columns)
