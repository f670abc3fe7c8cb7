"""The bytes in front of a payload in the wire format of Confluent's serializers."""

from __future__ import annotations

from collections.abc import Sequence


def read_indexes(payload: bytes) -> tuple[list[int], int]:
    """Return the indexes in front of a payload, and where they end.

    Their count precedes them; a count of 0 stands for the first message of a file. All are zigzag
    varints. Raises `ValueError` without them.
    """
    count, at = _varint(payload, 0)
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        indexes.append(index)
    return indexes or [0], at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at a place of a payload, and where it ends."""
    value = 0
    # A varint of 64 bits has ten bytes at most, each with seven bits.
    for shift in range(0, 70, 7):
        if at == len(payload):
            break
        byte = payload[at]
        at += 1
        value |= (byte & 127) << shift
        is_last = byte < 128
        is_negative = value & 1
        if is_last and not is_negative:
            return value >> 1, at
    raise ValueError("no index of a message is in front")


def frame_of(schema_id: int) -> bytes:
    """Return what stands in front of payloads of a schema: a zero byte, and the id in four."""
    return b"\0" + schema_id.to_bytes(4, "big")


def written_indexes(indexes: Sequence[int]) -> bytes:
    """Return the indexes of a message as `read_indexes` reads them."""
    if list(indexes) == [0]:
        return b"\0"
    numbers = [len(indexes), *indexes]
    return b"".join(_written_varint(number) for number in numbers)


def _written_varint(number: int) -> bytes:
    # Zigzag: the sign is the lowest bit.
    rest = number << 1
    written = bytearray()
    while rest > 127:
        written.append(rest & 127 | 128)
        rest >>= 7
    written.append(rest)
    return bytes(written)
