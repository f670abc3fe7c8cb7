"""Gaps between a query's position and the stream: tests produce each row of the table in
docs/data-loss.md.

A gap lies between the position in the checkpoint and the first message that the stream has.
Every case reads ten messages, lets something happen while no query runs, and asks a new planner, as
a restarted query would have.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from spark_jetstream.errors import DataLossError, RequestTimeout
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.durable import consumer_state
from spark_jetstream.source.durable.consumer_state import ConsumerState
from spark_jetstream.source.durable.consumers import DurableConsumers
from spark_jetstream.source.planner import Planner
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.client import ask
from tests.support.features import for_none
from tests.support.keyed import make_bucket, name_of
from tests.support.planning import driver, planner_after, read, run
from tests.support.progress import SECOND, delete_consumer, make_consumer
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import api, create, fill, wait_until
from tests.support.streams import MakeStream

pytestmark = pytest.mark.usefixtures("no_connection_left")


HOUR = 3600 * SECOND


class Case:
    """A stream, and a query with the filter ``a`` that has read ten messages of it."""

    def __init__(
        self, make: MakeStream, *, filtered: bool = False, durable: bool = False, **config: Any
    ) -> None:
        self.stream = make(storage="memory", allow_direct=True, **{**config, "max_age": 0})
        self.given: dict[str, Any] = {}
        if filtered:
            self.given["subjects"] = f"{self.stream.subject}.a"
        if durable:
            self.given["durable"] = "query"
        elif config.get("retention") == "interest":
            make_consumer(self.stream, "keeper")
        self.running = self.planner()
        start = self.running.initial()
        self.publish("a" * 10)
        *_, (_, self.position) = run(self.running, start)
        assert self.position.streams[self.stream.name].next == 11
        if "max_age" in config:  # not earlier: nothing expires before it is read
            self.stream.update(**config)

    def planner(self, **given: Any) -> Planner:
        """A planner of the query, as it is made when the query starts."""
        return driver(self.stream.url, self.stream.name, **{**self.given, **given})

    def publish(self, tokens: str) -> None:
        """Store one message for each letter, on the subject that it names."""
        self.stream.send(
            *(Message(f"{self.stream.subject}.{token}", b"x" * 100) for token in tokens)
        )

    def purge(self, token: str) -> None:
        self.stream.purge(filter=f"{self.stream.subject}.{token}")

    def consume(self, token: str, published: str) -> None:
        """Let a consumer of another application take all messages of a subject; ``published`` come
        meanwhile.
        """

        async def work(js: JetStreamContext) -> None:
            other = await js.pull_subscribe(
                f"{self.stream.subject}.{token}", "other", self.stream.name
            )
            self.publish(published)
            left = len(published)
            while left:  # the consumer may know only of some yet
                for message in await other.fetch(left):
                    await message.ack_sync(timeout=60)
                    left -= 1

        ask(self.stream.url, work)
        self.wait_for_first(14)

    def wait_for_first(self, sequence: int) -> None:
        """Wait until the stream begins at a sequence."""
        wait_until(
            lambda: self.stream.state()["first_seq"] == sequence,
            f"{self.stream.name} begins at {sequence}",
        )


#: The tokens to publish, and an action after that.
Happening = tuple[str, Callable[[Case], object] | None]

# Messages that no consumer of an interest stream wants: also more of them than the stream keeps.
OTHERS_COME: Happening = ("bbb", None)
OTHERS_PUSH: Happening = ("b" * 30, None)
PUSHED_OUT: Happening = ("a" * 30, None)
SUPERSEDED: Happening = ("aaaa", None)
EXPIRED: Happening = ("aab", lambda case: case.wait_for_first(14))
ALL_PURGED: Happening = ("bbb", lambda case: case.stream.purge())
BEGINNING_PURGED: Happening = ("aaa", lambda case: case.stream.purge(seq=13))
OTHERS_PURGED: Happening = ("bbb", lambda case: case.purge("b"))
OWN_PURGED: Happening = ("aab", lambda case: case.purge("a"))
OTHERS_ACKNOWLEDGED: Happening = ("", lambda case: case.consume("b", "bbb"))
# An interest stream without consumers has no messages.
LAST_CONSUMER_DELETED: Happening = ("aab", lambda case: delete_consumer(case.stream, "keeper"))

LOSS, UNKNOWN, NONE = "loss", "unknown", "none"
FILTER = {"filtered": True}
HELD = {"filtered": True, "durable": True}
INTEREST: dict[str, Any] = {"retention": "interest"}
QUEUE: dict[str, Any] = {"retention": "workqueue"}

ROWS: list[tuple[str, dict[str, Any], dict[str, bool], Happening, str]] = [
    # Without a filter: every message that is gone was to be read.
    ("purged", {}, {}, BEGINNING_PURGED, LOSS),
    ("expired", {"max_age": SECOND}, {}, EXPIRED, LOSS),
    ("pushed out", {"max_msgs": 20}, {}, PUSHED_OUT, LOSS),
    (
        "unfiltered and held, expired",
        {**INTEREST, "max_age": SECOND},
        {"durable": True},
        EXPIRED,
        LOSS,
    ),
    # Newer messages on their subjects took their places.
    ("superseded", {"max_msgs_per_subject": 1}, {}, SUPERSEDED, NONE),
    ("superseded, long age", {"max_msgs_per_subject": 1, "max_age": HOUR}, {}, SUPERSEDED, NONE),
    ("superseded or expired", {"max_msgs_per_subject": 1, "max_age": SECOND}, {}, EXPIRED, LOSS),
    (
        "interest, superseded",
        {**INTEREST, "max_msgs_per_subject": 1},
        {"durable": True},
        SUPERSEDED,
        NONE,
    ),
    (
        "work queue, superseded",
        {**QUEUE, "max_msgs_per_subject": 1},
        {"durable": True},
        SUPERSEDED,
        NONE,
    ),
    (
        "interest, superseded, purge",
        {**INTEREST, "max_msgs_per_subject": 1},
        {"durable": True},
        ALL_PURGED,
        LOSS,
    ),
    (
        "work queue, superseded, purge",
        {**QUEUE, "max_msgs_per_subject": 1},
        {"durable": True},
        ALL_PURGED,
        LOSS,
    ),
    # With a filter, and nothing that holds what matches.
    ("filter, expired", {"max_age": SECOND}, FILTER, EXPIRED, LOSS),
    ("filter, purged", {}, FILTER, ALL_PURGED, LOSS),
    ("interest, not held", INTEREST, FILTER, LAST_CONSUMER_DELETED, LOSS),
    # With a filter, and a consumer that holds what matches.
    ("interest", INTEREST, HELD, OTHERS_COME, NONE),
    ("interest, purge", INTEREST, HELD, OTHERS_PURGED, NONE),
    ("interest, purge of all", INTEREST, HELD, ALL_PURGED, LOSS),
    ("interest, own purge", INTEREST, HELD, OWN_PURGED, LOSS),
    ("interest, acks", INTEREST, HELD, OTHERS_ACKNOWLEDGED, NONE),
    ("interest, age", {**INTEREST, "max_age": HOUR}, HELD, OTHERS_COME, NONE),
    ("interest, expired", {**INTEREST, "max_age": SECOND}, HELD, EXPIRED, LOSS),
    ("interest, few", {**INTEREST, "max_msgs": 20}, HELD, OTHERS_COME, NONE),
    ("interest, many", {**INTEREST, "max_msgs": 20}, HELD, OTHERS_PUSH, UNKNOWN),
    ("interest, full", {**INTEREST, "max_msgs": 20}, HELD, PUSHED_OUT, LOSS),
    ("work queue, acks", QUEUE, HELD, OTHERS_ACKNOWLEDGED, NONE),
    ("work queue, purge", QUEUE, HELD, OTHERS_PURGED, NONE),
    ("work queue, purge of all", QUEUE, HELD, ALL_PURGED, LOSS),
    ("limits, expired", {"max_age": SECOND}, HELD, EXPIRED, LOSS),
]


@pytest.mark.parametrize(
    ("config", "query", "happening", "outcome"),
    [
        # An expiry takes its second.
        pytest.param(
            *row, id=name, marks=pytest.mark.full if EXPIRED in row and name != "expired" else ()
        )
        for name, *row in ROWS
    ],
)
def test_a_gap_is_a_loss_unknown_or_harmless_as_documented(
    stream: MakeStream,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    query: dict[str, bool],
    happening: Happening,
    outcome: str,
) -> None:
    case = Case(stream, **query, **config)
    published, happens = happening
    case.publish(published)
    if happens is not None:
        happens(case)
    # The server may remove messages after it has answered.
    wait_until(lambda: case.stream.state()["first_seq"] > 11, "a gap")
    caplog.clear()
    if outcome == LOSS:
        with pytest.raises(DataLossError, match=f"stream {case.stream.name}"):
            case.planner().latest(case.position, limited=True)
        case.planner(failOnDataLoss="false").latest(case.position, limited=True)
        return
    planner = case.planner()
    planner.latest(case.position, limited=True)
    planner.latest(case.position, limited=True)
    warnings = [record.message for record in caplog.records if "cannot be known" in record.message]
    assert len(warnings) == (1 if outcome == UNKNOWN else 0)
    # Reading goes on with whatever comes next.
    case.publish("ba")
    assert planner_after(case.planner(), case.position)[-1:] == [case.stream.state()["last_seq"]]


def test_a_bucket_reports_a_loss_only_when_all_revisions_are_gone(stream: MakeStream) -> None:
    """A bucket drops old revisions by design, but without a TTL never all of them."""
    bucket = make_bucket(stream, max_msgs_per_subject=1)
    planner = functools.partial(driver, bucket.url, bucket=name_of(bucket))
    revisions = [Message(f"$KV.{name_of(bucket)}.key", b"x")] * 20
    begin = planner().initial()
    bucket.send(*revisions)
    *_, (_, position) = run(planner(), begin)
    bucket.send(*revisions)
    planner().latest(position, limited=True)
    bucket.purge()
    with pytest.raises(
        DataLossError, match=f"messages 21 to 40 of stream {bucket.name} went before being read"
    ):
        planner().latest(position, limited=True)


def test_a_running_query_knows_what_did_not_match(stream: MakeStream) -> None:
    """Messages that it has seen not to match may go, also those read together with the last batch
    that had rows.
    """
    case = Case(stream, filtered=True, max_msgs=20)
    case.publish("abbbbbbbbbb")
    (_, position), *_ = run(case.running, case.position)
    assert position.streams[case.stream.name].next == 12
    case.publish("b" * 10)
    assert case.stream.state()["first_seq"] == 12
    case.stream.purge(seq=20)
    case.running.latest(position, limited=True)
    with pytest.raises(DataLossError, match="messages 12 to 19"):
        case.planner().latest(position, limited=True)


@pytest.mark.parametrize("given", [{}, {"maxMessagesPerTrigger": 100, "minPartitions": 3}], ids=str)
def test_a_stream_that_goes_faster_than_it_is_read(
    stream: MakeStream, given: dict[str, Any]
) -> None:
    """Each check finds another gap.

    A query that accepts them reads what follows, of this stream and of others.
    """
    s, other = stream(max_msgs=10), stream()
    planner = driver(s.url, f"{s.name},{other.name}", failOnDataLoss="false", **given)
    at = planner.initial()
    assert planner.latest(at, limited=True) == at
    for number in range(3):
        s.fill(25)
        other.fill(2)
        end = planner.latest(at, limited=True)
        parts = planner.ranges(at, end)
        last = 25 * (number + 1)
        assert read(s.url, parts) == {
            s.name: list(range(last - 9, last + 1)),
            other.name: [2 * number + 1, 2 * number + 2],
        }
        # Message ids name the task: when the batch runs again, each has its messages.
        again = driver(s.url, f"{s.name},{other.name}", failOnDataLoss="false").ranges(at, end)
        assert [(part.first, part.end) for part in again] == [
            (part.first, part.end) for part in parts
        ]
        at = end


def test_a_running_query_knows_that_also_of_the_next_batch_with_rows(stream: MakeStream) -> None:
    case = Case(stream, filtered=True)
    case.publish("b" * 10)
    assert case.running.latest(case.position, limited=True) == case.position
    case.stream.purge(seq=16)
    case.publish("ba")
    end = case.running.latest(case.position, limited=True)
    assert read(case.stream.url, case.running.ranges(case.position, end)) == {
        case.stream.name: [22]
    }
    # It knows no more than that.
    case.publish("b")
    case.stream.purge(seq=24)
    with pytest.raises(DataLossError, match="messages 11 to 23 of"):
        case.running.ranges(case.position, end)


def test_a_run_continues_behind_a_gap_that_it_has_warned_of(
    stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns once, also if the stream is empty.

    A purge that finds nothing makes the gap no loss.
    """
    config: dict[str, Any] = {**QUEUE, "max_msgs_per_subject": 5, "allow_msg_ttl": True}
    case = Case(stream, durable=True, **config)
    case.publish("aaa")
    case.stream.remove(11, 12, 13)
    assert case.stream.state()["messages"] == 0
    caplog.clear()
    end = case.running.latest(case.position, limited=True)
    assert end.streams[case.stream.name].next == 14
    case.stream.purge()
    assert read(case.stream.url, case.running.ranges(case.position, end)) == {case.stream.name: []}
    doubts = [message for message in caplog.messages if "messages 11 to 13 of stream" in message]
    assert len(doubts) == 1
    assert "cannot be known; reading goes on" in doubts[0]
    # Another run has not warned of it, and cannot tell what the purge has removed.
    with pytest.raises(DataLossError, match="messages 11 to 13 of stream"):
        case.planner().ranges(case.position, end)


