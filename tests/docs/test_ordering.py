"""The page about the order of rows: its blocks as they stand, and each statement that it makes of
reads, of Spark and of writes.

Whether a shuffle loses the order usually depends on which output arrives first. Here the inputs
have the odd and the even sequences: whichever comes first, the rows are not in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.support.calls import DEAD_LETTER_ROWS, rows
from tests.support.keyed import make_bucket, name_of
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.publish import Message, Publisher
from tests.support.queries import Run, available_now, batch, kept_settings, streaming
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream

PAGE = ROOT / "docs" / "ordering.md"

#: The orders of the page, in the order in which their messages are stored, and the statuses.
ORDERS = (1, 2, 1, 3, 2, 1, 3, 2, 1, 1)
STATUSES = ("placed", "paid", "packed", "sent", "returned")


def _messages() -> list[Message]:
    seen: dict[int, int] = {}
    messages = []
    for order in ORDERS:
        status = STATUSES[seen.get(order, 0)]
        seen[order] = seen.get(order, 0) + 1
        messages.append(Message(f"orders.{order}", json.dumps({"status": status}).encode()))
    return messages


class Page:
    """The page after its blocks ran: the names that they define, what they printed, the server."""

    def __init__(self, names: dict[str, Any], output: str, url: str, folder: Path) -> None:
        self.names = names
        self.output = output
        self.url = url
        self.folder = folder


@pytest.fixture(scope="module")
def page(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Run the blocks of the page in order, on a server with the streams ORDERS and RETURNS."""
    folder = tmp_path_factory.mktemp("ordering")
    output = StringIO()
    with NatsServer() as server, Publisher(server.url) as publisher:
        Stream(server.url, "ORDERS", publisher).send(*_messages())
        Stream(server.url, "RETURNS", publisher).fill(4)
        # The functions of a page are sent to workers by value, as those of a script are.
        names: dict[str, Any] = {"__name__": "__main__", "spark": spark}
        with redirect_stdout(output):
            for block in blocks(PAGE, "python"):
                block.run({DEFAULT_URL: server.url, FOLDER: str(folder)}, names)
        yield Page(names, output.getvalue(), server.url, folder)


@pytest.fixture
def functions(spark: SparkSession) -> dict[str, Any]:
    """The functions that the page defines, in blocks that read nothing."""
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "F": F}
    for block in blocks(PAGE, "python"):
        for part in block.text.split("\n\n\n"):
            if part.startswith(("def ", "import pandas")):
                exec(part, names)
    assert {"in_order", "newest", "copy", "transitions", "with_transitions"} <= names.keys()
    return names


@pytest.fixture
def s(stream: MakeStream) -> Stream:
    """Twelve messages of three subjects."""
    made = stream(allow_direct=True)
    made.fill_in_turn(12, ["a", "b", "a", "c"])
    return made


def halves(read: Callable[[], DataFrame]) -> tuple[DataFrame, DataFrame]:
    """The odd and the even sequences of a read, which has few rows: a partition for each stream."""
    return read().where("sequence % 2 = 1"), read().where("sequence % 2 = 0")


def mixed(read: Callable[[], DataFrame]) -> DataFrame:
    """A frame with the partitions of both halves: each is in order, all rows together never are."""
    odd, even = halves(read)
    return odd.union(even)


def partitions(frame: DataFrame) -> list[list[Row]]:
    """The rows of each partition that has some, in their order."""
    found: dict[int, list[Row]] = {}
    for row in frame.withColumn("partition", F.spark_partition_id()).collect():
        found.setdefault(row["partition"], []).append(row)
    return [found[number] for number in sorted(found)]


def sequences(found: Sequence[Row]) -> list[int]:
    return [row["sequence"] for row in found]


def by_subject(found: Sequence[Row]) -> dict[str, list[int]]:
    """The sequences of each subject, in their order."""
    subjects: dict[str, list[int]] = {}
    for row in found:
        subjects.setdefault(row["subject"], []).append(row["sequence"])
    return subjects


def is_in_order(numbers: Sequence[int]) -> bool:
    return all(one < next_one for one, next_one in pairwise(numbers))


