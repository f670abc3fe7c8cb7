"""``spark-jetstream pub``: publishes messages, and waits until streams have stored them."""

from __future__ import annotations

import datetime as dt
import io
import random
import re
import string
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer import Argument, BadParameter, Option

from spark_jetstream.cli.app import Run, command
from spark_jetstream.protocol.units import counted

if TYPE_CHECKING:  # the sink takes long to import, and no other command needs it
    from spark_jetstream.sink.report import TaskReport, Totals

pub = typer.Typer()

Fill = Callable[[int], bytes]
"""Takes the number of a message, from 1, and returns a text with its templates filled in."""
Templates = Annotated[bool, Option(help="Fill in templates, or send them as they are.")]

_PORTION = 2000  # messages that are sent together
_PORTION_BYTES = 4 << 20
_CHUNK = 1 << 16  # bytes of standard input
_TEMPLATE = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
_LETTERS = string.ascii_letters + string.digits


#: The template functions of the nats command without arguments.
_FUNCTIONS: dict[str, Callable[[int], object]] = {
    "Count": lambda number: number,
    "Cnt": lambda number: number,
    "Time": lambda _: dt.datetime.now().astimezone().strftime("%-I:%M%p"),
    "TimeStamp": lambda _: dt.datetime.now().astimezone().isoformat(timespec="seconds").replace("+00:00", "Z"),
    "Unix": lambda _: int(time.time()),
    "UnixNano": lambda _: time.time_ns(),
    "ID": lambda _: uuid.uuid4().hex,
}


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

    Templates as in the nats CLI make the messages differ: {{Count}} is the number of the message;
    {{Time}}, {{TimeStamp}}, {{Unix}} and {{UnixNano}} are the present time; {{ID}} is unique;
    {{Random 5 10}} is 5 to 10 random letters and digits.

    Every message waits for its acknowledgement, many at a time. When no stream captures the
    subject, the command ends with 1. After a lost connection it sends messages without an
    acknowledgement again: with --header 'Nats-Msg-Id: {{ID}}' none is stored twice.
    """
    from spark_jetstream.admin.api import publish_subject
    from spark_jetstream.admin.messages import check_header

    if send_on == "newline" and (data != "-" or count > 1):
        raise BadParameter(
            "--send-on newline takes the messages from standard input, without DATA and --count",
        )

    headers = []
    for text in header or ():
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon:
            raise BadParameter(f"--header {text} is not NAME:VALUE")
        octets = _octets(value)
        check_header(
            name,
            octets.decode("latin-1"),
        )  # bytes that are no UTF-8 are published as they are
        headers.append((name, fill(octets, f"header {name}", templates)))
    where = fill(_octets(subject), "the subject", templates)
    if not templates or "{{" not in subject:
        publish_subject(subject)
    payloads: Iterator[list[bytes]]
    if send_on == "newline":
        payloads = _lines(lambda line, number: fill(line, f"line {number}", templates)(number))
    else:
        whole = whole_data(data)
        portion = max(1, min(_PORTION, _PORTION_BYTES // (len(whole) + 1)))
        fill_in = fill(whole, "the data", templates)
        firsts = range(1, count + 1, portion)
        payloads = ([fill_in(at) for at in range(first, min(first + portion, count + 1))] for first in firsts)
    with run.out.progress("publishing", in_bytes=False) as tell:
        totals = _publish(
            run,
            where,
            headers,
            payloads,
            lambda done: tell(done, count),
            at_once=send_on == "newline",
        )
    show_stored(run, totals)


def whole_data(data: str) -> bytes:
    """Return the data of a command line; for ``-``, what standard input holds."""
    return sys.stdin.buffer.read() if data == "-" else _octets(data)


def fill(text: bytes, what: str, templates: bool) -> Fill:
    """Return what fills in the templates of a text; without ``templates`` it stays as it is.

    Raises `BadParameter`, which calls the text ``what``, for a template that there is not.
    """
    if not templates:
        return lambda number: text
    pieces = _TEMPLATE.split(text)  # a text, a template, a text, ...
    if any(b"{{" in piece for piece in pieces[::2]):
        raise BadParameter(
            f"{what}: a template begins with {{{{ and does not end; or use --no-templates",
        )
    if len(pieces) == 1:
        return lambda number: text
    calls = [_function(piece.decode("utf-8", "replace"), what) for piece in pieces[1::2]]

    def filled(number: int) -> bytes:
        parts = pieces.copy()
        parts[1::2] = [str(call(number)).encode() for call in calls]
        return b"".join(parts)

    return filled


def _function(template: str, what: str) -> Callable[[int], object]:
    name, *arguments = template.split() or [""]
    if name == "Random" and len(arguments) == 2 and all(map(str.isdecimal, arguments)):
        least, most = map(int, arguments)
        if least <= most:
            return lambda _: "".join(random.choices(_LETTERS, k=random.randint(least, most)))
    elif name.removeprefix(".") in _FUNCTIONS and not arguments:
        return _FUNCTIONS[name.removeprefix(".")]
    known = ", ".join(function for function in _FUNCTIONS if function != "Cnt")
    raise BadParameter(
        f"{what}: there is no template {{{{{template}}}}}, only {known} and Random MIN MAX; or use --no-templates"
    )


def _octets(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _lines(filled: Callable[[bytes, int], bytes]) -> Iterator[list[bytes]]:
    """Yield the lines of standard input, those together that come together."""
    number, rest, some = 0, b"", b"\n"
    while some:
        some = cast("io.BufferedReader", sys.stdin.buffer).read1(_CHUNK)
        *whole, rest = (rest + some).split(b"\n")
        if not some and rest:
            whole = [rest]
        if whole:
            yield [filled(line.removesuffix(b"\r"), number + place) for place, line in enumerate(whole, 1)]
            number += len(whole)


def _publish(
    run: Run,
    subject: Fill,
    headers: list[tuple[str, Fill]],
    payloads: Iterator[list[bytes]],
    tell: Callable[[int], None],
    *,
    at_once: bool,
) -> Totals:
    """Publish portions of messages as the sink publishes rows, and return what is stored.

    ``at_once``: the next portion may be long in coming, so this one is stored, or refused, before
    it is waited for.
    """
    import numpy as np
    import pyarrow as pa

    from spark_jetstream.admin.api import publish_subject
    from spark_jetstream.options import SinkOptions
    from spark_jetstream.sink.publisher import Publisher
    from spark_jetstream.sink.rows import Rows
    from spark_jetstream.sink.target import Target

    def line(number: int) -> bytes:
        return b"".join(b"%s: %s\r\n" % (name.encode(), value(number)) for name, value in headers)

    def column(text: Fill, numbers: range) -> Any:
        return pa.array(map(text, numbers), pa.binary())

    admin = run.admin
    options = SinkOptions.from_spark({}, streaming=False).model_copy(
        update={"connection": admin.options},
    )
    target = Target(domain=admin.options.domain, noun="message")
    first = 1
    with Publisher(run.connect, options, target, "this command") as publisher:
        refused = []
        for data in payloads:
            numbers = range(first, first + len(data))
            first += len(data)
            subjects = column(subject, numbers)
            for octets in subjects.unique().to_pylist():
                publish_subject(octets.decode("utf-8", "surrogateescape"))
            lines = column(line, numbers)
            rows = Rows(
                np.array(numbers, np.int64),
                subjects,
                pa.array(data, pa.binary()),
                lines,
                None,
            )
            publisher.publish(rows, None, None, publisher.totals)
            refused = publisher.flush() if at_once else publisher.take_refused()
            tell(publisher.totals.stored)
            if refused:
                break
        refused = refused or publisher.flush()
        if refused:
            raise publisher.failure(refused[0])
        return publisher.totals


def show_stored(run: Run, totals: Totals | TaskReport) -> None:
    """Print how many messages are stored, and where."""
    streams, places = {}, []
    for name, (first, last) in sorted(totals.streams.items()):
        streams[name] = {"first_seq": first, "last_seq": last}
        places.append(
            f"stream {name}, sequence{f' {first:,}' if first == last else f's {first:,} to {last:,}'}",
        )
    known = f" ({totals.duplicates:,} of them before)" if totals.duplicates else ""
    sentence = f"stored {counted(totals.stored, 'message')}{known}: {'; '.join(places)}"
    data = {"messages": totals.stored, "duplicates": totals.duplicates, "streams": streams}
    run.out.done(sentence if places else "nothing to publish", **data)
