"""The data source that Spark sees: `format("jetstream")` (pyspark.sql.datasource.DataSource)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.engines.running import running_engine
from spark_jetstream.errors import OptionError
from spark_jetstream.options import SinkOptions, SourceOptions
from spark_jetstream.options.values import hidden
from spark_jetstream.schema import COLUMNS
from spark_jetstream.spark_process import find_file, log_as_spark

if TYPE_CHECKING:
    from spark_jetstream.admin.ensure import Ensure


class JetStreamDataSource(DataSource):
    """NATS JetStream streams as rows, and rows as messages. Options and columns: docs/options.md.

    Source, sink and admin do not import each other: this class does what the option ensureStream
    asks for. Spark sends it to each new Python worker along with a task, which should import no
    more than its side, so the methods import it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Take the options from Spark.

        Their values stay hidden: Spark, and other tools, may show this object.
        """
        # Only the methods below read them.
        super().__init__(hidden(options))  # type: ignore[arg-type]

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` is called with."""
        return "jetstream"

    def schema(self) -> Any:
        """Return all columns; `.schema(...)` with a subset reads only those.

        Spark calls this in `load()`, where options fail that are wrong both for a stream and for a
        batch. It gets DDL, and Sail an Arrow schema.
        """
        engine = running_engine()
        # Spark does not say which of the two it will be. Where only one of them fails, its reader
        # raises the error.
        errors: list[OptionError] = []
        for streaming in (True, False):
            try:
                options = SourceOptions.from_spark(self.options, streaming=streaming)
                # A description that cannot be read fails in `load()` too, without a request.
                if options.ensure_stream is not None:
                    from spark_jetstream.admin.ensure import described  # noqa: PLC0415

                    described(_ensure(options), find_file)
                return engine.declare(options.row_columns)
            except OptionError as error:
                errors.append(error)
        # The same error for a stream and for a batch: it is wrong whichever of them it will be.
        if str(errors[0]) == str(errors[1]):
            raise errors[0]
        return engine.declare(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of `spark.read`. Raise `OptionError`, `SchemaError`."""
        from spark_jetstream.source.reader import JetStreamBatchReader  # noqa: PLC0415

        log_as_spark()
        reader = JetStreamBatchReader(self.options, schema)
        # A wrong schema fails before a request could create or change a stream.
        _ = reader.columns
        _ensure_streams(reader.options)
        return reader

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of `spark.readStream`. Its first call raises the errors."""
        from spark_jetstream.source.reader import JetStreamStreamReader  # noqa: PLC0415

        log_as_spark()
        # An error of a reader's constructor would be followed by a misleading `UnboundLocalError`
        # of Spark, so the first call raises it.
        return JetStreamStreamReader(self.options, schema, _ensure_streams)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `df.write`.

        Raise `OptionError`, `SchemaError`, and what is wrong with the stream.
        """
        from spark_jetstream.sink.writer import JetStreamBatchWriter  # noqa: PLC0415

        log_as_spark()
        return JetStreamBatchWriter(self.options, schema, overwrite, _ensure_streams)

    def streamWriter(  # noqa: N802
        self,
        schema: Any,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """Return the writer of `df.writeStream`, built twice in every micro-batch.

        Raise what `writer` raises.
        """
        from spark_jetstream.sink.writer import JetStreamStreamWriter  # noqa: PLC0415

        log_as_spark()
        return JetStreamStreamWriter(self.options, schema, overwrite, _ensure_streams)


# The models of the admin module take a fifth of a second to import, which queries without
# ensureStream need not spend.


def _ensure_streams(options: SourceOptions | SinkOptions, resumed: bool = False) -> None:
    """Do what the option ensureStream asks for.

    Runs on the driver, before any request about a stream. `resumed` is that of
    `source.reader.Prepare`.
    """
    if options.ensure_stream is not None:
        from spark_jetstream.admin.ensure import ensure_streams  # noqa: PLC0415

        def connected(seconds: float) -> Connection:
            # A reader or a writer may wait for a server that is starting.
            return connect(options.connection, patience=seconds, find_file=find_file)

        # A writer is built twice in every micro-batch of a query, a reader once.
        again = resumed or (options.streaming and isinstance(options, SinkOptions))
        ensure_streams(_ensure(options), connected, find_file, remembered=again)


def _ensure(options: SourceOptions | SinkOptions) -> Ensure:
    from spark_jetstream.admin.ensure import Ensure  # noqa: PLC0415

    streams: tuple[str, ...] = ()
    if isinstance(options, SourceOptions):
        streams = options.streams
    elif options.stream is not None:
        streams = (options.stream,)
    return Ensure(
        options.connection,
        options.ensure_stream or "",
        options.ensure_stream_on_conflict,
        streams,
    )
