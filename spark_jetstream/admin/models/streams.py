"""Streams: their configuration and what the server says of them, all fields of server 2.15. Pure.

Defaults are those of the server, for a field that is not sent. Durations are nanoseconds, sizes
bytes, and both may be given as text. Times are `Timestamp`, which the server writes in UTC with
nanoseconds; the year 1 means "never". As a duration in a reply, -1 means "never". ADR numbers are
those of the NATS architecture decision records.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spark_jetstream.admin.models.base import (
    Boolean,
    Check,
    Count,
    Duration,
    Model,
    OptionalSubject,
    Page,
    Reply,
    Sequence64,
    String,
    Time,
    Volume,
    users_metadata,
)
from spark_jetstream.options.names import Name, Subject
from spark_jetstream.options.values import Choice, Size, Span, Text, Whole
from spark_jetstream.protocol.units import NEVER, Bytes, Nanoseconds

INT32_MAX = 2**31 - 1
ZERO = Nanoseconds(0)
NO_LIMIT = "no limit"

Description = Annotated[str, Text(most=4096)]
StreamName = Annotated[str, Name("stream")]
AnySubject = Annotated[str, Subject()]
Metadata = dict[Annotated[str, Text()], Annotated[str, Text()]]
Limit = Annotated[int, Whole(1, unlimited=NO_LIMIT)]
Replicas = Annotated[int, Whole(0, 5)]


class SubjectTransform(Model):
    """How subjects are rewritten (ADR-30)."""

    shorthand: ClassVar[str] = "dest"
    src: OptionalSubject = ""
    """Which subjects are rewritten; empty for all."""
    dest: String
    """The new subject, such as ``orders.{{wildcard(1)}}`` or ``orders.{{partition(8,1)}}``."""


class External(Model):
    """How to reach a stream in another account or domain."""

    shorthand: ClassVar[str] = "api"
    api: Annotated[str, Subject(literal=True, optional=True)]
    """The prefix of its JetStream API subjects, such as ``$JS.hub.API``. A server accepts an empty
    prefix, and then copies nothing."""
    deliver: OptionalSubject = ""
    """The prefix of the subjects that messages arrive on; empty for the server's choice."""


class SourceConsumer(Model):
    """An existing push consumer through which the server copies a work queue stream (server 2.14, ADR-60)."""

    name: Annotated[str, Name("consumer")]
    """Its name on the origin."""
    deliver_subject: Annotated[str, Subject(literal=True)]
    """The subject that it delivers to."""


class StreamSource(Model):
    """A stream that is copied from: a mirror's origin, or one of several sources."""

    shorthand: ClassVar[str] = "name"
    name: StreamName
    """The origin."""
    opt_start_seq: Sequence64 = 0
    """The first sequence to copy; 0 for the beginning."""
    opt_start_time: Time | None = None
    """Copy from this time on."""
    filter_subject: OptionalSubject = ""
    """Copy only these subjects; empty for all. Not together with ``subject_transforms``."""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    """Copy messages that match one of these and rewrite their subjects; the first match counts
    (server 2.10)."""
    external: External | None = None
    """Where the origin is, when it is in another account or domain."""
    consumer: SourceConsumer | None = None
    """Copy through this consumer instead of one that the server creates (server 2.14). The consumer
    defines the start and the filter: only ``subject_transforms`` and ``external`` can be set with
    it."""

    def _checks(self) -> Iterator[Check]:
        # The consumer decides about the start and the filter itself.
        chosen = self.opt_start_seq or self.opt_start_time or self.filter_subject
        yield (
            self.consumer and chosen,
            "consumer cannot be set together with opt_start_seq, opt_start_time or filter_subject",
        )


class Placement(Model):
    """Which servers may hold the replicas."""

    cluster: String = ""
    """The name of the cluster; empty for any."""
    tags: tuple[Annotated[str, Text()], ...] = ()
    """Tags that a server must have, all of them."""
    preferred: String = ""
    """The server that should become the leader. Only for step-down requests: the server refuses it
    in a stream."""


