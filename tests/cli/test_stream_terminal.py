"""What is different where a terminal is: questions, progress bars, colours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command
from tests.support.client import stored
from tests.support.publish import Message, Publisher
from tests.support.terminal import on_terminal


@pytest.mark.full
def test_it_asks_and_shows_how_far_it_is(
    do: Command, publisher: Publisher, nats_server: NatsServer, name: str, tmp_path: Path
) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>")
    publisher.publish(Message(f"{name}.a", os.urandom(200_000)) for _ in range(20))
    at = ("-s", nats_server.url)

    question = f"Change stream {name}? [y/N]:"
    refused = on_terminal("stream", "edit", name, "--max-msgs", 5, *at, question=question, answer="n")
    assert refused.code == 1
    assert b"\x1b[33m    max_msgs" in refused.raw  # yellow: a risk
    assert question in refused.text
    assert stored(nats_server.url, name) == 20

    saved = on_terminal("stream", "backup", name, tmp_path / "saved", *at)
    assert saved.code == 0
    assert f"Saving {name}" in saved.text
    assert "MiB" in saved.text
    assert f"stream {name} was saved at" in saved.text
    # With JSON there is none.
    assert do("stream", "backup", name, tmp_path / "again", "--json").err == ""
