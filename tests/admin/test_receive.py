"""Push consumers received: flow control, heartbeats, deliveries that are missing, queue groups,
restarts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest

from spark_jetstream.admin import (
    DEFAULT_CONSUMER,
    DeliveredMessage,
    JetStreamAdmin,
    parse_ack,
)
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.admin.deliveries import DeliveryTimes
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.subscription import Subscribed
from spark_jetstream.errors import ConsumerNotFound, DataLossError, JetStreamError, OptionError
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.testing import NatsServer
from tests.admin.conftest import Fill
from tests.support.client import Raw
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until


@pytest.fixture
def stream(admin: JetStreamAdmin, name: str) -> str:
    """A stream that takes ``NAME.*``."""
    admin.streams.create(name=name, subjects=[f"{name}.*"])
    return name


def sequences(messages: Iterator[DeliveredMessage], count: int) -> list[int]:
    return [message.message.seq for message in islice(messages, count)]


@pytest.mark.parametrize("flags", ["", "feature_flags { js_ack_fc_v2: true }"], ids=["v1", "v2"])
def test_flow_control_is_answered(
    flags: str, nats_server_factory: Callable[..., NatsServer]
) -> None:
    """The server stops in front of 2 MiB that nobody has said to have, and 4 MiB come."""
    server = nats_server_factory(config=flags)
    with Publisher(server.url) as publisher, JetStreamAdmin(servers=server.url) as admin:
        admin.streams.create("S", subjects="s", storage="memory")
        publisher.publish([Message("s", b"x" * 10_000)] * 400)
        admin.consumers.create(
            "S", "c", ack_policy="explicit", max_ack_pending=-1,
            deliver_subject="d", flow_control=True, idle_heartbeat="1s",
        )  # fmt: skip
        messages = list(islice(admin.consumers.receive("S", "c", timeout=10), 400))
        assert [message.message.seq for message in messages] == list(range(1, 401))
        assert bool(parse_ack(messages[0].reply).account) == bool(flags)
        admin.consumers.ack(messages[0])
        admin.consumers.nak(messages[1], delay=3600)
        assert admin.consumers.load("S", "c").ack_floor.stream_seq == 1


def test_receiving_outlives_a_restart(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url) as admin:
        admin.streams.create("S", subjects="s")
        admin.consumers.create(
            "S", "c", DEFAULT_CONSUMER, deliver_subject="d", max_ack_pending=2, ack_wait="500ms"
        )
        for number in range(4):
            admin.publish("s", str(number))
        messages = admin.consumers.receive("S", "c")
        first = next(messages)
        assert (first.message.data, first.message.stream, first.consumer, first.deliveries) == (
            b"0",
            "S",
            "c",
            1,
        )
        admin.consumers.ack(first)
        server.stop()
        server.start()
        settled = {b"0"}  # which comes again too, if its acknowledgement took longer than ack_wait
        while len(settled) < 4:  # what was on its way comes again
            message = next(messages)
            admin.consumers.ack(message)
            settled.add(message.message.data)
        assert settled == {b"0", b"1", b"2", b"3"}
        messages.close()
        wait_until(lambda: not admin.consumers.load("S", "c").push_bound, "it has unsubscribed")


def test_the_end_of_a_consumer(admin: JetStreamAdmin, stream: str, fill: Fill) -> None:
    fill(stream, 2, 2)
    admin.consumers.create(stream, "c", deliver_subject="d.c", idle_heartbeat="500ms")
    messages = admin.consumers.receive(stream, "c")
    assert sequences(messages, 2) == [1, 2]
    admin.consumers.delete(stream, "c")
    with pytest.raises(ConsumerNotFound):
        next(messages)
    admin.consumers.create(stream, "c", deliver_subject="d.c")
    assert sequences(admin.consumers.receive(stream, "c", timeout=3), 9) == [1, 2]


@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
@pytest.mark.parametrize("shows", ["a heartbeat", "a message"])
def test_deliveries_that_are_missing(
    shows: str, ack_policy: str, admin: JetStreamAdmin, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer makes them again until they are acknowledged; without acknowledgements they are
    lost for good.
    """
    fields: dict[str, Any] = {"ack_policy": ack_policy, "deliver_subject": f"d.{stream}"}
    fields |= {"idle_heartbeat": "500ms"} if shows == "a heartbeat" else {}
    fields |= {"ack_wait": "500ms"} if ack_policy == "explicit" else {}
    admin.consumers.create(stream, "c", **fields)
    messages = admin.consumers.receive(stream, "c", timeout=60)
    admin.publish(f"{stream}.a", "")
    first = next(messages)
    if ack_policy == "explicit":
        admin.consumers.ack(first)
    dropped = threading.Event()
    with monkeypatch.context() as swallowed:
        swallowed.setattr(
            Subscribed,
            "put",
            lambda _, event: (
                dropped.set() if isinstance(event, Frames) and (event.head == 0).any() else None
            ),
        )
        admin.publish(f"{stream}.a", "")
        assert dropped.wait(60)
    if shows == "a message":
        admin.publish(f"{stream}.a", "")
    if ack_policy == "explicit":
        expected = {2} if shows == "a heartbeat" else {2, 3}
        seen: set[int] = set()
        while (
            not expected <= seen
        ):  # the first may come again: its acknowledgement may take longer than ack_wait
            seen.add(next(messages).message.seq)
    else:
        with pytest.raises(
            DataLossError,
            match=f"deliveries 2 to 2 of a consumer of stream {stream} were lost on the",
        ):
            next(messages)


