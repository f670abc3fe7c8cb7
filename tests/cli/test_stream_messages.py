"""Commands that read and remove single messages."""

from __future__ import annotations

from typing import Any

import pytest
from nats.js.api import RawStreamMsg

from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command
from tests.support.client import ask
from tests.support.publish import Message, Publisher

BINARY = b"\xff\x00\x1b[31m"


@pytest.fixture
def filled(do: Command, publisher: Publisher, name: str) -> str:
    """A stream of twelve messages; 2 is binary, and 3 has headers and control characters."""
    do("stream", "add", name, "--subjects", f"{name}.>")
    odd = {
        2: Message(f"{name}.b", BINARY),
        3: Message(f"{name}.c", "grün\x1b[31m".encode(), [("N", "1"), ("N", "2"), ("Other", "ä")]),
    }
    publisher.publish(odd.get(number, Message(f"{name}.a", b"%d" % number)) for number in range(1, 13))
    return name


def fetched(url: str, stream: str, sequence: int) -> RawStreamMsg:
    """A message as nats-py sees it."""

    async def get(js: Any) -> RawStreamMsg:
        found: RawStreamMsg = await js.get_msg(stream, sequence)
        return found

    return ask(url, get)


def test_get_one(do: Command, nats_server: NatsServer, filled: str) -> None:
    whole = do("stream", "get", filled, 3, "--json").json
    other = fetched(nats_server.url, filled, 3)
    assert (whole["subject"], whole["seq"], whole["data"].encode()) == (other.subject, other.seq, other.data)
    assert (whole["headers"], whole["encoding"]) == ({"N": ["1", "2"], "Other": ["ä"]}, "utf-8")
    text = do("stream", "get", filled, 3).out.splitlines()
    # A terminal does not obey what is in a message.
    assert text == [f"3 {filled}.c {whole['time']}", "N: 1", "N: 2", "Other: ä", "", "grün\\x1b[31m", ""]


def test_content_that_is_no_text(do: Command, filled: str) -> None:
    whole = do("stream", "get", filled, 2, "--json").json
    assert (whole["data"], whole["encoding"]) == ("/wAbWzMxbQ==", "base64")
    assert "(7 bytes that are no text)" in do("stream", "get", filled, 2).out
    assert do("stream", "get", filled, 2, "--raw").raw == BINARY
    assert do("stream", "get", filled, "--from", 10, "--raw").raw == b"101112"


@pytest.mark.parametrize("direct", [[], ["--direct"]])
def test_get_by_subject(direct: list[str], do: Command, run: Command, filled: str) -> None:
    assert do("stream", "get", filled, "--last", f"{filled}.a", "--json", *direct).json["seq"] == 12
    assert do("stream", "get", filled, "--next", f"{filled}.a", "--json", *direct).json["seq"] == 1
    assert do("stream", "get", filled, "--next", f"{filled}.a", "--from", 2, "--json", *direct).json["seq"] == 4
    assert do("stream", "get", filled, 5, "--json", *direct).json["seq"] == 5
    ran = run("stream", "get", filled, "--last", f"{filled}.none", *direct)
    assert (ran.code, ran.out) == (1, "")
    assert f"cannot get the last {filled}.none of stream {filled}" in ran.err


def test_get_several(do: Command, filled: str) -> None:
    def sequences(*options: object) -> list[int]:
        return [each["seq"] for each in do("stream", "get", filled, *options, "--json").json]

    assert sequences("--from", 11) == [11, 12]
    assert sequences("--subject", f"{filled}.a", "--count", 3) == [1, 4, 5]
    assert sequences("--count", 1) == [1]
    time = do("stream", "get", filled, 6, "--json").json["time"]
    assert sequences("--since", time, "--count", 2, "--subject", f"{filled}.a") == [6, 7]
    assert sequences("--since", "2036-03-01T12:00:00Z") == []
    some = do("stream", "get", filled, "--from", 1, "--json")
    assert [each["seq"] for each in some.json] == list(range(1, 11))
    assert some.err == "these are the first 10: --count N for more\n"
    assert do("stream", "get", filled, "--from", 3, "--json").err == ""
    nothing = do("stream", "get", filled, "--from", 99)
    assert (nothing.out, nothing.err) == ("", "there are no such messages\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "which message?"),
        (["1", "--last", "a"], "SEQUENCE and --last contradict each other"),
        (["--last", "a", "--next", "a"], "--last and --next contradict each other"),
        (["1", "--count", "2"], "SEQUENCE and --count contradict each other"),
        (["--since", "2026-03-01T12:00:00Z", "--from", "1"], "--since and --from contradict each other"),
        (["1", "--raw", "--json"], "--raw and --json contradict each other"),
        (["0"], "sequence must be a whole number from 1 on"),
        (["--from", "0"], "sequence must be a whole number from 1 on"),
        (["--next", "a", "--from", "0"], "sequence must be a whole number from 1 on"),
        (["--since", "yesterday"], "time must be a time such as"),
        (["--last", "a..b"], "subject must be a subject"),
        (["--next", ""], "subject must be a subject"),
        (["--since", ""], "time must be a time such as"),
    ],
)
def test_wrong_questions(options: list[str], said: str, run: Command, filled: str) -> None:
    ran = run("stream", "get", filled, *options)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_delete_msg(do: Command, run: Command, filled: str) -> None:
    assert run("stream", "delete-msg", filled, 1).code == 2
    said = do("stream", "delete-msg", filled, 1, "--force").out
    assert said == f"message 1 of stream {filled} was erased\n"
    said = do("stream", "delete-msg", filled, 2, "--no-erase", "--force", "--json").json
    assert said == {"stream": filled, "seq": 2, "erased": False}
    state = do("stream", "info", filled, "--json").json["state"]
    assert (state["messages"], state["first_seq"]) == (10, 3)
    ran = run("stream", "delete-msg", filled, 2, "--force")
    assert ran.code == 1
    assert f"cannot erase message 2 of stream {filled}: there is no such message" in ran.err
