"""The way of a message, traced by the servers without delivering it: `JetStreamAdmin.trace`."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jetstream.admin.api import Api, publish_subject
from spark_jetstream.admin.messages import check_size, octets
from spark_jetstream.admin.models.trace import MessageTrace, TraceReport, trace_report
from spark_jetstream.admin.subscription import Headers, header_pairs
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.inbox import Inbox, Pairs
from spark_jetstream.errors import JetStreamError, OptionError, PermissionDenied
from spark_jetstream.options import advice
from spark_jetstream.protocol import commands, jsapi
from spark_jetstream.protocol.features import MESSAGE_TRACES, shown_version
from spark_jetstream.protocol.wire import Frames

_DESTINATION = "Nats-Trace-Dest"
_ONLY = "Nats-Trace-Only"
_TOKEN = "trace"
# A stream stages a message of an atomic batch without a look at Nats-Trace-Only (nats-server:
# server/stream.go, processJetStreamAtomicBatchMsg). With Accept-Encoding reports are compressed.
_REFUSED_HEADERS = ("nats-trace-", "nats-batch-", "accept-encoding")


def trace(
    api: Api,
    subject: str,
    data: str | bytes,
    headers: Headers | None,
    timeout: float | None,
) -> MessageTrace:
    """`JetStreamAdmin.trace`."""
    # It refuses $JS and $SYS, which matters here: a server carries out a request also when it is
    # traced (nats-server: server/client.go, deliverMsg, calls internal subscriptions all the same).
    # The trace of an acknowledgement would remove a message from a work queue.
    subject = publish_subject(subject)
    context = f"trace {subject}"
    content = octets(data, "data")
    pairs = header_pairs(headers)
    _check_headers(pairs)
    deadline = Deadline(api.options.request_timeout if timeout is None else timeout)
    connection = api.connection
    with connection.inbox(replies=True) as inbox:
        # After the inbox was made: its frames go out over the connection that it was made on, or
        # not at all. So no older server gets the message after a reconnect, and stores it.
        _need_traces(connection, context)
        reports_to = f"{inbox.subject}.{_TOKEN}"
        pairs = [*pairs, (_DESTINATION, reports_to), (_ONLY, "true")]
        check_size(connection, content, pairs, context)
        inbox.send(commands.publish(subject, content, headers=pairs))
        traced = _collect(connection, inbox, subject, deadline)
    first = traced.reports.get("")
    if first is not None and first.ingress is not None and first.ingress.error:
        raise PermissionDenied(f"cannot {context}: {first.ingress.error}", subject=subject)
    if not traced.reports:
        # Raises `ConnectionFailed` where a silent server is the reason.
        connection.check()
        raise jsapi.no_reply(context, deadline.seconds, advice.REQUEST_TIMEOUT)
    return traced


def _check_headers(pairs: Pairs) -> None:
    for name, _ in pairs:
        if name.lower().startswith(_REFUSED_HEADERS):
            raise OptionError(
                f"header {name} is not possible in a trace: the server would act on it"
            )


def _need_traces(connection: Connection, context: str) -> None:
    """Raise `JetStreamError` for a server that would deliver the message."""
    if connection.can(MESSAGE_TRACES):
        return
    raise JetStreamError(
        f"cannot {context}: this needs nats-server {MESSAGE_TRACES.since} or newer, and the server "
        f"is {shown_version(connection.server_version)}: it would store the message",
    )


def _collect(
    connection: Connection,
    inbox: Inbox,
    subject: str,
    deadline: Deadline,
) -> MessageTrace:
    """Return the reports that arrive until none is missing, or the time is over."""
    reports: dict[str, TraceReport] = {}
    traced = MessageTrace(subject, reports)
    while not traced.complete:
        try:
            frames = inbox.get(deadline.left)
        except PermissionDenied as error:
            _raise_own(error, connection, inbox, subject)
            continue
        if not isinstance(frames, Frames):
            break
        for _, payload in frames.parts():
            report = trace_report(payload, f"trace {subject}")
            reports[report.hop] = report
    return traced


def _raise_own(
    error: PermissionDenied,
    connection: Connection,
    inbox: Inbox,
    subject: str,
) -> None:
    """Raise the refusal of the traced message, or of the reports; others share the connection."""
    denied = error.subject or ""  # in lower case
    own: Sequence[str] = connection.spellings(subject)
    if denied in [name.lower() for name in own]:
        raise PermissionDenied(
            f"cannot trace {subject}: the account may not publish to it", subject=subject
        ) from None
    if denied.startswith(inbox.subject.lower()):
        inboxes = f"{connection.options.inbox_prefix}.>"
        raise PermissionDenied(
            f"cannot trace {subject}: the account may not publish to {inboxes} "
            f"{advice.INBOX_PREFIX}, where servers report in its name",
            subject=inboxes,
        ) from None
    # A refused subscription names the filter of inboxes.
    if denied == f"{connection.options.inbox_prefix}.>":
        raise error
