"""Temporary views of an account's streams and buckets, with the fields of their JSON payloads."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import SecretStr
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_jetstream.admin.api import checked
from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.streams import StreamConfig, StreamInfo
from spark_jetstream.buckets.stream import bucket_filters
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.names import NamePattern, name_pattern
from spark_jetstream.options.values import Whole, hidden, revealed, unseen
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.spark_process import refuse_spark_3

Kind = Literal["stream", "bucket", "objectBucket"]

# The column that may hold JSON.
_PAYLOADS: Mapping[Kind, str] = {"stream": "data", "bucket": "value"}
_SAMPLE_BYTES = 8 << 20  # of one stream: Spark gets a sample as a literal of a query
# Metadata of a view's first column: the view, account and stream that `attach` made it for.
_MARK = "spark_jetstream.attach"


class Attached(NamedTuple):
    """A view that `attach` made.

    ``view`` is its name, ``name`` what the option ``kind`` has in the read, and ``payload`` the
    columns that hold the fields of JSON payloads, empty if there are none.
    """

    view: str
    kind: Kind
    name: str
    payload: tuple[str, ...]


def schema_of(
    spark: SparkSession,
    stream: str,
    *,
    sample: int = 1000,
    **options: object,
) -> StructType:
    """Return the schema of the JSON objects among the last ``sample`` messages of a stream.

    The sample has at most 8 MiB.
    Spark infers it as its function ``schema_of_json`` does; messages that are no JSON object do not
    count. The stream of a Key-Value bucket has the bucket's name with ``KV_`` before it.
    ``options`` are those of `JetStreamAdmin`, which reads the sample in this process.

    Raises `SchemaError` if there is no field, `StreamNotFound`, `OptionError`, and what
    `Messages.read` raises.
    """
    given = hidden(options)
    del options  # a traceback with local variables would show it
    with JetStreamAdmin(**given) as admin:
        schema = _schema(spark, _sample(admin, admin.streams.load(stream), sample))
    if not schema.fields:
        raise SchemaError(
            f"the last {sample} messages of stream {stream} hold no field of a JSON object",
        )
    return schema


def attach(
    spark: SparkSession,
    streams: str = "*",
    *,
    prefix: str = "",
    sample: int = 1000,
    **options: object,
) -> list[Attached]:
    """Make a temporary view of each stream and bucket of an account; return them by stream.

    ``streams`` is a pattern of streams' names with ``*``, ``?``, ``[a-z]`` and ``{a,b}``; the
    stream of a bucket B is KV_B or OBJ_B. A view has the columns of a message and one for each
    field of the JSON objects among the last ``sample`` messages (`schema_of`). The view of a bucket
    reads its present state. ``options`` are those of `JetStreamAdmin`, which looks at the streams in
    this process; the views read with the same options.

    Call it again to read newer messages: Spark plans a view once, at its first use. That also makes
    views of new streams, and drops those of streams that the account no longer has.

    A view is called as its stream, in lower case after ``prefix``, with ``_`` for all characters
    but letters (a to z) and digits, and before a leading digit. A field whose name is that of
    another column gets ``payload_`` before it.

    Raises:
        ImportError: This Spark is from before 4.0, which has no Python data sources.
        OptionError: Two streams would have the same view, or the name is that of another table or
            view. A view that this function made for the same stream and account (servers, API
            prefix, user) is replaced. All views are as they were.
        StreamNotFound: ``streams`` is the name of no stream, and no view has it.
        JetStreamError: What `Streams.infos` and `Messages.read` raise.
    """
    refuse_spark_3()
    given = hidden(options)
    del options  # a traceback with local variables would show it
    pattern = name_pattern(checked(NamePattern(), "streams", streams))
    with JetStreamAdmin(**given) as admin:
        account = _account(admin.options)
        found = _matching(admin, pattern)
        # Views of streams that the account no longer has are found by the marks of earlier calls.
        old = _attached_streams(spark, account)
        gone = _views_of_gone(old, found, pattern)
        # A pattern may match nothing. A name that matches nothing is an error of spelling.
        is_name = re.search(r"[*?\[{\\]", streams) is None
        if is_name and not found and not gone:
            admin.streams.load(streams)  # raises the error that names the nearest stream
        views = view_names(found, prefix)
        _refuse_existing(spark, views, old, gone)
        frames = []
        for view, stream in views.items():
            kind, name = _kind(found[stream])
            schema = StructType()
            # Objects have content in chunks, which is no JSON of a message.
            if kind in _PAYLOADS:
                schema = _schema(spark, _sample(admin, found[stream], sample))
            frame, columns = _with_payload(_load(spark, given, kind, name), kind, schema)
            mark = {"view": view, "account": account, "stream": stream}
            marked = frame.withMetadata(frame.columns[0], {_MARK: mark})
            frames.append((marked, Attached(view, kind, name, columns)))
    # Up to here any error has left all views as they were.
    for frame, made in frames:
        frame.createOrReplaceTempView(made.view)
    for view in gone - views.keys():
        spark.catalog.dropTempView(view)
    return [made for _, made in frames]


def _refuse_existing(
    spark: SparkSession,
    views: Mapping[str, str],
    old: Mapping[str, str],
    gone: Container[str],
) -> None:
    """Raise `OptionError` if a table, or a view that is not one of this account, has a name."""
    for view, stream in views.items():
        # A view of another account, or of the user's own, must not be replaced.
        is_ours = old.get(view) == stream or view in gone
        if not is_ours and spark.catalog.tableExists(view):
            problem = f"there is another table or view {view}; attach it with another prefix"
            raise OptionError(f"stream {stream}: {problem}")


def _matching(admin: JetStreamAdmin, pattern: re.Pattern[str]) -> dict[str, StreamInfo]:
    """Return the streams of the account whose names match, by name."""
    found = {}
    for info in admin.streams.infos():
        if pattern.fullmatch(info.config.name):
            found[info.config.name] = info
    return found


def _attached_streams(spark: SparkSession, account: str) -> dict[str, str]:
    """Return the streams of the account that have views already, by view."""
    streams = {}
    for view, mark in _marks(spark).items():
        if mark["account"] == account:
            streams[view] = mark["stream"]
    return streams


def _views_of_gone(
    old: Mapping[str, str],
    found: Container[str],
    pattern: re.Pattern[str],
) -> set[str]:
    """Return the views of streams that match and that the account no longer has."""
    gone = set()
    for view, stream in old.items():
        if stream not in found and pattern.fullmatch(stream):
            gone.add(view)
    return gone


def view_names(streams: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the streams by the names of their views.

    Raises `OptionError` for two of the same name.
    """
    views: dict[str, str] = {}
    for stream in streams:
        if "," in stream:
            problem = "to option stream a comma stands between two names"
            raise OptionError(f"stream {stream} cannot be read: {problem}")
        view = re.sub(r"^(?=\d)|[^a-z0-9_]", "_", f"{prefix}{stream}".lower(), flags=re.ASCII)
        if view in views:
            raise OptionError(
                f"streams {views[view]} and {stream} would both be view {view}: "
                "attach them one by one, with another prefix each"
            )
        views[view] = stream
    return views


