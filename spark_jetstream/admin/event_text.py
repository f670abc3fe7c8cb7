"""Events as text, in a line, with all fields or as a template has it, as JSON, and as CloudEvents 1.0. Pure."""

from __future__ import annotations

import base64
import json
import re
import string
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from spark_jetstream.admin.models import events
from spark_jetstream.admin.models.events import ClientInfo, ConsumerEvent, Event, Gap, UnknownEvent
from spark_jetstream.errors import LONGEST_MESSAGE, OptionError, brief
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.units import Timestamp

SOURCE = "urn:nats:jetstream"
"""The source of all CloudEvents of JetStream; the ``nats`` command has the same."""

_LONGEST = 200  # characters of a message that is no event


def event_line(event: Event) -> str:
    """Return an event as a line of text: time, kind, and what happened; `brief` of `LONGEST_MESSAGE` characters."""
    text = _TEXTS.get(type(event), _plain)
    return brief(f"{_clock(event.timestamp)} {event.kind} {text(event)}", LONGEST_MESSAGE)


def event_details(event: Event) -> str:
    """Return the line of `event_line`, and a line for each field that the event has, as ``client.user: alice``."""
    fields = (f"  {name}: {brief(str(value), LONGEST_MESSAGE)}" for name, value in _fields(event_json(event)))
    return "\n".join([event_line(event), *fields])


class EventTemplate(string.Formatter):
    """A text with fields of events in braces, such as ``{timestamp} {kind} {client.user:>10}``.

    The names are those of `event_details`, and ``kind`` and ``line`` (that of `event_line`). A field that an event does
    not have is empty.
    """

    def __init__(self, text: str) -> None:
        """Raises `OptionError` for a text that is no template."""
        self._text = text
        try:
            if any(name == "" or "{" in (form or "") for _, name, form, _ in self.parse(text)):
                raise ValueError("a field has no name, or another field in its format")
            self.vformat(text, (), {})
        except ValueError as error:
            raise OptionError(f"template {text!r} is not possible: {error}", option="template") from None

    def __call__(self, event: Event) -> str:
        """Return the text with the fields of an event; `brief` of `LONGEST_MESSAGE` characters each."""
        named = {**dict(_fields(event_json(event))), "kind": event.kind, "line": event_line(event)}
        return self.vformat(self._text, (), named)

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return a field by its whole name: dots and brackets look up nothing in Python."""
        return brief(str(kwargs.get(field_name, "")), LONGEST_MESSAGE), field_name


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values of an object of JSON; those inside of others have both names, with a dot."""
    for key, field in value.items():
        if isinstance(field, dict):
            yield from _fields(field, f"{name}{key}.")
        else:
            yield f"{name}{key}", field


def event_json(event: Event) -> dict[str, Any]:
    """Return an event as the server sent it; a `Gap` and an `UnknownEvent` by their fields."""
    if event.raw and not isinstance(event, UnknownEvent):
        body: dict[str, Any] = json.loads(event.raw)
        return body
    return event.model_dump(mode="json", exclude_unset=True)


def cloud_event(event: Event) -> dict[str, Any]:
    """Return an event as a CloudEvent 1.0 in its JSON format; the message of an `UnknownEvent` is ``data_base64``."""
    cloud: dict[str, Any] = {"specversion": "1.0", "id": event.id, "source": SOURCE, "type": event.type}
    if event.published_on:
        cloud["subject"] = event.published_on
    if not event.timestamp.never:
        cloud["time"] = str(event.timestamp)
    if isinstance(event, UnknownEvent):
        encoded = base64.b64encode(event.data).decode()
        return {**cloud, "datacontenttype": "application/octet-stream", "data_base64": encoded}
    return {**cloud, "datacontenttype": "application/json", "data": event_json(event)}


def _clock(time: Timestamp) -> str:
    """Return a time with three digits after the second, if it has any."""
    if time.never:
        return "-"
    return re.sub(r"\.([0-9]*)", lambda fraction: f".{fraction[1][:3]:0<3}", time)


def _plain(event: Event) -> str:
    """Return all fields of an event of an unknown type."""
    rest = {name: value for name, value in event_json(event).items() if name not in Event.model_fields}
    return json.dumps(rest, ensure_ascii=False)


def _consumer(event: ConsumerEvent) -> str:
    return f"consumer {event.consumer} of stream {event.stream}"


def _message(event: events.DeliveryEvent | events.MaxDeliver) -> str:
    times = f"delivery {event.deliveries}" if event.deliveries > 1 else "first delivery"
    return f"message {event.stream_seq} of stream {event.stream} ({times} to consumer {event.consumer})"


def _client(client: ClientInfo | None) -> str:
    """Return the user or client, as far as the server tells."""
    if client is None:
        return "an unknown client"
    who = client.user or client.name or client.client_id or f"client {client.id}"
    at = f" at {client.host}" if client.host else ""
    return f"{who}{at} (account {client.acc or 'unknown'})"


def _audit(event: events.ApiAudit) -> str:
    error = _error(event.response)
    return f"{_client(event.client)} asked {event.subject}{f', refused: {error}' if error else ''}"


