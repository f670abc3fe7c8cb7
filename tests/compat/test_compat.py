"""The newest patch of Spark 4.0, 4.1 and 4.2, and Spark Connect, read what was published, row for
row, and write it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer
from tests.support.jobs import run_script
from tests.support.project import ROOT
from tests.support.publish import Message
from tests.support.sinking import seen
from tests.support.streams import Stream

COUNT = 1000
LIMIT = COUNT * 3 // 10
SCHEMA = (
    "struct<stream:string,subject:string,sequence:bigint,timestamp:timestamp,"
    "headers:map<string,array<string>>,data:binary>"
)

#: Versions, as in the Makefile, and whether Spark lets a source limit its micro-batches (4.2 and
#: later). `make test` runs the first only, and nothing twice.
VERSIONS = [("4.0.5", False), ("4.1.4", False), ("4.2.1", True)]
CONNECT = "connect"
#: The server keeps connections that are quiet for as long as a job runs.
PATIENT = 'ping_interval: "1h"'


def message(number: int) -> Message:
    """Return the message that gets this sequence."""
    subject = f"compat.{'odd' if number % 2 else 'even'}"
    headers = (
        [("Number", str(number)), ("Number", "again"), ("Empty", "")] if number % 3 == 0 else None
    )
    return Message(subject, b"" if number % 100 == 0 else b"payload %d\r\n" % number, headers)


@pytest.fixture(scope="module")
def filled() -> Iterator[Stream]:
    """The filled stream, on a server of its own."""
    with NatsServer(config=PATIENT) as server:
        stream = fill(server)
        yield stream
        stream.publisher.close()


def fill(server: NatsServer) -> Stream:
    """Return a new stream with all messages."""
    stream = Stream(server.url, "COMPAT")
    stream.send(*map(message, range(1, COUNT + 1)))
    return stream


def environment(version: str) -> dict[str, str]:
    """The environment of a script that runs on this Spark, or with Spark Connect on that of the
    suite.
    """
    if version == CONNECT:
        return {"SPARK_TESTING": "1"}  # the server listens on a free port
    home = ROOT / ".spark" / version
    assert (home / ".installed").is_file(), (
        f"Spark {version} is not there: run `make compat-sparks`"
    )
    path = os.pathsep.join((str(home), str(ROOT)))
    return {"JAVA_HOME": java_for_all(), "PYTHONPATH": path, "SPARK_HOME": str(home / "pyspark")}


def java_for_all() -> str:
    """The home of a Java that every Spark starts on, whatever JAVA_HOME says."""
    return ensure_java({name: value for name, value in os.environ.items() if name != "JAVA_HOME"})


def digest(stream: Stream) -> str:
    """The digest that the rows of the stream have."""
    whole = hashlib.sha256()
    for sequence, message in stream.messages.items():
        headers = sorted(message.expected_headers.items()) if message.expected_headers else None
        whole.update(
            json.dumps(
                [stream.name, message.subject, sequence, headers, message.data.hex()]
            ).encode()
        )
    return whole.hexdigest()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("version", "limits", "times"),
    [
        (*VERSIONS[0], 1),
        *(
            pytest.param(*version, 2, marks=pytest.mark.full)
            for version in (*VERSIONS, (CONNECT, True))
        ),
    ],
)
def test_every_message_is_read_and_written(
    filled: Stream, version: str, limits: bool, times: int, tmp_path: Path
) -> None:
    target = Stream(filled.url, f"WRITTEN_{version.replace('.', '_')}_{times}", filled.publisher)
    smoke = Path(__file__).with_name("smoke.py")
    mode = "connect" if version == CONNECT else "classic"
    arguments = (mode, filled.url, filled.name, tmp_path / "out", LIMIT, target.name, times)
    result = run_script(smoke, *arguments, folder=tmp_path, **environment(version))

    assert result["session"] == (
        "pyspark.sql.connect.session" if version == CONNECT else "pyspark.sql.session"
    )
    assert result["spark"] == (pyspark.__version__ if version == CONNECT else version)
    check(result, filled, target, limits=limits, times=times)


def check(
    result: dict[str, Any], filled: Stream, target: Stream, *, limits: bool, times: int
) -> None:
    """Check that `smoke.py` printed the published messages, and stored them in `target`."""
    assert result["schema"] == SCHEMA
    for rows in (
        result[name] for name in ("batch", "streamed", "again_streamed")[: 1 if times == 1 else 3]
    ):
        assert rows["count"] == COUNT
        assert rows["sequences"] == list(range(1, COUNT + 1))
        assert rows["digest"] == digest(filled)
        assert rows["without_time"] == 0
    assert result["before"] == 0
    check_written(target)
    assert result["planned_again"] is result["spark"].startswith("4.0.")
    keys = [[f"key.{number}", str(number + 10), number + 11] for number in range(10)]
    assert result["bucket"] == {"current": keys, "messages": 20}
    assert result["renamed"] == {"schema": SCHEMA, "count": COUNT}
    assert result["filtered"] == {
        "schema": "struct<data:binary,sequence:bigint>",
        "count": COUNT // 2,
    }
    if times == 1:
        return
    # A Spark that cannot ask for a part of what is available reads all of it at once, and leaves
    # nothing out.
    assert result["micro_batches"] == (
        [LIMIT, LIMIT, LIMIT, COUNT - 3 * LIMIT] if limits else [COUNT]
    )
    assert (result["again_micro_batches"], result["registered"]) == ([], "")
    assert "there is no option startingofsets; did you mean startingOffsets" in result["misspelt"]
    assert (
        "row 1 of partition 0 cannot be stored at subject 'nowhere.x': no stream captures this"
        in result["refused"]
    )
    assert 'mode "overwrite" is not possible' in result["overwrite"]


def check_written(target: Stream) -> None:
    """Each message is there once by the batch writes and once by the query, byte for byte."""
    prefix = target.subject
    published = [message(number) for number in range(1, COUNT + 1)]
    stored = seen(target)
    batch = [
        (item.subject, item.headers, item.data)
        for item in stored
        if item.subject.startswith(f"{prefix}.batch.")
    ]
    assert batch == [
        (f"{prefix}.batch.{item.subject}", item.expected_headers or {}, item.data)
        for item in published
    ]
    streamed = [
        (item.headers, item.data) for item in stored if item.subject == f"{prefix}.stream.x"
    ]
    assert streamed == [
        ({"Nats-Msg-Id": [f"id-{number}"], "Single": [str(number)]}, item.data)
        for number, item in enumerate(published, start=1)
    ]
    assert len(stored) == 2 * COUNT
