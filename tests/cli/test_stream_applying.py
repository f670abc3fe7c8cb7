"""``stream apply`` and ``stream export``: describing, planning, changing, and finding nothing left to change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command
from tests.support.client import ask
from tests.support.publish import Publisher

Describe = Callable[..., Path]


@pytest.fixture
def describe(tmp_path: Path, name: str) -> Describe:
    """A function that writes a description of a stream with two consumers, with changes, as JSON or YAML."""

    def write(file: str = "streams.json", consumers: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
        described = {
            "name": name,
            "subjects": [f"{name}.>"],
            "max_age": "1h",
            "metadata": {"owner": "me"},
            "consumers": [
                {"durable_name": "billing", "ack_policy": "explicit", "max_deliver": 5},
                {"durable_name": "audit", "ack_policy": "none", "filter_subject": f"{name}.a"},
            ]
            if consumers is None
            else consumers,
            **changes,
        }
        path = tmp_path / file
        path.write_text(json.dumps(described))  # which is YAML, too
        return path

    return write


def there(url: str, name: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A stream and its consumers, as nats-py sees them."""

    async def look(js: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        stream = (await js.stream_info(name)).config
        consumers = await js.consumers_info(name)
        return stream.as_dict(), {each.name: each.config.as_dict() for each in consumers}

    return ask(url, look)


def test_create_and_again(do: Command, run: Command, nats_server: NatsServer, name: str, describe: Describe) -> None:
    file = describe("streams.yaml")
    lines = [
        f"+ create stream {name}",
        f'    subjects: ["{name}.>"]',
        "    max_age: 1h",
        '    metadata: {"owner": "me"}',
        f"+ create consumer billing of stream {name}",
        "    ack_policy: explicit",
        "    max_deliver: 5",
        f"+ create consumer audit of stream {name}",
        "    ack_policy: none",
        f"    filter_subject: {name}.a",
    ]
    ran = run("stream", "apply", file, "--check")
    assert (ran.code, ran.out.splitlines()) == (1, [*lines, "1 stream and 2 consumers would be changed"])
    ran = run("stream", "apply", file)  # nobody is there to answer
    assert (ran.code, ran.out.splitlines()) == (2, lines)
    assert run("stream", "info", name).code == 1
    assert do("stream", "apply", file, "--force").out.splitlines() == [*lines, "1 stream and 2 consumers changed"]
    stream, consumers = there(nats_server.url, name)
    assert (stream["subjects"], stream["max_age"]) == ([f"{name}.>"], 3600 * 10**9)
    assert (consumers["billing"]["max_deliver"], consumers["audit"]["filter_subject"]) == (5, f"{name}.a")
    for options in ([], ["--check"], ["--force"]):
        assert do("stream", "apply", file, *options).out.splitlines() == [
            f"= unchanged stream {name}",
            f"= unchanged consumer billing of stream {name}",
            f"= unchanged consumer audit of stream {name}",
            "nothing to change",
        ]


@pytest.mark.parametrize(
    ("changes", "consumers", "differs"),
    [
        ({"max_age": "2h", "max_msgs": 9}, None, ["max_msgs", "max_age"]),
        ({"metadata": {"team": "data"}}, None, ["metadata.team", "metadata.owner"]),
        ({"subjects": ["{name}.a", "{name}.b"]}, None, ["subjects"]),
        ({"allow_msg_ttl": True, "deny_delete": True}, None, ["deny_delete", "allow_msg_ttl"]),
        ({"republish": {"dest": "{name}again.>"}, "discard": "new"}, None, ["discard", "republish"]),
        (
            {},
            [{"durable_name": "billing", "ack_policy": "explicit", "backoff": ["1s", "5s"]}],
            ["max_deliver", "backoff"],
        ),
        ({"max_bytes": "1g"}, [{"durable_name": "new", "ack_policy": "explicit"}], ["max_bytes"]),
    ],
    ids=["limits", "metadata", "subjects", "for ever", "parts", "consumer", "stream and new consumer"],
)
def test_update_and_again(
    changes: dict[str, Any],
    consumers: list[dict[str, Any]] | None,
    differs: list[str],
    do: Command,
    run: Command,
    name: str,
    describe: Describe,
) -> None:
    do("stream", "apply", describe(), "--force")
    changes = json.loads(json.dumps(changes).replace("{name}", name))
    file = describe("changed.json", consumers, **changes)
    checked = run("stream", "apply", file, "--check", "--json")
    assert checked.code == 1
    applied = do("stream", "apply", file, "--force", "--json").json
    assert applied == {**checked.json, "applied": True}
    assert checked.json["applied"] is False
    found = [each["field"] for step in applied["steps"] for each in step["differences"]]
    ack_wait = [each for each in found if each != "ack_wait"]  # it is the first value of backoff
    assert sorted(ack_wait) == sorted(differs)
    again = do("stream", "apply", file, "--check", "--json").json
    assert {step["action"] for step in again["steps"]} == {"unchanged"}
    assert (again["changes"], again["applied"]) == (False, False)
    # And back, where that is possible.
    back = run("stream", "apply", describe(), "--force", "--json")
    assert back.code == (1 if "allow_msg_ttl" in changes else 0)


def test_what_is_refused_changes_nothing(
    do: Command, run: Command, nats_server: NatsServer, name: str, describe: Describe
) -> None:
    do("stream", "apply", describe(), "--force")
    before = there(nats_server.url, name)
    file = describe(
        "refused.json",
        [{"durable_name": "billing", "ack_policy": "all", "max_deliver": 6}],
        storage="memory",
        max_msgs=5,
        name=name,
    )
    new = describe("other.json", [], name=f"{name}B", subjects=[f"{name}b"])
    for option in ("--force", "--check"):
        ran = run("stream", "apply", new, file, option)
        assert ran.code == 1
        assert ran.out.splitlines()[-7:] == [
            f"! cannot update stream {name}",
            "    max_msgs: -1 -> 5 (risk: messages beyond it are deleted at once)",
            "    storage: file -> memory (refused: it can never change)",
            f"! cannot update consumer billing of stream {name}",
            "    ack_policy: explicit -> all (refused: it can never change)",
            "    max_deliver: 5 -> 6",
            "nothing was changed: not all of this is possible",
        ]
    ran = run("stream", "apply", new, file, "--force", "--json")
    assert (ran.code, ran.json["applied"], ran.json["changes"]) == (1, False, True)
    assert [step["action"] for step in ran.json["steps"]] == ["create", "refused", "refused"]
    assert there(nats_server.url, name) == before
    assert run("stream", "info", f"{name}B").code == 1


def test_given_only(do: Command, name: str, describe: Describe, tmp_path: Path) -> None:
    do("stream", "apply", describe(), "--force")
    file = tmp_path / "part.yaml"
    file.write_text(f"{name}:\n  max_msgs: 5\n")
    do("stream", "apply", file, "--given-only", "--force")
    config = do("stream", "info", name, "--json").json["config"]
    assert (config["max_msgs"], config["max_age"], config["metadata"]["owner"]) == (5, 3600 * 10**9, "me")
    assert do("stream", "apply", file, "--given-only", "--check").out.endswith("nothing to change\n")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("a.yaml", "max_age: 1h\n", "a stream is described without its name"),
        ("a.yaml", "name: A\nmax_ages: 1h\n", 'there is no field "max_ages" (did you mean max_age?)'),
        ("a.json", '{"name": "A", "consumers": [{}]}', "it needs a durable_name"),
        ("a.json", "{", "this is not valid JSON"),
        ("a.yaml", "# later\n", "no stream is described"),
        ("a.json", None, "the file cannot be read"),
    ],
)
def test_wrong_files(file: str, content: str | None, said: str, run: Command, tmp_path: Path) -> None:
    path = tmp_path / file
    if content is not None:
        path.write_text(content)
    for option in ("--check", "--force"):
        ran = run("stream", "apply", path, option)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
        assert str(path) in ran.err


