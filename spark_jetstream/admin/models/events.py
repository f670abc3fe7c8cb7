"""Events of JetStream: advisories, which say what happened, and metrics, which say how long it took. Pure.

Each class is one type of event of server 2.15: ``TYPE`` is its id, ``SUBJECTS`` is where it is
published, after the prefix ``$JS.EVENT``, or in whole below ``$SYS``. A field that a server always
sends is required; others have a default. `parse_event` reads them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PrivateAttr

from spark_jetstream.admin.models.base import (
    Boolean,
    Content,
    Count,
    Duration,
    Model,
    Sequence64,
    String,
    Time,
    Volume,
)
from spark_jetstream.admin.models.streams import PeerInfo, StreamState
from spark_jetstream.protocol.units import NEVER, Bytes, Nanoseconds

# The first token of a subject -> the middle of the id of its type.
_FAMILIES = {
    "ADVISORY": "jetstream.advisory",
    "METRIC": "jetstream.metric",
    "$SYS": "server.advisory",
}
EVENT_TYPES: dict[str, type[Event]] = {}
"""The id of each type that a server sends -> its model."""


class Event(Model):
    """Any event.

    One of a type that this version does not know has its further fields in ``model_extra``.
    """

    TYPE: ClassVar[str] = ""
    SUBJECTS: ClassVar[tuple[str, ...]] = ()
    _NAMES: ClassVar[str] = ""  # tokens that end the subjects

    type: String
    """Which kind of event this is: ``io.nats.jetstream.advisory.v1.`` (or ``metric``) and its
    name."""
    id: String
    """Its id, which no other event has."""
    timestamp: Time
    """When it happened, by the server's clock."""

    _raw: bytes = PrivateAttr(b"")
    _published_on: str = PrivateAttr("")

    def __init_subclass__(cls, *, kind: str = "", on: str = "", **kwargs: Any) -> None:
        """Enter a type that a server sends: ``kind`` ends its id, ``on`` has its subjects, without `_NAMES`."""
        super().__init_subclass__(**kwargs)
        # Classes without a kind are bases, or made by this package: no server sends them.
        if kind:
            cls.TYPE = f"io.nats.{_FAMILIES.get(on.partition('.')[0], 'server.metric')}.v1.{kind}"
            cls.SUBJECTS = tuple(f"{subject}{cls._NAMES}" for subject in on.split())
            EVENT_TYPES[cls.TYPE] = cls

    @property
    def kind(self) -> str:
        """The last part of the type: ``max_deliver``."""
        return self.type.rpartition(".")[2]

    @property
    def metric(self) -> bool:
        """Whether this is a metric; else it is an advisory."""
        return ".metric." in self.type

    @property
    def published_on(self) -> str:
        """The subject it was published on; empty when that is not known."""
        return self._published_on

    @property
    def raw(self) -> bytes:
        """The message as it was published; empty for what did not come from a server (`Gap`)."""
        return self._raw


class Gap(Event):
    """Events, or messages, may be missing here: the server does not repeat those of the time without a connection.

    Made by `Events.watch` and `JetStreamAdmin.subscribe`, once when the connection is lost, and
    again with ``until`` when messages are received again.
    """

    TYPE: ClassVar[str] = "spark_jetstream.event.v1.gap"

    since: Time
    """The last moment at which the connection is known to have worked, by the clock of this
    machine."""
    until: Time | None = None
    """When messages were received again, by the clock of this machine; None while they are not."""
    reason: String
    """The fault of the connection, in words."""
    lost: Count = 0
    """How many messages were dropped because this program did not read them in time; 0 for a lost
    connection, where the number is unknown."""


class UnknownEvent(Event):
    """A message that is no event: no JSON, or without the fields of its type.

    Any client can publish one.
    """

    TYPE: ClassVar[str] = "spark_jetstream.event.v1.unknown"

    subject: String
    """The subject it was published on."""
    data: Content
    """The message, byte for byte (base64 in JSON)."""
    reason: String
    """Why it is no event."""


class ClientInfo(Model):
    """The client that sent a request. Fields that the server does not report are empty."""

    start: Time = NEVER
    stop: Time = NEVER
    host: String = ""
    id: Sequence64 = 0
    """Number of the connection on its server."""
    acc: String = ""
    svc: String = ""
    """The account that offers the service, when another account sent the request."""
    user: String = ""
    name: String = ""
    lang: String = ""
    ver: String = ""
    rtt: Duration = Nanoseconds(0)
    """How long a message takes to it and back, in nanoseconds."""
    server: String = ""
    """The server it is connected to."""
    cluster: String = ""
    alts: tuple[String, ...] = ()
    """Other clusters, the nearest first."""
    jwt: String = ""
    issuer_key: String = ""
    """The key that signed it."""
    name_tag: String = ""
    """The name in it."""
    tags: tuple[String, ...] = ()
    """The tags in it."""
    kind: String = ""
    """Client, Leafnode, Router, Gateway, JetStream, Account or System."""
    client_type: String = ""
    """nats, mqtt or websocket."""
    client_id: String = ""
    """The id of an MQTT client."""
    nonce: String = ""
    """The text that the client had to sign."""


