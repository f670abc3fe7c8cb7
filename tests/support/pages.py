"""Pages of the documentation: fenced blocks, which run as they stand, links and anchors.

`SITE` is what mkdocs.yml says of the site.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
# `BaseLoader` reads the tags of MkDocs, such as !ENV, as texts.
SITE: dict[str, Any] = yaml.load(
    (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader
)

#: Texts of the examples that the tests replace: server, schema registry, folder.
DEFAULT_URL = "nats://127.0.0.1:4222"
REGISTRY_URL = "http://127.0.0.1:8081"
FOLDER = "/tmp/spark-jetstream"


class Block(NamedTuple):
    """A fenced block without its indentation, and the line number of its first line."""

    text: str
    page: Path
    line: int

    def replaced(self, texts: dict[str, str]) -> str:
        """Return the text with each key of ``texts`` replaced by its value."""
        text = self.text
        for default, own in texts.items():
            text = text.replace(default, own)
        return text

    def run(self, replaced: dict[str, str], names: dict[str, Any]) -> None:
        """Run the block as Python; a failure names page and line."""
        text = self.replaced(replaced)
        exec(compile("\n" * (self.line - 1) + text, str(self.page), "exec"), names)


def blocks(page: Path, language: str) -> list[Block]:
    """Return the fenced blocks of a page that are marked with exactly this language."""
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(textwrap.dedent(fence[2]), page, text.count("\n", 0, fence.start(2)) + 1)
        for fence in fences
    ]


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def without_code(page: Path) -> str:
    return re.sub(
        r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def anchors(page: Path) -> set[str]:
    return {
        slug(heading) for heading in re.findall(r"^#{1,6} (.+)$", without_code(page), re.MULTILINE)
    }


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page, as they are written."""
    return re.findall(r"\]\(([^)\s]+)\)", without_code(page))
