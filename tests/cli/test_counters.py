"""``spark-jetstream counter`` on a real server."""

from __future__ import annotations

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, refused
from tests.support.command import succeed

GROUP = ("counter",)


@pytest.fixture
def counts(name: str, admin: JetStreamAdmin) -> str:
    """A stream with two counters, by its subject."""
    subject = name.lower()
    admin.streams.create(
        name=name, subjects=[f"{subject}.>"], storage="memory", allow_msg_counter=True
    )
    for suffix, value in (("a", 5), ("b", 10**20), ("a", -2)):
        admin.counters.increment(f"{subject}.{suffix}", value)
    return subject


def test_values_are_read(do: Command, run: Command, counts: str, name: str) -> None:
    assert do("get", f"{counts}.a").out == "3\n"
    printed = do("get", f"{counts}.b", "--stream", name, "--json").json
    assert printed.pop("time")
    one = {"stream": name, "subject": f"{counts}.b", "seq": 2, "value": "1" + "0" * 20}
    assert printed == {**one, "incr": "1" + "0" * 20, "sources": {}}
    refused(run("get", f"{counts}.c"), 1, f"cannot get the last {counts}.c of stream {name}")
    refused(run("get", "nowhere.a"), 2, "stream: name the stream, for no stream captures nowhere.a")


def test_counters_are_listed(do: Command, counts: str, name: str) -> None:
    heading, *rows = do("ls", "--stream", name).rows
    assert heading == ["subject", "value", "increment", "changed"]
    assert [row[:3] for row in rows] == [
        [f"{counts}.b", "1" + "0" * 20, "1" + "0" * 20],
        [f"{counts}.a", "3", "-2"],
    ]
    assert [each["value"] for each in do("list", f"{counts}.a", "--json").json] == ["3"]
    nothing = do("ls", f"{counts}.c")
    assert (nothing.out, nothing.err) == ("", "no counters found\n")


def test_counters_are_added_to(
    do: Command, run: Command, counts: str, name: str, nats_server: NatsServer
) -> None:
    assert do("incr", f"{counts}.a").out == "4\n"
    assert do("increment", f"{counts}.a", "+6", "--stream", name).out == "10\n"
    printed = succeed(
        "--server", nats_server.url, "counter", "incr", "--json", "--", f"{counts}.a", "-10"
    ).json
    assert printed == {"stream": name, "subject": f"{counts}.a", "seq": 6, "value": "0"}
    refused(run("incr", f"{counts}.a", "x"), 2, 'value must be an integer, not "x"')
