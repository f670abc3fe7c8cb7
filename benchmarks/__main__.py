"""`python -m benchmarks`: all figures. On a busy machine only the ratios mean something."""

from __future__ import annotations

import argparse
import os
import sys

from spark_jetstream.java import ensure_java

PARTS = ("source", "sink", "publishing", "direct", "tasks")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of the throughput (default 5)")
    parser.add_argument(
        "--long", type=int, default=5_000_000, help="messages of the long partition (default 5,000,000)"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure only these (default all)")
    arguments = parser.parse_args()
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from benchmarks import direct, publishing, sink, source, tasks  # noqa: PLC0415  # Spark reads the environment when it is imported

    if "publishing" in arguments.only:
        publishing.compare(arguments.rounds)
    if "direct" in arguments.only:
        direct.run(arguments.rounds)
    if "tasks" in arguments.only:
        with source.session(cores=1) as spark:
            tasks.run(spark, arguments.rounds)
        with source.session() as spark:
            tasks.sizes(spark, arguments.rounds)
    if not {"source", "sink"} & set(arguments.only):
        return
    with source.session() as spark:
        if "source" in arguments.only:
            source.run(spark, arguments.rounds, arguments.long)
        if "sink" in arguments.only:
            sink.run(spark, arguments.rounds)


if __name__ == "__main__":
    main()
