"""The account: what it uses of JetStream, and what it may; and the server that answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from spark_jetstream.admin.models.base import Boolean, Count, Model, Reply, String, Volume
from spark_jetstream.options.values import Size, Whole
from spark_jetstream.protocol.features import since
from spark_jetstream.protocol.units import Bytes

_UNLIMITED = Bytes(-1)
Room = Annotated[Bytes, Size(unlimited="no limit")]
Number = Annotated[int, Whole(unlimited="no limit")]


class AccountLimits(Model):
    """The limits of an account; -1 means no limit."""

    max_memory: Room = _UNLIMITED
    """Bytes of all streams in memory, each copy counted."""
    max_storage: Room = _UNLIMITED
    """Bytes of all streams on disk, each copy counted."""
    max_streams: Number = -1
    """Number of streams."""
    max_consumers: Number = -1
    """Number of consumers of each stream."""
    max_ack_pending: Number = -1
    """Messages of a consumer that may wait for their acknowledgement."""
    memory_max_stream_bytes: Room = _UNLIMITED
    """Bytes of one stream in memory."""
    storage_max_stream_bytes: Room = _UNLIMITED
    """Bytes of one stream on disk."""
    max_bytes_required: Boolean = False
    """Whether every stream must have a ``max_bytes``."""


class ApiStats(Model):
    """How the JetStream API is used."""

    level: Count = 0
    """Which features there are: 1 for server 2.11, 2 for 2.12, 4 for 2.14, 5 for 2.15; 0 before."""
    total: Count = 0
    """Requests so far."""
    errors: Count = 0
    """Requests that failed."""
    inflight: Count = 0
    """Requests in progress."""


class Tier(Model):
    """Usage and limits."""

    memory: Volume = Bytes(0)
    """Bytes in memory."""
    storage: Volume = Bytes(0)
    """Bytes on disk."""
    reserved_memory: Volume = Bytes(0)
    """Bytes in memory that streams have reserved with ``max_bytes``."""
    reserved_storage: Volume = Bytes(0)
    """Bytes on disk that streams have reserved with ``max_bytes``."""
    streams: Count = 0
    """Number of streams."""
    consumers: Count = 0
    """Number of consumers."""
    limits: AccountLimits = AccountLimits()
    """Its limits."""


class AccountInfo(Tier, Reply):
    """The account of the connection.

    Where it has tiers, ``limits`` of its own mean nothing: look at ``tiers``.
    """

    domain: String = ""
    """The domain that answered."""
    api: ApiStats = ApiStats()
    """How the API is used."""
    tiers: dict[str, Tier] = Field(default_factory=dict)
    """Usage and limits by the number of replicas: ``R1``, ``R3``."""


class ServerName(Reply):
    """Which server reports, and its version."""

    name: String
    """Its name."""
    ver: String
    """Its version."""
    cluster: String = ""
    """The cluster that it belongs to."""


class ServerStats(Reply):
    """Statistics of a server."""

    mem: Volume = Bytes(0)
    """Bytes in memory."""
    connections: Count = 0
    """Number of clients."""
    slow_consumers: Count = 0
    """Clients that it has cut off because they did not read what it sent."""
    active_servers: Count = 1
    """Number of servers that it knows, itself included."""


class ServerReport(Reply):
    """The reply of a server to ``$SYS.REQ.SERVER.PING`` (nats-server, server/events.go)."""

    server: ServerName
    """Which server it is."""
    statsz: ServerStats | None = None
    """Its statistics; None for any account but the system account."""
    rtt: float
    """Seconds from the request to the reply."""


@dataclass(frozen=True)
class ServerInfo:
    """The server of the connection, and the JetStream that answers, which is another server's behind a leaf node.

    ``version`` is that of the server, and ``max_payload`` (bytes) what it takes of this account and
    user. ``api_level`` and ``domain`` are those of the JetStream.
    """

    version: str
    api_level: int
    domain: str
    max_payload: int

    @property
    def api_since(self) -> str:
        """The first version of the server with this API; ``before 2.11`` for level 0."""
        return since(self.api_level)
