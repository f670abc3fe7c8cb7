"""Planning below Spark: a planner as the reader makes it, the micro-batches that it plans, and what
tasks find.

And streams as planning sees them, without a server: the sequences that match, and questions about
them.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.advice import READERS
from spark_jetstream.source.limits import PLAN_LIMITS, PlanLimits
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.planner import Planner
from tests.support.reading import QUICK, SETTINGS, connecting, sequences

#: The sequences of messages that match: few or many, near or far.
matches = st.one_of(
    st.sets(st.integers(1, 60), max_size=60),
    st.sets(st.integers(1, 2**20), max_size=60),
    st.sets(st.integers(1, INT64_MAX), max_size=60),
    st.builds(
        lambda start, size: set(range(start, start + size)),
        st.integers(1, INT64_MAX - 500),
        st.integers(1, 500),
    ),
)

#: The state of a stream with limits retention, whose first ten messages are gone.
STATE = StreamSummary(
    name="ORDERS",
    created="2026-02-03T04:05:06.1Z",
    first_seq=11,
    last_seq=100,
    messages=90,
    bytes=9_000,
    num_deleted=0,
    last_timestamp=100_000,
    retention="limits",
    max_msgs_per_subject=-1,
    allow_direct=False,
    max_bytes=1 << 30,
)


def driver(
    url: str,
    stream: str = "S",
    *,
    streaming: bool = True,
    clock: Callable[[], float] = time.monotonic,
    limits: PlanLimits = PLAN_LIMITS,
    **given: Any,
) -> Planner:
    """A driver as the reader makes it, of a stream, or of the bucket or the pattern that is given."""
    what = (
        {} if given.keys() & {"bucket", "streamPattern", "streamMetadata"} else {"stream": stream}
    )
    named = {name: str(value) for name, value in {**what, **given}.items()}
    options = SourceOptions.from_spark({**QUICK, "servers": url, **named}, streaming=streaming)
    return Planner(options, connecting(options.connection), clock, limits=limits)


def read(url: str, parts: Sequence[SequenceRange]) -> dict[str, list[int]]:
    """Return the sequences that tasks find in each stream.

    Also check that no promised message is missing.
    """
    by_stream: dict[str, list[int]] = {}
    for part in parts:
        here = sequences(READERS[part.read_with](connecting(url), part, SETTINGS, "test"))
        if part.count is not None:
            assert len(here) >= part.count
        by_stream.setdefault(part.stream, []).extend(here)
    return by_stream


def run(
    planner: Planner, start: Offset | None = None, batches: int = 1000
) -> Iterator[tuple[Offset, Offset]]:
    """The micro-batches that Spark would make until nothing is left: start and end of each."""
    at = planner.initial() if start is None else start
    for _ in range(batches):
        end = Offset.from_json(
            planner.latest(Offset.from_json(at.to_json()), limited=True).to_json()
        )
        if end == at:
            return
        yield at, end
        at = end


def planner_after(planner: Planner, start: Offset) -> list[int]:
    """The sequences of all that is read from an offset on, of one stream."""
    url = planner.options.connection.servers[0]
    batches = [read(url, planner.ranges(*span)) for span in run(planner, start)]
    return [sequence for batch in batches for some in batch.values() for sequence in some]


def timestamp(sequence: int) -> int:
    """The timestamp that a `FakeStream` gives a message."""
    return 1_000 * sequence + 1


class FakeStream:
    """Implements `Probe` exactly. ``calls`` counts the questions."""

    def __init__(self, matching: Iterable[int]) -> None:
        # A range may be longer than any list.
        self.matching: Sequence[int] = (
            matching if isinstance(matching, range) else sorted(set(matching))
        )
        self.calls = 0

    @property
    def end(self) -> int:
        """One past the last match; 1 when there is none."""
        return self.matching[-1] + 1 if self.matching else 1

    def count(self, first: int, end: int) -> int:
        """The matches in [first, end), without asking."""
        return bisect_left(self.matching, end) - bisect_left(self.matching, first)

    def pending(self, first: int) -> int:
        self.calls += 1
        return len(self.matching) - bisect_left(self.matching, first)

    def peek(self, first: int) -> tuple[int, int] | None:
        self.calls += 1
        at = bisect_left(self.matching, first)
        return (
            (self.matching[at], timestamp(self.matching[at])) if at < len(self.matching) else None
        )


class MovingStream(FakeStream):
    """Changes before each answer: messages are published after its end, and with ``removes`` some
    go anywhere.
    """

    def __init__(self, matching: Iterable[int], seed: int, *, removes: bool = False) -> None:
        super().__init__(matching)
        self.matching: list[int] = list(self.matching)
        self._random = random.Random(seed)
        self._removes = removes

    def _move(self) -> None:
        for _ in range(self._random.randint(0, 20)):
            self.matching.append(self.end + self._random.randint(0, 3))
        if self._removes:
            for _ in range(min(len(self.matching), self._random.randint(0, 20))):
                del self.matching[self._random.randrange(len(self.matching))]

    def pending(self, first: int) -> int:
        self._move()
        return super().pending(first)

    def peek(self, first: int) -> tuple[int, int] | None:
        self._move()
        return super().peek(first)


def runs(width: int, number: int, length: int) -> list[int]:
    """``number`` dense runs of ``length`` matches each, anywhere below ``width``."""
    chosen = random.Random(7)
    starts = [chosen.randrange(1, width - length) for _ in range(number)]
    return sorted({start + i for start in starts for i in range(length)})


def scattered(width: int, number: int) -> list[int]:
    """``number`` matches at random sequences up to ``width``."""
    return sorted(random.Random(7).sample(range(1, width + 1), number))
