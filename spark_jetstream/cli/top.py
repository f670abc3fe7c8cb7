"""``spark-jetstream top``: messages a second of streams and consumers, again and again."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import typer
from typer import BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, Run, command
from spark_jetstream.cli.arguments import duration_option, stream_argument
from spark_jetstream.errors import JetStreamError, ServerBusy, StreamNotFound
from spark_jetstream.protocol.units import SECOND, Bytes, Nanoseconds, counted

if TYPE_CHECKING:
    from spark_jetstream.admin.client import JetStreamAdmin
    from spark_jetstream.admin.models.consumers import ConsumerInfo
    from spark_jetstream.admin.models.streams import StreamInfo
    from spark_jetstream.admin.rates import ConsumerRate, StreamRate

live = typer.Typer()

_EVERY = Nanoseconds(2 * SECOND)
_STREAMS = 20  # shown without a terminal, unless --rows says how many
# Lines of a screen beside its rows: the time, two headings, two lines of what is left out, one of
# an outage, and two that are empty.
_FRAME = 8
_LEAST = 3  # streams and consumers that even a small terminal shows

Info = TypeVar("Info")
Sort = Literal["rate", "byte-rate", "messages", "bytes", "consumers", "name"]


class _Room(NamedTuple):
    """How many rows there may be."""

    streams: int
    consumers: int | None
    """None for all."""


@dataclass(frozen=True)
class _View:
    """The rows of one moment, and the number of all streams and of all consumers of the shown ones.

    ``unanswered`` are errors that name streams and consumers for which no server has answered.
    """

    time: str
    streams: Sequence[StreamRate]
    consumers: Sequence[ConsumerRate]
    all_streams: int
    all_consumers: int
    unanswered: Sequence[str]

    def data(self) -> dict[str, Any]:
        """Return the view for JSON."""
        return {
            "time": self.time,
            "all_streams": self.all_streams,
            "streams": [asdict(row) for row in self.streams],
            "consumers": [asdict(row) for row in self.consumers],
            "unanswered": list(self.unanswered),
        }


@command(live, "top", example="top --once --sort bytes")
def show(
    run: Run,
    streams: Annotated[
        list[str] | None,
        stream_argument(help="Names of streams; all streams, if none is given."),
    ] = None,
    once: Annotated[
        bool,
        Option("--once", help="Print the numbers of one interval, and end."),
    ] = False,
    interval: Annotated[
        Nanoseconds,
        duration_option("--interval", "--every", help="The time between two refreshes."),
    ] = _EVERY,
    sort: Annotated[Sort, Option(help="The order of the streams.")] = "rate",
    rows: Annotated[
        int | None,
        Option(
            min=1,
            help="Show at most this number of streams; default: as fit on the terminal, without one 20.",
        ),
    ] = None,
) -> None:
    """Show messages a second of streams and consumers, and their lag.

    The numbers are refreshed until Ctrl-C, which ends with 130. A server that does not answer ends
    nothing: a line says so, and the last numbers stay. Without a terminal, or with --once, the
    command prints the numbers of one interval. It then ends with 1 and names the streams and
    consumers for which no server has answered, if any. With --json it prints an object a line, and a
    single one with --once.

    Each refresh requests the list of streams, a page of 256 streams in a request, and the consumers
    of the streams that are shown. With names it requests these streams alone.

    A durable that keeps the position of a Spark query is shown with the time since when it does.
    Its pending messages are those that the query has not committed. Its messages a second are the
    sequences that the query has committed.
    """
    if interval < SECOND // 10:
        raise BadParameter(f"{interval} is less than 100ms", param_hint="--interval")
    watch = _Watch(run.admin, tuple(streams or ()), sort)
    on_terminal = sys.stdout.isatty() and not run.out.as_json
    room = _screen(rows) if on_terminal else _paper(rows)
    # Rates need a state before. An error of this first look ends the command.
    watch.look(room())
    if once or not (on_terminal or run.out.as_json):
        wait(interval / SECOND)
        view = watch.look(room())
        _print(run, view)
        if view.unanswered:
            raise Exit(FAILED)
        return
    looks = _repeated(watch, room, interval / SECOND)
    if run.out.as_json:
        run.out.lines(_noted(run, looks), str, data=_View.data)
    else:
        _refresh(run, looks)


def wait(seconds: float) -> None:
    """Let the time between two looks pass."""
    time.sleep(seconds)


class _Watch:
    """Reads the states of streams and consumers, and compares them with the states before."""

    def __init__(self, admin: JetStreamAdmin, names: Sequence[str], sort: Sort) -> None:
        from spark_jetstream.admin.rates import Sample

        self._admin = admin
        self._names = names
        self._sort = sort
        self._before = Sample()
        self._looks = itertools.count(1)
        self._unanswered: list[ServerBusy] = []

    def look(self, room: _Room) -> _View:
        """Ask for the states now. Raises `JetStreamError`; the next call compares all the same."""
        from spark_jetstream.admin.rates import Sample, consumer_rates, stream_rates

        self._unanswered = []
        streams = {info.config.name: (info, time.monotonic()) for info in self._streams()}
        if self._unanswered and not streams:
            raise self._unanswered[0]
        rated = sorted(stream_rates(self._before, Sample(streams)), key=_ORDERS[self._sort])
        shown = rated[: room.streams]
        consumers = {}
        for row in shown:
            # The number in the state saves a request for each stream without consumers.
            if not row.consumers:
                continue
            for info in self._consumers(row.stream):
                consumers[row.stream, info.name] = (info, time.monotonic())
        now = Sample(streams, consumers)
        lagging = sorted(consumer_rates(self._before, now), key=_by_lag)
        self._before = now
        return _View(
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            streams=shown,
            consumers=lagging[: room.consumers],
            all_streams=len(rated),
            all_consumers=len(lagging),
            unanswered=[str(error) for error in self._unanswered],
        )

    def _streams(self) -> Iterator[StreamInfo]:
        first = next(self._looks) == 1
        if not self._names:
            yield from self._answered(self._admin.streams.infos())
        for name in self._names:
            try:
                yield self._admin.streams.load(name)
            except StreamNotFound:
                # Later it was deleted, and may come back.
                if first:
                    raise

    def _consumers(self, stream: str) -> Iterator[ConsumerInfo]:
        # The stream was deleted after it was listed.
        with contextlib.suppress(StreamNotFound):
            yield from self._answered(self._admin.consumers.infos(stream))

    def _answered(self, infos: Iterator[Info]) -> Iterator[Info]:
        """Yield the states that servers answer with, and remember the error about the other ones."""
        try:
            yield from infos
        except ServerBusy as error:
            # Comes after the states: servers that are away hide nothing of the others.
            self._unanswered.append(error)


def _by_rate(row: StreamRate) -> tuple[Any, ...]:
    # Before there are rates, the streams that were written last come first.
    return -(row.message_rate or 0), -row.last.nanoseconds, row.stream


def _by_byte_rate(row: StreamRate) -> tuple[Any, ...]:
    return -(row.byte_rate or 0), -row.last.nanoseconds, row.stream


def _by_messages(row: StreamRate) -> tuple[Any, ...]:
    return -row.messages, row.stream


def _by_bytes(row: StreamRate) -> tuple[Any, ...]:
    return -row.bytes, row.stream


def _by_consumers(row: StreamRate) -> tuple[Any, ...]:
    return -row.consumers, row.stream


def _by_name(row: StreamRate) -> tuple[Any, ...]:
    return (row.stream,)


_ORDERS: dict[str, Callable[[StreamRate], tuple[Any, ...]]] = {
    "rate": _by_rate,
    "byte-rate": _by_byte_rate,
    "messages": _by_messages,
    "bytes": _by_bytes,
    "consumers": _by_consumers,
    "name": _by_name,
}


def _by_lag(row: ConsumerRate) -> tuple[Any, ...]:
    return -(row.pending + row.ack_pending), row.stream, row.consumer


def _screen(rows: int | None) -> Callable[[], _Room]:
    """Return a function that says how many rows fit on the terminal, as large as it is then."""

    def room() -> _Room:
        lines = max(shutil.get_terminal_size().lines - _FRAME, 2 * _LEAST)
        streams = min(rows or lines // 2, lines - _LEAST)
        return _Room(streams, lines - streams)

    return room


def _paper(rows: int | None) -> Callable[[], _Room]:
    """Return a function that says how many rows there are without a terminal."""

    def room() -> _Room:
        return _Room(rows or _STREAMS, None)

    return room


@dataclass(frozen=True)
class _Outage:
    """A request for the states that had no answer."""

    since: str
    reason: str


def _repeated(
    watch: _Watch,
    room: Callable[[], _Room],
    seconds: float,
) -> Iterator[_View | _Outage]:
    """Look again and again. Raises errors that do not pass by themselves."""
    since = ""
    while True:
        wait(seconds)
        try:
            yield watch.look(room())
            since = ""
        except JetStreamError as error:
            if not error.retriable:
                raise
            since = since or time.strftime("%H:%M:%S")
            yield _Outage(since, str(error))


def _noted(run: Run, looks: Iterator[_View | _Outage]) -> Iterator[_View]:
    """Yield the views; outages go to standard error."""
    for look in looks:
        if isinstance(look, _Outage):
            run.out.note(_outage_line(look))
        else:
            _note_unanswered(run, look)
            yield look


def _note_unanswered(run: Run, view: _View) -> None:
    for error in view.unanswered:
        run.out.note(error)


def _outage_line(outage: _Outage) -> str:
    return f"no numbers since {outage.since}: {outage.reason}"


def _refresh(run: Run, looks: Iterator[_View | _Outage]) -> None:
    """Show each view in place of the one before."""
    last: _View | None = None
    with run.out.screen() as draw:
        draw(["waiting for the first numbers"])
        for look in looks:
            outage = ""
            if isinstance(look, _Outage):
                outage = _outage_line(look)
            else:
                last = look
            draw([outage, *_parts(last)] if last is not None else [outage])


def _parts(view: _View) -> list[str | list[dict[str, object]]]:
    """Return the lines and tables of a screen."""
    return [
        "  ".join([view.time, *view.unanswered]),
        [_stream_row(row) for row in view.streams],
        _left_out(view.all_streams - len(view.streams), "stream"),
        [_consumer_row(row) for row in view.consumers],
        _left_out(view.all_consumers - len(view.consumers), "consumer"),
    ]


def _left_out(count: int, noun: str) -> str:
    return f"and {counted(count, noun)} more" if count else ""


def _print(run: Run, view: _View) -> None:
    _note_unanswered(run, view)
    run.out.json(view.data())
    run.out.table(view.streams, _stream_row, empty="there are no streams")
    left_out = _left_out(view.all_streams - len(view.streams), "stream")
    if left_out or view.consumers:
        run.out.text(left_out)
    if view.consumers:
        run.out.table(view.consumers, _consumer_row)


def _stream_row(row: StreamRate) -> dict[str, object]:
    return {
        "stream": row.stream,
        "messages": row.messages,
        "bytes": Bytes(row.bytes),
        "messages/s": row.message_rate,
        "bytes/s": None if row.byte_rate is None else Bytes(int(row.byte_rate)),
        "consumers": row.consumers,
    }


def _consumer_row(row: ConsumerRate) -> dict[str, object]:
    return {
        "stream": row.stream,
        "consumer": row.consumer,
        "pending": row.pending,
        "waiting for ack": row.ack_pending,
        "redelivered": row.redelivered,
        "messages/s": row.rate,
        "": f"Spark query since {row.spark_since}" if row.spark_since else "",
    }
