"""Shared by tests of pages: recipes of the cookbook that run on a server of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from spark_jetstream.testing import NatsServer
from tests.support.pages import DEFAULT_URL, FOLDER, REGISTRY_URL, ROOT, blocks
from tests.support.registry import FakeRegistry

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Recipe(NamedTuple):
    """A recipe of the cookbook that was run: the names that it defined, what it printed, its
    server.
    """

    names: dict[str, Any]
    output: str
    url: str


def delta_table(folder: str | Path) -> DeltaTable:
    """Return the table in a folder, read without Spark."""
    # Tests that are not `full` run without the libraries of the recipes.
    from deltalake import DeltaTable  # noqa: PLC0415

    return DeltaTable(folder)


@pytest.fixture
def run_recipe(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    no_connection_left: None,
) -> Iterator[Callable[[str], Recipe]]:
    """Return a function that runs the Python blocks of `docs/cookbook/NAME.md` in order, in one
    namespace.

    The server is new and empty, and so is the schema registry. No query of a recipe may still run at its end. The page's `text`
    blocks must be what it prints, in order; blanks at the ends of lines do not count.
    """
    with NatsServer() as server, FakeRegistry().running() as registry:

        def run(name: str) -> Recipe:
            page = ROOT / "docs" / "cookbook" / f"{name}.md"
            python = blocks(page, "python")
            assert python
            # The functions of a recipe are sent to workers by value, as those of a script are.
            names: dict[str, Any] = {"__name__": "__main__"}
            texts = {
                DEFAULT_URL: server.url,
                REGISTRY_URL: registry.url,
                FOLDER: str(tmp_path),
            }
            capsys.readouterr()
            for block in python:
                block.run(texts, names)
                assert spark.streams.active == []
            output = re.sub(r" +$", "", capsys.readouterr().out, flags=re.MULTILINE)
            position = 0
            for shown in blocks(page, "text"):
                assert shown.text.strip()
                start = output.find(shown.text, position)
                assert start >= 0, (
                    f"{page.name}, line {shown.line}: not printed:\n{shown.text}\nbut\n{output}"
                )
                position = start + len(shown.text)
            return Recipe(names, output, server.url)

        yield run
        for query in spark.streams.active:
            query.stop()
        spark.sql("CLEAR CACHE")
        for table in spark.catalog.listTables():
            if table.isTemporary:
                spark.catalog.dropTempView(table.name)
