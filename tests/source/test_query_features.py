"""Features that Spark 4.0 to 4.3 brought to streaming queries, each with a restart from its
checkpoint.

They are named sources, formats of the offset log and of the state, joins, and pushed limits. Tests
of what Spark does fail when a release does something else, and say what can change then.
docs/query-features.md has their results.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkValueError, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.source.reader import JetStreamBatchReader
from tests.support.publish import Tap
from tests.support.queries import Run, available_now, batch, kept_settings, refusal
from tests.support.streams import MakeStream, Stream

ONLY = "stream string, sequence bigint"
NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
EVOLUTION_ERROR = "STREAMING_QUERY_EVOLUTION_ERROR"
#: Spark goes by the formats of a checkpoint, not by the settings, since 4.3.
CHECKS_FORMATS = not pyspark.__version__.startswith(("4.0.", "4.1.", "4.2."))

Configure = Callable[[str, object], None]


@pytest.fixture
def configure(spark: SparkSession) -> Iterator[Configure]:
    """A function that sets a configuration of the session, until the test ends."""
    with ExitStack() as stack:

        def change(name: str, value: object) -> None:
            stack.enter_context(kept_settings(spark, name))
            spark.conf.set(name, str(value))

        yield change


@pytest.fixture
def source_names(configure: Configure) -> None:
    """Source evolution. Spark 4.2 does not choose the format of the offset log that it needs."""
    configure(NAMES, "true")
    configure(OFFSET_LOG, 2)


def source(spark: SparkSession, s: Stream, name: str = "", **options: object) -> DataFrame:
    """A stream as a source of a query, with this name unless it is empty."""
    reader = spark.readStream.name(name) if name else spark.readStream
    given = {option: str(value) for option, value in options.items()}
    made = reader.format("jetstream").options(servers=s.url, stream=s.name, **given).schema(ONLY)
    frame: DataFrame = made.load()
    return frame


def united(spark: SparkSession, sources: dict[str, Stream], **options: object) -> DataFrame:
    """The union of sources, each with its name."""
    first, *others = (source(spark, s, name, **options) for name, s in sources.items())
    for other in others:
        first = first.union(other)
    return first


def found(run: Run) -> dict[str, list[int]]:
    """The sequences that a run has read of each stream, in the order of its batches."""
    sequences = defaultdict(list)
    for row in run.rows:
        sequences[row["stream"]].append(row["sequence"])
    return dict(sequences)


def fail_a_batch(frame: DataFrame, checkpoint: Path) -> None:
    """A run whose first batch fails in the sink, after Spark has written its offsets."""

    def refuse(rows: DataFrame, number: int) -> None:
        raise RuntimeError("this sink refuses")

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(refuse)
    with pytest.raises(StreamingQueryException, match="this sink refuses"):
        writer.trigger(availableNow=True).start().awaitTermination()


def versions(folder: Path) -> list[str]:
    """The format of each file of an offset log or a commit log, in order."""
    files = sorted((int(file.name), file) for file in folder.glob("[0-9]*"))
    return [file.read_text().partition("\n")[0] for _, file in files]


# Named sources


@pytest.mark.usefixtures("source_names")
def test_named_sources_are_added_removed_reordered_and_renamed(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    """A position belongs to a name, and Spark knows it for one batch without the source."""
    a, b, c = (stream() for _ in range(3))

    def run(**sources: Stream) -> Run:
        for s in (a, b, c):
            s.fill(2)
        return available_now(united(spark, sources, maxMessagesPerTrigger=2), tmp_path)

    a.fill(1)
    first = run(a=a, b=b)
    assert found(first) == {a.name: [1, 2, 3], b.name: [1, 2]}
    assert first.counts == [4, 1]
    reordered = run(c=c, b=b, a=a)
    assert found(reordered) == {a.name: [4, 5], b.name: [3, 4], c.name: [1, 2, 3, 4]}
    assert reordered.counts == [6, 2]  # the limit is that of each source
    assert found(run(a=a, c=c)) == {a.name: [6, 7], c.name: [5, 6]}
    # After one batch without it, a source goes on where it was.
    assert found(run(c=c, b=b)) == {b.name: [5, 6, 7, 8], c.name: [7, 8]}
    # After more batches, and with another name, it is a new source.
    assert found(run(b=b, a=a, renamed=c)) == {
        a.name: list(range(1, 12)),
        b.name: [9, 10],
        c.name: list(range(1, 11)),
    }
    assert set(versions(tmp_path / "offsets")) == {"v2"}


@pytest.mark.full
@pytest.mark.usefixtures("source_names")
def test_a_failed_batch_runs_again_although_sources_were_added_or_removed(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    a, b, c = (stream() for _ in range(3))

    def run(**sources: Stream) -> dict[str, list[int]]:
        return found(available_now(united(spark, sources), tmp_path))

    for s in (a, b, c):
        s.fill(2)
    fail_a_batch(united(spark, {"a": a, "b": b}), tmp_path)
    for s in (a, b, c):
        s.fill(1)
    # First the batch that failed, as it was; then everything else.
    assert run(b=b, c=c, a=a) == {a.name: [1, 2, 3], b.name: [1, 2, 3], c.name: [1, 2, 3]}
    for s in (a, b, c):
        s.fill(1)
    fail_a_batch(united(spark, {"a": a, "b": b, "c": c}), tmp_path)
    assert run(a=a, b=b) == {a.name: [4], b.name: [4]}
    c.fill(1)
    # Spark takes message 4 for read: it was in the offsets of the batch that ran without c.
    lost = "Spark keeps the position of a source that was removed after a failed batch: say so"
    assert run(a=a, b=b, c=c) == {c.name: [5]}, lost


@pytest.mark.full
@pytest.mark.parametrize(
    ("delivery", "kept"), [("exactly-once", ()), ("deduplicated", ("stream", "sequence"))]
)
@pytest.mark.usefixtures("source_names")
def test_the_sink_knows_the_rows_of_a_batch_whose_sources_are_reordered(
    spark: SparkSession,
    stream: MakeStream,
    tmp_path: Path,
    delivery: str,
    kept: tuple[str, ...],
) -> None:
    """The batch was stored and not committed; its partitions then come in another order."""
    a, b, c, target = (stream() for _ in range(4))

    def run(**sources: Stream) -> None:
        rows = united(spark, sources).selectExpr(
            f"'{target.subject}.x' AS subject", "concat_ws(' ', stream, sequence) AS data", *kept
        )
        query = (
            rows.writeStream.format("jetstream")
            .options(servers=target.url, stream=target.name, delivery=delivery)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    def stored() -> list[str]:
        rows = batch(spark, target.url, target.name, "data binary").collect()
        return sorted(bytes(row["data"]).decode() for row in rows)

    def expected(*sources: Stream) -> list[str]:
        return sorted(f"{s.name} {sequence}" for s in sources for sequence in s.messages)

    for s in (a, b, c):
        s.fill(5)
    run(a=a, b=b)
    assert stored() == expected(a, b)
    for file in (tmp_path / "commits" / "0", tmp_path / "commits" / ".0.crc"):
        file.unlink()
    run(c=c, b=b, a=a)
    assert versions(tmp_path / "commits") == ["v1", "v1"]  # batch 0 ran again
    assert stored() == expected(a, b, c)


def test_spark_refuses_missing_unneeded_invalid_and_equal_names(
    spark: SparkSession, stream: MakeStream, configure: Configure, tmp_path: Path
) -> None:
    s = stream()
    with pytest.raises(AnalysisException) as caught:
        source(spark, s, "a")
    assert caught.value.getCondition() == f"{EVOLUTION_ERROR}.SOURCE_NAMING_NOT_SUPPORTED"
    configure(NAMES, "true")
    with pytest.raises(AnalysisException) as caught:
        source(spark, s)
    assert (
        caught.value.getCondition()
        == f"{EVOLUTION_ERROR}.UNNAMED_STREAMING_SOURCES_WITH_ENFORCEMENT"
    )
    with pytest.raises(PySparkValueError) as invalid:
        source(spark, s, "with-hyphen")
    assert invalid.value.getCondition() == "INVALID_STREAMING_SOURCE_NAME"
    twice = source(spark, s, "a").union(source(spark, s, "a"))
    with pytest.raises(AnalysisException) as caught:
        available_now(twice, tmp_path)
    assert caught.value.getCondition() == f"{EVOLUTION_ERROR}.DUPLICATE_SOURCE_NAMES"


# The offset log


@pytest.mark.full
def test_an_offset_log_keeps_its_format(
    spark: SparkSession, stream: MakeStream, configure: Configure, tmp_path: Path
) -> None:
    """Format 1 is not upgraded, and knows no names."""
    a, b = stream(), stream()

    def run(folder: str) -> dict[str, list[int]]:
        a.fill(1)
        b.fill(1)
        rows = source(spark, a).union(source(spark, b))
        return found(available_now(rows, tmp_path / folder))

    assert run("one") == {a.name: [1], b.name: [1]}
    configure(OFFSET_LOG, 2)
    assert run("one") == {a.name: [2], b.name: [2]}
    assert run("two") == {a.name: [1, 2, 3], b.name: [1, 2, 3]}
    configure(OFFSET_LOG, 1)
    assert run("two") == {a.name: [4], b.name: [4]}
    assert versions(tmp_path / "one" / "offsets") == ["v1", "v1"]
    assert versions(tmp_path / "two" / "offsets") == ["v2", "v2"]
    configure(NAMES, "true")
    named = united(spark, {"a": a, "b": b})
    if not CHECKS_FORMATS:
        assert found(available_now(named, tmp_path / "one")) == {a.name: [3, 4], b.name: [3, 4]}
        assert versions(tmp_path / "one" / "offsets") == ["v1", "v1", "v1"]
        return
    with pytest.raises(StreamingQueryException) as caught:
        available_now(named, tmp_path / "one")
    mended = "Spark upgrades an offset log: say so"
    assert f"{EVOLUTION_ERROR}.CANNOT_ENABLE_ON_EXISTING_CHECKPOINT" in str(caught.value), mended


@pytest.mark.full
def test_sources_without_names_belong_to_their_place(
    spark: SparkSession, stream: MakeStream, configure: Configure, tmp_path: Path
) -> None:
    """In the place of another stream the source says so, and nothing is read from the wrong
    position.
    """
    configure(OFFSET_LOG, 2)
    a, b, c = (stream() for _ in range(3))

    def run(*sources: DataFrame) -> dict[str, list[int]]:
        for s in (a, b, c):
            s.fill(1)
        first, *others = sources
        for other in others:
            first = first.union(other)
        return found(available_now(first, tmp_path))

    assert run(source(spark, a), source(spark, b)) == {a.name: [1], b.name: [1]}
    with pytest.raises(StreamingQueryException) as caught:
        run(source(spark, b), source(spark, a))
    assert refusal(caught.value)[0] == "OptionError"
    # Another source at the end is a new one.
    assert run(source(spark, a), source(spark, b), source(spark, c)) == {
        a.name: [2, 3],
        b.name: [2, 3],
        c.name: [1, 2, 3],
    }
    # The checkpoint was made without names: Spark goes by places, whatever the names are.
    configure(NAMES, "true")
    named = (source(spark, s, name) for s, name in ((a, "x"), (b, "y"), (c, "z")))
    assert run(*named) == {a.name: [4], b.name: [4], c.name: [4]}


@pytest.mark.full
def test_spark_refuses_a_checkpoint_with_another_number_or_naming_of_sources(
    spark: SparkSession, stream: MakeStream, configure: Configure, tmp_path: Path
) -> None:
    a, b = stream(), stream()
    available_now(source(spark, a), tmp_path / "one")
    with pytest.raises(StreamingQueryException) as caught:
        available_now(source(spark, a).union(source(spark, b)), tmp_path / "one")
    added = "There are [1] sources in the checkpoint offsets and now there are [2] sources"
    assert added in str(caught.value)
    configure(NAMES, "true")
    configure(OFFSET_LOG, 2)
    available_now(source(spark, a, "a"), tmp_path / "named")
    configure(NAMES, "false")
    with pytest.raises(StreamingQueryException) as caught:
        available_now(source(spark, a), tmp_path / "named")
    assert "All sources should be named at this point" in str(caught.value)


# State


def sums(frame: DataFrame) -> DataFrame:
    """How many messages, and the sum of their sequences, by the remainder of the sequence."""
    return (
        frame.groupBy((F.col("sequence") % 2).alias("key"))
        .agg(F.count("*").alias("messages"), F.sum("sequence").alias("total"))
        .select("key", "messages", "total")
    )


def expected_sums(messages: int) -> dict[int, tuple[int, int]]:
    groups = ((key, [n for n in range(1, messages + 1) if n % 2 == key]) for key in range(2))
    return {key: (len(numbers), sum(numbers)) for key, numbers in groups}


def run_updates(frame: DataFrame, checkpoint: Path) -> dict[int, tuple[int, int]]:
    """A run in output mode `update`; the last row of each key."""
    run = Run()
    query = (
        frame.writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(run.take)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return {row["key"]: (row["messages"], row["total"]) for row in run.rows}


@pytest.mark.parametrize(
    ("kept", "other"),
    [pytest.param(1, 2, marks=pytest.mark.full), (2, 1)],
    ids=["format 1", "format 2"],
)
def test_aggregates_go_on_from_rocksdb(
    spark: SparkSession,
    stream: MakeStream,
    configure: Configure,
    tmp_path: Path,
    kept: int,
    other: int,
) -> None:
    """State in RocksDB with a changelog, in either format of checkpoints, which a checkpoint
    keeps.
    """
    s = stream()
    for name, value in ((STATE_STORE, ROCKSDB), (CHANGELOG, "true"), (STATE_FORMAT, kept)):
        configure(name, value)
    rows = sums(source(spark, s, maxMessagesPerTrigger=4))
    s.fill(7)
    assert run_updates(rows, tmp_path) == expected_sums(7)
    s.fill(4)
    assert run_updates(rows, tmp_path) == expected_sums(11)
    assert versions(tmp_path / "commits") == [f"v{kept}"] * 3
    state = tmp_path / "state" / "0" / "0"
    changes = [file.stem.partition("_") for file in state.glob("[0-9]*.changelog")]
    assert sorted(number for number, _, _ in changes) == ["1", "2", "3"]
    # Format 2 has an identifier of its own in the name of each file.
    assert all(bool(unique) == (kept == 2) for _, _, unique in changes)
    configure(STATE_FORMAT, other)
    s.fill(4)
    if CHECKS_FORMATS:
        assert run_updates(rows, tmp_path) == expected_sums(15)
        return
    with pytest.raises(StreamingQueryException, match="_STATE_STORE"):
        run_updates(rows, tmp_path)
    configure(STATE_FORMAT, kept)
    assert run_updates(rows, tmp_path) == expected_sums(15)


@pytest.mark.full
def test_state_format_2_needs_rocksdb(
    spark: SparkSession, stream: MakeStream, configure: Configure, tmp_path: Path
) -> None:
    s = stream()
    s.fill(1)
    configure(STATE_FORMAT, 2)
    with pytest.raises(StreamingQueryException) as caught:
        run_updates(sums(source(spark, s)), tmp_path)
    assert "[STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED]" in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_transform_with_state_goes_on(
    spark: SparkSession, stream: MakeStream, configure: Configure, tmp_path: Path, pandas: bool
) -> None:
    class Sums(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._sums = handle.getValueState("sums", "messages bigint, total bigint")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
            messages, total = self._sums.get() if self._sums.exists() else (0, 0)
            numbers = (
                [int(number) for part in rows for number in part["sequence"]]
                if pandas
                else [row["sequence"] for row in rows]
            )
            result = (messages + len(numbers), total + sum(numbers))
            self._sums.update(result)
            yield made(int(key[0]), *result)

        def close(self) -> None:
            pass

    def made(key: int, messages: int, total: int) -> Any:
        if not pandas:
            return Row(key=key, messages=messages, total=total)
        import pandas as pd  # noqa: PLC0415 - in the worker

        return pd.DataFrame({"key": [key], "messages": [messages], "total": [total]})

    configure(STATE_STORE, ROCKSDB)
    s = stream()
    rows = source(spark, s, maxMessagesPerTrigger=4).selectExpr("sequence % 2 AS key", "sequence")
    groups = rows.groupBy("key")
    transform = groups.transformWithStateInPandas if pandas else groups.transformWithState
    frame = transform(Sums(), "key bigint, messages bigint, total bigint", "Update", "None")
    s.fill(7)
    assert run_updates(frame, tmp_path) == expected_sums(7)
    s.fill(4)
    assert run_updates(frame, tmp_path) == expected_sums(11)


@pytest.mark.full
@pytest.mark.parametrize("names", [("", ""), ("left", "right")], ids=["unnamed", "named"])
def test_a_join_of_two_streams_goes_on(
    spark: SparkSession,
    stream: MakeStream,
    configure: Configure,
    tmp_path: Path,
    names: tuple[str, str],
) -> None:
    """Rows of one stream wait for those of the other, also through a restart."""
    if names[0]:
        configure(NAMES, "true")
        configure(OFFSET_LOG, 2)
    left, right = stream(), stream()

    def run() -> list[tuple[int, str, str]]:
        one = source(spark, left, names[0], maxMessagesPerTrigger=4)
        other = source(spark, right, names[1], maxMessagesPerTrigger=3)
        pairs = one.withColumnRenamed("stream", "one").join(
            other.withColumnRenamed("stream", "other"), "sequence"
        )
        rows = available_now(pairs, tmp_path).rows
        return sorted((row["sequence"], row["one"], row["other"]) for row in rows)

    def pairs_of(*sequences: int) -> list[tuple[int, str, str]]:
        return [(sequence, left.name, right.name) for sequence in sequences]

    left.fill(7)
    right.fill(3)
    assert run() == pairs_of(1, 2, 3)
    right.fill(6)
    assert run() == pairs_of(4, 5, 6, 7)
    left.fill(3)
    assert run() == pairs_of(8, 9)


# Limits of batch reads


def asked_for(tap: Tap, s: Stream) -> int:
    """How many messages the pull requests for a stream have asked for."""
    prefix = f"$JS.API.CONSUMER.MSG.NEXT.{s.name}."
    requests = [message for message in tap.heard() if message.subject.startswith(prefix)]
    return sum(json.loads(message.data)["batch"] for message in requests)


def test_spark_pushes_no_limit(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(2000)
    rows = batch(spark, s.url, s.name, ONLY, minPartitions=4)
    with Tap(s.url) as tap:
        assert rows.limit(3).count() == 3
        asked = asked_for(tap, s)
    mended = f"Spark {pyspark.__version__} pushes limits: {asked}"
    assert asked >= 2000, mended


def test_a_reader_may_have_a_push_limit(spark: SparkSession, stream: MakeStream) -> None:
    """As Spark calls it in a newer release (SPARK-58551)."""

    class Reader(JetStreamBatchReader):
        def pushLimit(self, limit: int) -> bool:  # noqa: N802 - Spark's name
            raise AssertionError("Spark calls pushLimit: read no more than the limit")

    class Limited(JetStreamDataSource):
        @classmethod
        def name(cls) -> str:
            return "limited"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options, schema)

    s = stream()
    s.fill(20)
    spark.dataSource.register(Limited)
    made = spark.read.format("limited").options(servers=s.url, stream=s.name).schema(ONLY)
    assert [row["sequence"] for row in made.load().limit(5).collect()] == [1, 2, 3, 4, 5]
    assert made.load().count() == 20
