"""Answers to Direct Gets as columns: whole, byte by byte, with trailing bytes, with any header
block that is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.columns import record_batch
from spark_jetstream.protocol.direct_get import (
    DirectBatch,
    EndOfBatch,
    MergedReplies,
    merge,
    read_answers,
)
from spark_jetstream.schema import COLUMNS
from tests.support import wire

SID = 7
INBOX = "_INBOX.abcdef"


def rfc3339_nano(nanoseconds: int) -> str:
    """A time as Go prints it: no zeros at the end of the fraction, and no fraction at all when it
    is zero.
    """
    return str(np.datetime64(nanoseconds, "ns")).rstrip("0").rstrip(".") + "Z"


@dataclass(frozen=True)
class Message:
    """A stored message, and what a server answers of it; `block` is its header block as it was
    published.
    """

    payload: bytes = b"hello"
    block: bytes = b""
    sequence: int = 4
    previous: int = 3
    pending: int = 6
    subject: bytes = b"orders.new"
    timestamp: int = 1_700_000_000_123_456_789
    stream: bytes = b"ORDERS"
    number: int = 1

    @property
    def head(self) -> bytes:
        lines = (
            b"Nats-Stream: " + self.stream,
            b"Nats-Subject: " + self.subject,
            b"Nats-Sequence: %d" % self.sequence,
            b"Nats-Time-Stamp: " + rfc3339_nano(self.timestamp).encode(),
            b"Nats-Num-Pending: %d" % self.pending,
            b"Nats-Last-Sequence: %d" % self.previous,
        )
        return (
            (self.block[:-2] or b"NATS/1.0\r\n")
            + b"".join(line + b"\r\n" for line in lines)
            + b"\r\n"
        )

    @property
    def wire(self) -> bytes:
        return frame(self.head, self.payload, self.number)

    @property
    def row(self) -> tuple[object, ...]:
        text = self.subject.decode("utf-8", "replace")
        return (
            self.number,
            self.stream.decode(),
            self.previous,
            self.sequence,
            self.timestamp,
            text,
            self.payload,
        )


def frame(head: bytes, payload: bytes = b"", number: object = 1) -> bytes:
    return wire.frame(f"{INBOX}.{number}", SID, payload, head)


def answers(chunks: Iterable[bytes]) -> list[DirectBatch | EndOfBatch]:
    return [
        answer
        for frames in wire.frames_in(chunks, {SID}, {SID})
        for answer in read_answers(frames, INBOX)
    ]


def rows(found: Iterable[DirectBatch | EndOfBatch]) -> list[object]:
    """Messages as tuples, endings as they are."""
    out: list[object] = []
    for run in found:
        if isinstance(run, EndOfBatch):
            out.append(run)
        else:
            plain = zip(run.previous.tolist(), *wire.columns(run), strict=True)
            out += [(run.number, run.stream, *row) for row in plain]
    return out


def headers(found: Iterable[object]) -> list[dict[str, list[str]] | None]:
    maps = [
        row for run in found if isinstance(run, DirectBatch) for row in run.headers().to_pylist()
    ]
    return [None if row is None else dict(row) for row in maps]


def numbered(count: int, **fields: object) -> list[Message]:
    message = replace(Message(), **fields)  # type: ignore[arg-type]
    return [
        replace(message, sequence=i + 1, previous=i, pending=count - i - 1) for i in range(count)
    ]


PLAIN = Message()
EOB = frame(b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 6\r\nNats-Last-Sequence: 4\r\n\r\n")
END = EndOfBatch(1, 204, "EOB", 4, 6)
BLOCK = b"NATS/1.0\r\nX: 1\r\n\r\n"

CASES: dict[str, list[Message]] = {
    "one": [PLAIN],
    "own headers": [Message(block=BLOCK)],
    "own headers and none": [PLAIN, Message(block=BLOCK), PLAIN],
    "payload is a frame": [Message(PLAIN.wire), Message(EOB * 2), PLAIN],
    "payload is the six lines": [Message(PLAIN.head), PLAIN],
    "subject outside ASCII": [Message(subject="größe.日本.🙂".encode())],
    "subject that is not UTF-8": [Message(subject=b"a.\xff\xfe")],
    "subject like a header": [Message(subject=b"Nats-Subject:.x")],
    "short names": [Message(stream=b"S", subject=b"a")],
    "stream outside ASCII": [Message(stream="größe".encode())],
    "a stream called like the line": [Message(stream=b"Nats-Stream:")],
    "large numbers": [Message(sequence=2**63 - 1, previous=2**63 - 2, pending=2**63 - 1)],
    "numbers of every length": [Message(sequence=10**n, previous=10**n - 1) for n in range(19)],
    "several requests": [
        Message(number=1),
        Message(number=1),
        Message(number=2),
        Message(number=33),
    ],
    "several streams": [Message(number=1), Message(number=2, stream=b"MIRROR")],
    "many": numbered(100),
    "times": [
        Message(timestamp=t)
        for t in (0, 1, 10**9, 10**9 + 1, 1_700_000_000_100_000_000, 2**63 - 1, -1, -(10**9))
    ],
}


@pytest.mark.parametrize("messages", CASES.values(), ids=CASES.keys())
def test_messages_come_out_as_they_went_in(messages: list[Message]) -> None:
    data = b"".join(message.wire for message in messages)
    expected: list[object] = [*(message.row for message in messages), END]
    for chunks in ([data + EOB], [data, EOB], wire.by_byte(data + EOB)):
        assert rows(answers(chunks)) == expected


STATUSES = {
    b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 6\r\nNats-Last-Sequence: 4\r\n\r\n": END,
    b"NATS/1.0 404 Message Not Found\r\n\r\n": EndOfBatch(1, 404, "Message Not Found", None, None),
    b"NATS/1.0 408 Bad Request\r\n\r\n": EndOfBatch(1, 408, "Bad Request", None, None),
    b"NATS/1.0 503\r\n\r\n": EndOfBatch(1, 503, "", None, None),
    b"NATS/1.0 503\r\nNats-Subject: $JS.API.DIRECT.GET.S\r\n\r\n": EndOfBatch(
        1, 503, "", None, None
    ),
    b"NATS/1.0 204\r\nNats-Num-Pending: x\r\nNats-Last-Sequence: %d\r\n\r\n" % 10**30: EndOfBatch(
        1, 204, "", None, None
    ),
}


@pytest.mark.parametrize(("block", "expected"), STATUSES.items())
def test_statuses(block: bytes, expected: EndOfBatch) -> None:
    data = PLAIN.wire + frame(block) + replace(PLAIN, number=2).wire
    for chunks in ([data], wire.by_byte(data)):
        assert rows(answers(chunks)) == [PLAIN.row, expected, replace(PLAIN, number=2).row]
    assert rows(answers([frame(block)])) == [expected]
    assert rows(answers([frame(block) * 10])) == [expected] * 10


#: Answers of nats-server 2.15.1 as they are sent: to a batch, and to one about last messages.
SENT: tuple[bytes, ...] = (
    b"HMSG _INBOX.abcdef.21 7 174 177\r\nNATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Stream: S\r\n"
    b"Nats-Subject: s.a\r\nNats-Sequence: 1\r\nNats-Time-Stamp: 2026-11-29T22:05:05.814272276Z\r\n"
    b"Nats-Num-Pending: 4\r\nNats-Last-Sequence: 0\r\n\r\none\r\n"
    b"HMSG _INBOX.abcdef.21 7 164 164\r\nNATS/1.0\r\nX: 1\r\nNats-Stream: S\r\n"
    b"Nats-Subject: s.b\r\nNats-Sequence: 2\r\nNats-Time-Stamp: 2026-11-29T22:05:06.617598297Z\r\n"
    b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 1\r\n\r\n\r\n"
    b"HMSG _INBOX.abcdef.21 7 64 64\r\nNATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\n"
    b"Nats-Last-Sequence: 2\r\n\r\n\r\n",
    b"HMSG _INBOX.abcdef.22 7 222 224\r\nNATS/1.0\r\nNats-Batch-Id: u\r\nNats-Batch-Sequence: 2\r\n"
    b"Nats-Batch-Commit: 1\r\nNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: 5\r\n"
    b"Nats-Time-Stamp: 2026-11-29T22:05:11.889727804Z\r\nNats-Num-Pending: 0\r\n"
    b"Nats-Last-Sequence: 2\r\n\r\nb2\r\n"
    b"HMSG _INBOX.abcdef.22 7 87 87\r\nNATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n"
    b"Nats-Last-Sequence: 5\r\nNats-UpTo-Sequence: 5\r\n\r\n\r\n",
    b"HMSG _INBOX.abcdef.23 7 34 34\r\nNATS/1.0 404 Message Not Found\r\n\r\n\r\n",
    b"HMSG _INBOX.abcdef.24 7 30 30\r\nNATS/1.0 408 Empty Request\r\n\r\n\r\n",
    b"HMSG _INBOX.abcdef.26 7 34 34\r\nNATS/1.0 408 Malformed Request\r\n\r\n\r\n",
)
SENT_ROWS: tuple[list[object], ...] = (
    [
        (21, "S", 0, 1, 1_795_989_905_814_272_276, "s.a", b"one"),
        (21, "S", 1, 2, 1_795_989_906_617_598_297, "s.b", b""),
        EndOfBatch(21, 204, "EOB", 2, 3),
    ],
    [
        (22, "S", 2, 5, 1_795_989_911_889_727_804, "s.a", b"b2"),
        EndOfBatch(22, 204, "EOB", 5, 0, 5),
    ],
    [EndOfBatch(23, 404, "Message Not Found", None, None)],
    [EndOfBatch(24, 408, "Empty Request", None, None)],
    [EndOfBatch(26, 408, "Malformed Request", None, None)],
)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), slice(0, 1), slice(1, 2)])
@pytest.mark.parametrize("trailing", [b"", b"PONG\r\n", SENT[0][:200], SENT[2][:-1]])
def test_answers_of_a_server_are_read_whole_and_byte_by_byte(order: slice, trailing: bytes) -> None:
    data = b"".join(SENT[order])
    expected = [row for rows_of in SENT_ROWS[order] for row in rows_of]
    for chunks in ([data + trailing], [data, trailing], wire.by_byte(data + trailing)):
        assert rows(answers(chunks)) == expected


def test_the_lines_that_a_server_adds_are_no_headers_of_the_message() -> None:
    batch = {"Nats-Batch-Id": ["u"], "Nats-Batch-Sequence": ["2"], "Nats-Batch-Commit": ["1"]}
    assert headers(answers(SENT)) == [{"Nats-Msg-Id": ["1"]}, {"X": ["1"]}, batch]


#: The lines of the end of an answer, and what it says in `last`, `pending` and `up_to`.
ENDS: dict[str, tuple[bytes, tuple[int | None, int | None, int | None]]] = {
    "any blanks and order": (
        b"Nats-Last-Sequence: 9\r\nNats-UpTo-Sequence:7\r\nNats-Num-Pending:  0\r\n",
        (9, 0, 7),
    ),
    "lower case, a zero in front, an empty value": (
        b"nats-last-sequence: 9\r\nNats-Num-Pending: 01\r\nNats-UpTo-Sequence: \r\n",
        (None, 1, None),
    ),
    "63 bits and more": (
        b"Nats-Last-Sequence: 9223372036854775807\r\nNats-Num-Pending: 9223372036854775808\r\n",
        (2**63 - 1, None, None),
    ),
    "signs and a point": (
        b"Nats-Last-Sequence: -9\r\nNats-Num-Pending: +1\r\nNats-UpTo-Sequence: 1.0\r\n",
        (None, None, None),
    ),
    "a name twice": (
        b"Nats-Last-Sequence: 1\r\nNats-Last-Sequence: 2\r\nNats-Subject: a: b\r\n",
        (2, None, None),
    ),
}


@pytest.mark.parametrize(("lines", "said"), ENDS.values(), ids=ENDS)
def test_an_end_says_the_numbers_that_are_numbers(
    lines: bytes, said: tuple[int | None, int | None, int | None]
) -> None:
    end = frame(b"NATS/1.0 204 EOB\r\n" + lines + b"\r\n")
    assert rows(answers([end])) == [EndOfBatch(1, 204, "EOB", *said)]


#: An answer, and the error that it is.
ERRORS: dict[str, tuple[bytes, str]] = {
    "a server before 2.11 that is asked for a batch": (
        b"HMSG _INBOX.abcdef.1 7 120 120\r\nNATS/1.0\r\nX: 1\r\nNats-Stream: S\r\n"
        b"Nats-Subject: s.b\r\nNats-Sequence: 2\r\n"
        b"Nats-Time-Stamp: 2026-11-29T22:05:06.617598297Z\r\n\r\n\r\n",
        "a direct get was answered neither with a message of a batch nor with a status: is the "
        "stream on a server older than 2.11?",
    ),
    "a negative sequence": (
        frame(PLAIN.head.replace(b"Last-Sequence: 3", b"Last-Sequence: -3")),
        "a direct get was answered with sequences that are not numbers",
    ),
    "61 seconds": (
        frame(PLAIN.head.replace(b"22:13:20", b"22:13:61")),
        "a direct get was answered with a time that cannot be read",
    ),
    "two streams": (
        PLAIN.wire + replace(PLAIN, stream=b"ORDERT").wire,
        "a direct get was answered without the name of the stream, or by more than one stream",
    ),
    "another subject": (
        frame(PLAIN.head, number="1.2"),
        "an answer arrived at a subject that belongs to no request",
    ),
}


@pytest.mark.parametrize(("data", "error"), ERRORS.values(), ids=ERRORS)
def test_a_malformed_answer_is_the_same_error_whole_and_among_others(
    data: bytes, error: str
) -> None:
    for chunks in ([data], [PLAIN.wire * 40 + data], [data + PLAIN.wire * 40]):
        with pytest.raises(ProtocolError, match=f"^{re.escape(error)}$"):
            rows(answers(chunks))


#: Header blocks as publishers send them, and servers store them without a word.
BLOCKS: dict[str, tuple[bytes, dict[str, list[str]] | None]] = {
    "none": (b"", None),
    "empty": (b"NATS/1.0\r\n\r\n", None),
    "a status line": (b"NATS/1.0 404 Message Not Found\r\n\r\n", None),
    "an end of batch": (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\n\r\n",
        {"Nats-Num-Pending": ["0"], "Nats-Last-Sequence": ["1"]},
    ),
    "the same names": (
        b"NATS/1.0\r\nNats-Stream: X\r\nNats-Sequence: 77\r\n\r\n",
        {"Nats-Stream": ["X"], "Nats-Sequence": ["77"]},
    ),
    "the whole six": (
        Message(sequence=99, stream=b"OTHER", timestamp=0).head,
        {
            "Nats-Stream": ["OTHER"],
            "Nats-Subject": ["orders.new"],
            "Nats-Sequence": ["99"],
            "Nats-Time-Stamp": ["1970-01-01T00:00:00Z"],
            "Nats-Num-Pending": ["6"],
            "Nats-Last-Sequence": ["3"],
        },
    ),
    "no empty line": (b"NATS/1.0\r\nX: 12\r\n", {"X": ["12"]}),
    "no line end": (b"NATS/1.0\r\nX: 1234", {"X": ["12"]}),  # the server cuts two bytes off
    "the name of the next line at its end": (
        b"NATS/1.0\r\nX: Nats-Stream: \r\n",
        {"X": ["Nats-Stream:"]},
    ),
    "bare line feeds": (b"NATS/1.0\r\nX: 1\nY: 2\n\n", {"X": ["1\nY: 2"]}),
    "an empty line within": (b"NATS/1.0\r\nX: 1\r\n\r\nY: 2\r\n\r\n", {"X": ["1"], "Y": ["2"]}),
    "no colon": (b"NATS/1.0\r\nnonsense\r\n\r\n", None),
    "no version": (b"\r\nA: 12\r\n\r\n", {"A": ["12"]}),
    "as long as the version": (b"\r\nA: 123\r\n\r\n", {"A": ["123"]}),
    "garbage": (b"garbage", None),
    "one byte": (b"x", None),
    "two bytes": (b"\r\n", None),
    "a status without an end": (b"NATS/1.0 404 X", None),
}


@pytest.mark.parametrize(("block", "expected"), BLOCKS.values(), ids=BLOCKS.keys())
def test_a_header_block_as_it_was_stored(
    block: bytes, expected: dict[str, list[str]] | None
) -> None:
    message, around = Message(block=block), Message(block=BLOCK)
    for messages in ([message], [around, message, PLAIN, around], [PLAIN, message, message]):
        found = answers([b"".join(each.wire for each in messages) + EOB])
        assert rows(found) == [*(each.row for each in messages), END]
        assert headers(found) == [
            expected if each is message else {"X": ["1"]} if each is around else None
            for each in messages
        ]


def without(line: bytes) -> bytes:
    return b"".join(
        each for each in PLAIN.head.splitlines(keepends=True) if not each.startswith(line)
    )


MALFORMED = {
    "no header": frame(b"", b"{}"),
    "an error in JSON": frame(b"", b'{"error":{"code":400}}'),
    "a status with a payload": frame(b"NATS/1.0 204 EOB\r\n\r\n", b"x"),
    "a status without code": frame(b"NATS/1.0\r\n\r\n"),
    "a code of two digits": frame(b"NATS/1.0 20 EOB\r\n\r\n"),
    "a status that does not end": frame(b"NATS/1.0 204 EOB\r\n"),
    "not a batch": frame(b"".join(PLAIN.head.splitlines(keepends=True)[:5]) + b"\r\n", b"hello"),
    "not a batch, and a stored status": frame(
        b"".join([b"NATS/1.0 204 EOB\r\n", *PLAIN.head.splitlines(keepends=True)[1:5], b"\r\n"])
    ),
    **{
        f"without {line.decode()}": frame(without(line))
        for line in (b"Nats-Str", b"Nats-Sub", b"Nats-Seq", b"Nats-T")
    },
    "in another order": frame(without(b"Nats-Str")[:-2] + b"Nats-Stream: S\r\n\r\n"),
    "words for numbers": frame(PLAIN.head.replace(b"Sequence: 4", b"Sequence: x")),
    "a sequence over 63 bits": frame(PLAIN.head.replace(b"Sequence: 4", b"Sequence: %d" % 2**63)),
    "no sequence": frame(PLAIN.head.replace(b"Nats-Sequence: 4", b"Nats-Sequence: ")),
    "no subject": frame(PLAIN.head.replace(b"orders.new", b"")),
    "no stream": frame(PLAIN.head.replace(b"ORDERS", b"")),
    "no time": frame(PLAIN.head.replace(b"2023-11-14T22:13:20.123456789Z", b"")),
    "no such time": frame(PLAIN.head.replace(b"2023-11-14", b"2023-02-30")),
    "a time without a zone": frame(PLAIN.head.replace(b"789Z", b"789")),
    "a time of ten digits": frame(PLAIN.head.replace(b"789Z", b"7890Z")),
    "a time that is not UTF-8": frame(PLAIN.head.replace(b"789Z", b"\xff")),
    "bare line feeds": frame(PLAIN.head.replace(b"\r\n", b"\n")),
    "a line feed without its carriage return": frame(
        PLAIN.head.replace(b"Sequence: 4\r", b"Sequence: 4x")
    ),
    "no empty line": frame(PLAIN.head[:-2]),
    "two streams in one answer": PLAIN.wire + replace(PLAIN, stream=b"ORDER2").wire,
    "no number": frame(PLAIN.head, number=""),
    "a word for the number": frame(PLAIN.head, number="x"),
}
if (
    int(pa.__version__.partition(".")[0]) > 22
):  # older ones read another time; no server has such a time
    MALFORMED["a time too far away"] = frame(PLAIN.head.replace(b"2023-11-14", b"9999-11-14"))


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_answers_are_a_protocol_error(data: bytes) -> None:
    for chunks in ([data], [PLAIN.wire + data], [data + PLAIN.wire]):
        with pytest.raises(ProtocolError):
            rows(answers(chunks))


def test_a_slice() -> None:
    messages = [
        replace(message, block=BLOCK if at % 3 else b"") for at, message in enumerate(numbered(50))
    ]
    [whole] = answers([b"".join(message.wire for message in messages)])
    assert isinstance(whole, DirectBatch)
    for part in (slice(0, 10), slice(7, 8), slice(20, None)):
        assert rows([whole[part]]) == [message.row for message in messages[part]]
        assert headers([whole[part]]) == headers([whole])[part]
    assert [whole[at : at + 1].pending() for at in (0, 49)] == [49, 0]
    batch = record_batch(whole, stream="ORDERS", columns=[column.name for column in COLUMNS])
    assert batch.column("sequence").to_pylist() == list(range(1, 51))


# Put together


def runs_of(messages: list[Message], sizes: Iterable[int]) -> Iterator[DirectBatch]:
    left = iter(messages)
    for size in sizes:
        for run in answers([b"".join(message.wire for message in islice(left, size))]):
            assert isinstance(run, DirectBatch)
            yield run


@given(
    st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 7), min_size=60, max_size=60)
)
def test_runs_read_apart_come_in_the_order_of_the_stream(
    owners: list[int], sizes: list[int]
) -> None:
    stored = [
        Message(b"%d" % at, BLOCK if at % 2 else b"", at + 1, at, subject=b"s.%d" % owner)
        for at, owner in enumerate(owners)
    ]
    readers = [
        runs_of([m for m in stored if m.subject == b"s.%d" % owner], sizes[owner:])
        for owner in range(4)
    ]
    found: list[tuple[object, ...]] = []
    for run in merge(readers):
        found += zip(
            *wire.columns(run), [row is not None for row in run.headers().to_pylist()], strict=True
        )
    assert found == [
        (m.sequence, m.timestamp, m.subject.decode(), m.payload, bool(m.block)) for m in stored
    ]


def test_no_more_is_read_ahead_than_one_run_of_each() -> None:
    taken = [0, 0]

    def reader(owner: int) -> Iterator[DirectBatch]:
        for number in range(20):
            taken[owner] += 1
            yield from runs_of([Message(sequence=2 * number + owner + 1)], [1])

    for number, run in enumerate(merge([reader(0), reader(1)]), start=1):
        assert run.sequences.tolist() == [number]
        assert sum(taken) <= number + 1
    assert taken == [20, 20]
    first = next(
        merge([runs_of([Message(sequence=n), Message(sequence=n + 2)], [2]) for n in (1, 2)])
    )
    assert isinstance(first, MergedReplies)
    assert first.sequences.tolist() == [1, 2, 3]
