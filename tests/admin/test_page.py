"""docs/admin.md: its examples run, and its table has every subject and every method."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, api_subjects
from spark_jetstream.testing import NatsServer
from tests.support.publish import Message, Publisher

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
TEXT = PAGE.read_text("utf-8")
ROWS = re.findall(r"^\| `([A-Z.]+(?:[.<>a-z]*))` \| ([^|]*) \|", TEXT, re.MULTILINE)


def subjects() -> set[str]:
    """The subjects that the package uses."""
    found = {value for name, value in vars(api_subjects).items() if name.isupper() and isinstance(value, str)}
    return {re.sub(r"\{(\w+)\}", r"<\1>", each) for each in found}


def methods() -> set[str]:
    """The public methods of `JetStreamAdmin` and of what it holds, as the page writes them."""
    parts = vars(JetStreamAdmin())
    held = {name: part for name, part in parts.items() if not name.startswith("_")}
    own = {f"{name}.{each}" for name, part in held.items() for each in dir(part) if not each.startswith("_")}
    return own | {"lag"}


def test_the_table_has_every_subject() -> None:
    named = [subject for subject, _ in ROWS]
    assert len(named) == len(set(named))
    assert set(named) == subjects()


def test_the_table_has_every_method_and_no_other() -> None:
    named = {method for _, cell in ROWS for method in re.findall(r"`([a-z_.]+)`", cell)}
    assert named == methods()


def test_the_page_says_which_subjects_are_new() -> None:
    servers = dict(re.findall(r"^\| `([A-Z.<>a-z]+)` \| [^|]* \| ([\d.]*) *\|$", TEXT, re.MULTILINE))
    for subject, level in api_subjects.NEEDED.items():
        assert servers[re.sub(r"\{(\w+)\}", r"<\1>", subject)] == api_subjects.LEVELS[level]


@pytest.mark.usefixtures("no_connection_left")
def test_the_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    with NatsServer() as server, Publisher(server.url) as publisher:
        publisher.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
        places = ("eu.de", "us.ny", "eu.it")
        publisher.publish(Message(f"orders.{places[number % 3]}", b"%d" % number) for number in range(60))
        names: dict[str, Any] = {}
        for block in blocks:
            text = block.replace("nats://127.0.0.1:4222", server.url).replace("/tmp/spark-jetstream", str(tmp_path))
            exec(compile(text, str(PAGE), "exec"), names)
        admin: JetStreamAdmin = names["admin"]
        assert list(admin.streams.names()) == ["BILLING", "BILLING_TEST", "INVOICES", "JOBS", "ORDERS"]
        assert admin.streams.load("BILLING_TEST").config.own_metadata == {"team": "billing"}
        assert admin.streams.load("INVOICES").config.max_msgs == 1_000_000
        assert len(names["some"]) == 20
        assert names["removed"] == 10
    said = capsys.readouterr().out
    assert "max_msgs: -1 -> 1000000  messages beyond it are deleted at once" in said
    assert "JOBS worker 0 0 0 None" in said
