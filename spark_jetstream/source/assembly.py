"""The content of several objects, put together from their chunks as they come. Pure.

Each object has its place in one buffer from the start, by the size that its meta message gives: a chunk is copied there
once, and the buffer becomes the column as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from spark_jetstream.columns import Delivered, Messages
from spark_jetstream.errors import ProtocolError
from spark_jetstream.objects import ObjectMeta, chunk_subject


class Assembly:
    """Made for objects by their meta messages, each with the bucket that its chunks' subjects name.

    The sizes must have room in one Arrow column: 2**31 - 1 bytes together.
    """

    def __init__(self, objects: Sequence[tuple[ObjectMeta, str]]) -> None:
        bounds = [0, *accumulate(meta.size for meta, _ in objects)]
        self._offsets = np.array(bounds, np.int32)
        self._buffer = np.empty(bounds[-1], np.uint8)
        view = self._buffer.data
        self._parts = [_Part(meta, view[bounds[at] : bounds[at + 1]]) for at, (meta, _) in enumerate(objects)]
        # Two names may share their chunks, for a moment, while an object is given a new name.
        self._by_subject: dict[str, list[_Part]] = {}
        for part, (meta, bucket) in zip(self._parts, objects, strict=True):
            if meta.nuid and (meta.size or meta.chunks):
                self._by_subject.setdefault(chunk_subject(bucket, meta.nuid), []).append(part)

    def wanted(self, together: int) -> Iterator[tuple[tuple[str, ...], int]]:
        """The subjects of all chunks that are wanted, up to `together` at a time, and how many messages these are."""
        each = [(subject, max(part.meta.chunks for part in parts)) for subject, parts in self._by_subject.items()]
        for at in range(0, len(each), together):
            some = each[at : at + together]
            yield tuple(subject for subject, _ in some), sum(count for _, count in some)

    def add(self, messages: Messages) -> None:
        """Put chunks, each behind those of its object that came before."""
        if len(self._by_subject) == 1:
            (parts,) = self._by_subject.values()
            for chunk in _chunks(messages):
                for part in parts:
                    part.add(chunk)
            return
        for subject, chunk in zip(messages.subjects().to_pylist(), _chunks(messages), strict=True):
            for part in self._by_subject.get(subject, ()):
                part.add(chunk)

    def faults(self) -> list[str | None]:
        """For each object what is wrong with its content, None where chunks, bytes and digest are as they should be."""
        return [part.fault() for part in self._parts]

    def column(self) -> pa.BinaryArray:
        """The contents, in the order of the objects; without a fault they are what they should be."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._buffer)]
        return pa.Array.from_buffers(pa.binary(), len(self._parts), buffers)


class _Part:
    """What has come of one object."""

    def __init__(self, meta: ObjectMeta, place: memoryview) -> None:
        self.meta = meta
        self._place = place
        self._size = 0
        self._chunks = 0
        self._hash = hashlib.sha256()

    def add(self, chunk: memoryview) -> None:
        """The next chunk; one that has no room is only counted."""
        end = self._size + len(chunk)
        self._chunks += 1
        if end <= len(self._place):
            self._place[self._size : end] = chunk
            self._hash.update(chunk)
        self._size = end

    def fault(self) -> str | None:
        meta = self.meta
        if meta.size and not meta.nuid:
            return "its meta message does not say where its chunks are"
        if self._chunks != meta.chunks:
            return f"its meta message speaks of {meta.chunks} chunks, and there are {self._chunks}"
        if self._size != meta.size:
            return f"its meta message speaks of {meta.size} bytes, and its chunks hold {self._size}"
        if not (meta.size or meta.digest):
            return None  # there is nothing to check
        try:
            expected = meta.sha256()
        except ProtocolError as error:
            return str(error)
        return None if self._hash.digest() == expected else "its content has another digest than its meta message says"


def _chunks(messages: Messages) -> Iterator[memoryview]:
    """The payloads, not copied where that can be."""
    if isinstance(messages, Delivered):
        frames = messages.frames
        data = memoryview(frames.data)
        starts, ends = frames.line_end + frames.head, frames.line_end + frames.size
    else:
        payloads = messages.payloads()
        _, offsets, values = payloads.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(payloads) + 1, 4 * payloads.offset)
        data = memoryview(b"" if values is None else values).cast("B")
        starts, ends = bounds[:-1], bounds[1:]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield data[start:end]
