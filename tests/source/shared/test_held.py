"""Reserved messages as an offset holds them."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.errors import ProtocolError
from spark_jetstream.source.shared.held import Held, ack_prefix, plain_prefix

CREATED = "2026-02-03T04:05:06.1Z"
V2 = "$JS.ACK.hub.ACCHASH.JOBS.pool"

sequences = st.one_of(
    st.sets(st.integers(1, 400), max_size=300),
    st.sets(st.integers(1, 2**63 - 1), max_size=60),
)


@given(sequences, st.sampled_from([plain_prefix("JOBS", "pool"), V2]))
def test_round_trip(chosen: set[int], ack: str) -> None:
    held = Held(CREATED, ack, tuple(sorted(chosen)))
    text = json.dumps(held.to_json())
    again = Held.from_json(json.loads(text))
    assert again == held
    assert json.dumps(again.to_json()) == text
    assert again.name == "pool"


def test_other_sequences_are_not_equal() -> None:
    assert Held(CREATED, V2, (1, 2)) != Held(CREATED, V2, (1, 3))


def test_ten_thousand_of_fifty_thousand_take_eight_kilobytes() -> None:
    chosen = sorted(random.Random(1).sample(range(1, 50_001), 10_000))
    assert len(json.dumps(Held(CREATED, V2, tuple(chosen)).to_json())) < 8_000


@pytest.mark.parametrize(
    ("reply", "prefix"),
    [
        ("$JS.ACK.JOBS.pool.2.7.9.1700000000000000000.3", "$JS.ACK.JOBS.pool"),
        ("$JS.ACK._.ACCHASH.JOBS.pool.2.7.9.1700000000000000000.3", "$JS.ACK._.ACCHASH.JOBS.pool"),
        ("$JS.ACK.hub.ACCHASH.JOBS.pool.2.7.9.1700000000000000000.3.new", V2),
    ],
)
def test_the_prefix_of_both_forms(reply: str, prefix: str) -> None:
    assert ack_prefix(reply) == prefix
    assert Held(CREATED, prefix, (7,)).ack_subjects([7]) == [f"{prefix}.1.7.1.1.0"]


def test_another_subject_has_no_prefix() -> None:
    with pytest.raises(ProtocolError):
        ack_prefix("jobs.a")


@pytest.mark.parametrize("wrong", [(0,), (2, 2), (3, 1), (2**63,)])
def test_sequences_must_rise(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        Held(CREATED, V2, wrong)
