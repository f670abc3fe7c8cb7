"""Commands that create and change streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command
from tests.support.client import ask
from tests.support.command import succeed


def config(do: Command, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = do("stream", "info", stream, "--json").json["config"]
    return found


# -- add --


def test_add(do: Command, run: Command, name: str) -> None:
    ran = do("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "30s")
    assert ran.out == f"stream {name} was created; it stores {name}.>\n"
    made = config(do, name)
    # A plain stream is what it begins with.
    assert (made["max_age"], made["allow_direct"], made["discard"]) == (30 * 10**9, True, "old")
    ran = do("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "30s")
    assert ran.out == f"stream {name} already exists, unchanged; it stores {name}.>\n"
    again = do("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "30s", "--json").json
    assert (again["config"], again["did_create"]) == (made, False)
    for flag, shown in (("--no-deny-delete", ""), ("--deny-delete", "; deny_delete: false -> true")):
        ran = run("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "1h", flag)
        assert (ran.code, ran.out) == (1, "")
        assert f"cannot create stream {name}: stream name already in use" in ran.err
        assert ran.err.endswith(f"; there -> asked for: max_age: 30s -> 1h{shown}\n")
    made = do("stream", "copy", name, f"{name}B", "--subjects", f"{name}b", "--json").json
    assert made["did_create"] is True
    ran = do("stream", "copy", name, f"{name}B", "--subjects", f"{name}b")
    assert ran.out.startswith(f"stream {name}B already exists, unchanged; ")


def test_what_may_not_be_looked_at_was_perhaps_created(
    nats_server_factory: Callable[..., NatsServer], no_connection_left: None
) -> None:
    """The server gives the same answer for a stream that it creates and for one that exists."""
    may = '{ publish: "$JS.API.STREAM.CREATE.>", subscribe: "_INBOX.>" }'
    server = nats_server_factory(config=f"authorization {{ users: [{{ user: a, password: p, permissions: {may} }}] }}")
    for _ in range(2):
        ran = succeed("stream", "add", "S", "--user", "a", "--password", "p", url=server.url)
        assert ran.out == "stream S exists; it stores S\n"


def test_templates_and_files(do: Command, name: str, tmp_path: Path) -> None:
    do("stream", "add", f"{name}A", "--template", "work-queue", "--max-msgs", 10)
    queue = config(do, f"{name}A")
    assert (queue["retention"], queue["discard"], queue["max_msgs"]) == ("workqueue", "new", 10)
    team, own = tmp_path / "team.yaml", tmp_path / "own.json"
    team.write_text("max_age: 30d\nmax_msgs: 5\nmetadata: {team: data}\n")
    own.write_text(json.dumps({"name": "SOMETHING", "max_msgs": 6, "max_bytes": "1m", "description": "from the file"}))
    do("stream", "add", f"{name}B", "--template", team, "--config", own, "--description", "from the line")
    made = config(do, f"{name}B")
    assert (made["max_age"], made["max_msgs"], made["max_bytes"]) == (30 * 86400 * 10**9, 6, 2**20)
    assert (made["description"], made["metadata"]["team"]) == ("from the line", "data")
    assert made["allow_direct"] is False
    assert made["name"] == f"{name}B"


def test_what_info_printed_is_added_again(do: Command, name: str, tmp_path: Path) -> None:
    do("stream", "add", name, "--max-msgs", "0", "--max-bytes", "0", "--max-age", "1h")
    before = do("stream", "info", name, "--json").json
    file = tmp_path / "s.json"
    for found in (before, before["config"]):
        file.write_text(json.dumps(found))
        do("stream", "add", name, "--config", file)
        do("stream", "edit", name, "--config", file)
        do("stream", "add", f"{name}B", "--config", file, "--subjects", f"{name}b.>")
        assert do("stream", "info", f"{name}B", "--json").json["config"]["max_age"] == 3600 * 10**9
        do("stream", "rm", f"{name}B", "--force")
    assert do("stream", "info", name, "--json").json["created"] == before["created"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("max_ages: 1h\n", 'there is no field "max_ages" (did you mean max_age?)'),
        ("- max_age: 1h\n", "is not one object with the fields of a configuration"),
        ("max_age: 1h\nmax_age: 2h\n", '"max_age" is there twice'),
        (None, "the file cannot be read"),
    ],
)
def test_files_that_are_wrong(content: str | None, said: str, run: Command, name: str, tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    if content is not None:
        file.write_text(content)
    for option in ("--config", "--template"):
        ran = run("stream", "add", name, option, file)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err


# -- edit --


def test_edit_shows_what_changes_and_changes_it(do: Command, run: Command, name: str) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>", "--metadata", "owner=me")
    edit = ("stream", "edit", name, "--max-age", "1h", "--deny-delete")
    lines = [
        "    max_age: 0s -> 1h (risk: messages beyond it are deleted at once)",
        "    deny_delete: false -> true (risk: it cannot be taken back)",
    ]
    assert do(*edit, "--dry-run").out.splitlines() == [*lines, f"stream {name} would be changed"]
    ran = run(*edit)  # nobody is there to answer
    assert (ran.code, ran.out.splitlines()) == (2, lines)
    assert "--force" in ran.err
    assert config(do, name)["max_age"] == 0
    assert do(*edit, "--force").out.splitlines() == [*lines, f"stream {name} was changed"]
    assert do(*edit).out == f"stream {name}: nothing to change\n"
    changed = config(do, name)
    assert (changed["max_age"], changed["deny_delete"]) == (3600 * 10**9, True)
    assert changed["metadata"]["owner"] == "me"


def test_edit_as_json(do: Command, run: Command, name: str) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>")
    said = do("stream", "edit", name, "--max-bytes", "1k", "--force", "--json").json
    risk = "messages beyond it are deleted at once"
    assert said == {
        "stream": name,
        "changed": True,
        "differences": [{"field": "max_bytes", "actual": -1, "wanted": 1024, "risk": risk}],
    }
    said = do("stream", "edit", name, "--max-bytes", "1k", "--force", "--json").json
    assert said == {"stream": name, "changed": False, "differences": []}
    ran = run("stream", "edit", name, "--storage", "memory", "--max-age", "1h", "--force", "--json")
    assert ran.code == 1
    assert [(each["field"], each.get("refused")) for each in ran.json["differences"]] == [
        ("max_age", None),
        ("storage", "it can never change"),
    ]
    assert ran.json["changed"] is False


def test_edit_does_nothing_when_a_part_is_refused(do: Command, run: Command, name: str) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>", "--deny-purge")
    for options in (["--force"], ["--dry-run"]):
        ran = run("stream", "edit", name, "--max-age", "1h", "--no-deny-purge", *options)
        assert ran.code == 1
        assert "    deny_purge: true -> false (refused: it cannot be taken back)\n" in ran.out
        assert ran.out.endswith(f"stream {name} cannot be changed so, and stays as it is\n")
    assert config(do, name)["max_age"] == 0


def test_edit_takes_fields_back_to_their_defaults(do: Command, run: Command, name: str, tmp_path: Path) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>", "--max-msgs", 5, "--max-age", "1h", "--metadata", "a=b")
    do("stream", "edit", name, "--unset", "max-msgs,metadata", "--unset", "max_age", "--force")
    changed = config(do, name)
    assert (changed["max_msgs"], changed["max_age"]) == (-1, 0)
    assert "a" not in changed["metadata"]
    file = tmp_path / "changes.json"
    file.write_text('{"max_msgs": 7, "max_age": "2h"}')
    do("stream", "edit", name, "--config", file, "--max-msgs", 8, "--force")
    changed = config(do, name)
    assert (changed["max_msgs"], changed["max_age"]) == (8, 7200 * 10**9)
    for options, said in (
        ([], "nothing to change was given"),
        (["--unset", "max_msg"], '--unset: there is no field "max_msg" (did you mean max_msgs?)'),
        (["--unset", "max-age", "--max-age", "1h"], "--max-age and --unset max_age cannot be given together"),
        (["--max-age", "30s", "--duplicate-window", "1m"], "duplicate_window (1m) is longer than max_age (30s)"),
    ):
        ran = run("stream", "edit", name, *options)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
    ran = run("stream", "edit", f"{name}nowhere", "--max-age", "1h")
    assert (ran.code, ran.err) == (
        1,
        f"spark-jetstream: cannot look at stream {name}nowhere: stream not found (code 404, error 10059)\n",
    )


# -- copy and seal --


def test_copy(do: Command, run: Command, name: str) -> None:
    do("stream", "add", f"{name}A", "--subjects", f"{name}.a", "--max-age", "1h", "--max-msgs", 5)
    ran = run("stream", "copy", f"{name}A", f"{name}B")
    assert ran.code == 1
    assert "subjects overlap" in ran.err
    do("stream", "copy", f"{name}A", f"{name}B", "--subjects", f"{name}.b", "--unset", "max_msgs")
    copied = config(do, f"{name}B")
    assert (copied["subjects"], copied["max_age"], copied["max_msgs"]) == ([f"{name}.b"], 3600 * 10**9, -1)
    do("stream", "copy", f"{name}A", f"{name}C", "--mirror", f"{name}A", "--unset", "subjects")
    assert config(do, f"{name}C")["mirror"] == {"name": f"{name}A"}
    assert run("stream", "copy", f"{name}A", f"{name}.D").code == 2


def test_seal(do: Command, run: Command, nats_server: Any, name: str) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>")
    ran = run("stream", "seal", name)
    assert ran.code == 2
    assert "sealed: false -> true (risk: it cannot be taken back)" in ran.out
    do("stream", "seal", name, "--force")

    async def is_sealed(js: Any) -> bool:
        return bool((await js.stream_info(name)).config.sealed)

    assert ask(nats_server.url, is_sealed)
    assert do("stream", "seal", name).out == f"stream {name}: nothing to change\n"
