"""encode: a column of payloads, made of the other columns of a frame by a schema."""

from __future__ import annotations

import base64
import json
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from spark_jetstream.decoding import json_columns
from spark_jetstream.decoding.column_types import columns_of, with_names_of
from spark_jetstream.decoding.decode import Format, check_format
from spark_jetstream.decoding.frames import frame_of
from spark_jetstream.decoding.payload_writer import PayloadWriter, written_by
from spark_jetstream.decoding.registered import latest_of, registry_subject_of
from spark_jetstream.decoding.registry import SchemaRegistry, registry_of
from spark_jetstream.decoding.registry_client import (
    KINDS,
    RegisteredSchema,
    RegistryClient,
    SchemaReference,
)
from spark_jetstream.errors import OptionError, SchemaError

_WHERE = "argument schema"
# By default Spark cuts microseconds off, and the offset of old times to minutes.
_JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


def encode(
    df: DataFrame,
    format: Format,
    schema: Any = None,
    *,
    column: str = "data",
    message: str | None = None,
    registry: str | SchemaRegistry | None = None,
    subject: str | None = None,
    registry_subject: str | None = None,
    register: bool = False,
) -> DataFrame:
    """Return a frame with one more column, the payloads of its rows, binary.

    A field of the schema takes the column of the same name, in any case. Other columns are no part
    of the payload, and all columns stay: select the ones that the sink has. Types fit without a
    loss, such as ``int`` for a ``long``, or the call fails. A field without a column has its default
    (Avro), is not set (Protobuf), or is left out (JSON), where the schema allows it.

    A row that cannot be written, such as one with a null where the schema has none, fails its task:
    no row has a payload that is null.

    - ``"json"``: Spark's `to_json` writes values, times with microseconds and in UTC. A null is
      left out, also where a JSON Schema requires the property and allows null.
    - ``"avro"``: fastavro writes records in Spark's workers, where it must be installed. A field of
      ``timestamp-millis`` has no microseconds: they are cut off.
    - ``"protobuf"``: protobuf writes messages there. A null leaves its field unset.

    With ``registry`` the id of the schema precedes each payload, in the wire format of Confluent's
    serializers. The driver asks the registry, once; workers do not.

    Args:
        df: A batch or a streaming frame, classic or over Spark Connect; on Spark 4.0 only for JSON.
        format: The format of the payloads.
        schema: JSON: DDL text, a `StructType` or a JSON Schema, with ``registry`` a JSON Schema.
            Avro: the schema as JSON text or as what `json.loads` makes of it. Protobuf: the class
            of the message, or a descriptor set (bytes, or the path of its file on this machine)
            together with ``message``. With ``registry`` None stands for the latest version.
        column: The name of the new column.
        message: Protobuf: the name of the message in a descriptor set or in the registry's schema,
            whose first one is the default.
        registry: The URL of a schema registry with the API of Confluent's, or a `SchemaRegistry`,
            which also has a login.
        subject: The subject of NATS, without wildcards, whose schemas the registry has as
            ``<subject>-value``.
        registry_subject: The registry's own name of that subject.
        register: Register ``schema`` unless it is registered. Without it, a schema that is not
            registered is an error.

    Raises:
        OptionError: ``format`` is unknown, or not for this version of Spark; an argument of the
            registry is malformed, is missing, or contradicts another one.
        SchemaError: ``df`` has the new column already, lacks a column, or has one of another type.
            Or the schema does not parse, or has a type that Spark lacks. Or the registry does not
            have the schema, or refuses it.
        RegistryError: The registry does not answer, or refuses the login.
        ModuleNotFoundError: The library that writes the format is not installed.
    """
    check_format(format, message)
    # To Spark names that differ only in case are one.
    if column.lower() in map(str.lower, df.columns):
        raise SchemaError(f"argument df has a column {column} already: rename or drop it")
    name = registry_subject_of(subject, registry_subject)
    if registry is None:
        _check_without_registry(schema, name, register)
        return df.withColumn(column, _payload(df, format, schema, message, b""))
    if name is None:
        raise OptionError(
            "argument registry needs subject or registry_subject, under which the registry has the "
            "schema",
        )
    client = RegistryClient(registry_of(registry))
    if schema is None:
        if register:
            raise OptionError("argument register needs argument schema", option="register")
        latest = latest_of(client, name, format)
        payload = _payload_by(df, format, latest, client.referenced(latest), message)
    else:
        # Before anything is registered, the columns must fit.
        _payload(df, format, schema, message, b"")
        schema_id = _id_of(client, name, format, schema, message, register=register)
        payload = _payload(df, format, schema, message, frame_of(schema_id), framed=True)
    return df.withColumn(column, payload)


def _check_without_registry(schema: Any, name: str | None, register: bool) -> None:
    if schema is None:
        raise OptionError("argument schema is missing", option="schema")
    if name is not None or register:
        raise OptionError(
            "arguments subject, registry_subject and register need argument registry",
        )


