"""What the server says, read and sent back, changes nothing; and the models know every field of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import pytest

from spark_jetstream import admin as models
from spark_jetstream.admin import (
    ConsumerConfig,
    ConsumerInfo,
    JetStreamAdmin,
    Model,
    StoredMessage,
    StreamConfig,
    StreamInfo,
    differences,
    update_body,
)
from spark_jetstream.admin.descriptions import yaml_documents, yaml_text
from spark_jetstream.errors import ProtocolError
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.configs import CONSUMERS, ORIGIN, STREAMS, unknown
from tests.admin.conftest import Api, Make
from tests.support.client import Raw
from tests.support.publish import Message, Publisher, Refused


def still(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a STREAM.INFO or CONSUMER.INFO says but for what changes by itself."""
    rest = {name: value for name, value in info.items() if name not in ("ts", "pause_remaining", "mirror", "sources")}
    # The server keeps sources in a map.
    copies = [*([info["mirror"]] if "mirror" in info else []), *info.get("sources", ())]
    return {**rest, "copies": sorted(str({**copy, "active": None, "lag": None, "seq": None}) for copy in copies)}


def read(model: type[Model], said: dict[str, Any]) -> Any:
    """The model of a reply, which knows and keeps every field of it."""
    reply = model.from_server(said)
    assert list(unknown(reply)) == []
    assert reply.model_dump(mode="json", exclude_unset=True) == said
    return reply


@pytest.mark.parametrize("kind", STREAMS)
def test_every_kind_of_stream_is_made_described_and_sent_back_as_it_is(
    kind: str, admin: JetStreamAdmin, api: Api, new_stream: Callable[[], str]
) -> None:
    name = new_stream()
    subjects = {} if "mirror" in STREAMS[kind] else {"subjects": [f"{name.lower()}.>"]}
    config = {**subjects, **STREAMS[kind], "name": name}
    made = admin.streams.create(config)
    before = api(f"STREAM.INFO.{name}")
    info = read(StreamInfo, before)
    assert info.config.faults() == []
    wanted = StreamConfig.parse(config, "the stream")
    assert differences(wanted, made.config) == differences(wanted, info.config) == []
    assert admin.streams.load_or_create(config).created == made.created
    described = admin.describe(name)
    assert described["name"] == name
    for copy in (json.loads(json.dumps(described)), *yaml_documents(yaml_text(described), "test")):
        assert copy == described
    for wanted_again in (described, json.loads(json.dumps(admin.describe(name, readable=False)))):
        assert not admin.plan(wanted_again).changes
    # What is the default, and what the server adds, is left out.
    assert not {"max_consumers", "consumers"} & (described.keys() - STREAMS[kind].keys())
    assert not [key for key in described.get("metadata", {}) if key.startswith("_nats.")]
    api(f"STREAM.UPDATE.{name}", info.config.body())
    assert still(api(f"STREAM.INFO.{name}")) == still(before)
    api(f"STREAM.UPDATE.{name}", update_body(wanted, info.config))
    assert differences(info.config, StreamInfo.from_server(api(f"STREAM.INFO.{name}")).config) == []


@pytest.mark.parametrize("kind", CONSUMERS)
def test_every_kind_of_consumer_is_made_described_and_sent_back_as_it_is(
    kind: str, admin: JetStreamAdmin, api: Api, make_stream: Make, update_consumer: Api
) -> None:
    stream = make_stream({"subjects": ["c.>"]})
    config = {"durable_name": "kind", **CONSUMERS[kind], "name": "kind"}
    wanted = ConsumerConfig.parse(config, "the consumer")
    made = admin.consumers.create(stream, wanted)
    before = api(f"CONSUMER.INFO.{stream}.kind")
    info = read(ConsumerInfo, before)
    assert info.config.faults() == []
    assert differences(wanted, made.config) == differences(wanted, info.config) == []
    assert admin.consumers.load_or_create(stream, wanted).created == made.created
    described = admin.describe(stream)
    assert [each["durable_name"] for each in described.get("consumers", [])] == (
        ["kind"] if config["durable_name"] else []
    )
    assert yaml_documents(yaml_text(described), "test") == [described]
    for wanted_again in (described, json.loads(json.dumps(admin.describe(stream, readable=False)))):
        assert not admin.plan(wanted_again).changes
    update_consumer(f"{stream}.kind", info.config.body())
    assert still(api(f"CONSUMER.INFO.{stream}.kind")) == still(before)
    update_consumer(f"{stream}.kind", update_body(wanted, info.config))
    assert differences(info.config, ConsumerInfo.from_server(api(f"CONSUMER.INFO.{stream}.kind")).config) == []