class RePublish(Model):
    """Publish each stored message again on another subject (ADR-28)."""

    shorthand: ClassVar[str] = "dest"
    src: OptionalSubject = ""
    """The subjects of these messages; empty for all."""
    dest: String
    """The new subject, such as ``copies.>``; not one of the stream itself. Empty: nothing is
    published again, and the client sends no ``republish``: a server that updates a stream takes an
    empty one for ``>``."""
    headers_only: Boolean = False
    """Publish the size of each message instead of its content."""


class ConsumerLimits(Model):
    """Defaults, and upper limits, of the consumers of a stream (server 2.10).

    They hold for durable ones too.
    """

    inactive_threshold: Annotated[Nanoseconds, Span(zero="none", negative=True)] = ZERO
    """How long the server keeps an unused consumer, in nanoseconds; 0 for the server's defaults."""
    max_ack_pending: Annotated[int, Whole(-(2**63))] = 0
    """How many messages may wait for their acknowledgement; 0 for the server's default, -1 for any
    number."""


class StreamConfig(Model):
    """The configuration of a stream: what a client sends to create or update it, and what the server reports."""

    name: StreamName
    """The name of the stream. It can never change."""
    description: Description = ""
    """A text for readers; at most 4,096 bytes."""
    subjects: tuple[AnySubject, ...] = ()
    """The subjects that it stores. Without subjects, mirror and sources, the server uses the
    stream's name."""
    retention: Annotated[str, Choice(("limits", "interest", "workqueue"))] = "limits"
    """When messages are removed: at the limits, when all consumers have acknowledged them, or when
    one has."""
    max_consumers: Limit = -1
    """How many consumers it may have; 0 or -1 for the server's limit, 1,000 by default since
    2.15."""
    max_msgs: Limit = -1
    """The most messages that the stream keeps; 0 or -1 for any number."""
    max_bytes: Annotated[Bytes, Size(1, unlimited=NO_LIMIT)] = Bytes(-1)
    """The most bytes that the stream keeps, headers included; 0 or -1 for any number."""
    max_age: Annotated[Nanoseconds, Span("100ms", zero=NO_LIMIT)] = ZERO
    """How long messages stay, in nanoseconds; 0 for ever."""
    max_msgs_per_subject: Limit = -1
    """The most messages that the stream keeps of each subject; 0 or -1 for any number."""
    max_msg_size: Annotated[Bytes, Size(1, INT32_MAX, unlimited=NO_LIMIT)] = Bytes(-1)
    """How many bytes, headers included, a message may have; 0 or -1 for what the server allows."""
    discard: Annotated[str, Choice(("old", "new"))] = "old"
    """The messages that the server drops at a limit: the oldest ones, or the new one."""
    storage: Annotated[str, Choice(("file", "memory"))] = "file"
    """Where messages are stored. It can never change."""
    num_replicas: Replicas = 1
    """How many servers keep a copy, 1 to 5; 0 means 1."""
    no_ack: Boolean = False
    """Send no acknowledgements. Publishers never learn whether a message was stored."""
    duplicate_window: Annotated[Nanoseconds, Span("100ms", zero="the server's choice")] = ZERO
    """How long message ids are remembered, in nanoseconds; 0 for two minutes, or ``max_age`` if
    that is less."""
    placement: Placement | None = None
    """Which servers may hold it; none for any."""
    mirror: StreamSource | None = None
    """The stream that this one copies, with the same sequences. Later it can only be removed
    (server 2.12)."""
    sources: tuple[StreamSource, ...] = ()
    """Streams that are copied into this one, which assigns its own sequences."""
    compression: Annotated[str, Choice(("none", "s2"))] = "none"
    """How the server compresses blocks on disk (server 2.10)."""
    first_seq: Sequence64 = 0
    """The sequence of the first message, for a new stream; 0 for 1 (server 2.10)."""
    subject_transform: SubjectTransform | None = None
    """How the server rewrites subjects before it stores messages (server 2.10)."""
    republish: RePublish | None = None
    """Which messages the server publishes again after it stored them."""
    allow_direct: Boolean = True
    """Let any replica answer direct reads (ADR-31). Unless given, an existing stream keeps its
    own."""
    mirror_direct: Boolean = False
    """Let this mirror answer direct reads for its origin. The server sets it like ``allow_direct``
    of an origin that it can see, whatever is asked for."""
    discard_new_per_subject: Boolean = False
    """Refuse a message when its subject is full. Needs ``discard`` new and
    ``max_msgs_per_subject``."""
    sealed: Boolean = False
    """Allow no new messages and no deletion, forever. A new stream cannot be sealed."""
    deny_delete: Boolean = False
    """Refuse every request to delete messages. It cannot be taken back."""
    deny_purge: Boolean = False
    """Refuse every request to purge. It cannot be taken back."""
    allow_rollup_hdrs: Boolean = False
    """Let a message with the header ``Nats-Rollup`` replace all before it."""
    consumer_limits: ConsumerLimits = ConsumerLimits()
    """Defaults and limits of its consumers."""
    allow_msg_ttl: Boolean = False
    """Allow messages with their own time to live (server 2.11, ADR-43). It cannot be taken back."""
    subject_delete_marker_ttl: Annotated[Nanoseconds, Span("1s", "200y", zero="none")] = ZERO
    """How long a marker stays, in nanoseconds, where the last message of a subject expired; 0 for
    no markers. It turns ``allow_msg_ttl`` and ``allow_rollup_hdrs`` on (server 2.11)."""
    allow_msg_counter: Boolean = False
    """Make every subject a counter (server 2.12, ADR-49). It can never change."""
    allow_atomic: Boolean = False
    """Allow atomic batches: the server stores all messages of a batch or none (server 2.12,
    ADR-50)."""
    allow_msg_schedules: Boolean = False
    """Allow scheduled messages, delayed or repeated (server 2.12, ADR-51). It cannot be taken back,
    and turns ``allow_rollup_hdrs`` on."""
    persist_mode: Annotated[str, Choice(("default", "async"), empty=True)] = "default"
    """When the server acknowledges: after it stored a message, or before (async; server 2.12). It
    can never change."""
    allow_batched: Boolean = False
    """Allow fast batches, which the server acknowledges at intervals (server 2.14)."""
    metadata: Metadata = Field(default_factory=dict)
    """Names and values for people and programs, 128 KiB together. Those that begin with ``_nats.``
    are the server's: they are shown, and never sent."""

    @property
    def own_metadata(self) -> dict[str, str]:
        """``metadata`` without what the server wrote."""
        return users_metadata(self.metadata)

    def body(self) -> dict[str, Any]:
        """As `Model.body`, without a ``republish`` that has no destination."""
        body = super().body()
        # In an update a server takes an empty destination for `>`, and publishes every message of
        # the stream into itself (`test_an_update_does_not_publish_a_stream_into_itself`).
        if self.republish and not self.republish.dest:
            del body["republish"]
        return body

    def _checks(self) -> Iterator[Check]:
        # An update must not keep these two of an existing stream (`changes.update_body`).
        yield (
            self.mirror and self.first_seq,
            "a mirror cannot have first_seq: remove that or mirror",
        )
        window, age = self.duplicate_window, self.max_age
        yield age and window > age, f"duplicate_window ({window}) is longer than max_age ({age})"
        # The server takes these two, and turns deny_purge off.
        for name in ("subject_delete_marker_ttl", "allow_msg_schedules"):
            denied = self.deny_purge and not self.sealed
            yield (
                denied and getattr(self, name),
                f"{name} needs rollups, which deny_purge forbids: remove one of them",
            )
        # The server takes both, and then refuses every update of the stream.
        marked = self.allow_msg_counter and self.subject_delete_marker_ttl
        yield marked, "allow_msg_counter and subject_delete_marker_ttl cannot be set together"


