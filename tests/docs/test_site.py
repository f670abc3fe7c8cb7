"""The documentation site: every page is in its navigation, and it builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.jobs import run_python
from tests.support.project import ROOT, URLS

# `BaseLoader` reads the tags of MkDocs, such as !ENV, as texts.
SITE: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


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
    assert {page for page in pages if not page.startswith(folders)} == {
        name for name in named if not name.startswith(own) and not name.endswith("/")
    }
    assert [name for name in named if name.startswith(own) and not (ROOT / name.removeprefix(own)).is_file()] == []


@pytest.mark.full
def test_the_site_builds_and_describes_every_public_name(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCS_EXECUTE": "false", "NO_MKDOCS_2_WARNING": "1"}
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path, cwd=ROOT, env=environment)
    assert (tmp_path / "notebooks" / "quickstart" / "index.html").is_file()
    inventory = (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]
    described = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for name in ("", ".admin", ".monitoring", ".testing", ".permissions"):
        module = importlib.import_module(f"spark_jetstream{name}")
        public = {f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__")}
        assert public <= described
    # A reader's browser asks no other host for scripts, styles, fonts or images.
    asking = re.compile(
        r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?https?://(?!spark-jetstream\.github\.io/)"
    )
    assert [page for page in tmp_path.rglob("*.html") if asking.search(page.read_text(encoding="utf-8"))] == []
