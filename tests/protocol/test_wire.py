"""The wire scanner: whole, byte by byte, with trailing bytes.

The fuzz targets cut frames anywhere, and compare with nats-py's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol import wire
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.wire import ApiReply, Frames, Status
from tests.support.wire import Answer, answers, by_byte, columns, frame, frames_in, scanned

DATA, OTHER, ACKS = 7, 3, 5


@dataclass(frozen=True)
class Message:
    """A stream's message on the wire, in either form of the reply subject."""

    subject: bytes
    payload: bytes
    header: bytes = b""
    sequence: int = 1
    consumer: int = 1
    timestamp: int = 1_700_000_000_123_456_789
    pending: int = 0
    version2: bool = False
    sid: int = DATA

    @property
    def reply(self) -> bytes:
        middle = b"_.szMpdrwD." if self.version2 else b""
        tail = b".extra" if self.version2 else b""
        numbers = b"1.%d.%d.%d.%d" % (self.sequence, self.consumer, self.timestamp, self.pending)
        return b"$JS.ACK.%sORDERS.c-1.%s%s" % (middle, numbers, tail)

    @property
    def wire(self) -> bytes:
        return frame(self.subject, self.sid, self.payload, self.header, self.reply)

    @property
    def row(self) -> tuple[object, ...]:
        return (
            self.sequence,
            self.timestamp,
            self.subject.decode("utf-8", "replace"),
            self.payload,
            self.header,
        )


@dataclass
class Seen:
    rows: list[tuple[object, ...]] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    replies: list[ApiReply] = field(default_factory=list)
    other: bytes = b""


def scan(
    chunks: Iterable[bytes], collect: Collection[int] = (DATA,), whole: Collection[int] = ()
) -> Seen:
    seen = Seen()
    for event in scanned(chunks, collect, whole):
        if isinstance(event, bytes):
            seen.other += event
        elif isinstance(event, Status):
            seen.statuses.append(event)
        elif isinstance(event, ApiReply):
            seen.replies.append(event)
        elif event.sid in whole:
            assert event.payloads().to_pylist() == [payload for _, _, payload, _ in answers(event)]
            seen.answers += answers(event)
        else:
            seen.rows += rows(event)
    return seen


def delivered(frames: Frames) -> Delivered:
    acks = Acks(frames)
    return Delivered(frames, acks, acks.sequences())


def rows(frames: Frames) -> list[tuple[object, ...]]:
    headers = [header for _, header, _, _ in answers(frames)]
    return list(zip(*columns(delivered(frames)), headers, strict=True))


HEADER = b"NATS/1.0\r\nA: 1\r\nStatus: 404\r\n\r\n"
PLAIN = Message(b"orders.new", b"hello")
CASES = {
    "one": [PLAIN],
    "empty payload": [Message(b"a", b"")],
    "header and no payload": [Message(b"a", b"", HEADER)],
    "header and payload": [Message(b"a", b"x", HEADER)],
    "headers mixed with none": [PLAIN, Message(b"a", b"x", HEADER), PLAIN],
    "second form of the reply": [
        Message(b"a.b.c", b"x", version2=True),
        Message(b"a", b"", HEADER, version2=True),
    ],
    "both forms": [PLAIN, Message(b"a", b"x", version2=True)],
    "payload is a frame": [Message(b"a", b"MSG a 7 5\r\nhello\r\n"), PLAIN],
    "payload is a whole message": [Message(b"a", PLAIN.wire), Message(b"b", PLAIN.wire * 3), PLAIN],
    "payload begins like a frame": [
        Message(b"a", b"\nMSG a 7 99999999\r\n"),
        Message(b"b", b"MSG "),
        PLAIN,
    ],
    "payload is an ack subject": [Message(b"a", b"$JS.ACK.ORDERS.c-1.1.2.3.4.5"), PLAIN],
    "lone CR and LF": [
        *(Message(b"a", payload) for payload in (b"\r", b"\n", b"\r\n", b"\n\r")),
        PLAIN,
    ],
    "control words in the payload": [
        Message(b"a", b"PING\r\n-ERR 'x'\r\n+OK\r\nINFO {}\r\n"),
        PLAIN,
    ],
    "header like a status": [
        Message(b"a", b"", b"NATS/1.0 404 No Messages\r\nStatus: 404\r\n\r\n")
    ],
    "subject outside ASCII": [Message("größe.日本.🙂".encode(), b"x"), PLAIN],
    "subject with odd characters": [Message(b"$KV.b.k-_/=.$x.!#%&'", b"x")],
    "subject that is not UTF-8": [Message(b"a.\xff\xfe", b"x"), PLAIN],
    "subject like a number": [Message(b"1.2.3.4.5.6.7.8.9.10", b"x")],
    "large numbers": [
        Message(
            b"a", b"x", sequence=2**63 - 1, consumer=10**18, timestamp=2**63 - 1, pending=10**17
        )
    ],
    "numbers of every length": [Message(b"a", b"x" * n, sequence=10**n) for n in range(19)],
    "long payloads": [Message(b"a", b"x" * 5000), Message(b"b", bytes(range(256)) * 300), PLAIN]
    * 3,
    "many": [Message(b"s.%d" % (i % 7), b"p" * (i % 50), sequence=i + 1) for i in range(100)],
}
TRAILING = {
    "nothing": b"",
    "a ping": b"PING\r\n",
    "half a line": b"MSG a 7 $JS.ACK.ORD",
    "half a payload": b"MSG a 7 $JS.ACK.S.c.1.1.1.1.0 100\r\nabc",
    "one byte": b"M",
}


