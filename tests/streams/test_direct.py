"""`read_direct` against the real server, while the wire, the server and the stream are broken under it.

The counterpart of `test_pull.py`: whatever happens, a range gives its messages in order and each once, or an error that
says what is gone. Answers that lie are in `test_direct_answers.py`.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from spark_jetstream.client import nats_py
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import DataLossError, JetStreamError, OutageError, PermissionDenied, ProtocolError
from spark_jetstream.protocol.columns import Messages
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.direct_probe import DirectProbe
from spark_jetstream.source.stream_probe import StreamProbe
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import (
    SETTINGS,
    api,
    collect,
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

COUNT = 3000
ALL = list(range(1, COUNT + 1))

pytestmark = pytest.mark.usefixtures("no_connection_left")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server with a stream S of `COUNT` messages, on disk."""
    with NatsServer() as running:
        create(running.url, "S", storage="file", allow_direct=True)
        fill(running.url, "S", COUNT)
        yield running


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[WireProxy]:
    """Between the reader and the server."""
    with WireProxy(server.url) as between:
        yield between


# Nothing goes wrong


def test_a_range_is_read_whole(server: NatsServer) -> None:
    assert sequences(direct(server.url, part_of(server.url, "S"))) == ALL


def test_a_range_ends_where_it_ends(server: NatsServer) -> None:
    assert sequences(direct(server.url, part_of(server.url, "S", 100, 1101))) == ALL[99:1100]
    assert sequences(direct(server.url, part_of(server.url, "S", 100, 101))) == [100]
    assert sequences(direct(server.url, part_of(server.url, "S", 100, 100))) == []
    assert sequences(direct(server.url, part_of(server.url, "S", 2999, 9999, count=2))) == [2999, 3000]


def test_messages_published_behind_a_range_do_not_come(server: NatsServer) -> None:
    read = direct(server.url, part_of(server.url, "S"))
    first = some(read)
    fill(server.url, "S", 500)
    assert first + sequences(read) == ALL


@pytest.mark.parametrize("subjects", [("G.even",), ("G.even", "G.third"), ("*.even",), ("G.none",)], ids=str)
def test_filters(server: NatsServer, subjects: tuple[str, ...]) -> None:
    create(server.url, "G", allow_direct=True)
    fill(server.url, "G", 600, lambda i: ("even", "odd", "third")[i % 3])
    residues = {"G.even": 0, "*.even": 0, "G.third": 2}
    wanted = [i + 1 for i in range(600) if i % 3 in {residues.get(subject) for subject in subjects}]
    whole = part_of(server.url, "G", subjects=subjects, count=len(wanted))
    settings = replace(SETTINGS, batch=70)
    assert sequences(direct(server.url, whole, settings)) == wanted
    for first, end in ((1, 300), (300, 599), (599, 601)):
        inside = [sequence for sequence in wanted if first <= sequence < end]
        part = replace(whole, first=first, end=end, count=len(inside))
        assert sequences(direct(server.url, part, settings)) == inside


def test_rows_are_those_of_a_consumer(server: NatsServer) -> None:
    create(server.url, "G", allow_direct=True)
    chance = random.Random(3)
    with Publisher(server.url) as publisher:
        publisher.publish(
            Message(
                f"G.{chance.choice('abc')}.größe",
                chance.randbytes(chance.randrange(0, 300)),
                chance.choice(
                    [None, [], [("A", "1"), ("B", ""), ("A", "2")], [("Nats-Stream", "X"), ("Status", "404")]]
                ),
            )
            for _ in range(500)
        )
    for subjects in ((), ("G.a.*",), ("G.a.*", "G.c.>")):
        part = part_of(server.url, "G", subjects=subjects, count=None)
        settings = replace(SETTINGS, batch=60)
        assert rows(direct(server.url, part, settings)) == rows(pulls(server.url, part, settings))


def rows(read: Iterator[Messages]) -> list[tuple[Any, ...]]:
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


#: What a publisher may send as a header block; a server stores it without a word.
BLOCKS = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 404 Message Not Found\r\n\r\n",
    b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\n\r\n",
    b"NATS/1.0\r\nX: 1\r\n",
    b"NATS/1.0\r\nX: 1\r\n\r\nY: 2\r\n\r\n",
    b"NATS/1.0\r\nNats-Sequence: 77\r\nNats-Stream: X\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nX: Nats-Stream: \r\n",
    b"\r\nA: 1\r\n\r\n",
    b"garbage\r\n\r\n",
    b"garbage",
    b"\r\n\r\n",
    b"\r\n",
    b"x",
]


