"""The ledger's entry of a batch, `<write>.batch`: which run owns it, and where its rows began.

A run is one job of Spark that writes the batch. Its tasks share the entry, and so does the driver's
commit. The first of them takes the batch over from an earlier run, whose tasks then store nothing
more: each reads the entry before it sends (`sink.ledger`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import DeliveryError
from spark_jetstream.sink.ledger_entry import OLD_RUN, BatchEntry, LedgerSlot, Notes, fought_over
from spark_jetstream.sink.message_ids import WriteTask

TRIES = 20

log = logging.getLogger(__name__)


class BatchRecord:
    """The entry of the batch of `task`, as one attempt of the task sees it, or the driver.

    `entry` is the one that was read or written last. `seen` is when this object last asked for it
    and found that this run owned the batch, by `clock`. Tasks of this run know within `lease`
    seconds that another run has taken the batch over. `wall_clock` has the time of day, in seconds
    since the epoch. Methods raise `DeliveryError` if another run owns the batch, and what
    `Requests.call` does.
    """

    def __init__(
        self,
        requests: Requests,
        task: WriteTask,
        lease: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.entry = BatchEntry(task.batch, task.run, lease)
        self.seen = float("-inf")
        self._clock = clock
        self._wall_clock = wall_clock
        self._task = task
        self._lease = lease
        key = f"{task.write}.batch"
        self._slot = LedgerSlot(requests, key, task.expires, BatchEntry.from_json)

    def join(self) -> BatchEntry:
        """Take the batch over for this run, unless the batch is done. Return the entry."""
        for _ in range(TRIES):
            self.seen = self._clock()
            known, self._slot.revision = self._slot.read()
            self.entry = self._joined(known)
            if self.entry == known and not self._must_renew():
                return self.entry
            if self._slot.write(self.entry):
                if known is None:
                    self._warn_of_another_level()
                return self.entry
        raise fought_over(self._slot)

    def _joined(self, known: BatchEntry | None) -> BatchEntry:
        task = self._task
        if known is None or known.batch < task.batch:
            return BatchEntry(task.batch, task.run, self._lease)
        if known.batch > task.batch:
            raise begun_already(task, known.batch)
        if known.run == OLD_RUN:
            raise begun_by_old_release(task)
        if known.done or known.run == task.run:
            return known
        if task.run in known.earlier:
            raise self.superseded()
        # The notes of its streams stay: the search for rows of earlier runs begins there.
        return replace(
            known,
            run=task.run,
            earlier=[*known.earlier, known.run],
            settled=False,
            lease=max(known.lease, self._lease),
        )

    def _warn_of_another_level(self) -> None:
        """Warn of the first batch of a query in the ledger, if the query has written others before.

        Another level of option delivery makes other message ids, or none.
        """
        if self._task.batch > 0:
            log.warning(
                "batch %d of %s is its first one with delivery exactly-once. If an earlier run "
                "began this batch with another level, the rows that it had stored may be stored "
                "again",
                self._task.batch,
                self._task.write,
            )

    def _must_renew(self) -> bool:
        """Whether the entry expires, and a quarter of its time is over.

        Each task that begins then writes it again.
        """
        expires = self._task.expires
        if expires is None or not self._slot.written:
            return False
        return self._wall_clock() - self._slot.written / 1e9 > expires / 4

    def still_owned(self) -> bool:
        """Read the entry, and return whether the answer is current.

        Raises `DeliveryError` if this run does not own the batch.
        """
        asked = self._clock()
        entry, revision = self._slot.read()
        if revision < self._slot.revision:
            # A server that was just elected leader may not have applied the last write yet.
            return False
        if entry is None or entry.batch != self._task.batch or entry.run != self._task.run:
            raise self.superseded()
        if entry.done:
            raise self.superseded()
        self.entry = entry
        self.seen = asked
        self._slot.revision = revision
        return True

    def wait(self) -> None:
        """Wait until tasks of earlier runs store nothing more."""
        if self.entry.settled:
            return
        threading.Event().wait(self.entry.lease)
        self._change(lambda entry: replace(entry, settled=True))

    def note_streams(self, notes: Notes) -> None:
        """Note where streams end, before the first row of this batch goes there.

        Notes that are there already stay.
        """
        self._change(lambda entry: replace(entry, streams={**notes, **entry.streams}))

    def note_anew(self, notes: Notes) -> None:
        """Note streams that were deleted and made again."""
        self._change(lambda entry: replace(entry, streams={**entry.streams, **notes}))

    def renew(self) -> None:
        """Write the entry again, so that it does not expire."""
        self._change(replace, always=True)

    def finish(self, report: Mapping[str, Any]) -> None:
        """Note that the batch is done, with what it has stored."""
        self._change(lambda entry: replace(entry, done=True, report=dict(report)))

    def _change(self, change: Callable[[BatchEntry], BatchEntry], *, always: bool = False) -> None:
        for _ in range(TRIES):
            changed = change(self.entry)
            if changed == self.entry and not always:
                return
            if self._slot.write(changed):
                self.entry = changed
                return
            # Another task of the batch has written.
            self.still_owned()
        raise fought_over(self._slot)

    def superseded(self) -> DeliveryError:
        """Return the error for a run that does not own the batch any more."""
        return DeliveryError(
            f"another run has taken batch {self._task.batch} of {self._task.write} over; this one "
            "stores nothing more"
        )


def begun_already(task: WriteTask, later: int) -> DeliveryError:
    """Return the error for a batch that is written after a later one."""
    return DeliveryError(
        f"batch {task.batch} of this query is written again, but batch {later} was begun already: "
        "is the query running twice, or from an older copy of its checkpoint?"
    )


def begun_by_old_release(task: WriteTask) -> DeliveryError:
    """Return the error for a batch whose rows have message ids of another form."""
    return DeliveryError(
        f"batch {task.batch} of {task.write} was begun by an earlier release of spark-jetstream: "
        "let that release finish it, or let this batch through with deduplicated (option delivery)"
    )