def test_a_task_reports_a_message_that_was_deleted_since_it_was_counted(stream: MakeStream) -> None:
    """A gap that may be no loss changes no count. The next run counts what is left."""
    case = Case(stream, **HELD, **INTEREST, allow_msg_ttl=True)
    case.publish("a")
    end = case.running.latest(case.position, limited=True)
    case.stream.remove(11)
    case.publish("b")
    assert case.stream.state()["first_seq"] == 13

    tasks = case.running.ranges(case.position, end)
    removed = r"1 of 1 messages .* were removed .* after this read was planned"
    with pytest.raises(DataLossError, match=removed):
        read(case.stream.url, tasks)
    tasks = case.planner().ranges(case.position, end)
    assert read(case.stream.url, tasks) == {case.stream.name: []}


def test_a_gap_of_one_stream_changes_no_count(stream: MakeStream) -> None:
    """Neither that of the messages behind it, nor those of the other streams of the batch."""
    gapped, other = stream(max_msgs=10), stream()
    names = f"{gapped.name},{other.name}"
    start = driver(gapped.url, names).initial()
    gapped.fill(15)
    other.fill(10)
    planner = driver(gapped.url, names, failOnDataLoss="false")
    end = planner.latest(start, limited=True)
    gapped.remove(9)
    other.remove(7)
    for part in planner.ranges(start, end):
        removed = f"1 of 10 messages of stream {part.stream}.* after this read was planned"
        with pytest.raises(DataLossError, match=removed):
            read(gapped.url, [part])


