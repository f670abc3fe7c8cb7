"""Answers to a shared reply subject: what they prove, and until when its rows are in flight."""

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


def taken(rows: int, *runs: list[Answer], refused: int = 0, after: int = 0) -> SharedReplies:
    """Return the state of `rows` rows, sent after message `after`, when these answers have arrived.

    A run is what one read brought. Each run also has an answer to something else.
    """
    shared = SharedReplies(rows, ("S", ""), {"S": after})
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
        (
            [fresh(1, 2), fresh(3, stream="S@hub")],
            0,
            False,
        ),  # two answers to one row, of streams in two domains
        ([fresh(1, 2, stream="S@hub"), known(3)], 0, False),
        (
            [fresh(1, 2, 3, stream="S@hub")],
            0,
            False,
        ),  # late answers to rows that had the subject before
        ([fresh(1, 2, 3, 4)], 0, False),
    ],
)
def test_as_many_good_answers_as_rows_prove_that_all_are_stored(
    runs: list[list[Answer]], refused: int, proof: bool
) -> None:
    assert taken(3, *runs, refused=refused).proof is proof
    assert not taken(5, *runs, refused=refused).proof


def test_only_rows_that_were_stored_before_are_messages_that_were_known() -> None:
    assert taken(3, fresh(8), known(5, 6), after=7).proof
    assert not taken(3, fresh(7, 8), known(5), after=7).proof


def test_names_the_messages_that_are_new() -> None:
    shared = taken(9, fresh(4, 2), known(3), fresh(9, stream="S@hub"), refused=2)
    assert {place: found.tolist() for place, found in shared.sequences().items()} == {
        ("S", ""): [4, 2],
        ("S", "hub"): [9],
    }
    assert (shared.stored, shared.duplicates, shared.refused, shared.proof) == (4, 1, 2, False)


class Sharing:
    """Portions of two rows in a window.

    The first one is stored, and those that follow share reply subjects.
    """

    def __init__(self) -> None:
        self.window = Window("_INBOX.x", 100, may_share=True)
        self._totals = Totals()
        first = self.sent(shared=False).frames.first  # no stream has answered yet
        self.answer(first, 1)
        self.answer(first + 1, 2)
        self.window.drop_answered()

    def sent(self, shared: bool = True) -> InFlight:
        after = {name: last for name, (_, last) in self._totals.streams.items()}
        portion = Portion(
            read_rows("a", data=[b"1", b"2"]), None, None, self._totals, False, 0.0, after
        )
        flight = self.window.prepare(portion, 1 << 20, shared=True)
        assert flight.frames.shared is shared
        self.window.portions.append(flight)
        return flight

    def answer(self, number: int, sequence: int) -> None:
        acks = StoredAcks("S", "", np.array([number]), np.array([sequence]), np.array([False]))
        assert self.window.take(acks, Target()) is None


def test_rows_that_share_are_in_flight_until_all_answers_are_there() -> None:
    sharing = Sharing()
    window, flight = sharing.window, sharing.sent()
    sharing.answer(flight.frames.first, 3)
    assert (window.conclude(), window.portions) == ([], [flight])
    sharing.answer(flight.frames.first, 4)
    assert (window.conclude(), window.portions) == ([], [])


def test_a_late_answer_to_rows_that_had_the_subject_before_proves_nothing() -> None:
    sharing = Sharing()
    window, before = sharing.window, sharing.sent()
    for sequence in (3, 4):
        sharing.answer(before.frames.first, sequence)
    assert window.conclude() == []
    flight = sharing.sent()
    number = flight.frames.first
    assert number == before.frames.first
    sharing.answer(number, 4)
    sharing.answer(number, 5)
    assert (window.conclude(), window.portions) == ([flight], [flight])
    assert (flight.unanswered, flight.frames.shared) == (2, False)
    assert flight.replies is not None
    assert {place: own.tolist() for place, own in flight.replies.sequences().items()} == {
        ("S", ""): [5]
    }