def passing(trailing: bytes) -> bytes:
    """The part of `TRAILING` that the scanner passes on: only the ping is complete."""
    return trailing if trailing == TRAILING["a ping"] else b""


@pytest.mark.parametrize("trailing", TRAILING.values(), ids=TRAILING.keys())
@pytest.mark.parametrize("messages", CASES.values(), ids=CASES.keys())
def test_messages_come_out_as_they_went_in(messages: list[Message], trailing: bytes) -> None:
    data = b"".join(message.wire for message in messages)
    expected = Seen([message.row for message in messages], other=passing(trailing))
    for chunks in ([data + trailing], [data, trailing], by_byte(data + trailing)):
        assert scan(chunks) == expected


STATUSES = {
    b"NATS/1.0 404 No Messages\r\n\r\n": (404, "No Messages", {}),
    b"NATS/1.0 503\r\n\r\n": (503, "", {}),
    b"NATS/1.0 408 Request Timeout\r\nA: 5\r\nB-C: 70\r\n\r\n": (
        408,
        "Request Timeout",
        {"A": "5", "B-C": "70"},
    ),
}


@pytest.mark.parametrize(("block", "expected"), STATUSES.items())
def test_a_status_is_told_by_its_line_and_missing_reply(
    block: bytes, expected: tuple[int, str, dict[str, str]]
) -> None:
    data = PLAIN.wire + frame(b"_INBOX.abc.4", DATA, b"", block) + PLAIN.wire
    for chunks in ([data], by_byte(data)):
        assert scan(chunks) == Seen(
            [PLAIN.row, PLAIN.row], [Status(DATA, b"_INBOX.abc.4", *expected)]
        )


@pytest.mark.parametrize(
    "payload", [b'{"created": "x"}', b"", b"NATS/1.0 503\r\n\r\n", b"MSG a 7 2\r\nab\r\n"]
)
def test_a_message_without_reply_and_headers_answers_a_request(payload: bytes) -> None:
    data = PLAIN.wire + 2 * frame(b"_INBOX.abc.look", DATA, payload) + PLAIN.wire
    for chunks in ([data], by_byte(data), [data, b"PI"]):
        assert scan(chunks) == Seen(
            [PLAIN.row, PLAIN.row], replies=[ApiReply(DATA, b"_INBOX.abc.look", payload)] * 2
        )


