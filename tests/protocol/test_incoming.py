"""`Incoming`: where bytes go, what stays as it was, and what memory is used again."""

from __future__ import annotations

import random

from spark_jetstream.protocol.incoming import Incoming


def receive(incoming: Incoming, data: bytes) -> None:
    """Receive as a socket does: as much as there is room for at a time."""
    while data:
        room = incoming.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        incoming.filled(count)
        data = data[count:]


def test_used_bytes_stay_unchanged_while_a_view_refers_to_them() -> None:
    chance = random.Random(1)
    incoming, kept, came = Incoming(64), [], b""
    for number in range(5000):
        piece = chance.randbytes(chance.choice([1, 3, 20, 61, 300]))
        came += piece
        if chance.random() < 0.3:
            incoming.add(piece)
        else:
            receive(incoming, piece)
        assert bytes(incoming.data[incoming.begin : incoming.end]) == came
        used = chance.randint(0, len(came))
        if chance.random() < 0.5:
            kept.append(
                (
                    number,
                    memoryview(incoming.data)[incoming.begin : incoming.begin + used],
                    came[:used],
                )
            )
        incoming.use(incoming.begin + used, chance.choice([1, 5, 60, 200, 100_000]))
        came = came[used:]
        kept = [(since, view, was) for since, view, was in kept if number - since < 20]
        assert all(view == was for _, view, was in kept)


def test_memory_that_nothing_refers_to_is_used_again() -> None:
    incoming = Incoming(64)
    seen = set()
    for _ in range(100):
        receive(incoming, bytes(30))
        incoming.rest()
        seen.add(id(incoming.data))
    assert len(seen) == 2


def test_memory_that_is_referred_to_does_not_grow_what_is_kept() -> None:
    incoming, held = Incoming(64), []
    for _ in range(100):
        receive(incoming, bytes(30))
        incoming.rest()
        held.append(incoming.data)
    assert len(incoming._memory) == 4


def test_memory_is_small_until_a_read_fills_it() -> None:
    incoming = Incoming(1024, first=64)
    for _ in range(100):
        receive(incoming, bytes(20))
        assert incoming.rest() == bytes(20)
        assert len(incoming.data) == 64
    receive(incoming, b"full" * 100)
    assert incoming.rest() == b"full" * 100
    assert len(incoming.data) == 1024


def test_an_announced_frame_has_room_in_one_piece() -> None:
    incoming = Incoming(64)
    receive(incoming, b"begin")
    incoming.use(0, 1000)
    while not incoming.ready:
        receive(incoming, b"x")
    assert incoming.data[incoming.begin : incoming.end] == b"begin" + b"x" * 995
    receive(incoming, b"y")
    incoming.use(incoming.begin + 1000)
    receive(incoming, bytes(64))
    assert incoming.rest() == b"y" + bytes(64)


def test_an_announced_frame_takes_memory_as_it_comes() -> None:
    incoming = Incoming(64)
    receive(incoming, b"begin")
    incoming.use(0, 100_000)
    came = 5
    while not incoming.ready:
        receive(incoming, b"x" * 50)
        came += 50
        assert len(incoming.data) <= 3 * came + 200
    assert incoming.rest() == b"begin" + b"x" * (came - 5)


def test_lines() -> None:
    incoming = Incoming(64)
    incoming.add(b"one\ntwo\r\nthr")
    assert (incoming.line(), incoming.line(), incoming.line()) == (b"one\n", b"two\r\n", None)
    incoming.add(b"e")
    assert incoming.line() is None
    incoming.add(b"e\n")
    assert incoming.line() == b"three\n"
    assert incoming.rest() == b""
