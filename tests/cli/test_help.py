"""Help in 80 columns, and the names that the ``nats`` tool has for commands and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from spark_jetstream.cli.help import ADVANCED, COMMON, CONNECTION
from spark_jetstream.cli.main import app
from tests.cli.conftest import Command, refused
from tests.support.command import run_command, succeed
from tests.support.publish import Message, Publisher

ROOT: Any = typer.main.get_command(app)
LONG, SHORT = 102, 66
"""How many lines help may have: of a command with an option for each field of a configuration, and
of others.
"""


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from walk(command, (*path, name))


EVERY = dict(walk(ROOT))


@pytest.mark.parametrize("path", [(), *EVERY], ids=" ".join)
def test_help_fits_a_terminal(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = succeed(*path, "--help").out.splitlines()
    command = EVERY.get(path, ROOT)
    panels = {getattr(parameter, "rich_help_panel", None) for parameter in command.params}
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) <= (LONG if ADVANCED in panels else SHORT)
    text = " ".join(" ".join(lines).split())
    # The top help has the connection options for all others.
    assert ("--tlsca" in text) is (path == ())
    assert ("see spark-jetstream --help" in text) is (CONNECTION in panels and path != ())
    assert [line for line in lines if re.search(r"\w-$", line)] == []  # no option is broken
    assert not any(mark in text for mark in ("<str>", "<bool>", "<int", "list["))
    for panel in {COMMON, ADVANCED} & panels:
        assert f"{panel}:" in text


def test_help_has_values_and_defaults_and_no_opposites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = ("stream add", "stream edit", "kv watch", "doctor")
    add, edit, watch, doctor = (
        " ".join(succeed(*line.split(), "--help").out.split()) for line in lines
    )
    retention = (
        "--retention POLICY limits, interest or workqueue; when messages are removed: at the "
        "limits, "
    )
    assert (retention in add, retention in edit) == (True, True)
    assert ("[default: file]" in add, "[default: " in edit) == (True, False)
    assert ("--deny-delete Refuse every request" in add, "--no-deny-delete" in add) == (True, False)
    # But elsewhere, where the default is one of the two, or neither.
    assert "--deletes/--no-deletes Show deletions" in watch
    assert "--spark/--no-spark Also start" in doctor


# -- the nats tool --


def test_commands_and_options_have_the_names_of_the_nats_tool(do: Command, name: str) -> None:
    given: tuple[object, ...] = (
        "--replicas",
        1,
        "--dupe-window",
        "1m",
        "--retention",
        "work",
        "--allow-rollup",
    )
    do("s", "create", name, "--subjects", f"{name}.>", *given)
    config = do("str", "i", name, "-j").json["config"]
    assert (config["duplicate_window"], config["retention"], config["num_replicas"]) == (
        60 * 10**9,
        "workqueue",
        1,
    )
    do("stream", "update", name, "--no-allow-rollup", "--force")
    assert do("stream", "nfo", name, "--json").json["config"]["allow_rollup_hdrs"] is False
    given = (
        "--filter",
        f"{name}.a",
        "--filter",
        f"{name}.b",
        "--ack",
        "explicit",
        "--deliver",
        "all",
        "--wait",
        "1m",
    )
    do("c", "new", name, "c", *given, "--max-pending=5")
    config = do("con", "state", name, "c", "--json").json["config"]
    assert config["filter_subjects"] == [f"{name}.a", f"{name}.b"]
    assert (config["ack_wait"], config["max_ack_pending"]) == (60 * 10**9, 5)
    assert [consumer["name"] for consumer in do("consumer", "report", name, "--json").json] == ["c"]
    assert (
        do("consumer", "delete", name, "c", "-f").code == do("stream", "del", name, "-f").code == 0
    )
    do("kv", "new", name, "--compress", "--max-bucket-size", "1m", "--storage", "m")
    info = do("kv", "status", name, "-j").json
    assert (info["compression"], info["max_bytes"], info["storage"]) == (True, 2**20, "memory")
    # Usage has the name that help shows.
    assert succeed("s", "list", "--help").out.startswith(
        "Usage: spark-jetstream stream ls [OPTIONS]\n"
    )


def test_a_name_without_an_equivalent_gets_a_hint() -> None:
    for line, hint in {
        "s cluster step-down S": "there is no command cluster: use `stream step-down` to move the "
        "leader,",
        "latency a --server-b b": "there is no command latency: use `rtt` to measure round trips, "
        "or `bench` to",
        "server check connection": "there is no command check: use `check` without the word server "
        "before it, such as",
        "stream add S --cluster c": "there is no option --cluster: use --placement cluster=NAME",
        "stream ls --cluster c": "there is no option --cluster: use `stream info STREAM` to see "
        "the cluster",
        "consumer next S c --nak": "there is no option --nak: use --ack nak, or --ack term",
        "consumer add S --name c": "there is no option --name: give the name as the argument after "
        "the stream",
        "pub a b --sleep 1s": "there is no option --sleep: use --count 1 in a loop of the shell",
        "kv update B k v 1": "option --revision is missing: name it as in `spark-jetstream kv "
        "update",
        "kv rm B k": "there is no further argument: use `kv del BUCKET KEY` to delete a key",
        "rtt 10": "there is no further argument: use --count NUMBER",
        "sub --stream X": "of a stream, or `consumer next STREAM CONSUMER` to receive those of a "
        "consumer",
        "consumer add S c --pull": "there is no option --pull: leave it out; `consumer add` makes "
        "a pull",
        "stream add S a.>": "there is no further argument: use --subjects to name the subjects of "
        "the stream",
        "check stream S": "option --stream is missing: name it as in `spark-jetstream check stream "
        "--stream ORDERS",
    }.items():
        refused(run_command(*line.split()), 2, hint, "(see spark-jetstream")


# -- what the nats tool has too --


def test_state_and_gaps_show_what_a_stream_holds(
    do: Command, name: str, publisher: Publisher
) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>")
    assert do("stream", "gaps", name).err == f"stream {name} has no gaps\n"
    publisher.publish(Message(f"{name}.a", b"x") for _ in range(9))
    for sequence in (3, 4, 7):
        do("stream", "rmm", name, sequence, "--force")
    gaps = [{"first": 3, "last": 4, "messages": 2}, {"first": 7, "last": 7, "messages": 1}]
    assert do("stream", "gaps", name, "--json").json == gaps
    assert do("stream", "gaps", name).rows == [
        [*gaps[0]],
        *([str(number) for number in gap.values()] for gap in gaps),
    ]
    info = do("stream", "info", name).out
    assert do("stream", "state", name).out.partition("\n")[2] == info.partition("State\n")[2]
    assert do("stream", "state", name, "--json").json["num_deleted"] == 3


def test_round_trips_are_measured(do: Command, run: Command) -> None:
    measured = do("rtt", "--count", 3, "--json").json
    assert 0 < measured["fastest"] <= measured["mean"] <= measured["slowest"] < 5
    assert measured["count"] == 3
    assert do("rtt").out.startswith("fastest ")
    assert run("rtt", "-o", "connectTimeout=200ms", url="nats://127.0.0.1:1").code == 3


def test_examples_come_from_the_help_by_topic() -> None:
    examples = succeed("cheat", "--json").json
    commands = [command for command in EVERY.values() if not hasattr(command, "commands")]
    assert [item["example"] for item in examples] == [
        one.epilog.removeprefix("Example: ") for one in commands
    ]
    some = succeed("cheat", "obj").out
    assert (
        some
        == "\n\n".join(
            f"# {one['help']}\n{one['example']}" for one in examples if " object " in one["example"]
        )
        + "\n"
    )
    refused(run_command("cheat", "nothing"), 2, "there is no topic nothing, but demo, ")
