"""Requests that open their connection, and are sent again while their failure may pass."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_jetstream.client.connection import Connection, Question
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.errors import ApiError, JetStreamError, ServerBusy, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import Feature
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.protocol.stream import StreamSummary, stream_summary

log = logging.getLogger(__name__)

T = TypeVar("T")

Connect = Callable[[float], Connection]
"""Returns the connection of the process, and waits at most so many seconds for it.

Raises `ConnectionFailed`.
"""


@dataclass(eq=False)
class Requests:
    """Requests to one server, each retried for `retry_timeout` seconds.

    An error that may pass (a connection that was cut, no reply, an election) is retried with
    pauses; any other error is raised at once. `first` limits the seconds for retries until one
    request succeeds, None for no other limit. A server that was never reached is more likely the
    wrong one than one that restarts.
    """

    connect: Connect
    retry_timeout: float
    first: float | None = None

    def call(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns.

        It is called again after an error that may pass. Raises the last error.
        """
        patience = self.retry_timeout
        if self.first is not None:
            patience = min(self.first, patience)
        deadline = Deadline(patience)
        backoff = Backoff()
        while True:
            try:
                # The connection anew for each try: a closed one is replaced (`pool.connect`).
                result = work(self.connect(patience))
                # The server was reached, so a failure from here on is an outage.
                self.first = None
                return result
            except JetStreamError as error:
                if not error.retriable or deadline.expired:
                    raise
                log.info("trying again: %s", error)
                backoff.pause(deadline)

    def ask(
        self, endpoint: Endpoint, stream: str = "", *, context: str, prefix: str | None = None
    ) -> dict[str, Any]:
        """Return the reply to a request of the JetStream API that has no body.

        It changes nothing on the server. `context` says what is asked, as an infinitive without
        "to"; errors repeat it. `prefix` is that of the API, if not the connection's. Raises what
        `Connection.ask` raises, after `retry_timeout`.
        """
        return self.call(
            lambda connection: ask(connection, endpoint, stream, context=context, prefix=prefix)
        )

    def can(self, feature: Feature) -> bool:
        """Whether the server has a feature. Raises what `call` raises."""
        return self.call(lambda connection: connection.can(feature))

    def stream(self, name: str, context: str = "") -> StreamSummary:
        """Return the state of a stream (STREAM.INFO).

        Raises `StreamNotFound`, and what `ask` raises.
        """
        return self.call(lambda connection: stream_info(connection, name, context))

    def streams(self, contexts: Mapping[str, str]) -> dict[str, StreamSummary | StreamNotFound]:
        """Return the states of several streams, name -> context, asked in one go.

        A stream that the server does not know has the error in place of a state. Raises what
        `stream` raises.
        """

        def ask_all(connection: Connection) -> dict[str, StreamSummary | StreamNotFound]:
            asked = []
            for name, context in contexts.items():
                subject = jsapi.subject(connection.prefix, jsapi.STREAM_INFO, name)
                asked.append(Question(subject, context))
            replies = connection.ask_all(asked)
            found: dict[str, StreamSummary | StreamNotFound] = {}
            for (name, context), reply in zip(contexts.items(), replies, strict=True):
                if isinstance(reply, StreamNotFound):
                    found[name] = reply
                elif isinstance(reply, ApiError):
                    raise reply
                else:
                    found[name] = _state(reply, context)
            return found

        return self.call(ask_all)


def stream_info(
    connection: Connection,
    name: str,
    context: str = "",
    *,
    prefix: str | None = None,
    timeout: float | None = None,
) -> StreamSummary:
    """Return the state of a stream, asked once over this connection.

    Raises what `Requests.stream` raises, at once.
    """
    context = context or f"read the state of stream {name}"
    return _state(
        ask(connection, jsapi.STREAM_INFO, name, context=context, prefix=prefix, timeout=timeout),
        context,
    )


def settled_info(connection: Connection, name: str, context: str) -> StreamSummary:
    """Return the state of a stream as no former leader says it; waits for `Timing.election`.

    To be called before a loss is reported. Raises what `stream_info` raises, and `ServerBusy` if
    the server that answers does not prove that a majority follows it.
    """
    # By then a server that woke up, and led before, has heard its successor.
    time.sleep(connection.timing.election)
    state = stream_info(connection, name, context)
    if not state.followed:
        raise _busy(
            context, "a majority of the stream's servers does not follow the one that answered"
        )
    return state


def info_of(connection: Connection, name: str, created: str | None, context: str) -> StreamSummary:
    """Return the state of the stream that was created at that time, as `stream_info` does.

    Return another stream, or raise `StreamNotFound`, only after a second request (`settled_info`).
    `created` is None where the time is not known: then a leader that a majority follows is believed
    at once.
    """
    with contextlib.suppress(StreamNotFound):
        state = stream_info(connection, name, context)
        expected = state.created == created
        if created is None:
            expected = state.followed
        # A server without replicas has no successor that could know better.
        if expected or not state.clustered:
            return state
    return settled_info(connection, name, context)


def _state(reply: Mapping[str, Any], context: str) -> StreamSummary:
    state = stream_summary(reply, context)
    if not state.led:
        # It woke up, or lost an election, after it took the request.
        raise _busy(context, "the server that answered does not lead the stream")
    return state


def _busy(context: str, why: str) -> ServerBusy:
    return ServerBusy(f"cannot {context}: {why}", code=503, err_code=0, description=why)


def ask(
    connection: Connection,
    endpoint: Endpoint,
    stream: str = "",
    consumer: str = "",
    body: bytes = b"",
    *,
    context: str,
    prefix: str | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Return the reply to a request that changes nothing on the server, asked once."""
    subject = jsapi.subject(prefix or connection.prefix, endpoint, stream, consumer)
    return connection.ask(subject, body, context=context, timeout=timeout)
