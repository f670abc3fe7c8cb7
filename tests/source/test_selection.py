"""Streams that a query finds by their names and metadata: made, deleted and made again while it
reads.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import (
    ApiError,
    DataLossError,
    OptionError,
    PermissionDenied,
    ServerBusy,
)
from spark_jetstream.monitoring import lag
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.conventions import LEDGER_BUCKET
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.planner import Planner
from spark_jetstream.source.selection import FIND_EVERY, Selection
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support import planning
from tests.support.calls import Query
from tests.support.client import set_timing
from tests.support.planning import driver, read
from tests.support.proxy import WireProxy
from tests.support.queries import Run, available_now, start, streaming
from tests.support.reading import api, connecting, create, fill, wait_until

pytestmark = pytest.mark.usefixtures("no_connection_left", "no_election")

SHOP = {"metadata": {"team": "shop"}}


def delete(server: NatsServer, name: str) -> None:
    api(server.url, f"STREAM.DELETE.{name}")


class Finder:
    """A query, restarted at will.

    A lookup of streams is due at each micro-batch. `found` is what was read.
    """

    def __init__(self, server: NatsServer, pattern: str | None = "A_*", **given: Any) -> None:
        self.url = server.url
        self.given: dict[str, Any] = {"streamPattern": pattern, **given}
        self.now = itertools.count(step=FIND_EVERY)
        self.found: Counter[tuple[str, str, int]] = Counter()
        self.restart()
        self.at = self.planner.initial()
        if given.get("startingOffsets") == "latest":
            assert (
                self.plan() == self.at
            )  # the first micro-batch, which only stores where the query begins

    def restart(self, **given: Any) -> None:
        """Go on as a new process would, with other options if some are given; None leaves one out."""
        self.given = {
            name: text for name, text in {**self.given, **given}.items() if text is not None
        }
        self.planner: Planner = driver(self.url, clock=lambda: float(next(self.now)), **self.given)

    def plan(self) -> Offset:
        """The end of the next micro-batch, as Spark would read it from the checkpoint."""
        return Offset.from_json(self.planner.latest(self.at, limited=True).to_json())

    def take(self, end: Offset) -> dict[str, list[int]]:
        """Read a micro-batch that was planned; Spark plans none that ends where it begins."""
        if end == self.at:
            return {}
        rows = read(self.url, self.planner.ranges(self.at, end))
        for name, sequences in rows.items():
            created = end.streams[name].created
            self.found.update((name, created, sequence) for sequence in sequences)
        self.at = end
        return {name: sequences for name, sequences in rows.items() if sequences}

    def step(self) -> dict[str, list[int]]:
        return self.take(self.plan())

    def rest(self) -> dict[str, list[int]]:
        """All that is left to read."""
        rows: dict[str, list[int]] = {}
        before = None
        while before != self.at:
            before = self.at
            for name, sequences in self.step().items():
                rows.setdefault(name, []).extend(sequences)
        return rows

    @property
    def names(self) -> list[str]:
        return list(self.at.streams)


# Which streams


def chosen(names: Iterable[str], **given: Any) -> list[str]:
    options = SourceOptions.from_spark(given, streaming=True)
    return list(filter(Selection(options, Requests(None, 0.0), lambda: 0.0).may_have, names))  # type: ignore[arg-type]


def test_which_names_match() -> None:
    ledger = f"KV_{LEDGER_BUCKET}"
    plain = ["ORDERS", "ORDERS_eu", "ORDERS_us", "RETURNS_eu", "orders_eu"]
    names = [*plain, "KV_prices", ledger, "OBJ_images", "$MQTT_msgs"]
    for pattern, expected in {
        "ORDERS_*": ["ORDERS_eu", "ORDERS_us"],
        "ORDERS_?": [],
        "*_eu": ["ORDERS_eu", "RETURNS_eu", "orders_eu"],
        "{ORDERS,RETURNS}_e?": ["ORDERS_eu", "RETURNS_eu"],
        "*": plain,
        "?V_*": [],
        "KV_*": ["KV_prices"],
        ledger: [ledger],
        "OBJ_*": ["OBJ_images"],
        "$*": ["$MQTT_msgs"],
    }.items():
        assert chosen(names, streamPattern=pattern) == expected, pattern
    assert chosen(names, streamMetadata="team=shop") == plain


def test_metadata_and_name_must_both_match(server: NatsServer) -> None:
    create(server.url, "A_1", metadata={"team": "shop", "tier": "gold=1", "other": "x"})
    create(server.url, "A_2", metadata={"team": "shop", "tier": "silver"})
    create(server.url, "A_3")
    create(server.url, "B", **SHOP)
    create(server.url, "KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=1, **SHOP)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"streamPattern": "A_*"}, ["A_1", "A_2", "A_3"]),
        ({"streamMetadata": "team=shop"}, ["A_1", "A_2", "B"]),
        ({"streamMetadata": "team=shop, tier=gold=1"}, ["A_1"]),
        ({"streamMetadata": "team=shop,team=ship"}, []),
        ({"streamMetadata": "tier="}, []),
        ({"streamMetadata": "team=shop", "streamPattern": "A_*"}, ["A_1", "A_2"]),
        ({"streamMetadata": "team=shop", "streamPattern": "KV_*"}, ["KV_b"]),
    ]
    for given, expected in cases:
        assert list(driver(server.url, **given).initial().streams) == expected, given


# Batches


def test_a_batch_reads_what_matches_when_it_is_planned(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    planner = driver(server.url, streaming=False, streamPattern="A_*")
    assert planner.batch_ranges() == []
    assert caplog.messages == [
        "cannot find the streams to read (option streamPattern): none matches yet"
    ]
    for name in ("A_1", "A_2", "B_1"):
        create(server.url, name, metadata={"n": name[-1]})
        fill(server.url, name, 10)
    assert read(server.url, planner.batch_ranges()) == {
        name: list(range(1, 11)) for name in ("A_1", "A_2")
    }
    given: dict[str, Any] = {
        "streamMetadata": "n=1",
        "startingTimestamp": 0,
        "subjects": "A_1.a",
        "minPartitions": 2,
    }
    parts = driver(server.url, streaming=False, **given).batch_ranges()
    assert len(parts) == 2
    assert read(server.url, parts) == {"A_1": list(range(1, 11))}


def test_a_stream_that_is_deleted_while_a_batch_is_planned(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A_1", "A_2"):
        create(server.url, name)
        fill(server.url, name, 10)
        api(server.url, f"STREAM.MSG.DELETE.{name}", {"seq": 5})  # so that it is counted
    split = Planner._split

    def deleting(planner: Planner, *given: Any) -> Any:
        monkeypatch.setattr(Planner, "_split", split)
        delete(server, "A_1")
        return split(planner, *given)

    monkeypatch.setattr(Planner, "_split", deleting)
    parts = driver(server.url, streaming=False, streamPattern="A_*").batch_ranges()
    assert {part.stream for part in parts} == {"A_2"}


# New streams


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_new_streams_are_read_from_their_first_message(
    server: NatsServer, caplog: pytest.LogCaptureFixture, starting: str
) -> None:
    create(server.url, "A_1")
    fill(server.url, "A_1", 5)
    create(server.url, "B_1")
    query = Finder(server, startingOffsets=starting)
    create(server.url, "A_2")
    fill(server.url, "A_2", 5)
    assert query.rest() == {
        **({"A_1": [1, 2, 3, 4, 5]} if starting == "earliest" else {}),
        "A_2": [1, 2, 3, 4, 5],
    }
    create(server.url, "A_3")
    assert query.step() == {}
    assert query.names == ["A_1", "A_2", "A_3"]
    for name in ("A_3", "A_2", "A_1"):
        fill(server.url, name, 1)
    query.restart()
    create(server.url, "A_4")
    fill(server.url, "A_4", 7)
    assert query.rest() == {"A_1": [6], "A_2": [6], "A_3": [1], "A_4": [1, 2, 3, 4, 5, 6, 7]}
    assert caplog.messages == []


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_query_waits_for_its_first_stream(
    server: NatsServer, caplog: pytest.LogCaptureFixture, starting: str
) -> None:
    """Its empty beginning is in the checkpoint: messages stored before a restart are new as well."""
    query = Query(server.url, None, streamPattern="A_*", startingOffsets=starting)
    assert query.run().rows == []
    assert query.end == {"version": 1, "streams": {}}
    assert caplog.messages == [
        "cannot find the streams to read (option streamPattern): none matches yet"
    ]
    create(server.url, "A_1")
    fill(server.url, "A_1", 5)
    with pytest.raises(
        OptionError,
        match="it has no stream, and option stream names A_1; correct the option, or start",
    ):
        driver(server.url, "A_1").latest(Offset.from_json(query.end), limited=True)
    assert [(row["stream"], row["sequence"]) for row in query.run().rows] == [
        ("A_1", n) for n in range(1, 6)
    ]


def test_the_first_messages_of_a_new_stream_are_gone(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    query = Finder(server)
    create(server.url, "A_1")
    fill(server.url, "A_1", 10)
    api(server.url, "STREAM.PURGE.A_1", {"seq": 4})
    with pytest.raises(DataLossError, match="messages 1 to 3 of stream A_1 went before being read"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.rest() == {"A_1": [4, 5, 6, 7, 8, 9, 10]}
    assert "messages 1 to 3 of stream A_1 went before being read" in caplog.text
    # It is no loss that newer messages on their subjects have replaced them.
    create(server.url, "A_2", max_msgs_per_subject=1)
    fill(server.url, "A_2", 10)
    query.restart(failOnDataLoss="true")
    assert query.rest() == {"A_2": [10]}


@pytest.mark.parametrize(
    "given", [{"streamPattern": "A_*"}, {"streamMetadata": "team=shop"}], ids=str
)
def test_the_server_is_asked_now_and_then(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    set_timing(monkeypatch, ask_again=60.0)  # a slow reply is no reason to ask twice
    create(server.url, "A_1", **SHOP)
    now = 0.0
    with WireProxy(server.url) as proxy:

        def asked() -> int:
            return sum(
                proxy.client_bytes.count(b"PUB $JS.API.STREAM." + kind)
                for kind in (b"NAMES ", b"LIST ")
            )

        planner = driver(proxy.url, clock=lambda: now, requestTimeout="60s", **given)
        at = planner.initial()
        for _ in range(5):
            assert planner.latest(at, limited=True) == at
        assert asked() == 1
        now += FIND_EVERY
        planner.latest(at, limited=True)
        planner.latest(at, limited=True)
        assert asked() == 2
        # A stream that `availableNow` has not seen at its start is for the next run.
        planner.prepare_available_now()
        now += FIND_EVERY
        assert planner.latest(at, limited=True) == at
        assert asked() == 2


def test_available_now(server: NatsServer) -> None:
    create(server.url, "A_1")
    query = Query(
        server.url, None, streamPattern="A_*", startingOffsets="latest", maxMessagesPerTrigger=4
    )
    query.run()

    def more(number: int) -> None:
        if number == 0:
            create(server.url, "A_3")
            fill(server.url, "A_3", 3)

    create(server.url, "A_2")
    fill(server.url, "A_2", 10)
    assert [row["stream"] for row in query.run(more).rows] == ["A_2"] * 10
    assert [(row["stream"], row["sequence"]) for row in query.run().rows] == [
        ("A_3", n) for n in (1, 2, 3)
    ]
    progress = {
        "sources": [
            {
                "description": "",
                "startOffset": query.end,
                "endOffset": query.end,
                "latestOffset": None,
            }
        ]
    }
    assert list(lag(json.dumps(progress))) == ["A_1", "A_2", "A_3"]


def test_a_first_end_without_a_start(server: NatsServer) -> None:
    """Spark 4.0 and 4.1 ask for it so, also when a query goes on: a new stream is read from its
    first message.
    """
    create(server.url, "A_1")
    query = Finder(server)
    fill(server.url, "A_1", 5)
    query.rest()
    query.restart()
    create(server.url, "A_2")
    fill(server.url, "A_2", 5)
    fill(server.url, "A_1", 5)
    end = query.planner.latest(None, limited=True)
    for _ in range(2):
        assert read(server.url, query.planner.ranges(query.at, end)) == {
            "A_1": [6, 7, 8, 9, 10],
            "A_2": [1, 2, 3, 4, 5],
        }
        query.restart()


# Deleted streams


def test_deleting_a_stream_is_a_loss_if_known_messages_were_unread(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    for given in ({}, {"subjects": "A_2.a,A_1.a"}):
        for name in ("A_1", "A_2"):
            create(server.url, name)
            fill(server.url, name, 10)
        query = Finder(server, maxMessagesPerTrigger=10, **given)
        assert query.step() == {"A_1": [1, 2, 3, 4, 5], "A_2": [1, 2, 3, 4, 5]}
        delete(server, "A_1")
        with pytest.raises(
            DataLossError,
            match="stream A_1 was deleted, and had messages that were not read; set fail",
        ):
            query.plan()
        # It would know nothing of what a restarted query has not seen.
        query.given["failOnDataLoss"] = "false"
        query.restart()
        caplog.clear()
        assert query.rest() == {"A_2": [6, 7, 8, 9, 10]}
        assert query.names == ["A_2"]
        assert [message for message in caplog.messages if "A_1" in message] == [
            "stream A_1 was deleted: the query forgets it, and has read all that it knew of"
        ]
        query.restart(failOnDataLoss="true")
        assert query.rest() == {}
        if given:
            fill(server.url, "A_2", 3, lambda _: "other")
            assert query.rest() == {}
            fill(server.url, "A_2", 3, lambda _: "other")
            assert query.planner.report_latest() == query.at
        delete(server, "A_2")
        assert query.rest() == {}
        assert query.names == []
        create(server.url, "A_2")
        fill(server.url, "A_2", 4)
        assert query.rest() == {"A_2": [1, 2, 3, 4]}
        delete(server, "A_2")


@pytest.mark.parametrize("looked_at", ["A_1", "A_2"])
def test_a_run_knows_of_streams_that_it_has_looked_at(server: NatsServer, looked_at: str) -> None:
    """A run that first plans the last batch again looks at the streams of that batch alone."""
    for name in ("A_1", "A_2"):
        create(server.url, name)
    query = Finder(server, maxMessagesPerTrigger=1)
    fill(server.url, looked_at, 2)
    end = query.plan()
    fill(server.url, "A_1", 2)
    query.restart()
    assert query.take(end) == {looked_at: [1]}
    delete(server, "A_1")
    if looked_at == "A_1":
        with pytest.raises(
            DataLossError, match="A_1 was deleted, and had messages that were not read"
        ):
            query.plan()
    else:
        assert query.step() == {"A_2": [2]}
        assert query.names == ["A_2"]


def test_a_loss_that_is_accepted(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    create(server.url, "A_1")
    fill(server.url, "A_1", 10)
    query = Finder(server, maxMessagesPerTrigger=5, failOnDataLoss="false")
    query.step()
    delete(server, "A_1")
    assert query.rest() == {}
    assert query.names == []
    assert caplog.messages == [
        "stream A_1 was deleted, and had messages that were not read; failOnDataLoss is false, so "
        "the query goes on without them"
    ]


def test_a_stream_that_is_deleted_under_a_batch_had_more_than_that(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The run that plans the batch without it has seen more messages than the batch was to read."""
    create(server.url, "A_1")
    fill(server.url, "A_1", 10)
    query = Finder(server, maxMessagesPerTrigger=5, failOnDataLoss="false")
    end = query.plan()
    delete(server, "A_1")
    assert query.take(end) == {}
    assert query.rest() == {}
    lost = (
        "stream A_1 was deleted, and had messages that were not read; failOnDataLoss is false, so "
        "the query goes on without them"
    )
    assert caplog.messages == [lost, lost]