def test_a_stream_that_is_no_longer_read_changes_no_count(stream: MakeStream) -> None:
    kept, dropped = stream(), stream()
    start = driver(kept.url, f"{kept.name},{dropped.name}").initial()
    kept.fill(10)
    planner = driver(kept.url, kept.name)
    end = planner.latest(start, limited=True)
    kept.remove(7)
    [part] = planner.ranges(start, end)
    with pytest.raises(DataLossError, match=r"1 of 10 messages .* after this read was planned"):
        read(kept.url, [part])


def test_a_query_that_begins_anew_behind_its_first_batch(stream: MakeStream) -> None:
    """Spark plans that batch again after a crash, from where the query would begin now.

    It goes on at the end of the batch, so that the messages from there on must be held.
    """
    s = stream(retention="interest", allow_direct=True)
    make_consumer(s, "other", filter_subject=f"{s.subject}.b")  # with its message there is no gap
    given: dict[str, Any] = {
        "durable": "query",
        "subjects": f"{s.subject}.a",
        "maxMessagesPerTrigger": 2,
    }
    first = driver(s.url, s.name, startingOffsets="earliest", **given)
    start = first.initial()
    s.fill_in_turn(3, "aab")
    s.fill(7)
    end = first.latest(start, limited=True)
    assert end.streams[s.name].next == 3

    planner = driver(s.url, s.name, startingOffsets="latest", **given)
    later = planner.initial()
    assert later.streams[s.name].next == 11
    assert read(s.url, planner.ranges(later, end)) == {s.name: []}
    assert planner_after(planner, end) == list(range(4, 11))


