"""The table of a Key-Value bucket as it was: planned on the driver, read and proven by one task.

The table as of revision R has the last revision up to R of each key, if that is a put. A server
keeps no old tables, only old revisions, and not all of them. The task reads the headers of all keys
up to R (`before`). Then it asks the leader for the state of the stream, and reads the headers of
all messages stored after R (`after`). A later write that removes a revision before its turn in
`before` is itself in `after`, or missing there.

The task yields rows only if these prove them:

- m is the last revision of a key in `before`.
- n is the number of its revisions in `after`.
- k is the largest number of revisions that a key has in `before`.

| found | the key as of R |
|---|---|
| every revision up to R | m if there is one, whatever was stored later |
| m, and none is missing between m and R | m |
| m, in order | m: a later one up to R would have outlived it |
| m, else | unknown: one between m and R may have expired by its own TTL, or was deleted |
| no m, n > 0, in order, traced, complete, n < k, no purge | none: the bucket keeps k of a key |
| no m, n > 0, else | unknown: it may be beyond the history, purged or expired |
| no m, n = 0, traced, complete, `before` not empty | none: a key of R has left something |
| no m, n = 0, else, and no m of all that `keys` lists is known | unknown |

The words of the table:

- In order: messages have no TTL of their own, none can go alone (`deny_delete`, retention `limits`,
  no schedules), and the stream is no mirror. A mirror never had the messages that its origin lost
  while they were apart.
- Traced: no living key vanishes without a message. This needs messages that cannot go alone, no
  mirror, and nothing evicted (`max_msgs`, `max_bytes`). It also needs limit markers, or nothing expired. A server
  leaves a marker when a key loses its only message, not when an older one comes to light (seen with
  2.15.1).
- Complete: nothing is missing in `after`. A deletion that a client has cleaned up (`PurgeDeletes`)
  is missing.
- Unknown: an error.

k, not the limit of now, bounds what the history drops, because the limit may have been smaller.

The task takes two things for granted. The TTL, the limit markers and `deny_delete` are those of the
time of R. Nobody has purged the subject of a living key by the stream's API in place of the
bucket's. With several replicas the leader confirms each revision that a later write can have
removed, since a replica that lags proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from spark_jetstream.buckets.kv import STREAM_PREFIX, keys
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import OptionError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.arrow import BoolArray, IntArray, as_vector, text_piece
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.direct_get import MergedReplies
from spark_jetstream.protocol.hashing import subject_hashes
from spark_jetstream.protocol.matching import Matcher
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.subjects import is_wild
from spark_jetstream.protocol.units import rfc3339, time_nanoseconds
from spark_jetstream.source.probes import probe_of
from spark_jetstream.streams.direct import read_direct, sifts
from spark_jetstream.streams.latest import TablePart
from spark_jetstream.streams.leader import look
from spark_jetstream.streams.lookup import message
from spark_jetstream.streams.pull import PullSettings, read_range

_ROLLUP = text_piece("Nats-Rollup")


@dataclass(frozen=True)
class PastTable(TablePart):
    """A bucket's table as of `revision`, for which `option` asks. Plain data that pickles.

    With `timed` a time was given. `revision` is then the one before the first revision that was
    stored later and is still in the stream. Revisions that are missing right before that one may
    have been stored earlier or later.
    """

    revision: int = 0
    timed: bool = False
    option: str = ""


def plan_past(
    part: TablePart, requests: Requests, state: StreamSummary, options: SourceOptions
) -> PastTable:
    """Return the task for the table as of the options' revision or time, of a bucket in this state.

    Raises `OptionError` for a revision or time that the bucket has not reached, and a time before
    it was created.
    """
    time = options.as_of_timestamp
    revision = options.as_of_revision or state.last_seq
    if revision > state.last_seq:
        raise OptionError(
            f"option asOfRevision is {revision}, but the last revision of bucket {options.bucket} "
            f"is {state.last_seq}",
            option="asOfRevision",
        )
    if time is not None:
        following = _first_after(time, part, requests, state)
        if following is not None:
            revision = following - 1
        fault = _fault_of_time(time, following, state)
        if fault:
            raise OptionError(
                f"option asOfTimestamp, bucket {options.bucket}: {rfc3339(time)} is {fault}",
                option="asOfTimestamp",
            )
    given = options.as_of or ""
    return PastTable(
        part.stream, part.created, part.subjects, part.direct, revision, time is not None, given
    )


def _first_after(
    time: int, part: TablePart, requests: Requests, state: StreamSummary
) -> int | None:
    """Return the first revision stored after a time (ns), None if there is none."""
    probe = probe_of(requests, state.name, (), direct=part.direct)
    probe.check(state)
    found = probe.first_after(time + 1, state)
    if found is None and state.num_replicas != 1:
        # A consumer may be on a replica that lags.
        found = probe_of(requests, state.name, (), direct=True).first_after(time + 1, state)
    return None if found is None else found[0]


def _fault_of_time(time: int, following: int | None, state: StreamSummary) -> str:
    """Return why a bucket cannot be read as of a time, "" if it can.

    ``following`` is the first revision stored later.
    """
    if time >= state.server_time:
        return f"not over by the server's clock ({rfc3339(state.server_time)})"
    if following is None and state.mirror:
        return "later than all that this mirror has, which may lag; read the bucket that it mirrors"
    revision = state.last_seq if following is None else following - 1
    if time < time_nanoseconds(state.created) and revision < state.first_kept:
        return f"before the bucket was created (at {state.created})"
    return ""


def read_past(
    connect: Connect, part: PastTable, settings: PullSettings, label: str
) -> Iterator[MessageRun]:
    """Yield the last message of each key up to `part.revision`, in stream order.

    Deletions are among them. Raises `OptionError`, perhaps after some messages, unless the bucket
    has kept enough to prove that these are all; and what `read_range` raises. The task holds up to
    80 bytes of memory for each revision.
    """
    yield from _PastReader(connect, part, replace(settings, fail_on_data_loss=True), label).read()


class _Heads:
    """The parts of some messages that a proof needs: of all in stream order, and of each key.

    A key is known by its hash. `first` and `last` are indices of `sequences`, and `counts` has the
    number of a key's messages. `wanted` says whether a filter matches the key. `purged` says
    whether one of its messages removed those before it (`Nats-Rollup`).
    """

    def __init__(self, runs: Iterator[MessageRun], filters: Sequence[str]) -> None:
        matcher = Matcher(filters)
        # Sequence, hash, whether it is wanted, whether it is a rollup; of no message to begin with.
        columns: list[tuple[npt.NDArray[Any], ...]] = [
            (
                np.zeros(0, np.int64),
                np.zeros(0, np.uint64),
                np.zeros(0, np.bool_),
                np.zeros(0, np.bool_),
            )
        ]
        for run in runs:
            subjects = run.raw_subjects()
            rollup = pc.map_lookup(run.headers(), _ROLLUP, "first")
            rolled_up = as_vector(pc.is_valid(rollup))
            columns.append(
                (run.sequences, subject_hashes(subjects), matcher.matches(subjects), rolled_up)
            )
        self.sequences, hashes, wanted, rolled_up = map(np.concatenate, zip(*columns, strict=True))
        # The messages of a key stand together, still in stream order.
        order = np.argsort(hashes, kind="stable")
        self.keys, places, self.counts = np.unique(
            hashes[order], return_index=True, return_counts=True
        )
        self.first: IntArray = order[places]
        self.last: IntArray = order[places + self.counts - 1]
        self.wanted: BoolArray = wanted[self.last]
        self.purged: BoolArray = np.isin(self.keys, hashes[rolled_up])


class _Removals:
    """How a stream may have removed revisions, by its configuration; the words of the module."""

    def __init__(self, state: StreamSummary) -> None:
        #: Whether single revisions can go without a trace, whatever their age.
        self.alone = (
            not state.deny_delete or state.allow_msg_schedules or state.retention != "limits"
        )
        kept_together = not (self.alone or state.mirror)
        self.in_order = kept_together and not state.allow_msg_ttl
        #: Whether a key can have vanished by a limit.
        self.vanished = _evicted(state) or _expired_unmarked(state)
        self.traced = kept_together and not self.vanished


def _lacks_beginning(state: StreamSummary) -> bool:
    return state.first_kept > state.initial_seq


def _evicted(state: StreamSummary) -> bool:
    """Whether `max_msgs` or `max_bytes` can have removed revisions."""
    return _lacks_beginning(state) and state.evicts


def _expired_unmarked(state: StreamSummary) -> bool:
    """Whether revisions can have expired without a marker in their place."""
    if state.subject_delete_marker_ttl > 0:
        return False
    # Also in a stream younger than max_age: a restored one is as young as its restoration.
    return state.allow_msg_ttl or (_lacks_beginning(state) and state.max_age > 0)


class _Proof:
    """A proof from the revisions before and after a table: the rules that the module lists.

    Vectors beside `before.keys`: `gaps`, `last`; beside `after.keys`: `fresh`, `pushed`, `first`.
    """

    def __init__(
        self, part: PastTable, state: StreamSummary, before: _Heads, after: _Heads
    ) -> None:
        self.part = part
        self.state = state
        self.before = before
        self.after = after
        self.removals = _Removals(state)
        # Before this sequence messages are missing, and after it, if any are.
        split = part.revision
        if part.timed and len(before.sequences):
            split = int(before.sequences[-1])
        self.complete = len(after.sequences) == state.last_seq - split
        #: The first later revision of a key, and the last one up to the table.
        self.first = after.sequences[after.first]
        self.last = before.sequences[before.last]
        #: Whether revisions are missing between the last one of a wanted key and the table.
        spanned = part.revision - self.last
        present = len(before.sequences) - 1 - before.last
        self.gaps = before.wanted & (spanned > present)
        #: Whether a wanted key has only later revisions.
        self.fresh = after.wanted & ~np.isin(after.keys, before.keys)
        #: How many revisions of a key are sure to be kept.
        self.kept = min(int(before.counts.max(initial=0)), state.max_msgs_per_subject)
        #: Whether later revisions can have pushed the one of the table out of the history.
        self.pushed = after.counts >= self.kept

    def unknown(self) -> int | None:
        """Return the first revision of a key of which the table is not known, None without one."""
        removals = self.removals
        certain = removals.in_order and removals.traced and self.complete
        unsure = self.fresh & (self.pushed | self.after.purged | (not certain))
        outlived = self.gaps & (not removals.in_order)
        revisions = [*self.last[outlived].tolist(), *self.first[unsure].tolist()]
        return min(revisions, default=None)

    def knows_the_absent(self) -> bool:
        """Whether keys without any revision are known to have had none."""
        if self._has_all_listed():
            return True
        return self.removals.traced and self.complete and len(self.before.sequences) > 0

    def _has_all_listed(self) -> bool:
        """Whether option keys lists single keys, and each of them has a revision."""
        subjects = self.part.subjects
        if not subjects or any(map(is_wild, subjects)):
            return False
        found = np.count_nonzero(self.before.wanted) + np.count_nonzero(self.fresh)
        return len(subjects) == int(found)

    def removable(self) -> list[int]:
        """Return the revisions that prove something, and that a later write can have removed."""
        gone = self.after.keys[self.pushed | self.after.purged]
        overtaken = self.gaps & np.isin(self.before.keys, gone)
        return [*self.last[overtaken].tolist(), *self.first[self.fresh].tolist()]

    def cause(self, at: int | None, key: str) -> str:
        """Return why the table is not known: of the key whose revision is `at`, or of any."""
        if self.state.mirror:
            return "this mirror lacks some, and does not say why: read the bucket that it mirrors"
        if self.removals.alone:
            return (
                "some are missing, and its stream lets single ones be removed (no deny_delete, or "
                "schedules)"
            )
        if at is not None:
            why = self._cause_of_key(at, key)
            if why:
                return why
        if self.removals.vanished:
            return "some have expired, or were evicted: a longer ttl (max_age) keeps them"
        if not self.complete:
            return (
                "later ones are missing too, maybe the deletion of a key: "
                f"{self._larger_history()} keeps more"
            )
        return "none up to it is left"

    def _cause_of_key(self, at: int, key: str) -> str:
        if at in self.first[self.after.purged]:
            return (
                f"key {key} was purged, or has expired, by revision {at}: a deletion keeps old ones"
            )
        if at in self.first[self.pushed]:
            count = int(self.after.counts[self.first == at].sum())
            return (
                f"key {key} has {count} later ones, and {self.kept} are sure to be kept: "
                f"{self._larger_history()} keeps more"
            )
        if self.state.allow_msg_ttl:
            return f"one of key {key} may have expired by a TTL of its own"
        return ""

    def _larger_history(self) -> str:
        return f"a larger history (max_msgs_per_subject {self.state.max_msgs_per_subject})"


class _PastReader:
    def __init__(
        self, connect: Connect, part: PastTable, settings: PullSettings, label: str
    ) -> None:
        self.connect = connect
        self.requests = Requests(connect, settings.retry_timeout)
        self.part = part
        self.settings = settings
        self.label = label
        self.whole = SequenceRange(part.stream, 1, part.revision + 1, None, part.created)

    def read(self) -> Iterator[MessageRun]:
        before = self._heads(self.whole)
        # Between the two: a later write is then in the second part.
        state = self.requests.call(partial(look, part=self.whole, first=1, settled=True))
        if len(before.sequences) < self.part.revision + 1 - state.initial_seq:
            self._prove(before, state)
        chosen = np.sort(before.sequences[before.last[before.wanted]])
        if not len(chosen):
            return
        count = 0
        part = replace(self.whole, first=int(chosen[0]), subjects=self.part.subjects)
        part = replace(part, sifted=sifts(state, part))
        for run in self._read(part, self.settings):
            # The rows whose sequences are among the chosen ones; the modulo keeps a place in range.
            places = chosen.searchsorted(run.sequences) % len(chosen)
            rows = np.flatnonzero(chosen[places] == run.sequences)
            count += len(rows)
            if len(rows):
                yield MergedReplies((run,), rows, run.sequences[rows])
        if count < len(chosen):
            raise self._unknown(
                f"{len(chosen) - count} of its revisions were removed while they were read"
            )

    def _read(self, part: SequenceRange, settings: PullSettings) -> Iterator[MessageRun]:
        reader = read_direct if self.part.direct else read_range
        return reader(self.connect, part, settings, self.label)

    def _heads(self, part: SequenceRange) -> _Heads:
        settings = replace(self.settings, headers_only=True)
        return _Heads(self._read(part, settings), self.part.subjects)

    def _prove(self, before: _Heads, state: StreamSummary) -> None:
        """Raise `OptionError` unless the table of the module has a proof for each key.

        Also for those that have no messages.
        """
        revision = self.part.revision
        end = max(revision, state.last_seq) + 1
        after = self._heads(replace(self.whole, first=revision + 1, end=end))
        proof = _Proof(self.part, state, before, after)
        at = proof.unknown()
        if at is None and proof.knows_the_absent():
            if state.num_replicas != 1:
                self._confirm_all(proof.removable())
            return
        key = "" if at is None else self._key(at)
        raise self._unknown(proof.cause(at, key))

    def _confirm_all(self, sequences: Sequence[int]) -> None:
        """Raise `OptionError` unless the leader has these revisions."""
        # Or fail: only where the leader may be asked, all of `before` has come.
        self._confirm(self.part.revision)
        for sequence in sequences:
            if not self._confirm(sequence):
                raise self._unknown(
                    f"revision {sequence} was removed while the table was read; read it again"
                )

    def _confirm(self, sequence: int) -> bool:
        """Whether the leader has a revision.

        Raises `PermissionDenied` if the account may not ask.
        """
        found = self.requests.call(partial(message, stream=self.part.stream, sequence=sequence))
        return found is not None

    def _key(self, sequence: int) -> str:
        """Return the key of a revision, "" if it is gone by now."""
        runs = self._read(replace(self.whole, first=sequence, end=sequence + 1), self.settings)
        return next((str(keys(run)[0]) for run in runs), "")

    def _unknown(self, why: str) -> OptionError:
        part = self.part
        bucket = part.stream.removeprefix(STREAM_PREFIX)
        return OptionError(
            f"option {part.option}: bucket {bucket} does not show what it held as of revision "
            f"{part.revision}: {why}",
            option=part.option,
        )
