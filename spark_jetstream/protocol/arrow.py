"""Arrow arrays made of vectors, bytes and times (in microseconds), and read as vectors.

No function here calls `pa.array`, `pa.scalar` or `to_numpy`: these import pandas, for which a task
has no time. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Return a vector as an Arrow array. Numbers are not copied."""
    content = np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        # Arrow has a bit for each value, the first one lowest.
        content = np.packbits(values, bitorder="little")
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(content)])


def as_vector(array: pa.Array) -> npt.NDArray[Any]:
    """Return integers or booleans, none of them null, as a vector. Integers are not copied."""
    # A slice shares the buffer of the whole array. An empty array may have no buffer.
    begin = array.offset
    end = begin + len(array)
    content = array.buffers()[1] or b""
    if pa.types.is_boolean(array.type):
        packed = np.frombuffer(content, np.uint8)
        return np.unpackbits(packed, count=end, bitorder="little")[begin:].view(np.bool_)
    return np.frombuffer(content, str(array.type))[begin:end]


def binary(length: int, offsets: npt.NDArray[np.int32], data: Any) -> pa.BinaryArray:
    """Return a binary array over `data`, not copied: value i is data[offsets[i]:offsets[i+1]]."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), length, buffers)


def binaries(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return a binary array of these values."""
    contents = [value or b"" for value in values]  # of null, too
    offsets = np.cumsum([0, *map(len, contents)], dtype=np.int32)
    missing = np.array([value is None for value in values], np.bool_)
    return without(binary(len(values), offsets, b"".join(contents)), missing)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return a string array of these values."""
    return binaries([value.encode() for value in values]).view(pa.string())


def repeated(value: str | bytes, count: int) -> pa.Array:
    """Return an array of `count` times the same string or the same bytes."""
    if isinstance(value, str):
        return repeated(value.encode(), count).view(pa.string())
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(value))
    return binary(count, offsets, value * count)


def piece(value: bytes) -> pa.Scalar:
    """Return bytes as an Arrow scalar, such as a constant part of a joined array."""
    return repeated(value, 1)[0]


def text_piece(value: str) -> pa.Scalar:
    """Return a string as an Arrow scalar."""
    return repeated(value, 1)[0]


def microseconds(nanoseconds: npt.NDArray[np.int64]) -> pa.TimestampArray:
    """Return times in whole microseconds, rounded down, in UTC."""
    kind = pa.timestamp("us", tz="UTC")
    return pa.Array.from_buffers(kind, len(nanoseconds), [None, pa.py_buffer(nanoseconds // 1000)])


def without(values: pa.Array, bad: npt.NDArray[np.bool_]) -> pa.Array:
    """Return `values` with null in place of the bad ones."""
    if not bad.any():
        return values
    # Not one null for all: pyarrow up to 23 then takes the bytes of a slice from elsewhere.
    nulls = pa.nulls(len(values), values.type)
    return pc.if_else(as_arrow(bad), nulls, values)


def flags(values: pa.BooleanArray) -> BoolArray:
    """Return flags as a vector, null as false."""
    return as_vector(pc.coalesce(values, _FALSE))


def lengths(values: pa.Array) -> IntArray:
    """Return the bytes of each string or binary value, 0 for null."""
    sizes = pc.binary_length(values)
    if sizes.null_count:
        sizes = pc.coalesce(sizes, ZERO)
    return as_vector(sizes).astype(np.int64)


def decimal(values: pa.Array) -> pa.BinaryArray:
    """Return integers as decimal digits. Null stays null."""
    return values.cast(pa.string()).cast(pa.binary())


def as_bytes(array: pa.Array) -> pa.BinaryArray:
    """Return a string or binary array as a binary array."""
    if array.type == pa.binary():
        return array
    return array.cast(pa.binary())


def gather(data: Any, start: IntArray, end: IntArray) -> pa.BinaryArray:
    """Copy pieces data[start[i]:end[i]] into one binary array; they ascend and do not overlap."""
    count = len(start)
    # Every second value is a piece, and those in between are the bytes from one piece to the next.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = start
    bounds[1::2] = end
    # No byte is in the last value. Without any piece it is the only one.
    bounds[-1] = end[-1] if count else 0
    pieces = np.arange(0, 2 * count, 2, dtype=np.int64)
    return binary(2 * count, bounds, data).take(as_arrow(pieces))


def joined(pieces: pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """Return the bytes of the pieces of `gather` in their order, and the n + 1 bounds of them."""
    _, offsets, content = pieces.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(pieces) + 1).astype(np.int64)
    total = int(bounds[-1])
    if not total:
        return np.zeros(0, np.uint8), bounds  # there may be no buffer
    return np.frombuffer(content, np.uint8, total), bounds


NOTHING = piece(b"")
"""An empty binary value."""
ZERO = as_arrow(np.zeros(1, np.int32))[0]
_FALSE = as_arrow(np.zeros(1, np.bool_))[0]
