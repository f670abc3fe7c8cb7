"""A query on a shared work queue that ends within a commit: the next run continues.

A commit purges what the query has read, which moves the consumer on to the next message that
matches, and then moves the consumer back. The run notes the purge in the consumer's metadata before
it sends it (`Purge`), so that the next run can tell it from one by another client.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import DataLossError, JetStreamError, RequestTimeout
from spark_jetstream.protocol.conventions import PURGE, RUN
from spark_jetstream.protocol.features import CONSUMER_RESET, FILTERED_PURGE
from spark_jetstream.source.durable import consumer_state
from spark_jetstream.source.durable.consumer_state import Purge
from spark_jetstream.source.planner import Planner
from tests.support import planning
from tests.support.features import for_none
from tests.support.planning import driver, planner_after
from tests.support.progress import (
    Crash,
    Maker,
    Run,
    can_move,
    consumer,
    left,
    level_of,
    make_consumer,
    pending,
    position,
    state_of,
    take,
)
from tests.support.publish import Message
from tests.support.streams import Stream

#: The requests of a commit. A run notes no purge that leaves the consumer at the position.
COMMIT = [
    "CONSUMER.INFO",
    "STREAM.INFO",
    "STREAM.MSG",
    "CONSUMER.CREATE",
    "STREAM.PURGE",
    "CONSUMER.RESET",
    "CONSUMER.CREATE",
]
AT_THE_END = [request for request in COMMIT if request != "STREAM.MSG"]
NOTED = COMMIT.index("CONSUMER.CREATE") + 1
PURGED = COMMIT.index("STREAM.PURGE") + 1
#: Where a server cannot move a consumer, the run looks where the purge has left it. The note stays.
OLD_COMMIT = [*COMMIT[:PURGED], "CONSUMER.INFO"]


class Shared:
    """A work queue whose query has read `a`, up to sequence 5, and committed nothing.

    Another client takes `b`. `then` are the tokens of what was stored after sequence 5.
    """

    def __init__(self, make: Maker, then: str, **config: Any) -> None:
        self.stream: Stream = make(retention="workqueue", allow_direct=True, **config)
        self.filter = f"{self.stream.subject}.a"
        make_consumer(self.stream, "other", filter_subject=f"{self.stream.subject}.b")
        first = self.planner()
        begin = first.initial()
        self.publish("babaa")
        [(_, self.position)] = planning.run(first, begin, batches=1)
        assert self.next == 6
        self.publish(then)

    @property
    def next(self) -> int:
        return self.position.streams[self.stream.name].next

    def planner(self, **given: Any) -> Planner:
        """The planner of another run."""
        name = self.stream.name
        return driver(self.stream.url, name, subjects=self.filter, durable="query", **given)

    def publish(self, tokens: str) -> None:
        messages = [Message(f"{self.stream.subject}.{token}", b"x") for token in tokens]
        if messages:
            self.stream.send(*messages)

    def take_others(self) -> None:
        """Let the other client acknowledge all that waits for it."""
        waiting = pending(self.stream, "other")
        if waiting:
            take(self.stream, "other", waiting)

    def commit(self) -> Run:
        """A run that is about to commit the position."""
        return Run(self.stream, self.filter).open(fresh=False)

    def die_after(self, number: int) -> None:
        """Let a run end after `number` requests of its commit."""
        die_after(number, self.commit(), self.next)

    def requests(self) -> list[str]:
        """Return the requests of a whole commit."""
        run = self.commit()
        return run.wire.asked(lambda: run.commit(self.next))

    def noted(self) -> str | None:
        text: str | None = consumer(self.stream)["config"]["metadata"].get(PURGE)
        return text

    def continues(self, *, doubts: int = 0, caplog: pytest.LogCaptureFixture) -> None:
        """Check that the next run reads what is left, and logs `doubts` warnings."""
        caplog.clear()
        messages = self.stream.messages
        mine = [at for at in left(self.stream) if messages[at].subject == self.filter]
        expected = [at for at in mine if at >= self.next]
        planner = self.planner()
        assert planner_after(planner, self.position) == expected
        planner.progress.settle()
        assert len(warnings(caplog)) == doubts, warnings(caplog)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelno >= logging.WARNING]


def die_after(number: int, run: Run, committed: int) -> None:
    """Let a run end after `number` requests of a commit, if it has as many."""
    before = len(run.wire.subjects)

    def end(_: str) -> None:
        if len(run.wire.subjects) - before > number:
            raise Crash

    run.wire.before = end
    with contextlib.suppress(Crash):
        run.commit(committed)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.full)], ids=["newer", "older"])
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the server counts as one that cannot move a consumer."""
    if request.param:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    return bool(request.param)


