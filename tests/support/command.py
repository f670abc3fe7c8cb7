"""Commands of ``spark-jetstream``, run in this process."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    given = [*map(str, arguments), *(["--server", url] if url is not None else [])]
    out, err = _text(), _text()
    code = 0
    with _replaced(given, _text(stdin), out, err), _built():
        try:
            main.main()
        except SystemExit as ended:
            if isinstance(ended.code, str):  # as the interpreter would do
                err.write(ended.code + "\n")
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    out.flush()
    err.flush()
    written, said = out.buffer, err.buffer
    assert isinstance(written, io.BytesIO)
    assert isinstance(said, io.BytesIO)
    return Ran(code, written.getvalue(), said.getvalue().decode())


def succeed(*arguments: object, url: str | None = None, stdin: bytes = b"") -> Ran:
    """`run_command`, which must end with 0."""
    ran = run_command(*arguments, url=url, stdin=stdin)
    assert ran.code == 0, ran.err
    return ran


def _text(content: bytes = b"") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")


@functools.cache
def _command() -> Any:
    """The command line, which takes longer to build from its functions than most commands take to run."""
    return typer.main.get_command(main.app)


@contextlib.contextmanager
def _built() -> Iterator[None]:
    before, main.app = main.app, _command()
    try:
        yield
    finally:
        main.app = before


@contextlib.contextmanager
def _replaced(arguments: list[str], *streams: io.TextIOWrapper) -> Iterator[None]:
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["spark-jetstream", *arguments]
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
