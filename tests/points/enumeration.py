"""All histories with one end, or with two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

from tests.points.reads import Reading
from tests.points.wire import Moment, Stop
from tests.points.writes import History, Place, World

Played: TypeAlias = "History | Reading"
_TOGETHER = 100  # histories whose streams forget at the same time


class Visited(NamedTuple):
    """The states that were visited: `points` are the requests before which, and so on, a run ended."""

    protocol: str
    points: int
    states: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.protocol}: {self.points} points, {self.states} states, {self.seconds:.1f} s"


def visit_all(
    world: World,
    protocol: str,
    make: Callable[[Sequence[Stop]], Played],
    *,
    within: str = "",
    pairs: bool = False,
) -> Visited:
    """Visit each end of a run at each of its requests; with `pairs` each end of the next run, too.

    Ends that leave the server the same have the same next run, whose ends are visited once. Only
    requests of processes whose names begin with `within` count. Raises `AssertionError` if a
    state was not visited, or was not the same each time.
    """
    begun = time.monotonic()
    # The first write to a server makes the ledger.
    _, whole = _played(world, [make([]), make([])])
    chosen = _numbers(whole.places, within)
    points = len(chosen)
    singles = _played(world, (make([Stop(*at)]) for at in _product(chosen)))
    first = {tuple(history.stops): history for history in singles}
    assert len(first) == points * len(Moment)
    for (stop,), history in first.items():
        expected = whole.places[stop.point - 1]
        assert history.ends == [expected], f"{stop}: {history.ends}, and not {expected}"
    states = len(first)
    if pairs:
        points, states = _visit_pairs(world, make, first, within)
    return Visited(protocol, points, states, time.monotonic() - begun)


def _visit_pairs(
    world: World,
    make: Callable[[Sequence[Stop]], Played],
    first: dict[tuple[Stop, ...], Played],
    within: str,
) -> tuple[int, int]:
    """Return how many pairs of points there are, and how many states were visited."""
    pairs = 0
    states = 0
    for stops, history in _representatives(first).items():
        chosen = _numbers(history.places, within)
        made = (make([*stops, Stop(*at)]) for at in _product(chosen))
        seconds = {tuple(each.stops): each for each in _played(world, made)}
        assert len(seconds) == len(chosen) * len(Moment)
        for (_, stop), each in seconds.items():
            assert each.ends == [*history.ends, history.places[stop.point - 1]], (stops, each.ends)
        pairs += len(chosen)
        states += len(seconds)
    return pairs, len(first) + states


def _representatives(
    first: dict[tuple[Stop, ...], Played],
) -> dict[tuple[Stop, ...], Played]:
    """Leave out each end that differs from the one before only in what the ended run has seen.

    These are the end with the reply to a request, after that without, and the end before the next
    request. They count all the same if Spark has noted something in between, or if the next run
    makes other requests.
    """
    kept = dict(list(first.items())[:1])
    for (_, before), ((stop,), history) in pairwise(first.items()):
        # At this moment the server has got one request more than before.
        same_server = stop.moment is not Moment.HELD
        same_next = (history.noted, history.places) == (before.noted, before.places)
        if not (same_server and same_next):
            kept[(stop,)] = history
    return kept


def _numbers(places: Sequence[Place], within: str) -> list[int]:
    return [number for number, place in enumerate(places, 1) if place.process.startswith(within)]


def _product(numbers: Iterable[int]) -> Iterator[tuple[int, Moment]]:
    return ((number, moment) for number in numbers for moment in Moment)


def _played(world: World, histories: Iterable[Played]) -> list[Played]:
    """Play histories to their ends, and let their streams forget where these yield."""
    remaining = iter(histories)
    ended: list[Played] = []
    while some := list(islice(remaining, _TOGETHER)):
        ended += some
        going = [(history, history.play()) for history in some]
        while going:
            going = [(history, steps) for history, steps in going if _goes_on(history, steps)]
            forgetting = {each.stream: each.config for each, _ in going if each.forgets}
            if forgetting:
                world.forget(forgetting)
    return ended


def _goes_on(history: Played, steps: Iterator[None]) -> bool:
    try:
        next(steps)
    except StopIteration:
        return False
    except BaseException as error:
        # Python 3.10 has no notes.
        if hasattr(error, "add_note"):
            error.add_note(f"{history.stops} at {history.ends}")
        raise
    return True
