"""Counts of stored rows, and reports of tasks and batches, with the claims that fit in one. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.arrow import IntArray
from spark_jetstream.sink.claims import Claims, Subjects

_COUNTS = ("partition", "rows", "stored", "duplicates", "dead_letters")
LARGEST_CLAIMS = 128 * 1024
"""Bytes of claims in an entry of the ledger, which has to fit into one message."""


@dataclass
class Totals:
    """Counts of stored rows and of rows that an earlier attempt stored, and sequences by stream.

    `claims` gathers the messages that the rows are; None if the ids of the rows have the partition
    in them.
    """

    stored: int = 0
    duplicates: int = 0
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    claims: Claims | None = None

    def note(self, stream: str, first: int, last: int) -> None:
        """Widen the range of a stream by the sequences `first` to `last`."""
        known_first, known_last = self.streams.get(stream, (first, last))
        self.streams[stream] = min(known_first, first), max(known_last, last)

    def note_all(self, streams: Mapping[str, tuple[int, int]]) -> None:
        """Widen the ranges of these streams."""
        for stream, (first, last) in streams.items():
            self.note(stream, first, last)

    def note_duplicate(self, stream: str, sequence: int, rows: int = 1) -> None:
        """Count a row that was stored before, as this message of a stream.

        With `rows` these are that many rows in a sequence, and the message is the last one.
        """
        first = sequence - rows + 1
        self.stored += rows
        self.duplicates += rows
        self.note(stream, first, sequence)
        self.claim(stream, np.arange(first, sequence + 1))

    def note_duplicates(self, stream: str, sequences: IntArray, subjects: pa.BinaryArray) -> None:
        """Count rows that were stored before, as these messages of a stream.

        `subjects` are those that the rows name.
        """
        self.stored += len(sequences)
        self.duplicates += len(sequences)
        self.note(stream, int(sequences.min()), int(sequences.max()))
        self.claim(stream, sequences)
        self.claim_known(stream, sequences, subjects)

    def claim(self, stream: str, sequences: IntArray) -> None:
        """Note that these messages of a stream are rows of the task."""
        if self.claims is not None:
            self.claims.add(stream, sequences)

    def claim_known(self, stream: str, sequences: IntArray, subjects: pa.BinaryArray) -> None:
        """Note the subjects of rows that the stream had stored before."""
        if self.claims is not None:
            self.claims.add_known(stream, sequences, subjects)

    def stored_already(self, noun: str = "row") -> str:
        """Return how many rows or objects of a task are stored, for the end of its error."""
        if self.stored == 1:
            return f"1 {noun} of the task is stored"
        return f"{self.stored} {noun}s of the task are stored"


@dataclass(frozen=True)
class TaskReport:
    """The rows that one task has stored.

    The task got `rows` rows: each of them counts in `stored` or in `dead_letters`. An earlier
    attempt had stored `duplicates` of the stored ones. `streams` maps each stream to the first and
    the last sequence of the rows (inclusive; there may be messages of other publishers between
    them). The task wrote for `seconds`. `size` is the size of the contents of objects in bytes.
    `lost_ttl`: a `Nats-TTL` in column headers was left out.

    `content` is the `MessageIds.content` of the rows, None where it is not known, and `own` their
    `MessageIds.own`, 0 where there is none or it is not known. `groups` are the values of column
    `atomic_group`. `claims` are the messages that the rows are (`sink.claims`), None where they are
    not known, and `subjects` the `Claims.subjects`. `resumed`: an earlier attempt of the task, or
    an earlier run of the batch, may have stored rows of it. `partitioned`: message ids of the rows
    have the partition in them.
    """

    partition: int
    rows: int = 0
    stored: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0
    size: int = 0
    lost_ttl: bool = False
    content: int | None = None
    own: int = 0
    groups: frozenset[bytes] = frozenset()
    claims: Mapping[str, Sequence[bytes]] | None = field(default_factory=dict)
    subjects: Mapping[str, Subjects] = field(default_factory=dict)
    resumed: bool = False
    partitioned: bool = False

    def to_json(self, *, largest_claims: int = LARGEST_CLAIMS) -> dict[str, Any]:
        """Return the report as plain JSON, for the ledger.

        Its claims are null if they have more than `largest_claims` bytes.
        """
        content: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        content["streams"] = {name: list(ends) for name, ends in self.streams.items()}
        content["seconds"] = round(self.seconds, 3)
        content["content"] = None if self.content is None else f"{self.content:016x}"
        if self.own:
            content["own"] = f"{self.own:016x}"
        # Names of groups need not be UTF-8.
        groups = [group.decode("utf-8", "surrogateescape") for group in self.groups]
        content["groups"] = sorted(groups)
        content["claims"] = self._claims_to_json(largest_claims)
        return content

    def _claims_to_json(self, largest: int) -> dict[str, list[str]] | None:
        # Only few reports have subjects, which the ledger does not keep. The claims would be of no
        # use without.
        if self.claims is None or any(self.subjects.values()):
            return None
        size = sum(len(part) for packed in self.claims.values() for part in packed)
        if size > largest:
            return None
        return {
            stream: [base64.b64encode(part).decode() for part in packed]
            for stream, packed in self.claims.items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TaskReport:
        """Return the report that `to_json` has written.

        Raises `ProtocolError` for anything else.
        """
        try:
            streams = {
                str(name): (int(first), int(last))
                for name, (first, last) in content["streams"].items()
            }
            numbers: dict[str, Any] = {name: int(content[name]) for name in _COUNTS}
            hashed = content.get("content")
            groups = [
                str(name).encode("utf-8", "surrogateescape") for name in content.get("groups", ())
            ]
            return cls(
                **numbers,
                streams=streams,
                seconds=float(content["seconds"]),
                content=None if hashed is None else int(hashed, 16),
                own=int(content.get("own", "0"), 16),
                groups=frozenset(groups),
                claims=_claims_from_json(content.get("claims")),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ProtocolError("the ledger holds a report that cannot be read") from None


def _claims_from_json(
    content: Mapping[str, Sequence[str]] | None,
) -> Mapping[str, Sequence[bytes]] | None:
    if content is None:
        return None
    return {
        str(stream): [base64.b64decode(part, validate=True) for part in packed]
        for stream, packed in content.items()
    }


class BatchReport:
    """The sum of the reports of all tasks of a batch, as text.

    Its time is that of the longest task. The driver has stored `copies` of rows that several tasks
    have.
    """

    def __init__(self, reports: Iterable[TaskReport], copies: int = 0) -> None:
        self._reports = list(reports)
        self._copies = copies
        totals = Totals()
        for report in self._reports:
            totals.note_all(report.streams)
        self.streams: Mapping[str, tuple[int, int]] = totals.streams

    def __str__(self) -> str:
        duplicates = self._sum("duplicates")
        dead_letters = self._sum("dead_letters")
        size = self._sum("size")
        parts = [f"{self._sum('stored'):,} of {self._sum('rows'):,} rows stored"]
        if size:
            parts.append(f"{size:,} bytes of content")
        if duplicates:
            verb = "was" if duplicates == 1 else "were"
            parts.append(f"{duplicates:,} {verb} stored already")
        if self._copies:
            parts.append(f"{self._copies:,} equal to rows of other tasks")
        if dead_letters:
            parts.append(f"{dead_letters:,} {_plural('dead letter', dead_letters)}")
        for name, (first, last) in sorted(self.streams.items()):
            parts.append(f"{name} {first} to {last}")
        tasks = len(self._reports)
        seconds = max((report.seconds for report in self._reports), default=0.0)
        return f"{', '.join(parts)}; {tasks} {_plural('task', tasks)}, {seconds:.1f} s"

    def _sum(self, count: str) -> int:
        """Return the sum of a field of all reports."""
        return sum(getattr(report, count) for report in self._reports)


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
