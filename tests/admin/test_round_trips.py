"""Replies that no request of the administration alone brings: the models know and keep every field of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jetstream import admin as models
from spark_jetstream.admin import ConsumerInfo, StoredMessage, StreamInfo
from spark_jetstream.errors import ProtocolError
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.configs import read
from tests.admin.conftest import Api, Make
from tests.support.client import Raw
from tests.support.publish import Message, Publisher


def answer(url: str, message: Message) -> bytes:
    """The content of what answers a message."""
    client = Raw(url)
    try:
        client.file.readline()
        client.send(b'CONNECT {"verbose":false,"headers":true}\r\nSUB answers 1\r\n' + message.frame("answers"))
        words = client.file.readline().split()
        return client.file.read(int(words[-1]))
    finally:
        client.close()


def test_a_direct_get_without_its_headers_is_refused() -> None:
    for block in (b"", b"NATS/1.0\r\nTag: a\r\n\r\n", b"NATS/1.0\r\nNats-Subject: a\r\nNats-Sequence: x\r\n\r\n"):
        with pytest.raises(ProtocolError, match="no usable headers"):
            StoredMessage.from_direct(block, b"")


def test_acknowledgements(make_stream: Make, nats_server: NatsServer) -> None:
    def ack(stream: str, *headers: tuple[str, str]) -> models.PubAck:
        message = Message(f"{stream.lower()}.a", headers=list(headers))
        return read(models.PubAck, json.loads(answer(nats_server.url, message)))

    plain = make_stream({})
    acks = [ack(plain, ("Nats-Msg-Id", "1")), ack(plain, ("Nats-Msg-Id", "1")), ack(plain)]
    assert [(each.stream, each.seq, each.duplicate) for each in acks] == [
        (plain, 1, False),
        (plain, 1, True),
        (plain, 2, False),
    ]
    assert ack(make_stream({"allow_msg_counter": True, "allow_direct": True}), ("Nats-Incr", "5")).val == "5"
    headers = [("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", "1"), ("Nats-Batch-Commit", "1")]
    batch = ack(make_stream({"allow_atomic": True}), *headers)
    assert (batch.batch, batch.count) == ("b", 1)


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
        cluster = read(ConsumerInfo, made).cluster
        assert cluster is not None
        assert len(cluster.replicas) == 2
        publisher.api("STREAM.UPDATE.R", info.config.body())
        assert publisher.api("STREAM.INFO.R")["config"] == before["config"]
        smaller = read(StreamInfo, publisher.api("STREAM.UPDATE.R", info.config.changed(num_replicas=1).body()))
        assert smaller.cluster is not None
        assert smaller.cluster.desired is not None
        assert smaller.cluster.desired.origin is not None
        assert smaller.cluster.desired.origin.replicas == 3

        def settled() -> StreamInfo | None:
            now: StreamInfo = read(StreamInfo, publisher.api("STREAM.INFO.R"))
            return now if now.cluster is not None and now.cluster.desired is None else None

        alone = poll(settled, 20, lambda: AssertionError("the stream still has its other replicas"))
        assert alone.cluster is not None
        assert alone.cluster.replicas == ()
        for name in ("M", "R"):
            publisher.api(f"STREAM.DELETE.{name}")
