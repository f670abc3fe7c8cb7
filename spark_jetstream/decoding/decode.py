"""decode: two columns beside the payloads of a frame, the decoded value and the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jetstream.decoding import json_columns
from spark_jetstream.decoding.columns import Decoded, read_by
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.schema import plain_type

Format = Literal["json", "avro", "protobuf"]


def decode(
    df: DataFrame,
    format: Format,
    schema: Any,
    *,
    column: str = "data",
    version: Column | None = None,
    confluent: bool = False,
) -> DataFrame:
    """Return a frame with two more columns, ``decoded`` and ``decode_error``.

    ``decoded`` is a struct of the schema's fields, ``decode_error`` a text. In each row exactly one
    of the two is null. ``decode_error`` says why the payload is not one JSON object in UTF-8, one
    Avro record or one Protobuf message that fits the schema; ``column`` keeps the payload.

    - ``"json"``: Spark's `from_json` reads values. Fields that the schema does not have are left
      out. A field that the payload does not have is null, or an error if the schema calls it NOT
      NULL.
    - ``"avro"``: fastavro reads records in Spark's workers, where it must be installed.
    - ``"protobuf"``: protobuf reads messages there. A field that is not set is null if it can tell
      (``optional``, messages), and its default otherwise. Unknown fields are left out.

    Args:
        df: A batch or a streaming frame, classic or over Spark Connect; on Spark 4.0 only for JSON.
        format: The format of the payloads.
        schema: JSON: DDL text or a `StructType`. Avro: the schema as JSON text or as what
            `json.loads` makes of it. Protobuf: the class of the message. With ``version`` or
            ``confluent`` a mapping of versions to schemas. For JSON ``decoded`` then has the fields
            of all versions, null where the schema of the row's version lacks the field. For Avro
            and Protobuf it has the fields of the mapping's last schema. An older record or message
            becomes one of that schema: by Avro's schema resolution, or as Protobuf reads older
            messages.
        column: The column of the payloads, binary or string.
        version: The version of each row's schema, such as
            ``F.col("headers")["Schema-Version"][0]``.
        confluent: Each payload begins with a zero byte and the version, a number of four bytes.
            With Protobuf the index of the message in its file follows (the wire format of
            Confluent's serializers).

    Raises:
        OptionError: ``format`` is unknown, or not for this version of Spark; ``version`` is no
            column, or both it and ``confluent`` are given.
        SchemaError: ``df`` does not have ``column``, or already has one of the two new columns. Or
            a schema does not parse, or has a type that Spark lacks. Or schemas of two versions do
            not agree, or a version is given twice, as the number 1 and the text 1.
        ModuleNotFoundError: The library that reads the format is not installed.
    """
    if format not in ("json", "avro", "protobuf"):
        raise OptionError(f"argument format must be json, avro or protobuf, but it is {format!r}")
    if version is not None and confluent:
        raise OptionError(
            "arguments version and confluent exclude each other: both name the schema of a payload",
        )
    if not isinstance(version, Column | None):
        raise OptionError(f"argument version must be a column, such as F.lit('1'), not {version!r}")
    _check_columns(df, column)
    has_versions = version is not None or confluent
    schemas = _by_version(schema) if has_versions else {"": schema}

    # A name may hold dots, which mean a field of a struct without these quotes.
    stored = F.col("`{}`".format(column.replace("`", "``"))).cast("binary")
    payload = stored
    without_version = "there is no version of a schema"
    if confluent:
        without_version = "the payload does not begin with a zero byte and the version of a schema"
        version, payload = _confluent(stored)
    elif version is None:
        version = F.lit("")
    version = version.cast("string")
    found = _decoded(format, schemas, payload, version, confluent)
    error = F.coalesce(
        F.when(stored.isNull(), "there is no payload"),
        F.when(version.isNull(), without_version),
        F.when(~version.isin(*schemas), F.concat(F.lit("there is no schema of version "), version)),
        found.fault,
    )
    # In one step Spark would decode at each use of the result.
    both = df.withColumn("decoded", found.first)
    return both.withColumns({"decoded": F.when(error.isNull(), found.value), "decode_error": error})


def _check_columns(df: DataFrame, column: str) -> None:
    """Raise `SchemaError` unless the frame has the column, and none with the name of a new one."""
    types = {field.name: plain_type(field.dataType.simpleString()) for field in df.schema}
    if types.get(column) not in ("binary", "string"):
        listed = ", ".join(f"{name} {kind}" for name, kind in types.items())
        problem = f'the frame has no column "{column}" that is binary or a string ({listed})'
        raise SchemaError(f"argument column: {problem}")
    # To Spark names that differ only in case are one.
    taken = {"decoded", "decode_error"}.intersection(map(str.lower, types))
    if taken:
        raise SchemaError(f"argument df has a column {min(taken)} already: rename or drop it")


def _confluent(stored: Column) -> tuple[Column, Column]:
    """Return version and payload in Confluent's wire format; without it the version is null."""
    is_framed = (F.length(stored) >= 5) & F.startswith(stored, F.lit(b"\0"))
    version = F.when(is_framed, F.conv(F.hex(F.substring(stored, 2, 4)), 16, 10))
    return version, F.substring(stored, 6, 2**31 - 1)


def _by_version(schemas: Any) -> dict[str, Any]:
    if not isinstance(schemas, Mapping) or not schemas:
        raise SchemaError(
            "argument schema must map versions to schemas where argument version or confluent is "
            "given",
        )
    found: dict[str, Any] = {}
    for version, schema in schemas.items():
        name = str(version)
        if name in found:
            raise SchemaError(f"argument schema has version {name} twice, as text and otherwise")
        found[name] = schema
    return found


def _decoded(
    format: Format,
    schemas: Mapping[str, Any],
    payload: Column,
    version: Column,
    confluent: bool,
) -> Decoded:
    if format == "json":
        return json_columns.decoded(schemas, payload, version)
    # Neither library is needed by those who read JSON.
    if format == "avro":
        from spark_jetstream.decoding.avro import AvroReader  # noqa: PLC0415

        return read_by(AvroReader(schemas), payload, version, schemas)
    from spark_jetstream.decoding.protobuf import ProtobufReader  # noqa: PLC0415

    return read_by(ProtobufReader(schemas, indexed=confluent), payload, version, schemas)
