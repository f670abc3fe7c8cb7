"""What an error adds about a stream that does not acknowledge, or does not exist."""

from __future__ import annotations

import pytest

from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.streams import lookup
from spark_jetstream.streams.lookup import nearest_stream, why_silent
from spark_jetstream.testing import NatsServer
from tests.support.publish import Publisher
from tests.support.streams import MakeStream, Stream


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


USERS = """
accounts { A { jetstream: enabled, users: [
  { user: ann, password: x }
  { user: blind, password: x, permissions: { publish: { allow: [">"], deny: ["$JS.API.STREAM.NAMES"] } } } ] } }
"""


def test_the_stream_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServer(config=USERS) as server, Publisher(server.url.replace("//", "//ann:x@")) as ann:
        for name in ("ORDERS", "ORDERS_EU", "KV_prices", "OBJ_prizes"):
            Stream(server.url, name, ann)

        def meant(*names: str, prefix: str = "", user: str = "ann") -> str:
            given = {"servers": server.url, "user": user, "password": "x", "stream": ",".join(names)}
            options = SourceOptions.from_spark(given, streaming=False)
            return nearest_stream(lambda _: connect(options.connection), names, prefix)

        assert [meant("ordres"), meant("ORDERS", "ORDER_EU")] == ["; did you mean ORDERS", "; did you mean ORDERS_EU"]
        assert [meant("KV_prizes", prefix="KV_"), meant("OBJ_prices", prefix="OBJ_")] == [
            "; did you mean prices",
            "; did you mean prizes",
        ]
        assert [meant("INVOICES"), meant("ORDERS"), meant("ORDRES", user="blind")] == ["", "", ""]
        monkeypatch.setattr(lookup, "_PAGE", 4)
        assert meant("ORDRES") == ""
        close_all()
