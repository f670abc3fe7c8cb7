"""Targets that read the wire: frames, acknowledgement subjects, header blocks, Direct Gets, publish
acknowledgements.

Targets with several messages take records: messages apart by ``\\x1e``, their parts by ``\\x1f``.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import nats.errors
import numpy as np
from nats.protocol.parser import MAX_CONTROL_LINE_SIZE, Parser

from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.buckets.kv import key_of, keys, operation, operations
from spark_jetstream.client.greeting import plain_error
from spark_jetstream.errors import JetStreamError, ProtocolError
from spark_jetstream.protocol.ack_subject import parse_ack
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.counters import SOURCES, counter_batch, counter_sources, counter_value
from spark_jetstream.protocol.direct_get import DirectBatch, EndOfBatch, read_answers
from spark_jetstream.protocol.headers import decode_headers
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.jsapi import pull_status
from spark_jetstream.protocol.pub_ack import AckReader, Outcome, outcome, reason
from spark_jetstream.protocol.server_info import checked_info
from spark_jetstream.protocol.wire import Event, Frames, Scanner, Status
from spark_jetstream.sink.kv import is_marker
from spark_jetstream.streams.dead_letters import read_dead_letters
from tests.fuzz.engine import target
from tests.support.wire import Made, answers, columns, frame, scanned

DATA, ACKS, SIDS = 1, 3, (1, 2, 3)
INBOX = "_INBOX.x"
_CONTROL = (
    b"MSG a 1 0\r\n\r\n",
    b"HMSG a 2 12 12\r\n",
    b"PING\r\n",
    b"+OK\r\n",
    b"-ERR 'x'\r\n",
    b"INFO {}\r\n",
)
_ACK = (
    b"$JS.ACK.S.c.1.2.3.4.5",
    b"$JS.ACK._.hash.S.c.1.2.3.4.5.x",
    b"$JS.ACK.",
    b"9223372036854775808",
    b"1700000000000000000",
)
_HEADS = (
    b"NATS/1.0\r\n",
    b"\r\n\r\n",
    b"A: 1\r\n",
    b": ",
    b"NATS/1.0 503\r\n\r\n",
    b"Nats-Msg-Id: ",
    b"KV-Operation: DEL\r\n",
    b"KV-Operation: PUT\r\n",
)
_RECORDS = (b"\x1e", b"\x1f")
_ADDED = (
    b"Nats-Stream: %s\r\nNats-Subject: %s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %s\r\n"
    b"Nats-Num-Pending: 1\r\nNats-Last-Sequence: 3\r\n\r\n"
)

_NAMES = re.compile(
    rb"Nats-Stream: .+\r\nNats-Subject: [^ \r]+\r\nNats-Sequence: .+\r\nNats-Time-Stamp: .+\r\nNats-N"
)


def blocks_of(data: bytes) -> list[bytes]:
    """The messages: no more than are of use."""
    return data.split(b"\x1e")[:8]


def records(data: bytes) -> list[list[bytes]]:
    """The parts of each message."""
    return [block.split(b"\x1f") for block in blocks_of(data)]


def pieces_of(data: bytes) -> list[bytes]:
    """The same bytes in pieces whose places depend on nothing else."""
    random = Random(zlib.crc32(data))
    places = sorted(random.randint(0, len(data)) for _ in range(random.randint(1, 12)))
    return [data[start:end] for start, end in pairwise([0, *places, len(data)])]


def or_refused(work: Callable[[], Any]) -> Any:
    """Return the result of a function, or the class `ProtocolError` in place of this error."""
    try:
        return work()
    except ProtocolError:
        return ProtocolError


# Frames


def seen(events: Iterable[Event]) -> list[object]:
    """Events in a form that does not depend on where the bytes were cut."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Frames):
            replies = (event.reply_subject(index) for index in range(len(event)))
            found += [
                (event.sid, *answer, reply)
                for answer, reply in zip(answers(event), replies, strict=True)
            ]
        elif isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


