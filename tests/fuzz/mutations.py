"""New inputs from known ones, by a random number generator: bytes, and the values inside JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any

LONGEST = 1 << 16
"""How many bytes an input has at most."""

Mutate = Callable[[Random, bytes, bytes, Sequence[bytes]], bytes]
"""A generator, an input, another one to take pieces of, and words that mean something -> a new
input.
"""

_NUMBER = re.compile(rb"[0-9]+")
_NUMBERS = (
    *range(10),
    *(99, 255, 256, 4096, 65535, 10**8, 10**30),
    *(2**bits + more for bits in (31, 53, 63, 64) for more in (-1, 0)),
)
_NOISE = (b"\r\n", *(bytes([char]) for char in b'\n\r \t\0.:,"\\-\xff\xc3\x85\x1e'))
_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        -1,
        1.5,
        1e308,
        float("inf"),
        float("nan"),
        [],
        {},
        [[]],
        {"": None},
        "x" * 300,
    ),
    *("\0", "\x1b[0m", "\r\n", "\ud800", "é", "٣", "*", ">"),
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "1h"),
    *_NUMBERS,
)


def change_bytes(random: Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    """Change one to eight places."""
    for _ in range(1 << random.randrange(4)):
        at, length = (
            random.randint(0, len(data)),
            min(random.randint(0, 16), 1 << random.randrange(12)),
        )
        start = random.randint(0, len(other))
        number = random.choice(list(_NUMBER.finditer(data)) or [None])
        match random.randrange(8):
            case 0:
                data = data[:at] + random.choice(_NOISE) + data[at + random.randint(0, 1) :]
            case 1:
                data = data[:at] + data[at + length :]
            case 2:
                data = (
                    data[:at]
                    + data[at : at + length] * random.choice((2, 3, 40))
                    + data[at + length :]
                )
            case 3 if words:
                data = data[:at] + random.choice(words) + data[at:]
            case 4:
                data = data[:at] + other[start : start + random.randint(0, 200)] + data[at:]
            case 5:
                data = data[:at] + other[start:]
            case 6 if number is not None:
                data = (
                    data[: number.start()]
                    + _digits(random, int(number[0][:300]))
                    + data[number.end() :]
                )
            case _:
                data = data[:at] + random.randbytes(min(length, 4)) + data[at + length :]
    return data[:LONGEST]


def change_json(random: Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    """Change one to four values or names of JSON; now and then, and where it is none, its bytes."""
    try:
        if random.random() < 0.85:
            return _changed(random, [json.loads(data)], [json.loads(other)], words)
    except (ValueError, RecursionError):
        pass
    return change_bytes(random, data, other, words)


def _changed(random: Random, box: list[Any], more: list[Any], words: Sequence[bytes]) -> bytes:
    pieces, places = [part[key] for part, key in _places(more)], list(_places(box))
    for _ in range(1 << random.randrange(3)):
        part, key = random.choice(places)
        match random.randrange(6):
            case 0 if isinstance(part, dict):
                part[random.choice(_keys(more) or [key])] = part.pop(key)
            case 1 if isinstance(part, dict):
                del part[key]
            case 2 if isinstance(part[key], str):
                text = part[key].encode("utf-8", "surrogatepass")
                part[key] = change_bytes(random, text, text, words).decode(
                    "utf-8", "surrogateescape"
                )
            case 3 if isinstance(part[key], dict):
                part[key][random.choice([*_keys(more), "x"])] = deepcopy(random.choice(pieces))
            case 4:
                part[key] = deepcopy(random.choice(pieces))
            case _:
                part[key] = random.choice(
                    (*_ODD, *(word.decode("utf-8", "replace") for word in words), [part[key]])
                )
        places = list(_places(box))
    return json.dumps(box[0], ensure_ascii=random.random() < 0.8).encode("utf-8", "surrogatepass")[
        :LONGEST
    ]


def _digits(random: Random, number: int) -> bytes:
    return str(random.choice((number + 1, max(0, number - 1), number * 10, *_NUMBERS))).encode()


def _places(body: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or mapping with each of its keys, from the outside to the inside."""
    for key in list(body) if isinstance(body, dict) else range(len(body)):
        yield body, key
        if isinstance(body[key], (dict, list)):
            yield from _places(body[key])


def _keys(body: Any) -> list[str]:
    return [key for part, key in _places(body) if isinstance(part, dict)]
