"""Progress on servers that cannot move a consumer (before 2.14): at no moment is an interest stream
without interest.

The server here refuses to move consumers, and `Progress` is told that it cannot. Older servers
answer in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError, PermissionDenied, RequestTimeout
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from spark_jetstream.testing import NatsServer
from tests.support.features import for_all, for_none
from tests.support.progress import (
    Crash,
    Maker,
    Run,
    consumer,
    consumers,
    delete_consumer,
    kept,
    level_of,
    make_consumer,
    pending,
    position,
    state_of,
    take,
)
from tests.support.publish import Message
from tests.support.reading import create
from tests.support.streams import Stream

STAND_IN = "query-spark-moving"
#: The requests of a move after the lookup of the consumer.
STEPS = [
    f"CONSUMER.CREATE.S.{STAND_IN}",
    "CONSUMER.INFO.S.query",
    "CONSUMER.DELETE.S.query",
    "CONSUMER.CREATE.S.query",
    f"CONSUMER.DELETE.S.{STAND_IN}",
]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server where a `spark` may do everything but move a consumer."""
    users = """authorization { users: [
        {user: admin, password: admin},
        {user: spark, password: spark, permissions: {publish: {deny: "$JS.API.CONSUMER.RESET.>"}}}
    ]}"""
    with NatsServer(config=users) as running:
        # As in conftest.py: the last stream of an account takes the folder of all streams with it,
        # in the background.
        create(admin_of(running), "KEPT", storage="file")
        yield running
    close_all()


def admin_of(server: NatsServer) -> str:
    return server.url.replace("//", "//admin:admin@")


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))


@pytest.fixture
def made(server: NatsServer) -> Iterator[Stream]:
    """The interest stream S, as the user who may not move a consumer."""
    stream = Stream(server.url.replace("//", "//spark:spark@"), "S", retention="interest")
    stream.publisher.store = server.store_dir  # each test makes S again
    yield stream
    stream.delete()
    stream.publisher.close()


@pytest.fixture
def run(made: Stream) -> Run:
    """A run on that stream with ten messages."""
    return Run(made).begin(10)