def payload_columns(fields: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Return the name of the column of each field of a payload; ``columns`` are those of the message.

    To Spark names that differ only in case are one.
    """
    # Spark finds no column whose name differs from another one only in case.
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
def _load(
    spark: SparkSession,
    given: Mapping[str, SecretStr | None],
    kind: Kind,
    name: str,
) -> DataFrame:
    # To Spark 4.0 an option without a text is an error.
    options: dict[str, Any] = {
        key: revealed(text) for key, text in given.items() if text is not None
    }
    return spark.read.format("jetstream").options(**options).option(kind, name).load()


def _with_payload(
    frame: DataFrame,
    kind: Kind,
    schema: StructType,
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the frame with the fields of its JSON payloads, and the names of their columns."""
    if not schema.fields:
        return frame, ()
    names = payload_columns(schema.names, frame.columns)
    pairs = zip(names, schema.fields, strict=True)
    # `from_json` finds fields by their own names; the cast renames them after that.
    named = StructType([StructField(name, given.dataType) for name, given in pairs])
    payload = F.from_json(F.col(_PAYLOADS[kind]).cast("string"), schema).cast(named)
    return frame.withColumn("payload", payload).select(*frame.columns, "payload.*"), tuple(names)


def _kind(info: StreamInfo) -> tuple[Kind, str]:
    """Return which option reads a stream, and the option's value."""
    config = info.config
    # A stream may be called so and be no bucket: then the option bucket would refuse it.
    if config.name.startswith("KV_") and _is_bucket(config, "KV_", ()):
        return "bucket", config.name.removeprefix("KV_")
    if config.name.startswith("OBJ_") and _is_bucket(config, "OBJ_", None):
        return "objectBucket", config.name.removeprefix("OBJ_")
    return "stream", config.name


def _is_bucket(config: StreamConfig, prefix: str, keys: tuple[str, ...] | None) -> bool:
    """Return whether a bucket of this name has this stream. ``keys`` is None for objects."""
    origins = config.model_dump(include={"mirror", "sources"})
    limit = config.max_msgs_per_subject
    name = config.name.removeprefix(prefix)
    return bucket_filters(origins, config.subjects, limit, name, keys) is not None


class _Payloads:
    """Payloads of one stream, at most ``count``, and at most one more than a sample can hold."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.payloads: list[bytes] = []
        self.size = 0

    @property
    def is_full(self) -> bool:
        return len(self.payloads) >= self.count or self.is_large

    @property
    def is_large(self) -> bool:
        return self.size > _SAMPLE_BYTES

    def add(self, payloads: Iterable[bytes]) -> None:
        """Add payloads until there are enough."""
        for payload in payloads:
            if self.is_full:
                return
            self.payloads.append(payload)
            self.size += len(payload)


def _sample(admin: JetStreamAdmin, info: StreamInfo, count: int) -> list[str]:
    """Return the JSON objects among the last messages of a stream."""
    newest = _Payloads(checked(Whole(), "sample", count))  # the last message first
    begin = max(1, info.state.first_seq)
    end = info.state.last_seq + 1
    # Sequences. If all messages are there, the first part has the whole sample.
    width = newest.count
    # Messages can be read only forwards: the loop reads the last ones, then those before them.
    while begin < end and not newest.is_full:
        first = max(begin, end - width)
        span = end - first
        part = _Payloads(newest.count)
        # Messages that were stored since the stream was looked at belong to the first part.
        part.add(
            _read(admin, info.config.name, first, end if newest.payloads else None, part.count),
        )
        ended_by_count = len(part.payloads) == part.count and span > part.count
        ended_by_size = part.is_large and span > 1
        if ended_by_count or ended_by_size:
            # The part was not read to its end, and only its last messages belong to the sample.
            width = span // 2
            continue
        newest.add(reversed(part.payloads))
        end = first
        # Most of these sequences may be gone, as those of earlier revisions in a bucket.
        width *= 4
    return _json_objects(reversed(newest.payloads))


def _read(
    admin: JetStreamAdmin,
    stream: str,
    first: int,
    end: int | None,
    count: int,
) -> Iterator[bytes]:
    """Yield the payloads from sequence ``first`` on: those before ``end``, and at most ``count``."""
    for message in admin.messages.read(stream, sequence=first, count=count):
        # The administration reads to the end of the stream.
        if end is not None and message.seq >= end:
            return
        yield message.data


def _json_objects(payloads: Iterable[bytes]) -> list[str]:
    objects = []
    for payload in payloads:
        # Other payloads do not count. `json_object` refuses other bytes, and JSON that is no
        # object.
        with contextlib.suppress(ValueError):
            objects.append(json.dumps(json_object(payload)))
    return objects


def _schema(spark: SparkSession, objects: Sequence[str]) -> StructType:
    """Return the schema of JSON objects."""
    if not objects:
        return StructType()
    # As one array: `schema_of_json` takes one literal, and merges the fields of its elements.
    sample = f"[{','.join(objects)}]"
    [(found,)] = spark.sql("SELECT schema_of_json(:sample)", args={"sample": sample}).collect()
    array: Any = (
        spark.sql("SELECT from_json('[]', :found)", args={"found": found}).schema[0].dataType
    )
    schema: StructType = array.elementType
    return schema


def _account(options: ConnectionOptions) -> str:
    """Return what tells accounts apart, without a secret."""
    # Another user may belong to another account, with other streams of the same names.
    user = options.user or options.credentials_file or options.nkey_seed_file or ""
    return f"{options.display_servers} {options.api_prefix_resolved} {user}"


def _marks(spark: SparkSession) -> dict[str, dict[str, Any]]:
    """Return the marks of the session's views that `attach` made, by view."""
    marks = {}
    # It lists the temporary views of the session beside the global ones.
    for row in spark.sql("SHOW VIEWS IN global_temp").collect():
        if row["namespace"]:
            continue  # a global view, which belongs to all sessions
        view = row["viewName"]
        mark = _mark(spark, view)
        # A view of an attached view has the mark of that one.
        if mark is not None and mark["view"] == view:
            marks[view] = mark
    return marks


def _mark(spark: SparkSession, view: str) -> dict[str, Any] | None:
    """Return the mark in the first column of a view."""
    # A name may have any character.
    quoted = view.replace("`", "``")
    try:
        fields = spark.table(f"`{quoted}`").schema.fields
    except AnalysisException:
        return None  # it refers to a table that is gone
    if not fields:
        return None
    mark: dict[str, Any] | None = fields[0].metadata.get(_MARK)
    return mark