OTHERS = [
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n",
    b'INFO {"server_id":"x","connect_urls":["a:1"]}\r\n',
    b'INFO {"server_id":"NDUW5","version":"2.15.1","api_lvl":5,"xkey":"XAUJ","new":[{}]} \r\n',
    b"-ERR 'Unknown Protocol Operation'\r\n",
    b"-ERR\r\n",
    b"PING \t\r\n",
    b"+OK \r\n",
    frame(b"_INBOX.r.1", OTHER, b"{}"),
    frame(b"_INBOX.r.2", OTHER, b"", b"NATS/1.0 503\r\n\r\n"),
    Message(b"x", b"y", HEADER, sid=OTHER).wire,
    frame(b"x", 77, b"abc", reply=b"reply.to.somebody"),
]


@pytest.mark.parametrize("other", OTHERS)
def test_frames_that_are_not_collected_pass_unchanged_and_in_order(other: bytes) -> None:
    data = PLAIN.wire * 3 + other + PLAIN.wire * 2 + other + other
    for chunks in ([data], by_byte(data), [data[:100], data[100:]]):
        assert scan(chunks) == Seen([PLAIN.row] * 5, other=other * 3)


MALFORMED = {
    "unknown line": b"HELLO\r\n",
    "more than a ping": b"PING" + b"x" * 5000 + b"\r\n",
    "lower case": b"msg a 7 r 1\r\nx\r\n",
    "no size": b"MSG a 7 reply \r\n\r\n",
    "size is a word": b"MSG a 7 reply five\r\nhello\r\n",
    "negative size": b"MSG a 7 reply -5\r\nhello\r\n",
    "size too large": b"MSG a 7 reply 99999999999\r\n",
    "absurd size": b"MSG a 7 reply " + b"9" * 400 + b"\r\n",
    "size too small": b"MSG a 7 $JS.ACK.S.c.1.1.1.1.0 3\r\nhello\r\n",
    "bare LF behind the line": b"MSG a 7 $JS.ACK.S.c.1.1.1.1.0 5\nhello\r\n",
    "bare LF behind a control line": b"PING\n",
    "too many parts": b"MSG a b 7 $JS.ACK.S.c.1.1.1.1.0 5\r\nhello\r\n",
    "too few parts": b"MSG abcdefg 5\r\nhello\r\n",
    "two spaces": b"MSG  7 $JS.ACK.S.c.1.1.1.1.0 5\r\nhello\r\n",
    "sid is a word": b"MSG a seven $JS.ACK.S.c.1.1.1.1.0 5\r\nhello\r\n",
    "header larger than the message": b"HMSG a 7 $JS.ACK.S.c.1.1.1.1.0 50 5\r\nhello\r\n",
    "header size is a word": b"HMSG a 7 $JS.ACK.S.c.1.1.1.1.0 x 5\r\nhello\r\n",
    "headers, no reply and no status": b"HMSG a 7 20 25\r\nNATS/1.0\r\nA: b c\r\n\r\nhello\r\n",
    "a status with a payload": b"HMSG a 7 16 21\r\nNATS/1.0 503\r\n\r\nhello\r\n",
    "reply of somebody else": b"MSG a 7 reply.to 5\r\nhello\r\n",
    "ten tokens": b"MSG a 7 $JS.ACK.S.c.1.1.1.1.0.1 5\r\nhello\r\n",
    "another prefix": b"MSG a 7 $KV.ACK.S.c.1.1.1.1.0 5\r\nhello\r\n",
    "words for numbers": b"MSG a 7 $JS.ACK.S.c.1.x.1.1.0 5\r\nhello\r\n",
    "a time over 63 bits": b"MSG a 7 $JS.ACK.S.c.1.1.1.%d.0 5\r\nhello\r\n" % 2**63,
    "a sequence over 63 bits": b"MSG a 7 $JS.ACK.S.c.1.%d.1.1.0 5\r\nhello\r\n" % 2**63,
    "long line": b"PING" + b" " * wire.MAX_LINE + b"\r\n",
    "endless line": b"MSG " + b"a" * (wire.MAX_LINE + 1),
}


