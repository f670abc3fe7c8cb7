"""Where a reader begins that takes over from a consumer, by replies of CONSUMER.INFO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.handover import Handover, filter_differences, keeps_for_consumers
from spark_jetstream.protocol.stream import StreamSummary

STATE = StreamSummary(
    name="S",
    created="2026-02-03T04:05:06Z",
    first_seq=1,
    last_seq=20,
    messages=20,
    bytes=200,
    num_deleted=0,
    last_timestamp=1,
    retention="limits",
    subjects=("s.>",),
)


def reply(
    delivered: tuple[int, int] = (10, 10), floor: tuple[int, int] = (4, 4), **given: Any
) -> dict[str, Any]:
    """A reply with positions as (delivery, sequence); a dictionary ``config`` is added to it."""
    config = {"ack_policy": "explicit", **given.pop("config", {})}
    return {
        "stream_name": "S",
        "name": "c",
        "config": config,
        "delivered": {"consumer_seq": delivered[0], "stream_seq": delivered[1]},
        "ack_floor": {"consumer_seq": floor[0], "stream_seq": floor[1]},
        "num_ack_pending": 4,
        "num_pending": 10,
        **given,
    }


def handover(*given: Any, **more: Any) -> Handover:
    return Handover.from_reply(reply(*given, **more), "look")


def test_holes() -> None:
    at = handover()
    assert (at.first, at.again, at.pending, at.settled, at.waiting) == (5, 6, 4, 2, 10)
    assert at.repeated() == (
        "6 messages between sequence 5 and 10 were delivered; 4 of them not acknowledged; "
        "all are read again"
    )
    assert handover((5, 5), num_ack_pending=1).repeated().startswith("1 message between sequence 5")
    settled = handover((10, 10), (10, 10), num_ack_pending=0)
    assert (settled.first, settled.repeated()) == (11, "")


def test_bounds_of_what_is_read_again() -> None:
    """Six of a thousand sequences were delivered, or four messages were delivered six times."""
    assert handover((10, 1004)).again == 6
    assert handover((14, 8)).again == 4


@pytest.mark.parametrize("policy", ["none", "all", "explicit"])
def test_before_the_first_delivery_the_floor_is_not_asked(policy: str) -> None:
    """A server before 2.14 says 0."""
    at = handover((0, 99), (0, 0), num_ack_pending=0, config={"ack_policy": policy})
    assert (at.first, at.again) == (100, 0)


def test_without_acknowledgements_deliveries_count() -> None:
    """``none`` is the default of the server, which leaves it out."""
    for config in ({"ack_policy": "none"}, {"ack_policy": None}):
        at = handover((7, 7), (0, 0), num_ack_pending=0, config=config)
        assert (at.first, at.again, at.ack_policy) == (8, 0, "none")


def test_a_start_is_no_less_than_what_the_configuration_says() -> None:
    """A server before 2.14 says 0 until the first acknowledgement."""
    config = {"deliver_policy": "by_start_sequence", "opt_start_seq": 1000}
    assert handover((4, 1003), (0, 0), config=config).first == 1000
    assert handover((9, 1008), (5, 1004), config=config).first == 1005


def test_messages_from_before_the_consumer_are_counted() -> None:
    """The floor of a consumer with replicas is 0 until the first acknowledgement."""
    config = {"deliver_policy": "new"}
    at = handover((3, 23), (0, 0), num_ack_pending=3, config=config)
    assert (at.first, at.again, at.older, at.settled) == (1, 3, 20, 0)
    assert at.repeated() == (
        "3 messages between sequence 1 and 23 were delivered; 3 of them not acknowledged; all are "
        "read again; up to 20 older messages are read as well: the server does not say where the "
        "consumer began before it has an ack floor"
    )
    # It began with the first message; it has a floor; all older messages are for it.
    assert handover((3, 3), (0, 0), num_ack_pending=3, config=config).older == 0
    assert handover((3, 23), (1, 21), num_ack_pending=2, config=config).older == 0
    assert handover((3, 23), (0, 0), num_ack_pending=3).older == 0


def test_who_receives() -> None:
    assert not handover().active
    assert handover(num_waiting=1).active
    assert handover(push_bound=True).active
    assert not handover(num_waiting=1, paused=True).active


def test_an_unusable_reply_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"cannot look: .* ack_floor\.stream_seq"):
        handover(ack_floor={})


@pytest.mark.parametrize(
    ("filters", "subjects", "said"),
    [
        ((), (), ""),
        ((), (">",), ""),
        ((), ("s.>",), ""),
        (("s.>",), (), ""),
        (("s.a", "s.b"), ("s.b", "s.a"), ""),
        ((), ("s.a",), "not all messages of s.> are read"),
        (("s.a",), (), "older messages than sequence 5 of s.> are not read"),
        (
            ("s.a",),
            ("s.b",),
            "older messages than sequence 5 of s.b are not read, and "
            "not all messages of s.a are read",
        ),
    ],
)
def test_filters_that_differ(
    filters: tuple[str, ...], subjects: tuple[str, ...], said: str
) -> None:
    at = handover(config={"filter_subjects": list(filters)})
    found = filter_differences(at, subjects, STATE, at.first)
    assert found.rpartition(": ")[2] == said
    mirror = replace(STATE, mirror=True, subjects=())
    assert filter_differences(handover(), (), mirror, 5) == ""


def test_streams_that_keep_messages_for_consumers() -> None:
    assert not keeps_for_consumers(STATE)
    interest = replace(STATE, retention="interest")
    assert keeps_for_consumers(interest)
    assert not keeps_for_consumers(replace(interest, max_msgs=5))
    assert not keeps_for_consumers(replace(interest, max_bytes=5))
    assert not keeps_for_consumers(replace(interest, allow_msg_ttl=True))
    # It refuses new messages, and keeps the old ones.
    assert keeps_for_consumers(replace(interest, max_msgs=5, discard="new"))
    assert not keeps_for_consumers(replace(interest, max_age=1))
