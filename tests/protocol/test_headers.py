"""Header blocks of many messages at once: each is read as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jetstream.protocol import headers
from spark_jetstream.protocol.headers import block_headers, decode_headers
from spark_jetstream.protocol.vectors import BoolArray

Octets = npt.NDArray[np.uint8]

PIECES = [b"\r", b"\n", b":", b" ", b"NATS/1.0", b"a", b"B", b"\r\n", b"\t", b"\xc3", b"\xa9", b"A: x\r\n"]
BLOCK = st.lists(st.sampled_from(PIECES), max_size=10).map(b"".join)
#: What stands between two blocks: a payload and a control line.
GAP = st.lists(st.sampled_from([*PIECES, b"MSG a 7 5"]), max_size=4).map(b"".join)

Maps = list[list[tuple[str, list[str]]] | None]


def decoded(blocks: Sequence[bytes], gaps: Sequence[bytes]) -> Maps:
    """The headers of blocks in one buffer, each with a gap in front; what is left of the gaps is behind them."""
    data, start = b"", []
    for gap, block in zip(gaps, blocks, strict=False):
        start.append(len(data) + len(gap))
        data += gap + block
    lengths = np.array([len(block) for block in blocks], np.int64)
    column = decode_headers(data + b"".join(gaps[len(blocks) :]), np.array(start, np.int64), lengths)
    column.validate(full=True)
    maps: Maps = column.to_pylist()
    return maps


@settings(max_examples=500)
@given(st.lists(BLOCK, max_size=8), st.data())
@example([b"NATS/1.0\r\nA: x\r", b"\nB: y\r\n\r\n"], None)
@example([b"NATS/1.0\r\nA: x\r\n\r", b"\n", b"\nB: y"], None)
def test_no_block_speaks_for_its_neighbours(blocks: list[bytes], data: st.DataObject | None) -> None:
    none = [b""] * (len(blocks) + 1)
    alone = [row for block in blocks for row in decoded([block], [b""])]
    assert decoded(blocks, none) == alone
    if data is not None:
        gaps = data.draw(st.lists(GAP, min_size=len(none), max_size=len(none)))
        assert decoded(blocks, gaps) == alone


@pytest.mark.parametrize("line", [b"A:%s1%s", b"%sA%s:1", b"A:%s%s"])
def test_a_publisher_cannot_make_readers_pass_over_blanks_one_by_one(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    def counted(octets: Octets) -> BoolArray:
        nonlocal looked
        looked += 1
        return is_blank(octets)

    is_blank = headers._is_blank
    monkeypatch.setattr(headers, "_is_blank", counted)
    blanks = b" \t" * 15_000
    block = b"NATS/1.0\r\nB: 2\r\n" + line % (blanks, blanks) + b"\r\n\r\n"
    assert block_headers(block) == {"B": ["2"], "A": ["1" if b"1" in line else ""]}
    assert looked < 20
