"""``spark-jetstream lag`` on a real server: what it shows, and when it ends with 1."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator

import pytest

from spark_jetstream.admin import (
    DEFAULT_CONSUMER,
    ConsumerInfo,
    ConsumerLag,
    JetStreamAdmin,
    OriginLag,
)
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command
from tests.support.command import running
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until

GROUP = ("lag",)
SINCE_WHEN = "2026-03-01T12:00:00.123456789Z"


@pytest.fixture
def stream(
    name: str, admin: JetStreamAdmin, publisher: Publisher, query_consumer: Callable[..., None]
) -> str:
    """Six messages: ``done`` has all, ``half`` three with one not acknowledged, ``query`` is that
    of a Spark query.
    """
    admin.streams.create(name=name, subjects=[f"{name}.*"])
    publisher.publish(Message(f"{name}.{at % 2}", b"%d" % at) for at in range(6))
    for consumer in ("done", "half"):
        admin.consumers.create(name, DEFAULT_CONSUMER, durable_name=consumer)
    query_consumer(name, "query", metadata={RUN: "r", SINCE: SINCE_WHEN})
    admin.consumers.next(name, "done", 6)
    admin.consumers.next(name, "half", 2)
    admin.consumers.next(name, "half", ack="nak")
    admin.consumers.next(name, "half", ack="none")
    return name


def test_the_table_has_a_row_for_each_consumer(
    admin: JetStreamAdmin, stream: str, run: Command
) -> None:
    ran = run(stream)
    assert (ran.code, ran.err) == (0, "")
    headings, *rows = ran.rows
    assert " ".join(headings) == "stream consumer pending waiting for ack redelivered oldest"
    assert rows[0] == [stream, "done", "0", "0", "0"]
    assert rows[1][:5] == [stream, "half", "3", "1", "1"]
    assert rows[1][5].endswith("s")
    assert rows[2][:5] == [stream, "query", "6", "0", "0"]
    assert rows[2][6:] == ["Spark", "query", "since", SINCE_WHEN]
    admin.consumers.pause(stream, "half", "1h")
    assert run(stream, "--consumer", "half").rows[1][6:] == ["paused"]
    everywhere = [row[1] for row in run().rows if row[0] == stream]
    assert everywhere == ["done", "half", "query"]


def test_json_is_exact(admin: JetStreamAdmin, stream: str, run: Command) -> None:
    done, half, query = run(stream, "--json").json["consumers"]
    assert (done["age"], done["oldest"], done["spark_since"], done["exceeded"]) == (
        None,
        None,
        None,
        [],
    )
    assert 0 < half.pop("age") < 60
    counts = {"pending": 3, "ack_pending": 1, "redelivered": 1, "waiting": 0}
    rest = {
        "paused": False,
        "oldest": admin.messages.get(stream, 3).time,
        "spark_since": None,
        "exceeded": [],
    }
    assert half == {"stream": stream, "consumer": "half", **counts, **rest}
    assert query["spark_since"] == SINCE_WHEN


def test_an_exceeded_limit_ends_with_1_and_names_the_consumer(stream: str, run: Command) -> None:
    within = ["--max-pending", "6", "--max-ack-pending", "1", "--max-age", "1h"]
    assert (run(stream, *within).code, run(stream, *within).err) == (0, "")
    ran = run(stream, "--max-pending", 5)
    assert (ran.code, ran.err) == (
        1,
        f"consumer query of stream {stream}: 6 pending, more than 5\n",
    )
    assert len(ran.rows) == 4  # the table is there all the same
    ran = run(stream, "--max-ack-pending", 0)
    text = f"consumer half of stream {stream}: 1 waiting for their acknowledgement, more than 0\n"
    assert (ran.code, ran.err) == (1, text)
    ran = run(stream, "--max-age", "1ns", "--max-pending", 3, "--json")
    done, half, query = (item["exceeded"] for item in ran.json["consumers"])
    assert (ran.code, done, len(half), len(query)) == (1, [], 1, 2)
    assert re.fullmatch(r"its oldest message is \S+ old, more than 1ns", half[0])
    assert run(stream, "--max-pending", 0, "--consumer", "done").code == 0


def test_an_age_that_cannot_be_told_is_too_old(
    admin: JetStreamAdmin, stream: str, run: Command
) -> None:
    admin.consumers.create(
        stream,
        DEFAULT_CONSUMER,
        durable_name="last",
        deliver_policy="last_per_subject",
        filter_subject=">",
    )
    assert run(stream, "--consumer", "last").rows[1] == [stream, "last", "2", "0", "0", "unknown"]
    ran = run(stream, "--consumer", "last", "--max-age", "1h")
    text = f"consumer last of stream {stream}: the age of its oldest message cannot be told\n"
    assert (ran.code, ran.err) == (1, text)
    assert run(stream, "--consumer", "last", "--max-pending", 2).code == 0
    admin.consumers.next(stream, "last", 2)
    assert run(stream, "--consumer", "last", "--max-age", "1h").code == 0


def test_a_message_that_was_removed_meanwhile_is_no_alarm(
    admin: JetStreamAdmin, stream: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`half` gets all messages, and `gone` is deleted, before the request for the oldest message.

    The list of consumers is older than both changes.
    """
    before = [ConsumerLag(stream, name, 1, 0, 0, 0, paused=False) for name in ("gone", "half")]
    admin.consumers.next(stream, "half", 3)
    admin.consumers.reset(stream, "half", 7)

    now = JetStreamAdmin.lag

    def look(
        self: JetStreamAdmin, stream: str, consumer: str | None = None
    ) -> Iterator[ConsumerLag]:
        return iter(before) if consumer is None else now(self, stream, consumer)

    monkeypatch.setattr(JetStreamAdmin, "lag", look)
    ran = run(stream, "--max-age", "1h")
    assert (ran.code, ran.err) == (0, "")
    assert [row[1:3] for row in ran.rows[1:]] == [["half", "0"]]


