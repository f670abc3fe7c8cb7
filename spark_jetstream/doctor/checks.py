"""All checks in order, and those of the options and of the stream."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import SecretStr

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.account import AccountInfo
from spark_jetstream.admin.models.streams import (
    PeerInfo,
    StreamConfig,
    StreamInfo,
    StreamSourceInfo,
)
from spark_jetstream.buckets.object_stream import object_write
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.client.pool import connect_at_once
from spark_jetstream.doctor import sail, servers, spark
from spark_jetstream.doctor.destination import find_destination
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, warning
from spark_jetstream.doctor.handover import check_handover, summary_of
from spark_jetstream.doctor.permissions import (
    READING,
    WRITING,
    Identity,
    Job,
    check_permissions,
    who_am_i,
)
from spark_jetstream.doctor.sharing import check_shared
from spark_jetstream.doctor.spark import Python
from spark_jetstream.errors import (
    JetStreamError,
    OptionError,
    PermissionDenied,
    ProtocolError,
    StreamNotFound,
    brief,
)
from spark_jetstream.options.advice import stored_inboxes
from spark_jetstream.options.connection import ConnectionOptions, may_rename_subjects
from spark_jetstream.options.contexts import (
    PLAIN,
    context_options,
    environment_options,
    selected_context,
)
from spark_jetstream.options.servers import address
from spark_jetstream.options.values import hidden, revealed
from spark_jetstream.protocol.features import CONSUMER_RESET, CONSUMERS_BOUNDED
from spark_jetstream.protocol.fitness import (
    Read,
    StreamFault,
    Write,
    drops_rows,
    faults,
    forgets,
    refuses_commits,
    removing_setting,
)
from spark_jetstream.protocol.own_traffic import stored_replies
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import counted, parse_time

_BY_NAME = {spec.name: spec for spec in ConnectionOptions.specs}
_LOGIN = frozenset({"user", "password", "token"})
_VARIABLES = {option: variable for variable, option in PLAIN.items()} | {
    "user": "NATS_USER",
    "password": "NATS_PASSWORD",
    "token": "NATS_TOKEN or NATS_USER",
    "credentialsFile": "NATS_CREDS",
    "nkeySeedFile": "NATS_NKEY",
}
#: The share of a limit from which on the doctor warns.
_FULL = 0.9
_CONSUMERS = 1000  # of a stream without a limit of its own, since server 2.15
_MAX_LAG = 1000  # messages
_QUIET = 60_000_000_000  # ns without a sign of life of a mirror's origin
_LINK = "is its server there, and the link up?"
#: The place of a layer of options; `_VARIABLES` names the variable.
_ENVIRONMENT = "environment"
_MAKING = frozenset({"ensure", "restore"})
#: Why a stream takes no rows, and what to do.
_UNWRITABLE = {
    StreamFault.SEALED: (
        "is sealed and takes no more messages",
        "write to another stream (option stream)",
    ),
    StreamFault.UNACKNOWLEDGED: (
        "has no_ack set: it does not acknowledge rows",
        "set no_ack to false",
    ),
    StreamFault.KEPT_CHUNKS: (
        "has deny_purge set: the chunks of replaced objects could never be removed",
        "make the bucket without deny_purge; it cannot be taken back",
    ),
}


@dataclass(frozen=True)
class Section:
    """Findings under a title.

    Reading them runs the checks, so they can be shown before the next section runs.
    """

    title: str
    findings: Iterable[Finding]
    brief: bool = False
    """Whether findings that are ok may be counted instead of shown."""


@dataclass(eq=False)
class Examination:
    """All checks for a job.

    ``given`` are the connection options of the command line, ``environ`` the variables. With
    ``spark=True`` a local Spark is started too; ``spark=False`` leaves out Spark, Java and Python.
    """

    given: Mapping[str, SecretStr]
    environ: Mapping[str, str]
    job: Job
    spark: bool | None
    reached: bool = field(default=False, init=False)
    """Whether a server has accepted the login."""
    # The sections find these out one after the other.
    # Whether a server has sent its INFO:
    _any_server: bool = field(default=False, init=False)
    # The user of the connection, or why it is not known:
    _identity: Identity | Finding = field(
        default=unknown("account", "nobody was asked"),
        init=False,
    )
    # Whether the account has JetStream, without which the later checks tell nothing:
    _jetstream: bool = field(default=False, init=False)
    # The account, if the user may look at it:
    _usage: AccountInfo | None = field(default=None, init=False)
    # The stream of the job, if it could be looked at:
    _info: StreamInfo | None = field(default=None, init=False)

    def sections(self) -> Iterator[Section]:
        """Yield the sections in order. Raises `OptionError` for wrong connection options."""
        admin = JetStreamAdmin.from_environment(**self.given)
        # None leaves out the local Spark alone, False also the checks of this machine.
        if self.spark is not False:
            yield Section("Spark on this machine", self._machine())
        yield Section("Options", self._options(admin.options))
        yield Section("Servers", self._servers(admin.options))
        yield Section("Account", self._account(admin))
        subject = self.job.subject_alone
        # Also without JetStream in this account: another one may store what this one exports.
        if self.reached and subject is not None:
            yield Section(f"Subject {subject}", self._destination(admin, subject))
        name = self.job.stream_name
        # Without JetStream all of these would fail for the same reason.
        if self._jetstream and name is not None:
            yield Section(f"Stream {name}", self._stream(admin, name))
        if self._jetstream and self.job.purposes:
            title = f"Permissions to {', '.join(self.job.purposes)}"
            yield Section(title, self._permissions(admin.options), brief=True)
        if self.spark:
            yield Section("A local Spark", self._start_spark(admin.options))

    @functools.cached_property
    def _python(self) -> Python:
        """The Python of this process."""
        return spark.this_python()

    def _machine(self) -> Iterator[Finding]:
        mine = self._python
        if sail.is_alone(mine.versions):
            # Sail needs no Java, and runs the connector in its own process.
            yield from spark.check_driver(mine)
            return
        yield from spark.check_java(self.environ, mine.versions.get("pyspark"))
        yield from spark.check_driver(mine)
        yield from spark.check_workers(mine, self.environ)

    def _options(self, options: ConnectionOptions) -> Iterator[Finding]:
        yield from check_origins(options, self.given, self.environ)
        try:
            connect_arguments(options)  # reads the files that options name
        except OptionError as error:
            yield failed(
                error.option or "files",
                str(error),
                f"correct option {error.option}, or the file",
            )
        yield from spark.check_extras(options)

    def _servers(self, options: ConnectionOptions) -> Iterator[Finding]:
        probes = [servers.ServerProbe(url, options) for url in options.servers]
        self._any_server = any(probe.info is not None for probe in probes)
        for probe in probes:
            # If only some of the servers are unreachable, that is a warning.
            is_optional = self._any_server and probe.info is None
            for finding in probe.findings:
                named = replace(finding, check=f"{address(probe.url)} {finding.check}")
                if is_optional and named.status == "failed":
                    named = replace(named, status="warning")
                yield named
        yield from servers.compare_servers(probes)

    def _account(self, admin: JetStreamAdmin) -> Iterator[Finding]:
        if not self._any_server:
            yield unknown("login", "there is no server to log in to")
            return
        login = servers.check_login(admin.options)
        yield login
        self.reached = login.status == "ok"
        if not self.reached:
            return
        # The login above has made it, and the pool keeps it.
        connection = connect_at_once(admin.options)
        yield servers.check_round_trip(connection)
        before = time.time_ns()
        self._identity = who_am_i(connection)
        if isinstance(self._identity, Finding):
            yield self._identity
        else:
            yield from servers.check_user(self._identity, before, admin.options)
        usage = servers.account_of(admin)
        if isinstance(usage, Finding):
            self._jetstream = usage.status != "failed"
            yield usage
        else:
            self._jetstream = True
            self._usage = usage
            yield from servers.check_account(usage)

    def _destination(self, admin: JetStreamAdmin, subject: str) -> Iterator[Finding]:
        """Find the stream that stores rows; the sections after this one check it."""
        domain = None if self._usage is None else self._usage.domain
        found = find_destination(admin, subject, domain)
        yield found.finding
        if found.stream is not None:
            self.job = replace(self.job, stream=found.stream)

    def _stream(self, admin: JetStreamAdmin, name: str) -> Iterator[Finding]:
        try:
            before = time.time_ns()
            self._info = info = admin.streams.load(name)
        except StreamNotFound as error:
            yield self._missing_stream(error, admin.options)
            return
        except PermissionDenied as error:
            yield unknown("stream", str(error), "see the permissions below")
            return
        except JetStreamError as error:
            yield failed("stream", str(error), servers.LEADERLESS)
            return
        if isinstance(self._identity, Finding):  # else the clock was compared already
            yield servers.check_clock(parse_time(str(info.ts)), before, time.time_ns())
        yield from check_stream(info, self.job, self._usage, admin.options)
        if self.job.starting_consumer is not None:
            yield from check_handover(admin, info, self.job, self.job.starting_consumer)
        if self.job.share is not None:
            yield from check_shared(admin, name, self.job.share)

    def _missing_stream(self, error: StreamNotFound, options: ConnectionOptions) -> Finding:
        # The job makes the stream.
        if not _MAKING.isdisjoint(self.job.purposes):
            return ok("stream", "is not there yet")
        advice = "is the name right? make it, or let option ensureStream make it"
        if "domain" not in options.given():
            advice = f"in which domain is it (option domain)? {advice}"
        return failed("stream", str(error), advice)

    def _permissions(self, options: ConnectionOptions) -> Iterator[Finding]:
        if isinstance(self._identity, Finding):
            yield unknown(
                "permissions",
                f"cannot be checked: {self._identity.said}",
                self._identity.what_to_do,
            )
            return
        connection = connect_at_once(options)
        queue = False
        mirror = None
        clustered = True  # as far as is known without the stream
        if self._info is not None:
            queue = self._info.config.retention == "workqueue"
            mirror = self._info.config.mirror
            clustered = bool(self._info.cluster and self._info.cluster.name)
        lines = self.job.permissions(
            options,
            queue=queue,
            old=not connection.can(CONSUMER_RESET),
            mirror=mirror,
        )
        yield from check_permissions(connection, self._identity, lines, clustered=clustered)

    def _start_spark(self, options: ConnectionOptions) -> Iterator[Finding]:
        engine = sail.engine_of(self._python.versions)
        if self._info is None:
            yield unknown(
                f"local {engine}",
                "there is no stream to read from",
                "name one with --stream",
            )
            return
        reading = _reading(self.job, self._info)
        yield from spark.check_spark(options, reading, self.environ, engine)


def _reading(job: Job, info: StreamInfo) -> dict[str, str]:
    """Return options of the source that read the end of the stream, or the bucket."""
    if job.bucket is not None:
        return {"bucket": job.bucket}
    if job.object_bucket is not None:
        return {"objectBucket": job.object_bucket, "contentOff": "true"}
    name = info.config.name
    end = json.dumps({name: max(1, info.state.last_seq)})
    # The last message may be gone, or go before Spark has started.
    options = {"stream": name, "startingOffsets": end, "failOnDataLoss": "false"}
    # A work queue allows no second consumer for a subject.
    if "direct" in job.purposes or info.config.retention == "workqueue":
        options["readWith"] = "direct"
    return options


class _Layer(NamedTuple):
    """Options from one place. A layer wins over those that follow it."""

    place: str
    options: Mapping[str, object]


def check_origins(
    options: ConnectionOptions,
    given: Mapping[str, SecretStr],
    environ: Mapping[str, str],
) -> Iterator[Finding]:
    """Report each option that has a value: the value, unless it is secret, and where it comes from.

    ``given`` are the options of the command line. `JetStreamAdmin.from_environment` made
    ``options`` of them, with the same order of precedence.
    """
    variables = hidden(environment_options(environ))
    layers = [_Layer("command line", given), _Layer(_ENVIRONMENT, variables)]
    named = given.get("context")
    chosen = named or variables.get("context") or selected_context()
    if chosen:
        context = _Layer(f"context {revealed(chosen)}", hidden(context_options(chosen)))
        if named:
            how = "command line"
            # It wins over the variables; any other context does not.
            layers.insert(1, context)
        else:
            how = "the environment" if "context" in variables else "selected"
            layers.append(context)
        # The context exists, so its name is no secret that was given by mistake.
        yield ok("context", f"{revealed(chosen)} ({how})")
    for name in sorted(options.given() | {"servers"}, key=list(_BY_NAME).index):
        yield ok(name, f"{_shown(name, options)} ({_origin(name, layers)})")


def _origin(name: str, layers: Iterable[_Layer]) -> str:
    """Return where an option of the connection gets its value, in words."""
    place = _place_of(name, layers)
    if place == _ENVIRONMENT:
        return f"variable {_VARIABLES.get(name, 'NATS_*')}"
    if place:
        return place
    if name not in _LOGIN:
        return "default"
    # A user in a server's URL becomes these options.
    place = _place_of("servers", layers)
    if place == _ENVIRONMENT:
        return "NATS_URL, in the URL"
    return f"{place}, in the URL"


def _place_of(name: str, layers: Iterable[_Layer]) -> str:
    for layer in layers:
        if name in layer.options:
            return layer.place
    return ""


def _shown(name: str, options: ConnectionOptions) -> str:
    if name == "servers":
        return options.display_servers
    spec = _BY_NAME[name]
    value = getattr(options, spec.field_name)
    if name.endswith("File") and os.path.isfile(value):
        # The path of a file that exists is no secret that was given by mistake.
        return str(value)
    return str(spec.kind.display(value))


def check_stream(
    info: StreamInfo,
    job: Job,
    account: AccountInfo | None,
    options: ConnectionOptions,
) -> Iterator[Finding]:
    """Check that the stream suits the job. ``account`` is None if the user may not ask for it."""
    purposes = frozenset(job.purposes)
    yield _describe(info)
    yield from _check_replicas(info)
    yield from _check_subjects(info, options)
    for origin in info.origins:
        yield _check_origin("mirror" if info.mirror else "source", origin)
    if not (READING | WRITING) & purposes:
        return
    try:
        state = summary_of(info)
    except ProtocolError as error:
        yield failed("stream", str(error), servers.LEADERLESS)
        return
    if READING & purposes:
        yield from _check_reading(state, purposes, account)
        if job.with_consumers and info.config.retention != "workqueue":
            yield _check_consumers(info, account)
    if WRITING & purposes:
        yield from _check_writing(info, state, job, options)


def read_use(purposes: frozenset[str]) -> Read:
    """Return the use of a stream by a job that reads: a batch, or with ``durable`` a query."""
    durable = "durable" in purposes
    shared = "share" in purposes
    direct = "direct" in purposes
    return Read(batch=not (durable or shared), reserved=durable, direct=direct, shared=shared)


def write_use(job: Job, options: ConnectionOptions) -> Write:
    """Return the use of a stream or bucket by a job that writes."""
    if job.object_bucket is not None:
        return object_write(job.object_bucket)
    if job.bucket is not None:
        return Write("values", (f"$KV.{job.bucket}.key",))
    subjects: tuple[str, ...] = ()
    if job.subject is not None and not may_rename_subjects(options):
        subjects = (job.subject,)
    return Write("rows", subjects)


def _describe(info: StreamInfo) -> Finding:
    config = info.config
    state = info.state
    replicas = counted(config.num_replicas, "replica")
    content = f"{counted(state.messages, 'message')}, {counted(int(state.bytes), 'byte')}"
    if state.messages:
        content += f" in sequences {state.first_seq:,} to {state.last_seq:,}"
    return ok("stream", f"{config.retention} retention, {config.storage}, {replicas}, {content}")


def _check_replicas(info: StreamInfo) -> Iterator[Finding]:
    cluster = info.cluster
    # A cluster is also in the reply about a stream with a single replica.
    if cluster is None or (info.config.num_replicas < 2 and not cluster.replicas):
        return
    if not cluster.leader:
        yield failed(
            "replicas",
            "there is no leader: nothing can be stored",
            "start the servers that are away",
        )
        return
    faults = []
    for peer in cluster.replicas:
        fault = _replica_fault(peer)
        if fault is not None:
            faults.append(fault)
    yield from faults
    if not faults:
        others = len(cluster.replicas)
        yield ok("replicas", f"led by {cluster.leader}, {others} more with all there is")


def _replica_fault(peer: PeerInfo) -> Finding | None:
    if peer.offline:
        advice = "start it: without one more the stream may stop"
        return warning("replicas", f"{peer.name} is away", advice)
    if not peer.current:
        heard = f"{peer.active / 1e9:,.0f} s ago"
        text = f"{peer.name} is {peer.lag:,} operations behind, and was heard of {heard}"
        advice = "is it running? if it is, wait; if it stays so, look into its log"
        return warning("replicas", text, advice)
    return None


def _check_subjects(info: StreamInfo, options: ConnectionOptions) -> Iterator[Finding]:
    """Check that the stream does not store what the connector receives."""
    inboxes = stored_replies(info.config.subjects, options.api_prefix, options.inbox_prefix)
    if inboxes:
        inbox = f"{options.inbox_prefix}.>"
        text = f"{brief(', '.join(inboxes))} match {inbox}: the stream stores what is read from it"
        yield warning("subjects", text, stored_inboxes(info.config.subjects))


def _check_origin(kind: str, origin: StreamSourceInfo) -> Finding:
    text = f"of {origin.name}, {counted(origin.lag, 'message')} behind"
    if origin.error is not None and origin.error.description:
        advice = (
            f"mend what the error names, in the configuration of the stream or of {origin.name}"
        )
        return failed(kind, f"{text}: {brief(origin.error.description)}", advice)
    # The server says -1 before it has heard of the origin.
    if origin.active < 0:
        return warning(kind, f"{text}; {origin.name} was never heard of", _LINK)
    if origin.active > _QUIET:
        silence = f"for {origin.active / 1e9:,.0f} s not heard of"
        return warning(kind, f"{text}; {origin.name} was {silence}", _LINK)
    if origin.lag > _MAX_LAG:
        return warning(kind, text, "wait; if it grows, the link or the servers are too slow")
    return ok(kind, text)


def _check_reading(
    state: StreamSummary,
    purposes: frozenset[str],
    account: AccountInfo | None,
) -> Iterator[Finding]:
    """Check that the stream can be read, and that committing does not fail."""
    use = read_use(purposes)
    found = faults(state, use)
    if StreamFault.NO_QUEUE in found:
        text = f"{state.retention} retention: a query shares a consumer of a work queue only"
        yield failed("retention", text, "leave out option share: the query reads all messages")
        return
    yield _check_retention(state, purposes, reserved=StreamFault.NOT_RESERVED not in found)
    if use.reserved and refuses_commits(state):
        text = "deny_purge is set, and committing removes messages of a work queue by purging"
        advice = "make the stream without deny_purge; it cannot be taken back"
        yield failed("deny_purge", text, advice)
    if StreamFault.NO_DIRECT_GETS in found:
        why = "readWith=direct needs it" if use.direct else "a work queue is read by direct gets"
        advice = "set the stream's allow_direct to true"
        yield failed("allow_direct", f"is not set: {why}", advice)
    elif use.direct and account is not None and account.api.level == 0:
        text = "readWith=direct needs nats-server 2.11"
        yield failed("direct gets", text, "upgrade the server, or set readWith to consumer")


def _check_retention(
    state: StreamSummary,
    purposes: frozenset[str],
    *,
    reserved: bool,
) -> Finding:
    if not reserved:
        text = "a work queue is read with option durable, or by a batch with readWith=direct"
        advice = "set option durable for a streaming query, or readWith to direct for a batch"
        return failed("retention", text, advice)
    if state.retention == "interest" and "durable" not in purposes:
        text = (
            "nothing holds messages for a streaming query: what all consumers have acknowledged is "
            "gone"
        )
        return warning("retention", text, "set option durable")
    reading = ", ".join(sorted(READING & purposes))
    return ok("retention", f"{state.retention} suits {reading}")


def _check_consumers(info: StreamInfo, account: AccountInfo | None) -> Finding:
    limits = _consumer_limits(info, account)
    if not limits:
        return _check_default_limit(info, account)
    count, most = max(limits, key=_fullness)
    text = f"{count:,} of {most:,} (max_consumers)"
    advice = "remove unused consumers, raise the stream's max_consumers, or set readWith to direct"
    if count >= most:
        return failed("consumers", f"{text}: none is left, and each task needs one", advice)
    if count > most * _FULL:
        return warning("consumers", f"{text}: each task needs one", advice)
    return ok("consumers", text)


def _check_default_limit(info: StreamInfo, account: AccountInfo | None) -> Finding:
    """Check the consumers of a stream without a limit against the one that servers have since 2.15.

    No server tells it (`default_max_consumers` of its configuration), so it is never a failure.
    """
    count = info.state.consumer_count
    if account is None or not CONSUMERS_BOUNDED.is_at(account.api.level):
        return ok("consumers", f"{count:,}, no limit")
    text = f"{count:,} of {_CONSUMERS:,} (default_max_consumers of a server that sets no other)"
    if count > _CONSUMERS * _FULL:
        advice = "remove unused consumers, or give the stream a max_consumers of its own"
        return warning("consumers", f"{text}: each task needs one", advice)
    return ok("consumers", text)


def _consumer_limits(info: StreamInfo, account: AccountInfo | None) -> list[tuple[int, int]]:
    """Return the number of consumers under each limit, and the limit."""
    used = info.state.consumer_count
    limits = []
    if info.config.max_consumers > 0:
        limits.append((used, info.config.max_consumers))
    if account is None:
        return limits
    # The consumer of a task has one replica, unless the stream has interest retention.
    replicas = info.config.num_replicas if info.config.retention == "interest" else 1
    tier = account.tiers.get(f"R{replicas}", account)
    if tier.limits.max_consumers > 0:
        limits.append((min(used, tier.consumers), tier.limits.max_consumers))
    return limits


def _fullness(limit: tuple[int, int]) -> float:
    count, most = limit
    return count / most


def _check_writing(
    info: StreamInfo,
    state: StreamSummary,
    job: Job,
    options: ConnectionOptions,
) -> Iterator[Finding]:
    mirror = info.config.mirror
    if mirror is not None and job.bucket is not None:
        advice = f"check --bucket {mirror.name.removeprefix('KV_')} --for write, too"
        yield unknown("writing", f"is a mirror: rows go to {mirror.name}", advice)
        return
    use = write_use(job, options)
    yield from _check_writable(info, state, use)
    yield from _check_room(info)
    if job.stream is None:
        return
    if "exactly-once" in job.purposes:
        yield from _check_ledger(state)
    else:
        yield from _check_duplicates(state, options)


def _check_writable(info: StreamInfo, state: StreamSummary, use: Write) -> Iterator[Finding]:
    """Check that the stream takes rows, and does not lose those that it acknowledges."""
    refusing = faults(state, use)
    for fault in refusing:
        yield failed("writing", *_why_unwritable(fault, info.config, use))
    if refusing:
        return
    losses = list(_possible_losses(state))
    yield from losses
    if not losses:
        # The stream of a bucket captures all keys, whatever the key is by which `use` tries it.
        subjects = use.subjects if use.kind == "rows" else ()
        increments = "increments (column incr) at " if state.allow_msg_counter else ""
        yield ok("writing", f"takes {increments}{', '.join(subjects or state.subjects)}")


def _why_unwritable(fault: StreamFault, config: StreamConfig, use: Write) -> tuple[str, str]:
    """Return what is wrong with a stream that takes no rows, and what to do."""
    if fault is StreamFault.MIRROR and config.mirror is not None:
        return "is a mirror, which takes no messages of clients", f"write to {config.mirror.name}"
    if fault is not StreamFault.UNCAPTURED:
        return _UNWRITABLE[fault]
    subjects = ", ".join(config.subjects)
    if use.kind != "rows":
        text = f"{config.name} is no bucket: it captures {subjects or 'nothing'}"
        return text, "is the name of the bucket right?"
    subject = ", ".join(use.subjects)
    text = f"{config.name} does not capture {subject} (its subjects: {subjects})"
    return text, f"correct option subject, or add {subject} to the stream's subjects"


def _possible_losses(state: StreamSummary) -> Iterator[Finding]:
    """Yield warnings if the stream may acknowledge rows and lose them."""
    if drops_rows(state):
        text = (
            "has no consumers, and keeps messages only for them (interest retention): rows are "
            "acknowledged and dropped"
        )
        yield warning("writing", text, "create a consumer before you write")
    if state.persist_mode == "async":
        text = (
            "acknowledges rows before it has stored them (persist_mode async): a crash of its "
            "server loses them"
        )
        advice = "write to a stream without it: a server cannot change it"
        yield warning("writing", text, advice)


def _check_room(info: StreamInfo) -> Iterator[Finding]:
    # A stream that discards old messages always has room.
    if info.config.discard == "new":
        yield from _check_limit("max_msgs", info.state.messages, info.config.max_msgs)
        yield from _check_limit("max_bytes", info.state.bytes, info.config.max_bytes)


def _check_limit(name: str, used: int, most: int) -> Iterator[Finding]:
    if most <= 0 or used <= most * _FULL:
        return
    text = f"{used:,} of {most:,} {name} are used, and discard is new: a full stream refuses rows"
    advice = f"purge the stream, raise {name}, or set discard to old"
    if used >= most:
        yield failed("room", text, advice)
    else:
        yield warning("room", text, advice)


def _check_ledger(state: StreamSummary) -> Iterator[Finding]:
    """Check that the stream keeps the messages by which exactly-once knows what is stored."""
    if forgets(state):
        text = (
            "exactly-once needs limits retention, no max_msgs_per_subject, and another "
            "persist_mode than async"
        )
        advice = "set option delivery to deduplicated, or write to another stream"
        yield failed("delivery", text, advice)


def _check_duplicates(state: StreamSummary, options: ConnectionOptions) -> Iterator[Finding]:
    window = state.duplicate_window
    text = f"message ids are remembered for {window:g} s (duplicate_window)"
    # The id of a row must be known as long as the row may be sent again.
    if window < options.retry_timeout:
        text += f", a row is sent again for up to {options.retry_timeout:g} s (retryTimeout): it may be stored twice"
        advice = (
            "raise the stream's duplicate_window, lower retryTimeout, or set delivery to "
            "exactly-once"
        )
        yield warning("delivery", text, advice)
    else:
        yield ok("delivery", text)
    yield from _check_removals(state)
    yield ok(
        "partitions",
        "a batch that runs again may have others: adaptive execution and file sources divide rows "
        "by the number of cores. With delivery deduplicated keep columns stream and sequence of a "
        "JetStream source, or set messageIds to content, or spark.sql.adaptive.enabled to false",
    )


def _check_removals(state: StreamSummary) -> Iterator[Finding]:
    """Warn of messages that go within the duplicate window."""
    removing = removing_setting(state)
    if removing is None:
        return
    setting = f"max_msgs_per_subject {state.max_msgs_per_subject}"
    if removing is StreamFault.CONSUMED:
        setting = f"retention {state.retention}"
    # A server that restarts knows the ids of the messages that it still has.
    text = (
        f"a server that restarts forgets the message ids of removed messages ({setting}): rows may "
        "be stored twice then"
    )
    yield warning(
        "restarts",
        text,
        "write to a stream with limits retention, and without max_msgs_per_subject",
    )
