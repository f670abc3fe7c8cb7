"""Tasks of the sink over a wire that breaks: every row stored, none counted that is not, none twice
that has an id.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError, OutageError, RowRefused
from spark_jetstream.sink.ledger_bucket import bucket_config
from spark_jetstream.sink.order import Free
from spark_jetstream.sink.rows import Rows
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.sink.window import MAX_BYTES_IN_FLIGHT, InFlight
from spark_jetstream.sink.window import Window as SinkWindow
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.leaf import Linked
from tests.support.proxy import WireProxy, answer, is_answer
from tests.support.publish import Message, Publisher, Refused, Tap
from tests.support.reading import create, wait_until
from tests.support.sinking import (
    Sink,
    batch,
    numbers,
    pass_ack_timeout,
    payload,
    rows,
    seen,
    set_write_timing,
    stored,
)
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left")

never_late = pytest.mark.usefixtures("never_late")
NEVER = "10m"
SECOND = 1_000_000_000

IDS = ["deduplicated", "exactly-once"]
LEVELS = ["at-least-once", *IDS]
LEDGER = bucket_config(1)
#: A configuration of servers that bring what is published at `in.a` to the stream S.
MAPPED = 'mappings { "in.*": "s.$1" }'


@pytest.fixture(autouse=True)
def ledger(publisher: Publisher) -> None:
    """The shared server has a ledger, without any entries."""
    publisher.api(f"STREAM.CREATE.{LEDGER['name']}", LEDGER)
    publisher.api(f"STREAM.PURGE.{LEDGER['name']}")


@pytest.fixture
def target(stream: MakeStream) -> Stream:
    return stream(storage="memory")


def mute(frame: bytes) -> bytes:
    """Loses every answer."""
    return b"" if is_answer(frame) else frame


def error(err_code: int, code: int = 503) -> bytes:
    said = {"code": code, "err_code": err_code, "description": "said no"}
    return json.dumps({"error": said, "stream": "S", "seq": 0}).encode()


def counted(message: object) -> int:
    """How many rows an error says are stored."""
    found = re.search(r"; (\d+) rows? of the task (?:is|are) stored$", str(message))
    assert found is not None, message
    return int(found[1])


def assert_stored(url: str, stream: str, count: int, once: bool) -> None:
    """A stream has all rows, each of them once if that is promised."""
    found = numbers(url, stream)
    assert set(found) == set(range(count))
    if once:
        assert len(found) == count


def passed_on(publisher: Publisher, subject: str) -> bool:
    """Whether a stream anywhere has stored an empty message at this subject."""
    try:
        return bool(publisher.request(subject))
    except Refused:
        return False


class Window:
    """How much is under way at most: what the proxy has from the client, less the answers it has
    passed on.
    """

    def __init__(self, proxy: WireProxy, subject: str) -> None:
        self.proxy = proxy
        self.sent = f"PUB {subject}".encode()
        self.answers = 0
        self.most = 0
        proxy.drop(self)

    def __call__(self, frame: bytes) -> bytes:
        if is_answer(frame):
            self.most = max(self.most, self.proxy.client_bytes.count(self.sent) - self.answers)
            self.answers += 1
        return frame


class TestWindow:
    @pytest.mark.parametrize("max_in_flight", [1, 3, 64])
    def test_bounds_the_rows_under_way(
        self, proxy: WireProxy, target: Stream, max_in_flight: int
    ) -> None:
        window = Window(proxy, target.subject)

        def batches() -> Iterator[pa.RecordBatch]:
            for first in (0, 75):
                # No more are taken before there is room for them.
                assert first - window.answers <= max_in_flight
                yield rows(f"{target.subject}.a", first, 75)

        report = Sink(proxy.url, maxInFlight=max_in_flight).write(batches())
        assert (report.rows, report.stored, window.answers) == (150, 150, 150)
        assert max_in_flight / 2 <= window.most <= max_in_flight
        assert numbers(target.url, target.name) == list(range(150))

    def test_bounds_the_bytes_under_way(self, proxy: WireProxy, target: Stream) -> None:
        sink = Sink(proxy.url, ackTimeout="60s")
        # With a message id, so that what is sent again after the cut counts once.
        proxy.drop(mute)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, [rows(f"{target.subject}.a", 0, 40, 1_000_000)])
            proxy.wait(lambda: proxy.bytes_from_client > MAX_BYTES_IN_FLIGHT - 4_200_000)
            proxy.wait(lambda: proxy.dropped == 32)
            assert proxy.bytes_from_client < MAX_BYTES_IN_FLIGHT
            assert target.state()["messages"] == 32
            proxy.drop(None)  # before the task can send them again
            proxy.cut()
            report = writing.result(60)
        assert (report.stored, report.duplicates) == (40, 32)
        assert numbers(target.url, target.name) == list(range(40))


class TestCut:
    @pytest.mark.parametrize("delivery", LEVELS)
    def test_again_and_again(self, proxy: WireProxy, target: Stream, delivery: str) -> None:
        cuts: list[threading.Event] = []

        def batches() -> Iterator[pa.RecordBatch]:
            for index in range(15):
                if index % 5 == 1:
                    cuts.append(proxy.cut_after(100 + 37 * index))
                yield rows(lambda number: f"{target.subject}.{number % 7}", 500 * index, 500)

        report = Sink(proxy.url, delivery=delivery, maxInFlight=1000).write(batches())
        assert [cut.is_set() for cut in cuts[:-1]] == [True] * 2
        assert (report.rows, report.stored, report.dead_letters) == (7500, 7500, 0)
        assert_stored(target.url, target.name, 7500, once=delivery in IDS)
        assert report.streams == {target.name: (1, target.state()["messages"])}

    @pytest.mark.parametrize("delivery", LEVELS)
    def test_by_a_server_that_has_too_many_connections(
        self, proxy: WireProxy, target: Stream, delivery: str
    ) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(f"{target.subject}.a", 0, 500)
            target.wait_for(500)
            stored = b'{"stream":"%s"' % target.name.encode()
            told = proxy.replace_frames(
                stored, 1, lambda frame: b"-ERR 'Maximum Connections Exceeded'\r\n"
            )
            yield rows(f"{target.subject}.a", 500, 500)
            assert told.wait(60)

        report = Sink(proxy.url, delivery=delivery).write(batches())
        assert report.stored == 1000
        assert_stored(target.url, target.name, 1000, once=delivery in IDS)

    @pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated"])
    def test_for_too_long(self, proxy: WireProxy, target: Stream, delivery: str) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(f"{target.subject}.a", 0, 1000)
            target.wait_for(1000)
            proxy.drop(mute)
            yield rows(f"{target.subject}.a", 1000, 1000)
            proxy.refuse()
            proxy.cut()

        sink = Sink(proxy.url, delivery=delivery, retryTimeout="500ms", connectTimeout="1s")
        sink.connect(30)
        with pytest.raises(
            OutageError, match=r"no answer for 0.5 s \(option retryTimeout\) while writing"
        ) as raised:
            sink.write(batches())
        assert counted(raised.value) <= target.state()["messages"]
        proxy.drop(None)
        proxy.accept()
        report = Sink(proxy.url, delivery=delivery).write([rows(f"{target.subject}.a", 0, 2000)])
        assert report.stored == 2000
        assert_stored(target.url, target.name, 2000, once=delivery in IDS)

    def test_each_time_something_is_sent(self, proxy: WireProxy, target: Stream) -> None:
        """The connection comes back each time; what is sent brings it down.

        That does not go on for ever.
        """
        ended = threading.Event()

        def cutting() -> None:
            while not ended.is_set():
                proxy.cut_after(20_000, to="server").wait(1)

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(f"{target.subject}.a", 0, 10)
            target.wait_for(10)
            proxy.drop(mute)
            threads.append(pool.submit(cutting))
            yield rows(f"{target.subject}.a", 10, 10, 5000)

        threads: list[Future[None]] = []
        with ThreadPoolExecutor(1) as pool:
            try:
                with pytest.raises(OutageError, match="no answer for 5 s") as raised:
                    Sink(proxy.url, retryTimeout="5s").write(batches())
            finally:
                ended.set()
                close_all()
            threads[0].result(60)
        assert proxy.connections > 2
        # An answer that a cut overtakes is not counted: never more than what is stored.
        assert counted(raised.value) in (0, 10)

    def test_by_a_server_that_takes_less_than_before(
        self, nats_server_factory: Callable[..., NatsServer]
    ) -> None:
        server = nats_server_factory()
        create(server.url, "S", storage="file")
        with WireProxy(server.url) as wire:

            def batches() -> Iterator[pa.RecordBatch]:
                answered = wire.replace_frames(b'{"stream":"S"', 10, lambda frame: frame)
                yield rows("S.a", 0, 10)
                assert answered.wait(60)
                wire.drop(mute)
                yield rows("S.a", 10, 10, 5000)
                wait_until(lambda: numbers(server.url, "S") == list(range(20)), "stored")
                server.config = "max_payload: 1000"
                server.restart()

            with pytest.raises(
                OutageError, match=r"cannot go on writing: the connection to .* was closed"
            ) as raised:
                Sink(wire.url, retryTimeout="10m").write(batches())
        assert counted(raised.value) == 10

    def test_a_cut_that_ends_before_the_next_rows_is_no_outage(
        self, proxy: WireProxy, target: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spark may take its time for the next batch, longer than an outage may last."""
        passed = 0.0
        set_write_timing(monkeypatch, clock=lambda: time.monotonic() + passed)

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal passed
            proxy.drop(mute)
            yield rows(f"{target.subject}.a", 0, 10)
            proxy.wait(lambda: proxy.dropped == 10)
            proxy.cut()
            proxy.drop(None)
            passed = 100.0  # more than retryTimeout
            yield rows(f"{target.subject}.a", 10, 10)

        report = Sink(proxy.url, retryTimeout="60s", ackTimeout=NEVER).write(batches())
        assert report.stored == 20
        assert numbers(target.url, target.name) == list(range(20))


