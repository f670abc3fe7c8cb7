"""Nothing is lost in silence, nothing comes twice, and nothing is reported that is no loss:
histories made from seeds.

`histories` makes a history and compares the query with a model. An error shows the seed and all
that happened; docs/reliability.md says how to repeat it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.source.limits import PlanLimits
from spark_jetstream.source.reader import JetStreamStreamReader
from spark_jetstream.testing import NatsServer
from tests.source.histories import History, warnings_of
from tests.support.client import set_timing
from tests.support.publish import Publisher
from tests.support.seeds import seeds

pytestmark = pytest.mark.usefixtures("no_connection_left")


@pytest.mark.parametrize("part", seeds(12, 36))
def test_each_message_is_read_once_or_reported(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: range
) -> None:
    # No leader changes here, and a query looks for streams each time.
    set_timing(monkeypatch, election=0.0)
    monkeypatch.setattr(JetStreamStreamReader, "limits", PlanLimits(find_every=0.0))
    with Publisher(server.url) as publisher, JetStreamAdmin(servers=server.url) as admin:
        # A server removes the folder of all streams with the last one.
        publisher.api("STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"]})
        publisher.store = server.store_dir
        for seed in part:
            history = History(seed, server.url, publisher, admin.streams, tmp_path)
            with warnings_of(history):
                history.run()
