"""Streams that are somewhere else: behind a domain and a leaf node, mirrored, or gathered from other streams."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jetstream.errors import (
    DataLossError,
    DeliveryError,
    NoResponders,
    OptionError,
    OutageError,
    RowRefused,
    StreamNotFound,
)
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.sink import ledger, preflight
from spark_jetstream.sink.ledger import BUCKET, STREAM
from spark_jetstream.sink.preflight import check_start
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.reader import JetStreamBatchReader, JetStreamStreamReader
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import PortLease, poll
from tests.docs.test_docs import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.client import Raw
from tests.support.leaf import Linked, api
from tests.support.publish import Message, Publisher, Refused
from tests.support.queries import batch, streaming
from tests.support.reading import QUICK, wait_until
from tests.support.sinking import Sink, numbers, rows
from tests.support.streams import Stored, Stream

SECOND = 1_000_000_000
DOMAINS = ("hub", "leaf")

SCHEMA = StructType(
    [
        StructField("stream", StringType()),
        StructField("subject", StringType()),
        StructField("sequence", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", MapType(StringType(), ArrayType(StringType()))),
        StructField("data", BinaryType()),
    ]
)

_names = itertools.count(1)


@pytest.fixture(scope="module")
def linked() -> Iterator[Linked]:
    """A hub and a leaf node, with a link that is up."""
    with Linked() as both:
        yield both


MakeStream = Callable[..., Stream]


@pytest.fixture
def stream(linked: Linked) -> Iterator[MakeStream]:
    """A function that makes a stream at the server of a domain, with a name of its own; gone after the test."""
    made: list[Stream] = []

    def make(domain: str, name: str = "", **config: Any) -> Stream:
        if "mirror" in config or "sources" in config:
            config.setdefault("subjects", [])
        made.append(Stream(linked.server(domain).url, name or f"T{next(_names)}", **{"storage": "memory", **config}))
        return made[-1]

    yield make
    linked.mend()
    for each in reversed(made):
        each.publisher.close()
        if each.name in (api(each.url, "STREAM.NAMES").get("streams") or []):
            api(each.url, f"STREAM.DELETE.{each.name}")


def given(url: str, name: str, options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark hands them on."""
    return {**QUICK, "servers": url, "stream": name, **{key: str(value) for key, value in options.items()}}


def read(url: str, name: str, **options: Any) -> list[Stored]:
    """What a batch read finds, without Spark."""
    reader = JetStreamBatchReader(given(url, name, options), SCHEMA)
    return list(_rows(reader, reader.partitions()))


def _rows(reader: Any, partitions: Any) -> Iterator[Stored]:
    for partition in partitions:
        for found in reader.read(partition):
            micros = found["timestamp"].cast(pa.int64())
            for row, time in zip(found.to_pylist(), micros.to_pylist(), strict=True):
                headers = None if row["headers"] is None else dict(row["headers"])
                yield Stored(row["stream"], row["subject"], row["sequence"], time, headers, row["data"])


class Query:
    """A streaming query without Spark: micro-batches between offsets as its checkpoint would hold them."""

    def __init__(self, url: str, name: str, **options: Any) -> None:
        self._options = given(url, name, options)
        self._reader = JetStreamStreamReader(self._options, SCHEMA)
        self.at: dict[str, Any] = self._reader.initialOffset()

    def resume(self, **changed: Any) -> None:
        """Start again at the offset reached, as a query with its checkpoint does, with other options."""
        self._options |= {key: str(value) for key, value in changed.items()}
        self._reader = JetStreamStreamReader(self._options, SCHEMA)

    def step(self) -> list[Stored]:
        """The rows of the next micro-batch; none when there is nothing to read."""
        end = self._reader.open_planner().latest(Offset.from_json(self.at), limited=True).to_json()
        partitions = self._reader.partitions(self.at, end)
        found = list(_rows(self._reader, partitions))
        self.at = end
        return found

    def commit(self) -> None:
        """What was read is in the sink."""
        self._reader.commit(self.at)
        self._reader.open_planner().progress.settle()  # one that takes long goes on in a thread

    def rest(self) -> list[Stored]:
        """The rows of all micro-batches until there is nothing left to read."""
        found: list[Stored] = []
        before = None
        while before != self.at:
            before = self.at
            found += self.step()
        return found


