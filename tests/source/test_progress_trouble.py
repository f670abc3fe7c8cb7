"""Other runs, other people, lost consumers, denied subjects and outages, while Spark commits (option durable)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import DataLossError, JetStreamError, OptionError, PermissionDenied, StreamNotFound
from spark_jetstream.protocol.stream import StreamState
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.progress import (
    RETENTIONS,
    Maker,
    Wire,
    both,
    can_move,
    consumer,
    kept,
    make_consumer,
    position,
    run_of,
    state_of,
    take,
)
from tests.support.reading import api, consumers, create, fill, wait_until

# Two runs


@pytest.mark.parametrize("retention", RETENTIONS)
def test_another_run_takes_over(
    nats_server: NatsServer, stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    first, second = run_of(url), run_of(url)
    first.open(state_of(url, made.name), fresh=True)
    made.fill(9)
    first.commit(state_of(url, made.name), 4)
    with caplog.at_level(logging.INFO, "spark_jetstream.source.progress"):
        second.open(state_of(url, made.name), fresh=False)
    said = [record.getMessage() for record in caplog.records if record.name.endswith("source.progress")]
    assert len(said) == 1
    assert "continues with consumer query (option durable) at sequence 4, which another run has had since 2" in said[0]
    before = kept(made)
    for each in both(first, state_of(url, made.name), 8):
        with pytest.raises(JetStreamError, match=r"another run has taken over .* \(option durable\) at 2") as raised:
            each()
        assert type(raised.value) is JetStreamError
        assert not raised.value.retriable
    assert kept(made) == before
    second.check(state_of(url, made.name))
    second.commit(state_of(url, made.name), 6)
    assert consumer(url, made.name)["num_pending"] == 4


def test_opened_twice_by_the_same_run(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    before = consumer(url, made.name)["config"]
    run.open(state_of(url, made.name), fresh=True)
    assert consumer(url, made.name)["config"] == before
    run.check(state_of(url, made.name))


def test_a_run_of_several_streams(nats_server: NatsServer, stream: Maker) -> None:
    made = [stream(retention=retention) for retention in RETENTIONS]
    url = nats_server.url
    run = run_of(url)
    for at, each in enumerate(made, start=2):
        run.open(state_of(url, each.name), fresh=True)
        each.fill(9)
        run.commit(state_of(url, each.name), at)
    for at, each in enumerate(made, start=2):
        run.check(state_of(url, each.name))
        assert consumer(url, each.name)["num_pending"] == 10 - at


def test_two_runs_begin_at_the_same_moment(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    url = nats_server.url
    wire = Wire(url)

    def other(subject: str) -> None:
        if subject.startswith("CONSUMER.CREATE"):
            run_of(url).open(state_of(url, made.name), fresh=True)

    wire.before = other
    with pytest.raises(JetStreamError, match="another run has taken over consumer query"):
        run_of(wire).open(state_of(url, made.name), fresh=True)


# Somebody else


def forward(url: str, stream: str, sequence: int) -> None:
    """Move the consumer as an operator might."""
    config = consumer(url, stream)["config"]
    make_consumer(url, stream, "meanwhile")
    api(url, f"CONSUMER.DELETE.{stream}.query")
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence}
    make_consumer(url, stream, **{**config, **start})
    api(url, f"CONSUMER.DELETE.{stream}.meanwhile")


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_moved_on_past_messages_that_are_there(nats_server: NatsServer, stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    make_consumer(url, made.name, "other")
    run = run_of(url, f"{made.subject}.a")
    run.open(state_of(url, made.name), fresh=True)
    made.fill(9)
    run.commit(state_of(url, made.name), 4)
    forward(url, made.name, 7)
    for each in both(run, state_of(url, made.name), 5):
        with pytest.raises(JetStreamError, match="was moved from sequence 4 to 7 by another client, past messages"):
            each()
    assert made.state()["messages"] == 9


@pytest.mark.parametrize("fail", [True, False])
def test_moved_on_and_the_messages_are_gone(
    nats_server: NatsServer, stream: Maker, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    made = stream(retention="interest")
    url = nats_server.url
    make_consumer(url, made.name, "other", filter_subject=f"{made.subject}.b")
    run = run_of(url, f"{made.subject}.a", fail=fail)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(1, "b")  # held by the other one: the first message of the stream is older than the position
    made.fill(8)
    run.commit(state_of(url, made.name), 4)
    forward(url, made.name, 7)
    if fail:
        with pytest.raises(DataLossError, match=r"from sequence 4 to 7, by a purge .* set failOnDataLoss=false"):
            run.check(state_of(url, made.name))
        return
    run.check(state_of(url, made.name))
    assert "are gone unread; failOnDataLoss is false" in caplog.text
    caplog.clear()
    run.check(state_of(url, made.name))
    run.commit(state_of(url, made.name), 10)
    assert made.state()["messages"] == 1
    assert not caplog.records


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_purge_moves_it_too(
    nats_server: NatsServer, stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(9)
    run.commit(state_of(url, made.name), 3)
    made.purge(seq=6)
    # That messages went before they were read is for the reader's own check to find, by the stream's first sequence.
    run.check(state_of(url, made.name))
    run.commit(state_of(url, made.name), 8)
    assert consumer(url, made.name)["num_pending"] == 2
    assert not caplog.records


def test_a_purge_of_its_subject_only(nats_server: NatsServer, stream: Maker, caplog: pytest.LogCaptureFixture) -> None:
    made = stream()
    url = nats_server.url
    run = run_of(url, f"{made.subject}.a")
    run.open(state_of(url, made.name), fresh=True)
    made.fill_in_turn(9, "ba")
    run.commit(state_of(url, made.name), 3)
    made.purge(filter=f"{made.subject}.a")
    run.check(state_of(url, made.name))
    assert "by a purge or by another client" in caplog.text
    run.commit(state_of(url, made.name), 10)
    run.check(state_of(url, made.name))


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_moved_back(nats_server: NatsServer, stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(9)
    run.commit(state_of(url, made.name), 6)
    forward(url, made.name, 2)
    run.check(state_of(url, made.name))  # what is held for too long does no harm
    run.commit(state_of(url, made.name), 6)
    run.commit(state_of(url, made.name), 7)
    assert consumer(url, made.name)["num_pending"] == 3


@pytest.mark.parametrize("retention", RETENTIONS)
def test_another_client_pulls(nats_server: NatsServer, stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(9)
    take(url, made.name, "query", 1)
    for each in both(run, state_of(url, made.name), 5):
        with pytest.raises(JetStreamError, match="another client pulls messages from consumer query"):
            each()
    # What happened is known once it was said: the next run goes on.
    again = run_of(url, fail=False)
    again.open(state_of(url, made.name), fresh=False)
    again.check(state_of(url, made.name))
    again.commit(state_of(url, made.name), 5)
    again.check(state_of(url, made.name))
    assert consumer(url, made.name)["num_pending"] == 5


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_ahead_of_the_checkpoint(
    nats_server: NatsServer, stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    make_consumer(url, made.name, "other")  # so that the stream begins below
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(9)
    run.commit(state_of(url, made.name), 8)
    behind = run_of(url)
    behind.open(state_of(url, made.name), fresh=False)
    if retention == "interest":
        with pytest.raises(DataLossError, match="is ahead of the checkpoint, at sequence 8, and has not held"):
            behind.commit(state_of(url, made.name), 5)
        behind = run_of(url, fail=False)
        behind.open(state_of(url, made.name), fresh=False)
    behind.commit(state_of(url, made.name), 5)
    assert "is ahead of the checkpoint" in caplog.text
    assert position(url, made.name) == 5
    anew = run_of(url)
    anew.open(state_of(url, made.name), fresh=True)
    anew.commit(state_of(url, made.name), 1)
    assert position(url, made.name) == 1


# A consumer that is gone


@pytest.mark.parametrize("when", ["open", "check", "commit"])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_missing(
    nats_server: NatsServer, stream: Maker, caplog: pytest.LogCaptureFixture, retention: str, fail: bool, when: str
) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url, fail=fail)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(6)
    run.commit(state_of(url, made.name), 4)
    api(url, f"CONSUMER.DELETE.{made.name}.query")
    made.fill(2)
    if when == "open":
        run = run_of(url, fail=fail)
    state = state_of(url, made.name)
    work: Callable[[], None] = {
        "open": lambda: run.open(state, fresh=False),
        "check": lambda: run.check(state),
        "commit": lambda: run.commit(state, 6),
    }[when]
    if retention == "interest" and fail:
        said = r"consumer query of stream .* does not exist: .* are gone unread; set failOnDataLoss=false"
        with pytest.raises(DataLossError, match=said):
            work()
        assert consumers(url, made.name) == []  # the next start must not go on as if nothing had happened
        return
    work()
    assert "does not exist: it was deleted" in caplog.text
    made.fill(2)
    run.check(state_of(url, made.name))
    run.commit(state_of(url, made.name), 10)
    assert consumer(url, made.name)["num_pending"] == 1


@pytest.mark.parametrize("retention", RETENTIONS)
def test_no_checkpoint_and_no_consumer(
    nats_server: NatsServer, stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    run_of(nats_server.url).open(state_of(nats_server.url, made.name), fresh=True)
    assert not caplog.records


def test_deleted_while_it_is_moved(nats_server: NatsServer, stream: Maker) -> None:
    """A server that moves a consumer that is not there says nothing at all."""
    made = stream(retention="interest")
    url = nats_server.url
    wire = Wire(url, requestTimeout="300ms")

    def delete(subject: str) -> None:
        if subject.startswith(("CONSUMER.RESET", f"CONSUMER.CREATE.{made.name}.query-")):
            wire.before = lambda _: None
            api(url, f"CONSUMER.DELETE.{made.name}.query")

    run = run_of(wire)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(6)
    wire.before = delete
    if can_move(nats_server):
        with pytest.raises(DataLossError, match="does not exist"):
            run.commit(state_of(url, made.name), 4)
        assert kept(made) == (7, 6, 0)
    else:
        run.commit(state_of(url, made.name), 4)
        assert consumers(url, made.name) == ["query"]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_the_stream_is_created_again(
    nats_server: NatsServer, stream: Maker, retention: str, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url, fail=fail)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(6)
    old = state_of(url, made.name)
    made.delete()
    made.create()
    make_consumer(url, made.name, "application", filter_subject=f"{made.subject}.a")
    made.fill(8)
    run.commit(old, 7)  # those are sequences of other messages now
    assert kept(made) == (1, 8, 8)
    new = state_of(url, made.name)
    run.commit(new, 7)
    assert kept(made) == (1, 8, 8)
    assert caplog.text.count("nothing is committed in the new one") == 2
    if retention == "interest" and fail:
        with pytest.raises(DataLossError, match="was deleted and created again, and its consumer went with it"):
            run.check(new)
        return
    if retention == "workqueue":
        with pytest.raises(OptionError, match=rf"application \({made.subject}.a\) already has what this query reads"):
            run.check(new)
        api(url, f"CONSUMER.DELETE.{made.name}.application")
    run.check(new)
    run.commit(new, 7)
    assert consumer(url, made.name)["num_pending"] == 2


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_position_behind_the_end(
    nats_server: NatsServer, stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that lost its tail will give those sequences to messages that nobody has read."""
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    made.fill(6)
    run.commit(state_of(url, made.name), 9)
    assert "ends at sequence 6, before the position 9 that was read up to: nothing is committed" in caplog.text
    made.fill(4)
    assert kept(made) == (1, 10, 10)
    assert consumer(url, made.name)["num_pending"] == 10


