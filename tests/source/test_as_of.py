"""A Key-Value bucket as of a revision or time: each row is right, or the read fails and says what is gone.

A model of the bucket knows all revisions that were ever stored, and so the table as of each of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from spark_jetstream.errors import DataLossError, OptionError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import subject_pattern
from tests.support import calls
from tests.support.calls import BUCKET_ROWS, data_source, rows_of
from tests.support.keyed import make_bucket, name_of
from tests.support.publish import Message
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream, iso, nanoseconds

PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
HEADERS = {"PUT": {}, "DELETE": {"KV-Operation": "DEL"}, "PURGE": PURGE}

Table = dict[str, tuple[int, bytes]]


class Revision(NamedTuple):
    number: int
    key: str
    operation: str
    value: bytes


class Model:
    """A bucket, and all revisions that were ever stored in it."""

    def __init__(self, bucket: Stream) -> None:
        self.bucket = bucket
        self.revisions: list[Revision] = []

    def store(self, *changes: tuple[str, str], ttl: str = "") -> int:
        """Store changes, pairs of key and operation; the last revision."""
        first = self.bucket.state()["last_seq"] + 1
        for number, (key, operation) in enumerate(changes, start=first):
            value = f"{key} {number}".encode() if operation == "PUT" else b""
            self.revisions.append(Revision(number, key, operation, value))
        some = self.revisions[len(self.revisions) - len(changes) :]
        more = {"Nats-TTL": ttl} if ttl else {}
        sent = [
            Message(f"$KV.{name_of(self.bucket)}.{key}", value, [*(HEADERS[operation] | more).items()] or None)
            for _, key, operation, value in some
        ]
        assert self.bucket.publisher.publish(sent) == [each.number for each in some]
        return some[-1].number

    def put(self, *keys: str, ttl: str = "") -> int:
        return self.store(*((key, "PUT") for key in keys), ttl=ttl)

    def delete(self, key: str) -> int:
        return self.store((key, "DELETE"))

    def purge(self, key: str) -> int:
        return self.store((key, "PURGE"))

    def clean(self, key: str) -> None:
        """Remove what is left of a deleted key, as the clients' PurgeDeletes does."""
        self.bucket.purge(filter=f"$KV.{name_of(self.bucket)}.{key}")

    def table(self, revision: int, keys: str = ">") -> Table:
        """The table as it was."""
        last = {each.key: each for each in self.revisions if each.number <= revision}
        matching = subject_pattern(keys.split(","))
        return {
            key: (each.number, each.value)
            for key, each in last.items()
            if each.operation == "PUT" and matching.fullmatch(key)
        }

    def kept(self) -> set[int]:
        """The revisions that the bucket still has."""
        return {row.revision for row in calls.rows(options(self.bucket, history="true"), BUCKET_ROWS)}

    def read(self, **given: object) -> Table:
        """The table that the connector reads; no key twice."""
        return as_table(calls.rows(options(self.bucket, **given), BUCKET_ROWS))

    def refused(self, **given: object) -> str:
        """What the connector says instead."""
        with pytest.raises(OptionError) as caught:
            calls.rows(options(self.bucket, **given), BUCKET_ROWS)
        assert caught.value.option in given
        return str(caught.value)


def as_table(rows: list[Any]) -> Table:
    table = {row.key: (row.revision, row.value) for row in rows}
    assert len(table) == len(rows)
    assert all(row.operation == "PUT" for row in rows)
    return table


def options(bucket: Stream, **given: object) -> dict[str, str]:
    return {"servers": bucket.url, "bucket": name_of(bucket)} | {name: str(value) for name, value in given.items()}


@pytest.fixture
def model(stream: MakeStream) -> Callable[..., Model]:
    return lambda history=5, **config: Model(make_bucket(stream, max_msgs_per_subject=history, **config))


Make = Callable[..., Model]


# What is proven


def test_every_revision_is_exact_while_all_are_kept(model: Make) -> None:
    bucket = model()
    bucket.put("a", "b.1", "b.2", "a")
    bucket.delete("b.1")
    bucket.put("b.1", "c")
    bucket.delete("a")
    for way in ("consumer", "direct", "auto"):
        for revision in range(1, 9):
            assert bucket.read(asOfRevision=revision, readWith=way) == bucket.table(revision)
            for keys in ("b.*", "b.2,c", ">"):
                found = bucket.read(asOfRevision=revision, readWith=way, keys=keys)
                assert found == bucket.table(revision, keys)
