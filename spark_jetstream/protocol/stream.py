"""What is known of a stream, as data: its state, and ranges of its sequences. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.units import INT64_MAX, shown, time_nanoseconds

_SECOND = 1_000_000_000

ELECTION_AFTER = 4 * _SECOND
"""Servers elect another leader when they have not heard theirs for so long (server/raft.go, `minElectionTimeout`)."""

ReadWith = Literal["auto", "consumer", "direct"]

Removals = tuple[int, str]


@dataclass(frozen=True)
class SequenceRange:
    """What one reader reads: the messages of a stream with ``first`` <= sequence < ``end`` that match.

    ``count`` is how many matched at planning time, None when that is not known. ``created`` is the stream's creation
    time as the server prints it, so that a reader notices a stream that was created again. ``subjects`` are the
    filters, empty for all. ``read_with`` says how the range is read. ``removals`` is `StreamSummary.removals` of
    a state from before the count, None where the count is right in any case, or nothing can show that it is not.
    ``sifted``: a reader without a consumer asks for all messages, and leaves out those that no filter matches. Plain
    data that pickles. `ValueError`: ``first`` < 1, or ``end`` < ``first``.
    """

    stream: str
    first: int
    end: int
    count: int | None
    created: str
    subjects: tuple[str, ...] = ()
    read_with: ReadWith = "consumer"
    removals: Removals | None = None
    sifted: bool = False

    def __post_init__(self) -> None:
        if self.first < 1 or self.end < self.first:
            raise ValueError(f"[{self.first}, {self.end}) is no range of sequences")

    @property
    def width(self) -> int:
        """The number of sequences in the range: no more messages can be in it."""
        return self.end - self.first


@dataclass(frozen=True)
class StreamSummary:
    """What ``STREAM.INFO`` said of a stream. Sequences as the server gives them, times in ns since the epoch.

    ``first_seq`` is 0 or 1 when nothing was ever stored (``last_seq`` is 0 then), and ``last_seq + 1`` when
    everything was removed. ``num_deleted`` counts the messages missing between the two. ``last_timestamp``
    belongs to ``last_seq`` (0 when nothing was ever stored). ``retention`` is ``limits``, ``interest`` or
    ``workqueue``. ``max_age`` (ns), ``max_msgs``, ``max_bytes`` and ``max_msgs_per_subject`` are limits of the stream;
    <= 0 means no limit. ``server_time`` is the server's clock when it answered, 0 when it did not say.

    ``duplicate_window`` is how long the stream remembers message ids, in seconds; 0 when it remembers none.
    ``subjects`` are those it takes, with wildcards, empty for a ``mirror``. ``renames``: its messages may have other
    ones, since it has ``sources`` or a ``subject_transform``; ``transforms``: it has the
    latter. ``max_msg_size`` < 0 means no limit in bytes of its own.
    ``discard`` is ``old`` or ``new``, ``storage`` is ``file`` or ``memory``. ``persist_mode`` is
    ``async`` where the server acknowledges what it has not stored yet (server 2.12, ADR-56). ``no_ack`` means that
    nothing published is confirmed, ``sealed`` that nothing can be published. ``allow_msg_ttl``: messages may
    have a TTL of their own (server 2.11, ADR-43). ``subject_delete_marker_ttl`` (ns) > 0: a marker takes the place of a
    subject's only message when it expires. ``deny_purge``: the stream refuses to be purged; ``deny_delete``: single
    messages cannot be deleted. ``allow_msg_schedules``: messages may be schedules (server 2.12, ADR-51).
    ``allow_rollup_hdrs``: they may remove others. ``initial_seq`` is the first sequence that the stream has ever used.
    ``allow_msg_counter``: its subjects are counters (server 2.12, ADR-49); ``allow_atomic``: it takes batches (ADR-50).
    ``domain``: that of its server, if any. ``consumers``: how many it has.
    ``num_replicas`` is 0 when the server did not say. ``clustered``: its server is one of a cluster.

    A server that was frozen, or cut off from the others, may answer from an older state. ``led``: it says that it leads
    the stream. ``leader``: the server that does, "" without a cluster. ``followed``: it leads, and a majority of the
    stream's servers has answered it too lately to have chosen another one. ``term``: who leads since when, as long as
    which the stream cannot have lost its end; "" where the server does not say (before 2.12, and of a stream without
    replicas). ``num_subjects``: how many subjects its messages have.
    """

    name: str
    created: str
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    num_deleted: int
    last_timestamp: int
    retention: str
    max_msgs_per_subject: int = 0
    allow_direct: bool = False
    max_age: int = 0
    max_msgs: int = 0
    max_bytes: int = 0
    server_time: int = 0
    duplicate_window: float = 0.0
    subjects: tuple[str, ...] = ()
    max_msg_size: int = -1
    discard: str = "old"
    storage: str = "file"
    persist_mode: str = "default"
    no_ack: bool = False
    sealed: bool = False
    mirror: bool = False
    renames: bool = False
    transforms: bool = False
    allow_msg_ttl: bool = False
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    deny_purge: bool = False
    allow_msg_schedules: bool = False
    allow_rollup_hdrs: bool = False
    deny_delete: bool = False
    subject_delete_marker_ttl: int = 0
    initial_seq: int = 1
    consumers: int = 0
    num_replicas: int = 0
    domain: str = ""
    clustered: bool = False
    num_subjects: int = 0
    leader: str = ""
    led: bool = True
    followed: bool = True
    term: str = ""

    @property
    def first_kept(self) -> int:
        """The first sequence that is, or could be next, in the stream; at least 1."""
        return max(1, self.first_seq)

    @property
    def expires(self) -> bool:
        """True when the server removes messages by their age (``max_age``), or by a TTL of their own."""
        return self.max_age > 0 or self.allow_msg_ttl

    @property
    def replaces(self) -> bool:
        """True when a newer message takes the place of an older one: on its subject, or of the schedule it is from."""
        return self.max_msgs_per_subject > 0 or self.allow_msg_schedules

    @property
    def removals(self) -> Removals | None:
        """How many sequences have no message, and `term`: equal in two states, no message was removed between them.

        Each removal raises the number, within a term. None where the server says no term.
        """
        return (self.last_seq - self.messages, self.term) if self.term else None

    @property
    def evicts(self) -> bool:
        """True when a new message can push out the oldest one (``max_msgs`` or ``max_bytes``, with discard old)."""
        return self.discard == "old" and (self.max_msgs > 0 or self.max_bytes > 0)


def subject_pattern(filters: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for the subjects that one of these filters matches; it matches nothing without a filter."""
    wildcards = {"*": r"[^.]+", ">": ".+"}
    patterns = [
        r"\.".join(wildcards.get(token, re.escape(token)) for token in text.split("."))
        for text in filters
    ]
    return re.compile("|".join(patterns) or "(?!)", re.DOTALL)


