"""Rows of a Key-Value bucket from the messages of its stream."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from spark_jetstream.buckets.kv import bucket_batch
from spark_jetstream.errors import ProtocolError, SchemaError
from spark_jetstream.schema import BUCKET_COLUMNS, arrow_schema
from tests.support.wire import Made

ALL = [column.name for column in BUCKET_COLUMNS]
Headers = Mapping[str, Sequence[str]]


def rows(*messages: tuple[str, bytes, Headers | None], **how: Any) -> list[dict[str, Any]]:
    batch = bucket_batch(Made(messages, first=7), **{"bucket": "B", "columns": ALL, **how})
    batch.validate(full=True)
    assert batch.schema == arrow_schema(how.get("columns", ALL), BUCKET_COLUMNS)
    return list(batch.to_pylist())


def test_a_row_of_each_operation() -> None:
    found = rows(
        ("$KV.B.a", b"1", None),
        ("$KV.B.b.c", b"", None),
        ("$KV.B.a", b"", {"KV-Operation": ["DEL"]}),
        ("$KV.B.b.c", b"left", {"KV-Operation": ["PURGE"], "Nats-Rollup": ["sub"]}),
        ("$KV.B.d", b"2", {"other": ["DEL"]}),
    )
    assert [tuple(row.values()) for row in found] == [
        ("B", "a", b"1", 7, "PUT", at(7)),
        ("B", "b.c", b"", 8, "PUT", at(8)),
        ("B", "a", None, 9, "DELETE", at(9)),
        ("B", "b.c", None, 10, "PURGE", at(10)),
        ("B", "d", b"2", 11, "PUT", at(11)),
    ]


def at(microseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(
        microseconds=microseconds
    )


OPERATIONS: list[tuple[Headers | None, str]] = [
    (None, "PUT"),
    ({"X": ["1", "2"]}, "PUT"),
    ({"KV-Operation": [""]}, "PUT"),
    ({"KV-Operation": ["PUT"]}, "PUT"),
    ({"KV-Operation": ["PUT", "DEL"]}, "PUT"),
    ({"KV-Operation": ["PUT"], "Nats-Marker-Reason": ["MaxAge"]}, "PURGE"),
    ({"kv-operation": ["DEL"]}, "PUT"),
    ({"KV-Operation": ["DEL"]}, "DELETE"),
    ({"KV-Operation": ["DEL"], "Y": ["DEL"]}, "DELETE"),
    ({"KV-Operation": ["PURGE"]}, "PURGE"),
    ({"KV-Operation": ["purge"]}, "DELETE"),
    ({"KV-Operation": ["DEL", "PURGE"]}, "DELETE"),
    ({"Z": ["PURGE", "DEL"], "KV-Operation": ["PURGE"]}, "PURGE"),
    ({"Nats-Marker-Reason": ["MaxAge"]}, "PURGE"),
    ({"Nats-Marker-Reason": ["MaxAge"], "Nats-TTL": ["2s"], "Nats-Rollup": ["sub"]}, "PURGE"),
    ({"Nats-Marker-Reason": ["Purge"]}, "PURGE"),
    ({"Nats-Marker-Reason": ["Remove"]}, "DELETE"),
    ({"Nats-Marker-Reason": [""]}, "PUT"),
    ({"Nats-Marker-Reason": ["MaxAge"], "KV-Operation": ["DEL"]}, "DELETE"),
    ({"A": ["x", "y"], "KV-Operation": ["PURGE"], "B": ["DEL"]}, "PURGE"),
    ({"Status": ["DEL"]}, "PUT"),
]


def test_operations() -> None:
    messages = [
        (f"$KV.B.k{number}", b"x", headers) for number, (headers, _) in enumerate(OPERATIONS)
    ]
    expected = [(operation, b"x" if operation == "PUT" else None) for _, operation in OPERATIONS]
    found = rows(*messages)
    assert [(row["operation"], row["value"]) for row in found] == expected
    # What the others of a run are makes no difference.
    alone = [rows(message)[0] for message in messages]
    assert [(row["operation"], row["value"]) for row in alone] == expected
    assert rows(*messages, live_only=True) == [row for row in found if row["operation"] == "PUT"]


def test_only_the_columns_asked_for() -> None:
    messages = (("$KV.B.a", b"1", None), ("$KV.B.b", b"", {"KV-Operation": ["DEL"]}))
    assert rows(*messages, columns=["key"]) == [{"key": "a"}, {"key": "b"}]
    assert rows(*messages, columns=["revision", "value"], live_only=True) == [
        {"revision": 7, "value": b"1"}
    ]
    with pytest.raises(SchemaError, match='no column "data"'):
        rows(*messages, columns=["data"])


def test_mirrors_and_sources_have_the_subjects_of_their_origins() -> None:
    found = rows(("$KV.ONE.a", b"", None), ("$KV.OTHER.a.b", b"", None), ("$KV.O.ü", b"", None))
    assert [(row["bucket"], row["key"]) for row in found] == [("B", "a"), ("B", "a.b"), ("B", "ü")]


@pytest.mark.parametrize("subject", ["orders.a", "$KV.B", "$KV.B.", "$KV..a", "$O.B.M.x"])
@pytest.mark.parametrize("before", [(), (("$KV.B.a", b"", None),)], ids=["first", "second"])
def test_a_subject_that_is_no_key(
    subject: str, before: tuple[tuple[str, bytes, None], ...]
) -> None:
    number = 7 + len(before)
    with pytest.raises(
        ProtocolError,
        match=rf"message {number} of a bucket has subject {subject.replace('$', '.')}",
    ):
        rows(*before, (subject, b"", None), columns=["key"])
