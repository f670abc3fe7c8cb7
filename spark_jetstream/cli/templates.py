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

Templates = Annotated[bool, Option(help="Fill in templates, or send them as they are.")]

_TEMPLATE = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
_LETTERS = string.ascii_letters + string.digits


def fill(text: bytes, noun: str, templates: bool) -> Fill:
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
        parts[1::2] = [str(value(number)).encode() for value in values]
        return b"".join(parts)

    return filled


def _unchanged(text: bytes, number: int) -> bytes:
    return text


def _function(template: str, noun: str) -> Callable[[int], object]:
    """Return the function of a template, which takes the number of a message."""
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


def _random(least: int, most: int, number: int) -> str:
    return "".join(random.choices(_LETTERS, k=random.randint(least, most)))


def _count(number: int) -> int:
    return number


def _time(number: int) -> str:
    # Go's time.Kitchen: 3:04PM.
    return dt.datetime.now().astimezone().strftime("%-I:%M%p")


def _time_stamp(number: int) -> str:
    now = dt.datetime.now().astimezone()
    # RFC 3339, as Go writes it.
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")


def _unix(number: int) -> int:
    return int(time.time())


def _unix_nano(number: int) -> int:
    return time.time_ns()


def _id(number: int) -> str:
    return uuid.uuid4().hex


#: The template functions of the ``nats`` command that have no arguments.
_FUNCTIONS: dict[str, Callable[[int], object]] = {
    "Count": _count,
    "Cnt": _count,
    "Time": _time,
    "TimeStamp": _time_stamp,
    "Unix": _unix,
    "UnixNano": _unix_nano,
    "ID": _id,
}
