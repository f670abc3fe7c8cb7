"""Messages of a shared consumer that a micro-batch ran without."""

from __future__ import annotations

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.source.shared.held import Held
from spark_jetstream.source.shared.replay import Replay
from spark_jetstream.streams.lookup import RawMessage
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
