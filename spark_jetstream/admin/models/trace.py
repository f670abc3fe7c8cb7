"""The way of a message through servers, accounts and streams, as the servers report it (ADR-41). Pure.

Each server that a traced message comes to reports once. Its report lists, in order, all that it did
with the message: the classes below `TraceEvent`. Field names are those of the server
(nats-server: server/msgtrace.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from spark_jetstream.admin.models.base import Boolean, Count, Model, Sequence64, String, Time
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.json_text import json_object

HOP = "Nats-Trace-Hop"
"""The header that numbers the way to a server: ``1.2`` is the second link of the first one."""
LINK_KINDS: Mapping[int, str] = {1: "route", 2: "gateway", 4: "leaf node"}
"""Kinds of connections that lead to another server (nats-server: server/client.go)."""
_KINDS = {0: "client", **LINK_KINDS, 3: "system", 5: "jetstream", 6: "account"}
_NO_REPORT = "the message is not a server's report"
_KNOWN: dict[str, type[TraceEvent]] = {}


def kind_name(kind: int) -> str:
    """Return the name of a kind of connection; its number for one of a newer server."""
    return _KINDS.get(kind, f"kind {kind}")


class TracedServer(Model):
    """A server that a traced message reached."""

    name: String
    """Its name."""
    id: String = ""
    """Its id."""
    ver: String = ""
    """Its version."""
    cluster: String = ""
    """The cluster that it belongs to."""
    domain: String = ""
    """The domain of its JetStream."""


class TraceEvent(Model):
    """Something that a server did with a traced message.

    One of a type that this version does not know has its further fields in ``model_extra``.
    """

    TYPE: ClassVar[str] = ""

    type: String
    """Which kind of event this is, in two letters."""
    ts: Time
    """When it happened, by the server's clock."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Enter a type that servers send."""
        super().__init_subclass__(**kwargs)
        _KNOWN[cls.TYPE] = cls


class TraceIngress(TraceEvent):
    """The server received the message."""

    TYPE: ClassVar[str] = "in"

    kind: Count
    """The kind of the connection that brought it: see `kind_name`."""
    cid: Sequence64
    """The number of the connection."""
    name: String = ""
    """The name of the client, or of the server at the other end."""
    acc: String
    """The account of the connection."""
    subj: String
    """The subject."""
    error: String = ""
    """Why the message was refused; empty if it was not."""


class TraceMapping(TraceEvent):
    """A mapping of the account has changed the subject."""

    TYPE: ClassVar[str] = "sm"

    to: String
    """The new subject."""


class TraceServiceImport(TraceEvent):
    """The account imports a service of another account, which gets the message."""

    TYPE: ClassVar[str] = "si"

    acc: String
    """The account that exports the service."""
    source: String = Field(validation_alias="from", serialization_alias="from")
    """The subject in the importing account (``from`` on the wire)."""
    to: String
    """The subject in the exporting account."""


class TraceStreamExport(TraceEvent):
    """The account exports these subjects (core NATS) to another account, which gets the message."""

    TYPE: ClassVar[str] = "se"

    acc: String
    """The account that imports them."""
    to: String
    """The subject there."""


class TraceCapture(TraceEvent):
    """A stream would store the message."""

    TYPE: ClassVar[str] = "js"

    stream: String
    """The stream."""
    subject: String = ""
    """The subject that it would be stored at, which is that of a transform of the stream if it has one."""
    nointerest: Boolean = False
    """Whether the stream would drop it, because it keeps messages for consumers and has none."""
    error: String = ""
    """Why the stream would refuse it; empty if it would not."""


