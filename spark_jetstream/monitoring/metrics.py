"""The state of queries as metrics for Prometheus. Needs the extra `prometheus`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jetstream.monitoring.stream_lag import StreamLag

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_QUERY = ("query", "query_id")


@dataclass
class _QueryState:
    """A run of a query. A failed run exports only ``up``."""

    query_id: str
    name: str
    up: bool = True
    rows: int = 0
    written: int | None = None
    rate: float | None = None
    seconds: float | None = None
    seen: float = field(default_factory=time.time)
    lags: Mapping[str, StreamLag] = field(default_factory=dict)

    def is_of(self, query_id: str, name: str) -> bool:
        """Return whether it is a run of this query."""
        # A query that starts again without its checkpoint has another id.
        return query_id == self.query_id or name == self.name


class QueryMetrics(Collector):
    """Keeps the state of queries, and renders it whenever Prometheus asks.

    Arguments: see `JetStreamListener`.
    """

    def __init__(
        self,
        *,
        port: int | None,
        address: str,
        registry: CollectorRegistry | None,
    ) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _QueryState] = {}  # in the order of their starts
        self._failures: Counter[str] = Counter()
        self._registry = CollectorRegistry() if registry is None else registry
        self._server = None
        self.port: int | None = None
        """The port of the HTTP server, None without one."""
        self._registry.register(self)
        if port is not None:
            try:
                self._server, _ = start_http_server(port, address, self._registry)
            except OSError:
                # The port is in use. A registry of the user must not keep a collector without a
                # listener.
                self._registry.unregister(self)
                raise
            self.port = self._server.server_port

    def close(self) -> None:
        """Stop the HTTP server and leave the registry."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._registry.unregister(self)

    def started(self, query_id: str, run: str, name: str) -> None:
        """Export a run of a query from now on, in place of an older one."""
        # A run that is up stays: Spark calls onQueryStarted before start() returns, and tells of
        # all else in another thread, so the end of the last run may still come. test_listener.py,
        # test_late_events_of_a_failed_run_leave_the_next_run_as_it_is, holds it.
        with self._lock:
            for key, state in [*self._runs.items()]:
                if state.is_of(query_id, name) and not state.up:
                    del self._runs[key]
            self._runs[run] = _QueryState(query_id, name)
            self._failures[name] += 0

    def progressed(
        self,
        name: str,
        progress: StreamingQueryProgress,
        lags: Mapping[str, StreamLag],
    ) -> None:
        """Count a micro-batch, with the lag after it.

        A scrape sees all of the micro-batch or nothing.
        """
        run = str(progress.runId)
        written = progress.sink.numOutputRows
        if run not in self._runs:  # it began before the listener was added
            self.started(str(progress.id), run, name)
        # Rows that count already beside the lag of before would be an alarm about nothing:
        # test_listener.py, test_a_scrape_sees_all_of_a_micro_batch_or_nothing.
        with self._lock:
            state = self._runs[run]
            state.rows += progress.numInputRows
            if written >= 0:  # else the sink does not count
                state.written = (state.written or 0) + written
            state.rate = progress.processedRowsPerSecond
            # Spark reports milliseconds.
            state.seconds = progress.batchDuration / 1000
            state.seen = time.time()
            state.lags = lags

    def idle(self, run: str) -> None:
        """Note that a query looked for messages and found none."""
        with self._lock:
            if run in self._runs:
                self._runs[run].seen = time.time()

    def ended(self, query_id: str, run: str, name: str, *, failed: bool) -> None:
        """Drop a run; export that it failed, unless the query runs again already."""
        with self._lock:
            for key in self._ended_with(run, query_id):
                # A run that began before the listener was added, and had no progress, is not known.
                self._runs.pop(key, None)
            if failed:
                self._failures[name] += 1
                # The next run of the query may have begun: its `up` must not become 0.
                if not self._is_up(query_id, name):
                    self._runs[run] = _QueryState(query_id, name, up=False)
            elif name == query_id and not self._failures[name]:
                # A query without a name has another id with each new checkpoint.
                del self._failures[name]

    def _ended_with(self, run: str, query_id: str) -> list[str]:
        """Return a run, and the older ones of its query if it is the newest.

        The listener may have missed the end of an older one.
        """
        runs = [key for key, state in self._runs.items() if state.query_id == query_id]
        # Otherwise a run whose end was missed would be exported for ever: test_listener.py,
        # test_a_query_is_gone_with_its_last_run_where_the_end_of_another_was_missed.
        return runs if runs[-1:] == [run] else [run]

    def _is_up(self, query_id: str, name: str) -> bool:
        return any(state.up and state.is_of(query_id, name) for state in self._runs.values())

    def collect(self) -> Iterator[Metric]:
        """Render all metrics."""
        families = _Families()
        with self._lock:
            # Spark may report the end of a run after the start of the next one.
            # Two runs of a query would have the same labels, which Prometheus refuses.
            newest = {state.query_id: state for state in self._runs.values()}
            for state in newest.values():
                families.add(state)
            for name, count in self._failures.items():
                families.failures.add_metric((name,), count)
        return families.in_order()


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self.up = _gauge("query_up", "1 while the query runs, 0 after it failed.")
        self.seen = _gauge(
            "last_progress_timestamp_seconds",
            "When the query last started, made progress or was idle.",
        )
        self.rate = _gauge("rows_per_second", "Rows per second of the last micro-batch.")
        self.seconds = _gauge("batch_duration_seconds", "Duration of the last micro-batch.")
        self.messages = _gauge(
            "lag_messages",
            "Sequences between the query and the end of the stream.",
            "stream",
        )
        self.lag_seconds = _gauge(
            "lag_seconds",
            "Time between the last message read and the last message stored.",
            "stream",
        )
        self.rows = _counter("rows_read", "Rows that the query has read.")
        self.written = _counter("rows_written", "Rows that the query has written.")
        self.failures = CounterMetricFamily(
            "spark_jetstream_query_failures",
            "Failures of the query.",
            labels=("query",),
        )

    def add(self, state: _QueryState) -> None:
        """Add the state of a query."""
        query = (state.name, state.query_id)
        self.up.add_metric(query, state.up)
        if state.up:
            self.rows.add_metric(query, state.rows)
            self.seen.add_metric(query, state.seen)
        if state.written is not None:
            self.written.add_metric(query, state.written)
        if state.rate is not None:
            self.rate.add_metric(query, state.rate)
        if state.seconds is not None:
            self.seconds.add_metric(query, state.seconds)
        for lag in state.lags.values():
            labels = (*query, lag.stream)
            if lag.messages is not None:
                self.messages.add_metric(labels, lag.messages)
            if lag.seconds is not None:
                self.lag_seconds.add_metric(labels, lag.seconds)

    def in_order(self) -> Iterator[Metric]:
        """Return all metrics."""
        return iter(
            (
                self.up,
                self.seen,
                self.rate,
                self.seconds,
                self.messages,
                self.lag_seconds,
                self.rows,
                self.written,
                self.failures,
            )
        )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"spark_jetstream_{name}", text, labels=(*_QUERY, *labels))


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"spark_jetstream_{name}", text, labels=_QUERY)
