"""Several real nats-servers that form one JetStream cluster."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_jetstream.errors import ServerStartError
from spark_jetstream.testing.process import LOOPBACK, PortLease, poll
from spark_jetstream.testing.server import NatsServer


class NatsCluster:
    """A JetStream cluster on the loopback interface, ready in well under a second.

    For example::

        with NatsCluster() as cluster:
            # create the stream ORDERS with 3 replicas through cluster.url, start to read it, then
            crashed = cluster.leader_of("ORDERS")
            cluster.kill(crashed)
            ...
            cluster.restart(crashed)

    After a crash the servers need 4 to 9 seconds to elect new leaders: that is how nats-server is built.

    Servers are counted from 0. Each of `servers` is a `NatsServer` named `NAME-0`, `NAME-1`, ... with its
    monitoring page on, and can be stopped, paused or given another `config` by itself; `wait_ready` tells
    when the others have arranged themselves.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        name: str = "test",
        store_dir: str | os.PathLike[str] | None = None,
        config: str | None = None,
        max_payload: int | None = None,
        args: Sequence[str] = (),
        binary: str | os.PathLike[str] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        """Nothing is started and no port is taken yet.

        Args:
            size: how many servers, at least 2.
            name: the cluster's name.
            store_dir: keeps one directory for each server; temporary ones without it.
            config: as for `NatsServer`, the same text for all servers.
            max_payload: as for `NatsServer`.
            args: as for `NatsServer`.
            binary: as for `NatsServer`.
            start_timeout: seconds until a cluster, or a server that rejoins it, counts as failed.
        """
        if size < 2:
            raise ValueError(f"a cluster needs at least 2 servers, not {size}: use NatsServer for one")
        self.name: Final = name
        self._start_timeout = start_timeout
        self._routes: list[PortLease] = []
        self._args = tuple(args)
        self._servers = tuple(
            NatsServer(
                name=f"{name}-{index}",
                store_dir=None if store_dir is None else Path(store_dir) / f"{name}-{index}",
                config=config,
                max_payload=max_payload,
                http_monitor=True,
                binary=binary,
                start_timeout=start_timeout,
            )
            for index in range(size)
        )

    @property
    def servers(self) -> tuple[NatsServer, ...]:
        """All servers, running or not."""
        return self._servers

    @property
    def urls(self) -> tuple[str, ...]:
        """The client URL of each server, running or not."""
        return tuple(server.url for server in self._servers)

    @property
    def url(self) -> str:
        """`urls` as one comma list, as the option `servers` takes it."""
        return ",".join(self.urls)

    def start(self) -> NatsCluster:
        """Start all servers that do not run, and wait until the cluster is ready. Returns the cluster itself.

        Raises:
            ServerStartError: a server did not start, or the cluster did not form in time. Nothing is left
                running if this was the first start.
        """
        first = not self._routes
        try:
            if first:
                # Every server must know all routes before the first one starts: so the ports are chosen here.
                self._routes = [PortLease() for _ in self._servers]
                addresses = [f"nats://{LOOPBACK}:{lease.port}" for lease in self._routes]
                for server, address in zip(self._servers, addresses, strict=True):
                    routes = ("--cluster", address, "--routes", ",".join(addresses))
                    server.args = (*routes, "--cluster_name", self.name, *self._args)
            for server in self._servers:
                server.start()
            self.wait_ready()
        except BaseException:
            if first:
                self.close()
            raise
        return self

    def kill(self, index: int) -> None:
        """End one server like a crash would (SIGKILL); it keeps its ports and store for `restart`."""
        self._servers[index].kill()

    def restart(self, index: int) -> NatsServer:
        """Start one server again, stopping it first if it runs, and wait until it has caught up.

        There is no waiting when less than a majority of the servers is up.

        Raises:
            ServerStartError: it did not start, or did not catch up in time.
        """
        server = self._servers[index].restart()
        if len(self._active()) > len(self._servers) // 2:
            self.wait_ready()
        return server

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the servers that are up work as one.

        That is: all agree on a JetStream meta leader that is up, the leader finds them current, each reports
        itself healthy, which includes that its replicas of streams and consumers have caught up, and every
        stream and consumer that still has a majority of its replicas has a leader. Stopped and paused servers
        do not matter as long as a majority is up.

        Raises:
            ServerStartError: not so within `timeout` seconds (`start_timeout` of the cluster by default).
        """
        limit = self._start_timeout if timeout is None else timeout

        def give_up() -> ServerStartError:
            return ServerStartError(f"the cluster was not ready after {limit:g} s: {self._obstacle()}")

        poll(lambda: True if self._obstacle() is None else None, limit, give_up)

    def leader_of(self, stream: str, *, account: str | None = None, timeout: float = 30.0) -> int:
        """The index in `servers` of the one that leads a stream; waits for an election that is under way.

        `account` is needed only when several accounts have a stream of this name. For some milliseconds after
        an election the other servers may still know of nobody who answers for the stream's subjects.

        Raises:
            TimeoutError: no server that is up leads such a stream within `timeout` seconds.
        """

        def find() -> int | None:
            for server in self._active():
                for replica in _replicas(server):
                    at = replica.stream == stream and not replica.consumer and account in (None, replica.account)
                    if at and replica.leads:
                        return self._servers.index(server)
            return None

        return poll(
            find,
            timeout,
            lambda: TimeoutError(f"no server leads a stream {stream} after {timeout:g} s"),
        )

    def close(self) -> None:
        """Close all servers: they have ended, and what was temporary is gone. May be called again."""
        with contextlib.ExitStack() as stack:
            for lease in self._routes:
                stack.callback(lease.release)
            for server in self._servers:
                stack.callback(server.close)
        self._routes = []

    def __enter__(self) -> NatsCluster:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<NatsCluster {self.name} {list(self._servers)}>"

    def _active(self) -> list[NatsServer]:
        return [server for server in self._servers if server.running and not server.paused]

    def _obstacle(self) -> str | None:
        """What keeps the cluster from being ready, None when it is."""
        active = self._active()
        if len(active) <= len(self._servers) // 2:
            return f"{len(active)} of {len(self._servers)} servers are up, which is no majority"
        views = {str(server.name): _page(server, "/jsz").get("meta_cluster") or {} for server in active}
        leaders = {view.get("leader") for view in views.values()}
        leader = next(iter(leaders))
        if len(leaders) > 1 or leader not in views:
            seen = ", ".join(f"{name} sees {view.get('leader')}" for name, view in views.items())
            return f"no common JetStream leader ({seen})"
        # Only the leader knows who is current; what the others show of each other means nothing.
        current = {peer["name"] for peer in views[leader].get("replicas") or () if peer.get("current")}
        if behind := sorted(views.keys() - current - {leader}):
            return f"{', '.join(behind)} not current"
        for server in active:
            health = _page(server, "/healthz")
            if health.get("status") != "ok":
                return f"{server.name}: {health.get('error', 'monitoring page not reached')}"
        return _leaderless(active)


@dataclass(frozen=True)
class _Replica:
    """What one server says about its replica of a stream (`consumer` is empty) or of a consumer."""

    account: str
    stream: str
    consumer: str
    leads: bool
    peers: int


def _replicas(server: NatsServer) -> Iterator[_Replica]:
    for account in _page(server, "/jsz?accounts=true&streams=true&consumers=true").get("account_details") or ():
        for stream in account.get("stream_detail") or ():
            for asset in (stream, *(stream.get("consumer_detail") or ())):
                group = asset.get("cluster") or {}
                # Its own word only: the others may not have noticed yet that a leader is gone.
                leads = group.get("leader") == server.name
                consumer = "" if asset is stream else asset["name"]
                peers = 1 + len(group.get("replicas") or ())
                yield _Replica(account["name"], stream["name"], consumer, leads, peers)


def _leaderless(active: Sequence[NatsServer]) -> str | None:
    """The first stream or consumer that could have a leader and has none."""
    groups: dict[tuple[str, str, str], list[_Replica]] = {}
    for server in active:
        for replica in _replicas(server):
            groups.setdefault((replica.account, replica.stream, replica.consumer), []).append(replica)
    for (_, stream, consumer), group in groups.items():
        if len(group) > group[0].peers // 2 and not any(replica.leads for replica in group):
            return f"no leader of stream {stream}" + (f", consumer {consumer}" if consumer else "")
    return None


def _page(server: NatsServer, path: str) -> dict[str, Any]:
    """A monitoring page, empty while the server cannot be asked."""
    try:
        page: dict[str, Any] = server.monitor(path)
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return page
