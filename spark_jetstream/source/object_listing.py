"""The objects that an Object Store bucket has now, and the tasks that a batch read of them is made of.

Runs on the driver: a batch is planned from one list of all meta messages, which come without any content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from spark_jetstream.columns import Messages
from spark_jetstream.connection import Connection
from spark_jetstream.deadline import Deadline
from spark_jetstream.direct import check_server, look, read_direct, refuse_indirect
from spark_jetstream.errors import OutageError
from spark_jetstream.pool import retrying
from spark_jetstream.pulling import PullSettings
from spark_jetstream.source.objects import ObjectGroup, live_objects, pack, refuse_large
from spark_jetstream.stored_objects import StoredObject
from spark_jetstream.streams import SequenceRange
from spark_jetstream.table import TablePart, read_table


def plan_objects(
    connect: Callable[[float], Connection],
    part: TablePart,
    settings: PullSettings,
    label: str,
    *,
    bucket: str,
    pattern: re.Pattern[str] | None = None,
    max_objects: int = 100_000,
    min_groups: int = 1,
    with_content: bool = True,
) -> list[ObjectGroup]:
    """The tasks of a batch read: what `list_objects` finds, packed as `pack` has it.

    Raises `JetStreamError` for an object that no binary column can hold if `with_content`, and what `list_objects`
    raises.
    """
    found = list_objects(connect, part, settings, label, bucket=bucket, pattern=pattern)
    for each in found if with_content else ():
        refuse_large(each.meta, bucket)
    packed = pack(found, max_objects=max_objects, min_groups=min_groups, with_content=with_content)
    return [ObjectGroup(bucket, part.stream, part.created, objects) for objects in packed]


def list_objects(
    connect: Callable[[float], Connection],
    part: TablePart,
    settings: PullSettings,
    label: str,
    *,
    bucket: str,
    pattern: re.Pattern[str] | None = None,
) -> list[StoredObject]:
    """The objects that a bucket has now and whose whole names `pattern` matches, in stream order.

    `part.subjects` is the filter of the bucket's meta messages. An object that is there all the time comes once,
    however often it is replaced meanwhile. Raises what `read_table` raises.
    """
    plain = replace(settings, headers_only=False)
    listed = _metas_by_direct_get if part.direct else read_table
    return live_objects(listed(connect, part, plain, label), bucket, pattern)


def _metas_by_direct_get(
    connect: Callable[[float], Connection], part: TablePart, settings: PullSettings, label: str
) -> Iterator[Messages]:
    """`read_table` for meta messages, of which there is one for each subject, whatever the stream's limit says.

    An object that is replaced before its turn is found in what was stored since: the list is complete when there is
    nothing more of that.
    """
    deadline = Deadline(settings.retry_timeout)
    whole = SequenceRange(part.stream, 1, 1, None, part.created, part.subjects, part.direct)

    def end_now() -> int:
        connection = connect(deadline.left)
        check_server(connection)
        state = look(connection, whole)
        refuse_indirect(state)
        return state.last_seq + 1

    while (end := retrying(end_now, settings.retry_timeout)) > whole.end:
        if deadline.expired:
            raise OutageError(
                f"stream {part.stream} was written to without a pause, and no end of its list of objects was found by "
                f"direct gets within {deadline.seconds:g} s (option retryTimeout); set readWith to consumer"
            )
        whole = replace(whole, first=whole.end, end=end)
        yield from read_direct(connect, whole, settings, label)
