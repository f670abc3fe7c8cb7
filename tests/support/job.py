"""A Spark job of its own processes, which a test may kill, all or some: a query for each of several
streams.

    python job.py FILE  # {"folder": ..., "options": {"<query>": {...}}, "trigger": {...}, "conf": {...}}

Checkpoints are `folder/checkpoint/<query>`. `options` are of the source, for each query, and its
rows go to `folder/rows/<query>` by Spark's own transactional file sink. With options of a sink,
which have the prefix ``sink.``, they go to JetStream. Option `select` then has the columns, in SQL,
with ``;`` between. Option `spread` says how the rows get to the sink:

- `read`: in the partitions in which they were read
- `shuffled`: in those of a shuffle, which Spark may put together
- `copied`: like `shuffled`, each row twice
- `united`: by `foreachBatch` with a `writeId`, of two halves; `spark.test.swapped` is true where
  the second is first

In place of a stream, `files` may name a folder in `folder/files`, with files of lines.

A query that fails is started again, and why it failed is a line of `folder/failures`. After an
error for which the documentation has a way on, it has the options of that (`way_on`) until it has
committed a batch. So long there is a file `folder/<query>.mended`.

Once `folder/finish` exists, `folder/shown` gets what Spark shows of the queries, and each query
reads to the end without limits. `folder/result.json` then has for each query the texts in its sink
by the sink's own log, and the texts of a batch read. It has no batch read of a query that is
durable or shares a consumer, whose messages go, nor of a bucket. The columns of a Key-Value bucket
are revision, key and value; those of an Object Store bucket are 0, name, and the content without
dots at its end.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.conventions import stand_in
from tests.support.jobs import SWAPPED

_SECONDS = 0.2  # between two looks at the queries
_SINK = "sink."
_SELECT, _SPREAD = "select", "spread"
_LIMITS = ("PerTrigger", "PerPartition")
_TEXT = "cast(trim(trailing '.' from cast(content as string)) as binary)"
#: The columns that a query has, by the option that names what it reads.
_SELECTED = {
    **dict.fromkeys(("stream", "streamPattern"), ("stream", "sequence", "subject", "data")),
    "bucket": ("revision as sequence", "key as subject", "value as data"),
    "objectBucket": ("cast(0 as bigint) as sequence", "name as subject", f"{_TEXT} as data"),
    "files": ("cast(0 as bigint) as sequence", "'' as subject", "cast(value as binary) as data"),
}
_FIRST_HALF = "crc32(data) % 2 = 0"

Options = Mapping[str, Mapping[str, str]]


def source(spark: SparkSession, folder: str, options: Mapping[str, str]) -> DataFrame:
    given = {
        name: value
        for name, value in options.items()
        if not name.startswith((_SINK, _SELECT, _SPREAD))
    }
    selected = next(columns for option, columns in _SELECTED.items() if option in given)
    if "files" in given:
        most = {name: value for name, value in given.items() if name == "maxFilesPerTrigger"}
        rows = spark.readStream.options(**most).text(f"{folder}/files/{given['files']}")
    else:
        rows = spark.readStream.format("jetstream").options(**given).load()
    return rows.selectExpr(*selected)


def spread(rows: DataFrame, how: str) -> DataFrame:
    """Bring rows into other partitions."""
    if how == "shuffled":
        return rows.repartition("data")
    if how == "copied":
        return (
            rows.selectExpr("*", "explode(array(0, 1)) as copy")
            .repartition("data", "copy")
            .drop("copy")
        )
    return rows


def write_halves(
    name: str, select: Sequence[str], to: Mapping[str, str]
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch`, which writes a batch of a query in two halves."""

    def write(batch: DataFrame, number: int) -> None:
        halves = [batch.where(_FIRST_HALF), batch.where(f"not ({_FIRST_HALF})").repartition("data")]
        if batch.sparkSession.conf.get(SWAPPED, "false") == "true":
            halves.reverse()
        rows = halves[0].union(halves[1]).selectExpr(*select)
        # At-least-once gives messages no ids, and takes no `writeId`.
        has_ids = to["delivery"] != "at-least-once"
        write_id = {"writeId": f"{name}-{number}"} if has_ids else {}
        rows.write.format("jetstream").options(**to, **write_id).mode("append").save()

    return write


def start(
    rows: DataFrame, folder: str, name: str, trigger: Mapping[str, Any], options: Mapping[str, str]
) -> StreamingQuery:
    """Start a query, or start it again."""
    to = {
        option.removeprefix(_SINK): value
        for option, value in options.items()
        if option.startswith(_SINK)
    }
    select = options.get(_SELECT, "data").split(";")
    how = options.get(_SPREAD, "read")
    if to and how == "united":
        writer = rows.writeStream.foreachBatch(write_halves(name, select, to))
    elif to:
        writer = spread(rows, how).selectExpr(*select).writeStream.format("jetstream").options(**to)
    else:
        writer = rows.writeStream.format("json").option("path", f"{folder}/rows/{name}")
    checkpoint = f"{folder}/checkpoint/{name}"
    query = (
        writer.queryName(name).trigger(**trigger).option("checkpointLocation", checkpoint).start()
    )
    # One after the other: Spark gives the process that plans ten seconds to start, and a busy
    # machine has no time for several.
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(_SECONDS)
    return query


