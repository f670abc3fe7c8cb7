"""What events of JetStream have in common, and those that no server sends. Pure."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PrivateAttr

from spark_jetstream.admin.fields import Content, Count, Duration, Sequence64, String, Time
from spark_jetstream.admin.model import Model
from spark_jetstream.units import NEVER, Nanoseconds


class Event(Model):
    """Any event. One of a type that this version does not know has its further fields in ``model_extra``."""

    TYPE: ClassVar[str] = ""
    SUBJECTS: ClassVar[tuple[str, ...]] = ()

    type: String
    """Which kind of event this is: ``io.nats.jetstream.advisory.v1.`` (or ``metric``) and its name."""
    id: String
    """Its id, which no other event has."""
    timestamp: Time
    """When it happened, by the server's clock."""

    _raw: bytes = PrivateAttr(b"")
    _published_on: str = PrivateAttr("")

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
    """Events may be missing here: while the connection was lost nobody told of them.

    Made by `Events.watch`, once when the connection is lost, and again with ``until`` when events are heard again. No
    server sends it.
    """

    TYPE: ClassVar[str] = "spark_jetstream.event.v1.gap"

    since: Time
    """The last moment at which the connection is known to have worked, by the clock of this machine."""
    until: Time | None = None
    """When events were heard again, by the clock of this machine; None while they are not."""
    reason: String
    """What happened to the connection, in words."""
    lost: Count = 0
    """How many events were thrown away because this program did not take them in time; 0 for a lost connection, where
    nobody knows."""


class UnknownEvent(Event):
    """A message that is no event: no JSON, or without the fields that its type has. Anybody can publish one."""

    TYPE: ClassVar[str] = "spark_jetstream.event.v1.unknown"

    subject: String
    """The subject it was published on."""
    data: Content
    """The message, byte for byte (base64 in JSON)."""
    reason: String
    """Why it is no event."""


class ClientInfo(Model):
    """Who sent a request. What the server does not say of somebody is empty."""

    start: Time = NEVER
    """When the connection was made."""
    stop: Time = NEVER
    """When it ended."""
    host: String = ""
    """Address it comes from."""
    id: Sequence64 = 0
    """Number of the connection on its server."""
    acc: String = ""
    """The account."""
    svc: String = ""
    """The account that offers the service, when the request came from another one."""
    user: String = ""
    """The user."""
    name: String = ""
    """What the client calls itself."""
    lang: String = ""
    """The client library's language."""
    ver: String = ""
    """The client library's version."""
    rtt: Duration = Nanoseconds(0)
    """How long a message takes to it and back, in nanoseconds."""
    server: String = ""
    """The server it is connected to."""
    cluster: String = ""
    """The cluster of that server."""
    alts: tuple[String, ...] = ()
    """Other clusters, the nearest first."""
    jwt: String = ""
    """The user's JWT."""
    issuer_key: String = ""
    """Who signed it."""
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
    """What the client had to sign."""


class DomainEvent(Event):
    """One of a server."""

    domain: String = ""
    """The JetStream domain, if there is one."""


class StreamEvent(DomainEvent):
    """One of a stream."""

    stream: String
    """The stream."""


class ConsumerEvent(StreamEvent):
    """One of a consumer."""

    consumer: String
    """The consumer of that stream."""


class ServerEvent(DomainEvent):
    """One that names the server."""

    server: String
    """The server's name, or its id."""