#: Fields of `StreamSummary` that are fields of the state, and that every server sends.
_COUNTS = ("first_seq", "last_seq", "messages", "bytes")
#: Fields of `StreamSummary` that are fields of the configuration.
_SETTINGS = (
    *("max_msgs_per_subject", "max_age", "max_msgs", "max_bytes", "max_msg_size", "num_replicas"),
    *(
        "allow_direct",
        "no_ack",
        "sealed",
        "allow_msg_ttl",
        "deny_purge",
        "discard",
        "storage",
        "persist_mode",
    ),
    *("allow_msg_schedules", "allow_rollup_hdrs"),
    *("deny_delete", "subject_delete_marker_ttl", "allow_msg_counter", "allow_atomic"),
)


def stream_summary(body: Mapping[str, Any], context: str) -> StreamSummary:
    """Return the `StreamSummary` that a reply of STREAM.INFO holds.

    Settings that a server leaves out have the defaults of `StreamSummary`. ``context`` says what was asked, as an
    infinitive without "to". Raises `ProtocolError` for a reply that is incomplete, or contradicts itself.
    """

    def setting(name: str) -> Any:
        default = getattr(StreamSummary, name)
        return jsapi.field(body, f"config.{name}", type(default), context, default)

    name, created = (jsapi.field(body, path, str, context) for path in ("config.name", "created"))
    if len(name) > jsapi.LONGEST_NAME:
        raise ProtocolError(
            f"cannot {context}: the server's reply has {shown(name)} for config.name"
        )
    if not reply_time(body, "created", context):
        raise ProtocolError(
            f"cannot {context}: the server's reply does not say when the stream was created"
        )
    counts: dict[str, Any] = {name: jsapi.whole(body, f"state.{name}", context) for name in _COUNTS}
    summary = StreamSummary(
        name=name,
        created=created,
        **counts,
        num_deleted=jsapi.field(body, "state.num_deleted", int, context, 0),
        last_timestamp=reply_time(body, "state.last_ts", context),
        retention=jsapi.field(body, "config.retention", str, context),
        server_time=reply_time(body, "ts", context),
        duplicate_window=jsapi.field(body, "config.duplicate_window", int, context, 0) / _SECOND,
        subjects=tuple(map(str, jsapi.field(body, "config.subjects", list, context, []))),
        initial_seq=max(1, jsapi.field(body, "config.first_seq", int, context, 1)),
        consumers=jsapi.field(body, "state.consumer_count", int, context, 0),
        num_subjects=jsapi.field(body, "state.num_subjects", int, context, 0),
        domain=jsapi.field(body, "domain", str, context, ""),
        mirror=bool(jsapi.field(body, "config.mirror", dict, context, {})),
        renames=any(body["config"].get(name) for name in ("sources", "subject_transform")),
        transforms=bool(jsapi.field(body, "config.subject_transform", dict, context, {})),
        clustered=bool(jsapi.field(body, "cluster.name", str, context, "")),
        **_leadership(body, context),
        **{name: setting(name) for name in _SETTINGS},
    )
    # Planning makes tasks of these numbers.
    width, deleted, last = (
        summary.last_seq + 1 - summary.first_kept,
        summary.num_deleted,
        summary.last_seq,
    )
    if width < 0 or summary.messages > width or not 0 <= deleted <= width or last == INT64_MAX:
        raise ProtocolError(
            f"cannot {context}: the server's reply makes no sense: {summary.messages} messages and {shown(deleted)} "
            f"deleted ones in the sequences {summary.first_seq} to {last}"
        )
    return summary


def _leadership(body: Mapping[str, Any], context: str) -> dict[str, Any]:
    """Return ``leader``, ``led``, ``followed`` and ``term`` of a `StreamSummary`."""
    # A leader lists the other servers of the stream, and since when each is silent ("active").
    others = [
        peer
        for peer in jsapi.field(body, "cluster.replicas", list, context, [])
        if isinstance(peer, dict)
    ]
    leader = jsapi.field(body, "cluster.leader", str, context, "")
    since = jsapi.field(body, "cluster.leader_since", str, context, "")
    led = not others or leader not in {"", *(str(peer.get("name")) for peer in others)}
    silences = (
        jsapi.field(peer, "active", int, context, 0) for peer in others if not peer.get("offline")
    )
    heard = sum(0 < silence < ELECTION_AFTER for silence in silences)
    followed = led and heard >= (1 + len(others)) // 2
    term = f"{leader} {since}" if since else ""
    return {"leader": leader, "led": led, "followed": followed, "term": term}


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
