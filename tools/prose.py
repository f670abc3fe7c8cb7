"""Checks the prose of pages, docstrings and texts: `python -m tools.prose` prints what to rewrite.

It holds the rules of CONTRIBUTING.md, "Writing". Texts are those that the package shows: errors, log
lines, helps of options. Code and the addresses of links are no prose. A heading and a cell of a table
are paragraphs of their own. A heading may be a question that ends with a question mark.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "spark_jetstream"

LONGEST = 30
"""The most words of a sentence; a piece of code is one word."""

#: Constructions that a reader has to read twice, and the way out of each.
CONSTRUCTIONS = {
    r"^(What|Who|Whoever|Whatever)\b(?!.*\?)": "name the actor or the thing in place of What or Who",
    r"^Of (?!course\b)": "begin with the subject in place of 'Of'",
    r"\bso (many|much)\b(?! that\b)": "give or name the quantity in place of 'so many'",
    r"\bof those\b": "repeat the noun in place of 'of those'",
    r"\bsuch (?!as\b)": "name the thing in place of 'such'",
    r"\b(came|what comes)\b": "name the actor and the verb in place of 'came'",
    r"\b(is|are|was|were) (already |still |not )?there(?=[,;:.)]|$)": "say where in place of 'is there'",
    r"\b(a|the|each|every|later|first|second|next|one) looks?(?=[ ,.;:])": "a lookup, a check or a request, not a look",
}

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"``.+?``|`[^`]+`")
_HEADING = re.compile(r"#{1,6} +(.+?) *#*$")
_BULLET = re.compile(r"^\s*([-*+]|\d+\.)\s+")
#: An abbreviation such as "e.g." is followed by a small letter, and so is no end of a sentence. The
#: names of some programs begin with one.
_END = re.compile(
    r"(?<=[.!?])[)*_\"]*\s+(?=[A-Z`\"(*\[]|nats-|spark-|pip |py(?:spark|arrow|test)|numpy)"
)
#: An argument or an error in a docstring.
_ENTRY = re.compile(r"^ +`{0,2}\w+`{0,2}: ")
_TREE = re.compile(r"[├└│]")
#: Shorter strings of code are names and parts of texts.
_FEWEST_WORDS = 5


class Fault(NamedTuple):
    """A sentence to rewrite."""

    line: int
    advice: str
    sentence: str


def faults(text: str) -> Iterator[Fault]:
    """Return the sentences of a page or docstring that break a rule, with their lines from 1 on."""
    for line, paragraph in _paragraphs(text):
        for sentence in _sentences(paragraph):
            words = len(sentence.split())
            if words > LONGEST:
                yield Fault(line, f"{words} words, {LONGEST} at most", sentence)
            for pattern, advice in CONSTRUCTIONS.items():
                if re.search(pattern, sentence, re.IGNORECASE if pattern[0] != "^" else 0):
                    yield Fault(line, advice, sentence)


def docstring_faults(source: str) -> Iterator[Fault]:
    """Return the faults of the docstrings of a Python module, with the module's lines."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, nodes) or ast.get_docstring(node) is None:
            continue
        docstring = node.body[0]
        # A line such as "Raises:" is the heading of a list.
        text = re.sub(r"^ *\w+:$", "", ast.get_docstring(node) or "", flags=re.MULTILINE)
        for fault in faults(text):
            yield fault._replace(line=docstring.lineno + fault.line - 1)


def text_faults(source: str) -> Iterator[Fault]:
    """Return the faults of the texts in the code of a Python module, with the module's lines.

    A text is a string of at least five words, such as an error, a log line or the help of an
    option. A semicolon ends a sentence in it, since an error is one sentence of short clauses. A
    string with line breaks is data, such as a script.
    """
    tree = ast.parse(source)
    # Docstrings are no texts, and the parts of an f-string are none of their own.
    left_out = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or node in left_out:
            continue
        text = _text(node)
        if "\n" in text or len(text.split()) < _FEWEST_WORDS:
            continue
        for clause in text.split("; "):
            for fault in faults(clause):
                yield fault._replace(line=node.lineno)


def _text(node: ast.expr) -> str:
    """Return the text of a string in code, with a letter for each value of an f-string.

    It is empty for another expression.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "X" for part in node.values)
    return ""


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Return the headings, paragraphs, items and cells of a page, each with the number of its first line."""
    text = _FENCE.sub(_blank, text)
    text = _COMMENT.sub(_blank, text)
    first, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        apart = not bare or bare.startswith(("#", "|", "===")) or _TREE.search(bare) is not None
        begins = _BULLET.match(line) or _ENTRY.match(line)
        if lines and (apart or begins):
            yield first, " ".join(lines)
            lines = []
        heading = _HEADING.match(line)
        if heading:
            yield number, heading[1]
        elif bare.startswith("|"):
            for cell in bare.strip("|").split(" | "):
                yield number, cell.strip()
        elif not apart:
            first = first if lines else number
            lines.append(_BULLET.sub("", line).strip())


def _blank(match: re.Match[str]) -> str:
    """Return the line ends of a piece, so that the lines after it keep their numbers."""
    return "\n" * match[0].count("\n")


def _sentences(paragraph: str) -> Iterable[str]:
    plain = _CODE.sub("CODE", _LINK.sub(r"\1", paragraph))
    return filter(None, _END.split(plain))


def pages() -> Iterator[Path]:
    """Return the files in Markdown that people wrote: all that no generator has made."""
    yield from sorted(ROOT.glob("*.md"))
    for page in sorted(ROOT.glob("docs/**/*.md")):
        if page.parent.name != "commands":
            yield page


def check(paths: Iterable[Path]) -> list[str]:
    """Return a line for each fault of these pages and modules."""
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for fault in _faults_of(path, text):
            where = f"{path.relative_to(ROOT)}:{fault.line}"
            found.append(f"{where}: {fault.advice}: {fault.sentence}")
    return found


def _faults_of(path: Path, text: str) -> Iterator[Fault]:
    if path.suffix != ".py":
        yield from faults(text)
        return
    yield from docstring_faults(text)
    # Only the package shows its strings to users.
    if path.is_relative_to(PACKAGE):
        yield from text_faults(text)


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    lines = check(given or [*pages(), *sorted(ROOT.glob("spark_jetstream/**/*.py"))])
    sys.exit("\n".join(lines) or 0)
