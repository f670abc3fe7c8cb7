"""The command line on a terminal: what somebody sees there, and answers."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import NamedTuple

_MAIN = "from spark_jetstream.cli.main import main; main()"
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Seen(NamedTuple):
    """How a command ended, and all that the terminal got, with and without its control sequences."""

    code: int
    raw: bytes

    @property
    def text(self) -> str:
        """What can be read."""
        return _CONTROL.sub(b"", self.raw).replace(b"\r", b"").decode()


def on_terminal(*arguments: object, question: str = "", answer: str = "") -> Seen:
    """Run ``spark-jetstream`` on a terminal of its own; once it shows ``question``, type ``answer``."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
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
        return Seen(process.wait(30), seen)
    finally:
        os.close(ours)
