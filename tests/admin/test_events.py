"""Events of the real server as they happen, and what becomes of a watch when the connection below
it breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest

from spark_jetstream.admin import Event, Gap, JetStreamAdmin, UnknownEvent, event_json, event_line
from spark_jetstream.admin.events import Events
from spark_jetstream.admin.models import events as models
from spark_jetstream.admin.subscription import Subscription, SubscriptionTimes
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.limits import MemoryLimits
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    OptionError,
    OutageError,
    PermissionDenied,
)
from spark_jetstream.protocol.units import Timestamp
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.conftest import Make
from tests.support.client import Raw, forks, in_child
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import wait_until

E = TypeVar("E", bound=Event)

SECONDS = 15.0  # for what comes within milliseconds
Start = Callable[..., NatsServer]
Listen = Callable[..., Subscription[Event]]
QUICK = {"connectTimeout": "3s", "requestTimeout": "3s"}

ACCOUNTS = """
jetstream: enabled
accounts {
  APP {
    jetstream: enabled
    users: [
      { user: app, password: p }
      { user: half, password: p, permissions: { subscribe: { allow: ["_INBOX.>", "$JS.EVENT.ADVISORY.>"] } } }
    ]
    exports: [{ stream: "$JS.EVENT.ADVISORY.>" }]
  }
  WATCH {
    users: [{ user: watch, password: p }]
    imports: [{ stream: { account: APP, subject: "$JS.EVENT.ADVISORY.>" }, to: "app.events.ADVISORY.>" }]
  }
}
no_auth_user: app
"""


SERVICE = """
system_account: SYS
accounts {
  SYS { users: [{ user: sys, password: p }] }
  APP {
    users: [{ user: app, password: p }]
    exports: [{ service: "req.a", accounts: [OTHER], latency: { sampling: 100, subject: "latency.a" } }]
  }
  OTHER { users: [{ user: other, password: p }], imports: [{ service: { account: APP, subject: "req.a" } }] }
}
"""


@pytest.fixture
def watch(admin: JetStreamAdmin) -> Iterator[Listen]:
    """A function that begins a watch; it ends with the test."""
    begun: list[Subscription[Event]] = []

    def begin(
        *wanted: str | type[Event], timeout: float | None = SECONDS, **given: object
    ) -> Subscription[Event]:
        begun.append(admin.events.watch(*wanted, timeout=timeout, **given))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def first(events: Subscription[Event], model: type[E]) -> E:
    """The next event of a type; others are passed over."""
    for event in events:
        assert not isinstance(event, Gap), event
        if isinstance(event, model):
            assert type(event) is model
            assert not event.model_extra, "the server sends a field that the model does not have"
            return event
    raise AssertionError(f"no {model.__name__} came")


def test_streams_and_consumers(admin: JetStreamAdmin, name: str, watch: Listen) -> None:
    stream = name
    events = watch(stream=stream)
    # The event may come after the reply: a watch that began then may have it or not.
    admin.streams.create(name=stream, subjects=[f"{stream}.>"])
    assert first(events, models.StreamAction).action == "create"
    admin.streams.update(stream, description="x")
    admin.consumers.create(stream, durable_name="c")
    admin.consumers.pause(stream, "c", "2100-01-01T00:00:00Z")
    admin.consumers.resume(stream, "c")
    admin.consumers.delete(stream, "c")
    admin.streams.delete(stream)
    changed = first(events, models.StreamAction)
    made = first(events, models.ConsumerAction)
    paused, resumed = (first(events, models.ConsumerPause) for _ in range(2))
    removed = first(events, models.ConsumerAction)
    deleted = first(events, models.StreamAction)
    assert (changed.stream, changed.action) == (stream, "modify")
    assert changed.published_on == f"$JS.EVENT.ADVISORY.STREAM.UPDATED.{stream}"
    assert (made.stream, made.consumer, made.action) == (stream, "c", "create")
    assert (paused.paused, paused.pause_until) == (True, "2100-01-01T00:00:00Z")
    assert (resumed.paused, resumed.pause_until.never) == (False, True)
    assert (removed.action, deleted.action) == ("delete", "delete")
    received = [changed, made, paused, resumed, removed, deleted]
    assert len({event.id for event in received}) == 6
    times = [event.timestamp.nanoseconds for event in received]
    assert times == sorted(times)


def test_requests_are_audited(admin: JetStreamAdmin, make_stream: Make, watch: Listen) -> None:
    stream = make_stream({})
    events = watch("api_audit")
    admin.streams.load(stream)
    # The event of a request before, such as that of the watch itself, may come after its reply.
    while (audit := first(events, models.ApiAudit)).subject != f"$JS.API.STREAM.INFO.{stream}":
        continue
    assert '"type":"io.nats.jetstream.api.v1.stream_info_response"' in audit.response
    client = audit.client
    assert client is not None
    assert (client.name, client.acc, client.kind, client.lang) == (
        "spark-jetstream",
        "$G",
        "Client",
        "python3",
    )
    assert not client.model_extra
    assert client.rtt > 0
    assert not client.start.never


def deliver(
    admin: JetStreamAdmin, publisher: Publisher, stream: str, acknowledgement: bytes
) -> int:
    """Store a message, take it from consumer ``c``, and answer it; its sequence."""
    (sequence,) = publisher.publish([Message(f"{stream.lower()}.a", b"x")])
    (found,) = admin.consumers.next(stream, "c", ack="none")
    publisher.request(found.reply, acknowledgement)
    return sequence


def test_acknowledgements(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make, watch: Listen
) -> None:
    stream = make_stream({})
    admin.consumers.create(
        stream, durable_name="c", ack_policy="explicit", sample_freq="100%", max_deliver=1
    )
    metrics, refusals = (
        watch(stream=stream, advisories=False),
        watch("nak", models.Terminated, stream=stream),
    )
    given_up = watch("max_deliver", consumer="c")
    sequence = deliver(admin, publisher, stream, b"+ACK")
    ack = first(metrics, models.ConsumerAck)
    assert (ack.metric, ack.stream, ack.consumer) == (True, stream, "c")
    assert (ack.stream_seq, ack.consumer_seq, ack.deliveries) == (sequence, 1, 1)
    assert 0 < ack.ack_time < 15_000_000_000
    sequence = deliver(admin, publisher, stream, b"+TERM cannot be read")
    ended = first(refusals, models.Terminated)
    assert (ended.stream_seq, ended.consumer_seq, ended.reason) == (sequence, 2, "cannot be read")
    assert refusals.subjects == tuple(
        f"$JS.EVENT.ADVISORY.CONSUMER.{what}.{stream}.*" for what in ("MSG_NAKED", "MSG_TERMINATED")
    )
    sequence = deliver(admin, publisher, stream, b"-NAK")
    refused = first(refusals, models.Nak)
    assert (refused.stream_seq, refused.consumer_seq, refused.deliveries) == (sequence, 3, 1)
    assert admin.consumers.next(stream, "c", timeout=0.1) == []
    last = first(given_up, models.MaxDeliver)
    assert (last.stream, last.consumer, last.stream_seq, last.deliveries) == (
        stream,
        "c",
        sequence,
        1,
    )


def test_a_client_is_pinned(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make, watch: Listen
) -> None:
    stream = make_stream({})
    config = {
        "priority_policy": "pinned_client",
        "priority_groups": ["g"],
        "ack_policy": "explicit",
    }
    admin.consumers.create(stream, config, durable_name="c")
    publisher.publish([Message(f"{stream.lower()}.a", b"x")])
    events = watch(consumer="c", metrics=False)
    admin.consumers.next(stream, "c", group="g")
    pinned = first(events, models.ConsumerPinned)
    assert (pinned.stream, pinned.group) == (stream, "g")
    assert pinned.pinned_id
    (group,) = admin.consumers.load(stream, "c").priority_groups
    assert group.pinned_client_id == pinned.pinned_id
    admin.consumers.unpin(stream, "c", "g")
    assert first(events, models.ConsumerUnpinned).reason == "admin"
    with pytest.raises(ApiError, match="unpin group h of consumer c") as caught:
        admin.consumers.unpin(stream, "c", "h")
    assert caught.value.err_code == 10160


def test_backups_and_restores(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make, watch: Listen, tmp_path: Path
) -> None:
    stream = make_stream({"storage": "file"})
    publisher.publish([Message(f"{stream.lower()}.a", b"x")] * 3)
    events = watch(
        models.SnapshotCreate,
        models.SnapshotComplete,
        "restore_create",
        "restore_complete",
        stream=stream,
    )
    admin.streams.backup(stream, tmp_path / "backup")
    begun = first(events, models.SnapshotCreate)
    assert (begun.state.messages, begun.state.last_seq) == (3, 3)
    assert begun.client is not None
    assert begun.client.name == "spark-jetstream"
    ended = first(events, models.SnapshotComplete)
    assert ended.start.nanoseconds < ended.end.nanoseconds
    assert ended.error == ""
    admin.streams.delete(stream)
    admin.streams.restore(tmp_path / "backup")
    restoring = first(events, models.RestoreCreate)
    assert restoring.client is not None
    restored = first(events, models.RestoreComplete)
    assert restored.bytes > 0
    assert restored.start.nanoseconds < restored.end.nanoseconds


def test_a_batch_is_abandoned(publisher: Publisher, make_stream: Make, watch: Listen) -> None:
    stream = make_stream({"allow_atomic": True})
    events = watch("stream_batch_abandoned", stream=stream)
    begin, skip = (
        Message(
            f"{stream.lower()}.a", b"x", [("Nats-Batch-Id", "b1"), ("Nats-Batch-Sequence", number)]
        )
        for number in ("1", "3")
    )
    with pytest.raises(Refused):
        publisher.pour(begin.frame(), 1, skip)
    abandoned = first(events, models.StreamBatchAbandoned)
    assert (abandoned.stream, abandoned.batch, abandoned.reason) == (stream, "b1", "incomplete")


def test_malformed_event_data_does_not_end_a_watch(
    publisher: Publisher, make_stream: Make, watch: Listen
) -> None:
    subject = "$JS.EVENT.ADVISORY.TEST.x"
    make_stream({"subjects": [subject]})
    events = watch("ADVISORY.TEST.>", count=3)
    good = b'{"type":"io.nats.jetstream.advisory.v9.new","id":"1","timestamp":"2026-03-01T12:00:00Z","depth":1}'
    publisher.publish(Message(subject, data) for data in (b"\xff no event", good, good[:-1]))
    no_event, new, broken = events
    assert isinstance(no_event, UnknownEvent)
    assert (no_event.data, no_event.subject) == (b"\xff no event", subject)
    assert not no_event.timestamp.never
    assert (type(new), new.model_extra) == (Event, {"depth": 1})
    assert isinstance(broken, UnknownEvent)
    assert list(events) == []
    assert events.gaps == 0


def test_wrong_usage(admin: JetStreamAdmin) -> None:
    for given, said in (
        ({"timeout": 0}, "timeout must be"),
        ({"count": 0}, "count must be"),
        ({"stream": "a.b"}, "stream "),
        ({"consumer": "*"}, "consumer "),
        ({"prefix": "a.>"}, "must be"),
    ):
        with pytest.raises(OptionError, match=said):
            admin.events.watch(**given)


@pytest.fixture(scope="module")
def accounts() -> Iterator[NatsServer]:
    """A server with an account whose advisories another one imports, and users who may not hear
    all.
    """
    with NatsServer(config=ACCOUNTS, http_monitor=True) as server:
        yield server


@pytest.fixture
def own(nats_server_factory: Start, no_connection_left: None) -> NatsServer:
    return nats_server_factory()


def as_user(server: NatsServer, user: str) -> JetStreamAdmin:
    return JetStreamAdmin(servers=server.url, user=user, password="p", **QUICK)


def publish_events(publisher: Publisher, count: int, size: int = 0) -> None:
    """As a server would, on ``$JS.EVENT.ADVISORY.TEST``; a stream that captures it must be there."""
    body = {"type": "test", "timestamp": "2026-03-01T12:00:00Z", "filler": "." * size}
    publisher.publish(
        Message("$JS.EVENT.ADVISORY.TEST", json.dumps({**body, "id": str(number)}).encode())
        for number in range(count)
    )


@pytest.fixture
def captured(make_stream: Make) -> None:
    """A stream on the shared server, for `publish_events`."""
    make_stream({"subjects": ["$JS.EVENT.ADVISORY.TEST"], "storage": "memory"})


# -- lost connections --


@pytest.mark.parametrize(
    "lose", [NatsServer.restart, lambda _: close_all()], ids=["cut", "given up"]
)
def test_a_lost_connection_is_a_gap_and_the_watch_goes_on(
    lose: Callable[[NatsServer], object], own: NatsServer
) -> None:
    with (
        JetStreamAdmin(servers=own.url, **QUICK) as admin,
        admin.events.watch("stream_action", timeout=60) as events,
    ):
        admin.streams.create(name="A", subjects=["a"])
        created = next(events)
        lose(own)
        lost, back = next(events), next(events)
        admin.streams.delete("A")
        deleted = next(events)
        assert (events.gaps, isinstance(created, models.StreamAction)) == (1, True)
    assert isinstance(deleted, models.StreamAction)
    assert (deleted.stream, deleted.action) == ("A", "delete")
    assert isinstance(lost, Gap)
    assert isinstance(back, Gap)
    assert (lost.until, lost.lost, lost.since) == (None, 0, back.since)
    assert back.until is not None
    assert created.timestamp.nanoseconds <= lost.since.nanoseconds <= back.until.nanoseconds
    assert back.until.nanoseconds <= deleted.timestamp.nanoseconds
    assert "was cut" in lost.reason
    assert event_line(lost).endswith(
        f"events may be missing since {str(lost.since)[:23]}Z: {lost.reason}"
    )
    assert f" to {str(back.until)[:23]}Z: " in event_line(back)
    said = event_json(lost)
    assert (said["type"], said["since"], "until" in said) == (
        "spark_jetstream.event.v1.gap",
        lost.since,
        False,
    )
    assert event_json(back)["until"] == back.until
    assert lost.id != back.id


def test_an_outage_ends_a_watch(own: NatsServer) -> None:
    """With a gap where the watch ends before the outage, and with an error where the outage lasts
    too long.
    """
    with JetStreamAdmin(servers=own.url, retryTimeout="500ms", **QUICK) as admin:
        short, endless = (
            admin.events.watch("stream_action", timeout=timeout) for timeout in (0.2, None)
        )
        own.stop()
        (gap,) = short
        assert isinstance(next(endless), Gap)
        with pytest.raises(OutageError, match=r"for 0\.5 s \(option retryTimeout\)"):
            next(endless)
        assert list(endless) == []
    assert isinstance(gap, Gap)
    assert (gap.until, short.gaps) == (None, 1)


@pytest.mark.parametrize("timeout", [None, 0.4])
def test_silence_is_told_from_a_server_that_hangs(own: NatsServer, timeout: float | None) -> None:
    """A watch asks the server for a sign of life at intervals and before it ends in silence."""
    with (
        JetStreamAdmin(servers=own.url, **QUICK) as admin,
        Events(admin._api, times=SubscriptionTimes(sign_of_life=1.0, quiet=0.2)).watch(
            "stream_action", timeout=timeout
        ) as events,
    ):
        began = Timestamp.of(events._since).nanoseconds
        own.pause()
        paused = time.time_ns()
        try:
            lost = next(events)
        finally:
            own.resume()
        assert isinstance(lost, Gap)
        assert "does not answer" in lost.reason
        assert began <= lost.since.nanoseconds <= paused <= lost.timestamp.nanoseconds
        if timeout is not None:
            assert list(events) == []
        else:
            # A busy server may need longer than it had before.
            events._times = SubscriptionTimes(sign_of_life=10.0, quiet=0.2)
            back = next(events)
            assert isinstance(back, Gap)
            admin.streams.create(name="A", subjects=["a"])
            assert isinstance(next(events), models.StreamAction)


@pytest.mark.usefixtures("captured")
def test_a_reader_that_is_too_slow_is_told_how_many_it_missed(
    admin: JetStreamAdmin, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect(admin.options), "limits", MemoryLimits(listener=6500))
    with admin.events.watch("ADVISORY.TEST", timeout=60) as events:
        publish_events(publisher, 20, size=900)
        # The stream may acknowledge the last one before the listener has it.
        wait_until(lambda: events._listener._missed == 15, "all have come")
        found = [next(events) for _ in range(6)]
        assert [each.id for each in found[:-1]] == ["0", "1", "2", "3", "4"]
        gap = found[-1]
        assert isinstance(gap, Gap)
        assert (gap.lost, gap.until) == (15, gap.since)
        assert "15 events were lost: this program takes messages more slowly" in event_line(gap)
        assert events.gaps == 1
        # There is room again.
        publish_events(publisher, 2)
        assert [next(events).id for _ in range(2)] == ["0", "1"]
        # A small message takes room as well: the contents of these alone would fit.
        publish_events(publisher, 60)
        connect(admin.options).check(5)
        gap = next(each for each in events if isinstance(each, Gap))
        assert gap.lost > 30


# -- the end of a watch --


def subscriptions(server: NatsServer) -> list[str]:
    """All subjects of events that clients of the server listen to."""
    found: dict[str, Any] = server.monitor("/connz?subs=1")
    return [
        each
        for one in found["connections"]
        for each in one.get("subscriptions_list", [])
        if "EVENT" in each
    ]


def gone(server: NatsServer) -> bool:
    return poll(
        lambda: not subscriptions(server) or None,
        60,
        lambda: TimeoutError(f"{subscriptions(server)}"),
    )


def test_each_end_of_a_watch_unsubscribes(nats_server: NatsServer, admin: JetStreamAdmin) -> None:
    assert gone(nats_server)
    with admin.events.watch() as events:
        assert sorted(subscriptions(nats_server)) == ["$JS.EVENT.ADVISORY.>", "$JS.EVENT.METRIC.>"]
    assert gone(nats_server)
    assert list(events) == []
    events.close()
    # After a number of events, or seconds.
    events = admin.events.watch("api_audit", count=2)
    admin.account.info()
    admin.account.info()
    admin.account.info()
    assert len(list(events)) == 2
    assert gone(nats_server)
    assert list(admin.events.watch("nak", stream="NOBODYS", timeout=0.1)) == []
    assert gone(nats_server)
    # Left in the middle of a loop.
    events = admin.events.watch("api_audit")
    admin.account.info()
    for event in events:
        assert isinstance(event, models.ApiAudit)
        break
    assert subscriptions(nats_server)
    del events
    gc.collect()
    assert gone(nats_server)


@pytest.mark.usefixtures("captured")
def test_a_watch_ends_after_the_events_that_arrived_in_time(
    admin: JetStreamAdmin, publisher: Publisher
) -> None:
    """The watch ends although each of its events leads to two more."""
    events = admin.events.watch("ADVISORY.TEST", timeout=3600)
    publish_events(publisher, 2)
    found = []
    for event in events:
        found.append(event.id)
        publish_events(publisher, 2)
        if len(found) == 6:
            wait_until(lambda: events._listener._waiting.qsize() == 8, "all have come")
            events._deadline = Deadline(0)
    assert found == ["0", "1"] * 7


def test_another_thread_ends_a_watch(admin: JetStreamAdmin) -> None:
    events = admin.events.watch("nak", stream="NOBODYS")
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(list, events)
        assert not work.done()
        events.close()
        assert work.result(60) == []


# -- watches after a fork --


@forks
def test_after_a_fork(admin: JetStreamAdmin) -> None:
    """A child has watches of its own; one of its parent's would hear nothing, and says so."""
    inherited = admin.events.watch("api_audit", timeout=60)

    def work() -> list[str]:
        with pytest.raises(JetStreamError, match="made before a fork"):
            next(inherited)
        inherited.close()
        with admin.events.watch("api_audit", count=1, timeout=60) as events:
            admin.account.info()
            return [each.kind for each in events]

    assert in_child(work) == ["api_audit"]
    # The parent's heard the child's request, and goes on.
    assert isinstance(next(inherited), models.ApiAudit)
    inherited.close()


