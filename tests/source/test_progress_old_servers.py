"""Progress on servers that cannot move a consumer (before 2.14): at no moment is an interest stream without interest.

The server here refuses to move consumers, and `Progress` is told that it cannot. Older servers answer in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError, PermissionDenied, RequestTimeout
from spark_jetstream.source import durable
from spark_jetstream.testing import NatsServer
from tests.support.progress import (
    Crash,
    Wire,
    both,
    consumer,
    kept,
    make_consumer,
    position,
    publishing,
    run_of,
    state_of,
    wait_for_more,
)
from tests.support.publish import Message
from tests.support.reading import api, consumers, create, wait_until
from tests.support.streams import Stream

STAND_IN = "query-spark-moving"
#: What a move asks for, behind the look at the consumer.
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
        # As in conftest.py: the last stream of an account takes the folder of all streams with it, in the background.
        create(running.url.replace("//", "//admin:admin@"), "KEPT", storage="file")
        yield running
    close_all()


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "RESET_LEVEL", 99)


@pytest.fixture
def url(server: NatsServer) -> str:
    """For the query."""
    return server.url.replace("//", "//spark:spark@")


@pytest.fixture
def make(url: str) -> Iterator[Callable[[str], Stream]]:
    """A function that makes the stream S with a retention."""
    made: list[Stream] = []

    def one(retention: str) -> Stream:
        made.append(Stream(url, "S", retention=retention))
        return made[-1]

    yield one
    for each in made:
        each.delete()
        each.publisher.close()


@pytest.mark.parametrize("filters", [(), ("s.a",), ("s.a", "s.b")])
@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_commits(url: str, make: Callable[[str], Stream], retention: str, filters: tuple[str, ...]) -> None:
    made = make(retention)
    run = run_of(url, *filters)
    run.open(state_of(url, "S"), fresh=True)
    run.commit(state_of(url, "S"), 1)
    made.fill(10)
    for committed in (1, 4, 4, 9, 11):
        run.check(state_of(url, "S"))
        run.commit(state_of(url, "S"), committed)
        assert consumer(url, "S")["num_pending"] == 11 - committed
        assert made.state()["messages"] == (10 if retention == "limits" else 11 - committed)
        assert consumers(url, "S") == ["query"]
    made.fill(2)
    assert consumer(url, "S")["num_pending"] == 2
    # The next run goes on with a consumer that begins where the last commit was.
    again = run_of(url, *filters)
    again.open(state_of(url, "S"), fresh=False)
    again.commit(state_of(url, "S"), 11)
    again.check(state_of(url, "S"))
    again.commit(state_of(url, "S"), 12)
    assert consumer(url, "S")["num_pending"] == 1


def test_a_commit_that_goes_back(url: str, make: Callable[[str], Stream]) -> None:
    made = make("limits")
    made.fill(10)
    run = run_of(url)
    run.open(state_of(url, "S"), fresh=True)
    for committed in (8, 3, 1, 5):
        run.commit(state_of(url, "S"), committed)
        assert position(url, "S") == committed
        run.check(state_of(url, "S"))


def test_a_work_queue_needs_nothing_of_it(url: str, make: Callable[[str], Stream]) -> None:
    made = make("workqueue")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)
    asked = wire.asked(lambda: run.commit(state_of(url, "S"), 7))
    assert asked == ["CONSUMER.INFO", "STREAM.PURGE"]
    assert kept(made) == (7, 10, 4)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step(url: str, make: Callable[[str], Stream], step: str, when: str) -> None:
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)
    run.commit(state_of(url, "S"), 3)
    looked: list[str] = []

    def crash(subject: str) -> None:
        held()
        looked.append(subject)
        if subject == step and (len(looked) > 1 or not step.startswith("CONSUMER.INFO")):
            raise Crash

    def held() -> None:
        first, last, messages = kept(made)
        assert first <= 6
        assert messages == last + 1 - first

    setattr(wire, when, crash)
    with pytest.raises(Crash):
        run.commit(state_of(url, "S"), 6)
    made.fill(2)
    held()
    assert consumers(url, "S")
    # Spark asks for the last commit of the crashed run again.
    again = run_of(url)
    again.open(state_of(url, "S"), fresh=False)
    held()
    again.check(state_of(url, "S"))
    again.commit(state_of(url, "S"), 6)
    assert kept(made) == (6, 12, 7)
    assert consumers(url, "S") == ["query"]
    again.commit(state_of(url, "S"), 13)
    assert kept(made) == (13, 12, 0)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_that_gets_no_reply(url: str, make: Callable[[str], Stream], step: str, when: str) -> None:
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)
    failed: list[str] = []

    def fail(subject: str) -> None:
        if subject == step and not failed:
            failed.append(subject)
            raise RequestTimeout("no reply")

    setattr(wire, when, fail)
    run.commit(state_of(url, "S"), 6)
    assert failed == [step]
    assert kept(made) == (6, 10, 5)
    assert consumers(url, "S") == ["query"]


@pytest.mark.parametrize("committed", [4, 8])
def test_a_commit_that_failed_is_followed_by_another(url: str, make: Callable[[str], Stream], committed: int) -> None:
    """What the failed one has left of its stand-in begins elsewhere."""
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire, patience=0.0)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)

    def fail(subject: str) -> None:
        if subject == STEPS[0]:
            raise RequestTimeout("no reply")

    wire.after = fail
    with pytest.raises(RequestTimeout):
        run.commit(state_of(url, "S"), 6)
    assert sorted(consumers(url, "S")) == ["query", STAND_IN]
    wire.after = lambda _: None
    run.commit(state_of(url, "S"), committed)
    assert kept(made) == (committed, 10, 11 - committed)
    assert consumers(url, "S") == ["query"]


def test_publishers_go_on_meanwhile(url: str, make: Callable[[str], Stream]) -> None:
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    aim = 1
    looks: list[int] = []

    def look(subject: str) -> None:
        # At each step all that is not committed is there.
        first, last, messages = kept(made)
        looks.append(first)
        assert first <= aim
        assert messages == last + 1 - first

    wire.before = wire.after = look
    with publishing(made, "abc"):
        for _ in range(10):
            wait_for_more(made, aim)
            state = state_of(url, "S")
            run.check(state)
            aim = state.last_seq - 3
            run.commit(state, aim)
    assert len(set(looks)) == 11
    aim = kept(made)[1] + 1
    run.commit(state_of(url, "S"), aim)
    assert kept(made) == (aim, aim - 1, 0)


@pytest.mark.parametrize("step", STEPS[1:])
def test_another_run_begins_in_the_middle(url: str, make: Callable[[str], Stream], step: str) -> None:
    """Nothing is lost, and the older run notices, whatever the moment is; now or when it looks again."""
    made = make("interest")
    wire = Wire(url)
    run, second = run_of(wire), run_of(url)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)
    begun: list[str] = []

    def begin(subject: str) -> None:
        if subject == step and wire.subjects.count(STEPS[0]) and not begun:
            begun.append(subject)
            second.open(state_of(url, "S"), fresh=False)

    wire.before = begin
    outcomes: list[str] = []
    for work in both(run, state_of(url, "S"), 6)[::-1]:
        try:
            work()
        except JetStreamError as error:
            outcomes.append(str(error))
    assert all("another run has taken over" in said for said in outcomes)
    assert begun == [step]
    first, last, messages = kept(made)
    assert first <= 6
    assert (last, messages) == (10, 11 - first)
    if not outcomes:
        # The older run was between two looks, and has made the consumer its own again: now the other one notices.
        with pytest.raises(JetStreamError, match="another run has taken over"):
            second.check(state_of(url, "S"))
    else:
        second.check(state_of(url, "S"))
        second.commit(state_of(url, "S"), 6)
        assert kept(made) == (6, 10, 5)
        assert consumers(url, "S") == ["query"]


def test_what_is_left_of_a_crash_is_removed_by_a_newer_server(
    server: NatsServer, url: str, make: Callable[[str], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)

    def crash(subject: str) -> None:
        if subject == "CONSUMER.DELETE.S.query":
            raise Crash

    wire.after = crash
    with pytest.raises(Crash):
        run.commit(state_of(url, "S"), 6)
    assert consumers(url, "S") == [STAND_IN]
    monkeypatch.setattr(durable, "RESET_LEVEL", 4)
    admin = server.url.replace("//", "//admin:admin@")
    level = api(admin, "INFO")["api"].get("level", 0)
    again = run_of(admin)
    again.open(state_of(url, "S"), fresh=False)
    assert position(url, "S") == 6
    again.commit(state_of(url, "S"), 6)
    assert consumers(url, "S") == ["query"]
    assert consumer(url, "S")["config"]["deliver_policy"] == "by_start_sequence"
    watched = Wire(admin)
    newer = run_of(watched)
    newer.open(state_of(url, "S"), fresh=True)
    asked = watched.asked(lambda: newer.commit(state_of(url, "S"), 8))
    assert (asked == ["CONSUMER.INFO", "CONSUMER.RESET"]) == (level >= 4)
    assert kept(made) == (8, 10, 3)


def test_back_behind_where_the_consumer_begins(
    server: NatsServer, url: str, make: Callable[[str], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make("limits")
    made.fill(10)
    run = run_of(url)
    run.open(state_of(url, "S"), fresh=True)
    run.commit(state_of(url, "S"), 6)
    monkeypatch.setattr(durable, "RESET_LEVEL", 4)
    newer = run_of(server.url.replace("//", "//admin:admin@"))
    newer.open(state_of(url, "S"), fresh=True)
    for committed in (8, 3, 5):
        newer.commit(state_of(url, "S"), committed)
        assert position(url, "S") == committed
        newer.check(state_of(url, "S"))
    assert consumers(url, "S") == ["query"]


def test_a_server_that_can_and_may_not(
    url: str, make: Callable[[str], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is denied is an error that says so; the way of older servers needs other permissions."""
    made = make("interest")
    monkeypatch.setattr(durable, "RESET_LEVEL", 0)
    run = run_of(url)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(3)
    with pytest.raises(PermissionDenied, match="option durable") as raised:
        run.commit(state_of(url, "S"), 2)
    assert raised.value.subject == "$JS.API.CONSUMER.RESET.S.query"


