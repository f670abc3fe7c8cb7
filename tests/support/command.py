"""Commands of ``spark-jetstream``, run in this process."""

from __future__ import annotations

import functools
import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import typer

from spark_jetstream.cli import main


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        """Standard output as text."""
        return self.raw.decode()

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.raw)

    @property
    def objects(self) -> list[Any]:
        """Standard output as JSON, one object a line."""
        return [json.loads(line) for line in self.raw.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line: a table, its headings first."""
        return [line.split() for line in self.out.splitlines()]


def run_command(*arguments: object, url: str | None = None, stdin: bytes = b"") -> Ran:
    """Run ``spark-jetstream`` with these arguments, and ``--server url``. Nothing here is a terminal."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(each, encoding="utf-8", newline="") for each in (io.BytesIO(stdin), out, err)]
    line = ["spark-jetstream", *map(str, arguments), *(["--server", url] if url is not None else [])]
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("stdin", "stdout", "stderr", "argv"), (*streams, line), strict=True):
            patch.setattr(sys, name, value)
        patch.setattr(main, "app", _command())
        try:
            main.main()
        except SystemExit as ended:
            if isinstance(ended.code, str):  # as the interpreter would do
                sys.stderr.write(ended.code + "\n")
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    for stream in streams:
        stream.flush()
    return Ran(code, out.getvalue(), err.getvalue().decode())


def succeed(*arguments: object, url: str | None = None, stdin: bytes = b"") -> Ran:
    """`run_command`, which must end with 0."""
    ran = run_command(*arguments, url=url, stdin=stdin)
    assert ran.code == 0, ran.err
    return ran


@functools.cache
def _command() -> Any:
    """The command line, which takes longer to build from its functions than most commands take to run."""
    return typer.main.get_command(main.app)