class TestSilence:
    @never_late
    @pytest.mark.parametrize("delivery", LEVELS)
    def test_rows_whose_answers_are_lost_are_sent_again(
        self, proxy: WireProxy, target: Stream, delivery: str
    ) -> None:
        proxy.drop_frames(f'{{"stream":"{target.name}"'.encode(), 5)
        sink = Sink(proxy.url, delivery=delivery, ackTimeout=NEVER, stream=target.name)
        report = sink.write([rows(f"{target.subject}.a", 0, 3000)])
        assert (report.stored, report.duplicates) == (3000, 5 if delivery in IDS else 0)
        assert_stored(target.url, target.name, 3000, once=delivery in IDS)

    @never_late
    def test_answers_after_it_count_once(self, proxy: WireProxy, target: Stream) -> None:
        held: list[bytes] = []

        def late(frame: bytes) -> bytes:
            # The answer to the first try comes after that to the second.
            if not is_answer(frame):
                return frame
            held.append(frame)
            return b"" if len(held) <= 10 else frame + held[len(held) - 11]

        proxy.drop(late)
        report = Sink(proxy.url, ackTimeout=NEVER, delivery="at-least-once").write(
            [rows(f"{target.subject}.a", 0, 10)]
        )
        assert len(held) == 20
        assert (report.stored, report.duplicates) == (10, 0)
        assert report.streams[target.name][1] == 20
        assert sorted(numbers(target.url, target.name)) == sorted([*range(10), *range(10)])


