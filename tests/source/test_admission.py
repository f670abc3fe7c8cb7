"""How much goes into a batch: shares, limits in bytes, cuts found with a handful of probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.admission import LIMIT_PROBES, bytes_to_messages, limit_end, share
from tests.support.planning import (
    STATE,
    FakeStream,
    MovingStream,
    matches,
    runs,
    scattered,
    timestamp,
)


def batches(stream: FakeStream, limit: int) -> list[tuple[int, int]]:
    """Reads a stream batch by batch: how many messages each holds, and how many probes it took."""
    start, end, found = 1, stream.end, []
    while start < end:
        total = stream.count(start, end)
        stream.calls = 0
        cut, last_timestamp = limit_end(start, end, limit, stream, total)
        assert start < cut <= end
        assert last_timestamp == timestamp(cut - 1)
        found.append((stream.count(start, cut), stream.calls))
        start = cut
    return found


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.dictionaries(st.text("ABC", max_size=3), st.integers(-2, 10**6), max_size=8),
)
def test_share(limit: int, backlogs: dict[str, int]) -> None:
    shares = share(limit, backlogs)
    waiting = {name: size for name, size in backlogs.items() if size > 0}
    assert set(shares) == set(backlogs)
    assert all(0 <= shares[name] <= max(0, backlogs[name]) for name in backlogs)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    if limit >= len(waiting):
        assert all(shares[name] >= 1 for name in waiting)
    assert share(limit, dict(reversed(backlogs.items()))) == shares


@pytest.mark.parametrize(
    ("limit", "backlogs", "shares"),
    [
        (100, {"A": 300, "B": 100}, {"A": 75, "B": 25}),
        (100, {"A": 1_000_000, "B": 1, "C": 0}, {"A": 99, "B": 1, "C": 0}),
        (1, {"A": 5, "B": 7, "C": 7}, {"A": 0, "B": 1, "C": 0}),
        (7, {"A": 10, "B": 10, "C": 10}, {"A": 3, "B": 2, "C": 2}),
    ],
)
def test_share_by_example(limit: int, backlogs: dict[str, int], shares: dict[str, int]) -> None:
    assert share(limit, backlogs) == shares


@pytest.mark.parametrize(
    ("max_bytes", "messages", "size", "limit"),
    [
        (1000, 10, 1000, 10),
        (99, 10, 1000, 1),
        (1000, 3, 1000, 3),
        (2**63, 2**40, 2**50, 2**53),
        (1000, 0, 0, 1),
    ],
)
def test_bytes_to_messages(max_bytes: int, messages: int, size: int, limit: int) -> None:
    assert bytes_to_messages(max_bytes, replace(STATE, messages=messages, bytes=size)) == limit


@settings(deadline=None)
@given(matches.filter(bool), st.integers(1, 70), st.data())
@example({1}, 1, None)
@example({INT64_MAX}, 1, None)
def test_a_cut_holds_at_most_the_limit(
    matching: set[int], limit: int, data: st.DataObject | None
) -> None:
    stream = FakeStream(matching)
    start = data.draw(st.integers(1, stream.end - 1)) if data else 1
    total = stream.count(start, stream.end)
    cut, last_timestamp = limit_end(start, stream.end, limit, stream, total)
    assert stream.calls <= LIMIT_PROBES
    assert start < cut <= stream.end
    assert 1 <= stream.count(start, cut) <= limit
    assert last_timestamp == timestamp(cut - 1)
    if total <= limit:
        assert cut == stream.end


@settings(deadline=None)
@given(st.integers(1, 2**62), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_dense_stream_is_cut_by_arithmetic(
    first: int, size: int, limit: int, before: int
) -> None:
    stream = FakeStream(range(first, first + size))
    cut = limit_end(max(1, first - before), first + size, limit, stream, size)
    taken = min(limit, size)
    assert cut == (first + taken, timestamp(first + taken - 1))
    assert stream.calls <= 2


@pytest.mark.parametrize(
    ("matching", "limit", "sparse"),
    [
        pytest.param(range(10_000, 1_000_001, 10_000), 10, True, id="1 in 10,000 of 1,000,000"),
        pytest.param(scattered(1_000_000, 100), 10, True, id="100 of 1,000,000 at random"),
        pytest.param(range(999_901, 1_000_001), 10, False, id="all at the end"),
        pytest.param([*range(1, 51), *range(999_951, 1_000_001)], 10, False, id="at both ends"),
        pytest.param(
            [*range(1, 51), *range(INT64_MAX - 50, INT64_MAX)],
            10,
            False,
            id="at both ends of all sequences",
        ),
        pytest.param(runs(10**9, 20, 500), 10, False, id="runs"),
        pytest.param([s for s in range(1, 5_000) if s % 7], 100, False, id="holes"),
        pytest.param(scattered(100_000, 50_000), 1_000, False, id="half"),
    ],
)
def test_cuts_are_full_and_cheap(matching: Sequence[int], limit: int, sparse: bool) -> None:
    found = batches(FakeStream(matching), limit)
    full = [messages for messages, _ in found[:-1]]
    assert max(calls for _, calls in found) <= LIMIT_PROBES
    if limit <= 10:
        assert full == [limit] * len(full)
    if sparse:
        assert all(calls <= 16 for _, calls in found)
        assert sum(calls for _, calls in found) / len(found) <= 8
    # Larger batches may miss a sixteenth after a handful of steps.
    assert min(full) >= limit - limit // 16
    assert sum(full) >= 0.98 * limit * len(full)


@settings(deadline=None)
@example(list(range(1, 20)), 2, 46345, True)
@given(
    st.lists(st.integers(1, 5_000), min_size=1, max_size=200),
    st.integers(1, 60),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_a_moving_stream_still_makes_progress(
    matching: list[int], limit: int, seed: int, removes: bool
) -> None:
    stream = MovingStream(matching, seed, removes=removes)
    start, end = 1, stream.end
    for _ in range(10_000):
        total = stream.pending(start) - stream.pending(end)
        stream.calls = 0
        cut, last_timestamp = limit_end(start, end, limit, stream, total)
        assert stream.calls <= LIMIT_PROBES
        assert start < cut <= end
        assert last_timestamp in (0, timestamp(cut - 1))
        if cut == end:
            break
        assert removes or stream.count(start, cut) >= 1
        start = cut
    assert cut == end


def test_all_messages_gone_keeps_the_end() -> None:
    assert limit_end(5, 100, 10, FakeStream([]), 50) == (100, 0)
    assert limit_end(5, 100, 10, FakeStream([3, 100, 200]), 50) == (100, 0)
    # The time is unknown when the last message is gone.
    assert limit_end(1, 11, 10, FakeStream([1, 2, 3]), 3) == (11, 0)
