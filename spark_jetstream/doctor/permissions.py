"""The permissions that a job needs, compared with those that the server lists for the user."""

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
    "share": ("share",),
    "write": ("write",),
    "exactly-once": ("write-exactly-once",),
    "ensure": ("ensure-stream",),
    "administer": _ADMINISTER,
    "backup": ("admin-backup",),
    "restore": ("admin-restore",),
}
_OF_BUCKETS = {"read": ("kv-read",), "direct": ("kv-read-direct",), "write": ("kv-write",)}
_OF_OBJECTS = {
    "read": ("object-read",),
    "direct": ("object-read-direct",),
    "write": ("object-write",),
}
_WITHOUT_STREAM: Mapping[str, tuple[str, ...]] = {
    "administer": _ADMINISTER,
    # A sink without option `stream`: the subject alone decides which stream stores its rows.
    "write": ("write",),
    "exactly-once": ("write-exactly-once",),
}

PURPOSES = tuple(_OF_STREAMS)
"""The values of ``--for``."""
READING = frozenset({"read", "direct", "durable", "share"})
WRITING = frozenset({"write", "exactly-once"})
#: Sets of permissions whose subjects are those of rows; other sets have the filters of a read.
_SETS_FOR_ROWS = frozenset({"write", "write-exactly-once", "kv-write"})

WHO_AM_I = "$SYS.REQ.USER.INFO"


@dataclass(frozen=True)
class Job:
    """The purposes of a job (`PURPOSES`), and its stream, bucket or object bucket, or none of them.

    ``subject`` is where rows go, and ``filters`` are option subjects of a read.
    ``starting_consumer`` is the consumer after which a read begins (option startingConsumer), and
    ``share`` the consumer that a query shares (option share).
    """

    purposes: tuple[str, ...]
    stream: str | None = None
    bucket: str | None = None
    object_bucket: str | None = None
    subject: str | None = None
    filters: tuple[str, ...] = ()
    durable: str | None = None
    starting_consumer: str | None = None
    share: str | None = None

    def completed(self) -> Job:
        """Return the job with the purposes that its other fields imply. Raises `OptionError`."""
        targets = (self.stream, self.bucket, self.object_bucket)
        if len(targets) - targets.count(None) > 1:
            message = "--stream, --bucket and --object-bucket exclude each other"
            raise OptionError(message, option="stream")
        purposes = self._implied_purposes()
        for name in purposes:
            self._check_purpose(name)
        in_bucket = self.bucket is not None or self.object_bucket is not None
        writes_rows = not in_bucket and not WRITING.isdisjoint(purposes)
        if writes_rows and self.subject is None:
            raise OptionError(
                "--for write needs --subject, where rows are to go; it may have wildcards",
            )
        consumers = {"--starting-consumer": self.starting_consumer, "--share": self.share}
        for option, consumer in consumers.items():
            if consumer is not None and self.stream is None:
                raise OptionError(f"{option} needs --stream, whose consumer it names")
        return replace(self, purposes=tuple(dict.fromkeys(purposes)))

    def _implied_purposes(self) -> list[str]:
        purposes = list(self.purposes)
        if self.subject is not None and WRITING.isdisjoint(purposes):
            purposes.append("write")
        if self.durable is not None:
            purposes.append("durable")
        if self.share is not None:
            purposes.append("share")
        if self.starting_consumer is not None and READING.isdisjoint(purposes):
            purposes.append("read")
        if not purposes and self.stream_name is not None:
            purposes.append("read")
        return purposes

    def _check_purpose(self, name: str) -> None:
        """Raise `OptionError` for a purpose that the job cannot have."""
        if name not in PURPOSES:
            hint = did_you_mean(name, PURPOSES, 0.0)
            raise OptionError(f"--for {name} is none of {', '.join(PURPOSES)}{hint}")
        if name in self._sets:
            return
        # With a stream all purposes are possible.
        if self.stream_name is not None:
            raise OptionError(f"--for {name} has no meaning for a bucket")
        raise OptionError(f"--for {name} has no meaning for nothing: name a stream with --stream")

    @property
    def _sets(self) -> Mapping[str, tuple[str, ...]]:
        """The purposes that it can have, each with its sets of permissions."""
        if self.bucket is not None:
            return _OF_BUCKETS
        if self.object_bucket is not None:
            return _OF_OBJECTS
        if self.stream is not None:
            return _OF_STREAMS
        return _WITHOUT_STREAM

    @property
    def stream_name(self) -> str | None:
        """The stream, or that of the bucket; None if there is none."""
        if self.bucket is not None:
            return f"KV_{self.bucket}"
        if self.object_bucket is not None:
            return objects.stream_name(self.object_bucket)
        return self.stream

    @property
    def subject_alone(self) -> str | None:
        """Where rows go if nothing names their stream; None for any other job."""
        return self.subject if self.stream_name is None else None

    @property
    def with_consumers(self) -> bool:
        """Whether tasks read with consumers, unless the stream is a work queue."""
        if "read" in self.purposes:
            return True
        return "durable" in self.purposes and "direct" not in self.purposes

    def permissions(
        self,
        options: ConnectionOptions,
        *,
        queue: bool,
        old: bool,
        mirror: StreamSource | None = None,
    ) -> tuple[Permission, ...]:
        """Return the least permissions of the job.

        ``queue``: on a work queue. ``old``: with a server before 2.14. ``mirror``: what the stream
        is a mirror of, and where the rows for a bucket go.
        """
        sets_by_purpose = {**self._sets, "durable": self._durable_sets(queue=queue, old=old)}
        sets = []
        for purpose in self.purposes:
            for name in sets_by_purpose[purpose]:
                sets.append(self._permissions_of(name, options, mirror))
        if self.starting_consumer is not None:
            begun = replace(self, durable=self.starting_consumer)
            sets.append(begun._permissions_of("starting-consumer", options, mirror))
        return merged(*sets)

    def _permissions_of(
        self,
        name: str,
        options: ConnectionOptions,
        mirror: StreamSource | None,
    ) -> tuple[Permission, ...]:
        """Return a set of permissions with the names of this job."""
        bucket = self.bucket or self.object_bucket or ""
        prefix = options.api_prefix_resolved
        if mirror is not None and name == "kv-write":
            # Rows for a bucket that is a mirror go to its origin.
            bucket = mirror.name.removeprefix("KV_")
            if mirror.external:
                prefix = mirror.external.api
        return needed(
            name,
            stream=self.stream or "*",
            bucket=bucket,
            subjects=self._rows if name in _SETS_FOR_ROWS else self.filters,
            durable=(self.share if name == "share" else self.durable) or "*",
            inbox_prefix=options.inbox_prefix,
            prefix=prefix,
        )

    @property
    def _rows(self) -> tuple[str, ...]:
        """The subjects of the rows of a write."""
        if self.subject is None:
            return ()
        return (self.subject,)

    def _durable_sets(self, *, queue: bool, old: bool) -> tuple[str, str]:
        """Return the sets of permissions to read, and to keep the committed position."""
        if queue:
            # Tasks read a work queue with Direct Gets.
            return "read-direct", "durable-queue"
        reading = "read" if self.with_consumers else "read-direct"
        return reading, "durable-old" if old else "durable"


