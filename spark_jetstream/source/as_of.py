"""The table of a Key-Value bucket as it was: planned on the driver, read and proven by one task.

The table as of revision R has the last revision up to R of each key, if that is a put. A server keeps no old tables,
only what is left of old revisions. The task reads the headers of all keys up to R (`before`), asks the leader for the
state of the stream, and reads the headers of what was stored after R (`after`). A later write that removes a revision
before its turn in `before` is itself in `after`, or missing there.

The task yields rows only if these prove them. m is the last revision of a key in `before`, n the number of its
revisions in `after`, k the largest number of revisions that a key has in `before`:

| what there is | the key as of R |
|---|---|
| every revision up to R | m if there is one, whatever came later |
| m, and none is missing between m and R | m |
| m, in order | m: a later one up to R would have outlived it |
| m, else | unknown: one between m and R may have expired by a TTL of its own, or was deleted |
| no m, n > 0, in order, traced, complete, n < k, no purge | none: the bucket keeps k revisions of a key since R |
| no m, n > 0, else | unknown: it may be beyond the history, purged or expired |
| no m, n = 0, traced, complete, `before` not empty | none: what lived as of R has left something |
| no m, n = 0, else, and no m of all that `keys` lists is known | unknown |

In order: messages have no TTL of their own, none can be deleted alone (`deny_delete`), and the stream is no mirror (it
never had what its origin lost while they were apart). Traced: no living key vanishes without a message: `deny_delete`,
no mirror, nothing evicted (`max_msgs`, `max_bytes`), and limit markers or nothing expired. A server leaves a marker
when a key loses its only message, not when an older one comes to light (seen with 2.15.1). Complete: nothing is missing
in `after`; a deletion that a client has cleaned up (`PurgeDeletes`) is. k, not the limit of now, bounds what the
history drops: the limit may have been smaller. Unknown is an error.

Taken for granted: the TTL, the limit markers and `deny_delete` are those of the time of R, and nobody has purged the
subject of a living key by the stream's API in place of the bucket's. With several replicas the leader confirms each
revision that a later write can have removed, since a replica that lags proves nothing.
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

    With `timed` a time was given: `revision` is the one before the first that is left of those stored later, and what
    is missing right before that may have been stored earlier or later.
    """

    revision: int = 0
    timed: bool = False
    option: str = ""


def plan_past(
    part: TablePart, requests: Requests, state: StreamSummary, options: SourceOptions
) -> PastTable:
    """Return the task for the table as of the options' revision or time, of a bucket in this state.

    Raises `OptionError` for a revision or time that the bucket has not reached, and a time before it was created.
    """
    time, revision = options.as_of_timestamp, options.as_of_revision or state.last_seq
    if revision > state.last_seq:
        raise OptionError(
            f"option asOfRevision is {revision}, but the last revision of bucket {options.bucket} is {state.last_seq}",
            option="asOfRevision",
        )
    if time is not None:
        probe = probe_of(requests, state.name, (), direct=part.direct)
        probe.check(state)
        following = probe.first_after(time + 1, state)
        if following is None and state.num_replicas != 1:
            # A consumer may be on a replica that lags.
            following = probe_of(requests, state.name, (), direct=True).first_after(time + 1, state)
        revision = following[0] - 1 if following else state.last_seq
        fault = ""
        if time >= state.server_time:
            fault = f"not over by the server's clock ({rfc3339(state.server_time)})"
        elif following is None and state.mirror:
            fault = "later than all that this mirror has, which may lag; read the bucket that it mirrors"
        elif time < time_nanoseconds(state.created) and revision < state.first_kept:
            fault = f"before the bucket was created (at {state.created})"
        if fault:
            raise OptionError(
                f"option asOfTimestamp, bucket {options.bucket}: {rfc3339(time)} is {fault}",
                option="asOfTimestamp",
            )
    given = options.as_of or ""
    return PastTable(
        part.stream, part.created, part.subjects, part.direct, revision, time is not None, given
    )


def read_past(
    connect: Connect, part: PastTable, settings: PullSettings, label: str
) -> Iterator[MessageRun]:
    """Yield the last message of each key up to `part.revision`, deletions included, in stream order.

    Raises `OptionError`, perhaps after some messages, unless what the bucket has kept proves that these are all; and
    what `read_range` raises. The task holds up to 80 bytes of memory for each revision.
    """
    yield from _PastReader(connect, part, replace(settings, fail_on_data_loss=True), label).read()


