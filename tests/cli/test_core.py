"""``spark-jetstream sub``, ``request`` and ``reply`` on a real server."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from spark_jetstream.admin import CoreMessage, Gap, JetStreamAdmin
from spark_jetstream.cli.output import Output
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.protocol.wire import Frames, Status
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, Start, refused
from tests.support.client import Raw
from tests.support.command import run_command, running
from tests.support.proxy import WireProxy
from tests.support.publish import Message

OnNote = Callable[[Callable[[str], None]], None]


@pytest.fixture
def on_note(monkeypatch: pytest.MonkeyPatch) -> OnNote:
    """Sets a function that gets each line on standard error.

    The first one comes when a command has subscribed.
    """

    def install(act: Callable[[str], None]) -> None:
        note = Output.note

        def noted(self: Output, line: str) -> None:
            note(self, line)
            act(line)

        monkeypatch.setattr(Output, "note", noted)

    return install


@pytest.fixture
def client(nats_server: NatsServer) -> Iterator[Raw]:
    """A client that is subscribed to ``answers.*``."""
    client = Raw(nats_server.url)
    client.hello("answers.*")
    yield client
    client.close()


def publish(client: Raw, *frames: bytes) -> None:
    """Publish, and return when the server has all of it."""
    client.send(b"".join(frames) + b"PING\r\n")
    assert client.file.readline() == b"PONG\r\n"


def heard(client: Raw) -> tuple[bytes, bytes, bytes]:
    """The subject, the header block and the payload of the next message."""
    words = client.file.readline().split()
    head = int(words[-2]) if words[0] == b"HMSG" else 0
    body = client.file.read(int(words[-1]) + 2)[:-2]
    return words[1], body[:head], body[head:]


HEADERS = (("A", "1"), ("A", "2"), ("B", "\u00e9"))
FRAMES = (
    Message("sub.a", b"one", HEADERS).frame("answers.1"),
    Message("sub.b", b"\xff\x00").frame(),
    Message("sub.c", b"\x1b[2J\nend", ()).frame(),
)


def test_messages_are_printed_as_they_come(do: Command, client: Raw, on_note: OnNote) -> None:
    on_note(lambda line: publish(client, *FRAMES))
    line = ("sub", "sub.*", "--count", 3)
    ran = do(*line)
    assert ran.err == "Subscribed to sub.*\n"
    assert ran.out == (
        '[#1] Received on "sub.a" with reply "answers.1"\nA: 1\nA: 2\nB: \u00e9\n\none\n\n'
        '[#2] Received on "sub.b"\n\n(2 bytes that are not text)\n\n'
        '[#3] Received on "sub.c"\n\n\\x1b[2J\nend\n\n'
    )
    assert do(*line, "--raw").raw == b"one\n\xff\x00\n\x1b[2J\nend\n"
    assert do(*line, "--headers-only").out.count("\n") == 9
    first, second, third = do(*line, "--json").objects
    assert first == {
        "number": 1,
        "subject": "sub.a",
        "reply": "answers.1",
        "headers": {"A": ["1", "2"], "B": ["\u00e9"]},
        "data": "one",
        "encoding": "utf-8",
    }
    assert (second["data"], second["encoding"], second["headers"], second["reply"]) == (
        "/wA=",
        "base64",
        {},
        "",
    )
    assert third["data"] == "\x1b[2J\nend"
    assert {"data", "encoding"}.isdisjoint(do(*line, "--json", "--headers-only").objects[0])


def test_a_queue_group_is_joined(
    do: Command, client: Raw, nats_server: NatsServer, on_note: OnNote
) -> None:
    groups: list[str | None] = []

    def act(line: str) -> None:
        connections = nats_server.monitor("/connz?subs=detail")["connections"]
        details = [item for one in connections for item in one.get("subscriptions_list_detail", [])]
        groups.extend(item.get("qgroup") for item in details if item["subject"] == "sub.q")
        publish(client, Message("sub.q", b"one").frame("nowhere.1"))

    on_note(act)
    for line in ("sub", "sub --queue workers", "reply", "reply --queue workers"):
        command, *options = line.split()
        do(command, "sub.q", *options, "--count", 1)
    assert groups == [None, "workers", "NATS-RPLY-22", "workers"]


def test_a_lost_connection_is_reported_and_ends_with_1(
    client: Raw, nats_server: NatsServer, on_note: OnNote, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireProxy(nats_server.url) as proxy:
        printed: list[bytes] = []

        def act(line: str) -> None:
            if not line.startswith("nothing is received"):
                publish(client, Message("sub.a", line.split(maxsplit=1)[0].encode()).frame())

        def cut(_: Output, data: bytes) -> None:
            printed.append(data)
            proxy.cut()

        on_note(act)
        monkeypatch.setattr(Output, "raw", cut)
        ran = run_command("sub", "sub.a", "--count", 2, "--raw", url=proxy.url)
    assert (ran.code, printed) == (1, [b"Subscribed\n", b"messages\n"])
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == [
        "Subscribed to sub.a",
        "nothing is received",
        "messages may be missing",
    ]


@contextmanager
def answering(admin: JetStreamAdmin, subject: str, *answers: bytes) -> Iterator[list[CoreMessage]]:
    """Somebody gives these answers to each request; the requests."""
    requests: list[CoreMessage] = []
    with admin.subscribe(subject) as messages, ThreadPoolExecutor(1) as pool:

        def work() -> None:
            for message in messages:
                assert not isinstance(message, Gap)
                requests.append(message)
                for answer in answers:
                    messages.reply(message, answer, {"Of": [message.data.decode().strip(), "x"]})

        worker = pool.submit(work)
        yield requests
        messages.close()
        worker.result()


@pytest.fixture
def silent_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that ends the time of each later request after `count` replies."""
    get, came = Inbox.get, dict[int, int]()

    def install(count: int) -> None:
        def until_then(self: Inbox, timeout: float) -> Frames | Status | None:
            run = get(self, timeout) if came.get(id(self), 0) < count else None
            came[id(self)] = came.get(id(self), 0) + (
                len(run) if isinstance(run, Frames) else -count
            )
            return run

        monkeypatch.setattr(Inbox, "get", until_then)

    return install


