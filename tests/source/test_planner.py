"""Planning against the real server, and the reading of what was planned, as Spark would have it
done.
"""

from __future__ import annotations

import fnmatch
import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from spark_jetstream import datasource
from spark_jetstream.client.pool import close_all
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import (
    ConnectionFailed,
    DataLossError,
    JetStreamError,
    OptionError,
    StreamNotFound,
)
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.features import PURGE_OF_LONG_STREAMS
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import parse_time, rfc3339
from spark_jetstream.source import reader, stream_plan
from spark_jetstream.source.kinds.choice import kind_of
from spark_jetstream.source.limits import PLAN_LIMITS, PlanLimits
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.planner import Planner
from spark_jetstream.source.probes import ConsumerProbe, DirectProbe
from spark_jetstream.source.splits import Survey
from spark_jetstream.source.stream_plan import StreamPlan
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.calls import SEQUENCE, data_source
from tests.support.client import full, set_timing
from tests.support.fake_jetstream import CREATED, FakeJetStream, Honest
from tests.support.features import for_none
from tests.support.planning import STATE, driver, planner_after, read, run
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.reading import api, between, connecting, create, fill, part_of, pulls, wait_until
from tests.support.streams import MakeStream

pytestmark = pytest.mark.usefixtures("no_connection_left")


FILTERS: list[dict[str, Any]] = [{}, {"subjects": "S.rare"}, {"subjects": "S.rare,S.often.1"}]
SPLITS: list[dict[str, Any]] = [{}, {"minPartitions": 5}, {"maxMessagesPerPartition": 3}]
DENIED = b"-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.MSG.GET.S\"'\r\n"


def sparse(url: str, **config: Any) -> None:
    """A stream S of 1000 messages, one in 20 at `S.rare`, and a third of the others at `S.often.1`."""
    create(url, "S", **config)
    fill(url, "S", 1000, lambda i: "rare" if i % 20 == 7 else f"often.{i % 3}")


def matching(given: dict[str, Any]) -> list[int]:
    """The sequences of a `sparse` stream that one of `FILTERS` lets through."""
    subjects = given.get("subjects", "S.rare,S.often.0,S.often.1,S.often.2").split(",")
    return [
        i + 1 for i in range(1000) if ("S.rare" if i % 20 == 7 else f"S.often.{i % 3}") in subjects
    ]


# Questions about a stream


@pytest.mark.parametrize("kind", [ConsumerProbe, DirectProbe])
def test_answers_are_what_the_stream_holds(
    stream: MakeStream, kind: type[ConsumerProbe | DirectProbe]
) -> None:
    # 10153: the stream allows no consumer to be idle for longer.
    s = stream(
        allow_direct=True, storage="memory", consumer_limits={"inactive_threshold": 1_000_000_000}
    )
    asking = Requests(connecting(s.url), 5.0)

    def check() -> None:
        state = asking.stream(s.name)
        times = {sequence: s.stored_time(sequence) for sequence in s.messages}
        for filters in ((), ("0",), ("0", "late"), ("none",), ("none", "0")):
            probe = kind(asking, s.name, tuple(f"{s.subject}.{token}" for token in filters))
            subjects = [f"{s.subject}.{token}" for token in filters or ("*",)]
            matching = [
                (sequence, times[sequence])
                for sequence, message in s.messages.items()
                if any(fnmatch.fnmatchcase(message.subject, subject) for subject in subjects)
            ]
            if filters:
                assert probe.last() == max(matching, default=None)
            for first in (1, 2, 20, 40, 41):
                following = [message for message in matching if message[0] >= first]
                assert probe.pending(first) == len(following)
                assert probe.peek(first) == min(following, default=None)
            for since in {0, *times.values(), *(time + 1 for time in [*times.values()][-1:])}:
                after = [message for message in matching if message[1] >= since]
                assert probe.first_after(since, state) == min(after, default=None)
                assert probe.first_of_all_after(since) == min(
                    ((sequence, time) for sequence, time in times.items() if time >= since),
                    default=None,
                )

    check()
    s.send(
        *(Message(f"{s.subject}.{'late' if number == 30 else number % 4}") for number in range(40))
    )
    check()
    s.remove(1, 20, 40)
    check()


# Where a query starts and ends


def test_spark_asks_twice_where_the_first_batch_begins(server: NatsServer) -> None:
    """For its end, and again for its tasks: what happens in between belongs to no batch, or to the
    next one.
    """
    create(server.url, "S")
    fill(server.url, "S", 5)
    planner = driver(server.url, startingOffsets="latest")
    start = planner.initial()
    assert planner.latest(start, limited=True) == start == planner.initial()
    fill(server.url, "S", 3)
    assert planner.latest(start, limited=True).streams["S"].next == 9
    # A run that plans the first batch again asks for its start, too.
    planner = driver(server.url, startingOffsets="latest")
    assert (begin := planner.initial()) != start
    assert planner.latest(start, limited=True) == begin
    fill(server.url, "S", 2)
    assert planner.latest(begin, limited=True).streams["S"].next == 11
    planner = driver(server.url)
    end = planner.latest(planner.initial(), limited=True)
    api(server.url, "STREAM.PURGE.S", {"seq": 3})
    assert read(server.url, planner.ranges(planner.initial(), end)) == {"S": between(3, 11)}


