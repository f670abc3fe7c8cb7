"""All checks in order, and those of the options and of the stream."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pydantic import SecretStr

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.account import AccountInfo
from spark_jetstream.admin.models.streams import StreamInfo, StreamSourceInfo
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.client.pool import connect_at_once
from spark_jetstream.doctor import servers, spark
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, warning
from spark_jetstream.doctor.permissions import WRITING, Identity, Job, check_permissions, who_am_i
from spark_jetstream.errors import JetStreamError, OptionError, PermissionDenied, StreamNotFound, brief
from spark_jetstream.options.advice import NARROW, OTHER_INBOX
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.contexts import PLAIN, context_options, environment_options, selected_context
from spark_jetstream.options.servers import address
from spark_jetstream.options.values import hidden, revealed
from spark_jetstream.protocol.features import CONSUMER_RESET, CONSUMERS_BOUNDED
from spark_jetstream.protocol.jsapi import DEFAULT_PREFIX
from spark_jetstream.protocol.own_traffic import in_other_account, stored_replies, stores_any_inbox
from spark_jetstream.protocol.subjects import covers
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
_FULL = 0.9
_CONSUMERS = 1000  # of a stream without a limit of its own, since server 2.15
_MAX_LAG = 1000  # messages
_QUIET = 60_000_000_000  # ns without a sign of life of a mirror's origin
_READING = frozenset({"read", "direct", "durable"})
_MAKING = frozenset({"ensure", "restore"})


@dataclass(frozen=True)
class Section:
    """Findings under a title. Reading them runs the checks, so they can be shown before the next section runs."""

    title: str
    findings: Iterable[Finding]
    brief: bool = False
    """Whether findings that are ok may be counted instead of shown."""


@dataclass(eq=False)
class Examination:
    """All checks for a job.

    ``given`` are the connection options of the command line, ``environ`` the variables. With ``spark=True`` a local
    Spark is started too; ``spark=False`` leaves out Spark, Java and Python.
    """

    given: Mapping[str, SecretStr]
    environ: Mapping[str, str]
    job: Job
    spark: bool | None
    reached: bool = field(default=False, init=False)
    """Whether a server has accepted the login."""
    _any_server: bool = field(default=False, init=False)  # one has sent its INFO: set by the section of servers
    _identity: Identity | Finding = field(default=unknown("account", "nobody was asked"), init=False)
    _jetstream: bool = field(default=False, init=False)  # the account has it: the checks after that can tell something
    _usage: AccountInfo | None = field(default=None, init=False)  # the account, if the user may look at it
    _info: StreamInfo | None = field(default=None, init=False)  # the stream of the job, if it could be looked at

    def sections(self) -> Iterator[Section]:
        """Yield the sections in order. Raises `OptionError` for wrong connection options."""
        admin = JetStreamAdmin.from_environment(**self.given)
        if self.spark is not False:
            yield Section("Spark on this machine", self._machine())
        yield Section("Options", self._options(admin.options))
        yield Section("Servers", self._servers(admin.options))
        yield Section("Account", self._account(admin))
        name = self.job.stream_name
        if self._jetstream and name is not None:
            yield Section(f"Stream {name}", self._stream(admin, name))
        if self._jetstream and self.job.purposes:
            title = f"Permissions to {', '.join(self.job.purposes)}"
            yield Section(title, self._permissions(admin.options), brief=True)
        if self.spark:
            yield Section("A local Spark", self._start_spark(admin.options))

    def _machine(self) -> Iterator[Finding]:
        mine = spark.this_python()
        yield from spark.check_java(self.environ, mine.versions.get("pyspark"))
        yield from spark.check_driver(mine)
        yield from spark.check_workers(mine, self.environ)

    def _options(self, options: ConnectionOptions) -> Iterator[Finding]:
        yield from check_origins(options, self.given, self.environ)
        try:
            connect_arguments(options)  # reads the files that options name
        except OptionError as error:
            yield failed(error.option or "files", str(error), f"correct option {error.option}, or the file")
        yield from spark.check_extras(options)

    def _servers(self, options: ConnectionOptions) -> Iterator[Finding]:
        probes = [servers.ServerProbe(url, options) for url in options.servers]
        self._any_server = any(probe.info is not None for probe in probes)
        for probe in probes:
            # If only some of the servers are unreachable, that is a warning.
            optional = self._any_server and probe.info is None
            for finding in probe.findings:
                status = "warning" if optional and finding.status == "failed" else finding.status
                yield replace(finding, check=f"{address(probe.url)} {finding.check}", status=status)
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
        connection = connect_at_once(admin.options)
        yield servers.check_round_trip(connection)
        before = time.time_ns()
        self._identity = identity = who_am_i(connection)
        yield from [identity] if isinstance(identity, Finding) else servers.check_user(identity, before, admin.options)
        usage = servers.account_of(admin)
        if isinstance(usage, Finding):
            self._jetstream = usage.status != "failed"
            yield usage
        else:
            self._jetstream, self._usage = True, usage
            yield from servers.check_account(usage)

    def _stream(self, admin: JetStreamAdmin, name: str) -> Iterator[Finding]:
        try:
            before = time.time_ns()
            self._info = info = admin.streams.load(name)
        except StreamNotFound as error:
            if not _MAKING.isdisjoint(self.job.purposes):
                yield ok("stream", "is not there yet")
                return
            other = "in which domain is it (option domain)? " if "domain" not in admin.options.given() else ""
            advice = f"{other}is the name right? make it, or let option ensureStream make it"
            yield failed("stream", str(error), advice)
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

    def _permissions(self, options: ConnectionOptions) -> Iterator[Finding]:
        if isinstance(self._identity, Finding):
            yield unknown("permissions", f"cannot be checked: {self._identity.said}", self._identity.what_to_do)
            return
        connection = connect_at_once(options)
        config = self._info and self._info.config
        queue, mirror = (config.retention == "workqueue", config.mirror) if config else (False, None)
        clustered = self._info is None or bool(self._info.cluster and self._info.cluster.name)
        lines = self.job.permissions(options, queue=queue, old=not connection.can(CONSUMER_RESET), mirror=mirror)
        yield from check_permissions(connection, self._identity, lines, clustered=clustered)

    def _start_spark(self, options: ConnectionOptions) -> Iterator[Finding]:
        if self._info is None:
            yield unknown("local Spark", "there is no stream to read from", "name one with --stream")
            return
        yield from spark.check_spark(options, _reading(self.job, self._info), self.environ)


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
    if "direct" in job.purposes or info.config.retention == "workqueue":
        options["readWith"] = "direct"
    return options


def check_origins(
    options: ConnectionOptions, given: Mapping[str, SecretStr], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Report each option that has a value: the value, unless it is secret, and where it comes from.

    ``given`` are the options of the command line. `JetStreamAdmin.from_environment` made ``options`` of them, with the
    same order of precedence.
    """
    variables = hidden(environment_options(environ))
    named = given.get("context")
    chosen = named or variables.get("context") or selected_context()
    described = hidden(context_options(chosen)) if chosen else {}
    context = revealed(chosen)  # the context exists, so the text is no secret that was given by mistake
    if context:
        how = "command line" if named else "the environment" if "context" in variables else "selected"
        yield ok("context", f"{context} ({how})")
    # A context of the command line wins over the variables; any other context does not.
    layers: list[tuple[Mapping[str, object], str]] = [(variables, ""), (described, f"context {context}")]
    layers = [(given, "command line"), *(reversed(layers) if named else layers)]
    for name in sorted(options.given() | {"servers"}, key=list(_BY_NAME).index):
        variable = f"variable {_VARIABLES.get(name, 'NATS_*')}"
        where = next((origin or variable for options_, origin in layers if name in options_), "")
        if not where and name in _LOGIN:
            where = next((origin or "NATS_URL" for options_, origin in layers if "servers" in options_), "")
            where += ", in the URL"
        yield ok(name, f"{_shown(name, options)} ({where or 'default'})")


