"""Run events of OpenLineage: on events as Spark makes them, and when the endpoint does not take
them.
"""

from __future__ import annotations

import http.client
import logging
import re
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

from spark_jetstream.errors import OptionError
from spark_jetstream.monitoring import JetStreamListener, OpenLineage
from spark_jetstream.monitoring.openlineage import PostLimits
from tests.monitoring.collector import Collector, collecting, inputs
from tests.monitoring.test_listener import QUERY, RUN, ended, progressed, started
from tests.monitoring.test_stream_lag import OLD, offset, source_of
from tests.support.jobs import run_python
from tests.support.reading import wait_until

COPIES = ("nats://10.0.0.1:4222", "COPIES")
SERVERS = "tls://user:secret@10.0.0.1,10.0.0.2"


def listening(collector: Collector, **arguments: Any) -> JetStreamListener:
    return JetStreamListener(openlineage=OpenLineage(collector.url, servers=SERVERS, **arguments))


def cut(next_: int, first: int, stream: str = "ORDERS", **more: Any) -> dict[str, Any]:
    """The end of a micro-batch whose one task begins at `first`."""
    return {**offset(stream, next_, 0, **more), "version": 2, "cuts": {stream: [first, 1, next_]}}


def read(start: object, end: object, **fields: Any) -> dict[str, Any]:
    return {**source_of(), "startOffset": start, "endOffset": end, **fields}


def test_the_events_of_two_runs(collector: Collector) -> None:
    listener = listening(
        collector, outputs={"orders": [COPIES, ("s3://lake", "orders/raw")]}, namespace="shop"
    )
    listener.onQueryStarted(started())
    listener.onQueryProgress(progressed(read(None, cut(18, 3)), batchId=5))
    listener.onQueryTerminated(ended())
    listener.onQueryStarted(started(None))
    listener.onQueryTerminated(ended("it broke\nhere"))
    listener.close()
    listener.onQueryStarted(started())
    assert collector.kinds == [
        *(("orders", kind) for kind in ("START", "RUNNING", "COMPLETE")),
        *((str(QUERY), kind) for kind in ("START", "FAIL")),
    ]
    first, running, last, unnamed, failed = collector.events
    assert {event["run"]["runId"] for event in collector.events} == {str(RUN)}
    assert {event["job"]["namespace"] for event in collector.events} == {"shop"}
    assert first["outputs"] == [
        {"namespace": "nats://10.0.0.1:4222", "name": "COPIES"},
        {"namespace": "s3://lake", "name": "orders/raw"},
    ]
    assert unnamed["outputs"] == first["inputs"] == []
    assert running["outputs"] == first["outputs"]
    assert running["inputs"][0]["inputFacets"]["sparkJetstream_sequences"]["batch"] == 5
    assert inputs(running) == {("nats://10.0.0.1:4222", "ORDERS"): [{"first": 3, "last": 17}]}
    assert inputs(last) == {
        ("nats://10.0.0.1:4222", "ORDERS"): None
    }  # some endpoints look at this event alone
    assert failed["inputs"] == []
    assert failed["run"]["facets"]["errorMessage"]["message"] == "it broke\nhere"


BEFORE = offset("ORDERS", 11, 0)


@pytest.mark.parametrize(
    ("source", "sequences"),
    [
        (read(BEFORE, cut(18, 15)), [{"first": 11, "last": 17}]),
        (read(BEFORE, BEFORE), []),
        (read(BEFORE, cut(5, 2, created="later")), [{"first": 2, "last": 4}]),
        (read(BEFORE, offset("ORDERS", 5, 0, "later")), []),
        (read(offset("OTHER", 5, 0), cut(18, 2)), [{"first": 2, "last": 17}]),
        (read(offset("OTHER", 5, 0), offset("ORDERS", 18, 0)), []),
        (read(None, offset("ORDERS", 18, 0), description=OLD), [{"last": 17}]),
        (read(None, offset("ORDERS", 18, 0), numInputRows=0), []),
    ],
    ids=[
        "read on",
        "idle",
        "created again",
        "created again, idle",
        "found",
        "added",
        "Spark 4.1",
        "nothing yet",
    ],
)
def test_an_event_has_the_sequences_that_a_micro_batch_read(
    collector: Collector, source: dict[str, Any], sequences: list[Any]
) -> None:
    listener = listening(collector)
    foreign = read(0, 7, description="RateStreamV2", latestOffset=7)
    listener.onQueryProgress(progressed(source, foreign))
    listener.onQueryProgress(progressed(source, source))
    listener.close()
    once, twice = collector.events
    assert inputs(once) == {(COPIES[0], "ORDERS"): sequences}
    assert inputs(twice) == {(COPIES[0], "ORDERS"): sequences * 2}


