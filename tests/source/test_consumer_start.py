"""Queries that take over from a consumer (option startingConsumer): where they begin, and the words
about what they read again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jetstream.admin import DeliveredMessage, JetStreamAdmin
from spark_jetstream.client.requests import stream_info
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.units import Timestamp
from spark_jetstream.source import stream_plan
from spark_jetstream.testing import NatsCluster
from tests.support.calls import Query, sequences
from tests.support.planning import driver, planner_after
from tests.support.publish import Message, Publisher
from tests.support.queries import available_now, streaming
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "no_election")

SERVICE = "billing"


@pytest.fixture
def consumers(nats_server: Any) -> Iterator[Any]:
    with JetStreamAdmin(servers=nats_server.url) as admin:
        yield admin.consumers


def consumer(consumers: Any, stream: Stream, **config: Any) -> None:
    consumers.create(stream.name, durable_name=SERVICE, **{"ack_policy": "explicit", **config})


def pull(consumers: Any, stream: Stream, count: int) -> list[DeliveredMessage]:
    """Messages that the service gets, and does not acknowledge."""
    delivered: list[DeliveredMessage] = consumers.next(stream.name, SERVICE, count, ack="none")
    assert len(delivered) == count
    return delivered


def serve(consumers: Any, stream: Stream, count: int, *acknowledged: int) -> None:
    """The service pulls messages, and acknowledges those with these sequences."""
    for delivery in pull(consumers, stream, count):
        if delivery.message.seq in acknowledged:
            consumers.ack(delivery)


def begin(stream: Stream, **given: Any) -> int:
    """The sequence at which a new query begins."""
    planner = driver(stream.url, stream.name, **{"startingConsumer": SERVICE, **given})
    return planner.initial().streams[stream.name].next


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about startingConsumer."""
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    return [text for each in warnings if "startingConsumer" in (text := each.getMessage())]


# Where it begins