def test_replies_to_a_request_are_printed(
    do: Command, run: Command, admin: JetStreamAdmin, silent_after: Callable[[int], None]
) -> None:
    with answering(admin, "ask.a", b"one", b"\xff") as requests:
        ran = do("request", "ask.a", "{{Count}}{{", "-H", "A: 1", "-H", "A:2", "--no-templates")
        first, *rest = ran.out.splitlines()
        assert first.startswith('[#1] Received on "_INBOX.')
        assert rest == ["Of: {{Count}}{{", "Of: x", "", "one", ""]
        assert requests[0].headers == {"A": ["1", "2"]}
        assert requests[0].data == b"{{Count}}{{"
        assert do("request", "ask.a", "-", "--raw", stdin=b"{{Count}}\n").raw == b"one\n"
        assert requests[1].data == b"1\n"
        printed = do("request", "ask.a", "--replies", 2, "--json").objects
        assert [(item["data"], item["headers"]) for item in printed] == [
            ("one", {"Of": ["", "x"]}),
            ("/w==", {"Of": ["", "x"]}),
        ]
        silent_after(2)
        assert len(do("request", "ask.a", "--replies", 0, "--json").objects) == 2
        ran = run("request", "ask.a", "--replies", 3, "--raw")
        assert (ran.code, ran.raw) == (1, b"one\n\xff\n")
        assert ran.err == "2 of 3 replies arrived in time; --timeout sets the time\n"
    level = do("request", "$JS.API.INFO", "--raw").json["api"]["level"]
    assert level == admin.account.info().api.level


def test_a_header_that_is_not_utf8_ends_with_2(run: Command) -> None:
    refused(
        run("request", "ask.nobody", "x", "-H", "A: caf\udce9"),
        2,
        'header "A" is not possible: names are letters',
    )


def test_a_request_that_nobody_answers_ends_with_3(run: Command, admin: JetStreamAdmin) -> None:
    refused(
        run("request", "ask.nobody", "x"),
        3,
        "cannot request ask.nobody: nobody answers at ask.nobody\n",
    )
    with answering(admin, "ask.silent"):
        ran = run("request", "ask.silent", "x", "--timeout", "200ms", "--replies", 0)
    refused(ran, 3, "cannot request ask.silent: no reply within 0.2 s (option requestTimeout)\n")


