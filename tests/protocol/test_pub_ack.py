"""Answers to publishes: as a server writes them, and damaged.

The fuzz target reads them together, and alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.pub_ack import AckReader, Refusal, is_undecided
from tests.support import wire

INBOX = "_INBOX.abcdef.7"
SID = 4

#: (number, stream, sequence, whether it had been stored before)
Stored = tuple[int, str, int, bool]


def frame(number: int, payload: bytes, block: bytes = b"", inbox: str = INBOX) -> bytes:
    return wire.frame(f"{inbox}.{number}", SID, payload, block)


def read_answers(
    chunks: Iterable[bytes], reader: AckReader | None = None
) -> tuple[list[Stored], list[Refusal]]:
    reader = reader or AckReader(INBOX)
    stored: list[Stored] = []
    refused: list[Refusal] = []
    for answers in map(reader.read, wire.frames_in(chunks, {SID}, {SID})):
        refused += answers.refused
        for some in answers.stored:
            assert some.numbers.dtype == some.sequences.dtype == np.int64
            assert some.duplicate.dtype == np.bool_
            numbers, sequences = some.numbers.tolist(), some.sequences.tolist()
            stored += [
                (number, some.stream, sequence, again)
                for number, sequence, again in zip(
                    numbers, sequences, some.duplicate.tolist(), strict=True
                )
            ]
    return sorted(stored), sorted(refused, key=lambda refusal: refusal.number)


STORED: dict[str, tuple[bytes, tuple[str, int, bool]]] = {
    "plain": (b'{"stream":"S","seq":1}', ("S", 1, False)),
    "duplicate": (b'{"stream":"S","seq":2,"duplicate": true}', ("S", 2, True)),
    "large": (b'{"stream":"S","seq":9223372036854775807}', ("S", 2**63 - 1, False)),
    "large duplicate": (
        b'{"stream":"S","seq":123456789012345678,"duplicate": true}',
        ("S", 123456789012345678, True),
    ),
    "domain": (b'{"stream":"S","domain":"D","seq":3}', ("S", 3, False)),
    "domain and duplicate": (
        b'{"stream":"S","domain":"D","seq":4,"duplicate": true}',
        ("S", 4, True),
    ),
    "outside ASCII": ('{"stream":"Straße","seq":5}'.encode(), ("Straße", 5, False)),
    "escapes": (b'{"stream":"Stra\\u00dfe","seq":6,"duplicate": true}', ("Straße", 6, True)),
    "quotes": (b'{"stream":"a\\"b<&\\u2028","seq":7}', ('a"b<&\u2028', 7, False)),
    "a name that looks like an answer": (
        b'{"stream":"S\\",\\"seq\\":99}","seq":8}',
        ('S","seq":99}', 8, False),
    ),
    "a name that ends like another": (b'{"stream":"SS","seq":9}', ("SS", 9, False)),
    "counter": (b'{"stream":"CNT","seq":10,"val":"3"}', ("CNT", 10, False)),
    "large counter": (
        b'{"stream":"S","domain":"D","seq":9223372036854775807,"val":"-%s"}' % (b"9" * 99),
        ("S", 2**63 - 1, False),
    ),
    "counter and duplicate": (
        b'{"stream":"S","seq":19,"val":"3","duplicate": true}',
        ("S", 19, True),
    ),
    "counter with more": (b'{"stream":"S","seq":20,"val":"3","more":"4"}', ("S", 20, False)),
    "a counter that is no number": (
        b'{"stream":"S","seq":21,"val":"\\",\\"val\\":\\"5"}',
        ("S", 21, False),
    ),
    "a name that ends like a counter": (
        b'{"stream":"S\\",\\"val\\":\\"","seq":22}',
        ('S","val":"', 22, False),
    ),
    "batch": (b'{"stream":"S","seq":11,"batch":"x","count":3}', ("S", 11, False)),
    "batch of another": (b'{"stream":"T","seq":12,"batch":"x","count":3}', ("T", 12, False)),
    "spaces": (b' {"stream" : "S", "seq" : 13 , "duplicate" : true } ', ("S", 13, True)),
    "another order": (b'{"seq":14,"stream":"S"}', ("S", 14, False)),
    "told not to be a duplicate": (b'{"stream":"S","seq":15,"duplicate": false}', ("S", 15, False)),
    "duplicate in front": (b'{"duplicate": true,"stream":"S","seq":16}', ("S", 16, True)),
    "another word as long": (b'{"stream":"S","seq":18,"duplicatE": true}', ("S", 18, False)),
    "fields of a newer server": (
        b'{"stream":"S","seq":23,"new":{"seq":1},"list":[{"stream":"T"}]}',
        ("S", 23, False),
    ),
    "negative counter": (b'{"stream":"C","seq":2,"val":"-2"}', ("C", 2, False)),
    "a counter of zero": (b'{"stream":"C","seq":24,"val":"0"}', ("C", 24, False)),
    "an empty domain": (b'{"stream":"S","domain":"","seq":25}', ("S", 25, False)),
    "a sequence twice": (b'{"stream":"S","seq":1,"seq":26}', ("S", 26, False)),
    "the longest name": (b'{"stream":"%s","seq":27}' % (b"x" * 255), ("x" * 255, 27, False)),
    "line end behind": (b'{"stream":"S","seq":28}\r\n', ("S", 28, False)),
    "a null error": (b'{"error":null,"stream":"S","seq":17}', ("S", 17, False)),
}
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: orders.new\r\n\r\n"
REFUSED: dict[str, tuple[bytes, bytes, tuple[int, int, str]]] = {
    "wrong sequence": (
        b"",
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"S","seq":0}',
        (400, 10071, "wrong last sequence: 3"),
    ),
    "full": (
        b"",
        b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"D","seq":0}',
        (503, 10077, "maximum messages exceeded"),
    ),
    "without the rest": (b"", b'{"error":{"code":503}}', (503, 0, "")),
    "status of a counter before its JSON": (
        b"NATS/1.0 400 Bad\r\n\r\n",
        b'{"error":{"code":400,"err_code":10169,"description":"message counter increment is missing"},"stream":"C","seq":0}',
        (400, 10169, "message counter increment is missing"),
    ),
    "another stream": (
        b"",
        b'{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"},"stream":"S","seq":0}',
        (400, 10060, "expected stream does not match"),
    ),
    "an incomplete batch": (
        b"",
        b'{"error":{"code":400,"err_code":10176,"description":"atomic publish batch is incomplete"},"stream":"S","seq":0}',
        (400, 10176, "atomic publish batch is incomplete"),
    ),
    "words on two lines": (
        b"",
        b'{"error":{"code":400,"err_code":10210,"description":"a\\n\\u001bb: \\"\xc3\xb6\\""}}',
        (400, 10210, "\\n".join(("a", '\\x1bb: "ö"'))),
    ),
    "the largest codes": (
        b"",
        b'{"error":{"code":9223372036854775807,"err_code":9223372036854775807}}',
        (2**63 - 1, 2**63 - 1, ""),
    ),
    "no responders": (NO_RESPONDERS, b"", (503, 0, "")),
    "no responders before 2.15": (b"NATS/1.0 503\r\n\r\n", b"", (503, 0, "")),
    "another status": (
        b"NATS/1.0 412 Required Api Level\r\n\r\n",
        b"",
        (412, 0, "Required Api Level"),
    ),
    "too many": (
        b"NATS/1.0 429 Too Many Requests\r\n\r\n",
        b'{"error":{"code":429,"err_code":10167,"description":"too many requests"},"stream":"S","seq":0}',
        (429, 10167, "too many requests"),
    ),
}


@pytest.mark.parametrize(("payload", "expected"), STORED.values(), ids=STORED)
def test_a_stored_row_is_told_with_its_stream_and_sequence(
    payload: bytes, expected: tuple[str, int, bool]
) -> None:
    assert read_answers([frame(17, payload)]) == ([(17, *expected)], [])
    # Read twice: the second time the reader knows how these answers begin.
    assert read_answers([frame(1, payload), frame(2, payload) + frame(3, payload)])[0] == [
        (number, *expected) for number in (1, 2, 3)
    ]
    # A status line does not take it away.
    assert read_answers([frame(4, payload, b"NATS/1.0\r\nA: 1\r\n\r\n")])[0] == [(4, *expected)]


@pytest.mark.parametrize(("block", "payload", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_refused_row_is_told_with_code_and_words(
    block: bytes, payload: bytes, expected: tuple[int, int, str]
) -> None:
    assert read_answers([frame(17, payload, block)]) == ([], [Refusal(17, *expected)])


def test_all_answers_in_one_chain_are_read_whole_and_byte_by_byte() -> None:
    stored = [payload for payload, _ in STORED.values()]
    data = b"".join(frame(number, payload) for number, payload in enumerate(stored))
    refused = list(REFUSED.values())
    for number, (block, payload, _) in enumerate(refused, start=len(stored)):
        data += frame(number, payload, block)
    expected = (
        [(number, *row) for number, (_, row) in enumerate(STORED.values())],
        [Refusal(number, *row) for number, (_, _, row) in enumerate(refused, len(stored))],
    )
    for trailing in (b"", b"PING\r\n", b'MSG _INBOX.abcdef.7.99 4 22\r\n{"stream":"S"'):
        for chunks in ([data + trailing], [data, trailing], wire.by_byte(data + trailing)):
            assert read_answers(chunks) == expected


@pytest.mark.parametrize(
    ("payload", "domain"),
    [
        (b'{"stream":"S","seq":1}', ""),
        (b'{"stream":"S","domain":"hub","seq":1}', "hub"),
        (b'{"seq":1,"stream":"S","domain":"h\\u00f6b"}', "höb"),
    ],
)
def test_the_domain_of_an_answer_is_told_however_it_is_read(payload: bytes, domain: str) -> None:
    reader = AckReader(INBOX)
    other = frame(1, b'{"stream":"S","domain":"other","seq":9}')
    for _ in range(2):
        for frames in wire.frames_in([other + frame(2, payload)], {SID}, {SID}):
            found = {int(some.numbers[0]): some.domain for some in reader.read(frames).stored}
            assert found == {1: "other", 2: domain}


def test_codes_of_a_busy_server_leave_the_row_undecided_and_no_others_do() -> None:
    found = {
        err_code
        for err_code in range(10_000, 10_300)
        if is_undecided(Refusal(1, 429, err_code, "too many requests"))
    }
    busy = {10004, 10008, 10009, 10118, 10119, 10158, 10163, 10164, 10167, 10210, 10211}
    assert found == busy
    statuses = {code for code in range(1000) if is_undecided(Refusal(1, code, 0, ""))}
    assert statuses == {429}


BROKEN = [
    b"+OK",
    b"+OK 'S' 1",
    b'{"Stream":"S","Seq":1}',
    b'{"stream":"S","seq":null}',
    b'{"stream":5,"seq":1}',
    b'{"stream":"S","seq":1,"domain":5}',
    b'{"stream":"S","seq":1,"domain":null}',
    b'{"stream":"%s","seq":1}' % (b"x" * 256),
    b'{"stream":"S","seq":1}\x00',
    b'{"stream":"S","seq":1,"val":"3"}"}',
    b'{"stream":"S","seq":-1,"val":"3"}',
    b'{"stream":"S","seq":01,"duplicate": true}',
    b'{"error":[],"stream":"S","seq":1}',
    b'{"error":{"code":"400"}}',
    b'{"error":{"code":true}}',
    b'{"error":{"code":-1}}',
    b'{"error":{"code":400,"err_code":1.5}}',
    b'{"error":{"code":400,"err_code":null}}',
    b'{"error":{"code":400,"description":null}}',
    b'{"stream":"S","seq":1',
    b'[{"stream":"S","seq":1}]',
    b"1",
    b'{"stream":"S"}',
    b'{"seq":1}',
    b'{"stream":"","seq":1}',
    b'{"stream":"S","seq":0}',
    b'{"stream":"S","seq":01}',
    b'{"stream":"S","seq":-1}',
    b'{"stream":"S","seq":1.5}',
    b'{"stream":"S","seq":"1"}',
    b'{"stream":"S","seq":true}',
    b'{"stream":"S","seq":9223372036854775808}',
    b'{"stream":"S","seq":99999999999999999999999}',
    b'{"stream":"S","seq":}',
    b'{"stream":"S","seq":,"duplicate": true}',
    b'{"stream":"S","seq":1}}',
    b'{"stream":"S","seq":1}{"stream":"S","seq":2}',
    b'{"stream":"S","seq":1,"duplicate":: true}',
    b'{"stream":"S","seq":1;"duplicate": true}',
    b'{"stream":"S","seq":1e": true}',
    b'{"error":"no","stream":"S","seq":1}',
    b'{"error":{},"stream":"S","seq":0}',
    b'{"error":{"code":1e999,"description":"x"}}',
    b'{"error":{"code":400,"description":5}}',
    b'{"stream":"\xff","seq":1}',
    b"[" * 200_000,
    b'{"stream":"S","seq":' + b"9" * 5_000 + b"}",
]


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize(
    ("block", "payload"),
    [
        (b"NATS/1.0\r\nA: 1\r\n\r\n", b""),
        (b"NATS/1.0 5\r\n\r\n", b""),
        *((b"", payload) for payload in BROKEN),
    ],
    ids=lambda text: repr(text)[:40],
)
def test_anything_else_is_a_protocol_error(block: bytes, payload: bytes, taught: bool) -> None:
    reader = AckReader(INBOX)
    if taught:
        read_answers([frame(1, b'{"stream":"S","seq":1}')], reader)
    with pytest.raises(ProtocolError, match="acknowledgement"):
        read_answers([frame(2, payload, block)], reader)


@pytest.mark.parametrize(
    "subject", [INBOX, f"{INBOX}.", f"{INBOX}.x", f"{INBOX}.1x", f"{INBOX}.-1", "a", f"{INBOX}.1.2"]
)
def test_an_answer_to_no_publish_is_a_protocol_error(subject: str) -> None:
    data = f'MSG {subject} {SID} 22\r\n{{"stream":"S","seq":1}}\r\n'.encode()
    with pytest.raises(ProtocolError, match="belongs to no published message"):
        read_answers([data])


def test_an_answer_that_ends_early_is_a_protocol_error() -> None:
    payload = b'{"stream":"A-STREAM-OF-A-LONG-NAME","domain":"HUB","seq":1,"duplicate": true}'
    reader = AckReader(INBOX)
    assert read_answers([frame(1, payload)], reader)[0] == [(1, "A-STREAM-OF-A-LONG-NAME", 1, True)]
    for length in range(1, len(payload)):
        with pytest.raises(ProtocolError):
            read_answers([frame(2, payload[:length])], reader)


def test_the_answers_to_an_atomic_batch() -> None:
    """Those to all of its messages but the last are empty, and say nothing."""
    last = b'{"stream":"S","seq":9,"batch":"b","count":3}'
    assert read_answers([frame(2, b""), frame(2, b""), frame(2, last), frame(3, b"")])[0] == [
        (2, "S", 9, False)
    ]


@pytest.mark.parametrize("inbox", ["i", "_I.x", "_INBOX." + "x" * 90])
def test_inboxes_of_any_length_will_do(inbox: str) -> None:
    numbers = [1, 22, 12_345_678, 2**63 - 1]
    data = b"".join(frame(number, b'{"stream":"S","seq":1}', inbox=inbox) for number in numbers)
    assert [row[0] for row in read_answers([data], AckReader(inbox))[0]] == numbers


def test_plain_answers_are_read_as_vectors() -> None:
    reader = AckReader(INBOX)
    data = b"".join(frame(n, b'{"stream":"S","seq":%d}' % n) for n in range(1, 1_001))
    [frames] = wire.frames_in([data], {SID}, {SID})
    answers = reader.read(frames)
    assert [len(some.numbers) for some in answers.stored] == [1_000]
    assert [len(some.numbers) for some in reader.read(frames[10:20]).stored] == [10]


def test_values_of_counters_with_and_without_a_sign_are_read_as_vectors() -> None:
    data = b"".join(
        frame(n, b'{"stream":"C","seq":%d,"val":"%d"}' % (n, n * (-1) ** n)) for n in range(1, 101)
    )
    [frames] = wire.frames_in([data], {SID}, {SID})
    [stored] = AckReader(INBOX).read(frames).stored
    assert stored.sequences.tolist() == stored.numbers.tolist() == list(range(1, 101))
