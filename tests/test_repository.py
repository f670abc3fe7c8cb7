"""The files of the repository agree with each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import spark_jetstream
from spark_jetstream.client.nats_py import RELEASES
from tests.compat.test_compat import VERSIONS as COMPAT_VERSIONS
from tests.support.project import PYPROJECT, ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
#: Patterns of names that are made by tools, or not ours.
FOREIGN = [
    ".git",
    *(
        line.strip("/")
        for line in (ROOT / ".gitignore").read_text().splitlines()
        if line and not line.startswith("#")
    ),
]


# -- files --


def own_files() -> Iterator[Path]:
    def own(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch(name, each) for each in FOREIGN)]

    for folder, folders, names in os.walk(ROOT):
        folders[:] = own(folders)
        yield from (Path(folder, name) for name in own(names))


def text_of(path: Path) -> str:
    """Its content, or nothing where it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    # Put together here, so that this file does not hold them. Examples may well speak of /home/me.
    homes = [f"/{name}/" for name in ("root", "work")]
    homes += [f"{place}/" for place in (Path.home(), ROOT) if len(place.parts) > 1]
    found = {
        str(path.relative_to(ROOT)): [home for home in homes if home in text]
        for path in own_files()
        if any(home in (text := text_of(path)) for home in homes)
    }
    assert found == {}


# -- build --


def test_the_makefile_fetches_the_sparks_that_the_tests_use() -> None:
    found = re.search(r"^COMPAT_VERSIONS := (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    assert found[1].split() == [version for version, _ in COMPAT_VERSIONS]


def test_the_changelog_has_the_version() -> None:
    version = spark_jetstream.__version__
    assert str(Version(version)) == version
    headings = re.findall(r"^## .*$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert any(version in heading for heading in headings)


# -- locked versions --

GROUPS: dict[str, list[str | dict[str, str]]] = PYPROJECT["dependency-groups"]
INCLUDED = {
    entry["include-group"]
    for group in GROUPS.values()
    for entry in group
    if isinstance(entry, dict)
}
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def locked() -> list[Requirement]:
    """The lines of constraints.txt without their hashes, each of them one version under an optional
    condition.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [
        Requirement(line.removesuffix(" \\"))
        for line in lines
        if line and not line.startswith((" ", "#"))
    ]


def on(python: str, requirement: Requirement) -> bool:
    """Whether a requirement holds for this Python on this machine."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def test_constraints_are_versions_with_hashes_and_nothing_else() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    entries = re.findall(
        r"^\S.* \\(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+$", text, re.MULTILINE
    )
    assert len(entries) == len(locked()) > 100
    for requirement in locked():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_locked_for_every_python(python: str) -> None:
    project = PYPROJECT["project"]
    assert Version(python) in Requirement(f"x{project['requires-python']}").specifier
    versions = {
        canonicalize_name(requirement.name): Version(str(requirement.specifier).removeprefix("=="))
        for requirement in locked()
        if on(python, requirement)
    }
    optional = [*project["optional-dependencies"].values(), *GROUPS.values()]
    lines = [*project["dependencies"], *(line for group in optional for line in group)]
    for line in lines:
        if isinstance(line, dict):
            assert line["include-group"] in GROUPS
            continue
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name != project["name"] and on(python, wanted):
            assert name in versions, f"{line} on Python {python}"
            assert versions[name] in wanted.specifier, f"{line} on Python {python}"


def test_make_lock_locks_every_group() -> None:
    listed = re.search(r"\$\(foreach group,([a-z ]+),", MAKEFILE)
    assert listed is not None
    assert {*listed[1].split(), *INCLUDED} == GROUPS.keys()


def test_targets_install_every_group_and_extra() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"].keys() - {"all"}
    named = re.findall(r"^EXTRAS\w* := 'spark-jetstream\[([\w,]+)\]'$", MAKEFILE, re.MULTILINE)
    assert sorted(extra for list_of in named for extra in list_of.split(",")) == sorted(extras)
    stamps = re.findall(r"^[A-Z]+ := \$\(VENV\)/\.(\w+)$", MAKEFILE, re.MULTILINE)
    groups = re.findall(r"--group ([a-z]+)", MAKEFILE)
    assert {*groups, *stamps, *INCLUDED} - {"installed"} == GROUPS.keys()


def test_the_releases_of_nats_py_are_those_whose_parts_are_known() -> None:
    assert RELEASES in PYPROJECT["project"]["dependencies"]


def test_extras_of_this_project_that_others_include_exist() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    for line in (line for extra in extras.values() for line in extra):
        wanted = Requirement(line)
        if wanted.name == PYPROJECT["project"]["name"]:
            assert wanted.extras <= extras.keys()
