"""The permissions that a job needs, and whether the user has them: what the server lists for it (docs/doctor.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from spark_jetstream.admin.models.base import Duration, Model, String, Time
from spark_jetstream.admin.models.streams import StreamSource
from spark_jetstream.buckets import objects
from spark_jetstream.client.connection import Connection
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, warning
from spark_jetstream.errors import JetStreamError, OptionError, PermissionDenied
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.values import did_you_mean
from spark_jetstream.permissions import Permission, merged, needed
from spark_jetstream.protocol.subjects import covers, subjects_overlap

_ADMINISTER = ("admin-account", "admin-look", "admin-streams", "admin-consumers", "admin-messages")
_OF_STREAMS: Mapping[str, tuple[str, ...]] = {
    "read": ("read",),
    "direct": ("read-direct",),
    "durable": ("read", "durable"),  # or others: `Job.permissions`
    "write": ("write",),
    "exactly-once": ("write-exactly-once",),
    "ensure": ("ensure-stream",),
    "administer": _ADMINISTER,
    "backup": ("admin-backup",),
    "restore": ("admin-restore",),
}
_OF_BUCKETS = {"read": ("kv-read",), "direct": ("kv-read-direct",), "write": ("kv-write",)}
_OF_OBJECTS = {"read": ("object-read",), "direct": ("object-read-direct",), "write": ("object-write",)}
_WITHOUT_STREAM = {"administer": _ADMINISTER}

PURPOSES = tuple(_OF_STREAMS)
"""The values of ``--for``."""
WRITING = frozenset({"write", "exactly-once"})

WHO_AM_I = "$SYS.REQ.USER.INFO"


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

    def completed(self) -> Job:
        """Return the job with the purposes that its other fields imply. Raises `OptionError`."""
        named = [name for name in (self.stream, self.bucket, self.object_bucket) if name is not None]
        if len(named) > 1:
            raise OptionError("--stream, --bucket and --object-bucket exclude each other", option="stream")
        wanted = list(self.purposes)
        if self.subject is not None and WRITING.isdisjoint(wanted):
            wanted.append("write")
        if self.durable is not None:
            wanted.append("durable")
        wanted = wanted or (["read"] if named else [])
        for name in wanted:
            if name not in PURPOSES:
                hint = did_you_mean(name, PURPOSES, 0.0)
                raise OptionError(f"--for {name} is none of {', '.join(PURPOSES)}{hint}")
            if name not in self._sets:
                what = "a bucket" if named else "nothing: name a stream with --stream"
                raise OptionError(f"--for {name} has no meaning for {what}")
        if self.stream is not None and self.subject is None and not WRITING.isdisjoint(wanted):
            raise OptionError("--for write needs --subject, where rows are to go; it may have wildcards")
        return replace(self, purposes=tuple(dict.fromkeys(wanted)))

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

    @property
    def with_consumers(self) -> bool:
        """Whether tasks read with consumers, unless the stream is a work queue."""
        return "read" in self.purposes or ("durable" in self.purposes and "direct" not in self.purposes)

    def permissions(
        self, options: ConnectionOptions, *, queue: bool, old: bool, mirror: StreamSource | None = None
    ) -> tuple[Permission, ...]:
        """Return the least permissions of the job.

        ``queue``: on a work queue. ``old``: with a server before 2.14. ``mirror``: what the stream is a mirror of, and
        where the rows for a bucket go.
        """
        keeping = "durable-queue" if queue else "durable-old" if old else "durable"
        reading = "read" if self.with_consumers and not queue else "read-direct"
        table = {**self._sets, "durable": (reading, keeping)}
        rows = () if self.subject is None else (self.subject,)
        bucket, prefix = self.bucket or self.object_bucket or "", options.api_prefix_resolved
        written = (bucket, prefix)
        if mirror is not None:
            written = (mirror.name.removeprefix("KV_"), mirror.external.api if mirror.external else prefix)
        sets = []
        for purpose in (purpose for name in self.purposes for purpose in table[name]):
            named, api = written if purpose == "kv-write" else (bucket, prefix)
            sets.append(
                needed(
                    purpose,
                    stream=self.stream or "*",
                    bucket=named,
                    subjects=rows if purpose in ("write", "write-exactly-once", "kv-write") else self.filters,
                    durable=self.durable or "*",
                    inbox_prefix=options.inbox_prefix,
                    prefix=api,
                )
            )
        return merged(*sets)


class Subjects(Model):
    """Filters of subjects. A user with none in ``allow`` may use each subject that no filter in ``deny`` matches."""

    allow: tuple[String, ...] = ()
    deny: tuple[String, ...] = ()


class Rights(Model):
    """What a user may do. An entry for one queue group alone has a blank and the group after the subject."""

    publish: Subjects = Subjects()
    subscribe: Subjects = Subjects()


class User(Model):
    """The user of a connection; ``expires`` is the time left until its JWT expires."""

    account: String
    user: String = ""
    expires: Duration | None = None
    permissions: Rights = Rights()


class Server(Model):
    """The server of a connection: its clock, and its JetStream domain."""

    time: Time
    domain: String = ""


class Identity(Model):
    """A reply to `WHO_AM_I`."""

    data: User
    server: Server


def who_am_i(connection: Connection) -> Identity | Finding:
    """Return what the server says of the user, or why that is not known."""
    context = "ask who I am"
    try:
        return Identity.from_server(connection.ask(WHO_AM_I, b"", context=context), context)
    except PermissionDenied as error:
        if error.subject != WHO_AM_I:
            return failed("replies", str(error), f"allow subscribing to {error.subject}, or set option inboxPrefix")
        advice = f'to have permissions checked, allow it: publish {{ allow: ["{WHO_AM_I}"] }}'
        return unknown("account", f"the user may not ask at {WHO_AM_I}, which is optional", advice)
    except JetStreamError as error:
        return unknown("account", f"the server does not say: {error}")


def check_permissions(
    connection: Connection, identity: Identity, lines: Iterable[Permission], *, clustered: bool
) -> Iterator[Finding]:
    """Compare permissions that are needed with those that the server lists for the user.

    A finding names the subject to allow. It is failed if the job needs the permission in any case, else a warning.
    ``clustered`` includes the permissions that only a cluster needs.
    """
    own_domain = connection.options.domain is not None and identity.server.domain == connection.options.domain
    for line in lines:
        if clustered or line.when != "cluster":
            # A server takes its own domain out of a subject before it looks at permissions.
            subject = connection.spellings(line.subject)[-1] if own_domain else line.subject
            yield _compare(line, subject, getattr(identity.data.permissions, line.kind))


def _compare(line: Permission, subject: str, granted: Subjects) -> Finding:
    """Return whether ``granted`` includes a permission, whose subject at the server is ``subject``."""
    # An inbox, and the replies to requests, have two tokens after the prefix.
    used = subject.removesuffix(">") + "*.*" if line.kind == "subscribe" else subject
    allowed = not granted.allow or any(covers(filter_, used) for filter_ in granted.allow)
    denials = [filter_ for filter_ in granted.deny if " " not in filter_ and subjects_overlap(filter_, used)]
    if allowed and not denials:
        return ok(line.subject, line.why)
    in_part = allowed and not any(covers(filter_, used) for filter_ in denials)
    text = f"{'denied in part' if in_part else 'denied'}: {line.why}"
    advice = f"do not deny {', '.join(denials)}" if allowed else f'allow it: {line.kind} {{ allow: ["{subject}"] }}'
    if line.without:
        case = f" ({line.when})" if line.when else ""
        return warning(line.subject, f"{text}{case}; without it {line.without}", advice)
    if line.when:
        return warning(line.subject, f"{text}, only needed for: {line.when}", advice)
    return (warning if in_part else failed)(line.subject, text, advice)
