"""A hook of MkDocs: what the site has beside docs/, and what is checked of it.

- The notebooks are pages. They are run here, so that one that fails is named. `DOCS_EXECUTE=false`
  leaves that out.
- The page `first-steps.md` is a part of the README.
- An entry of ``nav`` that ends in a slash, such as ``cookbook/``, stands for the pages of that
  folder: ``index.md`` or the quick start first, the others by name. A section that has no pages is
  left out.
- The search finds an option by its name before everything else.
- A link to a page at the code host becomes one to the page of the site.
- A link whose text is the name of a file gets the title of the page, or of the section, as its
  text. In the repository the name of the file says more.
- A link to an anchor that no page has is a warning, also where MkDocs does not look: in notebooks
  and sidebars.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parents[2] / "notebooks"
FIRST = ("/index.md", "/quickstart.ipynb")
FIRST_STEPS = "first-steps.md"
SECTIONS = ("The first ten minutes", "Install", "Rows")
"""The sections of the README that are on the page `FIRST_STEPS`."""
OPENING = (
    "How to install spark-jetstream, start a NATS server, and read and write a first stream, for "
    "those who try it out."
)
"""How that page begins."""
_log = logging.getLogger("mkdocs.hooks.site")
_run = tempfile.TemporaryDirectory(prefix="spark-jetstream-site-")
#: A link whose text is the name of a file: the name, the page and the anchor.
_FILE_LINK = re.compile(r"\[((?:[\w.-]+/)*[\w-]+\.md)\]\(([^)\s#]+\.md)(#[^)\s]+)?\)")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_NAME = re.compile(r"<code>([^\s<]+)</code>")
_SHORT = 24  # characters
#: Weights of pages in the search. Users look for an error or a permission by the words of many
#: pages, and for guides before references.
_BOOSTS = {"troubleshooting": 3, "permissions": 2, "api": 0.5, "architecture": 0.5}
_ATTRIBUTE = re.compile(r'\s(id|href)=(?:"([^"]*)"|([^\s">]+))')


@event_priority(100)  # before mkdocs-jupyter, which makes pages of the notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks and the first steps, and expand the folders of the navigation."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        uri, source = path.relative_to(FOLDER.parent).as_posix(), FOLDER.parent
        if os.environ.get("DOCS_EXECUTE") != "false":
            source = Path(_run.name)
            (source / uri).parent.mkdir(exist_ok=True)
            nbformat.write(executed(path), source / uri)
        files.append(File(uri, str(source), config.site_dir, config.use_directory_urls))
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, FIRST_STEPS, content=first_steps(readme)))
    pages = sorted((file.src_uri for file in files), key=lambda uri: (not uri.endswith(FIRST), uri))
    config.nav = list(_expanded(config.nav or [], pages))
    return files


def executed(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs. If Spark does not start, which depends on the machine, it runs once more.

    Raises:
        PluginError: a cell failed. It names the notebook.
    """
    _log.info("Running %s", path.name)
    for last in (False, True):
        notebook = nbformat.read(path, as_version=4)
        try:
            NotebookClient(
                notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
            ).execute()
            break
        except CellExecutionError as error:
            outputs = [
                (cell.source, output)
                for cell in notebook.cells
                for output in cell.get("outputs", ())
            ]
            failed = [source for source, output in outputs if output.output_type == "error"]
            if last or not any("getOrCreate()" in source for source in failed):
                raise PluginError(f"{path.name}: {error}") from None
            _log.info(
                "Running %s again: Spark did not start: %s: %s",
                path.name,
                error.ename,
                error.evalue,
            )
    return notebook


def first_steps(readme: str) -> str:
    """Return the page `FIRST_STEPS`: the README's sections `SECTIONS`, in its order and with its text."""
    sections = re.split(r"^(?=## )", readme, flags=re.MULTILINE)
    chosen = [
        section
        for section in sections
        if section.partition("\n")[0].removeprefix("## ") in SECTIONS
    ]
    return "".join([f"# Install and first steps\n\n{OPENING}\n\n", *chosen])