def test_removing_a_message_before_a_query_begins_anew_is_no_loss(
    stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer has kept matching messages since the end of the batch, and shows that none was
    purged.
    """
    s = stream(retention="interest", allow_direct=True)
    given: dict[str, Any] = {
        "durable": "query",
        "subjects": f"{s.subject}.a",
        "startingOffsets": "earliest",
    }
    first = driver(s.url, s.name, maxMessagesPerTrigger=1, **given)
    start = first.initial()
    s.fill_in_turn(3, "aba")
    end = first.latest(start, limited=True)
    s.remove(1)

    planner = driver(s.url, s.name, **given)
    later = planner.initial()
    assert (end.streams[s.name].next, later.streams[s.name].next) == (2, 3)
    assert read(s.url, planner.ranges(later, end)) == {s.name: []}
    assert planner_after(planner, end) == [3]
    assert not caplog.records


@pytest.mark.parametrize("available_now", [False, True])
def test_the_position_of_a_quiet_filter_keeps_up(stream: MakeStream, available_now: bool) -> None:
    """Also while nothing is stored, and in runs that end: a later run could not tell what goes from
    a loss.
    """
    case = Case(stream, filtered=True, max_age=HOUR)
    case.publish("b" * 10)
    assert case.running.latest(case.position, limited=True) == case.position
    case.stream.purge(seq=11)  # as if they had expired
    planner = case.planner() if available_now else case.running
    if available_now:
        planner.prepare_available_now()
    [(_, moved)] = run(planner, case.position)
    assert moved.streams[case.stream.name].next == 21
    assert read(case.stream.url, planner.ranges(case.position, moved)) == {case.stream.name: []}
    case.stream.purge()
    assert case.planner().latest(moved, limited=True) == moved


def test_a_run_that_ends_does_not_pass_over_later_matching_messages(
    stream: MakeStream,
) -> None:
    case = Case(stream, filtered=True, max_age=HOUR)
    case.publish("b" * 10)
    case.stream.purge(seq=11)
    planner = case.planner()
    planner.prepare_available_now()
    case.publish("ab")
    assert list(run(planner, case.position)) == []
    assert planner_after(case.planner(), case.position) == [21]


def test_schedules_that_were_published_are_not_lost(stream: MakeStream) -> None:
    """They go before they are planned, and between planning and reading, where a task could count
    on them.
    """
    s = stream(allow_msg_schedules=True)
    start = driver(s.url, s.name).initial()

    def schedule(number: int, text: str) -> None:
        headers = [("Nats-Schedule", text), ("Nats-Schedule-Target", f"{s.subject}.sent.{number}")]
        s.publisher.publish([Message(f"{s.subject}.waiting.{number}", b"x", headers)])

    schedule(1, "@at 2020-01-01T00:00:00Z")
    wait_until(
        lambda: s.state()["first_seq"] == 2, "the first schedule is published, at sequence 2"
    )
    schedule(2, "@at 2100-01-01T00:00:00Z")
    planner = driver(s.url, s.name)
    end = planner.latest(start, limited=True)
    parts = planner.ranges(start, end)
    schedule(2, "@at 2020-01-01T00:00:00Z")  # takes the place of the other one, and is published
    wait_until(
        lambda: s.state()["last_seq"] == 5, "the second schedule is published, at sequence 5"
    )
    s.wait_for(2)
    assert read(s.url, parts) == {s.name: [2]}
    assert read(s.url, planner.ranges(end, planner.latest(end, limited=True))) == {s.name: [5]}


@pytest.mark.parametrize("filtered", [True, False])
def test_messages_purged_before_they_are_counted_are_a_loss(
    stream: MakeStream, filtered: bool
) -> None:
    """Planning asks for the state of the stream and then counts: messages purged in between are in
    neither.
    """
    case = Case(stream, filtered=filtered)
    case.publish("a" * 20)
    (start, end), *_ = run(case.planner(), case.position)
    case.stream.publisher.api(
        f"STREAM.MSG.DELETE.{case.stream.name}", {"seq": 25}
    )  # a gap, which makes it count
    with WireProxy(case.stream.url) as proxy, ThreadPoolExecutor(1) as pool:
        planner = driver(proxy.url, case.stream.name, **case.given)
        counting = proxy.stall_at(b"CONSUMER.CREATE")
        planned = pool.submit(planner.ranges, start, end)
        assert counting.wait(60)
        case.stream.purge(seq=21)
        proxy.unstall()
        with pytest.raises(DataLossError, match="messages 11 to 20 of stream"):
            planned.result(60)


@pytest.mark.parametrize(
    ("retention", "can_move"), [("interest", True), ("workqueue", True), ("workqueue", False)]
)
def test_a_running_query_notices_that_its_messages_are_purged(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch, retention: str, can_move: bool
) -> None:
    if not can_move:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    case = Case(stream, filtered=True, durable=True, retention=retention)
    case.publish("aab")
    (_, position), *_ = run(case.running, case.position)
    case.publish("ba")
    assert case.running.latest(position, limited=True) != position
    case.purge("b")
    assert case.running.latest(position, limited=True) != position
    case.stream.purge()
    with pytest.raises(DataLossError, match="messages 13 to 15 of stream"):
        case.running.latest(position, limited=True)


@pytest.mark.parametrize("following", ["bbb", "bbba"])
@pytest.mark.parametrize("available_now", [True, False])
def test_unmatched_messages_purged_after_a_commit_are_no_loss(
    stream: MakeStream, following: str, available_now: bool
) -> None:
    """The purge of a commit moves the consumer of a work queue past messages that do not match."""
    case = Case(stream, filtered=True, durable=True, retention="workqueue")
    case.publish("aa")
    planner = case.planner()
    if available_now:
        planner.prepare_available_now()
    ((_, position),) = run(planner, case.position, batches=1)
    case.publish(following)
    planned = planner.latest(position, limited=True)
    assert (planned == position) == (available_now or following == "bbb")
    wait_until(lambda: case.stream.state()["first_seq"] == 13, "the purge of the commit")
    case.purge("b")
    assert case.stream.state()["first_seq"] == 16
    assert planner_after(case.planner(), position) == [16][: following.count("a")]


def test_a_purge_without_an_answer_is_its_own(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge of a commit was carried out, and moved the consumer; the second attempt finds
    nothing to purge.
    """
    case = Case(stream, filtered=True, durable=True, retention="workqueue")
    case.publish("aa")
    planner = case.planner()
    ((_, position),) = run(planner, case.position, batches=1)
    case.publish("bba")
    purge = DurableConsumers.purge
    carried_out = threading.Event()

    def unanswered(consumers: DurableConsumers, state: StreamSummary, end: int) -> None:
        monkeypatch.setattr(DurableConsumers, "purge", purge)
        purge(consumers, state, end)
        carried_out.set()
        raise RequestTimeout("no reply")

    monkeypatch.setattr(DurableConsumers, "purge", unanswered)
    end = planner.latest(position, limited=True)
    # A commit that takes longer than a moment goes on in a thread of its own.
    assert carried_out.wait(60)
    case.purge("b")
    assert case.stream.state()["first_seq"] == 15
    assert planner.latest(position, limited=True) == end


def test_a_purge_that_the_leader_of_the_consumer_carries_out_later(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster it may be another server than the leader of the stream, which has replied."""
    case = Case(stream, filtered=True, durable=True, retention="workqueue")
    case.publish("aa")
    planner = case.planner()
    ((_, position),) = run(planner, case.position, batches=1)
    case.publish("bba")
    purge, info, state = DurableConsumers.purge, DurableConsumers.info, DurableConsumers.stream
    late = list[Callable[[], None]]()

    def replied(consumers: DurableConsumers, state: StreamSummary, end: int) -> None:
        late.append(partial(purge, consumers, state, end))

    def looked(consumers: DurableConsumers, name: str, consumer: str) -> ConsumerState | None:
        found = info(consumers, name, consumer)
        while late:
            late.pop()()
        return found

    def clustered(consumers: DurableConsumers, name: str) -> StreamSummary:
        return replace(state(consumers, name), clustered=True)

    monkeypatch.setattr(DurableConsumers, "purge", replied)
    monkeypatch.setattr(DurableConsumers, "info", looked)
    monkeypatch.setattr(DurableConsumers, "stream", clustered)

    def is_purged() -> bool:
        planner.latest(position, limited=True)
        return bool(case.stream.state()["first_seq"] == 13)

    wait_until(is_purged, "the purge of the commit")
    case.purge("b")
    for _ in range(3):
        assert planner.latest(position, limited=True) != position
    assert planner_after(case.planner(), position) == [15]


def test_other_traffic_makes_no_batches_on_an_interest_stream(stream: MakeStream) -> None:
    case = Case(stream, filtered=True, durable=True, retention="interest")
    for _ in range(3):
        case.publish("bbb")
        assert case.running.latest(case.position, limited=True) == case.position


# A store that is older than the checkpoint


def keep(server: NatsServer, store: Path, kept: Path) -> None:
    """Copy what a server has stored, while it is down."""
    server.stop()
    shutil.copytree(store, kept)
    server.start()


def put_back(server: NatsServer, store: Path, kept: Path) -> None:
    """Let a server go on with what `keep` has copied."""
    server.stop()
    shutil.rmtree(store)
    shutil.copytree(kept, store)
    server.start()


#: Messages stored in a stream that had six messages, after ten were read, by the tokens of their
#: subjects. A message of A is at `a` and expires, and one of D is at `a` and deleted.
TAILS = ["aaaaaaaa", "aaabaaaa", "bbbbbbbb", "aaaDaaaa", "aaaAaaaa", "a"]


def test_a_store_that_is_older_than_the_checkpoint(tmp_path: Path) -> None:
    """The end of each stream was lost, and its sequences belong to other messages: whatever is at
    the position now.
    """
    store, kept = tmp_path / "store", tmp_path / "kept"
    tails = {f"T{number}": tail for number, tail in enumerate(TAILS)}
    queries = list(itertools.product((True, False), ("consumer", "direct")))

    def planner(name: str, filtered: bool, read_with: str, **given: Any) -> Planner:
        if filtered:
            given["subjects"] = f"{name}.a"
        return driver(server.url, name, readWith=read_with, **given)

    with NatsServer(store_dir=store) as server:
        for name in tails:
            create(server.url, name, storage="file", allow_msg_ttl=True, allow_direct=True)
            fill(server.url, name, 6)
        keep(server, store, kept)
        running, ends = {}, {}
        for name in tails:
            fill(server.url, name, 4)
            for query in queries:
                running[name, query] = planner(name, *query)
                [(_, ends[name, query])] = run(running[name, query])
                assert ends[name, query].streams[name].next == 11
        put_back(server, store, kept)
        with Publisher(server.url) as publisher:
            for name, tail in tails.items():
                for token in tail:
                    expires = [("Nats-TTL", "1s")] if token == "A" else None
                    [sequence] = publisher.publish(
                        [Message(f"{name}.{'b' if token == 'b' else 'a'}", b"x", expires)]
                    )
                    if token == "D":
                        publisher.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
            remaining = [6 + tail.count("a") + tail.count("b") for tail in TAILS]
            wait_until(
                lambda: (
                    [publisher.api(f"STREAM.INFO.{name}")["state"]["messages"] for name in tails]
                    == remaining
                ),
                "what is to be left",
            )
        for query, (name, tail) in itertools.product(queries, tails.items()):
            expected = [
                at for at, token in enumerate(tail, start=7) if token in ("a" if query[0] else "ab")
            ]
            end = ends[name, query]
            shorter = tail == "a"
            reason = (
                "read up to sequence 10, and now ends at 7"
                if shorter
                else "gave its sequences to other messages"
            )
            # Both the planner that saw the messages and one that starts anew notice.
            for noticing in (running[name, query], planner(name, *query)):
                with pytest.raises(
                    DataLossError, match=f"stream {name} lost its tail.*{reason}.* at sequence 7"
                ):
                    noticing.latest(end, limited=True)
            going_on = planner(name, *query, failOnDataLoss="false")
            [noticed] = run(going_on, end, batches=1)
            # The batch that notices it reads nothing of the stream, whoever plans it.
            assert (
                going_on.ranges(*noticed)
                == planner(name, *query, failOnDataLoss="false").ranges(*noticed)
                == []
            )
            assert planner_after(going_on, noticed[1]) == expected


@pytest.mark.parametrize("stored", [5, 100])
def test_a_batch_that_was_planned_before_the_tail_was_lost(tmp_path: Path, stored: int) -> None:
    """It is planned again and reads nothing; what is stored since comes with later batches, once.

    The server purges an interest stream when consumers that begin past its end are deleted
    (`interest_streams.PAST_THE_END`).
    """
    store, kept = tmp_path / "store", tmp_path / "kept"
    given: dict[str, Any] = {"durable": "spark", "minPartitions": 3}
    with NatsServer(store_dir=store) as server, WireProxy(server.url) as proxy:
        create(server.url, "S", storage="file", retention="interest")
        before = driver(server.url, **given)
        begin = before.initial()
        fill(server.url, "S", 10)
        [(_, read)] = run(before, begin)
        assert before.latest(read, limited=True) == read  # which commits it
        keep(server, store, kept)
        fill(server.url, "S", 20)
        [(_, lost)] = run(before, read)
        fill(server.url, "S", 6)
        planned = before.latest(lost, limited=True)
        put_back(server, store, kept)
        fill(server.url, "S", stored)
        again = driver(proxy.url, failOnDataLoss="false", **given)
        tasks = again.ranges(lost, planned)
        assert [task.width for task in tasks] == [0, 0, 0]
        assert planner_after(again, planned) == list(range(11, 11 + stored))
        starts = map(int, re.findall(rb'"opt_start_seq": *(\d+)', proxy.client_bytes))
        assert max(starts) <= 11 + stored


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_commit_of_a_position_beyond_a_lost_tail(
    tmp_path: Path, retention: str, restarted: bool
) -> None:
    """Spark commits the end of the last batch when it has the next one: what is stored since is not
    removed with it.
    """
    store, kept = tmp_path / "store", tmp_path / "kept"
    with NatsServer(store_dir=store) as server:
        create(server.url, "S", storage="file", retention=retention, allow_direct=True)
        before = driver(server.url, durable="spark", failOnDataLoss=str(restarted).lower())
        begin = before.initial()
        fill(server.url, "S", 10)
        keep(server, store, kept)
        fill(server.url, "S", 10)
        [(_, end)] = run(before, begin, batches=1)
        put_back(server, store, kept)
        fill(server.url, "S", 15)
        going_on = before
        if restarted:
            with pytest.raises(
                DataLossError,
                match="stream S lost its tail and gave its sequences to other messages",
            ):
                before.latest(end, limited=True)
            going_on = driver(server.url, durable="spark", failOnDataLoss="false")
        noticed = going_on.latest(end, limited=True)
        going_on.commit(end)
        going_on.progress.settle()
        assert noticed.streams["S"].next == 11
        assert api(server.url, "STREAM.INFO.S")["state"]["messages"] == 15
        assert planner_after(going_on, noticed) == list(range(11, 26))
        # Later positions are committed as before.
        last = going_on.latest(noticed, limited=True)
        going_on.commit(noticed)
        assert going_on.latest(last, limited=True) == last
        # Readers, who have another connection, may hold messages for a moment.
        wait_until(
            lambda: api(server.url, "STREAM.INFO.S")["state"]["messages"] == 0,
            "the end of all messages",
        )


def test_a_store_that_is_replaced_while_the_query_is_connected(tmp_path: Path) -> None:
    """Its connection goes to another server, and the stream soon has more messages than were read.

    No time passes.
    """
    ways: dict[str, dict[str, Any]] = {
        "consumer": {"readWith": "consumer"},
        "direct": {"readWith": "direct"},
        "auto": {},
        "filtered": {"subjects": "S.a"},
    }
    kept = tmp_path / "kept"
    with NatsCluster(store_dir=tmp_path / "stores") as servers:
        create(servers.url, "S", storage="file", allow_direct=True)
        servers.wait_ready()
        holder = servers.servers[servers.leader_of("S")]
        other = next(server for server in servers.servers if server is not holder).url
        store = holder.store_dir / "jetstream" / "$G" / "streams" / "S"
        fill(other, "S", 50)
        keep(holder, store, kept)
        servers.wait_ready()
        running = {way: driver(other, clock=lambda: 0.0, **given) for way, given in ways.items()}
        ends = {way: [end for _, end in run(planner)][-1] for way, planner in running.items()}
        fill(other, "S", 50)
        for way, planner in running.items():
            [batch] = run(planner, ends[way])
            planner.ranges(*batch)
            ends[way] = batch[1]
            assert ends[way].streams["S"].next == 101
        put_back(holder, store, kept)
        servers.wait_ready()
        assert api(other, "STREAM.INFO.S")["state"]["last_seq"] == 50
        fill(other, "S", 100)
        for way, planner in running.items():
            with pytest.raises(
                DataLossError,
                match="stream S lost its tail and gave its sequences to other messages",
            ):
                planner.latest(ends[way], limited=True)
            going_on = driver(other, failOnDataLoss="false", **ways[way])
            assert planner_after(going_on, ends[way]) == list(range(51, 151))


@pytest.mark.parametrize("read_with", ["consumer", "direct"])
@pytest.mark.parametrize("replaced", [True, False])
def test_the_last_message_read_may_go(stream: MakeStream, read_with: str, replaced: bool) -> None:
    """It is no sign of a lost tail that the last message read was deleted, or replaced by a newer
    one.
    """
    case = Case(stream, filtered=True, max_msgs_per_subject=1 if replaced else -1)
    if not replaced:
        case.stream.remove(10)
    case.publish("bab")
    assert planner_after(case.planner(readWith=read_with), case.position) == [12]
