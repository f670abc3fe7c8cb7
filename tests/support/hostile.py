"""What a client does with a server that may lie: each of these is one try, from the connection to the result.

As a script, ``python -m tests.support.hostile TRY URL``, one try in a process of its own, which prints how it ended,
how long it took, and the most memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.columns import record_batch
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.planner import Planner
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.pull import read_range
from tests.support import planning
from tests.support.fake_jetstream import CREATED
from tests.support.reading import SETTINGS, connecting
from tests.support.sinking import Sink, rows

HASTE = {"connectTimeout": "1s", "requestTimeout": "1s", "retryTimeout": "300ms"}
COUNT = 100
"""How many messages the stream S has."""
_SOME = {"subjects": "S.a", "startingTimestamp": "2023-11-14T00:00:00Z"}
_COLUMNS = ("subject", "sequence", "timestamp", "headers", "data")


def driver(url: str, **given: str) -> Planner:
    return planning.driver(url, streaming=False, **{**HASTE, **given})


def read(url: str, reader: Callable[..., Any], part: SequenceRange | None = None) -> int:
    """Read a range, by default the whole stream, to columns; how many messages came."""
    part = part or SequenceRange("S", 1, COUNT + 1, COUNT, CREATED)
    runs = reader(connecting(url, **HASTE), part, replace(SETTINGS, retry_timeout=0.3), "test")
    return sum(record_batch(messages, stream="S", columns=_COLUMNS).num_rows for messages in runs)


def _admin(url: str) -> int:
    with JetStreamAdmin(servers=url, **HASTE) as admin:
        return int(admin.streams.load("S").state.messages)


def _publish(url: str) -> int:
    sink = Sink(url, subject="S.a", delivery="at-least-once", ackTimeout="500ms", maxRetries="1", **HASTE)
    return sink.write([rows("S.a", 0, 10)]).stored


def _connect(url: str) -> int:
    # As short as can be: none of these attempts is to succeed.
    return connect(ConnectionOptions.from_spark({"servers": url, "connectTimeout": "200ms"})).max_payload


TRIES: dict[str, Callable[[str], int]] = {
    "connect": _connect,
    "plan": lambda url: len(driver(url).batch_ranges()),
    "plan filtered": lambda url: len(driver(url, **_SOME).batch_ranges()),
    "plan direct": lambda url: len(driver(url, readWith="direct", **_SOME).batch_ranges()),
    "read": lambda url: read(url, read_range),
    "direct": lambda url: read(url, read_direct),
    "publish": _publish,
    "admin": _admin,
}
"""Each returns how many ranges, messages or rows an honest server has for it; ``connect`` what `max_payload` is."""


def main(name: str, url: str) -> None:
    """Print how a try ended, as JSON."""
    error, result = "", None
    began = time.monotonic()
    try:
        result = TRIES[name](url)
    except JetStreamError as found:
        error = f"{type(found).__name__}: {found}"
    # Not `getrusage`: its maximum counts the process that forked this one as well.
    status = Path("/proc/self/status").read_text("ascii")
    most = int(status.partition("VmHWM:")[2].split()[0]) // 1024
    seconds = time.monotonic() - began
    sys.stdout.write(json.dumps({"error": error, "result": result, "seconds": seconds, "megabytes": most}))


if __name__ == "__main__":
    main(*sys.argv[1:])
