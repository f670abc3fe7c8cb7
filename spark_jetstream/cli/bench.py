"""``spark-jetstream bench``: the speed of source and sink with a server."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, BadParameter, Option

from spark_jetstream.cli.app import Run, command
from spark_jetstream.cli.arguments import Force, handling, stream_option
from spark_jetstream.cli.publishing import sink_options
from spark_jetstream.errors import JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.protocol.conventions import bench_stream
from spark_jetstream.protocol.units import counted

if TYPE_CHECKING:
    from spark_jetstream.admin.models.streams import StreamInfo
    from spark_jetstream.bench import Rate
    from spark_jetstream.protocol.columns import MessageRun
    from spark_jetstream.protocol.stream import SequenceRange

    Reader = Callable[..., Iterator[MessageRun]]

group = typer.Typer()

_LEFT_FOR = "1h"  # messages of a run that was killed with no chance to tidy up
# A closed terminal and a lost ssh send SIGHUP.
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@command(group, "bench", example="bench --messages 500000 --size 1000 --replicas 3")
def measure(
    run: Run,
    subject: Annotated[
        str | None,
        Argument(help="Write to this subject, of a stream that may have it."),
    ] = None,
    messages: Annotated[
        int,
        Option(min=1, help="How many messages are written, and read."),
    ] = 200_000,
    size: Annotated[int, Option(min=0, help="Bytes of each payload.")] = 128,
    subjects: Annotated[int, Option(min=1, help="How many subjects they are spread over.")] = 1,
    storage: Annotated[
        Literal["file", "memory"],
        Option(help="Where the stream is kept."),
    ] = "file",
    replicas: Annotated[int, Option(min=1, max=5, help="How many servers keep it.")] = 1,
    delivery: Annotated[
        Literal["deduplicated", "at-least-once"],
        Option(metavar="MODE", help="Option delivery of the sink: deduplicated or at-least-once."),
    ] = "deduplicated",
    batch: Annotated[int | None, Option(min=1, help="Option fetchBatch of the source.")] = None,
    direct: Annotated[
        bool,
        Option("--direct/--no-direct", help="Also read by direct gets."),
    ] = True,
    single: Annotated[
        int,
        Option(min=0, help="How many messages are published one at a time."),
    ] = 1000,
    stream: Annotated[
        str | None,
        stream_option(help="Only read, from this stream, which stays as it is."),
    ] = None,
    force: Force = False,
) -> None:
    """Measure, without Spark, a task of the sink and of the source.

    It writes to a stream of its own, which is deleted at the end, whatever happens. If a stream
    stores SUBJECT, the command asks, writes to that stream, and reads its messages back. They stay
    in the stream, and by its limits others may go. Several --subjects are SUBJECT.0, SUBJECT.1 and
    so on. The speed of a job also depends on Spark, on its tasks side by side, and on the other
    users of the servers.
    """
    from spark_jetstream import bench

    if stream is not None:
        if subject is not None:
            raise BadParameter("SUBJECT is written to and --stream only read: give one of them")
        run.out.text(
            f"Up to {messages:,} messages of stream {stream}, read by one task, without Spark",
            "bold",
        )
        rates = _read(run, stream, messages, batch, direct)
        _show(run, {"stream": stream, "messages": messages}, rates, [])
        return

    # The subjects and the stream are known from here on. Nothing is written before the user agrees
    # to write to a stream of the user's.
    target = _target(run, subject, subjects, storage, replicas)
    if not target.made:
        written = counted(messages + single, "message")
        run.out.confirm(f"Write {written} to stream {target.stream}?", force=force)
    settings: dict[str, Any] = {
        "messages": messages,
        "size": size,
        "subjects": subjects,
        "storage": target.storage,
        "replicas": target.replicas,
        "delivery": delivery,
    }
    if subject is not None:
        stored_in = None if target.made else target.stream
        settings |= {"subject": subject, "stream": stored_in}
    load = f"{counted(messages, 'message')} of {counted(size, 'byte')}"
    run.out.text(f"{load} on {target}; one task at a time, without Spark", "bold")

    data = bench.payload(size)
    latencies: list[float] = []
    # The stream is there inside of the block, and its own one is deleted at the end of it.
    with _storing(run, target) as name:
        rates = [_write(run, name, target.subjects, messages, data, delivery)]
        # A stream of the user may get other messages meanwhile, and has older ones.
        filters = () if target.made else (target.filter,)
        rates += _read(run, name, messages, batch, direct, target.first, filters)
        if single:
            with run.out.progress("one at a time", in_bytes=False) as tell:
                connection = run.connect()
                latencies = bench.latencies(connection, target.subjects[0], single, data, tell)
    _show(run, settings, rates, latencies)


@dataclass(frozen=True)
class _WriteTarget:
    """The subjects and the stream that messages are written to."""

    subjects: list[str]
    filter: str
    """Matches all subjects."""
    stream: str
    made: bool
    """Whether the command makes the stream, and deletes it."""
    first: int
    """The sequence of the first message that is written, or a lower one."""
    storage: str
    replicas: int

    def __str__(self) -> str:
        """Return the target for people."""
        place = counted(len(self.subjects), "subject")
        if not self.made:
            place += f" of stream {self.stream}"
        return f"{place}, {self.storage}, {counted(self.replicas, 'replica')}"


def _target(
    run: Run,
    subject: str | None,
    subjects: int,
    storage: str,
    replicas: int,
) -> _WriteTarget:
    """Return the target of a write: the stream that stores ``subject``, if there is one."""
    from spark_jetstream.admin.api import publish_subject

    own = bench_stream()
    base = own if subject is None else publish_subject(subject)
    names = [base]
    filter_ = base
    if subjects > 1:
        names = [f"{base}.{number}" for number in range(subjects)]
        filter_ = f"{base}.*"
    stream = None
    if subject is not None:
        stream = next(run.admin.streams.names(filter_), None)
    if stream is None:
        return _WriteTarget(
            names,
            filter_,
            stream=own,
            made=True,
            first=1,
            storage=storage,
            replicas=replicas,
        )
    info = run.admin.streams.load(stream)
    return _WriteTarget(
        names,
        filter_,
        stream=stream,
        made=False,
        # Other clients may publish before the command does, so it may be too low, and never too
        # high.
        first=info.state.last_seq + 1,
        storage=info.config.storage,
        replicas=info.config.num_replicas,
    )


def _storing(run: Run, target: _WriteTarget) -> AbstractContextManager[str]:
    """Return a context with the name of the stream that stores the messages."""
    if not target.made:
        return contextlib.nullcontext(target.stream)
    return _stream_of_its_own(run, target)


def _exit(number: int, frame: FrameType | None) -> None:
    """Unwind the stack after a signal, as Ctrl-C does."""
    # A shell reports the end by a signal in this way.
    sys.exit(128 + number)


@contextlib.contextmanager
def _stream_of_its_own(run: Run, target: _WriteTarget) -> Iterator[str]:
    """Yield the name of a stream that is made, and deleted at the end, also after a signal."""
    name = target.stream

    def delete() -> None:
        try:
            # The creation may have failed, or never have arrived.
            run.admin.streams.delete(name, missing_ok=True)
        except JetStreamError as error:
            # The error that ended the run must not be hidden by this one.
            run.out.note(f"stream {name} still exists: {error}; delete it")

    received: list[int] = []

    def hold_back(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # A signal still ends the command while it connects, and there is nothing to delete.
    run.admin.account.connected()
    # A signal that is ignored, as SIGHUP under nohup, stays so.
    ending = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    with handling(_exit, *ending), contextlib.ExitStack() as at_the_end:
        # Registered before the stream is made: an answer that is lost leaves a stream, too.
        at_the_end.callback(delete)
        try:
            # The server may carry out a deletion before the creation that it follows. Server 2.15.1
            # did so in 18 of 30 tries: test_bench.py,
            # test_an_interrupt_while_the_stream_is_made_leaves_nothing.
            with handling(hold_back, signal.SIGINT, *ending):
                run.admin.streams.create(
                    name=name,
                    subjects=[target.filter],
                    storage=target.storage,
                    num_replicas=target.replicas,
                    max_age=_LEFT_FOR,
                    description="made by spark-jetstream bench, to be deleted",
                )
        except (NoResponders, PermissionDenied):  # it was never made
            at_the_end.pop_all()
            raise
        # Now the deletion comes after the creation, so the signals have their effect.
        for number in received:
            signal.raise_signal(number)
        yield name


def _write(
    run: Run,
    stream: str,
    subjects: list[str],
    messages: int,
    data: bytes,
    delivery: str,
) -> Rate:
    """Write messages as one task of the sink does."""
    from spark_jetstream import bench

    options = sink_options(run.admin.options, {"stream": stream, "delivery": delivery})
    with run.out.progress("writing", in_bytes=False) as tell:
        return bench.write(run.connect, options, subjects, messages, data, tell)


def _read(
    run: Run,
    name: str,
    messages: int,
    batch: int | None,
    direct: bool,
    first: int = 1,
    filters: tuple[str, ...] = (),
) -> list[Rate]:
    """Read the first messages of a stream; with ``filters``, all from ``first`` on that match."""
    from spark_jetstream.bench import pull_settings, read

    info = run.admin.streams.load(name)
    settings = pull_settings(run.admin.options, name, batch)
    part = _part(info, messages, first, filters)
    if part is None:
        run.out.note(f"stream {name} is empty: there is nothing to read")
        return []
    rates = []
    for way, reader in _readers(run, info, direct=direct).items():
        with run.out.progress(way, in_bytes=False) as tell:
            rates.append(read(way, reader(run.connect, part, settings, "bench"), part, tell))
    return rates


def _part(
    info: StreamInfo,
    messages: int,
    first: int,
    filters: tuple[str, ...],
) -> SequenceRange | None:
    """Return the sequences that are read; None if there are none."""
    from spark_jetstream.protocol.stream import SequenceRange

    state = info.state
    first = max(first, state.first_seq)
    end = state.last_seq + 1
    if not filters:
        end = min(first + messages, end)
    if end <= first:
        return None
    # Without gaps and filters, each sequence has a message.
    gapless = state.num_deleted == 0 and info.config.mirror is None and not filters
    count = end - first if gapless else None
    return SequenceRange(info.config.name, first, end, count, info.created, filters)


def _readers(run: Run, info: StreamInfo, *, direct: bool) -> dict[str, Reader]:
    """Return the ways to read that the stream allows, each with its function."""
    from spark_jetstream.protocol.features import DIRECT_BATCHES
    from spark_jetstream.streams.direct import read_direct
    from spark_jetstream.streams.pull import read_range

    config = info.config
    readers: dict[str, Reader] = {}
    if config.retention == "limits":
        readers["source, readWith=consumer"] = read_range
    else:
        # With another retention, a consumer decides with others which messages stay.
        retention = f"stream {config.name} has {config.retention} retention"
        run.out.note(f"{retention}: it is read by direct gets only")
    if not direct:
        return readers
    # Older servers answer a Direct Get with one message only.
    if config.allow_direct and run.connect().can(DIRECT_BATCHES):
        readers["source, readWith=direct"] = read_direct
    else:
        needs = "allow_direct on the stream, and nats-server 2.11"
        run.out.note(f"direct gets are left out: they need {needs}")
    return readers


def _show(run: Run, settings: dict[str, Any], rates: list[Rate], latencies: list[float]) -> None:
    from spark_jetstream.bench import percentile

    taken: dict[str, float] = {}
    if latencies:
        taken = {name: percentile(latencies, share) for name, share in _PERCENTILES.items()}
    data: dict[str, Any] = {"settings": settings, "rates": [rate.data() for rate in rates]}
    if latencies:
        data["latency_seconds"] = {"count": len(latencies), **taken}
    run.out.json(data)
    run.out.table(rates, _row, empty="nothing was measured")
    if latencies:
        # Milliseconds, from seconds.
        times = ", ".join(f"{name} {seconds * 1000:,.2f}" for name, seconds in taken.items())
        run.out.text(f"one at a time, {len(latencies):,} acknowledged publishes, ms: {times}")


def _row(rate: Rate) -> dict[str, object]:
    return {
        "measured": rate.what,
        "messages": rate.messages,
        "messages/s": round(rate.messages_per_second),
        "MB/s": rate.megabytes_per_second,
        "seconds": rate.seconds,
    }
