"""The package's folders are layers, and imports go one way."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.schema import (
    BUCKET_COLUMNS,
    COLUMNS,
    COUNTER_COLUMNS,
    DEAD_LETTER_COLUMNS,
    OBJECT_COLUMNS,
)
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.kv import BucketColumns
from spark_jetstream.sink.objects import ObjectColumns
from tests.support.jobs import run_python

PACKAGE = Path(__file__).parents[1] / "spark_jetstream"

SOURCE_COLUMNS = [
    column.name
    for table in (
        COLUMNS,
        DEAD_LETTER_COLUMNS,
        BUCKET_COLUMNS,
        COUNTER_COLUMNS,
        OBJECT_COLUMNS,
    )
    for column in table
]

#: A layer imports only what stands above it. Parts of one line do not know each other.
LAYERS = (
    ("errors",),
    ("schema", "spark_process", "java"),
    ("engines",),
    ("protocol",),
    ("options",),
    ("client",),
    ("streams",),
    ("buckets",),
    ("source", "sink", "admin"),
    ("datasource",),
    ("bench", "decoding", "lookups", "monitoring", "permissions", "sql"),
    ("doctor", "demo"),
    ("cli",),
)

#: Neither a layer nor imported by one, except where `OUTSIDE_USERS` says so.
OUTSIDE = {"", "__main__", "testing"}
OUTSIDE_USERS = {"testing": {"demo", "cli", "__main__"}}

#: Which modules may use a library that has to do with the world outside; other modules are data in,
#: data out.
USERS = {
    "nats": {"client"},
    "asyncio": {"client"},
    "pyspark": {
        "datasource",
        "engines.spark",
        "spark_process",
        "decoding",
        "lookups",
        "sql",
        "source.reader",
        "sink.writer",
        "doctor.child",
        "demo",
        "monitoring.listener",
        "monitoring.traces",
    },
}

#: Folders and modules that know no connection, clock or log.
PURE = (
    "errors",
    "schema",
    "protocol",
    "options",
    "permissions",
    "admin.models",
    *(
        f"source.{name}"
        for name in ("offsets", "ranges", "splits", "admission", "search", "continuity")
    ),
    "source.shared.held",
    "buckets.kv",
    "admin.rates",
    "monitoring.stream_lag",
    *(
        f"sink.{name}"
        for name in (
            "rows",
            "task_totals",
            "columns",
            "commands",
            "faults",
            "header_lines",
            "lifetimes",
            "portions",
            "row_reading",
            "encode",
            "message_ids",
            "dead_letters",
            "report",
            "kv",
            "target",
        )
    ),
    *(
        f"sink.{name}"
        for name in ("claims", "equal_rows", "id_keys", "known_groups", "layout", "stored_ids")
    ),
    "sink.fitness",
    "sink.rollups",
    "sink.groups",
)
IMPURE_LIBRARIES = {
    "asyncio",
    "logging",
    "nats",
    "pyspark",
    "select",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}


IMPORT_ALL = """
import importlib
import sys
from spark_jetstream import admin
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in admin.__all__:
    getattr(admin, name)
print(*sys.modules)
"""


def module_name(path: Path) -> str:
    """``source.ranges`` for ``spark_jetstream/source/ranges.py``, ``source`` for its
    ``__init__.py``.
    """
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _imported(path: Path) -> Iterator[str]:
    """Dotted names of all that a module imports, in functions too, and by name; the last part may
    be an attribute.
    """
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            assert isinstance(node.args[0], ast.Constant), (
                f"{path}: a name that is not known before it is imported"
            )
            yield str(node.args[0].value)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


@functools.cache
def imports() -> dict[str, tuple[set[str], set[str]]]:
    """For each module: the modules of this package that it imports, and the top-level names of
    other packages.
    """
    graph = {}
    for name, path in MODULES.items():
        own, libraries = set(), set()
        for dotted in _imported(path):
            top, _, rest = dotted.partition(".")
            if top != "spark_jetstream":
                libraries.add(top)
            else:
                candidates = (rest, rest.rpartition(".")[0])
                own.update([candidate for candidate in candidates if candidate in MODULES][:1])
        graph[name] = (own - {name}, libraries)
    return graph


#: What administration does without: a table that reads, and a job that writes, are Spark's.
OF_SPARK = {"source", "sink", "options.source", "options.sink", "pyspark"}
#: The modules through which commands reach `OF_SPARK`, and why.
DOORS = {
    "demo": "it is a job of Spark",
    "doctor.child": "it runs in a worker's Python, and in the local Spark of --spark",
    "bench": "it measures what one task of the sink writes, and one task of the source reads",
    # `pub` and `dead-letters replay` send thousands of messages at a time, know of each whether it
    # is stored, and send it again after an outage. The window, the answers and the recovery of the
    # sink decide that, and are right only together: they are shared as a whole, by one module.
    "cli.publishing": "it stores messages as the sink stores rows",
}


def test_no_module_looks_for_its_subclasses() -> None:
    """It would know what imports it."""
    assert [name for name, path in MODULES.items() if "__subclasses__" in path.read_text()] == []


def reachable(name: str) -> set[str]:
    """All modules of this package that come along when this one is imported."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        for imported in imports()[pending.pop()][0] - seen:
            seen.add(imported)
            pending.append(imported)
    return seen


#: Layers that speak of streams, sequences and limits. The layers that know the options and columns
#: add the advice of an error, or the lower ones take it from `options.advice`.
WITHOUT_OPTIONS = {"client", "streams", "protocol", "buckets"}