DEFAULT_STREAM: Mapping[str, Any] = MappingProxyType(
    {"retention": "limits", "storage": "file", "discard": "old"},
)
"""A stream on disk that keeps messages up to its limits."""

DEFAULT_WORK_QUEUE: Mapping[str, Any] = MappingProxyType(
    {"retention": "workqueue", "storage": "file", "discard": "new"}
)
"""A queue on disk: a message is removed when it is acknowledged; a full queue refuses new
messages."""


class ApiErrorBody(Model):
    """An error as the API reports it; `errors.api_error` makes an exception of it."""

    code: Count = 0
    """The status code, as in HTTP."""
    err_code: Count = 0
    """The exact reason."""
    description: String = ""
    """The reason in the server's words."""


class LostData(Model):
    """Messages that the server found damaged."""

    msgs: tuple[Sequence64, ...] = ()
    """Their sequences."""
    bytes: Volume = Bytes(0)
    """How many bytes they had."""


class StreamState(Model):
    """The state of a stream: its messages, sequences and subjects."""

    messages: Count
    """How many messages."""
    bytes: Volume
    """How many bytes, headers and bookkeeping included."""
    first_seq: Sequence64
    """The first sequence: 0 or 1 when nothing was ever stored, ``last_seq + 1`` when all messages
    are gone."""
    first_ts: Time = NEVER
    """When the first message was stored."""
    last_seq: Sequence64
    """The last sequence that the server assigned, 0 for none."""
    last_ts: Time = NEVER
    """When the last message was stored."""
    num_subjects: Count = 0
    """How many subjects have messages."""
    subjects: dict[str, Count] = Field(default_factory=dict)
    """How many messages each subject has, when that was asked for with ``subjects_filter``."""
    num_deleted: Count = 0
    """How many messages are missing between the first and the last."""
    deleted: tuple[Sequence64, ...] = ()
    """Their sequences, when that was asked for with ``deleted_details``."""
    lost: LostData | None = None
    """Messages that are damaged."""
    consumer_count: Count = 0
    """How many consumers there are."""


