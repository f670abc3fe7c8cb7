"""What the server says of a stream that does not acknowledge."""

from __future__ import annotations

import pytest

from spark_jetstream.client.pool import connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.streams.lookup import why_silent
from spark_jetstream.testing import NatsServer
from tests.support.streams import MakeStream


@pytest.mark.parametrize("named", [True, False])
def test_why_a_stream_is_silent(nats_server: NatsServer, stream: MakeStream, named: bool) -> None:
    s = stream()
    options = SourceOptions.from_spark({"servers": nats_server.url, "stream": s.name}, streaming=False)
    connection = connect(options.connection)

    def why(seconds: float = 0.0, name: str = s.name) -> str:
        return why_silent(connection, f"{s.subject}.a", seconds, name if named else None)

    assert why(3600).startswith(
        f"stream {s.name} answers requests and stores nothing (its last message is 0): its server"
    )
    s.fill(2)
    assert why(3600) == f"stream {s.name} stores messages (the last one is 2), so it is slow, or its answers get lost"
    assert why().startswith(f"stream {s.name} answers requests and stores nothing (its last message is 2): its server")
    s.update(no_ack=True)
    assert why() == f"stream {s.name} has no_ack set, so it gives none"
    s.update(subjects=["elsewhere.b"])
    if named:
        said = "the server does not say why: cannot read the state of stream GONE: stream not found"
        assert why(name="GONE").startswith(said)
    else:
        assert why() == "no stream captures this subject"
