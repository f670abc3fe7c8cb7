"""Rows of a DataFrame as objects of an Object Store bucket. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_jetstream.errors import SchemaError
from spark_jetstream.objects import name_fault
from spark_jetstream.sink.rows import TEXT, check_columns

_ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "name": TEXT,
    "content": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
}
#: What the source adds to an object; ignored, so that rows can be written back as they were read.
_PASSED_OVER: Mapping[str, tuple[str, ...]] = {
    "bucket": TEXT,
    "size": ("bigint",),
    "chunks": ("bigint",),
    "digest": TEXT,
    "modified": ("timestamp",),
}


@dataclass(frozen=True)
class ObjectColumns:
    """Which columns a DataFrame has for an object bucket, checked. ``fields`` as in `SinkColumns`."""

    fields: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(name for name, _ in self.fields)

    @classmethod
    def check(cls, fields: Sequence[tuple[str, str]]) -> ObjectColumns:
        """From (name, Spark ``simpleString`` type) pairs. Raises `SchemaError` for what is no object."""
        names = check_columns(fields, _ACCEPTED, _PASSED_OVER, "part of content")
        for name, what in (("name", "the objects' names (string)"), ("content", "their bytes (binary or string)")):
            if name not in names:
                raise SchemaError(f'the DataFrame has no column "{name}", which holds {what} (option objectBucket)')
        return cls(tuple(fields))


@dataclass(frozen=True)
class ObjectRow:
    """One row: the object it asks for. ``number`` counts the rows of the task from 1.

    ``content`` lies in the record batch, and is not copied. ``fault`` says why the row can never be stored, or is None.
    """

    number: int
    name: str
    content: memoryview
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fault: str | None = None


def object_rows(batch: pa.RecordBatch, columns: ObjectColumns, first_number: int) -> Iterator[ObjectRow]:
    """The rows of a record batch whose columns were checked by `ObjectColumns.check`, one at a time."""
    names, contents = (batch.column(columns.names.index(each)) for each in ("name", "content"))
    headers = batch.column(columns.names.index("headers")) if "headers" in columns.names else None
    present = contents.is_valid().to_pylist()
    content, ends = _bytes_of(contents)
    for index in range(batch.num_rows):
        number, name = first_number + index, names[index].as_py()
        if not name:
            why = "column name is null" if name is None else "column name is empty"
            yield ObjectRow(number, "", memoryview(b""), fault=why)
            continue
        found: dict[str, tuple[str, ...]] = {}
        fault = name_fault(name)
        if headers is not None:
            found, wrong = _headers(headers[index].as_py())
            fault = fault or wrong
        if not present[index]:
            # The source leaves it out with contentOff.
            fault = fault or "column content is null: an object without bytes is empty, not null"
        yield ObjectRow(number, name, content[ends[index] : ends[index + 1]], found, fault)


def _bytes_of(array: pa.Array) -> tuple[memoryview, list[int]]:
    """What all values of a binary or string column lie in, and where they begin; one more for the end of the last."""
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind = np.dtype("<i8" if wide else "<i4")
    if not len(array):
        return memoryview(b""), [0]
    ends = np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize)
    # A null may have bytes behind it all the same; its row is refused.
    return memoryview(data or b"").cast("B"), ends.tolist()


def _headers(
    entries: Sequence[tuple[str, str | Sequence[str | None] | None]] | None,
) -> tuple[dict[str, tuple[str, ...]], str | None]:
    """The headers of an object, and what is wrong with them; null is none."""
    found: dict[str, tuple[str, ...]] = {}
    for name, given in entries or ():
        values = (given,) if isinstance(given, str) else given
        if values is None or None in values:
            return {}, f"column headers holds null as a value of {name[:80]!r}"
        found[name] = tuple(str(value) for value in values)
    return found, None
