"""The layout of a Key-Value bucket: names, subjects, operations, revisions. Pure.

See ADR-8 "JetStream based Key-Value Stores" and ADR-48 "TTL Support for Key-Value Buckets".

A bucket ``B`` is the stream ``KV_B``, and a key ``K`` in it the subject ``$KV.B.K``. Each message
is a revision of its key, and its sequence the number of that; headers say whether the key was put,
deleted or purged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.errors import OptionError, ProtocolError
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.arrow import (
    as_arrow,
    as_vector,
    microseconds,
    repeated,
    texts,
    without,
)
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.pub_ack import RefusalCode
from spark_jetstream.schema import BUCKET_COLUMNS, arrow_schema

STREAM_PREFIX = "KV_"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
"""The header with the revision that a key must have (0: none) for a message to be stored."""
WRONG_REVISION = RefusalCode.WRONG_LAST_SEQUENCE.value
"""Error code of a message whose expected revision is not the latest one."""

OPERATIONS: tuple[str, ...] = ("PUT", "DELETE", "PURGE")
"""The changes to a key, as people read them."""
OPERATION_HEADERS: Mapping[str, Mapping[str, str]] = {
    "PUT": {},
    "DELETE": {"KV-Operation": "DEL"},
    "PURGE": {"KV-Operation": "PURGE", "Nats-Rollup": "sub"},
}
"""The headers by which each is done."""

PUT, _DELETE, _PURGE = range(3)

#: Header -> its values that mean a purge. Any other value deletes, except those of `_PUTS`: an
#: operation that is not known leaves no value. The first header is what clients write; the server
#: marks with the second what it removed itself.
_PURGES = {"KV-Operation": ("PURGE",), "Nats-Marker-Reason": ("MaxAge", "Purge")}
#: Some clients name the operation of a put as well.
_PUTS = ("", "PUT")

# Some bucket: a mirror has the subjects of its origin, and of a stream with sources there may be
# several.
_SUBJECT = r"(?s)^\$KV\.[^.]+\.(?P<key>.+)$"
#: For each message the index of its operation in `OPERATIONS`.
Codes = npt.NDArray[np.int8]

_LAST = re.compile(r": (\d+)$")


def stream_name(bucket: str) -> str:
    """Return the name of the stream of a bucket."""
    return f"{STREAM_PREFIX}{bucket}"


@dataclass(frozen=True)
class Origin:
    """The bucket that stores the writes to a bucket: the one that it is a mirror of, or itself.

    ``api_prefix`` is where the API of that stream answers, None where the connection's does.
    ``write_prefix`` begins the subject on which a key is published. The subject on which the key is
    stored may begin otherwise: behind a JetStream domain, and with another account's JetStream.
    """

    bucket: str
    api_prefix: str | None
    write_prefix: str

    @classmethod
    def of(cls, name: str, prefix: str, mirror: Mapping[str, Any] | None = None) -> Origin:
        """Return the origin of a bucket behind the API prefix of a connection.

        ``mirror`` is that of its stream's configuration. Raises `OptionError` for a mirror
        of a stream that is no bucket.
        """
        bucket = name
        api = None
        if mirror:
            stream = str(mirror.get("name", ""))
            if not stream.startswith(STREAM_PREFIX):
                raise OptionError(
                    f"{advice.NAMED_BY[STREAM_PREFIX]}: {name} is a mirror of stream {stream}, "
                    "which is no Key-Value bucket, so nobody can write to it",
                    option=advice.STREAM_OPTIONS[STREAM_PREFIX],
                )
            bucket = stream.removeprefix(STREAM_PREFIX)
            external = mirror.get("external")
            # Without `external` the API of the connection leads to the origin, too.
            api = str(external.get("api") or "") if isinstance(external, dict) else ""
        through = api or prefix
        # Behind a domain D a key is published to `$JS.D.API.$KV.BUCKET.KEY`,
        # and stored without that prefix.
        before = "" if through == jsapi.DEFAULT_PREFIX else f"{through}."
        return cls(bucket, api or None, f"{before}$KV.{bucket}.")

    @property
    def stream(self) -> str:
        """The stream that stores what is written."""
        return stream_name(self.bucket)

    def subject(self, key: str) -> str:
        """The subject under which that stream keeps a key."""
        return f"$KV.{self.bucket}.{key}"


def last_revision(description: str) -> int | None:
    """Return the revision of a key in an error about another one; None if it has none."""
    # "wrong last sequence: N" (10071). 10164 has the same meaning, without a number.
    match = _LAST.search(description)
    return int(match[1]) if match else None


def operation(headers: Mapping[str, Sequence[str]]) -> str:
    """Return what a message with these headers does: one of `OPERATIONS`."""
    for name, purges in _PURGES.items():
        # Of a header that is there several times the first value counts, as for the clients.
        value = next(iter(headers.get(name, ())), "")
        if value not in _PUTS:
            return OPERATIONS[_PURGE if value in purges else _DELETE]
    return OPERATIONS[PUT]


def operations(headers: pa.MapArray) -> Codes | None:
    """Return the index in `OPERATIONS` of each message's operation; None if all are PUT."""
    count = len(headers)
    # The common case: a put has no headers.
    if headers.null_count == count:
        return None
    codes = np.zeros(count, np.int8)
    # int32 (count + 1,): the headers of row i are those
    # at bounds[i] to bounds[i + 1] of the map's keys.
    bounds = as_vector(headers.offsets)
    values = headers.items
    # int32: where the values of each header begin in the list of all values.
    firsts = as_vector(values.offsets)
    # The header of a client is the last one here: it wins.
    for name, purges in reversed(_PURGES.items()):
        # `keys` and `items` are those after the first offset as well as before it, if the array is
        # a slice.
        places = np.flatnonzero(as_vector(pc.equal(headers.keys, repeated(name, 1)[0])))
        places = places[(places >= bounds[0]) & (places < bounds[-1])]
        if not len(places):
            continue
        # Of a header that is there several times the first value counts, as for the clients.
        first_values = values.values.take(as_arrow(firsts[places]))
        # int64, one for each place: the row that it belongs to.
        # Rows without headers have equal bounds, and are passed over.
        rows = np.searchsorted(bounds, places, side="right") - 1
        purged = as_vector(pc.is_in(first_values, value_set=texts(purges)))
        # bool, one for each place: whether the header says anything but a put.
        given = ~as_vector(pc.is_in(first_values, value_set=texts(_PUTS)))
        codes[rows[given]] = np.where(purged, _PURGE, _DELETE)[given]
    # None spares the caller a column of nulls.
    return codes if codes.any() else None


