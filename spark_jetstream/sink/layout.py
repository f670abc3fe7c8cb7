"""The layout of a batch: which rows are in which partition. Spark does not promise that it stays.

Adaptive query execution coalesces the partitions of a shuffle by the number of cores, and file sources cut their files
by it. So a batch that is written again on other cores may have its rows in other partitions. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.message_ids import Scheme

ADVICE = (
    "jetstream sink: the message id of a row holds the row's partition, and a batch that is written again may have "
    "other partitions: adaptive query execution and file sources divide rows by the number of cores. If a batch fails "
    "and comes again on other cores, rows may be stored twice. Keep columns stream and sequence of a JetStream source, "
    "or set option messageIds to content if the rows of a batch are distinct, or option delivery to exactly-once, or "
    "spark.sql.adaptive.enabled to false"
)


def is_adaptive(local_property: Callable[[str], str | None]) -> bool:
    """Whether adaptive query execution may be on for a task with these local properties, as it is by default.

    Spark hands the settings to tasks that somebody has made, and those that the engine of streaming queries makes.
    """
    return local_property("spark.sql.adaptive.enabled") != "false"


def depends_on_layout(options: SinkOptions, columns: Sequence[str]) -> bool:
    """Whether all rows of a write, which may be written again, have their partition in their message ids."""
    if options.bucket is not None or options.object_bucket is not None:
        return False
    scheme = Scheme.of(options.delivery, options.message_ids, columns)
    return scheme is not None and scheme.partition and not scheme.origin
