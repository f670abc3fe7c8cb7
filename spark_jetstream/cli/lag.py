"""``spark-jetstream lag``: prints the lag of consumers and compares it with limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, Run, command
from spark_jetstream.cli.arguments import consumer_option, duration_option, stream_argument
from spark_jetstream.cli.output import ago, rounded
from spark_jetstream.errors import ConsumerNotFound, StreamNotFound
from spark_jetstream.protocol.units import SECOND, Nanoseconds

if TYPE_CHECKING:
    from spark_jetstream.admin.client import JetStreamAdmin
    from spark_jetstream.admin.lag import ConsumerLag, OriginLag

lag = typer.Typer()

_EVERY = Nanoseconds(2 * SECOND)


@dataclass(frozen=True)
class _LagRow:
    """A consumer, or a mirror or source: its lag, and the limits that it exceeds."""

    noun: str
    lag: Any
    exceeded: list[str]

    def data(self) -> dict[str, Any]:
        """Return the lag for JSON, with durations in seconds."""
        # The limits that are exceeded stand beside the numbers, so a program need not compare them
        # again.
        fields = {**asdict(self.lag), "exceeded": self.exceeded}
        for name, value in fields.items():
            if isinstance(value, Nanoseconds):
                # Nanoseconds are the unit of the API.
                fields[name] = value / SECOND
        return fields


@dataclass(frozen=True)
class _LagReport:
    """The rows of one moment. ``origins`` is None if the user has not asked for them."""

    consumers: list[_LagRow]
    origins: list[_LagRow] | None

    def data(self) -> dict[str, Any]:
        """Return the report for JSON."""
        data = {"consumers": [row.data() for row in self.consumers]}
        if self.origins is not None:
            data["origins"] = [row.data() for row in self.origins]
        return data

    def exceeding(self) -> list[_LagRow]:
        """Return the rows that exceed a limit."""
        return [row for row in (*self.consumers, *(self.origins or ())) if row.exceeded]


@dataclass(frozen=True)
class _Limits:
    """Limits of the lag; None for no limit."""

    pending: int | None
    unacknowledged: int | None
    age: Nanoseconds | None

    def consumer(self, lag: ConsumerLag) -> _LagRow:
        """Return the row of a consumer. An unknown age exceeds any limit."""
        exceeded = [
            *_too_many(lag.pending, self.pending, "pending"),
            *_too_many(lag.ack_pending, self.unacknowledged, "waiting for their acknowledgement"),
        ]
        # A consumer that has nothing left has no oldest message.
        if self.age is not None and lag.total:
            # The limit is for an alert, which must not stay silent where the age is unknown.
            if lag.age is None:
                exceeded.append("the age of its oldest message cannot be told")
            elif lag.age > self.age:
                exceeded.append(
                    f"its oldest message is {rounded(lag.age)} old, more than {self.age}",
                )
        return _LagRow(f"consumer {lag.consumer} of stream {lag.stream}", lag, exceeded)

    def origin(self, admin: JetStreamAdmin, lag: OriginLag) -> _LagRow:
        """Return the row of a mirror or a source. An error exceeds any limit."""
        exceeded = _too_many(lag.lag, self.pending, "pending")
        # Without a limit the command only shows the error.
        limited = self.age is not None or self.pending is not None
        if lag.error and limited:
            exceeded.append(lag.error)
        elif self.age is not None:
            exceeded += _silent(admin, lag, self.age)
        return _LagRow(f"stream {lag.stream}, copying {lag.origin}", lag, exceeded)


def _too_many(count: int, most: int | None, noun: str) -> list[str]:
    if most is None or count <= most:
        return []
    return [f"{count:,} {noun}, more than {most:,}"]


def _silent(admin: JetStreamAdmin, lag: OriginLag, most: Nanoseconds) -> list[str]:
    """Return a sentence about an origin that has sent nothing for longer than ``most``."""
    # None: the origin was never heard of.
    if lag.active is not None:
        if lag.active <= most:
            return []
        return [f"the origin has sent nothing for {rounded(lag.active)}, more than {most}"]
    # The stream was deleted after it was listed: it copies nothing.
    with contextlib.suppress(StreamNotFound):
        info = admin.streams.load(lag.stream)
        # The origin sends its first heartbeat a second after the stream was created.
        if info.ts.nanoseconds - info.created.nanoseconds > most:
            return ["the origin has never sent anything"]
    return []


def _limit(reached: str) -> Any:
    return Option(min=0, metavar="NUMBER", help=f"End with 1 when {reached}")


@command(lag, "lag", example="lag ORDERS --max-pending 1000 --max-age 5m")
def show(
    run: Run,
    stream: Annotated[
        str | None,
        stream_argument(help="The stream; all, if none is given."),
    ] = None,
    consumer: Annotated[
        str | None,
        consumer_option(metavar="NAME", help="Only this one of the stream."),
    ] = None,
    max_pending: Annotated[int | None, _limit("more messages are yet to be delivered.")] = None,
    max_ack_pending: Annotated[
        int | None,
        _limit("more messages wait for their acknowledgement."),
    ] = None,
    max_age: Annotated[
        Nanoseconds | None,
        duration_option(
            help="End with 1 when the oldest message that is not processed is older, such as 5m.",
        ),
    ] = None,
    origins: Annotated[
        bool,
        Option("--origins", help="Also the lag of mirrors and sources."),
    ] = False,
    watch: Annotated[
        bool,
        Option("--watch", help="Repeat until Ctrl-C, or until a limit is exceeded."),
    ] = False,
    every: Annotated[
        Nanoseconds,
        duration_option("--every", "--interval", help="How often with --watch."),
    ] = _EVERY,
) -> None:
    """Show how far consumers are behind, and compare it with limits.

    Each consumer is shown with three counts: the messages yet to be delivered, the messages that
    wait for their acknowledgement, and how many of these were delivered again. It is also shown
    with the age of the oldest message not processed, by the server's clock.

    A durable that keeps the position of a Spark query is shown with the time since when it does.
    Its pending messages are those that the query has not committed.

    An age that cannot be told (deliver policy last_per_subject) exceeds --max-age. With --origins
    the limits hold for mirrors and sources as well: for the messages that they have yet to copy,
    and for the time since the origin last sent anything. An error exceeds any limit.

    JSON has ages in seconds. With --watch it is an object a line. Ctrl-C ends the watch with 130,
    an exceeded limit with 1, and a server that does not answer with 3.
    """
    if consumer is not None and stream is None:
        raise BadParameter(
            f"which stream has {consumer}? Name it: lag STREAM --consumer {consumer}",
        )
    if every < SECOND // 10:
        raise BadParameter(f"{every} is less than 100ms", param_hint="--every")
    limits = _Limits(max_pending, max_ack_pending, max_age)

    while True:
        report = _measured(run.admin, stream, consumer, limits, origins=origins)
        _print(run, report, watch=watch)
        exceeding = report.exceeding()
        for row in exceeding:
            run.out.note(f"{row.noun}: {'; '.join(row.exceeded)}")
        if exceeding:
            raise Exit(FAILED)
        if not watch:
            return
        time.sleep(every / SECOND)


def _measured(
    admin: JetStreamAdmin,
    stream: str | None,
    consumer: str | None,
    limits: _Limits,
    *,
    origins: bool,
) -> _LagReport:
    """Ask the servers for the lags, and compare them with limits."""
    lags = admin.lag(stream, consumer)
    if limits.age is not None:
        # Only for --max-age: it may ask again for each consumer.
        lags = _with_ages(admin, lags)
    consumers = [limits.consumer(lag) for lag in lags]
    if not origins:
        return _LagReport(consumers, None)
    return _LagReport(consumers, [limits.origin(admin, lag) for lag in admin.origin_lag(stream)])


def _with_ages(admin: JetStreamAdmin, lags: Iterator[ConsumerLag]) -> Iterator[ConsumerLag]:
    """Yield the lags, without consumers that are gone."""
    for lag in lags:
        if not lag.total or lag.age is not None:
            yield lag
        else:
            # The oldest message was removed before its time was read: there is another one now.
            # A stream that was deleted meanwhile, such as that of a benchmark, must not end an
            # alert with an error: test_lag.py,
            # test_a_stream_that_is_deleted_meanwhile_does_not_count.
            with contextlib.suppress(ConsumerNotFound, StreamNotFound):
                yield from admin.lag(lag.stream, lag.consumer)


def _print(run: Run, report: _LagReport, *, watch: bool) -> None:
    # An object a line, so that a program can read each as it comes.
    if run.out.as_json and watch:
        run.out.lines([report.data()], str, data=dict)
        return
    if watch:
        run.out.clear()
        run.out.text(time.strftime("%H:%M:%S"), style="dim")
    run.out.json(report.data())
    lags = [row.lag for row in report.consumers]
    run.out.table(lags, _consumer_row, empty="there are no consumers")
    if report.origins is None:
        return
    run.out.text("")
    lags = [row.lag for row in report.origins]
    run.out.table(lags, _origin_row, empty="there are no mirrors and sources")


def _consumer_row(lag: ConsumerLag) -> dict[str, object]:
    return {
        "stream": lag.stream,
        "consumer": lag.consumer,
        "pending": lag.pending,
        "waiting for ack": lag.ack_pending,
        "redelivered": lag.redelivered,
        "oldest": _age(lag),
        "": _remarks(lag),
    }


def _origin_row(lag: OriginLag) -> dict[str, object]:
    return {
        "stream": lag.stream,
        "copies": lag.origin,
        "pending": lag.lag,
        "last sign": ago(lag.active),
        "": lag.error,
    }


def _age(consumer: ConsumerLag) -> str:
    if consumer.age is None:
        # Without messages to process there is no age.
        return "unknown" if consumer.total else ""
    return str(rounded(consumer.age))


def _remarks(consumer: ConsumerLag) -> str:
    remarks = []
    if consumer.spark_since:
        remarks.append(f"Spark query since {consumer.spark_since}")
    if consumer.paused:
        remarks.append("paused")
    return ", ".join(remarks)
