"""The demo: what it loads, what it compares, and all of it through the command line."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.demo import figures, queries, run
from spark_jetstream.demo.queries import COPIES, STREAM, read_back, write_late
from spark_jetstream.demo.run import DemoFailed, airline_names, publish, read_flights
from spark_jetstream.testing import NatsServer
from tests.support.command import run_command, run_process
from tests.support.publish import Message, Publisher

FLIGHTS = read_flights(1000)


@dataclass(frozen=True)
class Loaded:
    """A server with the stream of `FLIGHTS`, and what `publish` returned and showed."""

    server: NatsServer
    load: figures.Load
    steps: list[int]


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    steps: list[int] = []
    with NatsServer() as server:
        yield Loaded(
            server,
            publish(spark, server.url, FLIGHTS, tmp_path_factory.mktemp("load"), steps.append),
            steps,
        )


def test_every_flight_is_stored_once_and_in_order(loaded: Loaded) -> None:
    with JetStreamAdmin(servers=loaded.server.url) as admin:
        count = admin.streams.load(STREAM).state.messages
        # The flight of row 838 was cancelled: it has no delay.
        samples = [admin.messages.get(STREAM, row + 1) for row in (0, 838, 999)]
    assert count == loaded.load.messages == loaded.steps[-1] == len(FLIGHTS)
    for message in samples:
        flight = FLIGHTS.iloc[message.seq - 1]
        assert message.subject == f"flights.{flight['origin']}.{flight['dest']}"
        decoded = json.loads(message.data)
        assert (decoded["carrier"], decoded["hour"]) == (flight["carrier"], flight["hour"])
        assert decoded["dep_delay"] == (
            None if pd.isna(flight["dep_delay"]) else flight["dep_delay"]
        )
    assert json.loads(samples[1].data)["dep_delay"] is None


@pytest.mark.full
def test_a_message_that_the_server_refuses_fails_the_load(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        NatsServer(config="jetstream { max_file_store: 40KB }") as server,
        pytest.raises(
            DemoFailed,
            match=r"flights could not be stored: .*RowRefused: .* insufficient resources",
        ),
    ):
        publish(spark, server.url, FLIGHTS.head(300), tmp_path, lambda _: None)


def delays(sums: dict[tuple[str, int], tuple[float, ...]]) -> pd.DataFrame:
    columns = ["flights", "departed", "departure_minutes", "arrived", "arrival_minutes"]
    frame: pd.DataFrame = pd.DataFrame.from_dict(sums, orient="index", columns=columns)
    return frame


def test_sums_leave_out_cancelled_flights() -> None:
    columns = ["carrier", "hour", "dep_delay", "arr_delay"]
    rows = [
        ("AA", 5, 2.0, None),
        ("AA", 5, None, None),
        ("AA", 6, -3.0, 4.0),
        ("UA", 5, None, None),
    ]
    sums = figures.delays_by_pandas(pd.DataFrame(rows, columns=columns))
    expected = {
        ("AA", 5): (2, 1, 2.0, 0, 0.0),
        ("AA", 6): (1, 1, -3.0, 1, 4.0),
        ("UA", 5): (1, 0, 0.0, 0, 0.0),
    }
    assert sums.apply(tuple, axis=1).to_dict() == expected


def test_a_difference_is_a_sentence_and_equal_sums_are_none() -> None:
    one, other = (2, 1, 2.0, 0, 0.0), (2, 1, 3.0, 0, 0.0)
    spark, pandas = (
        delays({("AA", 5): one, ("AA", 6): one}),
        delays({("AA", 5): other, ("UA", 5): one}),
    )
    assert figures.differences(spark, spark, figures.DELAYS) == []
    actual = figures.differences(spark, pandas, figures.DELAYS)
    assert [sentence.partition(":")[0] for sentence in actual] == [
        "AA at 5h",
        "AA at 6h",
        "UA at 5h",
    ]
    text = "2 flights, 1 departed {} minutes late, 0 arrived 0 minutes late"
    assert actual[0] == f"AA at 5h: Spark has {text.format(2)}; pandas has {text.format(3)}."
    assert actual[1].endswith("; pandas has nothing.")


def test_only_late_flights_count_for_the_way_back() -> None:
    columns = ["carrier", "origin", "dep_delay", "arr_delay"]
    rows = [
        *(
            ("AA", "JFK", 2.0, figures.LATE),
            ("AA", "JFK", 30.0, 20.0),
            ("AA", "JFK", 90.0, figures.LATE - 1),
        ),
        *(("UA", "JFK", None, None), ("UA", "EWR", 20.0, 25.0)),
    ]
    assert figures.late_by_pandas(pd.DataFrame(rows, columns=columns)).to_dict("index") == {
        "delays.JFK.AA": {"messages": 2, "flights": 2, "minutes": 35, "lost": 3},
        "delays.EWR.UA": {"messages": 1, "flights": 1, "minutes": 25, "lost": 5},
    }


def tamper(admin: JetStreamAdmin, url: str) -> None:
    """Store the first message of the second stream once more, and delete the last one."""
    first = admin.messages.get(COPIES, 1)
    with Publisher(url) as publisher:
        # With its id the server would take it for a duplicate.
        headers = [
            (name, values[0]) for name, values in first.headers.items() if name != "Nats-Msg-Id"
        ]
        publisher.publish([Message(first.subject, first.data, headers)])
    admin.messages.delete(COPIES, admin.streams.load(COPIES).state.last_seq - 1)


@pytest.mark.full
def test_late_flights_are_stored_once_and_what_was_tampered_with_is_found(
    loaded: Loaded, spark: SparkSession, tmp_path: Path
) -> None:
    expected = figures.late_by_pandas(FLIGHTS)
    steps: list[int] = []
    url = loaded.server.url
    batches = write_late(spark, url, tmp_path, steps.append)
    # The checkpoint knows that everything is done.
    write_late(spark, url, tmp_path, lambda _: None)
    back = read_back(spark, url)
    with JetStreamAdmin(servers=url) as admin:
        messages = list(admin.messages.read(COPIES))
        first, last = messages[0], messages[-1]
        tamper(admin, url)
    tampered = read_back(spark, url)

    assert batches.total_rows == steps[-1] == len(FLIGHTS)
    assert figures.differences(back.late, expected, figures.LATE_FLIGHTS) == []
    assert back.messages == len(messages) == (FLIGHTS["arr_delay"] >= figures.LATE).sum()
    for message in messages:
        flight = FLIGHTS.iloc[int(message.headers["Flight-Sequence"][0]) - 1]
        assert message.subject == f"delays.{flight['origin']}.{flight['carrier']}"
        assert json.loads(message.data) == {
            "flight": f"{flight['carrier']} {flight['flight']}",
            "date": f"{flight['year']}-{flight['month']:02}-{flight['day']:02}",
            "to": flight["dest"],
            "minutes": flight["arr_delay"],
            "lost": flight["arr_delay"] - flight["dep_delay"],
        }

    actual = figures.differences(tampered.late, expected, figures.LATE_FLIGHTS)
    assert {sentence.partition(":")[0] for sentence in actual} == {first.subject, last.subject}
    assert tampered.messages == back.messages
    assert tampered.late["flights"].sum() == back.late["flights"].sum() - 1


def test_the_report_fits_a_terminal_of_80_columns_and_40_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flights = read_flights()
    batches = figures.Batches([300_000, 36_776], [3.0, 1.0], "2026-02-03T08:14:24.984Z")
    late = figures.late_by_pandas(flights)
    example = '{"flight":"EV 6049","date":"2013-10-25","to":"IAD","minutes":118,"lost":-12}'
    console = Console(width=80)
    load, sums = figures.Load(336_776, 104_000_000, 2.0), figures.delays_by_pandas(flights)
    figures.report(console, load, sums, batches, airline_names())
    figures.report_back(
        console, batches, figures.Stored(late, dict.fromkeys(late.index, example), 2.0)
    )
    printed = capsys.readouterr().out
    texts = [
        "United Air Lines",
        "58,665",
        "21-24",
        "AirTran Airways ",
        "84,194 rows/s",
        "2026-02-03T08:14:24.984Z.",
    ]
    texts += ["delays.EWR.EV", example, "stored 80,100", "20,025 rows/s"]
    assert [text for text in texts if text not in printed] == []
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    # Three progress bars, two verdicts and the next step come on top.
    assert len(printed.splitlines()) <= 34


@pytest.mark.parametrize("wrong", ["sums", "way back", "nothing"])
def test_results_that_differ_end_with_1_and_say_so(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flights = read_flights(500)
    sums, late = figures.delays_by_pandas(flights), figures.late_by_pandas(flights)
    if wrong == "sums":
        sums.loc[("UA", 5), "flights"] = 1
    elif wrong == "way back":
        late.loc["delays.EWR.UA", "minutes"] = 1
    batches = figures.Batches([500], [1.0])
    session = contextlib.nullcontext(SimpleNamespace(version="0"))
    monkeypatch.setattr(run, "spark_session", lambda _: session)
    monkeypatch.setattr(run, "publish", lambda *_: figures.Load(500, 1, 1.0))
    monkeypatch.setattr(run, "run_query", lambda *_: (sums, batches))
    monkeypatch.setattr(run, "write_late", lambda *_: batches)
    monkeypatch.setattr(
        run, "read_back", lambda *_: figures.Stored(late, dict.fromkeys(late.index, "{}"), 1.0)
    )
    picture = tmp_path / "demo.svg"
    status = run.run(500, as_json=True, picture=picture)
    printed = capsys.readouterr()
    actual = json.loads(printed.out)
    assert status == (wrong != "nothing")
    assert actual["agrees_with_pandas"] is (wrong == "nothing")
    assert len(actual["differences"]) == (wrong != "nothing")
    # The line breaks where the path of the command ends, if that is not on the PATH.
    advice = "spark-jetstream server, stream add and pub" in " ".join(printed.err.split())
    assert advice == (wrong == "nothing")
    drawn = picture.read_text("utf-8").replace("&#160;", " ")
    assert drawn.startswith("<svg")
    assert "url(" not in drawn.replace("url(#", "")
    assert "United Air Lines" in drawn
    assert ("Spark and pandas agree on all" in drawn) == (wrong != "sums")
    for text in ("UA at 5h: Spark has", "Spark and pandas differ in 1 of"):
        assert (text in printed.err) == (wrong == "sums")
    for text in ("delays.EWR.UA: the stream holds", "Stream DELAYS and pandas differ in 1 of"):
        assert (text in printed.err) == (wrong == "way back")


@pytest.mark.full
def test_the_demo_runs_and_its_sums_agree(tmp_path: Path) -> None:
    ran = run_process("demo", "--messages", 120_000, "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    assert result["agrees_with_pandas"] is True
    assert result["messages"] == result["rows"] == 120_000
    assert result["batches"] == 2
    assert sum(carrier["flights"] for carrier in result["carriers"].values()) == 120_000
    back = result["way_back"]
    assert (back["rows_read"], back["batches"]) == (120_000, 2)
    late = sum(subject["messages"] for subject in back["subjects"].values())
    assert back["rows_stored"] == late == (read_flights(120_000)["arr_delay"] >= figures.LATE).sum()
    assert back["rows_stored_per_second"] > 0
    assert "WARN" not in ran.stderr


# Ctrl-C


class Session:
    """Stands for Spark, and knows whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = False
        self.sparkContext = SimpleNamespace(setLogLevel=lambda _: None)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopped = True


