"""``spark-jetstream schedule``: the commands about schedules, messages that the server publishes later."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import Force, StreamName
from spark_jetstream.cli.output import to_the_second
from spark_jetstream.errors import printable

if TYPE_CHECKING:
    from spark_jetstream.admin.schedules import Schedule

Filters = Annotated[
    list[str] | None,
    Argument(help="Only schedules at these subjects; * is one token, > is the rest."),
]
Subject = Annotated[str, Argument(help="The subject of the schedule.")]

schedules = group("schedule", "Schedules: messages to be published later.")


@command(schedules, "ls", example="schedule ls REMINDERS 'reminders.waiting.>'")
def show_all(run: Run, stream: StreamName, subjects: Filters = None) -> None:
    """List the schedules of a stream, the next one due first.

    A time after ~ is computed from the time at which the schedule was stored. It is unknown where
    this machine does not know the time zone.
    """
    found = run.admin.schedules.list(stream, *subjects or ())
    run.out.table(found, _row, data=asdict, empty=f"stream {stream} has no matching schedules")


def _row(found: Schedule) -> dict[str, object]:
    due = "unknown"
    if found.due is not None:
        due = to_the_second(found.due)
        due = due if found.exact else f"~{due}"
    return {
        "due": due,
        "subject": printable(found.subject),
        "schedule": printable(found.pattern),
        "zone": printable(found.time_zone),
        "target": printable(found.target),
        "source": printable(found.source),
    }


@command(schedules, "rm", example="schedule rm REMINDERS reminders.waiting.17")
def remove(run: Run, stream: StreamName, subject: Subject, force: Force = False) -> None:
    """Remove a schedule: the server does not publish its message any more."""
    run.out.confirm(f"Remove the schedule at {subject} of stream {stream}?", force=force)
    removed = run.admin.schedules.remove(stream, subject)
    run.out.done(
        f"the schedule at {subject} of stream {stream} was removed",
        stream=stream,
        subject=subject,
        removed=removed.seq,
    )
