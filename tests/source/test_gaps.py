"""What a gap between a query's position and the stream means: each row of the table in docs/data-loss.md, produced.

A gap is what lies between the position in the checkpoint and the first message that the stream has. Every case reads
ten messages, lets something happen while no query runs, and asks a new planner, as a restarted query would have.
"""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from spark_jetstream.client.pool import connect
from spark_jetstream.errors import DataLossError
from spark_jetstream.options import SourceOptions
from spark_jetstream.source.planner import Planner
from spark_jetstream.testing import NatsServer
from tests.support.client import ask
from tests.support.keyed import CONFIG
from tests.support.planning import driver, planner_after, run
from tests.support.publish import Message, Publisher
from tests.support.reading import QUICK, api, create, fill, wait_until

pytestmark = pytest.mark.usefixtures("no_connection_left")

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


Publish = Callable[..., object]
Delete = Callable[[int], object]


def publish_on(publisher: Publisher, name: str, tokens: str, **headers: str) -> None:
    """Store one message for each letter, on the subject of the stream that it names."""
    lines = [(name.replace("_", "-"), value) for name, value in headers.items()]
    publisher.publish([Message(f"{name}.{token}", b"x" * 100, lines or None) for token in tokens])


def has(url: str, name: str, messages: int) -> bool:
    """Whether a stream has so many messages."""
    return bool(api(url, f"STREAM.INFO.{name}")["state"]["messages"] == messages)


class Case:
    """A stream, and a query with the filter ``a`` that has read ten messages of it."""

    def __init__(self, url: str, publisher: Publisher, name: str, *, filtered: bool, durable: bool, **config: Any):
        self.url = url
        self.name = name
        self.publisher = publisher
        create(url, name, allow_direct=True, **config)
        self.given: dict[str, Any] = {}
        if filtered:
            self.given["subjects"] = f"{name}.a"
        if durable:
            self.given["durable"] = "query"
        elif config.get("retention") == "interest":
            keeper = {"durable_name": "keeper", "ack_policy": "explicit"}
            api(url, f"CONSUMER.DURABLE.CREATE.{name}.keeper", {"stream_name": name, "config": keeper})
        self.running = self.planner()
        start = self.running.initial()
        self.publish("a" * 10)
        *_, (_, self.position) = run(self.running, start)
        assert self.position.streams[name].next == 11

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *exception: object) -> None:
        api(self.url, f"STREAM.DELETE.{self.name}")

    def planner(self, **given: Any) -> Planner:
        """A planner of the query, as it is made when the query starts."""
        return driver(self.url, self.name, **{**self.given, **given})

    def publish(self, tokens: str) -> None:
        """Store one message for each letter, on the subject that it names."""
        publish_on(self.publisher, self.name, tokens)

    def purge(self, **body: Any) -> None:
        """Purge the stream, or a part of it."""
        if "filter" in body:
            body["filter"] = f"{self.name}.{body['filter']}"
        api(self.url, f"STREAM.PURGE.{self.name}", body)

    def consume(self, token: str, published: str) -> None:
        """Let a consumer of another application take all messages of a subject; ``published`` come meanwhile."""

        async def work(js: JetStreamContext) -> None:
            other = await js.pull_subscribe(f"{self.name}.{token}", "other", self.name)
            self.publish(published)
            for message in await other.fetch(len(published)):
                await message.ack_sync()

        ask(self.url, work)

    def state(self) -> dict[str, Any]:
        """What the stream holds."""
        found: dict[str, Any] = api(self.url, f"STREAM.INFO.{self.name}")["state"]
        return found

    def wait_for_first(self, sequence: int) -> None:
        """Wait until the stream begins at a sequence."""
        wait_until(lambda: self.state()["first_seq"] == sequence, f"{self.name} begins at {sequence}")


@pytest.fixture(scope="module")
def publisher(nats_server: NatsServer) -> Any:
    """A connection to the shared server."""
    with Publisher(nats_server.url) as made:
        yield made


Happening = Callable[[Case], None]


def others_come(case: Case) -> None:
    """Messages that no consumer of an interest stream wants."""
    case.publish("bbb")