@pytest.mark.parametrize("others", [["A_1"], []], ids=str)
def test_a_batch_that_was_planned_with_a_deleted_stream(
    server: NatsServer, others: list[str]
) -> None:
    """It fails until that is accepted, whoever plans it."""
    for name in (*others, "A_2"):
        create(server.url, name)
        fill(server.url, name, 10)
    query = Finder(server)
    end = query.plan()
    delete(server, "A_2")
    for _ in range(2):
        with pytest.raises(
            DataLossError, match="stream A_2 was deleted, and had messages that were not read"
        ):
            query.take(end)
        query.restart()
    query.restart(failOnDataLoss="false")
    assert query.take(end) == {name: list(range(1, 11)) for name in others}
    assert query.rest() == {}
    assert query.names == others


def test_a_server_that_has_none_of_the_streams(server: NatsServer) -> None:
    """It may be the wrong one: with the right one all would be new, and read again."""
    query = Finder(server)
    for name in ("A_1", "A_2"):
        create(server.url, name)
        fill(server.url, name, 2)
    query.rest()
    with NatsServer() as other:
        create(other.url, "A_3")
        query.url = other.url
        query.restart()
        with pytest.raises(
            DataLossError,
            match=r"none of the streams in the checkpoint exists \(A_1, A_2\): is this an",
        ):
            query.plan()
    query.url = server.url
    delete(server, "A_1")
    query.restart()
    assert query.rest() == {}
    assert query.names == ["A_2"]
    delete(server, "A_2")
    query.restart()
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=r"exists \(A_2\).* set failOnDataLoss=false to go on without them"
        ):
            query.plan()
    query.restart(failOnDataLoss="false")
    assert query.rest() == {}
    assert query.names == []


