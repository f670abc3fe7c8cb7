"""The content of several objects, put together from their chunks as they come. Pure.

Each object has its place in one buffer from the start, by the size that its meta message gives: a chunk is copied there
once, and the buffer becomes the column as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from spark_jetstream.columns import Messages
from spark_jetstream.object_content import ContentCheck, chunk_views
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
            for chunk in chunk_views(messages):
                for part in parts:
                    part.add(chunk)
            return
        for subject, chunk in zip(messages.subjects().to_pylist(), chunk_views(messages), strict=True):
            for part in self._by_subject.get(subject, ()):
                part.add(chunk)

    def faults(self) -> list[str | None]:
        """For each object what is wrong with its content, None where chunks, bytes and digest are as they should be."""
        return [part.check.fault() for part in self._parts]

    def column(self) -> pa.BinaryArray:
        """The contents, in the order of the objects; without a fault they are what they should be."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._buffer)]
        return pa.Array.from_buffers(pa.binary(), len(self._parts), buffers)


class _Part:
    """What has come of one object."""

    def __init__(self, meta: ObjectMeta, place: memoryview) -> None:
        self.meta = meta
        self.check = ContentCheck(meta)
        self._place = place

    def add(self, chunk: memoryview) -> None:
        """The next chunk; one that has no room is only counted."""
        end = self.check.size + len(chunk)
        if end <= len(self._place):
            self._place[self.check.size : end] = chunk
        self.check.add(chunk)
