"""The library fastavro, which reads and writes Avro, or an error that says how to install it."""

from __future__ import annotations

try:
    from fastavro import parse_schema, schemaless_reader, schemaless_writer
    from fastavro.read import LOGICAL_READERS
    from fastavro.schema import SchemaParseException
    from fastavro.validation import validate
except ImportError as error:
    raise ModuleNotFoundError(
        "Avro needs the library fastavro: pip install 'spark-jetstream[avro]', on every node",
        name="fastavro",
    ) from error

__all__ = [
    "LOGICAL_READERS",
    "SchemaParseException",
    "parse_schema",
    "schemaless_reader",
    "schemaless_writer",
    "validate",
]
