"""The bytes of rows on the wire, and of their dead letters, stay as they are."""

from __future__ import annotations

from pathlib import Path

from tests.sink.frames import lines


def test_rows_and_dead_letters_have_the_same_bytes() -> None:
    stored = Path(__file__).with_name("frames.txt").read_text().splitlines()
    assert list(lines()) == stored
