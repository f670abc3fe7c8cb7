"""Hints in an error about a stream that does not acknowledge, or does not exist."""

from __future__ import annotations

import pytest

from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.streams.lookup import (
    NAMES_PAGE,
    nearest_stream,
    nearest_subject,
    why_silent,
)
from spark_jetstream.testing import NatsServer
from tests.support.publish import Publisher
from tests.support.streams import MakeStream, Stream


@pytest.mark.parametrize("named", [True, False])
def test_why_a_stream_is_silent(nats_server: NatsServer, stream: MakeStream, named: bool) -> None:
    s = stream()
    options = SourceOptions.from_spark(
        {"servers": nats_server.url, "stream": s.name}, streaming=False
    )
    connection = connect(options.connection)

    def why(seconds: float = 0.0, name: str = s.name) -> str:
        return why_silent(connection, f"{s.subject}.a", seconds, name if named else None)

    assert why(3600).startswith(
        f"stream {s.name} answers requests and stores nothing (its last message is 0): its server"
    )
    s.fill(2)
    assert (
        why(3600)
        == f"stream {s.name} stores messages (the last one is 2), so it is slow, or its answers "
        "get lost"
    )
    assert why().startswith(
        f"stream {s.name} answers requests and stores nothing (its last message is 2): its server"
    )
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
  { user: blind, password: x, permissions: { publish: {
    allow: [">"], deny: ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST"] } } } ] } }
"""


def test_the_stream_that_was_meant() -> None:
    with NatsServer(config=USERS) as server, Publisher(server.url.replace("//", "//ann:x@")) as ann:
        for name in ("ORDERS", "ORDERS_EU", "KV_prices", "OBJ_prizes"):
            Stream(server.url, name, ann)

        def meant(
            *names: str,
            prefix: str = "",
            user: str = "ann",
            options: bool = False,
            page_size: int = NAMES_PAGE,
        ) -> str:
            given = {
                "servers": server.url,
                "user": user,
                "password": "x",
                "stream": ",".join(names),
            }
            login = SourceOptions.from_spark(given, streaming=False).connection
            return nearest_stream(
                lambda _: connect(login), names, prefix, options=options, page_size=page_size
            )

        assert [meant("ordres"), meant("ORDERS", "ORDER_EU")] == [
            "; did you mean ORDERS",
            "; did you mean ORDERS_EU",
        ]
        assert [meant("KV_prizez", prefix="KV_"), meant("OBJ_pricez", prefix="OBJ_")] == [
            "; did you mean prices",
            "; did you mean prizes",
        ]
        # The name of something else, or the stream of a bucket in place of the bucket.
        assert meant("prices") == "; prices is a Key-Value bucket"
        assert meant("prices", options=True) == "; prices is a Key-Value bucket (option bucket)"
        assert meant("KV_prizes", prefix="KV_", options=True) == (
            "; prizes is an Object Store bucket (option objectBucket)"
        )
        assert (
            meant("OBJ_ORDERS", prefix="OBJ_", options=True)
            == "; ORDERS is a stream (option stream)"
        )
        assert meant("KV_OBJ_prizes", prefix="KV_") == "; prizes is an Object Store bucket"
        assert meant("KV_KV_prices", prefix="KV_") == "; did you mean prices"
        assert [meant("INVOICES"), meant("ORDERS"), meant("ORDRES", user="blind")] == ["", "", ""]
        assert meant("ORDRES", page_size=4) == ""
        assert meant("prices", page_size=4) == "; prices is a Key-Value bucket"
        close_all()


def test_the_subject_that_was_meant() -> None:
    with NatsServer(config=USERS) as server, Publisher(server.url.replace("//", "//ann:x@")) as ann:
        for name, subjects in {
            "A": ["orders.>", "stock.*.count"],
            "B": ["Invoices"],
            "C": ["x"],
        }.items():
            Stream(server.url, name, ann, subjects=subjects)

        def meant(subject: str, user: str = "ann") -> str:
            given = {"servers": server.url, "user": user, "password": "x", "stream": "A"}
            login = SourceOptions.from_spark(given, streaming=False).connection
            return nearest_subject(lambda _: connect(login), subject)

        assert meant("ordres.de.new") == "; did you mean orders.de.new"
        assert meant("stokc.7.count") == "; did you mean stock.7.count"
        assert meant("invoices") == "; did you mean Invoices"
        assert [meant("orders"), meant("elsewhere.at.all"), meant("invoices", user="blind")] == [
            "",
            "",
            "",
        ]
        close_all()