def test_odd_header_blocks(server: NatsServer) -> None:
    create(server.url, "G", allow_direct=True)
    with Publisher(server.url) as publisher:
        publisher.publish([Message("G.a", b"%d" % at, block=block) for at, block in enumerate(BLOCKS)])
        publisher.publish([Message("G.a", b"", block=block) for block in BLOCKS])
        publisher.publish([Message("G.a", b"cut", block=b"NATS/1.0\r\nX: 1234")])
    part = part_of(server.url, "G")
    found, delivered = rows(direct(server.url, part)), rows(pulls(server.url, part))
    assert found[:-1] == delivered[:-1]
    # Of a block that ends without any line end the server keeps two bytes for itself.
    assert (found[-1][3], delivered[-1][3]) == ([("X", ["12"])], [("X", ["1234"])])


def test_one_message_for_each_request(server: NatsServer) -> None:
    assert sequences(direct(server.url, part_of(server.url, "S", 1, 301), replace(SETTINGS, batch=1))) == ALL[:300]


@pytest.mark.parametrize("sizes", [[300_000] * 4, [10, 400_000, 10, 10, 900_000, 10], [900_000, 10]], ids=str)
def test_messages_larger_than_the_bytes_of_a_request(server: NatsServer, sizes: list[int]) -> None:
    create(server.url, "LARGE", allow_direct=True)
    for size in sizes:
        fill(server.url, "LARGE", 1, size=size)
    part = part_of(server.url, "LARGE")
    read = list(direct(server.url, part, replace(SETTINGS, max_bytes=64 * 1024)))
    assert sequences(iter(read)) == list(range(1, len(sizes) + 1))
    assert [len(data) for run in read for data in run.payloads().to_pylist()] == sizes


def test_requests_bounded_by_bytes(server: NatsServer, proxy: WireProxy) -> None:
    fill(server.url, "S", 1, size=500_000)
    part = part_of(server.url, "S")
    assert sequences(direct(proxy.url, part, replace(SETTINGS, batch=10_000, max_bytes=5000))) == [*ALL, COUNT + 1]
    assert 5 < proxy.client_bytes.count(b"DIRECT.GET") < 100


def test_gaps(server: NatsServer) -> None:
    for sequence in (1, 2, 500, 1500, 2999, COUNT):
        api(server.url, "STREAM.MSG.DELETE.S", {"seq": sequence, "no_erase": True})
    left = [sequence for sequence in ALL if sequence not in {1, 2, 500, 1500, 2999, COUNT}]
    assert sequences(direct(server.url, part_of(server.url, "S", count=len(left)))) == left
    assert sequences(direct(server.url, part_of(server.url, "S", 500, 501, count=0))) == []


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_nothing_is_consumed(server: NatsServer, retention: str) -> None:
    create(server.url, "W", retention=retention, allow_direct=True)
    holder = {"durable_name": "holder", "ack_policy": "explicit"}
    api(server.url, "CONSUMER.CREATE.W.holder", {"stream_name": "W", "config": holder})
    fill(server.url, "W", 700)
    for _ in range(2):
        assert sequences(direct(server.url, part_of(server.url, "W"))) == ALL[:700]
    assert api(server.url, "STREAM.INFO.W")["state"]["messages"] == 700
    assert api(server.url, "CONSUMER.INFO.W.holder")["num_pending"] == 700


def test_no_consumer_is_made(server: NatsServer) -> None:
    create(server.url, "EVENTS", subjects=["$JS.EVENT.ADVISORY.CONSUMER.CREATED.>"])

    def made() -> int:
        return int(api(server.url, "STREAM.INFO.EVENTS")["state"]["messages"])

    read = direct(server.url, part_of(server.url, "S", subjects=("S.*", "T")), replace(SETTINGS, batch=100))
    found = some(read)
    assert consumers(server.url, "S") == []
    assert found + sequences(read) == ALL
    given = options(server.url)
    view = DirectProbe(Requests(lambda _: connect(given), 5.0), "S", ("S.a",))
    assert (view.state().last_seq, view.pending(1), view.pending(COUNT + 1)) == (COUNT, COUNT, 0)
    assert [view.peek(5), view.last()] != [None, None]
    assert view.first_after(0) is not None
    assert (consumers(server.url, "S"), made()) == ([], 0)
    # The server does say when one is made.
    assert sequences(pulls(server.url, part_of(server.url, "S"))) == ALL
    wait_until(lambda: made() == 1, "the advisory")


