"""Faults of a cluster of three: of the leader of a stream or of the metadata, and of replicas."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.chaos.scenario import Fault
from tests.chaos.server_faults import shut_down

if TYPE_CHECKING:
    from tests.chaos.world import World


def leader_steps_down(world: World, fault: Fault) -> None:
    world.api(f"STREAM.LEADER.STEPDOWN.{_suffers(world, fault)}")
    world.cluster.wait_ready()


def rolling_update(world: World, fault: Fault) -> None:
    """Each server in turn is shut down and started again."""
    for index, server in enumerate(world.servers):
        shut_down(server)
        world.cluster.restart(index)


def leader_shut_down(world: World, fault: Fault) -> None:
    """The server that leads a stream is shut down and started again, the others are not."""
    index = _leader(world, fault)
    shut_down(world.servers[index])
    time.sleep(fault.seconds)
    world.cluster.restart(index)


def replicas_changed(world: World, fault: Fault) -> None:
    """Three replicas become one, and three again."""
    name = _suffers(world, fault)
    config = world.api(f"STREAM.INFO.{name}")["config"]
    for replicas in (1, 3):
        world.api(f"STREAM.UPDATE.{name}", {**config, "num_replicas": replicas})
        world.cluster.wait_ready()


def _suffers(world: World, fault: Fault) -> str:
    """The stream that a fault concerns."""
    names = [
        name
        for query in world.scenario.queries
        for name in query.configs(3)
        if name not in query.passing
    ]
    return names[fault.target % len(names)]


def _leader(world: World, fault: Fault) -> int:
    return world.cluster.leader_of(_suffers(world, fault))


def _meta_leader(world: World, fault: Fault) -> int:
    leader = world.servers[0].monitor("/jsz")["meta_cluster"]["leader"]
    return [server.name for server in world.servers].index(leader)


def _killed(find: Callable[[World, Fault], int], world: World, fault: Fault) -> None:
    index = find(world, fault)
    world.cluster.kill(index)
    time.sleep(fault.seconds)
    world.cluster.restart(index)


def _frozen(find: Callable[[World, Fault], int], world: World, fault: Fault) -> None:
    server = world.servers[find(world, fault)]
    server.pause()
    time.sleep(fault.seconds)
    server.resume()
    world.cluster.wait_ready()


leader_killed, leader_frozen = partial(_killed, _leader), partial(_frozen, _leader)
meta_leader_killed, meta_leader_frozen = (
    partial(_killed, _meta_leader),
    partial(_frozen, _meta_leader),
)
