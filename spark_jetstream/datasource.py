"""The data source that Spark sees: `format("jetstream")` (pyspark.sql.datasource.DataSource)."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_jetstream.schema import SOURCE_DDL
from spark_jetstream.source.reader import JetStreamBatchReader, JetStreamStreamReader


class JetStreamDataSource(DataSource):
    """NATS JetStream streams as rows. Options and columns: docs/options.md."""

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "jetstream"

    def schema(self) -> str:
        """All columns; `.schema(...)` with a subset reads only those."""
        return SOURCE_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`. Raises `OptionError`, `SchemaError`."""
        reader = JetStreamBatchReader(self.options, schema)
        _ = reader.options, reader.columns
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of `spark.readStream`; its errors come with its first call, see `source/reader.py`."""
        return JetStreamStreamReader(self.options, schema)
