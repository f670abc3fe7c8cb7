"""How the range of one stream is cut into tasks of nearly equal size, with a few questions.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.offsets import Cuts
from spark_jetstream.source.ranges import Split, ceiling
from spark_jetstream.source.search import Point, Probe, find_cut

#: The most questions that `Survey` and `split` ask for one range.
SPLIT_PROBES = 64

# Those that are not part of a search: the peek, and three of the survey.
_FIXED_PROBES = 4

# One cut between two pieces may take this many steps before its neighbourhood is good enough.
_CUT_STEPS = 12

# A side of so many pieces may be larger or smaller by an eighth: its pieces hardly differ from the
# others.
_MANY = 6


class _Gapless(NamedTuple):
    """The `Probe` of a range up to ``end`` that misses no sequence."""

    end: int

    def pending(self, first: int) -> int:
        return self.end - first

    def peek(self, first: int) -> tuple[int, int] | None:
        return first, 0


class Survey:
    """Counts in a range of a stream that may change during the survey.

    Without a ``probe`` the range has no gap. Messages published after the range raise each later
    answer of the probe. So the difference of two answers is too low if the probe first answered for
    the lower sequence. Otherwise it is too high by up to ``drift``.
    """

    def __init__(self, whole: SequenceRange, probe: Probe | None = None) -> None:
        self.whole = whole
        self.probe = probe or _Gapless(whole.end)
        self._from_first = self.probe.pending(whole.first)
        self._from_end = self.probe.pending(whole.end)
        self.count = min(max(0, self._from_first - self._from_end), whole.width)

    @property
    def low(self) -> Point:
        """The first sequence of the range."""
        return Point(self.whole.first, 0)

    @property
    def high(self) -> Point:
        """The end of the range."""
        return Point(self.whole.end, self.count)

    def below(self, sequence: int) -> int:
        """Return how many messages of the range are below a sequence."""
        return self._from_first - self.probe.pending(sequence)

    def point(self, edge: int) -> Point:
        """Return a sequence inside or outside of the range, with the messages of it below."""
        if edge >= self.whole.end:
            return Point(edge, self.count)
        if edge <= self.whole.first:
            return Point(edge, 0)
        # Messages published since the survey began make the answer too low.
        return Point(edge, min(max(self.below(edge), 0), self.count))

    def drift(self) -> int:
        """Return how many messages have been published after the range since the survey began."""
        return max(0, self.probe.pending(self.whole.end) - self._from_end)


class _Part(NamedTuple):
    """The messages between two points, which are to be cut into ``pieces`` pieces."""

    pieces: int
    low: Point
    high: Point

    @property
    def size(self) -> int:
        return self.high.below - self.low.below

    @property
    def width(self) -> int:
        return self.high.sequence - self.low.sequence


def split(survey: Survey, *, max_messages: int, tasks: int = 1) -> Split:
    """Cut the range of a survey, which is not empty, into a piece of nearly equal size for each task.

    There are at least ``tasks`` (>= 1) if there are that many messages. Where arithmetic does not
    give the cuts, the probe is asked, at most `SPLIT_PROBES` times together with the survey. Beyond
    that a part is cut evenly by sequences: its pieces have the count None, and may hold more than
    ``max_messages`` or nothing. A range with a count of 0 is not cut, and still read: counts may be
    wrong.

    A task that finds less than ``count`` reports a loss. So counts by probes are lowered by the
    number of messages published since the survey began, and None if nothing is left. They are too
    high only where a replica of the stream lags, which the task finds out
    (`RangeReader.miscounted`).
    """
    count = survey.count
    pieces = max(ceiling(count, max_messages), min(tasks, count), 1)
    if count == survey.whole.width or pieces == 1:
        return _counted([_Part(pieces, survey.low, survey.high)], survey)
    return _split_by_probes(survey, max_messages, pieces)


def count_again(survey: Survey, cuts: Cuts) -> Split:
    """Return cuts that were decided before with the messages that their parts have now.

    Messages outside of the survey's range do not count.
    """
    parts: list[_Part] = []
    first = survey.point(cuts[0])
    low = first
    for pieces, edge in zip(cuts[1::2], cuts[2::2], strict=True):
        high = survey.point(edge)
        parts.append(_Part(pieces, low, high))
        low = high
    return _counted(parts, survey)._replace(before=first.below)


def _split_by_probes(survey: Survey, max_messages: int, least_pieces: int) -> Split:
    """Halve parts until each has one piece, or the probes are used up."""
    first = survey.probe.peek(survey.whole.first)
    if first is None or first[0] >= survey.whole.end:
        return _counted([_Part(1, survey.low, survey.high)], survey)
    left = SPLIT_PROBES - _FIXED_PROBES
    pieces = max(_pieces(survey.count, max_messages), least_pieces)
    # The largest part first: what is still uncounted when the probes are used up is then as small
    # as can be.
    todo = [(-pieces, _Part(pieces, Point(first[0], 0), survey.high))]
    done: list[_Part] = []
    while todo:
        _, part = heappop(todo)
        cut = None
        # A part without gaps is cut by arithmetic.
        if part.size < part.width:
            cut, used = _find_middle(part, survey, min(left, _CUT_STEPS))
            left -= used
        if cut is None:
            done.append(part)
            continue
        for side in _sides(part, cut, max_messages):
            if side.pieces > 1:
                heappush(todo, (-side.pieces, side))
            else:
                done.append(side)
    return _counted(sorted(done, key=attrgetter("low")), survey)


def _pieces(count: int, max_messages: int) -> int:
    """Return the fewest pieces that `count` messages fit in."""
    if count <= max_messages:
        return 1
    # Cuts miss their aim a little, so several have room.
    return ceiling(count, max_messages - max_messages // 8)


def _find_middle(part: _Part, survey: Survey, probes: int) -> tuple[Point | None, int]:
    """Return a point near the middle of a part, and the number of probes used.

    The point has messages on both sides; None if the probes found none.
    """
    low = part.low
    high = part.high
    pieces_below = part.pieces // 2
    pieces_above = part.pieces - pieces_below
    aim = low.below + part.size * pieces_below // part.pieces
    # An eighth of a piece; of the whole side if its pieces are shared out again.
    slack_of = pieces_below if pieces_below >= _MANY else 1
    slack = part.size * slack_of // part.pieces // 8
    if part.size >= 3 * part.pieces:
        # One message of few.
        slack = max(slack, 1)
    bracket = find_cut(
        survey.below,
        survey.probe,
        low,
        high,
        # No piece may be left without a message.
        window=(
            max(aim - slack, low.below + pieces_below),
            min(aim + slack, high.below - pieces_above),
        ),
        probes=probes,
    )
    middle = None
    for point in (bracket.low, bracket.high):
        is_inside = low.below < point.below < high.below
        if is_inside and (middle is None or abs(point.below - aim) < abs(middle.below - aim)):
            middle = point
    return middle, bracket.used


def _sides(part: _Part, cut: Point, max_messages: int) -> tuple[_Part, _Part]:
    """Return what is below and above a cut, with the pieces shared out by messages."""
    size_below = cut.below - part.low.below
    size_above = part.size - size_below
    # The share of the pieces, rounded to the nearest number; each side gets at least one.
    share_below = ceiling(2 * part.pieces * size_below - part.size, 2 * part.size)
    share_below = min(max(1, share_below), part.pieces - 1)
    share_above = part.pieces - share_below
    return (
        _Part(max(share_below, _pieces(size_below, max_messages)), part.low, cut),
        _Part(max(share_above, _pieces(size_above, max_messages)), cut, part.high),
    )


def _counted(parts: Sequence[_Part], survey: Survey) -> Split:
    """Return cuts between and in these parts."""
    drift = survey.drift() if len(parts) > 1 else 0
    cuts = [parts[0].low.sequence]
    counts: list[int | None] = []
    for part in parts:
        pieces = min(part.pieces, part.width)
        cuts += (pieces, part.high.sequence)
        is_known = pieces == 1 or part.size == part.width
        # A count of 0 would say that the piece is known to be empty.
        has_messages = part.size > drift or len(parts) == 1
        counts.append(part.size - drift if is_known and has_messages else None)
    return Split(tuple(cuts), counts, survey.whole.removals, survey.whole.sifted)
