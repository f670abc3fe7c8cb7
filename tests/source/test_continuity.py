"""An offset and a stream, compared: go on, or something is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.continuity import (
    Evidence,
    check_continuity,
    earliest_position,
    idle_position,
    latest_position,
)
from spark_jetstream.source.offsets import StreamPosition
from tests.support.planning import STATE as STREAM

OLD = STREAM.created
NEW = "2026-02-04T00:00:00Z"
NEVER_WRITTEN = replace(STREAM, first_seq=0, last_seq=0, messages=0, bytes=0, last_timestamp=0)
PURGED = replace(STREAM, first_seq=101, messages=0, bytes=0)
KEYED = replace(STREAM, max_msgs_per_subject=1, max_bytes=-1)
BUCKET = replace(STREAM, max_msgs_per_subject=5, max_bytes=-1)
EXPIRING = replace(BUCKET, max_age=1)
BOUNDED = replace(BUCKET, max_bytes=1 << 30)


def at(sequence: int, last_timestamp: int = 0, created: str = OLD) -> StreamPosition:
    return StreamPosition(sequence, created, last_timestamp)


def check(
    position: StreamPosition,
    state: StreamSummary,
    *,
    filtered: bool,
    bucket: bool = False,
    **evidence: Any,
) -> tuple[StreamPosition, str | None]:
    """`check_continuity` with what is known besides the state."""
    return check_continuity(position, state, Evidence(**evidence), filtered=filtered, bucket=bucket)


def assert_lost(found: tuple[StreamPosition, str | None]) -> None:
    """The messages 5 to 10 are gone, and reading goes on after them."""
    following, sentence = found
    assert following.next == 11
    assert sentence is not None
    assert "messages 5 to 10" in sentence


def is_bucket(state: StreamSummary) -> bool:
    return state.max_msgs_per_subject == BUCKET.max_msgs_per_subject


#: Where the query was, what the stream is now, and what is known besides.
COMPLETE: dict[str, tuple[StreamPosition, StreamSummary, dict[str, Any]]] = {
    "first kept": (at(11), STREAM, {}),
    "last": (at(100), STREAM, {}),
    "end": (at(101, 100_000), STREAM, {}),
    "never written, first 0": (at(1), NEVER_WRITTEN, {}),
    "never written, first set": (at(1_000), replace(STREAM, first_seq=1_000, last_seq=999), {}),
    "purged, all read": (at(101), PURGED, {}),
    "superseded": (at(5, 7), KEYED, {}),
    "schedules that were published": (
        at(5, 7),
        replace(STREAM, allow_msg_schedules=True, max_bytes=-1),
        {},
    ),
    # What a bucket forgets by design.
    "bucket, superseded or purged": (at(5, 7), BUCKET, {}),
    "bucket, expired": (at(5, 7), EXPIRING, {}),
    "bucket, all expired": (at(5, 7), replace(EXPIRING, first_seq=101, messages=0, bytes=0), {}),
    "bucket, all read": (at(101, 100_000), replace(BUCKET, first_seq=101, messages=0, bytes=0), {}),
    # Times that say nothing of a lost tail.
    "the same message": (at(60, 590), STREAM, {"reread": 590}),
    "the message is gone": (at(60, 590), STREAM, {}),
    "no time was written down": (at(60), STREAM, {"reread": 591, "later": (40, 700)}),
    "clocks of leaders differ": (at(60, 590), STREAM, {"reread": 590, "later": (40, 700)}),
    "the next message": (at(60, 590), STREAM, {"later": (60, 700)}),
    "the clock was set back since": (at(60, 590), STREAM, {"later": (40, 100_001)}),
    # The query has seen that nothing below matched.
    "quiet, looked at in time": (at(5), STREAM, {"matched_up_to": 11}),
    "quiet, looked at later": (at(5), STREAM, {"matched_up_to": 80}),
}


@pytest.mark.parametrize("case", COMPLETE.values(), ids=COMPLETE.keys())
@pytest.mark.parametrize("filtered", [True, False])
def test_nothing_is_missing(
    case: tuple[StreamPosition, StreamSummary, dict[str, Any]], filtered: bool
) -> None:
    position, state, known = case
    assert check(position, state, filtered=filtered, bucket=is_bucket(state), **known) == (
        position,
        None,
    )


REUSED = (
    "stream ORDERS lost its tail and gave its sequences to other messages: sequence 59 was read "
    "with"
)
AGAIN = replace(STREAM, created=NEW, first_seq=1)

#: Where the query was, what the stream is now, `Evidence.reread`, the sequence of `Evidence.later`,
#: where it continues, and a part of the sentence.
MISSING: dict[str, tuple[StreamPosition, StreamSummary, int | None, int | None, StreamPosition, str]] = {
    "created again": (at(50, 5), AGAIN, None, None, at(1, created=NEW),
        "stream ORDERS was deleted and created again (the offset belongs to the one created at "
        f"{OLD}, this one was"
        f" created at {NEW}); messages of the old one from sequence 50 on cannot be read"),
    "lost one": (at(102, 7), STREAM, None, None, at(101, 100_000),
        "stream ORDERS lost its tail: it was read up to sequence 101, and now ends at 100 (likely "
        "a"),
    "lost tail, partly written again": (at(9_000, 7), STREAM, None, 96, at(96), "now ends at 100"),
    "lost tail, late answer": (at(9_000, 7), STREAM, None, 500, at(101, 100_000), "now ends at "
                                                                                  "100"),
    "lost tail, first ones expired": (at(9_000, 7), STREAM, None, 3, at(11), "now ends at 100"),
    "lost everything": (at(9), NEVER_WRITTEN, None, None, at(1), "now ends at 0"),
    "reused": (at(60, 590), STREAM, 591, 40, at(40), f"{REUSED} timestamp 590 ns, and has "
                                                     "timestamp 591 ns now"),
    "reused, the last message read is not found": (at(60, 590), STREAM, None, 40, at(40),
        f"{REUSED} time 1970-01-01T00:00:00.000000590Z, and sequence 40 has time "
        "1970-01-01T00:00:00.000100000Z (likely"
        " a"),
    "reused, from where unknown": (at(60, 590), STREAM, 591, None, at(59), "gave its sequences"),
    "reused, the last one": (at(101, 590), STREAM, 591, None, at(100), "gave its sequences"),
    "expired": (at(5), STREAM, None, None, at(11),
        "messages 5 to 10 of stream ORDERS went before being read (likely expired or pushed out "
        "by"),
    "expired one": (at(10), STREAM, None, None, at(11), "message 10 of stream ORDERS went"),
    "purged": (at(50), PURGED, None, None, at(101, 100_000), "messages 50 to 100 of"),
    "no limits": (at(5), replace(STREAM, max_bytes=-1), None, None, at(11), "(likely purged or "
                                                                            "deleted)"),
    "interest": (at(5), replace(STREAM, retention="interest"), None, None, at(11),
        "(its retention is interest: likely acknowledged by its consumers, or purged)"),
    "superseding never empties a stream": (at(5), replace(KEYED, first_seq=101, messages=0), None, None,
        at(101, 100_000), "messages 5 to 100 of stream ORDERS went"),
    "keyed, with an age": (at(5), replace(KEYED, max_age=1), None, None, at(11), "expired"),
    # What a bucket must not lose either.
    "bucket, emptied": (at(5), replace(BUCKET, first_seq=101, messages=0), None, None, at(101, 100_000),
        "messages 5 to 100"),
    "bucket, emptied, bytes": (at(5), replace(BOUNDED, first_seq=101, messages=0), None, None, at(101, 100_000),
        "messages 5 to 100"),
    "bucket, lost tail": (at(150, 7), EXPIRING, None, None, at(101, 100_000), "lost its tail"),
    "bucket, reused": (at(60, 590), EXPIRING, 591, None, at(59), "gave its sequences to other "
                                                                 "messages"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISSING.values(), ids=MISSING.keys())
def test_something_is_missing(
    case: tuple[StreamPosition, StreamSummary, int | None, int | None, StreamPosition, str],
) -> None:
    position, state, reread, later, goes_on, text = case
    known: dict[str, Any] = {"reread": reread, "later": None if later is None else (later, 100_000)}
    known["bucket"] = is_bucket(state)
    following, sentence = check(position, state, filtered=False, **known)
    assert following == goes_on
    assert sentence is not None
    assert text in sentence
    assert "cannot be known" not in sentence
    unknown = (
        f"{sentence}; it cannot be known whether any of the missing messages matched the filter"
    )
    assert check(position, state, filtered=True, **known) == (goes_on, unknown)


MINUTE = 60_000_000_000
HELD = replace(STREAM, retention="interest", max_bytes=-1, server_time=100 * MINUTE)


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        pytest.param({}, "held", id="no limits"),
        pytest.param({"max_age": 11 * MINUTE}, "held", id="younger than the age"),
        pytest.param({"max_age": 10 * MINUTE}, "lost", id="as old as the age"),
        pytest.param(
            {"max_age": 11 * MINUTE, "server_time": 0}, "lost", id="age of which nothing is known"
        ),
        pytest.param({"max_msgs": 96}, "held", id="fewer sequences since than the limit"),
        pytest.param({"max_msgs": 95}, "unknown", id="more sequences since, room for more"),
        pytest.param({"max_msgs": 90}, "lost", id="more sequences since, full"),
        pytest.param({"max_msgs": 90, "discard": "new"}, "held", id="full, and takes no more"),
        pytest.param({"max_bytes": 10_001}, "unknown", id="bytes, room for more"),
        pytest.param({"max_bytes": 10_000}, "lost", id="bytes, nearly full"),
        pytest.param({"allow_msg_ttl": True}, "unknown", id="messages with a TTL"),
        pytest.param({"retention": "workqueue"}, "held", id="a work queue"),
        pytest.param(
            {"retention": "limits"}, "lost", id="limits retention, which nothing is held in"
        ),
    ],
)
def test_a_gap_behind_a_consumer_that_held_what_matches(
    limits: dict[str, Any], outcome: str
) -> None:
    position, state = at(5, 90 * MINUTE), replace(HELD, **limits)
    if outcome == "lost":
        assert_lost(check(position, state, filtered=True, held=True))
        return
    following, sentence = check(position, state, filtered=True, held=True)
    assert following == position
    assert (sentence is None) == (outcome == "held")
    # What all messages match, nobody else can have taken; and without the consumer nothing is
    # known.
    for known in ({"filtered": False, "held": True}, {"filtered": True, "held": False}):
        assert_lost(check(position, state, **known))


def test_a_quiet_filter_that_was_looked_at_too_early() -> None:
    assert_lost(check(at(5), STREAM, filtered=True, matched_up_to=10))


@pytest.mark.parametrize(
    ("state", "earliest", "latest"),
    [
        (STREAM, at(11), at(101, 100_000)),
        (NEVER_WRITTEN, at(1), at(1)),
        (PURGED, at(101, 100_000), at(101, 100_000)),
        (replace(NEVER_WRITTEN, first_seq=1_000, last_seq=999), at(1_000), at(1_000)),
    ],
)
def test_first_positions(
    state: StreamSummary, earliest: StreamPosition, latest: StreamPosition
) -> None:
    assert earliest_position(state) == earliest
    assert latest_position(state) == latest
    for position in (earliest, latest):
        assert check(position, state, filtered=False) == (position, None)


@pytest.mark.parametrize(
    ("position", "state", "held", "moves"),
    [
        (at(12), STREAM, False, True),
        (at(5), STREAM, False, True),
        (at(55), STREAM, False, True),
        (at(56), STREAM, False, False),
        (at(101), STREAM, False, False),
        (at(12), replace(STREAM, max_bytes=-1), False, False),
        (at(12), replace(STREAM, max_bytes=-1, retention="interest"), False, True),
        (at(1), NEVER_WRITTEN, False, False),
        (at(101), PURGED, False, False),
        # A consumer holds what matches.
        (at(5, 90 * MINUTE), HELD, True, False),
        (at(5, 90 * MINUTE), replace(HELD, max_age=21 * MINUTE), True, False),
        (at(5, 90 * MINUTE), replace(HELD, max_age=20 * MINUTE), True, True),
        (at(5, 90 * MINUTE), replace(HELD, max_msgs=181), True, False),
        (at(5, 90 * MINUTE), replace(HELD, max_msgs=180), True, True),
        (at(5, 90 * MINUTE), replace(HELD, max_bytes=20_001), True, False),
        (at(5, 90 * MINUTE), replace(HELD, max_bytes=20_000), True, True),
    ],
)
def test_idle_position(
    position: StreamPosition, state: StreamSummary, held: bool, moves: bool
) -> None:
    end = latest_position(state)
    assert idle_position(position, state, held=held) == (end if moves else None)
    assert idle_position(end, state, held=held) is None


@settings(deadline=None)
@given(
    next_=st.integers(1, 300),
    first=st.integers(0, 200),
    kept=st.integers(0, 100),
    reread=st.none() | st.integers(1, 5),
    later=st.none() | st.tuples(st.integers(1, 300), st.integers(1, 200_000)),
    created=st.sampled_from([OLD, NEW]),
    keyed=st.booleans(),
)
def test_going_on_is_always_safe(
    *,
    next_: int,
    first: int,
    kept: int,
    reread: int | None,
    later: tuple[int, int] | None,
    created: str,
    keyed: bool,
) -> None:
    """Where reading goes on, nothing is missing: the same check passes, and nothing unread is
    skipped.
    """
    state = replace(
        KEYED if keyed else STREAM,
        first_seq=first,
        last_seq=max(0, first + kept - 1),
        messages=kept,
        created=created,
    )
    position = at(next_, 3)
    found, sentence = check(position, state, filtered=False, reread=reread, later=later)
    assert found.created == state.created
    assert check(found, state, filtered=False) == (found, None)
    assert (sentence is None) == (found == position)
    assert found.next <= max(position.next, state.first_kept)