def _shown(name: str, options: ConnectionOptions) -> str:
    if name == "servers":
        return options.display_servers
    spec = _BY_NAME[name]
    value = getattr(options, spec.field_name)
    # The path of a file that exists is no secret that was given by mistake.
    return value if name.endswith("File") and os.path.isfile(value) else str(spec.kind.display(value))


def check_stream(
    info: StreamInfo, job: Job, account: AccountInfo | None, options: ConnectionOptions
) -> Iterator[Finding]:
    """Check that the stream suits the job. ``account`` is None if the user may not ask for it."""
    config, state, purposes = info.config, info.state, frozenset(job.purposes)
    kept = f"{config.retention} retention, {config.storage}, {counted(config.num_replicas, 'replica')}"
    held = f"{counted(state.messages, 'message')}, {counted(int(state.bytes), 'byte')}"
    if state.messages:
        held += f" in sequences {state.first_seq:,} to {state.last_seq:,}"
    yield ok("stream", f"{kept}, {held}")
    yield from _check_replicas(info)
    yield from _check_subjects(info, options)
    for origin in info.origins:
        yield _check_origin("mirror" if info.mirror else "source", origin)
    if _READING & purposes:
        yield from _check_retention(info, purposes, account)
        if job.with_consumers and config.retention != "workqueue":
            yield from _check_consumers(info, account)
    if WRITING & purposes and config.mirror is not None and job.bucket is not None:
        advice = f"check --bucket {config.mirror.name.removeprefix('KV_')} --for write, too"
        yield unknown("writing", f"is a mirror: rows go to {config.mirror.name}", advice)
    elif WRITING & purposes:
        # The stream of a bucket captures all keys. Another account, or a domain, may rename the subjects of rows.
        plain = job.stream is not None and options.api_prefix_resolved == DEFAULT_PREFIX
        yield from _check_writable(info, job.subject if plain else None)
        yield from _check_room(info)
        if job.stream is not None:
            yield from _check_duplicates(info, purposes, options)


