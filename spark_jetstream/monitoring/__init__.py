"""How far queries are behind their streams, and what they read, by Spark's progress.

docs/monitoring.md describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_jetstream.monitoring.openlineage import OpenLineage
from spark_jetstream.monitoring.stream_lag import StreamLag, lag

if TYPE_CHECKING:
    from spark_jetstream.monitoring.listener import JetStreamListener

__all__ = ["JetStreamListener", "OpenLineage", "StreamLag", "lag"]


def __getattr__(name: str) -> Any:
    # `lag` works without pyspark, from which the listener inherits.
    if name != "JetStreamListener":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_jetstream.monitoring.listener import JetStreamListener  # noqa: PLC0415

    return JetStreamListener
