"""Nothing is lost in silence, nothing comes twice, and nothing is reported that is no loss: histories made from seeds.

    HISTORIES_SEED=7 .venv/bin/python -m pytest tests/source/test_histories.py              from that seed on
    HISTORIES_SEED=7 HISTORIES=1 .venv/bin/python -m pytest tests/source/test_histories.py  only that seed

`histories` makes a history and compares the query with a model. An error shows the seed and all that happened.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client import requests
from spark_jetstream.source import selection
from spark_jetstream.testing import NatsServer
from tests.source.histories import History, warnings_of
from tests.support.publish import Publisher

pytestmark = pytest.mark.usefixtures("no_connection_left")

SEED = int(os.environ.get("HISTORIES_SEED", "1"))
#: How many histories; `make test` makes the first of the parts.
COUNT = int(os.environ.get("HISTORIES", "300"))
QUICK, END = SEED + min(12, COUNT), SEED + COUNT
PARTS = [range(SEED, QUICK), *(range(first, min(first + 36, END)) for first in range(QUICK, END, 36))]


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(part, id=f"{part[0]}", marks=pytest.mark.full if number else ())
        for number, part in enumerate(PARTS)
    ],
)
def test_each_message_is_read_once_or_reported(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    # No leader changes here, and a query looks for streams each time.
    monkeypatch.setattr(requests, "ELECTION", 0.0)
    monkeypatch.setattr(selection, "FIND_EVERY", 0.0)
    with Publisher(server.url) as publisher, JetStreamAdmin(servers=server.url) as admin:
        # A server removes the folder of all streams with the last one.
        publisher.api("STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"]})
        publisher.store = server.store_dir
        for seed in seeds:
            history = History(seed, server.url, publisher, admin.streams, tmp_path)
            with warnings_of(history):
                history.run()