# -- fields --


def fields(model: type[Model], prefix: str = "") -> Iterator[str]:
    """The dotted names of all fields of a model and of its parts."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Model):
                yield from fields(kind, f"{prefix}{name}.")


def paths(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of all that a configuration sets."""
    for part in config if isinstance(config, list) else [config]:
        for name, value in part.items() if isinstance(part, dict) else ():
            yield f"{prefix}{name}"
            yield from paths(value, f"{prefix}{name}.")


def test_every_field_was_set_in_some_round_trip() -> None:
    """The server refuses fields that it does not know, so it knows all of them."""
    tried = {field for config in STREAMS.values() for field in paths(config)}
    tried |= {field.replace("sources.", "mirror.", 1) for field in tried}
    assert {*fields(StreamConfig)} - tried == {"sealed", "placement.preferred"}
    tried = {field for config in CONSUMERS.values() for field in paths(config)}
    assert {*fields(ConsumerConfig)} - tried == {"name", "direct", "sourcing"}


@pytest.mark.parametrize("body", [{"misspelt": None}, {"mirror": {"misspelt": None}}])
def test_the_server_refuses_fields_that_it_does_not_know(body: dict[str, Any], api: Api) -> None:
    with pytest.raises(Refused, match="unknown field") as caught:
        api("STREAM.CREATE.NEVER", {**body, "name": "NEVER"})
    assert caught.value.err_code == 10025


# -- replies --


def answer(url: str, message: Message) -> tuple[bytes, bytes]:
    """The header block and the content of what answers a message."""
    client = Raw(url)
    try:
        client.file.readline()
        client.send(b'CONNECT {"verbose":false,"headers":true}\r\nSUB answers 1\r\n' + message.frame("answers"))
        words = client.file.readline().split()
        whole = client.file.read(int(words[-1]))
        head = int(words[-2]) if words[0] == b"HMSG" else 0
        return whole[:head], whole[head:]
    finally:
        client.close()


def test_messages(api: Api, make_stream: Make, nats_server: NatsServer) -> None:
    name = make_stream({"allow_direct": True})
    url, subject = nats_server.url, f"{name.lower()}.a"
    own = {"Nats-Msg-Id": ["1"], "Tag": ["one", "two"], "Nats-Sequence": ["mine"], "Nats-Num-Pending": ["mine"]}
    headers = [(name, value) for name, values in own.items() for value in values]
    stored = Message(subject, b"\x00\xff", headers)
    acks = [
        read(models.PubAck, json.loads(answer(url, message)[1])) for message in (stored, stored, Message(subject, b"a"))
    ]
    assert [(ack.stream, ack.seq, ack.duplicate) for ack in acks] == [
        (name, 1, False),
        (name, 1, True),
        (name, 2, False),
    ]
    first, second = (read(models.MessageReply, api(f"STREAM.MSG.GET.{name}", {"seq": seq})).message for seq in (1, 2))
    assert (first.subject, first.seq, first.data, first.hdrs) == (subject, 1, b"\x00\xff", stored.head)
    assert first.headers == own
    assert (second.data, second.hdrs, second.headers) == (b"a", b"", {})
    for found in (first, second):
        for batch in ({}, {"batch": 1}):
            request = Message(f"$JS.API.DIRECT.GET.{name}", json.dumps({"seq": found.seq, **batch}).encode())
            direct = StoredMessage.from_direct(*answer(url, request))
            assert direct == found.changed(stream=name)
    assert read(models.DoneReply, api(f"STREAM.MSG.DELETE.{name}", {"seq": 1})).success
    assert read(models.PurgeReply, api(f"STREAM.PURGE.{name}", models.PurgeRequest(filter=subject).body())).purged == 1


def test_a_direct_get_without_its_headers_is_refused() -> None:
    for block in (b"", b"NATS/1.0\r\nTag: a\r\n\r\n", b"NATS/1.0\r\nNats-Subject: a\r\nNats-Sequence: x\r\n\r\n"):
        with pytest.raises(ProtocolError, match="no usable headers"):
            StoredMessage.from_direct(block, b"")


