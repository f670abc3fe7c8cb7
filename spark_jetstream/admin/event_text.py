"""Events as text (a line, all fields, a template), as JSON, and as CloudEvents 1.0. Pure."""

from __future__ import annotations

import base64
import functools
import json
import re
import string
from collections.abc import Collection, Iterator, Mapping
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
    """Return an event as a line: time, kind and text; `brief` of `LONGEST_MESSAGE` characters."""
    return brief(f"{_clock(event.timestamp)} {event.kind} {_text(event)}", LONGEST_MESSAGE)


def event_details(event: Event) -> str:
    """Return the line of `event_line`, and a line for each field, as ``client.user: alice``."""
    lines = [event_line(event)]
    for name, value in _fields(event_json(event)):
        lines.append(f"  {name}: {brief(str(value), LONGEST_MESSAGE)}")
    return "\n".join(lines)


class EventTemplate(string.Formatter):
    """A text with fields of events in braces, such as ``{timestamp} {kind} {client.user:>10}``.

    The names are those of `event_details`, and ``kind`` and ``line`` (that of `event_line`). A
    field that an event does not have is empty.
    """

    def __init__(self, text: str) -> None:
        """Raises `OptionError` for a text that is no template."""
        self._text = text
        try:
            for _, name, form, _ in self.parse(text):
                if name == "" or "{" in (form or ""):
                    raise ValueError("a field has no name, or another field in its format")
            # Every field is empty here: a format that is not
            # possible fails now, not at the first event.
            self.vformat(text, (), {})
        except ValueError as error:
            problem = f"template {text!r} is not possible: {error}"
            raise OptionError(problem, option="template") from None

    def __call__(self, event: Event) -> str:
        """Return the text with the fields of an event, each `brief`."""
        named = dict(_fields(event_json(event)))
        named["kind"] = event.kind
        named["line"] = event_line(event)
        return self.vformat(self._text, (), named)

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return a field by its whole name: dots and brackets look up nothing in Python."""
        return brief(str(kwargs.get(field_name, "")), LONGEST_MESSAGE), field_name


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values of an object of JSON; names of nested objects have dots."""
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
    """Return an event as a CloudEvent 1.0 in its JSON format.

    The message of an `UnknownEvent` is ``data_base64``.
    """
    cloud: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": SOURCE,
        "type": event.type,
    }
    if event.published_on:
        cloud["subject"] = event.published_on
    if not event.timestamp.never:
        cloud["time"] = str(event.timestamp)
    # CloudEvents 1.0: `data` is JSON, and bytes that are none go into `data_base64`.
    if isinstance(event, UnknownEvent):
        cloud["datacontenttype"] = "application/octet-stream"
        cloud["data_base64"] = base64.b64encode(event.data).decode()
    else:
        cloud["datacontenttype"] = "application/json"
        cloud["data"] = event_json(event)
    return cloud


def _clock(time: Timestamp) -> str:
    """Return a time with three digits after the second, if it has any."""
    if time.never:
        return "-"
    return re.sub(r"\.([0-9]*)", lambda fraction: f".{fraction[1][:3]:0<3}", time)


def _after(words: str, text: str) -> str:
    """Return a text after these words; nothing if there is no text."""
    return f"{words}{text}" if text else ""


def _consumer(event: ConsumerEvent) -> str:
    return f"consumer {event.consumer} of stream {event.stream}"


def _message(event: events.DeliveryEvent | events.MaxDeliver) -> str:
    times = f"delivery {event.deliveries}" if event.deliveries > 1 else "first delivery"
    message = f"message {event.stream_seq} of stream {event.stream}"
    return f"{message} ({times} to consumer {event.consumer})"


def _client(client: ClientInfo | None) -> str:
    """Return the user or client, as far as the server tells."""
    if client is None:
        return "an unknown client"
    who = client.user or client.name or client.client_id or f"client {client.id}"
    at = _after(" at ", client.host)
    return f"{who}{at} (account {client.acc or 'unknown'})"


def _error(response: str) -> str:
    """Return the error of a reply of the API, or an empty text."""
    try:
        error = json_object(response).get("error")
        return str(error["description"]) if error else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _done(action: str) -> str:
    known = {"create": "was created", "modify": "was changed", "delete": "was deleted"}
    return known.get(action, f"saw {action}")


def _led(what: str, event: Any) -> str:
    named = event.leader
    for replica in event.replicas:
        # The leader of a domain is given by its id.
        if replica.peer == event.leader:
            named = replica.name
            break
    return f"{named or 'no server'} leads {what} now, {_servers(event)}"


def _stalled(what: str, event: Any) -> str:
    away = set()
    for replica in event.replicas:
        if replica.offline or not replica.current:
            away.add(replica.name)
    return f"{what} has no leader, most of its servers are away: {_servers(event, away)}"


def _servers(event: Any, away: Collection[str] = ()) -> str:
    names = []
    for replica in event.replicas:
        mark = " (away)" if replica.name in away else ""
        names.append(f"{replica.name}{mark}")
    return f"servers {', '.join(names)}" if names else "no other servers"