def test_its_inbox_does_not_slow_the_connection_down(server: NatsServer) -> None:
    connection = connect(options(server.url))

    def paced() -> bool:
        assert connection._transport is not None
        return connection._transport.paced

    with connection.inbox(whole=True):
        assert not paced()
        with connection.inbox(replies=True):
            assert paced()
        wait_until(lambda: not paced(), "the end of the pace")


@pytest.mark.full
def test_without_the_parser_reading_is_slow_and_right(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_py, "_PARSER", "_parser_of_tomorrow")
    odd = [("Status", "503"), ("Description", "No Messages"), ("Kind", "a: b")]
    stored = [Message("G.a", str(number).encode()) for number in range(300)]
    stored += [Message("G.b", b"", odd), Message("G.c", b"MSG a 1 5\r\nhello\r\n", odd), Message("G.d", bytes(100_000))]
    create(server.url, "G", allow_direct=True)
    with Publisher(server.url) as publisher:
        publisher.publish(stored)
        part = replace(part_of(server.url, "G"), end=len(stored) + 100)
        with pytest.warns(RuntimeWarning, match="no parser that can be replaced"):
            connect(options(server.url, requestTimeout="1s"))
        found = rows(direct(server.url, part, replace(SETTINGS, batch=70)))
        assert [row[0] for row in found] == list(range(1, len(stored) + 1))
        assert [row[4] for row in found] == [message.data for message in stored]
        assert [dict(row[3]) if row[3] else None for row in found] == [message.expected_headers for message in stored]
        # Of repeated names this one keeps the last, in the first one's place: not to be told from the server's own.
        publisher.publish([Message("G.e", b"x", [("Nats-Sequence", "5")])])
    with pytest.raises(ProtocolError):
        rows(direct(server.url, replace(part, first=len(stored) + 1)))


# Planning


@pytest.mark.parametrize("filters", [(), ("G.0",), ("G.0", "G.1"), ("G.none",), ("G.*",)], ids=str)
def test_planning_learns_what_it_learns_from_consumers(server: NatsServer, filters: tuple[str, ...]) -> None:
    create(server.url, "G", allow_direct=True)
    given = options(server.url)
    views = [kind(Requests(lambda _: connect(given), 5.0), "G", filters) for kind in (DirectProbe, StreamProbe)]

    def ask(view: Any) -> list[Any]:
        after = [0, views[1].state().last_timestamp, views[1].state().last_timestamp + 1]
        answers = [view.last(), *(view.first_after(each) for each in after)]
        for first in (1, 2, 250, 499, 500, 501):
            answers += [view.pending(first), view.peek(first)]
        return answers

    assert ask(views[0]) == ask(views[1])
    fill(server.url, "G", 500, lambda i: str(i % 4))
    assert ask(views[0]) == ask(views[1])
    for sequence in (1, 250, 500):
        api(server.url, "STREAM.MSG.DELETE.G", {"seq": sequence, "no_erase": True})
    assert ask(views[0]) == ask(views[1])


# The wire


@pytest.mark.parametrize(
    "position",
    [
        0,
        900,
        60_001,
        *(pytest.param(at, marks=pytest.mark.full) for at in (1, 150, 700, 2_000, 5_000, 200_000, 400_000)),
    ],
)
def test_a_connection_cut_in_mid_read(server: NatsServer, proxy: WireProxy, position: int) -> None:
    part = part_of(server.url, "S")
    assert sequences(direct(proxy.url, replace(part, end=2, count=1))) == [1]  # the connection is there
    cut = proxy.cut_after(position) if position else None
    if cut is None:
        proxy.cut()
    assert sequences(direct(proxy.url, part)) == ALL
    assert cut is None or cut.is_set()


@pytest.mark.full
def test_a_connection_cut_again_and_again(server: NatsServer, proxy: WireProxy) -> None:
    found: list[int] = []
    cut, cuts = proxy.cut_after(30_000), 0
    for run in direct(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=100)):
        found += run.sequences.tolist()
        if cut.is_set():
            cut, cuts = proxy.cut_after(70_000), cuts + 1
    assert found == ALL
    assert cuts >= 3