def test_a_delivery_during_the_check_of_the_connection_is_received_once(
    admin: JetStreamAdmin, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver misses a heartbeat and asks the server; the delivery arrives before the
    reply.
    """
    admin.consumers.create(
        stream, "c", ack_policy="none", deliver_subject=f"d.{stream}", idle_heartbeat="100ms"
    )
    put, check, came = Subscribed.put, Connection.check, threading.Event()

    def put_deliveries(inbox: Subscribed, event: Any) -> None:
        deliveries = np.flatnonzero(event.head == 0)  # a heartbeat may come in the same read
        if len(deliveries):
            put(inbox, event[deliveries])
            came.set()

    def publish_and_check(connection: Connection, *given: Any) -> None:
        if not came.is_set():
            admin.publish(f"{stream}.a", "")
            assert came.wait(60)
        check(connection, *given)

    monkeypatch.setattr(Subscribed, "put", put_deliveries)
    monkeypatch.setattr(Connection, "check", publish_and_check)
    assert sequences(admin.consumers.receive(stream, "c", timeout=20), 1) == [1]


def test_messages_that_others_publish_to_the_deliver_subject_are_ignored(
    nats_server: NatsServer, admin: JetStreamAdmin, stream: str, fill: Fill
) -> None:
    """The receiver takes them for no delivery and no status, and answers only the server."""
    subject = f"d.{stream}"
    admin.consumers.create(stream, "c", deliver_subject=subject)
    messages = admin.consumers.receive(stream, "c")
    fill(stream, 1, 1)
    assert next(messages).message.seq == 1
    other = Raw(nats_server.url)
    other.hello("answered")
    request = Message(subject, block=b"NATS/1.0 100 FlowControl Request\r\n\r\n").frame("answered")
    plain, headed = (
        Message(subject, b"x").frame(),
        Message(subject, b"", [("A", "1")]).frame("reply.to"),
    )
    other.send(
        plain
        + headed
        + Message(subject, block=b"NATS/1.0 503\r\n\r\n").frame()
        + request
        + b"PING\r\n"
    )
    assert other.file.readline() == b"PONG\r\n"
    fill(stream, 1, 1)
    assert next(messages).message.seq == 2
    other.send(b"PING\r\n")
    assert other.file.readline() == b"PONG\r\n"
    other.close()


def test_clients_of_a_group_share_the_messages(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory(http_monitor=True)
    with (
        JetStreamAdmin(servers=server.url) as admin,
        Publisher(server.url) as publisher,
        ThreadPoolExecutor(2) as threads,
    ):
        admin.streams.create("S", subjects="s")
        admin.consumers.create(
            "S", "c", deliver_subject="d", deliver_group="g", idle_heartbeat="100ms"
        )

        def share() -> list[int]:
            messages = admin.consumers.receive("S", "c")
            return [
                each.message.seq
                for each in takewhile(lambda each: each.message.data != b"stop", messages)
            ]

        def members() -> int:
            listed: list[dict[str, Any]] = server.monitor("/connz?subs=detail")["connections"]
            subscriptions = [
                each for one in listed for each in one.get("subscriptions_list_detail", [])
            ]
            return sum(
                (each["subject"], each.get("qgroup")) == ("d", "g") for each in subscriptions
            )

        def stopped() -> bool:
            publisher.publish([Message("s", b"stop")])  # the server chooses a member
            return all(each.done() for each in shares)

        shares = [threads.submit(share) for _ in "ab"]
        wait_until(lambda: members() == 2, "both have subscribed")
        publisher.publish([Message("s")] * 50)
        wait_until(stopped, "both have stopped")
        assert sorted([*shares[0].result(), *shares[1].result()]) == list(range(1, 51))


def test_a_consumer_that_delivers_elsewhere_is_followed(admin: JetStreamAdmin, stream: str) -> None:
    admin.consumers.create(stream, "c", DEFAULT_CONSUMER, deliver_subject=f"d.{stream}")
    hasty = Consumers(admin._api, times=DeliveryTimes(silence=0.2))
    messages = hasty.receive(stream, "c", timeout=60)
    admin.publish(f"{stream}.a", "")
    admin.consumers.ack(next(messages))
    admin.consumers.update(stream, "c", deliver_group="g")
    admin.publish(f"{stream}.a", "")
    assert next(messages).message.seq == 2
    admin.consumers.delete(stream, "c")
    admin.consumers.create(stream, "c", DEFAULT_CONSUMER, deliver_subject=f"e.{stream}")
    assert sequences(messages, 2) == [1, 2]
    admin.consumers.delete(stream, "c")
    admin.consumers.create(stream, "c", DEFAULT_CONSUMER)
    with pytest.raises(
        JetStreamError, match=f"consumer c of stream {stream} has no deliver_subject: use next"
    ):
        next(messages)


def test_receive_refuses_pull_consumers_missing_consumers_and_wrong_timeouts(
    admin: JetStreamAdmin, stream: str
) -> None:
    admin.consumers.create(stream, "c", DEFAULT_CONSUMER)
    with pytest.raises(
        JetStreamError, match=f"consumer c of stream {stream} has no deliver_subject: use next"
    ):
        admin.consumers.receive(stream, "c")
    with pytest.raises(ConsumerNotFound):
        admin.consumers.receive(stream, "other")
    for timeout in (0, -1, float("nan")):
        with pytest.raises(
            OptionError, match="timeout must be a number of seconds above 0, or None"
        ):
            admin.consumers.receive(stream, "c", timeout=timeout)