@pytest.mark.parametrize("given", FILTERS, ids=str)
def test_a_batch_read(server: NatsServer, given: dict[str, Any]) -> None:
    sparse(server.url)
    wanted = matching(given)
    for minimum, most in ((7, 100_000), (1, 100), (3, 17)):
        options = {"minPartitions": minimum, "maxMessagesPerPartition": most, **given}
        parts = driver(server.url, streaming=False, **options).batch_ranges()
        found = [read(server.url, [part]).get("S", []) for part in parts]
        assert list(chain(*found)) == wanted
        assert all(one.end == other.first for one, other in pairwise(parts))
        # Nothing moved meanwhile, so every count is exact, and none is too large.
        assert all(
            part.count in (None, len(sequences))
            for part, sequences in zip(parts, found, strict=True)
        )
        assert max(part.count or 0 for part in parts) <= most
        if len(wanted) // most < 40:  # with more pieces than that the questions run out
            assert None not in [part.count for part in parts]
        assert len(parts) >= min(minimum, len(wanted))


def test_several_streams_share_the_tasks_whichever_is_counted_first(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, messages in (("A", 240), ("B", 201), ("C", 5)):
        create(server.url, name)
        fill(server.url, name, messages)
    api(server.url, "STREAM.MSG.DELETE.B", {"seq": 100})
    planner = driver(server.url, "B,C,A", minPartitions=6, startingOffsets="earliest")
    start = planner.initial()
    end = planner.latest(start, limited=True)
    parts = planner.ranges(start, end)
    assert [part.stream for part in parts] == list("AAABBC")
    survey, counted = StreamPlan.survey, {name: threading.Event() for name in "ABC"}

    def last_first(plan: StreamPlan, whole: SequenceRange) -> Survey:
        following = {"A": "B", "B": "C"}.get(whole.stream)
        assert following is None or counted[following].wait(60)
        found = survey(plan, whole)
        counted[whole.stream].set()
        return found

    monkeypatch.setattr(StreamPlan, "survey", last_first)
    again = driver(server.url, "C,B,A", minPartitions=6)
    assert again.latest(start, limited=True).cuts == end.cuts
    assert again.ranges(start, end) == parts


# Micro-batches


def test_messages_that_a_replica_did_not_know_yet(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next trigger finds them without a new message on the stream."""
    create(server.url, "S")
    fill(server.url, "S", 10)
    planner = driver(server.url, subjects="S.a")
    view = planner._plans["S"].probe
    known = iter([view.peek(5)])
    current = view.last
    monkeypatch.setattr(view, "last", lambda: next(known, None) or current())
    assert [end.streams["S"].next for _, end in run(planner)] == [6, 11]


@pytest.mark.parametrize("read_with", ["consumer", "direct"])
def test_available_now_where_messages_make_way_for_newer_ones(
    server: NatsServer, read_with: str
) -> None:
    """A stream whose waiting messages were all superseded does not hold up the other."""
    create(server.url, "KEYED", max_msgs_per_subject=1, allow_direct=True)
    create(server.url, "S", allow_direct=True)
    fill(server.url, "KEYED", 50, lambda i: str(i % 10))
    fill(server.url, "S", 20)
    planner = driver(
        server.url, "KEYED,S", subjects="*.*", readWith=read_with, maxMessagesPerTrigger=30
    )
    planner.prepare_available_now()
    start = planner.initial()
    fill(server.url, "KEYED", 50, lambda i: str(i % 10))
    batches = list(run(planner, start))
    found = [read(server.url, planner.ranges(*each)) for each in batches]
    assert [sequence for batch in found for sequence in batch.get("S", [])] == list(range(1, 21))
    assert batches[-1][1].streams["KEYED"].next == 51
    # Five of the ten messages that were planned make way before they are read: no loss.
    parts = driver(server.url, "KEYED", streaming=False).batch_ranges()
    fill(server.url, "KEYED", 5, str)
    assert read(server.url, parts) == {"KEYED": list(range(96, 101))}


def test_the_last_commit_is_waited_for(server: NatsServer) -> None:
    """With `availableNow` Spark ends who plans as soon as nothing is left to read: nobody would
    finish the commit.
    """
    create(server.url, "HELD", retention="interest")
    with WireProxy(server.url) as proxy:
        planner = driver(proxy.url, "HELD", durable="spark")
        start = planner.initial()
        fill(server.url, "HELD", 20)
        planner.prepare_available_now()
        (batch,) = run(planner, start, batches=1)
        assert batch[1].streams["HELD"].next == 21
        held_back = proxy.stall_at(b"$JS.API.CONSUMER.RESET.HELD.spark")
        with ThreadPoolExecutor(1) as pool:
            planned = pool.submit(planner.latest, batch[1], limited=True)
            assert held_back.wait(60)
            wait([planned], 0.2)
            assert not planned.done()
            proxy.unstall()
            assert planned.result(60) == batch[1]
        assert api(server.url, "STREAM.INFO.HELD")["state"]["messages"] == 0


def test_a_long_interest_stream(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may purge it when two consumers are deleted, so it is read without any."""
    for name, direct in (("S", True), ("N", False)):
        create(server.url, name, retention="interest", allow_direct=direct)
        api(
            server.url,
            f"CONSUMER.CREATE.{name}.other",
            {"stream_name": name, "config": {"durable_name": "other"}},
        )
        fill(server.url, name, 60)

    def ranges(name: str, limits: PlanLimits) -> list[SequenceRange]:
        return driver(server.url, name, streaming=False, limits=limits).batch_ranges()

    planned = [part for name in "SN" for part in ranges(name, PLAN_LIMITS)]
    assert not any(part.read_with == "direct" for part in planned)
    warnings = [
        message
        for message in caplog.messages
        if "when the stream spans more than 50,000 sequences" in message
    ]
    assert [message.split()[1] for message in warnings] == ["N"]
    short = PlanLimits(longest=59)
    planned = ranges("S", short)
    assert all(part.read_with == "direct" for part in planned)
    assert read(server.url, planned) == {"S": list(range(1, 61))}
    assert (
        "stream S is read with Direct Get: it has interest retention and many messages"
        in caplog.messages
    )
    for streaming in (True, False):
        with pytest.raises(
            OptionError, match=r"spans 60 sequences: .* may remove all .* set allow_direct on"
        ) as raised:
            driver(server.url, "N", streaming=streaming, limits=short).initial()
        assert raised.value.option == "readWith"
    monkeypatch.setattr(stream_plan, "PURGE_OF_LONG_STREAMS", for_none(PURGE_OF_LONG_STREAMS))
    planned = [part for name in "SN" for part in ranges(name, short)]
    assert not any(part.read_with == "direct" for part in planned)


def test_small_tasks_of_a_stream_in_a_cluster_are_read_with_direct_gets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "spark_jetstream")
    readers = ", ".join(
        f'{{user: {user}, password: p, permissions: {{publish: {{deny: "$JS.API.{denied}.>"}}}}}}'
        for user, denied in (("blind", "DIRECT.GET"), ("deaf", "STREAM.MSG.GET"))
    )
    users = f"authorization {{ users: [{{user: admin, password: p}}, {readers}] }}"

    def ways(url: str, name: str = "S", **given: Any) -> set[str]:
        user = given.pop("user", "admin")
        planner = driver(
            url, name, user=user, password="p", **{"startingOffsets": "earliest", **given}
        )
        start = planner.initial()
        return {
            part.read_with for part in planner.ranges(start, planner.latest(start, limited=False))
        }

    with NatsCluster(config=users) as cluster:
        where, admin = cluster.url, cluster.urls[0].replace("//", "//admin:p@")
        configs: dict[str, dict[str, Any]] = {
            "S": {"num_replicas": 3},
            "ONE": {},
            "GAPS": {},
            "KEYED": {"max_msgs_per_subject": 100_000},
            "LARGE": {},
            "CLOSED": {"allow_direct": False},
        }
        for name, config in configs.items():
            create(admin, name, **{"allow_direct": True, **config})
        cluster.wait_ready()
        for name in configs:
            fill(admin, name, 60, size=10_000 if name == "LARGE" else 100)
        api(admin, "STREAM.MSG.DELETE.GAPS", {"seq": 30})
        # The planner tries Direct Gets once, and a replica of S may not have its last messages yet.
        wait_until(lambda: ways(where) == {"auto"}, "Direct Gets of S")
        assert ways(where, "ONE") == {"auto"}
        assert ways(where, fetchMaxBytes="64k", maxMessagesPerPartition=5, name="LARGE") == {"auto"}
        assert ways(where, fetchMaxBytes="64k", maxMessagesPerPartition=10, name="LARGE") == {
            "consumer"
        }
        for name in ("GAPS", "KEYED", "CLOSED"):
            assert ways(where, name) == {"consumer"}
        assert ways(where, subjects="S.a") == {"consumer"}
        assert ways(where, readWith="consumer") == {"consumer"}
        assert ways(where, readWith="direct") == {"direct"}
        for user, denied in (("blind", "DIRECT.GET"), ("deaf", "STREAM.MSG.GET")):
            assert ways(where, user=user) == {"consumer"}
            assert "stream S is read with consumers: " in caplog.text
            assert f"$JS.API.{denied}.S" in caplog.text
        fill(admin, "ONE", 400)
        assert ways(where, "ONE") == {"consumer"}
        assert ways(where, "ONE", minPartitions=2) == {"auto"}


def test_an_import_that_allows_one_reply_for_each_request() -> None:
    """The planner must notice: each task would wait for the second reply."""
    with FakeJetStream() as fake:
        fake.store(10)
        fake.look = lambda: {**fake.info(), "cluster": {"name": "test"}}

        def ways(timeout: str) -> set[str]:
            planner = driver(fake.url, streaming=False, requestTimeout=timeout)
            return {part.read_with for part in planner.batch_ranges()}

        assert ways("60s") == {"auto"}
        fake.direct = lambda request: fake.batch(request)[:1]
        assert ways("1s") == {"consumer"}
        close_all()


def test_without_a_cluster_tasks_are_read_with_consumers(server: NatsServer) -> None:
    create(server.url, "S", allow_direct=True)
    fill(server.url, "S", 3)
    assert [part.read_with for part in driver(server.url, streaming=False).batch_ranges()] == [
        "consumer"
    ]


def test_planning_waits_for_room_on_a_stream(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    sparse(server.url, max_consumers=1)
    view = ConsumerProbe(Requests(connecting(server.url), 30.0), "S", ("S.rare",))
    reading = pulls(server.url, part_of(server.url, "S"))
    next(reading)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(view.pending, 1)
        wait_until(lambda: "waiting for up to" in caplog.text, "the question's wait")
        reading.close()  # type: ignore[attr-defined]  # it is a generator
        assert asked.result(60) == len(matching(FILTERS[1]))


# The same again


@pytest.mark.parametrize("given", FILTERS, ids=str)
def test_another_driver_plans_the_same_messages(server: NatsServer, given: dict[str, Any]) -> None:
    sparse(server.url)
    planner = driver(server.url, maxMessagesPerTrigger=11, **given)
    batches = list(run(planner, batches=4))[2:]
    expected = [read(server.url, planner.ranges(*batch)) for batch in batches]
    # Meanwhile the stream has grown and was filled with other things; and the new driver has other
    # limits.
    fill(server.url, "S", 500, lambda i: ("rare", "often.1", "else")[i % 3])
    for split in SPLITS:
        other = driver(server.url, **given, **split)
        for (start, end), messages in zip(batches, expected, strict=True):
            # As older releases have left it.
            parts = other.ranges(start, Offset(end.streams))
            assert read(server.url, parts) == messages
            assert (parts[0].first, parts[-1].end) == (
                start.streams["S"].next,
                end.streams["S"].next,
            )
            assert all(one.end == following.first for one, following in pairwise(parts))


def edges(parts: Iterable[SequenceRange]) -> list[tuple[str, int, int]]:
    return [(part.stream, part.first, part.end) for part in parts]


@pytest.mark.parametrize("read_with", ["consumer", "direct"])
@pytest.mark.parametrize("given", [{}, FILTERS[1]], ids=["gaps", "filter"])
def test_a_batch_that_runs_again_has_the_same_tasks(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], read_with: str
) -> None:
    """Message ids name the task: messages published while it is planned again, and other options,
    move no cut.
    """
    sparse(server.url, allow_direct=True)
    for sequence in range(100, 900, 33):
        api(server.url, "STREAM.MSG.DELETE.S", {"seq": sequence})
    given = {**given, "readWith": read_with}
    planner = driver(server.url, minPartitions=4, **given)
    [(start, end)] = run(planner, batches=1)
    assert driver(server.url, **given).ranges(start, end) == planner.ranges(start, end)
    kind = DirectProbe if read_with == "direct" else ConsumerProbe
    pending, asked = kind.pending, 0

    def published_meanwhile(probe: Any, first: int) -> int:
        nonlocal asked
        asked += 1
        fill(server.url, "S", 40, lambda _: "rare")
        return pending(probe, first)

    monkeypatch.setattr(kind, "pending", published_meanwhile)
    parts = planner.ranges(start, end)
    assert asked == 0, "what was counted for the cuts is counted again for the tasks"
    assert len(parts) >= 4
    messages = [read(server.url, [part]) for part in parts]
    for split in SPLITS:
        again = driver(server.url, **given, **split).ranges(start, end)
        assert edges(again) == edges(parts)
        assert [read(server.url, [part]) for part in again] == messages
    assert asked


def test_a_stream_whose_messages_went_before_the_batch_has_no_task(server: NatsServer) -> None:
    for name in "ST":
        create(server.url, name)
    given: dict[str, Any] = {"subjects": "*.a", "failOnDataLoss": "false"}
    start = driver(server.url, "S,T", **given).initial()
    for name in "ST":
        fill(server.url, name, 1)
    fill(server.url, "S", 1, lambda _: "b")
    api(server.url, "STREAM.MSG.DELETE.S", {"seq": 1})
    planner = driver(server.url, "S,T", **given)
    end = planner.latest(start, limited=True)
    assert end.cuts == {"T": (1, 1, 2)}
    for again in (planner, driver(server.url, "S,T", **given)):
        assert [(part.stream, part.first, part.end) for part in again.ranges(start, end)] == [
            ("T", 1, 2)
        ]


def test_tasks_keep_their_numbers_when_messages_go(server: NatsServer) -> None:
    for name in "ST":
        create(server.url, name)
        fill(server.url, name, 60)
    given: dict[str, Any] = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    planner = driver(server.url, "S,T", minPartitions=6, **given)
    start = planner.initial()
    end = planner.latest(start, limited=True)
    parts = planner.ranges(start, end)
    api(server.url, "STREAM.PURGE.S", {"seq": 31})
    left = [replace(part, first=min(max(part.first, 31), part.end)) for part in parts[:3]] + parts[
        3:
    ]
    for again in (planner, driver(server.url, "S,T", **given)):
        assert edges(again.ranges(start, end)) == edges(left)
    # The first batch begins where the stream does by then.
    assert edges(driver(server.url, "S,T", **given).ranges(planner.initial(), end)) == edges(left)
    api(server.url, "STREAM.PURGE.S")
    empty = [replace(part, first=part.end) for part in parts[:3]]
    assert edges(planner.ranges(planner.initial(), end)) == edges(empty + parts[3:])
    # Spark gets a partition of its own kind for each of them.
    spark = data_source({"servers": server.url, "stream": "S,T", **given}).streamReader(SEQUENCE)
    tasks = spark.partitions(start.to_json(), end.to_json())
    assert [task.value is None for task in tasks] == [True] * 3 + [False] * 3
    assert [sum(len(rows) for rows in spark.read(task)) for task in tasks] == [0, 0, 0, 20, 20, 20]


def test_cuts_make_no_batch(server: NatsServer) -> None:
    """Spark runs a batch when the text of the offset has changed; a new version of the format must
    not do that.
    """
    for name in "ST":
        create(server.url, name)
        fill(server.url, name, 20)
    planner = driver(server.url, "S,T", minPartitions=4)
    [(_, end)] = run(planner)
    assert end.cuts == dict.fromkeys("ST", (1, 2, 21))
    for following in (planner, driver(server.url, "S,T")):
        for at in (end, Offset(end.streams)):
            assert following.latest(at, limited=True).to_json() == at.to_json()
    fill(server.url, "T", 7)
    assert planner.latest(end, limited=True).cuts == {"T": (21, 4, 28)}


# Interruptions


@pytest.mark.parametrize("position", [1, 2500, 9000, *full(700, 4000, 6000, 14_000)])
def test_a_connection_cut_while_planning(server: NatsServer, position: int) -> None:
    sparse(server.url)
    given: dict[str, Any] = {"subjects": "S.rare", "maxMessagesPerTrigger": 20, "minPartitions": 4}
    calm = driver(server.url, **given)
    expected = list(run(calm))
    with WireProxy(server.url) as proxy:
        planner = driver(proxy.url, **given)
        planner.initial()
        cut = proxy.cut_after(position)
        batches = list(run(planner))
        parts = [planner.ranges(*each) for each in batches]
        assert cut.is_set()
    assert batches == expected
    assert parts == [calm.ranges(*each) for each in expected]


def test_a_server_killed_while_planning(server: NatsServer) -> None:
    sparse(server.url, storage="file")
    planner = driver(server.url, subjects="S.rare", maxMessagesPerTrigger=20)
    found = []
    for batch in run(planner):
        found += read(server.url, planner.ranges(*batch))["S"]
        server.kill()
        server.start()
    assert found == matching(FILTERS[1])


def test_a_server_that_does_not_come_back(server: NatsServer) -> None:
    create(server.url, "S")
    planner = driver(server.url, retryTimeout="500ms")
    start = planner.initial()
    server.stop()
    with pytest.raises(ConnectionFailed, match="127"):
        planner.latest(start, limited=True)


def test_a_query_with_a_checkpoint_waits_for_a_stream_without_a_leader() -> None:
    with FakeJetStream() as fake:
        fake.store(10)
        unheard = 0

        def silent(answer: Honest) -> list[bytes]:
            nonlocal unheard
            unheard -= 1
            return [] if unheard >= 0 else [answer.frames]

        fake.lies["STREAM.INFO"] = silent
        quick: dict[str, Any] = {
            "connectTimeout": "100ms",
            "requestTimeout": "100ms",
            "retryTimeout": "10m",
        }
        planner = driver(fake.url, **quick)
        planner._requests.connect(60.0)
        # At first the server may be the wrong one: no second request.
        unheard = 1000
        with pytest.raises(JetStreamError):
            planner.initial()
        assert fake.count("STREAM.INFO") == 1
        unheard = 5
        end = planner.latest(Offset({"S": StreamPosition(1, CREATED)}), limited=True)
        assert end.streams["S"].next == 11
        assert fake.count("STREAM.INFO") >= 7


@pytest.mark.parametrize(
    "given", [{}, {"ensureStream": "{}"}, {"bucket": "S"}, {"objectBucket": "S"}], ids=str
)
def test_how_long_a_query_waits_for_its_first_connection(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    waited: list[float] = []

    def away(_: object, *, patience: float, **__: object) -> None:
        waited.append(patience)
        raise JetStreamError("away")

    for module in (reader, datasource):
        monkeypatch.setattr(module, "connect", away)
    at = [Offset({"S": StreamPosition(number, CREATED)}).to_json() for number in (1, 5)]
    what = given if "bucket" in given or "objectBucket" in given else {"stream": "S", **given}
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("initialOffset", ()),
        ("latestOffset", (at[0], ReadAllAvailable())),
        ("partitions", tuple(at)),
    ]
    for name, arguments in calls:
        columns = StructType().add(
            *("sequence", "long") if "stream" in what else ("bucket", "string")
        )
        source = data_source({"connectTimeout": "7s", "retryTimeout": "77s", **what}).streamReader(
            columns
        )
        with pytest.raises(JetStreamError, match="away"):
            getattr(source, name)(*arguments)
    assert waited == [7.0, 77.0, 77.0]


def test_the_end_that_is_reported_is_what_the_query_can_read(server: NatsServer) -> None:
    """The limits do not change it, and it is not beyond the last message that matches.

    Otherwise a lag of 0 would not be possible.
    """
    create(server.url, "S")
    fill(server.url, "S", 30)
    fill(server.url, "S", 20, lambda _: "b")
    planner = driver(server.url, subjects="S.a", maxMessagesPerTrigger=10)
    assert planner.report_latest().streams["S"].next == 31
    *_, (_, end) = run(planner)
    assert planner.report_latest() == end
    assert driver(server.url).report_latest().streams["S"].next == 51
    assert driver(server.url, subjects="S.c").report_latest().streams["S"].next == 1


@pytest.mark.parametrize("following", ["a", "b"])
def test_an_idle_query_does_not_look_for_what_matches(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, following: str
) -> None:
    """Spark asks for the end, and for the one to report, a hundred times in a second.

    Each search would create a consumer.
    """
    create(server.url, "S")
    fill(server.url, "S", 10)
    fill(server.url, "S", 1, lambda _: following)
    planner = driver(server.url, subjects="S.a")
    *_, (_, end) = run(planner)
    planner.report_latest()
    monkeypatch.setattr(ConsumerProbe, "last", None)
    for _ in range(2):
        assert planner.latest(end, limited=True) == planner.report_latest() == end


# What the stream lost


@pytest.mark.parametrize("read_with", ["consumer", "direct"])
def test_a_filter_that_matches_everything(server: NatsServer, read_with: str) -> None:
    """A server finds no last message for the filter `>` if the message at the last sequence was
    deleted.
    """
    create(server.url, "S", allow_direct=True)
    fill(server.url, "S", 20)
    planner = driver(server.url, subjects=">", readWith=read_with)
    [(_, end)] = run(planner)
    fill(server.url, "S", 20)
    api(server.url, "STREAM.MSG.DELETE.S", {"seq": 40})
    assert planner_after(planner, end) == list(range(21, 40))


@pytest.mark.parametrize("denied", [False, True])
@pytest.mark.parametrize("term", ["", CREATED])
def test_the_last_message_read_is_looked_up_once_for_a_batch(
    monkeypatch: pytest.MonkeyPatch, denied: bool, term: str
) -> None:
    """And not at all while the same leader leads.

    A consumer does it where the account may get no messages.
    """
    set_timing(monkeypatch, ask_again=60.0)  # a slow reply is no reason to ask twice
    with FakeJetStream() as fake:
        leaders = [term]
        fake.look = lambda: {
            **fake.info(),
            "cluster": {"name": "test", "leader": "A", "leader_since": leaders[-1]},
        }
        fake.store(50)
        if denied:
            fake.leader = lambda _: {
                "error": {"code": 403, "err_code": 1, "description": "not for you"}
            }
        planner = driver(fake.url, readWith="consumer", requestTimeout="60s")
        at = Offset({"S": StreamPosition(1, CREATED)})

        def look_ups(new: int = 10) -> int:
            """Plan what is new, and return how often the stream was asked for a message."""
            nonlocal at
            before = fake.count("STREAM.MSG.GET"), fake.count("CONSUMER.CREATE")
            fake.store(new)
            end = planner.latest(at, limited=True)
            assert (end == at) == (new == 0)
            planner.ranges(at, end)
            at = end
            gets, consumers = (
                fake.count("STREAM.MSG.GET") - before[0],
                fake.count("CONSUMER.CREATE") - before[1],
            )
            return consumers if denied else gets

        # The first batch begins with the first message: there is none that was read.
        assert [look_ups() for _ in range(4)] == ([0, 1, 0, 0] if term else [0, 1, 1, 1])
        # What the stream ends with now may be another message when more follow.
        assert [look_ups(0) for _ in range(3)] == [0 if term else 1, 0, 0]
        assert look_ups() == (0 if term else 1)
        leaders.append(f"{term} again" if term else "")
        assert look_ups() == 1


@pytest.mark.parametrize("answer", [None, b"NATS/1.0 503\r\n\r\n"], ids=["silent", "unheard"])
def test_a_leader_that_did_not_answer_once_is_asked_again(answer: bytes | None) -> None:
    """A consumer looks the last message read up in its place.

    For the end it has the last word, as before.
    """
    with FakeJetStream() as fake:
        fake.store(100)
        fake.look = lambda: fake.info(num_replicas=3)
        first = iter([[] if answer is None else [answer]])

        def lie(honest: Honest) -> list[bytes]:
            heads = next(first, None)
            return (
                [honest.frames] if heads is None else [honest.saying(b"", head) for head in heads]
            )

        fake.lies["STREAM.MSG.GET"] = lie
        read_at = parse_time(fake.message({"seq": 50})["message"]["time"])
        fake.lagging = [100, 90]  # of the look-up, and of the end
        planner = driver(fake.url, subjects="S.a", readWith="consumer", requestTimeout="300ms")
        start = Offset({"S": StreamPosition(51, CREATED, read_at)})
        assert planner.latest(start, limited=True).streams["S"].next == 101
        assert (next(first, None), fake.lagging) == (None, [])


def test_a_lagging_replica_does_not_make_a_batch_larger_than_its_limit() -> None:
    with FakeJetStream() as fake:
        fake.store(100)
        state = {**fake.info(), "state": {**fake.info()["state"], "num_deleted": 1, "messages": 99}}
        fake.look = lambda: state
        fake.store(60)
        # Of the replicas that answer, the first has 55 messages and the others have all.
        lagging = iter([55])
        fake.direct = lambda request: fake.batch(request, up_to=next(lagging, None))
        start = Offset({"S": StreamPosition(51, CREATED)})
        planner = driver(fake.url, readWith="direct", maxMessagesPerTrigger=10)
        end = planner.latest(start, limited=True)
        assert 51 < end.streams["S"].next <= 61


def test_a_batch_that_was_counted_as_nothing_has_the_same_tasks_again() -> None:
    """Consumers on replicas that lag count no messages where the leader has some."""
    with FakeJetStream() as fake:
        fake.store(100)
        state = {**fake.info(), "state": {**fake.info()["state"], "num_deleted": 1, "messages": 99}}
        fake.look = lambda: state
        fake.lagging = [0, 0, 0]
        start = Offset({"S": StreamPosition(1, CREATED)})
        given: dict[str, Any] = {"readWith": "consumer", "maxMessagesPerTrigger": 200}
        planner = driver(fake.url, minPartitions=4, **given)
        end = planner.latest(start, limited=True)
        assert (end.streams["S"].next, fake.lagging) == (101, [])
        parts = planner.ranges(start, end)
        assert len(parts) == 4
        assert edges(
            driver(fake.url, **given).ranges(start, Offset.from_json(end.to_json()))
        ) == edges(parts)


def test_a_replica_that_has_found_nothing_is_not_believed_for_long() -> None:
    """Where the leader may not be asked, what waits on a quiet stream needs no new message to be
    read.
    """
    with FakeJetStream() as fake:
        fake.store(20)
        now = parse_time(fake.info()["ts"])
        fake.look = lambda: {**fake.info(num_replicas=3), "ts": rfc3339(now)}
        fake.lies["STREAM.MSG.GET"] = lambda _: [DENIED]
        planner = driver(fake.url, subjects="S.a", readWith="consumer")
        at = Offset({"S": StreamPosition(11, CREATED)})
        fake.lagging = [10]
        assert planner.latest(at, limited=True) == at
        looks = fake.count("CONSUMER.CREATE")
        now += 4_000_000_000
        assert planner.latest(at, limited=True) == at
        assert fake.count("CONSUMER.CREATE") == looks
        now += 1_000_000_000
        assert planner.latest(at, limited=True).streams["S"].next == 21


def test_a_time_that_a_replica_has_not_reached() -> None:
    """Where the leader may not be asked, one consumer that finds nothing does not make the query
    begin at the end.
    """
    with FakeJetStream() as fake:
        fake.store(20)
        fake.look = lambda: fake.info(num_replicas=3)
        fake.lies["STREAM.MSG.GET"] = lambda _: [DENIED]
        fake.lagging = [0, 0]
        planner = driver(fake.url, readWith="consumer", startingTimestamp="2020-01-01T00:00:00Z")
        assert planner.initial().streams["S"].next == 1


@pytest.mark.parametrize("read_with", ["consumer", "direct"])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_time_that_the_server_looks_for_in_the_wrong_place(read_with: str, gaps: bool) -> None:
    """Servers before 2.12 do where sequences are missing, or nothing follows.

    This one names the first message.
    """
    with FakeJetStream() as fake:
        fake.store(100)
        for sequence in range(1, 97, 7) if gaps else ():
            del fake.messages[sequence + 1]
        missing = 100 - len(fake.messages)
        fake.look = lambda: {
            **fake.info(),
            "state": {**fake.info()["state"], "num_deleted": missing},
        }

        def begin(sequence: int) -> int:
            time = parse_time(fake.message({"seq": 1})["message"]["time"]) + sequence - 1
            given: dict[str, Any] = {"readWith": read_with, "startingTimestamp": rfc3339(time)}
            return driver(fake.url, **given).initial().streams["S"].next

        assert begin(101) == 101
        if gaps:
            expected = {1: 1, 2: 3, 3: 3, 50: 50, 51: 52, 99: 99, 100: 100}
            assert {sequence: begin(sequence) for sequence in expected} == expected


def test_a_leader_that_cannot_be_asked_a_second_time() -> None:
    """It has a later message, and does not say which is the last one: what the replica has counts."""
    with FakeJetStream() as fake:
        fake.store(100)
        fake.look = lambda: fake.info(num_replicas=3)
        first = iter([True])
        fake.lies["STREAM.MSG.GET"] = lambda honest: [
            honest.frames if next(first, False) else DENIED
        ]
        fake.lagging = [90]
        planner = driver(fake.url, subjects="S.a", readWith="consumer")
        start = Offset({"S": StreamPosition(51, CREATED)})
        assert planner.latest(start, limited=True).streams["S"].next == 91


def test_a_batch_without_cuts_past_a_lost_tail() -> None:
    """An older release has planned it, or Spark 4.0: it has no task, and the next batch notices the
    loss.
    """
    with FakeJetStream() as fake:
        fake.store(50)
        start, end = (Offset({"S": StreamPosition(at, CREATED)}) for at in (51, 61))
        planner = driver(fake.url)
        assert planner.ranges(start, end) == []
        with pytest.raises(DataLossError, match="was read up to sequence 60, and now ends at 50"):
            planner.latest(end, limited=True)


# Streams that are deleted


def both(server: NatsServer, **given: Any) -> Planner:
    """A query of the streams S and T, which accepts a loss."""
    return driver(server.url, "S,T", failOnDataLoss="false", **given)


def left(server: NatsServer, planner: Planner, at: Offset) -> tuple[Offset, dict[str, list[int]]]:
    """Where the query is when it has read all there is, and what that was."""
    found: dict[str, list[int]] = {}
    for start, end in run(planner, at):
        for name, sequences in read(server.url, planner.ranges(start, end)).items():
            found.setdefault(name, []).extend(sequences)
        at = end
    return at, found


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"durable": "q"}, {"maxMessagesPerTrigger": 7}, {"startingOffsets": "latest"}]
)
def test_a_query_goes_on_without_a_stream_that_is_deleted(
    server: NatsServer,
    caplog: pytest.LogCaptureFixture,
    no_election: None,
    restarted: bool,
    given: dict[str, Any],
) -> None:
    for name in "ST":
        create(server.url, name)
    planner = both(server, **given)
    at = planner.initial()
    assert planner.latest(at, limited=True) == at
    for name in "ST":
        fill(server.url, name, 10)
    at, found = left(server, planner, at)
    assert found == {name: list(range(1, 11)) for name in "ST"}
    api(server.url, "STREAM.DELETE.T")
    fill(server.url, "S", 10)
    planner = both(server, **given) if restarted else planner
    caplog.clear()
    at, found = left(server, planner, at)
    assert found == {"S": list(range(11, 21))}
    planner.commit(at)
    assert planner.report_latest().streams.keys() == {"S"}
    assert [
        message
        for message in caplog.messages
        if "stream T was deleted; failOnDataLoss is false" in message
    ]
    assert len([message for message in caplog.messages if "stream T" in message]) == 1
    # Where it would have to begin by its options if it were new to the query.
    create(server.url, "T")
    fill(server.url, "T", 30)
    at, found = left(server, planner, at)
    assert found == {"T": list(range(1, 31))}
    fill(server.url, "T", 5)
    planner.prepare_available_now()
    assert left(server, planner, at)[1] == {"T": list(range(31, 36))}


