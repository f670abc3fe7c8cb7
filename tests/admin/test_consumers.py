"""Consumers administered on a real server, each method with what it does, what is missing, and what
is refused.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_jetstream.admin import (
    DEFAULT_CONSUMER,
    DeliveredMessage,
    JetStreamAdmin,
    parse_ack,
)
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.admin.deliveries import DeliveryTimes
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.pool import connect
from spark_jetstream.client.subscription import CoreMessage as Heard
from spark_jetstream.errors import (
    ApiError,
    ConsumerLost,
    ConsumerNotFound,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    PinMismatch,
    ProtocolError,
    PullRefused,
    RequestTimeout,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from tests.admin.conftest import Api, Fill
from tests.support.client import full
from tests.support.fake_jetstream import Replies, administered, consumer_info, stream_info
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until


@pytest.fixture
def stream(admin: JetStreamAdmin, name: str) -> str:
    """A stream that takes ``NAME.*`` and ``c.>``."""
    admin.streams.create(name=name, subjects=[f"{name}.*", "c.>"])
    return name


# -- create --


def test_forms_of_creation() -> None:
    """Each form has a subject of its own: what an account may publish to decides which can be used."""
    stream = stream_info({"name": "S", "subjects": ["s.*"]})
    forms: dict[str, dict[str, Any]] = {
        "CONSUMER.CREATE.S": {"ack_policy": "explicit"},
        "CONSUMER.CREATE.S.c": {"name": "c", "filter_subjects": ["s.a", "s.b"]},
        "CONSUMER.CREATE.S.c.s.a": {"durable_name": "c", "filter_subject": "s.a"},
        "CONSUMER.DURABLE.CREATE.S.c": {"durable_name": "c", "durable_form": True},
    }
    answers: Replies = {subject: lambda body: consumer_info(body["config"]) for subject in forms}
    with administered({"STREAM.INFO.S": stream, **answers}) as (fake, admin):
        for subject, request in forms.items():
            info = admin.consumers.create("S", **request)
            assert fake.subjects[-1] == subject
            assert bool(info.config.durable_name) == ("durable_name" in request)


def test_one_filter_in_a_list(admin: JetStreamAdmin, stream: str) -> None:
    """The server refuses it in the subject of a request (10137), where ``filter_subject`` belongs."""
    consumers = admin.consumers
    created = consumers.create(stream, durable_name="c", filter_subjects=["c.a"])
    assert (created.config.filter_subjects, created.config.filter_subject) == (("c.a",), "")
    assert consumers.load_or_create(stream, "d", filter_subjects=["c.a"]).name == "d"
    assert [each.field for each in consumers.update(stream, "c", filter_subjects=["c.b"])] == [
        "filter_subjects"
    ]
    assert consumers.copy(stream, "c", "e", max_deliver=6).config.filter_subjects == ("c.b",)
    assert consumers.copy(stream, "c", "f", filter_subjects=["c.c"]).config.filter_subjects == (
        "c.c",
    )
    assert consumers.create(stream, filter_subjects=["c.a"]).config.filter_subjects == ("c.a",)
    durable = consumers.create(stream, durable_name="g", filter_subjects=["c.a"], durable_form=True)
    assert durable.config.filter_subjects == ("c.a",)
    # The other form takes its place.
    forms: list[dict[str, Any]] = [{"filter_subject": "c.d"}, {"filter_subjects": ["c.a"]}]
    for changes in (*forms, {"filter_subject": "c.d", "filter_subjects": None}):
        assert [each.field for each in consumers.update(stream, "c", changes)] == [
            "filter_subjects"
        ]
    assert consumers.load(stream, "c").config.filter_subject == "c.d"
    assert consumers.copy(stream, "c", "h", filter_subjects=["c.e", "c.f"]).config.filters == (
        "c.e",
        "c.f",
    )
    assert consumers.update(stream, "c", filter_subject=None)
    assert consumers.load(stream, "c").config.filters == ()


def test_create_with_a_name_in_front(admin: JetStreamAdmin, stream: str) -> None:
    consumers = admin.consumers
    made = consumers.create(stream, "a", filter_subject="c.>")
    assert (made.name, made.config.durable_name, made.config.filter_subject) == ("a", "a", "c.>")
    assert made.config.ack_policy == "none", "the server's default, as without a name in front"
    assert (
        consumers.create(stream, "b", DEFAULT_CONSUMER, max_deliver=5).config.ack_policy
        == "explicit"
    )
    assert consumers.create(stream, "d", made).config.durable_name == "d"
    assert consumers.create(stream, "e", made.config).config.filter_subject == "c.>"
    assert consumers.create(stream, "f", durable_name=None).config.durable_name == ""
    assert consumers.load_or_create(stream, "a", filter_subject="c.>").created == made.created
    short: dict[str, Any] = {"name": "h", "inactive_threshold": "1h"}
    assert (
        consumers.load_or_create(stream, short).created
        == consumers.load_or_create(stream, short).created
    )
    assert consumers.load(stream, "h").config.durable_name == ""
    assert consumers.create(stream, DEFAULT_CONSUMER, durable_name="g").name == "g"
    # The other wrong arguments are those of streams.
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((5,), {}, 'a name, a ConsumerConfig or a mapping is needed, not "5"'),
        (("a",), {"durable_name": "b"}, "name and durable_name are different: a and b"),
        (("c.>",), {}, "name must be the name of a consumer, without blanks, dots"),
    ]
    for request in (consumers.create, consumers.load_or_create):
        for arguments, fields, said in wrong:
            with pytest.raises(OptionError, match=said):
                request(stream, *arguments, **fields)
    for change in (consumers.update, consumers.plan):
        with pytest.raises(
            OptionError, match=r'a ConsumerConfig or a mapping is needed, not "c\.>"'
        ):
            change(stream, "a", "c.>")  # type: ignore[arg-type]


# -- filters --


def test_filters_that_match_nothing(admin: JetStreamAdmin, stream: str) -> None:
    """A server takes them in silence, and delivers nothing for them, ever."""
    consumers = admin.consumers
    consumers.create(stream, "there", filter_subject="c.a")
    stored = rf"matches nothing that the stream stores \({stream}\.\*, c\.>\)"
    requests: list[tuple[Callable[[], object], str]] = [
        (lambda: consumers.create(stream, "a", filter_subject="d.a"), "create consumer a"),
        (
            lambda: consumers.create(stream, "a", filter_subjects=["c.a", "d.a"]),
            "create consumer a",
        ),
        (
            lambda: consumers.create(stream, filter_subject="d.a"),
            f"create a consumer on stream {stream}",
        ),
        (lambda: consumers.load_or_create(stream, "a", filter_subject="d.a"), "create consumer a"),
        (lambda: consumers.copy(stream, "there", "a", filter_subject="d.a"), "create consumer a"),
        (lambda: consumers.update(stream, "there", filter_subject="d.a"), "update consumer there"),
    ]
    for request, doing in requests:
        with pytest.raises(OptionError, match=f'cannot {doing}.*: "d.a" {stored}.*any_filter=True'):
            request()
    assert list(consumers.names(stream)) == ["there"]
    assert consumers.load(stream, "there").config.filter_subject == "c.a"
    made = consumers.create(stream, "a", filter_subject="d.a", any_filter=True)
    # What is there stays as it is.
    assert consumers.create(stream, "a", filter_subject="d.a").created == made.created
    assert consumers.load_or_create(stream, "a", filter_subject="d.a").created == made.created
    assert [each.field for each in consumers.update(stream, "a", max_deliver=5)] == ["max_deliver"]
    assert consumers.copy(stream, "a", "b", any_filter=True).config.filter_subject == "d.a"
    assert consumers.update(stream, "there", filter_subject="d.b", any_filter=True)
    for overlapping in ("*.a", ">", f"{stream}.>", "c.*.b"):
        consumers.create(stream, filter_subject=overlapping)


def test_filters_of_streams_that_hold_other_subjects(
    admin: JetStreamAdmin, stream: str, publisher: Publisher
) -> None:
    """Messages of a time before, or of other streams, are delivered."""
    publisher.publish([Message("c.old")])
    admin.streams.update(stream, subjects=[f"{stream}.*"])
    assert admin.consumers.create(stream, "old", filter_subject="c.*").num_pending == 1
    with pytest.raises(OptionError, match=r'"c\.new" matches nothing'):
        admin.consumers.create(stream, "new", filter_subject="c.new")
    copies: list[dict[str, Any]] = [
        {"mirror": stream},
        {"sources": stream, "subjects": "other.a"},
        {
            "subject_transform": {"src": "other.*", "dest": "changed.{{wildcard(1)}}"},
            "subjects": "other.*",
        },
    ]
    for fields in copies:
        admin.streams.create("COPY", **fields)
        admin.consumers.create("COPY", "c", filter_subject="changed.a")
        admin.streams.delete("COPY")


def test_create_again_and_what_cannot_be(admin: JetStreamAdmin, stream: str) -> None:
    first = admin.consumers.load_or_create(
        stream, DEFAULT_CONSUMER, durable_name="c", max_deliver=5
    )
    assert first.config.ack_policy == "explicit"
    assert (
        admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c", max_deliver=5).created
        == first.created
    )
    again = admin.consumers.load_or_create(
        stream, {"durable_name": "c", "max_deliver": 5}, given_only=True
    )
    assert again.created == first.created
    said = f"cannot create consumer c of stream {stream}: consumer already exists"
    with pytest.raises(ApiError, match=said) as refused:
        admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    assert refused.value.err_code == 10148
    with pytest.raises(OptionError, match="durable_form needs a durable_name"):
        admin.consumers.create(stream, durable_form=True, name="a")
    with pytest.raises(JetStreamError) as caught:
        admin.consumers.load_or_create(stream, DEFAULT_CONSUMER, durable_name="c")
    assert str(caught.value) == (
        f"consumer c of stream {stream} exists with another configuration (on the server -> asked "
        "for): max_deliver: 5 -> -1"
    )
    taken = admin.consumers.load_or_create(
        stream, DEFAULT_CONSUMER, durable_name="c", any_config=True
    )
    assert (taken.created, taken.config.max_deliver) == (first.created, 5)
    with pytest.raises(OptionError, match="a name or durable_name is required"):
        admin.consumers.load_or_create(stream, DEFAULT_CONSUMER)


# -- look --


def test_names_infos_load_and_delete(admin: JetStreamAdmin, stream: str) -> None:
    assert list(admin.consumers.names(stream)) == []
    assert list(admin.consumers.infos(stream)) == []
    for name in "cab":
        admin.consumers.create(stream, durable_name=name)
    assert list(admin.consumers.names(stream)) == ["a", "b", "c"]
    assert [each.name for each in admin.consumers.infos(stream)] == ["a", "b", "c"]
    info = admin.consumers.load(stream, "b")
    assert (info.stream_name, info.name) == (stream, "b")
    assert admin.consumers.replicas(stream, "b") == ()  # outside of a cluster
    with pytest.raises(
        ApiError, match=f"leader of consumer b of stream {stream} step down: JetStream clustering"
    ):
        admin.consumers.step_down(stream, "b")
    assert admin.consumers.delete(stream, "c") is True
    assert list(admin.consumers.names(stream)) == ["a", "b"]
    assert admin.consumers.delete(stream, "c", missing_ok=True) is False


# -- change --


def test_plan_and_update(admin: JetStreamAdmin, stream: str) -> None:
    admin.consumers.create(
        stream, DEFAULT_CONSUMER, durable_name="c", max_deliver=5, filter_subject="c.a"
    )
    changes: dict[str, Any] = {"ack_wait": "10s", "max_deliver": None, "filter_subject": "c.b"}
    planned = admin.consumers.plan(stream, "c", changes)
    assert [str(each) for each in planned] == [
        "ack_wait: 30s -> 10s",
        "max_deliver: 5 -> -1",
        'filter_subjects: ["c.a"] -> ["c.b"]',
    ]
    assert admin.consumers.load(stream, "c").config.max_deliver == 5
    assert admin.consumers.update(stream, "c", changes) == planned
    config = admin.consumers.load(stream, "c").config
    assert (config.ack_wait, config.max_deliver, config.filters) == (10**10, -1, ("c.b",))
    assert (config.ack_policy, config.durable_name) == ("explicit", "c")
    assert admin.consumers.update(stream, "c", **changes) == []
    said = (
        rf"cannot update consumer c of stream {stream}: ack_policy: explicit -> all \(it can never "
        r"change\)"
    )
    with pytest.raises(JetStreamError, match=said):
        admin.consumers.update(stream, "c", ack_policy="all", max_deliver=5)
    assert admin.consumers.load(stream, "c").config.max_deliver == -1
    with pytest.raises(OptionError, match=r"consumer c of stream .*there is no field"):
        admin.consumers.plan(stream, "c", maximum=5)


# -- pause, reset, unpin --


def test_pause_and_resume(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    fill(stream, 1, 2)
    until = dt.datetime(2036, 1, 1, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
    reply = admin.consumers.pause(stream, "c", until)
    assert (reply.paused, reply.pause_until) == (True, "2036-01-01T12:00:00.123456Z")
    assert admin.consumers.load(stream, "c").paused
    with pytest.raises(JetStreamError, match=rf"consumer c of stream {stream} is paused for \d+d"):
        admin.consumers.next(stream, "c")
    assert [lag.paused for lag in admin.lag(stream)] == [True]
    assert not admin.consumers.resume(stream, "c").paused
    assert not admin.consumers.resume(stream, "c").paused
    # For how long: from now on, by the server's clock.
    for span in ("1h30m", dt.timedelta(minutes=90)):
        remaining = admin.consumers.pause(stream, "c", span).pause_remaining
        assert 89 * 60 * 10**9 < remaining <= 90 * 60 * 10**9
    admin.consumers.resume(stream, "c")
    assert len(admin.consumers.next(stream, "c")) == 1
    # The server takes a time in the past for an order to resume, and forgets the time of the pause.
    admin.consumers.pause(stream, "c", until)
    for past in (
        "2020-01-01T00:00:00Z",
        dt.datetime.fromtimestamp(1, dt.timezone.utc),
        dt.timedelta(0),
        -1,
        "0s",
    ):
        with pytest.raises(
            JetStreamError, match=r"past by the server's clock; nothing was changed|between 1970"
        ):
            admin.consumers.pause(stream, "c", past)
        assert admin.consumers.load(stream, "c").config.pause_until == reply.pause_until
    with pytest.raises(OptionError, match=r'until must be a time .*, not "tomorrow"'):
        admin.consumers.pause(stream, "c", "tomorrow")
    for far in ("9999-12-31T00:00:00Z", "2263-01-01T00:00:00Z", "250y", dt.timedelta(days=90_000)):
        with pytest.raises(OptionError, match=r"until must be a time before 2262-04-11 .*, not"):
            admin.consumers.pause(stream, "c", far)


@pytest.mark.parametrize("time", ["9999-12-31T00:00:00Z", "1000-01-01T00:00:00+01:00"])
def test_a_start_that_no_server_can_count_is_refused_unless_it_is_there(
    admin: JetStreamAdmin, stream: str, api: Api, time: str
) -> None:
    fields: dict[str, Any] = {"deliver_policy": "by_start_time", "opt_start_time": time}
    said = (
        f"cannot create consumer c of stream {stream}: opt_start_time must be a time that the "
        "clock "
        f'of a server has, from 1677-09-22 to 2262-04-11, not "{time}"'
    )
    with pytest.raises(OptionError, match=re.escape(said)):
        admin.consumers.create(stream, "c", **fields)
    origin = {"name": stream, "opt_start_time": time}
    with pytest.raises(OptionError, match=r"mirror\.opt_start_time must be a time that the clock"):
        admin.streams.create("NEVER", mirror=origin)
    with pytest.raises(
        OptionError, match=r"sources\.0\.opt_start_time must be a time that the clock"
    ):
        admin.streams.create("NEVER", sources=[origin])
    assert "NEVER" not in admin.streams.names()
    config = {"durable_name": "c", **fields}
    api(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": config})
    assert admin.consumers.create(stream, "c", **fields).config.opt_start_time is not None
    with pytest.raises(OptionError, match=re.escape(said)):
        admin.consumers.create(stream, "c", {**fields, "description": "another"})


def test_reset(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    fill(stream, 6, 2)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    assert [each.message.seq for each in admin.consumers.next(stream, "c", 2)] == [1, 2]
    assert [each.message.seq for each in admin.consumers.next(stream, "c", 2, ack="none")] == [3, 4]
    reply = admin.consumers.reset(stream, "c")
    assert (reply.reset_seq, reply.num_pending, reply.num_ack_pending) == (3, 4, 0)
    assert admin.consumers.reset(stream, "c", 5).reset_seq == 5
    assert [each.message.seq for each in admin.consumers.next(stream, "c", 5)] == [5, 6]
    assert admin.consumers.reset(stream, "c", 1).num_pending == 6
    for wrong in (0, -1, True):
        with pytest.raises(OptionError, match="sequence must be a whole number from 1 on"):
            admin.consumers.reset(stream, "c", wrong)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="last", deliver_policy="last")
    with pytest.raises(
        ApiError, match=f"reset consumer last of stream {stream} to sequence 2"
    ) as caught:
        admin.consumers.reset(stream, "last", 2)
    assert caught.value.err_code == 10204


# -- next --


def test_next(admin: JetStreamAdmin, stream: str, publisher: Publisher, fill: Fill) -> None:
    fill(stream, 4, 2)
    publisher.publish([Message(f"{stream}.h", b"\r\n\x00", [("A", "1"), ("A", "2")])])
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    (first,) = admin.consumers.next(stream, "c")
    assert first.message.changed(stream=None) == admin.messages.get(stream, 1)
    assert (first.deliveries, first.consumer_seq, first.pending, first.consumer) == (1, 1, 4, "c")
    rest = admin.consumers.next(
        stream, "c", 100, timeout=3600
    )  # it waits for the first message only
    assert [each.message.seq for each in rest] == [2, 3, 4, 5]
    assert (rest[3].message.data, rest[3].message.headers) == (b"\r\n\x00", {"A": ["1", "2"]})
    assert [each.pending for each in rest] == [3, 2, 1, 0]
    info = admin.consumers.load(stream, "c")
    assert (info.num_pending, info.num_ack_pending, info.ack_floor.stream_seq) == (0, 0, 5)
    for count in (1, 5):
        assert admin.consumers.next(stream, "c", count, timeout=0.2) == []


@pytest.mark.parametrize("count", [1, *full(5)])
def test_next_without_waiting(count: int, admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    admin.consumers.create(stream, "c", DEFAULT_CONSUMER, max_ack_pending=3)
    assert admin.consumers.next(stream, "c", count, timeout=0) == []
    fill(stream, 4, 2)
    # A consumer counts a message a moment after its publisher has the acknowledgement.
    wait_until(lambda: admin.consumers.load(stream, "c").num_pending == 4, "four are pending")
    assert len(admin.consumers.next(stream, "c", count, timeout=0, ack="none")) == min(count, 3)
    # The server does not answer at all while too many messages wait for their acknowledgement.
    admin.consumers.next(stream, "c", 3, timeout=0, ack="none")
    assert admin.consumers.load(stream, "c").num_ack_pending == 3
    assert admin.consumers.next(stream, "c", count, timeout=0) == []


def test_ways_to_settle(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    fill(stream, 4, 2)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")

    def state() -> tuple[int, int]:
        info = admin.consumers.load(stream, "c")
        return info.num_pending, info.num_ack_pending

    assert [
        (each.message.seq, each.deliveries) for each in admin.consumers.next(stream, "c", ack="nak")
    ] == [(1, 1)]
    assert [
        (each.message.seq, each.deliveries)
        for each in admin.consumers.next(stream, "c", ack="term")
    ] == [(1, 2)]
    assert state() == (3, 0)
    (second,) = admin.consumers.next(stream, "c", ack="none")
    assert (second.message.seq, second.deliveries, second.consumer_seq) == (2, 1, 3)
    assert state() == (2, 1)
    assert [each.message.seq for each in admin.consumers.next(stream, "c")] == [3]
    assert state() == (1, 1)
    # Consumers that need no acknowledgement, or one for several messages.
    admin.consumers.create(stream, durable_name="none")
    assert [each.message.seq for each in admin.consumers.next(stream, "none", 3)] == [1, 2, 3]
    admin.consumers.create(
        stream, durable_name="all", ack_policy="all", filter_subject=f"{stream}.1"
    )
    assert [each.message.seq for each in admin.consumers.next(stream, "all", 3)] == [2, 4]


def test_next_of_what_cannot_be_asked(admin: JetStreamAdmin, stream: str) -> None:
    admin.consumers.create(stream, durable_name="push", deliver_subject="delivered")
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c", max_batch=2)
    admin.consumers.create(
        stream, DEFAULT_CONSUMER, name="g", priority_policy="overflow", priority_groups=["g"]
    )
    for name, message in [
        ("push", "consumer push .* delivers to delivered, and cannot be asked"),
        ("c", "refused a pull request .*Exceeded MaxRequestBatch of 2"),
        ("g", "refused a pull request .*Priority Group"),
    ]:
        with pytest.raises(JetStreamError, match=message):
            admin.consumers.next(stream, name, 3)
    with pytest.raises(PullRefused, match="400 Bad Request - heartbeat value too large"):
        admin.consumers.next(stream, "c", idle_heartbeat=4)
    for arguments, said in [
        ({"ack": "yes"}, 'ack must be one of ack, nak, term, none, not "yes"'),
        ({"count": 0}, "count must be a number from 1 to 1,000, not 0"),
        ({"count": 1001}, "count must be"),
        (
            {"timeout": 0.09},
            r"timeout must be 0 \(do not wait\), or 0.1 to 1,000,000,000 seconds, not 0.09",
        ),
        ({"timeout": -1}, "timeout must be 0"),
        ({"timeout": float("nan")}, "timeout must be 0"),
        ({"timeout": float("inf")}, "timeout must be 0"),
        ({"timeout": 0, "no_wait": False}, "no_wait=False needs a timeout above 0"),
        ({"max_bytes": 0}, "max_bytes must be a size from 1"),
        ({"idle_heartbeat": -1}, "idle_heartbeat must be a duration from 100ms"),
    ]:
        with pytest.raises(OptionError, match=said):
            admin.consumers.next(stream, "c", **arguments)  # type: ignore[arg-type]


def test_next_takes_no_more_bytes_than_it_may(
    admin: JetStreamAdmin, stream: str, publisher: Publisher
) -> None:
    publisher.publish([Message("c.a", b"x" * 1000)] * 3)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    assert [each.message.seq for each in admin.consumers.next(stream, "c", 3, max_bytes=2500)] == [
        1,
        2,
    ]
    with pytest.raises(
        PullRefused, match=r"the next message is larger than max_bytes \(409 Message Size"
    ) as refused:
        admin.consumers.next(stream, "c", max_bytes=999)
    assert refused.value.code == 409
    (third,) = admin.consumers.next(stream, "c", ack="none")
    size = len(third.message.subject) + len(third.reply) + 1000
    admin.consumers.nak(third)
    # The server says nothing when a request ends with its last byte: no heartbeat, no status.
    again = admin.consumers.next(stream, "c", 2, no_wait=False, timeout=3600, max_bytes=size)
    assert [(each.message.seq, each.deliveries) for each in again] == [(3, 2)]


@pytest.mark.parametrize("ends", ["with all", "with its consumer"])
def test_next_waits_for_all(
    ends: str, admin: JetStreamAdmin, stream: str, publisher: Publisher, fill: Fill
) -> None:
    """It also returns the messages so far when no more can come.

    Meanwhile the consumer has no room for another request.
    """
    fill(stream, 2, 2)
    admin.consumers.create(stream, durable_name="c", max_waiting=1)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(admin.consumers.next, stream, "c", 3, no_wait=False, timeout=60)
        wait_until(
            lambda: admin.consumers.load(stream, "c").delivered.consumer_seq == 2, "two have come"
        )
        with pytest.raises(
            PullRefused, match=r"too many requests wait \(409 Exceeded MaxWaiting\)"
        ):
            admin.consumers.next(stream, "c")
        if ends == "with all":
            publisher.publish([Message("c.a")])
        else:
            admin.consumers.delete(stream, "c")
        assert [each.message.seq for each in waiting.result(60)] == [1, 2, 3][
            : 3 if ends == "with all" else 2
        ]


def test_next_returns_what_is_settled(
    denied: Callable[..., dict[str, str]], monkeypatch: Any
) -> None:
    """Nobody gets it again; what is not settled is delivered again."""
    with JetStreamAdmin(**denied("$JS.ACK.S.c.*.2.>", "$JS.ACK.S.d.>")) as admin:
        admin.streams.create("S", subjects="s")
        for name in "cde":
            admin.consumers.create("S", name, DEFAULT_CONSUMER, ack_wait="1h")
        for number in range(3):
            admin.publish("s", b"%d" % number)
        assert [each.message.seq for each in admin.consumers.next("S", "c", 3)] == [1]
        assert admin.consumers.load("S", "c").ack_floor.stream_seq == 1
        with pytest.raises(PermissionDenied):
            admin.consumers.next("S", "d", 3)
        settle = admin.consumers._settle

        def unanswered(message: DeliveredMessage | str, answer: bytes) -> None:
            settle(message, answer)
            if isinstance(message, DeliveredMessage) and message.message.seq == 2:
                raise RequestTimeout("no reply")

        monkeypatch.setattr(admin.consumers, "_settle", unanswered)
        assert [each.message.seq for each in admin.consumers.next("S", "e", 3, ack="term")] == [
            1,
            2,
        ]
        info = admin.consumers.load("S", "e")
        assert (info.ack_floor.stream_seq, info.num_ack_pending) == (2, 1)


@pytest.mark.parametrize("count", [1, 3])
def test_next_asks_again_where_nobody_has_heard(
    count: int, admin: JetStreamAdmin, stream: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers of a cluster hear one after the other who leads a consumer, and answer 503 until
    then.
    """
    fill(stream, 4, 2)
    admin.consumers.create(stream, "c", DEFAULT_CONSUMER)
    publish, unheard = Inbox.publish, 5

    def publish_elsewhere(inbox: Inbox, subject: str, *given: Any) -> None:
        nonlocal unheard
        unheard -= 1
        publish(inbox, subject if unheard < 0 else "nobody.listens", *given)

    monkeypatch.setattr(Inbox, "publish", publish_elsewhere)
    assert [each.message.seq for each in admin.consumers.next(stream, "c", count)] == list(
        range(1, count + 1)
    )
    unheard = 5
    hasty = Consumers(admin._api, times=DeliveryTimes(unheard=3))
    with pytest.raises(ConsumerLost, match="503"):
        hasty.next(stream, "c", count)