def _expanded(entries: list[Any], pages: list[str]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, dict):
            ((title, target),) = entry.items()
            below = list(_expanded(target if isinstance(target, list) else [target], pages))
            # A single page or address with a title of its own is no section.
            yield from [{title: target}] if below == [target] else [{title: below}] if below else []
        elif entry.endswith("/"):
            yield from (page for page in pages if page.startswith(entry))
        else:
            yield entry


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files at the code host lead to their pages of the site."""

    def on_site(link: re.Match[str]) -> str:
        uri = {"README.md": FIRST_STEPS}.get(link[1], link[1].removeprefix("docs/"))
        if files.get_file_from_path(uri) is None:
            return link[0]
        return f"]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))}"

    def text_of(link: str) -> str | None:
        uri = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link))
        file = files.get_file_from_path(uri)
        return None if file is None else file.content_string

    own_links = re.sub(
        rf"\]\({re.escape(config.repo_url.rstrip('/'))}/blob/main/([^)#\s]+)", on_site, markdown
    )
    return titled(own_links, text_of)


def titled(markdown: str, text_of: Callable[[str], str | None]) -> str:
    """Return a page whose links with the name of a file as their text have a title instead.

    It is the title of the page, or with an anchor that of the section. `text_of` returns the page
    of a link, None if the site does not have it.
    """

    def with_title(link: re.Match[str]) -> str:
        text = text_of(link[2])
        headings = [] if text is None else re.findall("^#+ (.+?) *#*$", text, re.MULTILINE)
        if not headings:
            return link[0]
        anchor = link[3] or ""
        sections = {f"#{slugify(heading, '-')}": heading for heading in headings}
        return f"[{sections.get(anchor, headings[0])}]({link[2]}{anchor})"

    return _FILE_LINK.sub(with_title, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Prepare tables for the style sheet: names break only where their parts end, and cells know their column."""
    return _TABLE.sub(lambda table: _labelled(_NAME.sub(_breakable, table[0])), html)


def _breakable(name: re.Match[str]) -> str:
    """Let a name break after a dot, a slash or an underscore if it is too long for the column of a phone."""
    if len(unescape(name[1])) <= _SHORT:
        return f'<code class="name">{name[1]}</code>'
    parts = re.sub("(?<=[._/,])", "<wbr>", name[1])
    return f"<code>{parts}</code>"


def _labelled(table: str) -> str:
    """Give the cells of a table of three or more columns the title of their column: phones show rows as lists."""
    heads = re.findall(r"(?s)<th\b.*?>(.*?)</th>", table)
    titles = [re.sub("<.*?>", "", head).replace('"', "&quot;") for head in heads]
    if len(titles) < 3:
        return table
    title = itertools.cycle(titles)
    cells = re.sub(
        "(?s)<td(.*?)>(.*?)</td>",
        lambda td: f'<td{td[1]} data-title="{next(title)}"><div>{td[2]}</div></td>',
        table,
    )
    return cells.replace("<table>", "<table data-list>", 1)


@event_priority(-100)  # after everything that writes pages
def on_post_build(config: MkDocsConfig) -> None:
    """Weigh the search, and warn of links that lead nowhere."""
    site = Path(config.site_dir)
    index = site / "search" / "search_index.json"
    weighed = _weighed(json.loads(index.read_text("utf-8")))
    index.write_text(json.dumps(weighed, separators=(",", ":")), encoding="utf-8")
    for page, link in dead_links(site):
        _log.warning("%s has a link to %s, which does not exist", page, link)


def _weighed(index: dict[str, Any]) -> dict[str, Any]:
    """Weigh the sections of pages.

    An option is found first by its whole name, although many names are words that all pages use.
    """
    for section in index["docs"]:
        if section["location"].startswith("options/#") and section["title"][0].islower():
            # The shorter a name, the more other pages use it; and `ensureStream` is before
            # `ensureStreamOnConflict`.
            section["boost"] = 300 / len(section["title"]) ** 2
        else:
            page = section["location"].partition("/")[0]
            section["boost"] = _BOOSTS.get(page, 1)
    return index


def dead_links(site: Path) -> Iterator[tuple[str, str]]:
    """Yield the links between the pages of a site that lead to no file or to no anchor, each with its page."""
    ids: dict[Path, set[str]] = {}
    links: list[tuple[Path, str]] = []
    for path in sorted(site.resolve().rglob("*.html")):
        attributes = [
            (match[1], unescape(match[2] or match[3] or ""))
            for match in _ATTRIBUTE.finditer(path.read_text("utf-8"))
        ]
        ids[path] = {value for name, value in attributes if name == "id"}
        links += ((path, value) for name, value in attributes if name == "href")
    for path, link in dict.fromkeys(links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or parts.path.startswith("/"):  # another site, or 404.html
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        anchors = {"", "__skip", *ids.get(target, ())}
        if not target.exists() or (
            target.suffix == ".html" and unquote(parts.fragment) not in anchors
        ):
            yield path.relative_to(site.resolve()).as_posix(), link
