"""Message ids of a batch as keys of 16 bytes, which are compared in bulk. Pure."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import NOTHING, IntArray, flags
from spark_jetstream.sink.message_ids import DEAD, DIGEST

_HEX = 2 * DIGEST
_PARTS = re.compile(rb"(dead\.)?([0-9a-f]{%d})(?:\.(\d{1,9}))?(\.dead)?" % _HEX)

Keys = npt.NDArray[np.bytes_]
"""Ids of a batch in 16 bytes each: the digest, then the number of the row and the kind of the id, big-endian."""

_ROW, _REFUSED_UNSENT, _REFUSED = (
    0,
    1,
    2,
)  # kinds: of a row; of a dead letter, of a row that had no id, or had one
_KINDS = 4
_KEY = DIGEST + 4
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def batch_keys(ids: pa.BinaryArray, prefix: bytes) -> tuple[Keys, IntArray]:
    """Return the keys of those ids that `MessageIds` makes for a batch, and their indices, ascending.

    `prefix` is `WriteTask.prefix`. Ids of partitions, of other batches and of users have no key.
    """
    ids = pc.fill_null(ids, NOTHING)
    plain = _plain_keys(ids, prefix)
    keys, indices = plain
    others = np.setdiff1d(
        np.flatnonzero(flags(pc.starts_with(ids, prefix))), indices, assume_unique=True
    )
    more = list[bytes]()
    found = list[int]()
    for index in others.tolist():
        match = _PARTS.fullmatch(ids[index].as_py()[len(prefix) :])
        if match is not None:
            more.append(_key_of(match))
            found.append(index)
    if not more:
        return plain
    keys = np.concatenate((keys, np.frombuffer(b"".join(more), f"S{_KEY}")))
    indices = np.concatenate((indices, np.array(found, np.int64)))
    order = np.argsort(indices)
    return keys[order], indices[order]


def _plain_keys(ids: pa.BinaryArray, prefix: bytes) -> tuple[Keys, IntArray]:
    """Return the keys of the ids that are a prefix and a hash, as nearly all are, and their indices."""
    count = len(ids)
    width = len(prefix) + _HEX
    offsets = np.frombuffer(ids.buffers()[1], np.int32)[ids.offset : ids.offset + count + 1].astype(
        np.int64
    )
    fitting = np.flatnonzero(np.diff(offsets) == width)
    octets = np.frombuffer(ids.buffers()[2] or b"", np.uint8)
    texts = octets[offsets[fitting][:, np.newaxis] + np.arange(width)]
    nibbles = _NIBBLES[texts[:, len(prefix) :]]
    ours = (texts[:, : len(prefix)] == np.frombuffer(prefix, np.uint8)).all(axis=1)
    good = ours & (nibbles < 16).all(axis=1)
    keys = np.zeros((int(np.count_nonzero(good)), _KEY), np.uint8)
    keys[:, :DIGEST] = nibbles[good, 0::2] << 4 | nibbles[good, 1::2]
    return keys.view(f"S{_KEY}").reshape(-1), fitting[good]


def _key_of(match: re.Match[bytes]) -> bytes:
    unsent, digest, number, refused = match.groups()
    kind = _ROW
    if unsent:
        kind = _REFUSED_UNSENT
    elif refused:
        kind = _REFUSED
    return bytes.fromhex(digest.decode()) + (int(number or 0) * _KINDS + kind).to_bytes(4, "big")


def rows_of_keys(keys: Keys) -> tuple[Keys, IntArray]:
    """Return what tells the rows of keys apart, equal ones not among them, and the numbers of equal ones."""
    octets = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, _KEY)
    tails = np.ascontiguousarray(octets[:, DIGEST:]).view(">u4").reshape(-1).astype(np.int64)
    rows = np.concatenate(
        (octets[:, :DIGEST], (tails % _KINDS).astype(np.uint8)[:, np.newaxis]), axis=1
    )
    return np.ascontiguousarray(rows).view(f"S{DIGEST + 1}").reshape(-1), tails // _KINDS


def id_of_key(row: bytes, number: int, prefix: bytes) -> bytes:
    """Return the message id of a row, as `rows_of_keys` returns it, with a number among equal ones."""
    row = row.ljust(DIGEST + 1, b"\0")  # numpy leaves out zeros at the end
    kind = row[DIGEST]
    hashed = row[:DIGEST].hex().encode()
    parts = [prefix, DEAD if kind == _REFUSED_UNSENT else b"", hashed]
    if number:
        parts.append(b".%d" % number)
    if kind == _REFUSED:
        parts.append(b".dead")
    return b"".join(parts)
