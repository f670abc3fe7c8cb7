"""What the answers to a shared reply subject prove, and until when its rows are in flight."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jetstream.protocol.pub_ack import StoredAcks
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.window import InFlight, Portion, SharedReplies, Window
from tests.support.sinking import read_rows

NUMBER = 7
Answer = tuple[str, int, bool]  # stream and domain as one name, sequence, whether it is a duplicate


def taken(rows: int, *runs: list[Answer], refused: int = 0) -> SharedReplies:
    """What has come for `rows` rows; each run is what one read brought, beside an answer to something else."""
    shared = SharedReplies(rows, ("S", ""))
    shared.refused = refused
    for run in runs:
        stream, _, domain = run[0][0].partition("@")
        sequences = np.array([999, *(sequence for _, sequence, _ in run)])
        duplicate = np.array([False, *(known for _, _, known in run)])
        numbers = np.array([NUMBER + 1, *[NUMBER] * len(run)])
        shared.take(StoredAcks(stream, domain, numbers, sequences, duplicate), numbers == NUMBER)
    return shared


def fresh(*sequences: int, stream: str = "S") -> list[Answer]:
    return [(stream, sequence, False) for sequence in sequences]


def known(*sequences: int) -> list[Answer]:
    return [("S", sequence, True) for sequence in sequences]


@pytest.mark.parametrize(
    ("runs", "refused", "proof"),
    [
        ([fresh(1), fresh(3), fresh(2)], 0, True),
        ([known(5, 6, 7)], 0, True),
        ([fresh(8), known(5, 6)], 0, True),
        ([fresh(5), known(5, 5)], 0, True),  # rows with one message id
        ([fresh(1, 2)], 1, False),
        ([], 3, False),
        ([fresh(1, 2, 2)], 0, False),  # two answers to one row
        ([fresh(1, 2), fresh(2)], 0, False),
        ([fresh(1, 2), fresh(3, stream="T")], 0, False),
        ([fresh(1, 2), fresh(3, stream="S@hub")], 0, False),  # two answers to one row, of streams in two domains
        ([fresh(1, 2, stream="S@hub"), known(3)], 0, False),
        ([fresh(1, 2, 3, stream="S@hub")], 0, False),  # late answers to rows that had the subject before
        ([fresh(1, 2, 3, 4)], 0, False),
    ],
)
def test_as_many_good_answers_as_rows_prove_that_all_are_stored(
    runs: list[list[Answer]], refused: int, proof: bool
) -> None:
    assert taken(3, *runs, refused=refused).proof is proof
    assert not taken(5, *runs, refused=refused).proof


def test_names_the_messages_that_are_new() -> None:
    shared = taken(9, fresh(4, 2), known(3), fresh(9, stream="S@hub"), refused=2)
    assert {place: found.tolist() for place, found in shared.sequences().items()} == {
        ("S", ""): [4, 2],
        ("S", "hub"): [9],
    }
    assert (shared.stored, shared.duplicates, shared.refused, shared.proof) == (4, 1, 2, False)


def test_rows_that_share_are_in_flight_until_all_answers_are_there() -> None:
    window = Window("_INBOX.x", 100, may_share=True)

    def sent(shared: bool) -> InFlight:
        portion = Portion(read_rows("a", data=[b"1", b"2"]), None, None, Totals(), True, 0.0, {})
        flight = window.prepare(portion, 1 << 20, shared=True)
        assert flight.frames.shared is shared
        window.portions.append(flight)
        return flight

    def answer(number: int, sequence: int) -> None:
        acks = StoredAcks("S", "", np.array([number]), np.array([sequence]), np.array([False]))
        assert window.take(acks, Target()) is None

    first = sent(shared=False).frames.first  # no stream has answered yet
    answer(first, 1)
    answer(first + 1, 2)
    window.drop_answered()
    flight = sent(shared=True)
    answer(flight.frames.first, 3)
    assert (window.conclude(), window.portions) == ([], [flight])
    answer(flight.frames.first, 4)
    assert (window.conclude(), window.portions) == ([], [])
