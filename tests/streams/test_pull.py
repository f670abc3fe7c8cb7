"""`read_range` against the real server: its requests and consumers.

`test_readers.py` has what both readers do.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.client import deadline
from spark_jetstream.client.deadline import Backoff
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.client.tcp import TcpWire
from spark_jetstream.errors import (
    ConnectionFailed,
    ConsumerLimitReached,
    DataLossError,
    JetStreamError,
    OutageError,
    RequestTimeout,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams import pull, session
from spark_jetstream.streams.latest import END, read_to_end
from spark_jetstream.streams.leader import look
from spark_jetstream.streams.outages import through_outages
from spark_jetstream.streams.pull import RangeReader
from spark_jetstream.streams.session import Ends
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.client import set_timing
from tests.support.fake_jetstream import CREATED, FakeJetStream, Honest
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import (
    ALL,
    COUNT,
    SETTINGS,
    api,
    collect,
    connecting,
    consumers,
    create,
    fill,
    options,
    part_of,
    pulls,
    sequences,
    some,
    wait_until,
)

#: Seconds that pass, messages that come, and the error.
Attempt = tuple[float, int, JetStreamError | None]
CUT, SILENT = ConnectionFailed("cut"), RequestTimeout("silent")


def test_only_as_much_is_asked_for_as_the_range_can_hold(
    server: NatsServer, proxy: WireProxy
) -> None:
    assert sequences(pulls(proxy.url, part_of(server.url, "S", 1, 701))) == ALL[:700]
    asked = [int(number) for number in re.findall(rb'"batch": (\d+)', proxy.client_bytes)]
    assert sum(asked) == 700
    assert max(asked) == SETTINGS.batch


@pytest.mark.parametrize(("end", "paced"), [(50, False), (701, True)])
def test_many_messages_are_read_together(server: NatsServer, end: int, paced: bool) -> None:
    wire = connect(options(server.url))._login.wire
    assert isinstance(wire, TcpWire)
    part = part_of(server.url, "S", 1, end)
    policy = SETTINGS.policy(many=100)
    read = RangeReader(connecting(server.url), part, SETTINGS, "test", policy).read()
    found = some(read)
    assert wire.pace() == (session._PACE if paced else 0.0)
    assert found + sequences(read) == ALL[: end - 1]
    wait_until(lambda: wire.pace() == 0.0, "the end of the pace")


@pytest.mark.parametrize("batch", [100, 30])
def test_a_consumer_that_our_server_does_not_know_yet(
    batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The servers of a cluster hear of it one after the other. This is nothing to warn of."""
    with FakeJetStream() as fake:
        fake.store(100)
        fake.unheard = 5
        part = SequenceRange("S", 1, 101, 100, CREATED)
        assert sequences(pulls(fake.url, part, replace(SETTINGS, batch=batch))) == ALL[:100]
        assert (fake.count("CONSUMER.CREATE"), fake.unheard) == (1, 0)
        assert caplog.messages == []
        close_all()


@pytest.mark.parametrize("count", [None, 100, 60])
def test_a_replica_that_lags(count: int | None) -> None:
    """The leader says that messages are missing, whatever was counted: the count may be that of a
    replica that lags.
    """
    with FakeJetStream() as fake:
        fake.store(100)
        fake.lagging = [60] * 5
        assert sequences(pulls(fake.url, SequenceRange("S", 1, 101, count, CREATED))) == ALL[:100]
        assert fake.count("STREAM.MSG.GET") == 5


#: What is said to a request for a message of the leader.
REFUSED, UNHEARD = (
    b"-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.MSG.GET.S\"'\r\n",
    b"NATS/1.0 503\r\n\r\n",
)


