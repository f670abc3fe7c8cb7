"""The objects that an Object Store bucket has now, and the tasks of a batch read of them.

The driver makes both from meta messages alone. `spark_jetstream.buckets.objects` has the layout of
a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from spark_jetstream.buckets.objects import ObjectMeta, StoredObject, stored_objects
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options.names import name_pattern
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.pull import PullSettings

#: Bytes of content that a task has at most, unless a single object has more:
#: `spark.sql.files.maxPartitionBytes`.
TASK_BYTES = 128 * 1024 * 1024

#: The largest value of Spark's type binary, in bytes; the limit of its source `binaryFile`.
LARGEST_CONTENT = 2**31 - 1

# What an object costs besides its content, as the bytes of content that take as long.
_OBJECT_COST = 16 * 1024


@dataclass(frozen=True)
class ObjectGroup:
    """The objects of one task. `created` is the stream's creation time as the server prints it."""

    stream: str
    created: str
    objects: tuple[StoredObject, ...]


def live_objects(
    messages: Iterable[MessageRun], bucket: str, glob: str | None = None
) -> list[StoredObject]:
    """Return the newest version of each object that exists, in stream order.

    Only objects whose whole name `glob` matches. `messages` are meta messages in stream order; of
    several of one object the last one counts.
    """
    newest: dict[str, StoredObject] = {}
    for some in messages:
        for stored in stored_objects(some, bucket):
            newest[stored.subject] = stored
    pattern = name_pattern("*" if glob is None else glob)
    chosen = []
    for stored in newest.values():
        if stored.readable and pattern.fullmatch(stored.meta.name):
            chosen.append(stored)
    return sorted(chosen, key=attrgetter("sequence"))


def reads_content(options: SourceOptions, columns: Sequence[str]) -> bool:
    """Whether a read of these columns needs the content of objects."""
    return "content" in columns and not options.content_off


def refuse_large(meta: ObjectMeta, bucket: str) -> None:
    """Raise `JetStreamError` for an object whose content is larger than a value of Spark can be."""
    if meta.size > LARGEST_CONTENT:
        raise JetStreamError(
            f"bucket {bucket}, object {meta.name!r} has {meta.size:,} bytes, more than the "
            f"{LARGEST_CONTENT:,} that a binary column can hold; read it with contentOff=true, or "
            "leave it out with pathGlobFilter"
        )


def pack(
    objects: Sequence[StoredObject],
    *,
    max_objects: int,
    min_groups: int = 1,
    with_content: bool = True,
    max_bytes: int = TASK_BYTES,
) -> list[tuple[StoredObject, ...]]:
    """Return the objects in groups, one for each task.

    Each object is in one group, their order is kept, and no group is empty. No group has more than
    `max_objects` (>= 1), nor more than about `max_bytes` of content unless it is a single object.
    There are at least `min_groups` if there are that many objects. Without content only their
    number counts.
    """
    if not objects:
        return []
    costs = _costs(objects, with_content=with_content)
    most = max_bytes if with_content else sum(costs)
    fewest = -(-len(costs) // max_objects)
    wanted = max(min(min_groups, len(costs)), fewest)
    groups: list[tuple[StoredObject, ...]] = []
    first = 0  # the first object of the group under way
    total = 0  # what that group costs so far
    left = sum(costs)  # what it and all later ones cost
    for at, cost in enumerate(costs):
        # An even share of what was left when this group began; the last group takes what remains.
        share = left // max(1, wanted - len(groups))
        too_large = total + cost > most
        # More than half of the object would lie beyond the share.
        beyond_share = total + cost // 2 > share
        full = at - first >= max_objects or too_large or beyond_share
        # After a large object too few may be left for the groups that are to follow.
        needed = len(costs) - at < wanted - len(groups)
        if at > first and (full or needed):
            groups.append(tuple(objects[first:at]))
            left -= total
            first = at
            total = 0
        total += cost
    groups.append(tuple(objects[first:]))
    return groups


def _costs(objects: Sequence[StoredObject], *, with_content: bool) -> list[int]:
    """Return the cost of each object in bytes: its content, if it is read, and a constant for its requests."""
    if not with_content:
        return [_OBJECT_COST] * len(objects)
    return [_OBJECT_COST + stored.meta.size for stored in objects]


def plan_objects(
    connect: Connect,
    part: TablePart,
    settings: PullSettings,
    label: str,
    options: SourceOptions,
    columns: Sequence[str],
) -> list[ObjectGroup]:
    """Return the tasks of a batch read of the objects that the bucket of the options has now.

    `part.subjects` is the filter of the bucket's meta messages. An object comes once, however often
    it is replaced during the call. Raises what `read_table` raises, and `JetStreamError` for an
    object too large for a binary column if the content is read.
    """
    bucket = options.named(part.stream)
    with_content = reads_content(options, columns)
    # A new version of an object replaces its meta message; of several in a copy `live_objects`
    # takes the last one.
    metas = read_table(connect, part, replace(settings, headers_only=False), label, rolled_up=True)
    listed = live_objects(metas, bucket, options.path_glob_filter)
    if with_content:
        for stored in listed:
            refuse_large(stored.meta, bucket)
    packed = pack(
        listed,
        max_objects=options.max_messages_per_partition,
        min_groups=options.min_partitions,
        with_content=with_content,
    )
    return [ObjectGroup(part.stream, part.created, objects) for objects in packed]
