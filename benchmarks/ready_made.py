"""A Python streaming source whose batches are made before: what Spark alone takes for the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_jetstream.protocol.columns import Acks, Delivered, record_batch
from spark_jetstream.protocol.wire import Frames, Scanner
from spark_jetstream.schema import COLUMN_NAMES, SOURCE_DDL

ROWS = 2000  # of a batch: about what one read of the connection brings


def batch(rows: int = ROWS, payload: int = 200) -> pa.RecordBatch:
    """Rows like those of the measured stream."""
    wire = b"".join(
        b"MSG BENCH.%d 1 $JS.ACK.BENCH.spark-1-1-1-1.1.%d.%d.1700000000000000000.9 %d\r\n%s\r\n"
        % (i % 10, i + 1, i + 1, payload, b"x" * payload)
        for i in range(rows)
    )
    scanner = Scanner()
    scanner.collect = {1}
    [frames] = scanner.feed(wire)
    if not isinstance(frames, Frames):
        raise RuntimeError("these bytes are messages")
    acks = Acks(frames)
    return record_batch(Delivered(frames, acks, acks.sequences()), stream="BENCH", columns=COLUMN_NAMES)


class _Reader(DataSourceStreamReader):
    def __init__(self, partitions: int, batches: int) -> None:
        self.count = partitions
        self.batches = batches

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # one batch, without admission control
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.count)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ready = batch()
        for _ in range(self.batches):
            yield ready


class ReadyMade(DataSource):
    """`format("readymade")`, options `partitions` and `batches`."""

    @classmethod
    def name(cls) -> str:
        return "readymade"

    def schema(self) -> str:
        return SOURCE_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(int(self.options["partitions"]), int(self.options["batches"]))