def last_consumer_deleted(case: Case) -> None:
    """An interest stream without consumers has no messages."""
    case.publish("aab")
    api(case.url, f"CONSUMER.DELETE.{case.name}.keeper")


def others_purged(case: Case) -> None:
    case.publish("bbb")
    case.purge(filter="b")


def all_purged(case: Case) -> None:
    case.publish("bbb")
    case.purge()


def beginning_purged(case: Case) -> None:
    case.publish("aaa")
    case.purge(seq=13)


def own_purged(case: Case) -> None:
    case.publish("aab")
    case.purge(filter="a")


def others_acknowledged(case: Case) -> None:
    case.consume("b", "bbb")
    case.wait_for_first(14)


def expired(case: Case) -> None:
    case.publish("aab")
    case.wait_for_first(14)


def pushed_out(case: Case) -> None:
    case.publish("a" * 30)


def others_push(case: Case) -> None:
    """More messages than the stream keeps; no consumer wants them, so they push nothing out."""
    case.publish("b" * 30)


def superseded(case: Case) -> None:
    case.publish("aaaa")


LOSS, UNKNOWN, NONE = "loss", "unknown", "none"
FILTER = {"filtered": True}
HELD = {"filtered": True, "durable": True}
INTEREST: dict[str, Any] = {"retention": "interest"}
QUEUE: dict[str, Any] = {"retention": "workqueue"}

ROWS: list[tuple[str, dict[str, Any], dict[str, bool], Happening, str]] = [
    # Without a filter: every message that is gone was to be read.
    ("purged", {}, {}, beginning_purged, LOSS),
    ("expired", {"max_age": SECOND}, {}, expired, LOSS),
    ("pushed out", {"max_msgs": 20}, {}, pushed_out, LOSS),
    ("unfiltered and held, expired", {**INTEREST, "max_age": SECOND}, {"durable": True}, expired, LOSS),
    # Newer messages on their subjects took their places.
    ("superseded", {"max_msgs_per_subject": 1}, {}, superseded, NONE),
    ("superseded, long age", {"max_msgs_per_subject": 1, "max_age": HOUR}, {}, superseded, NONE),
    ("superseded or expired", {"max_msgs_per_subject": 1, "max_age": SECOND}, {}, expired, LOSS),
    # With a filter, and nothing that holds what matches.
    ("filter, expired", {"max_age": SECOND}, FILTER, expired, LOSS),
    ("filter, purged", {}, FILTER, all_purged, LOSS),
    ("interest, not held", INTEREST, FILTER, last_consumer_deleted, LOSS),
    # With a filter, and a consumer that holds what matches.
    ("interest", INTEREST, HELD, others_come, NONE),
    ("interest, purge", INTEREST, HELD, others_purged, NONE),
    ("interest, purge of all", INTEREST, HELD, all_purged, LOSS),
    ("interest, own purge", INTEREST, HELD, own_purged, LOSS),
    ("interest, acks", INTEREST, HELD, others_acknowledged, NONE),
    ("interest, age", {**INTEREST, "max_age": HOUR}, HELD, others_come, NONE),
    ("interest, expired", {**INTEREST, "max_age": SECOND}, HELD, expired, LOSS),
    ("interest, few", {**INTEREST, "max_msgs": 20}, HELD, others_come, NONE),
    ("interest, many", {**INTEREST, "max_msgs": 20}, HELD, others_push, UNKNOWN),
    ("interest, full", {**INTEREST, "max_msgs": 20}, HELD, pushed_out, LOSS),
    ("work queue, acks", QUEUE, HELD, others_acknowledged, NONE),
    ("work queue, purge", QUEUE, HELD, others_purged, NONE),
    ("work queue, purge of all", QUEUE, HELD, all_purged, LOSS),
    ("limits, expired", {"max_age": SECOND}, HELD, expired, LOSS),
]


