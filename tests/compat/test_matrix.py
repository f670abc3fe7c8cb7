"""`make matrix` runs the versions that the metadata promises.

A run of it wrote the table in docs/compatibility.md.
"""

from __future__ import annotations

import re

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.compat.test_compat import VERSIONS
from tests.support.project import PYPROJECT, ROOT
from tools import matrix
from tools.version_table import PAGE, key, minor

DEPENDENCIES = [Requirement(item) for item in PYPROJECT["project"]["dependencies"]]
TEXT = PAGE.read_text()
CELLS = [cell for axis in matrix.AXES for cell in matrix.cells(axis)]
ROWS = [dict(zip(matrix.COLUMNS, row, strict=True)) for row in matrix.TABLE.rows(TEXT)]


def dev_sparks() -> list[str]:
    """The Sparks that the suite runs on, newest first."""
    requirements = map(Requirement, PYPROJECT["dependency-groups"]["test"])
    return [
        str(requirement.specifier).removeprefix("==")
        for requirement in requirements
        if requirement.name == "pyspark"
    ]


def test_the_matrix_has_every_version_that_is_supported() -> None:
    classifiers = "\n".join(PYPROJECT["project"]["classifiers"])
    assert list(matrix.PYTHONS) == re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert list(matrix.SPARKS) == [
        *(minor(version) for version, _ in VERSIONS),
        minor(dev_sparks()[0]),
    ]
    assert set(matrix.LIBRARIES) == {requirement.name for requirement in DEPENDENCIES}
    for name, tried in (
        ("python", matrix.PYTHONS),
        ("spark", matrix.SPARKS),
        ("server", matrix.SERVERS),
    ):
        assert {getattr(cell, name) for cell in CELLS} == set(tried)
    assert len(set(CELLS)) == len(CELLS)


def test_the_workflow_runs_every_axis() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "matrix.yml").read_text())
    assert workflow["jobs"]["versions"]["strategy"]["matrix"]["axis"] == list(matrix.AXES)


def test_the_table_has_a_row_for_each_combination() -> None:
    assert [key(row) for row in matrix.TABLE.rows(TEXT)] == [key(cell.not_run) for cell in CELLS]
    for row in ROWS:
        versions = [row[name] for name in matrix.LIBRARIES]
        if row["result"] == matrix.NOT_RUN:
            assert [*versions, row["on"]] == [""] * 5
        else:
            assert row["result"] == matrix.PASSED
            assert all(versions)
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["on"])


def test_the_table_is_of_the_versions_that_the_metadata_name() -> None:
    newest = [*(version for version, _ in VERSIONS), dev_sparks()[0]]
    for row, cell in zip(ROWS, CELLS, strict=True):
        if row["result"] == matrix.NOT_RUN:
            continue
        if cell.sail:
            assert row["Spark"] == matrix.engine(cell.sail)
        else:
            assert cell.oldest or row["Spark"] in newest
        pins = {pin.name: pin.specifier for pin in map(Requirement, cell.pins)}
        for requirement in DEPENDENCIES:
            (floor,) = (
                Version(bound.version) for bound in requirement.specifier if bound.operator == ">="
            )
            version = Version(row[requirement.name])
            assert version == floor if cell.oldest else version > floor
            assert version in requirement.specifier & pins.get(requirement.name, SpecifierSet())