class _Recorder:
    """Stands in for nats-py's client: writes down what its parser understood."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes, str, bytes, bytes]] = []
        self.lines: list[str] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, header: bytes | None
    ) -> None:
        self.messages.append(
            (
                sid,
                bytes(subject),
                bytes(reply or b"").decode("utf-8", "replace"),
                header or b"",
                data,
            )
        )

    async def _process_ping(self) -> None:
        self.lines.append("PING")

    async def _process_pong(self) -> None:
        self.lines.append("PONG")

    async def _process_err(self, text: str) -> None:
        self.lines.append("-ERR")

    async def _process_info(self, info: object) -> None:
        self.lines.append("INFO")


def _driven(work: Coroutine[Any, Any, None]) -> bool:
    """Return whether a coroutine that waits for nothing ended without an error."""
    try:
        work.send(None)
    except StopIteration:
        return True
    except (nats.errors.Error, ValueError, AttributeError):
        return False
    raise AssertionError("a parser waits")


def _read_by_both(data: bytes) -> None:
    """Ours finds the messages and control lines that nats-py's parser finds."""
    ours, theirs, scanner, incoming = _Recorder(), _Recorder(), Scanner(), Incoming()
    incoming.add(data)
    scanner.collect = scanner.whole = {DATA}
    # What is not collected comes as the bytes that it was: complete frames and lines.
    inner, alone = Parser(ours), Parser(theirs)
    try:
        events = scanner.read(incoming)
    except ProtocolError:
        return
    for event in events:
        if isinstance(event, Frames):
            for index, (subject, head, payload, _) in enumerate(answers(event)):
                reply = event.reply_subject(index)
                ours.messages.append((event.sid, subject, reply, head, payload))
        elif not isinstance(event, bytes):
            raise AssertionError(f"{event} is a message")
        elif not _driven(inner.parse(_readable(event))):
            return
    # After a longer line that it cannot read, nats-py waits until its pings have no answer.
    is_short = len(inner.buf) < MAX_CONTROL_LINE_SIZE
    assert not inner.buf or not is_short, f"nats-py waits for more than {bytes(inner.buf[:80])!r}"
    # nats-py takes other bytes for blanks as well, which a server does not.
    if (
        not re.search(rb"[\t\x0b\x0c]|\r(?!\n)", data)
        and len(data) < MAX_CONTROL_LINE_SIZE
        and _driven(alone.parse(data))
    ):
        # Ours waits for a payload where nats-py's takes a line end for a blank in a control line.
        assert ours.messages == theirs.messages[: len(ours.messages) if len(incoming) else None]
        assert ours.lines == theirs.lines[: len(ours.lines) if len(incoming) else None]


def _readable(frames: bytes) -> bytes:
    """A line of a server as nats-py reads it."""
    if frames.startswith(b"INFO"):
        with contextlib.suppress(ProtocolError):
            return checked_info(frames)
    return plain_error(frames) if frames.startswith(b"-ERR") else frames


def _scan(data: bytes) -> None:
    whole = or_refused(lambda: seen(scanned([data], SIDS, (ACKS,))))
    assert or_refused(lambda: seen(scanned(pieces_of(data), SIDS, (ACKS,)))) == whole
    if len(data) < 500:
        assert (
            or_refused(
                lambda: seen(scanned([data[at : at + 1] for at in range(len(data))], SIDS, (ACKS,)))
            )
            == whole
        )
    for status in whole if isinstance(whole, list) else ():
        if isinstance(status, Status):
            with contextlib.suppress(JetStreamError):
                pull_status(status, "S")
    _read_by_both(data)


@target("wire", *_CONTROL, b"HMSG ", b"MSG ", b" 96000000\r\n")
def wire(data: bytes) -> None:
    """Any bytes, whole and in pieces: the same events, or both times an error."""
    _scan(data)


