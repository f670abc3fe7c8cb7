"""``spark-jetstream counter``: the commands about counters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import stream_option
from spark_jetstream.cli.output import to_the_second

if TYPE_CHECKING:
    from spark_jetstream.admin.counters import Counter

Subject = Annotated[str, Argument(help="The subject of the counter.")]
Filters = Annotated[
    list[str] | None,
    Argument(help="Only subjects that match one of these; * is one token, > is the rest."),
]
Value = Annotated[
    str,
    Argument(help="The number to add. Put it after --, if it begins with a dash."),
]
OfStream = Annotated[
    str | None,
    stream_option(help="The stream, by default the one that captures the subject."),
]

counter = group("counter", "Counters: read and count.")


@command(counter, "get", example="counter get visits.page.home")
def get(run: Run, subject: Subject, stream: OfStream = None) -> None:
    """Print the value of a counter. Ends with 1 if nothing was counted.

    JSON also has the last increment, and the values that a stream adds up from its sources.
    """
    found = run.admin.counters.get(subject, stream=stream)
    run.out.done(found.value, **asdict(found))


@command(counter, "ls", example="counter ls 'visits.page.>'")
def show_all(run: Run, subjects: Filters = None, stream: OfStream = None) -> None:
    """List the counters of a stream, in the order in which they changed last."""
    run.out.table(
        run.admin.counters.list(*subjects or (), stream=stream),
        _row,
        data=asdict,
        empty="no counters found",
    )


def _row(found: Counter) -> dict[str, object]:
    return {
        "subject": found.subject,
        "value": found.value,
        "increment": found.incr,
        "changed": to_the_second(found.time),
    }


@command(counter, "incr", example="counter incr visits.page.home 5")
def increment(run: Run, subject: Subject, value: Value = "1", stream: OfStream = None) -> None:
    """Add a number to a counter, and print its new value."""
    ack = run.admin.counters.increment(subject, value, stream=stream)
    run.out.done(ack.val, stream=ack.stream, subject=subject, seq=ack.seq, value=ack.val)
