"""The pages on administration: their examples run, and their tables have every subject, method and
command.
"""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.models.events import EVENT_TYPES
from spark_jetstream.cli import main
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import LEVELS
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.testing import NatsServer
from tests.support.command import succeed
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until

DOCS = Path(__file__).parents[2] / "docs"
URL, FOLDER = "nats://127.0.0.1:4222", "/tmp/spark-jetstream"
TEXT = (DOCS / "admin.md").read_text("utf-8")
BUCKETS = (DOCS / "admin-buckets.md").read_text("utf-8")
ROWS = re.findall(r"^\| `([A-Z._]+(?:[.<>a-z]*))` \| ([^|]*) \| ([^|]*) \|", TEXT, re.MULTILINE)


#: The subjects that the package uses, as the page writes them.
ENDPOINTS = {
    re.sub(r"\{(\w+)\}", r"<\1>", endpoint.template): endpoint
    for endpoint in vars(jsapi).values()
    if isinstance(endpoint, Endpoint)
}


def methods() -> set[str]:
    """The public methods of `JetStreamAdmin` and of what it holds, as the page writes them."""
    package = "spark_jetstream.admin"
    parts = inspect.getmembers(
        JetStreamAdmin(), lambda part: type(part).__module__.startswith(package)
    )
    held = {name: part for name, part in parts if not name.startswith("_")}
    own = {
        f"{name}.{each}"
        for name, part in held.items()
        for each in dir(part)
        if not each.startswith("_")
    }
    return own | {"lag", "origin_lag", "plan", "apply", "describe", "publish"}


def commands(group: Any = None, path: str = "") -> set[str]:
    """Every command, as one writes it."""
    group = typer.main.get_command(main.app) if group is None else group
    found: set[str] = set()
    for name, each in group.commands.items():
        found |= commands(each, f"{path}{name} ") if hasattr(each, "commands") else {path + name}
    return found


def test_the_table_has_every_subject() -> None:
    named = [subject for subject, _, _ in ROWS]
    assert len(named) == len(set(named))
    assert set(named) == ENDPOINTS.keys()


def test_the_tables_have_every_method_and_no_other() -> None:
    tables = [
        cell
        for page in (TEXT, BUCKETS)
        for cell in re.findall(r"^\| `[^|]*` \| ([^|]*) \|", page, re.MULTILINE)
    ]
    named = {
        method
        for cell in tables
        for method in re.findall(
            r"`([a-z_]+\.[a-z_]+|lag|origin_lag|plan|apply|describe|publish)`", cell
        )
    }
    assert named == methods() - {"kv.bucket", "objects.bucket"}


def test_the_tables_have_every_command() -> None:
    named = re.findall(r"`([a-z][a-z -]*[a-z])", TEXT + BUCKETS)
    missing = {
        each for each in commands() if not any(re.match(rf"{each}($| )", name) for name in named)
    }
    assert missing == {"demo", "server run"}


def test_the_page_says_which_subjects_are_new() -> None:
    servers = dict(
        re.findall(r"^\| `([A-Z._<>a-z]+)` (?:\| [^|]*){4}\| ([\d.]*) *\|$", TEXT, re.MULTILINE)
    )
    new = {subject: version for subject, version in servers.items() if version in LEVELS.values()}
    assert new == {
        subject: endpoint.since.since
        for subject, endpoint in ENDPOINTS.items()
        if endpoint.since is not None
    }


def test_the_page_has_every_event() -> None:
    page = (DOCS / "events.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \(`(\w+)`\)", page, re.MULTILINE))
    assert rows == {kind.rpartition(".")[2]: model.__name__ for kind, model in EVENT_TYPES.items()}


def run_page(page: str, server: NatsServer, folder: Path) -> dict[str, Any]:
    """Run the examples of a page in their order; the names that its Python leaves behind."""
    replaced = {URL: server.url, FOLDER: str(folder), "timeout=3600": "timeout=0.5"}
    names: dict[str, Any] = {}
    found = re.findall(
        r"^```(python|sh)\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found
    for language, block in found:
        text = block.replace("\\\n", "")
        for said, meant in replaced.items():
            text = text.replace(said, meant)
        if language == "python":
            exec(compile(text, page, "exec"), names)
            continue
        for line in text.splitlines():
            type_in(line, server.url)
    return names


def type_in(line: str, url: str) -> None:
    """Run a line of a shell: one command, whose output may go to a file."""
    words = shlex.split(line)
    target = None
    if ">" in words:
        *words, _, target = words
    assert words[0] == "spark-jetstream"
    ran = succeed(*words[1:], url=url)
    if target is not None:
        Path(target).write_bytes(ran.raw)


@pytest.fixture
def shop(no_connection_left: None) -> Any:
    """A server with the orders that the pages talk about.

    Its limit is larger than theirs on a nearly full disk too.
    """
    with (
        NatsServer(config="jetstream { max_file_store: 100G }") as server,
        Publisher(server.url) as publisher,
    ):
        publisher.api(
            "STREAM.CREATE.ORDERS",
            {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True},
        )
        places = ("eu.de", "us.ny", "eu.it")
        publisher.publish(
            Message(f"orders.{places[number % 3]}", b"%d" % number) for number in range(60)
        )
        yield server


@pytest.mark.usefixtures("no_connection_left")
def test_the_examples_run(
    shop: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_page("admin.md", shop, tmp_path)
    admin: JetStreamAdmin = names["admin"]
    made = (
        "BILLING BILLING_TEST BILLS INVOICES JOBS ORDERS ORDERS_OLD ORDERS_OLDER PARCELS "
        "PARCELS_COPY PAYMENTS REMINDERS TASKS TRACED"
    )
    assert list(admin.streams.names()) == [*made.split(), "VISITS"]
    assert admin.streams.load("BILLING_TEST").config.own_metadata == {"team": "billing"}
    assert admin.streams.load("INVOICES").config.max_msgs == 1_000_000
    assert len(names["some"]) == 20
    assert names["removed"] == 10
    assert list(admin.consumers.names("PAYMENTS")) == ["billing"]
    assert admin.consumers.load("PARCELS", "billing").config.filter_subject == "parcels.eu.>"
    assert admin.streams.load("PARCELS").config.max_msgs == -1
    said = capsys.readouterr().out
    assert "max_msgs: -1 -> 1000000  messages beyond it are deleted at once" in said
    assert "JOBS worker 0 1 0 " in said  # one comes again in a minute


def test_the_examples_of_buckets_run(shop: NatsServer, tmp_path: Path) -> None:
    picture = bytes(range(256)) * 1000
    (tmp_path / "cat.jpg").write_bytes(picture)
    names = run_page("admin-buckets.md", shop, tmp_path)
    assert (tmp_path / "copy.jpg").read_bytes() == (tmp_path / "again.jpg").read_bytes() == picture
    assert names["size"] == len(picture)
    admin: JetStreamAdmin = names["admin"]
    assert sorted(admin.kv.names()) == ["colours", "settings"]
    assert sorted(admin.objects.names()) == ["IMAGES", "PICTURES"]


def test_the_examples_of_events_run(shop: NatsServer, tmp_path: Path) -> None:
    # The page reads its stream at once, and an event comes a moment after what it tells of.
    with JetStreamAdmin(servers=shop.url) as admin:
        admin.streams.create(name="ADVISORIES", subjects=["$JS.EVENT.ADVISORY.>"], max_age="30d")
        wait_until(lambda: admin.streams.load("ADVISORIES").state.messages > 0, "an event")
    names = run_page("events.md", shop, tmp_path)
    assert names["event"] is not None