@functools.singledispatch
def _text(event: Event) -> str:
    """Return the text of an event: all fields for one of an unknown type."""
    fields = event_json(event).items()
    rest = {name: value for name, value in fields if name not in Event.model_fields}
    return json.dumps(rest, ensure_ascii=False)


@_text.register
def _(event: Gap) -> str:
    if event.lost:
        return f"{event.lost:,} events were lost: {event.reason}"
    since = _clock(event.since)
    if event.until is None:
        return f"events may be missing since {since}: {event.reason}"
    return f"events may be missing from {since} to {_clock(event.until)}: {event.reason}"


@_text.register
def _(event: UnknownEvent) -> str:
    text = event.data[:_LONGEST].decode("utf-8", "backslashreplace")
    more = "..." if len(event.data) > _LONGEST else ""
    return f"a message on {event.subject} is no event ({event.reason}): {text}{more}"


@_text.register
def _(event: events.ApiAudit) -> str:
    error = _error(event.response)
    refusal = _after(", refused: ", error)
    return f"{_client(event.client)} asked {event.subject}{refusal}"


@_text.register
def _(event: events.ApiLimitReached) -> str:
    return f"server {event.server} dropped {event.dropped:,} requests to the JetStream API"


@_text.register
def _(event: events.StreamAction) -> str:
    return f"stream {event.stream} {_done(event.action)}"


@_text.register
def _(event: events.ConsumerAction) -> str:
    return f"{_consumer(event)} {_done(event.action)}"


@_text.register
def _(event: events.ConsumerPause) -> str:
    if event.paused:
        return f"{_consumer(event)} is paused until {event.pause_until}"
    return f"{_consumer(event)} delivers again"


@_text.register
def _(event: events.MaxDeliver) -> str:
    return f"{_message(event)} is given up"


@_text.register
def _(event: events.Nak) -> str:
    return f"{_message(event)} was refused, and will be delivered again"


@_text.register
def _(event: events.Terminated) -> str:
    reason = _after(": ", event.reason)
    return f"{_message(event)} was refused for good{reason}"


@_text.register
def _(event: events.ConsumerAck) -> str:
    return f"{_message(event)} was acknowledged after {event.ack_time}"


@_text.register
def _(event: events.ConsumerPinned) -> str:
    return f"group {event.group} of {_consumer(event)} goes to client {event.pinned_id}"


@_text.register
def _(event: events.ConsumerUnpinned) -> str:
    group = f"group {event.group} of {_consumer(event)}"
    return f"{group} goes to no client any more ({event.reason})"


@_text.register
def _(event: events.SnapshotCreate) -> str:
    stream = f"stream {event.stream} ({event.state.messages:,} messages)"
    return f"a backup of {stream} was begun by {_client(event.client)}"


@_text.register
def _(event: events.SnapshotComplete) -> str:
    end = f"failed: {event.error}" if event.error else "ended"
    return f"the backup of stream {event.stream} that began at {_clock(event.start)} {end}"


@_text.register
def _(event: events.RestoreCreate) -> str:
    return f"a restore of stream {event.stream} was begun by {_client(event.client)}"


@_text.register
def _(event: events.RestoreComplete) -> str:
    return f"the restore of stream {event.stream} ended, with {int(event.bytes):,} bytes"


@_text.register
def _(event: events.StreamBatchAbandoned) -> str:
    return f"batch {event.batch} for stream {event.stream} was not stored ({event.reason})"


@_text.register
def _(event: events.StreamLeaderElected) -> str:
    return _led(f"stream {event.stream}", event)


@_text.register
def _(event: events.StreamQuorumLost) -> str:
    return _stalled(f"stream {event.stream}", event)


@_text.register
def _(event: events.ConsumerLeaderElected) -> str:
    return _led(_consumer(event), event)


@_text.register
def _(event: events.ConsumerQuorumLost) -> str:
    return _stalled(_consumer(event), event)


@_text.register
def _(event: events.DomainLeaderElected) -> str:
    return _led(f"the JetStream of cluster {event.cluster or 'unknown'}", event)


@_text.register
def _(event: events.ServerOutOfSpace) -> str:
    stream = _after(" for stream ", event.stream)
    return f"server {event.server} has no room left on its disk{stream}"


@_text.register
def _(event: events.ServerRemoved) -> str:
    return f"server {event.server} was removed from cluster {event.cluster or 'unknown'}"


@_text.register
def _(event: events.MetaRescue) -> str:
    quorums = f"from {event.prev_quorum} to {event.new_quorum}"
    return f"server {event.server} lowered how many servers must agree {quorums}"


@_text.register
def _(event: events.ClientConnect) -> str:
    return f"{_client(event.client)} connected to server {event.server.name}"


@_text.register
def _(event: events.ClientDisconnect) -> str:
    return f"{_client(event.client)} left server {event.server.name}: {event.reason}"


@_text.register
def _(event: events.AccountConnections) -> str:
    return f"account {event.acc} has {event.conns:,} connections to server {event.server.name}"


@_text.register
def _(event: events.ServiceLatency) -> str:
    description = _after(": ", event.description)
    waited = f"{_client(event.requestor)} waited {event.total}"
    return f"{waited}, {event.service} of it for {_client(event.responder)}{description}"
