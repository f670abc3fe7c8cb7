"""The documentation site and its hooks: it builds without a warning, no link leads nowhere, and each page has
a twin for programs.

These tests import MkDocs, which only `make test-all` has.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from spark_jetstream import errors
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from tests.support.jobs import run_python
from tests.support.pages import SITE, anchors, blocks, links
from tests.support.project import ROOT, URLS
from tools.site import build, markdown_hook, site_hook

pytestmark = pytest.mark.full

ADDRESS = f"{URLS['Documentation']}1.2.3/"
#: Headings that the search shows first for these words.
SEARCHED = {
    "Stream not found": "troubleshooting/#stream-not-found",
    "How exactly-once works": "delivery/#how-exactly-once-works",
    "The duplicate window": "delivery/#the-duplicate-window",
    "Data loss": "data-loss/",
}


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[delivery.md](delivery.md)", "[Levels of delivery](delivery.md)"),
        ("[../delivery.md](../delivery.md)", "[Levels of delivery](../delivery.md)"),
        ("[delivery.md](delivery.md#message-ids)", "[Message ids](delivery.md#message-ids)"),
        ("[delivery.md](delivery.md#gone)", "[Levels of delivery](delivery.md#gone)"),
        ("[levels](delivery.md)", "[levels](delivery.md)"),
        ("[gone.md](gone.md)", "[gone.md](gone.md)"),
    ],
)
def test_a_link_named_by_a_file_shows_the_title_of_its_page(link: str, shown: str) -> None:
    pages = {"delivery.md": "# Levels of delivery\n\nText.\n\n## Message ids\n"}
    assert (
        site_hook.titled(f"See {link}.", lambda page: pages.get(page.removeprefix("../")))
        == f"See {shown}."
    )


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site for `ADDRESS`, without the outputs of the notebooks."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "DOCS_EXECUTE": "false", "NO_MKDOCS_2_WARNING": "1"}
    environment["SITE_URL"] = ADDRESS
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT, env=environment)
    return folder


def inventory(site: Path) -> Iterator[list[str]]:
    """Yield the names that the site describes, each as name, kind, priority, page and title."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    for line in zlib.decompress(packed).decode().splitlines():
        yield line.split(maxsplit=4)


def twin_of(page: Path) -> Path:
    """Return where the twin of a page is: beside `x/`, or beside the page of a folder."""
    beside = page.with_suffix(".md")
    return beside if beside.exists() else page.parent.with_suffix(".md")


def twins(site: Path) -> set[Path]:
    """Return where the twins of the pages of the site are."""
    return {twin_of(page) for page in site.rglob("index.html")}


def test_each_page_has_a_twin_in_markdown_whose_links_hold(site: Path) -> None:
    found = twins(site)
    assert len(found) > 70
    assert found == set(site.rglob("*.md"))
    broken = []
    for twin in sorted(found):
        text = twin.read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert not re.search("^:::", text, re.MULTILINE)
        for link in links(twin):
            path, _, anchor = link.partition("#")
            if re.match("[a-z]+:", link):
                continue
            target = (twin.parent / path).resolve() if path else twin
            if not target.is_file() or (anchor and anchor not in anchors(target)):
                broken.append((twin.relative_to(site).as_posix(), link))
    assert broken == []


