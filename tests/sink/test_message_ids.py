"""Message ids: the same for the same rows, however they come, and different for all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.sink import message_ids
from spark_jetstream.sink.message_ids import MessageIds
from spark_jetstream.sink.rows import Rows
from tests.support.sinking import batch, read

PREFIX = "query.7.0"
Row = tuple[str, list[tuple[str, list[str]]] | None, bytes, str | None]


def ids_of(portions: Sequence[Sequence[Row]], identifier: MessageIds | None = None) -> list[bytes]:
    identifier = identifier or MessageIds(PREFIX)
    found = []
    for portion in portions:
        columns: dict[str, list[Any]] = {
            name: [row[at] for row in portion] for at, name in enumerate(("subject", "headers", "data", "msg_id"))
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
    assert len(first) == len(PREFIX) + 1 + 24
    assert len({first, second}) == 2
    assert (again, third) == (first + b".1", first + b".2")
    # Ids that are stored already have to be known again by later releases: blake2b of "a \r\nx", 12 bytes.
    assert first == b"query.7.0.d23d1b1e46f07cc23f565977"
    assert ids_of([[row(b"x")]], MessageIds("query.8.0")) == [first.replace(b".7.", b".8.")]


def test_ids_that_belong_to_no_row() -> None:
    identifier = MessageIds(PREFIX)
    own = ids_of([[row(b"x"), row(b"y"), row(b"x"), ("a", None, b"z", "mine")]], identifier)
    others = ids_of([[row(b"z"), row(b"y"), row(b"y")]])
    assert identifier.strangers(own) == identifier.strangers([]) == 0
    # What the user has named, dead letters and other tasks' rows are not looked at.
    assert identifier.strangers([*own, *others, b"yours", PREFIX.encode() + b".dead." + own[0][-24:]]) == 2
    assert identifier.strangers(ids_of([[row(b"z")]], MessageIds("query.7.1"))) == 0
    assert MessageIds(PREFIX).strangers(own) == 3


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
    # What the columns ttl and expected_last_subject_sequence ask of the server is part of the headers.
    asked: list[dict[str, list[Any]]] = [{"ttl": ["5s"]}, {"ttl": ["6s"]}, {"expected_last_subject_sequence": [5]}]
    ids += [made(MessageIds(PREFIX), read(batch(subject=["a"], data=[b""], **more)))[0] for more in asked]
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
    ids, again = (ids_of([rows[a:b] for a, b in pairwise([0, *cuts, len(some)])]) for rows in (some, shuffled))
    assert ids == ids_of([some]) == ids_of([[each] for each in some])
    assert Counter(zip(map(repr, some), ids, strict=True)) == Counter(zip(map(repr, shuffled), again, strict=True))
    assert all(found == each[3].encode() for each, found in zip(some, ids, strict=True) if each[3] is not None)
    made = [found for each, found in zip(some, ids, strict=True) if each[3] is None]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("key", [bytes(8), b"\x01" + bytes(7), b"\xff" * 8])
def test_different_rows_whose_hashes_share_what_is_kept_have_different_ids(
    key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collide(subject: Any, tails: Any) -> bytes:
        return b"".join(key + tail[-4:] for tail in tails.to_pylist())

    monkeypatch.setattr(message_ids, "_digests", collide)
    some = [row(data) for data in (b"aaaa", b"bbbb", b"aaaa", b"cccc", b"bbbb", b"aaaa")]
    for portions in ([some], [[each] for each in some], [some[:2], some[2:]]):
        ids = ids_of(portions)
        assert len(set(ids)) == len(some)
        assert [found.count(b".") for found in ids] == [3, 4, 4, 4, 4, 4]
        for each, found in zip(some, ids, strict=True):
            assert found.startswith(f"{PREFIX}.{(key + each[2]).hex()}".encode())