def build(monkeypatch: pytest.MonkeyPatch, session: Session, start: Callable[[], object]) -> None:
    """Let Spark start by calling a function."""

    def create() -> Session:
        start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark puts a handler of its own there
        return session

    builder: Any = SimpleNamespace(
        appName=lambda _: builder, master=lambda _: builder, config=lambda *_: builder
    )
    builder.getOrCreate = create
    monkeypatch.setattr(queries, "SparkSession", SimpleNamespace(builder=builder))
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def test_ctrl_c_waits_until_spark_has_started_and_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session, used = Session(), []
    build(monkeypatch, session, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), queries.spark_session(tmp_path):
        used.append(session)
    assert session.stopped
    assert used == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_spark_works_ends_it_without_a_line_of_py4j(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    build(monkeypatch, session, lambda: None)

    def call() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            logging.getLogger().error("KeyboardInterrupt while sending command.")

    with pytest.raises(KeyboardInterrupt), queries.spark_session(tmp_path):
        call()
    assert session.stopped
    assert caplog.text == ""
    logging.getLogger().error("later")
    assert "later" in caplog.text


def test_ctrl_c_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> figures.Load:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        run, "spark_session", lambda _: contextlib.nullcontext(SimpleNamespace(version="0"))
    )
    monkeypatch.setattr(run, "publish", interrupted)
    ran = run_command("demo", "--messages", 10)
    assert (ran.code, ran.err) == (
        130,
        "spark-jetstream: interrupted; Spark and the server have ended\n",
    )
    assert "\n" not in ran.out.strip()  # the bar


@pytest.mark.full
def test_ctrl_c_during_a_call_of_spark_is_one_line(tmp_path: Path) -> None:
    """Spark's own handler and py4j print what they were doing."""
    script = """
import os, signal, threading, time
from spark_jetstream.cli.main import main
from spark_jetstream.demo import run

def publish(spark, *_):
    tracker = spark.sparkContext.statusTracker()

    def interrupt():
        while not tracker.getActiveStageIds():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)").collect()

run.publish = publish
main()
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, "demo", "--messages", "10"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    says = "spark-jetstream: interrupted; Spark and the server have ended\n"
    assert (ran.returncode, ran.stderr) == (130, says)
