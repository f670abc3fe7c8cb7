"""Rows of a DataFrame as objects of an Object Store bucket, and what is noted of their uploads. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_jetstream.errors import ProtocolError, SchemaError
from spark_jetstream.objects import DEFAULT_CHUNK_SIZE, chunk_subject
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
_LONGEST_NAME = 2048  # bytes; in base64 it has to leave room in the control line, which ends at 4 KiB
_NOTE_BYTES = 12
_TOKEN = re.compile(r"[^\s.*>]+")


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
        fault = _name_fault(name)
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


def _name_fault(name: str) -> str | None:
    size = len(name.encode())
    return f"its name has {size} bytes, more than {_LONGEST_NAME}" if size > _LONGEST_NAME else None


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


def chunks(content: memoryview, size: int) -> Iterator[memoryview]:
    """The content in pieces of ``size`` bytes, the last one with what is left; none at all of an empty one."""
    for at in range(0, len(content), size):
        yield content[at : at + size]


def chunk_size(max_payload: int, max_msg_size: int, head: int) -> int:
    """Bytes of a chunk that a server, and a stream with its own limit (negative: none), take beside ``head`` bytes.

    0 or less when there is no room for any.
    """
    limit = max_payload if max_msg_size < 0 else min(max_payload, max_msg_size)
    return min(DEFAULT_CHUNK_SIZE, limit - head)


# The note of uploads


def note_subject(bucket: str, name: str) -> str:
    """Where it is noted which uploads of an object have begun; among the chunks, where no reader looks."""
    digest = hashlib.blake2b(name.encode(), digest_size=_NOTE_BYTES).hexdigest()
    return chunk_subject(bucket, f"spark-jetstream-{digest}")


def note_body(nuids: Sequence[str]) -> bytes:
    """The note: all ids under which chunks of an object may lie, except those that were removed."""
    return json.dumps({"version": 1, "uploads": list(nuids)}).encode()


def read_note(data: bytes, subject: str) -> tuple[str, ...]:
    """The ids of a note; `ProtocolError` when it is none."""
    try:
        body = json.loads(data)
        uploads = body["uploads"] if body["version"] == 1 else None
    except (ValueError, KeyError, TypeError):
        uploads = None
    # An id with a wildcard in it would stand for the chunks of others.
    if not isinstance(uploads, list) or not all(isinstance(each, str) and _TOKEN.fullmatch(each) for each in uploads):
        raise ProtocolError(f"what is noted of uploads at {subject} cannot be read: {data[:120]!r}")
    return tuple(uploads)
