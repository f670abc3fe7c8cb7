"""``stream apply``, ``export``, ``backup`` and ``restore``.

tests/admin tests the contents of plans and backups.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin.backup_files import MANIFEST
from tests.cli.conftest import Command
from tests.support.publish import Message, Publisher

Describe = Callable[..., Path]
BILLING = {"durable_name": "billing", "ack_policy": "explicit", "max_deliver": 5}


@pytest.fixture
def describe(tmp_path: Path, name: str) -> Describe:
    """A function that writes a description of a stream with two consumers, with changes, as JSON or
    YAML.
    """

    def write(
        file: str = "streams.json", consumers: list[dict[str, Any]] | None = None, **changes: Any
    ) -> Path:
        audit = {"durable_name": "audit", "ack_policy": "none", "filter_subject": f"{name}.a"}
        described = {
            "name": name,
            "subjects": [f"{name}.>"],
            "max_age": "1h",
            "metadata": {"owner": "me"},
            **changes,
        }
        described["consumers"] = [BILLING, audit] if consumers is None else consumers
        path = tmp_path / file
        path.write_text(json.dumps(described))  # which is YAML, too
        return path

    return write


def there(publisher: Publisher, name: str) -> list[dict[str, Any]]:
    """The configurations of a stream and of its consumers."""
    consumers = publisher.api(f"CONSUMER.LIST.{name}")["consumers"]
    return [consumer["config"] for consumer in (publisher.api(f"STREAM.INFO.{name}"), *consumers)]


def test_apply_changes_what_differs_and_no_more(
    do: Command, run: Command, publisher: Publisher, name: str, describe: Describe
) -> None:
    file = describe("streams.yaml")
    ran = run("stream", "apply", file, "--check")
    *plan, last = ran.out.splitlines()
    assert (ran.code, plan[0], last) == (
        1,
        f"+ create stream {name}",
        "1 stream and 2 consumers would be changed",
    )
    ran = run("stream", "apply", file)  # nobody is there to answer
    assert (ran.code, ran.out.splitlines()) == (2, plan)
    assert run("stream", "info", name).code == 1
    assert do("stream", "apply", file, "--force").out.splitlines() == [
        *plan,
        "1 stream and 2 consumers changed",
    ]
    stream, audit, billing = there(publisher, name)
    assert (stream["subjects"], stream["max_age"]) == ([f"{name}.>"], 3600 * 10**9)
    assert (billing["max_deliver"], audit["filter_subject"]) == (5, f"{name}.a")
    # A change
    consumers = [{**BILLING, "max_deliver": 6}, {"durable_name": "new", "ack_policy": "explicit"}]
    changed = describe("changed.json", consumers, max_bytes="1g", metadata={"team": "data"})
    checked = run("stream", "apply", changed, "--check", "--json")
    assert (checked.code, checked.json["applied"]) == (1, False)
    assert do("stream", "apply", changed, "--force", "--json").json == {
        **checked.json,
        "applied": True,
    }
    fields = [
        difference["field"] for step in checked.json["steps"] for difference in step["differences"]
    ]
    assert sorted(fields) == ["max_bytes", "max_deliver", "metadata.owner", "metadata.team"]
    again = do("stream", "apply", changed, "--json").json
    assert (again["changes"], again["applied"]) == (False, False)
    # A part of it
    file.write_text(f"{name}:\n  max_msgs: 5\n")
    do("stream", "apply", file, "--given-only", "--force")
    stream, *_ = there(publisher, name)
    assert (stream["max_msgs"], stream["max_age"], stream["metadata"]["team"]) == (
        5,
        3600 * 10**9,
        "data",
    )
    assert do("stream", "apply", file, "--given-only", "--check").out.endswith(
        "nothing to change\n"
    )


def test_a_refused_part_changes_nothing(
    do: Command, run: Command, publisher: Publisher, name: str, describe: Describe
) -> None:
    do("stream", "apply", describe(), "--force")
    before = there(publisher, name)
    consumers = [{"durable_name": "billing", "ack_policy": "all", "max_deliver": 6}]
    file = describe("refused.json", consumers, storage="memory", max_msgs=5)
    new = describe("other.json", [], name=f"{name}B", subjects=[f"{name}b"])
    ran = run("stream", "apply", new, file, "--check")
    text = "    max_deliver: 5 -> 6\nnothing was changed: not all of this is possible\n"
    assert (ran.code, ran.out.endswith(text)) == (1, True)
    ran = run("stream", "apply", new, file, "--force", "--json")
    assert (ran.code, ran.json["applied"], ran.json["changes"]) == (1, False, True)
    assert [step["action"] for step in ran.json["steps"]] == ["create", "refused", "refused"]
    assert there(publisher, name) == before
    assert run("stream", "info", f"{name}B").code == 1


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_an_export_is_applied_without_a_change(
    form: str, do: Command, publisher: Publisher, name: str, tmp_path: Path, describe: Describe
) -> None:
    since = "2026-03-01T12:00:00.123456789Z"
    consumers = [
        {
            "durable_name": "a",
            "ack_policy": "explicit",
            "backoff": ["1s", "1m"],
            "filter_subjects": [f"{name}.a"],
        },
        {"durable_name": "b", "deliver_policy": "by_start_time", "opt_start_time": since},
    ]
    more = {"republish": {"dest": f"{name}x.>"}, "max_bytes": "1g", "duplicate_window": "2m"}
    do("stream", "apply", describe(consumers=consumers, **more), "--force")
    publisher.api(
        f"CONSUMER.CREATE.{name}.short", {"stream_name": name, "config": {"name": "short"}}
    )
    file = tmp_path / f"exported.{form}"
    file.write_bytes(do("stream", "export", name, *(["--yaml"] if form == "yaml" else [])).raw)
    unchanged = do("stream", "apply", file, "--check").out
    assert (unchanged.count("= unchanged "), unchanged.splitlines()[-1]) == (3, "nothing to change")
    # It is all there is to know.
    before = do("stream", "export", name).json
    do("stream", "rm", name, "--force")
    if form == "yaml":
        do("stream", "apply", file, "--force")
        assert f"max_age: 1h{chr(10)}" in file.read_text()
        assert "max_consumers" not in file.read_text()
    else:
        exported_as_the_server_takes_it(publisher, json.loads(file.read_text()))
    assert do("stream", "export", name, "--json").json == before
    assert before["consumers"][1]["opt_start_time"] == since


def exported_as_the_server_takes_it(publisher: Publisher, exported: dict[str, Any]) -> None:
    """No other client reads durations and sizes as text, and the schema of the nats command needs
    some defaults.
    """
    consumers, name = exported.pop("consumers"), exported["name"]
    expected: dict[str, object] = {
        "max_consumers": -1,
        "max_msgs": -1,
        "num_replicas": 1,
        "retention": "limits",
    }
    expected |= {
        "storage": "file",
        "max_age": 3600 * 10**9,
        "max_bytes": 2**30,
        "duplicate_window": 120 * 10**9,
    }
    assert {field: exported[field] for field in expected} == expected
    assert (consumers[0]["backoff"], consumers[0]["ack_wait"]) == ([10**9, 60 * 10**9], 10**9)
    assert exported["metadata"] == {"owner": "me"}
    made = publisher.api(f"STREAM.CREATE.{name}", exported)["config"]
    assert {**made, "metadata": exported["metadata"]} == exported
    for consumer in consumers:
        body = {"stream_name": name, "config": consumer}
        reply = publisher.api(f"CONSUMER.DURABLE.CREATE.{name}.{consumer['durable_name']}", body)
        assert {
            key: value for key, value in reply["config"].items() if key != "metadata"
        } == consumer


def test_the_output_of_info_is_a_description(
    do: Command, publisher: Publisher, name: str, tmp_path: Path, describe: Describe
) -> None:
    """The description may be the server's whole reply or its configuration.

    Any client that prints what the server says gives one of the two.
    """
    do("stream", "apply", describe(max_bytes="1g"), "--force")
    stream, consumer = (
        publisher.api(f"STREAM.INFO.{name}"),
        publisher.api(f"CONSUMER.INFO.{name}.audit"),
    )
    file = tmp_path / "printed.json"
    for described in (stream, stream["config"]):
        for document in ([described], {**stream["config"], "consumers": [consumer]}, described):
            file.write_text(json.dumps(document))
            assert (
                do("stream", "apply", file, "--check").out.splitlines()[-1] == "nothing to change"
            )
        assert do("stream", "add", name, "--config", file).out.startswith(
            f"stream {name} already exists, unchanged; "
        )
        assert (
            do("stream", "edit", name, "--config", file).out
            == f"stream {name}: nothing to change\n"
        )
    for described in (consumer, consumer["config"]):
        file.write_text(json.dumps(described))
        assert do("consumer", "edit", name, "audit", "--config", file).out.endswith(
            ": nothing to change\n"
        )
        do("consumer", "add", name, "again", "--config", file)
        again = publisher.api(f"CONSUMER.INFO.{name}.again")["config"]
        assert again == {**consumer["config"], "name": "again", "durable_name": "again"}


# -- backups --


@pytest.fixture
def filled(do: Command, publisher: Publisher, name: str) -> str:
    """A stream of 20 messages, with a consumer."""
    do("stream", "add", name, "--subjects", f"{name}.>")
    publisher.publish(
        Message(f"{name}.{number % 3}", b"%d" % number, [("N", str(number))])
        for number in range(20)
    )
    config = {"durable_name": "c", "ack_policy": "explicit"}
    publisher.api(f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": config})
    return name


def test_a_backup_is_restored_whole(do: Command, filled: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "saved.tar"
    made = do("stream", "backup", filled, target, "--json").json
    assert (made["stream"], made["path"], made["messages"], made["consumers"]) == (
        filled,
        str(target),
        20,
        True,
    )
    assert target.is_file()
    copy, subjects = f"{filled}COPY", f"{filled}copy.>"
    back = do(
        "stream",
        "restore",
        target,
        "--name",
        copy,
        "--subjects",
        subjects,
        "--description",
        "x",
        "--json",
    ).json
    counts = {"messages": 20, "bytes": made["bytes"], "consumers": 1, "sha256": made["sha256"]}
    assert back == {"stream": copy, **counts, "differences": [], "notes": []}
    config = do("stream", "info", copy, "--json").json["config"]
    assert (config["subjects"], config["description"]) == ([subjects], "x")
    do("stream", "rm", filled, "--force")
    output = do("stream", "restore", target).out
    restored = f"stream {filled} was restored from {target}: 20 messages"
    assert output == f"{restored}; its checksum was right, SHA-256 {made['sha256']}\n"
    assert do("stream", "get", filled, 20, "--raw").raw == b"19"


def test_a_restore_says_what_is_not_as_it_was(
    do: Command, run: Command, filled: str, tmp_path: Path
) -> None:
    """Without consumers, with changes, and without checksums."""
    saved = tmp_path / "saved"
    output = do("stream", "backup", filled, saved, "--no-consumers").out
    assert output.startswith(f"stream {filled} was saved at {saved}: 20 messages in ")
    restore = (
        "stream",
        "restore",
        saved,
        "--name",
        f"{filled}COPY",
        "--subjects",
        f"{filled}copy.>",
    )
    ran = run(*restore, "--max-msgs", 5)
    assert ran.code == 1
    assert "not as it was: messages was 20 and is 5\n" in ran.err
    assert f"stream {filled}COPY was restored from {saved}: 5 messages" in ran.out
    do("stream", "rm", f"{filled}COPY", "--force")
    (saved / MANIFEST).unlink()
    ran = do(*restore, "--json")
    assert (ran.json["sha256"], ran.json["consumers"]) == (None, 0)
    [note] = ran.json["notes"]
    assert "made by another tool, and has no checksums" in note
    assert ran.err == f"note: {note}\n"
