"""Positions in the text of an option: a word, or a sequence for each stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jetstream.errors import OptionError
from spark_jetstream.names import check_name
from spark_jetstream.units import INT64_MAX, shown
from spark_jetstream.values import wrong


@dataclass(frozen=True)
class Positions:
    """One of ``words``, or JSON like ``{"ORDERS": 1001}`` -> the word, or sorted (stream, sequence) pairs."""

    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return f'{", ".join(self.words)} or JSON such as {{"ORDERS": 1001}}'

    def parse(self, option: str, value: object) -> str | tuple[tuple[str, int], ...]:
        if isinstance(value, str):
            text = value.strip()
            if text.lower() in self.words:
                return text.lower()
            if not text.startswith(("{", "[")):
                raise wrong(option, self.expects, value)
            pairs = _json_pairs(option, text)
        else:
            pairs = list(value.items()) if isinstance(value, Mapping) else _pairs(option, value)
        positions: dict[str, int] = {}
        for index, (stream, sequence) in enumerate(pairs):
            check_name(option, stream, "a stream name", f" (name {index + 1})")
            if isinstance(sequence, bool) or not isinstance(sequence, int) or not 1 <= sequence <= INT64_MAX:
                raise wrong(option, f"a sequence from 1 to 2^63-1 for stream {shown(stream)}", sequence)
            if stream in positions:
                raise OptionError(f"option {option} names {shown(stream)} twice", option=option)
            positions[stream] = sequence
        if not positions:
            raise OptionError(f"option {option} names no stream in its JSON", option=option)
        return tuple(sorted(positions.items()))


class _JsonObject(list[tuple[str, object]]):
    """The members of a JSON object in their order, repeated names included."""


def _json_pairs(option: str, text: str) -> list[tuple[str, object]]:
    fault = f'option {option} must be an object such as {{"ORDERS": 1001}} when it is JSON'
    try:
        found = json.loads(text, object_pairs_hook=_JsonObject, parse_int=_json_integer)
    except json.JSONDecodeError as error:
        fault = f"option {option} is not valid JSON: {error.msg.lower()} at character {error.pos + 1}"
    except RecursionError:
        fault = f"option {option} is not valid JSON: it is nested too deeply"
    else:
        if isinstance(found, _JsonObject):
            return list(found)
    raise OptionError(fault, option=option)


def _json_integer(digits: str) -> int:
    # `int` refuses thousands of digits with words of its own; any number that long is out of range anyway.
    return int(digits) if len(digits) <= 20 else 2**64


def _pairs(option: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        raise OptionError(f"option {option} must be text or pairs of a stream and a sequence", option=option)
    return list(value)