class TestPage:
    @pytest.mark.full
    def test_its_blocks_run_and_print_what_it_shows(self, page: Page) -> None:
        [shown] = blocks(PAGE, "text")
        assert shown.text in page.output
        newest = {
            row["subject"]: row["sequence"]
            for row in page.names["newest"](page.names["orders"]).collect()
        }
        assert newest == {"orders.1": 10, "orders.2": 8, "orders.3": 7}
        history = {
            row["subject"]: [each["sequence"] for each in row["messages"]]
            for row in page.names["history"].collect()
        }
        assert history == {"orders.1": [1, 3, 6, 9, 10], "orders.2": [2, 5, 8], "orders.3": [4, 7]}
        before = {row["sequence"]: row["data_before"] for row in page.names["changes"].collect()}
        assert [before[1], before[2]] == [None, None]
        assert json.loads(before[10]) == {"status": "sent"}

    @pytest.mark.full
    def test_its_queries_keep_the_order_of_each_subject(
        self, spark: SparkSession, page: Page
    ) -> None:
        copied = batch(spark, page.url, "COPIED").orderBy("sequence").collect()
        assert len(copied) == len(ORDERS)
        for order in (1, 2, 3):
            own = [row["data"] for row in copied if row["subject"] == f"copied.orders.{order}"]
            statuses = [json.loads(data)["status"] for data in own]
            assert statuses == list(STATUSES[: len(own)])
        transitions = spark.read.parquet(str(page.folder / "transitions")).collect()
        assert sorted((row["sequence"], row["before"], row["status"]) for row in transitions) == [
            (1, None, "placed"),
            (2, None, "placed"),
            (3, "placed", "paid"),
            (4, None, "placed"),
            (5, "placed", "paid"),
            (6, "paid", "packed"),
            (7, "placed", "paid"),
            (8, "paid", "packed"),
            (9, "packed", "sent"),
            (10, "sent", "returned"),
        ]


class TestReads:
    @pytest.mark.parametrize("read_with", ["consumer", "direct"])
    @pytest.mark.parametrize("subjects", [None, "a,c"])
    def test_a_partition_holds_one_range_of_one_stream(
        self,
        spark: SparkSession,
        s: Stream,
        stream: MakeStream,
        read_with: str,
        subjects: str | None,
    ) -> None:
        other = stream(allow_direct=True)
        other.fill_in_turn(6, ["a", "b"])
        filters = subjects and ",".join(
            f"{each.subject}.{suffix}" for each in (s, other) for suffix in subjects.split(",")
        )
        given = {"readWith": read_with, "subjects": filters, "maxMessagesPerPartition": 2}
        names = f"{other.name},{s.name}"
        found = partitions(batch(spark, s.url, names, **given))
        streams = [{row["stream"] for row in part} for part in found]
        assert all(len(each) == 1 for each in streams)
        for name in (s.name, other.name):
            parts = [sequences(part) for part in found if part[0]["stream"] == name]
            assert len(parts) > 1
            # Within partitions, and from one to the next.
            assert is_in_order([number for part in parts for number in part])

    def test_micro_batches_are_read_in_order_and_follow_each_other(
        self, spark: SparkSession, s: Stream, stream: MakeStream, tmp_path: Path
    ) -> None:
        late = stream()
        late.fill(6)
        frame = streaming(
            spark,
            s.url,
            f"{s.name},{late.name}",
            maxMessagesPerTrigger=6,
            maxMessagesPerPartition=2,
        ).withColumn("partition", F.spark_partition_id())
        run = available_now(frame, tmp_path)
        assert run.counts == [6, 6, 6]
        for name in (s.name, late.name):
            assert is_in_order([row["sequence"] for row in run.rows if row["stream"] == name])
        for found in run.batches.values():
            parts = {row["partition"]: row["stream"] for row in found}
            assert len(parts) == 3
            assert all(parts[row["partition"]] == row["stream"] for row in found)
        # Every message of the second stream is younger, and still some come before.
        first, second = run.batches[0], run.batches[1]
        assert late.name in {row["stream"] for row in first}
        youngest = max(row["timestamp"] for row in first)
        assert youngest > min(row["timestamp"] for row in second)

    def test_revisions_and_changes_of_counters_are_in_order(
        self, spark: SparkSession, stream: MakeStream
    ) -> None:
        bucket = make_bucket(stream)
        keys = [Message(f"$KV.{name_of(bucket)}.{key}", b"1") for key in "abcabcabc"]
        bucket.send(*keys)
        counters = stream(storage="memory", allow_msg_counter=True, allow_direct=True)
        counters.send(
            *(
                Message(f"{counters.subject}.{key}", headers=[("Nats-Incr", "1")])
                for key in "abcabcabc"
            )
        )
        common = {"servers": bucket.url, "history": "true", "maxMessagesPerPartition": "4"}
        for column, given in (
            ("revision", {"bucket": name_of(bucket)}),
            ("sequence", {"stream": counters.name, "counters": "true"}),
        ):
            found = partitions(spark.read.format("jetstream").options(**common, **given).load())
            assert len(found) == 3
            assert [row[column] for part in found for row in part] == list(range(1, 10))

    def test_dead_letters_are_in_the_order_in_which_consumers_gave_up(
        self, admin: JetStreamAdmin, s: Stream
    ) -> None:
        kept = admin.streams.keep_dead_letters(s.name).config.name
        try:
            admin.consumers.create(s.name, durable_name="c", ack_policy="explicit", max_deliver=1)
            delivered = [*admin.consumers.next(s.name, "c", 2, ack="none")]
            first, second = delivered
            admin.consumers.term(second)
            wait_until(lambda: admin.streams.load(kept).state.messages == 1, "one advisory")
            admin.consumers.term(first)
            wait_until(lambda: admin.streams.load(kept).state.messages == 2, "two advisories")
            found = rows({"servers": s.url, "deadLettersOf": s.name}, DEAD_LETTER_ROWS)
            assert [row["sequence"] for row in found] == [2, 1]
        finally:
            admin.streams.delete(kept)


