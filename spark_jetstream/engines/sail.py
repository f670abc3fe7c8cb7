"""Sail (lakehq/sail): an engine in Rust with Spark's API, which runs Python data sources itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa

from spark_jetstream.engines.engine import Engine
from spark_jetstream.engines.handover import few_batches
from spark_jetstream.schema import Column, GivenField, arrow_schema, spark_type


class Sail(Engine):
    """Sail gives and takes Arrow schemas. All statements here hold for pysail 0.7.2."""

    name: ClassVar[str] = "Sail"
    # A task gets a copy of the writer and an iterator of its rows, and nothing that tells it from
    # the other tasks.
    numbers_tasks: ClassVar[bool] = False

    def declare(self, columns: Sequence[Column]) -> pa.Schema:
        # Sail's DDL parser knows no maps, and a StructType with a timestamp fails for want of a
        # time zone.
        return arrow_schema([column.name for column in columns], columns)

    def given_fields(self, schema: pa.Schema) -> list[GivenField]:
        # A batch must have the very types of the schema. Those of a user's schema have the time
        # zone of the session, and other names of the fields inside of maps and arrays.
        fields = []
        for field in schema:
            text = spark_type(field.type)
            fields.append(GivenField(field.name, text, field.nullable, arrow=field.type))
        return fields

    def given_types(self, schema: pa.Schema) -> list[tuple[str, str]]:
        return [(field.name, spark_type(field.type)) for field in schema]

    def hand_over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return few_batches(batches)

    def task(self) -> None:
        return None