@pytest.mark.parametrize(
    "failure", [Crash(), RequestTimeout("no reply")], ids=["crash", "no reply"]
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step(run: Run, step: str, when: str, failure: BaseException) -> None:
    made = run.stream
    run.commit(3)
    looked: list[str] = []
    failed: list[str] = []

    def fail(subject: str) -> None:
        assert run.held(6, max(made.messages) + 1)
        looked.append(subject)
        # Before the first step the consumer is looked at, too.
        if subject == step and len(looked) > 1 and not failed:
            failed.append(subject)
            raise failure

    setattr(run.wire, when, fail)
    if isinstance(failure, Crash):
        with pytest.raises(Crash):
            run.commit(6)
        made.fill(2)
        assert run.held(6, 13)
        assert consumers(made)
        # Spark asks for the last commit of the crashed run again.
        run = Run(made).open(fresh=False)
        assert run.held(6, 13)
        run.check()
    else:
        made.fill(2)
    run.commit(6)
    assert failed == [step]
    assert kept(made) == (6, 12, 7)
    assert consumers(made) == ["query"]
    run.wire.before = run.wire.after = lambda _: None
    run.commit(13)
    assert kept(made) == (13, 12, 0)


@pytest.mark.parametrize("committed", [4, 8])
def test_a_commit_that_failed_is_followed_by_another(run: Run, committed: int) -> None:
    """The stand-in that the failed commit has left begins elsewhere."""
    made = run.stream
    run = Run(made, patience=0.0).open()

    def fail(subject: str) -> None:
        if subject == STEPS[0]:
            raise RequestTimeout("no reply")

    run.wire.after = fail
    with pytest.raises(RequestTimeout):
        run.commit(6)
    assert sorted(consumers(made)) == ["query", STAND_IN]
    run.wire.after = lambda _: None
    run.commit(committed)
    assert kept(made) == (committed, 10, 11 - committed)
    assert consumers(made) == ["query"]


@pytest.mark.parametrize("step", STEPS[1:])
def test_another_run_begins_in_the_middle(run: Run, step: str) -> None:
    """Nothing is lost, and the older run notices, whatever the moment is; now or when it looks
    again.
    """
    made = run.stream
    second = Run(made)
    begun: list[str] = []

    def begin(subject: str) -> None:
        if subject == step and run.wire.subjects.count(STEPS[0]) and not begun:
            begun.append(subject)
            second.open(fresh=False)

    run.wire.before = begin
    outcomes: list[str] = []
    for work in run.both(6)[::-1]:
        try:
            work()
        except JetStreamError as error:
            outcomes.append(str(error))
    assert all("another run has taken over" in text for text in outcomes)
    assert begun == [step]
    assert run.held(6, 11)
    if not outcomes:
        # The older run was between two looks, and has made the consumer its own again: now the
        # other one notices.
        with pytest.raises(JetStreamError, match="another run has taken over"):
            second.check()
    else:
        second.move(6)
        assert kept(made) == (6, 10, 5)
        assert consumers(made) == ["query"]


def test_a_suspended_run_deletes_the_consumer_of_the_next_run(run: Run) -> None:
    """The stand-in, which the next run has kept, holds the messages meanwhile."""
    made = run.stream
    following = Run(made, suspended=60.0)
    begun: list[str] = []

    def follow(subject: str) -> None:
        if subject == "CONSUMER.DELETE.S.query" and not begun:
            begun.append(subject)
            following.open(fresh=False).commit(6)
            made.fill(2)

    run.wire.before = follow
    run.commit(6)
    assert begun
    assert kept(made) == (6, 12, 7)
    with pytest.raises(JetStreamError, match="another run has taken over"):
        following.check()
    Run(made).open(fresh=False).commit(8)
    assert kept(made) == (8, 12, 5)
    assert consumers(made) == ["query"]


def test_a_run_on_a_newer_server_removes_a_crashed_runs_stand_in(
    server: NatsServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run.stream

    def crash(subject: str) -> None:
        if subject == "CONSUMER.DELETE.S.query":
            raise Crash

    run.wire.after = crash
    with pytest.raises(Crash):
        run.commit(6)
    assert consumers(made) == [STAND_IN]
    monkeypatch.setattr(consumer_state, "CONSUMER_RESET", CONSUMER_RESET)
    again = Run(made, url=admin_of(server)).open(fresh=False)
    assert position(made) == 6
    again.commit(6)
    assert consumers(made) == ["query"]
    assert consumer(made)["config"]["deliver_policy"] == "by_start_sequence"
    newer = Run(made, url=admin_of(server)).open()
    asked = newer.wire.asked(lambda: newer.commit(8))
    assert (asked == ["CONSUMER.INFO", "STREAM.INFO", "CONSUMER.RESET"]) == (level_of(made) >= 4)
    assert kept(made) == (8, 10, 3)


def test_back_behind_where_the_consumer_begins(
    stream: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stream()
    made.fill(10)
    Run(made).open().commit(6)
    monkeypatch.setattr(consumer_state, "CONSUMER_RESET", CONSUMER_RESET)
    newer = Run(made).open()
    for committed in (8, 3, 5):
        newer.commit(committed)
        assert position(made) == committed
        newer.check()
    assert consumers(made) == ["query"]


def test_a_server_that_can_and_may_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the denied subject; the way of older servers needs other permissions."""
    monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_all(CONSUMER_RESET))
    with pytest.raises(PermissionDenied, match="option durable") as raised:
        run.commit(2)
    assert raised.value.subject == "$JS.API.CONSUMER.RESET.S.query"


def test_the_server_crashes_in_the_middle(server: NatsServer, run: Run) -> None:
    made = run.stream
    starting: list[threading.Timer] = []

    def kill(subject: str) -> None:
        if subject == "CONSUMER.CREATE.S.query" and not starting:
            server.kill()
            starting.append(threading.Timer(0.3, server.start))
            starting[0].start()

    state = state_of(made)
    run.wire.before = kill
    run.progress.commit(state, 6)
    starting[0].join()
    made.publisher.close()
    made.reconnect()
    made.publisher.store = server.store_dir
    assert kept(made) == (6, 10, 5)
    assert consumers(made) == ["query"]
    run.check()


def test_a_long_backlog(stream: Maker, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond 100,000 sequences a server may purge the whole stream when two consumers are deleted:
    none is.
    """
    made = stream(retention="interest")
    run = Run(made).open()
    mine, others = (Message(f"{made.subject}.{suffix}", b"x") for suffix in "ab")
    make_consumer(made, "other", filter_subject=others.subject)
    for _ in range(24):  # servers before 2.12 queue 10,000 messages
        made.publisher.pour(mine.frame(), 4_999, others)
    run.commit(119_001)
    assert kept(made) == (1, 120_000, 120_000)  # what others need stays, and what is between
    take(made, "other", 2)
    run.move(119_001)
    assert kept(made) == (10_001, 120_000, 110_000)
    assert position(made) == 10_001
    assert pending(made, "other") == 22
    assert not any(
        subject.startswith(("CONSUMER.CREATE", "CONSUMER.DELETE"))
        for subject in run.wire.subjects[3:]
    )
    delete_consumer(made, "other")
    run.move(119_501)
    assert kept(made) == (119_501, 120_000, 500)
    assert pending(made) == 500
    assert not caplog.records


def test_a_long_backlog_whose_last_messages_were_deleted(made: Stream) -> None:
    """A purge up to the first of them would lead to the loss of message 6."""
    run = Run(made, longest=1).open()
    made.fill(4)
    made.remove(3, 4)
    run.move(3)
    assert kept(made) == (5, 4, 0)
    made.fill(2)
    run.move(6)
    assert kept(made) == (6, 6, 1)


def test_back_in_a_long_backlog(made: Stream) -> None:
    """The stand-in of a move back stays until the stream is short: one consumer is deleted, not
    two.
    """
    run = Run(made, longest=5).begin(5)
    make_consumer(made, "other")
    run.commit(5)
    made.fill(5)
    run.commit(3)
    assert position(made) == 3
    assert sorted(consumers(made)) == ["other", "query", STAND_IN]
    delete_consumer(made, "other")
    for committed in (7, 9):
        run.move(committed)
        assert kept(made) == (committed, 10, 11 - committed)
    assert consumers(made) == ["query"]


def test_a_long_backlog_that_may_not_be_removed(
    made: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(made, longest=2).begin(10)
    run.wire.deny("CONSUMER.LIST")
    run.commit(3)
    assert "stream S keeps messages that no consumer needs any more: not allowed" in caplog.text
    assert kept(run.stream) == (1, 10, 10)
    assert position(run.stream) == 1
