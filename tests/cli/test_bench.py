"""``spark-jetstream bench`` prints what it measures, and leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from spark_jetstream import bench
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.bench import percentile
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.cli.conftest import Command, refused
from tests.support.command import running
from tests.support.publish import Publisher
from tests.support.reading import wait_until
from tests.support.streams import MakeStream

GROUP = ("bench",)
FEW = ("--messages", 2000, "--single", 20)


def names(publisher: Publisher) -> set[str]:
    return set(publisher.api("STREAM.NAMES")["streams"] or [])


@pytest.fixture(autouse=True)
def nothing_left(publisher: Publisher) -> Iterator[None]:
    """No stream is made that is not deleted again."""
    before = names(publisher)
    yield
    assert names(publisher) == before


def test_the_table_has_a_row_for_each_way(do: Command) -> None:
    ran = do(*FEW, "--size", 50, "--subjects", 3, "--storage", "memory")
    first, heading, *rows, last = ran.out.splitlines()
    assert first.startswith("2,000 messages of 50 bytes on 3 subjects, memory, 1 replica;")
    assert "without Spark" in first
    assert heading.split() == ["measured", "messages", "messages/s", "MB/s", "seconds"]
    assert [row.split("  ")[0] for row in rows] == [
        "sink, deduplicated",
        "source, readWith=consumer",
        "source, readWith=direct",
    ]
    assert last.startswith("one at a time, 20 acknowledged publishes, ms: p50 ")


def test_json_has_exact_rates_and_latencies(do: Command) -> None:
    printed = do(
        *FEW, "--size", 100, "--json", "--no-direct", "--delivery", "at-least-once", "--batch", 500
    ).json
    assert printed["settings"]["size"] == 100
    assert [rate["what"] for rate in printed["rates"]] == [
        "sink, at-least-once",
        "source, readWith=consumer",
    ]
    for rate in printed["rates"]:
        assert (rate["messages"], rate["bytes"]) == (2000, 200_000)
        assert rate["messages_per_second"] == pytest.approx(2000 / rate["seconds"])
        assert rate["megabytes_per_second"] == pytest.approx(0.2 / rate["seconds"])
    latency = printed["latency_seconds"]
    assert latency["count"] == 20
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]


def test_a_stream_that_is_there_is_only_read(
    do: Command, publisher: Publisher, stream: MakeStream
) -> None:
    made = stream(allow_direct=True)
    made.fill(300)
    publisher.api(f"STREAM.MSG.DELETE.{made.name}", {"seq": 7})
    before = publisher.api(f"STREAM.INFO.{made.name}")["state"]
    ran = do("--json", "--stream", made.name, "--messages", 200)
    assert [rate["messages"] for rate in ran.json["rates"]] == [199, 199]
    assert "latency_seconds" not in ran.json
    wait_until(
        lambda: publisher.api(f"STREAM.INFO.{made.name}")["state"] == before,
        "the stream is as it was",
    )


def test_a_subject_is_written_to_and_nothing_else_is_touched(
    do: Command, run: Command, stream: MakeStream
) -> None:
    made = stream(allow_direct=True)
    made.fill(30)
    subject = f"{made.subject}.bench"
    line = (*FEW, "--subjects", 2, "--json", subject)
    refused(
        run(*line), 2, f"Write 2,020 messages to stream {made.name}? There is no terminal to ask on"
    )
    assert made.state()["messages"] == 30
    ran = do(*line, "--force")
    assert [rate["messages"] for rate in ran.json["rates"]] == [2000, 2000, 2000]
    assert ran.json["settings"] | {"stream": made.name, "subject": subject} == ran.json["settings"]
    assert [made.state()[name] for name in ("messages", "first_seq", "num_subjects")] == [
        2050,
        1,
        3,
    ]
    # No stream has this one: it gets one, which is gone at the end.
    ran = do("--msgs", 2000, "--single", 20, "nobodys.subject", "--json")
    assert [rate["messages"] for rate in ran.json["rates"]] == [2000, 2000, 2000]
    refused(run("a", "--stream", made.name), 2, "SUBJECT is written to and --stream only read")
    refused(run("a.*"), 2, "subject must be a subject without blanks and wildcards")


def test_a_work_queue_is_read_without_consumers(
    do: Command, publisher: Publisher, stream: MakeStream
) -> None:
    queue = stream(retention="workqueue", allow_direct=True)
    queue.fill(10)
    ran = do("--json", "--stream", queue.name)
    assert [rate["what"] for rate in ran.json["rates"]] == ["source, readWith=direct"]
    assert "workqueue retention" in ran.err
    assert publisher.api(f"STREAM.INFO.{queue.name}")["state"]["messages"] == 10
    closed = stream()
    ran = do("--json", "--stream", closed.name)
    assert (ran.json["rates"], "is empty" in ran.err) == ([], True)
    closed.fill(3)
    ran = do("--json", "--stream", closed.name)
    assert (len(ran.json["rates"]), "allow_direct" in ran.err) == (1, True)


def test_a_failure_leaves_no_stream_and_says_why(run: Command) -> None:
    ran = run(*FEW, "--replicas", 3)
    assert (ran.code, ran.out.count("\n")) == (1, 1)
    assert "replicas" in ran.err
    ran = run("--stream", "NOWHERE")
    assert (ran.code, "NOWHERE" in ran.err) == (1, True)
    ran = run(*FEW, "-o", "connectTimeout=300ms", url="nats://127.0.0.1:1")
    assert (ran.code, ran.err.count("\n")) == (3, 1)  # no note that a stream is left
    ran = run(*FEW, "--js-api-prefix", "NOWHERE.API", "--timeout", "5s")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "nobody answers at NOWHERE.API.STREAM.CREATE." in ran.err
    # An error in the middle
    ran = run(*FEW, "--messages", 1, "--size", 2_000_000)
    assert (ran.code, "max_payload" in ran.err) == (1, True)


def test_an_interrupt_while_the_stream_is_made_leaves_nothing(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def create(admin: Streams, **config: Any) -> StreamInfo:
        signal.raise_signal(signal.SIGINT)
        info = made(admin, **config)
        steps.append("created")
        return info

    def delete(admin: Streams, name: str, *, missing_ok: bool) -> bool:
        steps.append("deleted")
        return deleted(admin, name, missing_ok=missing_ok)

    made, deleted = Streams.create, Streams.delete
    monkeypatch.setattr(Streams, "create", create)
    monkeypatch.setattr(Streams, "delete", delete)
    assert run(*FEW).code == 130
    assert steps == ["created", "deleted"]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(
    nats_server: NatsServer,
    publisher: Publisher,
    request: pytest.FixtureRequest,
    number: signal.Signals,
) -> None:
    before = names(publisher)

    def busy() -> bool:
        made = names(publisher) - before
        return any(publisher.api(f"STREAM.INFO.{name}")["state"]["messages"] for name in made)

    # Under nohup the tests ignore SIGHUP, and so would the command, which they start.
    former = signal.getsignal(number)
    if former == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        request.addfinalizer(partial(signal.signal, number, former))
    with running("bench", "--messages", 100_000_000, "-s", nats_server.url) as process:
        poll(lambda: busy() or None, 60, lambda: TimeoutError("nothing was published"))
        # Python drops an interrupt that comes in a finalizer: a user presses Ctrl-C again.
        for _ in range(3):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
                break
        _, text = process.communicate(timeout=60)
    assert process.returncode == 128 + number, text


# The parts


def test_a_percentile_is_the_nearest_rank() -> None:
    taken = [number / 100 for number in range(100, 0, -1)]
    assert [percentile(taken, percent) for percent in (0, 1, 50, 99, 100)] == [
        0.01,
        0.01,
        0.5,
        0.99,
        1.0,
    ]
    assert percentile([3.0], 50) == 3.0


def test_a_publish_that_nobody_stores_fails(nats_server: NatsServer) -> None:
    options = ConnectionOptions.from_spark({"servers": nats_server.url, "retryTimeout": "0s"})
    with pytest.raises(JetStreamError, match="nobody"):
        bench.latencies(connect(options), "nobody.listens", 1, b"x", lambda done, total: None)
