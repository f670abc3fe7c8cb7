"""Columns of decoded payloads, made by a library that reads the payloads one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from spark_jetstream.errors import OptionError, RegistryError, SchemaError


class Decoded(NamedTuple):
    """How to decode in two steps.

    ``first`` makes the column ``decoded``, to which ``value`` and ``fault`` refer.
    ``fault`` is a text, null if nothing is wrong with the payload; otherwise ``value`` has no
    meaning.
    """

    first: Column
    value: Column
    fault: Column


class PayloadFault(Exception):
    """A payload that cannot be read; the text is the whole error of its row."""


class PayloadReader(Protocol):
    """A reader of the payloads of one format. Spark sends it to its workers."""

    @property
    def fields(self) -> pa.StructType:
        """The type of what `read` returns."""

    @property
    def expected(self) -> str:
        """The form that a payload must have, for the error: ``one Avro record``."""

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a payload.

        The library may raise any exception for bytes that it cannot read. A `PayloadFault` has the
        row's error, and a `RegistryError` fails the task.
        """


def schema_argument(version: str) -> str:
    """Return how an error names the schema of a version, which is "" for the only one."""
    if not version:
        return "argument schema"
    return f"argument schema, version {version}"


def struct_of(where: str, fields: Mapping[str, pa.DataType]) -> pa.StructType:
    """Return the type of a record.

    Raises `SchemaError` if it has no field, or two with one name to Spark.
    """
    if not fields:
        raise SchemaError(f"{where} has no field")
    refuse_equal_names(where, fields)
    return pa.struct(fields)


def refuse_equal_names(where: str, fields: Collection[str]) -> None:
    """Raise `SchemaError` for fields whose names differ only in case."""
    if len(set(map(str.lower, fields))) < len(fields):
        listed = ", ".join(fields)
        raise SchemaError(f"{where}: two of its fields have one name to Spark ({listed})")


def arrow_udf(function: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    """Return a function of columns that makes a column of ``kind`` in Spark's workers.

    Raises `OptionError` on Spark 4.0, whose workers get no columns of Arrow.
    """
    if not hasattr(F, "arrow_udf"):
        raise OptionError(
            "argument format must be json on Spark 4.0: Avro and Protobuf need Spark 4.1 or later",
        )
    made: Callable[..., Column] = F.arrow_udf(function, kind)
    return made


def read_by(
    reader: PayloadReader,
    payload: Column,
    version: Column,
    is_known: Column,
) -> Decoded:
    """Return columns that ``reader`` makes in Spark's workers of the payloads that are known to it.

    Raises `OptionError` on Spark 4.0, which cannot.
    """
    kind = _kind(reader)

    # Spark looks at the number and the types of its arguments.
    def read(payloads: pa.Array, versions: pa.Array) -> pa.Array:
        return read_all(reader, payloads, versions)

    # The reader gets no payload of an unknown version: `decode` has an error for that row.
    known = F.when(is_known, payload)
    first = arrow_udf(read, from_arrow_type(kind, prefer_timestamp_ntz=True))(known, version)
    return Decoded(first, F.col("decoded")["value"], F.col("decoded")["error"])


def read_all(reader: PayloadReader, payloads: pa.Array, versions: pa.Array) -> pa.Array:
    """Return an array of structs of the same length: ``value`` and ``error``.

    At least one of the two is null.
    """
    pairs = zip(payloads.to_pylist(), versions.to_pylist(), strict=True)
    rows = [_row(reader, payload, version) for payload, version in pairs]
    kind = _kind(reader)
    try:
        return pa.array(rows, kind)
    except (ValueError, TypeError, OverflowError):
        # One value that its type cannot hold, such as an int of more than 32 bits, fails all rows.
        return pa.array([_held(reader, row, kind) for row in rows], kind)


def _kind(reader: PayloadReader) -> pa.StructType:
    return pa.struct({"value": reader.fields, "error": pa.string()})


def _row(reader: PayloadReader, payload: bytes | None, version: str) -> dict[str, Any]:
    if payload is None:
        return {}
    try:
        return {"value": reader.read(payload, version)}
    except PayloadFault as fault:
        return {"error": _text(fault)}
    except RegistryError:
        # No payload is to blame for an outage: the task fails, and Spark tries it again.
        raise
    # A library may raise any error for hostile bytes. The row has it as its error.
    except Exception as error:  # noqa: BLE001
        return _failed(reader, error)


def _held(reader: PayloadReader, row: dict[str, Any], kind: pa.StructType) -> dict[str, Any]:
    """Return the row if Arrow's type can hold it, and its error otherwise."""
    try:
        pa.array([row], kind)
    except (ValueError, TypeError, OverflowError) as error:
        return _failed(reader, error)
    return row


def _failed(reader: PayloadReader, error: Exception) -> dict[str, Any]:
    reason = f"{type(error).__name__}: {_text(error)}"
    return {"error": f"the payload is not {reader.expected} that fits the schema ({reason})"}


def _text(error: Exception) -> str:
    # Bytes that are not UTF-8 may be part of the text.
    return str(error).encode(errors="replace").decode()
