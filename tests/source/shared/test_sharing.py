"""A shared consumer on a real server: rows, limits, acknowledgements, and consumers and streams that
were created again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import OptionError, RequestTimeout
from spark_jetstream.protocol.columns import Delivered
from spark_jetstream.protocol.fitness import ConsumerFault
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.shared import rows
from spark_jetstream.source.shared.consumer import ConsumerLook
from spark_jetstream.source.shared.keeping import Keeping
from spark_jetstream.source.shared.planner import SharedPlanner
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.planning import driver
from tests.support.publish import Message, Publisher, Tap
from tests.support.reading import connecting, wait_until
from tests.support.sharing import (
    HOUR,
    POOL,
    Pool,
    SharedQuery,
    sequences_of,
    table_of,
)
from tests.support.streams import MakeStream, Stream


@pytest.fixture
def pool(stream: MakeStream, admin: JetStreamAdmin) -> Pool:
    return Pool(stream, admin)


@pytest.fixture
def query(pool: Pool) -> Iterator[SharedQuery]:
    """A query of batches of twenty messages."""
    query = SharedQuery(pool)
    yield query
    query.kill()


def restarted(query: SharedQuery) -> SharedPlanner:
    """The planner of the query's next run."""
    query.kill()
    query.start()
    return query.planner


def last_batch(query: SharedQuery) -> list[int]:
    """The rows of the query's last batch, as its planner plans them now."""
    ends = query.offset(query.last - 1), query.offset(query.last)
    return sequences_of(query.planner.ranges(*ends))


def reserved(planner: SharedPlanner, start: Offset) -> Offset:
    """The end of a batch of messages that wait: a busy server may bring none in time."""
    ends = [start]

    def has_messages() -> bool:
        ends.append(planner.latest(start, limited=True))
        return ends[-1] != start

    wait_until(has_messages, "a batch")
    return ends[-1]


# Rows


def test_rows_have_all_columns_also_when_they_come_again(pool: Pool, query: SharedQuery) -> None:
    pool.stream.send(
        Message(f"{pool.stream.subject}.a", b"one", [("K", "1"), ("K", "2")]),
        Message(f"{pool.stream.subject}.b", b"\x00\xff"),
        Message(f"{pool.stream.subject}.a", b"", [("Empty", "")]),
    )
    query.run_batch()
    ends = query.offset(-1), query.offset(0)
    fetched = table_of(query.planner.ranges(*ends))
    again = table_of(restarted(query).ranges(*ends))
    assert again.equals(fetched)
    assert fetched.column("data").to_pylist() == [b"one", b"\x00\xff", b""]
    assert fetched.column("subject").to_pylist()[:2] == [
        f"{pool.stream.subject}.a",
        f"{pool.stream.subject}.b",
    ]
    assert fetched.column("headers").to_pylist() == [
        [("K", ["1", "2"])],
        None,
        [("Empty", [""])],
    ]
    expected = [row.micros for row in pool.stream.rows()]
    assert [int(t.timestamp() * 1e6 + 0.5) for t in fetched.column("timestamp").to_pylist()] == (
        expected
    )


def test_redelivered_messages_come_first_and_rows_are_in_the_order_of_the_stream(
    pool: Pool, query: SharedQuery
) -> None:
    pool.stream.fill(6)
    pool.lapse(reversed(pool.take(4)))
    query.run_batch()
    assert query.plain == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"minPartitions": 3}, [3, 3, 4]),
        ({"maxMessagesPerPartition": 4}, [3, 3, 4]),
        ({"minPartitions": 20}, [1] * 10),
    ],
)
def test_parts_share_the_rows_evenly(pool: Pool, options: dict[str, Any], sizes: list[int]) -> None:
    pool.stream.fill(10)
    with contextlib.closing(pool.planner(**options)) as planner:
        start = planner.initial()
        parts = planner.ranges(start, reserved(planner, start))
    assert [part.width for part in parts] == sizes
    assert sequences_of(parts) == list(range(1, 11))