def test_a_stream_that_is_deleted_under_a_batch(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, no_election: None
) -> None:
    """Also while the batch is planned; and a run of `availableNow` ends."""
    for name in "ST":
        create(server.url, name)
        fill(server.url, name, 10)
    planner = both(server)
    [(start, end)] = run(planner)
    planned = planner.ranges(start, end)
    look_up = StreamPlan.end

    def deleting(plan: StreamPlan, position: StreamPosition, **given: bool) -> StreamPosition:
        if plan.name == "T":
            api(server.url, "STREAM.DELETE.T")
            plan.probe.pending(1)
        return look_up(plan, position, **given)

    fill(server.url, "S", 10)
    monkeypatch.setattr(StreamPlan, "end", deleting)
    following = planner.latest(end, limited=True)
    assert following.streams["T"] == end.streams["T"]
    assert read(server.url, planner.ranges(end, following)) == {"S": list(range(11, 21))}
    # The task of T, which finds nothing, keeps its number.
    assert both(server).ranges(start, end) == [
        part if part.stream == "S" else replace(part, first=part.end, count=None)
        for part in planned
    ]
    again = both(server)
    again.prepare_available_now()
    assert left(server, again, end)[1] == {"S": list(range(11, 21))}


def test_a_stream_that_never_was(server: NatsServer, no_election: None) -> None:
    """A name that is misspelt is an error, whatever loss is accepted."""
    create(server.url, "S")
    fill(server.url, "S", 10)
    start = driver(server.url).initial()
    for wanted in (both(server).initial, lambda: both(server).latest(start, limited=True)):
        with pytest.raises(StreamNotFound, match="cannot read stream T"):
            wanted()