@pytest.mark.parametrize(("head", "asked"), [(b"", 2), (UNHEARD, 5)], ids=["refused", "unheard"])
def test_a_replica_that_lags_where_the_leader_may_not_be_asked(head: bytes, asked: int) -> None:
    """A range asks again after a 503, which may pass, and not after a refusal."""
    with FakeJetStream() as fake:
        fake.store(100)
        fake.lies["STREAM.MSG.GET"] = lambda honest: [honest.saying(b"", head) if head else REFUSED]
        part = SequenceRange("S", 1, 101, 100, CREATED)
        fake.lagging = [60] * 2
        assert sequences(pulls(fake.url, part)) == ALL[:100]
        fake.lagging = [60] * 3
        with pytest.raises(
            DataLossError, match="40 of 100 messages of stream S, sequences 1 to 100, were removed"
        ):
            sequences(pulls(fake.url, part))
        assert fake.count("STREAM.MSG.GET") == asked
        close_all()


@pytest.mark.parametrize("count", [60, 59])
def test_a_count_that_is_too_low_where_the_leader_may_not_be_asked(count: int) -> None:
    """The count is from the replica that lags too, so it ends no range: the third consumer does."""
    with FakeJetStream() as fake:
        fake.store(100)
        fake.lies["STREAM.MSG.GET"] = lambda _: [REFUSED]
        fake.lagging = [60] * 2
        assert sequences(pulls(fake.url, SequenceRange("S", 1, 101, count, CREATED))) == ALL[:100]
        fake.lagging = []
        assert sequences(pulls(fake.url, SequenceRange("S", 1, 201, 100, CREATED))) == ALL[:100]
        assert (fake.count("CONSUMER.CREATE"), fake.count("STREAM.MSG.GET")) == (3 + 3, 2)
        close_all()


def test_a_leader_that_nobody_hears_once() -> None:
    """It is asked again after the next consumer, and knows what that lacks.

    Without a lag one is enough.
    """
    with FakeJetStream() as fake:
        fake.store(100)
        unheard = iter([UNHEARD])
        fake.lies["STREAM.MSG.GET"] = lambda honest: [
            honest.frames if (head := next(unheard, None)) is None else honest.saying(b"", head)
        ]
        fake.lagging = [60] * 5
        assert sequences(pulls(fake.url, SequenceRange("S", 1, 101, 60, CREATED))) == ALL[:100]
        assert (fake.count("CONSUMER.CREATE"), fake.count("STREAM.MSG.GET")) == (6, 5)
        assert sequences(pulls(fake.url, SequenceRange("S", 1, 201, 100, CREATED))) == ALL[:100]
        assert (fake.count("CONSUMER.CREATE"), fake.count("STREAM.MSG.GET")) == (7, 6)
        close_all()


