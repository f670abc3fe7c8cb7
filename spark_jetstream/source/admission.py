"""How many of the waiting messages go into one micro-batch. Pure.

Limits are counted in messages that match the filter, with a few probes. Counts only decide about sizes: a stream that
changes while it is counted can make a batch a little larger or smaller, never lose or repeat a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.search import Bracket, Point, Probe, find_cut

#: The most questions that `limit_end` asks.
LIMIT_PROBES = 32

# The calls of a first search; if messages were published during it there is a second one.
_SEARCH_PROBES = 14

# Those that are not part of a search: pending(start) and pending(end), the first message, the last one.
_FIXED_PROBES = 4

# After so many steps a cut that holds 15/16 of the limit is good enough: the next step may cost 85 ms.
_EXACT_STEPS = 7


def share(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """Share a limit of messages among streams in proportion to what waits in each.

    No stream gets more than its backlog, and together they get ``min(limit, sum of backlogs)``. Each stream with a
    backlog gets at least one message; if the limit is too small for that, the longest backlogs come first, and of equal
    ones the first by name. A negative backlog counts as 0.
    """
    shares = dict.fromkeys(sorted(backlogs), 0)
    waiting = sorted(
        (name for name in shares if backlogs[name] > 0), key=lambda name: (-backlogs[name], name)
    )
    for name in waiting[: max(0, limit)]:
        shares[name] = 1
    more = {name: backlogs[name] - 1 for name in waiting}
    total = sum(more.values())
    rest = min(limit - len(waiting), total)
    if rest <= 0:
        return shares
    for name in waiting:
        shares[name] += rest * more[name] // total
    # Rounding down left less than one for each stream with a fraction: the largest fractions get it.
    left = len(waiting) + rest - sum(shares.values())
    for name in sorted(waiting, key=lambda name: (-(rest * more[name] % total), name))[:left]:
        shares[name] += 1
    return shares


def bytes_to_messages(max_bytes: int, state: StreamSummary) -> int:
    """Return ``maxBytesPerTrigger`` as a number of messages, at least 1.

    A soft limit, by the mean stored size of all messages; those that match a filter may be larger or smaller.
    """
    if state.messages <= 0 or state.bytes <= 0:
        return 1
    return max(1, max_bytes * state.messages // state.bytes)


def limit_end(start: int, end: int, limit: int, probe: Probe, total: int) -> tuple[int, int]:
    """Cut [``start``, ``end``) after its ``limit``-th (>= 1) matching message.

    Return one past the last message, and the timestamp (ns) of that.

    ``total`` matching messages were counted in the range; ``end`` should be one past one of them. Where no sequence
    from the first message on is missing, arithmetic gives the cut. Elsewhere at most `LIMIT_PROBES` questions, these
    included, look for it: exactly, as long as a handful is enough and nothing is published during the search; then for
    at least 15/16 of the limit; at last the best that was found counts, at least one message.

    The cut is never beyond ``end``, and beyond ``start`` if ``start < end``. If the messages are all within the limit,
    or all removed, the end stays. The timestamp is 0 when the last message is gone.
    """
    first = probe.peek(start)
    if first is None or first[0] >= end:
        return end, 0
    total = min(max(total, 1), end - first[0])
    if total <= limit:
        return end, _timestamp(probe, end - 1)
    if limit == 1:
        return first[0] + 1, first[1]
    if total == end - first[0]:
        cut = first[0] + limit
        return cut, _timestamp(probe, cut - 1)
    return _search_end(Point(first[0], 0), Point(end, total), limit, probe)


def _search_end(low: Point, high: Point, limit: int, probe: Probe) -> tuple[int, int]:
    # The cut has one message less than the limit below it: a peek from there finds the last one.
    wanted = limit - 1
    pending = probe.pending(low.sequence)

    def below(sequence: int) -> int:
        return pending - probe.pending(sequence)

    enough = (max(1, wanted - limit // 16), wanted)
    bracket = find_cut(below, probe, low, high, window=(wanted, wanted), probes=_EXACT_STEPS)
    if bracket.low.below < wanted:
        left = _SEARCH_PROBES - bracket.used
        bracket = find_cut(below, probe, bracket.low, bracket.high, window=enough, probes=left)
    if probe.pending(high.sequence) != pending - high.below:
        bracket = _search_again(low, Point(bracket.low.sequence, high.below), high, enough, probe)
    last = probe.peek(bracket.low.sequence)
    if last is None or last[0] >= high.sequence:
        # What was counted there has been removed: nothing is left before the end.
        return high.sequence, 0
    return last[0] + 1, last[1]


def _search_again(
    low: Point, place: Point, high: Point, window: tuple[int, int], probe: Probe
) -> Bracket:
    """Search below `place`, which the first search found, while messages are published.

    These raise each later answer, so that the count below a sequence was too low. The mean of the answers for the end
    before and after corrects that, as long as messages are published evenly.
    """
    later = probe.pending(high.sequence)

    def below(sequence: int) -> int:
        nonlocal later
        before, waiting, later = later, probe.pending(sequence), probe.pending(high.sequence)
        return high.below - max(0, waiting - (before + later) // 2)

    if place.sequence <= low.sequence:
        # Nothing is below the first message, whatever a stream answers from which messages are removed.
        return Bracket(low, low, 1)
    place = Point(place.sequence, min(max(below(place.sequence), low.below), high.below))
    if place.below <= window[1]:
        return Bracket(place, place, 3)
    steps = (LIMIT_PROBES - _SEARCH_PROBES - _FIXED_PROBES - 3) // 2
    return find_cut(below, probe, low, place, window=window, probes=steps)


def _timestamp(probe: Probe, sequence: int) -> int:
    message = probe.peek(sequence)
    return message[1] if message is not None and message[0] == sequence else 0
