"""The demo: what it loads, what it compares, and all of it through the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pandas as pd
import pytest
from rich.console import Console

from spark_jetstream import demo
from spark_jetstream.demo import STREAM, DemoFailed, airline_names, publish, read_flights
from spark_jetstream.demo_report import Delays, Load, QueryRun, delays_by_pandas, differences, report
from spark_jetstream.testing import NatsServer

FLIGHTS = read_flights(6000)


async def stored(url: str, sequences: list[int]) -> tuple[int, list[tuple[str | None, bytes | None]]]:
    """How many messages the stream holds, and subject and payload of some of them."""
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        messages = [await jetstream.get_msg(STREAM, sequence) for sequence in sequences]
        count = (await jetstream.stream_info(STREAM)).state.messages
        return count, [(message.subject, message.data) for message in messages]
    finally:
        await client.close()


def test_every_flight_is_stored_once_and_in_order() -> None:
    steps: list[int] = []
    with NatsServer() as server:
        load = asyncio.run(publish(server.url, FLIGHTS, steps.append))
        # The flight of row 838 was cancelled: it has no delay.
        count, samples = asyncio.run(stored(server.url, [1, 839, 6000]))
    assert count == load.messages == sum(steps) == len(FLIGHTS)
    for (subject, data), row in zip(samples, [0, 838, 5999], strict=True):
        flight = FLIGHTS.iloc[row]
        assert subject == f"flights.{flight['origin']}.{flight['dest']}"
        decoded = json.loads(data or b"")
        assert (decoded["carrier"], decoded["hour"]) == (flight["carrier"], flight["hour"])
        assert decoded["dep_delay"] == (None if pd.isna(flight["dep_delay"]) else flight["dep_delay"])
    assert json.loads(samples[1][1] or b"")["dep_delay"] is None


def test_a_message_that_the_server_refuses_fails_the_load() -> None:
    with (
        NatsServer(config="jetstream { max_file_store: 400KB }") as server,
        pytest.raises(DemoFailed, match=r"the server refused \d+ of 6000 messages: .*resource"),
    ):
        asyncio.run(publish(server.url, FLIGHTS, lambda _: None))


def test_sums_leave_out_cancelled_flights() -> None:
    flights = pd.DataFrame(
        {
            "carrier": ["AA", "AA", "AA", "UA"],
            "hour": [5, 5, 6, 5],
            "dep_delay": [2.0, None, -3.0, None],
            "arr_delay": [None, None, 4.0, None],
        }
    )
    assert delays_by_pandas(flights) == {
        ("AA", 5): Delays(2, 1, 2.0, 0, 0.0),
        ("AA", 6): Delays(1, 1, -3.0, 1, 4.0),
        ("UA", 5): Delays(1, 0, 0.0, 0, 0.0),
    }


def test_a_difference_is_a_sentence_and_equal_sums_are_none() -> None:
    one, other = Delays(2, 1, 2.0, 0, 0.0), Delays(2, 1, 3.0, 0, 0.0)
    assert differences({("AA", 5): one}, {("AA", 5): one}) == []
    found = differences({("AA", 5): one, ("AA", 6): one}, {("AA", 5): other, ("UA", 5): one})
    assert [sentence.partition(":")[0] for sentence in found] == ["AA at 5h", "AA at 6h", "UA at 5h"]


def test_the_report_fits_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    sums = delays_by_pandas(read_flights())
    result = QueryRun(sums, [300_000, 36_776], [3.0, 1.0])
    report(Console(width=80), Load(336_776, 104_000_000, 2.0), result, airline_names())
    printed = capsys.readouterr().out
    assert "United Air Lines" in printed
    assert "58,665" in printed
    assert "21-24h" in printed
    assert "84,194 rows/s" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_sums_that_differ_end_with_1_and_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def no_session(_folder: Path) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(version="0")

    def wrong(*_arguments: object) -> QueryRun:
        right = delays_by_pandas(read_flights(500))
        return QueryRun({**right, ("UA", 5): Delays(1, 1, 1.0, 1, 1.0)}, [500], [1.0])

    monkeypatch.setattr(demo, "spark_session", no_session)
    monkeypatch.setattr(demo, "run_query", wrong)
    assert demo.run(500) == 1
    printed = capsys.readouterr().out
    assert "UA at 5h" in printed
    assert "Spark and pandas differ in 1 of" in printed


def test_the_demo_runs_and_its_sums_agree(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "spark_jetstream", "demo", "--messages", "120000", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    assert result["agrees_with_pandas"] is True
    assert result["messages"] == result["rows"] == 120_000
    assert result["batches"] == 2
    assert sum(carrier["flights"] for carrier in result["carriers"].values()) == 120_000
    assert "WARN" not in ran.stderr
