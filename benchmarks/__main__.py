"""`python -m benchmarks`: all figures. On a busy machine only the ratios mean something."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.environment import prepare_spark
from benchmarks.scale import QUICK, Scale

PARTS = ("start", "source", "sink", "publishing", "direct", "tasks", "sizes", "payloads", "latency")
QUICK_PARTS = ("start", "source", "sink", "tasks")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="source, sink and tasks in three to five minutes"
    )
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {Scale.rounds})")
    parser.add_argument(
        "--long", type=int, help=f"messages of the long partition (default {Scale.long:,})"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="measure only these (default all)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the tables to this file"
    )
    arguments = parser.parse_args()
    given = {
        name: value
        for name in ("rounds", "long")
        if (value := getattr(arguments, name)) is not None
    }
    scale = replace(QUICK if arguments.quick else Scale(), **given)
    parts = arguments.only or (QUICK_PARTS if arguments.quick else PARTS)
    prepare_spark()
    from benchmarks import direct, latency, payloads, publishing, sink, source, start, tables, tasks  # noqa: PLC0415  # Spark reads the environment when it is imported

    if "start" in parts:
        start.run(scale.rounds)
    if "publishing" in parts:
        publishing.compare(scale.rounds)
    if "direct" in parts:
        direct.run(scale.rounds)
    if "tasks" in parts:
        for sockets in ("Unix", "TCP"):
            with source.session("local[1]", unix=sockets == "Unix") as spark:
                tasks.run(spark, scale.rounds, sockets)
                tasks.micro_batches(spark, scale.rounds, sockets)
    if "sizes" in parts:
        for master in ("local[2]", "local-cluster[2,1,1024]"):
            with source.session(master) as spark:
                tasks.sizes(spark, scale.rounds)
    # A session for each: the peak memory of a worker is that of all it did.
    for name, part in (
        ("source", source),
        ("sink", sink),
        ("payloads", payloads),
        ("latency", latency),
    ):
        if name in parts:
            with source.session() as spark:
                part.run(spark, scale)
    if arguments.json is not None:
        tables.write(arguments.json)


if __name__ == "__main__":
    main()
