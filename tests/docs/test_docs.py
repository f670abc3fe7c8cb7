"""The documentation: examples run unchanged, links have targets, references and the tree of files
are current.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream import errors
from spark_jetstream.java import ensure_java
from spark_jetstream.options.specs import Options
from spark_jetstream.schema import COLUMNS
from spark_jetstream.source.ranges import shares
from spark_jetstream.testing import NatsServer
from tests.cli.test_server import serving
from tests.monitoring.collector import collecting, inputs
from tests.support.identities import Operator, user
from tests.support.jobs import run_python
from tests.support.keyed import CONFIG, table_of
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT, anchors, blocks, links, slug
from tests.support.project import PYPROJECT, URLS
from tests.support.publish import Message, Publisher
from tests.support.queries import batch, kept_settings
from tests.support.reading import wait_until
from tests.support.streams import Stream
from tools import architecture, logins, references

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

#: Texts of the examples that the tests replace beside server and folder: context, port.
CONTEXT = '"production"'
PORT = "port=9464"
LINEAGE = "http://127.0.0.1:5000/api/v1/lineage"

MESSAGES = 1000
PLACES = ("eu.de", "eu.fr", "us.ny", "eu.de", "eu.it")


@pytest.fixture(scope="module")
def shop() -> Iterator[NatsServer]:
    """Start a server with the streams of the pages."""
    with NatsServer() as server, Publisher(server.url) as publisher:
        orders = [
            Message(
                f"orders.{PLACES[number % 5]}",
                json.dumps({"id": number, "amount": 12.5}).encode(),
                [("Trace", str(number))] if number % 2 else None,
            )
            for number in range(1, MESSAGES + 1)
        ]
        Stream(server.url, "ORDERS", publisher, allow_direct=True).send(*orders)
        Stream(server.url, "RETURNS", publisher).fill(20)
        Stream(server.url, "PICKED", publisher)
        Stream(server.url, "TOTALS", publisher)
        Stream(server.url, "EVENTS", publisher, retention="interest")
        Stream(server.url, "JOBS", publisher, retention="workqueue", allow_direct=True)
        Stream(server.url, "PRICES", publisher, max_msgs_per_subject=1).fill_in_turn(
            40, ["tea", "milk", "bread"]
        )
        Stream(server.url, "KV_prices", publisher, **{**CONFIG, "subjects": ["$KV.prices.>"]})
        Stream(
            server.url, "ORDERS_MIRROR", publisher, subjects=[], mirror={"name": "ORDERS"}
        ).wait_for(MESSAGES)
        yield server


def run_sql(spark: SparkSession, statement: str) -> None:
    """Run a statement; a streaming frame reads what its stream holds."""
    frame = spark.sql(statement)
    if not frame.isStreaming:
        frame.collect()
        return
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) > 0


@pytest.fixture
def run_page(
    spark: SparkSession, shop: NatsServer, tmp_path: Path
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Return a function that runs the Python and SQL blocks of a page and returns the names that
    they define.

    It replaces the texts that it is given, too.
    """
    context = tmp_path / "production.json"
    context.write_text(json.dumps({"url": shop.url}))
    credentials = Operator().credentials(user())
    replaced = {
        DEFAULT_URL: shop.url,
        FOLDER: str(tmp_path),
        CONTEXT: json.dumps(str(context)),
        PORT: "port=0",
    }

    def secret(scope: str, key: str) -> str:
        assert (scope, key) == ("nats", "creds")
        return credentials

    def run(name: str, more: Mapping[str, str] | None = None) -> dict[str, Any]:
        python_blocks, sql_blocks = (
            blocks(ROOT / name, language) for language in ("python", "sql")
        )
        assert python_blocks
        texts = {**replaced, **(more or {})}
        names: dict[str, Any] = {
            "spark": spark,
            "dbutils": SimpleNamespace(secrets=SimpleNamespace(get=secret)),
        }
        for block in sorted([*python_blocks, *sql_blocks], key=lambda block: block.line):
            if block in sql_blocks:
                run_sql(spark, block.replaced(texts))
                continue
            before = dict(names)
            block.run(texts, names)
            for frame in [value for key, value in names.items() if value is not before.get(key)]:
                if isinstance(frame, DataFrame) and not frame.isStreaming:
                    frame.count()  # Spark reads a frame only when an action needs it
            # Queries without a trigger run until they are stopped.
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        return names

    yield run
    for query in spark.streams.active:
        query.stop()
    spark.catalog.dropTempView("orders")


