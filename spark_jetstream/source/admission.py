"""How many of the waiting messages go into one micro-batch. Pure.

Limits are counted in messages that match the filter, with a few probes. Counts only decide about
sizes: a stream that changes while it is counted can make a batch a little larger or smaller, never
lose or repeat a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.search import Point, Probe, find_cut

#: The most questions that `limit_end` asks.
LIMIT_PROBES = 32

# The calls of a first search; if messages were published during it there is a second one.
_SEARCH_PROBES = 14

# Those that are not part of a search: pending(start) and pending(end), the first message, the last
# one.
_FIXED_PROBES = 4

# After so many steps a cut that holds 15/16 of the limit is good enough: the next step may cost 85
# ms.
_EXACT_STEPS = 7


def share(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """Share a limit of messages among streams in proportion to what waits in each.

    No stream gets more than its backlog, and together they get ``min(limit, sum of backlogs)``.
    Each stream with a backlog gets at least one message. If the limit is too small for that, the
    longest backlogs get one first, and among equal ones the first by name. A negative backlog
    counts as 0.
    """
    shares = dict.fromkeys(sorted(backlogs), 0)
    # The order of equal backlogs stays: by name.
    waiting = [name for name in shares if backlogs[name] > 0]
    waiting.sort(key=backlogs.__getitem__, reverse=True)
    for name in waiting[: max(0, limit)]:
        shares[name] = 1
    more = {name: backlogs[name] - 1 for name in sorted(waiting)}
    total = sum(more.values())
    rest = min(limit - len(waiting), total)
    if rest <= 0:
        return shares
    for name in waiting:
        shares[name] += rest * more[name] // total
    # Rounding down left less than one for each stream with a fraction: the largest fractions get
    # it, of equal ones the first by name.
    left = len(waiting) + rest - sum(shares.values())
    fractions = {name: rest * more[name] % total for name in more}
    for name in sorted(fractions, key=fractions.__getitem__, reverse=True)[:left]:
        shares[name] += 1
    return shares


def bytes_to_messages(max_bytes: int, state: StreamSummary) -> int:
    """Return ``maxBytesPerTrigger`` as a number of messages, at least 1.

    A soft limit, by the mean stored size of all messages; those that match a filter may be larger
    or smaller.
    """
    if state.messages <= 0 or state.bytes <= 0:
        return 1
    return max(1, max_bytes * state.messages // state.bytes)


def limit_end(start: int, end: int, limit: int, probe: Probe, total: int) -> tuple[int, int]:
    """Cut [``start``, ``end``) after its ``limit``-th (>= 1) matching message.

    Return one past the last message, and the timestamp (ns) of that.

    ``total`` matching messages were counted in the range; ``end`` should be one past one of them.
    Where no sequence from the first message on is missing, arithmetic gives the cut. Elsewhere a
    search gives it, with at most `LIMIT_PROBES` questions, the first ones included:

    - It looks for the exact cut while a handful of questions is enough and nothing is published
      meanwhile.
    - Then it looks for a cut with at least 15/16 of the limit.
    - At last it takes the best cut found, with at least one message.

    The cut is never beyond ``end``, and beyond ``start`` if ``start < end``. If the messages are
    all within the limit, or all removed, the end stays. The timestamp is 0 when the last message is
    gone.
    """
    found = probe.peek(start)
    if found is None or found[0] >= end:
        return end, 0
    first, stored_at = found
    width = end - first
    total = min(max(total, 1), width)
    if total <= limit:
        return end, _timestamp(probe, end - 1)
    if limit == 1:
        return first + 1, stored_at
    if total == width:
        cut = first + limit
        return cut, _timestamp(probe, cut - 1)
    return _search_end(Point(first, 0), Point(end, total), limit, probe)


def _search_end(low: Point, high: Point, limit: int, probe: Probe) -> tuple[int, int]:
    """Return what `limit_end` does, of the messages between two points."""
    pending = probe.pending(low.sequence)

    def below(sequence: int) -> int:
        return pending - probe.pending(sequence)

    # The cut has one message less than the limit below it: a peek from there finds the last one.
    wanted = limit - 1
    exactly = (wanted, wanted)
    nearly = (max(1, wanted - limit // 16), wanted)
    bracket = find_cut(below, probe, low, high, window=exactly, probes=_EXACT_STEPS)
    if bracket.low.below < wanted:
        left = _SEARCH_PROBES - bracket.used
        bracket = find_cut(below, probe, bracket.low, bracket.high, window=nearly, probes=left)
    cut = bracket.low.sequence
    if probe.pending(high.sequence) != pending - high.below:
        # Messages were published during the search.
        cut = _search_again(low, cut, high, nearly, probe)
    last = probe.peek(cut)
    if last is None or last[0] >= high.sequence:
        # What was counted there has been removed: nothing is left before the end.
        return high.sequence, 0
    return last[0] + 1, last[1]


class _MovingCount:
    """Counts the messages below a sequence while messages are published after a range.

    These raise each later answer, so that a plain count below a sequence is too low. The mean of
    the answers for the end before and after corrects that, as long as messages are published
    evenly. Each count takes two questions, and the first one three.
    """

    def __init__(self, end: Point, probe: Probe) -> None:
        self._end = end
        self._probe = probe
        self._after_end = probe.pending(end.sequence)

    def below(self, sequence: int) -> int:
        """Return how many messages of the range are below a sequence."""
        before = self._after_end
        waiting = self._probe.pending(sequence)
        self._after_end = self._probe.pending(self._end.sequence)
        in_range = waiting - (before + self._after_end) // 2
        return self._end.below - max(0, in_range)


def _search_again(low: Point, cut: int, high: Point, window: tuple[int, int], probe: Probe) -> int:
    """Return a cut at or below `cut`, which the first search found while messages were published."""
    if cut <= low.sequence:
        # Nothing is below the first message, whatever a stream answers from which messages are
        # removed.
        return low.sequence
    moving = _MovingCount(high, probe)
    counted = Point(cut, min(max(moving.below(cut), low.below), high.below))
    if counted.below <= window[1]:
        return cut
    steps = (LIMIT_PROBES - _SEARCH_PROBES - _FIXED_PROBES - 3) // 2
    return find_cut(moving.below, probe, low, counted, window=window, probes=steps).low.sequence


def _timestamp(probe: Probe, sequence: int) -> int:
    """Return the timestamp (ns) of the message at a sequence, 0 if it is gone."""
    found = probe.peek(sequence)
    if found is None or found[0] != sequence:
        return 0
    return found[1]
