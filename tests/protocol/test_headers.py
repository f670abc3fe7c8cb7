"""Header blocks of many messages at once: each is read as if it were alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from spark_jetstream.protocol import headers
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.vectors import BoolArray

Octets = npt.NDArray[np.uint8]


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