def test_a_stream_that_is_made_again_between_two_looks(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of option stream: a loss, because nobody knows what the old one held."""
    create(server.url, "A_1")
    fill(server.url, "A_1", 5)
    query = Finder(server)
    query.rest()
    delete(server, "A_1")
    create(server.url, "A_1")
    fill(server.url, "A_1", 3)
    with pytest.raises(DataLossError, match="stream A_1 was deleted and created again"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.rest() == {"A_1": [1, 2, 3]}
    assert "stream A_1 was deleted and created again" in caplog.text


def test_metadata_that_changes(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """A stream joins when it gets what is asked for, and leaves when two looks have not seen that
    any more.
    """

    def label(name: str, team: str) -> None:
        config = {
            "name": name,
            "subjects": [f"{name}.>"],
            "storage": "memory",
            "metadata": {"team": team},
        }
        api(server.url, f"STREAM.UPDATE.{name}", config)

    for name in ("A_1", "A_2"):
        create(server.url, name)
        fill(server.url, name, 3)
    label("A_1", "shop")
    query = Finder(server, streamMetadata="team=shop", failOnDataLoss="true")
    assert query.rest() == {"A_1": [1, 2, 3]}
    label("A_2", "shop")
    assert query.rest() == {"A_2": [1, 2, 3]}
    label("A_1", "other")
    fill(server.url, "A_1", 1)
    assert query.step() == {"A_1": [4]}
    fill(server.url, "A_1", 1)
    assert query.step() == {}
    assert query.names == ["A_2"]
    assert caplog.messages == ["stream A_1 does not match any more: the query forgets it"]
    # A batch that was planned before keeps the stream; a new run sees at once that it does not
    # match.
    fill(server.url, "A_2", 2)
    end = query.plan()
    label("A_2", "other")
    query.restart()
    assert query.take(end) == {"A_2": [4, 5]}
    fill(server.url, "A_2", 2)
    query.restart()
    assert query.rest() == {}
    assert query.names == []


# Other options


def test_a_checkpoint_and_other_options(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("A_1", "A_2", "B_1"):
        create(server.url, name)
        fill(server.url, name, 2)
    query = Finder(server, None, stream="A_1", startingOffsets="latest")
    fill(server.url, "A_1", 1)
    assert query.rest() == {"A_1": [3]}
    # From names to a pattern: the others are new.
    query.restart(stream=None, streamPattern="A_*")
    assert query.rest() == {"A_2": [1, 2]}
    # A wider and a narrower one.
    query.restart(streamPattern="*_1")
    caplog.clear()
    assert query.rest() == {"B_1": [1, 2]}
    assert caplog.messages == [
        "stream A_2 is in the checkpoint and not in option streamPattern: its position is dropped"
    ]
    assert query.names == ["A_1", "B_1"]
    # None of the streams matches.
    query.restart(streamPattern="C_*")
    with pytest.raises(
        OptionError,
        match="it has A_1, B_1, and option streamPattern names none of them; correct the",
    ):
        query.plan()
    # Back to names.
    fill(server.url, "B_1", 2)
    query.restart(streamPattern=None, stream="B_1,A_1")
    assert query.rest() == {"B_1": [3, 4]}
    # A batch that another pattern planned.
    query.restart(stream=None, streamPattern="*_1")
    for name in ("A_1", "B_1"):
        fill(server.url, name, 1)
    end = query.plan()
    query.restart(streamPattern="A_*")
    with pytest.raises(
        OptionError,
        match="has a batch with stream B_1, which the option streamPattern does not name",
    ):
        query.take(end)
    query.restart(streamPattern="*")
    assert query.take(end) == {"A_1": [4], "B_1": [5]}
    assert query.rest() == {"A_2": [1, 2]}


def test_a_batch_that_was_planned_with_a_pattern_and_runs_with_names(server: NatsServer) -> None:
    """Messages of the streams that the pattern had found are not passed over, whatever the position of
    a stream that option stream adds.
    """
    create(server.url, "A_1")
    query = Finder(server)
    fill(server.url, "A_1", 2)
    query.rest()
    create(server.url, "A_2")
    fill(server.url, "A_2", 3)
    end = query.plan()
    query.restart(streamPattern=None, stream="A_1,A_2", startingOffsets="latest")
    assert query.take(end) == {"A_2": [1, 2, 3]}
    fill(server.url, "A_2", 1)
    assert query.rest() == {"A_2": [4]}


def test_work_queues_need_an_option_of_their_own(server: NatsServer) -> None:
    create(server.url, "A_1", retention="workqueue", allow_direct=True)
    fill(server.url, "A_1", 3)
    with pytest.raises(
        OptionError, match="A_1, which option streamPattern finds, has work-queue"
    ) as raised:
        driver(server.url, streamPattern="A_*").initial()
    assert raised.value.option == "streamPattern"
    parts = driver(
        server.url, streaming=False, streamPattern="A_*", readWith="direct"
    ).batch_ranges()
    assert read(server.url, parts) == {"A_1": [1, 2, 3]}


# Answers of the server


class Account:
    """Answers STREAM.LIST, or STREAM.NAMES, as a server with these streams does; `page` comes
    before each answer.
    """

    prefix = "$JS.API"

    def __init__(
        self, names: Iterable[str], limit: int, absent: Mapping[str, Any] | None = None
    ) -> None:
        self.names = sorted(names)
        self.limit = limit
        self.absent = dict(absent or {})
        self.asked: list[tuple[str, int]] = []

    def __call__(self, patience: float) -> Any:
        return self

    def page(self, number: int) -> None:
        """Called before each page of a list."""

    def api(self, subject: str, body: bytes, *, context: str) -> dict[str, Any]:
        return self.ask(subject, body, context=context)

    def ask(self, subject: str, body: bytes, *, context: str, **_: Any) -> dict[str, Any]:
        offset = json.loads(body)["offset"]
        self.page(len(self.asked))
        self.asked.append((subject, offset))
        here: list[Any] = [
            name for name in self.names[offset : offset + self.limit] if name not in self.absent
        ]
        if subject.endswith("LIST"):
            here = [{"config": {"name": name, **SHOP}} for name in here]
        return {
            "streams": here or None,
            "total": len(self.names),
            "offset": offset,
            "limit": self.limit,
            **self.lacking,
        }

    @property
    def lacking(self) -> dict[str, Any]:
        offline = {name: why for name, why in self.absent.items() if why}
        return {
            "missing": [name for name in self.absent if name not in offline],
            "offline": offline,
        }


def select(account: Connect, retry: float = 0.0, **given: Any) -> Selection:
    options = SourceOptions.from_spark({"streamMetadata": "team=shop", **given}, streaming=True)
    now = itertools.count(step=FIND_EVERY)
    return Selection(options, Requests(account, retry), lambda: float(next(now)))


@pytest.mark.parametrize("limit", [2, 3, 50, 100])
def test_pages(limit: int) -> None:
    names = {f"S{number:02}" for number in range(50)}
    account = Account(names, limit)
    by_name = select(account, streamPattern="S*", streamMetadata=None)
    by_name.look(complete=True)
    assert by_name.chosen == names
    assert {subject for subject, _ in account.asked} == {"$JS.API.STREAM.NAMES"}
    assert len(account.asked) == -(-(50 - 1) // (limit - 1)) if limit < 50 else 1
    by_metadata = select(account)
    by_metadata.look(complete=True)
    assert by_metadata.chosen == names


def test_streams_that_are_deleted_between_two_pages() -> None:
    """Others take their places in the pages: one of these would be missing."""

    class Shrinking(Account):
        def page(self, number: int) -> None:
            if number == 1:
                self.names = [name for name in self.names if name not in ("S03", "S04")]

    names = [f"S{number:02}" for number in range(30)]
    running = select(Shrinking(names, 10))
    running.look(complete=False)
    assert "S10" not in running.chosen
    running.look(complete=False)
    assert running.chosen == set(names) - {"S03", "S04"}
    with pytest.raises(ServerBusy, match="a stream was created or deleted meanwhile"):
        select(Shrinking(names, 10)).look(complete=True)
    patient = select(Shrinking(names, 10), 30.0)
    patient.look(complete=True)
    assert patient.chosen == set(names) - {"S03", "S04"}


UNSUPPORTED = "unsupported - required API level: 9, current API level: 5"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("", "no server answered for stream A_2"),
        (UNSUPPORTED, f"no server can run stream A_2 ({UNSUPPORTED})"),
        ("\x1b[2J" + 600 * "x", f"no server can run stream A_2 (\\x1b[2J{493 * 'x'}...)"),
        ({"reason": 9}, "no server can run stream A_2 ({'reason': 9})"),
    ],
)
def test_a_stream_whose_server_is_away(
    caplog: pytest.LogCaptureFixture, why: Any, said: str
) -> None:
    """A query that begins must know all; a running one finds the stream later.

    Others do not matter.
    """
    account = Account(["A_1", "A_2", "B"], 256, {"A_2": why})
    narrow = select(account, streamPattern="B")
    narrow.look(complete=True)
    assert narrow.chosen == {"B"}
    with pytest.raises(ApiError, match=re.escape(said)):
        select(account).look(complete=True)
    running = select(account)
    for _ in range(3):
        running.look(complete=False)
    assert running.chosen == {"A_1", "B"}
    (warning,) = caplog.messages
    assert warning.endswith(f"(option streamMetadata) as a whole: {said}")
    account.absent.clear()
    running.look(complete=False)
    assert running.chosen == {"A_1", "A_2", "B"}


def test_a_stream_that_no_server_can_run_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ([], ["A_2"]):
        account = Account(["A_1", "A_2"], 256, {"A_2": UNSUPPORTED})
        monkeypatch.setattr(
            Account, "lacking", {"missing": missing, "offline": {"A_2": UNSUPPORTED}}
        )
        with pytest.raises(
            ApiError, match=r"streamMetadata\): no server can run stream A_2"
        ) as caught:
            select(account, 1.0).look(complete=True)
        assert not caught.value.retriable
        assert len(account.asked) == 1


def test_another_stream_whose_server_is_away_is_waited_for() -> None:
    class Returning(Account):
        def page(self, number: int) -> None:
            if number == 1:
                del self.absent["A_1"]

    account = Returning(["A_1", "A_2"], 256, {"A_1": "", "A_2": UNSUPPORTED})
    with pytest.raises(
        ServerBusy, match="no server answered for stream A_1; no server can run stream A_2"
    ):
        select(account).look(complete=True)
    account = Returning(["A_1", "A_2"], 256, {"A_1": "", "A_2": UNSUPPORTED})
    with pytest.raises(ApiError, match=r"streamMetadata\): no server can run stream A_2"):
        select(account, 30.0).look(complete=True)
    assert len(account.asked) == 2


def test_a_look_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A running query reads on; one that starts, and one that may not look, fails."""

    class Failing(Account):
        error: Exception | None = None

        def page(self, number: int) -> None:
            if self.error is not None:
                raise self.error

    account = Failing(["A_1"], 256)
    busy = ServerBusy("no meta leader", code=503, err_code=10008, description="no meta leader")
    running = select(account)
    running.look(complete=False)
    account.error = busy
    running.look(complete=False)
    assert running.chosen == {"A_1"}
    assert caplog.messages == ["no meta leader; new streams are found later"]
    for failing, complete in ((running, True), (select(account), False)):
        with pytest.raises(ServerBusy):
            failing.look(complete=complete)
    account.error = PermissionDenied("no", subject="$JS.API.STREAM.LIST")
    with pytest.raises(PermissionDenied):
        running.look(complete=False)


@pytest.mark.full
def test_a_server_of_a_cluster_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with NatsCluster() as cluster:
        for name in ("A_1", "A_2"):
            create(cluster.url, name, num_replicas=3, **SHOP)
        create(cluster.url, "B", **SHOP)
        cluster.wait_ready()
        fill(cluster.url, "A_1", 3)
        away = cluster.leader_of("B")
        url = cluster.servers[(away + 1) % 3].url
        by_name = {"streamPattern": "A_*"}
        ways: list[dict[str, Any]] = [by_name, {**by_name, "streamMetadata": "team=shop"}]
        now = map(float, itertools.count(step=FIND_EVERY))
        # Servers wait four seconds for the others before they answer.
        running = [
            driver(url, clock=lambda: next(now), requestTimeout="20s", **given) for given in ways
        ]
        begins = [planner.initial() for planner in running]
        at = driver(url, streamMetadata="team=shop").initial()
        assert list(at.streams) == ["A_1", "A_2", "B"]
        cluster.kill(away)
        cluster.wait_ready()
        for planner, begin in zip(running, begins, strict=True):
            [(_, end)] = planning.run(planner, begin)
            assert read(url, planner.ranges(begin, end)) == {"A_1": [1, 2, 3]}
        # B cannot be looked at.
        lacking = select(connecting(url, requestTimeout="20s"))
        lacking.look(complete=False)
        assert lacking.chosen == {"A_1", "A_2"}
        assert caplog.messages[-1].endswith("as a whole: no server answered for stream B")
        with pytest.raises(ServerBusy, match="no server answered for stream B"):
            lacking.look(complete=True)


# All together


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_nothing_comes_twice(server: NatsServer, seed: int) -> None:
    """Streams come and go under load, and the query is killed at any step; a model knows what it
    must have read.
    """
    chance = random.Random(seed)
    query = Finder(
        server, maxMessagesPerTrigger=7, failOnDataLoss="false", startingOffsets="latest"
    )
    stored: dict[tuple[str, str], int] = {}  # name and creation time of each stream -> its messages
    living: dict[str, str] = {}

    def make(name: str) -> None:
        create(server.url, name)
        living[name] = api(server.url, f"STREAM.INFO.{name}")["created"]
        stored[name, living[name]] = 0

    def write() -> None:
        name = f"A_{chance.randrange(6)}"
        if name not in living:
            make(name)
        elif chance.random() < 0.15:
            delete(server, name)
            del living[name]
            if chance.random() < 0.5:
                make(name)
        if name in living:
            count = chance.randrange(8)
            fill(server.url, name, count)
            stored[name, living[name]] += count

    def step() -> None:
        end = query.plan()
        if chance.random() < 0.3:
            write()
        if chance.random() < 0.3:  # killed before the batch, which is planned again
            query.restart()
        query.take(end)
        if chance.random() < 0.2:
            query.restart()

    for _ in range(60):
        write()
        if chance.random() < 0.6:
            step()
    query.rest()
    read_of = Counter(dict.fromkeys(stored, 0))
    for name, created, sequence in query.found:
        read_of[name, created] += 1
        assert 1 <= sequence <= stored[name, created]
    assert set(query.found.values()) == {1}
    assert {name: read_of[name, created] for name, created in living.items()} == {
        name: stored[name, created] for name, created in living.items()
    }
    assert query.names == sorted(living)


@pytest.mark.full
def test_spark(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    """Found while the query runs, and by the next run."""
    frame = streaming(
        spark, server.url, None, "stream string, sequence bigint", streamPattern="A_*"
    )
    create(server.url, "A_1")
    fill(server.url, "A_1", 2)
    run = Run()
    query = start(frame, tmp_path, run)
    run.wait_for(2, query)
    create(server.url, "A_2")
    fill(server.url, "A_2", 3)
    run.wait_for(5, query)

    # The progress of a micro-batch comes after its rows, and the rows of A_2 may be those of two
    # micro-batches.
    def all_read() -> bool:
        a2 = lag(query.lastProgress).get("A_2")
        return a2 is not None and a2.next == 4

    wait_until(all_read, "the progress")
    query.stop()
    assert [tuple(row) for row in run.rows] == [
        ("A_1", 1),
        ("A_1", 2),
        ("A_2", 1),
        ("A_2", 2),
        ("A_2", 3),
    ]
    delete(server, "A_1")
    create(server.url, "A_3")
    for name in ("A_2", "A_3"):
        fill(server.url, name, 1)
    run = available_now(frame, tmp_path)
    assert [tuple(row) for row in run.rows] == [("A_2", 4), ("A_3", 1)]
    assert list(lag(json.dumps(run.progress[-1]))) == ["A_2", "A_3"]
