"""``spark-jetstream pub`` on a real server."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from spark_jetstream.admin import JetStreamAdmin, StoredMessage
from spark_jetstream.cli.templates import fill
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, refused
from tests.support.command import succeed
from tests.support.proxy import WireProxy

GROUP = ("pub",)


@pytest.fixture
def stream(admin: JetStreamAdmin, name: str) -> Iterator[str]:
    """A stream of the subjects ``<its name>.>``, in memory."""
    admin.streams.create(name=name, subjects=[f"{name}.>"], storage="memory")
    yield name
    admin.streams.delete(name, missing_ok=True)


def stored(admin: JetStreamAdmin, stream: str) -> list[StoredMessage]:
    return list(admin.messages.read(stream))


def test_a_message_is_stored_byte_for_byte(do: Command, admin: JetStreamAdmin, stream: str) -> None:
    assert do(f"{stream}.a", "é").out == f"stored 1 message: stream {stream}, sequence 1\n"
    do(f"{stream}.a", "-", stdin=b"\x00\xff\r\n")
    do(f"{stream}.b", stdin=b"")
    messages = [(message.subject, message.data) for message in stored(admin, stream)]
    assert messages == [
        (f"{stream}.a", "é".encode()),
        (f"{stream}.a", b"\x00\xff\r\n"),
        (f"{stream}.b", b""),
    ]


def test_templates_of_times() -> None:
    now = dt.datetime(2026, 3, 1, 0, 5, 9, 876_543).astimezone()
    nanos = int(now.timestamp()) * 10**9 + 876_543_210
    text = b"{{ Time }}|{{TimeStamp}}|{{Unix}}|{{UnixNano}}"
    filled = fill(text, "the data", True, clock=lambda: nanos)(1).decode()
    kitchen, stamp, unix, nano = filled.split("|")
    assert (kitchen, int(unix), int(nano)) == ("12:05AM", int(now.timestamp()), nanos)
    assert dt.datetime.fromisoformat(stamp.replace("Z", "+00:00")) == now.replace(microsecond=0)


def test_templates_are_filled_in_for_each_message(
    do: Command, admin: JetStreamAdmin, stream: str
) -> None:
    began = time.time_ns()
    data = '{{Count}}|{{.Cnt}}|{{UnixNano}}|{{ID}}|{{Random 3 5}}|{"a":{"b":1}}'
    headers = ("-H", "Number: {{Count}}", "--header", "Number:x", "-H", "Time: a:b")
    ran = do(f"{stream}.{{{{Count}}}}", data, *headers, "--count", 20)
    assert ran.out == f"stored 20 messages: stream {stream}, sequences 1 to 20\n"
    messages = stored(admin, stream)
    assert [message.subject for message in messages] == [
        f"{stream}.{number}" for number in range(1, 21)
    ]
    assert messages[6].headers == {"Number": ["7", "x"], "Time": ["a:b"]}
    parts = [message.data.decode().split("|") for message in messages]
    assert [item[:2] for item in parts] == [[str(number)] * 2 for number in range(1, 21)]
    assert len({item[3] for item in parts}) == 20
    assert {len(item[4]) for item in parts} <= {3, 4, 5}
    _, _, nano, _, random, rest = parts[-1]
    assert began <= int(nano) <= time.time_ns()
    assert random.isalnum()
    assert rest == '{"a":{"b":1}}'
    do(f"{stream}.a", "{{Nothing}} {{", "--no-templates")
    assert stored(admin, stream)[-1].data == b"{{Nothing}} {{"


def test_each_line_of_standard_input_is_a_message(
    do: Command, admin: JetStreamAdmin, stream: str
) -> None:
    ran = do(f"{stream}.a", "--send-on", "newline", "--json", stdin=b"one\r\n\n{{Count}}\nlast")
    assert ran.json["messages"] == 4
    assert [message.data for message in stored(admin, stream)] == [b"one", b"", b"3", b"last"]
    assert do(f"{stream}.a", "--send-on", "newline").out == "nothing to publish\n"


def test_many_messages_are_under_way_at_a_time(
    do: Command, admin: JetStreamAdmin, stream: str
) -> None:
    count = 5_000
    ran = do(f"{stream}.a", "{{Count}}", "-H", "Nats-Msg-Id: {{Count}}", "--count", count, "--json")
    assert ran.json == {
        "messages": count,
        "duplicates": 0,
        "streams": {stream: {"first_seq": 1, "last_seq": count}},
    }
    assert admin.messages.get(stream, 4_001).data == b"4001"
    # Message ids count as they do for any publisher, so publishing once more stores nothing.
    again = do(f"{stream}.a", "x", "-H", "Nats-Msg-Id: {{Count}}", "--count", 10)
    assert (
        again.out == f"stored 10 messages (10 of them before): stream {stream}, sequences 1 to 10\n"
    )
    assert admin.streams.load(stream).state.messages == count


def test_messages_are_stored_once_when_the_connection_is_lost(
    admin: JetStreamAdmin, stream: str, nats_server: NatsServer
) -> None:
    count = 5_000
    with WireProxy(nats_server.url) as proxy:
        cut = proxy.cut_after(20_000)
        headers = ("-H", "Nats-Msg-Id: {{Count}}")
        ran = succeed(
            "pub", f"{stream}.a", "{{Count}}", *headers, "--count", count, "--json", url=proxy.url
        )
        assert cut.is_set()
    assert ran.json["messages"] == count
    assert admin.streams.load(stream).state.messages == count


def test_a_refused_message_ends_with_1_and_says_how_many_were_stored(
    run: Command, admin: JetStreamAdmin, stream: str
) -> None:
    refused(
        run("nobody.here", "x"),
        1,
        "at subject 'nobody.here': no stream captures this subject",
        "0 messages",
    )
    admin.streams.update(stream, max_msg_size=100)
    ran = run(f"{stream}.a", "--send-on", "newline", stdin=b"x\n" + b"y" * 200 + b"\nz\n")
    refused(
        ran, 1, "message 2 of this command", "message size exceeds maximum allowed (error 10054)"
    )
    admin.streams.seal(stream)
    refused(
        run(f"{stream}.a", "x"), 1, "invalid operation on sealed stream (error 10109); 0 messages"
    )


def test_a_refused_line_is_not_found_out_with_the_next_one(nats_server: NatsServer) -> None:
    line = ("pub", "nobody.here", "--send-on", "newline", "-s", nats_server.url)
    program = [sys.executable, "-m", "spark_jetstream", *line]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(b"x\n")
            process.stdin.flush()  # and it stays open, as that of `tail -f`
            assert process.wait(120) == 1
        finally:
            process.kill()
        assert b"no stream captures this subject" in process.stderr.read()


def test_a_header_has_the_bytes_of_the_argument(
    do: Command, admin: JetStreamAdmin, stream: str
) -> None:
    do(f"{stream}.a", "x", "-H", "A: caf\udce9")
    assert stored(admin, stream)[0].hdrs == b"NATS/1.0\r\nA: caf\xe9\r\n\r\n"


def test_a_wrong_argument_ends_with_2(run: Command) -> None:
    for arguments, text in {
        ("a b", "x"): "there are blanks",
        ("a.{{Random 0 0}}", "x"): "a token between the dots is empty",
        ("$JS.API.INFO", "x"): "belongs to the server",
        ("a", "{{Nothing}}"): "the data: there is no template {{Nothing}}, only Count, Time,",
        ("a", "{{Random 5}}"): "there is no template {{Random 5}}",
        ("a", "{{Random 5 4}}"): "there is no template {{Random 5 4}}",
        ("a", "{{Count"): "begins with {{ and does not end",
        ("a", "x", "-H", "b"): "--header b is not NAME:VALUE",
        ("a", "x", "-H", "b c:d"): 'header "b c" is not possible',
        ("a", "x", "-H", "b:{{c}}"): "header b: there is no template {{c}}",
        ("a", "x", "--send-on", "newline"): "without DATA and --count",
        ("a", "x", "--count", "0"): "greater than or equal to 1",
    }.items():
        refused(run(*arguments), 2, text)