@pytest.mark.full
def test_the_first_ten_minutes_of_the_readme_and_the_day_after(tmp_path: Path) -> None:
    """The commands, then the scripts, as they stand but for the address of the server and the
    folder.
    """
    readme = ROOT / "README.md"
    environment = {**os.environ, "JAVA_HOME": ensure_java(), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    lines = [line for block in blocks(readme, "sh") for line in block.text.splitlines()]
    (server,) = [
        line.removeprefix("spark-jetstream server")
        for line in lines
        if "spark-jetstream server" in line
    ]
    commands = [line for line in lines if re.match("spark-jetstream (stream|pub) ", line)]
    # The third block uses the session of the first.
    reading, writing, payloads = (block.text for block in blocks(readme, "python"))
    scripts = {"read_orders.py": f"{reading}{payloads}", "write_picked.py": writing}
    output = {}

    def run(url: str, *names: str) -> None:
        for name in names:
            assert scripts[name].startswith(f"# {name}\n")
            (tmp_path / name).write_text(
                scripts[name].replace(DEFAULT_URL, url).replace(FOLDER, str(tmp_path))
            )
            output[name] = run_python(tmp_path / name, cwd=tmp_path, env=environment)

    with serving(*server.replace(FOLDER, str(tmp_path)).split()) as served:
        url = served.ready["url"]
        named = {**environment, "NATS_URL": url}  # which a job never uses
        printed = [
            subprocess.run(
                ["bash", "-c", line], env=named, stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            for line in commands
        ]
        assert len(commands) == 4
        assert "sequences 1 to 1,000" in printed[1]
        assert '{"id": 1000, "amount": 12.5}' in printed[2]
        run(url, *scripts)
        served.end(signal.SIGINT)
    row = re.compile(r'\|(\d+) .*\|\{"id": (\d+), "amount": 12\.5\} *\|')
    bodies = {name: row.findall(text) for name, text in output.items()}
    assert bodies["read_orders.py"] == [
        (str(number), str(number)) for number in (1, 2, 3, 4, 5, 101, 102, 103)
    ]
    assert bodies["write_picked.py"] == [
        (str(number), str(number * 100)) for number in range(1, 11)
    ]
    with serving(*server.replace(FOLDER, str(tmp_path)).split()) as served:
        run(served.ready["url"], "read_orders.py")  # from its checkpoint
    assert row.findall(output["read_orders.py"]) == bodies["read_orders.py"]


def _has_messages(publisher: Publisher, wanted: dict[str, str]) -> bool:
    """Whether stream REMINDERS has messages at the subjects of a filter."""
    return bool(publisher.api("STREAM.INFO.REMINDERS", wanted)["state"].get("subjects"))


@pytest.mark.full
def test_examples_of_the_writing_guide(
    spark: SparkSession, shop: NatsServer, run_page: Callable[[str], dict[str, Any]]
) -> None:
    run_page("docs/writing.md")
    stored = {row.subject: row for row in batch(spark, shop.url, "TOTALS").collect()}
    sums = {
        subject: json.loads(row.data)["amount"]
        for subject, row in stored.items()
        if ".orders." in subject
    }
    assert sums == {
        f"totals.orders.{place}": MESSAGES / 5 * 12.5 for place in ("eu.fr", "us.ny", "eu.it")
    } | {"totals.orders.eu.de": MESSAGES / 5 * 2 * 12.5}
    assert bytes(stored["totals.checked"].data) == b"yes"
    assert bytes(stored["totals.good"].data) == b"1"
    assert stored["totals.dead"].headers["Dead-Letter-Subject"] == ["totals..bad"]
    assert bytes(stored["totals.2026-02-03"].data) == b"17"
    reminders = batch(spark, shop.url, "REMINDERS", subjects="reminders.waiting.*").collect()
    assert {row.subject for row in reminders} == {
        f"reminders.waiting.{number}" for number in range(1, MESSAGES + 1)
    }
    (order,) = batch(spark, shop.url, "ORDERS").where("sequence = 17").collect()
    (reminder,) = [row for row in reminders if row.data == order.data]
    due = (order.timestamp.astimezone(timezone.utc) + timedelta(days=1)).strftime(
        "@at %Y-%m-%dT%H:%M:%S.%fZ"
    )
    assert reminder.headers["Nats-Schedule"] == [due]
    with Publisher(shop.url) as publisher:
        for subject, message in (
            ("reminders.beat", "a heartbeat"),
            ("reminders.sample", "a sample of a sensor"),
        ):
            wanted = {"subjects_filter": subject}
            wait_until(partial(_has_messages, publisher, wanted), message)
    newest = batch(spark, shop.url, "NEWEST").collect()
    assert {row.subject: json.loads(row.data)["amount"] for row in newest} == {
        f"newest.{subject}": amount for subject, amount in sums.items()
    }
    assert table_of(shop.url, "prices") == {"fruit.apple": b"1.30", "fruit.plum": b"2.10"}
    paid = {
        row.data.decode(): (row.headers or {}).get("Atomic-Group")
        for row in batch(spark, shop.url, "PAID").collect()
    }
    both, last = ["order-17"], ["order-18"]
    assert paid == {
        "order 17": both,
        "order 17: 2 lamps": both,
        "order 18": last,
        "two orders": None,
    }
    run_page("docs/writing.md")
    assert (
        batch(spark, shop.url, "TOTALS", subjects="totals.2026-02-03").count() == 1
    )  # the write with a writeId


@pytest.mark.full
def test_examples_of_the_reading_guide(
    run_page: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_page("docs/index.md")["orders"].isStreaming
    names = run_page("docs/reading.md")
    output = capsys.readouterr().out
    assert names["german_and_french"].count() == MESSAGES * 3 // 5
    assert names["everything"].count() == MESSAGES + 20
    assert names["rows"].count() == MESSAGES
    assert str(MESSAGES * 12.5) in output  # the sum of the streaming query
    assert re.search(rf"orders\.eu\.de\|\s*{MESSAGES * 2 // 5}\|", output)  # by SQL
    rows = [progress["numInputRows"] for progress in names["query"].recentProgress]
    assert [number for number in rows if number] == [200] * 5


@pytest.mark.full
def test_examples_of_the_sql_page(
    spark: SparkSession,
    shop: NatsServer,
    run_page: Callable[[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        run_page("docs/sql.md")
    finally:
        for table in spark.catalog.listTables():
            spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")
    output = capsys.readouterr().out
    for view in ("orders", "orders_mirror"):
        assert (
            f"Attached(view='{view}', kind='stream', name='{view.upper()}', payload=('amount', "
            "'id'))\n" in output
        )
    assert "struct<amount:double,id:bigint>\n" in output
    assert re.search(rf"orders\.eu\.de\|\s*{MESSAGES * 2 / 5 * 12.5}\|", output)  # attached
    assert re.search(rf"\|\s*{MESSAGES * 2 // 5}\|\n", output)  # in the view of one subject
    assert re.search(rf"orders\.eu\.de\|\s*{MESSAGES * 2 // 5}\|", output)  # in the table
    assert re.search(rf"\|\s*{MESSAGES}\|\n", output)  # the last sequence
    rows = batch(spark, shop.url, "TOTALS").collect()
    assert [bytes(row.data) for row in rows if row.subject == "totals.again"] == [b"7", b"7"]
    stored = {row.subject: bytes(row.data) for row in rows}
    assert stored["totals.count"] == str(MESSAGES).encode()
    assert json.loads(stored["totals.copied"])["amount"] == 12.5


@pytest.mark.full
def test_examples_of_the_monitoring_page(
    spark: SparkSession,
    shop: NatsServer,
    run_page: Callable[..., dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "spark_jetstream.monitoring")  # the page changes it
    with collecting() as collector:
        names = run_page("docs/monitoring.md", {LINEAGE: collector.url})
        wait_until(lambda: ("picked", "COMPLETE") in collector.kinds, "the last run event")
    running = [event for event in collector.events if event["eventType"] == "RUNNING"]
    [shown] = [json.loads(block.text) for block in blocks(ROOT / "docs" / "monitoring.md", "json")]
    ranges = shown["inputFacets"]["sparkJetstream_sequences"]["sequences"]
    assert inputs(running[0]) == {(shop.url, shown["name"]): ranges}
    assert running[0]["outputs"] == [{"namespace": shop.url, "name": "PICKED"}]
    listener = names["listener"]
    try:
        assert names["behind"] == [600, 200, 0]
        assert names["orders_lag"].seconds == 0
        assert listener.port > 0
    finally:
        spark.streams.removeListener(listener)
        listener.close()


@pytest.mark.full
def test_examples_of_the_pages_on_progress_and_data_loss(
    shop: NatsServer, run_page: Callable[[str], dict[str, Any]]
) -> None:
    run_page("docs/progress.md")
    run_page("docs/data-loss.md")
    with Publisher(shop.url) as publisher:
        for name, count in (("EVENTS", 100), ("JOBS", 50)):
            info = publisher.api(f"CONSUMER.INFO.{name}.spark")
            assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (count, 0)
            assert publisher.api(f"STREAM.INFO.{name}")["state"]["messages"] == 0


@pytest.mark.full
def test_the_example_of_the_page_on_migrating(
    spark: SparkSession,
    shop: NatsServer,
    run_page: Callable[[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = run_page("docs/migrating.md")
    assert names["rows"].count() == MESSAGES - 4
    assert "{'stream': 'ORDERS', 'startingConsumer': 'billing'}\n" in capsys.readouterr().out
    with Publisher(shop.url) as publisher:
        assert "billing" not in publisher.api("CONSUMER.NAMES.ORDERS")["consumers"]


@pytest.mark.full
def test_the_example_of_the_page_on_query_features(
    spark: SparkSession, run_page: Callable[[str], dict[str, Any]]
) -> None:
    evolution = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    with kept_settings(spark, evolution, "spark.sql.streaming.offsetLog.formatVersion"):
        names = run_page("docs/query-features.md")
    rows = [progress["numInputRows"] for progress in names["query"].recentProgress]
    assert [number for number in rows if number] == [420, 400, 200]


@pytest.mark.full
def test_the_tests_of_the_testing_page_pass(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for block in blocks(ROOT / "docs" / "testing.md", "python"):
        file_name = re.match(r"# (\w+\.py)\n", block.text)
        if file_name is None:
            block.run({}, {"__name__": "docs"})
        else:
            files[file_name[1]] = files.get(file_name[1], "") + block.text
    assert sorted(files) == ["conftest.py", "test_orders.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # A process without this project's configuration.
    pytest_here = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path)
    environment = {**os.environ, "JAVA_HOME": ensure_java(), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTEST_ADDOPTS", None)  # they change the summary
    assert re.search(
        r"^2 passed", run_python(*pytest_here, cwd=tmp_path, env=environment), re.MULTILINE
    )


def test_each_page_with_sql_blocks_is_run() -> None:
    assert [page.name for page in PAGES if blocks(page, "sql")] == [
        "sql.md"
    ]  # test_examples_of_the_sql_page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_parse(page: Path) -> None:
    marks = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    # Any other mark would hide a block from the tests of examples.
    assert set(marks[::2]) <= {
        "",
        "python",
        "sh",
        "text",
        "conf",
        "json",
        "yaml",
        "sql",
        "dockerfile",
        "proto",
    }
    assert set(marks[1::2]) <= {""}
    assert len(marks) % 2 == 0
    # What the column of the site shows without scrolling.
    code = [block for language in ("python", "sh", "sql") for block in blocks(page, language)]
    assert [line for block in code for line in block.text.splitlines() if len(line) > 84] == []
    for block in blocks(page, "python"):
        ast.parse(block.text, f"{page.name}, block at line {block.line}")
    for block in blocks(page, "json"):
        json.loads(block.text)
    for block in blocks(page, "yaml"):
        list(yaml.safe_load_all(block.text))


# -- links --


def place(page: Path, link: str) -> tuple[Path, str] | None:
    """Return the file and the anchor of a link, also of one to this repository's address; `None`
    for any other link.
    """
    path, _, anchor = link.partition("#")
    own = re.fullmatch(rf"{re.escape(URLS['Source'])}/(?:blob|tree)/main/(.+)", path)
    if own:
        return ROOT / own[1], anchor
    if re.match(r"[a-z]+:", link):
        return None
    return ((page.parent / path).resolve() if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    broken = []
    # The site has no files outside of docs/: pages name them by their address.
    on_site = ROOT / "docs" in page.parents
    for link in links(page):
        target, anchor = place(page, link) or (page, "")
        leaves = on_site and ROOT / "docs" not in target.parents and not link.startswith("https:")
        if leaves or not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_docstrings_name_headings_that_exist() -> None:
    """As in: docs/delivery.md ("Message ids") lists the parts of an id."""
    named = re.compile(r'docs/([\w-]+\.md)(?:,| [a-z ]*\()\s?"([A-Z][^"]+)"')
    found = [
        (file.name, page, heading)
        for file in (ROOT / "spark_jetstream").rglob("*.py")
        for page, heading in named.findall(" ".join(file.read_text("utf-8").split()))
    ]
    assert len(found) > 10
    for file, page, heading in found:
        assert slug(heading) in anchors(ROOT / "docs" / page), (file, page, heading)


def test_the_readme_has_no_relative_links() -> None:
    # An index page shows the README without the files around it.
    assert [link for link in links(ROOT / "README.md") if not re.match(r"https://|#", link)] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    pending = [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        targets = {
            target for target, _ in filter(None, (place(page, link) for link in links(page)))
        }
        new = {target for target in targets - reached if target.suffix == ".md" and target.exists()}
        reached |= new
        pending += new
    assert reached == set(PAGES)


def test_the_addresses_of_the_project_are_those_of_pyproject() -> None:
    # The name of the repository and of the site, with whatever precedes it on these hosts.
    pattern = r"https://(?:github\.com/[\w-]+|[\w-]+\.github\.io)/spark-jetstream\b"
    own = {URLS["Source"], URLS["Documentation"].rstrip("/")}
    assert all(url.startswith(tuple(own)) for url in URLS.values())
    files = [
        *PAGES,
        *(path for path in ROOT.glob("*.*") if path.suffix in {".toml", ".yml", ".yaml"}),
    ]
    files += [path for path in ROOT.glob(".github/**/*") if path.is_file()]
    for path in files:
        assert set(re.findall(pattern, path.read_text(encoding="utf-8"))) <= own, path


# -- for those who decide --

DEPLOYING = ROOT / "docs" / "deploying.md"
COMPARED = "## Compared with other connectors"


def rows_of(text: str, heads: str) -> list[list[str]]:
    """Return the cells of the table whose first line begins with ``heads``."""
    table = re.search(rf"^{re.escape(heads)}.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, heads
    return [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in table[1].splitlines()]


def first_screen() -> str:
    """Return the part of the README before its first section."""
    return (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]


def test_the_readme_begins_with_the_picture_two_commands_and_the_runtimes() -> None:
    text = first_screen()
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    install, demo = commands.splitlines()
    extra = re.fullmatch(r"pip install '\.\[(\w+)\]'", install)
    assert extra is not None
    assert extra[1] in PYPROJECT["project"]["optional-dependencies"]
    assert demo.split() == [*PYPROJECT["project"]["scripts"], "demo"]
    parts = [
        "docs/images/demo.svg",
        install,
        "| runs on | Spark | state |",
        "spark-jetstream is for ",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_runtimes_of_the_readme_are_those_of_the_pages_about_them() -> None:
    described = {}
    for name, spark, _, state in rows_of(DEPLOYING.read_text(), "| runtime | Spark | how it"):
        for anchor in re.findall(r"\]\(#([\w-]+)\)", name):
            described[f"deploying.md#{anchor}"] = (spark, state)
    sail = (ROOT / "docs" / "sail.md").read_text()
    release = re.search(r"Everything here was run with (pysail [\d.]+)", sail)
    assert release is not None
    described["sail.md"] = (release[1], "tested by the suite")
    states = {"tested here": "tested by the suite", "by documentation": "by documentation"}
    shown = set()
    for name, spark, state in rows_of(first_screen(), "| runs on | Spark | state |"):
        (link,) = re.findall(r"/docs/([^)]+)\)", name)
        assert described[link][0] == spark, link
        assert described[link][1].startswith(states[state]), link
        shown.add(link)
    wanted = "kubernetes-operators databricks-clusters databricks-serverless microsoft-fabric emr "
    wanted += "emr-serverless dataproc local spark-connect"
    assert shown == {"sail.md", *(f"deploying.md#{anchor}" for anchor in wanted.split())}


def test_each_cell_of_the_comparison_says_something() -> None:
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    section = page.partition(f"{COMPARED}\n")[2].partition("\n## ")[0]
    heads = re.findall(r"^\| \| (.+) \|\n\|---", section, re.MULTILINE)
    assert len(heads) == 3
    assert len(set(heads)) == 1
    columns = heads[0].split(" | ")
    lines = [line for line in section.splitlines() if re.match(r"\| \w", line)]
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == len(columns) + 1, line
        assert all(cells), line
    # The page names where the columns come from, and when that was read.
    sources = section.partition("### The pages and files that were read\n")[2]
    named = re.findall(r"^- \[?([\w -]+?)\]?(?:\(https:[^)]+\))?: ", sources, re.MULTILINE)
    assert named == columns[1:]
    assert all("](https://" in source for source in sources.split("\n- ")[1:])
    assert re.search(r"read on \d{1,2} [A-Z][a-z]+ \d{4}", section)


# -- claims --


def test_the_references_of_options_and_commands_are_current() -> None:
    files = [references.OPTIONS, *(references.DOCS / "commands").iterdir()]
    written = {path: path.read_text(encoding="utf-8") for path in files}
    assert written == references.pages(), "run `make generate`"


def test_the_table_of_options_is_that_of_the_models() -> None:
    """Read without the code that writes the page, which might leave an option out."""
    text = references.OPTIONS.read_text(encoding="utf-8")
    rows = rows_of(text, "| option | default | batch or streaming |")
    shown = [(re.sub(r"\[`(\w+)`\].*", r"\1", row[0]), *row[1:4]) for row in rows]
    declared = [
        (
            spec.name,
            f"`{spec.default}`" if spec.default else "none",
            {"batch": "batch", "stream": "streaming"}.get(spec.only or "", "both"),
            "both" if side == "connection" else side,
        )
        for side in ("connection", "source", "sink")
        for spec in Options.sides[side].specs
    ]
    assert shown == declared
    # A meaning is one sentence, in one line of a wide screen; its words begin the section.
    sections = re.split(r"^### (.*)\n", text, flags=re.MULTILINE)
    described = {
        slug(title): body for title, body in zip(sections[1::2], sections[2::2], strict=True)
    }
    for row in rows:
        (anchor,) = re.findall(r"\(#([\w-]+)\)$", row[0])
        assert described[anchor].strip().startswith(row[4]), row
        assert len(row[4]) < 120, row


def test_the_page_about_logins_is_current() -> None:
    written = logins.PAGE.read_text(encoding="utf-8")
    assert written == logins.page(), "run `make generate`"


def test_the_architecture_page_is_current_and_names_files_that_exist() -> None:
    page = architecture.PAGE.read_text(encoding="utf-8")
    assert page == architecture.page(), "run `make generate`"
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", page))
    roots = (ROOT, ROOT / "spark_jetstream")
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


@pytest.mark.parametrize("name", ["README.md", "docs/reading.md"])
def test_the_columns_are_those_of_the_schema(name: str) -> None:
    table = re.search(
        r"^\| column \| type \|.*\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / name).read_text(), re.MULTILINE
    )
    assert table is not None
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table[1], re.MULTILINE)
    assert [(column, kind.strip("`").replace(" ", "")) for column, kind in rows] == [
        (column.name, column.spark) for column in COLUMNS
    ]


def test_the_tasks_of_the_page_on_tuning_are_what_the_planner_makes() -> None:
    rows = re.findall(
        r"^\| ([\d,+ ]+) \| (\d+) \| (\d+) \|$",
        (ROOT / "docs" / "tuning.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 7
    for messages, least, tasks in rows:
        counts = {
            str(at): int(count.replace(",", "")) for at, count in enumerate(messages.split(" + "))
        }
        made, _ = shares(counts, max_messages=50_000, min_partitions=int(least))
        assert sum(made.values()) == int(tasks)


def test_the_errors_that_troubleshooting_quotes_are_those_of_the_package() -> None:
    """Each part of a quoted sentence, between the marks for names and numbers, is in a text of the
    package.
    """
    texts = [
        node.value
        for path in (ROOT / "spark_jetstream").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += list(vars(errors))
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    own = [
        text
        for name, text in sections.items()
        if not name.startswith(("Spark does not start", "No error"))
    ]
    cells = [
        cell
        for text in own
        for cell in re.findall(r"^\| (`.*?|errors of .*?) \| ", text, re.MULTILINE)
    ]
    assert len(cells) > 40
    parts = {
        part.strip()
        for cell in cells
        for quote in re.findall("`(.*?)`", cell)
        for part in quote.split("…")
    }
    assert {
        part for part in parts if len(part) > 3 and not any(part in text for text in texts)
    } == set()