@pytest.mark.parametrize(
    ("number", "config", "query", "happens", "outcome"),
    [pytest.param(number, *row, id=name) for number, (name, *row) in enumerate(ROWS)],
)
def test_what_a_gap_means(
    nats_server: NatsServer,
    publisher: Publisher,
    caplog: pytest.LogCaptureFixture,
    *,
    number: int,
    config: dict[str, Any],
    query: dict[str, bool],
    happens: Happening,
    outcome: str,
) -> None:
    with Case(
        nats_server.url, publisher, f"GAP{number}", **{"filtered": False, "durable": False, **query}, **config
    ) as case:
        happens(case)
        assert case.state()["first_seq"] > 11, "there is no gap"
        caplog.clear()
        if outcome == LOSS:
            with pytest.raises(DataLossError, match=f"stream {case.name}"):
                case.planner().latest(case.position, limited=True)
            case.planner(failOnDataLoss="false").latest(case.position, limited=True)
            return
        planner = case.planner()
        planner.latest(case.position, limited=True)
        planner.latest(case.position, limited=True)
        told = [each.message for each in caplog.records if "cannot be known" in each.message]
        assert len(told) == (1 if outcome == UNKNOWN else 0)
        # Reading goes on with whatever comes next.
        case.publish("ba")
        assert planner_after(case.planner(), case.position)[-1:] == [case.state()["last_seq"]]


def test_what_a_gap_means_in_a_bucket(nats_server: NatsServer, publisher: Publisher) -> None:
    """Revisions go by design; a bucket without TTL never loses all of them."""
    api(
        nats_server.url,
        "STREAM.CREATE.KV_gaps",
        {"name": "KV_gaps", "subjects": ["$KV.gaps.>"], **CONFIG, "max_msgs_per_subject": 1},
    )

    def planner() -> Planner:
        given = {**QUICK, "servers": nats_server.url, "bucket": "gaps"}
        options = SourceOptions.from_spark(given, streaming=True)
        return Planner(options, lambda patience: connect(options.connection, patience=patience))

    try:
        begin = planner().initial()
        publisher.publish([Message("$KV.gaps.key", b"x")] * 20)
        *_, (_, position) = run(planner(), begin)
        publisher.publish([Message("$KV.gaps.key", b"x")] * 20)
        planner().latest(position, limited=True)
        publisher.api("STREAM.PURGE.KV_gaps")
        with pytest.raises(DataLossError, match="messages 21 to 40 of stream KV_gaps went before being read"):
            planner().latest(position, limited=True)
    finally:
        api(nats_server.url, "STREAM.DELETE.KV_gaps")


def test_a_running_query_knows_what_did_not_match(nats_server: NatsServer, publisher: Publisher) -> None:
    """What it has seen not to match may go: also what came together with the last batch that had rows."""
    with Case(nats_server.url, publisher, "GAPRUN", filtered=True, durable=False, max_msgs=20) as case:
        case.publish("abbbbbbbbbb")
        (_, position), *_ = run(case.running, case.position)
        assert position.streams[case.name].next == 12
        case.publish("b" * 10)
        assert case.state()["first_seq"] == 12
        case.purge(seq=20)
        case.running.latest(position, limited=True)
        with pytest.raises(DataLossError, match="messages 12 to 19"):
            case.planner().latest(position, limited=True)


def test_other_traffic_makes_no_batches_on_an_interest_stream(nats_server: NatsServer, publisher: Publisher) -> None:
    with Case(nats_server.url, publisher, "GAPIDLE", filtered=True, durable=True, retention="interest") as case:
        for _ in range(3):
            case.publish("bbb")
            assert case.running.latest(case.position, limited=True) == case.position


# A store that is older than the checkpoint


def same_subject(publish: Publish, delete: Delete) -> None:
    publish("a" * 8)


def other_subject_in_its_place(publish: Publish, delete: Delete) -> None:
    publish("aaab" + "a" * 4)


def nothing_that_matches(publish: Publish, delete: Delete) -> None:
    publish("b" * 8)


def deleted_in_its_place(publish: Publish, delete: Delete) -> None:
    publish("a" * 8)
    delete(10)


def expired_in_its_place(publish: Publish, delete: Delete) -> None:
    publish("aaa")
    publish("a", Nats_TTL="1s")
    publish("aaaa")


def fewer(publish: Publish, delete: Delete) -> None:
    publish("a")


