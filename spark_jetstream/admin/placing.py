"""Where the replicas of a stream or a consumer are, and how they do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jetstream.admin.messages import DoneReply, PurgeReply
from spark_jetstream.admin.stream_replies import ClusterInfo
from spark_jetstream.errors import JetStreamError
from spark_jetstream.units import Nanoseconds


@dataclass(frozen=True)
class Replica:
    """One server that keeps a stream or a consumer. ``lag`` counts operations that it is behind the leader, and
    ``active`` how long ago the leader heard of it; both are 0 for the leader."""

    server: str
    leader: bool
    current: bool
    offline: bool
    lag: int
    active: Nanoseconds


def replicas(cluster: ClusterInfo | None) -> tuple[Replica, ...]:
    """The servers of a group, the leader first, then by name. When no leader is among them there is none now."""
    if cluster is None:
        return ()
    leader = [Replica(cluster.leader, True, True, False, 0, Nanoseconds(0))] if cluster.leader else []
    others = (
        Replica(each.name, False, each.current, each.offline, each.lag, each.active)
        for each in sorted(cluster.replicas, key=lambda each: each.name)
    )
    return (*leader, *others)


def confirm_done(reply: DoneReply | PurgeReply, context: str) -> None:
    """Raise `JetStreamError` when a reply does not say that it was done."""
    if not reply.success:
        raise JetStreamError(f"cannot {context}: the server does not say that it was done")