def _payload(
    df: DataFrame,
    format: Format,
    schema: Any,
    message: str | None,
    frame: bytes,
    *,
    framed: bool = False,
) -> Column:
    """Return the payloads by a schema of the user, each after ``frame``.

    With ``framed`` a Protobuf message also has the indexes of its file in front.
    """
    if format == "json":
        return _json(df, json_columns.struct_of(_WHERE, schema), frame)
    # Neither library is needed by those who write JSON.
    if format == "avro":
        from spark_jetstream.decoding.avro_writer import AvroWriter  # noqa: PLC0415

        return _written(df, AvroWriter(schema, _WHERE), frame)
    from spark_jetstream.decoding import descriptors  # noqa: PLC0415

    descriptor = descriptors.descriptor_of(schema, message, _WHERE)
    return _protobuf(df, descriptor, frame, framed=framed)


def _payload_by(
    df: DataFrame,
    format: Format,
    schema: RegisteredSchema,
    referenced: dict[str, RegisteredSchema],
    message: str | None,
) -> Column:
    """Return the payloads by a schema of the registry."""
    frame = frame_of(schema.id)
    where = f"schema {schema.id} of the registry"
    if format == "json":
        return _json(df, json_columns.struct_of(where, schema.text), frame)
    if format == "avro":
        from spark_jetstream.decoding.avro_writer import AvroWriter  # noqa: PLC0415

        others = [other.text for other in referenced.values()]
        return _written(df, AvroWriter(schema.text, where, others), frame)
    from spark_jetstream.decoding import descriptors  # noqa: PLC0415

    descriptor = descriptors.registered_descriptor(schema, referenced, message)
    return _protobuf(df, descriptor, frame, framed=True)


def _protobuf(df: DataFrame, descriptor: Any, frame: bytes, *, framed: bool) -> Column:
    from spark_jetstream.decoding.descriptors import place_of  # noqa: PLC0415
    from spark_jetstream.decoding.frames import written_indexes  # noqa: PLC0415
    from spark_jetstream.decoding.protobuf_writer import ProtobufWriter  # noqa: PLC0415

    if framed:
        frame += written_indexes(place_of(descriptor))
    return _written(df, ProtobufWriter(descriptor, _WHERE), frame)


def _written(df: DataFrame, writer: PayloadWriter, frame: bytes) -> Column:
    fields = from_arrow_type(writer.fields, prefer_timestamp_ntz=True)
    # The type of a struct.
    assert isinstance(fields, StructType)
    found = columns_of(df.schema, fields, writer.is_optional)
    return written_by(writer, _row(df, found), frame)


def _json(df: DataFrame, fields: StructType, frame: bytes) -> Column:
    required = json_columns.required_fields(fields)
    found = columns_of(df.schema, fields, lambda path: path not in required)
    row = _row(df, found)
    text = F.concat(F.unhex(F.lit(frame.hex())), F.to_json(row, _JSON_OPTIONS).cast("binary"))
    faults = json_columns.missing(row, found, "")
    if not faults:
        return text
    reason = F.concat(F.lit("a row cannot be written by argument schema: "), F.coalesce(*faults))
    return F.when(F.coalesce(*faults).isNotNull(), F.raise_error(reason)).otherwise(text)


def _row(df: DataFrame, fields: StructType) -> Column:
    """Return a struct of the columns of the fields, with the fields' names on all levels."""
    types = {column.name.lower(): column.dataType for column in df.schema}
    columns = []
    for field in fields:
        # A name may hold dots, hence the quotes.
        column = F.col("`{}`".format(field.name.replace("`", "``")))
        own = types[field.name.lower()]
        named = with_names_of(own, field.dataType)
        if named != own:
            column = column.cast(named)
        columns.append(column.alias(field.name))
    return F.struct(*columns)


def _id_of(
    client: RegistryClient,
    subject: str,
    format: Format,
    schema: Any,
    message: str | None,
    *,
    register: bool,
) -> int:
    """Return the id of a user's schema in the registry, which may have to register it."""
    if format == "protobuf":
        from spark_jetstream.decoding import descriptors  # noqa: PLC0415

        file = descriptors.descriptor_of(schema, message, _WHERE).file
        return _id_of_file(client, subject, file, register=register)[0]
    if format == "json" and not json_columns.is_json_schema(schema):
        raise SchemaError("argument schema must be a JSON Schema where argument registry is given")
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return client.id_and_version(subject, KINDS[format], text, (), register=register)[0]


def _id_of_file(
    client: RegistryClient,
    subject: str,
    file: Any,
    *,
    register: bool,
) -> tuple[int, int]:
    """Return the id and the version of a Protobuf file, and register the files that it imports.

    An import is a subject of its own, with the name of its file, as Confluent's clients have it.
    """
    references = []
    for imported in file.dependencies:
        # Every registry has these.
        if not imported.name.startswith("google/protobuf/"):
            _, version = _id_of_file(client, imported.name, imported, register=register)
            references.append(SchemaReference(imported.name, imported.name, version))
    text = base64.b64encode(file.serialized_pb).decode()
    kind = KINDS["protobuf"]
    return client.id_and_version(subject, kind, text, tuple(references), register=register)
