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
"""Ids of a batch in 16 bytes each: the digest, then the number of the row and the kind of the id.

Both are in one big-endian integer of four bytes.
"""

# Kinds of ids: that of a row, and of dead letters of rows that had no id or had one.
_ROW = 0
_REFUSED_UNSENT = 1
_REFUSED = 2
# The number of a row is multiplied by this, to leave room for the kind.
_KINDS = 4
_KEY = DIGEST + 4
# The values of hexadecimal digits by their bytes; 255 for other bytes.
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def batch_keys(ids: pa.BinaryArray, prefix: bytes) -> tuple[Keys, IntArray]:
    """Return the keys of ids that `MessageIds` makes for a batch, and their indices, ascending.

    `prefix` is `WriteTask.prefix`. Ids of partitions, of other batches and of users have no key.
    """
    ids = pc.fill_null(ids, NOTHING)
    plain = _plain_keys(ids, prefix)
    keys, indices = plain
    # Ids with a number, and those of dead letters, are few: they are read one by one.
    of_batch = np.flatnonzero(flags(pc.starts_with(ids, prefix)))
    others = np.setdiff1d(of_batch, indices, assume_unique=True)
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
    """Return the keys of ids that are a prefix and a hash, as nearly all are, and their indices."""
    count = len(ids)
    width = len(prefix) + _HEX
    _, offset_buffer, data = ids.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[ids.offset : ids.offset + count + 1]
    offsets = offsets.astype(np.int64)
    # The ids of the right length, as rows of a matrix of bytes.
    fitting = np.flatnonzero(np.diff(offsets) == width)
    octets = np.frombuffer(data or b"", np.uint8)
    texts = octets[offsets[fitting][:, np.newaxis] + np.arange(width)]
    nibbles = _NIBBLES[texts[:, len(prefix) :]]
    ours = (texts[:, : len(prefix)] == np.frombuffer(prefix, np.uint8)).all(axis=1)
    good = ours & (nibbles < 16).all(axis=1)
    # Two digits make a byte of the digest. The last four bytes stay zero: the first of equal rows.
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
    tail = int(number or 0) * _KINDS + kind
    return bytes.fromhex(digest.decode()) + tail.to_bytes(4, "big")


def rows_of_keys(keys: Keys) -> tuple[Keys, IntArray]:
    """Return the rows of keys, which are the same for equal rows, and the numbers of equal ones.

    A row is the digest and the kind of its id.
    """
    octets = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, _KEY)
    tails = np.ascontiguousarray(octets[:, DIGEST:]).view(">u4").reshape(-1).astype(np.int64)
    kinds = (tails % _KINDS).astype(np.uint8)
    rows = np.concatenate((octets[:, :DIGEST], kinds[:, np.newaxis]), axis=1)
    texts = np.ascontiguousarray(rows).view(f"S{DIGEST + 1}").reshape(-1)
    return texts, tails // _KINDS


def id_of_key(row: bytes, number: int, prefix: bytes) -> bytes:
    """Return the message id of a row of `rows_of_keys`, with its number among equal ones."""
    # numpy leaves out zeros at the end.
    row = row.ljust(DIGEST + 1, b"\0")
    kind = row[DIGEST]
    parts = [prefix]
    if kind == _REFUSED_UNSENT:
        parts.append(DEAD)
    parts.append(row[:DIGEST].hex().encode())
    if number:
        parts.append(b".%d" % number)
    if kind == _REFUSED:
        parts.append(b".dead")
    return b"".join(parts)
