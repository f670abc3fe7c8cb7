"""`read_range`, `read_direct` and `read_auto` against the real server, while the wire, the server
and the stream are broken under them.

All have one contract: whatever happens, a range gives its messages in order and each once, or an
error that says what is gone.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from spark_jetstream.client import deadline
from spark_jetstream.errors import DataLossError, OutageError
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.client import full
from tests.support.proxy import WireProxy
from tests.support.reading import (
    ALL,
    COUNT,
    SETTINGS,
    api,
    auto,
    collect,
    consumers,
    create,
    delete_consumers,
    direct,
    fill,
    options,
    part_of,
    pulls,
    replicated,
    sequences,
    some,
    wait_until,
)

Read = Callable[..., Iterator[MessageRun]]

SMALL = replace(SETTINGS, batch=100)


@pytest.fixture(params=[pulls, direct, auto], ids=["consumer", "direct", "auto"])
def read(request: pytest.FixtureRequest) -> Read:
    reader: Read = request.param
    return reader


# Nothing goes wrong


def test_a_range_ends_where_it_ends(read: Read, server: NatsServer) -> None:
    assert sequences(read(server.url, part_of(server.url, "S"))) == ALL
    assert sequences(read(server.url, part_of(server.url, "S", 100, 1101))) == ALL[99:1100]
    assert sequences(read(server.url, part_of(server.url, "S", 100, 101))) == [100]
    assert sequences(read(server.url, part_of(server.url, "S", 100, 100))) == []
    assert sequences(read(server.url, part_of(server.url, "S", 2999, 9999, count=2))) == [
        2999,
        3000,
    ]


@pytest.mark.parametrize(
    "subjects", [("G.even",), ("G.even", "G.third"), ("*.even",), ("G.none",)], ids=str
)
def test_filters(read: Read, server: NatsServer, subjects: tuple[str, ...]) -> None:
    create(server.url, "G", allow_direct=True)
    fill(server.url, "G", 600, lambda i: ("even", "odd", "third")[i % 3])
    residues = {"G.even": 0, "*.even": 0, "G.third": 2}
    wanted = [i + 1 for i in range(600) if i % 3 in {residues.get(subject) for subject in subjects}]
    whole = part_of(server.url, "G", subjects=subjects)
    settings = replace(SETTINGS, batch=70)
    # The last match of a piece may lie before its end, with or without messages behind it.
    for first, end in ((1, 601), (1, 300), (300, 599), (599, 601)):
        inside = [sequence for sequence in wanted if first <= sequence < end]
        for count in (len(inside), None):
            part = replace(whole, first=first, end=end, count=count)
            assert sequences(read(server.url, part, settings)) == inside


def test_a_count_that_is_too_low_hides_nothing(read: Read, server: NatsServer) -> None:
    for count in (None, 0, 1, COUNT - 1):
        assert sequences(read(server.url, part_of(server.url, "S", count=count))) == ALL


def test_one_message_for_each_request(read: Read, server: NatsServer) -> None:
    assert (
        sequences(read(server.url, part_of(server.url, "S", 1, 101), replace(SETTINGS, batch=1)))
        == ALL[:100]
    )


def test_messages_larger_than_the_bytes_of_a_request(read: Read, server: NatsServer) -> None:
    sizes = [10, 400_000, 10, 10, 900_000, *[300_000] * 4, 10]
    create(server.url, "LARGE", allow_direct=True)
    for size in sizes:
        fill(server.url, "LARGE", 1, size=size)
    part = part_of(server.url, "LARGE")
    found = list(read(server.url, part, replace(SETTINGS, max_bytes=64 * 1024)))
    assert sequences(found) == list(range(1, len(sizes) + 1))
    assert [len(data) for messages in found for data in messages.payloads().to_pylist()] == sizes


def test_requests_bounded_by_bytes(read: Read, server: NatsServer, proxy: WireProxy) -> None:
    fill(server.url, "S", 1, size=500_000)
    part = part_of(server.url, "S")
    settings = replace(SETTINGS, batch=10_000, max_bytes=5000)
    assert sequences(read(options(proxy.url), part, settings)) == [*ALL, COUNT + 1]
    if read is not pulls:
        assert 5 < proxy.client_bytes.count(b"DIRECT.GET") < 100


# The wire


@pytest.mark.parametrize(
    "position", [0, 900, 60_001, *full(1, 150, 700, 2_000, 5_000, 200_000, 400_000)]
)
def test_a_connection_cut_in_mid_read(
    read: Read, server: NatsServer, proxy: WireProxy, position: int
) -> None:
    part = part_of(server.url, "S")
    assert sequences(read(proxy.url, replace(part, end=2, count=1))) == [
        1
    ]  # the connection is there
    wait_until(
        lambda: not consumers(server.url, "S"),
        "the end of the first consumer, whose deletion a cut would lose",
    )
    cut = proxy.cut_after(position) if position else None
    if cut is None:
        proxy.cut()
    assert sequences(read(proxy.url, part)) == ALL
    assert cut is None or cut.is_set()
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


def rest_through_silence(messages: Iterator[MessageRun], proxy: WireProxy) -> list[int]:
    """The sequences of the rest, on a wire that is silent until the client has given its connection
    up.
    """
    before = proxy.connections
    proxy.stall()
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(sequences, messages)
        proxy.wait(lambda: proxy.connections > before)
        proxy.unstall()
        return rest.result(60)


@pytest.mark.full
@pytest.mark.parametrize("idle", [False, True], ids=["in mid-read", "idle"])
def test_a_wire_that_is_silent(
    read: Read, server: NatsServer, proxy: WireProxy, idle: bool
) -> None:
    if idle:
        assert sequences(read(proxy.url, part_of(server.url, "S"))) == ALL
    messages = read(proxy.url, part_of(server.url, "S"), SMALL)
    found = [] if idle else some(messages)
    assert found + rest_through_silence(messages, proxy) == ALL


def cut_off(proxy: WireProxy) -> None:
    # Or the consumer of `auto` may find a connection that was made again.
    proxy.refuse()
    proxy.cut()


@pytest.mark.parametrize(
    ("patience", "fail"), [(0, cut_off), pytest.param(1.0, WireProxy.stall, marks=pytest.mark.full)]
)
def test_a_wire_that_fails_for_longer_than_retry_timeout(
    read: Read,
    server: NatsServer,
    proxy: WireProxy,
    patience: float,
    fail: Callable[[WireProxy], None],
) -> None:
    messages = read(
        options(proxy.url), part_of(server.url, "S"), replace(SMALL, retry_timeout=patience)
    )
    found = some(messages)
    fail(proxy)
    with pytest.raises(OutageError, match=rf"for {patience:g} s \(option retryTimeout\)"):
        collect(messages, found)
    assert found == ALL[: len(found)]


@pytest.mark.full
def test_retry_timeout_begins_anew_with_every_message(
    read: Read, server: NatsServer, proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = read(
        proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=50, retry_timeout=60.0)
    )
    found = some(messages)
    later = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 100, sleep=time.sleep)
    monkeypatch.setattr(
        deadline, "time", later
    )  # the patience that there was at the beginning has ended
    found += some(messages)
    assert found + rest_through_silence(messages, proxy) == ALL


@pytest.mark.parametrize("lost", [0, 1500, COUNT - 1])
def test_a_message_lost_on_the_wire(
    read: Read, server: NatsServer, proxy: WireProxy, lost: int
) -> None:
    proxy.drop_frames(b"\r\n%d." % lost)
    assert sequences(read(options(proxy.url), part_of(server.url, "S"))) == ALL
    assert proxy.dropped == 1
    assert proxy.client_bytes.count(b"CONSUMER.CREATE") == (2 if read is pulls else 0)


def test_a_message_that_comes_twice(read: Read, server: NatsServer, proxy: WireProxy) -> None:
    left = [b"\r\n2222.", b"\r\n777."]

    def twice(frame: bytes) -> bytes:
        if not left or left[-1] not in frame:
            return frame
        left.pop()
        return frame * 2

    proxy.drop(twice)
    assert sequences(read(proxy.url, part_of(server.url, "S"))) == ALL
    assert not left


def test_garbage_on_the_wire(read: Read, server: NatsServer, proxy: WireProxy) -> None:
    garbage = [b"MSG S.a 99999 nonsense\r\n", b"\x00\xff garbage\r\n", b"MSG S.a 1 3\r\nabcd\r\n"]
    reasons = (b"Slow Consumer", b"Stale Connection", b"Maximum Connections Exceeded")
    left = garbage + [b"-ERR '%s'\r\n" % reason for reason in reasons]
    expected = len(left) + 1

    def spoil(frame: bytes) -> bytes:
        # Once on each connection: no one reads what follows on a connection that is being closed.
        new = proxy.connections == expected - len(left) and proxy.open_connections == 1
        spoiled = left and new and re.search(rb"\r\n\d*00\.", frame)
        return left.pop() + frame if spoiled else frame

    proxy.drop(spoil)
    while left:
        assert sequences(read(proxy.url, part_of(server.url, "S"))) == ALL
    assert proxy.connections == expected


@pytest.mark.parametrize(
    ("read", "lost"), [(pulls, b"NATS/1.0 409 "), (direct, b"NATS/1.0 204 EOB")], indirect=["read"]
)
def test_a_status_lost_on_the_wire(
    read: Read, server: NatsServer, proxy: WireProxy, lost: bytes
) -> None:
    proxy.drop_frames(lost)
    assert (
        sequences(read(proxy.url, part_of(server.url, "S"), replace(SETTINGS, max_bytes=20_000)))
        == ALL
    )
    assert proxy.dropped == 1


# The server


def away(server: NatsServer) -> None:
    server.kill()
    threading.Timer(1.0, server.start).start()


def frozen(server: NatsServer) -> None:
    server.pause()
    threading.Timer(2.5, server.resume).start()


def killed(server: NatsServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("how", [killed, *full(NatsServer.restart, away, frozen)])
def test_a_server_that_comes_back(
    read: Read, server: NatsServer, how: Callable[[NatsServer], object]
) -> None:
    messages = read(server.url, part_of(server.url, "S"), SMALL)
    found = some(messages)
    how(server)
    assert found + sequences(messages) == ALL


@pytest.mark.parametrize("begun", [True, False])
def test_an_outage_longer_than_retry_timeout(read: Read, server: NatsServer, begun: bool) -> None:
    # Short only where nothing has to succeed.
    times = {} if begun else {"connectTimeout": "1s", "requestTimeout": "1s"}
    messages = read(
        options(server.url, **times), part_of(server.url, "S"), replace(SMALL, retry_timeout=0.8)
    )
    found = some(messages) if begun else []
    server.stop()
    with pytest.raises(
        OutageError, match=r"for 0.8 s \(option retryTimeout\): .*127\.0\.0\.1"
    ) as caught:
        collect(messages, found)
    assert f"stream S at sequence {len(found) + 1} " in str(caught.value)
    assert found == ALL[: len(found)]


# The stream


def lose(messages: Iterator[MessageRun]) -> tuple[list[int], str]:
    """Return the sequences that were read before the loss, and the text of the error."""
    found: list[int] = []
    with pytest.raises(DataLossError) as caught:
        collect(messages, found)
    text = str(caught.value)
    assert re.search(r"\bstream S\b", text)
    return found, text


def recreate(url: str) -> None:
    """Delete the stream and make it again, with as many messages."""
    delete(url)
    create(url, "S", allow_direct=True)
    fill(url, "S", COUNT)


def delete(url: str) -> None:
    api(url, "STREAM.DELETE.S")


@pytest.mark.parametrize("begun", [True, False], ids=["in-mid-read", "before"])
@pytest.mark.parametrize("change", [delete, recreate])
def test_a_stream_that_is_gone(
    read: Read,
    server: NatsServer,
    change: Callable[[str], None],
    begun: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = part_of(server.url, "S")
    where = options(server.url)
    messages, forgiving = (
        read(where, part, replace(SMALL, fail_on_data_loss=fail)) for fail in (True, False)
    )
    found = some(messages) if begun else []
    forgiven = some(forgiving) if begun else []
    change(server.url)
    more, text = lose(messages)
    found += more
    forgiven += sequences(forgiving)
    # Nothing of the stream that took its place comes: its messages have the same sequences.
    for came in (found, forgiven):
        assert came == ALL[: len(came)]
        assert len(came) <= 300
    assert ("created again" if change is recreate else "was deleted while") in text
    assert f"sequences {len(found) + 1 if read is pulls else 1} to {COUNT}" in text
    assert "stream S was deleted" in caplog.text


#: What goes, as purges and as deletions.
LOSSES: dict[str, tuple[dict[str, int] | None, tuple[int, ...]]] = {
    "everything": ({"seq": COUNT + 6}, ()),
    "the head": ({"seq": 1001}, ()),
    "some": (None, (1500, 1501, 2000)),
    "the last": (None, (COUNT,)),
}


@pytest.mark.parametrize(
    ("loss", "followed"),
    [*((loss, False) for loss in LOSSES), ("everything", True), ("the last", True)],
)
def test_messages_removed_after_planning(
    read: Read, server: NatsServer, loss: str, followed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    part = part_of(server.url, "S")
    purge, deleted = LOSSES[loss]
    if followed:
        fill(server.url, "S", 10)
    if purge is not None:
        api(server.url, "STREAM.PURGE.S", purge)
    for sequence in deleted:
        api(server.url, "STREAM.MSG.DELETE.S", {"seq": sequence, "no_erase": True})
    left = [
        sequence
        for sequence in ALL
        if sequence not in deleted and (purge is None or sequence >= purge["seq"])
    ]
    gone = f"{COUNT - len(left)} of {COUNT} messages of stream S"

    found, text = lose(read(server.url, part))
    assert found == left
    assert text.startswith(f"{gone}, sequences 1 to {COUNT}, were removed")
    # Not an outage, so no patience is needed; and no loss where no number was promised.
    forgiving = replace(SETTINGS, fail_on_data_loss=False, retry_timeout=0)
    assert sequences(read(options(server.url), part, forgiving)) == left
    assert gone in caplog.text
    assert sequences(read(server.url, replace(part, count=None))) == left


# A cluster


@pytest.mark.full
def test_a_leader_that_steps_down(read: Read, cluster: NatsCluster) -> None:
    stream = f"STEP-{read.__name__}"
    found: list[int] = []
    for number, messages in enumerate(read(cluster.url, replicated(cluster, stream), SMALL)):
        found += messages.sequences.tolist()
        if number in {1, 5}:
            # who leads the metadata refuses this as long as it does not know the stream's leader
            cluster.wait_ready()
            api(cluster.url, f"STREAM.LEADER.STEPDOWN.{stream}")
    assert found == ALL


@pytest.mark.full
@pytest.mark.parametrize(
    ("read", "whose"),
    [
        (pulls, "the stream's leader"),
        (pulls, "the consumer's server"),
        (direct, "the stream's leader"),
    ],
    indirect=["read"],
)
def test_a_server_of_a_cluster_that_dies(read: Read, cluster: NatsCluster, whose: str) -> None:
    stream = f"DIES-{read.__name__}-{whose[4]}"
    messages = read(cluster.url, replicated(cluster, stream), SMALL)
    found = some(messages)
    victim = cluster.leader_of(stream)
    for consumer in consumers(cluster.url, stream) if "consumer" in whose else []:
        serving = api(cluster.url, f"CONSUMER.INFO.{stream}.{consumer}")["cluster"]["leader"]
        [victim] = [at for at, each in enumerate(cluster.servers) if each.name == serving]
    cluster.kill(victim)
    try:
        found += sequences(messages)
    finally:
        cluster.restart(victim)
    assert found == ALL


@pytest.mark.full
def test_a_server_of_a_cluster_that_has_to_catch_up(read: Read, cluster: NatsCluster) -> None:
    """A consumer on a server that was restarted knows only what this server has fetched so far."""
    stream, first, count = f"LATE-{read.__name__}", 19_901, 20_000
    create(cluster.url, stream, num_replicas=3, storage="file", allow_direct=True)
    cluster.wait_ready()
    leader = cluster.leader_of(stream)
    url, late = cluster.urls[leader], (leader + 1) % 3
    cluster.kill(late)
    # it may have led the metadata, and without that leader nothing can be asked
    cluster.wait_ready()
    fill(url, stream, count, size=4000)
    part = part_of(url, stream, first, count=None)
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(cluster.restart, late)
        while not back.done():
            assert sequences(read(url, part)) == list(range(first, count + 1))
    back.result()


# All at once


@pytest.mark.parametrize("seed", [0, *full(1, 2, 3, 4, 5)])
def test_any_sequence_of_faults(
    read: Read, server: NatsServer, proxy: WireProxy, seed: int
) -> None:
    chance = random.Random(seed)
    # By number, and not each with a chance: an answer of 1,000 messages comes again as a whole, and
    # might be spoiled each time until `retry_timeout` has passed. Each message that is read comes
    # in a frame, so that all of these pass.
    to_spoil = set(chance.sample(range(2000), 10))
    passed = itertools.count()

    def spoil(frame: bytes) -> bytes:
        is_message = b"$JS.ACK" in frame or b"Nats-Last-Sequence" in frame
        if not is_message or next(passed) not in to_spoil:
            return frame
        return chance.choice([b"", frame * 2, b"junk\r\n" + frame])

    proxy.drop(spoil)
    faults: list[Callable[[], object]] = [
        proxy.cut,
        lambda: proxy.cut_after(chance.randrange(1, 20_000)),
        lambda: delete_consumers(server.url),
        server.restart,
        lambda: fill(server.url, "S", 3),
    ]
    first = chance.randrange(1, 500)
    subjects: tuple[str, ...] = chance.choice([(), ("S.*",), ("S.a", "S.b")])
    part: SequenceRange = part_of(server.url, "S", first, subjects=subjects)
    settings = replace(
        SETTINGS, batch=chance.choice([50, 200, 1000]), max_bytes=chance.choice([8192, 1 << 20])
    )
    found: list[int] = []
    for messages in read(proxy.url, part, settings):
        found += messages.sequences.tolist()
        if chance.random() < 0.15:
            chance.choice(faults)()
    assert found == ALL[first - 1 :]
    assert next(passed) > max(to_spoil)
