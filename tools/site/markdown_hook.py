"""A hook of MkDocs: the Markdown of the pages, and llms.txt, for programs that read the site.

- Each page has a twin in Markdown at the path of its source: ``reading.md`` beside ``reading/``, and
  ``cookbook/index.md`` beside ``cookbook/index.html``. So the links of the sources hold between the twins; those to
  notebooks lead to the twins of the notebooks.
- The twin of a notebook has its cells and their outputs; pictures are files beside it.
- The twin of a page of the Python API has the names, signatures and docstrings that the page shows.
- ``llms.txt`` (https://llmstxt.org) lists the twins in the order of the navigation. The note about a page is the first
  sentence of the page.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page
from mkdocstrings_handlers.python import do_filter_objects, do_order_members
from nbconvert import MarkdownExporter

READ_BY_PROGRAMS = (
    "Each link leads to a page in Markdown. The same page for browsers is at its address without "
    "`.md`, and without `index.md` where it ends in that."
)
_DIRECTIVE = re.compile(r"^::: (\S+)\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)
_LINK = re.compile(r"!?\[((?:[^][]|\[[^]]*\])*)\]\([^)]*\)")
# A line that begins another kind of block than a paragraph.
_NO_PARAGRAPH = re.compile(r"[#|>!<:]|[-*] |\d+\. ")


class Twin(NamedTuple):
    """The Markdown of a page, and the files beside it by their paths in the site."""

    text: str
    files: dict[str, bytes]


_twins: dict[str, Twin] = {}
"""The paths of the pages' sources -> their twins, of the build that runs."""
_navigation: list[Navigation] = []
"""The navigation of the build that runs, as its last element."""


def twin_path(source: str) -> str:
    """Return the path of the twin in the site, by the path of the page's source."""
    return posixpath.splitext(source)[0] + ".md"


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Begin a build: forget the twins of the last one, and remember the order of the pages."""
    _twins.clear()
    _navigation[:] = [nav]


@event_priority(-100)  # after everything that changes links
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Make the twin of a page."""
    source = page.file.src_uri
    beside: dict[str, bytes] = {}
    if source.endswith(".ipynb"):
        markdown, beside = from_notebook(Path(str(page.file.abs_src_path)), source)
    else:
        handler = config.plugins["mkdocstrings"].get_handler("python")
        markdown = _DIRECTIVE.sub(lambda found: _documented(handler, *found.groups()), markdown)
    _twins[source] = Twin(to_twins(markdown).strip() + "\n", beside)


def to_twins(markdown: str) -> str:
    """Let the links to notebooks of the site lead to their twins."""
    return re.sub(r"(\]\((?![a-z]+:)[^)#\s]+)\.ipynb(?=[)#])", r"\1.md", markdown)


def from_notebook(path: Path, source: str) -> tuple[str, dict[str, bytes]]:
    """Return the cells of a notebook with their outputs, and its pictures by their paths."""
    pictures = f"{path.stem}_files"
    exported, resources = MarkdownExporter().from_filename(
        str(path), resources={"unique_key": path.stem, "output_files_dir": pictures}
    )
    folder = posixpath.dirname(source)
    outputs = resources.get("outputs") or {}
    return exported, {posixpath.join(folder, name): data for name, data in outputs.items()}


# -- the Python API --


