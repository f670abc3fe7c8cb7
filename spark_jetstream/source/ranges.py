"""From offsets to half-open sequence ranges ``[first, end)``, one for each task. Pure.

A task reads all messages of its range that match, whatever was counted when it was planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from typing import NamedTuple

from spark_jetstream.protocol.stream import Removals, SequenceRange
from spark_jetstream.source.offsets import Cuts, Offset
from spark_jetstream.source.search import Point, Probe, find_cut

#: The most tasks of one micro-batch, unless `minPartitions` asks for more. Spark starts each of them and keeps its
#: state on the driver, so that larger tasks are faster beyond this number.
MAX_PIECES = 10_000

#: The most questions that `Survey` and `split` ask for one range.
SPLIT_PROBES = 64

# One cut between two pieces may take this many steps before its neighbourhood is good enough.
_CUT_STEPS = 12

# A side of so many pieces may be larger or smaller by an eighth: its pieces hardly differ from the others.
_MANY = 6


def ranges_between(start: Offset, end: Offset, subjects: Sequence[str] = ()) -> list[SequenceRange]:
    """Return what a batch from ``start`` to ``end`` reads: one range for each stream, sorted by name.

    None is empty, except for a stream that ``end`` has cuts of and whose range has gone since.

    - A stream of both offsets is read from the one ``next`` to the other.
    - A stream that was created again between the two is read from sequence 1.
    - A stream that is only in ``end`` was added to the query: the batch that adds it reads nothing of it, and the next
      one begins at its position in ``end``. So a batch that is run again never depends on the current time.
    - A stream whose position goes back (it lost its tail) is not read in this batch either, for the same reason.
    - A stream that is only in ``start`` was removed from the query.
    """
    ranges = []
    for name, to in end.streams.items():
        since = start.streams.get(name)
        first = to.next if since is None else since.next if since.created == to.created else 1
        if first < to.next or name in end.cuts:
            ranges.append(
                SequenceRange(name, min(first, to.next), to.next, None, to.created, tuple(subjects))
            )
    return ranges


class _Gapless(NamedTuple):
    """The `Probe` of a range up to ``end`` that misses no sequence."""

    end: int

    def pending(self, first: int) -> int:
        return self.end - first

    def peek(self, first: int) -> tuple[int, int] | None:
        return first, 0


class Survey:
    """Counts in a range of a stream that may change during the survey. Without a ``probe`` the range has no gap.

    Messages published after the range raise each later answer of the probe, so the difference of two answers is too
    low if the one for the lower sequence came first, and else too high by up to ``drift``.
    """

    def __init__(self, whole: SequenceRange, probe: Probe | None = None) -> None:
        self.whole = whole
        self.probe = probe or _Gapless(whole.end)
        self._total = self.probe.pending(whole.first)
        self._rest = self.probe.pending(whole.end)
        self.count = min(max(0, self._total - self._rest), whole.width)

    def below(self, sequence: int) -> int:
        """Return how many messages of the range are below a sequence."""
        return self._total - self.probe.pending(sequence)

    def drift(self) -> int:
        """Return how many messages have been published after the range since the survey began."""
        return max(0, self.probe.pending(self.whole.end) - self._rest)


def shares(
    counts: Mapping[str, int], *, max_messages: int, min_partitions: int = 1
) -> tuple[dict[str, int], int]:
    """Share the tasks of a micro-batch out among its streams, which have so many messages each.

    Return the number of tasks of each stream (>= 1), and how many messages a task may have. A stream gets as few tasks
    as hold its messages. While these are fewer than ``min_partitions`` in all, the stream with the largest tasks gets
    one more, of equal ones the first by name; a task without messages does not count. There are at most about
    `MAX_PIECES` tasks, of more than ``max_messages`` if need be, unless ``min_partitions`` asks for more. The same
    counts give the same tasks.
    """
    total = sum(counts.values())
    max_messages = max(max_messages, _ceil(total, MAX_PIECES))
    tasks = {name: max(1, _ceil(count, max_messages)) for name, count in counts.items()}
    largest = [(-count / tasks[name], name) for name, count in counts.items() if count]
    heapify(largest)
    for _ in range(sum(tasks[name] for _, name in largest), min(min_partitions, total)):
        _, name = largest[0]
        tasks[name] += 1
        heapreplace(largest, (-counts[name] / tasks[name], name))
    return tasks, max_messages


class Split(NamedTuple):
    """How a range is cut, and how many messages each part of ``cuts`` has at least, None if that is not known.

    ``removals`` and ``sifted`` are those of `SequenceRange`.
    """

    cuts: Cuts
    counts: Sequence[int | None]
    removals: Removals | None = None
    sifted: bool = False


def split(survey: Survey, *, max_messages: int, tasks: int = 1) -> Split:
    """Cut the range of a survey, which is not empty, into pieces of nearly equal size, one for each task.

    There are at least ``tasks`` (>= 1) if there are that many messages. Where arithmetic does not give the cuts, the
    probe is asked, at most `SPLIT_PROBES` times together with the survey. Beyond that a part is cut evenly by
    sequences: its pieces have the count None, and may hold more than ``max_messages`` or nothing. A range with a count
    of 0 is not cut, and still read: counts may be wrong.

    A task that finds less than ``count`` reports a loss. So counts by probes are lowered by the number of messages
    published since the survey began, and None if nothing is left. They are too high only where a replica of the stream
    lags, which the task finds out (`RangeReader.miscounted`).
    """
    whole, count = survey.whole, survey.count
    pieces = max(_ceil(count, max_messages), min(tasks, count), 1)
    if count == whole.width or pieces == 1:
        return _counted([_Part(pieces, Point(whole.first, 0), Point(whole.end, count))], survey)
    return _by_probes(survey, max_messages, pieces)


def count_again(survey: Survey, cuts: Cuts) -> Split:
    """Return cuts that were decided before with what their parts hold now, within the range of the survey."""
    whole = survey.whole

    def below(edge: int) -> int:
        if edge <= whole.first or edge >= whole.end:
            return survey.count if edge >= whole.end else 0
        # Messages published since the survey began make the answer too low.
        return min(max(survey.below(edge), 0), survey.count)

    points = [Point(edge, below(edge)) for edge in cuts[::2]]
    return _counted(
        [_Part(*each) for each in zip(cuts[1::2], points, points[1:], strict=False)], survey
    )


def cut_at(whole: SequenceRange, split: Split) -> list[SequenceRange]:
    """Return the piece of each task, in order: they cover the range, and each message has one place in them for good.

    What is before the first cut belongs to the first piece. A piece before the range is empty: message ids name the
    task, so that no other may get its number. The arithmetic is part of the offset's format.
    """
    ranges: list[SequenceRange] = []
    edges = pairwise(split.cuts[::2])
    for (begin, end), pieces, count in zip(edges, split.cuts[1::2], split.counts, strict=True):
        for low, high in pairwise(begin + (end - begin) * i // pieces for i in range(pieces + 1)):
            # Any piece may be the one that lacks messages.
            least = 0 if count is None else high - low - (end - begin - count)
            known = None if count is None or (pieces > 1 and least <= 0) else least
            first = max(low, whole.first) if ranges else whole.first
            piece = replace(whole, first=min(first, high), end=high, count=known)
            ranges.append(replace(piece, removals=split.removals, sifted=split.sifted))
    return ranges


def _pieces(count: int, most: int) -> int:
    """Return the fewest pieces that `count` messages fit in. Cuts miss their aim a little, so several have room."""
    return 1 if count <= most else _ceil(count, most - most // 8)


class _Part(NamedTuple):
    """The messages between two points, which become so many pieces."""

    pieces: int
    low: Point
    high: Point

    @property
    def size(self) -> int:
        return self.high.below - self.low.below

    @property
    def width(self) -> int:
        return self.high.sequence - self.low.sequence


def _by_probes(survey: Survey, most: int, least: int) -> Split:
    whole = survey.whole
    head = survey.probe.peek(whole.first)
    if head is None or head[0] >= whole.end:
        return _counted([_Part(1, Point(whole.first, 0), Point(whole.end, survey.count))], survey)
    left = SPLIT_PROBES - 4  # the peek, and three of the survey

    pieces = max(_pieces(survey.count, most), least)
    # The largest part first: what is still uncounted when the probes are used up is then as small as can be.
    todo = [(-pieces, _Part(pieces, Point(head[0], 0), Point(whole.end, survey.count)))]
    done: list[_Part] = []
    while todo:
        _, part = heappop(todo)
        cut = None
        if part.size < part.width:
            cut, used = _cut(part, survey, min(left, _CUT_STEPS))
            left -= used
        if cut is None:
            done.append(part)
            continue
        for side in _sides(part, cut, most):
            if side.pieces > 1:
                heappush(todo, (-side.pieces, side))
            else:
                done.append(side)
    return _counted(sorted(done, key=lambda part: part.low), survey)


def _counted(parts: Sequence[_Part], survey: Survey) -> Split:
    """Return cuts between and in these parts."""
    drift = survey.drift() if len(parts) > 1 else 0
    cuts, counts = [parts[0].low.sequence], list[int | None]()
    for part in parts:
        cuts += (min(part.pieces, part.width), part.high.sequence)
        known = cuts[-2] == 1 or part.size == part.width
        # A count of 0 would say that the piece is known to be empty.
        counts.append(
            part.size - drift if known and (part.size > drift or len(parts) == 1) else None
        )
    return Split(tuple(cuts), counts, survey.whole.removals, survey.whole.sifted)


def _cut(part: _Part, survey: Survey, probes: int) -> tuple[Point | None, int]:
    """Return a point near the middle of a part that has messages on both sides, and the number of probes used."""
    low, high, pieces, size = part.low, part.high, part.pieces, part.size
    ahead = pieces // 2
    aim = low.below + size * ahead // pieces
    # An eighth of a piece, but one message of few; of the whole side if its pieces are shared out again.
    slack = size * (ahead if ahead >= _MANY else 1) // pieces // 8
    slack = max(slack, 1 if size >= 3 * pieces else 0)
    window = max(aim - slack, low.below + ahead), min(aim + slack, high.below - (pieces - ahead))
    bracket = find_cut(survey.below, survey.probe, low, high, window=window, probes=probes)
    inside = [
        point for point in (bracket.low, bracket.high) if low.below < point.below < high.below
    ]
    return min(inside, key=lambda point: abs(point.below - aim), default=None), bracket.used


def _sides(part: _Part, cut: Point, most: int) -> tuple[_Part, _Part]:
    ahead = cut.below - part.low.below
    after = part.size - ahead
    share_ahead = min(
        max(1, _ceil(2 * part.pieces * ahead - part.size, 2 * part.size)), part.pieces - 1
    )
    return (
        _Part(max(share_ahead, _pieces(ahead, most)), part.low, cut),
        _Part(max(part.pieces - share_ahead, _pieces(after, most)), cut, part.high),
    )


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
