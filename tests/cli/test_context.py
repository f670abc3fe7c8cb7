"""``spark-jetstream context``: files that the nats tool reads and writes too."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from spark_jetstream.testing import NatsServer
from tests.cli.conftest import refused
from tests.support.command import on_terminal, run_command, succeed

GROUP = ("context",)
SECRET = "right-pass-71d0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the nats tool keeps what it knows; see `without_settings`."""
    return tmp_path / "config" / "nats"


def test_contexts_are_listed_without_their_secrets(root: Path) -> None:
    assert succeed("context", "ls").err == "there are no contexts: context save makes one\n"
    folder = root / "context"
    folder.mkdir(parents=True)
    (folder / "near.json").write_text(f'{{"url": "nats://ann:{SECRET}@127.0.0.1:4222"}}')
    (folder / "broken.json").write_text("{")
    (folder / "proxy.json").write_text(f'{{"url": "wss://a:443/{SECRET},wss://b"}}')
    (root / "context.txt").write_text("near\n")
    ran = succeed("context", "list")
    assert ran.rows[0] == ["name", "selected", "servers"]
    assert ran.rows[1][:2] == ["broken", "option"]
    assert ran.rows[2] == ["near", "yes", "nats://127.0.0.1:4222"]
    broken, near, proxy = succeed("ctx", "ls", "--json").json
    assert proxy["servers"] == "wss://a:443,wss://b"
    assert succeed("context", "show", "proxy").rows[1:] == [["servers", "wss://a:443,wss://b"]]
    assert near == {
        "name": "near",
        "selected": True,
        "servers": "nats://127.0.0.1:4222",
        "problem": "",
    }
    assert "is not JSON" in broken["problem"]
    shown = succeed("context", "show")
    assert shown.rows[1:] == [
        ["servers", "nats://127.0.0.1:4222"],
        ["user", "ann"],
        ["password", "***"],
    ]
    assert SECRET not in ran.out + shown.out + succeed("context", "info", "near", "-j").out


def test_a_context_has_the_fields_of_the_nats_tool_and_is_private(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD_OF_ANN", SECRET)
    monkeypatch.setenv("NATS_URL", "nats://elsewhere")
    login = ("--user", "ann", "--password", "env://PASSWORD_OF_ANN")
    more = (
        "--tlsca",
        "/ca.pem",
        "--tlsfirst",
        "--js-domain",
        "hub",
        "--inbox-prefix",
        "_INBOX_ann",
    )
    ran = succeed(
        "context",
        "save",
        "prod",
        "-s",
        "nats://a:4222,nats://b",
        *login,
        *more,
        "--description",
        "Production",
    )
    file, chosen = root / "context" / "prod.json", root / "context.txt"
    assert ran.out == f"context prod is stored in {file}\n"
    assert json.loads(file.read_text()) == {
        "url": "nats://a:4222,nats://b",
        "user": "ann",
        "password": "env://PASSWORD_OF_ANN",
        "ca": "/ca.pem",
        "tls_first": True,
        "jetstream_domain": "hub",
        "inbox_prefix": "_INBOX_ann",
        "description": "Production",
    }
    # A second time changes what is given; another login, or prefix, takes the place of the one
    # before.
    file.chmod(0o644)
    data = {**json.loads(file.read_text()), "color_scheme": "red"}
    file.write_text(json.dumps(data))
    assert not chosen.exists()
    succeed(
        "context",
        "add",
        "prod",
        "--token",
        SECRET,
        "-o",
        "apiprefix=A.B",
        "--no-tlsfirst",
        "--select",
    )
    gone = ("user", "password", "jetstream_domain")
    kept = {name: value for name, value in data.items() if name not in gone}
    assert json.loads(file.read_text()) == {
        **kept,
        "tls_first": False,
        "token": SECRET,
        "jetstream_api_prefix": "A.B",
    }
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, chosen)] == [0o600, 0o600]
    assert chosen.read_text() == "prod"
    assert sorted(os.listdir(file.parent)) == ["prod.json"]


def test_a_jwt_alone_is_stored_as_the_nats_tool_does(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_JWT", SECRET)
    succeed("context", "save", "prod", "--creds", "/c.creds")
    succeed("context", "save", "prod", "-o", "jwtSecret=env://THE_JWT")
    assert json.loads((root / "context" / "prod.json").read_text()) == {"user_jwt": "env://THE_JWT"}
    assert succeed("context", "show", "prod").rows[1:] == [["jwtSecret", "***"]]


def test_a_refused_context_command_leaves_the_files_unchanged(root: Path) -> None:
    succeed("context", "save", "a", "--server", "nats://ann:x@h", "--select")
    before = {path: path.read_text() for path in root.rglob("*") if path.is_file()}
    for line, problem in {
        "save a -o requestTimeout=2s": "option requestTimeout has no place in a context: give it "
        "beside --context",
        "save a --user bob": "option user needs password beside it",
        "save a --user bob --password p": "has a user in its url, which would count",
        "save a --creds /c.creds --token t": "are two kinds of authentication",
        "save a --server nats://": "servers",
        "save b --user u --password env://NOT_SET": "takes password from the environment variable "
        '"NOT_SET"',
        "save b -o conectTimeout=1s": "there is no option conectTimeout",
        "save ../b": 'a context cannot have the name "../b"',
        "save b.json": 'a context cannot have the name "b.json"',
        "select b": 'there is no context "b" in {folder}; did you mean "a"',
        "select ./a.json": 'a context cannot have the name "./a.json"',
        "show b": 'there is no context "b"',
        "rm b --force": 'there is no context "b"',
        "rm a": '"a" is the selected one: select another one before, or force it',
    }.items():
        refused(run_command("context", *line.split()), 2, problem.format(folder=root / "context"))
    (root / "context" / "c.json").mkdir()
    refused(
        run_command("context", "save", "c", "--server", "nats://c"),
        2,
        "c.json cannot be written: is a directory",
    )
    assert {path: path.read_text() for path in root.rglob("*") if path.is_file()} == before


def test_the_selected_context_is_removed_by_force_alone(root: Path) -> None:
    for name in ("a", "b"):
        succeed("context", "save", name, "--server", f"nats://{name}")
    succeed("context", "select", "b")
    assert [row["selected"] for row in succeed("context", "ls", "--json").json] == [False, True]
    refused(
        run_command("context", "rm", "a"), 2, "Delete context a? There is no terminal to ask on"
    )
    assert on_terminal("context", "rm", "a", question="?", answer="n").code == 1
    assert on_terminal("context", "rm", "a", question="?", answer="y").code == 0
    assert succeed("context", "remove", "b", "-f").out == "context b was deleted\n"
    assert [path for path in root.rglob("*") if path.is_file()] == []
    refused(run_command("context", "show"), 2, "no context is selected: name one")


def test_commands_use_the_options_then_the_named_and_then_the_selected_context(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, url in (("here", nats_server.url), ("away", "nats://127.0.0.1:1")):
        succeed("context", "save", name, "--server", url)
    succeed("context", "select", "here")
    assert succeed("rtt").out.startswith("fastest ")
    monkeypatch.setenv("NATS_CONTEXT", "away")
    refused(run_command("rtt"), 3, "127.0.0.1:1")
    assert succeed("rtt", "--context", "here").code == 0
    refused(
        run_command("rtt", "--context", "here", "--server", "nats://127.0.0.1:2"), 3, "127.0.0.1:2"
    )
