"""The content of an object: cut into chunks, and checked against its meta message as the chunks come. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from spark_jetstream.columns import Delivered, Messages
from spark_jetstream.objects import DEFAULT_CHUNK_SIZE, ObjectMeta, digest_bytes


def chunk_size(max_payload: int, max_msg_size: int, head: int, wanted: int = DEFAULT_CHUNK_SIZE) -> int:
    """Bytes of a chunk that a server, and a stream with its own limit (negative: none), take beside ``head`` bytes.

    Not more than ``wanted``. 0 or less when there is no room for any.
    """
    limit = max_payload if max_msg_size < 0 else min(max_payload, max_msg_size)
    return min(wanted, limit - head)


def chunks(content: memoryview, size: int) -> Iterator[memoryview]:
    """The content in pieces of ``size`` bytes, the last one with what is left; none at all of an empty one."""
    for at in range(0, len(content), size):
        yield content[at : at + size]


def chunk_views(messages: Messages) -> Iterator[memoryview]:
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
    """What has come of the content of one object. ``size`` counts its bytes, ``chunks`` its messages."""

    def __init__(self, meta: ObjectMeta) -> None:
        self.meta = meta
        self.size = 0
        self.chunks = 0
        self._hash = hashlib.sha256()

    def add(self, chunk: bytes | memoryview) -> None:
        """The next chunk."""
        self.size += len(chunk)
        self.chunks += 1
        if self.size <= self.meta.size:
            self._hash.update(chunk)

    def fault(self) -> str | None:
        """What is wrong with the content, None where chunks, bytes and digest are what the meta message says."""
        meta = self.meta
        if meta.size and not meta.nuid:
            return "its meta message does not say where its chunks are"
        if self.chunks != meta.chunks:
            return f"its meta message speaks of {meta.chunks} chunks, and there are {self.chunks}"
        if self.size != meta.size:
            return f"its meta message speaks of {meta.size} bytes, and its chunks hold {self.size}"
        if not (meta.size or meta.digest):
            return None  # there is nothing to check
        try:
            expected = digest_bytes(meta.digest)
        except ValueError as error:
            return str(error)
        return None if self._hash.digest() == expected else "its content has another digest than its meta message says"