def test_the_stream_is_gone(nats_server: NatsServer, stream: Maker) -> None:
    made = stream()
    run = run_of(nats_server.url)
    state = state_of(nats_server.url, made.name)
    run.open(state, fresh=True)
    made.delete()
    for each in both(run, state, 5):
        with pytest.raises(StreamNotFound):
            each()
    with pytest.raises(StreamNotFound):
        run.open(state, fresh=False)


# Permissions

USED = {
    "limits": ["STREAM.INFO.S", "CONSUMER.CREATE.S.query.S.a", "CONSUMER.INFO.S.query", "CONSUMER.RESET.S.query"],
    "interest": ["STREAM.INFO.S", "CONSUMER.CREATE.S.query.S.a", "CONSUMER.INFO.S.query", "CONSUMER.RESET.S.query"],
    "workqueue": ["STREAM.INFO.S", "CONSUMER.CREATE.S.query.S.a", "CONSUMER.INFO.S.query", "STREAM.PURGE.S"],
}
ALSO = {"limits": ["CONSUMER.INFO.S.query-spark-moving"], "interest": ["CONSUMER.INFO.S.query-spark-moving"]}
OLDER = ["CONSUMER.DELETE.S.query", "CONSUMER.DELETE.S.query-spark-moving", "CONSUMER.CREATE.S.query-spark-moving.S.a"]


