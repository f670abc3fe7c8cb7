"""From offsets to ranges: what a batch reads, and how it is cut into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.ranges import MAX_PIECES, Split, cut_at, ranges_between, shares
from spark_jetstream.source.search import Probe
from spark_jetstream.source.splits import SPLIT_PROBES, Survey, count_again, split
from tests.support.planning import FakeStream, MovingStream, matches, runs, scattered

CREATED = "2026-02-03T04:05:06.1Z"
LATER = "2026-02-04T00:00:00Z"


def a_range(first: int, end: int, count: int | None = None) -> SequenceRange:
    return SequenceRange("ORDERS", first, end, count, CREATED, ("orders.*",))


def cut(
    whole: SequenceRange, *, max_messages: int, min_partitions: int = 1, probe: Probe | None = None
) -> list[SequenceRange]:
    """The tasks of a batch of one stream."""
    survey = Survey(whole, probe)
    tasks, most = shares(
        {"ORDERS": survey.count}, max_messages=max_messages, min_partitions=min_partitions
    )
    return cut_at(survey.whole, split(survey, max_messages=most, tasks=tasks["ORDERS"]))


def check_cover(whole: SequenceRange, pieces: list[SequenceRange]) -> None:
    """The pieces cover the range exactly, in order, none empty, and carry the rest over."""
    assert (pieces[0].first, pieces[-1].end) == (whole.first, whole.end)
    assert all(before.end == after.first for before, after in pairwise(pieces))
    for piece in pieces:
        assert piece.first < piece.end
        assert (piece.stream, piece.created, piece.subjects) == ("ORDERS", CREATED, ("orders.*",))


# Ranges


def test_a_range_has_a_width() -> None:
    assert (a_range(INT64_MAX, INT64_MAX + 1).width, a_range(5, 5).width) == (1, 0)
    for first, end in ((0, 5), (-1, 5), (5, 4)):
        with pytest.raises(ValueError, match="no range of sequences"):
            a_range(first, end)


def test_between_two_offsets() -> None:
    start = Offset(
        {
            "READ": StreamPosition(5, CREATED, 4),
            "STILL": StreamPosition(5, CREATED, 4),
            "AGAIN": StreamPosition(50, CREATED, 4),
            "BACK": StreamPosition(50, CREATED, 4),
            "DROPPED": StreamPosition(5, CREATED, 4),
        }
    )
    end = Offset(
        {
            "READ": StreamPosition(9, CREATED, 8),
            "STILL": StreamPosition(5, CREATED, 4),
            "AGAIN": StreamPosition(9, LATER, 8),
            "BACK": StreamPosition(40, CREATED),
            "ADDED": StreamPosition(9, CREATED),
        }
    )
    assert ranges_between(start, end, ["a", "b"]) == [
        SequenceRange("AGAIN", 1, 9, None, LATER, ("a", "b")),
        SequenceRange("READ", 5, 9, None, CREATED, ("a", "b")),
    ]


# Shares of several streams


def tasks_of(counts: dict[str, int], least: int, most: int = 50_000) -> dict[str, int]:
    return shares(counts, max_messages=most, min_partitions=least)[0]


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("ABCDEFGH"), st.integers(0, 10**6)),
    st.integers(1, 300),
    st.integers(1_000, 10**6),
    st.randoms(use_true_random=False),
)
def test_shares_by_messages(counts: dict[str, int], least: int, most: int, random: Random) -> None:
    tasks = tasks_of(counts, least, most)
    needed = {name: -(-count // most) for name, count in counts.items()}
    full = {name: number for name, number in tasks.items() if counts[name]}
    assert sum(full.values()) == max(sum(needed.values()), min(least, sum(counts.values())))
    for name, number in tasks.items():
        assert max(1, needed[name]) <= number <= max(1, counts[name])
        if number > max(1, needed[name]):
            # Its last task went to no other stream, because its tasks were the largest.
            assert all(counts[name] / (number - 1) >= counts[other] / full[other] for other in full)
    # Whatever the order in which the streams were counted: a batch that runs again must have the
    # same tasks.
    names = list(counts)
    random.shuffle(names)
    assert tasks_of({name: counts[name] for name in names}, least, most) == tasks


def test_beyond_some_number_of_tasks_those_of_all_streams_are_larger() -> None:
    tasks, most = shares({"A": 3 * 10**9, "B": 10**9}, max_messages=1_000)
    assert (tasks, most) == ({"A": 7_500, "B": 2_500}, 400_000)


# Splits without questions


@settings(deadline=None)
@given(
    st.integers(1, INT64_MAX - 10**6),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 300),
)
def test_a_dense_range_is_cut_by_arithmetic(
    first: int, size: int, max_messages: int, least: int
) -> None:
    max_messages = max(max_messages, size // 500)
    whole = a_range(first, first + size)
    pieces = cut(whole, max_messages=max_messages, min_partitions=least)
    check_cover(whole, pieces)
    assert [piece.count for piece in pieces] == [piece.width for piece in pieces]
    assert len(pieces) == max(-(-size // max_messages), min(least, size))
    assert max(piece.width for piece in pieces) <= max_messages
    assert max(piece.width for piece in pieces) - min(piece.width for piece in pieces) <= 1


def test_a_range_counted_as_empty_is_read_all_the_same() -> None:
    assert cut(a_range(5, 100), max_messages=10, min_partitions=4, probe=FakeStream([])) == [
        a_range(5, 100, 0)
    ]


# Splits by probes


@settings(deadline=None)
@given(matches, st.integers(1, 70), st.integers(1, 20), st.data())
@example({1}, 1, 5, None)
def test_pieces_cover_the_range(
    matching: set[int], max_messages: int, least: int, data: st.DataObject | None
) -> None:
    stream = FakeStream(matching)
    first = data.draw(st.integers(1, stream.end)) if data else 1
    end = data.draw(st.integers(first + 1, stream.end + 10)) if data else stream.end
    total = stream.count(first, end)
    whole = a_range(first, end)
    pieces = cut(whole, max_messages=max_messages, min_partitions=least, probe=stream)
    check_cover(whole, pieces)
    assert stream.calls <= SPLIT_PROBES
    for piece in pieces:
        if piece.count is not None:
            assert piece.count == stream.count(piece.first, piece.end) <= max_messages
            assert piece.count > 0 or total == 0
    assert len(pieces) >= min(least, total)
    assert len(pieces) <= max(1, total, min(least, total))


@pytest.mark.parametrize(
    ("matching", "max_messages", "least"),
    [
        pytest.param(range(10_000, 1_000_001, 10_000), 100, 10, id="1 in 10,000"),
        pytest.param(range(10_000, 1_000_001, 10_000), 10, 1, id="1 in 10,000, limited"),
        pytest.param(scattered(1_000_000, 10_000), 1_000, 1, id="at random"),
        pytest.param(scattered(1_000_000, 100_000), 10_000, 25, id="at random, 25 pieces"),
        pytest.param(range(999_001, 1_000_001), 10_000, 50, id="all at the end"),
        pytest.param([s for s in range(1, 100_000) if s % 97], 5_000, 1, id="holes"),
        pytest.param([*range(1, 5_000), *range(10**12, 10**12 + 5_000)], 1_500, 1, id="both ends"),
        pytest.param(runs(10**9, 200, 500), 100_000, 7, id="runs"),
    ],
)
def test_pieces_are_nearly_equal_and_cheap(
    matching: Sequence[int], max_messages: int, least: int
) -> None:
    stream = FakeStream(matching)
    whole = a_range(1, stream.end)
    pieces = cut(whole, max_messages=max_messages, min_partitions=least, probe=stream)
    check_cover(whole, pieces)
    assert stream.calls <= SPLIT_PROBES
    sizes = [stream.count(piece.first, piece.end) for piece in pieces]
    assert [piece.count for piece in pieces] == sizes
    assert max(sizes) <= max_messages
    assert len(pieces) >= least
    assert len(pieces) <= max(least, 1.5 * len(matching) / max_messages)
    assert min(sizes) >= max(sizes) / 2


def test_a_large_plan_ends_with_pieces_of_unknown_counts() -> None:
    hostile = FakeStream(runs(INT64_MAX, 40, 500))
    check_cover(
        a_range(1, hostile.end), cut(a_range(1, hostile.end), max_messages=100, probe=hostile)
    )
    assert hostile.calls <= SPLIT_PROBES
    stream = FakeStream(scattered(10_000_000, 100_000))
    whole = a_range(1, stream.end)
    pieces = cut(whole, max_messages=500, probe=stream)
    check_cover(whole, pieces)
    assert stream.calls <= SPLIT_PROBES
    assert 200 <= len(pieces) <= 300
    sizes = [stream.count(piece.first, piece.end) for piece in pieces]
    assert max(sizes) <= 700
    assert any(piece.count is None for piece in pieces)
    assert all(piece.count in (None, size) for piece, size in zip(pieces, sizes, strict=True))


# Streams that move


@settings(deadline=None)
@given(
    st.sets(st.integers(1, 5_000), min_size=1, max_size=300),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_a_stream_that_moves_is_covered_and_not_promised_more_than_it_has(
    matching: set[int], max_messages: int, least: int, seed: int, removes: bool
) -> None:
    """A task that finds less than promised reports a loss: a range may promise only what the stream
    has.
    """
    stream = MovingStream(matching, seed, removes=removes)
    whole = a_range(1, stream.end)
    pieces = cut(whole, max_messages=max_messages, min_partitions=least, probe=stream)
    check_cover(whole, pieces)
    assert stream.calls <= SPLIT_PROBES
    assert all(piece.count is None or piece.count >= 0 for piece in pieces)
    if not removes:
        assert all((piece.count or 0) <= stream.count(piece.first, piece.end) for piece in pieces)
        assert all(piece.count != 0 for piece in pieces) or len(pieces) == 1


# Cuts that were decided before


@settings(deadline=None)
@given(matches, st.integers(1, 70), st.integers(1, 20), st.data())
def test_the_same_cuts_whatever_the_stream_holds_by_now(
    matching: set[int], max_messages: int, least: int, data: st.DataObject
) -> None:
    stream = FakeStream(matching)
    whole = a_range(1, stream.end)
    if whole.width == 0:
        return
    survey = Survey(whole, stream)
    before = split(survey, max_messages=max_messages, tasks=least)
    pieces = cut_at(survey.whole, before)
    assert len(before.cuts) <= 2 * SPLIT_PROBES
    # Some of its messages go, others follow, and the range begins somewhere else. With other
    # filters there are messages before the first cut.
    left = {
        sequence for sequence in matching if data.draw(st.booleans()) or sequence > stream.end // 2
    }
    left |= data.draw(st.sets(st.integers(1, before.cuts[0])))
    moving = MovingStream(
        {*left, *range(stream.end, stream.end + 20)}, data.draw(st.integers(0, 10**6))
    )
    rest = a_range(data.draw(st.integers(1, whole.end)), whole.end)
    later = Survey(rest, moving) if rest.width else None
    moving.calls = 0
    again = (
        count_again(later, before.cuts)
        if later
        else Split(before.cuts, [None] * len(before.counts))
    )
    assert again.cuts == before.cuts
    assert moving.calls <= SPLIT_PROBES
    clipped = cut_at(rest, again)
    assert [(piece.first, piece.end) for piece in clipped] == [
        (min(max(piece.first, rest.first), piece.end), piece.end) for piece in pieces
    ]
    held = FakeStream(left)
    assert all((piece.count or 0) <= held.count(piece.first, piece.end) for piece in clipped)


def test_the_arithmetic_of_cuts_is_part_of_the_format() -> None:
    """The first piece reads what is before the first cut too, and a piece before the range is
    empty.
    """

    def edges(first: int) -> list[tuple[int, int]]:
        split = Split((10, 3, 21, 1, 40, 2, 43), [11, 7, None])
        return [(piece.first, piece.end) for piece in cut_at(a_range(first, 43), split)]

    assert edges(10) == [(10, 13), (13, 17), (17, 21), (21, 40), (40, 41), (41, 43)]
    assert edges(1) == [(1, 13), (13, 17), (17, 21), (21, 40), (40, 41), (41, 43)]
    assert edges(18) == [(13, 13), (17, 17), (18, 21), (21, 40), (40, 41), (41, 43)]
    assert edges(43) == [(13, 13), (17, 17), (21, 21), (40, 40), (41, 41), (43, 43)]
    assert [
        piece.count
        for piece in cut_at(a_range(10, 43), Split((10, 3, 21, 1, 40, 2, 43), [10, 7, None]))
    ] == [
        *(2, 3, 3, 7),
        *(None, None),
    ]


def test_the_first_piece_promises_what_is_before_the_first_cut() -> None:
    """A query goes on with more filters than it had when the cuts were decided."""
    whole = a_range(2, 17)
    (first, *others) = cut_at(whole, count_again(Survey(whole), (7, 1, 8, 3, 17)))
    assert (first.first, first.end, first.count) == (2, 8, 6)
    assert [piece.count for piece in others] == [3, 3, 3]
    (first, *_) = cut_at(whole, count_again(Survey(whole), (7, 2, 17)))
    assert (first.first, first.end, first.count) == (2, 12, 10)


def test_a_range_that_went_keeps_the_numbers_of_its_tasks() -> None:
    start = Offset({name: StreamPosition(9, CREATED) for name in "ABC"})
    end = Offset(dict(start.streams), {"A": (1, 2, 9), "B": (1, 2, 9)})
    assert [(each.stream, each.first, each.end) for each in ranges_between(start, end)] == [
        ("A", 9, 9),
        ("B", 9, 9),
    ]


# Streams of absurd sizes


@pytest.mark.parametrize("last", [10**10, 2**62])
@pytest.mark.parametrize("probed", [False, True])
def test_beyond_some_number_of_tasks_they_are_larger(last: int, probed: bool) -> None:
    whole = a_range(1, last + 1)
    pieces = cut(
        whole, max_messages=100_000, probe=FakeStream(range(1, last + 1)) if probed else None
    )
    check_cover(whole, pieces)
    assert MAX_PIECES <= len(pieces) <= 1.5 * MAX_PIECES
    assert max(piece.width for piece in pieces) <= 2 * last // MAX_PIECES
    # Unless that many are asked for.
    assert len(cut(whole, max_messages=1, min_partitions=20_000)) == 20_000


def test_a_sparse_range_is_planned_by_what_it_holds() -> None:
    stream = FakeStream([1, 2, 2**40])
    whole = a_range(1, stream.end)
    assert cut(whole, max_messages=100_000, probe=stream) == [a_range(1, stream.end, 3)]
    assert stream.calls <= 4
