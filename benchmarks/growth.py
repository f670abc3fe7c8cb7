"""`python -m benchmarks.growth`: what planning and reading cost when streams, filters and queries grow.

Planning is measured without Spark: what the driver does for a micro-batch (where the streams end, which tasks that
makes), over ten new messages in each stream.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks.load import fill
from benchmarks.tables import Table
from spark_jetstream.bench import percentile
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.java import ensure_java
from spark_jetstream.options import SourceOptions
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.planner import Planner
from spark_jetstream.testing import NatsServer

SMALL, LARGE = 10_000, 10_000_000
FILTERS, STREAMS = 100, 50
NEW = 10  # messages of a micro-batch
_PAYLOAD = 20


def _planning(server: NatsServer, streams: Sequence[str], subjects: Sequence[str], times: int) -> list[float]:
    """Milliseconds that it takes to plan a micro-batch of the last ten messages of each stream, each time anew."""
    given = {"servers": server.url, "stream": ",".join(streams), "subjects": ",".join(subjects)}
    options = SourceOptions.from_spark({key: value for key, value in given.items() if value}, streaming=True)

    def connected(_: float) -> Connection:
        return connect(options.connection)

    planner = Planner(options, connected)
    ends = planner.report_latest().streams
    taken = []
    for _ in range(times):
        start = Offset({name: StreamPosition(end.next - NEW, end.created, 0) for name, end in ends.items()})
        began = time.perf_counter()
        end = planner.latest(start, limited=True)
        parts = planner.ranges(start, end)
        taken.append((time.perf_counter() - began) * 1000)
        if len(parts) != len(streams):
            raise RuntimeError(f"{len(parts)} tasks for {len(streams)} streams")
    return taken


def planning(server: NatsServer, times: int) -> None:
    """Print how long planning takes, by length of the stream, number of filters, and number of streams."""
    table = Table(
        "planning",
        f"planning a micro-batch of {NEW} messages for each stream, {times} times; milliseconds",
        **{"streams": ",.0f", "messages in each": ",.0f", "filters": ",.0f", "median": ".1f", "p99": ".1f"},
    )
    several = [f"MANY{number}" for number in range(STREAMS)]
    for name in several:
        fill(server.url, name, 1_000, payload_bytes=_PAYLOAD)
    for stream, messages in (("SMALL", SMALL), ("LARGE", LARGE)):
        fill(server.url, stream, messages, subjects=2 * FILTERS, payload_bytes=_PAYLOAD)
    time.sleep(30)  # the server writes its index of a long stream for a while
    cases = [
        ([stream], messages, [f"{stream}.{number}" for number in range(filters)])
        for stream, messages in (("SMALL", SMALL), ("LARGE", LARGE))
        for filters in (0, 1, FILTERS)
    ]
    cases += [(several[:count], 1_000, []) for count in (1, 10, STREAMS)]
    for streams, messages, subjects in cases:
        taken = _planning(server, streams, subjects, times)
        table.add(len(streams), messages, len(subjects), statistics.median(taken), percentile(taken, 99))


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="micro-batches planned (default 100)")
    arguments = parser.parse_args()
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with NatsServer() as server:
        planning(server, arguments.times)


if __name__ == "__main__":
    main()
