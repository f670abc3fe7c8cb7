"""Whether a stream suits what is to be done with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jetstream.admin.models.streams import StreamInfo, StreamSourceInfo
from spark_jetstream.doctor.findings import Finding, failed, ok, warning
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol.stream import subject_pattern

_FULL = 0.9
_CONSUMERS = 1000  # of a stream without a limit of its own, since server 2.15
_CONSUMERS_LEVEL = 5
_BEHIND = 1000  # messages that a mirror may be behind without a word
_QUIET = 60_000_000_000  # ns without a sign of life of a mirror's origin
_READING = frozenset({"read", "direct", "durable"})
_WRITING = frozenset({"write", "exactly-once"})


@dataclass(frozen=True)
class Use:
    """What is to be done with a stream: ``purposes`` (``read``, ``direct``, ``durable``, ``write``, ``exactly-once``,
    ``administer`` and so on), and the options for it.

    ``subject`` is where rows go. ``level`` is the API level of the server, ``max_consumers`` what the account allows
    for each stream; None where that may not be asked.
    """

    purposes: frozenset[str]
    subject: str | None
    level: int | None
    max_consumers: int | None

    @property
    def reads(self) -> bool:
        return bool(_READING & self.purposes)

    @property
    def writes(self) -> bool:
        return bool(_WRITING & self.purposes)


def check_stream(info: StreamInfo, use: Use, options: ConnectionOptions) -> Iterator[Finding]:
    """What ``STREAM.INFO`` says, judged for this use."""
    config, state = info.config, info.state
    kept = f"{config.retention} retention, {config.storage}, {config.num_replicas} replica(s)"
    held = f"{state.messages:,} messages, {state.bytes!s} in sequences {state.first_seq} to {state.last_seq}"
    yield ok("stream", f"{kept}, {held}")
    yield from _replicas(info)
    yield from _origins(info)
    if use.reads:
        yield from _retention(info, use)
        yield from _consumers(info, use)
    if use.writes:
        yield from _taking(info, use)
        yield from _room(info)
        yield from _duplicates(info, use, options)


def _replicas(info: StreamInfo) -> Iterator[Finding]:
    cluster = info.cluster
    if cluster is None or (info.config.num_replicas < 2 and not cluster.replicas):
        return
    if not cluster.leader:
        yield failed("replicas", "there is no leader: nothing can be stored", "start the servers that are away")
        return
    for peer in cluster.replicas:
        if peer.offline:
            yield warning("replicas", f"{peer.name} is away", "start it: with one more the stream may stand still")
        elif not peer.current:
            said = f"{peer.name} is {peer.lag:,} operations behind"
            yield warning("replicas", said, "wait; if it stays so, look into its log")
    if all(peer.current and not peer.offline for peer in cluster.replicas):
        yield ok("replicas", f"led by {cluster.leader}, {len(cluster.replicas)} more with all there is")


def _origins(info: StreamInfo) -> Iterator[Finding]:
    kinds = ([("mirror", info.mirror)] if info.mirror is not None else []) + [("source", each) for each in info.sources]
    for kind, origin in kinds:
        yield _origin(kind, origin)


def _origin(kind: str, origin: StreamSourceInfo) -> Finding:
    said = f"of {origin.name}, {origin.lag:,} messages behind"
    if origin.error is not None and origin.error.description:
        advice = f"mend what the error names, in the configuration of the stream or of {origin.name}"
        return failed(kind, f"{said}: {origin.error.description}", advice)
    if origin.active < 0 or origin.active > _QUIET:
        heard = "never" if origin.active < 0 else f"for {origin.active / 1e9:,.0f} s not"
        return warning(kind, f"{said}; {origin.name} was {heard} heard of", "is its server there, and the link up?")
    if origin.lag > _BEHIND:
        return warning(kind, said, "wait; if it grows, the link or the servers are too slow")
    return ok(kind, said)


def _retention(info: StreamInfo, use: Use) -> Iterator[Finding]:
    config, check = info.config, "retention"
    queue, direct = config.retention == "workqueue", "direct" in use.purposes
    if queue and not {"durable", "direct"} & use.purposes:
        said = "a work queue is read with option durable, and looked at by a batch with readWith=direct"
        yield failed(check, said, "set option durable for a query, or readWith to direct for a batch")
    elif config.retention == "interest" and "durable" not in use.purposes:
        said = "nothing holds messages for a query: what all consumers have acknowledged is gone"
        yield warning(check, said, "set option durable")
    else:
        yield ok(check, f"{config.retention} suits {', '.join(sorted(_READING & use.purposes))}")
    if queue and "durable" in use.purposes and config.deny_purge:
        said = "deny_purge is set, and committing removes messages of a work queue by purging"
        yield failed("deny_purge", said, "make the stream without deny_purge; it cannot be taken back")
    if (direct or (queue and "durable" in use.purposes)) and not config.allow_direct:
        why = "readWith=direct needs it" if direct else "a work queue is read by direct gets"
        yield failed("allow_direct", f"is not set: {why}", "set the stream's allow_direct to true")
    elif direct and use.level == 0:
        said = "readWith=direct needs nats-server 2.11"
        yield failed("direct gets", said, "upgrade the server, or set readWith to consumer")


def _consumers(info: StreamInfo, use: Use) -> Iterator[Finding]:
    if use.purposes.isdisjoint({"read", "durable"}):
        return
    used = info.state.consumer_count
    limits = [limit for limit in (info.config.max_consumers, use.max_consumers or -1) if limit > 0]
    if not limits and (use.level or 0) >= _CONSUMERS_LEVEL:
        limits = [_CONSUMERS]
    if not limits:
        yield ok("consumers", f"{used:,}, no limit")
        return
    most = min(limits)
    said = f"{used:,} of {most:,} (max_consumers)"
    advice = "remove consumers that nobody uses, raise the stream's max_consumers, or set readWith to direct"
    if used >= most:
        yield failed("consumers", f"{said}: none is left, and each task needs one", advice)
    elif used > most * _FULL:
        yield warning("consumers", f"{said}: each task needs one", advice)
    else:
        yield ok("consumers", said)


def _taking(info: StreamInfo, use: Use) -> Iterator[Finding]:
    config, name = info.config, info.config.name
    if config.mirror is not None:
        yield failed("writing", "is a mirror, which nobody can publish to", f"write to {config.mirror.name}")
    elif config.sealed:
        yield failed("writing", "is sealed and takes no more messages", "write to another stream (option stream)")
    elif config.no_ack:
        yield failed("writing", "has no_ack set: nothing says whether a row is stored", "set no_ack to false")
    elif use.subject is not None and not subject_pattern(config.subjects).fullmatch(use.subject):
        said = f"{name} does not capture {use.subject} (its subjects: {', '.join(config.subjects)})"
        yield failed("writing", said, f"correct option subject, or add {use.subject} to the stream's subjects")
    else:
        yield ok("writing", f"takes {use.subject or ', '.join(config.subjects)}")


def _room(info: StreamInfo) -> Iterator[Finding]:
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
        said = f"{used:,} of {most:,} {name} are used, and discard is new: a full stream refuses rows"
        yield status("room", said, f"purge the stream, raise {name}, or set discard to old")


def _duplicates(info: StreamInfo, use: Use, options: ConnectionOptions) -> Iterator[Finding]:
    if "exactly-once" in use.purposes:
        config = info.config
        if config.retention != "limits" or config.max_msgs_per_subject > 0:
            said = "exactly-once needs limits retention, and no max_msgs_per_subject"
            yield failed("delivery", said, "set option delivery to deduplicated, or write to another stream")
        return
    window = info.config.duplicate_window / 1e9
    said = f"message ids are remembered for {window:g} s (duplicate_window)"
    if window < options.retry_timeout:
        why = (
            f"{said}, a row is sent again for up to {options.retry_timeout:g} s (retryTimeout): it may be stored twice"
        )
        advice = "raise the stream's duplicate_window, lower retryTimeout, or set delivery to exactly-once"
        yield warning("delivery", why, advice)
    else:
        yield ok("delivery", said)