#: What is stored in a stream that had six messages, after ten were read: with the sequences that a query finds anew.
TAILS: list[tuple[Callable[[Publish, Delete], None], list[int], list[int]]] = [
    (same_subject, [7, 8, 9, 10, 11, 12, 13, 14], [7, 8, 9, 10, 11, 12, 13, 14]),
    (other_subject_in_its_place, [7, 8, 9, 10, 11, 12, 13, 14], [7, 8, 9, 11, 12, 13, 14]),
    (nothing_that_matches, [7, 8, 9, 10, 11, 12, 13, 14], []),
    (deleted_in_its_place, [7, 8, 9, 11, 12, 13, 14], [7, 8, 9, 11, 12, 13, 14]),
    (expired_in_its_place, [7, 8, 9, 11, 12, 13, 14], [7, 8, 9, 11, 12, 13, 14]),
    (fewer, [7], [7]),
]


def test_a_store_that_is_older_than_the_checkpoint(tmp_path: Path) -> None:
    """The end of each stream was lost, and its sequences belong to other messages: whatever is at the position now."""
    store, kept = tmp_path / "store", tmp_path / "kept"
    names = [f"T{number}" for number in range(len(TAILS))]
    queries = list(itertools.product((True, False), ("consumer", "direct")))

    def planner(name: str, filtered: bool, read_with: str, **given: Any) -> Planner:
        if filtered:
            given["subjects"] = f"{name}.a"
        return driver(server.url, name, readWith=read_with, **given)

    def delete(name: str, sequence: int) -> None:
        publisher.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})

    with NatsServer(store_dir=store) as server:
        for name in names:
            create(server.url, name, storage="file", allow_msg_ttl=True, allow_direct=True)
            fill(server.url, name, 6)
        server.stop()
        shutil.copytree(store, kept)
        server.start()
        running, ends = {}, {}
        for name in names:
            fill(server.url, name, 4)
            for query in queries:
                running[name, query] = planner(name, *query)
                [(_, ends[name, query])] = run(running[name, query])
                assert ends[name, query].streams[name].next == 11
        server.stop()
        shutil.rmtree(store)
        shutil.copytree(kept, store)
        server.start()
        with Publisher(server.url) as publisher:
            for name, (stores, everything, _) in zip(names, TAILS, strict=True):
                stores(functools.partial(publish_on, publisher, name), functools.partial(delete, name))
                wait_until(functools.partial(has, server.url, name, 6 + len(everything)), "what is to be left")
        for query, (name, (stores, everything, matching)) in itertools.product(queries, zip(names, TAILS, strict=True)):
            end = ends[name, query]
            shorter = stores is fewer
            reason = "read up to sequence 10, and now ends at 7" if shorter else "gave its sequences to other messages"
            # Both the planner that saw the messages and one that starts anew notice.
            for noticing in (running[name, query], planner(name, *query)):
                with pytest.raises(DataLossError, match=f"stream {name} lost its tail.*{reason}.* at sequence 7"):
                    noticing.latest(end, limited=True)
            going_on = planner(name, *query, failOnDataLoss="false")
            [noticed] = run(going_on, end, batches=1)
            # The batch that notices it reads nothing of the stream, whoever plans it.
            assert going_on.ranges(*noticed) == planner(name, *query, failOnDataLoss="false").ranges(*noticed) == []
            assert planner_after(going_on, noticed[1]) == (matching if query[0] else everything)


@pytest.mark.parametrize("read_with", ["consumer", "direct"])
def test_the_last_message_read_may_go(nats_server: NatsServer, publisher: Publisher, read_with: str) -> None:
    """It is no sign of a lost tail that the last message read was deleted, or replaced by a newer one."""
    for name, config in (("GONEDEL", {}), ("GONENEW", {"max_msgs_per_subject": 1})):
        with Case(nats_server.url, publisher, name, filtered=True, durable=False, **config) as case:
            if not config:
                publisher.api(f"STREAM.MSG.DELETE.{name}", {"seq": 10})
            case.publish("bab")
            assert planner_after(case.planner(readWith=read_with), case.position) == [12]