def ended(query: StreamingQuery, seconds: float) -> str | None:
    """Wait for a query's end; why it failed, "" if it did not. None: it still runs."""
    try:
        return "" if query.awaitTermination(seconds) else None  # type: ignore[arg-type]  # Spark takes fractions
    except PySparkException as error:
        return str(error)


def way_on(why: str) -> dict[str, str]:
    """The options that let a query go on after it failed, by docs/data-loss.md and
    docs/delivery.md; mostly none.
    """
    error = next(
        iter(re.findall(r"spark_jetstream\.errors\.(DataLossError|DeliveryError): (.*)", why)), None
    )
    if error is None or "after this read was planned" in error[1] or "were to be read" in error[1]:
        return {}
    return (
        {"failOnDataLoss": "false"}
        if error[0] == "DataLossError"
        else {"sink.delivery": "deduplicated"}
    )


def committed(folder: str, name: str) -> int:
    """Return the last batch that a query has committed, -1 for none."""
    commits = Path(folder, "checkpoint", name, "commits")
    return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)


def note(folder: str, name: str, why: str) -> None:
    """Write down why a query failed."""
    with Path(folder, "failures").open("a") as file:
        file.write(json.dumps([name, why]) + "\n")


def is_held_back(given: Mapping[str, str]) -> bool:
    """Whether a query, which was stopped within a commit on a server before 2.14, has left the
    stand-in of its consumer. The next run deletes it when it is a minute old; in a cluster of 2.10
    it stays.
    """
    if "durable" not in given or "stream" not in given:
        return False
    left = stand_in(given["durable"])
    is_left = False
    # A user of some jobs may not list consumers; their servers are newer.
    with contextlib.suppress(JetStreamError), JetStreamAdmin(servers=given["servers"]) as admin:
        is_before_2_11 = not admin.account.info().api.level
        is_left = any(
            consumer.name == left and not (consumer.cluster and is_before_2_11)
            for name in given["stream"].split(",")
            for consumer in admin.consumers.infos(name)
        )
    if is_left:
        time.sleep(5.0)
    return is_left


def texts(frame: DataFrame) -> list[str]:
    return sorted(bytes(row["data"]).decode() for row in frame.select("data").collect())


def read(spark: SparkSession, folder: str, options: Options, trigger: dict[str, Any]) -> None:
    """Run the queries, whatever happens to them, until the test has seen enough."""
    finish = Path(folder, "finish")
    # Not for each start: who runs the tasks may be killed at any time, and is needed for this.
    strict = {name: source(spark, folder, given) for name, given in options.items()}
    lenient = {
        name: source(spark, folder, {**given, "failOnDataLoss": "false"})
        for name, given in options.items()
        if "share" not in given
    }

    ways: dict[str, dict[str, str]] = {name: {} for name in options}
    begun: dict[str, int] = {}

    def again(name: str) -> StreamingQuery:
        way, mended = ways[name], Path(folder, f"{name}.mended")
        mended.touch() if way else mended.unlink(missing_ok=True)
        begun[name] = committed(folder, name)
        rows = lenient if "failOnDataLoss" in way else strict
        how = (
            {"once": True} if "sink.delivery" in way else trigger
        )  # no other batch may begin with a weaker level
        return start(rows[name], folder, name, how, {**options[name], **way})

    queries = {name: again(name) for name in options}
    while not finish.exists():
        for name in options:
            why = ended(queries[name], _SECONDS)
            if why or (why is not None and not ways[name]):
                note(folder, name, why)
                ways[name] |= way_on(why)
                queries[name] = again(name)
            elif why is not None or (ways[name] and committed(folder, name) > begun[name]):
                queries[name].stop()
                ways[name] = {}
                queries[name] = again(name)
    with Path(folder, "shown").open("w") as shown, contextlib.redirect_stdout(shown):
        for name, query in queries.items():
            strict[name].explain(extended=True)
            query.explain(extended=True)
            shown.write(
                f"{strict[name]} {query.status} "
                f"{[progress.json for progress in query.recentProgress]}\n"
            )
    for query in queries.values():
        query.stop()
    result = {}
    for name, given in options.items():
        unlimited = {
            option: value for option, value in given.items() if not option.endswith(_LIMITS)
        }
        rows = source(spark, folder, unlimited)
        before = None
        # Spark 4.0 and 4.1 end after a micro-batch, which may be one that was planned before.
        while before != committed(folder, name) or is_held_back(given):
            before = committed(folder, name)
            while why := ended(start(rows, folder, name, {"availableNow": True}, unlimited), 600):
                note(folder, name, why)
        if any(option.startswith(_SINK) for option in given):
            continue
        # Read as a table of the sink: only the files in its log count.
        files = spark.read.schema("data binary").format("json").load(f"{folder}/rows/{name}")
        result[name] = {"rows": texts(files)}
        if "stream" in given and {"durable", "share"}.isdisjoint(given):
            result[name]["batch"] = texts(
                spark.read.format("jetstream").options(**unlimited).load()
            )
    Path(folder, "result.json").write_text(json.dumps(result))


def run(folder: str, options: Options, trigger: dict[str, Any], conf: dict[str, str]) -> None:
    """Start Spark, and run the queries."""
    spark = SparkSession.builder.config(
        map={"spark.sql.warehouse.dir": f"{folder}/warehouse", **conf}
    ).getOrCreate()
    spark.sparkContext.setLogLevel(conf.get("spark.log.level", "ERROR"))
    read(spark, folder, options, trigger)
    spark.stop()


if __name__ == "__main__":
    run(**json.loads(Path(sys.argv[1]).read_text()))