class TraceEgress(TraceEvent):
    """The message would go out, to a subscriber or to another server."""

    TYPE: ClassVar[str] = "eg"

    kind: Count
    """The kind of the connection: see `kind_name`."""
    cid: Sequence64
    """The number of the connection."""
    name: String = ""
    """The name of the client, or of the server at the other end."""
    hop: String = ""
    """The number of this link, by which the server at the other end reports; empty for a client."""
    acc: String = ""
    """The account of the connection, if it is another one than that of the ingress."""
    sub: String = ""
    """The subscription of a client."""
    queue: String = ""
    """The queue group of a client."""
    error: String = ""
    """Why the message would not go out; empty if it would."""

    @property
    def to_server(self) -> bool:
        """Whether the connection leads to another server."""
        return self.kind in LINK_KINDS


@dataclass(frozen=True)
class TraceReport:
    """The report of one server; ``hop`` is empty for the server that the message was published to."""

    server: TracedServer
    hop: str
    events: tuple[TraceEvent, ...]
    raw: Mapping[str, Any]
    """The report as the server sent it."""

    @property
    def expected_hops(self) -> tuple[str, ...]:
        """The hops of the servers that it has sent the message to, each of which reports."""
        # The hop of a link continues that of its server: any other one would lead in a circle.
        beginning = f"{self.hop}." if self.hop else ""
        hops = []
        for event in self.events:
            if not isinstance(event, TraceEgress) or event.error:
                continue
            if event.hop and event.hop.startswith(beginning):
                hops.append(event.hop)
        return tuple(hops)

    @property
    def captures(self) -> tuple[TraceCapture, ...]:
        """The streams of this server; of several without subject, interest and error."""
        found = [event for event in self.events if isinstance(event, TraceCapture)]
        if len(found) < 2:
            return tuple(found)
        # All of them write into the event of the last one (nats-server: server/msgtrace.go,
        # addJetStreamEvent and updateJetStreamEvent), so its fields may be those of another stream.
        unknown = {"subject": "", "nointerest": False, "error": ""}
        return tuple(event.model_copy(update=unknown) for event in found)

    @property
    def ingress(self) -> TraceIngress | None:
        """How the server received the message; None for a report without it."""
        return next((event for event in self.events if isinstance(event, TraceIngress)), None)


@dataclass(frozen=True)
class TracedStream:
    """A stream that would store a traced message, and the server that leads it.

    ``subject`` is where it would be stored, ``dropped`` whether the stream has no consumer to keep
    it for, and ``error`` why it would be refused. They are empty where several streams of one
    server would store the message: the server does not tell them apart.
    """

    stream: str
    server: TracedServer
    subject: str
    dropped: bool
    error: str

    @property
    def name(self) -> str:
        """The stream with its domain, if it has one."""
        domain = self.server.domain
        return f"{self.stream} (domain {domain})" if domain else self.stream


