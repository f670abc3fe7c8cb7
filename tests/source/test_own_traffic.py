"""A stream that stores what reading or writing it sends and receives: a warning says so once, and
what helps.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.support.calls import Query, planned, writer_of
from tests.support.sinking import rows

pytestmark = pytest.mark.usefixtures("no_connection_left")

ADVISORIES = "$JS.EVENT.ADVISORY.>"
GIVEN_UP = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"


@pytest.fixture
def admin(server: NatsServer) -> Iterator[JetStreamAdmin]:
    with JetStreamAdmin(servers=server.url, inboxPrefix="_ADMIN") as made:
        yield made


def about(caplog: pytest.LogCaptureFixture, stream: str) -> list[str]:
    return [
        message for message in caplog.messages if message.startswith(f"stream {stream} stores ")
    ]


def test_a_stream_that_stores_what_is_read_from_it_is_named_once(
    server: NatsServer, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.streams.create("S", subjects=["s.>", "_INBOX.>"])
    for number in range(3):
        admin.publish("s.a", str(number))
    assert len(Query(server.url, "S", maxMessagesPerTrigger=1).run().counts) >= 3
    assert about(caplog, "S") == [
        "stream S stores a copy of each message that is read from it, because its subjects "
        "(_INBOX.>) match those at which the reader receives (_INBOX.>): set option inboxPrefix to "
        "a prefix that they do not match, or give the stream narrower subjects"
    ]


def test_another_inbox_prefix_helps(
    server: NatsServer, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.streams.create("S", subjects=["s.>", "_INBOX.>"])
    admin.publish("s.a", "1")
    assert sum(Query(server.url, "S", inboxPrefix="_READER").run().counts) == 1
    assert about(caplog, "S") == []
    assert admin.streams.load("S").state.messages == 1


def test_no_inbox_prefix_helps_against_a_stream_that_stores_everything(
    server: NatsServer, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.streams.create("S", subjects=[">"], no_ack=True)
    planned("b", {"servers": server.url, "stream": "S"})
    [said] = about(caplog, "S")
    assert said.endswith(
        "match those at which the reader receives (_INBOX.>): give the stream narrower subjects"
    )


def test_a_query_that_reads_what_it_causes_is_told_to_choose_subjects(
    server: NatsServer, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.streams.create("S", subjects=[ADVISORIES])
    planned("b", {"servers": server.url, "stream": "S"})
    Query(server.url, "S", subjects=GIVEN_UP).run()
    assert about(caplog, "S") == []
    Query(server.url, "S").run()
    assert about(caplog, "S") == [
        "stream S stores what this query causes ($JS.EVENT.ADVISORY.API, "
        "$JS.EVENT.ADVISORY.CONSUMER.CREATED.>, $JS.EVENT.ADVISORY.CONSUMER.DELETED.>), and the "
        "query reads it: each micro-batch causes the next one; set option subjects to the subjects "
        "that the query is for"
    ]


def test_a_stream_that_stores_the_acknowledgements_of_its_rows_is_named_once(
    server: NatsServer, admin: JetStreamAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.streams.create("S", subjects=["s.>", "_INBOX.>"])
    for prefix in ("_INBOX", "_WRITER", "_INBOX"):
        given = {"servers": server.url, "stream": "S", "inboxPrefix": prefix, "writeId": prefix}
        writer_of("b", given, rows("s.a", 0, 1).schema)
    [said] = about(caplog, "S")
    assert said.startswith(
        "stream S stores the acknowledgements of rows as well, because its subjects (_INBOX.>) "
    )