def test_exit_codes_of_wrong_usage_and_of_no_server(run: Command, describe: Describe) -> None:
    assert run("stream", "apply").code == 2
    file = describe()
    ran = run("stream", "apply", file, file)
    assert ran.code == 2
    assert "is described in" in ran.err
    ran = run("stream", "apply", file, "--check", "-o", "connectTimeout=500ms", url="nats://127.0.0.1:1")
    assert (ran.code, ran.out) == (3, "")


# -- export --


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_is_exported_is_applied_without_a_change(
    form: str, do: Command, publisher: Publisher, name: str, tmp_path: Path, describe: Describe
) -> None:
    since = "2026-03-01T12:00:00.123456789Z"
    consumers = [
        {"durable_name": "a", "ack_policy": "explicit", "backoff": ["1s", "1m"], "filter_subjects": [f"{name}.a"]},
        {"durable_name": "b", "deliver_policy": "by_start_time", "opt_start_time": since},
    ]
    do("stream", "apply", describe(consumers=consumers, republish={"dest": f"{name}x.>"}), "--force")
    publisher.api(f"CONSUMER.CREATE.{name}.short", {"stream_name": name, "config": {"name": "short"}})
    file = tmp_path / f"exported.{form}"
    file.write_bytes(do("stream", "export", name, *(["--yaml"] if form == "yaml" else [])).raw)
    assert do("stream", "apply", file, "--check").out.splitlines() == [
        f"= unchanged stream {name}",
        f"= unchanged consumer a of stream {name}",
        f"= unchanged consumer b of stream {name}",
        "nothing to change",
    ]
    # It is all there is to know.
    before = do("stream", "export", name).json
    do("stream", "rm", name, "--force")
    do("stream", "apply", file, "--force")
    assert do("stream", "export", name, "--json").json == before
    assert before["consumers"][1]["opt_start_time"] == since
    if form == "yaml":
        assert f"max_age: 1h{chr(10)}" in file.read_text()
        assert "max_consumers" not in file.read_text()


