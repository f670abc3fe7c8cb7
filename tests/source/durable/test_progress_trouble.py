"""Other runs, other people, lost consumers, denied subjects and outages, while Spark commits
(option durable).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import DataLossError, JetStreamError, OptionError, StreamNotFound
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.progress import (
    RETENTIONS,
    Maker,
    Run,
    can_move,
    consumer,
    consumers,
    delete_consumer,
    kept,
    make_consumer,
    pending,
    position,
    state_of,
    take,
)
from tests.support.publish import Publisher
from tests.support.reading import wait_until
from tests.support.streams import Stream

# Two runs


@pytest.mark.parametrize("retention", RETENTIONS)
def test_another_run_takes_over(
    stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    first = Run(made).begin(9, committed=4)
    with caplog.at_level(logging.INFO, "spark_jetstream.source.durable"):
        second = Run(made).open(fresh=False)
    [line] = [record.getMessage() for record in caplog.records if ".source.durable." in record.name]
    assert (
        "continues with consumer query (option durable) at sequence 4, which another run has had "
        "since 2" in line
    )
    before = kept(made)
    for step in first.both(8):
        with pytest.raises(
            JetStreamError, match=r"another run has taken over .* \(option durable\) at 2"
        ) as raised:
            step()
        assert type(raised.value) is JetStreamError
        assert not raised.value.retriable
    assert kept(made) == before
    second.move(6)
    assert pending(made) == 4


def test_opened_twice_by_the_same_run(stream: Maker) -> None:
    made = stream(retention="interest")
    run = Run(made).open()
    before = consumer(made)["config"]
    run.open()
    assert consumer(made)["config"] == before
    run.check()


def test_two_runs_begin_at_the_same_moment(stream: Maker) -> None:
    made = stream(retention="interest")
    run = Run(made)

    def other(subject: str) -> None:
        if subject.startswith("CONSUMER.CREATE"):
            Run(made).open()

    run.wire.before = other
    with pytest.raises(JetStreamError, match="another run has taken over consumer query"):
        run.open()


# Other clients


def forward(stream: Stream, sequence: int) -> None:
    """Move the consumer as an operator might."""
    config = consumer(stream)["config"]
    make_consumer(stream, "meanwhile")
    delete_consumer(stream)
    make_consumer(
        stream, **{**config, "deliver_policy": "by_start_sequence", "opt_start_seq": sequence}
    )
    delete_consumer(stream, "meanwhile")


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_moved_on_past_messages_that_are_there_or_back(stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    make_consumer(made, "other")
    run = Run(made, f"{made.subject}.a").begin(9, committed=4)
    forward(made, 7)
    for step in run.both(5):
        with pytest.raises(
            JetStreamError, match="was moved from sequence 4 to 7 by another client, past messages"
        ):
            step()
    assert made.state()["messages"] == 9
    forward(made, 2)
    run.move(4)  # what is held for too long does no harm
    run.commit(7)
    assert pending(made) == 3


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_the_last_request_of_an_earlier_run_may_come_late(stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    make_consumer(made, "other")
    run = Run(made, f"{made.subject}.a").begin(9)
    forward(made, 5)  # as an earlier run asked, whose batch Spark has committed
    run.check(5)
    forward(made, 6)
    run.commit(8)
    assert pending(made) == 2
    run.check()


@pytest.mark.parametrize("fail", [True, False])
def test_moved_on_and_the_messages_are_gone(
    stream: Maker, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    made = stream(retention="interest")
    make_consumer(made, "other", filter_subject=f"{made.subject}.b")
    run = Run(made, f"{made.subject}.a", fail=fail).open()
    made.fill(
        1, "b"
    )  # held by the other one: the first message of the stream is older than the position
    made.fill(8)
    run.commit(4)
    forward(made, 7)
    if fail:
        with pytest.raises(
            DataLossError, match=r"from sequence 4 to 7, by a purge .* set failOnDataLoss=false"
        ):
            run.check()
        return
    run.check()
    assert "are gone unread; failOnDataLoss is false" in caplog.text
    caplog.clear()
    run.move(10)
    assert made.state()["messages"] == 1
    assert not caplog.records


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_purge_moves_it_too(
    stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    run = Run(made).begin(9, committed=3)
    made.purge(seq=6)
    # The reader's own check finds messages that went before they were read, by the stream's first
    # sequence.
    run.move(8)
    assert pending(made) == 2
    assert not caplog.records


def test_a_purge_of_its_subject_only(stream: Maker, caplog: pytest.LogCaptureFixture) -> None:
    made = stream()
    run = Run(made, f"{made.subject}.a").open()
    made.fill_in_turn(9, "ba")
    run.commit(3)
    made.purge(filter=f"{made.subject}.a")
    run.check()
    assert "by a purge or by another client" in caplog.text
    run.commit(10)
    run.check()


@pytest.mark.parametrize("retention", RETENTIONS)
def test_another_client_pulls(stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    run = Run(made).begin(9)
    take(made, "query", 1)
    for step in run.both(5):
        with pytest.raises(
            JetStreamError, match="another client pulls messages from consumer query"
        ):
            step()
    # The loss is known once it was reported: the next run goes on.
    again = Run(made, fail=False).open(fresh=False)
    again.move(5)
    again.check()
    assert pending(made) == 5


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_ahead_of_the_checkpoint(
    stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    make_consumer(made, "other")  # so that the stream begins below
    Run(made).begin(9, committed=8)
    behind = Run(made).open(fresh=False)
    if retention == "interest":
        with pytest.raises(
            DataLossError, match="is ahead of the checkpoint, at sequence 8, and has not held"
        ):
            behind.commit(5)
        behind = Run(made, fail=False).open(fresh=False)
    behind.commit(5)
    assert "is ahead of the checkpoint" in caplog.text
    assert position(made) == 5
    Run(made).open().commit(1)
    assert position(made) == 1


# A consumer that is gone


@pytest.mark.parametrize("when", ["open", "check", "commit"])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_missing(
    stream: Maker, caplog: pytest.LogCaptureFixture, retention: str, fail: bool, when: str
) -> None:
    made = stream(retention=retention)
    run = Run(made, fail=fail).begin(6, committed=4)
    delete_consumer(made)
    made.fill(2)
    if retention == "workqueue":
        assert kept(made) == (4, 8, 5)
    again = Run(made, fail=fail) if when == "open" else run
    steps: dict[str, Callable[[], object]] = {
        "open": lambda: again.open(fresh=False),
        "check": run.check,
        "commit": lambda: run.commit(6),
    }
    step = steps[when]
    if retention == "interest" and fail:
        problem = (
            r"consumer query of stream .* does not exist: .* are gone unread; set "
            r"failOnDataLoss=false"
        )
        with pytest.raises(DataLossError, match=problem):
            step()
        assert consumers(made) == []  # the next start must not go on as if nothing had happened
        return
    step()
    assert "does not exist: it was deleted" in caplog.text
    made.fill(2)
    again.move(10)
    assert pending(made) == 1


def test_deleted_while_it_is_moved(stream: Maker) -> None:
    """A server that moves a consumer that is not there says nothing at all."""
    made = stream(retention="interest")
    run = Run(made, requestTimeout="1s").open()

    def delete(subject: str) -> None:
        if subject.startswith(("CONSUMER.RESET", f"CONSUMER.CREATE.{made.name}.query-")):
            run.wire.before = lambda _: None
            delete_consumer(made)

    made.fill(6)
    run.wire.before = delete
    if can_move(made):
        with pytest.raises(DataLossError, match="does not exist"):
            run.commit(4)
        assert kept(made) == (7, 6, 0)
    else:
        run.commit(4)
        assert consumers(made) == ["query"]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_the_stream_is_created_again(
    stream: Maker, retention: str, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    run = Run(made, fail=fail).begin(6)
    old = state_of(made)
    made.delete()
    made.create()
    make_consumer(made, "application", filter_subject=f"{made.subject}.a")
    made.fill(8)
    for state in (old, state_of(made)):
        run.progress.commit(state, 7)  # those are sequences of other messages now
        assert kept(made) == (1, 8, 8)
    assert caplog.text.count("nothing is committed in the new one") == 2
    if retention == "interest" and fail:
        with pytest.raises(
            DataLossError, match="was deleted and created again, and its consumer went with it"
        ):
            run.check()
        return
    if retention == "workqueue":
        with pytest.raises(
            OptionError,
            match=rf"application \({made.subject}.a\) already has messages of this query",
        ):
            run.check()
        delete_consumer(made, "application")
    run.move(7)
    assert pending(made) == 2


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("seen", [6, 8], ids=["looked at after", "looked at before"])
def test_a_position_after_the_end(
    stream: Maker, retention: str, seen: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that lost its tail will give those sequences to messages that nobody has read."""
    made = stream(retention=retention)
    run = Run(made).begin(6)
    run.progress.commit(replace(state_of(made), last_seq=seen), 9)
    assert (
        "ends at sequence 6, before the position 9 that was read up to: nothing is committed"
        in caplog.text
    )
    made.fill(4)
    assert kept(made) == (1, 10, 10)
    assert pending(made) == 10