def test_a_twin_has_what_is_made_for_its_page(site: Path) -> None:
    # Notebooks: their cells.
    notebook = json.loads((ROOT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8"))
    twin = (site / "notebooks" / "quickstart.md").read_text(encoding="utf-8")
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    assert len(cells) > 10
    assert [cell for cell in cells if cell not in twin] == []
    # The Python API: every name that the page describes, as a heading of the same level.
    heading = re.compile(r'<h(\d) id="?([\w.]+)"? class="?doc doc-heading')
    pages = list((site / "api").rglob("index.html"))
    assert len(pages) > 5
    for page in pages:
        shown = heading.findall(page.read_text(encoding="utf-8"))
        text = twin_of(page).read_text(encoding="utf-8")
        headings = re.findall(r"^(##+) ([\w.]+)$", text, re.MULTILINE)
        described = [(str(len(marks)), name) for marks, name in headings if "." in name]
        assert len(shown) > 1
        assert described == shown, page
    assert errors.JetStreamError.__doc__ is not None
    assert errors.JetStreamError.__doc__.splitlines()[0] in (site / "api" / "errors.md").read_text()


def test_llms_txt_names_each_page_with_a_note_of_its_own(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    head, *sections = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    assert head.startswith(f"# {SITE['site_name']}\n\n> {SITE['site_description']}\n")
    assert sections[::2] == [next(iter(entry)) for entry in SITE["nav"]]
    entries = [
        re.fullmatch(r"- \[(.+)\]\((\S+)\): (.+)", line)
        for section in sections[1::2]
        for line in section.split("\n")
        if line
    ]
    named = {}
    for entry in entries:
        assert entry is not None
        title, link, note = entry.groups()
        path = site / link.removeprefix(ADDRESS)
        assert path not in named
        assert path.read_text(encoding="utf-8").startswith(f"# {title}\n")
        named[path] = note
    # No page is outside of the navigation: the build would warn of it.
    assert set(named) == twins(site)
    assert len(set(named.values())) == len(named)
    assert [note for note in named.values() if len(note) < 20 or "](" in note] == []


def test_the_note_about_a_page_is_its_first_sentence() -> None:
    page = "# Title\n\n<!-- made -->\n\n```\ncode. Here\n```\n\n- a list\n\n{}\n\nMore.\n"
    for paragraph, note in (
        ("How to [read\n[it]](a.md#b), for `all`. And more.", "How to read [it], for `all`."),
        ("`command` does it:", "`command` does it."),
        ("Two kinds: a, b.c and 1.2. More", "Two kinds: a, b.c and 1.2."),
    ):
        assert markdown_hook.description(page.format(paragraph)) == note
    assert markdown_hook.description("# Title\n\n| a |\n|---|\n") == ""


def test_the_twin_of_a_notebook_has_its_outputs(tmp_path: Path) -> None:
    source = f"{build.FIRST_LINE}# MAGIC %md\n# MAGIC # Sales\n{build.SEPARATOR}plot(3)\n"
    notebook = build.notebook(source)
    picture = base64.b64encode(b"a picture").decode()
    notebook["cells"][1]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "3 plotted\n"},
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}},
    ]
    path = tmp_path / "sales.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    text, files = markdown_hook.from_notebook(path, "notebooks/sales.ipynb")
    assert text.startswith("# Sales\n")
    assert "```python\nplot(3)\n```" in text
    assert "    3 plotted\n" in text
    ((name, content),) = files.items()
    assert content == b"a picture"
    assert f"]({name.removeprefix('notebooks/')})" in text


def test_links_to_notebooks_lead_to_their_twins() -> None:
    text = "[a](../notebooks/a.ipynb#b) [b](b.ipynb) [c](https://x.y/c.ipynb) `d.ipynb`"
    led = "[a](../notebooks/a.md#b) [b](b.md) [c](https://x.y/c.ipynb) `d.ipynb`"
    assert markdown_hook.to_twins(text) == led


def test_the_site_builds_and_describes_every_public_name(site: Path) -> None:
    assert (site / "notebooks" / "quickstart" / "index.html").is_file()
    described = {name for name, *_ in inventory(site)}
    for name in ("", ".admin", ".monitoring", ".testing", ".permissions"):
        module = importlib.import_module(f"spark_jetstream{name}")
        public = {
            f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__")
        }
        assert public <= described
    # The README is the only source of the first steps, and the first page leads there.
    first_steps = (site / "first-steps" / "index.html").read_text(encoding="utf-8")
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
    assert 'href="first-steps/#the-first-ten-minutes"' in (site / "index.html").read_text(
        encoding="utf-8"
    )
    # The search finds an option by its name, which no other page has as a heading.
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    sections = {
        entry["title"]: entry for entry in index if entry["location"].startswith("options/#")
    }
    for model in (ConnectionOptions, SourceOptions, SinkOptions):
        for spec in model.specs:
            assert sections[spec.name]["location"] == f"options/#{spec.name.lower()}"
            similar = [title for title in sections if title.lower().startswith(spec.name.lower())]
            assert max(similar, key=lambda title: sections[title].get("boost", 1)) == spec.name
    # Pages whose headings have the words of a search.
    headings = {re.sub("<[^>]*>", "", entry["title"]): entry["location"] for entry in index}
    for words, location in SEARCHED.items():
        assert headings[words] == location
    # A reader's browser asks no other host for scripts, styles, fonts or images.
    asking = re.compile(
        r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?https?://(?!spark-jetstream\.github\.io/)"
        # the theme's script would ask the code host for numbers of the repository
        r'|data-md-component="?source\b'
    )
    assert [
        page for page in site.rglob("*.html") if asking.search(page.read_text(encoding="utf-8"))
    ] == []
