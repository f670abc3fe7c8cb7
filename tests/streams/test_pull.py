"""`read_range` against the real server, while the wire, the server, the consumer and the stream are broken under it.

Whatever happens, a range gives its messages in order and each once, or an error that says what is gone.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from spark_jetstream.errors import ConsumerLimitReached, DataLossError, OutageError, PermissionDenied
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Delivered, payloads
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.proxy import WireProxy
from tests.support.reading import (
    SETTINGS,
    api,
    collect,
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

COUNT = 3000
ALL = list(range(1, COUNT + 1))


pytestmark = pytest.mark.usefixtures("no_connection_left")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server with a stream S of `COUNT` messages, on disk."""
    with NatsServer() as running:
        create(running.url, "S", storage="file")
        fill(running.url, "S", COUNT)
        yield running


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[WireProxy]:
    """Between the reader and the server."""
    with WireProxy(server.url) as between:
        yield between


# Nothing goes wrong


def test_a_range_is_read_whole(server: NatsServer) -> None:
    assert sequences(pulls(server.url, part_of(server.url, "S"))) == ALL


def test_a_range_ends_where_it_ends(server: NatsServer) -> None:
    assert sequences(pulls(server.url, part_of(server.url, "S", 100, 1101))) == ALL[99:1100]
    assert sequences(pulls(server.url, part_of(server.url, "S", 100, 101))) == [100]
    assert sequences(pulls(server.url, part_of(server.url, "S", 100, 100))) == []


def test_messages_published_behind_a_range_do_not_come(server: NatsServer) -> None:
    read = pulls(server.url, part_of(server.url, "S"))
    first = some(read)
    fill(server.url, "S", 500)
    assert first + sequences(read) == ALL


@pytest.mark.parametrize("count", [None, 0, 1, COUNT - 1, COUNT], ids=lambda count: f"count-{count}")
def test_a_count_that_is_too_low_hides_nothing(server: NatsServer, count: int | None) -> None:
    assert sequences(pulls(server.url, part_of(server.url, "S", count=count))) == ALL


def test_only_as_much_is_asked_for_as_the_range_can_hold(server: NatsServer, proxy: WireProxy) -> None:
    assert sequences(pulls(proxy.url, part_of(server.url, "S", 1, 701))) == ALL[:700]
    asked = [int(number) for number in re.findall(rb'"batch": (\d+)', proxy.client_bytes)]
    assert sum(asked) == 700
    assert max(asked) == SETTINGS.batch


@pytest.mark.parametrize("subjects", [("S.even",), ("S.even", "S.third"), ("*.even",)], ids=str)
def test_filters(server: NatsServer, subjects: tuple[str, ...]) -> None:
    create(server.url, "F", subjects=["F.>"])
    create(server.url, "G", subjects=["G.>"])
    fill(server.url, "G", 600, lambda i: ("even", "odd", "third")[i % 3])
    wanted = [i + 1 for i in range(600) if i % 3 == 0 or (i % 3 == 2 and len(subjects) > 1)]
    filters = tuple(subject.replace("S.", "G.") for subject in subjects)
    whole = part_of(server.url, "G", subjects=filters, count=len(wanted))
    assert sequences(pulls(server.url, whole)) == wanted
    # The last match of a piece may lie before its end, with or without messages behind it.
    for first, end in ((1, 300), (300, 599), (599, 601)):
        inside = [sequence for sequence in wanted if first <= sequence < end]
        part = replace(whole, first=first, end=end, count=len(inside))
        assert sequences(pulls(server.url, part)) == inside
        assert sequences(pulls(server.url, replace(part, count=None))) == inside


def test_one_message_for_each_request(server: NatsServer) -> None:
    part = part_of(server.url, "S", 1, 301)
    assert sequences(pulls(server.url, part, replace(SETTINGS, batch=1))) == ALL[:300]


