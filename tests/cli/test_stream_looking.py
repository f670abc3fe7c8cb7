"""Commands that show streams, and those that remove them or their messages."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jetstream.testing import NatsServer
from tests.admin.fake_api import FakeApi
from tests.cli.conftest import Command
from tests.support.client import ask, stored
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until


@pytest.fixture
def filled(do: Command, publisher: Publisher, name: str) -> str:
    """A stream of ten messages at two subjects."""
    do("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "1h", "--metadata", "owner=me")
    publisher.publish(Message(f"{name}.{number % 2}", b"%d" % number) for number in range(10))
    return name


# -- look --


def test_ls(do: Command, filled: str) -> None:
    do("stream", "add", f"{filled}B", "--subjects", f"{filled}b", "--storage", "memory", "--retention", "interest")
    table = do("stream", "ls").rows
    assert table[0] == ["name", "storage", "retention", "messages", "bytes", "consumers", "last", "message"]
    rows = {row[0]: row[1:] for row in table[1:]}
    [entry] = do("stream", "ls", "--subject", f"{filled}.0", "--json").json
    state = entry["state"]
    time = state["last_ts"].partition(".")[0] + "Z"
    assert rows[filled] == ["file", "limits", "10", f"{state['bytes']:,}", "0", time]
    assert rows[f"{filled}B"] == ["memory", "interest", "0", "0", "0"]
    assert list(rows) == sorted(rows)
    assert [row[0] for row in do("stream", "ls", "--subject", f"{filled}b").rows[1:]] == [f"{filled}B"]
    nothing = do("stream", "ls", "--subject", f"{filled}nowhere")
    assert (nothing.out, nothing.err) == ("", f"no stream stores {filled}nowhere\n")
    assert do("stream", "ls", "--subject", f"{filled}nowhere", "--json").json == []


def test_ls_of_a_part(run: Command, nats_server: NatsServer) -> None:
    """A server of the cluster did not answer: what is there is shown, and it is no success."""
    state = {"messages": 1, "bytes": 2, "first_seq": 1, "last_seq": 1}
    stream = {"config": {"name": "A"}, "created": "2026-01-01T00:00:00Z", "state": state}
    part = {"total": 2, "offset": 0, "limit": 256, "streams": [stream], "missing": ["B"]}
    with FakeApi(nats_server.url, {"STREAM.LIST": part}) as fake:
        ran = run("stream", "ls", "--js-api-prefix", fake.prefix)
        assert (ran.code, ran.rows[1][:4]) == (1, ["A", "file", "limits", "1"])
        assert "no server answered for B" in ran.err
        fake.answers = {"STREAM.LIST": {**part, "streams": []}}
        ran = run("stream", "ls", "--js-api-prefix", fake.prefix, "--json")
        assert (ran.code, ran.out) == (1, "")


def test_names(do: Command, run: Command, filled: str) -> None:
    assert filled in do("stream", "names").out.splitlines()
    assert do("stream", "names", "--subject", f"{filled}.*", "--json").json == [filled]
    assert run("stream", "names", "--subject", "a..b").code == 2


def test_info(do: Command, run: Command, nats_server: NatsServer, filled: str) -> None:
    said = do("stream", "info", filled)
    configuration, _, state = said.out.partition("State\n")
    pairs = {row[0]: row[1:] for row in map(str.split, configuration.splitlines()) if row}
    held = {row[0]: row[1:] for row in map(str.split, state.splitlines())}
    assert pairs["Stream"] == [filled]
    assert (pairs["max_age"], pairs["subjects"], pairs["metadata"]) == (["1h"], [f"{filled}.>"], ["owner=me"])
    assert (held["messages"], held["subjects"], held["last"][:2]) == (["10"], ["2"], ["sequence", "10,"])
    # What is the default is not shown.
    assert not {"storage", "retention", "max_msgs", "discard"} & pairs.keys()

    async def reply(js: Any) -> dict[str, Any]:
        found: dict[str, Any] = await js._api_request(f"$JS.API.STREAM.INFO.{filled}", b"", timeout=5)
        return found

    whole = do("stream", "info", filled, "--json").json
    expected = ask(nats_server.url, reply)
    for volatile in ("ts", "total", "offset", "limit"):
        expected.pop(volatile, None)
        whole.pop(volatile, None)
    assert whole == expected
    ran = run("stream", "info", f"{filled}nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"spark-jetstream: cannot look at stream {filled}nowhere: stream not found")
    assert run("stream", "info", "a.b").code == 2
    assert run("stream", "info").code == 2


def test_info_of_copies(do: Command, filled: str, nats_server: NatsServer) -> None:
    do("stream", "add", f"{filled}M", "--mirror", filled)
    do("stream", "add", f"{filled}S", "--sources", f"{filled},{filled}nowhere")
    wait_until(lambda: stored(nats_server.url, f"{filled}M") == 10, "the mirror has all")
    wait_until(lambda: stored(nats_server.url, f"{filled}S") == 10, "the sources are copied")
    rows = do("stream", "info", f"{filled}M").rows
    at = next(index for index, row in enumerate(rows) if row[:2] == ["mirror", "of"])
    assert rows[at] == ["mirror", "of", "lag", "last", "sign"]
    assert rows[at + 1][:2] == [filled, "0"]
    rows = do("stream", "info", f"{filled}S").rows
    at = next(index for index, row in enumerate(rows) if row[:1] == ["source"])
    assert [row[:1] for row in rows[at + 1 :]] == [[filled], [f"{filled}nowhere"]]
    assert "never" in rows[at + 2]


def test_subjects(do: Command, run: Command, filled: str) -> None:
    assert do("stream", "subjects", filled).rows == [
        ["subject", "messages"],
        [f"{filled}.0", "5"],
        [f"{filled}.1", "5"],
    ]
    said = do("stream", "subjects", filled, f"{filled}.1", "--json").json
    assert said == [{"subject": f"{filled}.1", "messages": 5}]
    nothing = do("stream", "subjects", filled, "nowhere")
    assert (nothing.out, nothing.err) == ("", f"stream {filled} has no messages on nowhere\n")
    assert run("stream", "subjects", filled, "a..b").code == 2
    assert run("stream", "subjects", f"{filled}nowhere").code == 1


# -- remove --


def test_purge(do: Command, run: Command, nats_server: NatsServer, filled: str) -> None:
    ran = run("stream", "purge", filled)
    assert (ran.code, ran.out) == (2, "")
    assert stored(nats_server.url, filled) == 10
    said = do("stream", "purge", filled, "--subject", f"{filled}.0", "--keep", 2, "--force").out
    assert said == f"3 messages of stream {filled} were removed\n"
    said = do("stream", "purge", filled, "--sequence", 7, "--force", "--json").json
    assert said == {"stream": filled, "purged": 3}
    assert run("stream", "purge", filled, "--subject", "", "--force").code == 2  # a variable that is not set, say
    assert stored(nats_server.url, filled) == 4
    ran = run("stream", "purge", filled, "--sequence", 9, "--keep", 1, "--force")
    assert (ran.code, ran.out) == (2, "")
    assert "seq and keep cannot be set together" in ran.err
    assert do("stream", "purge", filled, "--force", "--json").json["purged"] == 4
    assert stored(nats_server.url, filled) == 0
    do("stream", "add", f"{filled}D", "--subjects", f"{filled}d", "--deny-purge")
    ran = run("stream", "purge", f"{filled}D", "--force")
    assert ran.code == 1
    assert f"cannot purge stream {filled}D" in ran.err


def test_rm(do: Command, run: Command, filled: str) -> None:
    ran = run("stream", "rm", filled)
    assert (ran.code, ran.out) == (2, "")
    assert "with 10 messages and 0 consumers?" in " ".join(ran.err.replace("│", " ").split())
    assert do("stream", "rm", filled, "--force", "--json").json == {"stream": filled, "deleted": True}
    ran = run("stream", "rm", filled, "--force")
    assert ran.code == 1
    assert f"cannot delete stream {filled}: stream not found" in ran.err
    assert run("stream", "rm", filled).code == 1