class Subjects(Model):
    """Filters of subjects.

    A user with none in ``allow`` may use each subject that no filter in ``deny`` matches.
    """

    allow: tuple[String, ...] = ()
    deny: tuple[String, ...] = ()


class Rights(Model):
    """The permissions of a user.

    An entry for one queue group alone has a blank and the group after the subject.
    """

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
            advice = f"allow subscribing to {error.subject}, or set option inboxPrefix"
            return failed("replies", str(error), advice)
        advice = f'to have permissions checked, allow it: publish {{ allow: ["{WHO_AM_I}"] }}'
        return unknown("account", f"the user may not ask at {WHO_AM_I}, which is optional", advice)
    except JetStreamError as error:
        return unknown("account", f"the server does not say: {error}")


def check_permissions(
    connection: Connection,
    identity: Identity,
    lines: Iterable[Permission],
    *,
    clustered: bool,
) -> Iterator[Finding]:
    """Compare permissions that are needed with those that the server lists for the user.

    A finding names the subject to allow. It is failed if the job needs the permission in any case,
    else a warning. ``clustered`` includes the permissions that only a cluster needs.
    """
    domain = connection.options.domain
    own_domain = domain is not None and identity.server.domain == domain
    for line in lines:
        if line.when == "cluster" and not clustered:
            continue
        subject = line.subject
        if own_domain:
            # A server takes its own domain out of a subject before it looks at permissions.
            subject = connection.spellings(subject)[-1]
        yield _compare(line, subject, getattr(identity.data.permissions, line.kind))


def _compare(line: Permission, subject: str, granted: Subjects) -> Finding:
    """Return whether ``granted`` includes a permission.

    The server knows its subject as ``subject``.
    """
    used = subject
    if line.kind == "subscribe":
        # An inbox, and the replies to requests, have two tokens after the prefix.
        used = subject.removesuffix(">") + "*.*"
    if granted.allow and not _any_covers(granted.allow, used):
        advice = f'allow it: {line.kind} {{ allow: ["{subject}"] }}'
        return _denied(line, "denied", advice)
    denials = _denials(granted, used)
    if not denials:
        return ok(line.subject, line.why)
    advice = f"do not deny {', '.join(denials)}"
    if _any_covers(denials, used):
        return _denied(line, "denied", advice)
    return _denied(line, "denied in part", advice)


def _any_covers(filters: Iterable[str], subject: str) -> bool:
    return any(covers(filter_, subject) for filter_ in filters)


def _denials(granted: Subjects, subject: str) -> list[str]:
    """Return the filters that deny the subject, or a part of its subjects."""
    denials = []
    for filter_ in granted.deny:
        # An entry with a blank is for a queue group alone, and the connector uses none.
        if " " not in filter_ and subjects_overlap(filter_, subject):
            denials.append(filter_)
    return denials


def _denied(line: Permission, how: str, advice: str) -> Finding:
    """Return the finding about a missing permission: failed if the job needs it in any case."""
    text = f"{how}: {line.why}"
    if line.without:
        case = f" ({line.when})" if line.when else ""
        return warning(line.subject, f"{text}{case}; without it {line.without}", advice)
    if line.when:
        return warning(line.subject, f"{text}, only needed for: {line.when}", advice)
    if how == "denied in part":
        return warning(line.subject, text, advice)
    return failed(line.subject, text, advice)
