"""Requests that are sent again, against the real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests, stream_info
from spark_jetstream.errors import ConnectionFailed, StreamNotFound
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.testing import NatsServer
from tests.support.streams import Stream


@pytest.fixture
def requests(nats_server: NatsServer) -> Requests:
    """Requests to the shared server."""
    options = ConnectionOptions.from_spark({"servers": nats_server.url})
    return Requests(lambda patience: connect(options, patience=patience), 5)


def test_the_state_of_a_stream(requests: Requests, stream: Callable[..., Stream]) -> None:
    made = stream()
    made.fill(3)
    state = requests.stream(made.name)
    assert (state.name, state.messages, state.last_seq) == (made.name, 3, 3)
    assert requests.call(lambda connection: stream_info(connection, made.name)).created == state.created
    with pytest.raises(StreamNotFound, match=r"^cannot count what is there: "):
        requests.stream("NOWHERE", "count what is there")


def test_an_error_that_may_pass_is_retried(requests: Requests) -> None:
    seen: list[Connection] = []

    def work(connection: Connection) -> str:
        seen.append(connection)
        if len(seen) < 3:
            raise ConnectionFailed("cut")
        return "done"

    assert requests.call(work) == "done"
    assert len(seen) == 3


def test_an_error_that_stays_is_raised_after_the_retry_timeout(requests: Requests) -> None:
    requests.retry_timeout = 0

    def work(connection: Connection) -> None:
        raise ConnectionFailed("cut for good")

    with pytest.raises(ConnectionFailed, match="cut for good"):
        requests.call(work)


def test_any_question_of_the_api(requests: Requests) -> None:
    assert requests.ask(jsapi.STREAM_NAMES, context="list the streams")["type"].endswith("stream_names_response")
