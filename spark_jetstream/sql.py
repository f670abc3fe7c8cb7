"""Streams for SQL: temporary views of an account's streams and buckets, with the fields of their JSON payloads."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import SecretStr
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_jetstream.admin.api import checked
from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.buckets.stream import bucket_filters
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.names import NamePattern, name_pattern
from spark_jetstream.options.values import Whole, hidden, revealed, unseen
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.spark_process import refuse_spark_3

Kind = Literal["stream", "bucket", "objectBucket"]

_PAYLOADS: Mapping[Kind, str] = {"stream": "data", "bucket": "value"}
"""The column that may hold JSON."""
_SAMPLE_BYTES = 8 << 20  # of one stream: Spark gets a sample as a literal of a query
_MARK = "spark_jetstream.attach"
"""Metadata of a view's first column: which view `attach` made it for, of which account and stream."""


class Attached(NamedTuple):
    """A view that `attach` made.

    ``view`` is its name, ``name`` what the option ``kind`` has in the read, and ``payload`` the columns that hold the
    fields of JSON payloads, empty if there are none.
    """

    view: str
    kind: Kind
    name: str
    payload: tuple[str, ...]


def schema_of(spark: SparkSession, stream: str, *, sample: int = 1000, **options: object) -> StructType:
    """Return the schema of the JSON objects among the last ``sample`` messages of a stream, and in 8 MiB of them.

    Spark infers it as its function ``schema_of_json`` does; messages that are no JSON object do not count. The stream
    of a Key-Value bucket has the bucket's name with ``KV_`` before it. ``options`` are those of `JetStreamAdmin`, which
    reads the sample in this process.

    Raises `SchemaError` if there is no field, `StreamNotFound`, `OptionError`, and what `Messages.read` raises.
    """
    given = hidden(options)
    del options  # a traceback with local variables would show it
    with JetStreamAdmin(**given) as admin:
        schema = _schema(spark, _sample(admin, admin.streams.load(stream), sample))
    if not schema.fields:
        raise SchemaError(f"the last {sample} messages of stream {stream} hold no field of a JSON object")
    return schema


def attach(
    spark: SparkSession, streams: str = "*", *, prefix: str = "", sample: int = 1000, **options: object
) -> list[Attached]:
    """Make a temporary view of each stream and bucket of an account; return what was made, sorted by stream.

    ``streams`` is a pattern of streams' names with ``*``, ``?``, ``[a-z]`` and ``{a,b}``; the stream of a bucket B is
    KV_B or OBJ_B. A view has the columns of a message and one for each field of the JSON objects among the last
    ``sample`` messages (`schema_of`); that of a bucket reads it as it is now. ``options`` are those of
    `JetStreamAdmin`, which looks at the streams in this process; the views read with the same options.

    Call it again to read newer messages: Spark plans a view once, at its first use. That also makes views of new
    streams, and drops those of streams that the account no longer has.

    A view is called as its stream, in lower case after ``prefix``, with ``_`` for all characters but letters (a to z)
    and digits, and before a leading digit. A field whose name is that of another column gets ``payload_`` before it.

    Raises:
        ImportError: This Spark is from before 4.0, which has no Python data sources.
        OptionError: Two streams would have the same view, or a table or view has the name that this function did not
            make for the same stream and account (servers, API prefix, user). All views are as they were.
        StreamNotFound: ``streams`` is a name, and there is neither such a stream nor a view of it.
        JetStreamError: What `Streams.infos` and `Messages.read` raise.
    """
    refuse_spark_3()
    given = hidden(options)
    del options  # a traceback with local variables would show it
    pattern = name_pattern(checked(NamePattern(), "streams", streams))
    with JetStreamAdmin(**given) as admin:
        account = _account(admin.options)
        found = {info.config.name: info for info in admin.streams.infos() if pattern.fullmatch(info.config.name)}
        old = {view: mark["stream"] for view, mark in _marks(spark).items() if mark["account"] == account}
        gone = {view for view, stream in old.items() if stream not in found and pattern.fullmatch(stream)}
        if not found and not gone and not re.search(r"[*?\[{\\]", streams):
            admin.streams.load(streams)  # raises the error that names the nearest stream
        views = view_names(found, prefix)
        for view, stream in views.items():
            if old.get(view) != stream and view not in gone and spark.catalog.tableExists(view):
                raise OptionError(
                    f"stream {stream}: there is another table or view {view}; attach it with another prefix"
                )
        frames = []
        for view, stream in views.items():
            info = found[stream]
            kind, name = _kind(info)
            schema = _schema(spark, _sample(admin, info, sample)) if kind in _PAYLOADS else StructType()
            frame, columns = _with_payload(_load(spark, given, kind, name), kind, schema)
            mark = {"view": view, "account": account, "stream": stream}
            frames.append((frame.withMetadata(frame.columns[0], {_MARK: mark}), Attached(view, kind, name, columns)))
    for frame, made in frames:
        frame.createOrReplaceTempView(made.view)
    for view in gone - views.keys():
        spark.catalog.dropTempView(view)
    return [made for _, made in frames]