def test_limits_hold_for_mirrors_and_sources_too(
    name: str, admin: JetStreamAdmin, stream: str, run: Command
) -> None:
    mirror, copy = f"{name}_MIRROR", f"{name}_COPY"
    admin.streams.create(name=mirror, mirror={"name": stream})

    wait_until(lambda: admin.streams.load(mirror).state.messages == 6, "the mirror copies")
    printed = run(mirror, "--origins", "--max-age", "1h", "--json")
    assert (printed.code, printed.json["consumers"]) == (0, [])
    (origin,) = printed.json["origins"]
    assert 0 <= origin.pop("active") < 60
    assert origin == {"stream": mirror, "origin": stream, "lag": 0, "error": "", "exceeded": []}
    ran = run(mirror, "--origins")
    assert ran.err == "there are no consumers\n"
    assert (ran.rows[-1][:3], ran.rows[-1][-1]) == ([mirror, stream, "0"], "ago")
    ran = run(mirror, "--origins", "--max-age", "1ns")
    assert ran.code == 1
    assert f"stream {mirror}, copying {stream}: the origin has sent nothing for " in ran.err
    # What cannot be reached exceeds any limit.
    admin.streams.create(name=copy, sources=[{"name": f"{name}_NOWHERE"}])

    wait_until(
        lambda: any(origin.error for origin in admin.streams.origins(copy)),
        "the server says what is wrong",
    )
    assert run(copy, "--origins").code == 0
    ran = run(copy, "--origins", "--max-pending", 0)
    assert (ran.code, ran.err.splitlines()[-1]) == (
        1,
        f"stream {copy}, copying {name}_NOWHERE: stream not found",
    )
    assert ran.rows[-1] == [copy, f"{name}_NOWHERE", "0", "never", "stream", "not", "found"]
    assert run(stream, "--origins").err == "there are no mirrors and sources\n"
    streams = {item["stream"] for item in run("--origins", "--json").json["origins"]}
    assert {mirror, copy} <= streams


def test_a_new_mirror_exceeds_no_limit_before_its_first_heartbeat(
    name: str, admin: JetStreamAdmin, stream: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first heartbeat comes a second after a mirror was created: until its age is reached that
    exceeds no limit.
    """
    mirror = f"{name}_MIRROR"
    admin.streams.create(name=mirror, mirror={"name": stream})
    silent = [OriginLag(item, stream, 0, None, "") for item in (mirror, f"{name}_GONE")]
    monkeypatch.setattr(JetStreamAdmin, "origin_lag", lambda self, stream=None: iter(silent))
    ran = run(mirror, "--origins", "--max-age", "1h")
    assert (ran.code, ran.err) == (0, "there are no consumers\n")
    assert ran.rows[-2][:4] == [mirror, stream, "0", "never"]
    ran = run(mirror, "--origins", "--max-age", "1ns")
    assert (ran.code, ran.err.splitlines()[1:]) == (
        1,
        [f"stream {mirror}, copying {stream}: the origin has never sent anything"],
    )


def test_watch_ends_when_a_limit_is_exceeded(stream: str, run: Command) -> None:
    ran = run(stream, "--watch", "--max-pending", 5, "--json")
    assert (ran.code, len(ran.objects)) == (1, 1)
    ran = run(stream, "--watch", "--max-pending", 5)
    assert (ran.code, len(ran.rows)) == (1, 5)


def test_watch_ends_when_the_server_goes_away(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory()
    short = ("--timeout", "2s", "-o", "retryTimeout=2s")
    with running("lag", "--watch", "--json", *short, "--server", server.url) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"consumers": []}
        server.stop()
        assert process.wait(60) == 3


def test_watch_goes_on_until_it_is_interrupted(
    stream: str, publisher: Publisher, nats_server: NatsServer
) -> None:
    line = ("lag", stream, "--watch", "--interval", "100ms", "--json", "--server", nats_server.url)
    with running(*line) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["consumers"][2]["pending"] == 6
        publisher.publish([Message(f"{stream}.0")])
        while json.loads(process.stdout.readline())["consumers"][2]["pending"] != 7:
            continue
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_stream_that_is_deleted_meanwhile_does_not_count(
    admin: JetStreamAdmin, stream: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.streams.create(f"{stream}0", subjects=["gone"])
    admin.consumers.create(f"{stream}0", "c", DEFAULT_CONSUMER)
    admin.publish("gone", b"")
    real = Consumers.infos

    def infos(self: Consumers, of: str | None = None) -> Iterator[ConsumerInfo]:
        for info in real(self, of):
            if info.stream_name == f"{stream}0":
                admin.streams.delete(f"{stream}0")
            yield info

    monkeypatch.setattr(Consumers, "infos", infos)
    ran = run("--max-age", "1d", "--max-pending", 1000)
    assert (ran.code, ran.err) == (0, "")
    assert {row[0] for row in ran.rows if row[0].startswith(stream)} == {stream}
