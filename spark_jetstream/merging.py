"""Runs of messages that were read apart, put together in the order of the stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_jetstream.columns import Messages
from spark_jetstream.direct_columns import Answered
from spark_jetstream.wire import IntArray


@dataclass(frozen=True)
class Merged:
    """Several runs of messages as one; implements `Messages`. `order` is where each message stands in `parts`."""

    parts: Sequence[Messages]
    order: IntArray
    sequences: IntArray

    def __len__(self) -> int:
        return len(self.order)

    def timestamps(self) -> IntArray:
        """As `Messages` has it."""
        found: IntArray = np.concatenate([part.timestamps() for part in self.parts])[self.order]
        return found

    def subjects(self) -> pa.StringArray:
        """As `Messages` has it."""
        return self._in_order([part.subjects() for part in self.parts])

    def headers(self) -> pa.MapArray:
        """As `Messages` has it."""
        return self._in_order([part.headers() for part in self.parts])

    def payloads(self) -> pa.BinaryArray:
        """As `Messages` has it."""
        return self._in_order([part.payloads() for part in self.parts])

    def _in_order(self, arrays: list[pa.Array]) -> pa.Array:
        return pa.concat_arrays(arrays).take(pa.array(self.order))


class _Reader:
    """One of the runs' readers, and what of it was not handed out yet."""

    def __init__(self, runs: Iterator[Answered]) -> None:
        self.runs = runs
        self.head: Answered | None = None

    def fill(self) -> bool:
        """Whether there is something to hand out."""
        if self.head is None:
            self.head = next(self.runs, None)
        return self.head is not None

    def up_to(self, sequence: int) -> Answered | None:
        """Take what is there up to a sequence; None if nothing is."""
        assert self.head is not None
        inside = int(self.head.sequences.searchsorted(sequence, side="right"))
        taken = self.head[:inside] if inside else None
        self.head = self.head[inside:] if inside < len(self.head) else None
        return taken


def merge(readers: Sequence[Iterator[Answered]]) -> Iterator[Messages]:
    """What the readers give, in the order of sequences; of each no more than one run is held at a time.

    A reader's runs are ascending, and no two readers give the same message.
    """
    left = [_Reader(runs) for runs in readers]
    while left := [reader for reader in left if reader.fill()]:
        # Up to the end of the run that ends first everything is known.
        heads = [reader.head for reader in left if reader.head is not None]
        known = min(int(head.sequences[-1]) for head in heads)
        parts = [part for reader in left if (part := reader.up_to(known)) is not None]
        if len(parts) == 1:
            yield parts[0]
            continue
        sequences = np.concatenate([part.sequences for part in parts])
        order = np.argsort(sequences, kind="stable")
        yield Merged(parts, order, sequences[order])
