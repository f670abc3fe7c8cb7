"""How a consumer can be moved, which depends on the versions of all servers that keep it.

The leader of a consumer writes a CONSUMER.RESET into the log that its replicas follow. A server
before 2.14 that reads it there crashes, and again after each start (2.10.26, 2.11.11 and 2.12.8:
"Unknown group entry op type"). So while the servers of a cluster are replaced by newer ones, one by
one, the version of the leader is not enough.

To create the consumer again is no way out: in an interest stream on servers of 2.10.26 and 2.15.1 a
replica lost messages that the stand-in held (`make suites SUITES=update`). The consumer stays where
it is until the versions are the same.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.versions import versions_of
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.protocol import features
from spark_jetstream.protocol.features import Version, shown_version
from spark_jetstream.source.durable.consumer_state import ConsumerState

log = logging.getLogger(__name__)


class Way(Enum):
    """A way to move a consumer."""

    RESET = auto()
    """By CONSUMER.RESET."""
    AGAIN = auto()
    """By creating it again, while a stand-in holds its position."""
    LATER = auto()
    """Not now: some of its servers have CONSUMER.RESET, and others do not."""


class Moves:
    """Chooses the ways for the consumers of one run of a query."""

    def __init__(self) -> None:
        #: Servers that can move a consumer. None of them comes back as an older one.
        self._able: set[str] = set()
        #: Servers that were too old when they answered last, and their versions.
        self._old: dict[str, Version] = {}
        #: Nobody tells the versions, so the version of the leader decides.
        self._cannot_ask = False
        self._told: set[str] = set()

    def way(self, connection: Connection, consumer: ConsumerState, to: int) -> Way:
        """Return how a consumer can be moved to a sequence. Raises `ConnectionFailed`."""
        followers = set(consumer.followers)
        self._ask(connection, consumer, followers - self._able)
        able = followers & self._able
        old = followers & self._old.keys()
        by_leader = Way.RESET if consumer.can_move_to(to) else Way.AGAIN
        if self._cannot_ask or not followers:
            return by_leader
        if old and consumer.leader_can_reset:
            names = [f"{name} ({shown_version(self._old[name])})" for name in sorted(old)]
            return self._later(consumer, ", ".join(names))
        if able and not consumer.leader_can_reset:
            return self._later(consumer, "its leader")
        if not consumer.leader_can_reset:
            return Way.AGAIN
        # A server that does not answer may come back as an older one.
        return by_leader if able == followers else Way.AGAIN

    def _ask(self, connection: Connection, consumer: ConsumerState, servers: set[str]) -> None:
        """Ask servers for their versions. One that is down would not answer."""
        asked = servers - set(consumer.offline)
        if self._cannot_ask or not asked:
            return
        context = "ask the servers of a consumer for their versions (option durable)"
        try:
            versions = versions_of(connection, consumer.cluster, asked, context)
        except PermissionDenied as error:
            self._leave_to_the_leader(str(error))
            return
        # The servers of a hub do not hear a client behind a leaf node.
        is_elsewhere = connection.server_info.get("cluster") != consumer.cluster
        if is_elsewhere and not versions:
            self._leave_to_the_leader(f"no server of cluster {consumer.cluster} tells its version")
        for name, version in versions.items():
            if features.CONSUMER_RESET.is_in(version):
                self._able.add(name)
                self._old.pop(name, None)
            else:
                self._old[name] = version

    def _leave_to_the_leader(self, why: str) -> None:
        self._cannot_ask = True
        log.info("durable consumers: a server before 2.14 would not be noticed: %s", why)

    def _later(self, consumer: ConsumerState, older: str) -> Way:
        """Log once for each state of the servers why commits wait."""
        if older not in self._told:
            log.warning(
                "commits wait until all servers of cluster %s that keep a durable consumer have "
                "nats-server %s or newer, as some have (older: %s); the stream keeps what was read",
                consumer.cluster,
                features.CONSUMER_RESET.since,
                older,
            )
        self._told.add(older)
        return Way.LATER
