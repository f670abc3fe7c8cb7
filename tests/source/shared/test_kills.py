"""A query that shares a consumer is killed at each step: nothing is lost, and only its batch comes twice."""

from __future__ import annotations

import contextlib

import pytest

from spark_jetstream.admin import JetStreamAdmin
from tests.support.sharing import Killed, Outcome, Pool, SharedQuery
from tests.support.streams import MakeStream

BATCH = 20
MESSAGES = 100

#: The step of the kill -> the messages that are processed twice, with a sink that skips a batch that
#: it has and with one that appends: when the query restarts before its messages go to others, while
#: others hold all of them, and after others have acknowledged all of them. docs/progress.md has the
#: table for users.
TABLE: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "reserved": ((0, 0), (0, 0), (0, 0)),
    "offset written": ((0, 0), (20, 20), (0, 0)),
    "rows read": ((0, 0), (20, 20), (0, 0)),
    "half in the plain sink": ((0, 10), (20, 20), (0, 10)),
    "in the sink": ((0, 20), (20, 20), (20, 20)),
    "committed": ((0, 0), (20, 20), (20, 20)),
    "half acknowledged": ((0, 0), (10, 10), (10, 10)),
    "acknowledged": ((0, 0), (0, 0), (0, 0)),
}
#: After these steps the batch runs again, and others may have acknowledged its messages meanwhile.
RUN_AGAIN = ("offset written", "rows read", "half in the plain sink", "in the sink")
WHEN = ("before", "held", "done")


def killed(query: SharedQuery, step: str) -> list[int]:
    """Kill a query at a step of a batch; the messages that it held then."""
    if not step.endswith("acknowledged"):
        with pytest.raises(Killed):
            query.run_batch(kill_at=step)
        if step != "reserved":
            return list(query.held())
        assert query.planner._batch is not None
        return list(query.planner._batch.read)
    query.run_batch()
    held = query.held()
    if step == "acknowledged":
        query.planner.commit(query.offset(query.last))
    else:
        query.pool.acknowledge(held[: len(held) // 2])
    query.kill()
    return [sequence for sequence in query.pool.left if sequence in held]


def drained(pool: Pool, queries: list[SharedQuery], foreign: list[int]) -> None:
    """Run queries and a worker until the queue is empty."""
    while pool.left:
        busy = False
        for query in queries:
            if query.trigger():
                query.planner.commit(query.offset(query.last))
                busy = True
        given = pool.take(7)
        foreign += given
        pool.acknowledge(given)
        if not busy and not given:
            # Processes that were killed hold the rest.
            pool.lapse(pool.left)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("step", TABLE)
def test_killed_at_each_step(
    stream: MakeStream,
    admin: JetStreamAdmin,
    caplog: pytest.LogCaptureFixture,
    step: str,
    when: str,
) -> None:
    pool = Pool(stream, admin)
    published = pool.stream.fill(MESSAGES)
    victim, other = SharedQuery(pool, BATCH), SharedQuery(pool, BATCH)
    foreign: list[int] = []
    with contextlib.closing(other.planner):
        victim.run_batch()
        other.run_batch()
        held = killed(victim, step)
        if when != "before" and held:
            pool.lapse(held)
            # The messages that time has run out for come first.
            given = pool.take(len(held))
            assert sorted(given) == held
            foreign += given
            if when == "done":
                pool.acknowledge(given)
        victim.start()
        if when == "held" and held:
            victim.run_batch()
            victim.run_batch()
            pool.acknowledge(held)
        drained(pool, [victim, other], foreign)
        victim.kill()
    outcome = Outcome([victim, other], foreign, published)
    assert outcome.lost == []
    assert (outcome.twice, outcome.twice_plain) == TABLE[step][WHEN.index(when)]
    reported = "20 of 20 messages of a micro-batch are no longer in stream" in caplog.text
    assert reported == (when == "done" and step in RUN_AGAIN)


@pytest.mark.parametrize("step", RUN_AGAIN)
def test_a_batch_that_is_killed_twice_while_others_acknowledge_half_of_it(
    stream: MakeStream, admin: JetStreamAdmin, step: str
) -> None:
    pool = Pool(stream, admin)
    published = pool.stream.fill(MESSAGES)
    query = SharedQuery(pool, BATCH)
    held = killed(query, step)
    pool.lapse(held)
    given = pool.take(BATCH)
    foreign = given[: BATCH // 2]
    pool.acknowledge(foreign)
    query.start()
    with pytest.raises(Killed):
        query.run_batch(kill_at="in the sink")
    pool.lapse(given[BATCH // 2 :])
    query.start()
    drained(pool, [query], foreign)
    query.kill()
    outcome = Outcome([query], foreign, published)
    assert outcome.lost == []
    # The batch has two tries, each of which may have rows in the sink.
    assert outcome.twice <= 2 * BATCH
