"""``spark-jetstream trace``: the way of a message through servers, accounts and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Exit, Option

from spark_jetstream.cli.app import FAILED, Run, command
from spark_jetstream.cli.arguments import whole_data
from spark_jetstream.cli.object import headers_of
from spark_jetstream.cli.output import Branch

if TYPE_CHECKING:
    from spark_jetstream.admin.models.trace import (
        MessageTrace,
        TraceCapture,
        TracedServer,
        TracedStream,
        TraceEgress,
        TraceEvent,
    )

traces = typer.Typer()

_BAD = "red"
_GOOD = "green"


@command(traces, "trace", example="trace orders.eu")
def show(
    run: Run,
    subject: Annotated[str, Argument(help="The subject, without wildcards.")],
    data: Annotated[
        str,
        Argument(help="The data of the message; - for what standard input holds."),
    ] = "",
    header: Annotated[
        list[str] | None,
        Option("--header", "-H", metavar="NAME:VALUE", help="A header."),
    ] = None,
) -> None:
    """Show where a message would go: accounts, streams and servers. Nothing is stored.

    Each server that the message comes to reports: mappings, imports and exports of accounts, the
    streams that would store it and at which subject, links to other servers, and subscribers. These
    do not get the message, but for clients of MQTT.

    Servers before 2.11 would deliver the message: they get none, and the command ends with 1.

    Ends with 1 when a server does not report within --timeout.
    """
    traced = run.admin.trace(subject, whole_data(data), headers_of(header))
    if traced.reports.get("") is not None:
        run.out.tree(Branch(subject, [_server(traced, "")], "bold"))
    run.out.text(_conclusion(traced))
    for place in traced.blind_spots:
        run.out.note(f"not known: {place}")
    run.out.json(_data(traced))
    if not traced.complete:
        raise Exit(FAILED)


def _server(traced: MessageTrace, hop: str) -> Branch:
    """Return the branch of a server, with all that it did."""
    from spark_jetstream.admin.models.trace import TraceCapture, TraceEgress

    report = traced.reports[hop]
    captures = iter(report.captures)
    branches = []
    for event in report.events:
        if isinstance(event, TraceCapture):
            branches.append(_capture(next(captures)))
            continue
        branch = _event(event)
        onward = event.hop if isinstance(event, TraceEgress) else ""
        if onward in report.expected_hops and onward in traced.reports:
            branch = branch._replace(branches=[_server(traced, onward)])
        branches.append(branch)
    return Branch(_server_name(report.server), branches, "bold")


def _server_name(server: TracedServer) -> str:
    more = []
    if server.cluster:
        more.append(f"cluster {server.cluster}")
    if server.domain:
        more.append(f"domain {server.domain}")
    more.append(f"nats-server {server.ver}")
    return f"server {server.name} ({', '.join(more)})"


def _event(event: TraceEvent) -> Branch:
    """Return the line of an event."""
    from spark_jetstream.admin.models import trace

    match event:
        case trace.TraceIngress():
            text = f"received from {trace.kind_name(event.kind)}{_named(event.name)}, account {event.acc}, as {event.subj}"
            return _line(text, event.error)
        case trace.TraceMapping():
            return Branch(f"a mapping of the account makes it {event.to}")
        case trace.TraceServiceImport():
            return Branch(
                f"account {event.acc} gets it at {event.to} (service import of {event.source})"
            )
        case trace.TraceStreamExport():
            return Branch(f"account {event.acc} gets it at {event.to} (stream export)")
        case trace.TraceEgress():
            return _egress(event)
    return Branch(
        f"something that this version does not know: {event.type} {event.model_extra or ''}".rstrip()
    )


def _capture(event: TraceCapture) -> Branch:
    text = f"stream {event.stream} stores it"
    if event.subject:
        text += f" at {event.subject}"
    if event.nointerest:
        return Branch(
            f"stream {event.stream} drops it: no consumer wants {event.subject}", (), _BAD
        )
    return _line(text, event.error, _GOOD)


def _egress(event: TraceEgress) -> Branch:
    from spark_jetstream.admin.models.trace import kind_name

    text = f"{kind_name(event.kind)}{_named(event.name)}"
    if event.to_server:
        text = f"to {text}"
    else:
        text += f" is subscribed to {event.sub}"
    if event.queue:
        text += f", queue group {event.queue}"
    if event.acc:
        text += f", account {event.acc}"
    return _line(text, event.error)


def _line(text: str, error: str, style: str = "") -> Branch:
    """Return a line; with an error it says so."""
    if error:
        return Branch(f"{text}: {error}", (), _BAD)
    return Branch(text, (), style)


def _named(name: str) -> str:
    return f" {name}" if name else ""


def _conclusion(traced: MessageTrace) -> str:
    """Return in a sentence which streams would store the message."""
    streams = [stream for stream in traced.streams if not (stream.dropped or stream.error)]
    if not streams:
        return "No stream is known to store it" if traced.blind_spots else "No stream stores it"
    names = ", ".join(dict.fromkeys(stream.name for stream in streams))
    return f"Stored by {names}" + (", as far as is known" if traced.blind_spots else "")


def _data(traced: MessageTrace) -> dict[str, Any]:
    """Return the trace for JSON; a report as the server sent it, with the next one in each link."""
    return {
        "subject": traced.subject,
        "complete": traced.complete,
        "missing": list(traced.missing),
        "blind_spots": list(traced.blind_spots),
        "accounts": list(traced.accounts),
        "streams": [_stream_data(stream) for stream in traced.streams],
        "trace": traced.data() if "" in traced.reports else None,
    }


def _stream_data(stream: TracedStream) -> dict[str, Any]:
    return {
        "stream": stream.stream,
        "subject": stream.subject,
        "server": stream.server.name,
        "domain": stream.server.domain,
        "dropped": stream.dropped,
        "error": stream.error,
    }