def test_exported_json_is_what_the_server_takes(
    do: Command, publisher: Publisher, name: str, describe: Describe
) -> None:
    """No other client reads durations and sizes as text, and the schema of the nats command needs some defaults."""
    consumers = [{"durable_name": "a", "ack_policy": "explicit", "backoff": ["1s", "1m"]}]
    do("stream", "apply", describe(consumers=consumers, max_bytes="1g", duplicate_window="2m"), "--force")
    found = do("stream", "export", name).json
    [consumer] = found.pop("consumers")
    expected: dict[str, Any] = {
        "max_age": 3600 * 10**9,
        "max_bytes": 2**30,
        "duplicate_window": 120 * 10**9,
        "num_replicas": 1,
    }
    expected |= {"max_consumers": -1, "max_msgs": -1, "retention": "limits", "storage": "file"}
    assert {key: found[key] for key in expected} == expected
    assert (consumer["backoff"], consumer["ack_wait"]) == ([10**9, 60 * 10**9], 10**9)
    assert (found["metadata"], consumer.get("metadata")) == ({"owner": "me"}, None)
    publisher.api(f"STREAM.DELETE.{name}")
    made = publisher.api(f"STREAM.CREATE.{name}", found)["config"]
    assert {**made, "metadata": found["metadata"]} == found
    reply = publisher.api(f"CONSUMER.DURABLE.CREATE.{name}.a", {"stream_name": name, "config": consumer})
    assert {key: value for key, value in reply["config"].items() if key != "metadata"} == consumer


@pytest.mark.parametrize("whole", [True, False], ids=["info", "its configuration"])
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_info_prints_is_applied(
    form: str, whole: bool, do: Command, publisher: Publisher, name: str, tmp_path: Path, describe: Describe
) -> None:
    """Of a server, and so of any client that prints what the server says."""
    do("stream", "apply", describe(max_bytes="1g"), "--force")
    stream = publisher.api(f"STREAM.INFO.{name}")
    consumers = [publisher.api(f"CONSUMER.INFO.{name}.{each}") for each in ("audit", "billing")]
    documents = {
        "stream": stream if whole else stream["config"],
        "all": {**stream["config"], "consumers": [each if whole else each["config"] for each in consumers]},
        "list": [stream if whole else stream["config"]],
    }
    for what, document in documents.items():
        file = tmp_path / f"{what}.{form}"
        file.write_text(json.dumps(document))  # which is YAML, too
        assert do("stream", "apply", file, "--check").out.splitlines()[-1] == "nothing to change"
        if what == "stream":
            do("stream", "add", f"{name}NEW", "--config", file, "--subjects", f"{name}new")
            assert do("stream", "info", f"{name}NEW", "--json").json["config"]["max_bytes"] == 2**30
    file.write_text(json.dumps(consumers[0] if whole else consumers[0]["config"]))
    do("consumer", "add", name, "again", "--config", file)
    again = publisher.api(f"CONSUMER.INFO.{name}.again")["config"]
    assert again == {**consumers[0]["config"], "name": "again", "durable_name": "again"}


def test_export_refuses(run: Command, name: str) -> None:
    ran = run("stream", "export", name)
    assert (ran.code, ran.out) == (1, "")
    assert f"stream {name}: stream not found" in ran.err
    assert run("stream", "export", name, "--yaml", "--json").code == 2
