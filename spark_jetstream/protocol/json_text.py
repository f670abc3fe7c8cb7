"""JSON that a server, a file or another client wrote: read within bounds. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 100
"""How deep JSON may be nested.

Servers write some ten levels; Python's limit depends on its release and the caller.
"""


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number that JSON does not have")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def json_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object. Its numbers are finite, and its texts can be encoded.

    Raises `ValueError` for anything else, and nothing but that; its text goes on after the name of
    what was read.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        body = _DECODER.decode(text)
        deep = _is_deep(text, body)
        if not deep and _SURROGATE.search(text):
            # Half of a pair is no text: encoding it raises `ValueError`.
            json.dumps(body, ensure_ascii=False).encode()
    # Python's limit depends on the caller; the error must not
    # (test_the_error_of_a_deep_object_does_not_depend_on_python).
    except RecursionError:
        body, deep = None, True
    except ValueError:
        raise ValueError("is not JSON") from None
    if deep:
        raise ValueError("is nested too deeply")
    if not isinstance(body, dict):
        raise ValueError("is not a JSON object")
    return body


def _is_deep(text: str, body: Any) -> bool:
    """Return whether JSON is nested more deeply than `MAX_DEPTH`."""
    # Brackets in texts count too, so this only spares most JSON the walk below.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    # Level by level, without recursion, which has the same limit.
    level = [body]
    for _ in range(MAX_DEPTH + 1):
        nested = [part for part in level if isinstance(part, (dict, list))]
        if not nested:
            return False
        level = _items(nested)
    return True


def _items(nested: list[Any]) -> list[Any]:
    """Return the values of objects and arrays."""
    items: list[Any] = []
    for part in nested:
        items += part.values() if isinstance(part, dict) else part
    return items