def test_a_commit_notes_its_purge_first(stream: Maker, old: bool) -> None:
    shared = Shared(stream, "bba")
    moves = can_move(shared.stream) and not old
    assert shared.requests() == (COMMIT if moves else OLD_COMMIT)
    assert position(shared.stream) == (6 if moves else 8)
    assert shared.noted() == (None if moves else "below 6, then at 8")


def test_a_commit_at_the_end_of_the_stream_does_not_look_for_a_message(stream: Maker) -> None:
    shared = Shared(stream, "")
    if can_move(shared.stream):
        assert shared.requests() == AT_THE_END
        assert shared.noted() is None


def test_a_purge_that_leaves_the_consumer_at_the_position_needs_no_note(stream: Maker) -> None:
    shared = Shared(stream, "ab")
    if can_move(shared.stream):
        assert shared.requests() == [*COMMIT[:3], "STREAM.PURGE", "CONSUMER.RESET"]


@pytest.mark.parametrize("number", range(len(COMMIT) + 1))
@pytest.mark.parametrize("then", ["bba", "bb", "", "ab"])
@pytest.mark.usefixtures("old")
def test_a_run_that_ends_within_a_commit_has_lost_nothing(
    stream: Maker, caplog: pytest.LogCaptureFixture, then: str, number: int
) -> None:
    """Whichever request was its last, and what others take after that."""
    shared = Shared(stream, then)
    shared.die_after(number)
    shared.publish("ba")
    shared.take_others()
    # A run that ends before its first micro-batch leaves the position in the checkpoint.
    planner = shared.planner()
    planner.latest(shared.position, limited=True)
    planner.progress.settle()
    shared.take_others()
    shared.continues(caplog=caplog)


@pytest.mark.parametrize("purge", ["all", pytest.param("own", marks=pytest.mark.full), "below"])
@pytest.mark.parametrize("number", range(len(COMMIT) + 1))
@pytest.mark.parametrize("then", ["bba", "bb"])
@pytest.mark.usefixtures("old")
def test_a_purge_by_another_client_is_a_loss(
    stream: Maker, caplog: pytest.LogCaptureFixture, then: str, number: int, purge: str
) -> None:
    """Nobody can tell it from the run's own purge if nothing matched after the position."""
    shared = Shared(stream, then)
    shared.die_after(number)
    shared.publish("bab")
    which: dict[str, dict[str, Any]] = {
        "all": {},
        "own": {"filter": shared.filter},
        "below": {"seq": state_of(shared.stream).last_seq},
    }
    shared.stream.purge(**which[purge])
    shared.take_others()
    if then == "bb" and NOTED <= number < len(COMMIT):
        shared.continues(doubts=1, caplog=caplog)
        return
    with pytest.raises(DataLossError, match=r"went before being read \(its retention is workqueue"):
        shared.planner().latest(shared.position, limited=True)


@pytest.mark.parametrize("between", ["b", "a", "ba"])
@pytest.mark.usefixtures("old")
def test_messages_that_are_stored_before_the_purge_may_leave_a_doubt(
    stream: Maker, caplog: pytest.LogCaptureFixture, between: str
) -> None:
    """The purge moves the consumer on past what is stored after the run has looked."""
    shared = Shared(stream, "b")
    run = shared.commit()

    def publish(subject: str) -> None:
        if subject.startswith("STREAM.PURGE"):
            shared.publish(between)

    def end(subject: str) -> None:
        if subject.startswith("STREAM.PURGE"):
            raise Crash

    run.wire.before, run.wire.after = publish, end
    with pytest.raises(Crash):
        run.commit(shared.next)
    assert shared.noted() == "below 6, then at 7 or later"
    shared.take_others()
    shared.continues(doubts=0 if between == "a" else 1, caplog=caplog)


