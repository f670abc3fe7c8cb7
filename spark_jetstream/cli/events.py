"""``spark-jetstream events``: prints advisories and metrics as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, Run, command, one_of
from spark_jetstream.cli.arguments import consumer_option, duration_option, stream_option
from spark_jetstream.cli.output import Output, seconds
from spark_jetstream.protocol.units import Nanoseconds

if TYPE_CHECKING:
    from spark_jetstream.admin.models.events import Event
    from spark_jetstream.admin.subscription import Subscription

events = typer.Typer()


def _complete_kind(incomplete: str) -> list[str]:
    from spark_jetstream.admin.event_parsing import KINDS

    return one_of(KINDS)(incomplete)


@command(
    events,
    "events",
    example="events --stream ORDERS --kind max_deliver --kind terminated --json",
)
def watch(
    run: Run,
    advisories: Annotated[bool, Option("--advisories", help="What happens.")] = False,
    metrics: Annotated[bool, Option("--metrics", help="How long acknowledgements take.")] = False,
    everything: Annotated[bool, Option("--all", help="Both, as without any of the three.")] = False,
    stream: Annotated[str | None, stream_option(help="Only those of this stream.")] = None,
    consumer: Annotated[
        str | None,
        consumer_option(help="Only those of consumers of this name."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        Option(
            "--kind",
            help="Only this kind, such as max_deliver, or subject.",
            autocompletion=_complete_kind,
        ),
    ] = None,
    count: Annotated[int | None, Option(min=1, help="End after this many events.")] = None,
    duration: Annotated[
        Nanoseconds | None,
        duration_option("--for", help="End after this time, such as 30s."),
    ] = None,
    cloudevents: Annotated[
        bool,
        Option("--cloudevents", help="Print CloudEvents 1.0, one a line."),
    ] = False,
    details: Annotated[bool, Option("--details", help="Print all fields of each event.")] = False,
    template: Annotated[
        str | None,
        Option(
            help="Print this text for each event, with its fields in braces: '{kind} {stream}'."
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        Option(
            help="The prefix of the subjects of imported events; else $JS.EVENT.",
        ),
    ] = None,
) -> None:
    """Print advisories and metrics as they come, until Ctrl-C; with --json an object a line, as the server sent it.

    The server does not store events. When the connection was lost, and some may be missing, a line
    says so, on standard error as well. In JSON the line has the type spark_jetstream.event.v1.gap.
    The exit code at the end is then 1.
    """
    from spark_jetstream.admin.event_text import cloud_event, event_json

    _check_duration(duration)
    # They would be ignored beside JSON.
    _check_format(template, details=details, as_json=cloudevents or run.out.as_json)
    # Neither of them named means both.
    both = everything or not (advisories or metrics)
    out = run.out
    data: Callable[[Event], Any] = event_json
    if cloudevents:
        # CloudEvents are JSON, also without --json.
        out = Output(as_json=True)
        data = cloud_event
    line = _line(template, details=details)
    with run.admin.events.watch(
        *(kinds or ()),
        advisories=advisories or both,
        metrics=metrics or both,
        stream=stream,
        consumer=consumer,
        timeout=seconds(duration),
        count=count,
        prefix=prefix,
    ) as watched:
        # The server has the subscriptions now, so the command prints all later events.
        run.out.note(f"Listening on {', '.join(watched.subjects)}")
        out.lines(_noted(watched, run.out), line, data=data)
    # Core NATS does not repeat the messages of the time without a connection.
    if watched.gaps:
        raise Exit(FAILED)


def _check_duration(duration: int | None) -> None:
    """Refuse 0 seconds, which would end before the first event."""
    if duration == 0:
        raise BadParameter("it must be longer than 0", param_hint="--for")


def _check_format(template: str | None, *, details: bool, as_json: bool) -> None:
    """Refuse two formats of an event at once."""
    if details and template is not None:
        raise BadParameter("--details and --template contradict each other")
    if as_json and (details or template is not None):
        raise BadParameter(
            "--details and --template are for text, and contradict --json and --cloudevents",
        )


def _line(template: str | None, *, details: bool) -> Callable[[Event], str]:
    """Return the function that makes the text of an event."""
    from spark_jetstream.admin.event_text import EventTemplate, event_details, event_line

    if details:
        return event_details
    return event_line if template is None else EventTemplate(template)


def _noted(watched: Subscription[Event], out: Output) -> Iterator[Event]:
    """Yield the events. If standard output is no terminal, gaps go to standard error too."""
    from spark_jetstream.admin.event_text import event_line
    from spark_jetstream.admin.models.events import Gap

    for event in watched:
        # On a terminal the user sees the line of the gap among the events already.
        if isinstance(event, Gap) and not sys.stdout.isatty():
            out.note(event_line(event))
        yield event
