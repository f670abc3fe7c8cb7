"""Measures a start: the imports of a worker of Spark, and a command that asks a server."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.tables import Table
from spark_jetstream.testing import NatsServer

_PROGRAMS = {
    "pyspark": "import pyspark.worker, pyarrow",  # what a worker has without a data source
    "reader": "import pyspark.worker, pyarrow, pyspark_jetstream, spark_jetstream.source.reader",
    "writer": "import pyspark.worker, pyarrow, pyspark_jetstream, spark_jetstream.sink.writer",
    "stream ls": "from spark_jetstream.cli.main import main; main()",
}
_WARM_UP = 2


def run(rounds: int) -> None:
    """Print the seconds by the clock, and of CPU, that a new process takes."""
    with NatsServer() as server:
        title = f"start of a process, {rounds} rounds; seconds by the clock, and of CPU"
        table = Table("start", title, program="s", wall=".2f", CPU=".2f")
        for number in range(-_WARM_UP, rounds):
            for name, program in _PROGRAMS.items():
                began, before = time.perf_counter(), os.times()
                line = [sys.executable, "-c", program, "stream", "ls", "--server", server.url]
                subprocess.run(line, check=True, capture_output=True)
                wall, after = time.perf_counter() - began, os.times()
                cpu = (
                    after.children_user
                    + after.children_system
                    - before.children_user
                    - before.children_system
                )
                table.add(name, wall, cpu, counted=number >= 0)
        table.summarize(by="program")
