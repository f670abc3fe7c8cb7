"""Payloads of rows, made by a library that writes the rows one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import BinaryType

from spark_jetstream.decoding.columns import arrow_udf
from spark_jetstream.errors import SchemaError, brief


class PayloadWriter(Protocol):
    """A writer of the payloads of one format. Spark sends it to its workers."""

    @property
    def fields(self) -> pa.StructType:
        """The type of the rows that `write` takes; a field may be missing."""

    def is_optional(self, path: str) -> bool:
        """Return whether a row may lack a field; of a field in a record the path has dots."""

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Return the payload of a row.

        The library may raise any exception for a value that it cannot write.
        """


def written_by(writer: PayloadWriter, row: Column, frame: bytes) -> Column:
    """Return a column of the payloads of rows, each after the bytes ``frame``.

    Raises `OptionError` on Spark 4.0, whose workers cannot make it.
    """

    # Spark looks at the number and the types of its arguments.
    def write(rows: pa.Array) -> pa.Array:
        return write_all(writer, rows, frame)

    return arrow_udf(write, BinaryType())(row)


def write_all(writer: PayloadWriter, rows: pa.Array, frame: bytes) -> pa.Array:
    """Return an array of the payloads of structs, each after the bytes ``frame``.

    Raises `SchemaError` for the first row that cannot be written: no row is left out.
    """
    plain = _plain(rows.type)
    payloads = []
    for row in rows.to_pylist():
        try:
            payloads.append(frame + writer.write(plain(row)))
        # A library may raise any error for a value that it cannot write.
        except Exception as error:
            reason = brief(f"{type(error).__name__}: {error}")
            raise SchemaError(f"a row cannot be written by argument schema ({reason})") from error
    return pa.array(payloads, pa.binary())


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function of a value of Arrow that makes dicts of its maps, which are lists of pairs."""
    if pa.types.is_struct(kind):
        members = {field.name: _plain(field.type) for field in kind}
        return _or_none(lambda row: {name: member(row[name]) for name, member in members.items()})
    if pa.types.is_map(kind):
        key, value = _plain(kind.key_type), _plain(kind.item_type)
        return _or_none(lambda pairs: {key(one): value(other) for one, other in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _plain(kind.value_type)
        return _or_none(lambda items: [item(one) for one in items])
    return _unchanged


def _or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert_or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    return convert_or_none


def _unchanged(value: Any) -> Any:
    return value
