"""Counters are right after kills of tasks that count, and of servers that lead their stream; so are
their sums.
"""

from __future__ import annotations

import base64
import json

import pytest

from spark_jetstream.testing import NatsCluster
from tests.chaos.scenario import LEVELS
from tests.support.count_job import BATCHES, ROWS, Counting, expected
from tests.support.reading import api, wait_until

pytestmark = pytest.mark.usefixtures("no_connection_left")

KILLS = 6
STEP = BATCHES // (KILLS + 1)


def counted(url: str, stream: str, subject: str) -> dict[str, int]:
    """The counters of a stream, as its leader has them."""
    values = {}
    for name in expected():
        message = api(url, f"STREAM.MSG.GET.{stream}", {"last_by_subj": f"{subject}.{name}"})[
            "message"
        ]
        values[name] = int(json.loads(base64.b64decode(message["data"]))["val"])
    return values


def wait_for(url: str, stream: str, rows: int) -> None:
    """Wait until a stream has at least `rows` messages."""
    stored = f"{rows} messages in {stream}"
    wait_until(
        lambda: bool(api(url, f"STREAM.INFO.{stream}")["state"]["messages"] >= rows), stored, 180
    )


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
def test_sums_after_kills_of_tasks_and_of_leaders(delivery: str) -> None:
    with NatsCluster() as cluster:
        url, config = cluster.url, {"storage": "file", "num_replicas": 3, "allow_msg_counter": True}
        window = {"duplicate_window": LEVELS[delivery]}
        api(url, "STREAM.CREATE.C", {"name": "C", "subjects": ["count.>"], **config, **window})
        sources = [{"name": "C", "subject_transforms": [{"src": "count.>", "dest": "sum.>"}]}]
        api(url, "STREAM.CREATE.SUM", {"name": "SUM", "sources": sources, **config})
        # A task has answers to all rows but those of the last two record batches.
        options = {
            "servers": url,
            "stream": "C",
            "delivery": delivery,
            "maxInFlight": str(2 * ROWS),
        }
        options |= {
            "connectTimeout": "60s",
            "retryTimeout": "180s",
            "ackTimeout": "2s",
            "maxRetries": "100",
        }
        for kill in range(1, KILLS + 1):
            with Counting(options) as task:
                task.step(kill * STEP - 4)
                for _ in range(2):
                    leader = cluster.leader_of("C")
                    cluster.kill(leader)
                    task.step(2)
                    cluster.restart(leader)
                wait_for(url, "C", (kill * STEP - 2) * ROWS)
        with Counting(options) as task:
            assert task.end() == BATCHES * ROWS
        assert api(url, "STREAM.INFO.C")["state"]["messages"] == BATCHES * ROWS
        assert counted(url, "C", "count") == expected()
        wait_for(url, "SUM", BATCHES * ROWS)
        assert counted(url, "SUM", "sum") == expected()
