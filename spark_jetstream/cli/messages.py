"""``spark-jetstream stream get``, ``view`` and ``delete-msg``: the messages of a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from spark_jetstream.cli.app import Run, command
from spark_jetstream.cli.arguments import Force, Raw, StreamName
from spark_jetstream.cli.output import message_data
from spark_jetstream.cli.stream import streams

if TYPE_CHECKING:
    from spark_jetstream.admin.models.messages import StoredMessage

_DEFAULT_COUNT = 10

First = Annotated[int | None, Option("--from", metavar="SEQUENCE", help="From this sequence on.")]
Since = Annotated[
    str | None,
    Option(metavar="TIME", help="From a time on, such as 2026-03-01T12:00:00Z."),
]
OnSubject = Annotated[str | None, Option(help="Only messages on this subject.")]


@command(streams, "get", example="stream get ORDERS --last orders.eu.42")
def get(
    run: Run,
    stream: StreamName,
    sequence: Annotated[
        int | None,
        Argument(metavar="SEQUENCE", help="The message with this sequence."),
    ] = None,
    last: Annotated[
        str | None,
        Option(metavar="SUBJECT", help="The last message on a subject."),
    ] = None,
    following: Annotated[
        str | None,
        Option("--next", metavar="SUBJECT", help="The first message on a subject, --from on."),
    ] = None,
    first: First = None,
    since: Since = None,
    subject: OnSubject = None,
    count: Annotated[
        int | None,
        Option(min=1, max=sys.maxsize, help=f"How many messages; {_DEFAULT_COUNT} by default."),
    ] = None,
    direct: Annotated[
        bool,
        Option("--direct", help="Whichever replica or mirror answers first."),
    ] = False,
    raw: Raw = False,
) -> None:
    """Print a message, or several.

    One message is chosen by its sequence, or is the last or the next on a subject. Several begin
    --from a sequence or --since a time. Subjects may have wildcards.

    JSON has the content as text where it is UTF-8, else as base64; "encoding" says which. Several
    messages are a list.
    """
    run.out.check_raw(raw)
    chosen = {
        "SEQUENCE": sequence,
        "--last": last,
        "--next": following,
        "--since": since,
        "--subject": subject,
        "--count": count,
        # With --next it says where to begin.
        "--from": first if following is None else None,
    }
    _check_choice([name for name, value in chosen.items() if value is not None])
    admin = run.admin.messages
    start = 1 if first is None else first
    if sequence is not None:
        _print_single(run, admin.get(stream, sequence, direct=direct), raw)
    elif last is not None:
        _print_single(run, admin.last(stream, last, direct=direct), raw)
    elif following is not None:
        _print_single(run, admin.next(stream, following, start, direct=direct), raw)
    else:
        messages = admin.read(
            stream,
            subject,
            sequence=start,
            since=since,
            # One more than is shown, to tell whether there are more.
            count=count or _DEFAULT_COUNT + 1,
            # None lets the administration choose; False would insist on single messages.
            direct=direct or None,
        )
        _print_several(run, messages, count, raw)


def _check_choice(given: list[str]) -> None:
    """Refuse options that choose no message, and those that exclude each other."""
    if not given:
        raise BadParameter(
            "which message? Give a sequence, --last, --next, or --from, --since, --subject, "
            "--count",
        )
    # `given` has the order of the table above, in which these come first.
    single = given[0] in ("SEQUENCE", "--last", "--next")
    two_starts = "--since" in given and "--from" in given
    if (single and len(given) > 1) or two_starts:
        raise BadParameter(f"{' and '.join(given)} contradict each other")


def _print_single(run: Run, message: StoredMessage, raw: bool) -> None:
    run.out.json(message_data(message))
    run.out.message(message, raw=raw)


def _print_several(
    run: Run,
    messages: Iterator[StoredMessage],
    count: int | None,
    raw: bool,
) -> None:
    """Print the first messages, and a note if there are more."""
    shown = islice(messages, count or _DEFAULT_COUNT)
    if run.out.as_json:
        run.out.json([message_data(message) for message in shown])
    else:
        _print(run, shown, raw)
    # With --count the read itself ends there, so nothing is left.
    if next(messages, None) is not None:
        run.out.note(f"these are the first {_DEFAULT_COUNT}: --count N for more")


@command(streams, "view", example="stream view ORDERS 20 --subject 'orders.eu.>'")
def view(
    run: Run,
    stream: StreamName,
    size: Annotated[int, Argument(min=1, help="How many messages are a page.")] = _DEFAULT_COUNT,
    first: First = None,
    since: Since = None,
    subject: OnSubject = None,
    raw: Raw = False,
) -> None:
    """Print the messages of a stream, and ask after each page whether to go on.

    Without a terminal, and with --json (an object a line), all are printed. For some of them there
    is "stream get".
    """
    run.out.check_raw(raw)
    if first is not None and since is not None:
        raise BadParameter("--since and --from contradict each other")
    messages = run.admin.messages.read(
        stream,
        subject,
        sequence=1 if first is None else first,
        since=since,
    )
    if run.out.as_json:
        run.out.lines(messages, str, data=message_data)
        return
    # A question needs a terminal to be read on, and one to be answered on.
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    _print(run, messages, raw, size if on_terminal else None)


def _print(run: Run, messages: Iterator[StoredMessage], raw: bool, page: int | None = None) -> None:
    """Print messages. After each ``page`` of them the user may end it."""
    printed = 0
    for message in messages:
        # The question comes before the next message, and so not after the last one.
        page_is_full = page is not None and printed > 0 and printed % page == 0
        if page_is_full and not run.out.asked("Next page?", default=True):
            return
        run.out.message(message, raw=raw)
        printed += 1
    if not printed:
        run.out.note("no messages found")


@command(streams, "delete-msg", example="stream delete-msg ORDERS 4711")
def delete(
    run: Run,
    stream: StreamName,
    sequence: Annotated[int, Argument(help="The message with this sequence.")],
    no_erase: Annotated[
        bool,
        Option("--no-erase", help="Faster: the bytes stay on the disk for a while."),
    ] = False,
    force: Force = False,
) -> None:
    """Delete a message, and overwrite what is on the disk."""
    run.out.confirm(f"Delete message {sequence:,} of stream {stream}?", force=force)
    if no_erase:
        run.admin.messages.delete(stream, sequence)
        done = "deleted"
    else:
        run.admin.messages.erase(stream, sequence)
        done = "erased"
    run.out.done(
        f"message {sequence:,} of stream {stream} was {done}",
        stream=stream,
        seq=sequence,
        erased=not no_erase,
    )
