"""Faults of a single server, of its disk and its limits, and of the wire to it."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_jetstream.testing import NatsServer
from tests.chaos.scenario import Fault
from tests.support.reading import wait_until

if TYPE_CHECKING:
    from tests.chaos.world import World

_ROOM = 20_000  # bytes that streams may grow until the limit of the account is reached
_TOO_MUCH = 10002  # error code of a message that the account has no room for
_LOG = 4096  # bytes that the log of a server with a full disk may grow
_NO_ROOM = "file too large"
_LATE = 0.05  # seconds


#: For so long a server that shuts down keeps its connections.
GRACE = 'lame_duck_grace_period: "3s"'


def configuration(limits: str = "", more: str = "") -> str:
    """The configuration of a server whose clients are of one account, with these limits of
    JetStream.
    """
    users = 'users: [{ user: "app", password: "app" }]'
    account = f"jetstream: {{ max_mem: 1GB, max_file: 1TB, {limits} }}, {users}"
    room = "jetstream { max_file_store: 1TB }"
    return f'{room}\naccounts {{ APP {{ {account} }} }}\nno_auth_user: "app"\n{GRACE}\n{more}\n'


def lasting(
    begin: Callable[[World], object], end: Callable[[World], object]
) -> Callable[[World, Fault], None]:
    """Return a fault that lasts for its seconds."""

    def happen(world: World, fault: Fault) -> None:
        begin(world)
        try:
            time.sleep(fault.seconds)
        finally:
            end(world)

    return happen


server_killed = lasting(lambda world: world.server.kill(), lambda world: world.server.start())
server_frozen = lasting(lambda world: world.server.pause(), lambda world: world.server.resume())


def shut_down(server: NatsServer) -> None:
    """Let a server end as in a rolling update (lame duck).

    JetStream ends at once, and after a grace one connection a second; meanwhile the server takes no
    new connection. A server that began as an older one then starts as the present one.
    """
    os.kill(server.pid, signal.SIGUSR2)
    wait_until(lambda: not server.running, "the end of the server", 120)
    server.binary = None


server_shut_down = lasting(
    lambda world: shut_down(world.server), lambda world: world.server.start()
)


def driver_started_without_server(world: World, fault: Fault) -> None:
    """The job is started, and the server only when the job has tried to reach it."""
    world.job.kill()
    world.server.kill()
    try:
        connections = world.proxy.connections
        world.start_job()
        world.wait(lambda: world.proxy.connections > connections, "an attempt to connect")
        time.sleep(fault.seconds)
    finally:
        world.server.start()


# Room: a query that has never run has no ledger yet, which it could not make then.


def disk_full(world: World, fault: Fault) -> None:
    """No file of the server can be larger than some size; then there is room, and the server is
    restarted.

    A limit of the process, because to fill a file system needs root. The log is just below it, to
    say that files are above. A server stores nothing more in a stream until it is restarted: see
    docs/runbook.md.
    """
    world.goes_on()
    told = world.server.log.count(_NO_ROOM)
    before = resource.prlimit(world.server.pid, resource.RLIMIT_FSIZE)
    size = len(world.server.log) + _LOG
    resource.prlimit(world.server.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        world.wait(lambda: world.server.log.count(_NO_ROOM) > told, "an error of the server")
        time.sleep(fault.seconds)
    finally:
        resource.prlimit(world.server.pid, resource.RLIMIT_FSIZE, before)
        world.server.restart()


def storage_limited(world: World, fault: Fault) -> None:
    """The account may not store more.

    A server takes this limit of its configuration when it starts.
    """
    world.goes_on()
    used = world.api("INFO")["storage"]
    refused = world.load.refused[_TOO_MUCH]
    _restart(world, f"max_file: {used + _ROOM}")
    try:
        world.wait(lambda: world.load.refused[_TOO_MUCH] > refused, "a message that is refused")
        time.sleep(fault.seconds)
    finally:
        _restart(world)


def streams_limited(world: World, fault: Fault) -> None:
    """The account may not have one stream more."""
    world.goes_on()
    limit = f"max_streams: {len(world.streams() | world.configs.keys())}"
    lasting(lambda world: _restart(world, limit), _restart)(world, fault)


def _restart(world: World, limit: str = "") -> None:
    world.configuration.write_text(configuration(limit))
    world.server.restart()


#: No stream may have more than one consumer.
consumers_limited = lasting(lambda world: _restart(world, "max_consumers: 1"), _restart)


def _reload(world: World, more: str = "") -> None:
    world.configuration.write_text(configuration(more=more))
    reloads = world.server.log.count("Reloaded server configuration")
    os.kill(world.server.pid, signal.SIGHUP)
    wait_until(
        lambda: world.server.log.count("Reloaded server configuration") > reloads, "a reload"
    )


#: The server closes all connections but one, and refuses others.
connections_limited = lasting(lambda world: _reload(world, "max_connections: 1"), _reload)

# The wire


def wire_cut(world: World, fault: Fault) -> None:
    world.proxy.cut()


def wire_cut_inside(world: World, fault: Fault) -> None:
    """Cut the wire after some more bytes of the server, anywhere in a frame."""
    world.wait(world.proxy.cut_after(1 + fault.target * 997).is_set, "the cut")


def wire_truncated(world: World, fault: Fault) -> None:
    """Cut the wire after some more bytes to the server, which lacks the rest."""
    world.wait(world.proxy.cut_after(1 + fault.target * 97, to="server").is_set, "the cut")


def _refuse(world: World) -> None:
    world.proxy.refuse()
    world.proxy.cut()


wire_refused = lasting(_refuse, lambda world: world.proxy.accept())
wire_stalled = lasting(lambda world: world.proxy.stall(), lambda world: world.proxy.unstall())
#: Each piece comes late, in both directions.
wire_slow = lasting(
    lambda world: world.proxy.pieces(pause=_LATE), lambda world: world.proxy.pieces()
)
#: Each byte comes alone, in both directions.
wire_in_bytes = lasting(lambda world: world.proxy.pieces(1), lambda world: world.proxy.pieces())