def _check_replicas(info: StreamInfo) -> Iterator[Finding]:
    cluster = info.cluster
    if cluster is None or (info.config.num_replicas < 2 and not cluster.replicas):
        return
    if not cluster.leader:
        yield failed("replicas", "there is no leader: nothing can be stored", "start the servers that are away")
        return
    for peer in cluster.replicas:
        if peer.offline:
            yield warning("replicas", f"{peer.name} is away", "start it: without one more the stream may stop")
        elif not peer.current:
            text = f"{peer.name} is {peer.lag:,} operations behind, and was heard of {peer.active / 1e9:,.0f} s ago"
            yield warning("replicas", text, "is it running? if it is, wait; if it stays so, look into its log")
    if all(peer.current and not peer.offline for peer in cluster.replicas):
        yield ok("replicas", f"led by {cluster.leader}, {len(cluster.replicas)} more with all there is")


def _check_subjects(info: StreamInfo, options: ConnectionOptions) -> Iterator[Finding]:
    """Check that the stream does not store what the connector receives."""
    inboxes = stored_replies(info.config.subjects, options.inbox_prefix)
    if inboxes and not in_other_account(options.api_prefix):
        text = f"{brief(', '.join(inboxes))} match {options.inbox_prefix}.>: the stream stores what is read from it"
        mend = NARROW if stores_any_inbox(info.config.subjects) else OTHER_INBOX
        yield warning("subjects", text, mend)


def _check_origin(kind: str, origin: StreamSourceInfo) -> Finding:
    text = f"of {origin.name}, {counted(origin.lag, 'message')} behind"
    if origin.error is not None and origin.error.description:
        advice = f"mend what the error names, in the configuration of the stream or of {origin.name}"
        return failed(kind, f"{text}: {brief(origin.error.description)}", advice)
    if origin.active < 0 or origin.active > _QUIET:
        heard = "never" if origin.active < 0 else f"for {origin.active / 1e9:,.0f} s not"
        return warning(kind, f"{text}; {origin.name} was {heard} heard of", "is its server there, and the link up?")
    if origin.lag > _MAX_LAG:
        return warning(kind, text, "wait; if it grows, the link or the servers are too slow")
    return ok(kind, text)


def _check_retention(info: StreamInfo, purposes: frozenset[str], account: AccountInfo | None) -> Iterator[Finding]:
    config, check = info.config, "retention"
    queue, direct = config.retention == "workqueue", "direct" in purposes
    if queue and not {"durable", "direct"} & purposes:
        text = "a work queue is read with option durable, or by a batch with readWith=direct"
        yield failed(check, text, "set option durable for a streaming query, or readWith to direct for a batch")
    elif config.retention == "interest" and "durable" not in purposes:
        text = "nothing holds messages for a streaming query: what all consumers have acknowledged is gone"
        yield warning(check, text, "set option durable")
    else:
        yield ok(check, f"{config.retention} suits {', '.join(sorted(_READING & purposes))}")
    if queue and "durable" in purposes and config.deny_purge:
        text = "deny_purge is set, and committing removes messages of a work queue by purging"
        yield failed("deny_purge", text, "make the stream without deny_purge; it cannot be taken back")
    if (direct or (queue and "durable" in purposes)) and not config.allow_direct:
        why = "readWith=direct needs it" if direct else "a work queue is read by direct gets"
        yield failed("allow_direct", f"is not set: {why}", "set the stream's allow_direct to true")
    elif direct and account is not None and account.api.level == 0:
        text = "readWith=direct needs nats-server 2.11"
        yield failed("direct gets", text, "upgrade the server, or set readWith to consumer")