def test_the_purge_of_a_run_that_has_ended_may_arrive_late(stream: Maker) -> None:
    """The next run has begun, and committed nothing yet."""
    shared = Shared(stream, "bba")
    shared.die_after(NOTED)
    run = shared.commit()
    shared.stream.purge(filter=shared.filter, seq=shared.next)
    shared.take_others()
    state = state_of(shared.stream)
    assert state.first_seq == 8
    run.check(shared.next)
    assert run.progress.holds(state, shared.next)
    run.commit(shared.next)
    assert shared.noted() is None or not can_move(shared.stream)
    # From here on a purge is another client's.
    shared.stream.purge()
    run.check(shared.next)
    assert not run.progress.holds(state_of(shared.stream), shared.next)


@pytest.mark.parametrize("late", [1, 2])
def test_a_note_of_the_run_before_may_arrive_late(stream: Maker, late: int) -> None:
    """It has the token of that run. The new run takes the consumer back, and the other one ends."""
    shared = Shared(stream, "bba")
    if not can_move(shared.stream) and late == 2:
        return  # there the first note stays
    before = shared.commit()
    after = Run(shared.stream, shared.filter)
    notes: list[str] = []

    def begin(subject: str) -> None:
        if subject.startswith("CONSUMER.CREATE"):
            notes.append(subject)
            if len(notes) == late:
                after.open(fresh=False)

    before.wire.before = begin
    before.commit(shared.next)
    assert len(notes) >= late
    after.check(shared.next)
    assert after.progress.holds(state_of(shared.stream), shared.next)
    for step in before.both(shared.next):
        with pytest.raises(JetStreamError, match="another run has taken over consumer query"):
            step()
    after.commit(shared.next)
    assert shared.noted() is None or not can_move(shared.stream)


def test_a_third_run_does_not_take_the_consumer_back(stream: Maker) -> None:
    shared = Shared(stream, "bba")
    first, second = shared.commit(), shared.commit()
    third = shared.commit()
    with pytest.raises(JetStreamError, match="another run has taken over consumer query"):
        second.check()
    third.check()
    with pytest.raises(JetStreamError, match="another run has taken over consumer query"):
        first.check()