@pytest.mark.parametrize("pending", [b"x", b"-1", b"\xc2\xb2", b"1 ", b"%d" % 2**63, b"9" * 5000])
def test_the_number_of_one_message_is_checked(pending: bytes) -> None:
    good, bad = (
        b"MSG a 7 $JS.ACK.S.c.1.1.1.1.%s 5\r\nhello\r\n" % number
        for number in (b"%d" % (2**63 - 1), pending)
    )
    assert [Acks(event).pending() for event in frames_in([good], [DATA])] == [2**63 - 1]
    with pytest.raises(ProtocolError):
        _ = [Acks(event).pending() for event in frames_in([bad], [DATA])]


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frames_are_a_protocol_error(data: bytes) -> None:
    chunked = [data] if len(data) > wire.MAX_LINE else by_byte(data)
    for chunks in ([data], chunked, [PLAIN.wire + data], [PLAIN.wire + data + PLAIN.wire]):
        with pytest.raises(ProtocolError):
            scan(chunks)


@pytest.mark.parametrize(
    "data",
    [
        *(b"MSG %s 5000\r\n%s\r\n" % (line, b"x" * 5000) for line in (b"a seven", b"a b c 7")),
        b"HMSG a 7 50 5\r\nhello\r\n",
    ],
)
def test_malformed_frames_that_nats_py_would_wait_for_are_a_protocol_error(data: bytes) -> None:
    for chunks in ([data], by_byte(data), [data + b"PING\r\n"]):
        with pytest.raises(ProtocolError):
            scan(chunks, collect=())


def test_the_largest_message_is_waited_for_and_a_larger_one_refused() -> None:
    assert list(scanned([b"MSG a 7 %d\r\n" % wire.MAX_FRAME], [DATA])) == []
    with pytest.raises(ProtocolError, match="announced a message of"):
        list(scanned([b"MSG a 7 %d\r\n" % (wire.MAX_FRAME + 1)], [DATA]))


#: Frames of a pull as nats-server 2.15.1 sends them, and others that ADR-13, ADR-15 and ADR-42
#: allow, with the subject, code, description and headers of the status.
FRAMES: dict[str, tuple[bytes, tuple[bytes, int, str, dict[str, str]]]] = {
    "no messages": (
        b"HMSG i.32 7 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n",
        (b"i.32", 404, "No Messages", {}),
    ),
    "too large": (
        b"HMSG i.30 7 95 95\r\nNATS/1.0 409 Message Size Exceeds MaxBytes\r\n"
        b"Nats-Pending-Messages: 1\r\nNats-Pending-Bytes: 5\r\n\r\n\r\n",
        (
            b"i.30",
            409,
            "Message Size Exceeds MaxBytes",
            {"Nats-Pending-Messages": "1", "Nats-Pending-Bytes": "5"},
        ),
    ),
    "timeout": (
        b"HMSG i.33 7 82 82\r\nNATS/1.0 408 Request Timeout\r\n"
        b"Nats-Pending-Messages: 20\r\nNats-Pending-Bytes: 0\r\n\r\n\r\n",
        (
            b"i.33",
            408,
            "Request Timeout",
            {"Nats-Pending-Messages": "20", "Nats-Pending-Bytes": "0"},
        ),
    ),
    "heartbeat": (
        b"HMSG i.33 7 75 75\r\nNATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n"
        b"Nats-Last-Stream: 5\r\n\r\n\r\n",
        (b"i.33", 100, "Idle Heartbeat", {"Nats-Last-Consumer": "5", "Nats-Last-Stream": "5"}),
    ),
    "stalled": (
        b"HMSG i 7 75 75\r\nNATS/1.0 100 Idle Heartbeat\r\n"
        b"Nats-Consumer-Stalled: $JS.FC.S.p.wBXVhkQR\r\n\r\n\r\n",
        (b"i", 100, "Idle Heartbeat", {"Nats-Consumer-Stalled": "$JS.FC.S.p.wBXVhkQR"}),
    ),
    "nobody listens": (
        b"HMSG i.20 7 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n",
        (b"i.20", 503, "", {"Nats-Subject": "nobody"}),
    ),
    "wrong pin": (
        b"HMSG i 7 37 37\r\nNATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n\r\n",
        (b"i", 423, "Nats-Pin-Id mismatch", {}),
    ),
    "blanks and a colon in the words": (
        b"HMSG i 7 30 30\r\nNATS/1.0  413  Too: large \r\n\r\n\r\n",
        (b"i", 413, "Too: large", {}),
    ),
    "a header twice, one without a colon, one without a name": (
        b"HMSG i 7 41 41\r\nNATS/1.0 404\r\nA:1\r\nA: b:c d \r\nno\r\n: x\r\n\r\n\r\n",
        (b"i", 404, "", {"A": "b:c d", "": "x"}),
    ),
    "not UTF-8": (
        b"HMSG i 7 29 29\r\nNATS/1.0 409 \xc3\xb6\xff\r\n\xc3\xb6: \xc3\xb6\xff\r\n\r\n\r\n",
        (b"i", 409, "ö\ufffd", {"ö": "ö\ufffd"}),
    ),
}
#: As many plain messages as the scanner reads in bulk.
BULK = [replace(PLAIN, sequence=number) for number in range(1, 81)]


