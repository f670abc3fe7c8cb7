"""``spark-jetstream cluster``: requests of the system account about the JetStream of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import Force, Preferred, StreamName
from spark_jetstream.cli.output import as_data
from spark_jetstream.errors import printable

if TYPE_CHECKING:
    from spark_jetstream.admin.models.cluster import RescueReply

AccountName = Annotated[str, Argument(help="Name of the account.")]

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


@command(cluster, "evacuate", example="cluster evacuate n3 --context system")
def evacuate(
    run: Run,
    server: Annotated[str, Argument(help="Name of the server.")],
    force: Force = False,
) -> None:
    """Move all replicas of streams and consumers off a server, before it is taken away. Needs server 2.15.

    A stream goes on with fewer replicas if no other server can take one. Its last replica stays if no
    other server can take it: look at the streams before you remove the server.
    """
    run.out.confirm(f"Move all replicas off server {server}?", force=force)
    run.admin.cluster.evacuate_server(server)
    run.out.done(f"replicas move off server {server}", evacuated=server)


@command(cluster, "rescue", example="cluster rescue 1 --context system")
def rescue(
    run: Run,
    quorum: Annotated[int, Argument(min=1, help="How many servers must agree.")],
    force: Force = False,
) -> None:
    """Let fewer servers decide, in a cluster that has lost most of them for good. Unsafe. Needs server 2.15.

    It ends by itself after minutes: meanwhile remove the lost servers with cluster remove.
    """
    question = f"Let {quorum} of the servers decide, as if the others were lost for good?"
    run.out.confirm(question, force=force)
    run.out.table(run.admin.cluster.rescue(quorum), _rescue_row, data=as_data)


def _rescue_row(reply: RescueReply) -> dict[str, object]:
    return {
        "server": printable(reply.server),
        "had to agree": reply.prev_quorum,
        "have to agree": reply.new_quorum,
        "refused": printable(reply.reason),
    }


@command(
    cluster, "move-stream", example="cluster move-stream SHOP ORDERS --off n3 --context system"
)
def move_stream(
    run: Run,
    account: AccountName,
    stream: StreamName,
    off: Annotated[
        str | None,
        Option(metavar="SERVER", help="The server whose replica moves; any by default."),
    ] = None,
    tags: Annotated[
        list[str] | None,
        Option(help="A tag that the new server must have; may be repeated."),
    ] = None,
    force: Force = False,
) -> None:
    """Move a replica of an account's stream to another server, or the stream to another cluster."""
    run.out.confirm(f"Move stream {stream} of account {account}?", force=force)
    run.admin.cluster.move_stream(account, stream, server=off, tags=tags or ())
    run.out.done(f"stream {stream} of account {account} moves", account=account, stream=stream)


@command(cluster, "cancel-move", example="cluster cancel-move SHOP ORDERS --context system")
def cancel_move(run: Run, account: AccountName, stream: StreamName, force: Force = False) -> None:
    """Take back a change of servers, replicas or retention of an account's stream that is under way."""
    noun = f"stream {stream} of account {account}"
    run.out.confirm(f"Take back the change of {noun} that is under way?", force=force)
    run.admin.cluster.cancel_move(account, stream)
    run.out.done(f"{noun} goes back to what it was", account=account, stream=stream, cancelled=True)


@command(cluster, "purge-account", example="cluster purge-account SHOP --context system")
def purge(
    run: Run,
    account: AccountName,
    force: Force = False,
) -> None:
    """Delete all streams and consumers of an account."""
    run.out.confirm(f"Delete all streams and consumers of account {account}?", force=force)
    run.admin.cluster.purge_account(account)
    run.out.done(
        f"the streams and consumers of account {account} are being deleted",
        account=account,
    )
