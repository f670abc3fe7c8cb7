"""Which objects of an Object Store bucket are read, and by which task. Pure: meta messages in, groups of objects out.

Reading a group is `object_reading`. The layout of a bucket is in `spark_jetstream.objects` (JETSTREAM ADR-20).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace

from spark_jetstream.columns import Messages
from spark_jetstream.errors import JetStreamError
from spark_jetstream.objects import ObjectMeta
from spark_jetstream.stored_objects import StoredObject, stored_objects

#: Bytes of content that a task has at most, unless a single object has more: `spark.sql.files.maxPartitionBytes`.
TASK_BYTES = 128 * 1024 * 1024

#: The largest value of Spark's type binary, in bytes; the limit of its source `binaryFile`.
LARGEST_CONTENT = 2**31 - 1

# What an object costs beside its bytes, as bytes that take as long.
_OBJECT_COST = 16 * 1024


@dataclass(frozen=True)
class ObjectGroup:
    """The objects of one task: plain data that pickles. `created` is the stream's creation time, as the server has it.

    `bucket` is the name that the user gave.
    """

    bucket: str
    stream: str
    created: str
    objects: tuple[StoredObject, ...]


def live_objects(
    messages: Iterable[Messages], bucket: str, pattern: re.Pattern[str] | None = None
) -> list[StoredObject]:
    """The newest version of each object that is there and whose whole name `pattern` matches, in stream order.

    `messages` are meta messages in stream order; of several of one object the last one counts.
    """
    newest = {stored.subject: stored for some in messages for stored in stored_objects(some, bucket)}
    chosen = [stored for stored in newest.values() if stored.readable and matches(stored, pattern)]
    return sorted(chosen, key=lambda stored: stored.sequence)


def matches(stored: StoredObject, pattern: re.Pattern[str] | None) -> bool:
    """Whether the pattern, if there is one, matches the object's whole name."""
    return pattern is None or pattern.fullmatch(stored.meta.name) is not None


def refuse_large(meta: ObjectMeta, bucket: str) -> None:
    """Raise the error of an object whose content is more than one value of Spark's holds."""
    if meta.size > LARGEST_CONTENT:
        raise JetStreamError(
            f"bucket {bucket}, object {meta.name!r} has {meta.size:,} bytes, more than the {LARGEST_CONTENT:,} that a "
            "binary column can hold; read it with contentOff=true, or leave it out with pathGlobFilter"
        )


def pack(
    objects: Sequence[StoredObject],
    *,
    max_objects: int,
    min_groups: int = 1,
    with_content: bool = True,
    max_bytes: int = TASK_BYTES,
) -> list[tuple[StoredObject, ...]]:
    """The objects in groups, one for each task: each object in just one of them, none empty, order kept.

    No group has more than `max_objects` (>= 1), nor more than about `max_bytes` of content unless it is a single
    object; there are at least `min_groups` if there are that many objects. Without content only their number counts.
    """
    costs = [_OBJECT_COST + (stored.meta.size if with_content else 0) for stored in objects]
    most = max_bytes if with_content else sum(costs)
    wanted = max(min(min_groups, len(costs)), -(-len(costs) // max_objects))
    groups: list[tuple[int, int]] = []
    first, total, left = 0, 0, sum(costs)
    for at, cost in enumerate(costs):
        # An even share of what was left when this group began; the last group takes what remains.
        share = left // max(1, wanted - len(groups))
        if at > first and (at - first >= max_objects or total + cost > most or total + cost // 2 > share):
            groups.append((first, at))
            left -= total
            first, total = at, 0
        total += cost
    if costs:
        groups.append((first, len(costs)))
    # Large objects can leave too few groups: those of most objects are halved.
    halves = [(first - end, first, end) for first, end in groups]
    heapify(halves)
    while halves and len(halves) < min_groups and halves[0][0] < -1:
        _, first, end = halves[0]
        middle = (first + end) // 2
        heapreplace(halves, (first - middle, first, middle))
        heappush(halves, (middle - end, middle, end))
    return [tuple(objects[first:end]) for _, first, end in sorted(halves, key=lambda half: half[1])]