def test_a_counter_and_a_batch(make_stream: Make, nats_server: NatsServer) -> None:
    counter = make_stream({"allow_msg_counter": True, "allow_direct": True})
    ack = answer(nats_server.url, Message(f"{counter.lower()}.a", headers=[("Nats-Incr", "5")]))[1]
    assert read(models.PubAck, json.loads(ack)).val == "5"
    batch = make_stream({"allow_atomic": True})
    headers = [("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", "1"), ("Nats-Batch-Commit", "1")]
    ack = answer(nats_server.url, Message(f"{batch.lower()}.a", headers=headers))[1]
    found = read(models.PubAck, json.loads(ack))
    assert (found.batch, found.count) == ("b", 1)


def test_the_state_of_a_stream_in_detail(api: Api, make_stream: Make, publisher: Publisher) -> None:
    name = make_stream({})
    publisher.publish(Message(f"{name.lower()}.{end}") for end in "abca")
    api(f"STREAM.MSG.DELETE.{name}", {"seq": 2})
    body = api(f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})
    info = read(StreamInfo, body)
    assert (info.total, info.state.deleted, info.state.num_subjects) == (2, (2,), 2)
    assert info.state.subjects == {f"{name.lower()}.a": 2, f"{name.lower()}.c": 1}
    assert info.state.first_ts.nanoseconds < info.state.last_ts.nanoseconds < info.ts.nanoseconds


def test_copies_that_get_nowhere(api: Api, make_stream: Make) -> None:
    sources = [{"name": ORIGIN}, {"name": "AWAY", "external": {"api": "$JS.away.API"}, "filter_subject": "away"}]
    info = read(StreamInfo, api(f"STREAM.INFO.{make_stream({'subjects': [], 'sources': sources})}"))
    assert {each.name for each in info.sources} == {ORIGIN, "AWAY"}
    assert {each.external.api for each in info.sources if each.external} == {"$JS.away.API"}
    mirror = read(StreamInfo, api(f"STREAM.INFO.{make_stream({'mirror': {'name': 'AWAY'}})}")).mirror
    assert (mirror.name, mirror.lag, mirror.active) == ("AWAY", 0, -1)


def test_lists_and_the_account(api: Api, make_consumer: Make) -> None:
    consumer = make_consumer({"ack_policy": "explicit"})
    stream, _, name = consumer.partition(".")
    names, streams = read(models.StreamNamesPage, api("STREAM.NAMES")), read(models.StreamPage, api("STREAM.LIST"))
    assert stream in names.streams
    assert {each.config.name for each in streams.streams} == set(names.streams)
    assert names.total == len(names.streams) == streams.total
    assert read(models.ConsumerNamesPage, api(f"CONSUMER.NAMES.{stream}")).consumers == (name,)
    assert [each.name for each in read(models.ConsumerPage, api(f"CONSUMER.LIST.{stream}")).consumers] == [name]
    account = read(models.AccountInfo, api("INFO"))
    assert account.streams == names.total
    assert account.api.level >= 5
    assert account.limits.max_streams == -1


def test_pausing_and_setting_back(api: Api, make_consumer: Make) -> None:
    consumer = make_consumer({"ack_policy": "explicit"})
    until = "2036-03-01T12:00:00.123456789Z"
    paused = read(models.PauseReply, api(f"CONSUMER.PAUSE.{consumer}", {"pause_until": until}))
    assert (paused.paused, paused.pause_until) == (True, until)
    info = read(ConsumerInfo, api(f"CONSUMER.INFO.{consumer}"))
    assert info.paused
    assert info.pause_remaining > 0
    resumed = read(models.PauseReply, api(f"CONSUMER.PAUSE.{consumer}", {}))
    assert (resumed.paused, resumed.pause_until.never) == (False, True)
    assert read(models.ResetReply, api(f"CONSUMER.RESET.{consumer}", {})).reset_seq == 1
    assert read(models.DoneReply, api(f"CONSUMER.DELETE.{consumer}")).success


