"""Whether tasks read a stream with Direct Gets, where option readWith is auto."""

from __future__ import annotations

import logging

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.source.probes import DirectProbe
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.pull import PullSettings

log = logging.getLogger(__name__)

_AT_MOST = 400  # messages of a task with Direct Gets; docs/benchmarks.md, "Consumers on a cluster"


class Gets:
    """Direct Gets of one stream, tried once over each connection."""

    def __init__(self, requests: Requests, options: SourceOptions) -> None:
        self._requests = requests
        self._options = options
        # Over which connection they were tried, and whether they worked.
        self._tried: tuple[tuple[int, int], bool] | None = None

    def suit(self, state: StreamSummary, messages: int) -> bool:
        """Whether tasks of ``messages`` messages read this stream, without gaps, with Direct Gets.

        A consumer is work for each server of a cluster, and Direct Gets are slower for many
        messages.
        """
        # The trial reads the last two messages.
        possible = state.clustered and state.allow_direct and state.messages >= 2
        if not possible or messages > _AT_MOST:
            return False
        size = messages * state.bytes // state.messages
        if size > self._options.fetch_max_bytes:
            return False
        connection = self._requests.call(_identity)
        if self._tried is None or self._tried[0] != connection:
            self._tried = connection, self._work(state)
        return self._tried[1]

    def _work(self, state: StreamSummary) -> bool:
        """Whether this account gets the last two messages of a stream.

        Where it gets one, its import may allow a single reply.
        """
        connect = self._requests.connect
        end = state.last_seq + 1
        part = SequenceRange(state.name, end - 2, end, 2, state.created)
        settings = PullSettings(
            batch=2,
            max_bytes=self._options.fetch_max_bytes,
            expires=self._options.fetch_timeout,
            retry_timeout=0.0,
            fail_on_data_loss=True,
        )
        try:
            DirectProbe(Requests(connect, 0.0), state.name, ()).peek(state.last_seq)
            runs = read_direct(connect, part, settings, "plan")
            return sum(map(len, runs)) == 2
        except JetStreamError as error:
            log.info("stream %s is read with consumers: %s", state.name, error)
            return False


def _identity(connection: Connection) -> tuple[int, int]:
    """Return what tells a connection from others, and from itself before it was cut."""
    return id(connection), connection.reconnects
