"""``spark-jetstream stream``: which streams there are, how they are set up, and what they hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from spark_jetstream.admin.placing import replicas
from spark_jetstream.admin.rendering import readable
from spark_jetstream.admin.stream_replies import StreamInfo
from spark_jetstream.commands.arguments import StreamName
from spark_jetstream.commands.framework import Run, alone, command
from spark_jetstream.commands.output import as_data
from spark_jetstream.commands.showing import ago, listed, print_names, server_words, to_the_second
from spark_jetstream.errors import ServerBusy, printable

looking = alone()

OfSubject = Annotated[
    str | None,
    typer.Option("--subject", help="Only streams that store this subject, or a part of it.", show_default=False),
]


@command(looking, "ls", example="stream ls --subject 'orders.>'")
def show_all(run: Run, subject: OfSubject = None) -> None:
    """The streams of the account, and what they hold.

    Where a server of a cluster does not answer for its streams it shows the others, says so, and ends with 1.
    """
    found: list[StreamInfo] = []
    absent: ServerBusy | None = None
    try:
        for each in run.admin.streams.infos(subject):
            found.append(each)
    except ServerBusy as error:
        if not found:
            raise
        absent = error
    run.out.table(
        found,
        {
            "name": lambda info: info.config.name,
            "storage": lambda info: info.config.storage,
            "retention": lambda info: info.config.retention,
            "messages": lambda info: info.state.messages,
            "bytes": lambda info: int(info.state.bytes),
            "consumers": lambda info: info.state.consumer_count,
            "last message": lambda info: to_the_second(info.state.last_ts),
        },
        data=as_data,
        empty="there are no streams" if subject is None else f"no stream stores {subject}",
    )
    if absent is not None:
        raise absent


@command(looking, "names", example="stream names")
def show_names(run: Run, subject: OfSubject = None) -> None:
    """The names of the streams, a line each; takes less permissions than ls."""
    print_names(run, run.admin.streams.names(subject))


@command(looking, "info", example="stream info ORDERS")
def info(run: Run, stream: StreamName) -> None:
    """How a stream is set up, where that is not the default, and how it does. JSON is the server's whole answer."""
    found = run.admin.streams.load(stream)
    run.out.record(_configuration(found), data=as_data(found), title=f"Stream {found.config.name}")
    if run.out.as_json:
        return
    run.out.text("")
    run.out.record(_state(found), data=None, title="State")
    if found.origins:
        run.out.text("")
        run.out.table(
            found.origins,
            {
                "mirror of" if found.mirror else "source": lambda each: each.name,
                "lag": lambda each: each.lag,
                "last sign": lambda each: ago(each.active),
                "": lambda each: each.error.description if each.error else "",
            },
            data=as_data,
            empty="",
        )


@dataclass(frozen=True)
class _Count:
    subject: str
    messages: int


@command(looking, "subjects", example="stream subjects ORDERS 'orders.eu.>'")
def show_subjects(
    run: Run,
    stream: StreamName,
    subject: Annotated[str, typer.Argument(metavar="FILTER", help="Only these; wildcards allowed.")] = ">",
) -> None:
    """The subjects that have messages, and how many each has; sorted."""
    run.out.table(
        (_Count(*each) for each in run.admin.streams.subjects(stream, subject)),
        {"subject": lambda each: printable(each.subject), "messages": lambda each: each.messages},
        data=asdict,
        empty=f"stream {stream} has no messages" if subject == ">" else f"stream {stream} has no messages on {subject}",
    )


def _configuration(info: StreamInfo) -> dict[str, object]:
    """What is not the default, and when it was created."""
    config, fields = info.config, type(info.config).model_fields
    found: dict[str, object] = {"created": info.created}
    for name in config.field_names:
        value = config.own_metadata if name == "metadata" else getattr(config, name)
        default = fields[name].get_default(call_default_factory=True) if name in fields else None
        if name != "name" and value != default:
            shown = listed(value)
            found[name] = shown if isinstance(shown, str) else readable(shown)
    return found


def _state(info: StreamInfo) -> dict[str, object]:
    state = info.state
    cluster, desired = info.cluster, info.cluster.desired if info.cluster else None
    return {
        "messages": f"{state.messages:,}",
        "bytes": f"{int(state.bytes):,}",
        "first": _position(state.first_seq, to_the_second(state.first_ts)),
        "last": _position(state.last_seq, to_the_second(state.last_ts)),
        "deleted between": f"{state.num_deleted:,}" if state.num_deleted else "",
        "damaged": f"{len(state.lost.msgs):,} messages" if state.lost else "",
        "subjects": f"{state.num_subjects:,}",
        "consumers": f"{state.consumer_count:,}",
        "domain": info.domain,
        "cluster": cluster.name if cluster else "",
        "servers": ", ".join(map(server_words, replicas(cluster))),
        "no leader": "nothing can be stored" if cluster and not cluster.leader else "",
        "changing": (desired.status.description or "yes") if desired and desired.status else "",
        "also in": ", ".join(each.name for each in info.alternates if each.name != info.config.name),
    }


def _position(sequence: int, time: str) -> str:
    return f"sequence {sequence:,}{f', {time}' if time else ''}"