def test_a_pinned_client(api: Api, make_consumer: Make, nats_server: NatsServer, publisher: Publisher) -> None:
    consumer = make_consumer({"priority_policy": "pinned_client", "priority_groups": ["one"], "ack_policy": "explicit"})
    publisher.publish([Message(f"{consumer.partition('.')[2]}.a")])
    pull = Message(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", b'{"batch":1,"group":"one","expires":5000000000}')
    head, _ = answer(nats_server.url, pull)
    info = read(ConsumerInfo, api(f"CONSUMER.INFO.{consumer}"))
    [group] = info.priority_groups
    assert group.pinned_client_id.encode() in head
    assert not group.pinned_ts.never
    assert (info.num_ack_pending, info.lag, info.delivered.stream_seq) == (1, 1, 1)
    assert info.delivered.last_active is not None


def test_a_backup_begins(api: Api, make_stream: Make) -> None:
    name = make_stream({})
    given = {"deliver_subject": "b", "no_consumers": True, "chunk_size": "1k", "window_size": "2k", "jsck": True}
    request = models.SnapshotConfig.parse(given, "the backup")
    reply = read(models.SnapshotReply, api(f"STREAM.SNAPSHOT.{name}", request.body()))
    assert reply.config.name == name
    assert reply.config.own_metadata == {}
    sent = {
        "config": {**reply.config.body(), "name": "RESTORED", "subjects": ["restored"]},
        "state": reply.state.body(),
    }
    restore = read(models.RestoreReply, api("STREAM.RESTORE.RESTORED", sent))
    assert restore.deliver_subject.startswith("$JS.SNAPSHOT.RESTORE.RESTORED.")


def test_a_domain_without_streams(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory(config="jetstream { domain: hub }")
    with Publisher(server.url) as publisher:
        assert read(models.AccountInfo, publisher.api("INFO")).domain == "hub"
        none = publisher.api("STREAM.NAMES")
        assert none["streams"] is None
        assert models.StreamNamesPage.from_server(none).streams == ()
        publisher.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        assert read(StreamInfo, publisher.api("STREAM.INFO.S")).domain == "hub"
        assert read(models.PubAck, json.loads(publisher.request("s"))).domain == "hub"


def test_copies_that_are_complete(api: Api, make_stream: Make, publisher: Publisher) -> None:
    origin = make_stream({})
    publisher.publish(Message(f"{origin.lower()}.a") for _ in range(3))
    copies = {"sources": [{"name": origin}], "subjects": []}, {"mirror": {"name": origin}}
    for name in [make_stream(copy) for copy in copies]:

        def complete(name: str = name) -> StreamInfo | None:
            info: StreamInfo = read(StreamInfo, api(f"STREAM.INFO.{name}"))
            return info if info.state.messages == 3 else None

        info = poll(complete, 20, lambda: AssertionError("nothing was copied"))
        [copied] = [info.mirror] if info.mirror else info.sources
        assert (copied.name, copied.lag, copied.error) == (origin, 0, None)
        assert copied.seq == (3 if info.sources else 0)  # mirrors have the sequences of their origin anyway


def test_an_error(nats_server: NatsServer, api: Api) -> None:
    reply = json.loads(answer(nats_server.url, Message("$JS.API.STREAM.INFO.NOWHERE"))[1])
    error = read(models.ApiErrorBody, reply["error"])
    assert (error.code, error.err_code, error.description) == (404, 10059, "stream not found")


@pytest.mark.full
def test_a_cluster(nats_cluster: NatsCluster) -> None:
    with Publisher(nats_cluster.servers[0].url) as publisher:
        publisher.api("STREAM.CREATE.R", {"name": "R", "subjects": ["r"], "num_replicas": 3})
        made = publisher.api("CONSUMER.CREATE.R.c", {"stream_name": "R", "config": {"durable_name": "c"}})
        publisher.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "R"}})

        def looked_at() -> dict[str, Any] | None:
            """What the server says once it has heard of the mirror."""
            body = publisher.api("STREAM.INFO.R")
            return body if "alternates" in body else None

        before = poll(looked_at, 20, lambda: AssertionError("the stream has no alternates"))
        info = read(StreamInfo, before)
        assert info.cluster is not None
        assert info.cluster.leader
        assert len(info.cluster.replicas) == 2
        assert {each.name for each in info.alternates} == {"R", "M"}
        assert len(read(ConsumerInfo, made).cluster.replicas) == 2
        publisher.api("STREAM.UPDATE.R", info.config.body())
        assert publisher.api("STREAM.INFO.R")["config"] == before["config"]
        smaller = read(StreamInfo, publisher.api("STREAM.UPDATE.R", info.config.changed(num_replicas=1).body()))
        assert smaller.cluster.desired is not None
        assert smaller.cluster.desired.origin.replicas == 3

        def settled() -> StreamInfo | None:
            now: StreamInfo = read(StreamInfo, publisher.api("STREAM.INFO.R"))
            return now if now.cluster is not None and now.cluster.desired is None else None

        alone = poll(settled, 20, lambda: AssertionError("the stream still has its other replicas"))
        assert alone.cluster is not None
        assert alone.cluster.replicas == ()
        for name in ("M", "R"):
            publisher.api(f"STREAM.DELETE.{name}")