def test_next_without_heartbeats() -> None:
    answers: Replies = {
        "CONSUMER.INFO.S.c": consumer_info({"name": "c"}),
        "CONSUMER.MSG.NEXT.S.c": lambda _: None,
    }
    with (
        administered(answers) as (_, admin),
        pytest.raises(RequestTimeout, match=r"no reply within 2\.2 s \(timeout, idle_heartbeat\)"),
    ):
        admin.consumers.next("S", "c", timeout=3600, idle_heartbeat=0.1)


def test_next_of_priority_groups(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    fill(stream, 4, 2)

    def next_of(name: str, **request: Any) -> list[int]:
        return [
            each.message.seq for each in admin.consumers.next(stream, name, group="g", **request)
        ]

    def nothing_of(name: str, **request: Any) -> bool:
        return next_of(name, timeout=0.2, **request) == []

    for policy in ("overflow", "prioritized", "pinned_client"):
        admin.consumers.create(
            stream, policy, DEFAULT_CONSUMER, priority_policy=policy, priority_groups=["g"]
        )
    assert nothing_of("overflow", min_pending=5)
    assert nothing_of("overflow", min_ack_pending=1)
    assert next_of("overflow", min_pending=4, ack="none") == [1]
    assert next_of("overflow", min_ack_pending=1) == [2]
    assert next_of("prioritized", priority=9) == [1]
    with pytest.raises(PullRefused, match="400 Bad Request - Priority must be between 0 and 9"):
        next_of("prioritized", priority=10)
    (pinned,) = admin.consumers.next(stream, "pinned_client", group="g")
    assert pinned.pin_id
    assert nothing_of("pinned_client")
    with pytest.raises(PinMismatch, match="423 Nats-Pin-Id mismatch"):
        next_of("pinned_client", id="other")
    assert next_of("pinned_client", id=pinned.pin_id) == [2]
    for field, policy in (
        ("min_pending", "overflow"),
        ("priority", "prioritized"),
        ("id", "pinned_client"),
    ):
        other = "overflow" if policy != "overflow" else "prioritized"
        with pytest.raises(
            OptionError,
            match=f"{field} is for priority_policy {policy}: consumer {other} of .*{other}",
        ):
            next_of(other, **{field: 1})


# -- acknowledgements --


def test_answers_to_a_message(
    nats_server: NatsServer, admin: JetStreamAdmin, stream: str, fill: Fill
) -> None:
    fill(stream, 2, 2)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    consumers = admin.consumers
    with (
        connect(ConnectionOptions.from_spark({"servers": nats_server.url})).listen(
            [f"$JS.ACK.{stream}.c.>"]
        ) as answers,
        admin.events.watch("terminated", stream=stream, count=1) as terminated,
    ):
        (first,) = consumers.next(stream, "c", ack="none")
        consumers.in_progress(first)
        consumers.nak(first, delay=3600)
        (second,) = consumers.next(stream, "c", ack="none")
        assert second.message.seq == 2
        consumers.nak(second)
        ((again, deliveries),) = (
            (each, each.deliveries) for each in consumers.next(stream, "c", ack="none")
        )
        assert (again.message.seq, deliveries) == (2, 2)
        consumers.term(again.reply, reason="too old")
        consumers.ack(first)
        heard = [answers.hear(10) for _ in range(5)]
        assert [event.reason for event in terminated] == ["too old"]  # type: ignore[union-attr]
    assert [each.data for each in heard if isinstance(each, Heard)] == [
        b"+WPI", b'-NAK {"delay": 3600000000000}', b"-NAK", b"+TERM too old", b"+ACK",
    ]  # fmt: skip
    info = consumers.load(stream, "c")
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 2)
    ack = parse_ack(again.reply)
    assert (ack.stream, ack.consumer, ack.stream_seq, ack.consumer_seq) == (
        stream,
        "c",
        2,
        again.consumer_seq,
    )
    assert (ack.time, ack.pending, ack.deliveries) == (again.message.time, again.pending, 2)


