"""Measures a commit on the driver, with option `durable`: it checks the consumer, and moves it.

`python -m benchmarks.commit --commits 300` measures it on a server of its own, after batches of 20
messages. The messages of a work queue and of an interest stream are gone when a commit ends.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.load import PAYLOAD_BYTES
from benchmarks.tables import Table
from spark_jetstream.bench import percentile
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.options import ConnectionOptions, SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import stream_summary
from spark_jetstream.source.durable.progress import Progress
from spark_jetstream.testing import NatsServer

RETENTIONS = ("limits", "interest", "workqueue")
_BATCH = 20  # messages between two commits


def measure(url: str, retention: str, commits: int) -> list[float]:
    """How long each commit took, in milliseconds."""
    options = ConnectionOptions.from_spark({"servers": url})

    def to_server() -> Connection:
        return connect(options)

    connection = to_server()
    config = {
        "name": retention,
        "subjects": [f"{retention}.>"],
        "storage": "file",
        "retention": retention,
    }
    connection.api(
        jsapi.subject(connection.prefix, jsapi.STREAM_CREATE, retention),
        jsapi.request_body(**config),
        context="create a stream",
    )
    query = SourceOptions.from_spark(
        {"servers": url, "stream": retention, "durable": "query"}, streaming=True
    )
    progress = Progress(Requests(lambda _: to_server(), 10.0), query)
    taken: list[float] = []
    for number in range(commits + 1):
        body = connection.api(
            jsapi.subject(connection.prefix, jsapi.STREAM_INFO, retention),
            b"",
            context="read a stream",
        )
        state = stream_summary(body, "read a stream")
        if number == 0:
            progress.open(state, fresh=True)
        else:
            begun = time.perf_counter()
            progress.commit(state, state.last_seq + 1)
            taken.append(1000 * (time.perf_counter() - begun))
        for _ in range(_BATCH):
            connection.request(f"{retention}.x", bytes(PAYLOAD_BYTES), context="store a message")
    return taken


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commit", description=__doc__)
    parser.add_argument(
        "--commits", type=int, default=300, help="measured commits for each retention (default 300)"
    )
    arguments = parser.parse_args()
    forms = {"retention": "s", "median": ".2f", "p99": ".2f"}
    table = Table(
        "commit", f"{arguments.commits} commits for each retention, milliseconds", **forms
    )
    with NatsServer() as server:
        for retention in RETENTIONS:
            taken = measure(server.url, retention, arguments.commits)
            table.add(retention, statistics.median(taken), percentile(taken, 99))
        close_all()


if __name__ == "__main__":
    main()
