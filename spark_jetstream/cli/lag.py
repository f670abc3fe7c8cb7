"""``spark-jetstream lag``: prints the lag of consumers and compares it with limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.lag import ConsumerLag, OriginLag
from spark_jetstream.cli.app import FAILED, Run, alone, command
from spark_jetstream.cli.arguments import DURATION, complete_consumer, complete_stream
from spark_jetstream.cli.output import ago, rounded
from spark_jetstream.errors import ConsumerNotFound
from spark_jetstream.protocol.units import Nanoseconds

lag = alone()

_SECOND = 1_000_000_000
_EVERY = Nanoseconds(2 * _SECOND)


@dataclass(frozen=True)
class _Limits:
    """Limits of the lag; None for no limit."""

    pending: int | None
    unacknowledged: int | None
    age: Nanoseconds | None

    def exceeded(self, consumer: ConsumerLag) -> Iterator[str]:
        """Yield the limits that a consumer exceeds, as text. An unknown age exceeds any limit."""
        yield from self._too_many(consumer.pending, self.pending, "pending")
        yield from self._too_many(consumer.ack_pending, self.unacknowledged, "waiting for their acknowledgement")
        if self.age is not None and consumer.total:
            if consumer.age is None:
                yield "the age of its oldest message cannot be told"
            elif consumer.age > self.age:
                yield f"its oldest message is {rounded(consumer.age)} old, more than {self.age}"

    def exceeded_by_origin(self, origin: OriginLag) -> Iterator[str]:
        """Yield the limits that a mirror or a source exceeds. An error exceeds any limit."""
        yield from self._too_many(origin.lag, self.pending, "pending")
        if self.age is not None and not origin.error:
            if origin.active is None:
                yield "nothing ever came"
            elif origin.active > self.age:
                yield f"nothing came for {rounded(origin.active)}, more than {self.age}"
        if origin.error and (self.age, self.pending) != (None, None):
            yield origin.error

    @staticmethod
    def _too_many(count: int, most: int | None, what: str) -> Iterator[str]:
        if most is not None and count > most:
            yield f"{count:,} {what}, more than {most:,}"


@dataclass(frozen=True)
class _Report:
    """The lags of consumers and origins, each with the limits that it exceeds."""

    consumers: list[tuple[ConsumerLag, list[str]]]
    origins: list[tuple[OriginLag, list[str]]] | None

    @property
    def complaints(self) -> list[str]:
        """A line for each consumer and origin that exceeds a limit."""
        consumers = [(f"consumer {each.consumer} of stream {each.stream}", wrong) for each, wrong in self.consumers]
        origins = [(f"stream {each.stream}, copying {each.origin}", wrong) for each, wrong in self.origins or []]
        return [f"{what}: {'; '.join(wrong)}" for what, wrong in consumers + origins if wrong]

    def data(self) -> dict[str, Any]:
        """Return the report for JSON, with durations in seconds."""
        data: dict[str, Any] = {
            "consumers": [
                {**asdict(each), "age": _seconds(each.age), "exceeded": wrong} for each, wrong in self.consumers
            ]
        }
        if self.origins is not None:
            data["origins"] = [
                {**asdict(each), "active": _seconds(each.active), "exceeded": wrong} for each, wrong in self.origins
            ]
        return data


@command(lag, "lag", example="lag ORDERS --max-pending 1000 --max-age 5m")
def show(
    run: Run,
    stream: Annotated[
        str | None, typer.Argument(help="The stream; all, if none is given.", autocompletion=complete_stream)
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer", metavar="NAME", help="Only this one of the stream.", autocompletion=complete_consumer
        ),
    ] = None,
    max_pending: Annotated[
        int | None, typer.Option(min=0, metavar="NUMBER", help="End with 1 when more messages are yet to be delivered.")
    ] = None,
    max_ack_pending: Annotated[
        int | None,
        typer.Option(min=0, metavar="NUMBER", help="End with 1 when more messages wait for their acknowledgement."),
    ] = None,
    max_age: Annotated[
        Nanoseconds | None,
        typer.Option(**DURATION, help="End with 1 when the oldest message that is not processed is older, such as 5m."),
    ] = None,
    origins: Annotated[bool, typer.Option("--origins", help="Also what mirrors and sources are behind.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again and again, until Ctrl-C or a limit is exceeded.")
    ] = False,
    every: Annotated[Nanoseconds, typer.Option(**DURATION, help="How often with --watch.")] = _EVERY,
) -> None:
    """How far consumers are behind, and whether that is too far.

    For each there are the messages yet to be delivered, those that wait for their acknowledgement, those of them that
    were delivered again, and how old the oldest of all is that is not processed, by the server's clock.

    A durable by which a Spark query keeps its position is shown with the time since when it does; what is pending there
    is what the query has not committed.

    An age that cannot be told (deliver policy last_per_subject) exceeds --max-age. With --origins the limits hold for
    mirrors and sources as well: what they have yet to copy, and for how long nothing came; an error exceeds any limit.

    JSON has ages in seconds. With --watch it is an object a line.
    """
    if consumer is not None and stream is None:
        raise typer.BadParameter(f"which stream has {consumer}? Name it: lag STREAM --consumer {consumer}")
    if every < _SECOND // 10:
        raise typer.BadParameter(f"{every} is less than 100ms", param_hint="--every")
    limits = _Limits(max_pending, max_ack_pending, max_age)

    def reports() -> Iterator[_Report]:
        while True:
            lags = run.admin.lag(stream, consumer)
            if max_age is not None:
                lags = _with_ages(run.admin, lags)
            copies = list(run.admin.origin_lag(stream)) if origins else None
            report = _Report(
                [(lag, list(limits.exceeded(lag))) for lag in lags],
                None if copies is None else [(copy, list(limits.exceeded_by_origin(copy))) for copy in copies],
            )
            yield report
            if report.complaints or not watch:
                return
            time.sleep(every / _SECOND)

    for report in reports():
        if run.out.as_json and watch:
            run.out.lines([report], str, data=_Report.data)
        else:
            if watch:
                run.out.clear()
                run.out.text(time.strftime("%H:%M:%S"), style="dim")
            run.out.json(report.data())
            _print(run, report)
        for complaint in report.complaints:
            run.out.note(complaint)
        if report.complaints:
            raise typer.Exit(FAILED)


def _with_ages(admin: JetStreamAdmin, lags: Iterator[ConsumerLag]) -> Iterator[ConsumerLag]:
    """Ask once more for a consumer whose oldest message was removed before it was read."""
    for each in lags:
        if not each.total or each.age is not None:
            yield each
            continue
        try:
            yield from admin.lag(each.stream, each.consumer)
        except ConsumerNotFound:
            continue


def _print(run: Run, report: _Report) -> None:
    run.out.table(
        report.consumers,
        {
            "stream": lambda row: row[0].stream,
            "consumer": lambda row: row[0].consumer,
            "pending": lambda row: row[0].pending,
            "waiting for ack": lambda row: row[0].ack_pending,
            "redelivered": lambda row: row[0].redelivered,
            "oldest": lambda row: _age(row[0]),
            "": lambda row: _remarks(row[0]),
        },
        empty="there are no consumers",
    )
    if report.origins is None:
        return
    run.out.text("")
    run.out.table(
        report.origins,
        {
            "stream": lambda row: row[0].stream,
            "copies": lambda row: row[0].origin,
            "pending": lambda row: row[0].lag,
            "last sign": lambda row: ago(row[0].active),
            "": lambda row: row[0].error,
        },
        empty="there are no mirrors and sources",
    )


def _seconds(span: Nanoseconds | None) -> float | None:
    return None if span is None else int(span) / _SECOND


def _age(consumer: ConsumerLag) -> str:
    if consumer.age is None:
        return "unknown" if consumer.total else ""
    return str(rounded(consumer.age))


def _remarks(consumer: ConsumerLag) -> str:
    query = [f"Spark query since {consumer.spark_since}"] if consumer.spark_since else []
    return ", ".join(query + (["paused"] if consumer.paused else []))