def within(name: str, places: set[str]) -> bool:
    """Whether a module is one of these, or in a folder that is."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in places for length in range(1, len(parts) + 1))


def steps_to_spark(name: str, doors: Set[str] = frozenset()) -> Iterator[str]:
    """The imports of `OF_SPARK` that come along with a module, but for those behind doors."""
    seen = {name}
    pending = [name]
    while pending:
        at = pending.pop()
        own, libraries = imports()[at]
        for other in sorted(own | libraries):
            # The functions of the package itself, such as `register`, are for jobs of Spark.
            if within(other, set(doors)) or other == "":
                continue
            if within(other, OF_SPARK):
                yield f"{name} comes to {at}, which imports {other}"
            elif other in MODULES and other not in seen:
                seen.add(other)
                pending.append(other)


def test_imports_go_one_way() -> None:
    layer = {part: number for number, parts in enumerate(LAYERS) for part in parts}
    assert {name.partition(".")[0] for name in MODULES} <= layer.keys() | OUTSIDE
    wrong = []
    for name, (own, _) in imports().items():
        top = name.partition(".")[0]
        for other in own:
            other_top = other.partition(".")[0]
            if top == other_top or top in OUTSIDE or not other_top:
                continue
            if other_top in OUTSIDE:
                allowed = top in OUTSIDE_USERS.get(other_top, set())
            else:
                allowed = layer[other_top] < layer[top]
            if not allowed:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    assert [name for name in MODULES if name in reachable(name)] == []


def test_administration_stands_alone() -> None:
    administering = [name for name in MODULES if within(name, {"admin", "monitoring.checks"})]
    assert administering
    assert [step for name in administering for step in steps_to_spark(name)] == []


def test_commands_reach_spark_only_where_they_are_about_it() -> None:
    commands = [name for name in MODULES if within(name, {"cli"}) and name not in DOORS]
    assert [step for name in commands for step in steps_to_spark(name, DOORS.keys())] == []


@pytest.mark.parametrize("door", sorted(DOORS))
def test_each_door_leads_to_spark(door: str) -> None:
    behind = [name for name in MODULES if within(name, {door})]
    assert [step for name in behind for step in steps_to_spark(name)] != []


def test_administration_imports_nothing_of_spark() -> None:
    """Static imports are not all: a package imports its own `__init__`, which may import more."""
    names = [f"spark_jetstream.{name}" for name in MODULES if within(name, {"admin", "cli"})]
    run = run_python("-c", IMPORT_ALL, *names)
    loaded = {name.removeprefix("spark_jetstream.") for name in run.split()}
    assert "admin.client" in loaded
    assert sorted(name for name in loaded if within(name, OF_SPARK)) == []


@pytest.mark.parametrize("library", sorted(USERS))
def test_only_these_modules_use_the_library(library: str) -> None:
    users = {name for name, (_, libraries) in imports().items() if library in libraries}
    assert [name for name in sorted(users) if not within(name, USERS[library])] == []


def test_pure_modules_know_no_connection_clock_or_log() -> None:
    pure = {name for name in MODULES if within(name, set(PURE))}
    assert pure
    wrong = {
        f"{name} comes to {other}, which uses {', '.join(sorted(impure))}"
        for name in pure
        for other in {name} | reachable(name)
        if (impure := imports()[other][1] & IMPURE_LIBRARIES)
    }
    assert wrong == set()


def test_one_module_has_every_name_that_is_left_on_a_server() -> None:
    names = r"[\"'](spark-(plan|ledger|jetstream-admin|\{)|SPARK_JETSTREAM_B|Dead-Letter-|spark_jetstream_(ledger|run))"
    assert [name for name, path in MODULES.items() if re.search(names, path.read_text())] == [
        "protocol.conventions"
    ]


def test_at_most_eight_modules_stand_at_the_top() -> None:
    top = [
        name
        for name in MODULES
        if "." not in name and MODULES[name].name not in ("__init__.py", "__main__.py")
    ]
    assert len(top) <= 8, top


def test_each_class_name_has_one_meaning() -> None:
    classes = re.findall(
        r"^class _?(\w+)", "".join(path.read_text() for path in MODULES.values()), re.MULTILINE
    )
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_lower_layers_name_no_option() -> None:
    names = {
        spec.name for side in (ConnectionOptions, SourceOptions, SinkOptions) for spec in side.specs
    }
    # A name in camel case is an option's; a plain word is one after the word "option".
    camel = "|".join(sorted(name for name in names if not name.islower()))
    option = re.compile(rf"\b({camel})\b|\b[oO]ptions? ({'|'.join(sorted(names))})\b")
    assert lower_layers_with(option) == {}


def test_lower_layers_name_no_column_of_the_sink() -> None:
    names = {
        name for columns in (SinkColumns, BucketColumns, ObjectColumns) for name in columns.accepted
    }
    # A column of the source may have the same name, and so may a field of the API.
    own = {name for name in names - set(SOURCE_COLUMNS) if "_" in name}
    column = re.compile(
        rf"\b({'|'.join(sorted(own))})\b|\b[cC]olumns? [`\"']*({'|'.join(sorted(names))})\b"
    )
    assert lower_layers_with(column) == {}


def lower_layers_with(pattern: re.Pattern[str]) -> dict[str, list[Any]]:
    """Modules of `WITHOUT_OPTIONS` that have a pattern in code or comments, with what matches it."""
    found = {}
    for name, path in MODULES.items():
        if within(name, WITHOUT_OPTIONS):
            found[name] = pattern.findall(path.read_text())
    return {name: matches for name, matches in found.items() if matches}