@target("frames", *_RECORDS, *_CONTROL, *_ACK, *_HEADS)
def frames(data: bytes) -> None:
    """Frames with the right lengths: subject, subscription, reply subject, header block, payload."""
    built = b""
    for parts in records(data):
        subject, sid, reply, head, payload = (*parts, b"", b"", b"", b"", b"")[:5]
        built += frame(subject, sid.decode("latin-1"), payload, head, reply)
    _scan(built * (1 + 99 * data.startswith(b"many")))


@target("acks", b"\n", *_ACK)
def acks(data: bytes) -> None:
    """Reply subjects, a line each: the numbers that a slow reader finds, or an error."""
    replies = data.split(b"\n")
    wanted = [_slow_ack(reply) for reply in replies]
    if any(set(reply) & set(b" \r") or not reply for reply in replies):
        return
    [run] = scanned(
        [b"".join(frame("a.b", DATA, b"", b"", reply) for reply in replies)], {DATA}, {DATA}
    )
    assert isinstance(run, Frames)

    def rows() -> list[tuple[int, ...]]:
        numbers = Acks(run)
        stored = zip(numbers.sequences().tolist(), numbers.timestamps().tolist(), strict=True)
        return [*stored, numbers.consumer_sequences(), (numbers.pending(),)]

    found = or_refused(rows)
    known = [numbers for numbers in wanted if numbers is not None]
    if len(known) == len(
        wanted
    ):  # else it depends on which number is none: `Acks` reads some of them only
        assert found == [
            *(each[1:4:2] for each in known),
            (known[0][2], known[-1][2]),
            (known[-1][4],),
        ]
    for reply, numbers in zip(replies, wanted, strict=True):
        ack = or_refused(lambda reply=reply: parse_ack(reply.decode("utf-8", "replace")))  # type: ignore[misc]
        if numbers is None or b"" in reply.split(b"."):
            assert ack is ProtocolError
        else:
            assert (*ack[2:5], ack.time.nanoseconds, ack.pending) == numbers


def _slow_ack(reply: bytes) -> tuple[int, ...] | None:
    tokens = reply.split(b".")
    if len(tokens) > 10:
        tokens = tokens[:2] + tokens[4:]
    elif len(tokens) != 9:
        return None
    numbers = tokens[4:9]
    if reply[:8] != b"$JS.ACK." or not all(
        token.isdigit() and len(token) < 20 and int(token) < 2**63 for token in numbers
    ):
        return None
    return tuple(map(int, numbers))


# Header blocks


def _decoded(blocks: Sequence[bytes], gap: bytes = b"") -> list[Any]:
    starts = np.cumsum([0, *(len(block) + len(gap) for block in blocks)])[:-1]
    column = decode_headers(
        gap.join(blocks) + gap, starts, np.array([len(block) for block in blocks], np.int64)
    )
    column.validate(full=True)
    maps: list[Any] = column.to_pylist()
    codes = operations(column)
    done = [operation(dict(row or {})) for row in maps]
    assert [
        ("PUT", "DELETE", "PURGE")[code]
        for code in (codes if codes is not None else [0] * len(maps))
    ] == done
    return maps


def slow_headers(block: bytes) -> list[tuple[str, list[str]]] | None:
    """The headers of a block, read one after the other."""
    found: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.strip(b" \t"):
            texts = [text.strip(b" \t").decode("utf-8", "replace") for text in (name, value)]
            found.setdefault(texts[0], []).append(texts[1])
    return list(found.items()) or None


@target("headers", *_RECORDS, *_HEADS)
def headers(data: bytes) -> None:
    """Header blocks: together, alone, with something in between, and by a slow reader alike."""
    blocks = blocks_of(data)
    wanted = [slow_headers(block) for block in blocks]
    assert _decoded(blocks) == wanted
    assert _decoded(blocks, b"\nA: 1\r") == wanted
    assert [_decoded([block])[0] for block in blocks] == wanted
    for block, rows in zip(blocks, wanted, strict=True):
        assert StoredMessage(subject="a", seq=1, hdrs=block).headers == dict(rows or [])
        assert is_marker(block) == (operation(dict(rows or [])) != "PUT")


