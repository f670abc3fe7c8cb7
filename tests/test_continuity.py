"""What an offset and a stream say together: go on, or something is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.errors import DataLossError
from spark_jetstream.source.continuity import (
    check_continuity,
    earliest_position,
    idle_position,
    latest_position,
)
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.streams import StreamState

OLD = "2026-02-03T04:05:06.1Z"
NEW = "2026-02-04T00:00:00Z"

STREAM = StreamState(
    name="ORDERS",
    created=OLD,
    first_seq=11,
    last_seq=100,
    messages=90,
    bytes=9_000,
    num_deleted=0,
    last_timestamp=100_000,
    retention="limits",
    max_msgs_per_subject=-1,
    has_age_or_size_limit=True,
    allow_direct=False,
)
NEVER_WRITTEN = replace(STREAM, first_seq=0, last_seq=0, messages=0, bytes=0, last_timestamp=0)
PURGED = replace(STREAM, first_seq=101, messages=0, bytes=0)
KEYED = replace(STREAM, max_msgs_per_subject=1, has_age_or_size_limit=False)


def at(sequence: int, last_timestamp: int = 0, created: str = OLD) -> StreamPosition:
    return StreamPosition(sequence, created, last_timestamp)


@pytest.mark.parametrize(
    ("position", "state"),
    [
        pytest.param(at(11), STREAM, id="first kept"),
        pytest.param(at(50, 5), STREAM, id="inside"),
        pytest.param(at(100), STREAM, id="last"),
        pytest.param(at(101, 100_000), STREAM, id="end"),
        pytest.param(at(1), NEVER_WRITTEN, id="never written, first 0"),
        pytest.param(at(1), replace(NEVER_WRITTEN, first_seq=1), id="never written, first 1"),
        pytest.param(at(1_000), replace(STREAM, first_seq=1_000, last_seq=999), id="never written, first set"),
        pytest.param(at(101), PURGED, id="purged, all read"),
        pytest.param(at(5, 7), KEYED, id="superseded"),
    ],
)
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("filtered", [True, False])
def test_nothing_is_missing(position: StreamPosition, state: StreamState, fail: bool, filtered: bool) -> None:
    assert check_continuity(position, state, fail=fail, filtered=filtered) == (position, None)


@pytest.mark.parametrize(
    ("position", "state", "reread", "resume", "goes_on", "said"),
    [
        pytest.param(
            at(50, 5),
            replace(STREAM, created=NEW, first_seq=1),
            None,
            None,
            at(1, created=NEW),
            f"stream ORDERS was deleted and created again (the offset belongs to the one created at {OLD},"
            f" this one was created at {NEW}): whatever the old one held from sequence 50 on cannot be read",
            id="created again",
        ),
        pytest.param(
            at(50, 5),
            replace(NEVER_WRITTEN, created=NEW),
            None,
            None,
            at(1, created=NEW),
            "was deleted and created again",
            id="created again and empty",
        ),
        pytest.param(
            at(102, 7),
            STREAM,
            None,
            None,
            at(101, 100_000),
            "stream ORDERS lost its tail: it was read up to sequence 101, and now ends at 100 (likely a",
            id="lost one",
        ),
        pytest.param(at(9_000, 7), STREAM, None, 96, at(96), "now ends at 100", id="lost tail, partly written again"),
        pytest.param(at(9_000, 7), STREAM, None, 500, at(101, 100_000), "now ends at 100", id="lost tail, late answer"),
        pytest.param(at(9_000, 7), STREAM, None, 3, at(11), "now ends at 100", id="lost tail, first ones expired"),
        pytest.param(at(9), NEVER_WRITTEN, None, None, at(1), "now ends at 0", id="lost everything"),
        pytest.param(
            at(60, 590),
            STREAM,
            591,
            40,
            at(40),
            "stream ORDERS lost its tail and gave its sequences to other messages: sequence 59 was read with"
            " timestamp 590 ns, and has timestamp 591 ns now",
            id="reused",
        ),
        pytest.param(at(60, 590), STREAM, 591, None, at(59), "gave its sequences", id="reused, from where unknown"),
        pytest.param(at(101, 590), STREAM, 591, None, at(100), "gave its sequences", id="reused, the last one"),
        pytest.param(
            at(5),
            STREAM,
            None,
            None,
            at(11),
            "messages 5 to 10 of stream ORDERS went before being read (likely expired or pushed out by",
            id="expired",
        ),
        pytest.param(at(10), STREAM, None, None, at(11), "message 10 of stream ORDERS went", id="expired one"),
        pytest.param(at(50), PURGED, None, None, at(101, 100_000), "messages 50 to 100 of", id="purged"),
        pytest.param(
            at(5),
            replace(STREAM, has_age_or_size_limit=False),
            None,
            None,
            at(11),
            "(likely purged or deleted)",
            id="no limits",
        ),
        pytest.param(
            at(5),
            replace(STREAM, retention="interest"),
            None,
            None,
            at(11),
            "(its retention is interest: likely acknowledged by its consumers, or purged)",
            id="interest",
        ),
        pytest.param(
            at(5),
            replace(KEYED, first_seq=101, messages=0),
            None,
            None,
            at(101, 100_000),
            "messages 5 to 100 of stream ORDERS went",
            id="superseding never empties a stream",
        ),
        pytest.param(
            at(5),
            replace(KEYED, has_age_or_size_limit=True),
            None,
            None,
            at(11),
            "expired",
            id="keyed, with an age",
        ),
        pytest.param(at(150), KEYED, None, None, at(101, 100_000), "lost its tail", id="keyed, lost tail"),
    ],
)
def test_something_is_missing(
    *,
    position: StreamPosition,
    state: StreamState,
    reread: int | None,
    resume: int | None,
    goes_on: StreamPosition,
    said: str,
) -> None:
    found, sentence = check_continuity(position, state, fail=False, filtered=False, reread=reread, resume=resume)
    assert found == goes_on
    assert sentence is not None
    assert said in sentence
    assert sentence.endswith(f"; failOnDataLoss is false, so reading goes on at sequence {goes_on.next}")
    assert "cannot be known" not in sentence

    with pytest.raises(DataLossError) as caught:
        check_continuity(position, state, fail=True, filtered=False, reread=reread, resume=resume)
    assert said in str(caught.value)
    assert str(caught.value).endswith(f"; set failOnDataLoss=false to go on at sequence {goes_on.next}")

    with pytest.raises(DataLossError, match="cannot be known whether any of the missing messages matched the filter"):
        check_continuity(position, state, fail=True, filtered=True, reread=reread, resume=resume)


BUCKET = replace(STREAM, max_msgs_per_subject=5, has_age_or_size_limit=False)
EXPIRING = replace(BUCKET, has_age_or_size_limit=True, expires=True)
BOUNDED = replace(BUCKET, has_age_or_size_limit=True)


@pytest.mark.parametrize(
    ("position", "state"),
    [
        pytest.param(at(5, 7), BUCKET, id="superseded or purged"),
        pytest.param(at(5, 7), EXPIRING, id="expired"),
        pytest.param(at(5, 7), BOUNDED, id="superseded, with a limit in bytes"),
        pytest.param(at(5, 7), replace(EXPIRING, first_seq=101, messages=0, bytes=0), id="all expired"),
        pytest.param(at(101, 100_000), replace(BUCKET, first_seq=101, messages=0, bytes=0), id="purged, all read"),
    ],
)
@pytest.mark.parametrize("filtered", [True, False])
def test_what_a_bucket_forgets_by_design(position: StreamPosition, state: StreamState, filtered: bool) -> None:
    assert check_continuity(position, state, fail=True, filtered=filtered, bucket=True) == (position, None)


@pytest.mark.parametrize(
    ("position", "state", "reread", "said"),
    [
        pytest.param(at(5), replace(BUCKET, first_seq=101, messages=0), None, "messages 5 to 100", id="emptied"),
        pytest.param(
            at(5), replace(BOUNDED, first_seq=101, messages=0), None, "messages 5 to 100", id="emptied, bytes"
        ),
        pytest.param(at(150, 7), EXPIRING, None, "lost its tail", id="lost tail"),
        pytest.param(at(60, 590), EXPIRING, 591, "gave its sequences to other messages", id="reused"),
        pytest.param(at(50), replace(EXPIRING, created=NEW), None, "deleted and created again", id="created again"),
    ],
)
def test_what_a_bucket_must_not_lose(
    position: StreamPosition, state: StreamState, reread: int | None, said: str
) -> None:
    with pytest.raises(DataLossError, match=said):
        check_continuity(position, state, fail=True, filtered=False, reread=reread, bucket=True)


def test_the_last_message_read_is_the_same() -> None:
    position = at(60, 590)
    for reread in (590, None):
        assert check_continuity(position, STREAM, fail=True, filtered=False, reread=reread) == (
            position,
            None,
        )


def test_an_unknown_timestamp_is_not_compared() -> None:
    assert check_continuity(at(60), STREAM, fail=True, filtered=False, reread=591) == (at(60), None)


def test_a_quiet_filter_that_was_looked_at_in_time_has_lost_nothing() -> None:
    assert check_continuity(at(5), STREAM, fail=True, filtered=True, seen=11) == (at(5), None)
    assert check_continuity(at(5), STREAM, fail=True, filtered=True, seen=80) == (at(5), None)
    with pytest.raises(DataLossError, match="messages 5 to 10"):
        check_continuity(at(5), STREAM, fail=True, filtered=True, seen=10)


@pytest.mark.parametrize(
    ("state", "earliest", "latest"),
    [
        (STREAM, at(11), at(101, 100_000)),
        (NEVER_WRITTEN, at(1), at(1)),
        (PURGED, at(101, 100_000), at(101, 100_000)),
        (replace(NEVER_WRITTEN, first_seq=1_000, last_seq=999), at(1_000), at(1_000)),
    ],
)
def test_first_positions(state: StreamState, earliest: StreamPosition, latest: StreamPosition) -> None:
    assert earliest_position(state) == earliest
    assert latest_position(state) == latest
    for position in (earliest, latest):
        assert check_continuity(position, state, fail=True, filtered=False) == (position, None)


@pytest.mark.parametrize(
    ("position", "state", "moves"),
    [
        (at(12), STREAM, True),
        (at(5), STREAM, True),
        (at(55), STREAM, True),
        (at(56), STREAM, False),
        (at(101), STREAM, False),
        (at(12), replace(STREAM, has_age_or_size_limit=False), False),
        (at(12), replace(STREAM, has_age_or_size_limit=False, retention="interest"), True),
        (at(1), NEVER_WRITTEN, False),
        (at(101), PURGED, False),
    ],
)
def test_idle_position(position: StreamPosition, state: StreamState, moves: bool) -> None:
    assert idle_position(position, state) == (latest_position(state) if moves else None)


@settings(deadline=None)
@given(
    next_=st.integers(1, 300),
    first=st.integers(0, 200),
    kept=st.integers(0, 100),
    reread=st.none() | st.integers(1, 5),
    resume=st.none() | st.integers(1, 300),
    created=st.sampled_from([OLD, NEW]),
    keyed=st.booleans(),
)
def test_going_on_is_always_safe(
    *, next_: int, first: int, kept: int, reread: int | None, resume: int | None, created: str, keyed: bool
) -> None:
    """Where reading goes on, nothing is missing: the same check passes, and nothing unread is skipped."""
    state = replace(
        KEYED if keyed else STREAM,
        first_seq=first,
        last_seq=max(0, first + kept - 1),
        messages=kept,
        created=created,
    )
    position = at(next_, 3)
    found, sentence = check_continuity(position, state, fail=False, filtered=False, reread=reread, resume=resume)
    assert found.created == state.created
    assert check_continuity(found, state, fail=True, filtered=False) == (found, None)
    assert (sentence is None) == (found == position)
    assert found.next <= max(position.next, state.first_kept)
