"""``stream backup`` and ``stream restore``; what backups hold and which damage is found, tests/admin tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jetstream.admin.backup_files import DATA, MANIFEST
from spark_jetstream.client.pool import connect
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command
from tests.support.backups import table
from tests.support.publish import Message, Publisher
from tests.support.reading import options


@pytest.fixture
def filled(do: Command, publisher: Publisher, name: str) -> str:
    """A stream of 20 messages, with a consumer."""
    do("stream", "add", name, "--subjects", f"{name}.>")
    publisher.publish(Message(f"{name}.{number % 3}", b"%d" % number, [("N", str(number))]) for number in range(20))
    config = {"durable_name": "c", "ack_policy": "explicit"}
    publisher.api(f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": config})
    return name


@pytest.fixture
def saved(do: Command, filled: str, tmp_path: Path) -> Path:
    """A backup of it."""
    do("stream", "backup", filled, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_there_and_back(suffix: str, do: Command, nats_server: NatsServer, filled: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / f"saved{suffix}"
    made = do("stream", "backup", filled, target, "--json").json
    assert (made["stream"], made["path"], made["messages"], made["consumers"]) == (filled, str(target), 20, True)
    assert target.is_file() == bool(suffix)
    copy, subjects = f"{filled}COPY", f"{filled}copy.>"
    back = do("stream", "restore", target, "--name", copy, "--subjects", subjects, "--description", "x", "--json").json
    assert back == {
        "stream": copy,
        "messages": 20,
        "bytes": made["bytes"],
        "consumers": 1,
        "sha256": made["sha256"],
        "differences": [],
        "notes": [],
    }
    connection = connect(options(nats_server.url))
    assert table(connection, nats_server.url, copy).equals(table(connection, nats_server.url, filled))
    config = do("stream", "info", copy, "--json").json["config"]
    assert (config["subjects"], config["description"]) == ([subjects], "x")


def test_under_its_own_name(do: Command, filled: str, saved: Path) -> None:
    do("stream", "rm", filled, "--force")
    said = do("stream", "restore", saved).out
    assert said.startswith(f"stream {filled} was restored from {saved}: 20 messages; its checksum was right, SHA-256 ")
    assert do("stream", "get", filled, 20, "--raw").raw == b"19"


def test_without_consumers(do: Command, filled: str, tmp_path: Path) -> None:
    said = do("stream", "backup", filled, tmp_path / "saved", "--no-consumers").out
    assert said.startswith(f"stream {filled} was saved at {tmp_path / 'saved'}: 20 messages in ")
    copy = ("--name", f"{filled}COPY", "--subjects", f"{filled}copy.>")
    assert do("stream", "restore", tmp_path / "saved", *copy, "--json").json["consumers"] == 0


def test_what_cannot_be_saved(run: Command, filled: str, saved: Path, tmp_path: Path) -> None:
    ran = run("stream", "backup", filled, saved)
    assert (ran.code, ran.out) == (2, "")
    assert f"{saved} exists already" in ran.err
    ran = run("stream", "backup", f"{filled}nowhere", tmp_path / "other")
    assert ran.code == 1
    assert "stream not found" in ran.err
    assert not (tmp_path / "other").exists()
    assert run("stream", "backup", filled).code == 2


def test_a_damaged_backup_restores_nothing(run: Command, filled: str, saved: Path) -> None:
    data = bytearray((saved / DATA).read_bytes())
    data[len(data) // 2] ^= 1
    (saved / DATA).write_bytes(data)
    for more in ([], ["--json"]):
        ran = run("stream", "restore", saved, "--name", f"{filled}COPY", "--subjects", f"{filled}copy.>", *more)
        assert (ran.code, ran.out) == (1, "")
        assert "damaged backup" in ran.err
        assert ran.err.count("\n") == 1
    assert run("stream", "info", f"{filled}COPY").code == 1


def test_what_is_not_as_it_was_ends_with_1(run: Command, filled: str, saved: Path) -> None:
    changes = ("--name", f"{filled}COPY", "--subjects", f"{filled}copy.>", "--max-msgs", 5)
    ran = run("stream", "restore", saved, *changes)
    assert ran.code == 1
    assert "not as it was: messages was 20 and is 5\n" in ran.err
    assert f"stream {filled}COPY was restored from {saved}: 5 messages" in ran.out


def test_notes_are_no_failure(do: Command, filled: str, saved: Path) -> None:
    (saved / MANIFEST).unlink()
    ran = do("stream", "restore", saved, "--name", f"{filled}COPY", "--subjects", f"{filled}copy.>", "--json")
    assert ran.json["sha256"] is None
    [note] = ran.json["notes"]
    assert "made by another tool, and has no checksums" in note
    assert ran.err == f"note: {note}\n"


def test_restores_that_are_refused(run: Command, filled: str, saved: Path, tmp_path: Path) -> None:
    for given, code, said in (
        ([saved], 1, "stream name already in use"),
        ([saved, "--name", f"{filled}COPY"], 1, f"its subject {filled}.> overlaps those of stream {filled}"),
        ([saved, "--name", "a.b"], 2, "without blanks, dots"),
        ([saved, "--max-age", "soon"], 2, "max_age must be a duration"),
        ([tmp_path / "nowhere"], 1, "cannot read the backup"),
        ([], 2, "source"),
    ):
        ran = run("stream", "restore", *given)
        assert (ran.code, ran.out) == (code, ""), ran.err
        assert said in ran.err.lower() if code == 2 and not given else said in ran.err
