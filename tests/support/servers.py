"""The versions of nats-server."""

from __future__ import annotations

import functools
import os
import subprocess

from spark_jetstream.protocol.features import Version
from spark_jetstream.testing.process import find_server_binary


def server_version(binary: str | os.PathLike[str]) -> str:
    """The version of a nats-server, as 2.15.1."""
    printed = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
    return printed.stdout.strip().rpartition("v")[2]


@functools.cache
def version_of(binary: str | os.PathLike[str] | None = None) -> Version:
    """The version of a nats-server as numbers, by default of the one that tests start."""
    major, minor, patch = server_version(binary or find_server_binary()).split(".")
    return int(major), int(minor), int(patch)
