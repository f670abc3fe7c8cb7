"""Messages, servers, times and lists as commands print them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import chain
from typing import Any

from spark_jetstream.admin.models.base import readable
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import Replica
from spark_jetstream.cli.app import Run
from spark_jetstream.errors import LAYOUT, printable
from spark_jetstream.protocol.units import Nanoseconds, Timestamp

_SECOND = 1_000_000_000


def print_names(run: Run, names: Iterator[str], empty: str = "") -> None:
    """Print names, a line each as they come; as JSON, a list. Without names, ``empty`` is a note."""
    if run.out.as_json:
        run.out.record({}, data=list(names))
        return
    first = next(names, None)
    if first is not None:
        run.out.lines(chain([first], names), str, data=str)
    elif empty:
        run.out.note(empty)


def listed(value: object) -> object:
    """Return lists without brackets, and mappings as on a command line; anything else unchanged."""
    if isinstance(value, tuple):
        return ", ".join(map(readable, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={readable(each)}" for name, each in value.items())
    return value


def server_text(each: Replica) -> str:
    """Return a server of a cluster with its state."""
    if each.leader:
        return f"{each.server} (leader)"
    if each.offline:
        return f"{each.server} (offline)"
    return f"{each.server} ({'current' if each.current else 'outdated'}, {each.lag:,} behind)"


def to_the_second(time: Timestamp) -> str:
    """Return a time without its fraction; "" for the zero time."""
    return "" if time.never else str(time).partition(".")[0].removesuffix("Z") + "Z"


def rounded(span: Nanoseconds) -> Nanoseconds:
    """Return a duration rounded to seconds from a minute on, else to milliseconds."""
    unit = _SECOND if span >= 60 * _SECOND else 1_000_000
    return Nanoseconds((span + unit // 2) // unit * unit)


def ago(span: Nanoseconds | None) -> str:
    """Return how long ago something was; None and -1 (of the API) are never."""
    return "never" if span is None or span < 0 else f"{rounded(span)} ago"


def message_data(message: StoredMessage) -> dict[str, Any]:
    """Return a message for JSON. ``encoding`` says whether ``data`` is text or base64."""
    return {
        "subject": message.subject,
        "seq": message.seq,
        "time": message.time,
        "headers": message.headers,
        **content_data("data", message.data),
    }


def content_data(name: str, content: bytes) -> dict[str, str]:
    """Return bytes for JSON: the field ``name`` is text if they are UTF-8, else base64; ``encoding`` says which."""
    try:
        return {name: content.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(content).decode(), "encoding": "base64"}


def print_message(run: Run, message: StoredMessage, more: str = "") -> None:
    """Print sequence, subject and time, the headers and the content. ``more`` ends the first line."""
    run.out.text(f"{message.seq:,} {printable(message.subject)} {message.time}{more}", style="bold")
    for name, values in message.headers.items():
        for value in values:
            run.out.text(f"{printable(name)}: {printable(value, LAYOUT)}")
    run.out.text("")
    run.out.text(content_text(message.data))
    run.out.text("")


def content_text(content: bytes) -> str:
    """Return bytes for people: their text, or their number."""
    try:
        return printable(content.decode(), LAYOUT)
    except UnicodeDecodeError:
        return f"({len(content):,} bytes that are no text)"