# -- accounts and permissions --


def test_a_user_who_may_not_listen(accounts: NatsServer) -> None:
    with as_user(accounts, "half") as admin:
        with pytest.raises(
            PermissionDenied, match=r"may not subscribe to \$JS\.EVENT\.METRIC\.>"
        ) as denied:
            admin.events.watch()
        assert denied.value.subject == "$JS.EVENT.METRIC.>"
        assert gone(accounts)
        # Neither requests nor other watches of the connection suffer.
        with admin.events.watch(metrics=False, timeout=60) as events:
            admin.account.info()
            assert isinstance(next(events), models.ApiAudit)


def test_a_refused_watch_does_not_disturb_a_request_that_waits(accounts: NatsServer) -> None:
    with (
        as_user(accounts, "half") as admin,
        contextlib.closing(Raw(accounts.url)) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        service.hello()
        work = pool.submit(connect(admin.options).request, "slow", b"x", context="wait", timeout=60)
        while not (asked := service.file.readline()).startswith(b"MSG slow "):
            continue
        with pytest.raises(PermissionDenied):
            admin.events.watch(advisories=False)
        service.send(b"PUB %s 2\r\nok\r\n" % asked.split()[3])
        assert work.result(60) == b"ok"


def test_events_that_another_account_exports(accounts: NatsServer) -> None:
    with as_user(accounts, "watch") as watcher, as_user(accounts, "app") as app:
        with watcher.events.watch(
            "stream_action", stream="EXPORTED", prefix="app.events", count=1, timeout=60
        ) as events:
            app.streams.create(name="EXPORTED", subjects=["e"])
            (created,) = events
        app.streams.delete("EXPORTED")
    assert isinstance(created, models.StreamAction)
    assert created.published_on == "app.events.ADVISORY.STREAM.CREATED.EXPORTED"


# -- events of clusters and system accounts --


def test_leaders_are_elected(nats_cluster: NatsCluster) -> None:
    with JetStreamAdmin(servers=nats_cluster.url) as admin:
        with admin.events.watch(stream="LED", metrics=False, timeout=60) as events:
            admin.streams.create(name="LED", subjects=["led"], num_replicas=3)
            stream = first(events, models.StreamLeaderElected)
            admin.consumers.create("LED", durable_name="c", ack_policy="explicit")
            consumer = first(events, models.ConsumerLeaderElected)
        admin.streams.delete("LED")
    assert {replica.name for replica in stream.replicas} == {"test-0", "test-1", "test-2"}
    assert {stream.leader, consumer.leader} <= {replica.name for replica in consumer.replicas}
    assert not any(replica.model_extra for replica in stream.replicas)


def test_events_of_connections_and_services(nats_server_factory: Start) -> None:
    server = nats_server_factory(config=SERVICE)

    async def request() -> None:
        """A client of account OTHER asks a service of account APP, and leaves."""
        service, asking = [
            await nats.connect(server.url, user=user, password="p") for user in ("app", "other")
        ]

        async def answer(message: Any) -> None:
            await message.respond(b"")

        await service.subscribe("req.a", cb=answer)
        for _ in range(
            2
        ):  # nats-py sends a ping at once, and a subscription in the next turn of the loop
            await service.flush()
        await asking.request("req.a", timeout=10)
        await asking.close()
        await service.close()

    system = JetStreamAdmin(servers=server.url, user="sys", password="p").events
    kinds = (models.ClientConnect, models.ClientDisconnect, "account_connections")
    own = JetStreamAdmin(servers=server.url, user="app", password="p").events
    with (
        system.watch(*kinds, timeout=SECONDS) as connections,
        own.watch("latency.a", prefix="latency", timeout=SECONDS, count=1) as latency,
    ):
        asyncio.run(request())
        met: dict[type[Event], Any] = {}
        for event in connections:
            client = getattr(event, "client", None)
            if getattr(event, "acc", "") == "OTHER" or (
                client is not None and client.acc == "OTHER"
            ):
                met.setdefault(type(event), event)
            if len(met) == len(kinds):
                break
        (answered,) = latency
    assert met[models.ClientConnect].server.ver.startswith("2.")
    assert met[models.ClientDisconnect].reason == "Client Closed"
    assert (met[models.ClientDisconnect].received.msgs, met[models.AccountConnections].conns) == (
        1,
        1,
    )
    assert isinstance(answered, models.ServiceLatency)
    assert (answered.status, answered.requestor and answered.requestor.acc) == (200, "OTHER")
    assert answered.total > 0
