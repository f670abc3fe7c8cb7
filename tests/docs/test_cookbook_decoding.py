"""Recipes that decode payloads and write to several places: each runs as it stands, and what it
shows is stored.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin, StoredMessage
from tests.docs.conftest import Recipe, delta_table
from tests.support.pages import ROOT

RunRecipe = Callable[[str], Recipe]


def messages(recipe: Recipe, stream: str) -> list[StoredMessage]:
    """Return all messages of a stream that the recipe filled."""
    with JetStreamAdmin(servers=recipe.url) as admin:
        return list(admin.messages.read(stream))


def test_every_recipe_is_in_the_list() -> None:
    folder = ROOT / "docs" / "cookbook"
    listed = re.findall(
        r"^- \[(.+?)\]\((\S+)\): ", (folder / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert all(name == target for name, target in listed)
    assert {path.name for path in folder.glob("*.md")} - {"index.md"} <= {
        name for name, _ in listed
    }


@pytest.mark.full
def test_json_that_does_not_parse_goes_to_its_own_stream(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("json")
    refused = [recipe.names["payloads"][index] for index in (1, 3, 4, 5)]
    assert [message.data.decode() for message in messages(recipe, "REFUSED")] == refused


@pytest.mark.full
@pytest.mark.parametrize(("name", "stream"), [("protobuf", "LEASES"), ("compression", "CRATES")])
def test_payloads_are_decoded_in_workers(name: str, stream: str, run_recipe: RunRecipe) -> None:
    recipe = run_recipe(name)
    assert (
        len(messages(recipe, stream)) == recipe.output.count("\n|") - 1
    )  # a row for each, below the names


@pytest.mark.full
def test_avro_records_and_a_schema_registry(run_recipe: RunRecipe, tmp_path: Path) -> None:
    recipe = run_recipe("avro")
    assert len(messages(recipe, "STAMPS")) == recipe.output.count("\n")
    versions = tmp_path / "subjects" / "orders-value" / "versions"
    versions.mkdir(parents=True)
    for number, (schema_id, schema) in enumerate(recipe.names["SCHEMAS"].items(), 1):
        (versions / f"{number}").write_text(
            json.dumps({"id": schema_id, "schema": json.dumps(schema)})
        )
    (versions / "index.html").write_text("[1, 2]")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as registry:
        threading.Thread(target=registry.serve_forever, daemon=True).start()
        found = recipe.names["registered"](
            f"http://127.0.0.1:{registry.server_port}", "orders-value"
        )
        registry.shutdown()
    assert {name: json.loads(schema) for name, schema in found.items()} == recipe.names["SCHEMAS"]


@pytest.mark.full
def test_avro_records_whose_schemas_a_registry_has(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("schema-registry")
    stored = [message.data for message in messages(recipe, "PARCELS")]
    # The ids of both versions.
    assert [payload[:5] for payload in stored[:3]] == [b"\0\0\0\0\1"] * 2 + [b"\0\0\0\0\2"]


@pytest.mark.full
def test_cloudevents_of_both_modes(run_recipe: RunRecipe) -> None:
    headers = messages(run_recipe("cloudevents"), "INVOICES")[0].headers
    assert {name: values for name, values in headers.items() if name.startswith("ce-")} == {
        "ce-specversion": ["1.0"],
        "ce-id": ["1"],
        "ce-source": ["/invoices"],
        "ce-type": ["invoice.new"],
        "ce-datacontenttype": ["application/json"],
        "ce-subject": ["T%C3%BCr%201"],
    }


@pytest.mark.full
def test_a_batch_that_runs_again_stores_what_is_missing(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("foreach-batch")
    assert [len(messages(recipe, stream)) for stream in ("BASKET", "SUMS", "BULKY")] == [5, 3, 2]


@pytest.mark.full
def test_delta_holds_each_message_once(run_recipe: RunRecipe) -> None:
    names = run_recipe("delta").names
    table = delta_table(names["EVENTS"])
    assert table.transaction_version(names["QUERY"]) == 1
    rows = table.to_pyarrow_table()
    for batch_id, expected in ((0, 5), (1, 5), (2, 10)):
        names["append_once"](names["EVENTS"], rows, batch_id)
        assert delta_table(names["EVENTS"]).to_pyarrow_table().num_rows == expected
    old = rows.select(["id", "state", "sequence"]).filter(rows["sequence"].to_numpy() == 1)
    names["merge"](names["ORDERS"], old)
    state = delta_table(names["ORDERS"]).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["state"] for row in state} == {1: "sent", 2: "placed", 3: "placed"}


@pytest.mark.full
def test_iceberg_holds_each_message_once(run_recipe: RunRecipe) -> None:
    names = run_recipe("iceberg").names
    load = names["catalog"].load_table
    assert load("shop.events").properties[names["QUERY"]] == "1"
    rows = load("shop.events").scan().to_arrow()
    for batch_id, expected in ((0, 5), (1, 5), (2, 10)):
        names["append_once"](rows, batch_id)
        assert load("shop.events").scan().count() == expected


@pytest.mark.full
def test_a_row_names_its_subjects(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("fan-out")
    stored = [
        message.subject for stream in ("DEALS", "ALERTS") for message in messages(recipe, stream)
    ]
    assert len(stored) == len(set(stored)) == 8


def test_dead_letters_are_repaired(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("dead-letters")
    assert {message.subject: message.data for message in messages(recipe, "LABELS")} == {
        "labels.de": b"1",
        "labels.New-York": b"2",
        "labels.fr": b"3",
        "labels.it": b"4",
    }
    assert len(messages(recipe, "DEAD")) == 3


@pytest.mark.full
def test_rows_have_the_span_of_the_attempt_that_stored_them(run_recipe: RunRecipe) -> None:
    recipe = run_recipe("traces")
    first, second = (
        span.get_span_context() for span in recipe.names["exporter"].get_finished_spans()
    )
    assert first.span_id != second.span_id
    parent = f"00-{first.trace_id:032x}-{first.span_id:016x}-{int(first.trace_flags):02x}"
    stored = [
        (message.data, message.headers["traceparent"]) for message in messages(recipe, "PACKED")
    ]
    assert sorted(stored) == [(number, [parent]) for number in (b"1", b"2", b"3")]