class PeerInfo(Model):
    """One server of a group that keeps replicas."""

    name: String = ""
    """The server's name."""
    current: Boolean = False
    """Whether it was seen recently and is up to date."""
    offline: Boolean = False
    """Whether the leader knows that it is down."""
    active: Duration = ZERO
    """How long ago it was seen, in nanoseconds."""
    lag: Count = 0
    """How many operations it lags behind the leader."""
    peer: String = ""
    """Its id in the group."""
    pending: Boolean = False
    """Whether it is about to join or to leave the group (server 2.15)."""


class DesiredOrigin(Model):
    """The state of a group before a move or a change of its size (server 2.15)."""

    replicas: Count = 0
    """How many replicas there were."""
    placement: Placement | None = None
    """Where they were."""
    retention: String = ""
    """The retention that holds until the change is complete."""


class DesiredStatus(Model):
    """The progress of a change of a group (server 2.15)."""

    description: String = ""
    """The task of the leader, or the event that it waits for."""
    type: String = ""
    """The same as one word: meta, membership, snapshot, catchup, quorum, blocked or unavailable."""
    err: String = ""
    """The error that keeps occurring."""


class DesiredCluster(Model):
    """The planned state of a group, present only during a change (server 2.15)."""

    created: Time = NEVER
    """Since when."""
    name: String = ""
    """The cluster it will be in."""
    replicas: tuple[PeerInfo, ...] = ()
    """The servers it will have; empty until they are chosen."""
    origin: DesiredOrigin | None = None
    """The state before the change."""
    status: DesiredStatus | None = None
    """The progress of the change."""


class ClusterInfo(Model):
    """The servers that keep a stream or a consumer."""

    name: String = ""
    """The cluster; empty without one."""
    raft_group: String = ""
    """The group that agrees on the order of messages; empty with one replica."""
    leader: String = ""
    """The leader; empty while there is none, and then nothing can be stored."""
    leader_since: Time | None = None
    """Since when."""
    system_account: Boolean = False
    """Whether the replicas communicate in the system account."""
    traffic_account: String = ""
    """The account that the replicas communicate in."""
    replicas: tuple[PeerInfo, ...] = ()
    """The other servers."""
    desired: DesiredCluster | None = None
    """The group that this one is changing into (server 2.15)."""