@pytest.mark.parametrize("sizes", [[300_000] * 4, [10, 400_000, 10, 10, 900_000, 10], [900_000, 10]], ids=str)
def test_messages_larger_than_the_bytes_of_a_request(server: NatsServer, sizes: list[int]) -> None:
    create(server.url, "LARGE", max_msg_size=-1)
    for size in sizes:
        fill(server.url, "LARGE", 1, size=size)
    part = part_of(server.url, "LARGE")
    read = list(pulls(server.url, part, replace(SETTINGS, max_bytes=64 * 1024)))
    assert sequences(iter(read)) == list(range(1, len(sizes) + 1))
    assert [len(data) for pulled in read for data in payloads(pulled.frames).to_pylist()] == sizes


def test_requests_bounded_by_bytes(server: NatsServer) -> None:
    part = part_of(server.url, "S")
    assert sequences(pulls(server.url, part, replace(SETTINGS, max_bytes=5000))) == ALL


def test_headers_only(server: NatsServer) -> None:
    read = list(pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, headers_only=True)))
    assert sequences(iter(read)) == ALL
    assert not any(data for pulled in read for data in payloads(pulled.frames).to_pylist())


def test_the_second_form_of_ack_subjects() -> None:
    with NatsServer(config="feature_flags { js_ack_fc_v2: true }") as server:
        create(server.url, "S")
        fill(server.url, "S", 700)
        assert sequences(pulls(server.url, part_of(server.url, "S"))) == ALL[:700]


def test_a_stream_with_limits_for_its_consumers(server: NatsServer) -> None:
    # 10153: the stream allows no consumer to be idle for longer.
    create(server.url, "L", consumer_limits={"inactive_threshold": 2_000_000_000})
    fill(server.url, "L", 100)
    assert sequences(pulls(server.url, part_of(server.url, "L"))) == ALL[:100]


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
    assert sequences(pulls(proxy.url, replace(part, end=2, count=1))) == [1]  # the connection is there
    cut = proxy.cut_after(position) if position else None
    if cut is None:
        proxy.cut()
    assert sequences(pulls(proxy.url, part)) == ALL
    assert cut is None or cut.is_set()
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


@pytest.mark.full
def test_a_connection_cut_again_and_again(server: NatsServer, proxy: WireProxy) -> None:
    found: list[int] = []
    cut, cuts = proxy.cut_after(30_000), 0
    for pulled in pulls(proxy.url, part_of(server.url, "S")):
        found += pulled.sequences.tolist()
        if cut.is_set():
            cut, cuts = proxy.cut_after(70_000), cuts + 1
    assert found == ALL
    assert cuts >= 3


def unstall_after_another_connection(proxy: WireProxy) -> threading.Thread:
    """Stall the wire now, and let it go on once the client has given its connection up."""
    before = proxy.connections
    proxy.stall()

    def go_on() -> None:
        proxy.wait(lambda: proxy.connections > before, 20)
        proxy.unstall()

    thread = threading.Thread(target=go_on)
    thread.start()
    return thread


