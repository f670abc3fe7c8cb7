"""The listener on events as Spark makes them: what it logs, what Prometheus scrapes, what is gone
when a query ends.
"""

from __future__ import annotations

import builtins
import json
import logging
import re
import socket
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from spark_jetstream.monitoring import JetStreamListener, StreamLag, lag
from tests.monitoring.test_stream_lag import progress_of, source_of

DOCS = Path(__file__).parents[2] / "docs"
QUERY = uuid.UUID(int=7)
RUN, NEXT_RUN = uuid.UUID(int=8), uuid.UUID(int=12)
HEARD = "spark_jetstream_last_progress_timestamp_seconds"
TIME = "2026-02-03T04:05:06.000Z"


def started(
    name: str | None = "orders", query: uuid.UUID = QUERY, run: uuid.UUID = RUN
) -> QueryStartedEvent:
    return QueryStartedEvent.fromJson(
        {"id": str(query), "runId": str(run), "name": name, "timestamp": TIME}
    )


def progressed(
    *sources: dict[str, Any], name: str | None = "orders", run: uuid.UUID = RUN, **fields: Any
) -> QueryProgressEvent:
    text = progress_of(*sources, name=name, id=str(QUERY), runId=str(run), **fields)
    return QueryProgressEvent(StreamingQueryProgress.fromJson(json.loads(text)))


def ended(
    exception: str | None = None, query: uuid.UUID = QUERY, run: uuid.UUID = RUN
) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(query, run, exception, None)


BEHIND = progressed(
    source_of(latest=41, later=2_500_000_000), numInputRows=1500, batchDuration=3000
)


@pytest.fixture
def listener() -> Iterator[JetStreamListener]:
    listener = JetStreamListener(port=0)
    yield listener
    listener.close()


Sample = tuple[str, tuple[str, ...]]


def samples(text: str) -> dict[Sample, float]:
    """The samples of an exposition: name and values of the labels in the order of their names ->
    value.
    """
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(listener: JetStreamListener) -> dict[Sample, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=60) as reply:
        return samples(reply.read().decode())


def test_prometheus_scrapes_the_progress_and_lag_of_a_query(listener: JetStreamListener) -> None:
    before = time.time()
    listener.onQueryStarted(started())
    query = ("orders", str(QUERY))
    found = scrape(listener)
    assert before <= (start := found.pop((HEARD, query))) <= time.time()
    assert found == {
        ("spark_jetstream_query_up", query): 1,
        ("spark_jetstream_rows_read_total", query): 0,
        ("spark_jetstream_query_failures_total", ("orders",)): 0,
    }
    listener.onQueryProgress(BEHIND)
    listener.onQueryProgress(BEHIND)
    found = scrape(listener)
    assert start < found.pop((HEARD, query)) <= time.time()
    assert found == {
        ("spark_jetstream_query_up", query): 1,
        ("spark_jetstream_rows_read_total", query): 3000,
        ("spark_jetstream_rows_written_total", query): 40,
        ("spark_jetstream_rows_per_second", query): 500,
        ("spark_jetstream_batch_duration_seconds", query): 3,
        ("spark_jetstream_query_failures_total", ("orders",)): 0,
        ("spark_jetstream_lag_messages", (*query, "ORDERS")): 23,
        ("spark_jetstream_lag_seconds", (*query, "ORDERS")): 2.5,
    }


def test_only_this_machine_is_served_unless_an_address_is_named(
    listener: JetStreamListener,
) -> None:
    with pytest.raises(OSError, match="refused"):  # a server on all addresses listens there, too
        socket.create_connection(("127.0.0.2", listener.port or 0), timeout=10)
    named = JetStreamListener(port=0, address="127.0.0.2")
    socket.create_connection(("127.0.0.2", named.port or 0), timeout=10).close()
    named.close()