class DomainEvent(Event):
    """An event of a server."""

    domain: String = ""
    """The JetStream domain, if there is one."""


class StreamEvent(DomainEvent):
    """An event of a stream."""

    _NAMES: ClassVar[str] = ".{stream}"

    stream: String


class ConsumerEvent(StreamEvent):
    """An event of a consumer."""

    _NAMES: ClassVar[str] = ".{stream}.{consumer}"

    consumer: String


class Raft(DomainEvent):
    """An event of the Raft group that keeps a stream or a consumer."""

    account: String = ""
    """The account; empty where only that account hears it."""
    replicas: tuple[PeerInfo, ...] = ()


class ServerEvent(DomainEvent):
    """An event that names the server."""

    server: String
    """The server's name, or its id."""


class ApiAudit(ServerEvent, kind="api_audit", on="ADVISORY.API"):
    """A client sent a request to the JetStream API.

    The server does not report requests for messages.
    """

    client: ClientInfo | None = None
    subject: String
    request: String = ""
    """Its body, as text."""
    response: String
    """The server's reply, as text."""


class ApiLimitReached(ServerEvent, kind="api_limit_reached", on="ADVISORY.API.LIMIT_REACHED"):
    """A server received more API requests than it accepts, and dropped some without an answer."""

    dropped: Count


class StreamAction(
    StreamEvent,
    kind="stream_action",
    on="ADVISORY.STREAM.CREATED ADVISORY.STREAM.UPDATED ADVISORY.STREAM.DELETED",
):
    """A stream was created, changed or deleted."""

    action: String
    """create, modify or delete."""


class ConsumerAction(
    ConsumerEvent,
    kind="consumer_action",
    on="ADVISORY.CONSUMER.CREATED ADVISORY.CONSUMER.DELETED",
):
    """A consumer was created or deleted."""

    action: String
    """create or delete."""


class ConsumerPause(ConsumerEvent, kind="consumer_pause", on="ADVISORY.CONSUMER.PAUSE"):
    """A consumer was paused or resumed."""

    paused: Boolean
    pause_until: Time = NEVER


class MaxDeliver(ConsumerEvent, kind="max_deliver", on="ADVISORY.CONSUMER.MAX_DELIVERIES"):
    """A message was delivered as often as the consumer allows, without an acknowledgement, and is given up."""

    stream_seq: Sequence64
    """The message's sequence in the stream."""
    deliveries: Sequence64


class DeliveryEvent(ConsumerEvent):
    """An event of a message that was delivered."""

    consumer_seq: Sequence64
    """Which delivery of the consumer this was, counted from 1."""
    stream_seq: Sequence64
    """The message's sequence in the stream."""
    deliveries: Sequence64
    """How often the message was delivered."""


class Nak(DeliveryEvent, kind="nak", on="ADVISORY.CONSUMER.MSG_NAKED"):
    """A message was refused, and will be delivered again."""


class Terminated(DeliveryEvent, kind="terminated", on="ADVISORY.CONSUMER.MSG_TERMINATED"):
    """A message was refused for good."""

    reason: String = ""
    """The reason that the client gave."""


class ConsumerAck(DeliveryEvent, kind="consumer_ack", on="METRIC.CONSUMER.ACK"):
    """A message was acknowledged.

    Only consumers with a ``sample_freq`` report it, for that share of messages.
    """

    ack_time: Duration
    """How long after its delivery, in nanoseconds."""


class GroupEvent(ConsumerEvent):
    """An event of a priority group."""

    account: String = ""
    group: String
    """The priority group of the consumer."""


class ConsumerPinned(GroupEvent, kind="consumer_group_pinned", on="ADVISORY.CONSUMER.PINNED"):
    """The server chose one client to get all messages of its group."""

    pinned_id: String
    """The client's id for that time, as messages carry it in ``Nats-Pin-Id``."""


class ConsumerUnpinned(GroupEvent, kind="consumer_group_unpinned", on="ADVISORY.CONSUMER.UNPINNED"):
    """A client no longer gets all messages of its group."""

    reason: String
    """admin (a client asked for it) or timeout (the pinned client did not pull for too long)."""


class SnapshotCreate(StreamEvent, kind="snapshot_create", on="ADVISORY.STREAM.SNAPSHOT_CREATE"):
    """A backup of a stream began."""

    state: StreamState
    client: ClientInfo | None = None


class SnapshotComplete(
    StreamEvent,
    kind="snapshot_complete",
    on="ADVISORY.STREAM.SNAPSHOT_COMPLETE",
):
    """A backup of a stream ended."""

    start: Time
    end: Time
    client: ClientInfo | None = None
    error: String = ""
    """Why it failed; empty when it did not."""


class RestoreCreate(StreamEvent, kind="restore_create", on="ADVISORY.STREAM.RESTORE_CREATE"):
    """A stream began to be restored from a backup."""

    client: ClientInfo | None = None


class RestoreComplete(StreamEvent, kind="restore_complete", on="ADVISORY.STREAM.RESTORE_COMPLETE"):
    """A stream was restored from a backup, or that failed: the server does not tell which."""

    start: Time
    end: Time
    bytes: Volume = Bytes(0)
    client: ClientInfo | None = None