@pytest.mark.parametrize("trailing", TRAILING.values(), ids=TRAILING.keys())
@pytest.mark.parametrize(("data", "found"), FRAMES.values(), ids=FRAMES)
def test_a_status_frame_of_a_server_is_read_whole_cut_and_behind_a_bulk(
    data: bytes, found: tuple[bytes, int, str, dict[str, str]], trailing: bytes
) -> None:
    status = Status(DATA, *found)
    expected = Seen([PLAIN.row], [status, status], other=passing(trailing))
    for chunks in (
        [data + data + PLAIN.wire + trailing],
        by_byte(data * 2 + PLAIN.wire + trailing),
    ):
        assert scan(chunks) == expected
    bulk = b"".join(message.wire for message in BULK)
    assert scan([bulk + data + bulk + trailing]) == Seen(
        [message.row for message in BULK * 2], [status], other=passing(trailing)
    )


#: Header blocks that are no status.
NO_STATUS = [
    b"",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 20\r\n\r\n",
    b"NATS/1.0 2044\r\n\r\n",
    b"NATS/1.0 -04\r\n\r\n",
    b"NATS/1.0404\r\n\r\n",
    b"NATS/1.1 404\r\n\r\n",
    b"nats/1.0 404\r\n\r\n",
    b" NATS/1.0 404\r\n\r\n",
    b"NATS/1.0 404\n\n",
    b"NATS/1.0 404\rX\r\n\r\n",
    b"NATS/1.0 404\r\n\r\nA: 1\r\n\r\n",
    b"NATS/1.0 404\r\nA: 1\nB: 2\r\n\r\n",
    b"NATS/1.0 \xd9\xa4\xd9\xa0\xd9\xa4\r\n\r\n",
]


@pytest.mark.parametrize("block", NO_STATUS)
def test_a_block_that_only_resembles_a_status_is_none(block: bytes) -> None:
    assert wire.parse_status(block) is None
    if block:
        with pytest.raises(
            ProtocolError, match=r"^the server answered a pull request with a message that"
        ):
            scan([frame("i", DATA, b"", block)])


@pytest.mark.parametrize(("data", "found"), FRAMES.values(), ids=FRAMES)
def test_a_status_block_that_is_cut_or_goes_on_is_none(
    data: bytes, found: tuple[bytes, int, str, dict[str, str]]
) -> None:
    block = data.partition(b"\r\n")[2][:-2]
    status = wire.parse_status(block)
    assert status is not None
    assert tuple(status) == found[1:]
    for other in (*(block[:end] for end in range(len(block))), block + b"\r\n", block + b"x"):
        assert wire.parse_status(other) is None


