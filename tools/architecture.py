"""The tree of modules in docs/architecture.md, made from the first sentence of each module.

``make generate`` writes it into the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "spark_jetstream"

_BEGIN = "<!-- Made by `make generate`; do not edit. -->\n```\n"
_END = "```\n<!-- The end of the part that is made. -->\n"

# The column at which the sentences begin.
_TEXT_COLUMN = 26


def first_sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring up to its first full stop, as plain text."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"\.(?= |$)", paragraph, maxsplit=1)[0]
    return sentence.replace("`", "")


def _entry(depth: int, name: str, text: str) -> str:
    return f"{'  ' * depth}{name}".ljust(_TEXT_COLUMN) + text


def _lines(folder: Path, depth: int) -> Iterator[str]:
    """Yield the line of a folder, then those of its modules, then those of the folders in it."""
    yield _entry(depth, f"{folder.name}/", first_sentence(folder / "__init__.py"))
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield _entry(depth + 1, path.name, first_sentence(path))
    for inner in sorted(folder.iterdir()):
        if (inner / "__init__.py").exists():
            yield from _lines(inner, depth + 1)


def page() -> str:
    """Return docs/architecture.md with the tree as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has no part that is made")
    return before + begin + "\n".join(_lines(PACKAGE, 0)) + "\n" + end + after


def main() -> None:
    """Write the tree into the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
