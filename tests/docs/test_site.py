"""The parts of the site that need no MkDocs: its navigation, its versions, and when a build replaces it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import run_python, write_program
from tests.support.pages import SITE
from tests.support.project import ROOT, URLS

#: The page that `tools/site/site_hook.py` makes from a part of the README.
FIRST_STEPS = "first-steps.md"


def targets(entries: list[Any]) -> Iterator[str]:
    """Yield the pages, folders and addresses of a navigation."""
    for entry in entries:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from targets(below) if isinstance(below, list) else [below]


def test_the_navigation_has_every_page_once() -> None:
    named = list(targets(SITE["nav"]))
    assert len(named) == len(set(named))
    folders = tuple(name for name in named if name.endswith("/"))
    own = f"{URLS['Source']}/blob/main/"
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages.add(FIRST_STEPS)
    assert {page for page in pages if not page.startswith(folders)} == {
        name for name in named if not name.startswith(own) and not name.endswith("/")
    }
    assert [
        name
        for name in named
        if name.startswith(own) and not (ROOT / name.removeprefix(own)).is_file()
    ] == []


def test_readers_get_the_newest_release_and_may_choose_another_version(tmp_path: Path) -> None:
    def joined(*versions: str) -> tuple[list[str], str]:
        for version in versions:
            (tmp_path / version).mkdir()
            for name in ("404.html", "llms.txt"):
                (tmp_path / version / name).write_text(version)
        run_python(ROOT / ".ci" / "site_versions.py", tmp_path, cwd=tmp_path)
        first = re.search('url=(.*?)/"', (tmp_path / "index.html").read_text())
        assert first
        assert (tmp_path / "404.html").read_text() == first[1]
        assert (tmp_path / "llms.txt").read_text() == first[1]
        return [
            entry["version"] for entry in json.loads((tmp_path / "versions.json").read_text())
        ], first[1]

    assert joined("dev") == (["dev"], "dev")
    assert joined("0.9.0", "0.10.0", "0.10.0rc1") == (
        ["0.10.0", "0.10.0rc1", "0.9.0", "dev"],
        "0.10.0",
    )


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_site_is_replaced_by_a_complete_one_alone(succeeds: bool, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("old")
    (tmp_path / ".docs").touch()
    # In the place of mkdocs: it empties its folder, writes a page, and may fail then.
    build_it = (
        'for folder; do :; done; rm -rf "$folder"; mkdir -p "$folder"; echo new > '
        '"$folder/index.html"'
    )
    python = write_program(tmp_path / "python", build_it, "true" if succeeds else "false")
    made = ["PYTHON=python3", f"PY={python}", "DOCS=.docs", "RUN="]
    command = ["make", "-s", "-o", ".docs", "-f", str(ROOT / "Makefile"), "docs", *made]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) is succeeds, ran.stderr
    assert (tmp_path / "site" / "index.html").read_text().strip() == ("new" if succeeds else "old")
