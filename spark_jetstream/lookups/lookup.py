"""lookup: columns with the current value of each row's key in a Key-Value bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from spark_jetstream.admin.api import checked
from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.buckets.key_lookup import KeyLookup
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.names import Identifier
from spark_jetstream.options.values import hidden
from spark_jetstream.schema import plain_type
from spark_jetstream.spark_process import find_file, log_as_spark

_BUCKET = Identifier(252)  # with `KV_` the 255 characters that a stream's name may have
#: `buckets.key_lookup.FOUND` as Spark has it.
_FOUND = StructType(
    [
        StructField("value", BinaryType()),
        StructField("revision", LongType()),
        StructField("updated", TimestampType()),
    ]
)
_INSTEAD = ", or look keys up at the leader with argument leader=True"


def lookup(
    df: DataFrame,
    bucket: str,
    key: str,
    *,
    value: str | None = "value",
    revision: str | None = "revision",
    updated: str | None = None,
    leader: bool = False,
    **options: object,
) -> DataFrame:
    """Return a frame with the current value of each row's key in a Key-Value bucket.

    The new columns are null where the bucket has no value for the key, because the key

    - was never put, was deleted or purged, or has expired
    - is null
    - can be no key: a key has only letters, digits, dots and ``- / _ =``, and no empty part
      between dots

    Spark's tasks ask the server, once for each key of an Arrow batch
    (``spark.sql.execution.arrow.maxRecordsPerBatch``, by default 10,000 rows). Each write to the
    bucket that was acknowledged before the task began with the Arrow batch is in its rows. Rows of one
    Arrow batch are no snapshot of one moment. A task that runs again may find newer values.

    By default batched Direct Gets ask any replica (ADR-31 "JetStream Direct Get"). That needs
    nats-server 2.11 and a bucket whose stream has ``allow_direct``.

    Args:
        df: A batch or a streaming frame, classic or over Spark Connect.
        bucket: The name of the bucket.
        key: The column of the keys, a string.
        value: The name of the new binary column with the values; None to leave it out.
        revision: The name of the new bigint column with the revisions, which are sequences of the
            bucket's stream; None to leave it out.
        updated: The name of a new timestamp column with the time at which the server stored the
            value, in whole microseconds; None to leave it out.
        leader: Ask only the leader of the bucket's stream, with one request for each key.
        options: The connection options of the data source. The task waits for the end of an outage
            as long as ``retryTimeout``.

    Raises:
        OptionError: An option, or ``bucket``, is not possible; all new columns are None; or this is
            Spark 4.0.
        SchemaError: ``df`` has no string column ``key``; it has a column with the name of a new
            one; or two new columns have the same name.

    The tasks raise:

    - `OptionError`: the bucket does not exist
    - `JetStreamError`: the bucket does not allow Direct Gets, or the server has no batches of them
    - `PermissionDenied`
    - `OutageError`: no answer arrived for ``retryTimeout``
    """
    given = hidden(options)
    del options  # a traceback with local variables would show it
    connection = JetStreamAdmin(**given).options
    name = checked(_BUCKET, "argument bucket", bucket)
    if not hasattr(F, "arrow_udf"):
        raise OptionError("lookup needs Spark 4.1 or later")
    columns = _new_columns({"value": value, "revision": revision, "updated": updated})
    _check_columns(df, key, columns)

    found = _found_column(df.columns)
    find = F.arrow_udf(_finder(name, connection, leader=bool(leader)), _FOUND)
    # Without this Spark would look a key up at each use of the result.
    looked_up = find.asNondeterministic()(F.col(_quoted(key)))
    new = {column: F.col(found)[field] for field, column in columns.items()}
    return df.withColumn(found, looked_up).withColumns(new).drop(found)


def _finder(
    bucket: str, options: ConnectionOptions, *, leader: bool
) -> Callable[[pa.Array], pa.Array]:
    """Return the function that Spark's workers call with the keys of an Arrow batch."""

    def open_connection(patience: float) -> Connection:
        return connect(options, patience=patience, find_file=find_file)

    # Spark looks at the number and the types of its arguments.
    def find(keys: pa.Array) -> pa.Array:
        log_as_spark()
        lookup_of_task = KeyLookup(
            open_connection, bucket, options.retry_timeout, leader=leader, instead=_INSTEAD
        )
        return lookup_of_task.find(keys.cast(pa.string()))

    return find


def _new_columns(names: Mapping[str, str | None]) -> dict[str, str]:
    """Return the names of the new columns by their arguments, without those that are None."""
    columns: dict[str, str] = {}
    for argument, name in names.items():
        if name is None:
            continue
        # To Spark names that differ only in case are one.
        for other, taken in columns.items():
            if taken.lower() == name.lower():
                raise SchemaError(f"arguments {other} and {argument} name the same column {name}")
        columns[argument] = name
    if not columns:
        raise OptionError("arguments value, revision and updated are all None: name a column")
    return columns


def _check_columns(df: DataFrame, key: str, columns: Mapping[str, str]) -> None:
    """Raise `SchemaError` unless the frame has the column of the keys, and none of the new ones."""
    types = {field.name: plain_type(field.dataType.simpleString()) for field in df.schema}
    if types.get(key) != "string":
        listed = ", ".join(f"{name} {kind}" for name, kind in types.items())
        problem = f'the frame has no column "{key}" that is a string ({listed}): cast it'
        raise SchemaError(f"argument key: {problem}")
    taken = {name.lower(): name for name in types}
    for argument, name in columns.items():
        if name.lower() in taken:
            raise SchemaError(
                f"argument {argument}: the frame has a column {taken[name.lower()]} already; give "
                "the new column another name, or None to leave it out"
            )


def _found_column(columns: list[str]) -> str:
    """Return a name that no column has, for the result until its fields are columns."""
    taken = set(map(str.lower, columns))
    name = "found"
    while name in taken:
        name = f"_{name}"
    return name


def _quoted(name: str) -> str:
    # A name may hold dots, which mean a field of a struct without these quotes.
    return "`{}`".format(name.replace("`", "``"))
