"""Several real nats-servers that form one JetStream cluster."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from spark_jetstream.errors import ServerStartError
from spark_jetstream.testing.process import LOOPBACK, PortLease, poll
from spark_jetstream.testing.server import NatsServer


class _Copy(NamedTuple):
    """A copy of a stream or a consumer, as the server that holds it reports it."""

    account: str
    stream: str
    consumer: str  # empty for the stream itself
    leads: bool
    size: int
    """The number of copies."""

    @property
    def asset(self) -> tuple[str, str, str]:
        """The stream or consumer, the same for all of its copies."""
        return self.account, self.stream, self.consumer


class NatsCluster:
    """A JetStream cluster on the loopback interface.

    For example:

        with NatsCluster() as cluster:
            # create the stream ORDERS with 3 replicas through cluster.url, start to read it, then
            crashed = cluster.leader_of("ORDERS")
            cluster.kill(crashed)
            ...
            cluster.restart(crashed)

    It starts in less than a second. After a crash the servers need 4 to 9 seconds to elect new
    leaders.

    Servers are counted from 0. Each of `servers` is a `NatsServer` with its monitoring page on; the
    first is named `NAME-0`. Each can be stopped, paused or given another `config`. `wait_ready`
    waits until the others work as one.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        name: str = "test",
        port: int | None = None,
        store_dir: str | os.PathLike[str] | None = None,
        config: str | None = None,
        max_payload: int | None = None,
        args: Sequence[str] = (),
        binary: str | os.PathLike[str] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        """Neither starts servers nor takes ports.

        Arguments that are not named here are those of `NatsServer`. A cluster has at least 2
        servers. `port` is the client port of the first one, and the others have the ports after it;
        by default all are free ports. `store_dir` gets a directory for each server. After
        `start_timeout` seconds a cluster that is not ready, or a server that has not rejoined it,
        counts as failed.
        """
        if size < 2:
            raise ValueError(
                f"a cluster needs at least 2 servers, not {size}: use NatsServer for one",
            )
        self.name: Final = name
        self._start_timeout = start_timeout
        # The ports between the servers, from the first start to `close`.
        self._routes: list[PortLease] = []
        self._args = tuple(args)
        servers = []
        for index in range(size):
            own_name = f"{name}-{index}"
            server = NatsServer(
                name=own_name,
                port=None if port is None else port + index,
                store_dir=None if store_dir is None else Path(store_dir) / own_name,
                config=config,
                max_payload=max_payload,
                # `wait_ready` and `leader_of` read the monitoring pages.
                http_monitor=True,
                binary=binary,
                start_timeout=start_timeout,
            )
            servers.append(server)
        self._servers = tuple(servers)

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
        """Start all servers that do not run, wait until the cluster is ready, and return it.

        Raises `ServerStartError` when it was not ready in time; after a failed first start no
        server runs.
        """
        first = not self._routes
        try:
            if first:
                self._choose_routes()
            for server in self._servers:
                server.start()
            self.wait_ready()
        except BaseException:
            # Ctrl-C ends a start as well. The servers of a failed first start are closed;
            # test_cluster.py, test_a_configuration_error_leaves_nothing, holds it. After a later
            # start they stay, with their stores.
            if first:
                self.close()
            raise
        return self

    def _choose_routes(self) -> None:
        """Tell every server all routes, which it must know before the first one starts."""
        # nats-server takes its routes from the command line, so all of them are known before the
        # first server starts.
        self._routes = [PortLease() for _ in self._servers]
        addresses = [f"nats://{LOOPBACK}:{lease.port}" for lease in self._routes]
        for server, address in zip(self._servers, addresses, strict=True):
            routes = ("--cluster", address, "--routes", ",".join(addresses))
            server.args = (*routes, "--cluster_name", self.name, *self._args)

    def kill(self, index: int) -> None:
        """End one server like a crash (SIGKILL). It keeps its ports and store for `restart`."""
        self._servers[index].kill()

    def restart(self, index: int) -> NatsServer:
        """Restart one server and wait until it has caught up.

        Without a majority of servers it does not wait. Raises `ServerStartError` when it did not
        start, or did not catch up in time.
        """
        server = self._servers[index].restart()
        # Without a majority there is no meta leader, and a wait could only fail.
        if len(self._active()) > len(self._servers) // 2:
            self.wait_ready()
        return server

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the servers that are up work as one. A majority must be up.

        All agree on a JetStream meta leader that is up and finds them current. Each is healthy, so
        its replicas of streams and consumers have caught up. Every stream and consumer with a
        majority of its replicas has a leader. Raises `ServerStartError` after `timeout` seconds
        (default: `start_timeout` of the cluster).
        """
        limit = self._start_timeout if timeout is None else timeout

        def ready() -> bool | None:
            return True if self._obstacle() is None else None

        def give_up() -> ServerStartError:
            reason = self._obstacle()
            return ServerStartError(f"the cluster was not ready after {limit:g} s: {reason}")

        poll(ready, limit, give_up)

    def leader_of(self, stream: str, *, account: str | None = None, timeout: float = 30.0) -> int:
        """Return the index in `servers` of a stream's leader, after an election that is under way.

        `account` is needed only if several accounts have a stream of this name. For some
        milliseconds after an election the other servers may not know who answers for the stream's
        subjects. Raises `TimeoutError`.
        """

        def find() -> int | None:
            for server in self._active():
                for copy in _copies(server):
                    is_of_stream = copy.stream == stream and not copy.consumer
                    is_wanted = is_of_stream and account in (None, copy.account)
                    if is_wanted and copy.leads:
                        return self._servers.index(server)
            return None

        def give_up() -> TimeoutError:
            return TimeoutError(f"no server leads a stream {stream} after {timeout:g} s")

        return poll(find, timeout, give_up)

    def close(self) -> None:
        """Close all servers and remove their temporary directories. May be called again."""
        # The stack closes the servers first, and then gives their ports back: it goes backwards. An
        # error of one server does not keep the others from being closed.
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
        # A paused server answers no page: `monitor` would wait five seconds for each.
        return [server for server in self._servers if server.running and not server.paused]

    def _obstacle(self) -> str | None:
        """Return why the cluster is not ready, None if it is."""
        active = self._active()
        if len(active) <= len(self._servers) // 2:
            return f"{len(active)} of {len(self._servers)} servers are up, which is no majority"
        return _meta_obstacle(active) or _unhealthy(active) or _leaderless(active)


def _meta_obstacle(active: Sequence[NatsServer]) -> str | None:
    """Return why the servers have no common JetStream leader that finds all of them current."""
    views = {}
    for server in active:
        # A server that does not answer has an empty view, and so the leader None.
        views[str(server.name)] = _page(server, "/jsz").get("meta_cluster") or {}
    leaders = {view.get("leader") for view in views.values()}
    leader = next(iter(leaders))
    # The common leader may be a server that is down: the others notice its end seconds later.
    if len(leaders) > 1 or leader not in views:
        seen = ", ".join(f"{name} sees {view.get('leader')}" for name, view in views.items())
        return f"no common JetStream leader ({seen})"
    # Only the leader knows which servers are current.
    outdated = sorted(views.keys() - _current(views[leader]) - {leader})
    return f"{', '.join(outdated)} not current" if outdated else None


def _current(view: Mapping[str, Any]) -> set[str]:
    """Return the followers that a leader finds current."""
    peers = view.get("replicas") or ()
    return {peer["name"] for peer in peers if peer.get("current")}


def _unhealthy(active: Sequence[NatsServer]) -> str | None:
    """Return the problem of the first server that is not healthy."""
    for server in active:
        # /healthz (nats-server: server/monitor.go) is ok when the server's replicas of streams and
        # consumers are current. Else it has status 503, and JSON all the same.
        health = _page(server, "/healthz")
        if health.get("status") != "ok":
            return f"{server.name}: {health.get('error', 'monitoring page not reached')}"
    return None


def _copies(server: NatsServer) -> Iterator[_Copy]:
    """Yield the copies of streams and consumers that a server holds."""
    page = _page(server, "/jsz?accounts=true&streams=true&consumers=true")
    for account in page.get("account_details") or ():
        for stream in account.get("stream_detail") or ():
            yield _copy(server, account["name"], stream["name"], "", stream)
            for consumer in stream.get("consumer_detail") or ():
                name = consumer["name"]
                yield _copy(server, account["name"], stream["name"], name, consumer)


def _copy(
    server: NatsServer,
    account: str,
    stream: str,
    consumer: str,
    detail: Mapping[str, Any],
) -> _Copy:
    group = detail.get("cluster") or {}
    # Only a leader's word about itself counts: the others may not have noticed that it is gone.
    leads = group.get("leader") == server.name
    # The list leaves the server itself out (nats-server: server/jetstream_cluster.go, clusterInfo).
    others = group.get("replicas") or ()
    return _Copy(account, stream, consumer, leads, 1 + len(others))


def _leaderless(active: Sequence[NatsServer]) -> str | None:
    """Return the first stream or consumer that has a majority of its replicas and no leader."""
    copies: list[_Copy] = []
    for server in active:
        copies += _copies(server)
    present = Counter(copy.asset for copy in copies)
    led = {copy.asset for copy in copies if copy.leads}
    for copy in copies:
        # Copies on servers that are down are missing here. Too few servers cannot elect a leader.
        has_majority = present[copy.asset] > copy.size // 2
        if copy.asset in led or not has_majority:
            continue
        problem = f"no leader of stream {copy.stream}"
        if copy.consumer:
            return f"{problem}, consumer {copy.consumer}"
        return problem
    return None


def _page(server: NatsServer, path: str) -> dict[str, Any]:
    """Return a monitoring page, empty if the server does not answer."""
    try:
        return dict(server.monitor(path))
    except (OSError, http.client.HTTPException, ValueError):
        # OSError: no server listens, or it is too slow. The others: it ended in the middle of its
        # answer.
        return {}