def test_the_server_crashes_in_the_middle(url: str, server: NatsServer, make: Callable[[str], Stream]) -> None:
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(10)
    starting: list[threading.Timer] = []

    def kill(subject: str) -> None:
        if subject == "CONSUMER.CREATE.S.query" and not starting:
            server.kill()
            starting.append(threading.Timer(0.3, server.start))
            starting[0].start()

    wire.before = kill
    run.commit(state_of(url, "S"), 6)
    starting[0].join()
    made.publisher.close()
    made.reconnect()
    assert kept(made) == (6, 10, 5)
    assert consumers(url, "S") == ["query"]
    run.check(state_of(url, "S"))


def test_a_long_backlog(url: str, make: Callable[[str], Stream], caplog: pytest.LogCaptureFixture) -> None:
    """A server does not look at once, or at all, for what a deleted consumer held among 100,000 sequences."""
    made = make("interest")
    run = run_of(url)
    run.open(state_of(url, "S"), fresh=True)
    make_consumer(url, "S", "other", filter_subject="s.b")
    for _ in range(24):  # servers before 2.12 queue 10,000 messages
        made.publisher.pour(Message("s.a", b"x").frame(), 4_999, Message("s.b", b"x"))
    run.commit(state_of(url, "S"), 119_001)
    assert consumer(url, "S", "other")["num_pending"] == 24  # what others need stays
    assert consumer(url, "S")["num_pending"] == 1000
    api(url, "CONSUMER.DELETE.S.other")
    run.check(state_of(url, "S"))
    run.commit(state_of(url, "S"), 119_501)
    wait_until(lambda: kept(made) == (119_501, 120_000, 500), "only what is not committed")
    assert consumer(url, "S")["num_pending"] == 500
    assert not caplog.records


def test_a_long_backlog_that_may_not_be_removed(
    url: str, make: Callable[[str], Stream], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "SWEPT", 2)
    made = make("interest")
    wire = Wire(url)
    run = run_of(wire)
    run.open(state_of(url, "S"), fresh=True)
    made.fill(9)

    def deny(subject: str) -> None:
        if subject.startswith("CONSUMER.LIST"):
            raise PermissionDenied("not allowed", subject=subject)

    wire.before = deny
    run.commit(state_of(url, "S"), 3)
    assert "stream S keeps messages that no consumer needs any more: not allowed" in caplog.text
    assert kept(made) == (3, 9, 7)
