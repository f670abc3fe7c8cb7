"""The seeds of histories: HISTORIES_SEED is the first one, HISTORIES is how many there are."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest

FIRST = int(os.environ.get("HISTORIES_SEED", "1"))
COUNT = int(os.environ.get("HISTORIES", "100"))


def seeds(quick: int, each: int) -> list[Any]:
    """Return ranges of seeds as parameters of a test: one of `quick` for `make test`, and those of
    `each` after it.
    """
    end = FIRST + COUNT
    starts = [FIRST, *range(FIRST + quick, end, each), end]
    ranges = [range(start, min(after, end)) for start, after in pairwise(starts) if start < end]
    return [
        pytest.param(part, id=str(part[0]), marks=pytest.mark.full if number else ())
        for number, part in enumerate(ranges)
    ]
