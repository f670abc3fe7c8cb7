"""Whether the account may do what something needs: each subject is tried, and nothing is changed.

A server looks at permissions before anybody reads a request. So requests are sent that are then refused, or have no
addressee:

- To the JetStream API goes the beginning of a JSON object. It must be one: to a purge, text that is no JSON at all
  means "everything" (seen with 2.15.1), and to a pause, "go on". Half an object is refused on every subject, on
  2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1. What the subject leaves open is named after nothing that exists. The half
  of a purge names a subject that has no messages, should a server ever take it for whole; and where a subject says
  nothing but which stream or consumer to delete, it is not tried.
- To the subjects of rows goes a message that only a stream with an impossible name may store (`Nats-Expected-Stream`).
  Whoever subscribes to the subject without JetStream sees it, an empty message.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

from spark_jetstream.client.connection import Connection
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, warning
from spark_jetstream.errors import JetStreamError, NoResponders, PermissionDenied, RequestTimeout
from spark_jetstream.permissions import Permission

_HALF = b'{"spark-jetstream doctor":'
_HALF_PURGE = b'{"filter":"spark-jetstream.doctor.nothing","seq":1,"spark-jetstream doctor":'
_PURGE = "STREAM.PURGE."
_FINAL = ("STREAM.DELETE.", "CONSUMER.DELETE.")
_NO_STREAM = {"Nats-Expected-Stream": "spark-jetstream doctor"}  # with a blank, which no stream can have in its name
_DATA = ("$KV.", "$O.")
_QUICKLY = 1.0  # seconds; a server says no at once
_SILENT = ("CONSUMER.RESET.", "CONSUMER.PAUSE.", "CONSUMER.UNPIN.")
"""API subjects where nobody answers for a consumer that is not there, or on an older server."""
_UNADDRESSED = ("CONSUMER.MSG.NEXT.", "DIRECT.GET.")
"""API subjects where nobody listens for a consumer that is not there, or a stream that does not allow it."""


def check_permissions(connection: Connection, lines: Iterable[Permission], *, clustered: bool) -> Iterator[Finding]:
    """Try each line that counts for a server in a cluster, or for one alone.

    What is denied names the subject to allow. It is failed if nothing works without it, else a warning.
    """
    deaf = False
    publishing = []
    for line in lines:
        if line.kind == "subscribe":
            yield (heard := _inbox(connection, line))
            deaf = heard.status == "failed"
        elif clustered or line.when != "cluster":
            publishing.append(line)
    for line in publishing:
        if deaf:
            yield unknown(line.subject, "cannot be told while no answers may be received")
        else:
            yield _publish(connection, line)


def _inbox(connection: Connection, line: Permission) -> Finding:
    """Whether answers may be received; requests subscribe to where they come."""
    try:
        connection.request(
            f"{connection.prefix}.CONSUMER.MSG.NEXT.{_unlikely()}.x", _HALF, context="ask", timeout=_QUICKLY
        )
    except PermissionDenied as error:
        if error.subject == line.subject:
            said = "may not be subscribed to: no answers come"
            return failed(
                line.subject, said, f'allow it: subscribe {{ allow: ["{line.subject}"] }}, or set inboxPrefix'
            )
    except (NoResponders, RequestTimeout):
        return ok(line.subject, line.why)
    except JetStreamError as error:
        return unknown(line.subject, str(error))
    return ok(line.subject, line.why)


def _publish(connection: Connection, line: Permission) -> Finding:
    subject = _literal(line.subject)
    api = subject.removeprefix(f"{connection.prefix}.") if subject.startswith(f"{connection.prefix}.") else ""
    is_api = bool(api) and not api.startswith(_DATA)
    is_data = not is_api and not subject.startswith("$JS.")
    if api.startswith(_FINAL) and subject == line.subject:
        return unknown(line.subject, f"not tried, since it deletes what it names ({line.why})")
    half = _HALF_PURGE if api.startswith(_PURGE) else _HALF
    try:
        if api.startswith(_SILENT):
            _send(connection, subject)
        else:
            body, headers = (b"", _NO_STREAM) if is_data else (half, None)
            connection.request(subject, body, context=f"publish to {subject}", headers=headers)
    except PermissionDenied as error:
        if error.subject != subject:
            return unknown(line.subject, str(error))
        return _denied(line)
    except NoResponders:
        if is_data:
            said = "allowed, but no stream captures it: rows would not be stored"
            return failed(line.subject, said, "correct the subject, or add it to the subjects of a stream")
        if is_api and not api.startswith(_UNADDRESSED):
            said = "allowed, but nobody answers there"
            advice = "correct option domain or apiPrefix; export and import it, if JetStream is another account's"
            return failed(line.subject, said, advice)
    except RequestTimeout as error:
        if is_data:
            said = "allowed, but nobody acknowledges it: rows would wait in vain"
            return failed(line.subject, said, "has the stream no_ack set, or is it a plain subscriber that listens?")
        return failed(line.subject, f"not refused, but: {error}", "is a leader being elected? try again")
    except JetStreamError as error:
        return unknown(line.subject, str(error))
    return ok(line.subject, line.why)


def _send(connection: Connection, subject: str) -> None:
    """Publish where nobody may answer. `PermissionDenied` if the server refuses it, which it says before a ping is
    answered."""
    with connection.inbox(whole=True) as inbox:
        inbox.publish(subject, _HALF, 1)
        # Twice: the client library sends a ping in front of what it has not sent yet.
        connection.check(connection.options.request_timeout)
        connection.check(connection.options.request_timeout)
        inbox.get(0.0)


def _denied(line: Permission) -> Finding:
    advice = f'allow it: publish {{ allow: ["{line.subject}"] }}'
    case = f" ({line.when})" if line.when else ""
    if line.without:
        return warning(line.subject, f"denied: {line.why}{case}; without it {line.without}", advice)
    if line.when:
        return warning(line.subject, f"denied: {line.why}, only needed for: {line.when}", advice)
    return failed(line.subject, f"denied: {line.why}", advice)


def _literal(subject: str) -> str:
    """A subject that a filter matches, with names of nothing that exists in the place of wildcards."""
    return ".".join(_unlikely() if token in ("*", ">") else token for token in subject.split("."))


def _unlikely() -> str:
    return f"spark-doctor-{uuid.uuid4().hex[:12]}"
