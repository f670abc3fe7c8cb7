"""Messages for people and for programs."""

from __future__ import annotations

import base64
from typing import Any

from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.commands.framework import Run
from spark_jetstream.errors import LAYOUT, printable


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
