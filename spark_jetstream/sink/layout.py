"""The layout of a batch: which rows are in which partition. Spark does not promise that it stays.

Adaptive query execution coalesces the partitions of a shuffle by the number of cores, and file
sources cut their files by it. So a batch that is written again on other cores may have its rows in
other partitions. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.message_ids import Scheme

ADVICE = (
    "jetstream sink: the message id of a row holds the row's partition, and a batch that is "
    "written again may have other partitions. Adaptive query execution and file sources divide "
    "rows by the number of cores: if a batch fails and runs again on other cores, rows may be "
    "stored twice. Keep columns stream and sequence of a JetStream source, or set option delivery "
    "to exactly-once; or set option messageIds to content if the rows of a batch are distinct, or "
    "spark.sql.adaptive.enabled to false"
)

_ADAPTIVE = "spark.sql.adaptive.enabled"
_ADAPTIVE_STREAMS = "spark.sql.adaptive.streaming.stateless.enabled"
_FIRST_WITH_STREAMS = (4, 1)
"""The first Spark whose streaming queries are adaptive, as long as they have no state."""


def is_adaptive(
    local_property: Callable[[str], str | None], *, streaming: bool, spark: str
) -> bool:
    """Whether adaptive query execution may be on for a task with these local properties.

    `spark` is the version of Spark. Tasks know only the settings that differ from their defaults,
    and it is on by default.
    """
    if local_property(_ADAPTIVE) == "false":
        return False
    if not streaming:
        return True
    major, minor = spark.split(".")[:2]
    if (int(major), int(minor)) < _FIRST_WITH_STREAMS:
        return False
    return local_property(_ADAPTIVE_STREAMS) != "false"


def depends_on_layout(options: SinkOptions, columns: Sequence[str]) -> bool:
    """Whether all rows of a write to subjects have their partition in their message ids."""
    scheme = Scheme.of(options.delivery, options.message_ids, columns)
    return scheme is not None and scheme.partition and not scheme.origin
