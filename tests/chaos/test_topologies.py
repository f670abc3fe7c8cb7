"""Streams that are somewhere else: behind a domain and a leaf node, mirrored, or gathered from
other streams.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nats.js.client import JetStreamContext
from pyspark.sql import SparkSession

from spark_jetstream.errors import DeliveryError, NoResponders, OptionError, OutageError, RowRefused
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.sink.ledger import BUCKET, STREAM
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import PortLease, poll
from tests.support import calls
from tests.support.client import ask, full
from tests.support.leaf import Linked
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import QUICK, api, wait_until
from tests.support.sinking import Sink, die, numbers, rows
from tests.support.streams import MakeStream, Stored, Stream

PAGE = ROOT / "docs" / "topologies.md"
OWNER = {"user": "owner", "pass": "change-me"}
SMALL_REQUESTS = {"fetchBatch": 100, "fetchTimeout": "1s"}

_names = itertools.count(1)


@pytest.fixture(scope="module")
def linked() -> Iterator[Linked]:
    """A hub and a leaf node, with a link that is up."""
    with Linked() as both:
        yield both


@pytest.fixture
def stream(linked: Linked) -> Iterator[MakeStream]:
    """A function that creates a stream at the server of a domain, with a name of its own; deleted
    after the test.
    """
    created: list[Stream] = []

    def create(domain: str, name: str = "", **config: Any) -> Stream:
        if "mirror" in config or "sources" in config:
            config.setdefault("subjects", [])
        url = linked.server(domain).url
        created.append(Stream(url, name or f"T{next(_names)}", **{"storage": "memory", **config}))
        return created[-1]

    yield create
    linked.mend()
    for stream in reversed(created):
        stream.publisher.close()
        with contextlib.suppress(Refused):
            api(stream.url, f"STREAM.DELETE.{stream.name}")


def copied(stream: MakeStream) -> tuple[Stream, Stream]:
    """A stream with 20 messages at the hub, and its mirror at the leaf, which has caught up."""
    origin = stream("hub")
    origin.fill(20)
    copy = stream("leaf", mirror=mirror(origin, "hub"))
    copy.wait_for(20)
    return origin, copy


def reading(url: str, name: str, **options: Any) -> Iterator[Stored]:
    """The rows of a batch read, as they come."""
    return calls.reading({**QUICK, "servers": url, "stream": name, **options})


def read(url: str, name: str, **options: Any) -> list[Stored]:
    return list(reading(url, name, **options))


def query_of(url: str, name: str, **options: Any) -> calls.Query:
    """A streaming query that is read by single micro-batches."""
    return calls.Query(url, name, **{**QUICK, **options}).resume()


def fill(s: Stream) -> list[Stored]:
    """Store sixty messages of several kinds; return their rows."""
    s.fill_in_turn(40, ["a", "b.x"])
    s.send(
        *(
            Message(f"{s.subject}.h", bytes([n, 0, 255]), [("A", str(n)), ("A", "x"), ("Ü", "é")])
            for n in range(20)
        )
    )
    return s.rows()


# Reading through a domain


@pytest.mark.parametrize("domain", ["hub", *full("leaf")])
class TestDomain:
    """The stream is at the server of the domain, the client at the other one."""

    def test_batches_and_a_query_that_goes_on(
        self, linked: Linked, stream: MakeStream, domain: str
    ) -> None:
        s = stream(domain)
        expected = fill(s)
        url = linked.other(domain).url
        of = functools.partial(read, url, s.name, domain=domain)
        assert of(minPartitions=3) == expected
        assert of(subjects=f"{s.subject}.b.*,{s.subject}.h") == [
            row for row in expected if not row.subject.endswith("a")
        ]
        assert (
            of(startingOffsets=f'{{"{s.name}": 11}}', endingOffsets=f'{{"{s.name}": 21}}')
            == expected[10:20]
        )
        at = rfc3339(s.stored_time(50))
        assert of(startingTimestamp=at) == [
            row for row in expected if s.stored_time(row.sequence) >= s.stored_time(50)
        ]
        query = query_of(url, s.name, domain=domain, maxMessagesPerTrigger=25)
        assert [query.step() for _ in range(4)] == [
            expected[:25],
            expected[25:50],
            expected[50:],
            [],
        ]
        s.fill(30)
        query.resume(maxMessagesPerTrigger=100)
        # From the other side, and with no domain: it is the same stream.
        assert query.rest() == s.rows()[60:]
        s.fill(5)
        query = query_of(s.url, s.name, startingOffsets=f'{{"{s.name}": 91}}')
        assert query.rest() == s.rows()[90:]

    @pytest.mark.parametrize("retention", ["workqueue", *full("interest", "limits")])
    def test_durable_progress(
        self, linked: Linked, stream: MakeStream, domain: str, retention: str
    ) -> None:
        # Streams and consumers of the same names in both domains, with messages of the same
        # sequences.
        config = {"retention": retention, "allow_direct": True}
        s = stream(domain, **config)
        url = linked.other(domain).url
        other = stream("leaf" if domain == "hub" else "hub", s.name, subjects=["o.>"], **config)
        query = query_of(url, s.name, domain=domain, durable="spark", maxMessagesPerTrigger=40)
        beside = query_of(url, s.name, durable="spark")
        expected = fill(s)
        other.send(*(Message("o.a", b"%d" % number) for number in range(60)))
        assert len(beside.step()) == 60
        assert query.step() == expected[:40]
        assert s.state()["messages"] == 60
        query.commit()
        query.resume()
        assert query.step() == expected[40:]
        query.commit()
        assert s.state()["messages"] == (60 if retention == "limits" else 0)
        assert s.publisher.api(f"CONSUMER.INFO.{s.name}.spark")["num_pending"] == 0
        assert other.state()["messages"] == 60
        beside.commit()
        assert other.state()["messages"] == (60 if retention == "limits" else 0)

    def test_the_link_breaks_while_reading(
        self, linked: Linked, stream: MakeStream, domain: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        s = stream(domain, storage="file")
        s.fill(8000, size=200)
        stored = reading(linked.other(domain).url, s.name, domain=domain, **SMALL_REQUESTS)
        rows = list(itertools.islice(stored, 500))

        def until_noticed() -> None:
            before = caplog.text.count("going on at sequence")
            wait_until(
                lambda: caplog.text.count("going on at sequence") > before, "the reader has noticed"
            )

        linked.flicker()
        rows += itertools.islice(stored, 2500)
        with broken(linked.cut, linked.mend, until_noticed):
            rows += itertools.islice(stored, 2000)
        with broken(linked.server(domain).kill, linked.server(domain).start, until_noticed):
            rows += stored
        assert [(row.sequence, row.data) for row in rows] == [
            (n, m.data) for n, m in sorted(s.messages.items())
        ]

    def test_the_link_is_gone(self, linked: Linked, stream: MakeStream, domain: str) -> None:
        s = stream(domain)
        s.fill(2000, size=200)
        url = linked.other(domain).url
        stored = reading(url, s.name, domain=domain, retryTimeout="500ms", **SMALL_REQUESTS)
        assert next(stored).sequence == 1
        query = query_of(url, s.name, domain=domain, retryTimeout="500ms")
        linked.cut()
        api_of = (
            rf"nobody answers at \$JS\.{domain}\.API\.[A-Z.]+{s.name}\S*: is JetStream enabled .* "
            r"options domain and"
        )
        with pytest.raises(
            OutageError,
            match=rf"{s.name} .* no further for 0.5 s \(option retryTimeout\): .*{api_of}",
        ):
            list(stored)
        with pytest.raises(
            NoResponders, match=rf"cannot read stream {s.name} \(option stream\): {api_of}"
        ):
            query.step()
        linked.mend()
        assert [row.sequence for row in query.rest()] == list(range(1, 2001))


@contextlib.contextmanager
def broken(
    break_it: Callable[[], Any],
    mend: Callable[[], Any],
    enough: Callable[[], Any] = lambda: time.sleep(0.3),
) -> Iterator[None]:
    """Break something, which a thread mends when it has been broken for long enough."""
    break_it()
    with ThreadPoolExecutor(1) as pool:
        mending = pool.submit(lambda: (enough(), mend()))
        yield
        mending.result()


# Mirrors


def mirror(origin: Stream, domain: str = "", **fields: Any) -> dict[str, Any]:
    """Return the configuration of a mirror; `domain` is that of the origin if it is another one."""
    external = {"external": {"api": f"$JS.{domain}.API"}} if domain else {}
    return {"name": origin.name, **external, **fields}


def as_of(name: str, expected: list[Stored]) -> list[Stored]:
    """Return the rows with the name of another stream."""
    return [row._replace(stream=name) for row in expected]


def test_mirrors_have_the_rows_of_their_origin(stream: MakeStream) -> None:
    origin = stream("hub")
    fill(origin)
    origin.remove(7, 8, 33)
    expected = origin.rows()
    to = {"src": f"{origin.subject}.b.*", "dest": f"{origin.subject}.c.{{{{wildcard(1)}}}}"}
    matching = [row for row in expected if ".b." in row.subject]
    moved = [row._replace(subject=row.subject.replace(".b.", ".c.")) for row in matching]
    cases: list[tuple[dict[str, Any], list[Stored]]] = [
        ({}, expected),
        ({"filter_subject": f"{origin.subject}.b.*"}, matching),
        ({"opt_start_seq": 31}, [row for row in expected if row.sequence >= 31]),
        ({"subject_transforms": [to]}, moved),
    ]
    mirrors = [
        (stream("leaf", mirror=mirror(origin, "hub", **fields)), rows_of_mirror)
        for fields, rows_of_mirror in cases
    ]
    second = stream("leaf", mirror=mirror(mirrors[0][0]))
    for copy, rows_of_mirror in (*mirrors, (second, expected)):
        copy.wait_for(len(rows_of_mirror))
        assert read(copy.url, copy.name) == as_of(copy.name, rows_of_mirror)
    copy = mirrors[-1][0]
    assert read(copy.url, copy.name, subjects=f"{origin.subject}.c.x") == as_of(copy.name, moved)
    assert read(copy.url, copy.name, subjects=f"{origin.subject}.b.x") == []
    query = query_of(second.url, second.name, maxMessagesPerTrigger=30)
    first_rows = query.step()
    assert (len(first_rows), first_rows + query.rest()) == (30, as_of(second.name, expected))


def test_a_mirror_that_is_behind(linked: Linked, stream: MakeStream) -> None:
    origin, copy = copied(stream)
    query = query_of(copy.url, copy.name)
    assert [row.sequence for row in query.rest()] == list(range(1, 21))
    linked.cut()
    origin.fill(30)
    assert query.step() == []
    with pytest.raises(
        OptionError, match=f"begins stream {copy.name} at sequence 31, but its last message has"
    ):
        read(copy.url, copy.name, startingOffsets=f'{{"{copy.name}": 31}}')
    linked.mend()
    copy.wait_for(50)
    assert query.rest() == as_of(copy.name, origin.rows()[20:])
    after = read(copy.url, copy.name, startingOffsets=f'{{"{copy.name}": 31}}')
    assert after == as_of(copy.name, origin.rows()[30:])


def test_a_mirror_that_is_promoted(linked: Linked, stream: MakeStream) -> None:
    origin, copy = copied(stream)
    query = query_of(copy.url, copy.name)
    assert len(query.rest()) == 20
    origin.fill(10)
    copy.wait_for(30)
    linked.cut()
    promoted = {"name": copy.name, "subjects": [f"{copy.subject}.>"], "storage": "memory"}
    api(copy.url, f"STREAM.UPDATE.{copy.name}", promoted)
    copy.messages = dict(origin.messages)
    copy.fill(10)
    query.resume()
    assert query.rest() == copy.rows()[20:]
    linked.mend()
    origin.fill(5)
    assert query.step() == []


# Direct Get, which mirrors answer for their origins


def test_direct_gets_of_a_stream_with_the_name_of_another_ones_origin(
    linked: Linked, stream: MakeStream
) -> None:
    far = stream("hub")
    fill(far)
    near = stream("leaf", far.name, subjects=["near.>"], allow_direct=True)
    near.send(*(Message("near.a", b"%d" % number) for number in range(60)))
    copy = stream("leaf", mirror=mirror(far, "hub"), mirror_direct=True)
    wait_until(lambda: answering(linked.leaf.url, near.name) == copy.name, "the mirror answers")
    for _ in range(10):
        assert (
            read(linked.hub.url, near.name, domain="leaf", readWith="direct", fetchBatch=15)
            == near.rows()
        )


def answering(url: str, stream: str) -> str:
    """Return which stream answers a Direct Get of message 60 of a stream."""

    async def work(js: JetStreamContext) -> str:
        reply = await js._nc.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq": 60}', timeout=60)
        return (reply.headers or {}).get("Nats-Stream", "")

    return ask(url, work)


# Sources


def test_sources_from_two_domains(linked: Linked, stream: MakeStream) -> None:
    near, far = stream("leaf"), stream("hub")
    fill(near)
    fill(far)
    both = stream("leaf", sources=[{"name": near.name}, mirror(far, "hub")])
    both.wait_for(120)
    stored = read(both.url, both.name)
    assert [row.sequence for row in stored] == list(range(1, 121))
    for origin in (near, far):
        here = [row for row in stored if row.subject.startswith(f"{origin.subject}.")]
        # Origin (with a hash if it is elsewhere), sequence there, filter, transform, and since 2.15
        # the subject.
        sources = [
            row.headers.pop("Nats-Stream-Source")[0].split(" ") for row in here if row.headers
        ]
        assert [(source[0].split(":")[0], int(source[1]), source[4]) for source in sources] == [
            (origin.name, sequence, row.subject) for sequence, row in enumerate(here, start=1)
        ]
        assert here == [
            row._replace(
                stream=both.name,
                sequence=other.sequence,
                micros=other.micros,
                headers=row.headers or {},
            )
            for row, other in zip(origin.rows(), here, strict=True)
        ]
    query = query_of(linked.hub.url, both.name, domain="leaf", maxMessagesPerTrigger=70)
    assert [[row.sequence for row in query.step()] for _ in range(2)] == [
        list(range(1, 71)),
        list(range(71, 121)),
    ]


# Writing through a domain, and to the streams of another account


def sink(url: str, delivery: str, **options: Any) -> Sink:
    """Return a sink whose query has just started."""
    return Sink(url, delivery=delivery, **{"ackTimeout": "500ms", **options}).started()


@pytest.mark.usefixtures("quick_ledger")
@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
class TestWriting:
    @pytest.mark.parametrize(("domain", "named"), [("hub", True), ("leaf", False)])
    def test_to_a_domain(
        self, linked: Linked, stream: MakeStream, delivery: str, domain: str, named: bool
    ) -> None:
        s = stream(domain)
        # A row that is sent again because its answer is late counts as a duplicate.
        given = {"ackTimeout": "60s", **({"stream": s.name} if named else {})}
        writer = sink(linked.other(domain).url, delivery, domain=domain, **given)
        task, other = WriteTask(s.name, 1, 0), linked.other(domain)
        # A row that is published before that waits for a retry.
        wait_until(
            lambda: f"{s.subject}.>" in str(other.monitor("/leafz?subs=1")),
            "the link knows the stream",
        )
        die(writer, s, rows(f"{s.subject}.a", 0, 300), task=task)
        report = writer.write([rows(f"{s.subject}.a", 0, 1000)], task=task)
        assert (report.stored, report.duplicates, report.streams) == (
            1000,
            300,
            {s.name: (1, 1000)},
        )
        assert numbers(s.url, s.name) == list(range(1000))
        if delivery == "exactly-once":
            # The ledger is where the stream is, and nowhere else.
            entry = {"last_by_subj": f"$KV.{BUCKET}.{s.name}.0"}
            assert api(s.url, f"STREAM.MSG.GET.{STREAM}", entry)["message"]["seq"] > 0
            with pytest.raises(Refused, match=r"not found|no message found"):
                api(linked.other(domain).url, f"STREAM.MSG.GET.{STREAM}", entry)

    def test_while_the_link_breaks(self, linked: Linked, stream: MakeStream, delivery: str) -> None:
        s = stream("leaf", storage="file")
        writer = sink(
            linked.hub.url, delivery, domain="leaf", requestTimeout="1s", maxInFlight=2000
        )

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(12):
                some = rows(f"{s.subject}.a", number * 1000, 1000)
                with contextlib.ExitStack() as trouble:
                    if number == 3:
                        linked.flicker()
                    if number == 6:
                        trouble.enter_context(broken(linked.cut, linked.mend))
                    if number == 9:
                        trouble.enter_context(broken(linked.leaf.kill, linked.leaf.start))
                    yield some

        report = writer.write(batches(), task=WriteTask(s.name, 1, 0))
        assert (report.rows, report.stored) == (12000, 12000)
        assert sorted(numbers(s.url, s.name)) == list(range(12000))

    def test_without_the_link(self, linked: Linked, stream: MakeStream, delivery: str) -> None:
        s = stream("leaf")
        writer = sink(linked.hub.url, delivery, domain="leaf", retryTimeout="500ms")
        linked.cut()
        # The task learns it from the data, or before that from the ledger.
        reason = {
            "deduplicated": r"no stream captures this subject, or its stream has no leader .* for "
            r"0.5 s",
            "exactly-once": rf"nobody answers at \$JS\.leaf\.API\.STREAM\.MSG\.GET\.{STREAM}: .* "
            r"options domain and",
        }
        some, task = rows(f"{s.subject}.a", 0, 10), WriteTask(s.name, 1, 0)
        with pytest.raises((OutageError, NoResponders), match=reason[delivery]):
            writer.write([some], task=task)
        linked.mend()
        patient = sink(linked.hub.url, delivery, domain="leaf", ackTimeout="60s")
        assert patient.write([some], task=task).stored == 10
        assert numbers(s.url, s.name) == list(range(10))

    def test_to_another_account(
        self, nats_server_factory: Callable[..., NatsServer], delivery: str
    ) -> None:
        server = nats_server_factory(config=blocks(PAGE, "conf")[2].text)
        with Publisher(server.url, **OWNER) as owner:
            Stream(server.url, "TOTALS", owner)
            login = {"user": "guest", "password": "change-me-too", "apiPrefix": "OWNER.API"}
            writer = sink(server.url, delivery, stream="TOTALS", ackTimeout="60s", **login)
            for duplicates in (0, 500):
                report = writer.write([rows("totals.a", 0, 500)], task=WriteTask("q", 1, 0))
                assert (report.stored, report.duplicates) == (500, duplicates)
            assert [row.data for row in read(server.url, "TOTALS", **login)] == [
                b"row %d" % n for n in range(500)
            ]

    def test_a_row_that_another_domain_stores_is_refused(
        self, linked: Linked, stream: MakeStream, delivery: str
    ) -> None:
        near = stream("hub")
        # It captures other subjects: where both streams capture a row, either answer may be first.
        far = stream("leaf", near.name, subjects=[f"{near.subject}.far.>"])
        writer = sink(linked.hub.url, delivery, domain="leaf", stream=far.name)
        refusal = rf"stream {near.name} of domain hub stored it, not domain leaf \(option domain\)"
        with pytest.raises(RowRefused, match=refusal):
            writer.write([rows(f"{near.subject}.a", 0, 10)], task=WriteTask(near.name, 1, 0))
        if delivery == "deduplicated":
            linked.cut()
            with pytest.raises(RowRefused, match=refusal):
                writer.write([rows(f"{near.subject}.a", 10, 10)], task=WriteTask(near.name, 2, 0))

    def test_a_domain_that_does_not_exist(
        self, linked: Linked, stream: MakeStream, delivery: str
    ) -> None:
        s = stream("hub")
        wrong = (
            r"not domain mars \(option domain\)|nobody answers at \$JS\.mars\.API\..*options "
            r"domain and"
        )
        with pytest.raises((RowRefused, NoResponders, DeliveryError), match=wrong):
            sink(linked.hub.url, delivery, domain="mars", retryTimeout="500ms").write(
                [rows(f"{s.subject}.a", 0, 10)]
            )


@pytest.mark.full
def test_the_page_on_topologies(spark: SparkSession, tmp_path: Path) -> None:
    of_hub, of_leaf, of_accounts, _ = (block.text for block in blocks(PAGE, "conf"))
    of_copy, of_all, _ = (json.loads(block.text) for block in blocks(PAGE, "json"))
    examples = blocks(PAGE, "python")
    names: dict[str, Any] = {"spark": spark}
    with contextlib.ExitStack() as stack:
        lease = PortLease()
        stack.callback(lease.release)
        hub = stack.enter_context(NatsServer(config=of_hub.replace("7422", str(lease.port))))
        of_leaf = of_leaf.replace("hub.example.com:7422", f"127.0.0.1:{lease.port}")
        leaf = stack.enter_context(NatsServer(config=of_leaf, http_monitor=True))
        poll(
            lambda: leaf.monitor("/leafz")["leafnodes"] or None, 60, lambda: TimeoutError("no link")
        )
        to_hub, to_leaf = (stack.enter_context(Publisher(server.url)) for server in (hub, leaf))
        Stream(leaf.url, "TOTALS", to_leaf)
        Stream(leaf.url, "ORDERS", to_leaf).fill(150)
        Stream(hub.url, "ORDERS_OF_THE_HUB", to_hub).fill(20)
        for config, count in ((of_copy, 150), (of_all, 170)):
            Stream(hub.url, publisher=to_hub, **{"subjects": [], **config}).wait_for(count)
        for example in examples[:-1]:
            example.run({DEFAULT_URL: hub.url, FOLDER: str(tmp_path)}, names)
        # Asked on a new connection: the server has closed one that was quiet for minutes.
        assert api(leaf.url, "STREAM.INFO.TOTALS")["state"]["messages"] == 150
        assert sum(progress["numInputRows"] for progress in names["query"].recentProgress) == 50
        assert {row["stream"] for row in names["by_origin"].collect()} == {
            "ORDERS",
            "ORDERS_OF_THE_HUB",
        }
    with NatsServer(config=of_accounts) as server, Publisher(server.url, **OWNER) as owner:
        Stream(server.url, "TOTALS", owner)
        examples[-1].run({DEFAULT_URL: server.url}, names)
