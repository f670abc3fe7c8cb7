"""The frames that a client sends: publishes and subscriptions, as bytes. Pure.

Each function raises `ValueError` for a subject or a header that a server would not accept. A line
end in one of them could otherwise begin another frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from spark_jetstream.protocol.subjects import subject_fault

Pairs = Iterable[tuple[str, str]]
"""Headers: each name with a value; a name may be repeated."""

PING = b"PING\r\n"
PONG = b"PONG\r\n"

_BLANK = re.compile(r"[ \t\r\n]")
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = str.maketrans({"\r": " ", "\n": " "})


def publish(subject: str, payload: bytes, reply: str = "", headers: Pairs = ()) -> bytes:
    """Return the frame that publishes a message; without `reply` it asks for no answer."""
    _check_subject(subject)
    if reply:
        _check_subject(reply)
    names = " ".join(filter(None, (subject, reply))).encode()
    block = _header_block(headers)
    if not block:
        return b"PUB %s %d\r\n%s\r\n" % (names, len(payload), payload)
    total = len(block) + len(payload)
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (names, len(block), total, block, payload)


def subscribe(subject: str, group: str, number: int) -> bytes:
    """Return the line that subscribes to a subject, with wildcards, in a queue group if given."""
    if subject_fault(subject) or _BLANK.search(group):
        raise ValueError("invalid subject")
    words = filter(None, ("SUB", subject, group, str(number)))
    return f"{' '.join(words)}\r\n".encode()


def unsubscribe(number: int) -> bytes:
    """Return the line that ends a subscription."""
    return b"UNSUB %d\r\n" % number


def _check_subject(subject: str) -> None:
    if not subject or _BLANK.search(subject):
        raise ValueError("invalid subject")


def _header_block(headers: Pairs) -> bytes:
    """Return the header block, which is empty without headers."""
    lines = []
    for given, value in headers:
        name = given.strip()
        if not name:
            continue
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"invalid header: {name!r}")
        # A line end in a value would begin another header.
        lines.append(f"{name}: {value.strip().translate(_LINE_ENDS)}\r\n")
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode() if lines else b""