CANNOT = "a message's control line cannot be read: "
LENGTH = "a message on the wire is not followed by a line end: its length is wrong"
NAMES = CANNOT + "no subject or no subscription id"
HEAD = "a message's header size cannot be read or is larger than the message"
PARTS = "a message's control line has too many or too few parts"
#: A line or frame, and the error that it is.
ERRORS: dict[bytes, str] = {
    **{
        line: f"the server sent a line of no known kind: {line!r}"
        for line in (
            *(b"ping\r\n", b"Pong\r\n", b"+ok\r\n", b"-err 'x'\r\n", b"info {}\r\n", b"+OKAY\r\n"),
            *(b"\r\n", b" PING\r\n", b"PINGPONG\r\n", b"PING PONG\r\n", b"ERR 'x'\r\n", b"MSG\r\n"),
            *(
                b"hmsg a 7 r 14 14\r\n",
                b"MSG\ta 7 5\r\n",
                b"PUB a 5\r\n",
                b"\xff\xfe\r\n",
                b"\x00\r\n",
            ),
        )
    },
    **dict.fromkeys(
        (b"PONG\n", b"+OK \n", b"-ERR 'x'\n", b"INFO {}\n"),
        "a control line on the wire does not end with CR LF",
    ),
    b"MSG a 7 r -5\r\nhello\r\n": CANNOT + r"b'MSG a 7 r -5\r'",
    b"MSG a 7 r +5\r\nhello\r\n": CANNOT + r"b'MSG a 7 r +5\r'",
    b"MSG a 7 r 5 \r\nhello\r\n": CANNOT + r"b'MSG a 7 r 5 \r'",
    b"MSG a 7 r 5\nhello\r\n": CANNOT + r"b'MSG a 7 r 5'",
    b"MSG a 7 r \xb2\r\nhello\r\n": CANNOT + r"b'MSG a 7 r \xb2\r'",
    b"MSG a 7 r 4\r\nhello\r\n": LENGTH,
    b"MSG a 7 r 5\r\nhello\n\r": LENGTH,
    b"MSG a 7 r 100663297\r\n": "the server announced a message of 100663297 bytes, more than 100,663,296",
    b"MSG a 7 r s 5\r\nhello\r\n": PARTS,
    b"MSG a 7  r 5\r\nhello\r\n": PARTS,
    b"MSG abcdefg 5\r\nhello\r\n": PARTS,
    b"HMSG a 70 14\r\nNATS/1.0\r\n\r\n  \r\n": PARTS,
    b"HMSG a 7 r s 12 12\r\nNATS/1.0\r\n\r\n\r\n": PARTS,
    b"MSG  7 r 5\r\nhello\r\n": NAMES,
    b"MSG a -7 r 5\r\nhello\r\n": NAMES,
    b"HMSG a 7 r 13 12\r\nNATS/1.0\r\n\r\n\r\n": HEAD,
    b"HMSG a 7 r -1 12\r\nNATS/1.0\r\n\r\n\r\n": HEAD,
}


@pytest.mark.parametrize("data", ERRORS)
def test_a_malformed_line_is_the_same_error_whole_cut_and_behind_a_bulk(data: bytes) -> None:
    bulk = b"".join(message.wire for message in BULK)
    for chunks in ([data], by_byte(data), [PLAIN.wire + data], [bulk + data], [bulk, data]):
        with pytest.raises(ProtocolError, match=f"^{re.escape(ERRORS[data])}$"):
            scan(chunks)


def ack(
    number: int, payload: bytes, header: bytes = b"", reply: bytes = b"", sid: int = ACKS
) -> bytes:
    """The answer to publish `number`."""
    return frame(f"_INBOX.a.b.{number}", sid, payload, header, reply)


NOBODY = b"NATS/1.0 503\r\n\r\n"


def scan_whole(chunks: Iterable[bytes]) -> Seen:
    return scan(chunks, (ACKS, DATA), (ACKS,))


# Subscriptions without statuses


STORED = b'{"stream":"ORDERS","seq":24}'
ANSWERS = {
    "stored": [(1, STORED, b"", b"")],
    "nobody listens": [(12, b"", NOBODY, b"")],
    "with a reply": [(1, b"x", HEADER, b"to.me")],
    "nothing at all": [(1, b"", b"", b"")],
    "an answer in an answer": [(1, ack(2, STORED), b"", b"")],
    "all of them": [
        (8, STORED, b"", b""),
        (9, b"", NOBODY, b""),
        (11, b"y", b"", b"r"),
        (12, STORED, b"", b""),
    ],
}


