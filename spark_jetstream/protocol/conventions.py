"""What marks a consumer as one by which a Spark query keeps its position: keys of its metadata. Pure."""

from __future__ import annotations

RUN = "spark_jetstream_run"
"""The token of the run that has the consumer."""
SINCE = "spark_jetstream_since"
"""When that run took it, by the server's clock (RFC 3339)."""


def stand_in(durable: str) -> str:
    """The name of the consumer that holds the messages while the one named `durable` is made anew."""
    return f"{durable}-spark-moving"