def _check_consumers(info: StreamInfo, account: AccountInfo | None) -> Iterator[Finding]:
    config, used = info.config, info.state.consumer_count
    limits = [(used, config.max_consumers)]
    if account is not None:
        # The consumer of a task has one replica, unless the stream has interest retention.
        tier = account.tiers.get(f"R{config.num_replicas if config.retention == 'interest' else 1}", account)
        limits.append((min(used, tier.consumers), tier.limits.max_consumers))
    limits = [(count, most) for count, most in limits if most > 0]
    if not limits and account is not None and CONSUMERS_BOUNDED.is_at(account.api.level):
        limits = [(used, _CONSUMERS)]
    if not limits:
        yield ok("consumers", f"{used:,}, no limit")
        return
    count, most = max(limits, key=lambda limit: limit[0] / limit[1])
    text = f"{count:,} of {most:,} (max_consumers)"
    advice = "remove unused consumers, raise the stream's max_consumers, or set readWith to direct"
    if count >= most:
        yield failed("consumers", f"{text}: none is left, and each task needs one", advice)
    elif count > most * _FULL:
        yield warning("consumers", f"{text}: each task needs one", advice)
    else:
        yield ok("consumers", text)


def _check_writable(info: StreamInfo, subject: str | None) -> Iterator[Finding]:
    config, name = info.config, info.config.name
    if config.mirror is not None:
        yield failed("writing", "is a mirror, which takes no messages of clients", f"write to {config.mirror.name}")
    elif config.sealed:
        yield failed("writing", "is sealed and takes no more messages", "write to another stream (option stream)")
    elif config.no_ack:
        yield failed("writing", "has no_ack set: it does not acknowledge rows", "set no_ack to false")
    elif subject is not None and not any(covers(subjects, subject) for subjects in config.subjects):
        text = f"{name} does not capture {subject} (its subjects: {', '.join(config.subjects)})"
        yield failed("writing", text, f"correct option subject, or add {subject} to the stream's subjects")
    elif config.retention == "interest" and not info.state.consumer_count:
        text = (
            "has no consumers, and keeps messages only for them (interest retention): rows are acknowledged and dropped"
        )
        yield warning("writing", text, "create a consumer before you write")
    elif config.persist_mode == "async":
        text = "acknowledges rows before it has stored them (persist_mode async): a crash of its server loses them"
        yield warning("writing", text, "write to a stream without it: a server cannot change it")
    else:
        what = "increments (column incr) at " if config.allow_msg_counter else ""
        yield ok("writing", f"takes {what}{subject or ', '.join(config.subjects)}")


def _check_room(info: StreamInfo) -> Iterator[Finding]:
    config, state = info.config, info.state
    if config.discard != "new":
        return
    for name, used, most in (
        ("max_msgs", state.messages, config.max_msgs),
        ("max_bytes", state.bytes, config.max_bytes),
    ):
        if most <= 0 or used <= most * _FULL:
            continue
        status = failed if used >= most else warning
        text = f"{used:,} of {most:,} {name} are used, and discard is new: a full stream refuses rows"
        yield status("room", text, f"purge the stream, raise {name}, or set discard to old")


def _check_duplicates(info: StreamInfo, purposes: frozenset[str], options: ConnectionOptions) -> Iterator[Finding]:
    if "exactly-once" in purposes:
        config = info.config
        if config.retention != "limits" or config.max_msgs_per_subject > 0 or config.persist_mode == "async":
            text = "exactly-once needs limits retention, no max_msgs_per_subject, and another persist_mode than async"
            yield failed("delivery", text, "set option delivery to deduplicated, or write to another stream")
        return
    window = info.config.duplicate_window / 1e9
    text = f"message ids are remembered for {window:g} s (duplicate_window)"
    if window < options.retry_timeout:
        text += f", a row is sent again for up to {options.retry_timeout:g} s (retryTimeout): it may be stored twice"
        advice = "raise the stream's duplicate_window, lower retryTimeout, or set delivery to exactly-once"
        yield warning("delivery", text, advice)
    else:
        yield ok("delivery", text)
    yield from _check_removals(info)
    yield ok(
        "partitions",
        "a batch that runs again may have others: adaptive execution and file sources divide rows by the number of "
        "cores. With delivery deduplicated keep columns stream and sequence of a JetStream source, or set messageIds "
        "to content, or spark.sql.adaptive.enabled to false",
    )


def _check_removals(info: StreamInfo) -> Iterator[Finding]:
    """Warn of messages that go within the duplicate window: a server that restarts does not know their ids."""
    config = info.config
    if config.retention != "limits":
        why = f"retention {config.retention}"
    elif config.max_msgs_per_subject > 0:
        why = f"max_msgs_per_subject {config.max_msgs_per_subject}"
    else:
        return
    text = f"a server that restarts forgets the message ids of removed messages ({why}): rows may be stored twice then"
    yield warning("restarts", text, "write to a stream with limits retention, and without max_msgs_per_subject")
