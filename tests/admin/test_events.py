"""Events of the real server, as they happen: every kind that a single server can be brought to tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from spark_jetstream.admin import Event, Gap, JetStreamAdmin, UnknownEvent, stored_event
from spark_jetstream.admin.events import Watch
from spark_jetstream.admin.models import events as models
from spark_jetstream.errors import OptionError
from spark_jetstream.testing.process import poll
from tests.admin.conftest import Make
from tests.support.publish import Message, Publisher, Refused

E = TypeVar("E", bound=Event)

SECONDS = 15.0  # for what comes within milliseconds


@pytest.fixture
def watch(admin: JetStreamAdmin) -> Iterator[Callable[..., Watch]]:
    """A function that begins a watch; it ends with the test."""
    begun: list[Watch] = []

    def begin(*wanted: str | type[Event], timeout: float | None = SECONDS, **given: object) -> Watch:
        begun.append(admin.events.watch(*wanted, timeout=timeout, **given))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def first(events: Watch, model: type[E]) -> E:
    """The next event of a type; others are passed over."""
    for event in events:
        assert not isinstance(event, Gap), event
        if isinstance(event, model):
            assert type(event) is model
            assert not event.model_extra, "the server sends a field that the model does not have"
            return event
    raise AssertionError(f"no {model.__name__} came")


def test_streams_and_consumers(admin: JetStreamAdmin, make_stream: Make, watch: Callable[..., Watch]) -> None:
    stream = make_stream({})
    events = watch(stream=stream)
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
    # It can be made again, for the fixture to delete.
    admin.streams.create(name=stream, subjects=[f"{stream}.>"])
    assert first(events, models.StreamAction).action == "create"


def test_requests_are_audited(admin: JetStreamAdmin, make_stream: Make, watch: Callable[..., Watch]) -> None:
    stream = make_stream({})
    events = watch("api_audit")
    admin.streams.load(stream)
    audit = first(events, models.ApiAudit)
    assert audit.subject == f"$JS.API.STREAM.INFO.{stream}"
    assert '"type":"io.nats.jetstream.api.v1.stream_info_response"' in audit.response
    client = audit.client
    assert client is not None
    assert (client.name, client.acc, client.kind, client.lang) == ("spark-jetstream", "$G", "Client", "python3")
    assert not client.model_extra
    assert client.rtt > 0
    assert not client.start.never


def deliver(admin: JetStreamAdmin, publisher: Publisher, stream: str, acknowledgement: bytes) -> int:
    """Store a message, take it from consumer ``c``, and answer it; its sequence."""
    (sequence,) = publisher.publish([Message(f"{stream.lower()}.a", b"x")])
    (found,) = admin.consumers.next(stream, "c", ack="none")
    publisher.request(found.reply, acknowledgement)
    return sequence


def test_acknowledgements(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make, watch: Callable[..., Watch]
) -> None:
    stream = make_stream({})
    admin.consumers.create(stream, durable_name="c", ack_policy="explicit", sample_freq="100%", max_deliver=1)
    metrics, refusals = watch(stream=stream, advisories=False), watch("nak", models.Terminated, stream=stream)
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
    assert (last.stream, last.consumer, last.stream_seq, last.deliveries) == (stream, "c", sequence, 1)


def test_a_client_is_pinned(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make, watch: Callable[..., Watch]
) -> None:
    stream = make_stream({})
    config = {"priority_policy": "pinned_client", "priority_groups": ["g"], "ack_policy": "explicit"}
    admin.consumers.create(stream, config, durable_name="c")
    publisher.publish([Message(f"{stream.lower()}.a", b"x")])
    events = watch(consumer="c", metrics=False)
    admin.consumers.next(stream, "c", group="g")
    pinned = first(events, models.ConsumerPinned)
    assert (pinned.stream, pinned.group) == (stream, "g")
    assert pinned.pinned_id
    admin.consumers.unpin(stream, "c", "g")
    assert first(events, models.ConsumerUnpinned).reason == "admin"


def test_backups_and_restores(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make, watch: Callable[..., Watch], tmp_path: Path
) -> None:
    stream = make_stream({"storage": "file"})
    publisher.publish([Message(f"{stream.lower()}.a", b"x")] * 3)
    events = watch(models.SnapshotCreate, models.SnapshotComplete, "restore_create", "restore_complete", stream=stream)
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


def test_a_batch_is_abandoned(publisher: Publisher, make_stream: Make, watch: Callable[..., Watch]) -> None:
    stream = make_stream({"allow_atomic": True})
    events = watch("stream_batch_abandoned", stream=stream)
    begin, skip = (
        Message(f"{stream.lower()}.a", b"x", [("Nats-Batch-Id", "b1"), ("Nats-Batch-Sequence", number)])
        for number in ("1", "3")
    )
    with pytest.raises(Refused):
        publisher.pour(begin.frame(), 1, skip)
    abandoned = first(events, models.StreamBatchAbandoned)
    assert (abandoned.stream, abandoned.batch, abandoned.reason) == (stream, "b1", "incomplete")


def test_what_is_no_event_does_not_end_a_watch(
    publisher: Publisher, make_stream: Make, watch: Callable[..., Watch]
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


def test_events_that_a_stream_captures(admin: JetStreamAdmin, make_stream: Make, watch: Callable[..., Watch]) -> None:
    captured = make_stream({"subjects": ["$JS.EVENT.ADVISORY.STREAM.*.CAP"]})
    events = watch("stream_action", stream="CAP")
    admin.streams.create(name="CAP", subjects=["cap"])
    admin.streams.delete("CAP")
    heard = [first(events, models.StreamAction) for _ in range(2)]
    poll(lambda: admin.streams.load(captured).state.messages == 2 or None, SECONDS, TimeoutError)
    stored = [stored_event(each) for each in admin.messages.read(captured)]
    assert stored == heard


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
    with pytest.raises(OptionError, match="did you mean stream_action"):
        admin.events.watch("stream_actions")
