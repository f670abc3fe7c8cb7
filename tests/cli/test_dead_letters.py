"""``spark-jetstream dead-letters`` on a real server: what consumers gave up is kept, listed,
published again once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jetstream.admin import JetStreamAdmin
from tests.cli.conftest import Command, refused
from tests.support.publish import Message
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream

GROUP = ("dead-letters",)


@pytest.fixture
def s(stream: MakeStream, admin: JetStreamAdmin, do: Command) -> Iterator[Stream]:
    """A stream whose consumer has terminated messages 1 to 3 of 4, with `dead-letters keep` before."""
    made = stream(storage="memory")
    made.send(
        Message(f"{made.subject}.a", b"one", [("X", "1"), ("X", "2"), ("Nats-Msg-Id", "own")])
    )
    made.fill(3)
    kept = f"{made.name}_DEAD_LETTERS"
    done = do("keep", made.name, "--max-age", "1h", "--max-bytes", "64m", "--json").json
    assert done == {"stream": made.name, "kept": kept}
    config = admin.streams.load(kept).config
    assert (config.max_age, config.max_bytes) == (3600 * 10**9, 64 << 20)
    admin.consumers.create(made.name, durable_name="strict", ack_policy="explicit")
    for delivered in admin.consumers.next(made.name, "strict", 3, ack="none", no_wait=False):
        admin.consumers.term(delivered, reason="bad")
    wait_until(lambda: admin.streams.load(kept).state.messages == 3, "the advisories")
    yield made
    admin.streams.delete(kept)


def test_ls_prints_the_messages_that_consumers_gave_up(
    do: Command, run: Command, s: Stream, admin: JetStreamAdmin
) -> None:
    first, *others = do("ls", s.name).out.splitlines()
    assert len(others) == 2
    assert first.endswith(
        f"message 1 of stream {s.name} (first delivery to consumer strict) was refused for good: "
        "bad"
    )
    assert [each["stream_seq"] for each in do("ls", s.name, "--json").objects] == [1, 2, 3]
    for words in (("ls",), ("replay", "1")):
        wanted = "there is no stream X_DEAD_LETTERS: spark-jetstream dead-letters keep X makes it"
        refused(run(words[0], "X", *words[1:]), 1, wanted)
    refused(run("keep", s.name, "--max-age", "soon"), 2, "max_age")


def test_each_is_published_again_once(do: Command, s: Stream, admin: JetStreamAdmin) -> None:
    assert (
        do("replay", s.name, "1", "3", "1").out
        == f"stored 2 messages: stream {s.name}, sequences 5 to 6\n"
    )
    assert [
        do("replay", s.name, "3", "1", "--json").json[name] for name in ("messages", "duplicates")
    ] == [2, 2]
    again = admin.messages.get(s.name, 5)
    assert (again.subject, again.data, again.headers["X"]) == (f"{s.subject}.a", b"one", ["1", "2"])
    assert again.headers["Nats-Msg-Id"] == [f"dead-letter.{s.name}.1.{s.stored_time(1)}"]
    assert s.state()["messages"] == 6


def test_to_another_subject(
    do: Command, s: Stream, stream: MakeStream, admin: JetStreamAdmin
) -> None:
    other = stream(storage="memory")
    do("replay", s.name, "2", "--subject", f"{other.subject}.again")
    assert admin.messages.get(other.name, 1).data == s.messages[2].data
    assert s.state()["messages"] == 4


def test_all_or_nothing_is_published(run: Command, s: Stream) -> None:
    s.remove(2)
    refused(
        run("replay", s.name, "1", "2", "4"),
        1,
        f"of stream {s.name} these are gone or were not given up: 2, 4",
    )
    assert s.state()["messages"] == 3
