"""``spark-jetstream stream`` on a real server: what each command prints and does.

`test_usage` has what is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, StreamConfig, differences, rendered
from spark_jetstream.errors import ServerBusy
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.configs import STREAMS
from tests.cli.conftest import Command, Start, refused, written
from tests.support.client import ask, stored
from tests.support.command import Ran, on_terminal, run_command, succeed
from tests.support.fake_jetstream import FakeJetStream
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until

BINARY = b"\xff\x00\x1b[31m"


@pytest.fixture
def filled(do: Command, publisher: Publisher, name: str) -> str:
    """A stream of twelve messages at three subjects; 2 is binary, and 3 has headers and control
    characters.
    """
    do(
        "stream",
        "add",
        name,
        "--subjects",
        f"{name}.>",
        "--max-age",
        "1h",
        "--metadata",
        "owner=me",
    )
    odd = {
        2: Message(f"{name}.b", BINARY),
        3: Message(f"{name}.c", "grün\x1b[31m".encode(), [("N", "1"), ("N", "2"), ("Other", "ä")]),
    }
    publisher.publish(
        odd.get(number, Message(f"{name}.a", b"%d" % number)) for number in range(1, 13)
    )
    return name


def config(do: Command, stream: str) -> dict[str, Any]:
    printed: dict[str, Any] = do("stream", "info", stream, "--json").json["config"]
    return printed


# -- look --


def test_ls_and_names_show_the_streams_of_a_subject(do: Command, filled: str) -> None:
    do(
        "stream",
        "add",
        f"{filled}B",
        "--subjects",
        f"{filled}b",
        "--storage",
        "memory",
        "--retention",
        "interest",
    )
    table = do("stream", "ls").rows
    assert table[0] == [
        "name",
        "storage",
        "retention",
        "messages",
        "size",
        "consumers",
        "last",
        "message",
    ]
    rows = {row[0]: row[1:] for row in table[1:]}
    [entry] = do("stream", "ls", "--subject", f"{filled}.0", "--json").json
    state = entry["state"]
    time = state["last_ts"].partition(".")[0] + "Z"
    assert rows[filled] == ["file", "limits", "12", f"{state['bytes']}B", "0", time]
    assert rows[f"{filled}B"] == ["memory", "interest", "0", "0B", "0"]
    assert list(rows) == sorted(rows)
    nothing = do("stream", "ls", "--subject", f"{filled}nowhere")
    assert (nothing.out, nothing.err) == ("", f"no stream stores {filled}nowhere\n")
    assert filled in do("stream", "names").out.splitlines()
    assert do("stream", "names", "--subject", f"{filled}.*", "--json").json == [filled]


def test_ls_of_some_servers_shows_them_and_ends_with_1(
    run: Command,
) -> None:
    """A server of the cluster did not answer: what is there is shown, and it is no success."""
    state = {"messages": 1, "bytes": 2, "first_seq": 1, "last_seq": 1}
    stream = {"config": {"name": "A"}, "created": "2026-01-01T00:00:00Z", "state": state}
    part = {"total": 2, "offset": 0, "limit": 256, "streams": [stream], "missing": ["B"]}
    with FakeJetStream({"STREAM.LIST": part}) as fake:
        ran = run("stream", "ls", url=fake.url)
        assert (ran.code, ran.rows[1][:4]) == (1, ["A", "file", "limits", "1"])
        assert "no server answered for B" in ran.err
        fake.replies = {"STREAM.LIST": {**part, "streams": []}}
        ran = run("stream", "ls", "--json", url=fake.url)
        assert (ran.code, ran.out) == (1, "")


def test_find_lists_the_streams_that_meet_all_criteria(
    do: Command, run: Command, filled: str
) -> None:
    do("stream", "add", f"{filled}B", "--subjects", f"{filled}b", "--max-consumers", 7)
    named = ("--expression", "config.max_consumers == 7")
    for line in (
        ("find", "--empty", *named),
        ("stream", "query", "--subject", f"{filled}b", "--no-mirrored", *named),
    ):
        ran = do(*line)
        assert [row[0] for row in ran.rows] == ["name", f"{filled}B"]
    assert [info["config"]["name"] for info in do("find", *named, "--json").json] == [f"{filled}B"]
    nothing = do("find", *named, "--no-empty")
    assert (nothing.out, nothing.err) == ("", "no stream meets all criteria\n")
    refused(
        run("find", "--expression", "messages > 1"),
        2,
        "expression",
        "name 'messages' is not defined",
    )
    refused(run("find", "--idle", "yesterday"), 2, "find streams: idle must be a duration")


def test_info_shows_the_fields_that_matter(
    do: Command, nats_server: NatsServer, filled: str
) -> None:
    configuration, _, state = do("stream", "info", filled).out.partition("State\n")
    pairs = {row[0]: row[1:] for row in map(str.split, configuration.splitlines()) if row}
    held = {row[0]: row[1:] for row in map(str.split, state.splitlines())}
    assert pairs["Stream"] == [filled]
    assert (pairs["max_age"], pairs["subjects"], pairs["metadata"]) == (
        ["1h"],
        [f"{filled}.>"],
        ["owner=me"],
    )
    assert (held["messages"], held["subjects"], held["last"][:2]) == (
        ["12"],
        ["3"],
        ["sequence", "12,"],
    )
    # What people look for is shown in any case, other fields if they are not the default.
    assert [pairs[name] for name in ("retention", "num_replicas", "max_msgs")] == [
        ["limits"],
        ["1"],
        ["no", "limit"],
    ]
    assert not {"allow_direct", "sealed", "compression", "no_ack"} & pairs.keys()
    whole = do("stream", "info", filled, "--json").json
    theirs = ask(
        nats_server.url, lambda js: js._api_request(f"$JS.API.STREAM.INFO.{filled}", b"", timeout=5)
    )
    volatile = dict.fromkeys(("type", "ts", "total", "offset", "limit"))
    assert {**whole, **volatile} == {**theirs, **volatile}
    rows = [
        ["subject", "messages"],
        [f"{filled}.a", "10"],
        [f"{filled}.b", "1"],
        [f"{filled}.c", "1"],
    ]
    assert do("stream", "subjects", filled).rows == rows
    assert do("stream", "subjects", filled, f"{filled}.b", "--json").json == [
        {"subject": f"{filled}.b", "messages": 1}
    ]
    nothing = do("stream", "subjects", filled, "nowhere")
    assert (nothing.out, nothing.err) == ("", f"stream {filled} has no messages on nowhere\n")


def test_info_shows_what_a_stream_copies(do: Command, filled: str, nats_server: NatsServer) -> None:
    do("stream", "add", f"{filled}M", "--mirror", filled)
    do("stream", "add", f"{filled}S", "--sources", f"{filled},{filled}nowhere")
    wait_until(lambda: stored(nats_server.url, f"{filled}M") == 12, "the mirror has all")
    wait_until(lambda: stored(nats_server.url, f"{filled}S") == 12, "the sources are copied")
    rows = do("stream", "info", f"{filled}M").rows
    at = rows.index(["mirror", "of", "lag", "last", "sign"])
    assert rows[at + 1][:2] == [filled, "0"]
    rows = do("stream", "info", f"{filled}S").rows
    at = next(index for index, row in enumerate(rows) if row[:1] == ["source"])
    assert [row[:1] for row in rows[at + 1 :]] == [[filled], [f"{filled}nowhere"]]
    assert "never" in rows[at + 2]


# -- messages --


def test_get_prints_a_message(do: Command, nats_server: NatsServer, filled: str) -> None:
    whole = do("stream", "get", filled, 3, "--json").json
    other = ask(nats_server.url, lambda js: js.get_msg(filled, 3))
    assert (whole["subject"], whole["seq"], whole["data"].encode()) == (
        other.subject,
        other.seq,
        other.data,
    )
    assert (whole["headers"], whole["encoding"]) == ({"N": ["1", "2"], "Other": ["ä"]}, "utf-8")
    text = do("stream", "get", filled, 3).out.splitlines()
    # A terminal does not obey what is in a message.
    assert text == [
        f"3 {filled}.c {whole['time']}",
        "N: 1",
        "N: 2",
        "Other: ä",
        "",
        "grün\\x1b[31m",
        "",
    ]
    whole = do("stream", "get", filled, 2, "--json").json
    assert (whole["data"], whole["encoding"]) == ("/wAbWzMxbQ==", "base64")
    assert "(7 bytes that are not text)" in do("stream", "get", filled, 2).out
    assert do("stream", "get", filled, 2, "--raw").raw == BINARY


def test_get_prints_several_messages(do: Command, filled: str) -> None:
    def sequences(*options: object) -> list[int]:
        return [entry["seq"] for entry in do("stream", "get", filled, *options, "--json").json]

    assert do("stream", "get", filled, "--from", 10, "--raw").raw == b"101112"
    assert sequences("--from", 11) == [11, 12]
    assert sequences("--subject", f"{filled}.a", "--count", 3) == [1, 4, 5]
    assert sequences("--count", 1) == [1]
    time = do("stream", "get", filled, 6, "--json").json["time"]
    assert sequences("--since", time, "--count", 2, "--subject", f"{filled}.a") == [6, 7]
    some = do("stream", "get", filled, "--from", 1, "--json")
    assert [item["seq"] for item in some.json] == list(range(1, 11))
    assert some.err == "these are the first 10: --count N for more\n"
    assert do("stream", "get", filled, "--from", 3, "--json").err == ""
    nothing = do("stream", "get", filled, "--from", 99)
    assert (nothing.out, nothing.err) == ("", "no messages found\n")
    subject = f"{filled}.a"
    chosen = {
        ("--last", subject): 12,
        ("--next", subject): 1,
        ("--next", subject, "--from", 2): 4,
        (5, "--direct"): 5,
    }
    for options, sequence in chosen.items():
        assert do("stream", "get", filled, *options, "--json").json["seq"] == sequence


def test_view_prints_all_messages_and_pages_on_a_terminal(
    do: Command, nats_server: NatsServer, filled: str
) -> None:
    get = do("stream", "get", filled, "--count", 12)
    assert do("stream", "view", filled, 5).out == get.out
    lines = do("stream", "view", filled, "--from", 2, "--subject", f"{filled}.*", "--json").objects
    assert lines == do("stream", "get", filled, "--from", 2, "--count", 12, "--json").json
    time = lines[8]["time"]
    assert do("stream", "view", filled, "--since", time, "--raw").raw == b"101112"
    assert do("stream", "view", filled, "--subject", "nowhere").err == "no messages found\n"
    line = ("stream", "view", filled, 5, "--subject", f"{filled}.a", "--server", nats_server.url)
    for answer, shown in {"n": 5, "": 10}.items():  # a page more, which is the last one
        seen = on_terminal(*line, question="Next page?", answer=answer)
        assert (seen.code, seen.text.count(f"{filled}.a"), seen.text.count("Next page?")) == (
            0,
            shown,
            1,
        )


def test_delete_msg_purge_and_rm_say_what_they_removed(
    do: Command, run: Command, nats_server: NatsServer, filled: str
) -> None:
    output = do("stream", "delete-msg", filled, 1, "--force").out
    assert output == f"message 1 of stream {filled} was erased\n"
    output = do("stream", "delete-msg", filled, 2, "--no-erase", "--force", "--json").json
    assert output == {"stream": filled, "seq": 2, "erased": False}
    state = do("stream", "info", filled, "--json").json["state"]
    assert (state["messages"], state["first_seq"]) == (10, 3)
    output = do("stream", "purge", filled, "--subject", f"{filled}.a", "--keep", 6, "--force").out
    assert output == f"3 messages of stream {filled} were removed\n"
    output = do("stream", "purge", filled, "--sequence", 9, "--force", "--json").json
    assert output == {"stream": filled, "purged": 3}
    assert stored(nats_server.url, filled) == 4
    assert do("stream", "rm", filled, "--force", "--json").json == {
        "stream": filled,
        "deleted": True,
    }
    assert run("stream", "info", filled).code == 1


def test_several_streams_are_deleted_in_turn_up_to_one_that_does_not_exist(
    do: Command, run: Command, name: str
) -> None:
    for stream in ("a", "b", "d"):
        do("stream", "add", f"{name}-{stream}", "--subjects", f"{name}.{stream}")
    named = [f"{name}-{stream}" for stream in "abcd"]
    ran = run("stream", "rm", *named, "--force")
    assert (ran.code, "stream not found" in ran.err) == (1, True)
    assert ran.out == f"stream {named[0]} was deleted\nstream {named[1]} was deleted\n"
    assert [run("stream", "info", stream).code for stream in named] == [1, 1, 1, 0]
    do("stream", "add", named[0], "--subjects", f"{name}.a")
    removed = [{"stream": stream, "deleted": True} for stream in (named[0], named[3])]
    assert do("stream", "rm", named[0], named[3], "--force", "--json").objects == removed


def test_the_error_of_overlapping_subjects_names_the_other_streams(
    do: Command, run: Command, name: str
) -> None:
    do("stream", "add", f"{name}-a", "--subjects", f"{name}.a")
    do("stream", "add", f"{name}-b", "--subjects", f"{name}.b.>")
    do("stream", "add", f"{name}-c", "--subjects", f"{name}.c")
    said = (
        f"subjects overlap with an existing stream (code 400, error 10065): {name}-a and {name}-b "
        "have overlapping subjects"
    )
    refused(
        run("stream", "add", f"{name}-d", "--subjects", f"{name}.a,{name}.*.x"),
        1,
        f"create stream {name}-d: {said}",
    )
    ran = run("stream", "edit", f"{name}-c", "--subjects", f"{name}.>", "--force")
    assert (ran.code, f"update stream {name}-c: {said}" in ran.err) == (1, True), ran.err


# -- create and change --


def test_add_and_copy_create_or_leave_unchanged(do: Command, run: Command, name: str) -> None:
    line = ("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "30s")
    assert do(*line).out == f"stream {name} was created; it stores {name}.>\n"
    made = config(do, name)
    # A plain stream is what it begins with.
    assert (made["max_age"], made["allow_direct"], made["discard"]) == (30 * 10**9, True, "old")
    assert do(*line).out == f"stream {name} already exists, unchanged; it stores {name}.>\n"
    again = do(*line, "--json").json
    assert (again["config"], again["did_create"]) == (made, False)
    ran = run("stream", "add", name, "--subjects", f"{name}.>", "--max-age", "1h", "--deny-delete")
    differing = "; there -> asked for: max_age: 30s -> 1h; deny_delete: false -> true\n"
    refused(ran, 1, f"cannot create stream {name}: stream name already in use", differing)
    copy = ("stream", "copy", name, f"{name}B", "--subjects", f"{name}b", "--unset", "max_age")
    made = do(*copy, "--json").json
    assert (made["did_create"], made["config"]["subjects"], made["config"]["max_age"]) == (
        True,
        [f"{name}b"],
        0,
    )
    assert do(*copy).out.startswith(f"stream {name}B already exists, unchanged; ")
    do("stream", "copy", name, f"{name}C", "--mirror", name, "--unset", "subjects")
    assert config(do, f"{name}C")["mirror"] == {"name": name}


def test_a_stream_that_may_not_be_looked_at_counts_as_there(
    nats_server_factory: Start, no_connection_left: None
) -> None:
    """The server gives the same answer for a stream that it creates and for one that exists."""
    may = '{ publish: "$JS.API.STREAM.CREATE.>", subscribe: "_INBOX.>" }'
    server = nats_server_factory(
        config=f"authorization {{ users: [{{ user: a, password: p, permissions: {may} }}] }}"
    )
    for _ in range(2):
        ran = succeed("stream", "add", "S", "--user", "a", "--password", "p", url=server.url)
        assert ran.out == "stream S exists; it stores S\n"


def test_options_win_over_files_and_these_over_templates(
    do: Command, name: str, tmp_path: Path
) -> None:
    do("stream", "add", f"{name}A", "--template", "work-queue", "--max-msgs", 10)
    queue = config(do, f"{name}A")
    assert (queue["retention"], queue["discard"], queue["max_msgs"]) == ("workqueue", "new", 10)
    team, own = tmp_path / "team.yaml", tmp_path / "own.json"
    team.write_text("max_age: 30d\nmax_msgs: 5\nmetadata: {team: data}\n")
    own.write_text(
        json.dumps(
            {"name": "SOMETHING", "max_msgs": 6, "max_bytes": "1m", "description": "from the file"}
        )
    )
    do(
        "stream",
        "add",
        f"{name}B",
        "--template",
        team,
        "--config",
        own,
        "--description",
        "from the line",
    )
    made = config(do, f"{name}B")
    assert (made["max_age"], made["max_msgs"], made["max_bytes"]) == (30 * 86400 * 10**9, 6, 2**20)
    assert (made["description"], made["metadata"]["team"]) == ("from the line", "data")
    assert (made["allow_direct"], made["name"]) == (True, f"{name}B")


def test_edit_shows_risks_asks_and_changes(
    do: Command, run: Command, name: str, tmp_path: Path
) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>", "--metadata", "owner=me", "--max-msgs", 5)
    edit = ("stream", "edit", name, "--max-age", "1h", "--deny-delete")
    lines = [
        "    max_age: 0s -> 1h (risk: messages beyond it are deleted at once)",
        "    deny_delete: false -> true (risk: it cannot be taken back)",
    ]
    assert do(*edit, "--dry-run").out.splitlines() == [*lines, f"stream {name} would be changed"]
    ran = run(*edit)  # nobody is there to answer
    assert (ran.code, ran.out.splitlines(), "--force" in ran.err) == (2, lines, True)
    assert config(do, name)["max_age"] == 0
    assert do(*edit, "--force").out.splitlines() == [*lines, f"stream {name} was changed"]
    assert do(*edit).out == f"stream {name}: nothing to change\n"
    # One part that cannot be, and nothing is done.
    refusal = ("stream", "edit", name, "--max-age", "2h", "--no-deny-delete", "--force")
    ran = run(*refusal)
    assert ran.code == 1
    assert "    deny_delete: true -> false (refused: it cannot be taken back)\n" in ran.out
    assert ran.out.endswith(f"stream {name} cannot be changed so, and stays as it is\n")
    ran = run(*refusal, "--json")
    assert (ran.code, ran.json["changed"]) == (1, False)
    refused = {item["field"]: item.get("refused") for item in ran.json["differences"]}
    assert refused == {"max_age": None, "deny_delete": "it cannot be taken back"}
    assert config(do, name)["max_age"] == 3600 * 10**9
    file = tmp_path / "changes.json"
    file.write_text('{"max_bytes": 7, "max_consumers": 9}')
    unset = ("--unset", "max-msgs,metadata", "--unset", "max_age")
    changed = do(
        "stream", "edit", name, "--config", file, "--max-bytes", "1k", *unset, "--force", "--json"
    ).json
    assert (changed["stream"], changed["changed"]) == (name, True)
    risk = "messages beyond it are deleted at once"
    assert {"field": "max_bytes", "actual": -1, "wanted": 1024, "risk": risk} in changed[
        "differences"
    ]
    now = config(do, name)
    assert (now["max_msgs"], now["max_age"], "owner" in now["metadata"]) == (-1, 0, False)
    assert (now["max_bytes"], now["max_consumers"]) == (1024, 9)


def test_pedantic_requests_are_refused(do: Command, run: Command, name: str) -> None:
    refused(
        run("stream", "add", name, "--max-age", "1s", "--pedantic"),
        1,
        "pedantic mode: duplicate window",
    )
    do("stream", "add", name, "--consumer-limits", "max_ack_pending=5", "--pedantic")
    scheduled = ("stream", "edit", name, "--allow-msg-schedules", "--force")
    ran = run(*scheduled, "--pedantic")
    assert (ran.code, "roll-ups are disabled" in ran.err) == (1, True)
    assert do(*scheduled, "--json").json["changed"]
    refused(
        run("consumer", "add", name, "c", "--pedantic"),
        1,
        "pedantic mode: max_ack_pending must be set",
    )
    do("consumer", "add", name, "c")
    waits = (
        "consumer",
        "edit",
        name,
        "c",
        "--backoff",
        "2s,3s",
        "--unset",
        "ack-wait",
        "--force",
        "--max-deliver",
        3,
    )
    ran = run(*waits, "--pedantic")
    assert (ran.code, "pedantic mode: first backoff" in ran.err) == (1, True)
    assert do(*waits, "--json").json["changed"]


def test_seal_asks(do: Command, run: Command, name: str) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>")
    ran = run("stream", "seal", name)
    assert (ran.code, "sealed: false -> true (risk: it cannot be taken back)" in ran.out) == (
        2,
        True,
    )
    do("stream", "seal", name, "--force")
    assert config(do, name)["sealed"] is True
    assert do("stream", "seal", name, "--json").json == {
        "stream": name,
        "changed": False,
        "differences": [],
    }


# -- an option for each field --


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """A configuration without fields, so that no template adds any."""
    (tmp_path / "nothing.json").write_text("{}")
    return tmp_path / "nothing.json"


@pytest.mark.usefixtures("api")  # it makes what mirrors and sources copy
@pytest.mark.parametrize("kind", STREAMS)
def test_every_kind_of_stream_is_made_by_options(
    kind: str, do: Command, name: str, nothing: Path
) -> None:
    subjects = {} if "mirror" in STREAMS[kind] else {"subjects": [f"{name}.>"]}
    config = {**subjects, **STREAMS[kind], "name": name}
    # As people write it: durations with their units.
    fields = rendered(StreamConfig.parse(config, kind))
    options = written({field: value for field, value in fields.items() if field != "name"})
    made = do("stream", "add", name, *options, "--config", nothing, "--json").json
    assert (
        differences(StreamConfig.parse(config, ""), StreamConfig.from_server(made["config"])) == []
    )


def test_parts_of_a_configuration_have_short_forms(do: Command, name: str, nothing: Path) -> None:
    given = [
        *("--subjects", f"{name}.a, {name}.b.*", "--subjects", f'["{name}.c,d"]', "--no-ack"),
        *(
            "--sources",
            "NEAR,FAR",
            "--sources",
            "name=HUB,filter_subject=h.>,external.api=$JS.hub.API",
        ),
        *("--subject-transform", f"src={name}.b.*,dest={name}.b.{{{{partition(8,1)}}}}"),
        *(
            "--republish",
            f"dest={name}again.>, headers_only=true",
            "--placement",
            "cluster=north,tags=ssd,eu",
        ),
        *(
            "--metadata",
            "a=b,c",
            "--metadata",
            "d=e=f",
            "--metadata",
            '{"g": "h"}',
            "--metadata",
            "empty=",
        ),
        *(
            "--consumer-limits",
            "max_ack_pending=5,inactive_threshold=1m",
            "--max-bytes",
            "1g",
            "--max-msgs",
            "-1",
        ),
    ]
    made = do("stream", "add", name, *given, "--config", nothing, "--json").json["config"]
    expected = {
        "name": name,
        "subjects": [f"{name}.a", f"{name}.b.*", f"{name}.c,d"],
        "no_ack": True,
        "sources": [
            {"name": "NEAR"},
            {"name": "FAR"},
            {"name": "HUB", "filter_subject": "h.>", "external": {"api": "$JS.hub.API"}},
        ],
        "subject_transform": {"src": f"{name}.b.*", "dest": f"{name}.b.{{{{partition(8,1)}}}}"},
        "republish": {"dest": f"{name}again.>", "headers_only": True},
        "placement": {"cluster": "north", "tags": ["ssd", "eu"]},
        "metadata": {"a": "b,c", "d": "e=f", "g": "h", "empty": ""},
        "consumer_limits": {"max_ack_pending": 5, "inactive_threshold": "1m"},
        "max_bytes": "1g",
    }
    assert differences(StreamConfig.parse(expected, ""), StreamConfig.from_server(made)) == []


# -- servers, and a terminal --


def test_leaders_step_down_and_peers_are_removed(nats_cluster: NatsCluster) -> None:
    stream = "PLACED"

    def run(*line: object) -> Ran:
        return succeed(*line, url=nats_cluster.url)

    run("stream", "add", stream, "--subjects", "placed.>", "--num-replicas", 2)
    run("consumer", "add", stream, "c")
    with JetStreamAdmin(servers=nats_cluster.url) as admin:

        def servers(consumer: str = "") -> list[str]:
            replicas = (
                admin.consumers.replicas(stream, consumer)
                if consumer
                else admin.streams.replicas(stream)
            )
            whole = (
                len(replicas) == 2
                and replicas[0].leader
                and all(replica.current for replica in replicas)
            )
            return [replica.server for replica in replicas] if whole else []

        def settled(consumer: str = "", leader: str = "", without: str = "") -> list[str]:
            """The servers, leader first, once two are up to date, `leader` leads and `without` is
            none of them.
            """
            wanted = f"two replicas that are up to date, leader {leader!r}, without {without!r}"

            def check() -> list[str] | None:
                found = servers(consumer)
                return (
                    found if found and leader in ("", found[0]) and without not in found else None
                )

            return poll(check, 30, lambda: TimeoutError(f"not seen: {wanted}"))

        def moves(manager: Any, *only: str) -> list[Any] | None:
            with contextlib.suppress(ServerBusy):  # an election
                return list(manager.balance(*only, dry_run=True))
            return None

        settled()
        first, second = settled("c")
        assert f"{first} (leader), {second} (current, " in run("consumer", "info", stream, "c").out
        output = run("consumer", "step-down", stream, "c").out
        assert output == f"{first} steps down from consumer c of stream {stream}\n"
        settled("c", leader=second)
        run("consumer", "add", stream, "d")
        if settled("d") != [second, first]:
            run("consumer", "step-down", stream, "d", "--preferred", second)
        settled("d", leader=second)
        wait_until(
            lambda: bool(moves(admin.consumers, stream)), "the other replica is up to date", 30
        )
        asked = run_command("consumer", "balance", stream, url=nats_cluster.url)
        assert (asked.code, f": {second} -> {first}\n" in asked.out, "--force" in asked.err) == (
            2,
            True,
            True,
        )
        (move,) = run("consumer", "balance", stream, "--force", "--json").json["moves"]
        assert (move["leader"], move["preferred"]) == (second, first)
        wait_until(lambda: moves(admin.consumers, stream) == [], "each server leads one", 30)
        assert run("consumer", "balance", stream).out == "0 leaders moved\n"
        run("stream", "balance", "--force")
        wait_until(lambda: moves(admin.streams) == [], "all servers lead about as many", 30)
        leader, other = settled()
        rows = {row[0]: row[1:] for row in run("stream", "info", stream).rows if row}
        assert rows["servers"][:3] == [leader, "(leader),", other]
        output = run("stream", "step-down", stream, "--preferred", other, "--json").json
        assert output == {"stream": stream, "leader_before": leader, "preferred": other}
        settled(leader=other)
        output = run("stream", "peer-remove", stream, leader, "--force", "--json").json
        assert output == {"stream": stream, "removed": leader}
        kept = settled(without=leader)[1]
        output = run("stream", "peer-remove", stream, kept, "--evacuate", "--force").out
        assert (
            output
            == f"server {kept} no longer keeps stream {stream}, once another one has a copy\n"
        )
        settled(without=kept)
        ran = run_command(
            "stream", "peer-remove", stream, "nobody", "--force", url=nats_cluster.url
        )
        refused(ran, 1, f"remove server nobody from stream {stream}")
    run("stream", "rm", stream, "--force")


@pytest.mark.full
def test_a_terminal_shows_questions_and_progress(
    do: Command, publisher: Publisher, nats_server: NatsServer, name: str, tmp_path: Path
) -> None:
    do("stream", "add", name, "--subjects", f"{name}.>")
    publisher.publish(Message(f"{name}.a", os.urandom(200_000)) for _ in range(20))
    at = ("-s", nats_server.url)
    question = f"Change stream {name}? [y/N]:"
    refused = on_terminal(
        "stream", "edit", name, "--max-msgs", 5, *at, question=question, answer="n"
    )
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
