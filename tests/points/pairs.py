"""The cases that only `make points` visits: others than the quick ones, and with `POINTS=pairs` those
that end the next run as well.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

#: Whether all cases of `share` and of a second writer are visited, which take half an hour.
ALL = os.environ.get("POINTS") in ("each", "pairs")
#: Whether pairs of ends are visited.
VISITED = os.environ.get("POINTS") == "pairs"
#: Each case that `make test-all` does not visit takes minutes, on a busy machine a quarter of an hour.
LONG = pytest.mark.timeout(7200)
MARKS = (pytest.mark.full, LONG)


def once_or_twice() -> list[Any]:
    """The values of a parameter `pairs`."""
    twice = [pytest.param(True, id="twice", marks=MARKS)] if VISITED else []
    return [pytest.param(False, id="once"), *twice]
