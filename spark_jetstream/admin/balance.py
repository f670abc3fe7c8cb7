"""Balancing: leaders of streams and consumers step down until they are spread evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_jetstream.admin.models.streams import Replica, replicas

Names = tuple[str, ...]


class LeaderMove(NamedTuple):
    """A leader, and the server that it gives way to.

    ``names`` has the stream, or stream and consumer.
    """

    names: Names
    leader: str
    preferred: str


class Balanced:
    """The methods that `Streams` and `Consumers` share."""

    infos: Any
    step_down: Any

    def balance(self, *only: str, dry_run: bool = False) -> list[LeaderMove]:
        """Let leaders step down until they are spread evenly over their servers; return the moves.

        Then no server leads two more than another one that could lead in its place.

        ``only`` is the argument of ``infos``. ``dry_run`` changes nothing. No election is awaited.
        Raises `ApiError`.
        """
        groups = {}
        for info in self.infos(*only):
            # Outside of a cluster there is no other server that could lead.
            if info.cluster:
                groups[_names(info)] = replicas(info.cluster)
        moves = _moves(groups)
        if not dry_run:
            for move in moves:
                self.step_down(*move.names, preferred=move.preferred)
        return moves


def _moves(groups: Mapping[Names, Sequence[Replica]]) -> list[LeaderMove]:
    """Return the moves that spread the leaders of groups of replicas evenly over their servers."""
    before = {}
    for names, group in groups.items():
        # `replicas` puts the leader first. A group without one has an election first.
        if group and group[0].leader:
            before[names] = group[0].server
    # `leaders` has the planned leader of each group, `led` the number of groups that a server
    # leads. Each move makes these numbers more even, so the loop ends.
    leaders = dict(before)
    led = Counter(before.values())
    while True:
        gain, names, server = _best_move(groups, leaders, led)
        # A gain of one only exchanges the two servers.
        if gain < 2:
            break
        led[leaders[names]] -= 1
        led[server] += 1
        leaders[names] = server
    # A group may have moved several times: only its last server counts.
    moves = [LeaderMove(names, was, leaders[names]) for names, was in before.items()]
    return [move for move in moves if move.preferred != move.leader]


def _best_move(
    groups: Mapping[Names, Sequence[Replica]], leaders: Mapping[Names, str], led: Counter[str]
) -> tuple[int, Names, str]:
    """Return the move that helps most: by how many leaders its servers differ, group and server."""
    best: tuple[int, Names, str] = (0, (), "")
    for names, leader in leaders.items():
        for replica in groups[names]:
            # A server whose replica is behind cannot take over.
            if replica.current and not replica.offline:
                gain = led[leader] - led[replica.server]
                best = max(best, (gain, names, replica.server))
    return best


def _names(info: Any) -> Names:
    """Return the arguments of ``step_down`` for a consumer (stream, name) or a stream."""
    if hasattr(info, "stream_name"):
        return info.stream_name, info.name
    return (info.config.name,)
