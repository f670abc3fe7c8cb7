"""``spark-jetstream pub``: publishes messages, and waits until streams have stored them."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer
from typer import Argument, BadParameter, Option

from spark_jetstream.cli.app import Run, command
from spark_jetstream.cli.arguments import command_octets, whole_data
from spark_jetstream.cli.publishing import store_messages
from spark_jetstream.cli.templates import Fill, Templates, fill
from spark_jetstream.protocol.units import counted

if TYPE_CHECKING:
    from spark_jetstream.sink.report import TaskReport, Totals

pub = typer.Typer()

# A portion of the sink has as many rows, and some 4 MB (docs/architecture.md).
_PORTION = 2000  # messages that are sent together
_PORTION_BYTES = 4 << 20
_CHUNK = 1 << 16  # bytes of standard input


@command(
    pub,
    "pub",
    example="""pub orders.eu.de '{"id": {{Count}}, "amount": 12.5}' --count 1000""",
)
def publish(
    run: Run,
    subject: Annotated[str, Argument(help="The subject, possibly with templates.")],
    data: Annotated[
        str,
        Argument(help="The data, possibly with templates; - for what standard input holds."),
    ] = "-",
    count: Annotated[int, Option(min=1, help="How many messages.")] = 1,
    header: Annotated[
        list[str] | None,
        Option(
            "--header",
            "-H",
            metavar="NAME:VALUE",
            help="A header, possibly with templates; may be repeated.",
        ),
    ] = None,
    send_on: Annotated[
        Literal["eof", "newline"],
        Option(help="Make one message of standard input, or one of each line as soon as it comes."),
    ] = "eof",
    templates: Templates = True,
) -> None:
    """Publish messages, and print where streams have stored them.

    Templates as in the nats CLI make the messages differ. The number of the message replaces
    {{Count}}. A unique id replaces {{ID}}, and 5 to 10 random letters and digits replace {{Random 5
    10}}. The present time replaces {{Time}}, {{TimeStamp}}, {{Unix}} and {{UnixNano}}.

    Every message waits for its acknowledgement, many at a time. When no stream captures the
    subject, the command ends with 1. After a lost connection it sends messages without an
    acknowledgement again: with --header 'Nats-Msg-Id: {{ID}}' none is stored twice.
    """
    from spark_jetstream.admin.api import publish_subject

    if send_on == "newline" and (data != "-" or count > 1):
        raise BadParameter(
            "--send-on newline takes the messages from standard input, without DATA and --count",
        )
    # Subject, headers and data are checked here, so a wrong one is an error before a message is
    # sent.
    headers = _filled_headers(header or (), templates)
    where = fill(command_octets(subject), "the subject", templates)
    # A subject with templates is checked for each message, once they are filled in.
    if not templates or "{{" not in subject:
        publish_subject(subject)
    by_line = send_on == "newline"
    if by_line:
        payloads = _lines(templates)
    else:
        payloads = _portions(whole_data(data), count, templates)
    with run.out.progress("publishing", in_bytes=False) as progress:

        def tell(done: int) -> None:
            progress(done, count)

        totals = store_messages(
            run.connect,
            run.admin.options,
            where,
            headers,
            payloads,
            tell,
            at_once=by_line,
        )
    show_stored(run, totals)


def _filled_headers(given: Iterable[str], templates: bool) -> list[tuple[str, Fill]]:
    """Return the names of headers, each with the function that fills in its value."""
    from spark_jetstream.admin.messages import check_header

    headers = []
    for text in given:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon:
            raise BadParameter(f"--header {text} is not NAME:VALUE")
        octets = command_octets(value)
        # Bytes that are no UTF-8 are published as they are.
        # Latin-1 has a character for each byte, so the check sees line ends and all else.
        check_header(name, octets.decode("latin-1"))
        headers.append((name, fill(octets, f"header {name}", templates)))
    return headers


def _portions(text: bytes, count: int, templates: bool) -> Iterator[list[bytes]]:
    """Return the payloads of all messages, in portions that are sent together.

    Raises `BadParameter` for a wrong template, before the first portion.
    """
    filled = fill(text, "the data", templates)
    # A message larger than a portion goes alone. The 1 is for a message without data.
    size = max(1, min(_PORTION, _PORTION_BYTES // (len(text) + 1)))

    def portions() -> Iterator[list[bytes]]:
        for first in range(1, count + 1, size):
            end = min(first + size, count + 1)
            yield [filled(number) for number in range(first, end)]

    # A generator of its own: `fill` above has refused a wrong template before any message is sent.
    return portions()


def _lines(templates: bool) -> Iterator[list[bytes]]:
    """Yield the payloads of the lines of standard input, those together that arrive together."""

    def payload(line: bytes, number: int) -> bytes:
        # Files from Windows end their lines with both characters.
        return fill(line.removesuffix(b"\r"), f"line {number}", templates)(number)

    stdin = cast("io.BufferedReader", sys.stdin.buffer)
    first = 1
    rest = b""
    # `read1` returns what is there; `read` would wait for all of the chunk, and tail -f may never
    # fill it.
    while octets := stdin.read1(_CHUNK):
        # The last piece has no end yet.
        *lines, rest = (rest + octets).split(b"\n")
        if lines:
            yield [payload(line, number) for number, line in enumerate(lines, first)]
            first += len(lines)
    if rest:  # the last line has no end
        yield [payload(rest, first)]


def show_stored(run: Run, totals: Totals | TaskReport) -> None:
    """Print how many messages are stored, and where."""
    streams = {}
    places = []
    # Subjects with templates may go to several streams.
    for name, (first, last) in sorted(totals.streams.items()):
        streams[name] = {"first_seq": first, "last_seq": last}
        sequences = f"sequences {first:,} to {last:,}"
        if first == last:
            sequences = f"sequence {first:,}"
        places.append(f"stream {name}, {sequences}")
    known = f" ({totals.duplicates:,} of them before)" if totals.duplicates else ""
    sentence = f"stored {counted(totals.stored, 'message')}{known}: {'; '.join(places)}"
    data = {"messages": totals.stored, "duplicates": totals.duplicates, "streams": streams}
    run.out.done(sentence if places else "nothing to publish", **data)
