"""``spark-jetstream stream``: which servers of a cluster keep a stream."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_jetstream.commands.arguments import Force, Preferred, StreamName
from spark_jetstream.commands.framework import Run, alone, command

placing = alone()


@command(placing, "step-down", example="stream step-down ORDERS --preferred n2")
def step_down(
    run: Run,
    stream: StreamName,
    preferred: Preferred = None,
) -> None:
    """Let the leader of a stream give way to another server of the cluster; they elect one within seconds."""
    leader = next((each.server for each in run.admin.streams.replicas(stream) if each.leader), None)
    run.admin.streams.step_down(stream, preferred=preferred)
    run.out.done(
        f"{leader or 'the leader'} steps down from stream {stream}",
        stream=stream,
        leader_before=leader,
        preferred=preferred,
    )


@command(placing, "peer-remove", example="stream peer-remove ORDERS n3")
def remove_peer(
    run: Run,
    stream: StreamName,
    server: Annotated[str, typer.Argument(help="Name of the server.")],
    force: Force = False,
) -> None:
    """Take a server out of those that keep a stream; the cluster chooses another one, if it has one."""
    run.out.confirm(f"Remove server {server}, and its copy, from stream {stream}?", force=force)
    run.admin.streams.remove_peer(stream, server)
    run.out.done(f"server {server} no longer keeps stream {stream}", stream=stream, removed=server)