def test_a_wire_that_is_silent(server: NatsServer, proxy: WireProxy) -> None:
    read = direct(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    before = proxy.connections
    proxy.stall()

    def go_on() -> None:
        proxy.wait(lambda: proxy.connections > before, 20)
        proxy.unstall()

    thread = threading.Thread(target=go_on)
    thread.start()
    found += sequences(read)
    thread.join()
    assert found == ALL


@pytest.mark.full
def test_a_wire_that_stays_silent(server: NatsServer, proxy: WireProxy) -> None:
    read = direct(proxy.url, part_of(server.url, "S"), replace(SETTINGS, retry_timeout=1.0, batch=100))
    found = some(read)
    proxy.stall()
    began = time.monotonic()
    with pytest.raises(OutageError, match="retryTimeout"):
        collect(read, found)
    assert time.monotonic() - began < 15
    assert found == ALL[: len(found)]


@pytest.mark.full
def test_retry_timeout_begins_anew_with_every_message(server: NatsServer, proxy: WireProxy) -> None:
    read = direct(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=50, retry_timeout=3.0))
    began = time.monotonic()
    found = some(read)
    wait_until(lambda: time.monotonic() - began > 3.5, "the end of the patience there was at the beginning")
    found += some(read)
    stalled = proxy.connections
    proxy.stall()
    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(sequences, read)
        proxy.wait(lambda: proxy.connections > stalled, 20)
        proxy.unstall()
        assert found + going_on.result(60) == ALL


@pytest.mark.parametrize("lost", [0, 1, 499, 1500, COUNT - 1])
def test_a_message_lost_on_the_wire(server: NatsServer, proxy: WireProxy, lost: int) -> None:
    proxy.drop_frames(b"\r\n\r\n%d." % lost)
    assert sequences(direct(proxy.url, part_of(server.url, "S"))) == ALL
    assert proxy.dropped == 1


def test_an_end_lost_on_the_wire(server: NatsServer, proxy: WireProxy) -> None:
    proxy.drop_frames(b"NATS/1.0 204 EOB")
    assert sequences(direct(proxy.url, part_of(server.url, "S"))) == ALL
    assert proxy.dropped == 1


def test_a_message_that_comes_twice(server: NatsServer, proxy: WireProxy) -> None:
    seen: list[bytes] = []

    def twice(frame: bytes) -> bytes:
        if b"\r\n\r\n777." not in frame or seen:
            return frame
        seen.append(frame)
        return frame * 2

    proxy.drop(twice)
    assert sequences(direct(proxy.url, part_of(server.url, "S"))) == ALL
    assert seen


def test_garbage_on_the_wire(server: NatsServer, proxy: WireProxy) -> None:
    left = [b"MSG S.a 99999 nonsense\r\n", b"\x00\xff garbage\r\n", b"MSG S.a 1 3\r\nabcd\r\n"]

    def spoil(frame: bytes) -> bytes:
        return left.pop() + frame if left and b"\r\n\r\n%d00." % (20 - 5 * len(left)) in frame else frame

    proxy.drop(spoil)
    assert sequences(direct(proxy.url, part_of(server.url, "S"))) == ALL
    assert not left
    assert proxy.connections == 4


def test_a_server_too_old_for_batches(server: NatsServer, proxy: WireProxy) -> None:
    version = re.compile(rb'"version":"[^"]*"')
    proxy.drop(lambda frame: version.sub(b'"version":"2.10.29"', frame) if frame.startswith(b"INFO") else frame)
    given = options(proxy.url)
    view = DirectProbe(Requests(lambda _: connect(given), 5.0), "S", ())
    for ask in (lambda: sequences(direct(proxy.url, part_of(server.url, "S"))), view.state, lambda: view.pending(1)):
        with pytest.raises(
            JetStreamError, match=r"readWith=direct needs nats-server 2\.11 or newer, and this is 2\.10\.29"
        ):
            ask()


# The server


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.full)])
def test_a_server_that_comes_back(server: NatsServer, how: str) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    getattr(server, how)()
    server.start()
    assert found + sequences(read) == ALL


@pytest.mark.full
def test_a_server_that_is_frozen_for_a_while(server: NatsServer) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    server.pause()
    timer = threading.Timer(2.5, server.resume)
    timer.start()
    assert found + sequences(read) == ALL
    timer.join()


