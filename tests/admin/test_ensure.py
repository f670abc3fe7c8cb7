"""What `JetStreamAdmin` does with whole streams: plans of files and mappings, descriptions, backups."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, template
from spark_jetstream.admin.descriptions import yaml_text
from spark_jetstream.errors import ApiError, JetStreamError, OptionError, StreamNotFound
from spark_jetstream.testing import NatsServer
from tests.admin.fake_api import account, administered
from tests.support.publish import Message, Publisher


@pytest.fixture
def names(new_stream: Callable[[], str]) -> tuple[str, str]:
    """Two names of streams that do not exist; what has them is gone after the test."""
    return new_stream(), new_stream()


def test_a_plan_that_is_half_done_says_so(admin: JetStreamAdmin, names: tuple[str, ...]) -> None:
    plan = admin.plan(*({"name": name, "subjects": ["half.planned"]} for name in names))
    with pytest.raises(ApiError, match=f"{names[1]}: .*; this was done before, and stays: create stream {names[0]}$"):
        admin.apply(plan)
    assert names[0] in admin.streams.names()


def test_files_and_mappings_are_planned_together(admin: JetStreamAdmin, names: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"name: {names[0]}\nmax_age: 1h\nconsumers: [{{durable_name: c, ack_policy: explicit}}]\n")
    other = {"name": names[1], "max_msgs": 5}
    plan = admin.plan(file, other)
    assert [(step.what, step.action) for step in plan.steps] == [
        (f"stream {names[0]}", "create"),
        (f"consumer c of stream {names[0]}", "create"),
        (f"stream {names[1]}", "create"),
    ]
    assert not set(names) & set(admin.streams.names())
    admin.apply(plan)
    assert not admin.plan(str(file), other).changes
    assert admin.consumers.load(names[0], "c").config.ack_policy == "explicit"
    assert not admin.plan({"name": names[1]}, given_only=True).changes
    with pytest.raises(OptionError, match=rf"^description 2: stream {names[0]} is described in .*a\.yaml already$"):
        admin.plan(file, {"name": names[0]})


def test_an_old_server_is_asked_for_nothing_that_it_cannot_know(nats_server: NatsServer) -> None:
    missing = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
    answers = {"INFO": account(0), "STREAM.INFO.S": missing, "STREAM.INFO.T": missing}
    with administered(nats_server.url, answers) as (fake, admin):
        plan = admin.plan({"name": "S"}, {"name": "T", "allow_msg_ttl": True})
        with pytest.raises(JetStreamError, match=r"create stream T with allow_msg_ttl: this needs nats-server 2\.11"):
            admin.apply(plan)
        assert set(fake.asked) == {"INFO", "STREAM.INFO.S", "STREAM.INFO.T"}


def test_what_is_described_is_made_again(admin: JetStreamAdmin, names: tuple[str, ...]) -> None:
    admin.streams.create(name=names[0], subjects=["planned.>"], max_age="1h30m", max_bytes="1g", metadata={"a": "b"})
    admin.consumers.create(names[0], durable_name="c", ack_policy="explicit", backoff=["1s", "1m"])
    found = admin.describe(names[0])
    assert found == {
        "name": names[0],
        "subjects": ["planned.>"],
        "max_bytes": "1GiB",
        "max_age": "1h30m",
        "duplicate_window": "2m",
        "metadata": {"a": "b"},
        "consumers": [
            {
                "durable_name": "c",
                "ack_policy": "explicit",
                "ack_wait": "1s",
                "backoff": ["1s", "1m"],
                "max_waiting": 512,
                "max_ack_pending": 1000,
            }
        ],
    }
    admin.streams.delete(names[0])
    admin.apply(admin.plan(found))
    assert admin.describe(names[0]) == found
    with pytest.raises(StreamNotFound, match="stream NOWHERE"):
        admin.describe("NOWHERE")


def test_yaml_needs_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "own.yaml").write_text("max_age: 1h\n")
    extra = r"YAML needs PyYAML: pip install 'spark-jetstream\[yaml\]'$"
    with pytest.raises(OptionError, match=rf"^template {tmp_path}/own\.yaml: reading {extra}"):
        template(tmp_path / "own.yaml")
    with pytest.raises(OptionError, match=f"^writing {extra}"):
        yaml_text({"name": "A"})


def test_backup_and_restore(
    admin: JetStreamAdmin, names: tuple[str, ...], publisher: Publisher, tmp_path: Path
) -> None:
    name, copy = names
    admin.streams.create(name=name, subjects=["planned.>"])
    admin.consumers.create(name, durable_name="c")
    publisher.publish(Message("planned.a", b"%d" % number) for number in range(10))
    steps: dict[str, tuple[int, int]] = {}

    def report(what: str) -> Callable[[int, int], None]:
        return lambda *step: steps.update({what: step})

    made = admin.streams.backup(name, tmp_path / "saved", progress=report("saved"))
    size = int(made.manifest.data_bytes)
    changes: dict[str, Any] = {"subjects": ["copied.>"], "description": "a copy"}
    progress = {"checking": report("checked"), "progress": report("sent")}
    restored = admin.streams.restore(made.path, copy, **progress, **changes)
    assert (restored.differences, restored.notes, restored.sha256) == ((), (), made.manifest.data_sha256)
    assert (restored.info.config.subjects, restored.info.config.description) == (("copied.>",), "a copy")
    assert (steps["saved"][0], steps["checked"], steps["sent"]) == (size, (size, size), (size, size))
    assert list(admin.consumers.names(copy)) == ["c"]
    with pytest.raises(OptionError, match="stream must be the name of a stream"):
        admin.streams.backup("a.b", tmp_path / "x")
    for wrong, message in (
        ({"name": "a.b"}, "stream must be the name"),
        ({"max_ages": "1h"}, r"did you mean max_age\?"),
    ):
        with pytest.raises(OptionError, match=message):
            admin.streams.restore(made.path, **wrong)  # type: ignore[arg-type]
