"""`read_direct` against the real server: its rows and its requests.

`test_readers.py` has the tests of all readers; `test_direct_answers.py` has replicas that lag,
mirrors, and answers that lie.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.client.tcp import TcpWire
from spark_jetstream.errors import JetStreamError, PermissionDenied
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.source.probes import DirectProbe
from spark_jetstream.testing import NatsServer
from tests.support.jobs import run_python
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
    direct,
    fill,
    options,
    part_of,
    pulls,
    sequences,
    some,
    wait_until,
)


def test_rows_are_those_of_a_consumer(server: NatsServer) -> None:
    create(server.url, "G", allow_direct=True)
    chance = random.Random(3)
    with Publisher(server.url) as publisher:
        publisher.publish(
            Message(
                f"G.{chance.choice('abc')}.größe",
                chance.randbytes(chance.randrange(0, 300)),
                chance.choice(
                    [
                        None,
                        [],
                        [("A", "1"), ("B", ""), ("A", "2")],
                        [("Nats-Stream", "X"), ("Status", "404")],
                    ]
                ),
            )
            for _ in range(500)
        )
    for subjects in ((), ("G.a.*",), ("G.a.*", "G.c.>")):
        part = part_of(server.url, "G", subjects=subjects, count=None)
        settings = replace(SETTINGS, batch=60)
        assert rows(direct(server.url, part, settings)) == rows(pulls(server.url, part, settings))


def rows(read: Iterator[MessageRun]) -> list[tuple[Any, ...]]:
    """Everything of every message."""
    return [
        row
        for run in read
        for row in zip(
            run.sequences.tolist(),
            run.timestamps().tolist(),
            run.subjects().to_pylist(),
            run.headers().to_pylist(),
            run.payloads().to_pylist(),
            strict=True,
        )
    ]


READ = """
import sys
from spark_jetstream.buckets.kv import bucket_batch
from spark_jetstream.protocol.columns import record_batch
from spark_jetstream.protocol.counters import counter_batch
from spark_jetstream.schema import BUCKET_COLUMNS, COLUMN_NAMES
from spark_jetstream.source.as_of import PastTable, read_past
from tests.support.reading import SETTINGS, connecting, direct, part_of, pulls
part = part_of(sys.argv[1], "KV_B", subjects=("$KV.B.a", "$KV.B.b"))
for read in (direct, pulls):
    rows, found = 0, []
    for run in read(sys.argv[1], part):
        rows += len(record_batch(run, stream="KV_B", columns=COLUMN_NAMES))
        table = bucket_batch(run, bucket="B", columns=[column.name for column in BUCKET_COLUMNS])
        found += table["operation"].to_pylist()
    print(rows, found, "pandas" in sys.modules)
past = PastTable("KV_B", part.created, ("$KV.B.a", "$KV.B.b.*"), direct=True, revision=2)
print([run.sequences.tolist() for run in read_past(connecting(sys.argv[1]), past, SETTINGS, "a")])
for run in direct(sys.argv[1], part_of(sys.argv[1], "C")):
    print(counter_batch(run, stream="C", columns=["value", "sources"]).to_pylist(), "pandas" in sys.modules)
