"""The data source that Spark sees: `format("jetstream")` (pyspark.sql.datasource.DataSource)."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_jetstream.errors import OptionError
from spark_jetstream.options import SourceOptions
from spark_jetstream.schema import SOURCE_DDL
from spark_jetstream.sink.writer import JetStreamBatchWriter, JetStreamStreamWriter
from spark_jetstream.source.reader import JetStreamBatchReader, JetStreamStreamReader


class JetStreamDataSource(DataSource):
    """NATS JetStream streams as rows, and rows as messages. Options and columns: docs/options.md."""

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "jetstream"

    def schema(self) -> str:
        """All columns; `.schema(...)` with a subset reads only those.

        Spark asks for it in `load()`, so options that can be wrong neither for a stream nor for a batch fail there.
        """
        # Spark does not say which of the two it will be. Where they do not agree, the one it is speaks when it starts.
        faults: list[OptionError] = []
        for streaming in (True, False):
            try:
                SourceOptions.from_spark(self.options, streaming=streaming)
            except OptionError as error:
                faults.append(error)
        if len(faults) == 2 and str(faults[0]) == str(faults[1]):
            raise faults[0]
        return SOURCE_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`. Raises `OptionError`, `SchemaError`."""
        reader = JetStreamBatchReader(self.options, schema)
        _ = reader.options, reader.columns
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of `spark.readStream`; its errors come with its first call, see `source/reader.py`."""
        return JetStreamStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of `df.write`. Raises `OptionError`, `SchemaError`, and what is wrong with the stream already."""
        return JetStreamBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of `df.writeStream`, built twice in every micro-batch; raises what `writer` raises.

        ``overwrite`` is set in output mode "complete": every micro-batch then stores the whole result again.
        """
        return JetStreamStreamWriter(self.options, schema)