@dataclass(frozen=True)
class MessageTrace:
    """The way that a message to ``subject`` takes; the message itself was not delivered.

    ``reports`` are those of the servers by their hop, the first one under ``""``.
    """

    subject: str
    reports: Mapping[str, TraceReport]

    @property
    def missing(self) -> tuple[str, ...]:
        """The hops of servers that have not reported, ``""`` for the first server."""
        expected = [""]
        for report in self.reports.values():
            expected += report.expected_hops
        return tuple(hop for hop in expected if hop not in self.reports)

    @property
    def complete(self) -> bool:
        """Whether each server that the message reached has reported."""
        return not self.missing

    @property
    def blind_spots(self) -> tuple[str, ...]:
        """The parts of the way that are not known, in words; empty if all of it is known."""
        return tuple(self._blind_spots())

    @property
    def streams(self) -> tuple[TracedStream, ...]:
        """The streams that would store the message, in the order of the way."""
        found = []
        for report in self.walk():
            for event in report.captures:
                found.append(
                    TracedStream(
                        event.stream,
                        report.server,
                        event.subject,
                        event.nointerest,
                        event.error,
                    )
                )
        return tuple(found)

    @property
    def subscribers(self) -> tuple[TraceEgress, ...]:
        """The subscriptions of clients that would get the message, in the order of the way."""
        found = []
        for report in self.walk():
            for event in report.events:
                if isinstance(event, TraceEgress) and not (event.to_server or event.error):
                    found.append(event)
        return tuple(found)

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that it comes to, each once, in the order of the way."""
        found = []
        for report in self.walk():
            for event in report.events:
                if isinstance(event, (TraceIngress, TraceServiceImport, TraceStreamExport)):
                    found.append(event.acc)
        return tuple(dict.fromkeys(found))

    def walk(self, hop: str = "") -> Iterator[TraceReport]:
        """Yield the reports from a hop on, each server before those that it sends the message to."""
        report = self.reports.get(hop)
        if report is None:
            return
        yield report
        for onward in report.expected_hops:
            yield from self.walk(onward)

    def data(self, hop: str = "") -> dict[str, Any]:
        """Return the report of a hop as the server sent it; each link has the next one as ``link``."""
        report = self.reports[hop]
        events = []
        for event in report.raw["events"]:
            onward = event.get("hop", "")
            if onward in report.expected_hops and onward in self.reports:
                events.append({**event, "link": self.data(onward)})
            else:
                events.append(event)
        return {**report.raw, "events": events}

    def _blind_spots(self) -> Iterator[str]:
        for hop in self.missing:
            yield f"the server of hop {hop} has not reported" if hop else "no server has reported"
        for report in self.walk():
            if report.ingress is not None and report.ingress.error:
                yield f"server {report.server.name}: {report.ingress.error}"
            if len(report.captures) > 1:
                streams = ", ".join(event.stream for event in report.captures)
                yield f"server {report.server.name}: which of the streams {streams} refuse or drop it"
            for event, following in _followed(report.events):
                yield from _blind_spot(event, following)


def _blind_spot(event: TraceEvent, following: TraceEvent | None) -> Iterator[str]:
    """Yield in words that the way after an event is not known, if it is not."""
    if isinstance(event, TraceEgress) and event.to_server and event.error:
        yield f"{kind_name(event.kind)} {event.name}: {event.error}"
    # A server reports the same for an account that does nothing with the message, and for one that
    # may not be traced.
    ends = not isinstance(following, (TraceCapture, TraceEgress))
    if isinstance(event, (TraceServiceImport, TraceStreamExport)) and ends:
        yield (
            f"account {event.acc} may do more with it: a trace ends at an import or export without "
            "allow_trace"
        )


def _followed(
    events: Iterable[TraceEvent],
) -> Iterator[tuple[TraceEvent, TraceEvent | None]]:
    """Yield each event with the one after it, None for the last one."""
    items = list(events)
    return zip(items, [*items[1:], None], strict=True)


def trace_report(payload: bytes, context: str) -> TraceReport:
    """Return the report of a server from its message. Raises `ProtocolError`.

    ``context`` is an infinitive without "to".
    """
    try:
        body = json_object(payload)
        events = body["events"]
        hop = body.get("request", {}).get("header", {}).get(HOP, [""])[0]
    # A client that guesses the inbox may send anything.
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ProtocolError(f"cannot {context}: {_NO_REPORT}") from error
    server = body.get("server")
    if not (isinstance(events, list) and isinstance(hop, str) and isinstance(server, dict)):
        raise ProtocolError(f"cannot {context}: {_NO_REPORT}")
    return TraceReport(
        server=TracedServer.from_server(server, context),
        hop=hop,
        events=tuple(_event(event, context) for event in events),
        raw=body,
    )


def _event(body: Any, context: str) -> TraceEvent:
    """Return an event of a report. Raises `ProtocolError`."""
    if not isinstance(body, dict):
        raise ProtocolError(f"cannot {context}: an event of the trace is no JSON object")
    kind = body.get("type")
    model = _KNOWN.get(kind, TraceEvent) if isinstance(kind, str) else TraceEvent
    return model.from_server(body, context)
