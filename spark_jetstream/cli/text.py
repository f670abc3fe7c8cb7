"""Parts of what commands show of streams, consumers and buckets.

Messages for people and for programs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import chain
from typing import Any

from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import Replica
from spark_jetstream.admin.models.text import readable
from spark_jetstream.cli.app import Run
from spark_jetstream.errors import LAYOUT, printable
from spark_jetstream.protocol.units import Nanoseconds, Timestamp

_SECOND = 1_000_000_000


def print_names(run: Run, names: Iterator[str], empty: str = "") -> None:
    """Names, a line each as they come; as JSON, a list. ``empty`` is said where there are none."""
    if run.out.as_json:
        run.out.record({}, data=list(names))
        return
    first = next(names, None)
    if first is not None:
        run.out.lines(chain([first], names), str, data=str)
    elif empty:
        run.out.note(empty)


def listed(value: object) -> object:
    """Lists without brackets, and pairs as they were written on a command line; anything else as it is."""
    if isinstance(value, tuple):
        return ", ".join(map(readable, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={readable(each)}" for name, each in value.items())
    return value


def server_words(each: Replica) -> str:
    """A server of a cluster, and how it does."""
    if each.leader:
        return f"{each.server} (leader)"
    if each.offline:
        return f"{each.server} (offline)"
    return f"{each.server} ({'current' if each.current else 'outdated'}, {each.lag:,} behind)"


def to_the_second(time: Timestamp) -> str:
    """A time of the server's without its fraction; nothing for one that never was."""
    return "" if time.never else str(time).partition(".")[0].removesuffix("Z") + "Z"


def rounded(span: Nanoseconds) -> Nanoseconds:
    """A duration for people: to the second from a minute on, else to the millisecond."""
    unit = _SECOND if span >= 60 * _SECOND else 1_000_000
    return Nanoseconds((span + unit // 2) // unit * unit)


def ago(span: Nanoseconds | None) -> str:
    """How long ago something was; None, or -1 as the API says it, stands for never."""
    return "never" if span is None or span < 0 else f"{rounded(span)} ago"


def message_data(message: StoredMessage) -> dict[str, Any]:
    """A message as JSON. ``data`` is text where the content is UTF-8, else base64: ``encoding`` says which."""
    return {
        "subject": message.subject,
        "seq": message.seq,
        "time": message.time,
        "headers": message.headers,
        **content_data("data", message.data),
    }


def content_data(name: str, content: bytes) -> dict[str, str]:
    """Bytes as JSON: the field ``name`` is text where they are UTF-8, else base64, and ``encoding`` says which."""
    try:
        return {name: content.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(content).decode(), "encoding": "base64"}


def print_message(run: Run, message: StoredMessage, more: str = "") -> None:
    """Where it is, its headers and its content; ``more`` stands at the end of the first line."""
    run.out.text(f"{message.seq:,} {printable(message.subject)} {message.time}{more}", style="bold")
    for name, values in message.headers.items():
        for value in values:
            run.out.text(f"{printable(name)}: {printable(value, LAYOUT)}")
    run.out.text("")
    run.out.text(content_text(message.data))
    run.out.text("")


def content_text(content: bytes) -> str:
    """Bytes for people: the text that they are, or how many there are."""
    try:
        return printable(content.decode(), LAYOUT)
    except UnicodeDecodeError:
        return f"({len(content):,} bytes that are no text)"
