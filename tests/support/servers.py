"""The versions of nats-server."""

from __future__ import annotations

import os
import subprocess


def server_version(binary: str | os.PathLike[str]) -> str:
    """The version of a nats-server, as 2.15.1."""
    printed = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
    return printed.stdout.strip().rpartition("v")[2]
