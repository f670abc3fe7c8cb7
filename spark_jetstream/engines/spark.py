"""Apache Spark, and all that has its Python workers: Databricks, EMR, Spark Connect servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from spark_jetstream.engines.engine import Engine
from spark_jetstream.schema import Column, GivenField, ddl


class Spark(Engine):
    """Spark gives a `StructType`, and takes DDL."""

    name: ClassVar[str] = "Spark"
    numbers_tasks: ClassVar[bool] = True

    def declare(self, columns: Sequence[Column]) -> str:
        return ddl(columns)

    def given_fields(self, schema: StructType) -> list[GivenField]:
        fields = []
        for field in schema.fields:
            kind = field.dataType
            text = kind.simpleString()
            fields.append(GivenField(field.name, text, field.nullable, kind.jsonValue()))
        return fields

    def given_types(self, schema: StructType) -> list[tuple[str, str]]:
        return [(field.name, field.dataType.simpleString()) for field in schema.fields]

    def hand_over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def task(self) -> TaskContext | None:
        return TaskContext.get()
