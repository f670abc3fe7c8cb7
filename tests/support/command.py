"""Commands of ``spark-jetstream``, run in this process, or on a terminal: what somebody sees there,
and answers.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import typer

from spark_jetstream.cli import main

_MAIN = "from spark_jetstream.cli.main import main; main()"
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
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
    """Run ``spark-jetstream`` with these arguments, and ``--server url``.

    Nothing here is a terminal.
    """
    out, err = io.BytesIO(), io.BytesIO()
    streams = [
        io.TextIOWrapper(item, encoding="utf-8", newline="")
        for item in (io.BytesIO(stdin), out, err)
    ]
    line = [
        "spark-jetstream",
        *map(str, arguments),
        *(["--server", url] if url is not None else []),
    ]
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(
            ("stdin", "stdout", "stderr", "argv"), (*streams, line), strict=True
        ):
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


_PROCESS = [sys.executable, "-m", "spark_jetstream"]


def run_process(
    *arguments: object, stdout: Any = subprocess.PIPE, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``spark-jetstream`` in a process of its own."""
    line = [*_PROCESS, *map(str, arguments)]
    return subprocess.run(
        line, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, **how
    )


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """``spark-jetstream`` in a process of its own, which ends at the latest with the block."""
    line = [*_PROCESS, *map(str, arguments)]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@functools.cache
def _command() -> Any:
    """The command line, which takes longer to build from its functions than most commands take to
    run.
    """
    return typer.main.get_command(main.app)


class Seen(NamedTuple):
    """How a command ended, and all that the terminal got, with and without its control sequences."""

    code: int
    raw: bytes

    @property
    def text(self) -> str:
        return _CONTROL.sub(b"", self.raw).replace(b"\r", b"").decode()


def on_terminal(
    *arguments: object, question: str = "", answer: str = "", columns: int = 120
) -> Seen:
    """Run ``spark-jetstream`` on a terminal of its own; once it shows ``question``, type
    ``answer``.
    """
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)},
            start_new_session=True,
        )
        os.close(theirs)
        seen, asked = b"", bool(question)
        while True:
            try:
                some = os.read(ours, 65536)
            except OSError:  # what Linux says when the other end is closed
                break
            if not some:
                break
            seen += some
            if asked and question.encode() in seen:
                asked = False
                os.write(ours, f"{answer}\n".encode())
        return Seen(process.wait(60), seen)
    finally:
        os.close(ours)