@pytest.mark.parametrize("refused", [False, True])
def test_a_run_that_may_not_move_the_consumer_says_where_it_is(
    stream: Maker, caplog: pytest.LogCaptureFixture, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server before 2.14 cannot, and an account may not. The next run begins at the position."""
    shared = Shared(stream, "bba")
    if not refused:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    run = shared.commit()
    run.wire.deny("CONSUMER.RESET")
    run.commit(shared.next)
    assert shared.noted() == "below 6, then at 8"
    assert position(shared.stream) == 8
    run.check(shared.next)
    shared.take_others()
    shared.continues(caplog=caplog)
    # The next commit writes its own note.
    again = Run(shared.stream, shared.filter)
    again.wire.deny("CONSUMER.RESET")
    again.open(fresh=False)
    again.commit(9)
    assert shared.noted() is None
    assert position(shared.stream) == 9


@pytest.mark.parametrize("then", ["bba", "ab"])
@pytest.mark.parametrize("lost", ["CONSUMER.CREATE", "STREAM.PURGE", "CONSUMER.RESET"])
def test_an_answer_that_is_lost_leaves_no_note(stream: Maker, then: str, lost: str) -> None:
    """The second attempt finishes what the first one has begun."""
    shared = Shared(stream, then)
    if not can_move(shared.stream):
        return
    run = shared.commit()
    shared.take_others()
    failed: list[str] = []

    def lose(subject: str) -> None:
        if subject.startswith(lost) and not failed:
            failed.append(subject)
            raise RequestTimeout("no reply")

    run.wire.after = lose
    run.commit(shared.next)
    assert bool(failed) == (then == "bba" or lost != "CONSUMER.CREATE")
    assert (position(shared.stream), shared.noted()) == (6, None)
    run.check(shared.next)
    assert run.progress.holds(state_of(shared.stream), shared.next)
    # A purge by another client is noticed again.
    shared.stream.purge()
    run.check(shared.next)
    assert not run.progress.holds(state_of(shared.stream), shared.next)


def test_a_consumer_without_its_metadata_has_held_nothing(stream: Maker) -> None:
    """Servers keep metadata since 2.10. If another client removes it, each gap is a loss."""
    shared = Shared(stream, "bba")
    shared.die_after(PURGED)
    config = {**consumer(shared.stream)["config"], "metadata": {}}
    make_consumer(shared.stream, **config)
    shared.take_others()
    with pytest.raises(DataLossError, match=r"messages 6 to 7 of stream .* went before being read"):
        shared.planner().latest(shared.position, limited=True)


@pytest.mark.parametrize("number", range(len(COMMIT) + 1))
def test_older_messages_that_newer_ones_replace_are_no_loss_either(
    stream: Maker, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """Without a filter, on a stream with `max_msgs_per_subject`."""
    made = stream(retention="workqueue", allow_direct=True, max_msgs_per_subject=1)

    def planner() -> Planner:
        return driver(made.url, made.name, durable="query")

    first = planner()
    begin = first.initial()
    made.fill_in_turn(3, "abc")
    [(_, end)] = planning.run(first, begin, batches=1)
    made.fill(1, "d")
    made.fill(1, "e")
    made.fill(1, "d")
    die_after(number, Run(made).open(fresh=False), 4)
    made.fill(1, "e")
    caplog.clear()
    assert planner_after(planner(), end) == [6, 7]
    assert not warnings(caplog)


@pytest.mark.parametrize("then", ["bbc", "bb"])
def test_a_run_with_several_filters_has_lost_nothing_either(stream: Maker, then: str) -> None:
    for number in range(len(COMMIT) + 4):  # two filters need two looks, and two purges
        made = stream(retention="workqueue", allow_direct=True)
        if not FILTERED_PURGE.is_at(level_of(made)):
            return
        filters = [f"{made.subject}.{token}" for token in "ac"]
        make_consumer(made, "other", filter_subject=f"{made.subject}.b")
        Run(made, *filters).open()
        made.fill_in_turn(6, "bac")
        made.fill_in_turn(len(then), then)
        die_after(number, Run(made, *filters).open(fresh=False), 7)
        take(made, "other", 4)
        run = Run(made, *filters).open(fresh=False)
        run.check(7)
        state = state_of(made)
        assert run.progress.holds(state, 7)
        run.commit(7)
        assert left(made) == ([9] if then == "bbc" else [])
        made.purge()
        run.check(7)
        assert not run.progress.holds(state_of(made), 7)


def test_an_administrator_leaves_the_note_as_it_is(stream: Maker) -> None:
    shared = Shared(stream, "bba")
    shared.die_after(NOTED)
    noted = shared.noted()
    assert noted == "below 6, then at 8"
    with JetStreamAdmin(servers=shared.stream.url) as admin:
        consumers = admin.describe(shared.stream.name)["consumers"]
        assert not [each for each in consumers if "metadata" in each]
        admin.consumers.update(shared.stream.name, "query", max_deliver=7, metadata={"owner": "me"})
    assert shared.noted() == noted


def test_a_note_is_read_as_it_was_written() -> None:
    for purge in (Purge(6, 8, certain=True), Purge(1, 2**63 - 1, certain=False)):
        assert Purge.noted({PURGE: purge.note(), RUN: "a"}) == purge
    others = ["", "below 6", "below 6, then at 8 or so", "below -6, then at 8"]
    for text in (*others, "below 6, then at " + "9" * 20):
        assert Purge.noted({PURGE: text}) is None
    assert Purge.noted({}) is None


@pytest.mark.parametrize(
    ("purge", "moved", "doubtful"),
    [(Purge(6, 8, certain=True), [7, 8], []), (Purge(6, 8, certain=False), [7, 8, 9, 10], [9, 10])],
)
def test_a_purge_moves_the_consumer_to_what_follows(
    purge: Purge,
    moved: list[int],
    doubtful: list[int],
) -> None:
    assert [to for to in range(1, 11) if purge.may_move_to(to)] == moved
    assert [to for to in range(1, 11) if purge.is_doubtful(to)] == doubtful
