"""Whether a stream suits a use: the faults because of which a read or a write cannot be. Pure.

Source and sink raise the first fault before they begin, and the doctor lists all. Each says it in
its own words, with the names of options or of a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.subjects import covers


class StreamFault(Enum):
    """A reason why a stream does not suit a use."""

    # Of a write:
    MIRROR = "it is a mirror, and takes no messages of clients"
    SEALED = "it takes no more messages"
    UNACKNOWLEDGED = "it does not say which messages it has stored (no_ack)"
    UNCAPTURED = "it does not capture the subjects"
    KEPT_CHUNKS = "it refuses to remove the chunks of replaced objects (deny_purge)"
    # Of a write that must find its messages again, to know which are stored:
    CONSUMED = "it removes messages that were consumed (retention)"
    REPLACED = "it keeps few messages of each subject (max_msgs_per_subject)"
    LOST_IN_A_CRASH = "it acknowledges messages before they are stored (persist_mode)"
    # Of a read:
    NOT_RESERVED = "it is a work queue, and nothing reserves its messages for the query"
    NO_DIRECT_GETS = "it is read by Direct Gets, and does not allow them (allow_direct)"
    # A read that shares a consumer:
    NO_QUEUE = "it is no work queue, and keeps messages that were acknowledged (retention)"


Order = tuple[StreamFault, ...]

#: What may be wrong with a stream for each kind of write, in the order in which a query meets it.
_WRITE_FAULTS: dict[str, Order] = {
    "rows": (
        StreamFault.MIRROR,
        StreamFault.SEALED,
        StreamFault.UNACKNOWLEDGED,
        StreamFault.UNCAPTURED,
    ),
    # A stream that does not capture keys is no bucket: nothing else of it matters.
    "values": (
        StreamFault.MIRROR,
        StreamFault.UNCAPTURED,
        StreamFault.SEALED,
        StreamFault.UNACKNOWLEDGED,
    ),
    "objects": (
        StreamFault.MIRROR,
        StreamFault.SEALED,
        StreamFault.UNACKNOWLEDGED,
        StreamFault.KEPT_CHUNKS,
        StreamFault.UNCAPTURED,
    ),
}


@dataclass(frozen=True)
class Write:
    """A write of rows to a stream, of values to a Key-Value bucket, or of objects to a bucket.

    ``subjects`` are those that the stream must capture; wildcards are allowed, and empty means that
    they are not known.
    """

    kind: Literal["rows", "values", "objects"]
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """A read of a stream.

    ``batch``: it takes no part in the commits of a stream. ``reserved``: a durable consumer keeps
    the messages of a work queue for the query. ``direct``: tasks read with Direct Gets, and create
    no consumers. ``endangered``: they must, because the server may purge the stream when the
    consumers of tasks are deleted. ``shared``: a consumer deals the messages of a work queue out to
    the query and to other clients.
    """

    batch: bool
    reserved: bool = False
    direct: bool = False
    endangered: bool = False
    shared: bool = False


def faults(state: StreamSummary, use: Write | Read) -> list[StreamFault]:
    """Return what is wrong with a stream for a use, the first one first; empty if it suits."""
    if isinstance(use, Read):
        return list(_faults_of_read(state, use))
    found = set(_faults_of_write(state, use))
    return [fault for fault in _WRITE_FAULTS[use.kind] if fault in found]


def _faults_of_write(state: StreamSummary, use: Write) -> Iterator[StreamFault]:
    if state.mirror:
        yield StreamFault.MIRROR
    # A mirror has no subjects of its own.
    elif not all(captures(state, subject) for subject in use.subjects):
        yield StreamFault.UNCAPTURED
    if state.sealed:
        yield StreamFault.SEALED
    # A server that seals a stream sets deny_purge, too.
    elif state.deny_purge:
        yield StreamFault.KEPT_CHUNKS
    if state.no_ack:
        yield StreamFault.UNACKNOWLEDGED


def captures(state: StreamSummary, subject: str) -> bool:
    """Whether the stream takes all that is published to a subject, or to what a filter matches."""
    return any(covers(filter_, subject) for filter_ in state.subjects)


def forgets(state: StreamSummary) -> list[StreamFault]:
    """Return why a stream may lose or remove stored messages before their batch is committed."""
    found = []
    if state.retention != "limits":
        found.append(StreamFault.CONSUMED)
    if state.max_msgs_per_subject > 0:
        found.append(StreamFault.REPLACED)
    if state.persist_mode == "async":
        found.append(StreamFault.LOST_IN_A_CRASH)
    return found


def _faults_of_read(state: StreamSummary, use: Read) -> Iterator[StreamFault]:
    if use.shared:
        if state.retention != "workqueue":
            yield StreamFault.NO_QUEUE
        return
    # A batch that creates no consumer only looks at the messages.
    looks = use.batch and use.direct
    if state.retention == "workqueue" and not (use.reserved or looks):
        yield StreamFault.NOT_RESERVED
    if needs_direct(state, use) and not state.allow_direct:
        yield StreamFault.NO_DIRECT_GETS


def needs_direct(state: StreamSummary, use: Read) -> bool:
    """Whether a stream is read with Direct Gets: a work queue allows no second consumer."""
    return use.direct or use.endangered or state.retention == "workqueue"


def refuses_commits(state: StreamSummary) -> bool:
    """Whether committed messages of a work queue cannot be removed: commits purge them."""
    return state.retention == "workqueue" and state.deny_purge


def drops_rows(state: StreamSummary) -> bool:
    """Whether the stream acknowledges messages and drops them: it keeps them for consumers."""
    return state.retention == "interest" and not state.consumers


class ConsumerFault(Enum):
    """Why a query cannot share a consumer with other clients."""

    PUSH = "it pushes its messages (deliver_subject): a query pulls them"
    UNACKNOWLEDGED = "its ack_policy is not explicit: the query acknowledges single messages"
    HEADERS_ONLY = "it delivers no payloads (headers_only)"
    PRIORITIES = "it serves only pulls that name a priority group (priority_policy)"
    TEMPORARY = "the server deletes it when nobody pulls for a while (inactive_threshold)"
    IMPATIENT = "it gives messages to others after less than 30 seconds (ack_wait, or backoff)"


SHARED_MESSAGES = 10_000
"""How many messages of a shared consumer a micro-batch takes at most, unless the query says so."""
SHORTEST_LAPSE = 30.0
"""Seconds that a shared consumer must wait for an acknowledgement at least."""
_ACK_WAIT = 30 * 10**9  # ns: the server's default


def lapse_of(config: Mapping[str, Any]) -> float:
    """Return after how many seconds at the earliest a consumer delivers a message again."""
    waits = [config.get("ack_wait") or _ACK_WAIT, *(config.get("backoff") or ())]
    return float(min(waits)) / 1e9


def consumer_faults(config: Mapping[str, Any]) -> list[ConsumerFault]:
    """Return what is wrong with a consumer's configuration for a query that shares it."""
    wrong = {
        ConsumerFault.PUSH: bool(config.get("deliver_subject")),
        ConsumerFault.UNACKNOWLEDGED: config.get("ack_policy") != "explicit",
        ConsumerFault.HEADERS_ONLY: bool(config.get("headers_only")),
        ConsumerFault.PRIORITIES: config.get("priority_policy", "none") not in ("", "none"),
        ConsumerFault.TEMPORARY: bool(config.get("inactive_threshold")),
        ConsumerFault.IMPATIENT: lapse_of(config) < SHORTEST_LAPSE,
    }
    return [fault for fault, is_wrong in wrong.items() if is_wrong]


def consumer_cautions(config: Mapping[str, Any], messages: int) -> list[str]:
    """Return what may go wrong with a consumer that is shared, as sentences without a period.

    ``messages`` are those that a micro-batch takes at most.
    """
    cautions = []
    most = config.get("max_deliver") or -1
    if most > 0:
        cautions.append(
            f"it gives a message up after {most} deliveries (max_deliver), and each kill of a query "
            "counts as one"
        )
    pending = config.get("max_ack_pending") or 0
    if 0 < pending < messages:
        cautions.append(
            f"all of its clients together hold at most {pending} messages (max_ack_pending), and a "
            f"micro-batch alone takes up to {messages}"
        )
    return cautions


def removing_setting(state: StreamSummary) -> StreamFault | None:
    """Return why messages go that are neither old nor too many: with them go their ids.

    A server that restarts knows the ids of the messages that it still has (nats-server:
    server/stream.go, rebuildDedupe).
    """
    removing = [fault for fault in forgets(state) if fault is not StreamFault.LOST_IN_A_CRASH]
    return removing[0] if removing else None
