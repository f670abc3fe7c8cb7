"""Planning below Spark: a planner as the reader makes it, the micro-batches that it plans, and what tasks find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.planner import Planner
from tests.support.reading import QUICK, connecting, direct, pulls, sequences


def driver(url: str, stream: str = "S", *, streaming: bool = True, clock: Any = None, **given: Any) -> Planner:
    """A driver as the reader makes it."""
    named = {name: str(value) for name, value in given.items()}
    options = SourceOptions.from_spark({**QUICK, "servers": url, "stream": stream, **named}, streaming=streaming)

    to_server = connecting(options.connection)
    return Planner(options, to_server) if clock is None else Planner(options, to_server, clock)


def read(url: str, parts: Sequence[SequenceRange]) -> dict[str, list[int]]:
    """What tasks find: the sequences of each stream. That no promised message lacks is checked on the way."""
    found: dict[str, list[int]] = {}
    for part in parts:
        here = sequences(direct(url, part) if part.direct else pulls(url, part))
        if part.count is not None:
            assert len(here) >= part.count
        found.setdefault(part.stream, []).extend(here)
    return found


def run(planner: Planner, start: Offset | None = None, batches: int = 1000) -> Iterator[tuple[Offset, Offset]]:
    """The micro-batches that Spark would make until nothing is left: start and end of each."""
    at = planner.initial() if start is None else start
    for _ in range(batches):
        end = Offset.from_json(planner.latest(Offset.from_json(at.to_json()), limited=True).to_json())
        if end == at:
            return
        yield at, end
        at = end


def planner_after(planner: Planner, start: Offset) -> list[int]:
    """The sequences of all that is read from an offset on, of one stream."""
    url = planner.options.connection.servers[0]
    batches = [read(url, planner.ranges(*each)) for each in run(planner, start)]
    return [sequence for batch in batches for found in batch.values() for sequence in found]