# Direct Gets


def _direct(data: bytes) -> list[Any]:
    found: list[Any] = []
    for run in scanned([data], {DATA}, {DATA}):
        for answer in read_answers(run, INBOX) if isinstance(run, Frames) else ():
            if isinstance(answer, EndOfBatch):
                found.append(answer)
            elif isinstance(answer, DirectBatch):
                texts = zip(*columns(answer), answer.headers().to_pylist(), strict=True)
                found += [(answer.number, answer.stream, *row) for row in texts]
                assert [answer[at : at + 1].pending() >= 0 for at in range(len(answer))]
    return found


@target(
    "direct_get",
    *_RECORDS,
    *_HEADS,
    b"Nats-Stream: S\r\n",
    b"Nats-Num-Pending: 1\r\n",
    b"NATS/1.0 204 EOB\r\n",
    _ADDED,
)
def direct_get(data: bytes) -> None:
    """Answers: together what each gives alone, and of one message what the reader of single ones
    gives.
    """
    built = [
        frame(f"{INBOX}.{number}", DATA, payload[0] if payload else b"", head)
        for number, (head, *payload) in enumerate(records(data))
    ]
    alone = [or_refused(lambda one=one: _direct(one)) for one in built]  # type: ignore[misc]
    expected = ProtocolError if ProtocolError in alone else [row for rows in alone for row in rows]
    assert or_refused(lambda: _direct(b"".join(built))) == expected
    for (head, *_), rows in zip(records(data), alone, strict=True):
        one = or_refused(lambda head=head: StoredMessage.from_direct(head, b""))  # type: ignore[misc]
        # The reader of many looks only at the end of a name, which a server writes.
        if (
            rows is not ProtocolError
            and rows
            and isinstance(rows[0], tuple)
            and _NAMES.search(head)
        ):
            assert one is not ProtocolError, f"no message to one reader: {head!r}"
            _, stream, sequence, _, subject, _, found = rows[0]
            assert (one.stream, one.seq, one.subject) == (stream, sequence, subject)
            assert one.headers == dict(found or [])


@target("stored_block", *_RECORDS, *_HEADS, b"Nats-Stream: S\r\n", b"Nats-Sequence: 4\r\n")
def stored_block(data: bytes) -> None:
    """Stored header blocks, as a server answers with them: the columns of a pull consumer and of
    Direct Gets agree.
    """
    for block in blocks_of(data):
        if len(block) < 2:
            continue
        answer = block[:-2] + _ADDED % (b"S", b"a.b", 4, b"2023-11-14T22:13:20.123456789Z")
        [row] = _direct(frame(f"{INBOX}.1", DATA, b"", answer))
        *rest, found = row
        assert rest == [1, "S", 4, 1_700_000_000_123_456_789, "a.b", b""]
        whole = block[:-2] + b"\r\n"
        [run] = scanned([frame("a.b", DATA, b"", whole, b"$JS.ACK.S.c.1.4.1.1.0")], {DATA})
        assert isinstance(run, Frames)
        numbers = Acks(run)
        delivered = Delivered(run, numbers, numbers.sequences()).headers().to_pylist()
        if block.endswith(b"\r\n\r\n"):
            assert [found] == delivered == _decoded([block])


@target("keys", b"$KV.B.", b"$KV..", b"\n", b"\x1e", b".")
def keys_of_buckets(data: bytes) -> None:
    """Subjects of a bucket's messages: the keys that one after the other has."""
    subjects = [subject.decode("utf-8", "replace") for subject in blocks_of(data)]
    made = Made([(subject, b"", None) for subject in subjects])
    alone = or_refused(lambda: [key_of(subject, 1) for subject in subjects])
    assert or_refused(lambda: keys(made).to_pylist()) == alone