@pytest.mark.full
def test_a_wire_that_is_silent(server: NatsServer, proxy: WireProxy) -> None:
    read = pulls(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    thread = unstall_after_another_connection(proxy)
    found += sequences(read)
    thread.join()
    assert found == ALL


@pytest.mark.full
def test_a_connection_that_died_while_idle(server: NatsServer, proxy: WireProxy) -> None:
    part = part_of(server.url, "S")
    assert sequences(pulls(proxy.url, part)) == ALL
    thread = unstall_after_another_connection(proxy)
    assert sequences(pulls(proxy.url, part)) == ALL
    thread.join()


@pytest.mark.parametrize("lost", [0, 1, 1500, COUNT - 1])
def test_a_message_lost_on_the_wire(server: NatsServer, proxy: WireProxy, lost: int) -> None:
    proxy.drop_frames(b"\r\n%d." % lost)
    assert sequences(pulls(proxy.url, part_of(server.url, "S"))) == ALL
    assert proxy.dropped == 1
    assert proxy.client_bytes.count(b"CONSUMER.CREATE") == 2


def test_a_message_that_comes_twice(server: NatsServer, proxy: WireProxy) -> None:
    proxy.drop(lambda frame: frame * 2 if b"\r\n777." in frame else frame)
    read = pulls(proxy.url, part_of(server.url, "S"))
    found = some(read)
    proxy.wait(lambda: proxy.bytes_to_client > 0)
    proxy.drop(lambda frame: frame * 2 if b"\r\n2222." in frame else frame)
    found += some(read, 2)
    proxy.drop(None)
    assert found + sequences(read) == ALL


def test_a_status_lost_on_the_wire(server: NatsServer, proxy: WireProxy) -> None:
    proxy.drop_frames(b"NATS/1.0 409 ")
    assert sequences(pulls(proxy.url, part_of(server.url, "S"), replace(SETTINGS, max_bytes=20_000))) == ALL
    assert proxy.dropped == 1


def test_garbage_on_the_wire(server: NatsServer, proxy: WireProxy) -> None:
    left = [b"MSG S.a 99999 nonsense\r\n", b"\x00\xff garbage\r\n", b"MSG S.a 1 3\r\nabcd\r\n"]

    def spoil(frame: bytes) -> bytes:
        # Once on each connection: what follows on a connection that is being closed is read by nobody.
        spoiled = left and proxy.connections == 4 - len(left) and b"00." in frame
        return left.pop() + frame if spoiled else frame

    proxy.drop(spoil)
    assert sequences(pulls(proxy.url, part_of(server.url, "S"))) == ALL
    assert not left
    assert proxy.connections == 4


@pytest.mark.parametrize(
    "said",
    [
        "Slow Consumer",
        *(pytest.param(said, marks=pytest.mark.full) for said in ("Stale Connection", "Maximum Connections Exceeded")),
    ],
)
def test_a_server_that_throws_its_client_out(server: NatsServer, proxy: WireProxy, said: str) -> None:
    left = [f"-ERR '{said}'\r\n".encode()]
    proxy.drop(lambda frame: left.pop() + frame if left and b"\r\n1000." in frame else frame)
    assert sequences(pulls(proxy.url, part_of(server.url, "S"))) == ALL
    assert not left
    assert proxy.connections == 2


@pytest.mark.full
def test_a_wire_that_stays_silent(server: NatsServer, proxy: WireProxy) -> None:
    settings = replace(SETTINGS, retry_timeout=1.0)
    read = pulls(proxy.url, part_of(server.url, "S"), replace(settings, batch=100))
    found = some(read)
    proxy.stall()
    began = time.monotonic()
    with pytest.raises(OutageError, match="retryTimeout"):
        found += sequences(read)
    assert time.monotonic() - began < 15
    assert found == ALL[: len(found)]


# The server


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.full)])
def test_a_server_that_comes_back(server: NatsServer, how: str) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    getattr(server, how)()
    server.start()
    assert found + sequences(read) == ALL


@pytest.mark.full
def test_a_server_that_is_down_for_a_while(server: NatsServer) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    server.kill()
    timer = threading.Timer(1.0, server.start)
    timer.start()
    assert found + sequences(read) == ALL
    timer.join()


@pytest.mark.full
def test_a_server_that_is_frozen_for_a_while(server: NatsServer) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read)
    server.pause()
    timer = threading.Timer(2.5, server.resume)
    timer.start()
    assert found + sequences(read) == ALL
    timer.join()


@pytest.mark.parametrize("begun", [True, False])
def test_an_outage_longer_than_retry_timeout(server: NatsServer, begun: bool) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100, retry_timeout=1.5))
    found = some(read) if begun else []
    server.stop()
    began = time.monotonic()
    with pytest.raises(OutageError, match=r"for 1.5 s \(option retryTimeout\): .*127\.0\.0\.1") as caught:
        collect(read, found)
    assert 1.4 < time.monotonic() - began < 5
    assert f"stream S at sequence {len(found) + 1} " in str(caught.value)
    assert found == ALL[: len(found)]


def test_an_outage_without_any_patience(server: NatsServer, proxy: WireProxy) -> None:
    read = pulls(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=100, retry_timeout=0))
    some(read)
    proxy.cut()
    with pytest.raises(OutageError, match="retryTimeout"):
        sequences(read)


