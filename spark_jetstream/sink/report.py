"""What is stored: counted while a task runs, and reported of a task and of a batch of tasks. Pure."""

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
_LARGEST_CLAIMS = (
    128 * 1024
)  # bytes of claims in an entry of the ledger, which has to fit into one message


@dataclass
class Totals:
    """Counts of the rows that are stored, of those stored by an earlier attempt, and sequence ranges by stream.

    `claims` gathers the messages that the rows are; None if the ids of the rows have the partition in them.
    """

    stored: int = 0
    duplicates: int = 0
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    claims: Claims | None = None

    def note(self, stream: str, first: int, last: int) -> None:
        """Widen the range of a stream by the sequences `first` to `last`."""
        known = self.streams.get(stream, (first, last))
        self.streams[stream] = min(known[0], first), max(known[1], last)

    def note_all(self, streams: Mapping[str, tuple[int, int]]) -> None:
        """Widen the ranges of these streams."""
        for stream, (first, last) in streams.items():
            self.note(stream, first, last)

    def note_duplicate(self, stream: str, sequence: int, rows: int = 1) -> None:
        """Count a row that was stored before, as this message of a stream, or `rows` rows, the last of them there."""
        self.stored += rows
        self.duplicates += rows
        self.note(stream, sequence - rows + 1, sequence)
        self.claim(stream, np.arange(sequence - rows + 1, sequence + 1))

    def note_duplicates(self, stream: str, sequences: IntArray, subjects: pa.BinaryArray) -> None:
        """Count rows for these subjects that were stored before, as these messages of a stream."""
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
        one = self.stored == 1
        return (
            f"{self.stored} {noun}{'' if one else 's'} of the task {'is' if one else 'are'} stored"
        )


@dataclass(frozen=True)
class TaskReport:
    """What one task has stored.

    The task got `rows` rows: each of them counts in `stored` or in `dead_letters`. An earlier attempt had stored
    `duplicates` of the stored ones. `streams` maps each stream to the first and the last sequence of the rows
    (inclusive; there may be messages of other publishers between them). The task wrote for `seconds`. `size` is the
    size of the contents of objects in bytes. `lost_ttl`: a `Nats-TTL` in column headers was left out.

    `content` is the `MessageIds.content` of the rows, None where it is not known, and `own` their `MessageIds.own`, 0
    where there is none or it is not known. `groups` are the values of column `atomic_group`. `claims` are the messages
    that the rows are (`sink.claims`), None where they are not known, and `subjects` what `Claims.subjects` has.
    `resumed`: an earlier attempt of the task, or an earlier run of the batch, may have stored rows of it.
    `partitioned`: message ids of the rows have the partition in them.
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

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON, for the ledger. Claims that are too large for it are left out."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "streams": {name: list(ends) for name, ends in self.streams.items()},
            "seconds": round(self.seconds, 3),
            "content": None if self.content is None else f"{self.content:016x}",
            **({"own": f"{self.own:016x}"} if self.own else {}),
            "groups": sorted(group.decode("utf-8", "surrogateescape") for group in self.groups),
            # Only few reports have subjects, which the ledger does not keep. The claims would be of no use without.
            "claims": None if any(self.subjects.values()) else _claims_to_json(self.claims),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TaskReport:
        """Return the report that `to_json` has written. Raises `ProtocolError` for anything else."""
        try:
            streams = {
                str(name): (int(first), int(last))
                for name, (first, last) in content["streams"].items()
            }
            numbers: dict[str, Any] = {name: int(content[name]) for name in _COUNTS}
            hashed = content.get("content")
            return cls(
                **numbers,
                streams=streams,
                seconds=float(content["seconds"]),
                content=None if hashed is None else int(hashed, 16),
                own=int(content.get("own", "0"), 16),
                groups=frozenset(
                    str(name).encode("utf-8", "surrogateescape")
                    for name in content.get("groups", ())
                ),
                claims=_claims_from_json(content.get("claims")),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ProtocolError("the ledger holds a report that cannot be read") from None


def _claims_to_json(claims: Mapping[str, Sequence[bytes]] | None) -> dict[str, list[str]] | None:
    if claims is None:
        return None
    size = sum(len(part) for packed in claims.values() for part in packed)
    if size > _LARGEST_CLAIMS:
        return None
    return {
        stream: [base64.b64encode(part).decode() for part in packed]
        for stream, packed in claims.items()
    }


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
    """The sum of the reports of all tasks of a batch, as text. Its time is that of the longest task.

    The driver has stored `copies` of rows that several tasks have.
    """

    def __init__(self, reports: Iterable[TaskReport], copies: int = 0) -> None:
        self._reports = list(reports)
        self._copies = copies
        totals = Totals()
        for report in self._reports:
            totals.note_all(report.streams)
        self.streams: Mapping[str, tuple[int, int]] = totals.streams

    def __str__(self) -> str:
        counts = ("rows", "stored", "duplicates", "dead_letters", "size")
        rows, stored, duplicates, dead_letters, size = (
            sum(getattr(report, name) for report in self._reports) for name in counts
        )
        tasks, seconds = (
            len(self._reports),
            max((report.seconds for report in self._reports), default=0.0),
        )
        parts = [f"{stored:,} of {rows:,} rows stored"]
        if size:
            parts.append(f"{size:,} bytes of content")
        if duplicates:
            parts.append(f"{duplicates:,} {'was' if duplicates == 1 else 'were'} stored already")
        if self._copies:
            parts.append(f"{self._copies:,} equal to rows of other tasks")
        if dead_letters:
            parts.append(f"{dead_letters:,} dead letter{'s' if dead_letters != 1 else ''}")
        parts += [
            f"{name} {first} to {last}" for name, (first, last) in sorted(self.streams.items())
        ]
        return f"{', '.join(parts)}; {tasks} task{'s' if tasks != 1 else ''}, {seconds:.1f} s"
