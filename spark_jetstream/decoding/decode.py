"""decode: two columns beside the payloads of a frame, the decoded value and the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jetstream.decoding import json_columns
from spark_jetstream.decoding.columns import Decoded, read_by
from spark_jetstream.decoding.registered import decoded_by_registry, registry_subject_of
from spark_jetstream.decoding.registry import SchemaRegistry, registry_of
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.schema import plain_type

Format = Literal["json", "avro", "protobuf"]

_NO_PAYLOAD = "there is no payload"
_NO_FRAME = "the payload does not begin with a zero byte and the version of a schema"


def decode(
    df: DataFrame,
    format: Format,
    schema: Any = None,
    *,
    column: str = "data",
    version: Column | None = None,
    confluent: bool = False,
    message: str | None = None,
    registry: str | SchemaRegistry | None = None,
    subject: str | None = None,
    registry_subject: str | None = None,
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

    With ``registry`` the id of a schema precedes each payload, in the wire format of Confluent's
    serializers, and Spark's workers ask the registry for the schema of each id once. Records of all
    versions become records of one schema, the reader's. An id that the registry does not have is a
    ``decode_error``. An outage of the registry fails the task with a `RegistryError`. JSON needs no
    schema of a writer: the registry is asked for the reader's alone.

    Args:
        df: A batch or a streaming frame, classic or over Spark Connect; on Spark 4.0 only for JSON.
        format: The format of the payloads.
        schema: JSON: DDL text, a `StructType` or a JSON Schema. Avro: the schema as JSON text or as
            what `json.loads` makes of it. Protobuf: the class of the message, or a descriptor set
            (bytes, or the path of its file on this machine) together with ``message``. With
            ``registry`` it is the reader's schema, or None for the present latest version of
            ``subject`` or ``registry_subject``. With ``version`` or ``confluent`` it is a mapping
            of versions to schemas. For JSON ``decoded`` then has the fields of all versions, null
            where the schema of the row's version lacks the field. For Avro and Protobuf it has the
            fields of the mapping's last schema. An older record or message becomes one of that
            schema: by Avro's schema resolution, or as Protobuf reads older messages.
        column: The column of the payloads, binary or string.
        version: The version of each row's schema, such as
            ``F.col("headers")["Schema-Version"][0]``.
        confluent: Each payload begins with a zero byte and the version, a number of four bytes.
            With Protobuf the index of the message in its file follows (the wire format of
            Confluent's serializers).
        message: Protobuf: the name of the message in a descriptor set or in the registry's schema.
            The default is the first message of the registry's schema.
        registry: The URL of a schema registry with the API of Confluent's, or a `SchemaRegistry`,
            which also has a login.
        subject: A NATS subject without wildcards. The registry has the reader's schema as
            ``<subject>-value``.
        registry_subject: The registry's own name of that subject.

    Raises:
        OptionError: ``format`` is unknown, or not for this version of Spark; ``version`` is no
            column, or both it and ``confluent`` are given. Or an argument of the registry is
            malformed, or contradicts another one.
        SchemaError: ``df`` does not have ``column``, or already has one of the two new columns. Or
            a schema does not parse, or has a type that Spark lacks. Or schemas of two versions do
            not agree, or a version is given twice, as the number 1 and the text 1. Or the registry
            does not have the subject.
        RegistryError: The registry does not answer the request for the reader's schema, or refuses
            the login.
        ModuleNotFoundError: The library that reads the format is not installed.
    """
    check_format(format, message)
    if registry is not None:
        return _decode_by_registry(
            df,
            format,
            schema,
            column,
            message,
            registry=registry_of(registry),
            subject=registry_subject_of(subject, registry_subject),
            has_version=version is not None,
        )
    if schema is None:
        raise OptionError("argument schema is missing", option="schema")
    if subject is not None or registry_subject is not None:
        raise OptionError("arguments subject and registry_subject need argument registry")
    _check_version(version, confluent=confluent)
    _check_columns(df, column)
    has_versions = version is not None or confluent
    schemas = _by_version(schema) if has_versions else {"": schema}

    stored = _stored(column)
    payload = stored
    without_version = "there is no version of a schema"
    if confluent:
        without_version = _NO_FRAME
        version, payload = _confluent(stored)
    elif version is None:
        version = F.lit("")
    version = version.cast("string")
    found = _decoded(format, schemas, payload, version, message, indexed=confluent)
    unknown = F.concat(F.lit("there is no schema of version "), version)
    error = F.coalesce(
        F.when(stored.isNull(), _NO_PAYLOAD),
        F.when(version.isNull(), without_version),
        F.when(~version.isin(*schemas), unknown),
        found.fault,
    )
    return _with_result(df, found, error)


def _check_version(version: object, *, confluent: bool) -> None:
    """Raise `OptionError` if ``version`` is no column, or if ``confluent`` names the schema too."""
    if version is not None and confluent:
        raise OptionError(
            "arguments version and confluent exclude each other: both name the schema of a payload",
        )
    if not isinstance(version, Column | None):
        raise OptionError(f"argument version must be a column, such as F.lit('1'), not {version!r}")


def _decode_by_registry(
    df: DataFrame,
    format: Format,
    schema: Any,
    column: str,
    message: str | None,
    *,
    registry: SchemaRegistry,
    subject: str | None,
    has_version: bool,
) -> DataFrame:
    if has_version:
        raise OptionError(
            "arguments version and registry exclude each other: both name the schema of a payload",
        )
    if (schema is None) == (subject is None):
        raise OptionError(
            "either argument schema or one of subject and registry_subject must name the schema to "
            "read payloads by",
        )
    _check_columns(df, column)
    stored = _stored(column)
    schema_id, payload = _confluent(stored)
    found = decoded_by_registry(format, schema, registry, subject, message, payload, schema_id)
    error = F.coalesce(
        F.when(stored.isNull(), _NO_PAYLOAD),
        F.when(schema_id.isNull(), _NO_FRAME),
        found.fault,
    )
    return _with_result(df, found, error)


def _with_result(df: DataFrame, found: Decoded, error: Column) -> DataFrame:
    # In one step Spark would decode at each use of the result.
    both = df.withColumn("decoded", found.first)
    return both.withColumns({"decoded": F.when(error.isNull(), found.value), "decode_error": error})


def _stored(column: str) -> Column:
    # A name may hold dots, which mean a field of a struct without these quotes.
    return F.col("`{}`".format(column.replace("`", "``"))).cast("binary")


def check_format(format: str, message: str | None) -> None:
    """Raise `OptionError` for an unknown format, and for a message of another one than Protobuf."""
    if format not in ("json", "avro", "protobuf"):
        raise OptionError(f"argument format must be json, avro or protobuf, but it is {format!r}")
    if message is not None and format != "protobuf":
        raise OptionError(f"argument message is for Protobuf, and argument format is {format}")


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
    message: str | None,
    *,
    indexed: bool,
) -> Decoded:
    if format == "json":
        return json_columns.decoded(schemas, payload, version)
    # Neither library is needed by those who read JSON.
    if format == "avro":
        from spark_jetstream.decoding.avro import AvroReader  # noqa: PLC0415

        return read_by(AvroReader(schemas), payload, version, version.isin(*schemas))
    from spark_jetstream.decoding.protobuf import ProtobufReader  # noqa: PLC0415

    reader = ProtobufReader(schemas, indexed=indexed, message=message)
    return read_by(reader, payload, version, version.isin(*schemas))
