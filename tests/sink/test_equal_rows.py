"""The claims of tasks and the messages of a stream, balanced: compared with counting by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.sink.claims import Claims, merged, unpacked
from spark_jetstream.sink.equal_rows import Missing, balance, claimed_twice
from spark_jetstream.sink.stored_ids import GUARDED, SCHEDULED, StoredIds

PREFIX = b"q.7."
A, B, C = (letter * 24 for letter in (b"a", b"b", b"c"))


def stored(
    *messages: tuple[bytes, int], marks: Sequence[int | np.uint8] = (), own: bool = False
) -> StoredIds:
    """The messages of a stream, by id and sequence."""
    found = StoredIds(PREFIX, own=own)
    ids, sequences = zip(*messages, strict=True)
    kinds = np.array(marks or [0] * len(messages), np.uint8)
    found.add(pa.array(ids, pa.binary()), np.array(sequences, np.int64), kinds)
    return found


def claims(*sequences: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sequences, np.int64)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 2**62), max_size=50), max_size=5))
def test_claims_come_back_as_they_were_made(parts: list[list[int]]) -> None:
    made = Claims()
    for part in parts:
        made.add("S", claims(*part))
    packed = made.packed().get("S", [])
    assert sorted(unpacked(packed).tolist()) == sorted(
        {number for part in parts for number in part}
    )


def test_claims_of_many_rows_are_small() -> None:
    made = Claims()
    for first in range(1, 400_001, 1000):
        made.add("S", np.arange(first, first + 1000, 2))
    packed = made.packed()["S"]
    assert len(packed) > 1, "they are packed on the way"
    assert sum(map(len, packed)) < 200_000
    assert len(np.unique(unpacked(packed))) == 200_000


@pytest.mark.parametrize("broken", [b"", b"x", b"\x78\x9c\x03"])
def test_bytes_that_are_no_claims_are_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="these are no claims"):
        unpacked([broken])


def test_streams_are_contested_where_two_tasks_claim_a_message() -> None:
    tasks = []
    for names in ({"S": [1, 2], "T": [1]}, {"S": [3], "T": [1]}, {"U": [1]}):
        made = Claims()
        for name, sequences in names.items():
            made.add(name, claims(*sequences))
        tasks.append(made.packed())
    found = merged(tasks)
    assert {name: sorted(sequences.tolist()) for name, sequences in found.items()} == {
        "S": [1, 2, 3],
        "T": [1, 1],
        "U": [1],
    }
    assert claimed_twice(found) == {"T"}


def test_a_copy_is_missing_for_each_claim_beyond_the_messages() -> None:
    found = balance(
        stored((PREFIX + A, 5), (PREFIX + A + b".1", 6)),
        claims(5, 6, 5, 6, 5),
        PREFIX,
        numbered=True,
    )
    assert found.missing == [
        Missing([5, 6], [PREFIX + A + b".2", PREFIX + A + b".3", PREFIX + A + b".4"])
    ]
    assert (found.strangers, found.doubled, found.lost) == (0, 0, 0)


def test_numbers_that_are_free_are_used() -> None:
    found = balance(
        stored((PREFIX + A + b".1", 6), (PREFIX + A + b".4", 9)),
        claims(6, 9, 9, 9),
        PREFIX,
        numbered=True,
    )
    assert found.missing == [Missing([6, 9], [PREFIX + A, PREFIX + A + b".2"])]


def test_messages_with_one_id_are_equal_rows() -> None:
    """The stream had forgotten the id between two tasks, whose rows may be in one task now."""
    names = pa.array([PREFIX + A + number for number in (b"", b".1", b".2", b".3", b".4")])
    messages = [(PREFIX + A, 1), (PREFIX + A, 5), (PREFIX + A + b".2", 7), (PREFIX + A, 8)]
    found = stored(*messages, (PREFIX + B, 2), (PREFIX + B, 3))
    assert found.find(names).tolist() == [1, 0, 7, 0, 0]
    found.use_doubled()
    assert found.find(names).tolist() == [1, 5, 7, 8, 0]
    # Another message that comes later is no other row, and none is two rows.
    found.add(names[1:2], claims(9), np.zeros(1, np.uint8))
    found.add(names[:1], claims(10), np.zeros(1, np.uint8))
    assert found.find(names).tolist() == [1, 9, 7, 8, 0]


@pytest.mark.parametrize("mark", [GUARDED, SCHEDULED])
def test_schedules_and_guarded_rows_have_one_message_of_an_id(mark: int) -> None:
    found = stored((PREFIX + A, 1), (PREFIX + A, 5), marks=[mark, mark])
    found.use_doubled()
    assert found.find(pa.array([PREFIX + A, PREFIX + A + b".1"])).tolist() == [1, 0]


def test_dead_letters_are_rows_of_their_own() -> None:
    letters = [PREFIX + A, PREFIX + A + b".dead", PREFIX + b"dead." + A]
    found = balance(
        stored(*zip(letters, (1, 2, 3), strict=True)), claims(1, 2, 2, 3, 3), PREFIX, numbered=True
    )
    copies = [row.ids for row in found.missing]
    assert sorted(copies) == [[PREFIX + A + b".1.dead"], [PREFIX + b"dead." + A + b".1"]]


def test_messages_of_no_row_are_strangers() -> None:
    found = balance(
        stored((PREFIX + A, 1), (PREFIX + B, 2), (PREFIX + B + b".1", 3)),
        claims(1),
        PREFIX,
        numbered=True,
    )
    assert (found.missing, found.strangers) == ([], 2)
    # So are more equal rows than there are.
    found = balance(
        stored((PREFIX + A, 1), (PREFIX + A + b".1", 2)), claims(1), PREFIX, numbered=True
    )
    assert (found.missing, found.strangers, found.doubled) == ([], 1, 0)


def test_a_message_that_was_stored_twice_is_no_stranger() -> None:
    """The stream had forgotten its id when the second copy arrived."""
    found = balance(stored((PREFIX + A, 1), (PREFIX + A, 9)), claims(9), PREFIX, numbered=True)
    assert (found.missing, found.strangers, found.doubled) == ([], 0, 1)
    # Two tasks with equal rows may have stored both.
    found = balance(stored((PREFIX + A, 1), (PREFIX + A, 9)), claims(9, 1), PREFIX, numbered=True)
    assert (found.missing, found.strangers, found.doubled) == ([], 0, 0)


def test_ids_of_content_need_no_copies() -> None:
    found = balance(
        stored((PREFIX + A, 1), (PREFIX + B, 2)), claims(1, 1, 1), PREFIX, numbered=False
    )
    assert (found.missing, found.strangers, found.doubled) == ([], 1, 0)


def test_a_missing_row_without_a_stored_copy_counts_as_lost() -> None:
    found = balance(stored((PREFIX + A, 5)), claims(5, 2, 2, 3), PREFIX, numbered=True)
    assert (found.missing, found.lost) == ([], 1)
    nothing = balance(StoredIds(PREFIX, own=False), claims(5, 5), PREFIX, numbered=True)
    assert (nothing.missing, nothing.strangers, nothing.lost) == ([], 0, 1)


def test_rows_with_ids_of_users_are_not_compared() -> None:
    found = balance(
        stored((b"mine", 4), (PREFIX + A, 5), own=True), claims(4, 4, 5), PREFIX, numbered=True
    )
    assert (found.missing, found.strangers, found.lost) == ([], 0, 0)


@pytest.mark.parametrize("mark", [SCHEDULED, GUARDED])
def test_rows_of_which_a_subject_takes_one_get_no_copies(mark: int) -> None:
    """A schedule replaces an equal one, and an expected sequence is that of the first row only."""
    found = balance(stored((PREFIX + A, 5), marks=[mark]), claims(5, 5), PREFIX, numbered=True)
    assert (found.missing, found.strangers, found.lost) == ([], 0, 0)


def test_a_schedule_and_what_it_has_published_are_one_row() -> None:
    """The schedule is gone, or still there if it repeats: its id comes twice, and the task may
    claim either.
    """
    for claimed in (5, 9, 1):
        found = balance(
            stored((PREFIX + A, 5), (PREFIX + A, 9), marks=[SCHEDULED, SCHEDULED]),
            claims(claimed),
            PREFIX,
            numbered=True,
        )
        assert (found.missing, found.strangers, found.doubled) == ([], 0, 0)


LAYOUTS = st.lists(st.lists(st.sampled_from([A, B, C]), max_size=6), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(LAYOUTS, st.randoms(use_true_random=False))
def test_ids_of_a_batch_do_not_depend_on_its_partitions(
    parts: list[list[bytes]], r: object
) -> None:
    """After the driver's copies a stream has the same ids, in whichever layout the batch was
    written before.
    """
    rows = [row for part in parts for row in part]
    wanted = {_id(row, number) for row, count in Counter(rows).items() for number in range(count)}
    table: dict[bytes, int] = {}
    for layout in (parts, [rows], [[row] for row in rows], [rows[::2], rows[1::2]]):
        made = []
        for part in layout:
            counts: Counter[bytes] = Counter()
            for row in part:
                made.append(table.setdefault(_id(row, counts[row]), len(table) + 1))
                counts[row] += 1
        if not table:
            continue
        found = balance(stored(*table.items()), claims(*made), PREFIX, numbered=True)
        assert (found.strangers, found.doubled, found.lost) == (0, 0, 0)
        for missing in found.missing:
            for message_id in missing.ids:
                assert message_id not in table
                table[message_id] = len(table) + 1
        assert table.keys() == wanted


def _id(row: bytes, number: int) -> bytes:
    return PREFIX + row + (b".%d" % number if number else b"")