def test_a_stream_that_is_gone_or_created_again(server: NatsServer, no_election: None) -> None:
    create(server.url, "S")
    fill(server.url, "S", 10)
    [(start, end)] = run(driver(server.url))
    api(server.url, "STREAM.DELETE.S")
    with pytest.raises(StreamNotFound, match="cannot read stream S"):
        driver(server.url).latest(end, limited=True)
    create(server.url, "S")
    fill(server.url, "S", 15)
    with pytest.raises(DataLossError, match="stream S was deleted and created again"):
        driver(server.url).ranges(start, end)


@pytest.mark.parametrize(
    ("retention", "last", "after", "expected"),
    [
        ("interest", 6, None, None),
        ("interest", 6, (6, 2_000_000_000), None),
        ("interest", 6, (4, 2_000_000_000), (1, 5)),  # stored again after the loss of the tail
        ("interest", 4, None, (1, 5)),  # the tail is lost, and this is where to go on
        ("limits", 6, None, (1, 5)),
    ],
)
def test_the_time_of_a_skipped_message(
    retention: str, last: int, after: tuple[int, int] | None, expected: tuple[int, int] | None
) -> None:
    """A message that the server skipped is the last one of the position, and has a time before that
    of message 1.
    """

    class Probe:
        def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
            return (1, 5) if nanoseconds <= 5 else after

        def stored_at(self, sequence: int) -> None:
            return None

    nothing: Any = None
    kind = kind_of(SourceOptions.from_spark({"stream": "S"}, streaming=True))
    plan: Any = StreamPlan("S", kind, nothing, nothing)
    plan.known, plan.probe = (
        replace(STATE, retention=retention, first_seq=1, last_seq=last),
        Probe(),
    )
    assert plan.look_up(StreamPosition(6, STATE.created, 1), {}).later == expected
