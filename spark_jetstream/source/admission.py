"""How much of what is there goes into one micro-batch.

Limits are counted in messages that match the filter, with a few probes. Counts are a matter of size only: a
stream that moves while it is counted can make a batch a little larger or smaller, never lose or repeat a
message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_jetstream.protocol.stream import StreamState
from spark_jetstream.source.probe import Bracket, CachedProbe, Point, Probe, find_cut

#: The most questions that `limit_end` asks.
LIMIT_PROBES = 32

# The calls of a first search; if messages were published meanwhile there is a second one.
_SEARCH_PROBES = 14

# Those that are not part of a search: pending(start) and pending(end), the first message, the last one.
_FIXED_PROBES = 4

# After so many steps a cut that holds 15/16 of the limit is good enough: the next step may cost 85 ms.
_EXACT_STEPS = 7


class Cut(NamedTuple):
    """Where a batch ends: one past its last message, how many it holds, and the timestamp (ns) of the last,
    or 0."""

    end: int
    messages: int
    last_timestamp: int


def admit(available: int, minimum: int | None, waited: float, delay: float, *, available_now: bool = False) -> bool:
    """Whether a batch starts now (``minMessagesPerTrigger``, ``maxTriggerDelay``).

    ``available`` messages wait, the first of them was seen ``waited`` seconds ago. Without a minimum any
    message will do. With ``available_now`` (Trigger.AvailableNow, Trigger.Once) nothing is waited for.
    Nothing available: no batch.
    """
    if available <= 0:
        return False
    return available_now or minimum is None or available >= minimum or waited >= delay


def share(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """Shares a limit of messages among streams in proportion to what waits in each.

    No stream gets more than its backlog, and together they get ``min(limit, sum of backlogs)``. Each stream
    with a backlog gets at least one message; if the limit is too small for that, the longest backlogs come
    first. Equal backlogs are told apart by name, so the result depends on the arguments only. A negative
    backlog counts as 0.
    """
    shares = dict.fromkeys(sorted(backlogs), 0)
    waiting = sorted((name for name in shares if backlogs[name] > 0), key=lambda name: (-backlogs[name], name))
    for name in waiting[: max(0, limit)]:
        shares[name] = 1
    rest = limit - len(waiting)
    more = {name: backlogs[name] - 1 for name in waiting}
    total = sum(more.values())
    if rest <= 0 or total == 0:
        return shares
    rest = min(rest, total)
    for name in waiting:
        shares[name] += rest * more[name] // total
    # Rounding down left less than one for each stream with a fraction: the largest fractions get it.
    left = rest - sum(rest * size // total for size in more.values())
    for name in sorted(waiting, key=lambda name: (-(rest * more[name] % total), name))[:left]:
        shares[name] += 1
    return shares


def bytes_to_messages(max_bytes: int, state: StreamState) -> int:
    """``maxBytesPerTrigger`` as a number of messages, at least 1.

    A soft limit: it goes by the mean stored size of all messages of the stream, which counts subject, headers
    and a few bytes of storage besides the payload. Those that match a filter may be larger or smaller. An
    empty stream has no mean: 1.
    """
    if state.messages <= 0 or state.bytes <= 0:
        return 1
    return max(1, max_bytes * state.messages // state.bytes)


def limit_end(start: int, end: int, limit: int, probe: Probe, total: int) -> Cut:
    """Cuts [``start``, ``end``) behind its ``limit``-th (>= 1) matching message.

    ``total`` matching messages were counted in the range; ``end`` should be one past one of
    them. If they are all within the limit, the end stays. Where every sequence from the first message on is
    there, arithmetic gives the cut. Elsewhere it is looked for with at most `LIMIT_PROBES` questions, these
    included: exactly, as long as a handful is enough and nothing is published meanwhile; then with at least
    15/16 of the limit; at last with what was found, at least one message.

    The cut is never beyond ``end``, and beyond ``start`` if ``start < end``. If there is no message in the
    range any more, the end stays, with 0 messages. The timestamp is 0 when the last message is gone.
    """
    first = probe.peek(start)
    if first is None or first[0] >= end:
        return Cut(end, 0, 0)
    total = min(max(total, 1), end - first[0])
    if total <= limit:
        return Cut(end, total, _timestamp(probe, end - 1))
    if limit == 1:
        return Cut(first[0] + 1, 1, first[1])
    if total == end - first[0]:
        cut = first[0] + limit
        return Cut(cut, limit, _timestamp(probe, cut - 1))
    return _search_end(Point(first[0], 0), Point(end, total), limit, probe)


def _search_end(low: Point, high: Point, limit: int, probe: Probe) -> Cut:
    # One message less than the limit lies below the sequence looked for: the next one is learnt by peeking
    # from there.
    wanted = limit - 1
    pending = probe.pending(low.sequence)

    def below(sequence: int) -> int:
        return pending - probe.pending(sequence)

    def following(sequence: int) -> int | None:
        first = probe.peek(sequence)
        return None if first is None else first[0]

    enough = (max(1, wanted - limit // 16), wanted)
    found = find_cut(below, following, low, high, window=(wanted, wanted), probes=_EXACT_STEPS)
    if found.low.below < wanted:
        left = _SEARCH_PROBES - found.used
        found = find_cut(below, following, found.low, found.high, window=enough, probes=left)
    now = probe.uncached if isinstance(probe, CachedProbe) else probe
    if now.pending(high.sequence) != pending - high.below:
        found = _search_again(low, Point(found.low.sequence, high.below), high, enough, now)
    last = probe.peek(found.low.sequence)
    if last is None or last[0] >= high.sequence:
        # What was counted there has been removed meanwhile: nothing is left before the end.
        return Cut(high.sequence, found.low.below, 0)
    return Cut(last[0] + 1, found.low.below + 1, last[1])


def _search_again(low: Point, place: Point, high: Point, window: tuple[int, int], probe: Probe) -> Bracket:
    """As the first search, up to the place that it found, while messages are published.

    They raise each answer that comes later: what lies below a sequence seemed to be less than it is. The mean of
    the answers for the end before and after takes them out again, as long as they come evenly.
    """
    behind = probe.pending(high.sequence)

    def below(sequence: int) -> int:
        nonlocal behind
        before, waiting, behind = behind, probe.pending(sequence), probe.pending(high.sequence)
        return high.below - max(0, waiting - (before + behind) // 2)

    def following(sequence: int) -> int | None:
        first = probe.peek(sequence)
        return None if first is None else first[0]

    if place.sequence <= low.sequence:
        # Nothing lies below the first message, whatever a stream from which messages go meanwhile answers.
        return Bracket(low, low, 1)
    place = Point(place.sequence, min(max(below(place.sequence), low.below), high.below))
    if place.below <= window[1]:
        return Bracket(place, place, 3)
    steps = (LIMIT_PROBES - _SEARCH_PROBES - _FIXED_PROBES - 3) // 2
    return find_cut(below, following, low, place, window=window, probes=steps)


def _timestamp(probe: Probe, sequence: int) -> int:
    found = probe.peek(sequence)
    return found[1] if found is not None and found[0] == sequence else 0
