"""A Python source whose batches are made before: what Spark alone takes for the same rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from spark_jetstream.protocol.columns import Acks, Delivered, record_batch
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.wire import Frames, Scanner
from spark_jetstream.schema import COLUMN_NAMES, COLUMNS, ddl

ROWS = 2000  # of a batch: about what one read of the connection brings
PAYLOAD_BYTES = 200


@functools.cache
def batch(rows: int = ROWS, payload: int = PAYLOAD_BYTES) -> pa.RecordBatch:
    """Rows like those of the measured stream."""
    wire = b"".join(
        b"MSG BENCH.%d 1 $JS.ACK.BENCH.spark-1-1-1-1.1.%d.%d.1700000000000000000.9 %d\r\n%s\r\n"
        % (i % 10, i + 1, i + 1, payload, b"x" * payload)
        for i in range(rows)
    )
    scanner, incoming = Scanner(), Incoming()
    scanner.collect = {1}
    incoming.add(wire)
    [frames] = scanner.read(incoming)
    if not isinstance(frames, Frames):
        raise RuntimeError("these bytes are messages")
    acks = Acks(frames)
    return record_batch(
        Delivered(frames, acks, acks.sequences()), stream="BENCH", columns=COLUMN_NAMES
    )


class _Shape:
    """How many partitions there are, with how many batches of how many rows each."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.count = int(options["partitions"])
        self.batches = int(options.get("batches", 1))
        self.rows = int(options.get("rows", ROWS))
        self.payload = int(options.get("payload", PAYLOAD_BYTES))

    def planned(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.count)]

    def made(self) -> Iterator[pa.RecordBatch]:
        for _ in range(self.batches):
            yield batch(self.rows, self.payload)


class _Reader(_Shape, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self.planned()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.made()


class _StreamReader(_Shape, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # one batch, without admission control
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.planned() if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.made()


class ReadyMade(DataSource):
    """`format("readymade")` for `read` and `readStream`.

    Its options are `partitions`, `batches` of each partition, `rows` of a batch, and `payload` in
    bytes.
    """

    @classmethod
    def name(cls) -> str:
        return "readymade"

    def schema(self) -> str:
        return ddl(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self.options)
