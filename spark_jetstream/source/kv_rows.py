"""Rows of a Key-Value bucket from the messages of its stream (JETSTREAM ADR-8, ADR-48). Pure.

A bucket `B` is the stream `KV_B`. Each message is a revision of a key: its subject is `$KV.<bucket>.<key>`, its
sequence is the revision, and headers say whether the key was put, deleted or purged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.columns import Messages, integers, microseconds, repeated
from spark_jetstream.errors import ProtocolError
from spark_jetstream.schema import BUCKET_COLUMNS, arrow_schema

OPERATIONS: tuple[str, ...] = ("PUT", "DELETE", "PURGE")
"""What the column ``operation`` says."""

_PUT, _DELETE, _PURGE = range(3)

#: Header -> its values that mean a purge. Any other value deletes: an operation that is not known leaves no value.
#: The first header is what clients write; the server marks with the second what it removed itself.
_PURGES = {"KV-Operation": ("PURGE",), "Nats-Marker-Reason": ("MaxAge", "Purge")}

# Some bucket: a mirror has the subjects of its origin, and of a stream with sources there may be several.
_SUBJECT = r"(?s)^\$KV\.[^.]+\.(?P<key>.+)$"

_Codes = npt.NDArray[np.int8]


def bucket_batch(messages: Messages, *, bucket: str, columns: Sequence[str], live_only: bool = False) -> pa.RecordBatch:
    """Rows of a bucket, one for each message, in stream order, with the named columns of `schema.BUCKET_COLUMNS`.

    `bucket` is what the column of that name says. `value` is null unless the operation is PUT; an empty value that was
    put is an empty value. With `live_only` there are rows for PUT only, so perhaps none. Raises `ProtocolError` when a
    subject is not that of a key.
    """
    schema = arrow_schema(columns, BUCKET_COLUMNS)
    codes = None
    if live_only or "operation" in columns or "value" in columns:
        codes = operations(messages.headers())
    arrays: list[pa.Array] = []
    for name in columns:
        if name == "bucket":
            arrays.append(repeated(bucket, len(messages)))
        elif name == "key":
            arrays.append(keys(messages))
        elif name == "value":
            arrays.append(_values(messages.payloads(), codes))
        elif name == "revision":
            arrays.append(integers(messages.sequences))
        elif name == "operation":
            arrays.append(_words(codes, len(messages)))
        else:
            arrays.append(microseconds(messages.timestamps()))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch.filter(pa.array(codes == _PUT)) if live_only and codes is not None else batch


def operations(headers: pa.MapArray) -> _Codes | None:
    """The places in `OPERATIONS` of what each message does, by its headers; None when all are PUT."""
    count = len(headers)
    if headers.null_count == count:
        return None
    codes = np.zeros(count, np.int8)
    bounds = headers.offsets.to_numpy(zero_copy_only=False)
    values = headers.items
    firsts = values.offsets.to_numpy(zero_copy_only=False)
    # The operation of a client wins: what it wrote last stands.
    for name, purges in reversed(_PURGES.items()):
        # `keys` and `items` are those behind the first offset as well as before it, if the array is a slice.
        places = np.flatnonzero(pc.equal(headers.keys, name).to_numpy(zero_copy_only=False))
        places = places[(places >= bounds[0]) & (places < bounds[-1])]
        if not len(places):
            continue
        # Of a header that is there several times the first value counts, as for the clients.
        said = values.values.take(pa.array(firsts[places]))
        rows = np.searchsorted(bounds, places, side="right") - 1
        purged = pc.is_in(said, value_set=pa.array(purges)).to_numpy(zero_copy_only=False)
        given = pc.not_equal(said, "").to_numpy(zero_copy_only=False)
        codes[rows[given]] = np.where(purged, _PURGE, _DELETE)[given]
    return codes if codes.any() else None


def keys(messages: Messages) -> pa.StringArray:
    """The key of each message: its subject behind `$KV.<some bucket>.`. `ProtocolError` for another subject."""
    subjects = messages.subjects()
    first = str(subjects[0])
    prefix = ".".join(first.split(".", 2)[:2]) + "."
    if prefix.startswith("$KV.") and len(first) > len(prefix) > len("$KV.."):
        alike = pc.starts_with(subjects, prefix)
        if pc.all(alike).as_py() and pc.min(pc.utf8_length(subjects)).as_py() > len(prefix):
            return pc.utf8_slice_codeunits(subjects, len(prefix))
    found = pc.struct_field(pc.extract_regex(subjects, _SUBJECT), [0])
    if found.null_count:
        odd = pc.index(pc.is_null(found), True).as_py()
        revision = int(messages.sequences[odd])
        raise ProtocolError(f"message {revision} of a bucket has subject {subjects[odd]}, which is not that of a key")
    return found


def _values(payloads: pa.BinaryArray, codes: _Codes | None) -> pa.BinaryArray:
    if codes is None:
        return payloads
    return pc.if_else(pa.array(codes == _PUT), payloads, pa.scalar(None, pa.binary()))


def _words(codes: _Codes | None, count: int) -> pa.StringArray:
    if codes is None:
        return repeated(OPERATIONS[_PUT], count)
    return pa.array(OPERATIONS).take(pa.array(codes))


__all__ = ["OPERATIONS", "bucket_batch", "keys", "operations"]
