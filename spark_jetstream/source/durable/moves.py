"""How a consumer can be moved, which depends on the versions of all servers that keep it.

The leader of a consumer writes a CONSUMER.RESET into the log that its replicas follow. A server
before 2.14 that reads it there crashes, and again after each start (2.10.26, 2.11.11 and 2.12.8:
"Unknown group entry op type"). So while the servers of a cluster are replaced by newer ones, one by
one, the version of the leader is not enough.

To create the consumer again is no way out while servers go down and come back (`replicas.py`). The
consumer stays where it is until the versions are the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from enum import Enum, auto

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.versions import versions_of
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.protocol.features import CONSUMER_RESET, Version, shown_version
from spark_jetstream.source.durable.consumer_state import ConsumerState

log = logging.getLogger(__name__)


SILENT = 60.0
"""Seconds for which a commit waits for a server that does not tell its version.

It may be about to start as another version. A server that is down for longer no longer counts
here, but holds up a consumer that is to be created again (`replicas.py`).
"""


class Way(Enum):
    """A way to move a consumer."""

    RESET = auto()
    """By CONSUMER.RESET."""
    AGAIN = auto()
    """By creating it again, while a stand-in holds its position."""
    LATER = auto()
    """Not now: some of its servers have CONSUMER.RESET, and others do not, or do not answer."""


class Moves:
    """Chooses the ways for the consumers of one run of a query; `silent` is `SILENT`."""

    def __init__(self, silent: float = SILENT) -> None:
        self._silent = silent
        #: The versions that servers have told.
        self._versions: dict[str, Version] = {}
        #: When servers did not answer for the first time, by the monotonic clock.
        self._silent_since: dict[str, float] = {}
        #: A server has told its version, so servers hear the question.
        self._heard = False
        #: Nobody tells the versions, so the version of the leader decides.
        self._cannot_ask = False
        self._told: set[str] = set()

    def way(self, connection: Connection, consumer: ConsumerState, to: int) -> Way:
        """Return how a consumer can be moved to a sequence. Raises `ConnectionFailed`."""
        self._ask(connection, consumer)
        if consumer.leader_can_reset:
            # It may be a follower next.
            self._versions.setdefault(consumer.leader, CONSUMER_RESET.version)
        by_leader = Way.RESET if consumer.can_move_to(to) else Way.AGAIN
        if self._cannot_ask:
            return by_leader
        others = [
            f"{name} ({self._shown(name)})"
            for name in consumer.followers
            if self._differs(name, can_reset=consumer.leader_can_reset)
        ]
        if not others:
            return by_leader
        self._tell(consumer, ", ".join(others))
        return Way.LATER

    def _differs(self, server: str, *, can_reset: bool) -> bool:
        """Whether a server is, or may be, of another kind than a leader that can reset or not."""
        if server in self._versions:
            return self._can_reset(server) is not can_reset
        return time.monotonic() < self._silent_since[server] + self._silent

    def _can_reset(self, server: str) -> bool:
        return CONSUMER_RESET.is_in(self._versions.get(server, (0, 0, 0)))

    def _shown(self, server: str) -> str:
        if server in self._versions:
            return shown_version(self._versions[server])
        return "does not answer"

    def _ask(self, connection: Connection, consumer: ConsumerState) -> None:
        """Ask the followers for their versions."""
        # None of those that have the feature comes back without it.
        wanted = [name for name in consumer.followers if not self._can_reset(name)]
        if self._cannot_ask or not wanted:
            return
        up = [name for name in wanted if name not in consumer.offline]
        versions = self._versions_of(connection, consumer, up) if up else {}
        self._versions |= versions
        for name in wanted:
            if name in versions:
                self._silent_since.pop(name, None)
            else:
                # It may start as another version than the one that it has told.
                self._versions.pop(name, None)
                self._silent_since.setdefault(name, time.monotonic())

    def _versions_of(
        self, connection: Connection, consumer: ConsumerState, servers: Collection[str]
    ) -> dict[str, Version]:
        try:
            versions = versions_of(connection, consumer.cluster, servers)
        except PermissionDenied as error:
            self._leave_to_the_leader(str(error))
            return {}
        self._heard = self._heard or bool(versions)
        # The servers of a hub do not hear a client behind a leaf node. Those of a supercluster do:
        # one that has told its version before is down now.
        is_elsewhere = connection.server_info.get("cluster") != consumer.cluster
        if is_elsewhere and not self._heard:
            self._leave_to_the_leader(f"no server of cluster {consumer.cluster} tells its version")
        return versions

    def _leave_to_the_leader(self, why: str) -> None:
        self._cannot_ask = True
        log.info("durable consumers: a server before 2.14 would not be noticed: %s", why)

    def _tell(self, consumer: ConsumerState, others: str) -> None:
        """Log once for each state of the servers why commits wait."""
        leader, rest = "is older than", "newer"
        if consumer.leader_can_reset:
            leader, rest = "has", "older"
        text = f"the leader {leader} nats-server {CONSUMER_RESET.since}, {rest} or silent: {others}"
        if text not in self._told:
            log.warning(
                "commits wait until all servers of a durable consumer can move it, or none can, "
                "and the stream keeps what was read (%s)",
                text,
            )
        self._told.add(text)