def view_names(streams: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the streams by the names of their views. Raises `OptionError` for two of the same name."""
    views: dict[str, str] = {}
    for stream in streams:
        if "," in stream:
            raise OptionError(f"stream {stream} cannot be read: to option stream a comma stands between two names")
        view = re.sub(r"^(?=\d)|[^a-z0-9_]", "_", f"{prefix}{stream}".lower(), flags=re.ASCII)
        if view in views:
            raise OptionError(
                f"streams {views[view]} and {stream} would both be view {view}: attach them one by one, with another "
                "prefix each"
            )
        views[view] = stream
    return views


def payload_columns(fields: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Return the name of the column of each field of a payload; ``columns`` are those of the message.

    To Spark names that differ only in case are one.
    """
    taken = {column.lower() for column in columns}
    names = []
    for field in fields:
        name = field
        while name.lower() in taken:
            name = f"payload_{name}"
        taken.add(name.lower())
        names.append(name)
    return names


@unseen
def _load(spark: SparkSession, given: Mapping[str, SecretStr | None], kind: Kind, name: str) -> DataFrame:
    # To Spark 4.0 an option without a text is an error.
    options: dict[str, Any] = {key: revealed(text) for key, text in given.items() if text is not None}
    return spark.read.format("jetstream").options(**options).option(kind, name).load()


def _with_payload(frame: DataFrame, kind: Kind, schema: StructType) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the frame with the fields of its JSON payloads, and the names of their columns."""
    if not schema.fields:
        return frame, ()
    names = payload_columns(schema.names, frame.columns)
    named = StructType([StructField(name, field.dataType) for name, field in zip(names, schema.fields, strict=True)])
    payload = F.from_json(F.col(_PAYLOADS[kind]).cast("string"), schema).cast(named)
    return frame.withColumn("payload", payload).select(*frame.columns, "payload.*"), tuple(names)


def _kind(info: StreamInfo) -> tuple[Kind, str]:
    """Return which option reads a stream, and the option's value."""
    config, stream = info.config, info.config.name
    origins = config.model_dump(include={"mirror", "sources"})
    kinds: Sequence[tuple[Kind, str, tuple[str, ...] | None]] = (("bucket", "KV_", ()), ("objectBucket", "OBJ_", None))
    for kind, begin, keys in kinds:
        name = stream.removeprefix(begin)
        limit = config.max_msgs_per_subject
        if name != stream and bucket_filters(origins, config.subjects, limit, name, keys) is not None:
            return kind, name
    return "stream", stream


def _sample(admin: JetStreamAdmin, info: StreamInfo, count: int) -> list[str]:
    """Return the JSON objects among the last messages of a stream."""
    count = checked(Whole(), "sample", count)
    begin, end = max(1, info.state.first_seq), info.state.last_seq + 1
    newest: list[bytes] = []  # the last message first
    size, width = 0, count
    while begin < end and len(newest) < count and size <= _SAMPLE_BYTES:
        first = max(begin, end - width)
        part: list[bytes] = []
        part_size = 0
        for message in admin.messages.read(info.config.name, sequence=first, count=count):
            if newest and message.seq >= end:
                break
            part.append(message.data)
            part_size += len(message.data)
            if part_size > _SAMPLE_BYTES:
                break
        if (len(part) == count < end - first) or (part_size > _SAMPLE_BYTES and end - first > 1):
            # The part was not read to its end, and only its last messages belong to the sample.
            width = (end - first) // 2
            continue
        for payload in reversed(part):
            if len(newest) < count and size <= _SAMPLE_BYTES:
                newest.append(payload)
                size += len(payload)
        # Most of these sequences may be gone, as those of earlier revisions in a bucket.
        end, width = first, width * 4
    objects = []
    for payload in reversed(newest):
        with contextlib.suppress(ValueError):
            objects.append(json.dumps(json_object(payload)))
    return objects


def _schema(spark: SparkSession, objects: Sequence[str]) -> StructType:
    """Return the schema of JSON objects."""
    if not objects:
        return StructType()
    sample = f"[{','.join(objects)}]"
    [(found,)] = spark.sql("SELECT schema_of_json(:sample)", args={"sample": sample}).collect()
    array: Any = spark.sql("SELECT from_json('[]', :found)", args={"found": found}).schema[0].dataType
    schema: StructType = array.elementType
    return schema


def _account(options: ConnectionOptions) -> str:
    """Return what tells accounts apart, without a secret."""
    user = options.user or options.credentials_file or options.nkey_seed_file or ""
    return f"{options.display_servers} {options.api_prefix_resolved} {user}"


def _marks(spark: SparkSession) -> dict[str, dict[str, Any]]:
    """Return the marks of the session's views that `attach` made, by view."""
    marks = {}
    for row in spark.sql("SHOW VIEWS IN global_temp").collect():
        if not row["namespace"]:
            # A view may refer to a table that is gone. What is made of an attached view has the mark of that view.
            with contextlib.suppress(AnalysisException):
                fields = spark.table("`{}`".format(row["viewName"].replace("`", "``"))).schema.fields
                mark = fields[0].metadata.get(_MARK) if fields else None
                if mark is not None and mark["view"] == row["viewName"]:
                    marks[mark["view"]] = mark
    return marks