class StreamBatchAbandoned(
    StreamEvent,
    kind="stream_batch_abandoned",
    on="ADVISORY.STREAM.BATCH_ABANDONED",
):
    """An atomic batch was not stored, and none of its messages is."""

    account: String = ""
    batch: String
    reason: String
    """timeout, large (too many messages), incomplete (one is missing) or unsupported (it needs a
    newer server)."""


class StreamLeaderElected(
    StreamEvent,
    Raft,
    kind="stream_leader_elected",
    on="ADVISORY.STREAM.LEADER_ELECTED",
):
    """The servers that keep a stream have chosen a leader.

    The system account hears it as well, with the same id.
    """

    leader: String


class StreamQuorumLost(
    StreamEvent,
    Raft,
    kind="stream_quorum_lost",
    on="ADVISORY.STREAM.QUORUM_LOST",
):
    """Most of the servers that keep a stream have been away for some 20 seconds: nothing can be stored.

    Published in the system account as well, with the same id.
    """


class ConsumerLeaderElected(
    ConsumerEvent,
    Raft,
    kind="consumer_leader_elected",
    on="ADVISORY.CONSUMER.LEADER_ELECTED",
):
    """The servers that keep a consumer have chosen a leader.

    Published in the system account as well.
    """

    leader: String


class ConsumerQuorumLost(
    ConsumerEvent,
    Raft,
    kind="consumer_quorum_lost",
    on="ADVISORY.CONSUMER.QUORUM_LOST",
):
    """Most of the servers that keep a consumer have been away for some 20 seconds: nothing is delivered.

    Published in the system account as well.
    """


class DomainLeaderElected(
    DomainEvent,
    kind="domain_leader_elected",
    on="ADVISORY.DOMAIN.LEADER_ELECTED",
):
    """A cluster has chosen a leader for its JetStream. Published in the system account."""

    leader: String
    """The id (``peer``) of the server that leads."""
    replicas: tuple[PeerInfo, ...] = ()
    cluster: String = ""


class ClusterEvent(ServerEvent):
    """One of a server of a cluster."""

    server_id: String
    cluster: String = ""


class ServerOutOfSpace(
    ClusterEvent,
    kind="server_out_of_space",
    on="ADVISORY.SERVER.OUT_OF_STORAGE",
):
    """A server has no room left on its disk, and ends its JetStream.

    Published in the system account.
    """

    stream: String = ""
    """The stream that wanted the room."""


class ServerRemoved(ClusterEvent, kind="server_removed", on="ADVISORY.SERVER.REMOVED"):
    """A server was removed from its cluster, and has no JetStream any more.

    Published in the system account.
    """


class MetaRescue(ClusterEvent, kind="meta_rescue", on="ADVISORY.SERVER.META_RESCUE"):
    """A server lets fewer servers decide than it should, to rescue a cluster that has lost most of them.

    Published in the system account (server 2.15).
    """

    prev_quorum: Count
    """How many servers had to agree."""
    new_quorum: Count
    """How many have to now."""


class ServerSummary(Model):
    """The server that publishes an event; it sends more fields (``model_extra``)."""

    name: String
    id: String
    host: String = ""
    cluster: String = ""
    domain: String = ""
    ver: String = ""
    jetstream: Boolean = False


class Traffic(Model):
    """Messages in one direction, seen from the server."""

    msgs: Count = 0
    bytes: Volume = Bytes(0)


class ConnectionEvent(Event):
    """An event of a server about connections. Published in the system account."""

    server: ServerSummary


class ClientConnect(ConnectionEvent, kind="client_connect", on="$SYS.ACCOUNT.{account}.CONNECT"):
    """A client connected."""

    client: ClientInfo


class ClientDisconnect(
    ConnectionEvent,
    kind="client_disconnect",
    on="$SYS.ACCOUNT.{account}.DISCONNECT",
):
    """The connection of a client ended."""

    client: ClientInfo
    sent: Traffic
    received: Traffic
    reason: String


class AccountConnections(
    ConnectionEvent,
    kind="account_connections",
    on="$SYS.ACCOUNT.{account}.SERVER.CONNS",
):
    """How many clients of an account a server has: sent when that changes, and every half a minute."""

    acc: String
    name: String = ""
    """The name of the account, which may differ from its id ``acc``."""
    conns: Count
    leafnodes: Count
    total_conns: Count
    num_subscriptions: Count = 0
    sent: Traffic
    received: Traffic
    slow_consumers: Count = 0


class ServiceLatency(Event, kind="service_latency"):
    """A service of another account answered a request.

    Published where the ``latency`` of its export says.
    """

    status: Count
    """As in HTTP: 200 for an answer."""
    description: String = ""
    """The error, in words."""
    requestor: ClientInfo | None = None
    responder: ClientInfo | None = None
    start: Time
    service: Duration
    """How long the service took, in nanoseconds."""
    system: Duration
    """How long the servers took, in nanoseconds."""
    total: Duration
    """How long the requestor waited, in nanoseconds."""
