"""Cuts the content of objects into chunks, and checks and assembles chunks that were read. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.objects import ObjectMeta, chunk_subject, digest_bytes
from spark_jetstream.protocol.columns import Delivered, MessageRun


def chunks(content: memoryview, size: int) -> Iterator[memoryview]:
    """The content in pieces of ``size`` bytes, the last one with what is left; none at all of an empty one."""
    for at in range(0, len(content), size):
        yield content[at : at + size]


def chunk_views(messages: MessageRun) -> Iterator[memoryview]:
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


class ContentCheck:
    """What has come of the content of one object. ``size`` counts its bytes, ``chunks`` its messages.

    With ``place`` the content is copied there; chunks that have no room are only counted.
    """

    def __init__(self, meta: ObjectMeta, place: memoryview | None = None) -> None:
        self.meta = meta
        self.size = 0
        self.chunks = 0
        self._place = place
        self._hash = hashlib.sha256()

    def add(self, chunk: bytes | memoryview) -> None:
        """The next chunk."""
        begin, self.size = self.size, self.size + len(chunk)
        self.chunks += 1
        if self.size <= self.meta.size:
            self._hash.update(chunk)
            if self._place is not None:
                self._place[begin : self.size] = chunk

    def fault(self) -> str | None:
        """What is wrong with the content, None where chunks, bytes and digest are what the meta message says."""
        meta = self.meta
        if meta.size and not meta.nuid:
            return "its meta message does not say where its chunks are"
        if self.chunks != meta.chunks:
            return f"its meta message says {meta.chunks} chunks, and there are {self.chunks}"
        if self.size != meta.size:
            return f"its meta message says {meta.size} bytes, and its chunks hold {self.size}"
        if not (meta.size or meta.digest):
            return None  # there is nothing to check
        try:
            expected = digest_bytes(meta.digest)
        except ValueError as error:
            return str(error)
        return (
            None
            if self._hash.digest() == expected
            else "its content has another digest than its meta message says"
        )


class Assembly:
    """Copies each chunk once, to its object's place in one buffer, which becomes the column as it is.

    Objects are meta messages, each with the bucket that its chunks' subjects name. Their sizes must have room in one
    Arrow column: 2**31 - 1 bytes together.
    """

    def __init__(self, objects: Sequence[tuple[ObjectMeta, str]]) -> None:
        bounds = [0, *accumulate(meta.size for meta, _ in objects)]
        self._offsets = np.array(bounds, np.int32)
        self._buffer = np.empty(bounds[-1], np.uint8)
        view = self._buffer.data
        self._parts = [
            ContentCheck(meta, view[bounds[at] : bounds[at + 1]])
            for at, (meta, _) in enumerate(objects)
        ]
        # Two names may share their chunks, for a moment, while an object is given a new name.
        self._by_subject: dict[str, list[ContentCheck]] = {}
        for part, (meta, bucket) in zip(self._parts, objects, strict=True):
            if meta.nuid and (meta.size or meta.chunks):
                self._by_subject.setdefault(chunk_subject(bucket, meta.nuid), []).append(part)

    def wanted(self, together: int) -> Iterator[tuple[tuple[str, ...], int]]:
        """The subjects of all chunks that are wanted, up to `together` at a time, and how many messages these are."""
        counts = [
            (subject, max(part.meta.chunks for part in parts))
            for subject, parts in self._by_subject.items()
        ]
        for at in range(0, len(counts), together):
            some = counts[at : at + together]
            yield tuple(subject for subject, _ in some), sum(count for _, count in some)

    def add(self, messages: MessageRun) -> None:
        """Put chunks, each after those of its object that came before."""
        for subject, chunk in zip(
            messages.subjects().to_pylist(), chunk_views(messages), strict=True
        ):
            for part in self._by_subject.get(subject, ()):
                part.add(chunk)

    def faults(self) -> list[str | None]:
        """For each object what is wrong with its content, None where chunks, bytes and digest are as they should be."""
        return [part.fault() for part in self._parts]

    def column(self) -> pa.BinaryArray:
        """The contents, in the order of the objects; without a fault they are what they should be."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._buffer)]
        return pa.Array.from_buffers(pa.binary(), len(self._parts), buffers)
