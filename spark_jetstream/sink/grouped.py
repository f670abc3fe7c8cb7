"""Grouped: holds the rows of groups until the task has got its last row, and sends whole groups."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from spark_jetstream.errors import DeliveryError
from spark_jetstream.protocol.pub_ack import RefusalCode
from spark_jetstream.sink.groups import sorted_out, whole_groups
from spark_jetstream.sink.known_groups import KnownGroup, groups_of, questions
from spark_jetstream.sink.order import Free
from spark_jetstream.sink.portions import PORTION_BYTES
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.sender import Sender

MOST_HELD = 1 << 30
"""Bytes of the rows with a group that a task holds. An Arrow array holds less than twice as many.
"""


class Grouped(Free):
    """Sends groups whole. Rows without a group are sent at once.

    `most_held` is the limit of the bytes of all rows with a group.
    """

    def __init__(self, sender: Sender, *, most_held: int = MOST_HELD) -> None:
        super().__init__(sender)
        self._most_held = most_held
        self._groups: set[bytes] = set()
        self._held: list[Rows] = []
        self._held_bytes = 0
        #: Rows of groups that the stream refused for a message id: in part at least they are
        #: stored.
        self._known: list[RefusedRow] = []

    @property
    def groups(self) -> Set[bytes]:
        """The names of all groups so far."""
        return self._groups

    def accept(self, rows: Rows) -> Rows:
        """Hold the rows with a group. One that can never be stored takes its group along."""
        names = rows.commands.group
        assert names is not None
        self._groups.update(names.drop_null().unique().to_pylist())
        # The rows of a group may be anywhere in the partition, so the task holds them
        # until its last row.
        grouped = rows.take(np.flatnonzero(rows.grouped))
        self._held.append(grouped)
        self._held_bytes += grouped.data.nbytes + grouped.lines.nbytes
        if self._held_bytes > self._most_held:
            raise DeliveryError(
                "rows with an atomic_group have more than 1 GiB in a task: use more partitions"
            )
        return rows.take(np.flatnonzero(~rows.grouped))

    def handle_refused(self, rows: Sequence[RefusedRow]) -> None:
        """Keep rows whose ids the stream knows, to find out about them, and give up the others."""
        others = []
        for row in rows:
            # The server does not say which id of the group it has, nor whether it has all of them.
            if row.err_code == RefusalCode.BATCH_HAS_KNOWN_ID:
                self._known.append(row)
            else:
                others.append(row)
        if others:
            self.sender.give_up(others)

    def finish(self) -> None:
        """Send the groups, and wait until each is stored or given up."""
        if self._groups:
            for rows in whole_groups(self._held, self.sender.most, PORTION_BYTES):
                self._send_groups(rows)
        self.wait()
        self._settle_known()

    def _send_groups(self, rows: Rows) -> None:
        """Send the rows of whole groups."""
        sender = self.sender
        # Ids are made once, before rows are left out: equal rows of a group are numbered.
        rows = replace(rows, msg_id=sender.ids(rows))
        found = Totals(claims=sender.totals.claims)
        missing, _ = sender.without_stored(rows, rows.msg_id, found)
        self.settle()
        refused, left = sorted_out(rows, missing.number)
        # Only whole groups count as stored before: a part of one is refused with the rest of it.
        skipped = sender.totals.skipped
        done = len(rows) - len(refused) - len(left)
        skipped.stored += done
        skipped.duplicates += done
        skipped.note_all(found.streams)
        sender.refuse(refused)
        self.settle()
        if len(left):
            sender.publish(left, left.msg_id)
            self.settle()
        self._settle_known()

    def _settle_known(self) -> None:
        """Find out what became of groups that the stream refused for a message id that it has."""
        publisher = self.sender.publisher
        while self._known:
            # The others of each group are refused as well, one by one.
            self.wait()
            known = self._known
            self._known = []
            rows, ids = questions(known)
            # The totals are thrown away: a question is no row of the task.
            flight = publisher.publish(rows, ids, self.sender.stream, Totals(), any_stream=True)
            # An id that the stream does not have is refused, which is the answer.
            while publisher.wait():
                publisher.take_refused()
            # A sequence of 0 means that the stream does not have the id.
            for group in groups_of(known, flight.sequences.tolist()):
                self._settle_known_group(group)
            self.wait()

    def _settle_known_group(self, group: KnownGroup) -> None:
        """Count a group as stored, give it up, or send it again if the stream has forgotten it."""
        sender = self.sender
        if group.has_none and not group.has_twins:
            # The stream has forgotten all ids since it refused the group.
            # It is sent as after the duplicate window
            # (test_message_ids_that_the_stream_forgets_while_they_are_looked_for), unless the
            # ledger finds it.
            again = group.to_send()
            sender.publish(again, again.msg_id, repeated=True)
        elif self._is_stored(group):
            for sequence in group.all_sequences():
                sender.totals.stored.note_duplicate(sender.stream or "", sequence)
        else:
            # An id of the user's is that of another row, or of two rows of the group.
            sender.give_up(group.rows)

    def _is_stored(self, group: KnownGroup) -> bool:
        """Whether the stream has a group, some of whose ids it may have forgotten."""
        if group.has_all:
            return True
        if group.has_none:
            return False
        sender = self.sender
        # A group is stored whole or not at all, so one id that the sink has made tells of all rows.
        if sender.message_ids is not None and group.has_made(sender.task):
            return True
        # An id of the user's may be that of another row, so each message of the group is compared.
        for index, sequence in enumerate(group.all_sequences()):
            headers = sender.publisher.headers_of(sender.stream, sequence)
            if headers is None or not group.is_row(index, headers):
                return False
        return True