@pytest.fixture
def guarded(nats_server_factory: Callable[..., NatsServer]) -> Iterator[Callable[[list[str]], tuple[str, str]]]:
    """A function that starts a server: the URL of one who may do everything, and of one who may use these subjects."""

    def start(subjects: list[str]) -> tuple[str, str]:
        allowed = ", ".join(f'"$JS.API.{each}"' for each in subjects)
        server = nats_server_factory(
            config=f"""authorization {{ users: [
                {{user: admin, password: admin}},
                {{user: spark, password: spark, permissions: {{publish: [{allowed}], subscribe: "_INBOX.>"}}}}
            ]}}"""
        )
        return server.url.replace("//", "//admin:admin@"), server.url.replace("//", "//spark:spark@")

    yield start
    close_all()


def used_by(url: str, state: Callable[[], StreamState]) -> None:
    """A run from its beginning to its second commit."""
    run = run_of(url, "S.a", patience=0.5)
    run.open(state(), fresh=True)
    fill(url.replace("spark:spark", "admin:admin"), "S", 9)
    run.check(state())
    run.commit(state(), 3)
    run.commit(state(), 6)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_what_must_be_allowed(
    nats_server: NatsServer, guarded: Callable[[list[str]], tuple[str, str]], retention: str
) -> None:
    needed = USED[retention] + ALSO.get(retention, [])
    if not can_move(nats_server) and retention != "workqueue":
        needed = [each for each in needed if "RESET" not in each] + OLDER
    admin, spark = guarded(needed)
    create(admin, "S", retention=retention, storage="file")
    used_by(spark, lambda: state_of(admin, "S"))
    assert consumer(admin, "S")["num_pending"] == 4


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_is_not_allowed_is_named(
    nats_server: NatsServer, guarded: Callable[[list[str]], tuple[str, str]], retention: str
) -> None:
    needed = USED[retention][1:] + ALSO.get(retention, [])
    if not can_move(nats_server) and retention != "workqueue":
        needed = [each for each in needed if "RESET" not in each] + OLDER[:1]
    for denied in needed:
        admin, spark = guarded([each for each in [*needed, *OLDER] if each != denied])
        create(admin, "S", retention=retention, storage="file")
        with pytest.raises(PermissionDenied, match="option durable") as raised:
            used_by(spark, lambda admin=admin: state_of(admin, "S"))  # type: ignore[misc]
        assert raised.value.subject == f"$JS.API.{denied}"


