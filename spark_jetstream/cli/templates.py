"""Templates in subjects, headers and data of messages, as the ``nats`` command has them."""

from __future__ import annotations

import datetime as dt
import random
import re
import string
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Annotated

from typer import BadParameter, Option

Fill = Callable[[int], bytes]
"""Takes the number of a message, from 1, and returns a text with its templates filled in."""

Clock = Callable[[], int]
"""Returns the time in nanoseconds since the epoch."""

Templates = Annotated[bool, Option(help="Fill in templates, or send them as they are.")]

_TEMPLATE = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
# Takes the number of a message, from 1, and the time of a `Clock`.
_Function = Callable[[int, int], object]
_LETTERS = string.ascii_letters + string.digits


def fill(text: bytes, noun: str, templates: bool, *, clock: Clock = time.time_ns) -> Fill:
    """Return a function that fills in the templates of a text; without ``templates``, the text.

    Raises `BadParameter`, which calls the text ``noun``, for a template that does not exist.
    """
    unchanged = partial(_unchanged, text)
    if not templates:
        return unchanged
    # The pattern has one group, so texts and templates alternate, and the first is a text.
    pieces = _TEMPLATE.split(text)  # a text, a template, a text, ...
    # JSON may hold such braces by itself: --no-templates sends them.
    if any(b"{{" in piece for piece in pieces[::2]):
        raise BadParameter(
            f"{noun}: a template begins with {{{{ and does not end; or use --no-templates",
        )
    if len(pieces) == 1:
        return unchanged
    values = [_function(piece.decode("utf-8", "replace"), noun) for piece in pieces[1::2]]

    def filled(number: int) -> bytes:
        parts = pieces.copy()
        parts[1::2] = [str(value(number, clock())).encode() for value in values]
        return b"".join(parts)

    return filled


def _unchanged(text: bytes, number: int) -> bytes:
    return text


def _function(template: str, noun: str) -> _Function:
    """Return the function of a template."""
    name, *arguments = template.split() or [""]
    # The nats command takes its templates as Go has them, with and without a dot.
    name_in_go = name.removeprefix(".")
    if name_in_go in _FUNCTIONS and not arguments:
        return _FUNCTIONS[name_in_go]
    if name == "Random" and len(arguments) == 2 and all(map(str.isdecimal, arguments)):
        least, most = map(int, arguments)
        if least <= most:
            return partial(_random, least, most)
    # Cnt is another name of Count.
    known = ", ".join(function for function in _FUNCTIONS if function != "Cnt")
    instead = f"only {known} and Random MIN MAX; or use --no-templates"
    raise BadParameter(f"{noun}: there is no template {{{{{template}}}}}, {instead}")


def _random(least: int, most: int, number: int, now: int) -> str:
    return "".join(random.choices(_LETTERS, k=random.randint(least, most)))


def _count(number: int, now: int) -> int:
    return number


def _time(number: int, now: int) -> str:
    # Go's time.Kitchen: 3:04PM.
    return _local_time(now).strftime("%-I:%M%p")


def _time_stamp(number: int, now: int) -> str:
    # RFC 3339, as Go writes it.
    return _local_time(now).isoformat(timespec="seconds").replace("+00:00", "Z")


def _local_time(now: int) -> dt.datetime:
    """Return a time of a `Clock` in whole seconds, in the local time zone."""
    return dt.datetime.fromtimestamp(now // 10**9).astimezone()


def _unix(number: int, now: int) -> int:
    return now // 10**9


def _unix_nano(number: int, now: int) -> int:
    return now


def _id(number: int, now: int) -> str:
    return uuid.uuid4().hex


#: The template functions of the ``nats`` command that have no arguments.
_FUNCTIONS: dict[str, _Function] = {
    "Count": _count,
    "Cnt": _count,
    "Time": _time,
    "TimeStamp": _time_stamp,
    "Unix": _unix,
    "UnixNano": _unix_nano,
    "ID": _id,
}