def test_an_endpoint_that_refuses_some_events_gets_the_others(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A redirect is not followed: a POST would become a GET, and the key go elsewhere."""
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "key")
    statuses = iter((503, 302, 201))
    collector.answer = lambda event: next(statuses)
    lineage = OpenLineage(collector.url, servers=SERVERS)
    for query in ("refused", "redirected", "taken"):
        lineage.send("START", str(RUN), query)
    lineage.close()
    assert collector.kinds == [("taken", "START")]
    paths = {
        (path, headers["Authorization"], headers["Content-Type"])
        for path, headers in collector.requests
    }
    assert paths == {("/api/v1/lineage", "Bearer key", "application/json")}
    place = collector.url.split("/")[2]
    assert [record.message for record in caplog.records] == [
        f"OpenLineage at {place}: event START of query {query} is lost: HTTPException('status "
        f"{status}')"
        for query, status in (("refused", "503 Service Unavailable"), ("redirected", "302 Found"))
    ]


def test_a_key_that_no_header_can_have_is_not_logged(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret\nkey")
    listener = listening(collector)
    listener.onQueryStarted(started())
    listener.close()
    assert "OPENLINEAGE_API_KEY holds a character" in caplog.text
    assert "secret" not in caplog.text
    assert collector.requests == []


def test_no_key_is_blamed_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OPENLINEAGE_API_KEY", raising=False)
    lineage = OpenLineage("http://marquez..example/x", servers=SERVERS)
    lineage.send("START", str(RUN), "orders")
    lineage.close()
    [record] = caplog.records
    assert re.search("event START of query orders is lost: .*label empty", record.message)


def test_events_beyond_those_that_wait_are_lost_and_logged(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener, and so Spark's thread of events, never waits for the endpoint."""

    class TwoWait(OpenLineage):
        _limits = PostLimits(events=2)

    go_on = threading.Event()
    collector.answer = lambda event: 201 if go_on.wait(300) else 500
    lineage = TwoWait(collector.url, servers=SERVERS)
    lineage.send("START", str(RUN), "on its way")
    wait_until(lambda: len(collector.requests) == 1, "the first request")
    for query in ("waits", "waits too", "lost"):
        lineage.send("START", str(RUN), query)
    go_on.set()
    lineage.close()
    assert collector.kinds == [(query, "START") for query in ("on its way", "waits", "waits too")]
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.message.endswith("event START of query lost is lost: 2 events wait")


def test_closing_ends_beside_a_request_that_does_not(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Hasty(OpenLineage):
        _limits = PostLimits(seconds=0.2)

    # The request has no timeout, as if its answer came a byte at a time.
    real = http.client.HTTPConnection.__init__
    monkeypatch.setattr(
        http.client.HTTPConnection, "__init__", lambda self, place, timeout: real(self, place)
    )
    go_on = threading.Event()
    collector.answer = lambda event: 201 if go_on.wait(300) else 500
    lineage = Hasty(collector.url, servers=SERVERS)
    lineage.send("START", str(RUN), "orders")
    lineage.close()
    assert [record.message for record in caplog.records] == [
        f"OpenLineage at {collector.url.split('/')[2]}: the events that wait are lost"
    ]
    go_on.set()
    lineage.close()
    wait_until(lambda: collector.kinds == [("orders", "START")], "the event")


def test_the_end_of_python_sends_what_waits(collector: Collector) -> None:
    names = f"{collector.url!r}, servers={SERVERS!r}"
    code = f"from spark_jetstream.monitoring import OpenLineage; events = OpenLineage({names})"
    run_python("-c", f"{code}\nfor query in 'abc': events.send('START', {str(RUN)!r}, query)")
    assert collector.kinds == [(query, "START") for query in "abc"]


def test_an_endpoint_of_https_needs_a_certificate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with collecting(context) as collector:
        for query in ("unknown", "known"):
            lineage = OpenLineage(collector.url, servers=SERVERS)
            lineage.send("START", str(RUN), query)
            lineage.close()
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert collector.kinds == [("known", "START")]
    [record] = caplog.records
    assert re.search("query unknown is lost: the certificate is not trusted: ", record.message)


@pytest.mark.parametrize("url", ["http://marquez/größe", "http://marquez/x?namespace=größe"])
def test_a_url_that_no_request_can_have_is_refused(url: str) -> None:
    with pytest.raises(
        OptionError, match="has a character outside ASCII after the host: percent-encode it"
    ):
        OpenLineage(url, servers=SERVERS)
    OpenLineage("http://größe/x", servers=SERVERS).close()


@pytest.mark.parametrize(
    "url", ["marquez:5000/lineage", "ftp://marquez/lineage", "http:///x", "http://u:p@marquez/x"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="must be http:// or https:// and a host, without a user"):
        OpenLineage(url, servers=SERVERS)
    with pytest.raises(ValueError, match="Port could not be cast"):
        OpenLineage("http://marquez:port/x", servers=SERVERS)
    with pytest.raises(OptionError, match="option servers holds URL number 1"):
        OpenLineage("http://marquez", servers="http://nats")
