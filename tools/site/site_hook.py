"""A hook of MkDocs: the notebooks are pages, and the navigation may name folders.

An entry of ``nav`` that ends in a slash, such as ``cookbook/``, stands for the pages of that folder: ``index.md``
or the quick start first, the others by name. A section that has no pages is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).parents[2] / "notebooks"
FIRST = ("/index.md", "/quickstart.ipynb")


@event_priority(100)  # before mkdocs-jupyter, which makes pages of the notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks, which are not in ``docs/``, and expand the folders of the navigation."""
    for path in FOLDER.glob("*.ipynb"):
        uri = path.relative_to(FOLDER.parent).as_posix()
        files.append(File(uri, str(FOLDER.parent), config.site_dir, config.use_directory_urls))
    pages = sorted((file.src_uri for file in files), key=lambda uri: (not uri.endswith(FIRST), uri))
    config.nav = list(_expanded(config.nav or [], pages))
    return files


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