def test_answers_that_cannot_be_given(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    fill(stream, 1, 1)
    admin.consumers.create(stream, durable_name="c")
    (first,) = admin.consumers.next(stream, "c")
    with pytest.raises(
        NoResponders, match=r"1 of stream .* to consumer c: it is gone, or its ack_policy is none"
    ):
        admin.consumers.ack(first)
    with pytest.raises(
        ProtocolError, match=r'"x\.y" is not the reply subject of a message of a JetStream consumer'
    ):
        admin.consumers.ack("x.y")
    with pytest.raises(OptionError, match="delay must be a duration from 0s"):
        admin.consumers.nak(first, delay=-1)


# -- lag --


def test_handover(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    """Where a query begins after a consumer, and what it reads again. Nothing is changed."""
    fill(stream, 12, subjects=2)
    filter_subject = f"{stream}.0"  # the odd sequences
    admin.consumers.create(stream, DEFAULT_CONSUMER, name="c", filter_subject=filter_subject)
    begin = admin.consumers.handover(stream, "c")
    assert (begin.first_sequence, begin.first_message, begin.messages) == (1, 1, 6)
    assert (begin.ack_floor, begin.delivered, begin.read_again, begin.active) == (0, 0, 0, False)
    delivered = admin.consumers.next(stream, "c", 4, ack="none")
    for at in (0, 2):
        admin.consumers.ack(delivered[at])
    before = admin.consumers.load(stream, "c")
    found = admin.consumers.handover(stream, "c")
    # The floor is the sequence before the first message that is not acknowledged.
    assert (found.first_sequence, found.first_message) == (3, 3)
    assert found.first_time == admin.messages.get(stream, 3).time
    assert (found.ack_floor, found.delivered, found.ack_policy) == (2, 7, "explicit")
    assert (found.read_again, found.ack_pending, found.acknowledged) == (3, 2, 1)
    assert (found.not_delivered, found.messages) == (2, 5)
    assert found.options == {
        "stream": stream,
        "startingConsumer": "c",
        "subjects": filter_subject,
    }
    after = admin.consumers.load(stream, "c")
    assert (after.delivered, after.ack_floor) == (before.delivered, before.ack_floor)
    # All is acknowledged: the first message is yet to come.
    for delivery in (delivered[1], delivered[3], *admin.consumers.next(stream, "c", 2, ack="none")):
        admin.consumers.ack(delivery)
    done = admin.consumers.handover(stream, "c")
    assert (done.first_message, done.first_time, done.messages) == (None, None, 0)
    assert done.first_sequence == done.ack_floor + 1
    with pytest.raises(ConsumerNotFound, match=f"look at consumer d of stream {stream}"):
        admin.consumers.handover(stream, "d")


def test_lag(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    fill(stream, 6, 2)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="a")
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="b", filter_subject=f"{stream}.1")
    admin.consumers.create(stream, durable_name="done")
    admin.consumers.create(
        stream,
        DEFAULT_CONSUMER,
        durable_name="last",
        deliver_policy="last_per_subject",
        filter_subject=f"{stream}.>",
    )
    filters = [f"{stream}.1", f"{stream}.0", "c.>"]
    admin.consumers.create(
        stream, DEFAULT_CONSUMER, durable_name="several", filter_subjects=filters
    )
    admin.consumers.next(stream, "a", 2)
    admin.consumers.next(stream, "a", ack="nak")
    admin.consumers.next(stream, "a", ack="none")
    admin.consumers.next(stream, "done", 6)
    found = {each.consumer: each for each in admin.lag(stream)}
    assert list(found) == ["a", "b", "done", "last", "several"]
    a = found["a"]
    assert (a.stream, a.pending, a.ack_pending, a.redelivered, a.total, a.waiting) == (
        stream,
        3,
        1,
        1,
        4,
        0,
    )
    assert a.oldest == admin.messages.get(stream, 3).time
    assert a.age is not None
    assert 0 < a.age < 60 * 10**9
    assert found["b"].oldest == admin.messages.get(stream, 2).time
    assert (found["done"].total, found["done"].oldest, found["done"].age) == (0, None, None)
    assert (found["last"].pending, found["last"].oldest) == (2, None)
    assert found["several"].oldest == admin.messages.get(stream, 1).time
    assert {each.oldest for each in admin.lag(stream, ages=False)} == {None}
    everywhere = [(each.stream, each.consumer) for each in admin.lag()]
    assert [(stream, name) for name in found] == [pair for pair in everywhere if pair[0] == stream]
    assert [(each.consumer, each.oldest) for each in admin.lag(stream, "a")] == [("a", a.oldest)]
    with pytest.raises(OptionError, match="consumer a: name its stream"):
        admin.lag(consumer="a")


def test_lag_of_messages_that_were_given_up(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    """The server's floor of acknowledgements stays where a message was delivered too often; nobody
    waits for it.
    """
    fill(stream, 3, 2)
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c", max_deliver=1)
    admin.consumers.next(stream, "c", ack="nak")
    assert [(each.total, each.oldest) for each in admin.lag(stream)] == [
        (3, admin.messages.get(stream, 1).time)
    ]
    admin.consumers.next(stream, "c")
    assert [(each.total, each.oldest) for each in admin.lag(stream)] == [
        (1, admin.messages.get(stream, 3).time)
    ]
    admin.consumers.next(stream, "c")
    assert [(each.total, each.oldest) for each in admin.lag(stream)] == [(0, None)]


def test_lag_of_streams_that_go_meanwhile(admin: JetStreamAdmin, stream: str) -> None:
    admin.consumers.create(stream, durable_name="c")
    for letter in "AB":
        admin.streams.create(name=f"{stream}{letter}")
        admin.consumers.create(f"{stream}{letter}", durable_name="c")
    lags = admin.lag()
    found = [each.stream for each in itertools.takewhile(lambda each: each.stream != stream, lags)]
    for letter in "AB":
        admin.streams.delete(f"{stream}{letter}")
    assert not {each.stream for each in lags} & {stream, f"{stream}A", f"{stream}B"}
    assert f"{stream}A" not in found
