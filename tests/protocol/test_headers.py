"""Header blocks as text and as bytes: alone, after others, cut at every byte."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jetstream.protocol.headers import block_headers, decode_headers

Text = dict[str, list[str]] | None
Raw = dict[bytes, list[bytes]] | None

#: A block, and what it holds as text and as bytes.
BLOCKS: dict[str, tuple[bytes, Text, Raw]] = {
    "none": (b"", None, None),
    "version alone": (b"NATS/1.0", None, None),
    "empty": (b"NATS/1.0\r\n\r\n", None, None),
    "status with a colon": (
        b"NATS/1.0 503 No: one\r\nA: 1\r\n\r\n",
        {"A": ["1"]},
        {b"A": [b"1"]},
    ),
    "repeated around another": (
        b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\nB:\r\n\r\n",
        {"A": ["1", "3"], "B": ["2", ""]},
        {b"A": [b"1", b"3"], b"B": [b"2", b""]},
    ),
    "colons and blanks in a value": (
        b"NATS/1.0\r\nU: nats://a:1/?b = c :\r\n\r\n",
        {"U": ["nats://a:1/?b = c :"]},
        {b"U": [b"nats://a:1/?b = c :"]},
    ),
    "blanks of other kinds stay": (
        "NATS/1.0\r\nA: \v\u00a01\u00a0\f\r\n\r\n".encode(),
        {"A": ["\v\u00a01\u00a0\f"]},
        {b"A": [b"\v\xc2\xa01\xc2\xa0\f"]},
    ),
    "names that differ in bytes that are not UTF-8": (
        b"NATS/1.0\r\n\xff: 1\r\n\xfe: 2\xc3\r\n\r\n",
        {"\ufffd": ["1", "2\ufffd"]},
        {b"\xff": [b"1"], b"\xfe": [b"2\xc3"]},
    ),
    "zero bytes": (b"NATS/1.0\r\nA\x00: \x00\r\n\r\n", {"A\x00": ["\x00"]}, {b"A\x00": [b"\x00"]}),
    "lines behind the empty one": (
        b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n",
        {"A": ["1"], "B": ["2"]},
        {b"A": [b"1"], b"B": [b"2"]},
    ),
    "no version": (b"A: 1\r\nB: 2\r\n\r\n", {"B": ["2"]}, {b"B": [b"2"]}),
    "a line end in front": (b"\r\nA: 1", {"A": ["1"]}, {b"A": [b"1"]}),
}


def decoded(*blocks: bytes, raw: bool = False) -> list[object]:
    """The maps of blocks that lie between other bytes."""
    gap = b"X: 1\r\n"
    data = gap + gap.join(blocks) + gap
    length = np.array([len(block) for block in blocks], np.int64)
    start = len(gap) + np.cumsum(length + len(gap)) - length - len(gap)
    maps = decode_headers(data, start, length, raw=raw).to_pylist()
    return [None if row is None else dict(row) for row in maps]


@pytest.mark.parametrize(("block", "text", "raw"), BLOCKS.values(), ids=BLOCKS)
def test_a_block_is_read_alike_alone_and_among_others(block: bytes, text: Text, raw: Raw) -> None:
    other = b"NATS/1.0\r\nOther: \xff\r\n\r\n"
    assert block_headers(block) == (text or {})
    assert decoded(other, block, b"", block, other) == [
        {"Other": ["\ufffd"]},
        text,
        None,
        text,
        {"Other": ["\ufffd"]},
    ]
    assert decoded(block, other, raw=True) == [raw, {b"Other": [b"\xff"]}]


@pytest.mark.parametrize("block", [block for block, _, _ in BLOCKS.values()], ids=list(BLOCKS))
def test_a_cut_block_has_no_headers_that_the_whole_one_lacks(block: bytes) -> None:
    whole = block_headers(block)
    for end in range(len(block)):
        found = block_headers(block[:end])
        # Of a cut line, the value may be the beginning of the whole one.
        assert found.keys() <= whole.keys()
        for name, values in found.items():
            assert values[:-1] == whole[name][: len(values) - 1]


def test_no_blocks_make_no_maps() -> None:
    assert decoded() == []
    assert decoded(b"", b"") == [None, None]
