"""Groups that a stream refused for a message id that it has: are they stored already? Pure.

One id that the sink has made tells of its whole group. An id of the user's may be that of another
row, so the sink checks each message of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import binaries, repeated
from spark_jetstream.sink.commands import GROUP_HEADER
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.rows import RefusedRow, Rows


@dataclass(frozen=True)
class KnownGroup:
    """The rows of a group, and the sequence of the message that has the id of each, 0 for none."""

    rows: list[RefusedRow]
    sequences: list[int]

    @property
    def has_all(self) -> bool:
        """Whether the stream has the id of each row that has one."""
        for row, sequence in zip(self.rows, self.sequences, strict=True):
            if not sequence and row.message_id is not None:
                return False
        return True

    @property
    def has_none(self) -> bool:
        """Whether the stream has no id any more."""
        return not any(self.sequences)

    @property
    def has_twins(self) -> bool:
        """Whether two rows have the same id, so that the server never takes the group."""
        seen = set()
        for row in self.rows:
            if row.message_id in seen:
                return True
            if row.message_id is not None:
                seen.add(row.message_id)
        return False

    def has_made(self, task: WriteTask) -> bool:
        """Whether the stream has an id that the sink has made for the batch of a task."""
        for row, sequence in zip(self.rows, self.sequences, strict=True):
            # The server forgets each id by itself: when the duplicate window ends,
            # or when it starts again and the message is gone. So a stored group may lack some
            # of its ids (test_a_group_is_stored_of_which_a_server_has_lost_an_id).
            if sequence and row.message_id is not None and task.has_made(row.message_id):
                return True
        return False

    def all_sequences(self) -> list[int]:
        """Return the sequences of a group that is stored: its messages follow each other."""
        known = next(index for index, sequence in enumerate(self.sequences) if sequence)
        first = self.sequences[known] - known
        return [sequence or first + index for index, sequence in enumerate(self.sequences)]

    def to_send(self) -> Rows:
        """Return the rows as a group to send, with their ids."""
        rows = self.rows[0].rows.take(np.array([row.index for row in self.rows]))
        ids = binaries([row.message_id for row in self.rows])
        return replace(rows, ends=np.array([len(self.rows)]), msg_id=ids)

    def is_row(self, index: int, headers: bytes) -> bool:
        """Whether a message with this header block is the row with this index in the group."""
        row = self.rows[index]
        lines = headers.split(b"\r\n")
        if row.message_id is not None and b"Nats-Msg-Id: " + row.message_id not in lines:
            return False
        return GROUP_HEADER + b": " + (row.group or b"") in lines


def questions(known: Sequence[RefusedRow]) -> tuple[Rows, pa.BinaryArray]:
    """Return rows and ids to publish, whose answers say which messages have these ids."""
    # A roll-up of a kind that does not exist: the server looks for the id of the message before it
    # refuses it, and never stores it (nats-server: server/jetstream_batching.go,
    # checkMsgHeadersPreClusteredProposal).
    lines = repeated(b"Nats-Rollup: none\r\n", len(known))
    nothing = repeated(b"", len(known))
    rows = Rows(
        np.arange(len(known)), binaries([row.raw_subject for row in known]), nothing, lines, None
    )
    return rows, binaries([row.message_id for row in known])


def groups_of(known: Sequence[RefusedRow], sequences: Sequence[int]) -> Iterator[KnownGroup]:
    """Yield the groups of rows that follow each other, with the answers to `questions`."""
    places = zip(known, sequences, strict=True)
    for _, members in groupby(places, _group_of):
        rows = []
        found = []
        for row, sequence in members:
            rows.append(row)
            found.append(sequence)
        yield KnownGroup(rows, found)


def _group_of(place: tuple[RefusedRow, int]) -> bytes | None:
    # Compared by the whole name: the part that errors show may be that of another group as well.
    return place[0].group
