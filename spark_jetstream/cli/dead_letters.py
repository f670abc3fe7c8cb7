"""``spark-jetstream dead-letters``: the messages that the consumers of a stream gave up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import StreamName
from spark_jetstream.cli.pub import show_stored
from spark_jetstream.cli.publishing import sink_options, store_batches
from spark_jetstream.errors import JetStreamError, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import dead_letter_stream

if TYPE_CHECKING:
    from spark_jetstream.admin.models.messages import StoredMessage

MaxAge = Annotated[
    str,
    Option(metavar="DURATION", help="How long that is kept, such as 30d; 0 for good."),
]
_SIZE = "How many bytes of it are kept, such as 64m; -1 for any number."
MaxBytes = Annotated[str, Option(metavar="SIZE", help=_SIZE)]
# `msg_id` lets the stream drop a second copy within its duplicate window.
_COLUMNS = ("subject", "headers", "data", "msg_id")
"""The columns that are published again."""
letters = group("dead-letters", "Messages that consumers gave up: keep, list, publish again.")


@command(letters, "keep", example="dead-letters keep ORDERS --max-age 30d")
def keep(run: Run, stream: StreamName, max_age: MaxAge = "0", max_bytes: MaxBytes = "-1") -> None:
    """Create the stream that keeps which messages the consumers of a stream give up from now on."""
    made = run.admin.streams.keep_dead_letters(stream, max_age=max_age, max_bytes=max_bytes)
    kept = made.config.name
    run.out.done(
        f"stream {kept} keeps what consumers of stream {stream} give up",
        stream=stream,
        kept=kept,
    )


@command(letters, "ls", example="dead-letters ls ORDERS")
def show_all(run: Run, stream: StreamName) -> None:
    """Print the advisories about messages that the consumers of a stream gave up; with --json an object a line."""
    from spark_jetstream.admin.event_parsing import stored_event
    from spark_jetstream.admin.event_text import event_json, event_line

    run.out.lines(map(stored_event, _kept(run, stream)), event_line, data=event_json)


@command(letters, "replay", example="dead-letters replay ORDERS 12 17 --subject orders.repaired")
def replay(
    run: Run,
    stream: StreamName,
    sequences: Annotated[
        list[int],
        Argument(metavar="SEQUENCE...", help="The messages with these sequences."),
    ],
    subject: Annotated[
        str | None,
        Option(help="Where to publish them, by default their own subjects."),
    ] = None,
) -> None:
    """Publish messages that consumers gave up again; a stream stores each once within its duplicate window.

    On its own subject every consumer of the stream gets the message, also those that have processed
    it. Headers on which the server acts are left out. If a message is gone or was not given up,
    nothing is published.
    """
    from spark_jetstream.admin.event_parsing import stored_event
    from spark_jetstream.client.requests import Requests
    from spark_jetstream.streams.dead_letters import read_dead_letters

    # The server acts on some headers, such as Nats-Expected-Last-Sequence. They were meant for the
    # first publish, and with them the server may refuse the second one.
    options = sink_options(run.admin.options, {"subject": subject, "serverHeaders": "drop"})
    requests = Requests(run.connect, options.connection.retry_timeout)
    # The advisories by the sequences of the messages that they are about.
    advisories = {}
    for kept in _kept(run, stream):
        # The stream of advisories may have other events as well. No message has sequence 0.
        about = getattr(stored_event(kept), "stream_seq", 0)
        # Several consumers may give up one message: it is published once, by the last advisory.
        advisories[about] = (kept.seq, kept.data)
    # A sequence that is named twice counts once.
    chosen = [advisories[number] for number in dict.fromkeys(sequences) if number in advisories]
    # A list, because the batches are looked through before they are published.
    batches = list(read_dead_letters(requests, stream, chosen, (*_COLUMNS, "sequence", "gone")))
    present = set()
    for batch in batches:
        present |= {row["sequence"] for row in batch.to_pylist() if not row["gone"]}
    # All or nothing: a user who repeats the line would publish the others twice.
    # test_dead_letters.py, test_all_or_nothing_is_published, holds it.
    if lacking := ", ".join(str(number) for number in sequences if number not in present):
        why = f"of stream {stream} these are gone or were not given up"
        raise JetStreamError(f"nothing is published: {why}: {lacking}")
    show_stored(run, store_batches(batches, requests.connect, options, _COLUMNS))


def _kept(run: Run, stream: str) -> Iterator[StoredMessage]:
    from spark_jetstream.streams.lookup import nearest_stream

    kept = dead_letter_stream(stream)
    try:
        yield from run.admin.messages.read(kept)
    except StreamNotFound as error:
        # A stream of this name may not exist: then its name is wrong, and `keep` would not help.
        hint = nearest_stream(run.connect, [stream])
        if not hint:
            hint = f": spark-jetstream dead-letters keep {stream} makes it"
        text = f"there is no stream {kept}{hint}"
        raise jsapi.reworded(error, text) from None