class TestNobodyListens:
    def test_dead_letters_for_those_rows_alone(
        self, nats_server: NatsServer, target: Stream
    ) -> None:
        dead = f"{target.subject}.dead"
        for delivery in LEVELS:
            sink = Sink(nats_server.url, delivery=delivery, deadLetterSubject=dead, maxRetries=1)
            at = lambda number: "nowhere.a" if number % 10 == 3 else f"{target.subject}.a"  # noqa: E731
            report = sink.write([rows(at, 0, 100)], task=WriteTask(delivery, 1, 0))
            assert (report.rows, report.stored, report.dead_letters) == (100, 90, 10)
            assert sorted(numbers(target.url, target.name)) == list(range(100))
            letters = [
                message.headers
                for message in seen(target)
                if "Dead-Letter-Subject" in message.headers
            ]
            assert {headers["Dead-Letter-Subject"][0] for headers in letters} == {"nowhere.a"}
            target.purge()

    def test_dead_letters_where_another_subscriber_listens(
        self, nats_server: NatsServer, target: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server then does not say that no stream has the subject: the rows get no answer at all."""

        def late(window: SinkWindow) -> list[InFlight]:
            # All rows but these have their answers.
            rows_in_flight = [flight for flight in window.portions if not flight.portion.any_stream]
            missing = sum(flight.unanswered for flight in rows_in_flight)
            return rows_in_flight if missing == 10 else []

        pass_ack_timeout(monkeypatch, late)
        sink = Sink(
            nats_server.url,
            ackTimeout=NEVER,
            maxRetries=1,
            deadLetterSubject=f"{target.subject}.dead",
        )
        at = lambda number: "nowhere.a" if number % 10 == 3 else f"{target.subject}.a"  # noqa: E731
        with Tap(nats_server.url):
            report = sink.write([rows(at, 0, 100)])
        assert (report.rows, report.stored, report.dead_letters) == (100, 90, 10)
        letters = [
            message.headers for message in seen(target) if "Dead-Letter-Subject" in message.headers
        ]
        assert [headers["Dead-Letter-Reason"] for headers in letters] == [
            ["no stream captures this subject"]
        ] * 10

    def test_a_stream_that_is_made_in_time(self, proxy: WireProxy, stream: MakeStream) -> None:
        refused = proxy.awaiting(b"NATS/1.0 503")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(Sink(proxy.url, maxRetries=30).write, [rows("later.a", 0, 10)])
            assert refused.wait(60)
            made = stream("LATER", storage="memory")
            assert writing.result(60).stored == 10
        assert sorted(numbers(made.url, made.name)) == list(range(10))

    def test_is_asked_once_for_many_rows_and_again_later(
        self, proxy: WireProxy, target: Stream, stream: MakeStream
    ) -> None:
        refusal = functools.partial(answer, body=b"", head=b"NATS/1.0 503\r\n\r\n")
        without_leader = proxy.replace_frames(b'{"stream":"AGAIN"', 3, refusal)
        others, dead = itertools.count(1000), f"{target.subject}.dead"

        def dead_letters() -> int:
            info = target.publisher.api(f"STREAM.INFO.{target.name}", {"subjects_filter": dead})
            return int(info["state"].get("subjects", {}).get(dead, 0))

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows("again.a", 0, 500)
            # These go on until all of the others are refused for good: a row that waits for its
            # second try is stored.
            while dead_letters() < 500:
                yield rows(f"{target.subject}.a", next(others), 1)
            assert 0 < proxy.client_bytes.count(b"STREAM.NAMES") < 100
            stream("AGAIN", storage="memory")
            yield rows("again.a", 500, 1)

        report = Sink(proxy.url, maxRetries=1, maxInFlight=500, deadLetterSubject=dead).write(
            batches()
        )
        assert (report.stored, report.dead_letters) == (next(others) - 1000 + 1, 500)
        assert without_leader.is_set()

    def test_an_api_that_does_not_answer_proves_nothing(
        self, proxy: WireProxy, target: Stream
    ) -> None:
        """Whether a stream has no leader or does not exist only the API can tell."""
        asked = threading.Event()

        def lost(frame: bytes) -> bytes:
            asked.set() if b"stream_names_response" in frame else None
            if is_answer(frame) and b'"stream"' in frame:
                return answer(frame, b"", b"NATS/1.0 503\r\n\r\n")
            return b"" if b"stream_names_response" in frame else frame

        proxy.drop(lost)
        sink = Sink(
            proxy.url, maxRetries=0, requestTimeout="300ms", retryTimeout="30s", ackTimeout="5s"
        )
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, [rows(f"{target.subject}.a", 0, 1)])
            assert asked.wait(60)
            proxy.drop(None)
            assert writing.result(60).stored == 1
        assert numbers(target.url, target.name) == [0]

    def test_the_link_to_another_domain_is_gone(self) -> None:
        """Then the server of a leaf node knows no stream for the subjects of rows that it passed on
        just before.
        """
        with Linked() as linked:
            linked.wait()
            with Publisher(linked.hub.url) as hub, WireProxy(linked.leaf.url) as proxy:
                Stream(linked.hub.url, "FAR", hub)
                with Publisher(
                    linked.leaf.url
                ) as leaf:  # whose server hears a moment later of its subjects
                    wait_until(
                        lambda: passed_on(leaf, "far.first"), "the leaf node passes messages on"
                    )
                cut = threading.Event()

                def batches() -> Iterator[pa.RecordBatch]:
                    answered = proxy.replace_frames(b'{"stream":"FAR"', 3, lambda frame: frame)
                    yield rows("far.a", 0, 3)
                    assert answered.wait(60)  # without maxRetries none may be lost
                    linked.cut()
                    cut.set()
                    yield rows("far.a", 3, 3)

                with ThreadPoolExecutor(1) as pool:
                    writing = pool.submit(
                        Sink(proxy.url, maxRetries=0).write, batches(), names=["data", "subject"]
                    )
                    assert cut.wait(60)
                    asked = proxy.awaiting(b"stream_names_response")
                    writing.add_done_callback(lambda _: asked.set())
                    assert asked.wait(60)
                    linked.mend()
                    assert writing.result().stored == 6

    @pytest.mark.parametrize("named", [True, False], ids=["option stream", "acknowledged rows"])
    def test_the_stream_of_mapped_subjects_is_away(self, named: bool) -> None:
        """The server then knows no stream for the subjects: that a mapping brings their rows to one
        it does not say.
        """
        with NatsCluster(config=MAPPED) as cluster, Publisher(cluster.servers[0].url) as admin:
            Stream(cluster.url, "S", admin)
            home = cluster.leader_of("S")
            with WireProxy(cluster.urls[home - 1]) as proxy:
                with Publisher(cluster.urls[home - 1]) as client:
                    wait_until(
                        lambda: passed_on(client, "in.first"), "the server passes messages on"
                    )
                away = threading.Event()

                def batches() -> Iterator[pa.RecordBatch]:
                    answered = proxy.replace_frames(b'{"stream":"S"', 3, lambda frame: frame)
                    if not named:
                        yield rows("in.a", 0, 3)
                        assert answered.wait(60)
                    cluster.servers[home].stop()
                    away.set()
                    yield rows("in.a", 3, 3)

                sink = Sink(proxy.url, maxRetries=0, **({"stream": "S"} if named else {}))
                with ThreadPoolExecutor(1) as pool:
                    writing = pool.submit(sink.write, batches(), names=["data", "subject"])
                    assert away.wait(60)
                    asked = proxy.awaiting(b"stream_names_response")
                    writing.add_done_callback(lambda _: asked.set())
                    assert asked.wait(60)
                    cluster.restart(home)
                    assert writing.result().stored == (3 if named else 6)

    @pytest.mark.parametrize("unanswered", [0, 1])
    def test_the_stream_of_mapped_subjects_comes_back_between_a_refusal_and_the_question(
        self, unanswered: int
    ) -> None:
        """A row that was sent before the stream answered again is sent once more."""
        with (
            NatsServer(config=MAPPED) as server,
            Publisher(server.url) as admin,
            WireProxy(server.url) as proxy,
        ):
            s = Stream(server.url, "S", admin)
            questions = 0

            def away(frame: bytes) -> bytes:
                nonlocal questions
                if questions <= unanswered and is_answer(frame):
                    return answer(frame, b"", b"NATS/1.0 503\r\n\r\n")
                if b"stream_info_response" in frame:
                    questions += 1
                    return b"" if questions <= unanswered else frame
                return frame

            proxy.drop(away)
            assert Sink(proxy.url, maxRetries=0, stream="S").write([rows("in.a", 0, 1)]).stored == 1
            assert s.state()["messages"] == 1


class TestRefusals:
    @pytest.mark.parametrize(
        "reply",
        [
            (error(10167, 429), b""),
            (error(10077), b""),
            (b"", b"NATS/1.0 429 Too Many Requests\r\n\r\n"),
            (b"", b"NATS/1.0 503\r\n\r\n"),
        ],
        ids=["queue full", "store said no", "status 429", "status 503"],
    )
    def test_rows_are_sent_again_after_temporary_refusals(
        self, proxy: WireProxy, target: Stream, reply: tuple[bytes, bytes]
    ) -> None:
        answers = itertools.count()
        proxy.drop(
            lambda frame: (
                answer(frame, *reply) if is_answer(frame) and next(answers) < 20 else frame
            )
        )
        report = Sink(proxy.url, stream=target.name).write([rows(f"{target.subject}.a", 0, 100)])
        assert (report.stored, report.duplicates) == (100, 20)
        assert numbers(target.url, target.name) == list(range(100))

    @pytest.mark.parametrize(
        "reply", [(error(10167, 429), b""), (b"", b"NATS/1.0 429 Too Many Requests\r\n\r\n")]
    )
    def test_a_full_queue_fails_no_task_while_rows_are_stored(
        self, proxy: WireProxy, target: Stream, reply: tuple[bytes, bytes]
    ) -> None:
        left = [3]  # of which each is waited for longer

        def refuse(frame: bytes) -> bytes:
            if is_answer(frame) and left[0] and b".1 " in frame.partition(b"\r\n")[0]:
                left[0] -= 1
                return answer(frame, *reply)
            return frame

        proxy.drop(refuse)
        sink = Sink(proxy.url, maxRetries=0, retryTimeout="60s")
        report = sink.write([rows(f"{target.subject}.a", 0, 100)])
        assert (report.stored, left) == (100, [0])
        assert numbers(target.url, target.name) == list(range(100))

    def test_a_queue_that_stays_full_is_an_outage_after_retry_timeout(
        self, proxy: WireProxy, target: Stream
    ) -> None:
        proxy.drop(lambda frame: answer(frame, error(10167, 429)) if is_answer(frame) else frame)
        with pytest.raises(
            OutageError, match=r"error 10167.* for 0.5 s \(option retryTimeout\); 0 rows"
        ):
            Sink(proxy.url, maxRetries=2, retryTimeout="500ms").write(
                [rows(f"{target.subject}.a", 0, 100)]
            )

    @pytest.mark.parametrize(
        ("code", "said"),
        [(10023, r"also after 2 retries \(option maxRetries\); 0 rows"), (19999, "said no")],
    )
    def test_a_refusal_that_fails_the_task_has_the_server_error_code(
        self, proxy: WireProxy, target: Stream, code: int, said: str
    ) -> None:
        proxy.drop(lambda frame: answer(frame, error(code)) if is_answer(frame) else frame)
        with pytest.raises(RowRefused, match=said) as raised:
            Sink(proxy.url, maxRetries=2).write([rows(f"{target.subject}.a", 0, 100)])
        assert raised.value.err_code == code

    def test_a_row_stored_by_another_stream(self, proxy: WireProxy, target: Stream) -> None:
        proxy.drop(lambda frame: frame.replace(target.name.encode(), b"Z" * len(target.name)))
        sink = Sink(proxy.url, stream=target.name, maxInFlight=2000)
        with pytest.raises(
            RowRefused, match=f"stream Z+ stored it, not {target.name} .option stream."
        ) as raised:
            sink.write([rows(f"{target.subject}.a", 0, 2000)])
        assert counted(raised.value) == 0


def test_a_server_whose_mirrors_stop_at_the_name_of_a_stream(
    target: Stream, stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows do not name it then: their acknowledgements alone tell which stream has stored them."""
    other, sink = stream(storage="memory"), Sink(target.url, stream=target.name)
    for version, named in (((2, 11, 6), 10), ((2, 11, 5), 0)):
        monkeypatch.setattr(Connection, "server_version", version)
        target.purge()
        assert (
            sink.write([rows(f"{target.subject}.a", 0, 10)], task=WriteTask("q", named, 0)).stored
            == 10
        )
        assert (
            sum(b"\r\nNats-Expected-Stream: " in message.block for message in seen(target)) == named
        )
    with pytest.raises(
        RowRefused, match=f"stream {other.name} stored it, not {target.name} .option stream."
    ):
        sink.write([rows(f"{other.subject}.a", 0, 10)])


class TestSharedReply:
    """Rows share a reply subject once all answers named one stream; these answers only count."""

    FEW: ClassVar[dict[str, Any]] = {
        "maxInFlight": 400
    }  # portions of 200 rows, of which the first three do not share

    @staticmethod
    def replies(proxy: WireProxy, subject: str) -> list[bytes]:
        """The reply subjects of the rows, in the order in which they were sent."""
        found = re.findall(rb"PUB %b\.\w+ (\S+) " % subject.encode(), proxy.client_bytes)
        return [reply for reply in found if reply.rpartition(b".")[2].isdigit()]

    @pytest.mark.parametrize("delivery", LEVELS)
    def test_few_reply_subjects_for_many_rows(
        self, proxy: WireProxy, target: Stream, delivery: str
    ) -> None:
        sink = Sink(proxy.url, delivery=delivery, **self.FEW)
        report = sink.write([rows(f"{target.subject}.a", 0, 4000)])
        assert (report.stored, report.duplicates, report.streams) == (
            4000,
            0,
            {target.name: (1, 4000)},
        )
        assert numbers(target.url, target.name) == list(range(4000))
        sent = self.replies(proxy, target.subject)
        assert (len(sent), len(set(sent[:200])), len(set(sent[600:])) <= 3) == (4000, 200, True)

    @pytest.mark.parametrize("delivery", LEVELS)
    def test_one_refused_row_among_them(
        self, proxy: WireProxy, stream: MakeStream, target: Stream, delivery: str
    ) -> None:
        small = stream(storage="memory", max_msg_size=100 if delivery == "at-least-once" else 300)
        dead = f"{target.subject}.dead"
        sink = Sink(proxy.url, delivery=delivery, deadLetterSubject=dead, **self.FEW)
        # Each row twice: one of two equal rows is as good as the other.
        data = [
            payload(0, 400) if number == 700 else payload(number // 2 * 2) for number in range(2000)
        ]
        report = sink.write([batch(data=data, subject=[f"{small.subject}.a"] * 2000)])
        assert (report.rows, report.stored, report.duplicates, report.dead_letters) == (
            2000,
            1999,
            0,
            1,
        )
        assert sorted(numbers(small.url, small.name)) == [
            number // 2 * 2 for number in range(2000) if number != 700
        ]
        # Later rows do not share a reply subject any more.
        assert len(set(self.replies(proxy, small.subject)[-200:])) == 200

    @pytest.mark.parametrize("delivery", LEVELS)
    def test_one_refused_row_among_others_that_expect_a_sequence(
        self, target: Stream, delivery: str
    ) -> None:
        """The server refuses the copies of stored rows, which are no rows of an earlier attempt."""
        sink = Sink(
            target.url, delivery=delivery, deadLetterSubject=f"{target.subject}.dead", **self.FEW
        )
        subjects = [f"{target.subject}.{number}" for number in range(2000)]
        expected = [7 if number == 700 else 0 for number in range(2000)]
        report = sink.write(
            [batch(data=[b"x"] * 2000, subject=subjects, expected_last_subject_sequence=expected)]
        )
        assert (report.stored, report.duplicates, report.dead_letters) == (1999, 0, 1)
        assert target.state()["messages"] == 2000

    def test_refusals_of_rows_that_nobody_can_read_again(self, stream: MakeStream) -> None:
        """Without ids, and without the permission to look, rows may be stored twice; none is
        missing.
        """
        permissions = '{publish: {deny: ["$JS.API.STREAM.MSG.GET.>"]}}'
        config = (
            f"authorization {{ users: [{{user: w, password: w, permissions: {permissions}}}] }}"
        )
        with NatsServer(config=config) as server:
            url = server.url.replace("//", "//w:w@")
            create(url, "S", max_msg_size=100)
            create(url, "D")
            sink = Sink(url, delivery="at-least-once", deadLetterSubject="D.a", **self.FEW)
            data = [payload(number, 400 if number == 1500 else 0) for number in range(2000)]
            report = sink.write([batch(data=data, subject=["S.a"] * 2000)])
            assert (report.stored, report.dead_letters) == (1999, 1)
            found = numbers(url, "S")
            assert set(found) == {*range(2000)} - {1500}
            assert len(found) <= 1999 + 200 * 3

    @never_late
    @pytest.mark.parametrize("delivery", LEVELS)
    def test_a_lost_answer(self, proxy: WireProxy, target: Stream, delivery: str) -> None:
        proxy.drop_frames(b'"seq":1500', 1)
        sink = Sink(proxy.url, delivery=delivery, ackTimeout=NEVER, **self.FEW)
        report = sink.write([rows(f"{target.subject}.a", 0, 2000)])
        assert (report.stored, report.duplicates) == (2000, 1 if delivery in IDS else 0)
        assert_stored(target.url, target.name, 2000, once=delivery in IDS)

    @pytest.mark.parametrize("delivery", LEVELS)
    def test_rows_for_another_stream(
        self, proxy: WireProxy, target: Stream, stream: MakeStream, delivery: str
    ) -> None:
        other = stream(storage="memory")
        sink = Sink(proxy.url, delivery=delivery, **self.FEW)

        def at(number: int) -> str:
            return f"{other.subject if number > 1000 and number % 3 == 0 else target.subject}.a"

        report = sink.write([rows(at, 0, 2000)])
        assert (report.stored, report.duplicates) == (2000, 0)
        found = sorted(numbers(target.url, target.name) + numbers(other.url, other.name))
        assert found == list(range(2000))

    @never_late
    @pytest.mark.parametrize("delivery", LEVELS)
    def test_two_answers_to_some_rows_prove_nothing(
        self, proxy: WireProxy, target: Stream, delivery: str
    ) -> None:
        """A server between two domains lets streams of both store a row, and both answer."""
        lost = b'"seq":1500}'

        def twice(frame: bytes) -> bytes:
            if b'"seq":1499}' in frame:
                return frame + answer(
                    frame, frame.split(b"\r\n")[1].replace(b'","seq"', b'","domain":"hub","seq"')
                )
            return b"" if lost in frame else frame

        proxy.drop(twice)
        sink = Sink(proxy.url, delivery=delivery, ackTimeout=NEVER, **self.FEW)
        report = sink.write([rows(f"{target.subject}.a", 0, 2000)])
        assert report.stored == 2000
        assert len(re.findall(rb"row 1499\b", proxy.client_bytes)) == 2
        assert_stored(target.url, target.name, 2000, once=delivery in IDS)

    @pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated"])
    def test_refusals_that_pass(self, proxy: WireProxy, target: Stream, delivery: str) -> None:
        """The stream's queue is full for a moment: the rows are refused, and stored when they are
        sent again.
        """
        left = [50]

        def refuse(frame: bytes) -> bytes:
            if left[0] and is_answer(frame) and re.search(rb'"seq":1[5-9]\d\d}', frame):
                left[0] -= 1
                return answer(frame, error(10167, 429))
            return frame

        proxy.drop(refuse)
        sink = Sink(proxy.url, delivery=delivery, **self.FEW)
        report = sink.write([rows(f"{target.subject}.a", 0, 2000)])
        # The server has stored what the proxy says it has refused.
        assert (report.stored, report.duplicates, left) == (2000, 50 if delivery in IDS else 0, [0])
        assert_stored(target.url, target.name, 2000, once=delivery in IDS)

    @pytest.mark.parametrize("delivery", LEVELS)
    def test_the_error_of_a_failed_task_counts_its_stored_rows(
        self, proxy: WireProxy, stream: MakeStream, delivery: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_write_timing(monkeypatch, last_answers=20.0)  # all come
        small = stream(storage="memory", max_msg_size=300)
        data = [payload(number, 400 if number == 1500 else 0) for number in range(2000)]
        sink = Sink(proxy.url, delivery=delivery, **self.FEW)
        with pytest.raises(RowRefused, match="row 1501 of partition 0 cannot be stored") as raised:
            sink.write([batch(data=data, subject=[f"{small.subject}.a"] * 2000)])
        assert counted(raised.value) == len(numbers(small.url, small.name))


EXPECTED = ("data", "subject", "expected_last_subject_sequence")


class TestExpectedSequence:
    @pytest.mark.parametrize("lost", ["answers", "connection"])
    @pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated"])
    def test_rows_that_were_stored_are_known_again(
        self,
        proxy: WireProxy,
        target: Stream,
        delivery: str,
        lost: str,
        request: pytest.FixtureRequest,
    ) -> None:
        """The second try is refused for the first one's sake; each row of the chain follows the one
        before it.
        """
        if lost == "answers":
            request.getfixturevalue("never_late")
        chain = batch(
            data=[payload(number) for number in range(20)],
            subject=[f"{target.subject}.a"] * 20,
            expected_last_subject_sequence=list(range(20)),
        )

        def batches() -> Iterator[pa.RecordBatch]:
            # Not the answers to the second try, which may be sent before the last of these is lost.
            proxy.drop_frames(f'{{"stream":"{target.name}"'.encode(), 20)
            yield chain
            proxy.wait(lambda: proxy.dropped == 20)
            if lost == "connection":
                proxy.cut()

        report = Sink(proxy.url, delivery=delivery, ackTimeout=NEVER).write(
            batches(), names=EXPECTED
        )
        assert (report.rows, report.stored, report.duplicates) == (20, 20, 20)
        assert report.streams == {target.name: (1, 20)}
        assert numbers(target.url, target.name) == list(range(20))

    @never_late
    def test_rows_are_known_again_at_the_subject_that_the_stream_makes_of_theirs(
        self, proxy: WireProxy, stream: MakeStream
    ) -> None:
        s = stream(storage="memory", subject_transform={"src": ">", "dest": "moved.>"})
        subject = [f"{s.subject}.a"] * 3
        chain = batch(
            data=[payload(number) for number in range(3)],
            subject=subject,
            expected_last_subject_sequence=[0, 1, 2],
        )
        proxy.drop_frames(f'{{"stream":"{s.name}"'.encode(), 3)
        report = Sink(proxy.url, ackTimeout=NEVER).write([chain])
        assert (report.stored, report.duplicates) == (3, 3)
        assert [message.subject for message in seen(s)] == [f"moved.{s.subject}.a"] * 3

    @never_late
    def test_a_row_is_known_again_at_a_subject_that_is_not_utf8(
        self, proxy: WireProxy, target: Stream
    ) -> None:
        """Nobody can ask for that in a request, which is JSON."""
        subject = pa.array([target.subject.encode() + b".\xff"], pa.binary()).view(pa.string())
        row = batch(data=[payload(0)], subject=subject, expected_last_subject_sequence=[0])
        proxy.drop_frames(f'{{"stream":"{target.name}"'.encode(), 1)
        report = Sink(proxy.url, ackTimeout=NEVER, stream=target.name).write([row])
        assert (report.stored, report.duplicates, target.state()["messages"]) == (1, 1, 1)

    @never_late
    @pytest.mark.parametrize("repeat", [False, True], ids=["first try", "second try"])
    @pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated"])
    @pytest.mark.parametrize("theirs", [b"other", b"row 0"])
    def test_a_row_that_comes_too_late_is_refused(
        self, proxy: WireProxy, target: Stream, delivery: str, repeat: bool, theirs: bytes
    ) -> None:
        target.send(Message(f"{target.subject}.a", theirs))
        row = batch(
            data=[payload(0)], subject=[f"{target.subject}.a"], expected_last_subject_sequence=[0]
        )
        if repeat:
            proxy.drop_frames(b"wrong last sequence")
        sink = Sink(proxy.url, delivery=delivery, ackTimeout=NEVER)
        with pytest.raises(RowRefused, match=r"wrong last sequence: 1 \(error 10071\)") as raised:
            sink.write([row])
        assert (raised.value.err_code, counted(raised.value)) == (10071, 0)
        assert target.state()["messages"] == 1

    def test_a_row_that_was_sent_once_is_not_looked_for(self, target: Stream) -> None:
        """Another writer's message may be the same in every header; without an id only a second try
        is one's own.
        """
        own = ("Nats-Expected-Last-Subject-Sequence", "0")
        target.send(Message(f"{target.subject}.a", payload(0), [own]))
        row = batch(
            data=[payload(0)], subject=[f"{target.subject}.a"], expected_last_subject_sequence=[0]
        )
        with pytest.raises(RowRefused, match=r"wrong last sequence: 1 \(error 10071\)"):
            Sink(target.url, delivery="at-least-once").write([row])


class TestFullSubject:
    """A stream may refuse what is new at a subject that has all it may have, which can be the row's
    own first copy.
    """

    FULL: ClassVar[dict[str, Any]] = {
        "storage": "memory",
        "discard": "new",
        "discard_new_per_subject": True,
    }

    @never_late
    def test_a_lost_answer(self, proxy: WireProxy, stream: MakeStream) -> None:
        s = stream(max_msgs_per_subject=1, **self.FULL)
        proxy.drop_frames(f'{{"stream":"{s.name}"'.encode(), 5)
        sink = Sink(proxy.url, delivery="at-least-once", ackTimeout=NEVER)
        report = sink.write([rows(lambda number: f"{s.subject}.{number}", 0, 20)])
        assert (report.stored, report.duplicates) == (20, 5)
        assert numbers(s.url, s.name) == list(range(20))

    @pytest.mark.parametrize("named", [True, False])
    @pytest.mark.parametrize("most", [1, 3])
    def test_an_attempt_that_comes_when_the_ids_are_forgotten(
        self, stream: MakeStream, most: int, named: bool
    ) -> None:
        s = stream(max_msgs_per_subject=most, duplicate_window=SECOND // 10, **self.FULL)
        sink = Sink(s.url, **({"stream": s.name} if named else {}))
        at = lambda number: f"{s.subject}.{number // most}"  # noqa: E731
        sink.write([rows(at, 0, 12)])
        wait_until(lambda: s.last_age() > SECOND, "the stream has forgotten the ids")
        report = sink.write([rows(at, 0, 12)])
        assert (report.stored, report.duplicates, report.streams) == (12, 12, {s.name: (1, 12)})
        # A row of another write is no copy.
        with pytest.raises(RowRefused, match="maximum messages per subject exceeded"):
            sink.write([rows(at, 0, 1)], task=WriteTask("another", 1, 0))


class TestDeadLetters:
    @pytest.mark.parametrize("delivery", LEVELS)
    def test_thousands_at_once(
        self, nats_server: NatsServer, stream: MakeStream, delivery: str
    ) -> None:
        small, dead = stream(storage="memory", max_msg_size=200), stream(storage="memory")
        sink = Sink(
            nats_server.url,
            delivery=delivery,
            deadLetterSubject=f"{dead.subject}.row",
            stream=small.name,
        )
        data = [payload(number, 400 if number % 2 else 10) for number in range(2000)]
        batches = [batch(data=data, subject=[f"{small.subject}.a"] * 2000)]
        report = sink.write(batches)
        assert (report.rows, report.stored, report.dead_letters) == (2000, 1000, 1000)
        assert report.streams == {small.name: (1, 1000)}
        assert numbers(small.url, small.name) == list(range(0, 2000, 2))
        assert sorted(numbers(dead.url, dead.name)) == list(range(1, 2000, 2))
        # Written again, the letters of the other levels are the same.
        assert sink.write(batches).dead_letters == 1000
        assert len(stored(dead.url, dead.name)) == (2000 if delivery == "at-least-once" else 1000)

    def test_a_deleted_dead_letter_stream_fails_the_task(
        self, nats_server: NatsServer, stream: MakeStream
    ) -> None:
        small, dead = stream(storage="memory", max_msg_size=200), stream(storage="memory")

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(f"{small.subject}.a", 0, 10, 400)
            yield rows(f"{small.subject}.a", 10, 10)
            dead.wait_for(10)
            dead.delete()
            yield rows(f"{small.subject}.a", 20, 10, 400)

        sink = Sink(
            nats_server.url, deadLetterSubject=f"{dead.subject}.row", maxInFlight=10, maxRetries=1
        )
        with pytest.raises(
            RowRefused, match=rf"'{dead.subject}\.row': no stream captures this subject"
        ) as raised:
            sink.write(batches())
        assert counted(raised.value) == 10 == small.state()["messages"]

    def test_refused_rows_with_the_same_id_for_two_streams(
        self, nats_server: NatsServer, stream: MakeStream
    ) -> None:
        some, dead = [stream(max_msg_size=100) for _ in range(2)], stream()
        subjects = [f"{each.subject}.a" for each in some]
        refused = [batch(data=[payload(0, 400)] * 2, subject=subjects, msg_id=["mine", "mine"])]
        for delivery in IDS:
            sink = Sink(nats_server.url, delivery=delivery, deadLetterSubject=f"{dead.subject}.row")
            for _ in range(2):
                assert sink.write(refused, task=WriteTask(delivery, 1, 0)).dead_letters == 2
                # Neither another attempt nor another write has other ids.
                assert sorted(
                    message.headers["Dead-Letter-Subject"][0] for message in seen(dead)
                ) == sorted(subjects)

    @pytest.mark.parametrize("option", ["stream", "bucket"])
    def test_an_attempt_that_comes_when_the_ids_are_forgotten(
        self, stream: MakeStream, option: str
    ) -> None:
        """The stream of the dead letters refuses a second one; that it has the first one is seen
        there alone.
        """
        dead = stream(max_msgs_per_subject=1, duplicate_window=SECOND // 10, **TestFullSubject.FULL)
        if option == "stream":
            small = stream(storage="memory", max_msg_size=200)
            given, refused = {"stream": small.name}, rows(f"{small.subject}.a", 0, 1, 400)
        else:
            stream("KV_SMALL", storage="memory", max_msg_size=200, subjects=["$KV.SMALL.>"])
            given, refused = {"bucket": "SMALL"}, batch(key=["a"], value=[payload(0, 400)])
        sink = Sink(dead.url, deadLetterSubject=f"{dead.subject}.row", **given)
        sink.write([refused])
        wait_until(lambda: dead.last_age() > SECOND, "the stream has forgotten the id")
        report = sink.write([refused])
        assert (report.rows, report.stored, report.dead_letters) == (1, 0, 1)
        assert numbers(dead.url, dead.name) == [0]


class TestSharing:
    def test_two_tasks_on_one_connection(self, proxy: WireProxy, target: Stream) -> None:
        sink = Sink(proxy.url, maxInFlight=200)
        together = threading.Barrier(2)

        def attempt(partition: int) -> int:
            def batches() -> Iterator[pa.RecordBatch]:
                together.wait(60)
                for index in range(10):
                    if index == 5:
                        proxy.cut_after(1000)
                    yield rows(
                        f"{target.subject}.{partition}", 100_000 * partition + 500 * index, 500
                    )

            return sink.write(batches(), task=WriteTask("q", 1, partition)).stored

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(attempt, (1, 2))) == [5000, 5000]
        wanted = [*range(100_000, 105_000), *range(200_000, 205_000)]
        assert sorted(numbers(target.url, target.name)) == wanted

    def test_no_inbox_is_left(self, nats_server_factory: Callable[..., NatsServer]) -> None:
        """However a task ends, its subscription ends with it."""
        server = nats_server_factory(http_monitor=True)
        create(server.url, "LEFT", subjects=["left.>"])
        sink = Sink(server.url, maxRetries=0)

        def broken() -> Iterator[pa.RecordBatch]:
            yield rows("left.a", 0, 10)
            raise JetStreamError("no more rows")

        def subscriptions() -> int:
            connections: list[dict[str, Any]] = server.monitor("/connz?subs=true")["connections"]
            return sum(
                int(each["subscriptions"])
                for each in connections
                if each.get("name") == "spark-jetstream"
            )

        sink.write([rows("left.a", 0, 10)])
        sink.connect(5).api("$JS.API.INFO", b"", context="look")
        with pytest.raises(RowRefused):
            sink.write([rows("nowhere.a", 0, 10)])
        with pytest.raises(JetStreamError, match="no more rows"):
            sink.write(broken())
        wait_until(lambda: subscriptions() == 1, "the inbox of requests alone")


@pytest.mark.parametrize("delivery", LEVELS)
def test_a_row_that_is_lost_in_the_sink(
    target: Stream, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bug that loses rows is known. If there is one, the task fails, and is not noted as done."""
    send = Free.send

    def lossy(order: Free, some: Rows, ids: pa.BinaryArray | None) -> None:
        send(order, some.take(np.arange(9)), None if ids is None else ids.slice(0, 9))

    sink, ten = Sink(target.url, delivery=delivery), [rows(f"{target.subject}.a", 0, 10)]
    monkeypatch.setattr(Free, "send", lossy)
    with pytest.raises(JetStreamError, match="of 10 rows only 9 count as stored"):
        sink.write(ten)
    monkeypatch.undo()
    assert sink.write(ten).stored == 10
    assert set(numbers(target.url, target.name)) == set(range(10))
