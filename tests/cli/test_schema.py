"""``spark-jetstream schema``: schemas of every type, which are those of what a server says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, schema, schema_faults, schema_types
from spark_jetstream.admin.api import Api
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol import jsapi
from tests.cli.conftest import Command, refused
from tests.support.command import Ran, run_command
from tests.support.publish import Publisher

GROUP = ("schema",)
API = "io.nats.jetstream.api.v1."


def test_types_and_schemas_are_printed(do: Command, run: Command) -> None:
    names = do("ls").out.splitlines()
    assert names == sorted(names) == schema_types()
    assert {f"{API}stream_info_response", "io.nats.jetstream.advisory.v1.max_deliver"} <= {*names}
    assert do("search", "stream_*_request", "--json").json == [
        f"{API}stream_{name}_request" for name in ("create", "purge", "snapshot", "update")
    ]
    assert do("ls", "nothing").err == "no type matches nothing\n"
    assert do("show", f"{API}stream_purge_request").json["properties"].keys() == {
        "filter",
        "seq",
        "keep",
    }
    refused(run("show", f"{API}stream_purge_reqest"), 2, f"did you mean {API}stream_purge_request")


def test_replies_of_the_server_have_their_schemas(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name, subjects=f"{name}.>")
    admin.consumers.create(
        name, "c", ack_policy="explicit", priority_policy="pinned_client", priority_groups=["g"]
    )
    admin.publish(f"{name}.a", "x")
    api: Any = Api(admin.options)
    names = {"stream": name, "consumer": "c"}
    for endpoint, body in {
        jsapi.MESSAGE_GET: {"seq": 1},
        jsapi.CONSUMER_UNPIN: {"group": "g"},
        **dict.fromkeys(
            (jsapi.ACCOUNT_INFO, jsapi.STREAM_INFO, jsapi.STREAM_LIST, jsapi.STREAM_NAMES)
        ),
        **dict.fromkeys(
            (jsapi.CONSUMER_INFO, jsapi.CONSUMER_LIST, jsapi.CONSUMER_NAMES, jsapi.CONSUMER_PAUSE)
        ),
        **dict.fromkeys((jsapi.STREAM_PURGE, jsapi.CONSUMER_DELETE, jsapi.STREAM_DELETE)),
    }.items():
        reply = api.ask(endpoint, body, context="ask", **names)
        described = schema(reply["type"])
        assert {*described.get("required", ())} <= reply.keys() <= described["properties"].keys(), (
            endpoint
        )
        assert schema_faults(reply) == ""
        assert bool(reply.get("limit")) is endpoint.pages


def test_an_error_is_a_reply_of_every_type(
    publisher: Publisher, do: Command, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "reply.json"
    file.write_bytes(publisher.request(f"$JS.API.STREAM.INFO.{name}", b""))
    assert do("validate", file).out == f"{file}: valid\n"
    reply = json.loads(file.read_text())
    assert reply["error"]["err_code"] == 10059
    for faulty in ({"code": "404"}, {}, None):
        assert "error" in schema_faults({**reply, "error": faulty})
    assert schema_faults({"name": "S", "error": reply["error"]}, f"{API}stream_create_request")


def test_json_that_breaks_its_schema_is_reported_with_the_field(
    run: Command, do: Command, tmp_path: Path
) -> None:
    file = tmp_path / "reply.json"
    file.write_text(json.dumps({"type": f"{API}stream_names_response", "total": "many"}))
    ran = run("check", file)
    assert (ran.code, ran.out) == (
        1,
        f'{file}: total must be a whole number from 0 to 2^63-1, not "many"\n',
    )
    file.write_text('{"name": "S", "max_agee": 1}')
    problem = 'there is no field "max_agee" (did you mean max_age?)'
    assert run("validate", file, f"{API}stream_create_request", "--json").json == {
        "valid": False,
        "problem": problem,
    }
    body = b'{"name": "S", "pedantic": true}'
    assert (
        run_command("schema", "validate", "-", f"{API}stream_create_request", stdin=body).out
        == "-: valid\n"
    )
    refused(run("validate", file), 2, 'there is no schema of type ""')
    file.write_text("[]")
    assert run("validate", file, f"{API}pub_ack_response").code == 1
    with pytest.raises(OptionError, match='there is no schema of type ""'):
        schema_faults([])


@pytest.mark.parametrize("standard", [False, True])
def test_input_that_is_not_utf8_exits_with_code_2(standard: bool, tmp_path: Path) -> None:
    def validate(body: bytes) -> Ran:
        file.write_bytes(body)
        given = "-" if standard else file
        return run_command("schema", "validate", given, f"{API}stream_create_request", stdin=body)

    file = tmp_path / "request.json"
    body = '{"name": "S", "description": "\u00e9"}'
    refused(
        validate(body.encode("latin-1")),
        2,
        f"{'-' if standard else file}: this is not text (UTF-8)",
    )
    for encoding in ("utf-8", "utf-8-sig"):
        assert validate(body.encode(encoding)).out == f"{'-' if standard else file}: valid\n"