@pytest.mark.parametrize("begun", [True, False])
def test_an_outage_longer_than_retry_timeout(server: NatsServer, begun: bool) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100, retry_timeout=1.5))
    found = some(read) if begun else []
    server.stop()
    began = time.monotonic()
    with pytest.raises(OutageError, match=r"for 1.5 s \(option retryTimeout\): .*127\.0\.0\.1") as caught:
        collect(read, found)
    assert 1.4 < time.monotonic() - began < 6
    assert f"stream S at sequence {len(found) + 1} " in str(caught.value)
    assert found == ALL[: len(found)]


# Permissions

NEEDED = ["STREAM.INFO.S", "STREAM.MSG.GET.S", "DIRECT.GET.S"]


@pytest.mark.parametrize("lacks", [None, *NEEDED])
def test_the_permissions_of_a_reader(lacks: str | None) -> None:
    subjects = ", ".join(f'"$JS.API.{subject}"' for subject in NEEDED if subject != lacks)
    config = f"""authorization {{ users: [
        {{ user: reader, password: r, permissions: {{ publish: [{subjects}], subscribe: ["_INBOX_r.>"] }} }},
        {{ user: admin, password: a }}
    ] }}"""
    with NatsServer(config=config) as server:
        admin = server.url.replace("//", "//admin:a@")
        create(admin, "S", allow_direct=True)
        fill(admin, "S", 700)
        reader = options(server.url.replace("//", "//reader:r@"), inboxPrefix="_INBOX_r")
        # The last message is gone, so only the leader can say that the range is complete.
        api(admin, "STREAM.MSG.DELETE.S", {"seq": 700, "no_erase": True})
        part = part_of(admin, "S", count=699)
        view = DirectProbe(Requests(lambda _: connect(reader), 5.0), "S", ())
        if lacks is None:
            assert sequences(direct(reader, part)) == ALL[:699]
            assert (view.pending(1), view.pending(700), view.state().messages) == (699, 0, 699)
            assert [None if found is None else found[0] for found in (view.peek(9), view.peek(700))] == [9, None]
            return
        began = time.monotonic()
        with pytest.raises(PermissionDenied, match=re.escape(f"$JS.API.{lacks}")) as caught:
            sequences(direct(reader, part))
        assert time.monotonic() - began < 2
        assert caught.value.subject == f"$JS.API.{lacks}"
        if lacks == "STREAM.MSG.GET.S":
            assert "readWith=direct" in str(caught.value)


# The stream


def lose(read: Iterator[Messages]) -> tuple[list[int], str]:
    """What came before the loss, and the words of the error."""
    found: list[int] = []
    with pytest.raises(DataLossError) as caught:
        collect(read, found)
    said = str(caught.value)
    assert re.search(r"\bstream S\b", said)
    assert "failOnDataLoss" in said
    return found, said


def recreate(url: str) -> None:
    """Delete the stream and make it again, with as many messages."""
    api(url, "STREAM.DELETE.S")
    create(url, "S", allow_direct=True)
    fill(url, "S", COUNT)


def delete(url: str) -> None:
    """Delete the stream."""
    api(url, "STREAM.DELETE.S")


@pytest.mark.parametrize("begun", [True, False], ids=["in-mid-read", "before"])
@pytest.mark.parametrize("change", [delete, recreate])
def test_a_stream_that_is_gone(server: NatsServer, change: Callable[[str], None], begun: bool) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read) if begun else []
    change(server.url)
    more, said = lose(read)
    found += more
    assert found == ALL[: len(found)]
    assert len(found) <= 300
    assert ("created again" if change is recreate else "was deleted while") in said


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_stream_that_is_gone_and_may_be(
    server: NatsServer, change: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100, fail_on_data_loss=False))
    found = some(read)
    change(server.url)
    found += sequences(read)
    # Nothing of the stream that took its place comes: its messages have the same sequences.
    assert found == ALL[: len(found)]
    assert len(found) <= 300
    assert "stream S was deleted" in caplog.text


def delete_some(url: str) -> None:
    """Delete three messages in the middle."""
    for sequence in (1500, 1501, 2000):
        api(url, "STREAM.MSG.DELETE.S", {"seq": sequence, "no_erase": True})