def key_of(subject: str, revision: int) -> str:
    """Return the key of a message: its subject after ``$KV.<some bucket>.``.

    Raises `ProtocolError` for another subject.
    """
    match = re.match(_SUBJECT, subject)
    if match is None:
        raise _no_key(subject, revision)
    return match["key"]


def keys(messages: MessageRun) -> pa.StringArray:
    """Return the key of each message: its subject after `$KV.<some bucket>.`.

    Raises `ProtocolError` for another subject.
    """
    subjects = messages.subjects()
    first = str(subjects[0])
    # Most runs have the subjects of one bucket: to cut the same prefix off costs 0.1 µs a row less.
    prefix = ".".join(first.split(".", 2)[:2]) + "."
    if prefix.startswith("$KV.") and len(first) > len(prefix) > len("$KV.."):
        alike = pc.starts_with(subjects, prefix)
        # A subject as short as the prefix has no key, and the pattern below names it in an error.
        if pc.all(alike).as_py() and pc.min(pc.utf8_length(subjects)).as_py() > len(prefix):
            return pc.utf8_slice_codeunits(subjects, len(prefix))
    # A stream with sources has subjects of several buckets.
    extracted = pc.struct_field(pc.extract_regex(subjects, _SUBJECT), [0])
    if extracted.null_count:
        odd = pc.index(pc.is_null(extracted), True).as_py()
        raise _no_key(str(subjects[odd]), int(messages.sequences[odd]))
    return extracted


def _no_key(subject: str, revision: int) -> ProtocolError:
    return ProtocolError(
        f"message {revision} of a bucket has subject {subject}, which is not that of a key"
    )


def bucket_batch(
    messages: MessageRun, *, bucket: str, columns: Sequence[str], live_only: bool = False
) -> pa.RecordBatch:
    """Return one row for each message, with the named columns of `schema.BUCKET_COLUMNS`.

    `bucket` is the value of the column of that name. `value` is null unless the operation is PUT.
    With `live_only` there are rows for PUT only, so perhaps none. Raises `ProtocolError` unless
    each subject is that of a key.
    """
    schema = arrow_schema(columns, BUCKET_COLUMNS)
    codes = None
    # Headers are only read where something depends on the operation.
    if live_only or "operation" in columns or "value" in columns:
        codes = operations(messages.headers())
    column: dict[str, Callable[[], pa.Array]] = {
        "bucket": partial(repeated, bucket, len(messages)),
        "key": partial(keys, messages),
        "value": partial(_put_values, messages, codes),
        "revision": partial(as_arrow, messages.sequences),
        "operation": partial(_operation_names, len(messages), codes),
        "timestamp": partial(_times, messages),
    }
    batch = pa.RecordBatch.from_arrays([column[name]() for name in columns], schema=schema)
    if live_only and codes is not None:
        return batch.filter(as_arrow(codes == PUT))
    return batch


def _put_values(messages: MessageRun, codes: Codes | None) -> pa.Array:
    """Return the payload of each message, null unless it is a put."""
    if codes is None:
        return messages.payloads()
    return without(messages.payloads(), codes != PUT)


def _operation_names(count: int, codes: Codes | None) -> pa.Array:
    if codes is None:
        return repeated(OPERATIONS[PUT], count)
    return texts(OPERATIONS).take(as_arrow(codes))


def _times(messages: MessageRun) -> pa.Array:
    return microseconds(messages.timestamps())
