"""``spark-jetstream stream``: reading and removing single messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.commands.arguments import Force, StreamName
from spark_jetstream.commands.framework import Run, alone, command
from spark_jetstream.commands.message_text import message_data, print_message

messages = alone()

_SOME = 10


@command(messages, "get", example="stream get ORDERS --last orders.eu.42")
def get(
    run: Run,
    stream: StreamName,
    sequence: Annotated[int | None, typer.Argument(metavar="SEQUENCE", help="The message with this sequence.")] = None,
    last: Annotated[str | None, typer.Option(metavar="SUBJECT", help="The last message on a subject.")] = None,
    following: Annotated[
        str | None, typer.Option("--next", metavar="SUBJECT", help="The first message on a subject, --from on.")
    ] = None,
    first: Annotated[int | None, typer.Option("--from", metavar="SEQUENCE", help="From this sequence on.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From a time on, such as 2026-03-01T12:00:00Z.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Only messages on this subject.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help=f"How many messages; {_SOME} if nothing is said.")] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Whichever replica or mirror answers first.", show_default=False)
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Only the content, as it is.", show_default=False)] = False,
) -> None:
    """One message, by its sequence, or the last or the next on a subject; or several, --from a sequence or --since a
    time on. Subjects may have wildcards.

    JSON has the content as text where it is UTF-8, else as base64; "encoding" says which. Several messages are a list.
    """
    if raw and run.out.as_json:
        raise typer.BadParameter("--raw and --json contradict each other")
    several = [
        name for name, value in (("--since", since), ("--subject", subject), ("--count", count)) if value is not None
    ]
    single = [
        name for name, value in (("SEQUENCE", sequence), ("--last", last), ("--next", following)) if value is not None
    ]
    if first is not None and following is None:
        several.append("--from")
    if not single and not several:
        raise typer.BadParameter(
            "which message? Give a sequence, --last, --next, or --from, --since, --subject, --count"
        )
    if len(single) > 1 or (single and several) or (since is not None and first is not None):
        chosen = [*single, *several]
        raise typer.BadParameter(f"{' and '.join(chosen)} contradict each other")
    start = 1 if first is None else first
    if single:
        _show(run, [_one(run, stream, sequence, last, following, start, direct)], raw=raw, single=True)
        return
    found = run.admin.messages.read(
        stream, subject, sequence=start, since=since, count=count or _SOME + 1, direct=direct or None
    )
    more = _show(run, found, raw=raw, most=count or _SOME)
    if more:
        run.out.note(f"these are the first {_SOME}: --count N for more")


@command(messages, "delete-msg", example="stream delete-msg ORDERS 4711")
def delete(
    run: Run,
    stream: StreamName,
    sequence: Annotated[int, typer.Argument(help="The message with this sequence.")],
    no_erase: Annotated[
        bool, typer.Option("--no-erase", help="Quicker: what is on the disk stays a while.", show_default=False)
    ] = False,
    force: Force = False,
) -> None:
    """Delete a message, and overwrite what is on the disk."""
    run.out.confirm(f"Delete message {sequence:,} of stream {stream}?", force=force)
    (run.admin.messages.delete if no_erase else run.admin.messages.erase)(stream, sequence)
    done = "deleted" if no_erase else "erased"
    run.out.done(
        f"message {sequence:,} of stream {stream} was {done}", stream=stream, seq=sequence, erased=not no_erase
    )


def _one(
    run: Run,
    stream: str,
    sequence: int | None,
    last: str | None,
    following: str | None,
    start: int,
    direct: bool,
) -> StoredMessage:
    if sequence is not None:
        return run.admin.messages.get(stream, sequence, direct=direct)
    if last is not None:
        return run.admin.messages.last(stream, last, direct=direct)
    assert following is not None  # one of the three is given
    return run.admin.messages.next(stream, following, start, direct=direct)


def _show(
    run: Run, found: Iterator[StoredMessage] | list[StoredMessage], *, raw: bool, most: int = 1, single: bool = False
) -> bool:
    """Print up to ``most`` messages; whether there are more."""
    remaining = iter(found)
    some = islice(remaining, most)
    if run.out.as_json:
        data = [message_data(each) for each in some]
        run.out.record({}, data=data[0] if single else data)
        return next(remaining, None) is not None
    nothing = True
    for each in some:
        nothing = False
        if raw:
            run.out.raw(each.data)
        else:
            print_message(run, each)
    if nothing:
        run.out.note("there are no such messages")
    return next(remaining, None) is not None
