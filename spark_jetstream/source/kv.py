"""Rows of a Key-Value bucket from the messages of its stream (`spark_jetstream.buckets.kv`). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.buckets.kv import OPERATIONS, PUT, Codes, keys, operations
from spark_jetstream.protocol.columns import MessageRun, integers, microseconds, repeated
from spark_jetstream.schema import BUCKET_COLUMNS, arrow_schema


def bucket_batch(
    messages: MessageRun, *, bucket: str, columns: Sequence[str], live_only: bool = False
) -> pa.RecordBatch:
    """Return the rows of a bucket, one for each message, with the named columns of `schema.BUCKET_COLUMNS`.

    `bucket` is the value of the column of that name. `value` is null unless the operation is PUT. With `live_only`
    there are rows for PUT only, so perhaps none. Raises `ProtocolError` unless each subject is that of a key.
    """
    schema = arrow_schema(columns, BUCKET_COLUMNS)
    codes = None
    if live_only or "operation" in columns or "value" in columns:
        codes = operations(messages.headers())
    column = {
        "bucket": lambda: repeated(bucket, len(messages)),
        "key": lambda: keys(messages),
        "value": lambda: _values(messages.payloads(), codes),
        "revision": lambda: integers(messages.sequences),
        "operation": lambda: _operations(codes, len(messages)),
        "timestamp": lambda: microseconds(messages.timestamps()),
    }
    batch = pa.RecordBatch.from_arrays([column[name]() for name in columns], schema=schema)
    return batch.filter(pa.array(codes == PUT)) if live_only and codes is not None else batch


def _values(payloads: pa.BinaryArray, codes: Codes | None) -> pa.BinaryArray:
    if codes is None:
        return payloads
    return pc.if_else(pa.array(codes == PUT), payloads, pa.scalar(None, pa.binary()))


def _operations(codes: Codes | None, count: int) -> pa.StringArray:
    if codes is None:
        return repeated(OPERATIONS[PUT], count)
    return pa.array(OPERATIONS).take(pa.array(codes))