def test_a_scrape_sees_all_of_a_micro_batch_or_nothing(
    listener: JetStreamListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are counted beside the lag of before would be an alarm about nothing."""
    listener.onQueryStarted(started())
    at_first = scrape(listener)
    seen = []

    def watched(progress: Any) -> dict[str, StreamLag]:
        seen.append(scrape(listener))
        return lag(progress)

    monkeypatch.setattr("spark_jetstream.monitoring.listener.lag", watched)
    listener.onQueryProgress(BEHIND)
    assert seen == [at_first]
    assert scrape(listener)["spark_jetstream_lag_messages", ("orders", str(QUERY), "ORDERS")] == 23


def test_an_idle_query_makes_progress(listener: JetStreamListener) -> None:
    # The listener was added to a query that ran already, and whose sink does not count.
    listener.onQueryProgress(
        progressed(source_of(), sink={"description": "ForeachBatchSink", "numOutputRows": -1})
    )
    metrics = scrape(listener)
    assert not any("written" in name for name, _ in metrics)
    first = metrics[HEARD, ("orders", str(QUERY))]
    listener.onQueryIdle(QueryIdleEvent(uuid.UUID(int=9), uuid.UUID(int=11), TIME))
    listener.onQueryIdle(QueryIdleEvent(QUERY, RUN, TIME))
    assert scrape(listener)[HEARD, ("orders", str(QUERY))] > first


def test_a_stopped_query_leaves_its_failures_and_a_failed_one_is_down_until_it_starts_again(
    listener: JetStreamListener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.onQueryProgress(BEHIND)
    listener.onQueryTerminated(ended())
    assert scrape(listener) == {("spark_jetstream_query_failures_total", ("orders",)): 0}
    listener.onQueryProgress(BEHIND)
    listener.onQueryTerminated(ended("it broke"))
    down = {("spark_jetstream_query_up", ("orders", str(QUERY))): 0}
    failures = {("spark_jetstream_query_failures_total", ("orders",)): 1}
    assert scrape(listener) == down | failures
    assert caplog.record_tuples == [
        ("spark_jetstream.monitoring", logging.ERROR, "query orders failed: it broke")
    ]
    other = uuid.UUID(int=10)  # without its checkpoint
    listener.onQueryStarted(started(query=other, run=NEXT_RUN))
    found = scrape(listener)
    assert found["spark_jetstream_query_up", ("orders", str(other))] == 1
    assert found.keys().isdisjoint(down)
    assert failures.items() <= found.items()


@pytest.mark.parametrize(
    "query", [QUERY, uuid.UUID(int=10)], ids=["its checkpoint", "no checkpoint"]
)
def test_late_events_of_a_failed_run_leave_the_next_run_as_it_is(
    listener: JetStreamListener, caplog: pytest.LogCaptureFixture, query: uuid.UUID
) -> None:
    """Spark tells of a start before it returns, and of all else in another thread."""
    caplog.set_level(logging.INFO, "spark_jetstream.monitoring")
    listener.onQueryStarted(started())
    listener.onQueryStarted(started(query=query, run=NEXT_RUN))
    at_start = scrape(listener)
    listener.onQueryProgress(BEHIND)
    listener.onQueryIdle(QueryIdleEvent(QUERY, RUN, TIME))
    listener.onQueryTerminated(ended("it broke"))
    of_next_run = {sample: value for sample, value in at_start.items() if str(query) in sample[1]}
    failures = {("spark_jetstream_query_failures_total", ("orders",)): 1}
    assert scrape(listener) == of_next_run | failures
    listener.onQueryTerminated(ended(query=query, run=NEXT_RUN))
    assert scrape(listener) == failures
    assert [record.message for record in caplog.records[-2:]] == [
        "query orders failed: it broke",
        "query orders ended",
    ]


def test_a_query_is_gone_with_its_last_run_where_the_end_of_another_was_missed(
    listener: JetStreamListener,
) -> None:
    listener.onQueryStarted(started())
    listener.onQueryStarted(started(run=NEXT_RUN))
    listener.onQueryTerminated(ended(run=NEXT_RUN))
    assert scrape(listener) == {("spark_jetstream_query_failures_total", ("orders",)): 0}


def test_queries_without_a_name_leave_nothing_unless_they_failed(
    listener: JetStreamListener,
) -> None:
    """Each that begins without its checkpoint has another id."""
    for number in range(100, 103):
        query, run = uuid.UUID(int=number), uuid.UUID(int=2 * number)
        listener.onQueryStarted(started(None, query, run))
        listener.onQueryTerminated(ended("it broke" if number == 101 else None, query, run))
    query_101 = str(uuid.UUID(int=101))
    assert scrape(listener) == {
        ("spark_jetstream_query_up", (query_101, query_101)): 0,
        ("spark_jetstream_query_failures_total", (query_101,)): 1,
    }


def test_one_line_for_each_progress(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_jetstream.monitoring")
    listener = JetStreamListener()
    assert listener.port is None
    listener.onQueryStarted(started(None))
    unknown = source_of(stream="OLD", description="a.b.PythonMicroBatchStream@1")
    untimed = source_of(stream="NEW", latest=19, read=0)
    listener.onQueryProgress(
        progressed(source_of(latest=41, later=2_500_000_000), unknown, untimed, name=None)
    )
    listener.onQueryTerminated(ended())
    listener.close()
    assert [record.message for record in caplog.records] == [
        f"query {QUERY} started, run {RUN}",
        f"query {QUERY}, batch 0: 20 rows in 35.8 s; ORDERS 23 messages and 2.5 s behind;"
        " OLD read up to sequence 17, lag unknown; NEW 1 messages behind",
        f"query {QUERY} ended",
    ]
    caplog.clear()
    quiet = JetStreamListener(level=logging.DEBUG)
    quiet.onQueryProgress(BEHIND)
    assert caplog.records == []


def test_an_error_does_not_reach_spark(
    listener: JetStreamListener, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is exported all the same."""
    newer = source_of(latest=41)
    newer["endOffset"]["version"] = 4
    listener.onQueryProgress(progressed(newer))
    assert [record.message for record in caplog.records] == ["onQueryProgress failed"]
    assert "was written by a newer release" in (caplog.text)
    found = scrape(listener)
    assert found["spark_jetstream_rows_read_total", ("orders", str(QUERY))] == 20
    assert not any("lag" in name for name, _ in found)
    listener.onQueryTerminated(None)
    assert caplog.records[-1].message == "onQueryTerminated failed"


def test_the_registry_of_the_user() -> None:
    registry = CollectorRegistry(auto_describe=True)
    listener = JetStreamListener(registry=registry)
    listener.onQueryStarted(started())
    assert ("spark_jetstream_query_up", ("orders", str(QUERY))) in samples(
        generate_latest(registry).decode()
    )
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        JetStreamListener(registry=registry)
    listener.close()
    listener.close()
    assert listener.port is None
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        JetStreamListener(registry=registry, port=taken.getsockname()[1])
    assert generate_latest(registry) == b""


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith(("prometheus_client", "spark_jetstream.monitoring.metrics")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    JetStreamListener()
    with pytest.raises(ImportError, match=re.escape("pip install 'spark-jetstream[prometheus]'")):
        JetStreamListener(port=0)


# -- metrics in the page and the dashboard --


def exported(listener: JetStreamListener) -> set[str]:
    listener.onQueryProgress(BEHIND)
    return {name for name, _ in scrape(listener)}


def named(text: str) -> set[str]:
    return set(re.findall(r"spark_jetstream_\w+", text))


def test_the_dashboard_names_metrics_that_are_exported(listener: JetStreamListener) -> None:
    text = (DOCS / "monitoring" / "grafana.json").read_text()
    assert named(text) == exported(listener)
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["expr"] for target in panel["targets"])


def test_the_page_has_each_metric_and_alerts_on_them(listener: JetStreamListener) -> None:
    text = (DOCS / "monitoring.md").read_text()
    metrics = exported(listener)
    assert set(re.findall(r"^\| `(spark_jetstream_\w+)` \|", text, re.MULTILINE)) == metrics
    [rules] = [
        yaml.safe_load(block)
        for block in re.findall(r"^```yaml\n(groups:.*?)^```$", text, re.M | re.S)
    ]
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert named(rule["expr"])
        assert named(rule["expr"]) <= metrics
        assert rule["annotations"]["summary"]