def test_credentials_that_are_withdrawn(server: NatsServer) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100, retry_timeout=1.0))
    some(read)
    server.config = "authorization { token: another }"
    server.restart()
    with pytest.raises(OutageError, match=r"\(option retryTimeout\): .*refused the credentials"):
        sequences(read)


@pytest.mark.full
def test_retry_timeout_begins_anew_with_every_message(server: NatsServer, proxy: WireProxy) -> None:
    read = pulls(proxy.url, part_of(server.url, "S"), replace(SETTINGS, batch=10, retry_timeout=1.0))
    found: list[int] = []
    for _ in range(5):
        found += some(read)
        proxy.cut()
    assert found + sequences(read) == ALL


# The consumer


def delete_consumers(url: str) -> None:
    """Delete all consumers of stream S."""
    for name in consumers(url, "S"):
        api(url, f"CONSUMER.DELETE.S.{name}")


def test_a_consumer_that_is_deleted(server: NatsServer) -> None:
    found: list[int] = []
    for number, pulled in enumerate(pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=200))):
        found += pulled.sequences.tolist()
        if number in {0, 3}:
            delete_consumers(server.url)
    assert found == ALL


def test_a_reader_slower_than_its_consumer_lives(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_consumer_goes_with_a_reader_that_stops_early(server: NatsServer) -> None:
    read = pulls(server.url, part_of(server.url, "S"))
    some(read)
    read.close()  # type: ignore[attr-defined]  # it is a generator
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


def test_the_consumer_goes_with_a_task_that_fails(server: NatsServer) -> None:
    def task() -> None:
        for _ in pulls(server.url, part_of(server.url, "S")):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        task()
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


def test_the_consumer_goes_with_a_range_that_was_lost(server: NatsServer) -> None:
    part = part_of(server.url, "S")
    api(server.url, "STREAM.PURGE.S", {"seq": 11})
    with pytest.raises(DataLossError):
        sequences(pulls(server.url, part))
    wait_until(lambda: not consumers(server.url, "S"), "the consumer's end")


@pytest.mark.full
def test_many_ranges_need_no_more_consumers_than_a_stream_allows(server: NatsServer) -> None:
    create(server.url, "FEW", max_consumers=3)
    fill(server.url, "FEW", 50)
    part = part_of(server.url, "FEW")
    for _ in range(40):
        assert sequences(pulls(server.url, part)) == ALL[:50]
        read = pulls(server.url, part, replace(SETTINGS, batch=5))
        some(read)
        read.close()  # type: ignore[attr-defined]


def test_two_ranges_of_a_stream_with_room_for_one_consumer(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    create(server.url, "ONE", max_consumers=1)
    fill(server.url, "ONE", 600)
    first, second = (part_of(server.url, "ONE", begin, begin + 300) for begin in (1, 301))
    settings = replace(SETTINGS, batch=10)

    def whole(part: SequenceRange) -> list[int]:
        return sequences(pulls(server.url, part, settings))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(whole, (first, second), timeout=60)) == [ALL[:300], ALL[300:600]]

    # The same with the first one in mid-read for certain when the second begins.
    caplog.clear()
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


def test_a_cut_connection_on_a_stream_with_room_for_one_consumer(server: NatsServer, proxy: WireProxy) -> None:
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
    began = time.monotonic()
    with pytest.raises(ConsumerLimitReached, match="maximum consumers limit reached") as caught:
        sequences(pulls(server.url, part, replace(SETTINGS, retry_timeout=1.0)))
    assert 1.0 <= time.monotonic() - began < 5
    assert (caught.value.code, caught.value.err_code) == (400, 10026)
    for said in ("stream ONE", "within 1 s (option retryTimeout)", "maxMessagesPerPartition", "max_consumers"):
        assert said in str(caught.value)
    assert found + sequences(begun) == ALL[:300]


@pytest.mark.parametrize(
    "denied", ["$JS.API.CONSUMER.CREATE.S.>", "$JS.API.CONSUMER.MSG.NEXT.S.>", "$JS.API.STREAM.INFO.S"]
)
def test_a_permission_that_lacks(denied: str) -> None:
    config = f"""authorization {{ users: [
        {{ user: reader, password: r, permissions: {{ publish: {{ deny: ["{denied}"] }} }} }},
        {{ user: admin, password: a }}
    ] }}"""
    with NatsServer(config=config) as server:
        admin = server.url.replace("//", "//admin:a@")
        create(admin, "S")
        fill(admin, "S", 10)
        began = time.monotonic()
        with pytest.raises(PermissionDenied, match=re.escape(denied.removesuffix(">"))) as caught:
            sequences(pulls(server.url.replace("//", "//reader:r@"), part_of(admin, "S")))
        assert time.monotonic() - began < 2
        assert str(caught.value.subject).startswith(denied.removesuffix(">"))


def test_the_permissions_of_a_reader_are_enough() -> None:
    allowed = ["STREAM.INFO.S", "CONSUMER.CREATE.S.>", "CONSUMER.MSG.NEXT.S.*", "CONSUMER.DELETE.S.*"]
    subjects = ", ".join(f'"$JS.API.{subject}"' for subject in allowed)
    config = f"""authorization {{ users: [
        {{ user: reader, password: r, permissions: {{ publish: [{subjects}], subscribe: ["_INBOX_r.>"] }} }},
        {{ user: admin, password: a }}
    ] }}"""
    with NatsServer(config=config) as server:
        admin = server.url.replace("//", "//admin:a@")
        create(admin, "S")
        fill(admin, "S", 700)
        reader = options(server.url.replace("//", "//reader:r@"), inboxPrefix="_INBOX_r")
        assert sequences(pulls(reader, part_of(admin, "S"))) == ALL[:700]
        wait_until(lambda: not consumers(admin, "S"), "the consumer's end")


# The stream


def lose(read: Iterator[Delivered]) -> tuple[list[int], str]:
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
    create(url, "S")
    fill(url, "S", COUNT)


def delete(url: str) -> None:
    """Delete the stream."""
    api(url, "STREAM.DELETE.S")


@pytest.mark.parametrize("begun", [True, False], ids=["in-mid-read", "before"])
@pytest.mark.parametrize("change", [delete, recreate])
def test_a_stream_that_is_gone(server: NatsServer, change: Callable[[str], None], begun: bool) -> None:
    read = pulls(server.url, part_of(server.url, "S"), replace(SETTINGS, batch=100))
    found = some(read) if begun else []
    change(server.url)
    more, said = lose(read)
    found += more
    assert found == ALL[: len(found)]
    assert ("created again" if change is recreate else "was deleted while") in said
    assert f"sequences {len(found) + 1} to {COUNT}" in said


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_stream_that_is_gone_and_may_be(
    server: NatsServer, change: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(SETTINGS, batch=100, fail_on_data_loss=False)
    read = pulls(server.url, part_of(server.url, "S"), settings)
    found = some(read)
    change(server.url)
    found += sequences(read)
    assert found == ALL[: len(found)]
    assert len(found) < COUNT
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
    if followed:
        fill(server.url, "S", 10)
    remove, left = LOSSES[what]
    if what == "everything" and followed:
        api(server.url, "STREAM.PURGE.S", {"seq": COUNT + 5})
    else:
        remove(server.url)

    found, said = lose(pulls(server.url, part))
    assert found == left
    assert said.startswith(f"{COUNT - len(left)} of {COUNT} messages of stream S, sequences 1 to {COUNT}, ")
    settings = replace(SETTINGS, fail_on_data_loss=False)
    assert sequences(pulls(server.url, part, settings)) == left
    assert f"{COUNT - len(left)} of {COUNT} messages of stream S" in caplog.text
    # Not an outage, so no patience is needed; and no loss where no number was promised.
    assert sequences(pulls(server.url, part, replace(settings, retry_timeout=0))) == left
    assert sequences(pulls(server.url, replace(part, count=None))) == left


def test_messages_removed_while_they_are_waited_for(server: NatsServer) -> None:
    part = part_of(server.url, "S")
    read = pulls(server.url, part, replace(SETTINGS, batch=100))
    found = some(read)
    api(server.url, "STREAM.PURGE.S")
    more, said = lose(read)
    found += more
    assert found == ALL[: len(found)]
    assert said.startswith(f"{COUNT - len(found)} of {COUNT} messages of stream S")


def test_messages_removed_behind_the_next_request(server: NatsServer, proxy: WireProxy) -> None:
    part = part_of(server.url, "S")
    read = pulls(proxy.url, part, replace(SETTINGS, batch=100))
    found = some(read)
    api(server.url, "STREAM.PURGE.S")
    fill(server.url, "S", 5)
    more, said = lose(read)
    assert found + more == ALL[: len(found + more)]
    assert "were removed" in said


@pytest.mark.full
def test_messages_that_expire(server: NatsServer) -> None:
    create(server.url, "E", max_age=300_000_000)
    fill(server.url, "E", 100)
    part = part_of(server.url, "E")
    wait_until(lambda: api(server.url, "STREAM.INFO.E")["state"]["messages"] == 0, "the end of all messages")
    with pytest.raises(DataLossError, match="100 of 100 messages of stream E"):
        sequences(pulls(server.url, part))


# A cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """Three servers."""
    with NatsCluster() as running:
        yield running


def replicated(cluster: NatsCluster, stream: str, **config: Any) -> SequenceRange:
    """A stream with three replicas and `COUNT` messages, all of it."""
    create(cluster.url, stream, num_replicas=3, storage="file", **config)
    cluster.wait_ready()
    leader = cluster.leader_of(stream)
    fill(cluster.urls[leader], stream, COUNT)
    return part_of(cluster.url, stream)


def index_of(cluster: NatsCluster, name: str) -> int:
    """The place of a server in the cluster."""
    return [server.name for server in cluster.servers].index(name)


@pytest.mark.full
def test_a_leader_that_steps_down(cluster: NatsCluster) -> None:
    part = replicated(cluster, "STEP")
    found: list[int] = []
    for number, pulled in enumerate(pulls(cluster.url, part, replace(SETTINGS, batch=100))):
        found += pulled.sequences.tolist()
        if number in {1, 5}:
            cluster.leader_of("STEP")  # without a leader nobody answers
            api(cluster.url, "STREAM.LEADER.STEPDOWN.STEP")
    assert found == ALL


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("whose", ["the stream's leader", "the consumer's server"])
def test_a_server_of_a_cluster_that_dies(cluster: NatsCluster, whose: str) -> None:
    name = "LEADER" if "leader" in whose else "CONSUMER"
    part = replicated(cluster, name)
    read = pulls(cluster.url, part, replace(SETTINGS, batch=100))
    found = some(read)
    [consumer] = consumers(cluster.url, name)
    serving = index_of(cluster, api(cluster.url, f"CONSUMER.INFO.{name}.{consumer}")["cluster"]["leader"])
    victim = cluster.leader_of(name) if name == "LEADER" else serving
    cluster.kill(victim)
    try:
        found += sequences(read)
    finally:
        cluster.restart(victim)
    assert found == ALL


# All at once


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_any_sequence_of_faults(server: NatsServer, proxy: WireProxy, seed: int) -> None:
    chance = random.Random(seed)
    sent = 0

    def spoil(frame: bytes) -> bytes:
        nonlocal sent
        sent += 1
        if b"$JS.ACK" not in frame or chance.random() > 0.002:
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
    part = part_of(server.url, "S")
    first = chance.randrange(1, 500)
    part = replace(part, first=first, count=part.end - first)
    settings = replace(SETTINGS, batch=chance.choice([50, 200, 1000]), max_bytes=chance.choice([8192, 1 << 20]))
    found: list[int] = []
    for pulled in pulls(proxy.url, part, settings):
        found += pulled.sequences.tolist()
        if chance.random() < 0.15:
            chance.choice(faults)()
    assert found == ALL[first - 1 :]
