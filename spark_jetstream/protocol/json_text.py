"""JSON that a server, a file or another client wrote: read within bounds. Pure."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100
"""How deep JSON may be nested. Servers write some ten levels; Python's limit depends on its release and the caller."""


def json_object(data: bytes | str, **how: Any) -> dict[str, Any]:
    """Return a JSON object; ``how`` is passed to `json.loads`.

    Raises `ValueError` for anything else, and nothing but that; its text goes on after the name of what was read.
    """
    try:
        body = json.loads(data, **how)
        deep = _is_deep(data, body)
    except RecursionError:
        body, deep = None, True
    except ValueError:
        raise ValueError("is not JSON") from None
    if deep:
        raise ValueError("is nested too deeply")
    if not isinstance(body, dict):
        raise ValueError("is not a JSON object")
    return body


def _is_deep(data: bytes | str, body: Any) -> bool:
    brackets = data.count("{") + data.count("[") if isinstance(data, str) else data.count(b"{") + data.count(b"[")
    if brackets <= MAX_DEPTH:
        return False
    level, depth = [body], 0
    while depth <= MAX_DEPTH and (level := [part for part in level if isinstance(part, (dict, list))]):
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
        depth += 1
    return depth > MAX_DEPTH
