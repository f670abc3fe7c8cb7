"""``spark-jetstream consumer`` on a real server: what each command does, what is refused, and what
is wrong usage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import DEFAULT_CONSUMER, ConsumerConfig, JetStreamAdmin, differences
from spark_jetstream.admin.models.base import rendered
from spark_jetstream.protocol.conventions import RUN, SINCE
from tests.admin.configs import CONSUMERS
from tests.cli.conftest import Command, Start, refused, written
from tests.support.command import run_command
from tests.support.publish import Message, Publisher

GROUP = ("consumer",)
PINNED: dict[str, Any] = {"priority_policy": "pinned_client", "priority_groups": ["g"]}


@pytest.fixture
def stream(name: str, admin: JetStreamAdmin, publisher: Publisher) -> str:
    """A stream that takes ``NAME.*`` and ``c.>``, with the messages 0 to 5 at ``NAME.0`` and
    ``NAME.1`` in turn.
    """
    admin.streams.create(name=name, subjects=[f"{name}.*", "c.>"])
    publisher.publish(
        Message(f"{name}.{at % 2}", b"%d" % at, [("Number", str(at))]) for at in range(6)
    )
    return name


# -- looking --


def test_ls_shows_kind_filters_and_counts(admin: JetStreamAdmin, stream: str, do: Command) -> None:
    ran = do("ls", stream)
    assert (ran.out, ran.err) == ("", "there are no consumers\n")
    several = [f"{stream}.0", "c.x"]
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="a", filter_subjects=several)
    admin.consumers.create(stream, DEFAULT_CONSUMER, name="b", inactive_threshold="1h", **PINNED)
    admin.consumers.create(
        stream, durable_name="p", deliver_subject="to.me", deliver_group="workers"
    )
    admin.consumers.next(stream, "a", ack="none")
    ran = do("ls", stream)
    headings, *rows = ran.out.splitlines()
    assert (
        " ".join(headings.split())
        == "name kind filters ack pending waiting for ack redelivered created"
    )
    created = str(admin.consumers.load(stream, "a").created)[:19] + "Z"
    assert rows[0].split() == [
        "a",
        "pull,",
        "durable",
        f"{stream}.0,",
        "c.x",
        "explicit",
        "2",
        "1",
        "0",
        created,
    ]
    assert rows[1].split()[:7] == ["b", "pull,", "ephemeral", "explicit", "6", "0", "0"]
    assert rows[1].endswith("Z  pinned_client in group g")
    assert rows[2].split()[:7] == ["p", "push,", "durable", "none", "6", "0", "0"]
    assert rows[2].endswith("Z  delivers to to.me in queue group workers, which has no subscriber")
    assert [item["name"] for item in do("ls", stream, "--json").json] == ["a", "b", "p"]
    assert do("names", stream).out == "a\nb\np\n"


def test_handover_shows_where_a_query_begins(
    admin: JetStreamAdmin, stream: str, do: Command, run: Command
) -> None:
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="a")
    for delivery in admin.consumers.next(stream, "a", 4, ack="none"):
        if delivery.message.seq in (1, 2, 4):
            admin.consumers.ack(delivery)
    ran = do("handover", stream, "a")
    title, *lines = (" ".join(line.split()) for line in ran.out.splitlines())
    assert title == f"A query that takes over from consumer a of stream {stream}"
    time = admin.messages.get(stream, 3).time
    assert lines == [
        "begins at sequence 3",
        f"first message sequence 3, stored at {time}",
        "messages to read 4",
        "never delivered 2",
        "delivered, read again 2",
        "of these not acknowledged 1",
        "of these acknowledged 1",
        "ack floor 2",
        "last delivered 4",
        "ack policy explicit",
        "the consumer is not in use",
        "",
        f'.option("stream", "{stream}")',
        '.option("startingConsumer", "a")',
    ]
    data = do("handover", stream, "a", "--json").json
    assert data["options"] == {"stream": stream, "startingConsumer": "a"}
    assert (data["first_sequence"], data["first_time"], data["read_again"]) == (3, str(time), 2)
    admin.consumers.pause(stream, "a", "1h")
    assert re.search("the consumer is +paused", do("handover", stream, "a").out)
    refused(run("handover", stream, "b"), 1, f"look at consumer b of stream {stream}")


def test_find_lists_consumers_of_one_stream_or_all(
    admin: JetStreamAdmin, stream: str, do: Command
) -> None:
    admin.consumers.create(stream, "a", DEFAULT_CONSUMER, max_deliver=7)
    admin.consumers.create(stream, "b", DEFAULT_CONSUMER, deliver_subject="d")
    assert [row[:2] for row in do("find", stream, "--push", "--no-bound").rows] == [
        ["stream", "name"],
        [stream, "b"],
    ]
    assert [row[:2] for row in do("find", "--expression", "config.max_deliver == 7").rows[1:]] == [
        [stream, "a"]
    ]
    assert do("find", stream, "--durable", "--invert").err == "no consumer meets all criteria\n"


def test_info_shows_configuration_and_state(
    admin: JetStreamAdmin, stream: str, do: Command
) -> None:
    admin.consumers.create(
        stream,
        DEFAULT_CONSUMER,
        durable_name="c",
        ack_wait="90s",
        backoff=["90s", "3m"],
        metadata={"owner": "me"},
    )
    admin.consumers.next(stream, "c", 2)
    admin.consumers.next(stream, "c", ack="none")
    lines = [" ".join(row) for row in do("info", stream, "c").rows]
    assert lines[:2] == [f"Consumer c of stream {stream}", "kind pull, durable"]
    assert {"backoff 1m30s, 3m", "ack_policy explicit", "max_ack_pending 1,000"} <= {*lines}
    assert any(line.startswith("metadata ") and line.endswith("owner=me") for line in lines)
    state = lines[lines.index("State") :]
    assert state[1:5] == [
        "to be delivered 3",
        "waiting for ack 1",
        "redelivered 0",
        "pulls that wait 0",
    ]
    assert state[5].startswith("last delivered stream sequence 3, delivery 3, ")
    assert state[5].endswith(" ago")
    assert state[6].startswith("all acknowledged up to stream sequence 2, delivery 2, ")
    printed = do("info", stream, "c", "--json").json
    assert (printed["num_pending"], printed["config"]["backoff"]) == (3, [90 * 10**9, 180 * 10**9])


def test_info_shows_pins_pauses_and_queries(
    admin: JetStreamAdmin, stream: str, do: Command, query_consumer: Callable[..., None]
) -> None:
    def line(name: str, begin: str) -> str:
        lines = [" ".join(row) for row in do("info", stream, name).rows]
        (match,) = (line for line in lines if line.startswith(begin))
        return match.removeprefix(begin).strip()

    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="g", **PINNED)
    assert line("g", "priority groups") == "g: no client is pinned"
    admin.consumers.next(stream, "g", group="g")
    (group,) = admin.consumers.load(stream, "g").priority_groups
    assert (
        line("g", "priority groups")
        == f"g: pinned to {group.pinned_client_id} since {group.pinned_ts}"
    )
    since = "2026-03-01T12:00:00.123456789Z"
    query_consumer(stream, "q", metadata={RUN: "r", SINCE: since})
    assert line("q", "remarks") == f"Spark query since {since}"
    admin.consumers.pause(stream, "q", "100d")
    assert line("q", "remarks").startswith(f"Spark query since {since}; paused for ")
    assert line("q", "last delivered") == "nothing"


# -- creating --


@pytest.mark.parametrize("kind", CONSUMERS)
def test_add_has_an_option_for_every_field(
    kind: str, admin: JetStreamAdmin, stream: str, do: Command
) -> None:
    config = {"ack_policy": "explicit", **CONSUMERS[kind]}
    durable = config.pop("durable_name", "c") is not None
    # Without a threshold, one that exists just so is another one to the server.
    stay = [] if durable else ["--ephemeral", "--inactive-threshold", "1h"]
    line = (
        "add",
        stream,
        "c",
        *stay,
        *written(rendered(ConsumerConfig.parse(config, kind))),
        "--json",
    )
    added = do(*line).json
    name = {"durable_name": "c"} if durable else {"inactive_threshold": "1h"}
    wanted = ConsumerConfig.parse({**config, **name, "name": "c"}, "")
    info = admin.consumers.load(stream, "c")
    assert differences(wanted, info.config) == []
    assert (added["name"], added["created"]) == ("c", info.created)
    # Once more changes nothing.
    assert do(*line).json["created"] == info.created


def test_add_creates_durable_ephemeral_and_unnamed_consumers(
    admin: JetStreamAdmin, stream: str, do: Command, run: Command
) -> None:
    ran = do("add", stream, "c", "--filter-subject", "c.a")
    assert ran.out.startswith(
        f"consumer c of stream {stream} was created\nConsumer c of stream {stream}\n"
    )
    rows = {row[0]: " ".join(row[1:]) for row in ran.rows if row}
    assert (rows["max_deliver"], rows["num_replicas"]) == ("any number", "as the stream")
    config = admin.consumers.load(stream, "c").config
    assert (config.durable_name, config.ack_policy, config.filters) == ("c", "explicit", ("c.a",))
    unnamed = do("add", stream, "--inactive-threshold", "1h", "--json").json
    assert admin.consumers.load(stream, unnamed["name"]).config.durable_name == ""
    assert ran.err == ""
    again = do("add", stream, "c", "--filter-subject", "c.a")
    assert again.out == ran.out.partition("\n")[2]
    assert (again.err, ran.err) == (
        f"consumer c of stream {stream} already exists, unchanged\n",
        "",
    )
    refused(
        run("add", stream, "c", "--max-deliver", 3),
        1,
        'max_deliver: -1 -> 3; filter_subjects: ["c.a"] -> nothing',
    )
    done = do(
        "add",
        stream,
        "old",
        "--durable-form",
        "--filter-subject",
        "c.a",
        "--max-deliver",
        3,
        "--json",
    ).json
    assert (done["config"]["durable_name"], done["config"]["max_deliver"]) == ("old", 3)


def test_options_win_over_the_file_of_add(
    admin: JetStreamAdmin, stream: str, tmp_path: Path, do: Command, run: Command
) -> None:
    file = tmp_path / "consumer.yaml"
    file.write_text(
        "durable_name: filed\nack_policy: all\nfilter_subject: c.a\nmax_deliver: 3\nack_wait: 1m\n"
    )
    do("add", stream, "--config", file, "--ack-wait", "2m", "--filter-subjects", "c.b,c.c")
    config = admin.consumers.load(stream, "filed").config
    assert (config.ack_policy, config.max_deliver, config.ack_wait) == ("all", 3, 120 * 10**9)
    assert config.filters == ("c.b", "c.c")
    file.write_text("durable_name: short\n")
    do("add", stream, "--config", file, "--ephemeral")
    config = admin.consumers.load(stream, "short").config
    assert (config.durable_name, config.ack_policy) == ("", "explicit")


def test_filters_that_match_nothing_need_any_filter(stream: str, do: Command, run: Command) -> None:
    do("add", stream, "there", "--filter-subject", "c.a")
    outside = ["--filter-subject", "d.a"]
    for arguments in (
        ["add", stream, "c"],
        ["copy", stream, "there", "d"],
        ["edit", stream, "there", "--force"],
    ):
        ran = run(*arguments, *outside)
        assert (ran.code, "--any-filter" in ran.err) == (2, True)
        assert f'"d.a" matches nothing that the stream stores ({stream}.*, c.>)' in ran.err
        do(*arguments, *outside, "--any-filter")
    infos = [do("info", stream, name, "--json").json for name in ("c", "d", "there")]
    assert {info["config"]["filter_subject"] for info in infos} == {"d.a"}


# -- changing --


def test_edit_changes_what_the_line_and_the_file_name(
    admin: JetStreamAdmin, stream: str, tmp_path: Path, do: Command, run: Command
) -> None:
    admin.consumers.create(
        stream, DEFAULT_CONSUMER, durable_name="c", max_deliver=5, filter_subject="c.a"
    )
    arguments = (
        "edit",
        stream,
        "c",
        "--ack-wait",
        "10s",
        "--unset",
        "max_deliver",
        "--filter-subjects",
        "c.b,c.c",
    )
    ran = do(*arguments, "--dry-run")
    assert [line.strip() for line in ran.out.splitlines()] == [
        *(
            "ack_wait: 30s -> 10s",
            "max_deliver: 5 -> -1",
            'filter_subjects: ["c.a"] -> ["c.b", "c.c"]',
        ),
        f"consumer c of stream {stream} would be changed",
    ]
    assert run(*arguments).code == 2  # nobody is there to answer
    done = do(*arguments, "--force", "--json").json
    assert (done["stream"], done["consumer"], done["changed"]) == (stream, "c", True)
    assert done["differences"][0] == {"field": "ack_wait", "actual": 30 * 10**9, "wanted": 10**10}
    file = tmp_path / "changes.json"
    file.write_text(
        json.dumps({"filter_subject": "c.d", "metadata": {"owner": "me"}, "ack_wait": "1m"})
    )
    do("edit", stream, "c", "--config", file, "--ack-wait", "10s", "--force")
    config = admin.consumers.load(stream, "c").config
    assert (config.filters, config.own_metadata, config.ack_wait) == (
        ("c.d",),
        {"owner": "me"},
        10**10,
    )
    assert (config.durable_name, config.ack_policy, config.max_deliver) == ("c", "explicit", -1)


def test_copy_keeps_the_configuration_but_no_position(
    admin: JetStreamAdmin, stream: str, do: Command, query_consumer: Callable[..., None]
) -> None:
    metadata = {RUN: "r", SINCE: "2026-03-01T12:00:00Z", "owner": "me"}
    query_consumer(stream, "c", max_deliver=5, metadata=metadata)
    admin.consumers.reset(stream, "c", 3)
    copied = do(
        "copy",
        stream,
        "c",
        "d",
        "--filter-subjects",
        f"{stream}.1,c.x",
        "--unset",
        "max_deliver",
        "--json",
    )
    assert (copied.json["name"], copied.json["num_pending"]) == ("d", 3)
    config = admin.consumers.load(stream, "d").config
    assert (config.durable_name, config.max_deliver, config.filters) == (
        "d",
        -1,
        (f"{stream}.1", "c.x"),
    )
    # No query keeps its position there.
    assert {key for key in config.metadata if not key.startswith("_nats.")} == {"owner"}


def test_rm_asks_with_what_is_lost(
    admin: JetStreamAdmin,
    stream: str,
    do: Command,
    run: Command,
    query_consumer: Callable[..., None],
) -> None:
    for name in "ab":
        admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name=name)
    assert do("rm", stream, "a", "--force").out == f"consumer a of stream {stream} was deleted\n"
    assert do("rm", stream, "b", "-f", "--json").json == {
        "stream": stream,
        "consumer": "b",
        "deleted": True,
    }
    assert list(admin.consumers.names(stream)) == []
    query_consumer(stream, "q", metadata={RUN: "r"})
    refused(run("rm", stream, "q"), 2, "by which a Spark query keeps its position?")


def test_messages_of_a_spark_query_are_not_taken_from_it(
    admin: JetStreamAdmin, stream: str, run: Command, query_consumer: Callable[..., None]
) -> None:
    query_consumer(stream, "q", metadata={RUN: "r"})
    for options in ((), ("--no-ack",)):
        refused(
            run("next", stream, "q", *options),
            1,
            f"position by consumer q of stream {stream} (option durable)",
        )
    refused(run("reset", stream, "q"), 2, "A Spark query keeps its position by it, and will end.")
    assert admin.consumers.load(stream, "q").delivered.consumer_seq == 0


# -- using --


def test_pause_and_resume(admin: JetStreamAdmin, stream: str, do: Command, run: Command) -> None:
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    # It is what is left of ten minutes, and the request may take a moment.
    assert re.search(r", for (10m|9m5\ds)\n$", do("pause", stream, "c", "10m").out)
    assert 590 * 10**9 < admin.consumers.load(stream, "c").pause_remaining <= 600 * 10**9
    reply = do("pause", stream, "c", "2036-01-01T00:00:00.5Z", "--json").json
    assert (reply["paused"], reply["pause_until"]) == (True, "2036-01-01T00:00:00.5Z")
    assert " paused for " in do("ls", stream).out
    refused(run("next", stream, "c"), 1, f"consumer c of stream {stream} is paused for ")
    assert do("resume", stream, "c").out == f"consumer c of stream {stream} delivers\n"
    assert do("resume", stream, "c", "--json").json.get("paused", False) is False


def test_reset_moves_the_position(
    admin: JetStreamAdmin, stream: str, do: Command, run: Command
) -> None:
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    admin.consumers.next(stream, "c", 2)
    admin.consumers.next(stream, "c", 2, ack="none")
    refused(run("reset", stream, "c"), 2, "The last message that it delivered is 4.", "--force")
    assert admin.consumers.load(stream, "c").num_ack_pending == 2
    text = f"consumer c of stream {stream} goes on at sequence 3, with 4 to deliver\n"
    assert do("reset", stream, "c", "--force").out == text
    reply = do("reset", stream, "c", "--sequence", 6, "--force", "--json").json
    assert (reply["reset_seq"], reply["num_pending"]) == (6, 1)


def test_next_prints_and_acknowledges(
    admin: JetStreamAdmin, stream: str, do: Command, run: Command
) -> None:
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c")
    ran = do("next", stream, "c")
    time = admin.messages.get(stream, 1).time
    assert ran.out == f"1 {stream}.0 {time}, 5 to come\nNumber: 0\n\n0\n\n"
    printed = do("next", stream, "c", "--count", 2, "--no-ack", "--json").json
    assert [
        (item["seq"], item["data"], item["headers"], item["deliveries"]) for item in printed
    ] == [
        (2, "1", {"Number": ["1"]}, 1),
        (3, "2", {"Number": ["2"]}, 1),
    ]
    assert admin.consumers.load(stream, "c").num_ack_pending == 2
    assert do("next", stream, "c", "--ack", "nak", "--raw").raw == b"3"
    assert ", delivered 2 times, " in do("next", stream, "c", "--ack", "term").out
    assert do("next", stream, "c", "--count", 100, "--raw").raw == b"45"
    ran = run("next", stream, "c", "--wait", "100ms")
    refused(ran, 1, f"consumer c of stream {stream} delivered no message within 100ms")


def test_next_asks_and_answers_as_its_options_say(
    admin: JetStreamAdmin, stream: str, do: Command, run: Command
) -> None:
    admin.consumers.create(stream, DEFAULT_CONSUMER, durable_name="c", max_deliver=2)
    with admin.events.watch("terminated", stream=stream, count=1) as events:
        assert do("next", stream, "c", "--ack", "nak", "--delay", "1h", "--raw").raw == b"0"
        assert do("next", stream, "c", "--ack", "term", "--reason", "too old", "--raw").raw == b"1"
        assert [event.reason for event in events] == ["too old"]  # type: ignore[union-attr]
    assert (
        do("next", stream, "c", "--no-wait", "--count", 9, "--max-bytes", "200", "--raw").raw
        == b"23"
    )
    refused(
        run("next", stream, "c", "--max-bytes", "10"),
        1,
        "the next message is larger than max_bytes",
    )
    refused(run("next", stream, "c", "--delay", "1s"), 2, "--delay is for --ack nak")
    refused(
        run("next", stream, "c", "--ack", "nak", "--reason", "x"), 2, "--reason is for --ack term"
    )
    for policy, options in (
        ("overflow", ("--min-pending", 6)),
        ("overflow", ("--min-ack-pending", 1)),
        ("prioritized", ("--priority", 3)),
    ):
        groups: dict[str, Any] = {"priority_policy": policy, "priority_groups": ["g"]}
        admin.consumers.load_or_create(stream, policy, DEFAULT_CONSUMER, **groups)
        item = ("next", stream, policy, "--group", "g", *options, "--no-ack", "--raw")
        assert do(*item).raw == (b"1" if "--min-ack-pending" in options else b"0")


def test_next_settles_what_is_printed(nats_server_factory: Start) -> None:
    denied = 'permissions: { publish: { deny: ["$JS.ACK.S.c.*.2.>"] } }'
    users = f"users: [{{ user: u, password: p, {denied} }}]"
    url = nats_server_factory(
        config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}"
    ).url.replace("//", "//u:p@")
    with JetStreamAdmin(servers=url) as admin:
        admin.streams.create("S", subjects="s")
        admin.consumers.create("S", "c", DEFAULT_CONSUMER, ack_wait="1h")
        for number in range(3):
            admin.publish("s", b"%d" % number)
        ran = run_command("consumer", "next", "S", "c", "--count", 3, "--raw", url=url)
        assert (ran.code, ran.raw) == (1, b"012")
        assert "acknowledge message 2 of stream S" in ran.err
        assert admin.consumers.load("S", "c").ack_floor.stream_seq == 1


def test_unpin_lets_another_client_in(admin: JetStreamAdmin, stream: str, do: Command) -> None:
    admin.consumers.create(
        stream, DEFAULT_CONSUMER, durable_name="c", **PINNED, priority_timeout="1h"
    )
    assert do("next", stream, "c", "--group", "g", "--raw").raw == b"0"
    ran = do("unpin", stream, "c", "g")
    assert ran.out == f"group g of consumer c of stream {stream} has no pinned client any more\n"
    assert do("next", stream, "c", "--group", "g", "--raw").raw == b"1"
    assert do("unpin", stream, "c", "g", "--json").json == {
        "stream": stream,
        "consumer": "c",
        "group": "g",
    }