def test_holes_in_the_acknowledgements(
    stream: MakeStream, consumers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing after the ack floor is left out, and one warning counts what is read again."""
    s = stream()
    s.fill(20)
    consumer(consumers, s)
    serve(consumers, s, 10, 1, 2, 3, 4, 6, 9)
    query = Query(s.url, s.name, startingConsumer=SERVICE)
    assert query.run().sequences == list(range(5, 21))
    (warning,) = words(caplog)
    assert warning == (
        f"consumer {SERVICE} of stream {s.name} (option startingConsumer): 6 messages between "
        "sequence 5 and 10 were delivered; 4 of them not acknowledged; all are read again"
    )
    # A batch reads the same, and ends where its options say.
    options = {"servers": s.url, "stream": s.name, "startingConsumer": SERVICE}
    assert sequences("b", options) == list(range(5, 21))
    assert sequences("b", {**options, "endingOffsets": json.dumps({s.name: 8})}) == [5, 6, 7]


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({"deliver_policy": "all"}, 3),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 6}, 6),
        # The server begins with the first message that it has.
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 2}, 3),
        ({"deliver_policy": "by_start_time"}, 8),
        ({"deliver_policy": "last"}, 10),
        ({"deliver_policy": "new"}, 11),
        # b was stored last with the odd sequence 9, and a with 10.
        ({"deliver_policy": "last_per_subject", "filter_subject": ">"}, 9),
    ],
    ids=lambda value: value.get("deliver_policy") if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("policy", ["none", "all", "explicit"])
def test_a_consumer_that_has_delivered_nothing(
    stream: MakeStream, consumers: Any, policy: str, config: dict[str, Any], first: int
) -> None:
    """Its deliver_policy decides: the server sets the ack floor to the sequence before the start."""
    s = stream()
    s.fill_in_turn(10, ["b", "a"])
    s.purge(seq=3)
    if config["deliver_policy"] == "by_start_time":
        config = {**config, "opt_start_time": Timestamp.of(s.stored_time(8))}
    consumer(consumers, s, ack_policy=policy, **config)
    info = consumers.load(s.name, SERVICE)
    assert (info.ack_floor.stream_seq, info.delivered.stream_seq) == (first - 1, first - 1)
    assert (info.ack_floor.consumer_seq, info.delivered.consumer_seq) == (0, 0)
    assert begin(s) == first


def test_each_ack_policy(stream: MakeStream, consumers: Any) -> None:
    """With none a message counts when it is delivered, with all an acknowledgement covers those
    before it.
    """
    none, every = stream(), stream()
    for s, policy in ((none, "none"), (every, "all")):
        s.fill(10)
        consumer(consumers, s, ack_policy=policy)
    pull(consumers, none, 4)
    info = consumers.load(none.name, SERVICE)
    assert info.ack_floor.stream_seq == info.delivered.stream_seq == 4
    assert begin(none) == 5
    serve(consumers, every, 6, 3)
    assert begin(every) == 4


def test_a_message_that_was_given_up(stream: MakeStream, consumers: Any) -> None:
    """What the consumer gave up is behind the ack floor once all that it delivered is settled."""
    s = stream()
    s.fill(5)
    consumer(consumers, s)
    delivered = pull(consumers, s, 3)
    consumers.ack(delivered[0])
    consumers.term(delivered[1], reason="no order")
    assert begin(s) == 3
    consumers.ack(delivered[2])
    assert begin(s) == 4


def test_the_floor_of_a_consumer_with_a_filter(
    stream: MakeStream, consumers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The floor says nothing about other subjects: a warning names both filters."""
    s = stream()
    s.fill_in_turn(10, ["a", "b"])
    consumer(consumers, s, filter_subject=f"{s.subject}.a")
    serve(consumers, s, 3, 1, 3, 5)
    assert begin(s, subjects=f"{s.subject}.a") == begin(s, subjects=f"{s.subject}.a,x") == 6
    (warning,) = words(caplog)
    assert warning.endswith(
        f"has the filters {s.subject}.a, and the query {s.subject}.a, x: "
        "older messages than sequence 6 of x are not read"
    )
    caplog.clear()
    assert begin(s) == 6
    (warning,) = words(caplog)
    assert f"the filters {s.subject}.a, and the query {s.subject}.>: older" in warning
    assert f"than sequence 6 of {s.subject}.> are not read" in warning


def test_a_query_that_reads_less(
    stream: MakeStream, consumers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    s = stream()
    consumer(consumers, s)
    assert begin(s) == begin(s, subjects=f"{s.subject}.>") == begin(s, subjects=">") == 1
    assert words(caplog) == []
    begin(s, subjects=f"{s.subject}.a")
    (warning,) = words(caplog)
    assert warning.endswith(
        f"has the filters >, and the query {s.subject}.a: "
        f"not all messages of {s.subject}.> are read"
    )


# Who else receives


def test_a_consumer_in_use(
    stream: MakeStream, consumers: Any, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """A pull that waits, and the subscriber of a push consumer; a pause ends the use."""
    s = stream()
    consumer(consumers, s)
    begin(s)
    assert words(caplog) == []
    pull_request = f"$JS.API.CONSUMER.MSG.NEXT.{s.name}.{SERVICE}"
    publisher.post(Message(pull_request, b'{"batch": 1, "expires": 60000000000}'), replies=True)
    wait_until(lambda: consumers.load(s.name, SERVICE).num_waiting == 1, "the pull waits")
    begin(s)
    (warning,) = words(caplog)
    assert "is in use" in warning
    assert f"spark-jetstream consumer pause {s.name} {SERVICE} 1d" in warning
    caplog.clear()
    consumers.pause(s.name, SERVICE, "1d")
    begin(s)
    assert words(caplog) == []


def test_messages_that_come_while_it_begins(
    stream: MakeStream, consumers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer may have acknowledged messages that the state of the stream does not have yet."""
    s = stream()
    s.fill(3)
    consumer(consumers, s)
    planner = driver(s.url, s.name, startingConsumer=SERVICE)
    look = planner._requests.streams

    def late(contexts: Any) -> Any:
        states = look(contexts)
        s.fill(4)
        serve(consumers, s, 7, *range(1, 8))
        return states

    monkeypatch.setattr(planner._requests, "streams", late)
    assert planner.initial().streams[s.name].next == 8


# Runs and checkpoints


def test_the_start_is_stored_at_once(stream: MakeStream, consumers: Any) -> None:
    """The first micro-batch is empty and stores the position: from then on nobody asks for the
    consumer.
    """
    s = stream()
    s.fill(10)
    consumer(consumers, s)
    serve(consumers, s, 4, 1, 2, 3, 4)
    query = Query(s.url, s.name, startingConsumer=SERVICE).resume()
    assert query.step() == []
    serve(consumers, s, 2, 5, 6)
    consumers.delete(s.name, SERVICE)
    query.resume()
    assert [row.sequence for row in query.rest()] == [5, 6, 7, 8, 9, 10]


def test_one_run_decides_once(
    stream: MakeStream, consumers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark asks several times where a query begins."""
    s = stream()
    s.fill(10)
    consumer(consumers, s)
    serve(consumers, s, 5, 1, 2)
    planner = driver(s.url, s.name, startingConsumer=SERVICE)
    first = planner.initial()
    serve(consumers, s, 3, 6, 7, 8)
    consumers.delete(s.name, SERVICE)
    assert planner.initial() == first
    assert first.streams[s.name].next == 3
    assert len(words(caplog)) == 1


def test_an_end_before_the_start(stream: MakeStream, consumers: Any) -> None:
    """Spark 4.0 and 4.1 ask for the first end first, and the consumer may pass it meanwhile: the
    query reads some of its messages again, and leaves none out.
    """
    s = stream()
    s.fill(10)
    consumer(consumers, s)
    planner = driver(s.url, s.name, startingConsumer=SERVICE)
    end = planner.latest(None, limited=True)
    s.fill(5)
    serve(consumers, s, 12, *range(1, 13))
    start = planner.initial()
    assert (start.streams[s.name].next, end.streams[s.name].next) == (13, 11)
    assert planner.ranges(start, end) == []
    assert planner_after(planner, end) == [11, 12, 13, 14, 15]


def test_a_stream_that_was_created_again(stream: MakeStream, consumers: Any) -> None:
    """What was known of the consumer of the old stream does not count."""
    s = stream()
    s.fill(10)
    consumer(consumers, s)
    serve(consumers, s, 5, 1, 2, 3, 4, 5)
    planner = driver(s.url, s.name, startingConsumer=SERVICE)
    assert planner.initial().streams[s.name].next == 6
    s.delete()
    s.create()
    s.fill(10)
    with pytest.raises(OptionError, match=f"which stream {s.name} does not have"):
        planner.initial()
    consumer(consumers, s)
    assert planner.initial().streams[s.name].next == 1


@pytest.mark.parametrize("is_back", [False, True], ids=["gone", "created again"])
def test_a_stream_that_is_replaced_while_it_begins(
    stream: MakeStream, consumers: Any, monkeypatch: pytest.MonkeyPatch, *, is_back: bool
) -> None:
    """The floor of a consumer is none in the next stream of the name, whenever the old one goes."""
    s = stream()
    s.fill(3)
    consumer(consumers, s)
    planner = driver(s.url, s.name, startingConsumer=SERVICE)
    look = planner._requests.streams
    looks: list[Any] = []

    def late(contexts: Any) -> Any:
        if looks and not is_back:
            replace()
        looks.append(look(contexts))
        if len(looks) == 1:
            s.fill(4)
            serve(consumers, s, 7, *range(1, 8))
        return looks[-1]

    def replace() -> None:
        s.create()
        s.fill(20)

    def look_again(*given: Any, **more: Any) -> Any:
        s.delete()
        if is_back:
            replace()
        return stream_info(*given, **more)

    monkeypatch.setattr(planner._requests, "streams", late)
    monkeypatch.setattr(stream_plan, "stream_info", look_again)
    with pytest.raises(OptionError, match=f"which stream {s.name} does not have"):
        planner.initial()
    assert len(looks) == (1 if is_back else 2)


def test_several_streams(stream: MakeStream, consumers: Any) -> None:
    """One name for all of them, or a consumer for each."""
    one, two = stream(), stream()
    for s, count in ((one, 2), (two, 3)):
        s.fill(5)
        consumer(consumers, s)
        serve(consumers, s, count, *range(1, count + 1))
    consumers.create(two.name, durable_name="other", ack_policy="explicit")
    both = f"{one.name},{two.name}"

    def starts(given: str) -> list[int]:
        begun = driver(one.url, both, startingConsumer=given).initial().streams
        return [begun[one.name].next, begun[two.name].next]

    assert starts(SERVICE) == [3, 4]
    assert starts(json.dumps({one.name: SERVICE, two.name: "other"})) == [3, 1]


def test_a_durable_of_a_query(stream: MakeStream, consumers: Any) -> None:
    """A query that has lost its checkpoint goes on where its durable consumer says, and keeps it."""
    s = stream()
    s.fill(5)
    query = Query(s.url, s.name, durable="kept").resume()
    assert [row.sequence for row in query.rest()] == [1, 2, 3, 4, 5]
    query.commit()
    s.fill(3)
    assert begin(s, startingConsumer="kept") == 6
    again = Query(s.url, s.name, durable="kept", startingConsumer="kept").resume()
    assert again.step() == []
    assert [row.sequence for row in again.rest()] == [6, 7, 8]
    again.commit()
    assert begin(s, startingConsumer="kept") == 9


def test_an_interest_stream(stream: MakeStream, consumers: Any) -> None:
    """The consumer of the query holds messages before the position is decided: none is lost when the
    old consumer goes.
    """
    s = stream(retention="interest", allow_direct=True)
    consumer(consumers, s)
    s.fill(10)
    serve(consumers, s, 6, 1, 2, 3, 5)
    query = Query(s.url, s.name, startingConsumer=SERVICE, durable="spark").resume()
    assert query.step() == []
    consumers.delete(s.name, SERVICE)
    # The consumer of the query holds 5 no more than the server does: it was gone before.
    assert [row.sequence for row in query.rest()] == [4, 6, 7, 8, 9, 10]


def test_messages_without_interest_are_no_loss(stream: MakeStream, consumers: Any) -> None:
    """An interest stream stores nothing that no consumer wants, so a gap after the ack floor is
    none.
    """
    s = stream(retention="interest", allow_direct=True)
    consumer(consumers, s, filter_subject=f"{s.subject}.a")
    s.fill(3)
    serve(consumers, s, 3, 1, 2, 3)
    s.fill(4, "b")
    s.fill(2)
    first = s.state()["first_seq"]
    assert first == 8
    assert begin(s, subjects=f"{s.subject}.a", durable="spark") == 8


def test_a_full_interest_stream_refuses_and_loses_nothing(
    stream: MakeStream, consumers: Any
) -> None:
    """A limit with discard new removes no message, so a gap after the ack floor is no loss either."""
    s = stream(retention="interest", allow_direct=True, max_msgs=50, discard="new")
    consumer(consumers, s, filter_subject=f"{s.subject}.a")
    s.fill(3)
    serve(consumers, s, 3, 1, 2, 3)
    s.fill(4, "b")
    s.fill(2)
    assert s.state()["first_seq"] == 8
    assert begin(s, subjects=f"{s.subject}.a", durable="spark") == 8


def test_a_work_queue(stream: MakeStream, consumers: Any) -> None:
    """It hands over by itself: what is not acknowledged stays when the consumer is deleted."""
    s = stream(retention="workqueue", allow_direct=True)
    consumer(consumers, s)
    s.fill(10)
    serve(consumers, s, 6, 1, 2, 4)
    with pytest.raises(OptionError, match="a work queue: the queue keeps each message") as caught:
        begin(s, durable="spark")
    assert caught.value.option == "startingConsumer"
    # A batch looks at it.
    options = {"servers": s.url, "stream": s.name, "readWith": "direct"}
    assert sequences("b", {**options, "startingConsumer": SERVICE}) == [3, 5, 6, 7, 8, 9, 10]
    consumers.delete(s.name, SERVICE)
    query = Query(s.url, s.name, durable="spark").resume()
    assert [row.sequence for row in query.rest()] == [3, 5, 6, 7, 8, 9, 10]


# Errors


def test_a_consumer_that_does_not_exist(stream: MakeStream) -> None:
    s = stream()
    with pytest.raises(OptionError) as caught:
        begin(s)
    assert str(caught.value) == (
        f"startingConsumer names consumer {SERVICE}, which stream {s.name} does not have: "
        f"spark-jetstream consumer ls {s.name} lists its consumers"
    )
    assert caught.value.option == "startingConsumer"


def test_messages_that_were_removed(
    stream: MakeStream, consumers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As with startingOffsets at a sequence that is gone."""
    s = stream(max_msgs=5)
    s.fill(5)
    consumer(consumers, s)
    serve(consumers, s, 2, 1, 2)
    s.fill(5)
    text = (
        f"startingConsumer begins stream {s.name} at sequence 3, after what consumer {SERVICE} has "
        "acknowledged, but the first message kept has sequence 6"
    )
    with pytest.raises(OptionError) as caught:
        begin(s)
    assert str(caught.value) == f"{text}; set failOnDataLoss to false to begin there"
    caplog.clear()
    assert begin(s, failOnDataLoss="false") == 6
    assert f"{text}: beginning there" in caplog.text


def test_a_consumer_that_is_ahead_of_its_stream(stream: MakeStream, consumers: Any) -> None:
    s = stream()
    s.fill(3)
    consumer(consumers, s, deliver_policy="by_start_sequence", opt_start_seq=10)
    with pytest.raises(OptionError, match=r"at sequence 10, after what .* last message has seq"):
        begin(s)


# A service and the query in its place


def test_the_query_takes_the_place_of_the_service(
    spark: SparkSession, stream: MakeStream, consumers: Any, tmp_path: Path
) -> None:
    """Rows of the service and of the query are all messages. Both have those that the report names,
    and no others.
    """
    s = stream()
    s.fill(20)
    consumer(consumers, s)
    serve(consumers, s, 10, 1, 2, 3, 4, 6, 9)
    of_service = {1, 2, 3, 4, 6, 9}
    handover = consumers.handover(s.name, SERVICE)
    frame = streaming(spark, s.url, s.name, startingConsumer=SERVICE)
    run = available_now(frame, tmp_path / "checkpoint")
    assert sorted(run.sequences) == list(range(5, 21))
    assert of_service | set(run.sequences) == set(range(1, 21))
    assert of_service & set(run.sequences) == {6, 9}
    assert handover.acknowledged == len({6, 9})
    # The consumer goes, and the query goes on from its checkpoint, with the same options.
    consumers.delete(s.name, SERVICE)
    s.fill(5)
    assert available_now(frame, tmp_path / "checkpoint").sequences == list(range(21, 26))


def test_a_consumer_with_replicas_that_has_acknowledged_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server says no floor of it, so the query reads all, and a warning counts the messages that
    the consumer would not have delivered. If the first ones are gone, the error gives the reason.
    """
    with NatsCluster() as cluster, JetStreamAdmin(servers=cluster.url) as admin:
        admin.streams.create(name="R3", subjects=["r3.>"], num_replicas=3)
        with Publisher(cluster.urls[0]) as publisher:
            publisher.publish(Message("r3.a", b"%d" % number) for number in range(20))
            admin.consumers.create(
                "R3", durable_name=SERVICE, ack_policy="explicit", deliver_policy="new"
            )
            publisher.publish(Message("r3.a", b"%d" % number) for number in range(5))
        # Nothing is delivered yet: the server says where it begins.
        assert (
            driver(cluster.url, "R3", startingConsumer=SERVICE).initial().streams["R3"].next == 21
        )
        admin.consumers.next("R3", SERVICE, 3, ack="none")
        caplog.clear()
        assert driver(cluster.url, "R3", startingConsumer=SERVICE).initial().streams["R3"].next == 1
        (warning,) = words(caplog)
        assert "3 messages between sequence 1 and 23 were delivered" in warning
        assert "up to 20 older messages are read as well" in warning
        handover = admin.consumers.handover("R3", SERVICE)
        assert (handover.read_again, handover.acknowledged, handover.messages) == (3, 0, 25)
        for sequence in range(1, 5):
            admin.messages.delete("R3", sequence)
        with pytest.raises(OptionError, match=f"because consumer {SERVICE} has no ack floor yet"):
            driver(cluster.url, "R3", startingConsumer=SERVICE).initial()


def test_a_new_leader_of_the_consumer_knows_no_later_position() -> None:
    """The leader dies with acknowledgements that no other server has stored. The query begins after
    those that were confirmed, and not after one that nobody has given.
    """
    with NatsCluster() as cluster:
        with JetStreamAdmin(servers=cluster.url) as admin:
            admin.streams.create(name="R3", subjects=["r3.>"], num_replicas=3)
            with Publisher(cluster.urls[0]) as publisher:
                publisher.publish(Message("r3.a", b"%d" % number) for number in range(30))
            admin.consumers.create("R3", durable_name=SERVICE, ack_policy="explicit")
            delivered = admin.consumers.next("R3", SERVICE, 20, ack="none")
            for delivery in delivered[:7]:
                admin.consumers.ack(delivery)
            led_by = admin.consumers.replicas("R3", SERVICE)[0].server
        leader = [server.name for server in cluster.servers].index(led_by)
        others = [server for server in cluster.servers if server.name != led_by]
        for server in others:
            server.pause()
        with Publisher(cluster.urls[leader]) as publisher:
            for delivery in delivered[7:12]:
                publisher.post(Message(delivery.reply, b"+ACK"))
            info = publisher.api(f"CONSUMER.INFO.R3.{SERVICE}")
        # A leader shows what a majority has stored.
        assert info["ack_floor"]["stream_seq"] == 7
        cluster.kill(leader)
        for server in others:
            server.resume()
        cluster.wait_ready()
        url = ",".join(server.url for server in others)
        planner = driver(url, "R3", startingConsumer=SERVICE)
        begin = planner.initial()
        first = begin.streams["R3"].next
        assert 8 <= first <= 13
        assert planner.latest(begin, limited=True) == begin
        assert planner_after(planner, begin) == list(range(first, 31))