class StreamSourceInfo(Model):
    """The progress of a mirror or a source."""

    name: String
    """The origin."""
    external: External | None = None
    """Where it is."""
    lag: Count = 0
    """How many messages are still to come."""
    seq: Sequence64 = 0
    """The last sequence of the origin that was copied (server 2.15)."""
    active: Duration = ZERO
    """How long ago the last message arrived, in nanoseconds; -1 for never."""
    error: ApiErrorBody | None = None
    """Why no messages arrive."""
    filter_subject: String = ""
    """Which subjects are copied."""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    """How subjects are rewritten."""


class StreamAlternate(Model):
    """A stream with the same messages: a mirror, or the origin."""

    name: String
    """The stream."""
    domain: String = ""
    """Its domain."""
    cluster: String = ""
    """Its cluster."""


class StreamInfo(Page):
    """A stream: its configuration and its state.

    As a page, it is one of the subjects in ``state.subjects``.
    """

    config: StreamConfig
    """How it is set up."""
    created: Time
    """When it was created: another time means another stream of the same name."""
    state: StreamState
    """Its messages, sequences and subjects."""
    domain: String = ""
    """The domain that answered."""
    cluster: ClusterInfo | None = None
    """The servers that keep it."""
    mirror: StreamSourceInfo | None = None
    """The progress of the mirror."""
    sources: tuple[StreamSourceInfo, ...] = ()
    """The progress of the sources, in no order."""
    alternates: tuple[StreamAlternate, ...] = ()
    """Streams with the same messages, the nearest first; this one is among them."""
    ts: Time = NEVER
    """The server's clock."""
    did_create: Boolean = False
    """Whether this answers a create request; true also when an equal stream existed already."""

    @property
    def origins(self) -> tuple[StreamSourceInfo, ...]:
        """``mirror`` or ``sources``, whichever there are, sorted by name."""
        origins = (self.mirror,) if self.mirror else self.sources
        # The server lists sources in no order.
        return tuple(sorted(origins, key=operator.attrgetter("name")))


class StreamNamesPage(Page):
    """Names of streams, 1,024 at a time."""

    streams: tuple[String, ...] = ()
    """The names."""


class StreamPage(Page):
    """Streams, 256 at a time."""

    streams: tuple[StreamInfo, ...] = ()
    """The streams."""
    missing: tuple[String, ...] = ()
    """Streams whose servers did not answer."""
    offline: dict[str, String] = Field(default_factory=dict)
    """Streams that this server cannot run, and why."""


class SnapshotReply(Reply):
    """A backup begins: what is in it."""

    config: StreamConfig
    """How the stream is set up."""
    state: StreamState
    """Its messages, sequences and subjects."""


class RestoreReply(Reply):
    """A restore begins."""

    deliver_subject: String
    """Where to send the chunks."""


@dataclass(frozen=True)
class Replica:
    """One server that keeps a stream or a consumer.

    ``lag`` is how many operations it lags behind the leader, ``active`` how long ago the leader
    heard of it; both are 0 for the leader.
    """

    server: str
    leader: bool
    current: bool
    offline: bool
    lag: int
    active: Nanoseconds


def replicas(cluster: ClusterInfo | None) -> tuple[Replica, ...]:
    """Return the servers of a group, the leader first, then by name.

    Without a leader, none comes first.
    """
    if cluster is None:
        return ()
    servers = []
    if cluster.leader:
        # The server does not list the leader among the others: it is up to date.
        leader = Replica(
            cluster.leader,
            leader=True,
            current=True,
            offline=False,
            lag=0,
            active=Nanoseconds(0),
        )
        servers.append(leader)
    for peer in sorted(cluster.replicas, key=operator.attrgetter("name")):
        server = Replica(peer.name, False, peer.current, peer.offline, peer.lag, peer.active)
        servers.append(server)
    return tuple(servers)