class TestOperations:
    def test_those_without_a_shuffle_keep_the_order(self, spark: SparkSession, s: Stream) -> None:
        frame = batch(spark, s.url, s.name, maxMessagesPerPartition=5)
        names = spark.createDataFrame([(s.subject, "x")], "name string, value string")
        is_own = F.startswith("subject", "name")
        for kept in (
            frame.where("sequence > 1").withColumn("more", F.lit(1)),
            frame.join(F.broadcast(names), is_own),
            frame.select("sequence").mapInPandas(_unchanged, "sequence bigint"),
        ):
            found = partitions(kept)
            assert len(found) == 3
            assert all(is_in_order(sequences(part)) for part in found)
        [part] = partitions(frame.coalesce(1))
        assert sequences(part) == list(range(1, 13))

    def test_a_shuffle_loses_the_order(
        self, spark: SparkSession, s: Stream, stream: MakeStream
    ) -> None:
        # Each subject has odd and even sequences, which come from two partitions.
        pairs = stream()
        pairs.fill_in_turn(12, ["a", "a", "b", "b"])
        columns = "subject string, sequence bigint"
        frame = mixed(lambda: batch(spark, pairs.url, pairs.name, columns))
        found = partitions(frame)
        assert len(found) == 2
        assert all(is_in_order(sequences(part)) for part in found)
        names = frame.select("subject").distinct()
        for shuffled in (
            frame.repartition(1, "subject"),
            frame.dropDuplicates(["subject", "sequence"]),
            frame.hint("merge").join(names, "subject"),
        ):
            whole = [row for part in partitions(shuffled) for row in part]
            assert sorted(sequences(whole)) == list(range(1, 13))
            assert not any(is_in_order(numbers) for numbers in by_subject(whole).values())
        # By a hash: the same in each run.
        apart = batch(spark, s.url, s.name).select("sequence").repartition(2)
        assert not all(is_in_order(sequences(part)) for part in partitions(apart))

    def test_sorting_within_partitions_restores_the_order(
        self, spark: SparkSession, s: Stream, stream: MakeStream, functions: dict[str, Any]
    ) -> None:
        other = stream()
        other.fill_in_turn(12, ["a", "b"])
        two = mixed(lambda: batch(spark, s.url, f"{s.name},{other.name}"))
        in_order = functions["in_order"](two)
        self.check_order(in_order, 24)
        self.check_order(in_order.coalesce(1), 24)
        one = mixed(lambda: batch(spark, s.url, s.name))
        self.check_order(one.repartition("subject").sortWithinPartitions("sequence"), 12)
        self.check_order(one.repartition(2, "subject").sortWithinPartitions("sequence"), 12)

    @staticmethod
    def check_order(frame: DataFrame, count: int) -> None:
        """All rows of a subject are in one partition, by their sequences."""
        found = partitions(frame)
        assert sum(map(len, found)) == count
        of_subjects = [by_subject(part) for part in found]
        assert sum(map(len, of_subjects)) == len({row["subject"] for part in found for row in part})
        assert all(
            is_in_order(numbers) for subjects in of_subjects for numbers in subjects.values()
        )

    def test_a_streaming_frame_cannot_be_sorted(self, spark: SparkSession, s: Stream) -> None:
        frame = streaming(spark, s.url, s.name)
        quoted = "Sorting is not supported on streaming DataFrames/Datasets"
        assert quoted in PAGE.read_text().replace("\n  ", " ")
        for refused in (frame.sortWithinPartitions("sequence"), frame.orderBy("sequence")):
            with pytest.raises(AnalysisException, match=quoted):
                refused.writeStream.format("noop").start()

    def test_functions_that_follow_the_order_of_arrival(
        self, spark: SparkSession, s: Stream, functions: dict[str, Any]
    ) -> None:
        odd, even = halves(lambda: batch(spark, s.url, s.name).where("sequence <= 4"))
        for frame in (odd.union(even), even.union(odd)):
            [row] = (
                frame.groupBy("stream")
                .agg(
                    F.collect_list("sequence").alias("listed"),
                    F.last("sequence").alias("last"),
                    F.max_by("sequence", "sequence").alias("newest"),
                    F.array_sort(F.collect_list(F.struct("sequence", "data"))).alias("sorted"),
                )
                .collect()
            )
            assert not is_in_order(row["listed"])
            assert row["last"] == row["listed"][-1]
            assert row["newest"] == 4
            assert sequences(row["sorted"]) == [1, 2, 3, 4]
            found = functions["newest"](frame).collect()
            assert {each["subject"]: each["sequence"] for each in found} == {
                f"{s.subject}.a": 3,
                f"{s.subject}.b": 2,
                f"{s.subject}.c": 4,
            }

    def test_sequences_of_two_streams_say_nothing_about_each_other(
        self, spark: SparkSession, stream: MakeStream
    ) -> None:
        earlier, later = stream(), stream()
        earlier.fill(5)
        later.fill(1)
        frame = batch(spark, earlier.url, f"{earlier.name},{later.name}")
        row = F.struct("stream", "sequence")
        by_time = F.struct("timestamp", "stream", "sequence")
        [found] = frame.agg(
            F.max_by(row, "sequence").alias("by_sequence"), F.max_by(row, by_time).alias("by_time")
        ).collect()
        assert found["by_sequence"] == (earlier.name, 5)
        assert found["by_time"] == (later.name, 1)


