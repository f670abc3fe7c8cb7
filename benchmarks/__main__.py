"""`python -m benchmarks`: all figures. On a busy machine only the ratios mean something."""

from __future__ import annotations

import argparse
import os
import sys

from spark_jetstream.java import ensure_java


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of the throughput (default 5)")
    parser.add_argument(
        "--long", type=int, default=5_000_000, help="messages of the long partition (default 5,000,000)"
    )
    arguments = parser.parse_args()
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    source.run(arguments.rounds, arguments.long)


if __name__ == "__main__":
    main()
