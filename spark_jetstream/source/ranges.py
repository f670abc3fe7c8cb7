"""From offsets to half-open sequence ranges ``[first, end)``, one for each task. Pure.

A task reads all messages of its range that match, whatever was counted when it was planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple

from spark_jetstream.protocol.stream import Removals, SequenceRange
from spark_jetstream.source.offsets import Cuts, Offset, StreamPosition

#: The most tasks of one micro-batch, unless `minPartitions` asks for more. Spark starts each of
#: them and keeps its state on the driver, so that larger tasks are faster beyond this number.
MAX_PIECES = 10_000


def ranges_between(start: Offset, end: Offset, subjects: Sequence[str] = ()) -> list[SequenceRange]:
    """Return what a batch from ``start`` to ``end`` reads: a range for each stream, sorted by name.

    None is empty, except for a stream that ``end`` has cuts of and whose range has gone since.

    - A stream of both offsets is read from the one ``next`` to the other.
    - A stream that was created again between the two is read from sequence 1.
    - A stream that is only in ``end`` was added to the query. The batch that adds it reads nothing
      of it, and the next one begins at its position in ``end``. So a batch that is run again never
      depends on the current time.
    - A stream whose position goes back (it lost its tail) is not read in this batch either, for the
      same reason.
    - A stream that is only in ``start`` was removed from the query.
    """
    ranges: list[SequenceRange] = []
    for name, to in end.streams.items():
        first = _first_to_read(start.streams.get(name), to)
        if first < to.next or name in end.cuts:
            first = min(first, to.next)
            ranges.append(SequenceRange(name, first, to.next, None, to.created, tuple(subjects)))
    return ranges


def _first_to_read(since: StreamPosition | None, to: StreamPosition) -> int:
    if since is None:
        return to.next
    if since.created != to.created:
        return 1
    return since.next


def shares(
    counts: Mapping[str, int], *, max_messages: int, min_partitions: int = 1
) -> tuple[dict[str, int], int]:
    """Share the tasks of a micro-batch out among its streams. `counts`: the messages of each.

    Return the number of tasks of each stream (>= 1), and how many messages a task may have. A
    stream gets as few tasks as hold its messages. While these are fewer than ``min_partitions`` in
    all, the stream with the largest tasks gets one more, and among equal ones the first by name. A
    task without messages does not count. There are at most about `MAX_PIECES` tasks, of more than
    ``max_messages`` if need be, unless ``min_partitions`` asks for more. The same counts give the
    same tasks.
    """
    total = sum(counts.values())
    max_messages = max(max_messages, ceiling(total, MAX_PIECES))
    tasks = {name: max(1, ceiling(count, max_messages)) for name, count in counts.items()}
    # A heap: first the stream with the largest tasks, of equal ones the first by name.
    largest = [(-count / tasks[name], name) for name, count in counts.items() if count]
    heapify(largest)
    planned = sum(tasks[name] for _, name in largest)
    for _ in range(planned, min(min_partitions, total)):
        name = largest[0][1]
        tasks[name] += 1
        heapreplace(largest, (-counts[name] / tasks[name], name))
    return tasks, max_messages


class Split(NamedTuple):
    """How a range is cut into tasks.

    ``counts`` says how many messages each part of ``cuts`` has at least, None if that is not known.
    ``removals`` and ``sifted`` are those of `SequenceRange`. ``before`` is how many messages the
    range has at least before the first cut: none, unless ``subjects`` names more subjects than it
    did when the cuts were decided.
    """

    cuts: Cuts
    counts: Sequence[int | None]
    removals: Removals | None = None
    sifted: bool = False
    before: int = 0


def cut_at(whole: SequenceRange, split: Split) -> list[SequenceRange]:
    """Return the piece of each task, in order.

    The pieces cover the range, and each message has one place in them for good. Messages before the
    first cut belong to the first piece. A piece before the range is empty: message ids name the
    task, so that no other may get its number. The arithmetic is part of the offset's format.
    """
    ranges: list[SequenceRange] = []
    parts = pairwise(split.cuts[::2])
    for (begin, end), pieces, count in zip(parts, split.cuts[1::2], split.counts, strict=True):
        width = end - begin
        for number in range(pieces):
            low = begin + width * number // pieces
            high = begin + width * (number + 1) // pieces
            first = max(low, whole.first) if ranges else whole.first
            piece = replace(
                whole,
                first=min(first, high),
                end=high,
                count=_least_in_piece(high - low, width, count),
                removals=split.removals,
                sifted=split.sifted,
            )
            ranges.append(piece)
    if ranges[0].count is not None:
        ranges[0] = replace(ranges[0], count=ranges[0].count + split.before)
    return ranges


def _least_in_piece(sequences: int, width: int, count: int | None) -> int | None:
    """Return how many messages a piece has at least, None if that is not known.

    The piece has `sequences` sequences of a part, whose `width` sequences have `count` messages.
    """
    if count is None:
        return None
    # Any piece may be the one that lacks messages.
    least = sequences - (width - count)
    if least <= 0 and sequences < width:
        return None
    return least


def ceiling(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)
