"""``spark-jetstream sub``, ``request`` and ``reply``: messages of core NATS, without streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, Run, command
from spark_jetstream.cli.arguments import whole_data
from spark_jetstream.cli.buckets import Count
from spark_jetstream.cli.object import headers_of
from spark_jetstream.cli.output import content_data, content_text, header_lines
from spark_jetstream.cli.templates import Templates, fill
from spark_jetstream.errors import OptionError, printable

if TYPE_CHECKING:
    from spark_jetstream.admin.subscription import Subscription
    from spark_jetstream.client.subscription import CoreMessage

core = typer.Typer()

_GROUP = "NATS-RPLY-22"  # that of the nats command: all that reply share the requests

Filter = Annotated[str, Argument(metavar="SUBJECT", help="The subject; wildcards allowed.")]
Queue = Option(help="The queue group: one of its members receives each message.")
Raw = Annotated[bool, Option("--raw", "-r", help="Print only the payloads, each with a line end.")]


@command(core, "sub", example="sub 'orders.>' --count 10")
def subscribe(
    run: Run,
    subject: Filter,
    count: Count = None,
    queue: Annotated[str, Queue] = "",
    headers_only: Annotated[bool, Option("--headers-only", help="Print no payloads.")] = False,
    raw: Raw = False,
) -> None:
    """Print what is published on a subject, until Ctrl-C; with --json an object a line.

    This is a subscription of core NATS: it has no part in streams, and needs none. When the
    connection was lost, and some messages may be missing, a line on standard error says so, and the
    exit code at the end is 1.
    """
    run.out.check_raw(raw)
    if raw and headers_only:
        raise BadParameter("--raw and --headers-only contradict each other")
    # The note comes after the server has the subscription, so a reader of the note may publish.
    with run.admin.subscribe(subject, queue=queue, count=count) as messages:
        run.out.note(f"Subscribed to {subject}")
        _show(run, _received(run, messages), raw=raw, headers_only=headers_only)


@command(core, "request", example="request '$JS.API.STREAM.NAMES' '{}' --raw")
def request(
    run: Run,
    subject: Annotated[str, Argument(help="The subject, of a service or of an API.")],
    data: Annotated[
        str,
        Argument(help="The data, possibly with templates; - for what standard input holds."),
    ] = "",
    header: Annotated[
        list[str] | None,
        Option("--header", "-H", metavar="NAME:VALUE", help="A header."),
    ] = None,
    replies: Annotated[
        int,
        Option(min=0, help="How many replies to wait for; 0 for all until --timeout."),
    ] = 1,
    templates: Templates = True,
    raw: Raw = False,
) -> None:
    """Send a request, and print its replies. Templates are those of pub.

    Ends with 3 when nobody listens, or when no reply arrives within --timeout, and with 1 after
    fewer replies than --replies.
    """
    run.out.check_raw(raw)
    # A request is one message, so {{Count}} is 1.
    payload = fill(whole_data(data), "the data", templates)(1)
    # None waits for all replies until the time-out.
    received = run.admin.request(subject, payload, headers_of(header), replies=replies or None)
    _show(run, received, raw=raw)
    if len(received) < replies:
        run.out.note(
            f"{len(received):,} of {replies:,} replies arrived in time; --timeout sets the time"
        )
        raise Exit(FAILED)


@command(core, "reply", example="reply orders.time '{{Time}}' --count 10")
def reply(
    run: Run,
    subject: Filter,
    data: Annotated[
        str | None,
        Argument(help="The data of each reply, possibly with templates."),
    ] = None,
    echo: Annotated[
        bool,
        Option("--echo", help="Reply with what was sent, as without DATA."),
    ] = False,
    queue: Annotated[str, Queue] = _GROUP,
    count: Count = None,
    templates: Templates = True,
) -> None:
    """Reply to requests on a subject, and print them, until Ctrl-C. Templates are those of pub.

    Several that reply share the requests, unless each has a --queue of its own.
    """
    if echo and data is not None:
        raise BadParameter("DATA and --echo contradict each other")
    # A wrong template is refused before the subscription, and not at the first request.
    payload = fill(whole_data(data or ""), "the data", templates)

    def answered(messages: Subscription[CoreMessage]) -> Iterator[CoreMessage]:
        for number, message in enumerate(_received(run, messages), 1):
            try:
                if data is None:
                    messages.reply(message, message.data, message.headers)
                else:
                    messages.reply(message, payload(number))
            except OptionError as error:
                # A message without a reply subject, or a reply that is too large: the next request
                # may be answered. test_core.py,
                # test_a_request_that_cannot_be_answered_is_passed_over, holds it.
                run.out.note(f"no reply to message {number:,}: {error}")
            yield message

    with run.admin.subscribe(subject, queue=queue, count=count) as messages:
        members = f" in the queue group {queue}" if queue else ""
        run.out.note(f"Replying to {subject}{members}")
        _show(run, answered(messages))


def _received(run: Run, messages: Subscription[CoreMessage]) -> Iterator[CoreMessage]:
    """Yield the messages; gaps go to standard error. The command ends with 1 after one."""
    from spark_jetstream.client.subscription import CoreMessage

    for item in messages:
        if isinstance(item, CoreMessage):
            yield item
        else:
            # A gap without an end is a connection that is still lost.
            effect = "messages may be missing" if item.until else "nothing is received"
            run.out.note(f"{effect}: {item.reason}")
    # A script must not take these messages for all that were published.
    if messages.gaps:
        raise Exit(FAILED)


def _show(
    run: Run,
    messages: Iterable[CoreMessage],
    *,
    raw: bool = False,
    headers_only: bool = False,
) -> None:
    """Print messages with their numbers."""

    def text(numbered: tuple[int, CoreMessage]) -> str:
        number, message = numbered
        reply_to = f' with reply "{printable(message.reply)}"' if message.reply else ""
        head = f'[#{number}] Received on "{printable(message.subject)}"{reply_to}\n'
        head += "".join(header_lines(message.headers))
        if headers_only:
            return head
        return f"{head}\n{content_text(message.data)}\n"

    def data(numbered: tuple[int, CoreMessage]) -> dict[str, Any]:
        number, message = numbered
        known: dict[str, Any] = {
            "number": number,
            "subject": message.subject,
            "reply": message.reply,
            "headers": message.headers,
        }
        if not headers_only:
            known |= content_data("data", message.data)
        return known

    if raw:
        for message in messages:
            # The nats command prints payloads in this form.
            run.out.raw(message.data + b"\n")
    else:
        run.out.lines(enumerate(messages, 1), text, data=data)