"""


def test_reading_imports_no_pandas(server: NatsServer) -> None:
    """Spark looks for garbage in all that a worker has imported, after each task."""
    create(server.url, "KV_B", subjects=["$KV.B.>"], allow_direct=True)
    operations = (
        None,
        [("KV-Operation", "DEL"), ("KV-Operation", "x")],
        [("A", "1"), ("KV-Operation", "PURGE")],
    )
    with Publisher(server.url) as publisher:
        publisher.publish(
            [Message(f"$KV.B.{key}", b"", headers) for headers in operations for key in "ab"]
        )
        publisher.publish([Message("$KV.B.a", block=b"NATS/1.0\r\nA: not \xff UTF-8\r\n\r\n")])
        sources = '{"A": {"a.1": "3", "a.2": "2"}, "B": {}}'
        create(server.url, "C", subjects=["C.>"], allow_direct=True)
        messages = ((b'{"val":"5"}', [("Nats-Counter-Sources", sources)]), (b'{"val": "6"}', None))
        publisher.publish([Message("C.a", *message) for message in messages])
    said = f"7 {['PUT', 'PUT', 'DELETE', 'DELETE', 'PURGE', 'PURGE', 'PUT']} False"
    read = [("A", [("a.1", "3"), ("a.2", "2")]), ("B", [])]
    counters = [{"value": "5", "sources": read}, {"value": "6", "sources": None}]
    assert run_python("-c", READ, server.url).splitlines() == [
        said,
        said,
        "[[1]]",
        f"{counters} False",
    ]


def test_direct_get_cuts_two_bytes_from_a_header_without_line_end(
    server: NatsServer,
) -> None:
    create(server.url, "G", allow_direct=True)
    blocks = [
        b"garbage",
        b"\r\n\r\n",
        b"\r\n",
        b"x",
        b"NATS/1.0\r\nX: Nats-Stream: \r\n",
        b"NATS/1.0\r\nX: 1234",
    ]
    with Publisher(server.url) as publisher:
        publisher.publish([Message("G.a", b"cut", block=block) for block in blocks])
    part = part_of(server.url, "G")
    found, delivered = rows(direct(server.url, part)), rows(pulls(server.url, part))
    assert found[:-1] == delivered[:-1]
    assert (found[-1][3], delivered[-1][3]) == ([("X", ["12"])], [("X", ["1234"])])


def test_no_consumer_is_made(server: NatsServer) -> None:
    create(server.url, "EVENTS", subjects=["$JS.EVENT.ADVISORY.CONSUMER.CREATED.>"])

    def made() -> int:
        return int(api(server.url, "STREAM.INFO.EVENTS")["state"]["messages"])

    read = direct(
        server.url, part_of(server.url, "S", subjects=("S.*", "T")), replace(SETTINGS, batch=100)
    )
    found = some(read)
    assert consumers(server.url, "S") == []
    assert found + sequences(read) == ALL
    asking = Requests(connecting(server.url), 5.0)
    view = DirectProbe(asking, "S", ("S.a",))
    assert (view.pending(1), view.pending(COUNT + 1)) == (COUNT, 0)
    assert [view.peek(5), view.last()] != [None, None]
    assert view.first_after(0, asking.stream("S")) is not None
    assert (consumers(server.url, "S"), made()) == ([], 0)
    # The server does say when one is made.
    assert sequences(pulls(server.url, part_of(server.url, "S"))) == ALL
    wait_until(lambda: made() == 1, "the advisory")


def test_its_inbox_does_not_slow_the_connection_down(server: NatsServer) -> None:
    connection = connect(options(server.url))
    wire = connection._login.wire
    assert isinstance(wire, TcpWire)
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    assert wire.pace() == 0.0
    with connection.inbox(replies=True) as other:
        other.pace = 0.008
        assert wire.pace() == 0.008
    wait_until(lambda: wire.pace() == 0.0, "the end of the pace")
    assert found + sequences(read) == ALL


# The wire


def test_a_server_too_old_for_batches(server: NatsServer, proxy: WireProxy) -> None:
    version = re.compile(rb'"version":"[^"]*"')
    proxy.drop(
        lambda frame: (
            version.sub(b'"version":"2.10.29"', frame) if frame.startswith(b"INFO") else frame
        )
    )
    requests = Requests(connecting(proxy.url), 5.0)
    view, state = DirectProbe(requests, "S", ()), requests.stream("S")
    asks = (
        lambda: sequences(direct(proxy.url, part_of(server.url, "S"))),
        lambda: view.check(state),
        lambda: view.pending(1),
    )
    for ask in asks:
        with pytest.raises(JetStreamError, match=r"2\.10\.29"):
            ask()


# The stream


@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_that_does_not_allow_it(server: NatsServer, begun: bool) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read) if begun else []
    config = api(server.url, "STREAM.INFO.S")["config"]
    api(server.url, "STREAM.UPDATE.S", {**config, "allow_direct": False})
    said = "stream S does not answer direct gets.* set .*allow_direct to true"
    with pytest.raises(JetStreamError, match=said) as caught:
        collect(read, found)
    assert not caught.value.retriable
    assert found == ALL[: len(found)]
    # It has nothing to do with patience.
    with pytest.raises(JetStreamError, match=said):
        DirectProbe(Requests(connecting(server.url), 30.0), "S", ()).pending(1)


def test_a_leader_that_may_not_be_asked() -> None:
    reader = '{user: r, password: p, permissions: {publish: {deny: "$JS.API.STREAM.MSG.GET.>"}}}'
    with NatsServer(
        config=f"authorization {{ users: [{{user: admin, password: p}}, {reader}] }}"
    ) as server:
        admin, where = (server.url.replace("//", f"//{user}:p@") for user in ("admin", "r"))
        create(admin, "S", allow_direct=True)
        fill(admin, "S", 2)
        part = part_of(admin, "S", count=1)
        # Now only the leader can say that the range is complete.
        api(admin, "STREAM.MSG.DELETE.S", {"seq": 2})
        with pytest.raises(PermissionDenied, match="only the leader can say") as caught:
            sequences(direct(where, part))
        assert caught.value.subject == "$JS.API.STREAM.MSG.GET.S"