def ask(client: Raw, *messages: Message) -> Callable[[str], None]:
    """A function that publishes requests as soon as a command has subscribed."""
    frames = [message.frame(f"answers.{number}") for number, message in enumerate(messages, 1)]
    return lambda line: publish(client, *frames) if line.startswith("Replying") else None


def test_requests_are_answered_and_printed(do: Command, client: Raw, on_note: OnNote) -> None:
    on_note(ask(client, Message("ask.b", b"\xff", HEADERS), Message("ask.b", b"two")))
    # Without DATA, as with --echo, the reply is what was sent.
    ran = do("reply", "ask.*", "--count", 2)
    assert ran.err == "Replying to ask.* in the queue group NATS-RPLY-22\n"
    assert ran.out.startswith('[#1] Received on "ask.b" with reply "answers.1"\nA: 1\n')
    block = b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: \xc3\xa9\r\n\r\n"
    assert heard(client) == (b"answers.1", block, b"\xff")
    assert heard(client) == (b"answers.2", b"", b"two")
    printed = do("reply", "ask.*", "{{Count}}: ok", "--count", 2, "--queue", "", "--json").objects
    assert [(item["number"], item["data"]) for item in printed] == [(1, "/w=="), (2, "two")]
    assert [heard(client)[1:], heard(client)[1:]] == [(b"", b"1: ok"), (b"", b"2: ok")]


def test_a_request_that_cannot_be_answered_is_passed_over(
    do: Command, client: Raw, on_note: OnNote
) -> None:
    """It asks for no reply, or has a header that nobody may send back."""
    odd = Message("ask.c", b"odd", block=b"NATS/1.0\r\nno name: 1\r\n\r\n")
    frames = (
        Message("ask.c").frame(),
        odd.frame("answers.1"),
        Message("ask.c", b"last").frame("answers.2"),
    )
    on_note(lambda line: publish(client, *frames) if line.startswith("Replying") else None)
    ran = do("reply", "ask.c", "--echo", "--count", 3)
    _, first, second = ran.err.splitlines()
    assert first == "no reply to message 1: the message on ask.c has no reply subject"
    assert second.startswith(
        'no reply to message 2: header "no name" is not possible: names are letters'
    )
    assert heard(client) == (b"answers.2", b"", b"last")


USERS = """
accounts { A { users: [
  { user: ann, password: p, permissions: { publish: ["Ask.>", "_INBOX.>"], subscribe: ["Ask.>", "_INBOX.>"] } }
  { user: bob, password: p, permissions: { publish: ["Ask.>"], subscribe: ["Ask.>"] } }
] } }
"""


def test_commands_name_the_subject_that_the_account_may_not_use(
    nats_server_factory: Start, on_note: OnNote
) -> None:
    url = nats_server_factory(config=USERS).url
    ann, bob = (("--user", user, "--password", "p") for user in ("ann", "bob"))
    refused(
        run_command("sub", "Secret.*", *ann, url=url),
        1,
        "the account may not subscribe to Secret.*\n",
    )
    refused(
        run_command("request", "Secret.a", *ann, url=url),
        1,
        "the account may not publish to Secret.a\n",
    )
    refused(
        run_command("request", "Ask.a", *bob, url=url),
        1,
        "may not subscribe to _INBOX.> (option inboxPrefix)\n",
    )
    with (
        JetStreamAdmin(servers=url, user="ann", password="p") as admin,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = []

        def act(line: str) -> None:
            if line.startswith("Replying"):
                asked.append(pool.submit(admin.request, "Ask.a", timeout=0.2))

        on_note(act)
        ran = run_command("reply", "Ask.a", *bob, url=url)
        asked[0].exception()
    assert (ran.code, ran.out) == (1, "")
    assert "the account may not publish to _INBOX." in ran.err


@pytest.mark.parametrize("command", ["sub", "reply"])
def test_ctrl_c_ends_it(command: str, nats_server: NatsServer) -> None:
    with running(command, "sub.end", "--server", nats_server.url) as process:
        assert process.stderr is not None
        assert "sub.end" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