def fill(s: Stream) -> list[Stored]:
    """Sixty messages of several kinds; the rows they make."""
    s.fill_in_turn(40, ["a", "b.x"])
    s.send(*(Message(f"{s.subject}.h", bytes([n, 0, 255]), [("A", str(n)), ("A", "x"), ("Ü", "é")]) for n in range(20)))
    return s.rows()


# Reading through a domain


@pytest.mark.parametrize("domain", DOMAINS)
class TestDomain:
    """The stream is at the server of the domain, the client at the other one."""

    def test_rows_filters_and_positions(self, linked: Linked, stream: MakeStream, domain: str) -> None:
        s = stream(domain)
        expected = fill(s)
        url = linked.other(domain).url

        def of(**options: Any) -> list[Stored]:
            return read(url, s.name, domain=domain, **options)

        assert of(minPartitions=3) == expected
        assert of(subjects=f"{s.subject}.b.*,{s.subject}.h") == [
            row for row in expected if not row.subject.endswith("a")
        ]
        assert of(startingOffsets=f'{{"{s.name}": 11}}', endingOffsets=f'{{"{s.name}": 21}}') == expected[10:20]
        at = rfc3339(s.stored_time(50))
        assert of(startingTimestamp=at) == [row for row in expected if s.stored_time(row.sequence) >= s.stored_time(50)]

    def test_streaming_goes_on_from_its_offset(self, linked: Linked, stream: MakeStream, domain: str) -> None:
        s = stream(domain)
        expected = fill(s)
        query = Query(linked.other(domain).url, s.name, domain=domain, maxMessagesPerTrigger=25)
        assert [query.step() for _ in range(4)] == [expected[:25], expected[25:50], expected[50:], []]
        s.fill(30)
        query.resume(maxMessagesPerTrigger=100)
        # From the other side, and with no domain: it is the same stream.
        assert query.rest() == s.rows()[60:]
        s.fill(5)
        query = Query(s.url, s.name, startingOffsets=f'{{"{s.name}": 91}}')
        assert query.rest() == s.rows()[90:]

    @pytest.mark.parametrize("retention", ["workqueue", "interest", "limits"])
    def test_durable_progress(self, linked: Linked, stream: MakeStream, domain: str, retention: str) -> None:
        # Streams and consumers of the same names in both domains, with messages of the same sequences.
        s = stream(domain, retention=retention, allow_direct=True)
        other = stream(
            "leaf" if domain == "hub" else "hub", s.name, subjects=["o.>"], retention=retention, allow_direct=True
        )
        query = Query(linked.other(domain).url, s.name, domain=domain, durable="spark", maxMessagesPerTrigger=40)
        beside = Query(linked.other(domain).url, s.name, durable="spark")
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
        info = s.publisher.api(f"CONSUMER.INFO.{s.name}.spark")
        assert info["num_pending"] == 0
        assert other.state()["messages"] == 60
        beside.commit()
        assert other.state()["messages"] == (60 if retention == "limits" else 0)

    def test_the_link_breaks_while_reading(
        self, linked: Linked, stream: MakeStream, domain: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        s = stream(domain, storage="file")
        s.fill(8000, size=200)
        reading = in_small_requests(linked.other(domain).url, s.name, domain=domain)
        found = list(itertools.islice(reading, 500))
        linked.flicker()
        found += itertools.islice(reading, 2500)
        assert caplog.text.count("going on at sequence") >= 1
        linked.cut()
        with later(linked.mend):
            found += itertools.islice(reading, 2000)
        before = caplog.text.count("going on at sequence")
        linked.server(domain).kill()
        with later(linked.server(domain).start):
            found += reading
        assert caplog.text.count("going on at sequence") > before
        assert [(row.sequence, row.data) for row in found] == [(n, m.data) for n, m in sorted(s.messages.items())]

    def test_the_link_is_gone(self, linked: Linked, stream: MakeStream, domain: str) -> None:
        s = stream(domain)
        s.fill(2000, size=200)
        url = linked.other(domain).url
        reading = in_small_requests(url, s.name, domain=domain, retryTimeout="500ms")
        assert next(reading).sequence == 1
        query = Query(url, s.name, domain=domain, retryTimeout="500ms")
        linked.cut()
        api_of = (
            rf"nobody answers at \$JS\.{domain}\.API\.[A-Z.]+{s.name}\S*: is JetStream enabled .* options domain and"
        )
        with pytest.raises(OutageError, match=rf"{s.name} .* no further for 0.5 s \(option retryTimeout\): .*{api_of}"):
            list(reading)
        with pytest.raises(NoResponders, match=rf"cannot read stream {s.name} \(option stream\): {api_of}"):
            query.step()
        linked.mend()
        assert [row.sequence for row in query.rest()] == list(range(1, 2001))

    def test_another_domain(self, linked: Linked, stream: MakeStream, domain: str) -> None:
        s = stream(domain)
        s.fill(1)
        url = linked.other(domain).url
        with pytest.raises(NoResponders, match=r"nobody answers at \$JS\.mars\.API\.STREAM\.INFO.* options domain and"):
            read(url, s.name, domain="mars", connectTimeout="200ms")
        # At the server that the client is connected to there is no such stream.
        with pytest.raises(StreamNotFound, match=rf"cannot read stream {s.name} \(option stream\)"):
            read(url, s.name)


def in_small_requests(url: str, name: str, **options: Any) -> Iterator[Stored]:
    """Rows as they come, read ahead by few."""
    reader = JetStreamBatchReader(given(url, name, {"fetchBatch": 100, "fetchTimeout": "1s", **options}), SCHEMA)
    return _rows(reader, reader.partitions())


@contextlib.contextmanager
def later(work: Callable[[], Any], seconds: float = 0.3) -> Iterator[None]:
    """Do something a little later, while the test goes on."""
    timer = threading.Timer(seconds, work)
    timer.start()
    yield
    timer.join()


# Mirrors


def mirror(origin: Stream, domain: str = "", **fields: Any) -> dict[str, Any]:
    """The configuration of a mirror; `domain` is that of the origin if it is another one."""
    external = {"external": {"api": f"$JS.{domain}.API"}} if domain else {}
    return {"name": origin.name, **external, **fields}


def as_of(name: str, expected: list[Stored]) -> list[Stored]:
    """The rows with the name of another stream."""
    return [row._replace(stream=name) for row in expected]


class TestMirror:
    def test_at_the_leaf(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        fill(origin)
        origin.remove(7, 8, 33)
        expected = origin.rows()
        first = stream("leaf", mirror=mirror(origin, "hub"))
        second = stream("leaf", mirror=mirror(first))
        first.wait_for(57)
        second.wait_for(57)
        for each in (first, second):
            assert read(each.url, each.name) == as_of(each.name, expected)
        query = Query(second.url, second.name, maxMessagesPerTrigger=30)
        first_rows = query.step()
        assert (len(first_rows), first_rows + query.rest()) == (30, as_of(second.name, expected))

    def test_with_filters_and_transforms(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        expected = fill(origin)
        some = stream("leaf", mirror=mirror(origin, "hub", filter_subject=f"{origin.subject}.b.*"))
        late = stream("leaf", mirror=mirror(origin, "hub", opt_start_seq=31))
        to = {"src": f"{origin.subject}.b.*", "dest": f"{origin.subject}.c.{{{{wildcard(1)}}}}"}
        other = stream("leaf", mirror=mirror(origin, "hub", subject_transforms=[to]))
        some.wait_for(20)
        late.wait_for(30)
        other.wait_for(20)
        matching = [row for row in expected if ".b." in row.subject]
        assert read(some.url, some.name) == as_of(some.name, matching)
        assert read(late.url, late.name) == as_of(late.name, expected[30:])
        moved = [row._replace(subject=row.subject.replace(".b.", ".c.")) for row in matching]
        assert read(other.url, other.name) == as_of(other.name, moved)
        assert read(other.url, other.name, subjects=f"{origin.subject}.c.x") == as_of(other.name, moved)
        assert read(other.url, other.name, subjects=f"{origin.subject}.b.x") == []

    def test_that_is_behind(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        origin.fill(20)
        copy = stream("leaf", mirror=mirror(origin, "hub"))
        copy.wait_for(20)
        query = Query(copy.url, copy.name)
        assert [row.sequence for row in query.rest()] == list(range(1, 21))
        linked.cut()
        origin.fill(30)
        assert query.step() == []
        with pytest.raises(OptionError, match=f"begins stream {copy.name} at sequence 31, but its last message has"):
            read(copy.url, copy.name, startingOffsets=f'{{"{copy.name}": 31}}')
        linked.mend()
        copy.wait_for(50)
        assert query.rest() == as_of(copy.name, origin.rows()[20:])
        found = read(copy.url, copy.name, startingOffsets=f'{{"{copy.name}": 31}}')
        assert found == as_of(copy.name, origin.rows()[30:])

    def test_that_has_nothing_yet(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        origin.fill(60)
        origin.purge(seq=50)
        linked.cut()
        copy = stream("leaf", mirror=mirror(origin, "hub"))
        query = Query(copy.url, copy.name)
        assert query.step() == []
        linked.mend()
        copy.wait_for(11)
        # Whether it had them for a while and lost them, nobody can say.
        with pytest.raises(DataLossError, match=f"messages 1 to 49 of stream {copy.name} went before being read"):
            query.step()
        query.resume(failOnDataLoss="false")
        assert query.rest() == as_of(copy.name, origin.rows(*range(50, 61)))

    def test_that_is_promoted(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        origin.fill(20)
        copy = stream("leaf", mirror=mirror(origin, "hub"))
        copy.wait_for(20)
        query = Query(copy.url, copy.name)
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

    def test_that_is_made_again_is_another_stream(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        origin.fill(20)
        copy = stream("leaf", mirror=mirror(origin, "hub"))
        copy.wait_for(20)
        query = Query(copy.url, copy.name)
        assert len(query.rest()) == 20
        copy.delete()
        copy.create()
        copy.wait_for(20)
        with pytest.raises(DataLossError, match=f"stream {copy.name} was deleted and created again"):
            query.step()

    def test_in_place_of_its_origin(self, linked: Linked, stream: MakeStream) -> None:
        origin = stream("hub")
        origin.fill(30)
        copy = stream("leaf", mirror=mirror(origin, "hub"))
        copy.wait_for(30)
        query = Query(origin.url, origin.name, maxMessagesPerTrigger=20)
        assert len(query.step()) == 20
        at = query.at["streams"][origin.name]["next"]
        # Another name is another stream: it begins where the options say, whatever the checkpoint says of the first.
        query.resume(servers=copy.url, stream=copy.name)
        assert query.rest() == as_of(copy.name, origin.rows())
        moved = Query(copy.url, copy.name, startingOffsets=f'{{"{copy.name}": {at}}}')
        assert moved.rest() == as_of(copy.name, origin.rows()[20:])


# Direct Get, which mirrors answer for their origins


class TestDirect:
    @pytest.mark.parametrize(
        "different",
        [
            {"filter_subject": "SUBJECT.h"},
            {"opt_start_seq": 41},
            {"subject_transforms": [{"src": "SUBJECT.>", "dest": "moved.>"}]},
            {"max_msgs": 10},
        ],
        ids=lambda different: next(iter(different)),
    )
    def test_of_an_origin_with_a_mirror_that_differs(
        self, linked: Linked, stream: MakeStream, different: dict[str, Any]
    ) -> None:
        origin = stream("hub", allow_direct=True)
        expected = fill(origin)
        fields = json.loads(json.dumps(different).replace("SUBJECT", origin.subject))
        limits = {"max_msgs": fields.pop("max_msgs")} if "max_msgs" in fields else {}
        copy = stream("hub", mirror=mirror(origin, **fields), allow_direct=True, **limits)
        body = json.dumps({"seq": 60}).encode()
        # It answers only when it has caught up.
        wait_until(lambda: answering(linked.hub.url, origin.name, body) == copy.name, "the mirror answers")
        for _ in range(10):
            assert read(linked.leaf.url, origin.name, domain="hub", readWith="direct", fetchBatch=15) == expected
        # The mirror itself is what it is.
        of_copy = {"domain": "hub", "readWith": "direct"}
        assert read(linked.leaf.url, copy.name, **of_copy) == read(linked.hub.url, copy.name)

    def test_of_a_stream_with_the_name_of_another_ones_origin(self, linked: Linked, stream: MakeStream) -> None:
        far = stream("hub")
        fill(far)
        near = stream("leaf", far.name, subjects=["near.>"], allow_direct=True)
        near.send(*(Message("near.a", b"%d" % number) for number in range(60)))
        copy = stream("leaf", mirror=mirror(far, "hub"), mirror_direct=True)
        body = json.dumps({"seq": 60}).encode()
        wait_until(lambda: answering(linked.leaf.url, near.name, body) == copy.name, "the mirror answers")
        for _ in range(10):
            assert read(linked.hub.url, near.name, domain="leaf", readWith="direct", fetchBatch=15) == near.rows()


def answering(url: str, stream: str, body: bytes) -> str:
    """Who answers a Direct Get of a stream: the stream that signs a reply."""
    raw = Raw(url)
    try:
        raw.file.readline()
        raw.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB reply 1\r\n')
        raw.send(b"PUB $JS.API.DIRECT.GET.%s reply %d\r\n%s\r\n" % (stream.encode(), len(body), body))
        found = re.search(rb"\r\nNats-Stream: ([^\r]*)\r\n", raw.message())
        return "" if found is None else found[1].decode()
    finally:
        raw.close()


# Sources


class TestSources:
    def test_from_two_domains(self, spark: SparkSession, linked: Linked, stream: MakeStream) -> None:
        near, far = stream("leaf"), stream("hub")
        fill(near)
        fill(far)
        both = stream("leaf", sources=[{"name": near.name}, mirror(far, "hub")])
        both.wait_for(120)
        found = read(both.url, both.name)
        assert [row.sequence for row in found] == list(range(1, 121))
        for origin in (near, far):
            here = [row for row in found if row.subject.startswith(f"{origin.subject}.")]
            # Origin (with a hash if it is elsewhere), sequence there, filter, transform, and since 2.15 the subject.
            sources = [row.headers.pop("Nats-Stream-Source")[0].split(" ") for row in here if row.headers]
            assert [source[0].split(":")[0] for source in sources] == [origin.name] * 60
            assert [int(source[1]) for source in sources] == list(range(1, 61))
            assert [source[4] for source in sources] == [row.subject for row in here]
            expected = [
                row._replace(stream=both.name, sequence=other.sequence, micros=other.micros, headers=row.headers or {})
                for row, other in zip(origin.rows(), here, strict=True)
            ]
            assert here == expected
        query = Query(linked.hub.url, both.name, domain="leaf", maxMessagesPerTrigger=70)
        assert [[row.sequence for row in query.step()] for _ in range(2)] == [list(range(1, 71)), list(range(71, 121))]
        # Written back, which the server would refuse with that header.
        target = stream("hub", subjects=["back.>"])
        frame = batch(spark, linked.leaf.url, both.name)
        frame = frame.selectExpr("data", "concat('back.', subject) subject", "headers")
        to = {"servers": linked.leaf.url, "domain": "hub", "delivery": "at-least-once"}
        frame.write.format("jetstream").options(**to).mode("append").save()
        back = [row._replace(subject=row.subject.removeprefix("back.")) for row in read(target.url, target.name)]
        assert contents(back) == contents([*near.rows(), *far.rows()])


def contents(found: list[Stored]) -> list[tuple[str, bytes, list[Any]]]:
    """Subject, payload and headers, in an order that does not depend on who came first."""
    return sorted((row.subject, row.data, sorted((row.headers or {}).items())) for row in found)


# Writing through a domain, and to the streams of another account


@pytest.fixture
def quick_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short lease; and nothing that an earlier test has checked counts."""
    monkeypatch.setattr(ledger, "_LEASE", 0.3)
    for known in (preflight._checked, preflight._windows, preflight._warned):
        known.clear()


def sink(url: str, delivery: str, **options: Any) -> Sink:
    """A sink whose query has just started."""
    made = Sink(url, delivery=delivery, ackTimeout="500ms", **options)
    check_start(made.connect, made.options)
    return made


def dies_after(s: Stream, written: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows of an attempt that ends in the middle, when they are stored."""
    before = s.state()["messages"]
    yield written
    s.wait_for(before + written.num_rows)
    raise KeyboardInterrupt


@pytest.mark.usefixtures("quick_ledger")
@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
class TestWriting:
    @pytest.mark.parametrize("domain", DOMAINS)
    @pytest.mark.parametrize("named", [True, False])
    def test_to_a_domain(self, linked: Linked, stream: MakeStream, delivery: str, domain: str, named: bool) -> None:
        s = stream(domain)
        given = {"stream": s.name} if named else {}
        writer = sink(linked.other(domain).url, delivery, domain=domain, **given)
        task = WriteTask(s.name, 1, 0)
        with pytest.raises(KeyboardInterrupt):
            writer.write(dies_after(s, rows(f"{s.subject}.a", 0, 300)), task=task)
        report = writer.write([rows(f"{s.subject}.a", 0, 1000)], task=task)
        assert (report.stored, report.duplicates, report.streams) == (1000, 300, {s.name: (1, 1000)})
        assert numbers(s.url, s.name) == list(range(1000))
        if delivery == "exactly-once":
            # The ledger is where the stream is, and nowhere else.
            entry = {"last_by_subj": f"$KV.{BUCKET}.{s.name}.0"}
            assert api(s.url, f"STREAM.MSG.GET.{STREAM}", entry)["message"]["seq"] > 0
            with pytest.raises(Refused, match=r"not found|no message found"):
                api(linked.other(domain).url, f"STREAM.MSG.GET.{STREAM}", entry)

    def test_while_the_link_breaks(self, linked: Linked, stream: MakeStream, delivery: str) -> None:
        s = stream("leaf", storage="file")
        writer = sink(linked.hub.url, delivery, domain="leaf", requestTimeout="1s", maxInFlight=2000)

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(12):
                if number == 3:
                    linked.flicker()
                if number == 6:
                    linked.cut()
                    with later(linked.mend):
                        yield rows(f"{s.subject}.a", 6000, 1000)
                elif number == 9:
                    linked.leaf.kill()
                    with later(linked.leaf.start):
                        yield rows(f"{s.subject}.a", 9000, 1000)
                else:
                    yield rows(f"{s.subject}.a", number * 1000, 1000)

        report = writer.write(batches(), task=WriteTask(s.name, 1, 0))
        assert (report.rows, report.stored) == (12000, 12000)
        assert sorted(numbers(s.url, s.name)) == list(range(12000))

    def test_without_the_link(self, linked: Linked, stream: MakeStream, delivery: str) -> None:
        s = stream("leaf")
        writer = sink(linked.hub.url, delivery, domain="leaf", retryTimeout="500ms")
        linked.cut()
        # What nobody listens to is known from the data, or before that from the ledger.
        reason = {
            "deduplicated": r"no stream captures this subject, or its stream has no leader .* for 0.5 s",
            "exactly-once": rf"nobody answers at \$JS\.leaf\.API\.STREAM\.MSG\.GET\.{STREAM}: .* options domain and",
        }
        with pytest.raises((OutageError, NoResponders), match=reason[delivery]):
            writer.write([rows(f"{s.subject}.a", 0, 10)], task=WriteTask(s.name, 1, 0))
        linked.mend()
        assert writer.write([rows(f"{s.subject}.a", 0, 10)], task=WriteTask(s.name, 1, 0)).stored == 10
        assert numbers(s.url, s.name) == list(range(10))

    def test_to_another_account(self, nats_server_factory: Callable[..., NatsServer], delivery: str) -> None:
        server = nats_server_factory(config=ACCOUNTS)
        with Publisher(server.url, user="owner", **{"pass": "p"}) as owner:
            owner.api("STREAM.CREATE.SHOP", {"name": "SHOP", "subjects": ["shop.>"], "storage": "memory"})
            login = {"user": "guest", "password": "p", "apiPrefix": "JSA.API"}
            writer = sink(server.url, delivery, stream="SHOP", **login)
            for duplicates in (0, 500):
                report = writer.write([rows("shop.a", 0, 500)], task=WriteTask("q", 1, 0))
                assert (report.stored, report.duplicates) == (500, duplicates)
            found = read(server.url, "SHOP", **login)
            assert [row.data for row in found] == [b"row %d" % number for number in range(500)]

    def test_what_another_domain_stores_does_not_count(self, linked: Linked, stream: MakeStream, delivery: str) -> None:
        near = stream("hub")
        far = stream("leaf", near.name, subjects=[f"{near.subject}.>"])
        writer = sink(linked.hub.url, delivery, domain="leaf", stream=far.name)
        said = rf"stream {near.name} of domain hub stored it, not domain leaf \(option domain\)"
        with pytest.raises(RowRefused, match=said):
            writer.write([rows(f"{near.subject}.a", 0, 10)], task=WriteTask(near.name, 1, 0))
        linked.cut()
        if delivery == "deduplicated":
            with pytest.raises(RowRefused, match=said):
                writer.write([rows(f"{near.subject}.a", 10, 10)], task=WriteTask(near.name, 2, 0))

    def test_a_domain_that_does_not_exist(self, linked: Linked, stream: MakeStream, delivery: str) -> None:
        s = stream("hub")
        wrong = r"not domain mars \(option domain\)|nobody answers at \$JS\.mars\.API\..*options domain and"
        with pytest.raises((RowRefused, NoResponders, DeliveryError), match=wrong):
            sink(linked.hub.url, delivery, domain="mars", connectTimeout="200ms").write([rows(f"{s.subject}.a", 0, 10)])


#: The JetStream of OWNER for GUEST: its API, a stream's subjects, and the ledger of exactly-once.
ACCOUNTS = """accounts {
  OWNER {
    jetstream: enabled
    users: [{ user: owner, password: p }]
    exports: [
      { service: "$JS.API.>", response_type: stream }
      { service: "shop.>" }
      { service: "$KV.spark_jetstream_ledger.>" }
    ]
  }
  GUEST {
    users: [{ user: guest, password: p }]
    imports: [
      { service: { account: OWNER, subject: "$JS.API.>" }, to: "JSA.API.>" }
      { service: { account: OWNER, subject: "shop.>" } }
      {
        service: { account: OWNER, subject: "$KV.spark_jetstream_ledger.>" }
        to: "JSA.API.$KV.spark_jetstream_ledger.>"
      }
    ]
  }
}"""


@pytest.mark.usefixtures("quick_ledger")
def test_from_one_domain_to_the_other(spark: SparkSession, linked: Linked, stream: MakeStream, tmp_path: Path) -> None:
    origin, target = stream("leaf"), stream("hub")
    fill(origin)
    # Each from the far side of the link.
    frame = streaming(spark, linked.hub.url, origin.name, domain="leaf", maxMessagesPerTrigger=35)
    moved = frame.selectExpr("data", "headers", f"replace(subject, '{origin.subject}.', '{target.subject}.') subject")

    def copy() -> None:
        query = (
            moved.writeStream.format("jetstream")
            .options(servers=linked.leaf.url, domain="hub", stream=target.name, delivery="exactly-once")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    copy()
    origin.fill(20)
    copy()
    found = read(target.url, target.name)
    expected = [(row.subject.replace(origin.subject, target.subject, 1), row.data) for row in origin.rows()]
    assert [(row.subject, row.data) for row in found] == expected
    assert [row.headers["A"] for row in found[40:60] if row.headers] == [[str(n), "x"] for n in range(20)]


def test_the_page_on_topologies(spark: SparkSession, tmp_path: Path) -> None:
    page = ROOT / "docs" / "topologies.md"
    of_hub, of_leaf, of_accounts = (block.text for block in blocks(page, "conf"))
    of_copy, of_all = (json.loads(block.text) for block in blocks(page, "json"))
    examples = blocks(page, "python")
    names: dict[str, Any] = {"spark": spark}
    with contextlib.ExitStack() as stack:
        lease = PortLease()
        stack.callback(lease.release)
        hub = stack.enter_context(NatsServer(config=of_hub.replace("7422", str(lease.port))))
        of_leaf = of_leaf.replace("hub.example.com:7422", f"127.0.0.1:{lease.port}")
        leaf = stack.enter_context(NatsServer(config=of_leaf, http_monitor=True))
        poll(lambda: leaf.monitor("/leafz")["leafnodes"] or None, 10, lambda: TimeoutError("no link"))
        for name, server in (("ORDERS", leaf), ("TOTALS", leaf), ("ORDERS_OF_THE_HUB", hub)):
            api(server.url, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})
        with Publisher(leaf.url) as publisher:
            publisher.publish(Message("orders.new", b"%d" % number) for number in range(150))
        with Publisher(hub.url) as publisher:
            publisher.publish(Message("orders_of_the_hub.new", b"%d" % number) for number in range(20))
        for config, messages in ((of_copy, 150), (of_all, 170)):
            api(hub.url, f"STREAM.CREATE.{config['name']}", config)
            wait_until(functools.partial(has, hub.url, config["name"], messages), config["name"])
        for example in examples[:-1]:
            example.run({DEFAULT_URL: hub.url, FOLDER: str(tmp_path)}, names)
        assert api(leaf.url, "STREAM.INFO.TOTALS")["state"]["messages"] == 150
        assert sum(each["numInputRows"] for each in names["query"].recentProgress) == 50
        last = {row["stream"]: row["sequence"] for row in names["by_origin"].collect()}
        assert last.keys() == {"ORDERS", "ORDERS_OF_THE_HUB"}
    with (
        NatsServer(config=of_accounts) as server,
        Publisher(server.url, user="owner", **{"pass": "change-me"}) as owner,
    ):
        owner.api("STREAM.CREATE.TOTALS", {"name": "TOTALS", "subjects": ["totals.>"]})
        examples[-1].run({DEFAULT_URL: server.url}, names)


def has(url: str, stream: str, messages: int) -> bool:
    """Whether a stream has so many messages."""
    return bool(api(url, f"STREAM.INFO.{stream}")["state"]["messages"] == messages)
