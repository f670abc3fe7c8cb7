"""Checkpoints and servers of an earlier state of the project are still read, and written the same
way.

The names and texts that users import, call, set and type are the same, too. `formats/` holds what
is compared with, `write_formats` says how it was made and when it may be written anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.compat import write_formats as formats
from tests.compat.interface import KINDS
from tests.compat.write_formats import FORMATS, QUERY, READ, SOURCES, TO_READ, read_json
from tests.support.publish import Publisher

pytestmark = pytest.mark.usefixtures("no_connection_left")


@pytest.mark.full
def test_a_query_goes_on_from_a_stored_checkpoint(
    spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    """The streams come from stored backups, with the messages' times; a restored stream is created
    now, however.
    """
    stored, checkpoint = FORMATS / "checkpoint", tmp_path / "checkpoint"
    before = read_json("checkpoint/created.json")
    with JetStreamAdmin(servers=server.url) as admin:
        now = {name: admin.streams.restore(stored / name).info.created for name in SOURCES}

    def with_times(file: str) -> str:
        text = (stored / file).read_text()
        for name in SOURCES:
            text = text.replace(before[name], now[name])
        return text

    for file in formats.CHECKPOINT:
        (checkpoint / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / file).write_text(with_times(file))
    run = formats.read_on(spark, server.url, checkpoint)
    rows = sorted(
        (row["stream"], row["sequence"], row["subject"], bytes(row["data"])) for row in run.rows
    )
    assert rows == [
        (name, number, f"{name.lower()}.{number % 3}", b"%d" % number)
        for name in SOURCES
        for number in range(READ + 1, READ + TO_READ + 1)
    ]
    # The first two lines are Spark's own. It takes other text for the same position for new data.
    # The offset before is of version 1, which has no cuts.
    assert (checkpoint / "offsets/1").read_text().splitlines()[2:] == with_times(
        "offsets/1"
    ).splitlines()[2:]


def test_tasks_go_on_from_a_stored_ledger(server: NatsServer) -> None:
    before, after = (read_json("ledger.json")[when] for when in ("before", "after"))
    with Publisher(server.url) as publisher:
        formats.put_ledger(publisher, server.url, before)
        reports = [
            formats.sink(server.url).write(batches, task) for task, batches in formats.tasks()
        ]
        actual = formats.comparable(formats.on_server(publisher))
    assert [
        (report.rows, report.stored, report.duplicates, report.dead_letters) for report in reports
    ] == [
        (6, 6, 6, 0),
        (18, 16, 5, 2),
        (12, 12, 6, 0),
    ]
    assert actual["rows"][: len(before["rows"])] == before["rows"]
    assert actual["rows"][len(before["rows"]) :] == after["rows"]
    assert actual["entries"] == after["entries"]
    assert [entry["subject"].rpartition("ledger.")[2] for entry in actual["entries"]] == [
        f"{QUERY}.0",
        f"{QUERY}.1",
        f"{QUERY}.batch",
        "w-load.3",
        "w-load.batch",
    ]


def test_tasks_that_a_stored_ledger_has_as_done_store_nothing(server: NatsServer) -> None:
    before, after = (read_json("ledger.json")[when] for when in ("before", "after"))
    rows, entries = before["rows"] + after["rows"], formats.filled(after["entries"])
    with Publisher(server.url) as publisher:
        formats.put_ledger(publisher, server.url, {**before, "rows": rows, "entries": entries})
        reports = [
            formats.sink(server.url).write(batches, task) for task, batches in formats.tasks()
        ]
        actual = formats.comparable(formats.on_server(publisher))
    assert [
        (report.rows, report.stored, report.duplicates, report.dead_letters) for report in reports
    ] == [
        (6, 6, 6, 0),
        (18, 16, 16, 2),
        (12, 12, 12, 0),
    ]
    assert actual["rows"] == rows


@pytest.mark.full
def test_names_on_the_server_stay(spark: SparkSession, server: NatsServer) -> None:
    printed, stored = formats.names(spark, server.url), read_json("names.json")
    assert list(printed) == list(stored)
    for what, names in stored.items():
        assert printed[what] == names, what


@pytest.mark.full
def test_fields_of_command_output_stay(server: NatsServer) -> None:
    printed, stored = formats.outputs(server.url), read_json("outputs.json")
    assert list(printed) == list(stored)
    for line, output in stored.items():
        assert printed[line] == output, line


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_interface_stays(kind: str) -> None:
    """For a change on purpose, run `python -m tests.compat.write_formats interface`, and say so in
    CHANGELOG.
    """
    printed, stored = KINDS[kind](), read_json("interface.json")[kind]
    assert list(printed) == list(stored)
    for name, what in stored.items():
        assert printed[name] == what, name
