"""The state of a stream, and ranges of its sequences, as data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.units import INT64_MAX, SECOND, shown, time_nanoseconds

ELECTION_AFTER = 4 * SECOND
"""Servers elect another leader when theirs was silent for this long, in ns.

See `minElectionTimeout` in server/raft.go.
"""

ReadWith = Literal["auto", "consumer", "direct"]

Removals = tuple[int, str]


@dataclass(frozen=True)
class SequenceRange:
    """The messages that one reader reads: those of a stream with ``first`` <= sequence < ``end``.

    Plain data that pickles. `ValueError`: ``first`` < 1, or ``end`` < ``first``.
    """

    stream: str
    first: int
    end: int
    count: int | None
    """How many messages matched at planning time, None when that is not known."""
    created: str
    """When the stream was created, as the server prints it: a reader notices another stream."""
    subjects: tuple[str, ...] = ()
    """The filters, empty for all."""
    read_with: ReadWith = "consumer"
    removals: Removals | None = None
    """`StreamSummary.removals` of a state from before the count.

    None where the count is right in any case, or nothing can show that it is not.
    """
    sifted: bool = False
    """A reader without a consumer asks for all messages, and leaves out those that do not match."""

    def __post_init__(self) -> None:
        if self.first < 1 or self.end < self.first:
            raise ValueError(f"[{self.first}, {self.end}) is no range of sequences")

    @property
    def width(self) -> int:
        """The number of sequences in the range: no more messages can be in it."""
        return self.end - self.first


@dataclass(frozen=True)
class StreamSummary:
    """The state and configuration of a stream, as ``STREAM.INFO`` gave them.

    Sequences as the server gives them, times in ns since the epoch.

    A limit <= 0 means none. A server that was frozen, or cut off from the others, may answer from
    an older state: see ``led`` and ``followed``.
    """

    name: str
    created: str
    first_seq: int
    """0 or 1 when nothing was ever stored, ``last_seq + 1`` when everything was removed."""
    last_seq: int
    """0 when nothing was ever stored."""
    messages: int
    bytes: int
    num_deleted: int
    """Messages that are missing between ``first_seq`` and ``last_seq``."""
    last_timestamp: int
    """When the message at ``last_seq`` was stored; 0 when nothing was ever stored."""
    retention: str
    """``limits``, ``interest`` or ``workqueue``."""
    max_msgs_per_subject: int = 0
    allow_direct: bool = False
    max_age: int = 0
    """In ns."""
    max_msgs: int = 0
    max_bytes: int = 0
    server_time: int = 0
    """The server's clock when it answered, 0 when it did not say."""
    duplicate_window: float = 0.0
    """How long the stream remembers message ids, in seconds; 0 when it remembers none."""
    subjects: tuple[str, ...] = ()
    """The subjects that the stream takes, with wildcards; empty for a ``mirror``."""
    max_msg_size: int = -1
    """In bytes; < 0 means no limit of its own."""
    discard: str = "old"
    """``old`` or ``new``."""
    storage: str = "file"
    """``file`` or ``memory``."""
    persist_mode: str = "default"
    """``async`` where the server acknowledges what it has not stored yet (server 2.12, ADR-56)."""
    no_ack: bool = False
    """Nothing that is published is confirmed."""
    sealed: bool = False
    """Nothing can be published."""
    mirror: bool = False
    renames: bool = False
    """Messages may have other subjects, since the stream has sources or a subject transform."""
    transforms: bool = False
    """The stream has a ``subject_transform``."""
    allow_msg_ttl: bool = False
    """Messages may have a TTL of their own (server 2.11, ADR-43)."""
    allow_msg_counter: bool = False
    """The subjects are counters (server 2.12, ADR-49)."""
    allow_atomic: bool = False
    """The stream takes atomic batches (ADR-50)."""
    deny_purge: bool = False
    allow_msg_schedules: bool = False
    """Messages may be schedules (server 2.12, ADR-51)."""
    allow_rollup_hdrs: bool = False
    """Messages may remove others."""
    deny_delete: bool = False
    """Single messages cannot be deleted."""
    subject_delete_marker_ttl: int = 0
    """In ns; > 0: a marker takes the place of a subject's only message when it expires."""
    initial_seq: int = 1
    """The first sequence that the stream has ever used."""
    consumers: int = 0
    """How many consumers the stream has."""
    num_replicas: int = 0
    """0 when the server did not say."""
    domain: str = ""
    """The domain of the server that answered, if any."""
    clustered: bool = False
    """The server that answered is one of a cluster."""
    num_subjects: int = 0
    """How many subjects the messages have."""
    leader: str = ""
    """The server that leads the stream, "" without a cluster."""
    led: bool = True
    """The server that answered says that it leads the stream."""
    followed: bool = True
    """It leads, and a majority answered it too lately to have chosen another leader."""
    term: str = ""
    """The leader, and since when it leads; while it is equal, the stream cannot have lost its end.

    "" where the server does not say (before 2.12, and of a stream without replicas).
    """

    @property
    def first_kept(self) -> int:
        """The first sequence that is, or could be next, in the stream; at least 1."""
        return max(1, self.first_seq)

    @property
    def expires(self) -> bool:
        """True when the server removes messages by their age, or by a TTL of their own."""
        return self.max_age > 0 or self.allow_msg_ttl

    @property
    def replaces(self) -> bool:
        """True when a newer message takes the place of an older one.

        The older one is on the same subject, or of the same schedule.
        """
        return self.max_msgs_per_subject > 0 or self.allow_msg_schedules

    @property
    def removals(self) -> Removals | None:
        """How many sequences have no message, and `term`.

        If they are equal in two states, no message was removed between these. Each removal raises
        the number, within a term. None where the server says no term.
        """
        # Without a term a new leader that has lost the tail could give the same number.
        if not self.term:
            return None
        return self.last_seq - self.messages, self.term

    @property
    def evicts(self) -> bool:
        """True when a new message can push out the oldest one."""
        return self.discard == "old" and (self.max_msgs > 0 or self.max_bytes > 0)


