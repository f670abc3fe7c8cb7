"""Starts a local Spark and reads through the connector, as a job would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import SecretStr

from spark_jetstream.doctor.findings import Finding, failed, ok
from spark_jetstream.options.connection import ConnectionOptions

_PATIENCE = 300.0  # seconds; half a minute on a busy machine
_FAULT = re.compile(r"^(?:\S*\.)?\w*(?:Error|Exception|UnsupportedClassVersion)\w*: .+$", re.MULTILINE)


def check_spark(
    connection: ConnectionOptions, reading: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Read one row with ``reading`` (options that name the stream and the place), in a process of its own."""
    options = SecretStr(json.dumps({**_as_given(connection), **reading}))
    began = time.monotonic()
    try:
        # Options go over standard input: a command line is seen by all users of the machine.
        ran = subprocess.run(
            [sys.executable, "-m", "spark_jetstream.doctor.spark_row"],
            input=options.get_secret_value(),
            env=dict(environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"no row came within {_PATIENCE:g} s"
        yield failed("local Spark", said, "see what is wrong above; Spark's own log knows more")
        return
    seconds = time.monotonic() - began
    rows = ran.stdout.strip().rpartition("\n")[2]
    if ran.returncode or not rows.isdigit():
        yield failed("local Spark", _fault(ran.stderr), "see what is wrong above; start spark-shell to see all of it")
        return
    yield ok("local Spark", f"started, and read {rows} row(s) of the stream's end, in {seconds:.0f} s")


def _as_given(connection: ConnectionOptions) -> dict[str, str]:
    """The options as a job would give them."""
    given = connection.given()
    return {
        spec.name: _text(getattr(connection, spec.field_name))
        for spec in ConnectionOptions.specs
        if spec.name in given and spec.name != "context"
    }


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value * 1000:.0f}ms" if isinstance(value, float) else str(value)


def _fault(stderr: str) -> str:
    """What went wrong, of all that Spark and Java say."""
    # What py4j says is only that something else was raised.
    found = [line for line in _FAULT.findall(stderr) if not line.startswith("py4j.")]
    lines = found[-1:] or stderr.strip().splitlines()[-1:] or ["ended without a word"]
    return str(lines[0]).strip()[:500]
