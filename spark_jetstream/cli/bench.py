"""``spark-jetstream bench``: what source and sink reach with a server."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, BadParameter, Option

from spark_jetstream.cli.app import Run, command
from spark_jetstream.cli.arguments import Force, handling, stream_option
from spark_jetstream.errors import JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.protocol.conventions import bench_stream
from spark_jetstream.protocol.units import counted

if TYPE_CHECKING:
    from spark_jetstream.bench import Rate
    from spark_jetstream.protocol.columns import MessageRun

group = typer.Typer()

_LEFT_FOR = "1h"  # messages of a run that was killed with no chance to tidy up
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
    """Measure, without Spark, what one task of the sink writes and one task of the source reads.

    It writes to a stream of its own, which is deleted at the end, whatever happens. With SUBJECT,
    if a stream stores it, the command asks, writes to that stream, and reads what it wrote: the
    messages stay there, and by the limits of the stream others may go. Several --subjects are
    SUBJECT.0, SUBJECT.1 and so on. What a job reaches also depends on Spark, on its tasks side by
    side, and on who else uses the servers.
    """
    from spark_jetstream import bench
    from spark_jetstream.admin.api import publish_subject
    from spark_jetstream.options import SinkOptions

    admin = run.admin
    latencies: list[float] = []
    if stream is not None:
        if subject is not None:
            raise BadParameter("SUBJECT is written to and --stream only read: give one of them")
        settings: dict[str, Any] = {"stream": stream, "messages": messages}
        run.out.text(
            f"Up to {messages:,} messages of stream {stream}, read by one task, without Spark",
            "bold",
        )
        rates = _read(run, stream, messages, batch, direct)
    else:
        own, first, kept = bench_stream(), 1, str(storage)
        base = own if subject is None else publish_subject(subject)
        names = [base] if subjects == 1 else [f"{base}.{number}" for number in range(subjects)]
        filter_ = base if subjects == 1 else f"{base}.*"
        there = None if subject is None else next(admin.streams.names(filter_), None)
        if there is not None:
            info = admin.streams.load(there)
            kept, replicas, first = (
                info.config.storage,
                info.config.num_replicas,
                info.state.last_seq + 1,
            )
            run.out.confirm(
                f"Write {counted(messages + single, 'message')} to stream {there}?",
                force=force,
            )
        settings = {"messages": messages, "size": size, "subjects": subjects, "storage": kept}
        settings |= {"replicas": replicas, "delivery": delivery}
        settings |= {} if subject is None else {"subject": subject, "stream": there}
        load = f"{counted(messages, 'message')} of {counted(size, 'byte')} on {counted(subjects, 'subject')}"
        load += f"{f' of stream {there}' if there else ''}, {kept}, {counted(replicas, 'replica')}"
        run.out.text(f"{load}; one task at a time, without Spark", "bold")
        made = _stream_of_its_own(run, own, filter_, kept, replicas)
        with made if there is None else contextlib.nullcontext(there) as name:
            data = bench.payload(size)
            options = SinkOptions.from_spark(
                {"stream": name, "delivery": delivery},
                streaming=False,
            )
            options = options.model_copy(update={"connection": admin.options})
            with run.out.progress("writing", in_bytes=False) as tell:
                rates = [bench.write(run.connect, options, names, messages, data, tell)]
            rates += _read(
                run,
                name,
                messages,
                batch,
                direct,
                first,
                () if there is None else (filter_,),
            )
            if single:
                with run.out.progress("one at a time", in_bytes=False) as tell:
                    latencies = bench.latencies(run.connect(), names[0], single, data, tell)
    _show(run, settings, rates, latencies)


@contextlib.contextmanager
def _stream_of_its_own(
    run: Run,
    name: str,
    subject: str,
    storage: str,
    replicas: int,
) -> Iterator[str]:
    """Yield the name of a stream that is made, and gone at the end, also when SIGTERM or SIGHUP ends the process."""

    def delete() -> None:
        try:
            run.admin.streams.delete(name, missing_ok=True)
        except JetStreamError as error:
            run.out.note(f"stream {name} is still there, delete it: {error}")

    run.admin.account.connected()  # while a signal still ends the command, and there is nothing to delete
    came: list[int] = []
    ending = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]  # nohup ignores one
    # They unwind the stack, as Ctrl-C does.
    ending_in_order = handling(lambda number, frame: sys.exit(128 + number), *ending)
    with ending_in_order, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(delete)
        try:
            # The server may carry out a deletion before the creation that it follows.
            with handling(lambda number, frame: came.append(number), signal.SIGINT, *ending):
                run.admin.streams.create(
                    name=name,
                    subjects=[subject],
                    storage=storage,
                    num_replicas=replicas,
                    max_age=_LEFT_FOR,
                    description="made by spark-jetstream bench, to be deleted",
                )
        except (NoResponders, PermissionDenied):  # it was never made
            at_the_end.pop_all()
            raise
        for number in came:
            signal.raise_signal(number)
        yield name


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
    from spark_jetstream.bench import read
    from spark_jetstream.options import SourceOptions
    from spark_jetstream.protocol.features import DIRECT_BATCHES
    from spark_jetstream.protocol.stream import SequenceRange
    from spark_jetstream.streams.direct import read_direct
    from spark_jetstream.streams.pull import PullSettings, read_range

    info = run.admin.streams.load(name)
    state = info.state
    given = {"stream": name} | ({"fetchBatch": str(batch)} if batch is not None else {})
    options = SourceOptions.from_spark(given, streaming=True)
    patience = run.admin.options.retry_timeout
    settings = PullSettings(
        options.fetch_batch,
        options.fetch_max_bytes,
        options.fetch_timeout,
        patience,
        True,
    )
    first, end = max(first, state.first_seq), state.last_seq + 1
    end = end if filters else min(first + messages, end)
    if end <= first:
        run.out.note(f"stream {name} is empty: there is nothing to read")
        return []
    whole = state.num_deleted == 0 and info.config.mirror is None and not filters
    part = SequenceRange(name, first, end, end - first if whole else None, info.created, filters)
    readers: dict[str, Callable[..., Iterator[MessageRun]]] = {}
    if info.config.retention == "limits":
        readers["source, readWith=consumer"] = read_range
    else:
        # There a consumer is part of what decides which messages stay.
        run.out.note(
            f"stream {name} has {info.config.retention} retention: it is read by direct gets only",
        )
    if direct and info.config.allow_direct and run.connect().can(DIRECT_BATCHES):
        readers["source, readWith=direct"] = read_direct
    elif direct:
        run.out.note(
            "direct gets are left out: they need allow_direct on the stream, and nats-server 2.11",
        )
    rates = []
    for what, reader in readers.items():
        with run.out.progress(what, in_bytes=False) as tell:
            rates.append(read(what, reader(run.connect, part, settings, "bench"), part, tell))
    return rates


def _show(run: Run, settings: dict[str, Any], rates: list[Rate], latencies: list[float]) -> None:
    from spark_jetstream.bench import percentile

    taken = {name: percentile(latencies, percent) for name, percent in _PERCENTILES.items() if latencies}
    data: dict[str, Any] = {"settings": settings, "rates": [rate.data() for rate in rates]}
    if latencies:
        data["latency_seconds"] = {"count": len(latencies), **taken}
    run.out.json(data)
    run.out.table(
        rates,
        {
            "measured": lambda rate: rate.what,
            "messages": lambda rate: rate.messages,
            "messages/s": lambda rate: round(rate.messages_per_second),
            "MB/s": lambda rate: rate.megabytes_per_second,
            "seconds": lambda rate: rate.seconds,
        },
        empty="nothing was measured",
    )
    if latencies:
        times = ", ".join(f"{name} {seconds * 1000:,.2f}" for name, seconds in taken.items())
        run.out.text(f"one at a time, {len(latencies):,} acknowledged publishes, ms: {times}")
