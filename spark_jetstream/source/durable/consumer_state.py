"""Replies about the durable consumers that show how far Spark has committed, read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import PURGE, RUN, SINCE
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.protocol.units import SECOND, parse_time

_PURGE = re.compile(r"below ([0-9]{1,19}), then at ([0-9]{1,19})( or later)?")


@dataclass(frozen=True)
class Purge:
    """The purge of a commit on a work queue, which a run notes in the consumer's metadata first.

    The server moves the consumer on to the first message that still matches, or to the end of the
    stream, and the run then moves it back to `below`. If the run ends before that, the note tells
    the next run this purge from one by another client, which may have removed unread messages.

    The purge removes what matches below the sequence ``below``: all of that is in Spark's sink.
    When the note was written, nothing matched from there to below the sequence ``next``. If
    ``certain``, the purge moves the consumer no further than ``next``, because the message there
    matches. Otherwise ``next`` was the end of the stream, and the purge moves the consumer on past
    the messages that were stored since and do not match.
    """

    below: int
    next: int
    certain: bool

    def may_move_to(self, sequence: int) -> bool:
        """Whether this purge may have moved the consumer there."""
        if sequence <= self.below:
            return False
        return sequence <= self.next or not self.certain

    def is_doubtful(self, sequence: int) -> bool:
        """Whether a later purge by another client may as well have moved the consumer there."""
        return not self.certain and sequence > self.next

    @classmethod
    def noted(cls, metadata: Mapping[str, str]) -> Purge | None:
        """Return what `note` has written; None also for a text that it does not write."""
        found = _PURGE.fullmatch(metadata.get(PURGE, ""))
        if found is None:
            return None
        return cls(int(found[1]), int(found[2]), certain=found[3] is None)

    def note(self) -> str:
        """Return the text for the metadata."""
        later = "" if self.certain else " or later"
        return f"below {self.below}, then at {self.next}{later}"


@dataclass(frozen=True)
class ConsumerState:
    """The state of a consumer, as the server describes it.

    ``next`` is the first stream sequence that is not committed, ``deliveries`` how many messages
    were pulled from the consumer (zero, unless another client uses it). ``run`` is the token of the
    run that has it, None when no query ever had it. ``level`` is the API level of the server that
    answered, 0 before 2.11. ``inactive_threshold`` is in seconds, 0 for none. ``purge`` is that of
    a commit on a work queue that is not finished, None without a note. ``created`` is when the
    consumer was created, in ns since the epoch by the server's clock, 0 if that is not known.
    """

    config: Mapping[str, Any]
    next: int
    deliveries: int
    run: str | None
    since: str
    level: int
    inactive_threshold: float
    purge: Purge | None = None
    created: int = 0
    cluster: str = ""
    """The cluster that keeps it, "" without one."""
    leader: str = ""
    """The server that leads it, "" without a cluster."""
    followers: tuple[str, ...] = ()
    """The servers that keep it beside its leader."""
    offline: tuple[str, ...] = ()
    """Those of them that are down."""
    behind: tuple[str, ...] = ()
    """Those of them that are down, or have not taken up all of its log."""

    @classmethod
    def from_reply(cls, body: Mapping[str, Any], context: str) -> ConsumerState:
        """Return the state in a reply about a consumer. Raises `ProtocolError` for an unusable one.

        `context` is what was asked, as an infinitive without "to"; the error repeats it.
        """
        config: Mapping[str, Any] = jsapi.field(body, "config", dict, context)
        deliveries = int(jsapi.field(body, "delivered.consumer_seq", int, context))
        metadata = metadata_of(config)
        level = metadata.get("_nats.level", "0")
        threshold = config.get("inactive_threshold", 0)
        following = _first_uncommitted(body, config.get("opt_start_seq"), deliveries, context)
        replicas = _replicas(body, context)
        level_is_number = level.isascii() and level.isdigit()
        if not level_is_number or not isinstance(threshold, int):
            raise ProtocolError(
                f"cannot {context}: the server's reply has an unusable configuration"
            )
        return cls(
            config=config,
            next=following,
            deliveries=deliveries,
            run=metadata.get(RUN),
            since=metadata.get(SINCE, ""),
            level=int(level),
            inactive_threshold=threshold / SECOND,
            purge=Purge.noted(metadata),
            created=parse_time(str(body.get("created", ""))),
            cluster=jsapi.field(body, "cluster.name", str, context, ""),
            leader=jsapi.field(body, "cluster.leader", str, context, ""),
            followers=tuple(str(each.get("name")) for each in replicas),
            offline=tuple(str(each.get("name")) for each in replicas if each.get("offline")),
            behind=tuple(str(each.get("name")) for each in replicas if _is_behind(each)),
        )

    @property
    def filters(self) -> tuple[str, ...]:
        """Its subject filters, empty for all."""
        return jsapi.filters_of(self.config)

    @property
    def leader_can_reset(self) -> bool:
        """Whether the server that leads the consumer has CONSUMER.RESET."""
        return CONSUMER_RESET.is_at(self.level)

    def can_move_to(self, sequence: int) -> bool:
        """Whether the leader of the consumer can move it there; see `Moves.way`.

        It can since 2.14, and not before the sequence at which the consumer began.
        """
        if not self.leader_can_reset:
            return False
        begins = 1
        start = self.config.get("opt_start_seq")
        by_start = self.config.get("deliver_policy") == "by_start_sequence"
        if by_start and isinstance(start, int):
            begins = start
        return sequence >= begins

    def differences(self, filters: tuple[str, ...], *, in_memory: bool) -> list[str]:
        """Return what keeps the consumer from holding a query's position.

        Each difference is text like "field: wanted X, is Y". `in_memory`: the stream is kept in
        memory, and its consumers may be too.
        """
        config = self.config
        begins = str(config.get("deliver_policy", "all"))
        wanted_begin = "all"
        if self.run and begins == "by_start_sequence":
            # On a server that cannot move consumers a query's own begins where the last commit was.
            wanted_begin = begins
        in_words = [
            ("ack_policy", "explicit", str(config.get("ack_policy", "none"))),
            ("deliver_policy", wanted_begin, begins),
            ("filter_subjects", listed(filters), listed(self.filters)),
            ("deliver_subject", "none", str(config.get("deliver_subject") or "none")),
        ]
        if not in_memory:
            in_words.append(("mem_storage", "false", str(bool(config.get("mem_storage"))).lower()))
        return [
            f"{field}: wanted {wanted}, is {value}"
            for field, wanted, value in in_words
            if wanted != value
        ]


def _first_uncommitted(
    body: Mapping[str, Any], start: object, deliveries: int, context: str
) -> int:
    """Return the first stream sequence that is not committed.

    `start` is the ``opt_start_seq`` of the consumer's configuration, if it has one.
    """
    delivered = int(jsapi.field(body, "delivered.stream_seq", int, context)) + 1
    if deliveries:
        return int(jsapi.field(body, "ack_floor.stream_seq", int, context)) + 1
    if isinstance(start, int) and not jsapi.field(body, "ack_floor.stream_seq", int, context):
        # Before 2.14 the ack floor stays 0 until something moves the consumer, such as a purge. It
        # begins at the stream's first message, if that comes later than its start, and holds what
        # matches from the start on (tried on 2.10.26, 2.11.11 and 2.12.8).
        return min(delivered, max(1, start))
    return delivered


def _replicas(body: Mapping[str, Any], context: str) -> list[dict[str, Any]]:
    """Return what the leader says of the other servers of the consumer."""
    replicas: list[Any] = jsapi.field(body, "cluster.replicas", list, context, [])
    return [each for each in replicas if isinstance(each, dict)]


def _is_behind(replica: Mapping[str, Any]) -> bool:
    return bool(replica.get("offline")) or not replica.get("current")


def metadata_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a consumer's configuration, empty if there is none."""
    metadata = config.get("metadata")
    if not isinstance(metadata, dict):
        return {}
    return {str(key): str(value) for key, value in metadata.items()}


def listed(filters: Iterable[str]) -> str:
    """Return subject filters as text for an error."""
    return ", ".join(sorted(filters)) or "all subjects"
