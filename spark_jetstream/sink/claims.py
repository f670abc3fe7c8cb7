"""Claims: the messages that the rows of a task are, by stream and sequence. Pure.

Equal rows of two tasks have the same message id, so the server may keep one message for both. Each
of the two tasks then claims that message, and the driver sees it (`sink.equal_rows`). Claims cross
the network with each task's report: they have about one byte for each row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import IntArray

# Sequences of a stream that are kept as numbers, of eight bytes each, before they are packed.
_MOST = 1 << 16

Subjects = dict[int, bytes]
"""The subjects that rows were published to, by the sequences of their messages."""


class Claims:
    """Gathers the sequences of one task, by stream.

    A stream that is `renaming` stores messages under other subjects than theirs. `subjects` keeps
    the own subjects of rows that it had stored before. If another task claims one of these messages
    too, only its own subject tells where the copy goes.
    """

    def __init__(self) -> None:
        self.renaming: set[str] = set()
        self.subjects: dict[str, Subjects] = {}
        self._numbers: dict[str, list[IntArray]] = {}
        self._counts: dict[str, int] = {}
        self._packed: dict[str, list[bytes]] = {}

    def add(self, stream: str, sequences: IntArray) -> None:
        """Claim messages of a stream."""
        if not len(sequences):
            return
        self._numbers.setdefault(stream, []).append(sequences)
        self._counts[stream] = self._counts.get(stream, 0) + len(sequences)
        if self._counts[stream] >= _MOST:
            self._pack(stream)

    def add_known(self, stream: str, sequences: IntArray, subjects: pa.BinaryArray) -> None:
        """Keep the subjects of rows that the stream had stored before, as these messages."""
        if stream not in self.renaming:
            return
        named = zip(sequences.tolist(), subjects.to_pylist(), strict=True)
        self.subjects.setdefault(stream, {}).update(named)

    def packed(self) -> dict[str, list[bytes]]:
        """Return the claims so far, as `unpacked` reads them."""
        for stream in list(self._numbers):
            self._pack(stream)
        return self._packed

    def _pack(self, stream: str) -> None:
        # Rows with one id of the user's are one row, and the message of one claim.
        sequences = np.unique(np.concatenate(self._numbers.pop(stream)))
        self._counts[stream] = 0
        # Most differences are small, so most of their bytes are zero.
        differences = np.diff(sequences, prepend=0).astype("<i8")
        self._packed.setdefault(stream, []).append(zlib.compress(differences.tobytes(), 1))


def unpacked(packed: Iterable[bytes]) -> IntArray:
    """Return the sequences that `Claims.packed` returned for a stream.

    Raises `ValueError` for other bytes.
    """
    # An empty part, since there may be no other, and `concatenate` needs one.
    parts = [np.zeros(0, np.int64)]
    for part in packed:
        try:
            differences = np.frombuffer(zlib.decompress(part), "<i8")
        except zlib.error as error:
            raise ValueError(f"these are no claims: {error}") from None
        parts.append(np.cumsum(differences, dtype=np.int64))
    return np.concatenate(parts)


def merged(reports: Iterable[Mapping[str, Iterable[bytes]]]) -> dict[str, IntArray]:
    """Return the claims of all tasks of a batch by stream, each as often as tasks claim it."""
    found: dict[str, list[IntArray]] = {}
    for claims in reports:
        for stream, packed in claims.items():
            found.setdefault(stream, []).append(unpacked(packed))
    return {stream: np.concatenate(parts) for stream, parts in found.items()}
