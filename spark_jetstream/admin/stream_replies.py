"""Streams: what the server says of them. Pure.

Read with `from_server`. Times are `Timestamp`, which the server writes in UTC with nanoseconds; the year 1 stands for
"never". Durations are nanoseconds, and -1 stands for "never" there. What a server leaves out has the default.
"""

from __future__ import annotations

from pydantic import Field

from spark_jetstream.admin.fields import Boolean, Count, Duration, Sequence64, String, Time, Volume
from spark_jetstream.admin.model import Model, Page, Reply
from spark_jetstream.admin.stream_models import External, Placement, StreamConfig, SubjectTransform
from spark_jetstream.units import NEVER, Bytes, Nanoseconds

_NONE = Nanoseconds(0)


class ApiErrorBody(Model):
    """What is wrong, as the API says it; `errors.api_error` makes an exception of it."""

    code: Count = 0
    """Its class, like those of HTTP."""
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
    """What a stream holds."""

    messages: Count
    """How many messages."""
    bytes: Volume
    """How many bytes, headers and bookkeeping included."""
    first_seq: Sequence64
    """The first sequence: 0 or 1 when nothing was ever stored, ``last_seq + 1`` when all is gone."""
    first_ts: Time = NEVER
    """When the first message was stored."""
    last_seq: Sequence64
    """The last sequence that was given, 0 for none."""
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
    """Whether it was seen recently and has all there is."""
    offline: Boolean = False
    """Whether it is known to be away."""
    active: Duration = _NONE
    """How long ago it was seen, in nanoseconds."""
    lag: Count = 0
    """How many operations it is behind."""
    peer: String = ""
    """Its id in the group."""
    pending: Boolean = False
    """Whether it is about to join or to leave the group (server 2.15)."""


class DesiredOrigin(Model):
    """What a group was before a move or a change of its size (server 2.15)."""

    replicas: Count = 0
    """How many replicas there were."""
    placement: Placement | None = None
    """Where they were."""
    retention: String = ""
    """The retention that holds until the change is complete."""


class DesiredStatus(Model):
    """How far a change of a group is (server 2.15)."""

    description: String = ""
    """What the leader does, or waits for."""
    type: String = ""
    """The same as one word: meta, membership, snapshot, catchup, quorum, blocked or unavailable."""
    err: String = ""
    """What failed, and goes on failing."""


class DesiredCluster(Model):
    """What a group is changing into; only there while it does (server 2.15)."""

    created: Time = NEVER
    """Since when."""
    name: String = ""
    """The cluster it will be in."""
    replicas: tuple[PeerInfo, ...] = ()
    """The servers it will have; empty while they are not chosen."""
    origin: DesiredOrigin | None = None
    """What it was before."""
    status: DesiredStatus | None = None
    """How far it is."""


class ClusterInfo(Model):
    """The servers that keep a stream or a consumer."""

    name: String = ""
    """The cluster; empty without one."""
    raft_group: String = ""
    """The group that agrees on the order of messages; empty with one replica."""
    leader: String = ""
    """The server that leads; empty while there is none, which means that nothing can be stored."""
    leader_since: Time | None = None
    """Since when."""
    system_account: Boolean = False
    """Whether the replicas talk in the system account."""
    traffic_account: String = ""
    """The account that they talk in."""
    replicas: tuple[PeerInfo, ...] = ()
    """The other servers."""
    desired: DesiredCluster | None = None
    """What this is changing into (server 2.15)."""


class StreamSourceInfo(Model):
    """How a mirror or a source gets on."""

    name: String
    """The origin."""
    external: External | None = None
    """Where it is."""
    lag: Count = 0
    """How many messages are still to come."""
    seq: Sequence64 = 0
    """The last sequence of the origin that was copied (server 2.15)."""
    active: Duration = _NONE
    """How long ago something came, in nanoseconds; -1 for never."""
    error: ApiErrorBody | None = None
    """Why nothing comes."""
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
    """A stream: its configuration and its state. As a page, it is one of the subjects in ``state.subjects``."""

    config: StreamConfig
    """How it is set up."""
    created: Time
    """When it was created: another time means another stream of the same name."""
    state: StreamState
    """What it holds."""
    domain: String = ""
    """The domain that answered."""
    cluster: ClusterInfo | None = None
    """The servers that keep it."""
    mirror: StreamSourceInfo | None = None
    """How the mirror gets on."""
    sources: tuple[StreamSourceInfo, ...] = ()
    """How the sources get on, in no order."""
    alternates: tuple[StreamAlternate, ...] = ()
    """Streams with the same messages, the nearest first; this one is among them."""
    ts: Time = NEVER
    """The server's clock."""
    did_create: Boolean = False
    """Whether this answers a request to create it; true also when it existed already, just so."""

    @property
    def origins(self) -> tuple[StreamSourceInfo, ...]:
        """``mirror`` or ``sources``, whichever there are, sorted by name."""
        found = (self.mirror,) if self.mirror else self.sources
        return tuple(sorted(found, key=lambda each: each.name))


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
    """What it holds."""


class RestoreReply(Reply):
    """A restore begins."""

    deliver_subject: String
    """Where to send the chunks."""
