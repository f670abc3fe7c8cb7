"""Consumers: their configuration and what the server says of them.

Fields, defaults and units as in `streams`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any

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
    users_metadata,
)
from spark_jetstream.admin.models.streams import (
    ZERO,
    AnySubject,
    ClusterInfo,
    Description,
    Metadata,
    Replicas,
)
from spark_jetstream.options.names import Name, Subject
from spark_jetstream.options.values import UINT64_MAX, Choice, Size, Span, Text, Whole
from spark_jetstream.protocol.units import NEVER, Bytes, Nanoseconds

_ANY = "any number"
_CHOICE = "the server's choice"

ConsumerName = Annotated[str, Name("consumer", optional=True)]
Group = Annotated[
    str,
    Text(pattern=r"[A-Za-z0-9/_=-]{1,16}", words="1 to 16 letters, digits, -, _, / and ="),
]
Sampling = Annotated[
    str,
    Text(
        pattern=r"\+?[0-9]{1,18}%?|",
        words="a percentage of acknowledgements such as 100% or 5, or empty",
    ),
]

ONE_SECOND = Nanoseconds(1_000_000_000)

#: Fields -> another one, which only says the same: it goes back to its default when they are
#: changed without it.
_INSTEAD = {
    "backoff": "ack_wait",
    "filter_subject": "filter_subjects",
    "filter_subjects": "filter_subject",
}


class ConsumerConfig(Model):
    """The configuration of a consumer: what a client sends to create or update it, and what the server reports."""

    durable_name: ConsumerName = ""
    """The name of a consumer that stays when it is unused. An update without it makes the consumer
    ephemeral."""
    name: ConsumerName = ""
    """Its name. It can never change; the server chooses one when there is none."""
    description: Description = ""
    """A text for readers; at most 4,096 bytes."""
    deliver_policy: Annotated[
        str,
        Choice(("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")),
    ] = "all"
    """Where it begins. It can never change."""
    opt_start_seq: Sequence64 = 0
    """Where it begins, with ``by_start_sequence``."""
    opt_start_time: Time | None = None
    """When it begins, with ``by_start_time``. With several filters servers up to 2.15.1 pass over
    messages after it."""
    ack_policy: Annotated[str, Choice(("none", "all", "explicit", "flow_control"))] = "none"
    """Clients acknowledge nothing, everything up to a message, or each message. The server's
    default is none, that of client libraries ``explicit``. ``flow_control`` is for consumers that
    streams are copied through (server 2.14); it turns that field and an ``idle_heartbeat`` of one
    second on. It can never change."""
    ack_wait: Annotated[Nanoseconds, Span(zero=_CHOICE)] = ZERO
    """How long to wait for an acknowledgement, in nanoseconds; 0 for 30 s. With ``backoff``, its
    first value."""
    max_deliver: Annotated[int, Whole(1, unlimited=_ANY)] = -1
    """How often a message is delivered at most; 0 or -1 for any number."""
    backoff: tuple[Annotated[Nanoseconds, Span(zero="at once")], ...] = ()
    """How long to wait before each redelivery, in nanoseconds; the last value repeats. At most
    ``max_deliver``."""
    filter_subject: OptionalSubject = ""
    """Which subjects it delivers; empty for all."""
    filter_subjects: tuple[AnySubject, ...] = ()
    """Several subjects that it delivers; they must not overlap (server 2.10)."""
    replay_policy: Annotated[str, Choice(("instant", "original"))] = "instant"
    """How fast: as fast as possible, or as messages were stored. It can never change."""
    rate_limit_bps: Annotated[int, Whole(0, UINT64_MAX)] = 0
    """Bits per second at most, for push consumers; 0 for no limit."""
    sample_freq: Sampling = ""
    """How many acknowledgements are reported as a metric, such as ``100%``."""
    max_waiting: Annotated[int, Whole(1, unlimited=_CHOICE)] = 0
    """How many pulls may wait; 0 for 512. It can never change."""
    max_ack_pending: Annotated[int, Whole(-1)] = 0
    """How many messages may wait for their acknowledgement; 0 for the server's choice (1,000), -1
    for any number."""
    flow_control: Boolean = False
    """Let the subscriber of a push consumer say when it can take more. It can never change."""
    headers_only: Boolean = False
    """Deliver the size of each message in the header ``Nats-Msg-Size`` instead of its content."""
    max_batch: Annotated[int, Whole(1, unlimited=_ANY)] = 0
    """How many messages one pull may ask for; 0 for any number. A push consumer ignores it."""
    max_expires: Annotated[Nanoseconds, Span(zero="any time")] = ZERO
    """How long one pull may wait, in nanoseconds, at least 1 ms; 0 for any time. A push consumer
    ignores it."""
    max_bytes: Annotated[Bytes, Size(1, unlimited=_ANY)] = Bytes(0)
    """How many bytes one pull may ask for; 0 for any number. A push consumer ignores it."""
    deliver_subject: Annotated[str, Subject(literal=True, optional=True)] = ""
    """Where a push consumer delivers to; empty for a pull consumer. One cannot become the other."""
    deliver_group: String = ""
    """The queue group that a push consumer delivers to."""
    idle_heartbeat: Annotated[Nanoseconds, Span("100ms", zero="none")] = ZERO
    """How often an idle push consumer sends a heartbeat, in nanoseconds; 0 for never. It can never
    change."""
    inactive_threshold: Annotated[Nanoseconds, Span(zero=_CHOICE)] = ZERO
    """How long the server keeps it unused, in nanoseconds; 0 means 5 s without a durable name and
    forever with one, unless the stream has ``consumer_limits``."""
    num_replicas: Replicas = 0
    """How many servers keep its state; 0 for as many as keep the stream, or one without a durable
    name."""
    mem_storage: Boolean = False
    """Keep its state in memory, where it does not outlive the server. It can never change."""
    direct: Boolean = False
    """The server's own, for mirrors and sources."""
    sourcing: Boolean = False
    """The server's own, for mirrors and sources."""
    metadata: Metadata = Field(default_factory=dict)
    """Names and values for people and programs, 128 KiB together. Those that begin with ``_nats.``
    are the server's: they are shown, and never sent."""
    pause_until: Time | None = None
    """Deliver nothing before this time (server 2.11). Only for a new consumer: an update of it does
    nothing."""
    priority_groups: tuple[Group, ...] = ()
    """The priority groups of clients that pull (server 2.11, ADR-42)."""
    priority_policy: Annotated[
        str,
        Choice(("none", "overflow", "pinned_client", "prioritized")),
    ] = "none"
    """Which clients of a group the server serves."""
    priority_timeout: Annotated[Nanoseconds, Span(zero=_CHOICE)] = ZERO
    """How long a pinned client may be silent, in nanoseconds; 0 for two minutes."""

    @property
    def filters(self) -> tuple[str, ...]:
        """``filter_subject`` or ``filter_subjects``, whichever is set; empty for all subjects."""
        if self.filter_subject and not self.filter_subjects:
            return (self.filter_subject,)
        return self.filter_subjects

    @property
    def push(self) -> bool:
        """Whether it delivers to a subject, instead of waiting for pulls."""
        return bool(self.deliver_subject)

    @property
    def own_metadata(self) -> dict[str, str]:
        """``metadata`` without what the server wrote, and without the marks of a Spark query (option ``durable``)."""
        return users_metadata(self.metadata)

    def changed(self, **changes: Any) -> ConsumerConfig:
        """As `Model.changed`; the two forms of filters replace each other, and ``backoff`` an ``ack_wait``."""
        return super().changed(
            **({other: None for field, other in _INSTEAD.items() if field in changes} | changes),
        )

    def body(self) -> dict[str, Any]:
        """As `Model.body`, without an ``opt_start_time`` of "never", which servers accept only where it counts."""
        body = super().body()
        never = self.opt_start_time is not None and self.opt_start_time.never
        if never and self.deliver_policy != "by_start_time":
            body.pop("opt_start_time", None)
        return body

    def _checks(self) -> Iterator[Check]:
        names = {self.name, self.durable_name} - {""}
        yield len(names) > 1, f"name and durable_name are different: {' and '.join(sorted(names))}"
        backoff, wait = self.backoff, self.ack_wait
        # The server takes this, and another idle_heartbeat, and changes them.
        yield (
            backoff and wait and wait != backoff[0],
            "ack_wait is the first value of backoff: remove it",
        )
        if self.ack_policy == "flow_control":
            yield (
                self.idle_heartbeat not in (0, ONE_SECOND),
                "ack_policy flow_control has an idle_heartbeat of 1s",
            )
            # An update must not keep these of an existing consumer (`changes.update_body`).
            yield wait or backoff, "ack_policy flow_control cannot have ack_wait or backoff"
            yield self.max_ack_pending < 0, "ack_policy flow_control needs a limit max_ack_pending"
        priority = self.priority_timeout and self.priority_policy == "none"
        yield priority, "priority_timeout needs a priority_policy"


