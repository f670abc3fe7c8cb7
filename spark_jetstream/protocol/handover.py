"""Handover: where a reader begins that takes over from a consumer, by the server's reply about it.

The server does not say which messages above the ack floor are acknowledged. So a reader that must
lose nothing begins after the floor, which is before the first message that is not settled
(nats-server: server/consumer.go, ``processAckMsg``). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.errors import brief
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.subjects import covers
from spark_jetstream.protocol.units import counted

EVERYTHING = (">",)
"""The filters of a consumer, or of a query, that has none."""

# Deliver policies that leave out older messages, from a sequence on that the configuration does not
# say. Before the first acknowledgement the floor of such a consumer is 0 on servers before 2.14, and
# on later ones if it has replicas (nats-server: server/filestore.go, `UpdateStarting`).
_STARTS_LATER = frozenset({"new", "last", "last_per_subject", "by_start_time"})


@dataclass(frozen=True)
class Handover:
    """The position of a consumer, for a reader that takes over from it.

    ``floor``: the reader begins after this sequence of the stream. All that the consumer had to
    deliver up to it is acknowledged, or given up (``max_deliver``, an acknowledgement ``+TERM``);
    with ``ack_policy`` none, delivered. ``delivered`` is the last sequence that was delivered.
    ``again`` is how many messages between the two were delivered, at most: fewer if some were
    delivered more than once. ``pending`` of them are not acknowledged. ``waiting`` messages were
    never delivered. ``older`` is how many messages from before the first delivery the reader gets,
    at most: more than 0 only where the server does not say where the consumer began. ``filters``
    are never empty. ``active``: the consumer goes on to deliver, to a pull that waits or to the
    subscriber of a push consumer.
    """

    stream: str
    consumer: str
    floor: int
    delivered: int
    again: int
    pending: int
    waiting: int
    older: int
    filters: tuple[str, ...]
    ack_policy: str
    active: bool

    @classmethod
    def from_reply(cls, body: Mapping[str, Any], context: str) -> Handover:
        """Return the position in a reply of CONSUMER.INFO. Raises `ProtocolError`.

        `context` is what was asked, as an infinitive without "to"; the error repeats it.
        """
        config: Mapping[str, Any] = jsapi.field(body, "config", dict, context)
        policy = jsapi.field(config, "ack_policy", str, context, "none")
        delivered = jsapi.whole(body, "delivered.stream_seq", context)
        deliveries = jsapi.whole(body, "delivered.consumer_seq", context)
        floor = _floor(body, config, context)
        if policy == "none" or not deliveries:
            # The server moves the floor of ack_policy none with each delivery (server/consumer.go,
            # `deliverMsg`). Before the first delivery the consumer stands where its deliver_policy
            # begins; the floor may be 0 then, see _STARTS_LATER.
            floor = delivered
        # Two bounds: not each sequence is a message that the consumer delivers, and a message may
        # be delivered more than once.
        since_floor = deliveries - jsapi.whole(body, "ack_floor.consumer_seq", context)
        pending = jsapi.whole(body, "num_ack_pending", context)
        again = max(0, min(delivered - floor, since_floor), pending)
        began_unknown = not floor and config.get("deliver_policy") in _STARTS_LATER
        paused = jsapi.field(body, "paused", bool, context, False)
        served = jsapi.field(body, "push_bound", bool, context, False)
        pulls = jsapi.field(body, "num_waiting", int, context, 0)
        return cls(
            stream=jsapi.field(body, "stream_name", str, context),
            consumer=jsapi.field(body, "name", str, context),
            floor=floor,
            delivered=max(delivered, floor),
            again=again,
            pending=pending,
            waiting=jsapi.whole(body, "num_pending", context),
            older=max(0, delivered - again) if began_unknown else 0,
            filters=jsapi.filters_of(config) or EVERYTHING,
            ack_policy=policy,
            active=(served or pulls > 0) and not paused,
        )

    @property
    def first(self) -> int:
        """The first sequence to read."""
        return self.floor + 1

    @property
    def settled(self) -> int:
        """How many messages above the floor are acknowledged, or given up, at most."""
        return self.again - self.pending

    def repeated(self) -> str:
        """Return clauses about the messages that are read again, "" if there are none."""
        if not self.again:
            return ""
        verb = "was" if self.again == 1 else "were"
        clauses = (
            f"{counted(self.again, 'message')} between sequence {self.first} and {self.delivered} "
            f"{verb} delivered; {self.pending:,} of them not acknowledged; all are read again"
        )
        if self.older:
            clauses += (
                f"; up to {counted(self.older, 'older message')} are read as well: the server does "
                "not say where the consumer began before it has an ack floor"
            )
        return clauses


def _floor(body: Mapping[str, Any], config: Mapping[str, Any], context: str) -> int:
    """Return the ack floor of a consumer that has delivered something."""
    floor = jsapi.whole(body, "ack_floor.stream_seq", context)
    start = config.get("opt_start_seq")
    if config.get("deliver_policy") == "by_start_sequence" and isinstance(start, int):
        # The floor may be 0 until the first acknowledgement: see _STARTS_LATER.
        return max(floor, start - 1)
    return floor


def filter_differences(
    handover: Handover, subjects: tuple[str, ...], state: StreamSummary, first: int
) -> str:
    """Return a predicate about a consumer whose filters are not those of a query; "" if they are.

    The query has the filters `subjects`, empty for all, and begins at the sequence `first`.
    """
    stored = _stored_subjects(state)
    # Without a filter either has all that the stream stores.
    had = stored if handover.filters == EVERYTHING else handover.filters
    read = stored if subjects in ((), EVERYTHING) else subjects
    consequences = []
    unseen = _not_covered(read, had)
    if unseen:
        listed = brief(", ".join(unseen))
        consequences.append(f"older messages than sequence {first} of {listed} are not read")
    unread = _not_covered(had, read)
    # A query without filters reads all that the consumer had, and the stream may have taken other
    # subjects before.
    if unread and read is not stored:
        listed = brief(", ".join(unread))
        consequences.append(f"not all messages of {listed} are read")
    if not consequences:
        return ""
    filters = brief(", ".join(handover.filters))
    return f"has the filters {filters}, and the query {brief(', '.join(read))}: " + (
        ", and ".join(consequences)
    )


def _stored_subjects(state: StreamSummary) -> tuple[str, ...]:
    """Return filters of all subjects that a stream can have."""
    # The messages of mirrors and sources have other subjects than those that clients publish to.
    if state.renames or not state.subjects:
        return EVERYTHING
    return tuple(state.subjects)


def keeps_for_consumers(state: StreamSummary) -> bool:
    """Whether the stream removes no message that a consumer still has to deliver.

    But for those that newer ones replace, which are no loss (docs/data-loss.md).
    """
    return state.retention != "limits" and not (state.expires or state.evicts)


def _not_covered(filters: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return the filters that match a subject which no single one of the others matches."""
    known = tuple(others)
    return tuple(each for each in filters if not any(covers(other, each) for other in known))
