"""Rows as messages of one stream, or of the streams that capture their subjects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import DeliveryError, OptionError
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.sink.batch_commit import BatchCommit
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.fitness import refuse_unfit, refuse_unwritable
from spark_jetstream.sink.kinds.kind import Fields, SinkKind
from spark_jetstream.sink.layout import depends_on_layout
from spark_jetstream.sink.ledger import USUAL_TIMES, LedgerTimes
from spark_jetstream.sink.ledger_bucket import check_ledger
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.preflight import NEWER_COLUMNS, StartCheck, check_start
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.stream_warnings import check_interval, warn_of_stream
from spark_jetstream.sink.task import write_task

#: Columns that need a setting of the stream.
_SETTINGS = {
    "incr": "allow_msg_counter",
    "schedule": "allow_msg_schedules",
    "rollup": "allow_rollup_hdrs",
    "atomic_group": "allow_atomic",
}
#: Those that servers before 2.12 would store as plain messages.
_PLAIN_BEFORE = {"schedule", "atomic_group"}


class MessageSink(SinkKind):
    """Messages of a stream. `needs` has the columns that need more than a plain stream."""

    option: ClassVar[str] = "stream"
    noun: ClassVar[str] = "stream"
    ledger_times: ClassVar[LedgerTimes] = USUAL_TIMES
    """How long the ledger waits, with delivery exactly-once."""

    def __init__(self, options: SinkOptions, fields: Fields) -> None:
        super().__init__(options)
        self.columns = SinkColumns.check(fields, options.subject)
        self.needs = self.columns.with_values({*_SETTINGS, *NEWER_COLUMNS})

    def refuse_ids_of_partitions(self, engine: str) -> None:
        lacking = f"on {engine}, which does not number its tasks"
        if self._exactly_once:
            raise OptionError(
                f"option delivery cannot be exactly-once {lacking}, so there is no ledger entry "
                "for each of them; set it to deduplicated with column msg_id or with messageIds "
                "content, or to at-least-once",
                option="delivery",
            )
        # A row without a value in the column fails its task (`MessageIds`).
        if self.depends_on_layout() and not self.columns.with_values({"msg_id"}):
            raise OptionError(
                f"option delivery cannot be deduplicated {lacking}: the sink would give a row "
                "that is written again another id; add column msg_id, or keep columns stream and "
                "sequence of a JetStream source; or set option messageIds to content if the rows "
                "are distinct, or option delivery to at-least-once",
                option="delivery",
            )

    def start(self, connect: Connect) -> None:
        """Check the stream, and create the ledger if delivery exactly-once needs one.

        Raises `OptionError` if options or columns do not fit the stream, `DeliveryError` if
        exactly-once is not possible, and what `preflight.check_start` raises.
        """
        self._check_columns()
        check_start(
            connect,
            self.options,
            self._check,
            self.needs,
            patient=not self.needs.isdisjoint(_PLAIN_BEFORE),
            timing=self.timing,
        )

    def write(
        self, batches: Iterable[pa.RecordBatch], connect: Connect, task: WriteTask
    ) -> TaskReport:
        return write_task(
            batches,
            connect,
            self.options,
            self.columns,
            task,
            self.ledger_times,
            timing=self.timing,
        )

    def finish(
        self,
        connect: Connect,
        task: WriteTask,
        reports: Sequence[TaskReport],
        *,
        repeatable: bool,
    ) -> int:
        commit = BatchCommit(
            connect,
            self.options,
            task,
            self.columns.names,
            repeatable,
            self.ledger_times,
            self.timing,
        )
        return commit.finish(reports)

    def warn_of_interval(
        self,
        connect: Connect,
        query: str,
        batch: int,
        streams: Mapping[str, tuple[int, int]],
    ) -> None:
        check_interval(connect, self.options, query, batch, streams)

    def depends_on_layout(self) -> bool:
        return depends_on_layout(self.options, self.columns.names)

    # Checks before the first row

    def _check_columns(self) -> None:
        """Check the columns that need more than a plain stream, as far as options tell."""
        # Increments need a setting as well, but no option stream.
        of_stream = sorted(self.needs - NEWER_COLUMNS.keys())
        if of_stream and self.options.stream is None:
            raise OptionError(
                f'option stream must name the stream for column "{of_stream[0]}"', option="stream"
            )
        if "rollup" in self.needs and self._exactly_once:
            raise DeliveryError(
                'option delivery cannot be exactly-once with column "rollup": a roll-up removes '
                "the rows that a second attempt looks for, which would store them again, after the "
                "roll-up; use deduplicated"
            )
        if "schedule_rollup" in self.needs and self._exactly_once:
            raise DeliveryError(
                'option delivery cannot be exactly-once with column "schedule_rollup": the '
                "server's message removes earlier ones at its subject; a second attempt would not "
                "find them, and would store them again; use deduplicated"
            )

    @property
    def _exactly_once(self) -> bool:
        return self.options.delivery == "exactly-once"

    def _check(self, check: StartCheck) -> None:
        """Check the stream that the rows go to, if it is known, and that of dead letters."""
        replicas = 1
        stream = self._stream_of_rows(check)
        if stream is not None:
            info = check.visible(
                partial(check.info, stream, "stream", f"stream {stream}"),
                needed=self._why_visible(stream),
            )
            if info is not None:
                state = stream_summary(info, f"read stream {stream}")
                self._check_stream(state)
                warn_of_stream(check.requests, state, self.options, self.needs)
                replicas = state.num_replicas or replicas
        check.dead_letters()
        if self._exactly_once:
            # The ledger is as safe as the stream.
            check_ledger(check.requests, replicas, streaming=self.options.streaming)

    def _stream_of_rows(self, check: StartCheck) -> str | None:
        """Return the stream that all rows go to, None if that is not known."""
        options = self.options
        if options.stream is not None or options.subject is None:
            return options.stream
        names = check.streams_capturing(options.subject, "subject")
        if names is not None and len(names) == 1:
            return names[0]
        return None

    def _why_visible(self, stream: str) -> str:
        """Return why the account must see the state of a stream, "" if it need not."""
        if self._exactly_once:
            demanding = "delivery exactly-once"
        else:
            demanding = "".join(f'column "{column}"' for column in self.needs & _PLAIN_BEFORE)
        if not demanding:
            return ""
        return f"{demanding} has to see the state of stream {stream}"

    def _check_stream(self, state: StreamSummary) -> None:
        refuse_unwritable(state, self.options)
        for column in sorted(self.needs & _SETTINGS.keys()):
            _check_setting(state, column)
        if self._exactly_once:
            refuse_unfit(state)


def _check_setting(state: StreamSummary, column: str) -> None:
    """Raise `OptionError` if the stream lacks the setting that a column needs."""
    setting = _SETTINGS[column]
    if getattr(state, setting):
        return
    flag = f"--{setting.replace('_', '-')}"
    mend = f"set {setting} on it (spark-jetstream stream edit {state.name} {flag})"
    if column == "incr":
        # No server changes this one.
        mend = f"it was made without {setting}"
    raise OptionError(
        f'option stream: {state.name} refuses column "{column}": {mend}', option="stream"
    )