def _unchanged(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def _arrivals(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Any:
    """Yield the sequences of each frame, as they come."""
    del state
    lists = [frame["sequence"].tolist() for frame in frames]
    yield pd.DataFrame({"subject": [key[0]], "lists": [json.dumps(lists)]})


class _Arrivals(StatefulProcessor):
    """The same of transformWithStateInPandas."""

    def init(self, handle: Any) -> None:
        pass

    # The names are Spark's.
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        del timerValues
        yield from _arrivals(key, rows, None)

    def close(self) -> None:
        pass


@pytest.fixture
def small_frames(spark: SparkSession) -> Iterator[None]:
    """Spark hands pandas two rows at a time; and the state store that some operators need."""
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
        "spark.sql.streaming.stateStore.providerClass": store,
    }
    with kept_settings(spark, *settings):
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield


@pytest.mark.full
@pytest.mark.usefixtures("small_frames")
class TestStatefulOperators:
    @pytest.mark.parametrize("operator", ["applyInPandasWithState", "transformWithStateInPandas"])
    def test_rows_of_a_key_arrive_in_no_order_and_in_several_frames(
        self, spark: SparkSession, s: Stream, operator: str, tmp_path: Path
    ) -> None:
        grouped = mixed(lambda: streaming(spark, s.url, s.name)).groupBy("stream")
        schema = "subject string, lists string"
        if operator == "applyInPandasWithState":
            frame = grouped.applyInPandasWithState(
                _arrivals, schema, "n bigint", "append", "NoTimeout"
            )
        else:
            frame = grouped.transformWithStateInPandas(_Arrivals(), schema, "append", "none")
        run = available_now(frame, tmp_path)
        [row] = run.rows
        lists = json.loads(row["lists"])
        assert len(lists) > 1
        arrived = [number for each in lists for number in each]
        assert sorted(arrived) == list(range(1, 13))
        assert not is_in_order(arrived)

    def test_the_function_of_the_page_sorts_them(
        self,
        spark: SparkSession,
        stream: MakeStream,
        functions: dict[str, Any],
        tmp_path: Path,
    ) -> None:
        s = stream()
        s.send(
            *(
                Message(f"{s.subject}.1", json.dumps({"status": f"{number}"}).encode())
                for number in range(1, 9)
            )
        )

        def read() -> DataFrame:
            return streaming(spark, s.url, s.name, maxMessagesPerTrigger=5)

        run = available_now(functions["with_transitions"](mixed(read)), tmp_path)
        assert len([count for count in run.counts if count]) == 2
        found = [(row["sequence"], row["before"], row["status"]) for row in run.rows]
        before = [None, *map(str, range(1, 8))]
        assert found == [(number, before[number - 1], str(number)) for number in range(1, 9)]


class TestWatermarks:
    @pytest.mark.full
    @pytest.mark.parametrize("together", [True, False])
    def test_one_load_of_several_streams_has_one_watermark(
        self, spark: SparkSession, stream: MakeStream, together: bool, tmp_path: Path
    ) -> None:
        fast, slow = stream(), stream()

        def loaded(names: str) -> DataFrame:
            time = F.col("data").cast("string").cast("timestamp")
            frame = streaming(spark, fast.url, names).withColumn("time", time)
            return frame.withWatermark("time", "1 minute")

        def run() -> Run:
            if together:
                frame = loaded(f"{fast.name},{slow.name}")
            else:
                frame = loaded(fast.name).union(loaded(slow.name))
            counts = frame.groupBy(F.window("time", "1 minute")).count()
            return available_now(counts, tmp_path)

        fast.send(Message(f"{fast.subject}.a", b"2026-03-01T13:00:00Z"))
        run()
        # The watermark of the micro-batch before decides.
        fast.send(Message(f"{fast.subject}.a", b"2026-03-01T13:10:00Z"))
        slow.send(Message(f"{slow.subject}.a", b"2026-03-01T12:00:00Z"))
        dropped = sum(
            operator["numRowsDroppedByWatermark"]
            for progress in run().progress
            for operator in progress["stateOperators"]
        )
        assert dropped == (1 if together else 0)


class TestWrites:
    def test_sorted_rows_are_stored_in_the_order_of_their_subjects(
        self, spark: SparkSession, s: Stream, stream: MakeStream, functions: dict[str, Any]
    ) -> None:
        target = stream()
        frame = functions["in_order"](mixed(lambda: batch(spark, s.url, s.name)))
        self.write(frame, target)
        stored = batch(spark, s.url, target.name).orderBy("sequence").collect()
        copied = [
            Row(subject=row["subject"], sequence=int(row["data"].rpartition(b" ")[2]))
            for row in stored
        ]
        assert by_subject(copied) == {
            f"{target.subject}.{s.subject}.{suffix}": numbers
            for suffix, numbers in (
                ("a", [1, 3, 5, 7, 9, 11]),
                ("b", [2, 6, 10]),
                ("c", [4, 8, 12]),
            )
        }

    def test_a_task_stores_the_rows_of_its_partition_in_their_order(
        self, spark: SparkSession, s: Stream, stream: MakeStream
    ) -> None:
        target = stream()
        backwards = batch(spark, s.url, s.name).orderBy(F.desc("sequence")).coalesce(1)
        self.write(backwards, target, maxInFlight=1)
        stored = batch(spark, s.url, target.name).orderBy("sequence").collect()
        assert [int(row["data"].rpartition(b" ")[2]) for row in stored] == [*range(12, 0, -1)]

    def test_one_task_stores_a_micro_batch_in_order(
        self, spark: SparkSession, s: Stream, stream: MakeStream, tmp_path: Path
    ) -> None:
        target = stream()
        subject = F.concat(F.lit(f"{target.subject}."), "subject")
        query = (
            streaming(spark, s.url, s.name, maxMessagesPerPartition=3)
            .withColumn("subject", subject)
            .coalesce(1)
            .writeStream.format("jetstream")
            .options(servers=s.url, stream=target.name)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        stored = batch(spark, s.url, target.name).orderBy("sequence").collect()
        assert [int(row["data"].rpartition(b" ")[2]) for row in stored] == [*range(1, 13)]

    @staticmethod
    def write(frame: DataFrame, target: Stream, **options: int) -> None:
        subject = F.concat(F.lit(f"{target.subject}."), "subject")
        (
            frame.withColumn("subject", subject)
            .write.format("jetstream")
            .options(servers=target.url, stream=target.name, **options)
            .mode("append")
            .save()
        )
