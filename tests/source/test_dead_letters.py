"""Messages that consumers of a stream gave up, as a table: the reason, and the message or that it is
gone; and written back once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import ApiError, ProtocolError, StreamNotFound
from spark_jetstream.protocol.units import parse_time, rfc3339
from spark_jetstream.streams.dead_letters import read_dead_letters
from spark_jetstream.streams.direct import CLOCK_SKEW
from spark_jetstream.testing import NatsServer
from tests.support.calls import DEAD_LETTER_ROWS, data_source, rows
from tests.support.fake_jetstream import FakeJetStream
from tests.support.leaf import Linked
from tests.support.pages import DEFAULT_URL, ROOT, blocks
from tests.support.publish import Message
from tests.support.reading import connecting, wait_until
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left")

GUIDE = ROOT / "docs" / "dead-letters.md"
OF_ADVISORY = (
    "stream",
    "sequence",
    "consumer",
    "kind",
    "reason",
    "deliveries",
    "given_up",
    "domain",
)


class GivesUp:
    """Consumers of a stream that give messages up, and the stream that keeps that."""

    def __init__(self, admin: JetStreamAdmin, s: Stream) -> None:
        self.admin = admin
        self.s = s
        self.kept = admin.streams.keep_dead_letters(s.name).config.name

    def consumer(self, name: str, deliveries: int = 1) -> None:
        self.admin.consumers.create(
            self.s.name, durable_name=name, ack_policy="explicit", max_deliver=deliveries
        )

    def after_all_deliveries(self, name: str) -> None:
        """Refuse the next message as often as it comes; the server gives it up when more are asked
        for.
        """
        before, first = self.count(), 0
        while self.count() == before:
            for came in self.admin.consumers.next(self.s.name, name, ack="nak", no_wait=True):
                first = first or came.message.seq
                if came.message.seq != first:  # which must not be given up as well
                    wait_until(lambda: self.count() > before, "the advisory")

    def terminated(self, name: str, reason: str = "") -> None:
        before = self.count()
        [delivered] = self.admin.consumers.next(self.s.name, name, ack="none")
        self.admin.consumers.term(delivered, reason=reason)
        wait_until(lambda: self.count() > before, "the advisory")

    def count(self) -> int:
        return self.admin.streams.load(self.kept).state.messages

    def rows(self, *names: str, **options: object) -> list[Row]:
        schema = (
            StructType([DEAD_LETTER_ROWS[name] for name in names]) if names else DEAD_LETTER_ROWS
        )
        return rows({"servers": self.s.url, "deadLettersOf": self.s.name, **options}, schema)


@pytest.fixture
def s(stream: MakeStream) -> Stream:
    made = stream(storage="memory")
    made.send(
        Message(f"{made.subject}.a", b"one", [("X", "1"), ("X", "2"), ("Nats-Msg-Id", "own")])
    )
    made.fill(3)
    return made


@pytest.fixture
def gives_up(admin: JetStreamAdmin, s: Stream) -> Iterator[GivesUp]:
    made = GivesUp(admin, s)
    yield made
    admin.streams.delete(made.kept, missing_ok=True)


def test_a_row_names_the_consumer_and_its_reason_to_give_up(gives_up: GivesUp, s: Stream) -> None:
    gives_up.consumer("slow", 2)
    gives_up.after_all_deliveries("slow")
    gives_up.consumer("strict")
    gives_up.terminated("strict", 'no "é"')
    gives_up.terminated("strict")
    slow, strict, silent = gives_up.rows()
    [stored] = s.rows(1)
    given_up = slow.given_up
    assert slow.asDict() == {
        "stream": s.name,
        "subject": f"{s.subject}.a",
        "sequence": 1,
        "timestamp": stored.micros,
        "headers": {"X": ["1", "2"], "Nats-Msg-Id": ["own"]},
        "data": b"one",
        "gone": False,
        "consumer": "slow",
        "kind": "max_deliver",
        "reason": None,
        "deliveries": 2,
        "given_up": given_up,
        "domain": None,
        "msg_id": f"dead-letter.{s.name}.1.{s.stored_time(1)}",
    }
    assert given_up.timestamp() * 1e6 >= stored.micros
    assert (strict.consumer, strict.kind, strict.reason, strict.deliveries) == (
        "strict",
        "terminated",
        'no "é"',
        1,
    )
    assert (strict.sequence, strict.data, strict.msg_id) == (1, b"one", slow.msg_id)
    assert (silent.sequence, silent.reason, silent.headers, silent.gone) == (2, None, None, False)
    since = {"startingTimestamp": strict.given_up.isoformat()}
    assert [row.consumer for row in gives_up.rows("consumer", **since)] == ["strict", "strict"]
    assert gives_up.rows(readWith="direct", minPartitions=3) == [slow, strict, silent]


def test_a_message_that_is_gone(gives_up: GivesUp, s: Stream) -> None:
    gives_up.consumer("c")
    for _ in range(3):
        gives_up.terminated("c", "bad")
    s.remove(2)
    assert [(row.sequence, row.gone, row.data is None) for row in gives_up.rows()] == [
        (1, False, False),
        (2, True, True),
        (3, False, False),
    ]
    s.purge()
    gone = gives_up.rows()
    assert [(row.sequence, row.gone, row.subject, row.msg_id) for row in gone] == [
        (number, True, None, None) for number in (1, 2, 3)
    ]
    assert [(row.consumer, row.reason) for row in gone] == [("c", "bad")] * 3


def test_a_work_queue_keeps_what_was_delivered_too_often_only(
    admin: JetStreamAdmin, stream: MakeStream
) -> None:
    queue = stream(storage="memory", retention="workqueue")
    queue.fill(2)
    gives_up = GivesUp(admin, queue)
    gives_up.consumer("c")
    gives_up.terminated("c")
    gives_up.after_all_deliveries("c")
    assert [(row.sequence, row.kind, row.gone) for row in gives_up.rows()] == [
        (1, "terminated", True),
        (2, "max_deliver", False),
    ]
    admin.streams.delete(gives_up.kept)


def test_a_stream_that_was_created_again(gives_up: GivesUp, s: Stream) -> None:
    gives_up.consumer("c")
    gives_up.terminated("c")
    s.delete()
    with pytest.raises(StreamNotFound, match=f"get message 1 of stream {s.name}"):
        gives_up.rows()
    [row] = gives_up.rows(*OF_ADVISORY)
    assert (row.stream, row.sequence, row.kind) == (s.name, 1, "terminated")
    s.create()
    s.fill(1)
    gives_up.consumer("c")
    gives_up.terminated("c")
    assert [(row.sequence, row.gone, row.data) for row in gives_up.rows()] == [
        (1, True, None),
        (1, False, s.messages[1].data),
    ]


@pytest.mark.parametrize(("before", "gone"), [(CLOCK_SKEW, False), (CLOCK_SKEW + 1000, True)])
def test_a_message_that_has_the_sequence_of_a_lost_one(before: int, gone: bool) -> None:
    """As after a power failure: a message was stored `before` ns after its sequence was given up."""
    with FakeJetStream() as fake:
        fake.store(1)
        stored = parse_time(fake.message({"seq": 1})["message"]["time"])
        advisory = {
            "type": "io.nats.jetstream.advisory.v1.terminated",
            "timestamp": rfc3339(stored - before),
            "stream": "S",
            "consumer": "c",
            "stream_seq": 1,
            "deliveries": 1,
        }
        asked = Requests(connecting(fake.url), 10.0)
        advisories = [(1, json.dumps(advisory).encode())]
        [rows] = read_dead_letters(asked, "S", advisories, ("sequence", "gone"))
        assert rows.to_pylist() == [{"sequence": 1, "gone": gone}]


def test_advisories_of_another_domain() -> None:
    """Both ends of a leaf node hear them, also those about a stream of the same name."""
    with Linked() as linked:
        leaf, hub = (JetStreamAdmin(servers=server.url) for server in (linked.leaf, linked.hub))
        for admin, subject in ((leaf, "leaf.a"), (hub, "hub.a")):
            admin.streams.create(name="ORDERS", subjects=[subject])
            admin.streams.keep_dead_letters("ORDERS")
        leaf.consumers.create("ORDERS", durable_name="c", ack_policy="explicit")

        def heard() -> bool:
            """A server hears a moment later what the other one listens to."""
            for admin, subject in ((hub, "hub.a"), (leaf, "leaf.a")):
                admin.publish(subject, subject)
            leaf.consumers.next("ORDERS", "c", ack="term")
            return all(
                each.streams.load("ORDERS_DEAD_LETTERS").state.messages > 0 for each in (hub, leaf)
            )

        wait_until(heard, "the hub hears of the leaf")
        found = rows({"servers": linked.hub.url, "deadLettersOf": "ORDERS"}, DEAD_LETTER_ROWS)
        assert (found[0].domain, found[0].gone, found[0].data) == ("leaf", True, None)
        assert hub.messages.get("ORDERS", found[0].sequence).data == b"hub.a"
        [own, *_] = rows({"servers": linked.leaf.url, "deadLettersOf": "ORDERS"}, DEAD_LETTER_ROWS)
        assert (own.domain, own.gone, own.data) == ("leaf", False, b"leaf.a")


def test_many_come_in_their_order(gives_up: GivesUp, s: Stream) -> None:
    s.fill(200)
    gives_up.consumer("c")
    delivered = gives_up.admin.consumers.next(s.name, "c", 204, ack="term", no_wait=False)
    wait_until(lambda: gives_up.count() == len(delivered) == 204, "the advisories")
    found = gives_up.rows("sequence", "data", maxMessagesPerPartition=150)
    assert [row.sequence for row in found] == list(range(1, 205))
    assert [row.data for row in found] == [s.messages[number].data for number in range(1, 205)]


_TERMINATED = b'{"type":"io.nats.jetstream.advisory.v1.terminated","stream":"%s","consumer":"c"'
_NOW = b',"timestamp":"2026-01-01T00:00:00Z"'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"none", "it is not JSON; remove it (spark-jetstream stream delete-msg)"),
        (b"[1]", "it is not a JSON object; remove it"),
        (b'{"error":{"code":404}}', "it is none; remove it"),
        (_TERMINATED.replace(b"terminated", b"nak") + _NOW + b"}", "it is none; remove it"),
        (_TERMINATED.replace(b"%s", b"OTHER") + _NOW + b"}", "it is none; remove it"),
        (_TERMINATED + b"}", "it is none; remove it"),
        (_TERMINATED + b',"timestamp":"soon"}', 'it has "soon" for timestamp, which is no time'),
        (_TERMINATED + _NOW + b"}", "it has no usable field stream_seq"),
        (_TERMINATED + _NOW + b',"stream_seq":-1}', 'it has "-1" for stream_seq'),
    ],
)
def test_a_message_that_is_no_advisory_of_the_stream_is_named(
    gives_up: GivesUp, s: Stream, body: bytes, said: str
) -> None:
    """Any client can publish to the subjects of advisories."""
    body = body.replace(b"%s", s.name.encode())
    s.publisher.publish([Message(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{s.name}.x", body)])
    with pytest.raises(ProtocolError) as raised:
        gives_up.rows()
    about = f"message 1 of stream {gives_up.kept} for an advisory about stream {s.name}"
    assert f"{about}: {said}" in str(raised.value)
    gives_up.admin.messages.delete(gives_up.kept, 1)
    assert gives_up.rows() == []


def test_without_a_stream_that_keeps_them(admin: JetStreamAdmin, s: Stream) -> None:
    reader = data_source({"servers": s.url, "deadLettersOf": s.name}).reader(DEAD_LETTER_ROWS)
    with pytest.raises(
        StreamNotFound,
        match=f"{s.name}_DEAD_LETTERS.*; spark-jetstream dead-letters keep {s.name} makes",
    ):
        reader.partitions()
    misspelt = data_source({"servers": s.url, "deadLettersOf": f"{s.name}x"}).reader(
        DEAD_LETTER_ROWS
    )
    with pytest.raises(StreamNotFound, match=f"{s.name}x_DEAD_LETTERS.*; did you mean {s.name}$"):
        misspelt.partitions()
    with pytest.raises(StreamNotFound, match="NOWHERE"):
        admin.streams.keep_dead_letters("NOWHERE")


def test_the_stream_that_keeps_them(gives_up: GivesUp, s: Stream) -> None:
    again = gives_up.admin.streams.keep_dead_letters(s.name)
    assert again.config.subjects == tuple(
        f"$JS.EVENT.ADVISORY.CONSUMER.{what}.{s.name}.*"
        for what in ("MAX_DELIVERIES", "MSG_TERMINATED")
    )
    with pytest.raises(ApiError, match="max_age"):
        gives_up.admin.streams.keep_dead_letters(s.name, max_age="1d")
    gives_up.admin.streams.delete(gives_up.kept)
    assert (
        gives_up.admin.streams.keep_dead_letters(s.name, max_age="1d").config.max_age
        == 86_400 * 10**9
    )


def test_the_guide(spark: SparkSession, server: NatsServer) -> None:
    """In Spark, with what a consumer gives up after the first block; written twice it is stored
    once.
    """
    keep, read, write = (
        partial(block.run, {DEFAULT_URL: server.url}) for block in blocks(GUIDE, "python")
    )
    names: dict[str, Any] = {"spark": spark}
    keep(names)
    admin: JetStreamAdmin = names["admin"]
    admin.consumers.create("ORDERS", durable_name="billing", ack_policy="explicit", max_deliver=2)
    admin.publish("orders.new", "a")
    admin.publish("orders.new", "b", {"Customer": "7"})
    [first] = admin.consumers.next("ORDERS", "billing", ack="none")
    admin.consumers.term(first, reason="no such customer")
    while admin.streams.load("ORDERS_DEAD_LETTERS").state.messages < 2:
        admin.consumers.next("ORDERS", "billing", ack="nak", no_wait=True)
    shown = StringIO()
    with redirect_stdout(shown):
        read(names)
    assert [block.text.strip() for block in blocks(GUIDE, "text")] == [shown.getvalue().strip()]
    assert names["letters"].schema == DEAD_LETTER_ROWS
    for _ in range(2):
        write(names)
    again = admin.messages.get("ORDERS", 3)
    assert admin.streams.load("ORDERS").state.last_seq == 3
    assert (again.subject, again.data, again.headers["Customer"]) == ("orders.new", b"b", ["7"])