def test_a_look_at_the_stream_that_is_answered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has asked once more by then.

    The answer is no message of the consumer, which goes on.
    """
    begin = session.PullSession.begin

    def begin_in_haste(self: session.PullSession, most: int) -> str | None:
        """Wait for 10 ms for an answer that does not come; the next question then has a minute."""
        connection = self._connection
        connection.timing = replace(connection.timing, ask_again=0.01)
        created = begin(self, most)
        connection.timing = replace(connection.timing, ask_again=60.0)
        return created

    monkeypatch.setattr(session.PullSession, "begin", begin_in_haste)
    with FakeJetStream() as fake:
        fake.store(100)
        late: list[bytes] = []

        def lie(honest: Honest) -> list[bytes]:
            if not late:
                late.append(honest.frames)
                return []
            return [honest.frames, *late]

        fake.lies["STREAM.INFO"] = lie
        part = SequenceRange("S", 1, 101, 100, CREATED)
        assert sequences(pulls(fake.url, part, replace(SETTINGS, batch=20))) == ALL[:100]
        assert (fake.count("STREAM.INFO"), fake.count("CONSUMER.CREATE")) == (2, 1)
        close_all()


def test_heartbeats_do_not_hold_up_a_reader_whose_look_at_the_stream_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_timing(monkeypatch, ask_again=1.0)
    asked_again, sent = threading.Event(), 0

    def look_again(*arguments: Any) -> Any:
        asked_again.set()
        return look(*arguments)

    def heartbeats(honest: Honest) -> Iterator[bytes]:
        nonlocal sent
        while sent < 10_000 and not asked_again.wait(0.001):
            sent += 1
            yield honest.saying(b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
        yield honest.frames

    with FakeJetStream() as fake:
        fake.store(100)
        unanswered = iter([()])
        fake.lies["STREAM.INFO"] = lambda honest: next(unanswered, [honest.frames])
        fake.lies["CONSUMER.MSG.NEXT"] = heartbeats
        monkeypatch.setattr(pull, "look", look_again)
        reader = RangeReader(
            connecting(fake.url),
            SequenceRange("S", 1, 101, 100, CREATED),
            SETTINGS,
            "test",
            SETTINGS.policy(quiet_heartbeats=sys.maxsize),
        )
        assert sequences(reader.read()) == ALL[:100]
        assert sent < 10_000
        close_all()


def test_a_follower_notices_the_loss_of_the_last_message(
    server: NatsServer, proxy: WireProxy
) -> None:
    """A heartbeat names it. No other message may come for any time."""
    policy = SETTINGS.policy(Ends.NEVER, quiet_heartbeats=sys.maxsize, fruitless=sys.maxsize)
    part = part_of(server.url, "S", COUNT + 1, END, count=None)
    events = RangeReader(connecting(proxy.url), part, SETTINGS, "test", policy).follow()
    assert next(events) is None
    proxy.drop_frames(b"\r\n0....")
    fill(server.url, "S", 1)
    assert next(event.sequences.tolist() for event in islice(events, 100) if event is not None) == [
        COUNT + 1
    ]
    assert proxy.dropped == 1


def test_a_consumer_that_nobody_knows() -> None:
    settings = replace(SETTINGS, retry_timeout=0.5)
    with FakeJetStream() as fake:
        fake.store(100)
        fake.unheard = 1000
        reader = RangeReader(
            connecting(fake.url),
            SequenceRange("S", 1, 101, 100, CREATED),
            settings,
            "test",
            settings.policy(unheard=3),
        )
        with pytest.raises(
            OutageError, match="the pull consumer on stream S cannot serve any more: 503"
        ):
            sequences(reader.read())
        assert fake.count("CONSUMER.CREATE") > 1
        assert (
            3 * fake.count("CONSUMER.CREATE")
            <= fake.count("MSG.NEXT")
            <= 5 * fake.count("CONSUMER.CREATE")
        )
        close_all()


@pytest.mark.parametrize("headers_only", [False, True])
@pytest.mark.parametrize(("batch", "used", "requests"), [(50, 8, 1), (50, 20, 1), (5, 8, 2)])
def test_requests_whose_last_byte_is_used(
    server: NatsServer, proxy: WireProxy, batch: int, used: int, requests: int, headers_only: bool
) -> None:
    """The server ends the request without a word, however many messages it had left."""
    create(server.url, "E")
    with Publisher(server.url) as publisher:
        publisher.publish([Message("E.a", b"x" * 100, (("A", "b"),)) for _ in range(used + 1)])
    settings = replace(SETTINGS, batch=batch, headers_only=headers_only)
    sizes = [
        each.frames[at : at + 1].pull_bytes()
        for each in pulls(server.url, part_of(server.url, "E"), settings)
        for at in range(len(each))
    ]
    exact = replace(settings, max_bytes=sum(sizes[:used]) // requests)
    assert sequences(pulls(proxy.url, part_of(server.url, "E"), exact)) == ALL[: used + 1]
    assert (
        proxy.client_bytes.count(b"CONSUMER.CREATE") == 1
    )  # nothing was lost, so no other consumer had to go on


def test_a_request_that_ends_while_the_next_ones_go_out(
    server: NatsServer, proxy: WireProxy
) -> None:
    """One of two requests ends silently, with its last message and its last byte. The end of the
    other is on its way.

    The reader has both of their messages in one run, and sends two requests. Their last bytes end
    both silently, too.
    """
    settings = replace(SETTINGS, batch=5)

    def stream(name: str, large: int) -> list[int]:
        """Store messages of which two are `large`.

        Return what each takes of the bytes of a request.
        """
        create(server.url, name)
        sizes = [100, 50] * 5 + [large] * 2 + [10] * 18
        with Publisher(server.url) as publisher:
            publisher.publish([Message(f"{name}.a", b"x" * size) for size in sizes])
        runs = pulls(server.url, part_of(server.url, name), settings)
        return [run.frames[at : at + 1].pull_bytes() for run in runs for at in range(len(run))]

    sizes = stream("E", 1000)
    most = sum(sizes[0:10:2])
    sizes = stream("F", most - sizes[10] + 1000)
    assert sum(sizes[0:10:2]) == sizes[10] == sizes[11] == most
    first: list[bytes] = []

    def together(frame: bytes) -> bytes:
        if b"$JS.ACK" not in frame or len(first) == 10:
            return frame
        first.append(frame)
        return b"".join(first) if len(first) == 10 else b""

    proxy.drop(together)
    assert (
        sequences(pulls(proxy.url, part_of(server.url, "F"), replace(settings, max_bytes=most)))
        == ALL[:30]
    )
    assert proxy.client_bytes.count(b"CONSUMER.CREATE") == 1


def test_one_consumer_catches_up(server: NatsServer, proxy: WireProxy) -> None:
    """The end of a request that brought all of its messages comes when the next one is under way."""
    settings = replace(SETTINGS, batch=COUNT // 7)
    part = part_of(server.url, "S", 1, END, count=None)
    read = read_to_end(connecting(proxy.url), part, settings, "test", least_batch=1)
    assert sequences(read) == ALL
    assert proxy.client_bytes.count(b"CONSUMER.CREATE") == 1
    assert proxy.client_bytes.count(b"CONSUMER.MSG.NEXT") == 8


def test_requests_that_bytes_end_never_grow(server: NatsServer, proxy: WireProxy) -> None:
    """Or more is under way than the server keeps for a connection (64 MiB), and it cuts the
    connection.
    """
    create(server.url, "B")
    with Publisher(server.url) as publisher:
        publisher.publish([Message("B.a", b"x" * 1000) for _ in range(COUNT)])
    few = replace(SETTINGS, batch=COUNT // 2, max_bytes=10_000)
    assert sequences(pulls(proxy.url, part_of(server.url, "B"), few)) == ALL
    asked = [int(number) for number in re.findall(rb'"max_bytes": (\d+)', proxy.client_bytes)]
    assert set(asked) == {10_000}
    assert len(asked) >= COUNT // 10


def test_a_stream_with_limits_for_its_consumers(server: NatsServer) -> None:
    # 10153: the stream allows no consumer to be idle for longer.
    create(server.url, "L", consumer_limits={"inactive_threshold": 2_000_000_000})
    fill(server.url, "L", 100)
    assert sequences(pulls(server.url, part_of(server.url, "L"))) == ALL[:100]


# Outages


@pytest.mark.parametrize(
    ("attempts", "error"),
    [
        # Progress begins a new outage.
        (
            [(0, 0, CUT), (6, 1, SILENT), (6, 0, CUT)],
            "at sequence 2 got no further for 5 s (option retryTimeout): cut",
        ),
        ([(6, 0, CUT)], "at sequence 1 got no further for 5 s (option retryTimeout): cut"),
        # Waiting for the reply came before the outage, waiting for a connection is part of it.
        ([(6, 0, SILENT), (0, 9, None)], ""),
        ([(0, 0, CUT), (6, 0, None), (0, 0, CUT), (0, 9, None)], ""),
    ],
)
def test_an_outage_ends_when_its_patience_does(
    attempts: list[Attempt], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Scripted:
        part = SequenceRange("S", 1, 10, None, CREATED)
        next = 1
        left = iter(attempts)

        def attempt(self, patience: deadline.Deadline) -> Iterator[int]:
            seconds, count, failure = next(self.left)
            pass_by(seconds)
            for _ in range(count):
                self.next += 1
                yield self.next - 1
            if failure is not None:
                raise failure

        def failed(self, error: JetStreamError) -> bool:
            return True

    monkeypatch.setattr(
        deadline, "time", types.SimpleNamespace(monotonic=lambda: now, sleep=pass_by)
    )
    run = through_outages(Scripted(), 5, Backoff(0.001, at_once=True), "reading")
    if not error:
        assert list(run) == ALL[:9]
        return
    with pytest.raises(OutageError) as caught:
        list(run)
    assert str(caught.value) == f"reading S {error}"


# The server


def test_credentials_that_are_withdrawn() -> None:
    with NatsServer() as server:
        create(server.url, "S")
        fill(server.url, "S", COUNT)
        read = pulls(
            server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100, retry_timeout=0.5)
        )
        some(read)
        server.config = "authorization { token: another }"
        server.restart()
        # Until then the reason is the closed port.
        server.wait_for_log("authentication error", timeout=60)
        with pytest.raises(
            OutageError, match=r"\(option retryTimeout\): .*refused the credentials"
        ):
            sequences(read)


# The consumer


def test_a_reader_slower_than_its_consumer_lives(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = jsapi.reader_config

    def short_lived(*args: Any, **settings: Any) -> dict[str, Any]:
        return whole(*args, **{**settings, "inactive_threshold": 0.1})

    monkeypatch.setattr(jsapi, "reader_config", short_lived)
    # With the requests of a fetch batch under way a consumer lives on: two of them end early here.
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=300))
    found = some(read)
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")
    assert found + sequences(read) == ALL


def test_the_consumer_is_named_and_goes_when_the_range_is_done(server: NatsServer) -> None:
    read = pulls(server.url, part_of(server.url, "S"), label="spark-0123abcd-7-3-1")
    found = some(read)
    [name] = consumers(server.url, "S")
    assert re.fullmatch(r"spark-0123abcd-7-3-1-[0-9a-f]{8}", name)
    config = api(server.url, f"CONSUMER.INFO.S.{name}")["config"]
    assert (config["ack_policy"], config["max_deliver"], config["mem_storage"]) == ("none", 1, True)
    assert 0 < config["inactive_threshold"] <= 60_000_000_000
    assert found + sequences(read) == ALL
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


def test_the_consumer_goes_with_its_reader(server: NatsServer) -> None:
    part = part_of(server.url, "S")

    def fail() -> None:
        for _ in pulls(server.url, part):
            raise ZeroDivisionError

    read = pulls(server.url, part)
    some(read)
    read.close()  # type: ignore[attr-defined]  # it is a generator
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")
    with pytest.raises(ZeroDivisionError):
        fail()
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")
    api(server.url, "STREAM.PURGE.S", {"seq": 11})
    with pytest.raises(DataLossError):
        sequences(pulls(server.url, part))
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


def test_two_ranges_of_a_stream_with_room_for_one_consumer(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    create(server.url, "ONE", max_consumers=1)
    fill(server.url, "ONE", 600)
    first, second = (part_of(server.url, "ONE", begin, begin + 300) for begin in (1, 301))
    settings = replace(SETTINGS, batch=10)

    def whole(part: SequenceRange) -> list[int]:
        return sequences(pulls(server.url, part, settings))

    begun = pulls(server.url, first, settings)
    found = some(begun)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(whole, second)
        wait_until(lambda: "waiting for up to" in caplog.text, "the second reader's wait")
        assert not waiting.done()
        assert found + sequences(begun) == ALL[:300]
        assert waiting.result(60) == ALL[300:600]
    assert "maximum consumers limit reached" in caplog.text
    assert caplog.text.count("waiting for up to") == 1


def test_a_cut_connection_on_a_stream_with_room_for_one_consumer(
    server: NatsServer, proxy: WireProxy
) -> None:
    create(server.url, "ONE", max_consumers=1)
    fill(server.url, "ONE", 500)
    read = pulls(proxy.url, part_of(server.url, "ONE"), replace(SETTINGS, batch=20))
    found = some(read)
    proxy.cut()
    assert found + sequences(read) == ALL[:500]


def test_no_room_for_a_consumer_for_longer_than_retry_timeout(server: NatsServer) -> None:
    create(server.url, "ONE", max_consumers=1)
    fill(server.url, "ONE", 300)
    part = part_of(server.url, "ONE")
    begun = pulls(server.url, part, replace(SETTINGS, batch=10))
    found = some(begun)
    with pytest.raises(ConsumerLimitReached, match="maximum consumers limit reached") as caught:
        sequences(pulls(server.url, part, replace(SETTINGS, retry_timeout=0.5)))
    assert (caught.value.code, caught.value.err_code) == (400, 10026)
    assert str(caught.value).endswith("and no other consumer was removed within 0.5 s")
    assert found + sequences(begun) == ALL[:300]


# The stream


@pytest.mark.parametrize("followed", [0, 5])
def test_messages_removed_while_they_are_waited_for(server: NatsServer, followed: int) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    api(server.url, "STREAM.PURGE.S")
    fill(server.url, "S", followed)
    with pytest.raises(DataLossError, match="were removed") as caught:
        collect(read, found)
    assert found == ALL[: len(found)]
    assert str(caught.value).startswith(f"{COUNT - len(found)} of {COUNT} messages of stream S")


# A cluster


@pytest.mark.full
def test_a_stream_that_loses_its_tail_while_it_is_read(tmp_path: Path) -> None:
    """The rest of the range does not exist.

    No consumer begins past the end (`interest_streams.PAST_THE_END`).
    """
    store, kept = tmp_path / "store", tmp_path / "kept"
    with NatsServer(store_dir=store) as server, WireProxy(server.url) as proxy:
        create(server.url, "S", storage="file")
        fill(server.url, "S", 10)
        server.stop()
        shutil.copytree(store, kept)
        server.start()
        fill(server.url, "S", 90)
        reading = pulls(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=20))
        assert int(next(reading).sequences[0]) == 1
        server.stop()
        shutil.rmtree(store)
        shutil.copytree(kept, store)
        server.start()
        with pytest.raises(
            DataLossError, match=r"messages of stream S, sequences 1 to 100, were removed"
        ):
            list(reading)
        starts = re.findall(rb'"opt_start_seq": *(\d+)', proxy.client_bytes)
        assert all(int(start) <= 11 for start in starts), starts
        assert sequences(pulls(proxy.url, part_of(server.url, "S"))) == list(range(1, 11))


def test_an_interest_stream_whose_consumer_moves(cluster: NatsCluster) -> None:
    create(cluster.url, "HELD", num_replicas=3, storage="file", retention="interest")
    holder = {"durable_name": "holder", "ack_policy": "explicit"}
    api(cluster.url, "CONSUMER.CREATE.HELD.holder", {"stream_name": "HELD", "config": holder})
    cluster.wait_ready()
    fill(cluster.urls[cluster.leader_of("HELD")], "HELD", COUNT)
    read = pulls(cluster.url, part_of(cluster.url, "HELD"), replace(SETTINGS, batch=100))
    found = some(read)
    [name] = [name for name in consumers(cluster.url, "HELD") if name != "holder"]
    assert len(api(cluster.url, f"CONSUMER.INFO.HELD.{name}")["cluster"]["replicas"]) == 2
    api(cluster.url, f"CONSUMER.LEADER.STEPDOWN.HELD.{name}")
    assert found + sequences(read) == ALL
    # Another reader finds everything still there, as long as it is held.
    assert sequences(pulls(cluster.url, part_of(cluster.url, "HELD"))) == ALL
