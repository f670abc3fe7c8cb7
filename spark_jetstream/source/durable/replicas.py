"""Whether all servers of an interest stream have a consumer, before another consumer is deleted.

A server that was down while a consumer was created again deletes its old one when it is back, and
creates the new one afterwards (`applyMetaSnapshot` in server/jetstream_cluster.go). It purges its
replica of the stream if it has no other consumer at that moment (`cleanupNoInterestMessages` in
server/consumer.go). As soon as it leads the stream, all messages that are not committed are lost.
With 2.12.8 that took some two minutes of kills.

So of the consumer and its stand-in each server must have one on disk before the other is deleted.
"""

from __future__ import annotations

import logging

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.source.durable.consumer_state import ConsumerState
from spark_jetstream.source.durable.consumers import DurableConsumers

log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds for which a commit waits for servers that are up to take up a consumer."""


class Replicas:
    """Looks at the replicas of the consumers of one stream; `patience` is `PATIENCE`."""

    def __init__(
        self, consumers: DurableConsumers, stream: str, patience: float = PATIENCE
    ) -> None:
        self._consumers = consumers
        self._stream = stream
        self._patience = patience
        #: Consumers that some server lacked at the last call.
        self._lacking: set[str] = set()

    def have(self, name: str, consumer: ConsumerState | None) -> bool:
        """Return whether all servers that keep a consumer have it, and log it if not.

        `consumer` is its state as the last reply had it. The first call waits for a moment for
        servers that are up. After a call in vain the next ones do not wait. Raises what
        `Connection.api` raises.
        """
        deadline = Deadline(0.0 if name in self._lacking else self._patience)
        backoff = Backoff(first=0.01, most=0.2)
        while consumer is not None and consumer.behind:
            if consumer.offline or deadline.expired:
                self._tell(name, consumer)
                return False
            backoff.pause(deadline)
            consumer = self._consumers.info(self._stream, name)
        self._lacking.discard(name)
        # One that was deleted meanwhile holds nothing.
        return consumer is not None

    def _tell(self, name: str, consumer: ConsumerState) -> None:
        """Log why commits wait, once until all servers have the consumer."""
        if name not in self._lacking:
            log.warning(
                "stream %s: commits wait, and the stream keeps what was read, until all servers "
                "of consumer %s have it (down or behind: %s); without it a server before 2.14 "
                "could lose messages",
                self._stream,
                name,
                ", ".join(consumer.behind),
            )
        self._lacking.add(name)