def subject_pattern(filters: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for subjects that one of these filters matches; none without a filter."""
    wildcards = {"*": r"[^.]+", ">": ".+"}
    patterns = []
    for text in filters:
        tokens = [wildcards.get(token, re.escape(token)) for token in text.split(".")]
        patterns.append(r"\.".join(tokens))
    nothing = "(?!)"
    return re.compile("|".join(patterns) or nothing, re.DOTALL)


#: Fields of `StreamSummary` that are fields of the state, and that every server sends.
_COUNTS = ("first_seq", "last_seq", "messages", "bytes")
#: Fields of `StreamSummary` that are fields of the configuration.
_SETTINGS = (
    "max_msgs_per_subject",
    "max_age",
    "max_msgs",
    "max_bytes",
    "max_msg_size",
    "num_replicas",
    "allow_direct",
    "no_ack",
    "sealed",
    "allow_msg_ttl",
    "deny_purge",
    "discard",
    "storage",
    "persist_mode",
    "allow_msg_schedules",
    "allow_rollup_hdrs",
    "deny_delete",
    "subject_delete_marker_ttl",
    "allow_msg_counter",
    "allow_atomic",
)


def stream_summary(body: Mapping[str, Any], context: str) -> StreamSummary:
    """Return the `StreamSummary` that a reply of STREAM.INFO holds.

    Settings that a server leaves out have the defaults of `StreamSummary`. ``context`` says what
    was asked, as an infinitive without "to". Raises `ProtocolError` for a reply that is incomplete,
    or contradicts itself.
    """
    name = jsapi.field(body, "config.name", str, context)
    created = jsapi.field(body, "created", str, context)
    if len(name) > jsapi.LONGEST_NAME:
        raise ProtocolError(
            f"cannot {context}: the server's reply has {shown(name)} for config.name"
        )
    if not reply_time(body, "created", context):
        raise ProtocolError(
            f"cannot {context}: the server's reply does not say when the stream was created"
        )
    counts: dict[str, Any] = {}
    for count in _COUNTS:
        counts[count] = jsapi.whole(body, f"state.{count}", context)
    settings: dict[str, Any] = {}
    for setting in _SETTINGS:
        default = getattr(StreamSummary, setting)
        settings[setting] = jsapi.field(body, f"config.{setting}", type(default), context, default)
    transforms = bool(jsapi.field(body, "config.subject_transform", dict, context, {}))
    summary = StreamSummary(
        name=name,
        created=created,
        **counts,
        num_deleted=jsapi.field(body, "state.num_deleted", int, context, 0),
        last_timestamp=reply_time(body, "state.last_ts", context),
        retention=jsapi.field(body, "config.retention", str, context),
        server_time=reply_time(body, "ts", context),
        duplicate_window=jsapi.field(body, "config.duplicate_window", int, context, 0) / SECOND,
        subjects=tuple(map(str, jsapi.field(body, "config.subjects", list, context, []))),
        initial_seq=max(1, jsapi.field(body, "config.first_seq", int, context, 1)),
        consumers=jsapi.field(body, "state.consumer_count", int, context, 0),
        num_subjects=jsapi.field(body, "state.num_subjects", int, context, 0),
        domain=jsapi.field(body, "domain", str, context, ""),
        mirror=bool(jsapi.field(body, "config.mirror", dict, context, {})),
        renames=any(body["config"].get(name) for name in ("sources", "subject_transform")),
        transforms=transforms,
        clustered=bool(jsapi.field(body, "cluster.name", str, context, "")),
        **_leadership(body, context),
        **settings,
    )
    _check_numbers(summary, context)
    return summary


def _check_numbers(summary: StreamSummary, context: str) -> None:
    """Raise `ProtocolError` for numbers that contradict each other."""
    # Planning makes tasks of them.
    width = summary.last_seq + 1 - summary.first_kept
    deleted = summary.num_deleted
    last = summary.last_seq
    has_room = 0 <= summary.messages <= width
    if not has_room or not 0 <= deleted <= width or last == INT64_MAX:
        raise ProtocolError(
            f"cannot {context}: the server's reply makes no sense: {summary.messages} messages and "
            f"{shown(deleted)} deleted ones in the sequences {summary.first_seq} to {last}"
        )


def _leadership(body: Mapping[str, Any], context: str) -> dict[str, Any]:
    """Return ``leader``, ``led``, ``followed`` and ``term`` of a `StreamSummary`."""
    leader = jsapi.field(body, "cluster.leader", str, context, "")
    since = jsapi.field(body, "cluster.leader_since", str, context, "")
    # A leader lists the other servers of the stream, and since when each is silent ("active").
    others = [
        peer
        for peer in jsapi.field(body, "cluster.replicas", list, context, [])
        if isinstance(peer, dict)
    ]
    # The leader is not in its own list; a replica that answers lists the leader as another server.
    led = not others or (leader != "" and leader not in _names(others))
    heard = 0
    for peer in others:
        if peer.get("offline"):
            continue
        silence = jsapi.field(peer, "active", int, context, 0)
        # After a longer silence this server may have elected another leader.
        if 0 < silence < ELECTION_AFTER:
            heard += 1
    # With itself these are a majority.
    followed = led and heard >= (1 + len(others)) // 2
    term = f"{leader} {since}" if since else ""
    return {"leader": leader, "led": led, "followed": followed, "term": term}


def _names(peers: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(peer.get("name")) for peer in peers}


def reply_time(
    body: Mapping[str, Any],
    path: str,
    context: str,
    *,
    what: str = "the server's reply",
) -> int:
    """Return the time at a path of a reply, in ns; 0 for the year 1 and for none.

    Raises `ProtocolError`, about ``what``, for a time outside of 1970 to 2262.
    """
    text = jsapi.field(body, path, str, context, "")
    if not text or text.startswith("0001-01-01T"):
        return 0
    try:
        return time_nanoseconds(text)
    except ValueError:
        raise ProtocolError(
            f"cannot {context}: {what} has {shown(text)} for {path}, which is no time"
        ) from None
