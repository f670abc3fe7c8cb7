"""No server: each use says so in the same words, and a command that a person has typed says so at
once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import nats.errors
import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.reasons import (
    HUNG_UP,
    NO_ANSWER,
    NOTHING_LISTENS,
    UNKNOWN_HOST,
    NoAddress,
    error_text,
    nowhere,
)
from spark_jetstream.errors import ConnectionFailed
from tests.support.calls import BUCKET_ROWS, planned, writer_of
from tests.support.command import run_command
from tests.support.sinking import Sink, rows

pytestmark = pytest.mark.usefixtures("no_connection_left")

NOWHERE = "nats://127.0.0.1:1"
"""Nobody listens there."""
ONCE = {"connectTimeout": "10m", "retryTimeout": "0s"}
"""The time to connect is over once an attempt has failed: see `no_second_attempt`."""
GIVEN = {"servers": NOWHERE, **ONCE}


def _admin() -> object:
    with JetStreamAdmin(**GIVEN) as admin:
        return admin.account.info()


USES: dict[str, Callable[[], object]] = {
    "admin": _admin,
    "batch": lambda: planned("b", {**GIVEN, "stream": "S"}),
    "query": lambda: planned("s", {**GIVEN, "stream": "S"}),
    "bucket": lambda: planned("b", {**GIVEN, "bucket": "B"}, BUCKET_ROWS),
    "write": lambda: writer_of("b", GIVEN, rows("s.a", 0, 1).schema),
    "writing query": lambda: writer_of("s", GIVEN, rows("s.a", 0, 1).schema),
    "task": lambda: Sink(NOWHERE, subject="s.a", **ONCE).write([rows("s.a", 0, 1)]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.usefixtures("no_second_attempt")
def test_each_use_says_in_words_that_nothing_listens(use: Callable[[], object]) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        use()
    says = (
        f"no NATS server could be reached at {NOWHERE} within 600 s (option servers): "
        f"{NOTHING_LISTENS}"
    )
    assert str(caught.value) == says


@pytest.mark.parametrize(
    "line",
    [
        "stream ls",
        "pub a b",
        "request a b",
        "bench --messages 10",
        "bench --stream S",
        "dead-letters replay S 1",
        "kv ls",
        "rtt",
        "server ping",
    ],
)
def test_a_command_waits_for_no_server_to_start(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ran = run_command(*line.split(), "-o", "connectTimeout=10m", url=NOWHERE)
    says = (
        f"spark-jetstream: no NATS server could be reached at {NOWHERE} (option servers): "
        f"{NOTHING_LISTENS}\n"
    )
    assert (ran.code, ran.err) == (3, says)


def refused() -> OSError:
    return OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refused(), NOTHING_LISTENS),
        (NoAddress([refused(), refused()]), NOTHING_LISTENS),
        (NoAddress([refused(), asyncio.TimeoutError()]), f"{NOTHING_LISTENS}, {NO_ANSWER}"),
        (OSError(f"Multiple exceptions: {refused()}, {refused()}"), NOTHING_LISTENS),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), UNKNOWN_HOST),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "temporary failure"),
        (
            OSError(errno.EHOSTUNREACH, "Connect call failed"),
            os.strerror(errno.EHOSTUNREACH).lower(),
        ),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), HUNG_UP),
        (nats.errors.UnexpectedEOF(), HUNG_UP),
        (TimeoutError(), NO_ANSWER),
        (asyncio.TimeoutError(), NO_ANSWER),
        (TimeoutError("the server is slow"), "the server is slow"),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
            "wrong version number",
        ),
        (nats.errors.TimeoutError(), "timeout"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_reason_of_a_failure_is_said_in_words(error: Exception, says: str) -> None:
    assert says in error_text(error)
    assert "Errno" not in error_text(error)
    assert nowhere(error) == (says if says in (NOTHING_LISTENS, UNKNOWN_HOST) else "")
