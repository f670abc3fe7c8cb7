"""What all commands have in common: where connection options may stand, output, exit codes, completion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.command import run_command, succeed


def test_connection_options_stand_before_and_behind_the_command(nats_server: NatsServer) -> None:
    url = nats_server.url
    before = succeed("--server", url, "--json", "account", "info").json
    behind = succeed("account", "info", "--server", url, "--json").json
    assert before["limits"] == behind["limits"]
    # The nearer one wins.
    assert succeed("--server", "nats://127.0.0.1:1", "account", "info", "-s", url).code == 0


def test_a_context_and_a_variable_say_where_to_connect(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = tmp_path / "config" / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "here.json").write_text(json.dumps({"url": nats_server.url}))
    assert succeed("account", "info", "--context", "here").code == 0
    monkeypatch.setenv("NATS_URL", nats_server.url)
    assert succeed("account", "info").code == 0
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    assert succeed("account", "info", "--context", "here").code == 0


def test_any_other_option_has_a_way_in(nats_server: NatsServer) -> None:
    assert succeed("account", "info", "-o", "connectTimeout=2s", "-o", "retryTimeout=1s", url=nats_server.url).code == 0
    ran = run_command("account", "info", "-o", "conectTimeout=2s", url=nats_server.url)
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean connectTimeout" in ran.err
    ran = run_command("account", "info", "-o", "connectTimeout", url=nats_server.url)
    assert ran.code == 2
    assert "name=value" in ran.err


def test_exit_codes(nats_server: NatsServer) -> None:
    """Wrong usage is 2, and a server that is not there is 3."""
    assert run_command("account", "inof", url=nats_server.url).code == 2
    ran = run_command("account", "info", "-o", "connectTimeout=500ms", url="nats://127.0.0.1:1")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("spark-jetstream: no NATS server could be reached")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from spark_jetstream.cli import main; main()", "--show-completion", shell],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0
    assert "COMPLETE" in ran.stdout
