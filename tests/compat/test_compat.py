"""The newest patch of Spark 4.0, 4.1 and 4.2 reads what was published, row for row, and writes it again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer
from tests.support.client import ask
from tests.support.publish import Message, Publisher

ROOT = Path(__file__).parents[2]
STREAM = "COMPAT"
COUNT = 1000
SCHEMA = (
    "struct<stream:string,subject:string,sequence:bigint,timestamp:timestamp,"
    "headers:map<string,array<string>>,data:binary>"
)

#: Versions, as in the Makefile, and whether Spark lets a source limit its micro-batches (4.2 and later). `make test`
#: runs the first only, and nothing twice.
VERSIONS = [("4.0.5", False), ("4.1.4", False), ("4.2.1", True)]

#: Subject, headers and payload.
Fetched = tuple[str, dict[str, str] | None, bytes]


def message(number: int) -> Fetched:
    """Return the message that gets this sequence."""
    subject = f"compat.{'odd' if number % 2 else 'even'}"
    headers = {"Number": str(number), "Empty": ""} if number % 3 == 0 else None
    return subject, headers, b"" if number % 100 == 0 else os.fsencode(f"payload {number}\r\n")


def fill(publisher: Publisher) -> str:
    """Store the messages; return the digest that the same rows have."""
    digest = hashlib.sha256()
    add_stream(publisher, STREAM)
    messages = [message(number) for number in range(1, COUNT + 1)]
    publisher.publish(Message(subject, payload, list(headers.items()) if headers else None)
                      for subject, headers, payload in messages)  # fmt: skip
    for number, (subject, headers, payload) in enumerate(messages, start=1):
        lists = sorted((name, [value]) for name, value in headers.items()) if headers else None
        digest.update(json.dumps([STREAM, subject, number, lists, payload.hex()]).encode())
    return digest.hexdigest()


def add_stream(publisher: Publisher, name: str) -> None:
    """Create a stream with the subjects that begin with its name in lower case."""
    publisher.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})


def fetch(url: str, name: str) -> list[Fetched]:
    """Return all messages of a stream, read with nats-py."""

    async def work(jetstream: JetStreamContext) -> list[Fetched]:
        count = (await jetstream.stream_info(name)).state.messages
        subscription = await jetstream.subscribe(f"{name.lower()}.>", stream=name, ordered_consumer=True)
        messages = [await subscription.next_msg(10) for _ in range(count)]
        return [(message.subject, message.headers, message.data) for message in messages]

    return ask(url, work)


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[Publisher, str, str]]:
    """A server with the filled stream: a connection to it, its URL, and the digest of the stream's rows."""
    with NatsServer() as server, Publisher(server.url) as publisher:
        yield publisher, server.url, fill(publisher)


@pytest.mark.parametrize(
    ("version", "limits", "times"),
    [(*VERSIONS[0], 1), *(pytest.param(*version, 2, marks=pytest.mark.full) for version in VERSIONS)],
)
def test_older_spark_reads_and_writes_every_message(
    filled: tuple[Publisher, str, str], version: str, limits: bool, times: int, tmp_path: Path
) -> None:
    publisher, url, digest = filled
    target = f"WRITTEN_{version.replace('.', '_')}_{times}"
    add_stream(publisher, target)
    home = ROOT / ".spark" / version
    assert (home / ".installed").is_file(), f"Spark {version} is not there: run `make compat-sparks`"
    # Only a Java that all of these start on will do, whatever JAVA_HOME says.
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ |= {
        "JAVA_HOME": ensure_java(environ),
        "PYTHONPATH": str(home),
        "SPARK_HOME": str(home / "pyspark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    limit = COUNT * 3 // 10
    smoke = Path(__file__).with_name("smoke.py")
    ran = subprocess.run(
        [sys.executable, smoke, url, STREAM, tmp_path / "out", str(limit), target, str(times)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, f"{ran.stdout}\n{ran.stderr}"
    result: dict[str, Any] = json.loads(lines[0])

    assert result["spark"] == version
    assert result["schema"] == SCHEMA
    for rows in (result["batch"], result["streamed"], result.get("again_streamed", result["streamed"])):
        assert rows["count"] == COUNT
        assert rows["sequences"] == list(range(1, COUNT + 1))
        assert rows["digest"] == digest
        assert rows["without_time"] == 0
    # A Spark that cannot ask for a part of what is available reads all of it at once, and leaves nothing out.
    assert result["micro_batches"] == ([limit, limit, limit, COUNT - 3 * limit] if limits else [COUNT])
    check_written(fetch(url, target), target)
    if times == 1:
        return
    assert result["filtered"] == {"schema": "struct<data:binary,sequence:bigint>", "count": COUNT // 2}
    assert (result["again"], result["registered"]) == ([], "")
    refused, overwrite = result["errors"]["refused"], result["errors"]["overwrite"]
    assert "row 1 of partition 0 cannot be stored at subject 'nowhere.x': no stream captures this" in refused
    assert 'mode "overwrite" is not possible' in overwrite


def check_written(messages: list[Fetched], target: str) -> None:
    """Each message is there once by the batch writes and once by the query, byte for byte."""
    prefix = target.lower()
    published = [message(number) for number in range(1, COUNT + 1)]
    batch = [each for each in messages if each[0].startswith(f"{prefix}.batch.")]
    assert [(subject, data) for subject, _, data in batch] == [
        (f"{prefix}.batch.{subject}", data) for subject, _, data in published
    ]
    own = ("Nats-Msg-Id", "Nats-Expected-Stream")
    assert [{k: v for k, v in (found or {}).items() if k not in own} for _, found, _ in batch] == [
        headers or {} for _, headers, _ in published
    ]
    streamed = [each for each in messages if each[0] == f"{prefix}.stream.x"]
    assert [(headers, data) for _, headers, data in streamed] == [
        ({"Nats-Msg-Id": f"id-{number}", "Single": str(number)}, data)
        for number, (_, _, data) in enumerate(published, start=1)
    ]
    assert len(messages) == 2 * COUNT
