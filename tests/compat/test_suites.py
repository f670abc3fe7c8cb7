"""`make suites` runs tests that exist, on every version that the metadata promises.

A run of it wrote the table "suites" in docs/compatibility.md.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.support.jobs import run_python
from tools import matrix, suites
from tools.version_table import PAGE, key

ROWS = suites.TABLE.rows(PAGE.read_text())


def test_each_version_is_in_a_combination_or_is_that_of_the_suite() -> None:
    tried = suites.COMBINATIONS
    assert {each.spark for each in tried} == set(matrix.SPARKS)
    # The suite itself runs on Python 3.11.
    assert {each.python for each in tried} == set(matrix.PYTHONS)
    assert {each.server for each in tried} == set(matrix.SERVERS)
    assert {each.older for each in tried if each.older} == set(matrix.SERVERS[:-1])
    assert len({key(each.not_run) for each in tried}) == len(tried)


def test_the_table_has_a_row_for_each_combination() -> None:
    assert [key(row) for row in ROWS] == [key(each.not_run) for each in suites.COMBINATIONS]
    result = re.compile(rf"|{suites.PASSED}(, \d+ not possible)?|{suites.NOT_RUN}")
    first = suites.COLUMNS.index("like Kafka")
    for row in ROWS:
        assert all(result.fullmatch(cell) for cell in row[first:-2]), row


def test_a_row_takes_the_place_of_the_one_that_was_not_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for number, each in enumerate(suites.COMBINATIONS):
        # As a run has them: with patch levels.
        versions = [re.sub(r"(\d+\.\d+)", r"\1.7", cell) for cell in each.not_run[1:4]]
        row = [each.axis, *versions, *["x"] * (len(suites.COLUMNS) - 4)]
        after = suites.TABLE.rows(suites.TABLE.put(page, row))
        assert after[number] == row
        assert [*after[:number], *after[number + 1 :]] == [*ROWS[:number], *ROWS[number + 1 :]]


@pytest.mark.full
def test_each_suite_has_the_tests_that_it_names() -> None:
    wanted = [*(test for tests in suites.SUITES.values() for test in tests), *suites.UPDATE]
    # Any nats-server will do to make the scenario of an update.
    settings = {**os.environ, "CHAOS_FAULTS": suites.FAULTS, "CHAOS_SERVER": "nats-server"}
    listed = run_python("-m", "pytest", "--collect-only", "-q", *wanted, env=settings)
    found = set(re.findall(r"^tests/\S+", listed, re.MULTILINE))
    assert all(name in found for name in wanted if "::" in name)
    for name in wanted:
        assert any(each.startswith(name) for each in found), name
