"""A query's offsets, as its checkpoint has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

Offset = dict[str, Any]


class Position(NamedTuple):
    """How far a query has read a stream, as its checkpoint says."""

    next: int
    created: str
    last_timestamp: int = 0


def written(offset: Offset) -> Offset:
    """Return an offset as Spark reads it from a checkpoint."""
    read: Offset = json.loads(json.dumps(offset))
    return read


def positions(offset: Mapping[str, Any]) -> dict[str, Position]:
    """Return how far an offset reaches in each stream."""
    return {name: Position(**at) for name, at in offset["streams"].items()}


def shown(offset: Mapping[str, Any] | None) -> str:
    """Return an offset in few words, for the log of a history."""
    if offset is None:
        return "None"
    streams = [f"{name}:{at.next}@{at.created[-12:-1]}" for name, at in positions(offset).items()]
    return f"{' '.join(streams)} {offset.get('cuts', '')}"
