"""Leaders of streams and consumers that give way until all servers of a cluster lead about as many."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from spark_jetstream.admin.models.streams import replicas


class LeaderMove(NamedTuple):
    """The leader of a stream, or of a consumer (stream and name), and the server that it gives way to."""

    names: tuple[str, ...]
    leader: str
    preferred: str


class Balanced:
    """What `Streams` and `Consumers` inherit."""

    infos: Any
    step_down: Any

    def balance(self, *only: str, dry_run: bool = False) -> list[LeaderMove]:
        """Let leaders step down until no server leads two more than one that could; return these moves.

        ``only`` is the argument of ``infos``. ``dry_run`` changes nothing. No election is awaited. Raises `ApiError`.
        """
        groups = {_names(info): replicas(info.cluster) for info in self.infos(*only) if info.cluster}
        before = {names: group[0].server for names, group in groups.items() if group and group[0].leader}
        leaders, led = dict(before), Counter(before.values())
        while True:
            possible = (
                (led[leader] - led[replica.server], names, replica.server)
                for names, leader in leaders.items()
                for replica in groups[names]
                if replica.current and not replica.offline
            )
            gain, names, server = max(possible, default=(0, (), ""))
            if gain < 2:
                break
            led[leaders[names]] -= 1
            led[server] += 1
            leaders[names] = server
        moves = [LeaderMove(names, was, leaders[names]) for names, was in before.items() if was != leaders[names]]
        for move in () if dry_run else moves:
            self.step_down(*move.names, preferred=move.preferred)
        return moves


def _names(info: Any) -> tuple[str, ...]:
    return (info.stream_name, info.name) if hasattr(info, "stream_name") else (info.config.name,)