DEFAULT_CONSUMER: Mapping[str, Any] = MappingProxyType(
    {"deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant"}
)
"""A pull consumer that delivers all messages, and again until they are acknowledged."""


class SequenceInfo(Model):
    """A position of a consumer."""

    consumer_seq: Sequence64 = 0
    """Number of deliveries."""
    stream_seq: Sequence64 = 0
    """The sequence of the stream."""
    last_active: Time | None = None
    """When it was reached; none for never."""


class PriorityGroup(Model):
    """A priority group of clients that pull."""

    group: String
    """Its name."""
    pinned_client_id: String = ""
    """The client that is served, for ``pinned_client``."""
    pinned_ts: Time = NEVER
    """Since when."""


class ConsumerInfo(Reply):
    """A consumer: its configuration and its state."""

    stream_name: String
    """Its stream."""
    name: String
    """Its name."""
    created: Time
    """When it was created."""
    config: ConsumerConfig
    """How it is set up."""
    delivered: SequenceInfo = SequenceInfo()
    """The last message that was delivered."""
    ack_floor: SequenceInfo = SequenceInfo()
    """The message up to which all is acknowledged."""
    num_ack_pending: Count = 0
    """How many messages were delivered and wait for their acknowledgement."""
    num_redelivered: Count = 0
    """How many of these messages were delivered more than once."""
    num_waiting: Count = 0
    """How many pulls wait."""
    num_pending: Count = 0
    """How many messages are still to be delivered: the lag of the consumer."""
    cluster: ClusterInfo | None = None
    """The servers that keep its state."""
    push_bound: Boolean = False
    """Whether a client is subscribed to a push consumer."""
    paused: Boolean = False
    """Whether it is paused."""
    pause_remaining: Duration = ZERO
    """The remaining pause, in nanoseconds."""
    priority_groups: tuple[PriorityGroup, ...] = ()
    """The clients that the server serves, by priority group."""
    ts: Time = NEVER
    """The server's clock."""

    @property
    def lag(self) -> int:
        """How many messages are not delivered, or delivered and not acknowledged."""
        return self.num_pending + self.num_ack_pending