def test_who_has_the_filter_may_stay_unknown(guarded: Callable[[list[str]], tuple[str, str]]) -> None:
    admin, spark = guarded(USED["workqueue"])
    create(admin, "S", retention="workqueue", storage="file")
    make_consumer(admin, "S", "application")
    with pytest.raises(OptionError, match=r"another consumer already has what this query reads \(S\.a\)"):
        run_of(spark, "S.a").open(state_of(admin, "S"), fresh=True)


# Outages


@pytest.mark.parametrize("retention", RETENTIONS)
def test_the_server_crashes(nats_server_factory: Callable[..., NatsServer], retention: str) -> None:
    server = nats_server_factory()
    create(server.url, "S", retention=retention, storage="file")
    run = run_of(server.url, "S.a")
    run.open(state_of(server.url, "S"), fresh=True)
    fill(server.url, "S", 10, lambda i: "ab"[i % 2])
    run.commit(state_of(server.url, "S"), 4)
    server.kill()
    server.start()
    run.check(state_of(server.url, "S"))
    run.commit(state_of(server.url, "S"), 8)
    assert consumer(server.url, "S")["num_pending"] == 1  # 9
    later = threading.Timer(0.5, server.start)
    state = state_of(server.url, "S")
    server.kill()
    later.start()
    run.commit(state, 11)
    later.join()
    assert consumer(server.url, "S")["num_pending"] == 0
    close_all()


@pytest.mark.full
def test_a_leader_is_killed(nats_cluster: NatsCluster) -> None:
    url = nats_cluster.url
    for retention in RETENTIONS:
        create(url, retention, retention=retention, storage="file", num_replicas=3)
    run = run_of(Wire(url, requestTimeout="1s"), patience=60.0)
    for retention in RETENTIONS:
        run.open(state_of(url, retention), fresh=True)
        fill(url, retention, 10)
        run.commit(state_of(url, retention), 4)
    states = {retention: state_of(url, retention) for retention in RETENTIONS}
    killed = nats_cluster.leader_of("interest")
    nats_cluster.kill(killed)
    for retention in RETENTIONS:
        run.check(states[retention])
        run.commit(states[retention], 8)
    nats_cluster.wait_ready()
    up = next(server.url for server in nats_cluster.servers if server.running)
    for retention in RETENTIONS:
        wait_until(lambda retention=retention: consumer(up, retention)["num_pending"] == 3, retention)  # type: ignore[misc]
        assert state_of(up, retention).messages == (10 if retention == "limits" else 3)
    nats_cluster.restart(killed)
    for retention in RETENTIONS:
        run.check(state_of(url, retention))
        api(url, f"STREAM.DELETE.{retention}")