def test_a_part_is_not_too_large_for_a_task(
    pool: Pool, query: SharedQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not send a task beyond 128 MiB to an executor."""
    monkeypatch.setattr(rows, "MOST_BYTES", 50_000)
    pool.stream.fill(10, size=1)
    pool.stream.fill(5, size=20_000)
    pool.stream.fill(1, size=100_000)
    query.run_batch()
    parts = query.planner.ranges(query.offset(-1), query.offset(0))
    assert sequences_of(parts) == list(range(1, 17))
    assert all(len(part.content) <= 50_000 for part in parts if part.width > 1)
    assert [part.width for part in parts] == [8, 4, 2, 1, 1]


# Limits


def sizes_of_batches(pool: Pool, **options: object) -> list[int]:
    """How many messages each batch has until the queue is empty."""
    sizes = []
    with contextlib.closing(pool.planner(**options)) as planner:
        start = planner.initial()
        while pool.info()["num_pending"]:
            start = reserved(planner, start)
            sizes.append(len(start.held[pool.name].sequences))
        planner.commit(start)
    assert pool.left == []
    return sizes


def test_messages_of_a_batch(pool: Pool) -> None:
    pool.stream.fill(25)
    assert sizes_of_batches(pool, maxMessagesPerTrigger=10, fetchBatch=4) == [10, 10, 5]


def test_bytes_of_a_batch(pool: Pool) -> None:
    """A message that is larger than all bytes of a batch comes alone."""
    pool.stream.fill(10, size=10_000)
    pool.stream.fill(1, size=200_000)
    pool.stream.fill(3, size=10_000)
    # Each message takes about a hundred bytes more, for its subjects.
    sizes = sizes_of_batches(pool, maxBytesPerTrigger="41k", fetchMaxBytes="64k")
    assert sizes == [4, 4, 2, 1, 3]


def test_a_full_consumer_is_no_error(stream: MakeStream, admin: JetStreamAdmin) -> None:
    pool = Pool(stream, admin, max_ack_pending=5)
    pool.stream.fill(8)
    given = pool.take(5)
    with contextlib.closing(pool.planner()) as planner:
        start = planner.initial()
        assert planner.latest(start, limited=True) == start
        pool.acknowledge(given)
        end = reserved(planner, start)
    assert end.held[pool.name].sequences == (6, 7, 8)


def test_available_now_ends_with_the_messages_of_its_begin(pool: Pool) -> None:
    pool.stream.fill(30)
    with contextlib.closing(pool.planner(maxMessagesPerTrigger=20)) as planner:
        planner.prepare_available_now()
        pool.stream.fill(30)
        first = reserved(planner, planner.initial())
        second = reserved(planner, first)
        assert planner.latest(second, limited=False) == second
    taken = [end.held[pool.name].sequences for end in (first, second)]
    assert taken == [tuple(range(1, 21)), tuple(range(21, 31))]
    assert pool.left == list(range(31, 61))


def test_available_now_does_not_end_while_messages_wait(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server may bring none in time."""
    pool.stream.fill(5)
    with contextlib.closing(pool.planner()) as planner:
        planner.prepare_available_now()
        late: list[int] = []

        def brings_none(most: int) -> tuple[list[Delivered], float]:
            late.append(most)
            if len(late) == 2:
                monkeypatch.undo()
            return [], 0.0

        monkeypatch.setattr(planner._consumer, "take", brings_none)
        end = planner.latest(planner.initial(), limited=True)
    assert end.held[pool.name].sequences == (1, 2, 3, 4, 5)


def test_available_now_ends_although_a_full_consumer_has_messages(
    stream: MakeStream, admin: JetStreamAdmin
) -> None:
    pool = Pool(stream, admin, max_ack_pending=5)
    pool.stream.fill(8)
    pool.take(5)
    with contextlib.closing(pool.planner()) as planner:
        planner.prepare_available_now()
        start = planner.initial()
        assert planner.latest(start, limited=True) == start


# What is acknowledged, and when


def test_a_batch_stays_in_the_queue_until_it_is_committed(pool: Pool, query: SharedQuery) -> None:
    pool.stream.fill(30)
    query.run_batch()
    assert pool.left == list(range(1, 31))
    query.planner.commit(query.offset(0))
    assert pool.left == list(range(21, 31))
    query.run_batch()
    assert query.plain == list(range(1, 31))


def test_an_idle_query_acknowledges_its_last_batch(pool: Pool, query: SharedQuery) -> None:
    pool.stream.fill(5)
    query.run_batch()
    assert not query.trigger()
    assert pool.left == []
    # The offset stays the same, and so does its text.
    assert (
        query.planner.latest(query.offset(0), limited=True).to_json() == query.offset(0).to_json()
    )


def test_a_reservation_is_returned_again_until_its_batch_has_run(pool: Pool) -> None:
    pool.stream.fill(30)
    with contextlib.closing(pool.planner(maxMessagesPerTrigger=20)) as planner:
        start = planner.initial()
        end = reserved(planner, start)
        assert planner.latest(start, limited=True).to_json() == end.to_json()
    assert pool.take(100) == list(range(21, 31))


def test_others_may_acknowledge_the_messages_of_a_running_batch(
    pool: Pool, query: SharedQuery
) -> None:
    """The rows were fetched before: the batch has them, and nothing fails."""
    pool.stream.fill(5)
    query.run_batch()
    pool.acknowledge([2, 3])
    assert last_batch(query) == [1, 2, 3, 4, 5]
    query.planner.commit(query.offset(0))
    assert pool.left == []


def test_a_batch_that_comes_again_has_the_rest_of_its_messages_and_no_other(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    pool.stream.fill(50)
    query.run_batch()
    restarted(query)
    pool.acknowledge([1, 7, 20])
    assert last_batch(query) == [n for n in range(1, 21) if n not in (1, 7, 20)]
    assert (
        f"3 of 20 messages of a micro-batch are no longer in stream {pool.name}: other clients of "
        f"consumer {POOL} have acknowledged them" in caplog.text
    )
    query.planner.commit(query.offset(0))
    assert pool.left == list(range(21, 51))


# Keeping


def test_signs_of_life_go_to_all_reserved_messages_until_they_are_acknowledged(
    pool: Pool,
) -> None:
    pool.stream.fill(3)
    keeping = Keeping(connecting(pool.stream.url))
    subjects = [f"$JS.ACK.{pool.name}.{POOL}.1.{n}.1.1.0" for n in pool.take(3)]
    with contextlib.closing(keeping), Tap(pool.stream.url) as tap:
        keeping.keep(subjects, 0.2, delivered=time.monotonic())
        heard: list[Message] = []

        def both_rounds() -> bool:
            heard.extend(each for each in tap.heard() if each.data == b"+WPI")
            return len(heard) >= 6

        wait_until(both_rounds, "two rounds of signs of life")
        assert [each.subject for each in heard[:6]] == 2 * subjects
        keeping.close()
        tap.heard()
        # The thread has ended: nothing can be sent any more.
        assert [each for each in tap.heard() if each.data == b"+WPI"] == []


def test_a_sign_of_life_that_comes_too_late_is_reported(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    keeping = Keeping(connecting(pool.stream.url), clock=lambda: now)
    with contextlib.closing(keeping):
        keeping.keep(["a", "b"], 3600.0, delivered=now)
        now += 3599.0
        keeping.send_signs()
        assert "reserved messages" not in caplog.text
        now += 3601.0
        keeping.send_signs()
    assert (
        "the server has not heard of 2 reserved messages for 3601 s, and waits 3600 s (ack_wait): "
        "other clients may have received them" in caplog.text
    )


def test_messages_that_were_delivered_too_long_ago_are_reported(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """The server was away after it had delivered them."""
    with contextlib.closing(Keeping(connecting(pool.stream.url), clock=lambda: 100.0)) as keeping:
        keeping.keep(["a"], 30.0, delivered=70.0)
        assert "reserved messages" not in caplog.text
        keeping.keep(["a", "b"], 30.0, delivered=69.0)
    assert "the server has not heard of 2 reserved messages for 31 s" in caplog.text


def test_an_outage_after_messages_were_delivered_is_reported(
    pool: Pool,
    query: SharedQuery,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool.stream.fill(5)
    look = query.planner._consumer.look
    later = 0.0

    def away() -> ConsumerLook:
        nonlocal later
        if pool.info()["num_ack_pending"]:
            later = 7200.0
        return look()

    monkeypatch.setattr(query.planner._consumer, "look", away)
    monkeypatch.setattr(query.planner._keeping, "_clock", lambda: time.monotonic() + later)
    query.run_batch()
    assert "the server has not heard of 5 reserved messages for 7200 s" in caplog.text


def test_a_batch_that_comes_again_is_kept_at_once(pool: Pool, query: SharedQuery) -> None:
    """The time of its messages may be almost up: here it is an hour, and a sign is due after a quarter."""
    pool.stream.fill(5)
    query.run_batch()
    restarted(query)
    with Tap(pool.stream.url) as tap:
        assert last_batch(query) == [1, 2, 3, 4, 5]
        heard: list[Message] = []

        def all_messages() -> bool:
            heard.extend(each for each in tap.heard() if each.data == b"+WPI")
            return len(heard) >= 5

        wait_until(all_messages, "a sign of life of each message")
    sequences = {each.subject.split(".")[5] for each in heard}
    assert sequences == {"1", "2", "3", "4", "5"}


# Consumers and streams that were created again


def test_a_consumer_that_was_created_again_gets_no_committed_message(
    pool: Pool, query: SharedQuery
) -> None:
    pool.stream.fill(30)
    query.run_batch()
    pool.stream.publisher.api(f"CONSUMER.DELETE.{pool.name}.{POOL}")
    pool.create_consumer()
    pool.acknowledge(pool.take(2))
    query.run_batch()
    assert query.plain == list(range(1, 31))
    query.planner.commit(query.offset(1))
    assert pool.left == []


def test_a_consumer_that_was_set_back_gets_no_committed_message(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    """The server does not answer acknowledgements beyond what it has delivered."""
    pool.stream.fill(30)
    query.run_batch()
    pool.stream.publisher.api(f"CONSUMER.RESET.{pool.name}.{POOL}", {"seq": 1})
    # Another client gets a part of the messages.
    assert pool.take(5) == [1, 2, 3, 4, 5]
    query.planner.commit(query.offset(0))
    assert pool.left == list(range(21, 31))
    assert (
        f"consumer {POOL} of stream {pool.name} was created again or set back, and 15 messages of a "
        "committed micro-batch were deleted" in caplog.text
    )
    query.run_batch()
    assert query.plain == list(range(1, 31))


def test_an_idle_query_does_not_mention_a_consumer_that_was_created_again(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages of its last micro-batch are gone, and nobody has them."""
    pool.stream.fill(5)
    query.run_batch()
    assert not query.trigger()
    pool.stream.publisher.api(f"CONSUMER.DELETE.{pool.name}.{POOL}")
    pool.create_consumer()
    assert restarted(query).latest(query.offset(0), limited=True) == query.offset(0)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_server_that_is_killed_before_it_writes_the_state_of_the_consumer() -> None:
    """A server writes the state of a consumer at most ten times a second."""
    with NatsServer() as server, JetStreamAdmin(servers=server.url) as own:
        with Publisher(server.url) as publisher:
            pool = Pool(lambda **config: Stream(server.url, "JOBS", publisher, **config), own)
            pool.stream.fill(30)
        query = SharedQuery(pool)
        state = server.store_dir / "jetstream/$G/streams/JOBS/obs" / POOL / "o.dat"
        before = state.read_bytes() if state.exists() else None
        query.run_batch()
        server.kill()
        state.unlink(missing_ok=True)
        if before is not None:
            state.write_bytes(before)
        server.start()
        query.planner.commit(query.offset(0))
        with Publisher(server.url) as publisher:
            pool.stream.publisher = publisher
            assert pool.left == list(range(21, 31))
        query.run_batch()
        query.kill()
        assert query.plain == list(range(1, 31))


def test_where_messages_cannot_be_deleted_they_come_once_more(
    stream: MakeStream, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(stream, admin, stream={"deny_delete": True})
    query = SharedQuery(pool)
    pool.stream.fill(5)
    query.run_batch()
    pool.stream.publisher.api(f"CONSUMER.DELETE.{pool.name}.{POOL}")
    pool.create_consumer()
    query.run_batch()
    query.kill()
    assert "delivers 5 messages of a committed micro-batch once more" in caplog.text
    # The query acknowledges them with the next batch.
    assert query.plain == 2 * [1, 2, 3, 4, 5]
    restarted(query).commit(query.offset(1))
    query.kill()
    assert pool.left == []


def test_the_messages_of_a_stream_that_was_created_again_are_not_acknowledged(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    pool.stream.fill(5)
    query.run_batch()
    pool.stream.delete()
    pool.stream.create()
    pool.create_consumer()
    pool.stream.fill(5)
    query.run_batch()
    assert "was deleted and created again" in caplog.text
    # Their sequences are the same, and yet they are other messages: the second batch has them.
    assert query.idempotent == {0: [1, 2, 3, 4, 5], 1: [1, 2, 3, 4, 5]}
    query.planner.commit(query.offset(1))
    assert pool.left == []


def test_a_batch_of_a_stream_that_was_created_again_is_empty_when_it_comes_again(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    pool.stream.fill(5)
    query.run_batch()
    restarted(query)
    pool.stream.delete()
    pool.stream.create()
    pool.create_consumer()
    pool.stream.fill(5)
    assert last_batch(query) == []
    assert "the micro-batch runs without its messages" in caplog.text
    query.planner.commit(query.offset(0))
    assert pool.left == [1, 2, 3, 4, 5]


def test_a_stream_that_is_created_again_between_two_tries_to_acknowledge(
    pool: Pool, query: SharedQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.stream.fill(5)
    query.run_batch()

    def lost(connection: Connection, *_: object, context: str) -> None:
        monkeypatch.undo()
        pool.stream.delete()
        pool.stream.create()
        pool.create_consumer()
        pool.stream.fill(5)
        raise RequestTimeout(f"cannot {context}: no reply")

    monkeypatch.setattr(Connection, "confirm", lost)
    query.planner.commit(query.offset(0))
    assert pool.left == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("more", [-1, 0], ids=["shorter", "another message"])
def test_a_lost_tail_is_not_acknowledged(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    """As after a power failure: the stream ends before the last message, or has another there."""
    pool.stream.fill(5)
    query.run_batch()
    ends = query.offset(0)
    position, held = ends.streams[pool.name], ends.held[pool.name]
    planner = restarted(query)
    if more:
        pool.stream.fill(5)
        longer = type(held)(held.consumer, held.ack, (1, 2, 40))
        lost = Offset(
            {pool.name: StreamPosition(41, position.created, 7)}, held={pool.name: longer}
        )
    else:
        lost = Offset(
            {pool.name: StreamPosition(6, position.created, position.last_timestamp - 1)},
            held={pool.name: held},
        )
    assert sequences_of(planner.ranges(query.offset(-1), lost)) == []
    planner.commit(lost)
    assert f"stream {pool.name} has lost messages" in caplog.text
    assert pool.left == list(range(1, 11 if more else 6))


def test_a_lost_tail_shows_also_after_others_have_acknowledged_its_last_message(
    pool: Pool, query: SharedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream has lost messages 4 to 6 of the batch, and then stored as many others."""
    pool.stream.fill(6)
    query.run_batch()
    ends = query.offset(0)
    position = ends.streams[pool.name]
    hour_ago = StreamPosition(position.next, position.created, position.last_timestamp - HOUR)
    lost = Offset({pool.name: hour_ago}, held=ends.held)
    planner = restarted(query)
    pool.acknowledge([1, 2, 3, 6])
    assert sequences_of(planner.ranges(query.offset(-1), lost)) == []
    planner.commit(lost)
    assert f"stream {pool.name} has lost messages: 4 is another message now" in caplog.text
    assert pool.left == [4, 5]


# Servers


def test_the_longer_form_of_reply_subjects(admin: JetStreamAdmin) -> None:
    with (
        NatsServer(config="feature_flags { js_ack_fc_v2: true }") as server,
        JetStreamAdmin(servers=server.url) as own,
        Publisher(server.url) as publisher,
    ):
        pool = Pool(lambda **config: Stream(server.url, "JOBS", publisher, **config), own)
        pool.stream.fill(5)
        query = SharedQuery(pool)
        query.run_batch()
        tokens = query.offset(0).held["JOBS"].ack.split(".")
        assert (len(tokens), tokens[-2:]) == (6, ["JOBS", POOL])
        planner = restarted(query)
        assert last_batch(query) == [1, 2, 3, 4, 5]
        planner.commit(query.offset(0))
        query.kill()
        assert pool.left == []


@pytest.mark.full
def test_three_replicas() -> None:
    """A message goes from each replica some time after its acknowledgement was confirmed.

    The status of a pull comes before its messages, which are replicated first.
    """
    with (
        NatsCluster() as cluster,
        JetStreamAdmin(servers=cluster.url) as own,
        Publisher(cluster.urls[0]) as publisher,
    ):
        pool = Pool(
            lambda **config: Stream(cluster.urls[0], "JOBS", publisher, num_replicas=3, **config),
            own,
        )
        cluster.wait_ready()
        pool.stream.fill(60)
        query = SharedQuery(pool)
        query.run_batch()
        planner = restarted(query)
        pool.acknowledge(range(1, 11))
        pool.holds(*range(11, 61))
        assert last_batch(query) == list(range(11, 21))
        planner.commit(query.offset(0))
        pool.holds(*range(21, 61))
        wait_until(lambda: not query.trigger() and not pool.left, "an empty queue")
        query.kill()
        assert sorted(set(query.plain)) == list(range(1, 61))


# Errors


def refused(planner: SharedPlanner) -> str:
    with pytest.raises(OptionError) as caught, contextlib.closing(planner):
        planner.initial()
    assert caught.value.option == "share"
    return str(caught.value)


def test_a_missing_consumer_comes_with_the_command_that_makes_it(pool: Pool) -> None:
    said = refused(pool.planner(share="other"))
    assert (
        f"spark-jetstream consumer add {pool.name} other --ack explicit --wait 5m --max-ack-pending 50000"
        in said
    )


@pytest.mark.parametrize(
    ("fault", "config"),
    [
        (ConsumerFault.PUSH, {"deliver_subject": "to"}),
        (ConsumerFault.HEADERS_ONLY, {"headers_only": True}),
        (
            ConsumerFault.PRIORITIES,
            {"priority_policy": "prioritized", "priority_groups": ["a"]},
        ),
        (ConsumerFault.TEMPORARY, {"inactive_threshold": 3600 * 10**9}),
        (ConsumerFault.IMPATIENT, {"ack_wait": 29 * 10**9}),
        (ConsumerFault.IMPATIENT, {"backoff": [60 * 10**9, 10**9], "max_deliver": 3}),
    ],
    ids=lambda value: value.name if isinstance(value, ConsumerFault) else "",
)
def test_consumers_that_a_query_cannot_share(
    stream: MakeStream, admin: JetStreamAdmin, fault: ConsumerFault, config: dict[str, Any]
) -> None:
    pool = Pool(stream, admin, **config)
    assert fault.value in refused(pool.planner())


def test_a_consumer_that_does_not_acknowledge_single_messages(
    stream: MakeStream, admin: JetStreamAdmin
) -> None:
    """A work queue allows none: its stream has another retention."""
    s = stream()
    body = {"durable_name": POOL, "name": POOL, "ack_policy": "all"}
    s.publisher.api(f"CONSUMER.CREATE.{s.name}.{POOL}", {"stream_name": s.name, "config": body})
    pool = Pool.__new__(Pool)
    pool.stream, pool.admin, pool.name = s, admin, s.name
    assert ConsumerFault.UNACKNOWLEDGED.value in refused(pool.planner())
    s.publisher.api(f"CONSUMER.DELETE.{s.name}.{POOL}")
    pool.create_consumer()
    assert "has limits retention, and option share needs a work queue" in refused(pool.planner())


def test_settings_that_may_hurt_are_reported_once(
    stream: MakeStream, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(stream, admin, max_deliver=5, max_ack_pending=1000)
    with contextlib.closing(pool.planner()) as planner:
        planner.initial()
        planner.initial()
    warned = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warned == [
        f"consumer {POOL} of stream {pool.name}: it gives a message up after 5 deliveries "
        "(max_deliver), and each kill of a query counts as one",
        f"consumer {POOL} of stream {pool.name}: all of its clients together hold at most 1000 "
        "messages (max_ack_pending), and a micro-batch alone takes up to 10000",
    ]


def test_an_older_spark_is_refused(pool: Pool) -> None:
    said = pytest.raises(OptionError, match=r"option share needs Spark 4\.2 or newer")
    with contextlib.closing(pool.planner()) as planner, said:
        planner.latest(None, limited=True)


def test_checkpoints_of_other_queries(pool: Pool, stream: MakeStream, query: SharedQuery) -> None:
    pool.stream.fill(5)
    query.run_batch()
    shared, plain = query.offset(0), Offset(query.offset(0).streams)
    pool.stream.publisher.api(
        f"CONSUMER.DELETE.{pool.name}.{POOL}"
    )  # a work queue has one consumer without a filter
    with pytest.raises(OptionError, match="that of a query without option share"):
        query.planner.latest(plain, limited=True)
    with pytest.raises(OptionError, match="that of a query with option share"):
        driver(pool.stream.url, pool.name, durable="d").latest(shared, limited=True)
    other = pool.planner(share="other")
    with pytest.raises(OptionError, match=f"shares consumer {POOL}, and option share names other"):
        other.commit(shared)
    elsewhere = pool.planner(stream="ELSEWHERE")
    with pytest.raises(OptionError, match=f"it has {pool.name}, and option stream names ELSEW"):
        elsewhere.commit(shared)
