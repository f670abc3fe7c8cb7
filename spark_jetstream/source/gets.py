"""Whether tasks read a stream with Direct Gets, where option readWith leaves that to the planner."""

from __future__ import annotations

import logging

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
        self._tried: tuple[tuple[int, int], bool] | None = (
            None  # over which connection, and whether they worked
        )

    def suit(self, state: StreamSummary, messages: int) -> bool:
        """Whether tasks of so many messages read this stream, which has no gaps, with Direct Gets.

        A consumer is work for each server of a cluster, and Direct Gets are slower for many messages.
        """
        size = messages * state.bytes // max(1, state.messages)
        if not (state.clustered and state.allow_direct and state.messages >= 2):
            return False
        if messages > _AT_MOST or size > self._options.fetch_max_bytes:
            return False
        over = self._requests.call(lambda connection: (id(connection), connection.reconnects))
        if self._tried is None or self._tried[0] != over:
            self._tried = over, self._work(state)
        return self._tried[1]

    def _work(self, state: StreamSummary) -> bool:
        """Whether this account gets the last two messages: where it gets one, its import may allow one reply alone."""
        connect, end = self._requests.connect, state.last_seq + 1
        part = SequenceRange(state.name, end - 2, end, 2, state.created)
        settings = PullSettings(
            2,
            self._options.fetch_max_bytes,
            self._options.fetch_timeout,
            0.0,
            fail_on_data_loss=True,
        )
        try:
            DirectProbe(Requests(connect, 0.0), state.name, ()).peek(state.last_seq)
            return sum(len(run) for run in read_direct(connect, part, settings, "plan")) == 2
        except JetStreamError as error:
            log.info("stream %s is read with consumers: %s", state.name, error)
            return False
