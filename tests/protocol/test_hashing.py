"""Hashes of subjects, and tables of hashes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.protocol import hashing
from spark_jetstream.protocol.hashing import STABLE, HashMap, HashSet, subject_hashes

HASHES = st.integers(1, 2**64 - 1) | st.integers(1, 40) | st.integers(1, 40).map(lambda n: n << 20)


def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1))
def test_equal_subjects_have_equal_hashes_at_any_place(subjects: list[str]) -> None:
    column = pa.array(["in front", *subjects], pa.string())
    hashes = subject_hashes(column)
    assert (subject_hashes(column[1:]) == hashes[1:]).all()
    for subject, value in zip(subjects, hashes[1:], strict=True):
        assert subject_hashes(pa.array([subject, "x" * 50])[:1])[0] == value


def test_different_subjects_have_different_hashes_that_use_all_bits() -> None:
    subjects = [f"$KV.B.{i}" for i in range(200_000)]
    subjects += [f"$KV.B.{'a' * i}{j}" for i in range(1, 200) for j in range(10)]
    subjects += [f"$KV.B.{j}{'a' * i}" for i in range(1, 200) for j in range(10)]
    hashes = subject_hashes(pa.array(subjects))
    assert len(np.unique(hashes)) == len(subjects)
    for bit in range(64):
        share = float(((hashes[:20_000] >> np.uint64(bit)) & np.uint64(1)).mean())
        assert 0.47 < share < 0.53, bit


def test_nobody_can_choose_subjects_with_the_same_hash() -> None:
    """The second word takes back what the first one changed: with a seed that is known, it can be
    computed.
    """
    first, other, second = b"$KV.B.01", b"$KV.B.02", b"abcdefgh"
    states = [
        hashing._mixed(
            hashing._mixed(np.array([16], np.uint64) ^ STABLE) ^ np.frombuffer(word, np.uint64)
        )
        for word in (first, other)
    ]
    answer = (states[0] ^ states[1] ^ np.frombuffer(second, np.uint64)).tobytes()
    chosen = pa.array([first + second, other + answer], pa.binary())
    assert len(np.unique(subject_hashes(chosen, STABLE))) == 1
    assert len(np.unique(subject_hashes(chosen))) == 2


@pytest.mark.parametrize(
    "keys",
    [
        [(n << 40) | 5 for n in range(1, 600)],  # all of them want one slot
        [(n << 40) | 0xFFF for n in range(1, 600)],  # the last slot: what follows begins in front
        [(n << 40) | (0xFF0 + n % 16) for n in range(1, 600)],
        [2**64 - n for n in range(1, 600)],
        [(n << 12) | 7 for n in range(1, 600)],  # part when the table grows
    ],
)
@pytest.mark.parametrize("step", [20, 600])
def test_hashes_that_want_the_same_slot_are_all_kept(keys: list[int], step: int) -> None:
    table = HashSet()
    for start in range(0, len(keys), step):
        assert not table.add(array(keys[start : start + step])).any()
    assert table.add(array(keys)).all()
    assert not table.add(array([(1 << 63) | key for key in keys if not key >> 63])).any()


def test_the_table_grows_and_stays_half_empty() -> None:
    table = HashSet()
    keys = np.unique(np.random.default_rng(1).integers(1, 2**63, 50_000, np.uint64))
    for part in np.array_split(keys, 23):
        assert not table.add(part).any()
    assert table.add(keys).all()
    assert np.count_nonzero(table._table) == len(keys)
    assert 16 * len(keys) <= table._table.nbytes <= 64 * len(keys)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(HASHES)), max_size=8))
def test_the_table_is_a_set(portions: list[tuple[bool, list[int]]]) -> None:
    table, seen = HashSet(), set[int]()
    for once, portion in portions:
        if once:
            distinct = list(dict.fromkeys(portion))
            assert table.add(array(distinct)).tolist() == [key in seen for key in distinct]
        else:
            new = {key: index for index, key in enumerate(portion) if key not in seen}
            assert table.take_new(array(portion)).tolist() == sorted(new.values())
        seen.update(portion)


@settings(max_examples=20)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 8999), st.integers(1, 2**62)), max_size=30), max_size=6
    )
)
def test_numbers_are_those_of_a_dictionary(portions: list[list[tuple[int, int]]]) -> None:
    table, wanted = HashMap(), list(range(9000))  # more than the table has slots at first
    keys = array([(key * 0x9E3779B97F4A7C15) % 2**40 for key in range(9000)])
    table.put(keys, np.arange(9000))
    for portion in portions:
        latest = dict(portion)
        table.put(keys[np.array(list(latest), np.int64)], np.array(list(latest.values()), np.int64))
        for key, number in latest.items():
            wanted[key] = number
    assert table.get(keys).tolist() == wanted
    assert table.get(array([2**63])).tolist() == [0]