class ResetReply(ConsumerInfo):
    """A consumer that was reset."""

    reset_seq: Sequence64
    """The sequence of the next delivery."""


class ConsumerHandover(Model):
    """Where a query begins that takes over from a consumer (option ``startingConsumer``).

    It begins after the ack floor and reads all from there on, also what the consumer has
    acknowledged above the floor: the server does not say which messages these are.
    """

    stream: String
    """The stream."""
    consumer: String
    """The consumer."""
    ack_policy: String
    """Its ``ack_policy``. With ``none`` a message counts as acknowledged when it is delivered."""
    filters: tuple[String, ...] = ()
    """Its filters; empty for all subjects."""
    first_sequence: Sequence64
    """The sequence at which the query begins."""
    first_message: Sequence64 | None = None
    """The first message there that the consumer delivers; none if there is none yet."""
    first_time: Time | None = None
    """When that message was stored."""
    messages: Count
    """How many messages the query reads for now, at most: ``read_again`` and ``not_delivered``.

    Before the first acknowledgement also those from before the first delivery, where the server
    does not say where the consumer began.
    """
    ack_floor: Sequence64
    """Up to this sequence of the stream all is acknowledged, or given up."""
    delivered: Sequence64
    """The last sequence of the stream that was delivered."""
    read_again: Count = 0
    """How many messages above the floor were delivered, at most."""
    ack_pending: Count = 0
    """How many messages of ``read_again`` are not acknowledged."""
    acknowledged: Count = 0
    """How many messages of ``read_again`` are acknowledged, or given up, at most."""
    not_delivered: Count = 0
    """How many messages were never delivered."""
    active: Boolean = False
    """Whether it goes on to deliver: to a pull that waits, or to a subscriber."""
    paused: Boolean = False
    """Whether it is paused."""

    @property
    def options(self) -> dict[str, str]:
        """The options of a query that takes over."""
        options = {"stream": self.stream, "startingConsumer": self.consumer}
        if self.filters:
            options["subjects"] = ",".join(self.filters)
        return options


class PauseReply(Reply):
    """Whether a consumer is paused."""

    paused: Boolean = False
    """Whether it is paused now."""
    pause_until: Time = NEVER
    """Until when."""
    pause_remaining: Duration = ZERO
    """The remaining pause, in nanoseconds."""


class ConsumerNamesPage(Page):
    """Names of consumers, 1,024 at a time."""

    consumers: tuple[String, ...] = ()
    """The names."""


class ConsumerPage(Page):
    """Consumers, 256 at a time."""

    consumers: tuple[ConsumerInfo, ...] = ()
    """The consumers."""
    missing: tuple[String, ...] = ()
    """Consumers whose servers did not answer."""
    offline: dict[str, String] = Field(default_factory=dict)
    """Consumers that this server cannot run, and why."""