LOSSES: dict[str, tuple[Callable[[str], object], list[int]]] = {
    "everything": (lambda url: api(url, "STREAM.PURGE.S"), []),
    "the head": (lambda url: api(url, "STREAM.PURGE.S", {"seq": 1001}), ALL[1000:]),
    "some": (delete_some, [sequence for sequence in ALL if sequence not in {1500, 1501, 2000}]),
    "the last": (lambda url: api(url, "STREAM.MSG.DELETE.S", {"seq": COUNT, "no_erase": True}), ALL[:-1]),
}


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "last"])
@pytest.mark.parametrize("what", LOSSES)
def test_messages_removed_after_planning(
    server: NatsServer, what: str, followed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    part = part_of(server.url, "S")
    remove, left = LOSSES[what]
    if not followed or what != "everything":
        remove(server.url)
    if followed:
        fill(server.url, "S", 10)
        if what == "everything":
            api(server.url, "STREAM.PURGE.S", {"seq": COUNT + 5})
    found, said = lose(direct(server.url, part))
    assert found == left
    assert said.startswith(f"{COUNT - len(left)} of {COUNT} messages of stream S, sequences 1 to {COUNT}, ")
    assert sequences(direct(server.url, part, replace(SETTINGS, fail_on_data_loss=False))) == left
    assert f"{COUNT - len(left)} of {COUNT} messages of stream S" in caplog.text
    assert sequences(direct(server.url, replace(part, count=None))) == left


@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_that_does_not_allow_it(server: NatsServer, begun: bool) -> None:
    read = direct(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read) if begun else []
    config = api(server.url, "STREAM.INFO.S")["config"]
    api(server.url, "STREAM.UPDATE.S", {**config, "allow_direct": False})
    said = r"stream S does not answer direct gets, which readWith=direct needs; set the stream's allow_direct to true"
    with pytest.raises(JetStreamError, match=said) as caught:
        collect(read, found)
    assert not caught.value.retriable
    assert found == ALL[: len(found)]
    # It has nothing to do with patience.
    view = DirectProbe(Requests(lambda _: connect(options(server.url)), 30.0), "S", ())
    for ask in (view.state, lambda: view.pending(1)):
        with pytest.raises(JetStreamError, match=said):
            ask()


# Mirrors


MIRRORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filtered": {"filter_subject": "S.b"},
    "begun later": {"opt_start_seq": 2000},
    "renamed": {"subject_transforms": [{"src": "S.>", "dest": "M.>"}]},
}


@pytest.mark.parametrize("kind", MIRRORS)
def test_mirrors_answer_for_their_origin(server: NatsServer, kind: str) -> None:
    fill(server.url, "S", 10, lambda _: "b")
    whole, wanted = part_of(server.url, "S"), list(range(1, COUNT + 11))
    mirror = {"name": "S", **MIRRORS[kind]}
    api(server.url, "STREAM.CREATE.M", {"name": "M", "storage": "memory", "mirror": mirror, "mirror_direct": True})
    answered = set()

    def seen() -> bool:
        """Whether both have answered; what was read is right whoever did."""
        frames: list[bytes] = []

        def look(frame: bytes) -> bytes:
            frames.append(frame)
            return frame

        with WireProxy(server.url) as proxy:
            proxy.drop(look)
            found = rows(direct(proxy.url, whole, replace(SETTINGS, batch=300)))
        assert [row[0] for row in found] == wanted
        assert {row[2] for row in found} == {"S.a", "S.b"}
        answered.update(re.findall(rb"\r\nNats-Stream: (\w+)\r\n", b"".join(frames)))
        return answered == {b"S", b"M"}

    wait_until(seen, "an answer of the mirror, and one of the stream")
    # Read by its own name a mirror is a stream like others.
    left = api(server.url, "STREAM.INFO.M")["state"]["messages"]
    config = api(server.url, "STREAM.INFO.M")["config"]
    api(server.url, "STREAM.UPDATE.M", {**config, "allow_direct": True})
    assert len(sequences(direct(server.url, part_of(server.url, "M", count=left)))) == left


# A cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """Three servers."""
    with NatsCluster() as running:
        yield running


def replicated(cluster: NatsCluster, stream: str) -> SequenceRange:
    """A stream with three replicas and `COUNT` messages, all of it."""
    create(cluster.url, stream, num_replicas=3, storage="file", allow_direct=True)
    cluster.wait_ready()
    fill(cluster.urls[cluster.leader_of(stream)], stream, COUNT)
    return part_of(cluster.url, stream)


