"""Messages of a shared consumer that a server lacks when a micro-batch comes again."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import close_all
from spark_jetstream.client.requests import Requests
from spark_jetstream.source.shared.held import Held
from spark_jetstream.source.shared.replay import Replay
from spark_jetstream.streams.lookup import RawMessage
from tests.support.client import set_timing
from tests.support.fake_jetstream import CREATED, FakeJetStream
from tests.support.reading import connecting
from tests.support.sharing import Pool, SharedQuery, sequences_of
from tests.support.streams import MakeStream


def test_a_message_that_a_batch_ran_without_stays_in_the_queue(
    stream: MakeStream, admin: JetStreamAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that was asked for the messages of the batch does not have one of them."""
    pool = Pool(stream, admin)
    pool.stream.fill(5)
    query = SharedQuery(pool)
    query.run_batch()
    query.kill()
    query.start()
    read = Replay.read

    def incomplete(replay: Replay, held: Held) -> list[RawMessage]:
        return [each for each in read(replay, held) if each.sequence != 3]

    monkeypatch.setattr(Replay, "read", incomplete)
    parts = query.planner.ranges(query.offset(-1), query.offset(0))
    assert sequences_of(parts) == [1, 2, 4, 5]
    query.planner.commit(query.offset(0))
    query.kill()
    assert pool.left == [3]


def test_a_message_that_a_former_leader_lacks_is_read_from_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_timing(monkeypatch, election=0.0)
    peers = [{"name": name, "current": True, "active": 0} for name in ("two", "three")]
    cluster = {"name": "test", "leader": "one", "replicas": peers}
    former = [{"error": {"code": 404, "err_code": 10037, "description": "no message found"}}]
    with FakeJetStream() as fake:
        fake.store(5)
        fake.look = lambda: {**fake.info(num_replicas=3), "cluster": cluster}

        def leader(request: dict[str, Any]) -> dict[str, Any]:
            if request["seq"] == 3 and former:
                return former.pop()
            return fake.message(request)

        fake.leader = leader
        replay = Replay(Requests(connecting(fake.url), 60.0), "S")
        found = replay.read(Held(CREATED, "$JS.ACK.S.pool", (1, 3, 5)))
        close_all()
    assert not former
    assert [each.sequence for each in found] == [1, 3, 5]
