"""Message ids: the same for the same rows, however they come, and different for all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.sink import message_ids
from spark_jetstream.sink.id_keys import batch_keys, id_of_key, rows_of_keys
from spark_jetstream.sink.message_ids import MessageIds, Scheme, WriteTask
from spark_jetstream.sink.rows import Rows
from tests.support.sinking import batch, read

TASK = WriteTask("query", 7, 0)
PREFIX = "query.7.0."
Row = tuple[str, list[tuple[str, list[str]]] | None, bytes, str | None]


def ids_of(portions: Sequence[Sequence[Row]], identifier: MessageIds | None = None) -> list[bytes]:
    identifier = identifier or MessageIds(TASK)
    found = []
    for portion in portions:
        columns: dict[str, list[Any]] = {
            name: [row[at] for row in portion]
            for at, name in enumerate(("subject", "headers", "data", "msg_id"))
        }
        if not any(columns["msg_id"]):
            del columns["msg_id"]
        rows = read(batch(**columns))
        assert not rows.faults
        found += made(identifier, rows)
    return found


def made(identifier: MessageIds, some: Rows) -> list[bytes]:
    found: list[bytes] = identifier.ids(some).to_pylist()
    return found


def row(data: bytes) -> Row:
    return "a", None, data, None


def test_an_id_names_the_write_and_what_the_row_holds() -> None:
    [first, second, again, third] = ids_of([[row(b"x"), row(b"y"), row(b"x"), row(b"x")]])
    assert first.startswith(b"query.7.0.")
    assert len(first) == len(PREFIX) + 24
    assert len({first, second}) == 2
    assert (again, third) == (first + b".1", first + b".2")
    # Ids that are stored already have to be known again by later releases: blake2b of "a \r\nx", 12
    # bytes.
    assert first == b"query.7.0.d23d1b1e46f07cc23f565977"
    assert ids_of([[row(b"x")]], MessageIds(WriteTask("query", 8, 0))) == [
        first.replace(b".7.", b".8.")
    ]


@pytest.mark.parametrize(
    ("delivery", "kind", "columns", "found"),
    [
        ("at-least-once", "position", (), None),
        ("deduplicated", "position", ("data",), Scheme()),
        ("deduplicated", "position", ("stream", "data"), Scheme()),
        ("deduplicated", "position", ("stream", "sequence"), Scheme(origin=True)),
        # A roll-up that is stored again removes rows: the order in a partition counts.
        ("deduplicated", "position", ("stream", "sequence", "rollup"), Scheme()),
        ("deduplicated", "position", ("stream", "sequence", "schedule"), Scheme()),
        ("deduplicated", "content", ("stream", "sequence"), Scheme(partition=False, number=False)),
        ("exactly-once", "position", ("data",), Scheme(partition=False)),
        (
            "exactly-once",
            "position",
            ("stream", "sequence", "schedule"),
            Scheme(partition=False, origin=True),
        ),
        ("exactly-once", "content", ("stream", "sequence"), Scheme(partition=False, number=False)),
    ],
)
def test_a_scheme_follows_from_options_and_columns(
    delivery: str, kind: str, columns: tuple[str, ...], found: Scheme | None
) -> None:
    assert Scheme.of(delivery, kind, columns) == found


def from_source(*places: tuple[str | None, int | None]) -> Rows:
    """Equal rows that were read from these streams, as these messages."""
    count = len(places)
    streams, sequences = zip(*places, strict=True)
    return read(
        batch(subject=["a"] * count, data=[b"x"] * count, stream=streams, sequence=sequences)
    )


def test_rows_of_different_messages_have_ids_without_the_partition() -> None:
    some = from_source(("S", 1), ("S", 2), ("T", 1), ("S", 1), (None, 1), ("S", None))
    zero, one = (
        MessageIds(WriteTask("query", 7, partition), Scheme(origin=True)) for partition in (0, 1)
    )
    here, there = made(zero, some), made(one, some)
    assert here[:4] == there[:4]
    assert here[3] == here[0] + b".1"
    assert len({*here, *there}) == 8, "only rows that name no message have the partition"
    assert [each.count(b".") for each in here] == [2, 2, 2, 3, 3, 4]
    assert (zero.partitioned, one.partitioned) == (True, True)
    alone = MessageIds(TASK, Scheme(origin=True))
    assert made(alone, some.take(np.arange(4))) == here[:4]
    assert not alone.partitioned
    # Such a row is another one than the same content without a message.
    assert here[0][-24:] != here[4][-24:]


def test_ids_of_a_batch_are_the_same_in_each_partition() -> None:
    some = read(batch(subject=["a", "a", "b"], data=[b"x", b"x", b"y"]))
    first, *others = (
        made(MessageIds(WriteTask("query", 7, partition), Scheme(partition=False)), some)
        for partition in range(3)
    )
    assert others == [first, first]
    assert first[1] == first[0] + b".1"
    assert first[0] == b"query.7.d23d1b1e46f07cc23f565977"


def test_ids_of_content_are_the_same_for_equal_rows() -> None:
    scheme = Scheme(partition=False, number=False)
    ids = [
        made(MessageIds(WriteTask("query", 7, partition), scheme), from_source(("S", 1), ("S", 2)))
        for partition in (0, 1)
    ]
    assert len({*ids[0], *ids[1]}) == 1


def test_keys_of_a_batch_are_those_of_its_ids_alone() -> None:
    digest, other = b"ab" * 12, b"00" * 12
    ids = [
        b"q.1." + digest,
        b"q.1." + digest + b".3",
        b"q.1.dead." + other,
        b"q.1." + other + b".2.dead",
        b"q.1." + other + b".dead",
    ]
    foreign = [
        b"q.1.0." + digest,
        b"q.11." + digest,
        b"q.1." + digest.upper(),
        b"mine",
        b"",
        b"q.1.",
        None,
    ]
    foreign += [
        b"q.1." + digest + b".",
        b"q.1." + digest + b".x",
        b"q.1." + digest + b".1.after7",
        digest,
        b"q.1.dead.",
    ]
    mixed = [*foreign[:6], *ids, *foreign[6:]]
    keys, indices = batch_keys(pa.array(mixed, pa.binary()), b"q.1.")
    assert [mixed[index] for index in indices] == ids
    assert len(set(keys.tolist())) == len(ids)
    rows, numbers = rows_of_keys(keys)
    assert numbers.tolist() == [0, 3, 0, 2, 0]
    assert (rows[0], rows[3]) == (rows[1], rows[4])
    assert len(set(rows.tolist())) == 3
    again = [
        id_of_key(bytes(row), int(number), b"q.1.")
        for row, number in zip(rows, numbers, strict=True)
    ]
    assert again == ids
    keys, indices = batch_keys(pa.array([], pa.binary()), b"q.1.")
    assert (len(keys), len(indices)) == (0, 0)
    # Of a slice, too.
    assert batch_keys(pa.array(mixed, pa.binary()).slice(6, 2), b"q.1.")[1].tolist() == [0, 1]


DIFFERENT: list[Row] = [
    ("a", None, b"b", None),
    ("a.b", None, b"", None),
    ("a", None, b"", None),
    ("b", None, b"a", None),
    ("a", [("b", [""])], b"", None),
    ("a", [("b", ["c"])], b"", None),
    ("a", [("b", [""])], b"c", None),
    ("a", None, b"b: \r\n", None),
    ("a", None, b"b: \r\n\r\n", None),
    ("a", None, b"b: c\r\n\r\n", None),
    ("a", [("b", ["c"])], b"\r\n", None),
    ("a", None, b"\r\n", None),
    ("a", None, b" b", None),
    ("a", [("b", ["c"]), ("d", ["e"])], b"", None),
    ("a", [("d", ["e"]), ("b", ["c"])], b"", None),
    ("a", [("b", ["c"])], b"d: e\r\n\r\n", None),
    ("a", [("b", ["c", "c"])], b"", None),
    ("a", [("b", ["cb: c"])], b"", None),
]


def test_bytes_that_move_between_subject_headers_and_payload_make_another_row() -> None:
    ids = ids_of([DIFFERENT])
    # What the columns ttl and expected_last_subject_sequence ask of the server is part of the
    # headers.
    asked: list[dict[str, list[Any]]] = [
        {"ttl": ["5s"]},
        {"ttl": ["6s"]},
        {"expected_last_subject_sequence": [5]},
    ]
    ids += [
        made(MessageIds(TASK), read(batch(subject=["a"], data=[b""], **more)))[0] for more in asked
    ]
    assert len(set(ids)) == len(DIFFERENT) + len(asked)
    assert all(each.count(b".") == 3 for each in ids), "no two of them are taken for equal rows"


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b.c"]),
        st.sampled_from([None, [("A", ["1"])], [("A", ["1", "2"])]]),
        st.sampled_from([b"", b"x", b"y"]),
        st.sampled_from([None, None, None, "own-1", "größe"]),
    ),
    max_size=30,
)


@settings(max_examples=30, deadline=None)
@given(ROWS, st.data())
def test_neither_portions_nor_their_order_matter(some: list[Row], data: st.DataObject) -> None:
    """In another order, equal rows have the same ids between them."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(some)), max_size=6)))
    shuffled = data.draw(st.permutations(some))
    ids, again = (
        ids_of([rows[a:b] for a, b in pairwise([0, *cuts, len(some)])]) for rows in (some, shuffled)
    )
    assert ids == ids_of([some]) == ids_of([[each] for each in some])
    assert Counter(zip(map(repr, some), ids, strict=True)) == Counter(
        zip(map(repr, shuffled), again, strict=True)
    )
    assert all(
        found == each[3].encode()
        for each, found in zip(some, ids, strict=True)
        if each[3] is not None
    )
    made = [found for each, found in zip(some, ids, strict=True) if each[3] is None]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("key", [bytes(8), b"\x01" + bytes(7), b"\xff" * 8])
def test_different_rows_whose_hashes_share_what_is_kept_have_different_ids(
    key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collide(contents: Any) -> bytes:
        return b"".join(key + content[-4:] for content in contents.to_pylist())

    monkeypatch.setattr(message_ids, "_digests", collide)
    some = [row(data) for data in (b"aaaa", b"bbbb", b"aaaa", b"cccc", b"bbbb", b"aaaa")]
    for portions in ([some], [[each] for each in some], [some[:2], some[2:]]):
        ids = ids_of(portions)
        assert len(set(ids)) == len(some)
        assert [found.count(b".") for found in ids] == [3, 4, 4, 4, 4, 4]
        for each, found in zip(some, ids, strict=True):
            assert found.startswith(f"{PREFIX}{(key + each[2]).hex()}".encode())