@pytest.mark.full
def test_a_replica_that_lags(cluster: NatsCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_jetstream")
    end = replicated(cluster, "LAG").end
    leader = cluster.leader_of("LAG")
    follower = (leader + 1) % 3
    with WireProxy(cluster.urls[follower]) as proxy, ThreadPoolExecutor(8) as pool:
        where = options(proxy.url, requestTimeout="5s")
        for _ in range(8):
            part = part_of(cluster.urls[leader], "LAG", end - 10, end)
            assert sequences(direct(where, part)) == list(range(end - 10, end))
            cluster.servers[follower].pause()
            try:
                fill(cluster.urls[leader], "LAG", 5000, size=1000)
                part = part_of(cluster.urls[leader], "LAG", end)
                # What this server finds when it goes on: our requests, which it answers itself or hands to another
                # replica, and everything it has missed.
                asked = proxy.client_bytes.count(b"DIRECT.GET") + 8
                reading = [pool.submit(sequences, direct(where, part)) for _ in range(8)]
                proxy.wait(lambda asked=asked: proxy.client_bytes.count(b"DIRECT.GET") >= asked)  # type: ignore[misc]
            finally:
                cluster.servers[follower].resume()
            wanted = list(range(end, end + 5000))
            assert all(each.result(60) == wanted for each in reading)
            end += 5000
            if "does not have message" in caplog.text:
                break
    assert "does not have message" in caplog.text


@pytest.mark.full
def test_a_range_read_right_behind_its_publisher(cluster: NatsCluster) -> None:
    part = replicated(cluster, "FRESH")
    leader = cluster.leader_of("FRESH")
    where = [options(url) for url in cluster.urls]
    with Publisher(cluster.urls[leader]) as publisher:
        for number in range(300):
            [sequence] = publisher.publish([Message("FRESH.a", b"x")])
            piece = replace(part, first=sequence, end=sequence + 1, count=1)
            assert sequences(direct(where[number % 3], piece)) == [sequence]


@pytest.mark.full
def test_a_leader_that_steps_down(cluster: NatsCluster) -> None:
    part = replicated(cluster, "STEP")
    found: list[int] = []
    for number, run in enumerate(direct(cluster.url, part, replace(SETTINGS, batch=100))):
        found += run.sequences.tolist()
        if number in {1, 5}:
            cluster.leader_of("STEP")  # without a leader nobody answers
            api(cluster.url, "STREAM.LEADER.STEPDOWN.STEP")
    assert found == ALL


@pytest.mark.full
def test_a_server_of_a_cluster_that_dies(cluster: NatsCluster) -> None:
    part = replicated(cluster, "DIES")
    read = direct(cluster.url, part, replace(SETTINGS, batch=100))
    found = some(read)
    victim = cluster.leader_of("DIES")
    cluster.kill(victim)
    try:
        found += sequences(read)
    finally:
        cluster.restart(victim)
    assert found == ALL


# All at once


@pytest.mark.full
def test_many_ranges_at_the_same_time(server: NatsServer) -> None:
    whole = part_of(server.url, "S")
    parts = [replace(whole, first=first, end=first + 300, count=300) for first in range(1, COUNT, 300)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: sequences(direct(server.url, part, replace(SETTINGS, batch=40))), parts))
    assert [sequence for each in found for sequence in each] == ALL


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_any_sequence_of_faults(server: NatsServer, proxy: WireProxy, seed: int) -> None:
    chance = random.Random(seed)

    def spoil(frame: bytes) -> bytes:
        if b"Nats-Last-Sequence" not in frame or chance.random() > 0.002:
            return frame
        return chance.choice([b"", frame * 2, b"junk\r\n" + frame])

    proxy.drop(spoil)
    faults: list[Callable[[], object]] = [
        proxy.cut,
        lambda: proxy.cut_after(chance.randrange(1, 20_000)),
        server.restart,
        lambda: fill(server.url, "S", 3),
    ]
    first = chance.randrange(1, 500)
    part = part_of(server.url, "S", first, subjects=chance.choice([(), ("S.*",), ("S.a", "S.b")]))
    settings = replace(SETTINGS, batch=chance.choice([50, 200, 1000]), max_bytes=chance.choice([8192, 1 << 20]))
    found: list[int] = []
    for run in direct(proxy.url, part, settings):
        found += run.sequences.tolist()
        if chance.random() < 0.15:
            chance.choice(faults)()
    assert found == ALL[first - 1 :]
