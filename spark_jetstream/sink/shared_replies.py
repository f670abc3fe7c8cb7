"""The proof that rows with one reply subject are stored. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_jetstream.protocol.pub_ack import StoredAcks
from spark_jetstream.sink.rows import IntArray


class SharedReplies:
    """The answers to rows that have one reply subject: they say how many rows are stored, but not which.

    They prove that all `rows` rows are stored if there are as many, all good, of stream and domain `place`, and each of
    a message of its own. A publish may have two answers, one of them late: streams of two domains may capture a
    subject. So answers of another place prove nothing, even if there are no others.
    """

    def __init__(self, rows: int, place: tuple[str, str]) -> None:
        self.rows = rows
        self.place = place
        self.stored = 0  # good answers, duplicates among them
        self.duplicates = 0  # good answers to rows that the stream had stored before
        self.refused = 0  # answers that a row is not stored; the owner counts them
        self._fresh: dict[tuple[str, str], list[IntArray]] = {}  # sequences of the new messages by stream and domain

    def take(self, stored: StoredAcks, mine: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """Take the marked answers; return how many they are, and how many of them are duplicates."""
        known = mine & stored.duplicate
        count, duplicates = int(np.count_nonzero(mine)), int(np.count_nonzero(known))
        self.stored += count
        self.duplicates += duplicates
        self._fresh.setdefault((stored.stream, stored.domain), []).append(stored.sequences[mine & ~known])
        return count, duplicates

    @property
    def complete(self) -> bool:
        """Whether there are as many answers as rows."""
        return self.stored + self.refused >= self.rows

    @property
    def proof(self) -> bool:
        """Whether all rows are stored."""
        fresh = self.sequences()
        if (self.stored, self.refused, list(fresh)) != (self.rows, 0, [self.place]):
            return False
        return len(np.unique(fresh[self.place])) == len(fresh[self.place])

    def sequences(self) -> dict[tuple[str, str], IntArray]:
        """Return the messages that the answers name by stream and domain, without those stored by earlier attempts."""
        return {place: np.concatenate(sequences) for place, sequences in self._fresh.items()}
