"""Numbers in byte buffers, read as vectors: whatever their neighbours are."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jetstream.protocol.units import whole_number
from spark_jetstream.protocol.vectors import begins_with, parse_unsigned, trailing_number

#: The text of a number, and its value; None is no number of 63 bits.
NUMBERS: dict[bytes, int | None] = {
    b"0": 0,
    b"9": 9,
    b"0000000000000000007": 7,
    b"12345678": 12_345_678,
    b"123456789": 123_456_789,
    b"9999999999999999": 10**16 - 1,
    b"10000000000000000": 10**16,
    b"12345678901234567": 12_345_678_901_234_567,
    b"9223372036854775807": 2**63 - 1,
    b"9223372036854775808": None,
    b"9999999999999999999": None,
    b"00000000000000000001": None,  # of twenty digits
    b"": None,
    b"-1": None,
    b"+1": None,
    b" 1": None,
    b"1 ": None,
    b"1.5": None,
    b"1\r": None,
    b"1/": None,  # the character before 0
    b":1": None,  # and the one behind 9
    b":2345678": None,
    b":234567812345678": None,
    b"\x001": None,
    b"1\xb0": None,
    b"\xff2345678": None,
    b"1234567x9": None,
    b"x2345678901234567": None,
    b"1234567890123456x": None,
    "²".encode(): None,
    "٣".encode(): None,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_read_alike_alone_and_among_others(text: bytes) -> None:
    assert whole_number(text) == NUMBERS[text]
    texts = [text, b"31", *NUMBERS, text]
    for before, behind in ((b" ", b" "), (b"1", b"2"), (b"\xff", b"\x00"), (b":", b"/")):
        for some in ([text], texts):
            data, start, end = b"." * 8, [], []
            for each in some:
                start.append(len(data) + len(before))
                data += before + each + behind
                end.append(len(data) - len(behind))
            value, good = parse_unsigned(data, np.array(start), np.array(end))
            found = [number if fine else None for number, fine in zip(value, good, strict=True)]
            assert found == [{**NUMBERS, b"31": 31}[each] for each in some]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (b"MSG a 1 0", 0),
        (b"MSG a 1 05", 5),
        (b"MSG a 1 1234567", 1_234_567),
        (b"MSG a 1 12345678", None),  # of eight digits: read in another way
        (b"MSG a 1 123456789", None),
        (b"MSG a 12 ", None),
        (b"MSG a 1 -5", None),
        (b"MSG a 1 5x", None),
        (b"MSG a 1 :", None),
        (b"MSG a 1 /", None),
        (b"MSG a 1\xa05", None),
        (b"MSG a 1\x005", None),
        (b"MSG a 1 2 3", 3),
    ],
)
def test_the_number_behind_the_last_space_is_read(line: bytes, number: int | None) -> None:
    value, good = trailing_number(line + b"\r\n", np.array([len(line)]))
    assert (int(value[0]) if good[0] else None) == number


@pytest.mark.parametrize("text", [b"12345678", b"123456789", b"1234567890123456", b"x" * 17])
def test_a_text_is_found_only_where_each_byte_of_it_is(text: bytes) -> None:
    others = [
        text[:at] + bytes([text[at] ^ bit]) + text[at + 1 :]
        for at in range(len(text))
        for bit in (1, 0x20, 0x80)
    ]
    data = b"".join([text, *others, text])
    places = np.arange(0, len(data), len(text))
    found = begins_with(data, places, text).tolist()
    assert found == [True, *([False] * len(others)), True]