def _documented(handler: Any, name: str, block: str) -> str:
    """Return what the site shows in place of a directive of mkdocstrings, in Markdown."""
    given = (yaml.safe_load(textwrap.dedent(block)) or {}).get("options", {})
    options = handler.get_options(given)
    described = handler.collect(name, options)
    parts = [_docstring(described), *_members(described, options, options.heading_level)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _members(owner: Any, options: Any, level: int) -> Iterator[str]:
    """Yield the headings, signatures and docstrings of the members that the site shows."""
    nested = owner.is_class
    names = None if nested else options.members
    chosen = do_filter_objects(
        owner.all_members if options.inherited_members else owner.members,
        filters=options.filters,
        members_list=names,
        inherited_members=options.inherited_members,
        keep_no_docstrings=options.show_if_no_docstring,
    )
    for member in do_order_members(chosen, options.members_order, names):
        # The signature and the docstring of `__init__` are in the section of its class.
        if member.is_module or member.name == "__init__":
            continue
        yield f"{'#' * level} {member.path}"
        yield f"```python\n{_signature(member)}\n```"
        yield _docstring(member)
        if member.is_class:
            yield _docstring(member.members.get("__init__"))
            yield from _members(member, options, level + 1)


def _signature(member: Any) -> str:
    """Return the line that declares a member."""
    if member.is_class:
        bases = f"  # bases: {', '.join(map(str, member.bases))}" if member.bases else ""
        # A class without an `__init__` of its own has no signature.
        return f"class {member.signature() or member.name}{bases}"
    if member.is_function:
        return f"def {member.signature()}"
    annotation = f": {member.annotation}" if member.annotation else ""
    value = f" = {member.value}" if member.value else ""
    return f"{member.name}{annotation}{value}"


def _docstring(described: Any) -> str:
    if not (described and described.docstring):
        return ""
    return "\n\n".join(_section(section) for section in described.docstring.parsed)


def _section(section: Any) -> str:
    """Return a section of a docstring: its text, or a list under its title."""
    kind, value = section.kind.value, section.value
    if kind == "text":
        return str(value)
    title = f"**{section.title or kind.capitalize()}**"
    if kind == "admonition":
        return f"{title}\n\n{value.contents}"
    if kind == "examples":
        return "\n\n".join([title, *(_example(part.value, text) for part, text in value)])
    return "\n".join([f"{title}\n", *(_item(item) for item in value)])


def _example(kind: str, text: str) -> str:
    return text if kind == "text" else f"```pycon\n{text}\n```"


def _item(item: Any) -> str:
    """Return an item of a list: a parameter, an error, or something returned."""
    names = [str(name) for name in (getattr(item, "name", ""), item.annotation) if name]
    return f"- {', '.join(f'`{name}`' for name in names)}: {' '.join(item.description.split())}"


# -- llms.txt --


def description(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph as plain text, or an empty string."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", prose):
        text = block.strip()
        if text and not _NO_PARAGRAPH.match(text):
            plain = " ".join(_LINK.sub(r"\1", text).split())
            sentence = re.split(r"(?<=\.) ", plain, maxsplit=1)[0]
            return f"{sentence.rstrip('.:')}."
    return ""


def _pages(entry: Any) -> Iterator[Page]:
    """Yield the pages of an entry of the navigation; an address elsewhere is none."""
    if isinstance(entry, Section):
        for below in entry.children:
            yield from _pages(below)
    elif isinstance(entry, Page):
        yield entry


def llms_txt(config: MkDocsConfig, navigation: Navigation, twins: dict[str, Twin]) -> str:
    """Return llms.txt: the project, and the twins by the sections of the navigation."""
    site = str(config.site_url).rstrip("/")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", READ_BY_PROGRAMS]
    for section in navigation.items:
        pages = list(_pages(section))
        if pages:
            lines += ["", f"## {section.title}", ""]
        for page in pages:
            source = page.file.src_uri
            link = f"[{page.title}]({site}/{twin_path(source)})"
            lines.append(f"- {link}: {description(twins[source].text)}")
    return "\n".join(lines) + "\n"


def on_post_build(config: MkDocsConfig) -> None:
    """Write the twins and llms.txt."""
    site = Path(config.site_dir)
    for source, twin in _twins.items():
        texts = {twin_path(source): twin.text.encode()}
        for name, content in {**texts, **twin.files}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_bytes(content)
    (site / "llms.txt").write_text(llms_txt(config, _navigation[-1], _twins), encoding="utf-8")
