"""The documentation site: every page is in its navigation, it builds without a warning, and no link
leads nowhere.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from mkdocs.exceptions import PluginError

from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from tests.support.jobs import run_python, write_program
from tests.support.pages import blocks
from tests.support.project import ROOT, URLS
from tools.site import build, site_hook

# `BaseLoader` reads the tags of MkDocs, such as !ENV, as texts.
SITE: dict[str, Any] = yaml.load(
    (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader
)


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
    pages.add(site_hook.FIRST_STEPS)
    assert {page for page in pages if not page.startswith(folders)} == {
        name for name in named if not name.startswith(own) and not name.endswith("/")
    }
    assert [
        name
        for name in named
        if name.startswith(own) and not (ROOT / name.removeprefix(own)).is_file()
    ] == []


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    links = [
        "",
        "#there",
        "#gone",
        "../page/#there",
        "../",
        "../?q=a#top",
        "../#gone",
        "../other/",
        "https://a.b/#c",
    ]
    anchors = "".join(f'<a class=x href="{link}">' for link in links)
    (tmp_path / "page" / "index.html").write_text(
        f'<h1 id="there">{anchors}<a href=../style.css><a href=../gone.css>'
    )
    (tmp_path / "index.html").write_text('<h1 class="x" id=top><a href="/elsewhere/">')
    (tmp_path / "style.css").touch()
    dead = ["#gone", "../#gone", "../other/", "../gone.css"]
    assert list(site_hook.dead_links(tmp_path)) == [("page/index.html", link) for link in dead]


def test_readers_get_the_newest_release_and_may_choose_another_version(tmp_path: Path) -> None:
    def joined(*versions: str) -> tuple[list[str], str]:
        for version in versions:
            (tmp_path / version).mkdir()
            (tmp_path / version / "404.html").write_text(version)
        run_python(ROOT / ".ci" / "site_versions.py", tmp_path, cwd=tmp_path)
        first = re.search('url=(.*?)/"', (tmp_path / "index.html").read_text())
        assert first
        assert (tmp_path / "404.html").read_text() == first[1]
        return [
            entry["version"] for entry in json.loads((tmp_path / "versions.json").read_text())
        ], first[1]

    assert joined("dev") == (["dev"], "dev")
    assert joined("0.9.0", "0.10.0", "0.10.0rc1") == (
        ["0.10.0", "0.10.0rc1", "0.9.0", "dev"],
        "0.10.0",
    )


@pytest.mark.full
def test_a_notebook_runs_again_only_if_spark_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    caplog.set_level("INFO")
    path = tmp_path / "orders.ipynb"
    for cell, message in (
        (
            "SparkSession.builder.getOrCreate()",
            "Running orders.ipynb again: Spark did not start: OSError: no port",
        ),
        ("spark.read.load()", None),
    ):
        failing = (
            f"import os\nif not os.path.exists('{cell}'):\n    os.mkdir('{cell}')\n    raise "
            "OSError('no port')"
        )
        path.write_text(
            build.text_of(f"{build.FIRST_LINE}{failing}\nprint('done')"), encoding="utf-8"
        )
        caplog.clear()
        if message:
            assert site_hook.executed(path).cells[0].outputs[0].text == "done\n"
            assert message in caplog.messages
        else:
            with pytest.raises(PluginError, match=r"orders\.ipynb: (?s:.*)no port"):
                site_hook.executed(path)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_site_is_replaced_by_a_complete_one_alone(succeeds: bool, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("old")
    (tmp_path / ".installed").touch()
    # In the place of mkdocs: it empties its folder, writes a page, and may fail then.
    build_it = (
        'for folder; do :; done; rm -rf "$folder"; mkdir -p "$folder"; echo new > '
        '"$folder/index.html"'
    )
    python = write_program(tmp_path / "python", build_it, "true" if succeeds else "false")
    made = ["PYTHON=python3", f"PY={python}", "INSTALLED=.installed", "RUN="]
    command = ["make", "-s", "-o", ".installed", "-f", str(ROOT / "Makefile"), "docs", *made]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) is succeeds, ran.stderr
    assert (tmp_path / "site" / "index.html").read_text().strip() == ("new" if succeeds else "old")


@pytest.mark.full
def test_the_site_builds_and_describes_every_public_name(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCS_EXECUTE": "false", "NO_MKDOCS_2_WARNING": "1"}
    run_python(
        "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path, cwd=ROOT, env=environment
    )
    assert (tmp_path / "notebooks" / "quickstart" / "index.html").is_file()
    inventory = (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]
    described = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for name in ("", ".admin", ".monitoring", ".testing", ".permissions"):
        module = importlib.import_module(f"spark_jetstream{name}")
        public = {
            f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__")
        }
        assert public <= described
    # The README is the only source of the first steps, and the first page leads there.
    first_steps = (tmp_path / "first-steps" / "index.html").read_text(encoding="utf-8")
    shown = unescape(re.sub("<[^>]*>", "", first_steps))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start, end = (
        readme.index(f"\n## {title}\n") for title in ("The first ten minutes", "Documentation")
    )
    code = [
        block.text
        for language in ("sh", "python")
        for block in blocks(ROOT / "README.md", language)
    ]
    code = [text for text in code if start < readme.index(text) < end]
    assert len(code) == 7
    assert [text for text in code if text not in shown] == []
    assert set(re.findall("^##+ (.*)", readme[start:end], re.MULTILINE)) == set(
        re.findall("(.+)¶", shown)
    ) - {"Install and first steps"}
    assert 'href="first-steps/#the-first-ten-minutes"' in (tmp_path / "index.html").read_text(
        encoding="utf-8"
    )
    # The search finds an option by its name, which no other page has as a heading.
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))[
        "docs"
    ]
    sections = {
        entry["title"]: entry for entry in index if entry["location"].startswith("options/#")
    }
    for model in (ConnectionOptions, SourceOptions, SinkOptions):
        for spec in model.specs:
            assert sections[spec.name]["location"] == f"options/#{spec.name.lower()}"
            similar = [title for title in sections if title.lower().startswith(spec.name.lower())]
            assert max(similar, key=lambda title: sections[title].get("boost", 1)) == spec.name
    # A reader's browser asks no other host for scripts, styles, fonts or images.
    asking = re.compile(
        r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?https?://(?!spark-jetstream\.github\.io/)"
        # the theme's script would ask the code host for numbers of the repository
        r'|data-md-component="?source\b'
    )
    assert [
        page for page in tmp_path.rglob("*.html") if asking.search(page.read_text(encoding="utf-8"))
    ] == []