@target(
    "counters", *_RECORDS, b'{"val":"-5"}', b'{"S":{"a.b":"3"}}', b'"', b"0" * 20, b"\\ud800", b" "
)
def counters(data: bytes) -> None:
    """Payloads and sources of counters: what each says alone, or an error if a payload holds no
    value.
    """
    payloads = [parts[0] for parts in records(data)]
    texts = [
        parts[1].decode("utf-8", "replace") if len(parts) > 1 else None for parts in records(data)
    ]
    heads = [None if text is None else {"A": ["1"], SOURCES: [text, "{}"]} for text in texts]
    made = Made([("a.b", payload, head) for payload, head in zip(payloads, heads, strict=True)])
    alone = or_refused(lambda: [counter_value("S", 1, payload) for payload in payloads])
    assert (
        or_refused(lambda: counter_batch(made, stream="S", columns=["value"]).column(0).to_pylist())
        == alone
    )
    [found] = counter_batch(made, stream="S", columns=["sources"]).columns
    shown = [
        each if each is None else {name: dict(values) for name, values in each}
        for each in found.to_pylist()
    ]
    assert shown == [text if text is None else counter_sources(text) for text in texts]


@target(
    "dead_letters",
    b'"type":"io.nats.jetstream.advisory.v1.max_deliver"',
    b'"stream":"S"',
    b'"deliveries":1',
)
def dead_letters(data: bytes) -> None:
    """Any client can publish in place of an advisory: a row, or an error.

    No server is asked for these columns.
    """
    names = ("stream", "sequence", "consumer", "kind", "reason", "deliveries", "given_up", "domain")
    nobody: Any = None
    with contextlib.suppress(JetStreamError):
        [batch] = read_dead_letters(nobody, "S", [(1, data)], names)
        batch.validate(full=True)
        [row] = batch.to_pylist()
        assert (row["stream"], row["sequence"] > 0, row["deliveries"] > 0) == ("S", True, True)
        assert row["consumer"]
        assert row["given_up"]


# Acknowledgements of publishes


def _answers(reader: AckReader, data: bytes) -> tuple[list[object], list[object]]:
    stored: list[object] = []
    refused: list[object] = []
    for run in scanned([data], {ACKS}, {ACKS}):
        assert isinstance(run, Frames)
        found = reader.read(run)
        for acks in found.stored:
            rows = zip(
                acks.numbers.tolist(), acks.sequences.tolist(), acks.duplicate.tolist(), strict=True
            )
            stored += [(number, acks.stream, acks.domain, *row) for number, *row in rows]
        refused += found.refused
    for refusal in refused:
        assert isinstance(outcome(refusal), Outcome)  # type: ignore[arg-type]
        assert reason(refusal, {})  # type: ignore[arg-type]
    return sorted(stored, key=repr), sorted(refused, key=repr)


@target(
    "pub_ack",
    *_RECORDS,
    b'{"stream":"S","seq":1}',
    b',"duplicate": true}',
    b',"val":"-5"}',
    b'\\"',
    b'"domain":"d",',
    b'"error":{"code":503}',
    b"NATS/1.0 503\r\n\r\n",
)
def pub_ack(data: bytes) -> None:
    """Acknowledgements, payload and header block each: together, and again, what each says alone."""
    parts = [
        (number, payload, head[0] if head else b"")
        for number, (payload, *head) in enumerate(records(data), 1)
    ]
    built = [frame(f"{INBOX}.{number}", ACKS, payload, head) for number, payload, head in parts]
    alone = [or_refused(lambda one=one: _answers(AckReader(INBOX), one)) for one in built]  # type: ignore[misc]
    reader = AckReader(INBOX)
    together = [or_refused(lambda: _answers(reader, b"".join(built))) for _ in range(2)]
    if ProtocolError in alone:
        assert together == [ProtocolError] * 2
        return
    expected = tuple(
        sorted((row for rows in alone for row in rows[part]), key=repr) for part in (0, 1)
    )
    assert together == [expected] * 2
