"""The cases that end the next run as well: `make points POINTS=pairs`."""

from __future__ import annotations

import os
from typing import Any

import pytest

#: Whether these cases are visited.
VISITED = os.environ.get("POINTS") == "pairs"
#: Each takes minutes, on a busy machine a quarter of an hour.
MARKS = (pytest.mark.full, pytest.mark.timeout(7200))


def once_or_twice() -> list[Any]:
    """The values of a parameter `pairs`."""
    twice = [pytest.param(True, id="twice", marks=MARKS)] if VISITED else []
    return [pytest.param(False, id="once"), *twice]
