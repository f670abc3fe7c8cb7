"""The streams that pages create: somebody runs the lines of several pages on one server."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from spark_jetstream.protocol.subjects import subjects_overlap
from tests.support.pages import ROOT, blocks


class Created(NamedTuple):
    """A stream that a page creates."""

    page: str
    stream: str
    subjects: tuple[str, ...]


PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "pipelines.md",
    *sorted((ROOT / "docs" / "cookbook").glob("*.md")),
)


def by_commands(page: Path) -> Iterator[Created]:
    """Yield the streams of ``spark-jetstream stream add``."""
    for block in blocks(page, "sh"):
        for line in re.findall(r"spark-jetstream (stream add .*)", block.text):
            _, _, name, *options = shlex.split(line)
            subjects = options[options.index("--subjects") + 1]
            yield Created(page.name, name, tuple(subjects.split(",")))


def by_administration(page: Path, tree: ast.Module) -> Iterator[Created]:
    """Yield the streams of ``admin.streams.create``: runs these statements, loops included, with a
    recorder.
    """
    found: list[Created] = []

    def create(name: str, *_: object, subjects: str | list[str], **__: object) -> None:
        all_subjects = [subjects] if isinstance(subjects, str) else subjects
        found.append(Created(page.name, name, tuple(all_subjects)))

    admin = SimpleNamespace(streams=SimpleNamespace(create=create))
    for statement in tree.body:
        is_simple = isinstance(statement, (ast.Expr, ast.For))
        if is_simple and "admin.streams.create(" in ast.unparse(statement):
            exec(ast.unparse(statement), {"admin": admin})
    yield from found


def by_option(page: Path, tree: ast.Module) -> Iterator[Created]:
    """Yield the streams of option ``ensureStream``, beside ``stream`` in one call."""
    for call in ast.walk(tree):
        given: dict[str, Any] = {}
        if isinstance(call, ast.Call):
            given = {keyword.arg or "": keyword.value for keyword in call.keywords}
        if "ensureStream" in given:
            description = json.loads(ast.literal_eval(given["ensureStream"]))
            yield Created(
                page.name, ast.literal_eval(given["stream"]), tuple(description["subjects"])
            )


def created(page: Path) -> list[Created]:
    """Return the streams that a page creates, in any way."""
    streams = [*by_commands(page)]
    for block in blocks(page, "python"):
        tree = ast.parse(block.text)
        streams += [*by_administration(page, tree), *by_option(page, tree)]
    return streams


def test_each_way_to_create_a_stream_is_found() -> None:
    streams = {(each.page, each.stream) for page in PAGES for each in created(page)}
    expected = {
        ("README.md", "ORDERS"),
        ("fan-out.md", "ALERTS"),
        ("traces.md", "PACKED"),
        ("windows.md", "MINUTES"),
    }
    assert expected <= streams


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_a_page_creates_no_stream_that_collides_with_one_of_an_earlier_page(page: Path) -> None:
    """The same stream may be created by the same command; recipes have streams of their own."""
    earlier = [each for before in PAGES[: PAGES.index(page)] for each in created(before)]
    for own in created(page):
        for other in earlier:
            overlap = any(
                subjects_overlap(one, two) for one in own.subjects for two in other.subjects
            )
            if page.parent.name == "cookbook":
                assert not overlap, (own, other)
                assert own.stream != other.stream, (own, other)
            elif overlap or own.stream == other.stream:
                assert own[1:] == other[1:]


def test_the_streams_of_one_page_do_not_collide() -> None:
    for page in PAGES:
        for one, other in combinations(created(page), 2):
            assert not any(subjects_overlap(a, b) for a in one.subjects for b in other.subjects), (
                one,
                other,
            )
