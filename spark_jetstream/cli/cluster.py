"""``spark-jetstream cluster``: requests of the system account about the JetStream of a cluster."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import Force, Preferred

cluster = group("cluster", "A cluster, for its system account: leader, servers, accounts.")


@command(cluster, "step-down", example="cluster step-down --preferred n2 --context system")
def step_down(run: Run, preferred: Preferred = None, force: Force = False) -> None:
    """Let the server that keeps the metadata of the cluster give way to another one."""
    run.out.confirm("Let the leader of the cluster step down?", force=force)
    run.admin.cluster.step_down(preferred=preferred)
    run.out.done("the leader of the cluster steps down", preferred=preferred)


@command(cluster, "remove", example="cluster remove n3 --context system")
def remove(
    run: Run,
    server: Annotated[str, Argument(help="Name of the server.")],
    force: Force = False,
) -> None:
    """Remove a server that does not come back. Streams that only it keeps lose their messages."""
    run.out.confirm(f"Remove server {server}, and all that only it keeps?", force=force)
    run.admin.cluster.remove_server(server)
    run.out.done(f"server {server} was removed", removed=server)


@command(cluster, "purge-account", example="cluster purge-account SHOP --context system")
def purge(
    run: Run,
    account: Annotated[str, Argument(help="Name of the account.")],
    force: Force = False,
) -> None:
    """Delete all streams and consumers of an account."""
    run.out.confirm(f"Delete all streams and consumers of account {account}?", force=force)
    run.admin.cluster.purge_account(account)
    run.out.done(
        f"the streams and consumers of account {account} are being deleted",
        account=account,
    )
