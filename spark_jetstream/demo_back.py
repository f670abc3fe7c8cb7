"""The demo's way back: a query that publishes every late flight to a second stream, and a look at what is stored."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jetstream.demo_query import Advance, follow, read_flights_stream
from spark_jetstream.demo_report import LATE, Batches, Late, Stored

STREAM = "DELAYS"
SUBJECTS = "delays.>"

#: The header that names the sequence which a flight has in the stream of flights.
FLIGHT_SEQUENCE = "Flight-Sequence"

#: The fields of a flight that the query uses. Minutes are numbers with a point in the JSON of pandas.
FLIGHT = (
    "year int, month int, day int, carrier string, flight int, origin string, dest string, "
    "dep_delay double, arr_delay double"
)

#: The payload of a message about a late flight, as far as the check reads it.
DELAY = "minutes bigint, lost bigint"


def late_flights(messages: DataFrame) -> DataFrame:
    """A row for each flight that arrived `LATE` minutes after its time or later, ready for the sink.

    The subject is ``delays.<origin>.<carrier>``; ``lost`` is by how many minutes its delay grew on the way.
    """
    flight = F.from_json(F.col("data").cast("string"), FLIGHT)
    delay = F.struct(
        F.concat_ws(" ", "carrier", "flight").alias("flight"),
        F.make_date("year", "month", "day").alias("date"),
        F.col("dest").alias("to"),
        F.col("arr_delay").cast("bigint").alias("minutes"),
        (F.col("arr_delay") - F.col("dep_delay")).cast("bigint").alias("lost"),
    )
    return (
        messages.select("sequence", flight.alias("read"))
        .select("sequence", "read.*")
        .where(F.col("arr_delay") >= LATE)
        .select(
            F.concat_ws(".", F.lit("delays"), "origin", "carrier").alias("subject"),
            F.create_map(F.lit(FLIGHT_SEQUENCE), F.col("sequence").cast("string")).alias("headers"),
            F.to_json(delay).alias("data"),
        )
    )


def write_late(spark: SparkSession, url: str, folder: Path, advance: Advance) -> Batches:
    """Read the stream of flights once more and publish the late ones, each exactly once. The stream must be there."""
    query = (
        late_flights(read_flights_stream(spark, url, "sequence bigint, data binary"))
        .writeStream.format("jetstream")
        .outputMode("append")
        .option("servers", url)
        .option("stream", STREAM)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", str(folder / "late-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return follow(query, advance)


def read_back(spark: SparkSession, url: str) -> Stored:
    """What the second stream holds, added up by subject. A flight counts once in ``flights``, however often stored."""
    began = time.monotonic()
    delay = F.from_json(F.col("data").cast("string"), DELAY)
    rows = (
        spark.read.format("jetstream")
        .schema("subject string, sequence bigint, headers map<string,array<string>>, data binary")
        .option("servers", url)
        .option("stream", STREAM)
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .load()
        .withColumn("delay", delay)
        .groupBy("subject")
        .agg(
            F.count("*").alias("messages"),
            F.countDistinct(F.element_at(F.element_at("headers", FLIGHT_SEQUENCE), 1)).alias("flights"),
            F.sum("delay.minutes").alias("minutes"),
            F.sum("delay.lost").alias("lost"),
            F.min_by(F.col("data").cast("string"), "sequence").alias("example"),
        )
        .collect()
    )
    late = {
        row["subject"]: Late(row["messages"], row["flights"], row["minutes"] or 0, row["lost"] or 0) for row in rows
    }
    return Stored(late, {row["subject"]: row["example"] for row in rows}, time.monotonic() - began)