class _Heads:
    """What a proof needs of some messages, of all keys, in stream order; and of each key, by its hash.

    `first` and `last` are places in `sequences`, `counts` the number of a key's messages, `wanted` whether a filter
    matches it, and `purged` whether one of its messages removed those before it (`Nats-Rollup`).
    """

    def __init__(self, runs: Iterator[MessageRun], filters: Sequence[str]) -> None:
        matcher = Matcher(filters)
        columns: list[tuple[npt.NDArray[Any], ...]] = [
            (
                np.zeros(0, np.int64),
                np.zeros(0, np.uint64),
                np.zeros(0, np.bool_),
                np.zeros(0, np.bool_),
            )
        ]
        for run in runs:
            subjects, rollup = run.raw_subjects(), pc.map_lookup(run.headers(), _ROLLUP, "first")
            rolled_up = as_vector(pc.is_valid(rollup))
            columns.append(
                (run.sequences, subject_hashes(subjects), matcher.matches(subjects), rolled_up)
            )
        self.sequences, hashes, wanted, rolled_up = map(np.concatenate, zip(*columns, strict=True))
        order = np.argsort(hashes, kind="stable")
        self.keys, places, self.counts = np.unique(
            hashes[order], return_index=True, return_counts=True
        )
        self.first: IntArray = order[places]
        self.last: IntArray = order[places + self.counts - 1]
        self.wanted: BoolArray = wanted[self.last]
        self.purged: BoolArray = np.isin(self.keys, hashes[rolled_up])


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
            rows = np.flatnonzero(
                chosen[chosen.searchsorted(run.sequences) % len(chosen)] == run.sequences
            )
            count += len(rows)
            if len(rows):
                yield MergedReplies((run,), rows, run.sequences[rows])
        if count < len(chosen):
            raise self._unknown(
                f"{len(chosen) - count} of its revisions were removed while they were read"
            )

    def _read(self, part: SequenceRange, settings: PullSettings) -> Iterator[MessageRun]:
        return (read_direct if self.part.direct else read_range)(
            self.connect, part, settings, self.label
        )

    def _heads(self, part: SequenceRange) -> _Heads:
        return _Heads(
            self._read(part, replace(self.settings, headers_only=True)), self.part.subjects
        )

    def _prove(self, before: _Heads, state: StreamSummary) -> None:
        """Raise `OptionError` unless the table of the module holds for each key, and each that has no messages."""
        part, revision = self.part, self.part.revision
        after = self._heads(
            replace(self.whole, first=revision + 1, end=max(revision, state.last_seq) + 1)
        )
        # Before this sequence messages are missing, and after it, if any are.
        split = int(before.sequences[-1]) if part.timed and len(before.sequences) else revision
        complete = len(after.sequences) == state.last_seq - split

        prefix = state.first_kept > state.initial_seq
        # Whether single revisions can go without a trace, whatever their age.
        alone = not state.deny_delete or state.allow_msg_schedules or state.retention != "limits"
        kept_together = not (alone or state.mirror)
        in_order = kept_together and not state.allow_msg_ttl
        marked = state.subject_delete_marker_ttl > 0
        # Also in a stream younger than max_age: a restored one is as young as its restoration.
        vanished = (prefix and state.evicts) or (
            not marked and (state.allow_msg_ttl or (prefix and state.max_age > 0))
        )
        traced = kept_together and not vanished

        first, last = after.sequences[after.first], before.sequences[before.last]
        gaps = before.wanted & (revision - last > len(before.sequences) - 1 - before.last)
        fresh = after.wanted & ~np.isin(after.keys, before.keys)
        most = state.max_msgs_per_subject
        kept = min(int(before.counts.max(initial=0)), most)
        pushed = after.counts >= kept
        unsure = fresh & (pushed | after.purged | (not (in_order and traced and complete)))
        outlived = gaps & (not in_order)
        at = min((*last[outlived], *first[unsure]), default=None)

        literal = not any(map(is_wild, part.subjects))
        listed = literal and 0 < len(part.subjects) == np.count_nonzero(
            before.wanted
        ) + np.count_nonzero(fresh)
        if at is None and (listed or (traced and complete and len(before.sequences))):
            if state.num_replicas != 1:
                self._confirm(
                    revision
                )  # or fail: only where the leader may be asked, all of `before` has come
                removable = np.isin(before.keys, after.keys[pushed | after.purged])
                for sequence in map(int, (*last[gaps & removable], *first[fresh])):
                    if not self._confirm(sequence):
                        raise self._unknown(
                            f"revision {sequence} was removed while the table was read; read it again"
                        )
            return
        key = "" if at is None else f"key {self._key(int(at))}"
        count, limit = (
            int(after.counts[first == at].sum()),
            f"a larger history (max_msgs_per_subject {most})",
        )
        causes = {
            "this mirror lacks some, and does not say why: read the bucket that it mirrors": state.mirror,
            "some are missing, and its stream lets single ones be removed (no deny_delete, or schedules)": alone,
            f"{key} was purged, or has expired, by revision {at}: a deletion keeps old ones": at
            in first[after.purged],
            f"{key} has {count} later ones, and {kept} are sure to be kept: {limit} keeps more": at
            in first[pushed],
            f"one of {key} may have expired by a TTL of its own": at and state.allow_msg_ttl,
            "some have expired, or were evicted: a longer ttl (max_age) keeps them": vanished,
            f"later ones are missing too, maybe the deletion of a key: {limit} keeps more": not complete,
            "none up to it is left": True,
        }
        raise self._unknown(next(why for why, holds in causes.items() if holds))

    def _confirm(self, sequence: int) -> bool:
        """Whether the leader has a revision. Raises `PermissionDenied` if the account may not ask."""
        return (
            self.requests.call(partial(message, stream=self.part.stream, sequence=sequence))
            is not None
        )

    def _key(self, sequence: int) -> str:
        """Return the key of a revision, "" if it is gone by now."""
        runs = self._read(replace(self.whole, first=sequence, end=sequence + 1), self.settings)
        return next((str(keys(run)[0]) for run in runs), "")

    def _unknown(self, why: str) -> OptionError:
        part, bucket = self.part, self.part.stream.removeprefix(STREAM_PREFIX)
        return OptionError(
            f"option {part.option}: bucket {bucket} does not show what it held as of revision {part.revision}: {why}",
            option=part.option,
        )