@pytest.mark.parametrize("trailing", TRAILING.values(), ids=TRAILING.keys())
@pytest.mark.parametrize("sent", ANSWERS.values(), ids=ANSWERS.keys())
def test_without_statuses_everything_is_a_message(
    sent: list[tuple[int, bytes, bytes, bytes]], trailing: bytes
) -> None:
    data = b"".join(ack(*answer) for answer in sent)
    expected = [
        (b"_INBOX.a.b.%d" % number, header, payload, bool(reply))
        for number, payload, header, reply in sent
    ]
    for chunks in ([data + trailing], [data, trailing], by_byte(data + trailing)):
        assert scan_whole(chunks) == Seen(answers=expected, other=passing(trailing))


def test_acknowledgements_come_as_one_run_that_can_be_cut() -> None:
    wires = [
        ack(number, *((b"", NOBODY) if number % 50 == 0 else (STORED,))) for number in range(1, 500)
    ]
    [frames] = frames_in([b"".join(wires)], {ACKS}, {ACKS})
    assert len(frames) == len(wires)
    assert (frames.reply_dots == -1).all()
    some = frames[100:103]
    assert len(some) == 3
    assert answers(some) == answers(frames)[100:103]


HEADER_CASES = {
    "one": ([b"A: 1"], {"A": ["1"]}),
    "no blank": ([b"A:1"], {"A": ["1"]}),
    "blanks around": ([b" A\t: \t 1 \t"], {"A": ["1"]}),
    "thousands of blanks": ([b" \t" * 15_000 + b"A:" + b"\t " * 15_000], {"A": [""]}),
    "empty value": ([b"A:", b"B: "], {"A": [""], "B": [""]}),
    "colons in the value": ([b"A: b:c: d"], {"A": ["b:c: d"]}),
    "repeated": ([b"A: 1", b"B: x", b"A: 2", b"A: 1"], {"A": ["1", "2", "1"], "B": ["x"]}),
    "case matters": ([b"a: 1", b"A: 2"], {"a": ["1"], "A": ["2"]}),
    "names of statuses": (
        [b"Status: 503", b"Description: x"],
        {"Status": ["503"], "Description": ["x"]},
    ),
    "outside ASCII": (["Größe: 日本".encode()], {"Größe": ["日本"]}),
    "not UTF-8": ([b"A: \xff"], {"A": ["\ufffd"]}),
    "lone line feed": ([b"A: 1\n2"], {"A": ["1\n2"]}),
    "lone carriage return": ([b"A: 1\r2"], {"A": ["1\r2"]}),
    "no colon": ([b"nonsense", b"A: 1"], {"A": ["1"]}),
    "no name": ([b": 1", b" : 2", b"A: 1"], {"A": ["1"]}),
    "none": ([], None),
    "only nonsense": ([b"nonsense"], None),
}
ENDS = {"as it should": b"\r\n\r\n", "one line end": b"\r\n", "none": b"", "half": b"\r"}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(("lines", "expected"), HEADER_CASES.values(), ids=HEADER_CASES.keys())
def test_headers_become_a_map_of_lists(
    lines: list[bytes], expected: dict[str, list[str]] | None, end: bytes
) -> None:
    block = b"\r\n".join([b"NATS/1.0", *lines]) + end
    if end == b"\r":  # belongs to no line end, so to the last value
        block = b"\r\n".join([b"NATS/1.0", *lines, b"Z: z"]) + end
        expected = {**(expected or {}), "Z": ["z\r"]}
    around = Message(b"a", b"x", b"NATS/1.0\r\nOuter: 1\r\n\r\n")
    message = Message(b"a", b"payload: 1\r\n", block)
    for messages in ([message], [around, message, PLAIN, around], [PLAIN, message, message]):
        [frames] = frames_in([b"".join(each.wire for each in messages)], {DATA})
        found = [
            None if row is None else dict(row) for row in delivered(frames).headers().to_pylist()
        ]
        assert found == [
            expected if each is message else {"Outer": ["1"]} if each is around else None
            for each in messages
        ]
