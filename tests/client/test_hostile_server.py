"""A server that lies, drips, floods and talks nonsense: each try ends in time, in an error of this
package.

The table has a row for each lie: the stage at which the server tells it, and what the try ends in.
A flood runs in a process of its own, whose memory is measured.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.client import ServerVersion

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.limits import LIMITS, MemoryLimits
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.client.registry import Registry
from spark_jetstream.errors import (
    LONGEST_TEXT,
    ApiError,
    AuthenticationFailed,
    ConnectionFailed,
    ConsumerLost,
    DataLossError,
    JetStreamError,
    OutageError,
    ProtocolError,
    RequestTimeout,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.columns import record_batch
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.server_info import MOST_URLS, checked_info
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.wire import ApiReply, Frames, Scanner, Status
from spark_jetstream.source.planner import Planner
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.pull import read_range
from tests.support import planning
from tests.support.client import set_timing
from tests.support.fake_jetstream import CREATED, FakeJetStream, HangUp, Honest, Lie, ack
from tests.support.reading import SETTINGS, connecting
from tests.support.sinking import Sink
from tests.support.sinking import rows as sink_rows
from tests.support.wire import frame, frames_in

HASTE = {"connectTimeout": "1s", "requestTimeout": "1s", "retryTimeout": "300ms"}
COUNT = 100
"""How many messages the stream S has."""
_SOME = {"subjects": "S.a", "startingTimestamp": "2023-11-14T00:00:00Z"}
_COLUMNS = ("subject", "sequence", "timestamp", "headers", "data")
MEGABYTES = 500

INT64_MAX = 2**63 - 1
LEFT = b"\r\nNats-Pending-Messages: 100\r\nNats-Pending-Bytes: 1000000000\r\n\r\n"
NO_BYTES = b"\r\nNats-Pending-Messages: 100\r\n\r\n"
FLOOD = b"x" * (1 << 20)
DEEP = b"[" * 100_000
ESCAPES = "\x1b[31m\x07red\x9b"
RUBBISH = bytes(range(256)) * 16


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJetStream]:
    set_timing(monkeypatch, goodbye=0.2)
    with FakeJetStream() as running:
        running.store(COUNT)
        yield running
        close_all()


# What a client does with a server that may lie: each of these is one try, from the connection to
# the result


def driver(url: str, **given: str) -> Planner:
    options: dict[str, Any] = {**HASTE, **given}
    return planning.driver(url, streaming=False, **options)


def read(url: str, reader: Callable[..., Any], part: SequenceRange | None = None) -> int:
    """Read a range, by default the whole stream, to columns; return the number of messages."""
    part = part or SequenceRange("S", 1, COUNT + 1, COUNT, CREATED)
    runs = reader(connecting(url, **HASTE), part, replace(SETTINGS, retry_timeout=0.3), "test")
    return sum(record_batch(messages, stream="S", columns=_COLUMNS).num_rows for messages in runs)


def _admin(url: str) -> int:
    with JetStreamAdmin(servers=url, **HASTE) as admin:
        return int(admin.streams.load("S").state.messages)


def _publish(url: str) -> int:
    sink = Sink(
        url,
        subject="S.a",
        delivery="at-least-once",
        ackTimeout=HASTE["requestTimeout"],
        maxRetries="1",
        **HASTE,
    )
    return sink.write([sink_rows("S.a", 0, 10)]).stored


def _connect(url: str) -> int:
    # As short as can be: none of these attempts is to succeed.
    return connect(
        ConnectionOptions.from_spark({"servers": url, "connectTimeout": "200ms"})
    ).max_payload


TRIES: dict[str, Callable[[str], int]] = {
    "connect": _connect,
    "plan": lambda url: len(driver(url).batch_ranges()),
    "plan filtered": lambda url: len(driver(url, **_SOME).batch_ranges()),
    "plan direct": lambda url: len(driver(url, readWith="direct", **_SOME).batch_ranges()),
    "read": lambda url: read(url, read_range),
    "direct": lambda url: read(url, read_direct),
    "publish": _publish,
    "admin": _admin,
}
"""Each returns how many ranges, messages or rows an honest server has for it; ``connect`` what
`max_payload` is.
"""


def report(name: str, url: str) -> None:
    """Print how a try ended, as JSON: for a process of its own."""
    error, result = "", None
    try:
        result = TRIES[name](url)
    except JetStreamError as failure:
        error = f"{type(failure).__name__}: {failure}"
    # Not `getrusage`: its maximum counts the process that forked this one as well.
    status = Path("/proc/self/status").read_text("ascii")
    most = int(status.partition("VmHWM:")[2].split()[0]) // 1024
    sys.stdout.write(json.dumps({"error": error, "result": result, "megabytes": most}))


# Lies


def says(*pieces: bytes) -> Lie:
    """Sends this in place of the truth."""
    return lambda honest: pieces


def hangs_up(honest: Honest) -> Iterable[bytes]:
    raise HangUp


def is_silent(honest: Honest) -> Iterable[bytes]:
    return ()


def drips(honest: Honest) -> Iterator[bytes]:
    for at in range(len(honest.frames)):
        yield honest.frames[at : at + 1]
        honest.ended.wait(0.5)


def floods(
    begin: bytes | Callable[[Honest], bytes], piece: bytes | Callable[[Honest], bytes] = FLOOD
) -> Lie:
    """Begins with something, and then never ends."""

    def lie(honest: Honest) -> Iterator[bytes]:
        first, more = (part if isinstance(part, bytes) else part(honest) for part in (begin, piece))
        yield first
        more *= max(1, (1 << 20) // len(more))
        while not honest.ended.is_set():
            yield more

    return lie


def announced(size: int) -> Lie:
    return floods(lambda honest: b"MSG %s %s %d\r\n" % (honest.to, honest.sid, size))


def after(*pieces: bytes) -> Lie:
    return lambda honest: (honest.frames, *pieces)


def hello(**fields: Any) -> Lie:

    def lie(honest: Honest) -> Iterable[bytes]:
        body = json.loads(honest.frames[len(b"INFO ") :])
        yield b"INFO %s\r\n" % json.dumps({**body, **fields}).encode()

    return lie


def fields(name: str, *values: Any) -> dict[str, Lie]:
    """A row for each value of a field of INFO."""
    return {f"{name} {value!r}"[:40]: hello(**{name: value}) for value in values}


def reply(payload: bytes, head: bytes = b"") -> Lie:
    return lambda honest: [honest.saying(payload, head)]


def changed(**fields: Any) -> Lie:
    return lambda honest: [honest.changed(**fields)]


def changes(**values: Iterable[object]) -> dict[str, Lie]:
    """A lie for each value of each field of a reply."""
    return {
        f"{path} {value!r}"[:40]: changed(**{path: value})
        for path, some in values.items()
        for value in some
    }


def delivers(reply_to: bytes, head: bytes = b"", payload: bytes = b"1") -> Lie:
    """A message of a consumer, with this for the subject of its acknowledgement."""
    return lambda honest: [honest.saying(payload, head, reply_to)]


def refuses(description: object) -> Lie:
    return reply(
        json.dumps({"error": {"code": 400, "err_code": 10025, "description": description}}).encode()
    )


def direct(
    time: str = "2026-01-02T03:04:05Z", sequence: str = "1", pending: str = "0", previous: str = "0"
) -> Lie:
    head = (
        "NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: S.a\r\nNats-Sequence: "
        f"{sequence}\r\nNats-Time-Stamp: {time}\r\n"
        f"Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {previous}\r\n\r\n"
    )
    return reply(b"1", head.encode())


def status(text: str) -> Lie:
    return reply(b"", f"NATS/1.0 {text}\r\n\r\n".encode())


# What each ends in

Errors = tuple[type[JetStreamError], ...]
NEVER_UP = (ConnectionFailed,)
GARBLED = (ConnectionFailed, OutageError, RequestTimeout)
MALFORMED = (ProtocolError,)
AT_ONCE: tuple[Errors, ...] = (MALFORMED, (ApiError,), (AuthenticationFailed,))
"""What needs no time-out to end."""

HELLO: dict[str, Lie] = {
    "silence": is_silent,
    "close": hangs_up,
    "drip": drips,
    "rubbish": says(RUBBISH),
    "long INFO": says(b'INFO {"a":"' + FLOOD + b'"}\r\n'),
    **{
        f"says {line[:40]!r}": says(line + b"\r\n")
        for line in (
            *(b"", b"PING", b"PONG", b"-ERR 'no'", b"-ERR '\xff\xfe'"),
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n",
            *(b"INFO " + text for text in (b"", b'{"a":', b'{"a":"\xff"}', DEEP)),
            *(b"INFO " + text for text in (b"[]", b'"max_payload"', b"7", b"null", b"{}")),
        )
    },
    **fields("max_payload", "1", None, -1, 0, 1.5, True, [], 2**62),
    **fields("version", 2, None, "", "two", "2.1", [], "9" * 5000 + ".1.1"),
    **fields(
        "connect_urls",
        "a:1",
        7,
        {"a": 1},
        [1],
        [None],
        ["[::1"],
        ["a:port"],
        ["a:99999"],
        ["x" * 9999],
    ),
    **fields("headers", "yes", None, 1),
    **fields("tls_required", True, "no", [1]),
    **fields("auth_required", "yes", {}),
    **fields("nonce", 5, None, ["a"]),
    **fields("client_id", "1", None, []),
    **fields("client_ip", 1, {}),
}

PONG: dict[str, tuple[Lie, Errors]] = {
    "silence": (is_silent, NEVER_UP),
    "close": (hangs_up, NEVER_UP),
    "rubbish": (says(RUBBISH), NEVER_UP),
    **{
        f"says {line!r}": (says(line + b"\r\n"), NEVER_UP)
        for line in (
            b"INFO {}",
            b"-ERR 'no'",
            b"-ERR",
            b"-ERR '\xff\xfe'",
            f"-ERR '{ESCAPES}'".encode(),
        )
    },
    "refusal": (says(b"-ERR 'Authorization Violation'\r\n"), (AuthenticationFailed,)),
}

BEHIND_PONG: dict[str, Lie] = {
    f"says {line[:40]!r}": after(line + b"\r\n")
    for line in (
        *(b"-ERR " + text for text in (b"", b"no", b"'\xff\xfe'", f"'{ESCAPES}'".encode())),
        b"-ERR 'User Authentication Expired'",
        *(b"INFO []", b"INFO {", b"INFO " + DEEP, b'INFO {"connect_urls":7}'),
        *(
            b"\x00\x01\x02",
            b"MSG a 1 -5",
            b"MSG a one 5000\r\n" + b"x" * 5000,
            b"MSG a 1 2\r\nabcdef",
        ),
    )
}

REPLY: dict[str, tuple[Lie, Errors]] = {
    "silence": (is_silent, (RequestTimeout, ConnectionFailed, OutageError)),
    "close": (hangs_up, GARBLED),
    "drip": (drips, GARBLED),
    "nothing": (reply(b""), MALFORMED),
    "no JSON": (reply(b"no"), MALFORMED),
    "no UTF-8": (reply(b'{"a":"\xff"}'), MALFORMED),
    "list": (reply(b"[]"), MALFORMED),
    "null": (reply(b"null"), MALFORMED),
    "deep": (reply(DEEP), MALFORMED),
    "long number": (reply(b'{"a":%s}' % (b"9" * 10_000)), MALFORMED),
    "empty": (reply(b"{}"), MALFORMED),
    "error with escapes": (refuses(ESCAPES), (ApiError,)),
    "error that is a list": (refuses([1]), (ApiError,)),
    "subject that is no UTF-8": (lambda honest: [b"MSG \xff %s 2\r\n{}\r\n" % honest.sid], GARBLED),
    "status that is no number": (
        reply(b"", b"NATS/1.0 \xff\xff\xff \xff\r\n\r\n"),
        (*GARBLED, ProtocolError),
    ),
    "header of a few bytes": (reply(b"", b"NATS/"), (*GARBLED, ProtocolError)),
}

STATE = changes(
    state__first_seq=(-1, COUNT + 2, COUNT + 1),
    state__last_seq=(-1, 2**64 - 1, INT64_MAX, 10**40, 99.5),
    state__messages=(-1, COUNT + 1),
    state__bytes=(-1,),
    state__num_deleted=(-1, 10**15),
    created=("yesterday", "", "2026-13-01T00:00:00Z"),
    state__last_ts=("noon",),
    ts=("2026-01-01T25:00:00Z",),
)


def rows() -> Iterator[Any]:
    def row(id_: str, name: str, stage: str, lie: Lie, errors: Errors) -> Any:
        # Each of these lasts as long as a time-out, and that of `connect` is short.
        marks = [pytest.mark.full] if id_ in ("drip", "silence") and name != "connect" else []
        return pytest.param(name, stage, lie, errors, id=f"{name}: {stage}: {id_}", marks=marks)

    for id_, lie in HELLO.items():
        yield row(id_, "connect", "hello", lie, NEVER_UP)
    for id_, (lie, errors) in PONG.items():
        yield row(id_, "admin", "pong", lie, errors)
    for id_, lie in BEHIND_PONG.items():
        yield row(id_, "read", "pong", lie, GARBLED)
    for id_, (lie, errors) in REPLY.items():
        asked = {"plan": "STREAM.INFO", "admin": "STREAM.INFO", "read": "CONSUMER.CREATE"}
        for name, stage in {**asked, "plan direct": "STREAM.MSG.GET"}.items():
            yield row(id_, name, stage, lie, errors)
    for id_, lie in STATE.items():
        for name in ("plan", "plan filtered", "direct"):
            yield row(id_, name, "STREAM.INFO", lie, MALFORMED)
    for id_, lie in changes(num_pending=(-1, 2**63, 1.5, None, "7")).items():
        yield row(id_, "read", "CONSUMER.CREATE", lie, MALFORMED)
        yield row(id_, "plan filtered", "CONSUMER.CREATE", lie, MALFORMED)
    message = {
        "message__seq": (-1, 0, 2**64 - 1),
        "message__data": ("%%%",),
        "message__time": ("noon",),
    }
    for id_, lie in changes(message=("m",), **message).items():
        yield row(id_, "plan direct", "STREAM.MSG.GET", lie, MALFORMED)
    for id_, lie, errors in (
        ("time that is a word", delivers(b"$JS.ACK.S.c.1.1.1.noon.0"), MALFORMED),
        ("sequence of 64 bits", delivers(b"$JS.ACK.S.c.1.%d.1.1.0" % (2**64 - 1)), MALFORMED),
        ("pending that is a word", delivers(b"$JS.ACK.S.c.1.1.1.1.many"), MALFORMED),
        ("no reply subject", reply(b"1"), (*GARBLED, ProtocolError)),
        ("sequence in front of the range", delivers(ack(0, 1, 9)), (OutageError, ProtocolError)),
        ("hole", delivers(ack(5, 5, 9)), (OutageError,)),
        ("nothing follows", delivers(ack(1, 1, 0)), (OutageError,)),
        ("status that is not known", status(f"777 {ESCAPES}"), (JetStreamError,)),
        ("end at once", reply(b"", b"NATS/1.0 408 Gone" + LEFT), (OutageError,)),
        ("end without bytes", reply(b"", b"NATS/1.0 408 Gone" + NO_BYTES), (OutageError,)),
        (
            "too large, for ever",
            reply(b"", b"NATS/1.0 409 Message Size Exceeds MaxBytes" + LEFT),
            (OutageError,),
        ),
        ("silence", is_silent, (OutageError,)),
        ("close", hangs_up, (OutageError,)),
        ("drip", drips, (OutageError,)),
    ):
        yield row(id_, "read", "CONSUMER.MSG.NEXT", lie, errors)
    for id_, lie, errors in (
        ("time that is a word", delivers(b"$JS.ACK.S.c.1.1.1.noon.0"), MALFORMED),
        ("sequence of 64 bits", delivers(b"$JS.ACK.S.c.1.%d.1.1.0" % (2**64 - 1)), MALFORMED),
        ("status that is not known", status(f"777 {ESCAPES}"), (JetStreamError,)),
        ("silence", is_silent, (RequestTimeout,)),
    ):
        yield row(id_, "plan filtered", "CONSUMER.MSG.NEXT", lie, errors)
    for id_, lie, errors in (
        ("time that is a word", direct(time="noon"), MALFORMED),
        ("sequence of 64 bits", direct(sequence=str(2**64 - 1)), MALFORMED),
        ("pending that is a word", direct(pending="many"), (OutageError, ProtocolError)),
        ("no status and no message", reply(b"hello"), MALFORMED),
        ("status that is not known", status(f"777 {ESCAPES}"), (JetStreamError,)),
        ("end with escapes", status(f"204 {ESCAPES}"), (OutageError, DataLossError)),
        ("silence", is_silent, (OutageError,)),
        ("close", hangs_up, (OutageError,)),
    ):
        yield row(id_, "direct", "DIRECT.GET", lie, errors)
    for id_, lie, errors in (
        ("no JSON", reply(b"no"), MALFORMED),
        (
            "number that nothing has",
            lambda honest: [b"MSG %s9 %s 2\r\n{}\r\n" % (honest.to, honest.sid)],
            MALFORMED,
        ),
        ("error with escapes", refuses(ESCAPES), (JetStreamError,)),
        ("status with escapes", status(f"400 {ESCAPES}"), (JetStreamError,)),
        ("another stream", reply(f'{{"stream":"{ESCAPES}"x,"seq":1}}'.encode()), MALFORMED),
        ("silence", is_silent, (JetStreamError,)),
        ("close", hangs_up, (OutageError,)),
        ("drip", drips, (JetStreamError,)),
    ):
        yield row(id_, "publish", "publish", lie, errors)


@pytest.mark.parametrize(("name", "stage", "lie", "errors"), list(rows()))
def test_a_lie_ends_in_time_and_in_words(
    server: FakeJetStream,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    stage: str,
    lie: Lie,
    errors: Errors,
) -> None:
    if errors in AT_ONCE:
        # A machine that stands still must not end the try before the lie is heard.
        for option in ("connectTimeout", "requestTimeout"):
            monkeypatch.setitem(HASTE, option, "20s")
    elif stage == "pong":
        monkeypatch.setitem(HASTE, "connectTimeout", "200ms")
    server.lies[stage] = lie
    with pytest.raises(errors) as caught:
        TRIES[name](server.url)
    assert str(caught.value).isprintable(), ascii(str(caught.value))


#: How a server comes to say something: what is tried, at which stage, and what it sends.
WORDS: dict[str, tuple[str, str, Callable[[str], Lie]]] = {
    "refusal of a login": ("admin", "pong", lambda text: says(f"-ERR '{text}'\r\n".encode())),
    "error later": ("plan", "pong", lambda text: after(f"-ERR '{text}'\r\n".encode())),
    "error of the API": ("plan", "STREAM.INFO", refuses),
    "name of the stream": ("plan", "STREAM.INFO", lambda text: changed(config__name=text)),
    "status of a pull": ("read", "CONSUMER.MSG.NEXT", lambda text: status(f"777 {text}")),
    "status of a direct get": ("direct", "DIRECT.GET", lambda text: status(f"777 {text}")),
    "refusal of a row": ("publish", "publish", refuses),
    "status of a row": ("publish", "publish", lambda text: status(f"400 {text}")),
    "stream of a row": (
        "publish",
        "publish",
        lambda text: reply(json.dumps({"stream": text, "seq": 1}).encode()),
    ),
}


@pytest.mark.parametrize("text", ["x" * 900_000, "\U000e0001" * 70_000], ids=["x", "tag"])
@pytest.mark.parametrize(("name", "stage", "lie"), WORDS.values(), ids=WORDS.keys())
def test_no_text_of_a_server_is_longer_than_a_line_of_a_log(
    server: FakeJetStream,
    caplog: pytest.LogCaptureFixture,
    name: str,
    stage: str,
    lie: Callable[[str], Lie],
    text: str,
) -> None:
    caplog.set_level(logging.INFO, "spark_jetstream")
    server.lies[stage] = lie(text)
    texts = []
    try:
        TRIES[name](server.url)
    except JetStreamError as error:
        texts.append(str(error))
    # An answer that comes together with an error of the connection is good: then nothing is raised.
    assert texts or WORDS["error later"] == (name, stage, lie)
    texts += [record.getMessage() for record in caplog.records]
    assert [line[:200] for line in texts if len(line) > LONGEST_TEXT + 400] == []


@pytest.mark.parametrize("name", sorted(TRIES.keys() - {"connect"}))
def test_an_honest_server_is_believed(
    server: FakeJetStream, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for option in HASTE:
        monkeypatch.setitem(HASTE, option, "60s")
    assert TRIES[name](server.url) == {"publish": 10}.get(
        name, 1 if name.startswith("plan") else COUNT
    )


# One inbox


NO_CONNECTION = cast(Registry, SimpleNamespace(login=SimpleNamespace(reconnects=0)))
"""What an inbox needs of a connection that nothing is sent over."""


def messages(size: int) -> Frames:
    [frames] = frames_in([frame("_INBOX.a.1", 1, bytes(size), reply=b"r") * 100], {1})
    return frames


@pytest.mark.parametrize(
    ("event", "size"),
    [
        (lambda: messages(10_000), 1_000_000),
        (lambda: ApiReply(1, b"_INBOX.a.look", bytes(1 << 20)), 1 << 20),
        (lambda: Status(1, b"", 100, "Idle", {"A": "x" * (1 << 20)}), 1 << 20),
        pytest.param(lambda: Status(1, b"", 100, "Idle", {}), 1000, marks=pytest.mark.full),
    ],
    ids=["messages", "replies", "long statuses", "statuses"],
)
def test_an_inbox_takes_no_more_than_its_reader_expects(
    event: Callable[[], Frames | ApiReply | Status], size: int
) -> None:
    inbox = Inbox(NO_CONNECTION, "_INBOX.a")
    inbox.expect(8 << 20)
    most = (LIMITS.inbox + (8 << 20)) // size
    for _ in range(most + 5):
        inbox.put(event())
    for _ in range(most * 9 // 10):
        assert inbox.receive(0, "look") is not None
    with pytest.raises(ProtocolError, match="nobody has asked for"):
        list(iter(lambda: inbox.receive(0, "look"), None))
    assert inbox.receive(0, "look") is None


def test_few_messages_beside_many_for_others_may_wait() -> None:
    """They do not keep the memory of other messages that arrived together with them."""
    inbox = Inbox(NO_CONNECTION, "_INBOX.a", limits=MemoryLimits(inbox=1 << 20))
    others = frame("S.b", 2, bytes(10_000), reply=b"r")
    scanner, incoming = Scanner(), Incoming(1 << 16)
    scanner.collect = {1, 2}
    for number in range(200):
        mine = frame(
            "S.a", 1, b"%d" % number, head=b"NATS/1.0\r\nA: %d\r\n\r\n" % number, reply=b"r"
        )
        incoming.add(others * 3 + mine + others * 3)
        _, run, _ = scanner.read(incoming)
        assert isinstance(run, Frames)
        inbox.put(run)
    runs = [inbox.get(0) for _ in range(200)]
    parts = [part for run in runs if isinstance(run, Frames) for part in run.parts()]
    assert parts == [
        (b"NATS/1.0\r\nA: %d\r\n\r\n" % number, b"%d" % number) for number in range(200)
    ]


def test_an_inbox_that_is_read_takes_any_number() -> None:
    inbox = Inbox(NO_CONNECTION, "_INBOX.a")
    frames = messages(100_000)
    for _ in range(50):
        inbox.put(frames)
        inbox.put(Status(1, b"", 100, "Idle", {}))
        assert (inbox.get(0), inbox.get(0)) != (None, None)
    inbox.put(ApiReply(1, b"_INBOX.a.look", b""))
    with pytest.raises(ConsumerLost, match="has no reply subject and is not a status"):
        inbox.get(0)


# What a server says of itself

HONEST = {
    "version": "2.15.1",
    "max_payload": 1 << 20,
    "connect_urls": ["a:1", "[::1]:4222"],
    "headers": True,
}


def info_line(**fields: Any) -> bytes:
    return b"INFO %s\r\n" % json.dumps({**HONEST, **fields}).encode()


def info_of(line: bytes) -> dict[str, Any]:
    assert line.startswith(b"INFO ")
    assert line.endswith(b"\r\n")
    body: dict[str, Any] = json.loads(line[5:])
    return body


def test_an_honest_info_passes() -> None:
    assert info_of(checked_info(info_line(), first=True)) == HONEST
    assert info_of(checked_info(b'INFO {"ldm":true}\r\n')) == {"ldm": True}
    assert info_of(checked_info(info_line(connect_urls=None))) == {**HONEST, "connect_urls": None}


def test_versions_reach_the_client_library_as_three_numbers() -> None:
    for version in ("2.15.1", "2.12.0-RC.1", "2.10.29-binary", "2.15.0-dev+build.7", "2.1.0-..01"):
        passed_on = info_of(checked_info(info_line(version=version), first=True))["version"]
        assert passed_on == version.partition("-")[0]
        assert ServerVersion(passed_on).major == 2


def test_no_more_than_some_urls_reach_the_client_library() -> None:
    urls = [f"host-{number}:4222" for number in range(5 * MOST_URLS)]
    assert info_of(checked_info(info_line(connect_urls=urls)))["connect_urls"] == urls[:MOST_URLS]


# Floods: in a process of its own, whose memory is measured


FLOODS: dict[str, tuple[str, str, Lie]] = {
    "endless line first": ("plan", "hello", floods(b"")),
    "endless INFO": ("plan", "hello", floods(b'INFO {"a":"')),
    "endless line for PONG": ("plan", "pong", floods(b"")),
    "PINGs for PONG": ("plan", "pong", floods(b"", b"PING\r\n" * 100_000)),
    "endless line later": ("plan", "pong", floods(b"PONG\r\n")),
    "endless INFO later": ("plan", "pong", floods(b'PONG\r\nINFO {"a":"')),
    "PINGs": ("plan", "pong", floods(b"PONG\r\n", b"PING\r\n" * 100_000)),
    "errors": (
        "plan",
        "pong",
        floods(b"PONG\r\n", b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n" * 10_000),
    ),
    "errors of 900 kB": (
        "plan",
        "pong",
        floods(b"PONG\r\n", b"-ERR '%s'\r\n" % (b"\x1b" * 900_000)),
    ),
    "an endless error": ("plan", "pong", floods(b"PONG\r\n-ERR '")),
    "messages for nobody": (
        "plan",
        "pong",
        floods(b"PONG\r\n", b"MSG a 99 5\r\nhello\r\n" * 10_000),
    ),
    "a reply of 900 MB": ("plan", "STREAM.INFO", announced(900_000_000)),
    "a reply of 90 MB": ("plan", "STREAM.INFO", announced(90_000_000)),
    "replies": ("plan", "STREAM.INFO", floods(b"", lambda honest: honest.saying(b"x" * 1000))),
    "a message of 900 MB": ("read", "CONSUMER.MSG.NEXT", announced(900_000_000)),
    "a message of 90 MB": ("read", "CONSUMER.MSG.NEXT", announced(90_000_000)),
    "heartbeats": (
        "read",
        "CONSUMER.MSG.NEXT",
        floods(b"", lambda each: each.saying(b"", b"NATS/1.0 100 Idle\r\n\r\n")),
    ),
    "the same message": (
        "read",
        "CONSUMER.MSG.NEXT",
        floods(b"", lambda each: each.saying(b"1", b"", ack(1, 1, 99))),
    ),
    "a direct get of 900 MB": ("direct", "DIRECT.GET", announced(900_000_000)),
    "direct gets": ("direct", "DIRECT.GET", floods(b"", lambda honest: honest.frames)),
    "an acknowledgement of 900 MB": ("publish", "publish", announced(900_000_000)),
    "acknowledgements": (
        "publish",
        "publish",
        floods(b"", lambda each: each.saying(b'{"stream":"S","seq":1}')),
    ),
    "last sequence 2^62": (
        "plan",
        "STREAM.INFO",
        changed(state__last_seq=2**62, state__messages=2**62),
    ),
    "pending 2^62": ("plan filtered", "CONSUMER.CREATE", changed(num_pending=2**62)),
}


QUICK = "endless line later"


@pytest.mark.parametrize(
    "flood",
    [QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in FLOODS if name != QUICK)],
)
def test_a_flood_takes_little_memory(server: FakeJetStream, flood: str) -> None:
    name, stage, lie = FLOODS[flood]
    server.lies[stage] = lie
    command = [sys.executable, "-m", "tests.client.test_hostile_server", name, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["megabytes"] < MEGABYTES, result


if __name__ == "__main__":
    report(*sys.argv[1:])
