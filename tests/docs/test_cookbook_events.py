"""The recipes of the cookbook about time, tables, changes and replays, and what they say of
failures and restarts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.docs.conftest import Recipe, delta_table
from tests.support.queries import batch, kept_settings

RunRecipe = Callable[[str], Recipe]


@pytest.fixture(autouse=True)
def settings_are_restored(spark: SparkSession) -> Iterator[None]:
    """The session is shared; recipes set its configuration as a script of their own does."""
    names = (
        "spark.sql.shuffle.partitions",
        "spark.sql.session.timeZone",
        "spark.sql.streaming.noDataMicroBatches.enabled",
    )
    with kept_settings(spark, *names):
        yield


def uncommit(checkpoint: Path) -> Path:
    """Leave the checkpoint as a query does that is killed when its last micro-batch is stored and
    not yet committed.

    Returns the file that is there again when the micro-batch was run again.
    """
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
        key=lambda p: int(p.name),
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return last


@pytest.mark.full
def test_windows(spark: SparkSession, run_recipe: RunRecipe) -> None:
    recipe = run_recipe("windows")
    stored = [
        json.loads(row.data)
        for row in batch(spark, recipe.url, "MINUTES").orderBy("sequence").collect()
    ]
    assert sorted((row["readings"], row["celsius"]) for row in stored) == [(1, 30.0), (2, 21.0)]
    progress = recipe.names["query"].recentProgress
    assert progress[-1]["eventTime"]["watermark"] == "2026-03-01T12:02:50.000Z"
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [2, 2, 2, 1]


@pytest.mark.full
def test_joins(spark: SparkSession, run_recipe: RunRecipe, tmp_path: Path) -> None:
    recipe = run_recipe("joins")
    assert batch(spark, recipe.url, "SHOP").count() == 6
    left_outer = spark.read.parquet(str(tmp_path / "orders")).orderBy("id").collect()
    assert [(row.id, row.amount, row.paid is None) for row in left_outer] == [
        (1, 20.0, False),
        (2, 35.0, True),
        (3, 12.0, False),
    ]


@pytest.mark.full
def test_a_dimension_table(spark: SparkSession, run_recipe: RunRecipe, tmp_path: Path) -> None:
    run_recipe("dimension-table")
    rows = spark.read.parquet(str(tmp_path / "sold")).collect()
    assert sorted((row.batch, row["product"], row.pieces, row.price) for row in rows) == [
        (0, "milk", 2, 1.5),
        (0, "salt", 1, None),
        (0, "tea", 1, 4.0),
        (1, "tea", 10, 5.0),
    ]
    looked_up = spark.read.parquet(str(tmp_path / "looked-up"))
    assert looked_up.where("revision IS NULL AND price IS NULL").count() == 2
    assert looked_up.where("revision IS NOT NULL AND price IS NOT NULL").count() == 4


@pytest.mark.full
def test_change_data(run_recipe: RunRecipe, tmp_path: Path) -> None:
    recipe = run_recipe("change-data")
    folder, checkpoint = str(tmp_path / "customers"), tmp_path / "customers-checkpoint"

    def rows() -> list[tuple[Any, ...]]:
        table = delta_table(folder).to_pyarrow_table().to_pylist()
        return sorted((row["key"], row["name"], row["city"], row["revision"]) for row in table)

    merged = rows()
    assert merged == [
        ("c2", "Emmy", "Göttingen", 5),
        ("c3", "Mary", "Jedburgh", 6),
        ("c4", "Sofia", "Stockholm", 7),
    ]
    version = delta_table(folder).version()
    commit = uncommit(checkpoint)
    recipe.names["run"]()
    assert commit.exists()
    assert rows() == merged

    # From the start again.
    shutil.rmtree(checkpoint)
    delta_table(folder).delete()
    recipe.names["run"]()
    assert rows() == merged
    assert delta_table(folder).version() > version


@pytest.mark.full
def test_a_work_queue(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("work-queue")
    # Each part has messages, or the page would show nothing.
    assert all(recipe.names["parts"])


def test_replay(spark: SparkSession, run_recipe: RunRecipe) -> None:
    recipe = run_recipe("replay")
    rows = batch(spark, recipe.url, "CORRECTED").orderBy("sequence").collect()
    assert [
        (row.sequence, row.subject, json.loads(row.data), row.headers["Replayed-From"])
        for row in rows
    ] == [
        (1, "corrected.scans.tea", {"pieces": 3, "price": 4.0}, ["SCANS/3"]),
        (2, "corrected.scans.milk", {"pieces": 1, "price": 1.5}, ["SCANS/4"]),
    ]
    assert batch(spark, recipe.url, "SCANS").count() == 5


@pytest.mark.full
def test_deduplication(spark: SparkSession, run_recipe: RunRecipe, tmp_path: Path) -> None:
    # Without it the last micro-batch of a run has no rows.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    recipe = run_recipe("deduplication")

    def clean() -> list[tuple[int, str]]:
        rows = batch(spark, recipe.url, "CLEAN").orderBy("sequence").collect()
        return [(row.sequence, json.loads(row.data)["id"]) for row in rows]

    stored = clean()
    assert sorted(identifier for _, identifier in stored) == ["a", "b", "c"]
    assert stored[-1] == (3, "c")
    commit = uncommit(tmp_path / "clean-checkpoint")
    recipe.names["run"]()
    assert commit.exists()
    assert clean() == stored
    assert len(batch(spark, recipe.url, "EVENTS").collect()) == 5