def _error(response: str) -> str:
    """Return the error of a reply of the API, or an empty text."""
    try:
        error = json_object(response).get("error")
        return str(error["description"]) if error else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _done(action: str) -> str:
    return {"create": "was created", "modify": "was changed", "delete": "was deleted"}.get(action, f"saw {action}")


def _led(what: str, event: Any) -> str:
    # A domain's leader is given by its id.
    named = next((replica.name for replica in event.replicas if replica.peer == event.leader), event.leader)
    return f"{named or 'no server'} leads {what} now, {_servers(event)}"


def _stalled(what: str, event: Any) -> str:
    away = {replica.name for replica in event.replicas if replica.offline or not replica.current}
    return f"{what} has no leader, most of its servers are away: {_servers(event, away)}"


def _servers(event: Any, away: Collection[str] = ()) -> str:
    names = [f"{replica.name}{' (away)' if replica.name in away else ''}" for replica in event.replicas]
    return f"servers {', '.join(names)}" if names else "no other servers"


def _gap(event: Gap) -> str:
    if event.lost:
        return f"{event.lost:,} events were lost: {event.reason}"
    if event.until is None:
        return f"events may be missing since {_clock(event.since)}: {event.reason}"
    return f"events may be missing from {_clock(event.since)} to {_clock(event.until)}: {event.reason}"


def _unknown(event: UnknownEvent) -> str:
    text = event.data[:_LONGEST].decode("utf-8", "backslashreplace")
    more = "..." if len(event.data) > _LONGEST else ""
    return f"a message on {event.subject} is no event ({event.reason}): {text}{more}"


_TEXTS: Mapping[type[Event], Callable[[Any], str]] = {
    events.ApiAudit: _audit,
    events.ApiLimitReached: lambda e: f"server {e.server} dropped {e.dropped:,} requests to the JetStream API",
    events.StreamAction: lambda e: f"stream {e.stream} {_done(e.action)}",
    events.ConsumerAction: lambda e: f"{_consumer(e)} {_done(e.action)}",
    events.ConsumerPause: lambda e: (
        f"{_consumer(e)} {f'is paused until {e.pause_until}' if e.paused else 'delivers again'}"
    ),
    events.MaxDeliver: lambda e: f"{_message(e)} is given up",
    events.Nak: lambda e: f"{_message(e)} was refused, and will be delivered again",
    events.Terminated: lambda e: f"{_message(e)} was refused for good{f': {e.reason}' if e.reason else ''}",
    events.ConsumerAck: lambda e: f"{_message(e)} was acknowledged after {e.ack_time}",
    events.ConsumerPinned: lambda e: f"group {e.group} of {_consumer(e)} goes to client {e.pinned_id}",
    events.ConsumerUnpinned: lambda e: f"group {e.group} of {_consumer(e)} goes to no client any more ({e.reason})",
    events.SnapshotCreate: lambda e: (
        f"a backup of stream {e.stream} ({e.state.messages:,} messages) was begun by {_client(e.client)}"
    ),
    events.SnapshotComplete: lambda e: (
        f"the backup of stream {e.stream} that began at {_clock(e.start)} "
        f"{f'failed: {e.error}' if e.error else 'ended'}"
    ),
    events.RestoreCreate: lambda e: f"a restore of stream {e.stream} was begun by {_client(e.client)}",
    events.RestoreComplete: lambda e: f"the restore of stream {e.stream} ended, with {int(e.bytes):,} bytes",
    events.StreamBatchAbandoned: lambda e: f"batch {e.batch} for stream {e.stream} was not stored ({e.reason})",
    events.StreamLeaderElected: lambda e: _led(f"stream {e.stream}", e),
    events.StreamQuorumLost: lambda e: _stalled(f"stream {e.stream}", e),
    events.ConsumerLeaderElected: lambda e: _led(_consumer(e), e),
    events.ConsumerQuorumLost: lambda e: _stalled(_consumer(e), e),
    events.DomainLeaderElected: lambda e: _led(f"the JetStream of cluster {e.cluster or 'unknown'}", e),
    events.ServerOutOfSpace: lambda e: (
        f"server {e.server} has no room left on its disk{f' for stream {e.stream}' if e.stream else ''}"
    ),
    events.ServerRemoved: lambda e: f"server {e.server} was removed from cluster {e.cluster or 'unknown'}",
    events.MetaRescue: lambda e: (
        f"server {e.server} lowered how many servers must agree from {e.prev_quorum} to {e.new_quorum}"
    ),
    events.ClientConnect: lambda e: f"{_client(e.client)} connected to server {e.server.name}",
    events.ClientDisconnect: lambda e: f"{_client(e.client)} left server {e.server.name}: {e.reason}",
    events.AccountConnections: lambda e: f"account {e.acc} has {e.conns:,} connections to server {e.server.name}",
    events.ServiceLatency: lambda e: (
        f"{_client(e.requestor)} waited {e.total}, {e.service} of it for {_client(e.responder)}"
        f"{f': {e.description}' if e.description else ''}"
    ),
    Gap: _gap,
    UnknownEvent: _unknown,
}
