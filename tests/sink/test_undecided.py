"""A leader that cannot reach its replicas answers copies of a row while it has decided nothing
about the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import OutageError
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.testing import NatsCluster
from tests.support.proxy import WireProxy
from tests.support.reading import wait_until
from tests.support.sinking import Sink, batch, stored

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("no_connection_left")]

SAME_ID, SAME_SUBJECT = b'"err_code":10158', b'"err_code":10164'


class Alone:
    """A stream of three replicas whose leader is behind a proxy; the servers of the other two can
    be frozen.
    """

    def __init__(self, cluster: NatsCluster, stream: str, proxy: WireProxy) -> None:
        leader = cluster.leader_of(stream)
        self.proxy = proxy
        self._others = [server for index, server in enumerate(cluster.servers) if index != leader]

    def write(
        self, given: pa.RecordBatch, at: bytes, answer: bytes, answers: int = 3, **options: object
    ) -> TaskReport:
        """Return the report of a task that is without the other servers for a while.

        They are frozen when it sends `at`, and resumed after `answers` of these answers. After the
        second answer it is sure that the sink has not taken the first one for a decision.
        """
        sink = Sink(self.proxy.url, **{"ackTimeout": "500ms", "retryTimeout": "60s", **options})
        came = self.proxy.replace_frames(answer, answers, lambda frame: frame)
        sent = self.proxy.stall_at(at)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, [given])
            writing.add_done_callback(lambda _: came.set())
            assert sent.wait(60)
            for server in self._others:
                server.pause()
            self.proxy.unstall()
            assert came.wait(120)
            self.resume()
            return writing.result()

    def resume(self) -> None:
        for server in self._others:
            server.resume()


@pytest.fixture
def alone(nats_cluster: NatsCluster) -> Iterator[Callable[..., Alone]]:
    """Give a function that makes a stream, or takes an existing one."""
    with ExitStack() as leaving:

        def make(stream: str, **config: Any) -> Alone:
            if config:
                with JetStreamAdmin(servers=nats_cluster.url, requestTimeout="20s") as admin:
                    admin.streams.create(stream, num_replicas=3, **config)
            proxy = leaving.enter_context(
                WireProxy(nats_cluster.urls[nats_cluster.leader_of(stream)])
            )
            made = Alone(nats_cluster, stream, proxy)
            leaving.callback(made.resume)
            return made

        yield make
    nats_cluster.wait_ready()
    with JetStreamAdmin(servers=nats_cluster.url, requestTimeout="20s") as admin:
        for stream in admin.streams.names():
            admin.streams.delete(stream)


def holds(cluster: NatsCluster, stream: str, *data: bytes) -> None:
    """A leader that was elected when the other servers returned may say a moment later what it has."""
    wait_until(lambda: bool(stored(cluster.url, stream)), "the first message")
    assert sorted(stored(cluster.url, stream)) == [*data]


def test_a_row_that_expects_a_sequence(
    nats_cluster: NatsCluster, alone: Callable[..., Alone]
) -> None:
    leader = alone("SEQUENCE", subjects=["s.>"])
    given = batch(data=[b"x"], subject=["s.a"], expected_last_subject_sequence=[0])
    assert (
        leader.write(
            given, b"PUB s.a ", SAME_SUBJECT, delivery="at-least-once", stream="SEQUENCE"
        ).stored
        == 1
    )
    holds(nats_cluster, "SEQUENCE", b"x")


def test_rows_with_ids_wait_longer_than_their_retries(
    nats_cluster: NatsCluster, alone: Callable[..., Alone]
) -> None:
    leader = alone("IDS", subjects=["s.>"])
    given = batch(data=[b"x", b"y"], subject=["s.a", "s.b"])
    assert (
        leader.write(
            given, b"PUB s.a ", SAME_ID, 8, delivery="deduplicated", stream="IDS", maxRetries=1
        ).stored
        == 2
    )
    holds(nats_cluster, "IDS", b"x", b"y")


def test_a_leader_that_decides_nothing_for_too_long(alone: Callable[..., Alone]) -> None:
    leader = alone("PATIENCE", subjects=["s.>"])
    given = batch(data=[b"x"], subject=["s.a"])
    with pytest.raises(
        OutageError,
        match=r"row 1 of .* cannot be stored: .*error 10158.* for 1 s \(option retryTim",
    ):
        leader.write(
            given,
            b"PUB s.a ",
            SAME_ID,
            1000,
            delivery="deduplicated",
            stream="PATIENCE",
            retryTimeout="1s",
        )


def test_a_key_that_must_be_new(nats_cluster: NatsCluster, alone: Callable[..., Alone]) -> None:
    with JetStreamAdmin(servers=nats_cluster.url, requestTimeout="20s") as admin:
        admin.kv.create("b", replicas=3)
        leader = alone("KV_b")
        given = batch(key=["a"], value=[b"x"], expected_revision=[0])
        assert (
            leader.write(
                given, b"PUB $KV.b.a ", SAME_SUBJECT, bucket="b", delivery="at-least-once"
            ).stored
            == 1
        )
        assert [entry.value for entry in admin.kv.bucket("b").history("a")] == [b"x"]


def test_an_object_that_takes_the_place_of_another(
    nats_cluster: NatsCluster, alone: Callable[..., Alone]
) -> None:
    with JetStreamAdmin(servers=nats_cluster.url, requestTimeout="20s") as admin:
        admin.objects.create("b", replicas=3)
        bucket = admin.objects.bucket("b")
        bucket.put("o", b"old" * 1000)
        leader = alone("OBJ_b")
        given = batch(name=["o"], content=[b"new" * 1000])
        assert (
            leader.write(given, b"PUB $O.b.M.", SAME_SUBJECT, objectBucket="b", maxRetries=1).stored
            == 1
        )
        assert bucket.get("o") == b"new" * 1000
