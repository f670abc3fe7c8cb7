"""The permissions that a job needs, and whether the account has them. The probes change nothing (docs/doctor.md).

A server looks at permissions before it reads a request. So the probes are requests that the server then refuses, or
that have no addressee:

- To the JetStream API goes the beginning of a JSON object. It must be one: a purge takes text that is no JSON as
  "everything" (seen with 2.15.1), and a pause takes it as "resume". Half an object is refused on every subject. For a
  purge it names a subject without messages, should a server ever take it for whole.
- To the subjects of rows goes a message that only a stream with an impossible name may store (`Nats-Expected-Stream`).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_jetstream.buckets import kv, objects
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import stream_info
from spark_jetstream.doctor.report import Finding, failed, ok, unknown, warning
from spark_jetstream.errors import JetStreamError, NoResponders, OptionError, PermissionDenied, RequestTimeout
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.values import did_you_mean
from spark_jetstream.permissions import Permission, merged, needed
from spark_jetstream.protocol.conventions import LEDGER_BUCKET

_ADMINISTER = ("admin-account", "admin-look", "admin-streams", "admin-consumers", "admin-messages")
_OF_STREAMS: Mapping[str, tuple[str, ...]] = {
    "read": ("read",),
    "direct": ("read-direct",),
    "durable": ("read", "durable"),
    "write": ("write",),
    "exactly-once": ("write-exactly-once",),
    "ensure": ("ensure-stream",),
    "administer": _ADMINISTER,
    "backup": ("admin-backup",),
    "restore": ("admin-restore",),
}
_OF_QUEUES = {"durable": ("read-direct", "durable-queue")}
_OF_OLD_SERVERS = {"durable": ("read", "durable-old")}
_OF_BUCKETS = {"read": ("kv-read",), "direct": ("kv-read-direct",), "write": ("kv-write",)}
_OF_OBJECTS = {"read": ("object-read",), "direct": ("object-read-direct",), "write": ("object-write",)}
_WITHOUT_STREAM = {"administer": _ADMINISTER}

PURPOSES = tuple(_OF_STREAMS)
"""The values of ``--for``."""
WRITING = frozenset({"write", "exactly-once"})

_HALF = b'{"spark-jetstream doctor":'
_HALF_PURGE = b'{"filter":"spark-jetstream.doctor.nothing","seq":1,"spark-jetstream doctor":'
_PURGE = "STREAM.PURGE."
_FINAL = ("STREAM.DELETE.", "CONSUMER.DELETE.")
# With a blank, which no stream can have in its name
_IMPOSSIBLE_STREAM = {"Nats-Expected-Stream": "spark-jetstream doctor"}
_DATA = ("$KV.", "$O.")
_TIMEOUT = 1.0  # seconds; a server refuses at once
_SILENT = ("CONSUMER.RESET.", "CONSUMER.PAUSE.", "CONSUMER.UNPIN.")
"""API subjects without a reply for a consumer that does not exist, or on an older server."""
_UNADDRESSED = ("CONSUMER.MSG.NEXT.", "DIRECT.GET.")
"""API subjects without a subscriber for a consumer that does not exist, or a stream that does not allow it."""


@dataclass(frozen=True)
class Job:
    """What a job does (some of `PURPOSES`) with a stream, a bucket, an object bucket, or none of them.

    ``subject`` is where rows go, and ``filters`` are option subjects of a read.
    """

    purposes: tuple[str, ...]
    stream: str | None = None
    bucket: str | None = None
    object_bucket: str | None = None
    subject: str | None = None
    filters: tuple[str, ...] = ()
    durable: str | None = None

    @classmethod
    def parse(
        cls,
        stream: str | None,
        bucket: str | None,
        object_bucket: str | None,
        purposes: Sequence[str],
        subject: str | None,
        filters: Sequence[str],
        durable: str | None,
    ) -> Job:
        """Return the job that a command line describes. Raises `OptionError`."""
        given = [name for name in (stream, bucket, object_bucket) if name is not None]
        if len(given) > 1:
            raise OptionError("--stream, --bucket and --object-bucket exclude each other", option="stream")
        wanted = list(purposes)
        if subject is not None and WRITING.isdisjoint(wanted):
            wanted.append("write")
        if durable is not None:
            wanted.append("durable")
        wanted = wanted or (["read"] if given else [])
        job = cls(tuple(dict.fromkeys(wanted)), stream, bucket, object_bucket, subject, tuple(filters), durable)
        for name in wanted:
            if name not in PURPOSES:
                hint = did_you_mean(name, PURPOSES, 0.0)
                raise OptionError(f"--for {name} is none of {', '.join(PURPOSES)}{hint}")
            if name not in job._sets:
                what = "a bucket" if given else "nothing: name a stream with --stream"
                raise OptionError(f"--for {name} has no meaning for {what}")
        if stream is not None and subject is None and not WRITING.isdisjoint(wanted):
            raise OptionError("--for write needs --subject, where rows are to go; it may have wildcards")
        return job

    @property
    def _sets(self) -> Mapping[str, tuple[str, ...]]:
        """The purposes that it can have, each with its sets of permissions."""
        if self.bucket is not None:
            return _OF_BUCKETS
        if self.object_bucket is not None:
            return _OF_OBJECTS
        return _OF_STREAMS if self.stream is not None else _WITHOUT_STREAM

    @property
    def stream_name(self) -> str | None:
        """The stream, or that of the bucket; None if there is none."""
        if self.bucket is not None:
            return f"KV_{self.bucket}"
        return objects.stream_name(self.object_bucket) if self.object_bucket is not None else self.stream

    def permissions(self, options: ConnectionOptions, *, queue: bool, old: bool) -> tuple[Permission, ...]:
        """Return the least permissions of the job. ``queue``: on a work queue; ``old``: with a server before 2.14."""
        changed = _OF_QUEUES if queue else _OF_OLD_SERVERS if old else {}
        table = {**self._sets, **changed}
        rows = () if self.subject is None else (self.subject,)
        sets = [
            needed(
                purpose,
                stream=self.stream or "*",
                bucket=self.bucket or self.object_bucket or "",
                subjects=rows if purpose in ("write", "write-exactly-once", "kv-write") else self.filters,
                durable=self.durable or "*",
                inbox_prefix=options.inbox_prefix,
                prefix=options.api_prefix_resolved,
            )
            for name in self.purposes
            for purpose in table[name]
        ]
        return merged(*sets)


def check_permissions(connection: Connection, lines: Iterable[Permission], *, clustered: bool) -> Iterator[Finding]:
    """Try each permission; that to receive replies comes first. ``clustered`` includes those that only a cluster needs.

    A finding names the subject to allow. It is failed if the job needs the permission in any case, else a warning.
    """
    no_replies = False
    for line in lines:
        if line.kind == "subscribe":
            yield (finding := _try_inbox(connection, line))
            no_replies = finding.status == "failed"
        elif line.when == "cluster" and not clustered:
            continue
        elif no_replies:
            yield unknown(line.subject, "cannot be tried while no replies can be received")
        else:
            yield _try_publish(connection, line)


def _try_inbox(connection: Connection, line: Permission) -> Finding:
    """Try to receive replies: a request subscribes to its inbox."""
    try:
        connection.request(
            f"{connection.prefix}.CONSUMER.MSG.NEXT.{_unused_name()}.x", _HALF, context="ask", timeout=_TIMEOUT
        )
    except PermissionDenied as error:
        if error.subject == line.subject:
            advice = f'allow it: subscribe {{ allow: ["{line.subject}"] }}, or set inboxPrefix'
            return failed(line.subject, "may not be subscribed to: no replies come", advice)
    except (NoResponders, RequestTimeout):
        return ok(line.subject, line.why)
    except JetStreamError as error:
        return unknown(line.subject, str(error))
    return ok(line.subject, line.why)


def _try_publish(connection: Connection, line: Permission) -> Finding:
    subject = _literal(line.subject)
    inner = subject.removeprefix(f"{connection.prefix}.")
    api = "" if inner == subject or inner.startswith(_DATA) else inner
    is_data = not api and not inner.startswith("$JS.")
    if api.startswith(_FINAL) and subject == line.subject:
        return unknown(line.subject, f"not tried, since it deletes what it names ({line.why})")
    half = _HALF_PURGE if api.startswith(_PURGE) else _HALF
    try:
        if api.startswith(_SILENT):
            _send(connection, subject)
        else:
            body, headers = (b"", _IMPOSSIBLE_STREAM) if is_data else (half, None)
            connection.request(subject, body, context=f"publish to {subject}", headers=headers)
    except PermissionDenied as error:
        if error.subject != subject:
            return unknown(line.subject, str(error))
        return _denied(line)
    except NoResponders:
        if is_data and not _of_ledger_to_come(connection, inner):
            said = "allowed, but no stream captures it: rows would not be stored"
            return failed(line.subject, said, "correct the subject, or add it to the subjects of a stream")
        if api and not api.startswith(_UNADDRESSED):
            said = "allowed, but no server replies there"
            advice = "correct option domain or apiPrefix; export and import it, if JetStream is another account's"
            return failed(line.subject, said, advice)
    except RequestTimeout as error:
        if is_data:
            said = "allowed, but no acknowledgement comes: rows would wait in vain"
            return failed(line.subject, said, "has the stream no_ack set, or does only a plain subscriber listen?")
        return failed(line.subject, f"not refused, but: {error}", "is a leader being elected? try again")
    except JetStreamError as error:
        return unknown(line.subject, str(error))
    return ok(line.subject, line.why)


def _of_ledger_to_come(connection: Connection, subject: str) -> bool:
    """Return whether a subject is of the ledger, and that is not there: the sink makes it before the first row.

    If the account may not look, the finding of that permission says so.
    """
    if not subject.startswith(f"$KV.{LEDGER_BUCKET}."):
        return False
    with contextlib.suppress(JetStreamError):
        stream_info(connection, kv.stream_name(LEDGER_BUCKET))
        return False
    return True


def _send(connection: Connection, subject: str) -> None:
    """Publish to a subject without replies. Raises `PermissionDenied`, which the server sends before a PONG."""
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
    """Return a subject that the filter matches, with names of nothing that exists instead of wildcards."""
    return ".".join(_unused_name() if token in ("*", ">") else token for token in subject.split("."))


def _unused_name() -> str:
    return f"spark-doctor-{uuid.uuid4().hex[:12]}"
