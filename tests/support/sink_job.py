"""A Spark job of its own process, which a test may kill: the same rows into several streams, each by a query.

    python sink_job.py '{"folder": ..., "options": {"<query>": {...}}, "format": ..., "trigger": {...}, "conf": {...}}'

`options` are those of the sink for each query; `format` is ``<rows of a micro-batch>/<partitions>``. A row is a number,
from 0 upwards: micro-batch b holds those from b * rows on. Checkpoints are `folder/checkpoint/<query>`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.support.read_job import session


def run(
    folder: str, options: dict[str, dict[str, str]], format: str, trigger: dict[str, Any], conf: dict[str, str]
) -> None:
    """Run the queries until one of them fails."""
    spark = session({"spark.sql.warehouse.dir": f"{folder}/warehouse", **conf})
    count, _, partitions = format.partition("/")
    for name, given in options.items():
        rows = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", count)
            .option("numPartitions", partitions)
            .load()
            .selectExpr("cast(value as string) as data")
        )
        query = rows.writeStream.format("jetstream").options(**given).queryName(name).trigger(**trigger)
        query.option("checkpointLocation", f"{folder}/checkpoint/{name}").start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