def test_the_stream_is_gone(stream: Maker, caplog: pytest.LogCaptureFixture) -> None:
    made = stream()
    state = state_of(made)
    progress = Run(made).open().progress
    made.delete()
    progress.commit(state, 5)
    assert "stream not found (code 404, error 10059): nothing is committed" in caplog.text
    steps: list[Callable[[], object]] = [
        lambda: progress.check(state, 0),
        lambda: progress.open(state, fresh=False),
    ]
    for step in steps:
        with pytest.raises(StreamNotFound):
            step()


def test_a_filter_conflict_is_an_error_if_consumers_cannot_be_listed(stream: Maker) -> None:
    made = stream(retention="workqueue")
    make_consumer(made, "application")
    run = Run(made)
    run.wire.deny("CONSUMER.LIST")
    with pytest.raises(
        OptionError, match=r"another consumer already has messages of this query \(all subjects\)"
    ):
        run.open()


# Outages


def test_the_server_crashes(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory()
    with ExitStack() as stack:
        runs = []
        for retention in RETENTIONS:
            made = Stream(
                server.url,
                retention,
                stack.enter_context(Publisher(server.url)),
                retention=retention,
            )
            runs.append(Run(made, f"{retention}.a").open())
            made.fill_in_turn(10, "ab")
            runs[-1].commit(4)
        server.kill()
        server.start()
        for run in runs:
            run.stream.publisher = stack.enter_context(Publisher(server.url))
            run.move(8)
            assert pending(run.stream) == 1  # 9
    close_all()


@pytest.mark.full
def test_a_leader_is_killed(nats_cluster: NatsCluster) -> None:
    with ExitStack() as stack:

        def connected(server: NatsServer) -> Publisher:
            return stack.enter_context(Publisher(server.url))

        runs = []
        for retention in RETENTIONS:
            publisher = connected(nats_cluster.servers[0])
            made = Stream(
                nats_cluster.url, retention, publisher, retention=retention, num_replicas=3
            )
            runs.append(Run(made, patience=60.0, requestTimeout="1s").open())
            made.fill(10)
            runs[-1].commit(4)
        states = [state_of(run.stream) for run in runs]
        killed = nats_cluster.leader_of("interest")
        nats_cluster.kill(killed)
        for run, state in zip(runs, states, strict=True):
            run.progress.check(state, 0)
            run.progress.commit(state, 8)
        nats_cluster.wait_ready()
        up = next(server for server in nats_cluster.servers if server.running)
        for run in runs:
            made = run.stream
            made.publisher = connected(up)
            left = 10 if made.name == "limits" else 3
            wait_until(lambda made=made: pending(made) == 3, made.name)  # type: ignore[misc]
            # Another server may lead the stream than the consumer, and may still apply what it has
            # in its log.
            made.wait_for(left)
        nats_cluster.restart(killed)
        for run in runs:
            run.check()
            run.stream.delete()
