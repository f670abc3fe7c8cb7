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
    """A query that runs, or that has failed: then only ``up`` is exported."""

    name: str
    up: bool = True
    rows: int = 0
    written: int | None = None
    rate: float | None = None
    seconds: float | None = None
    seen: float = field(default_factory=time.time)
    lags: Mapping[str, StreamLag] = field(default_factory=dict)


class QueryMetrics(Collector):
    """Keeps the state of queries, and renders it whenever Prometheus asks. Arguments: see `JetStreamListener`."""

    def __init__(self, *, port: int | None, address: str, registry: CollectorRegistry | None) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _QueryState] = {}
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
                self._registry.unregister(self)
                raise
            self.port = self._server.server_port

    def close(self) -> None:
        """Stop the HTTP server and leave the registry."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._registry.unregister(self)

    def started(self, query_id: str, name: str) -> None:
        """Export a query from now on."""
        with self._lock:
            # A failed query that starts again without its checkpoint has another id.
            for other in [key for key, state in self._queries.items() if state.name == name and not state.up]:
                del self._queries[other]
            self._queries[query_id] = _QueryState(name)
            self._failures[name] += 0

    def progressed(self, name: str, progress: StreamingQueryProgress, lags: Mapping[str, StreamLag]) -> None:
        """Count a micro-batch, with the lag after it. A scrape sees all of the micro-batch or nothing."""
        query_id, written = str(progress.id), progress.sink.numOutputRows
        if query_id not in self._queries:  # it ran before the listener was added
            self.started(query_id, name)
        with self._lock:
            state = self._queries[query_id]
            state.rows += progress.numInputRows
            if written >= 0:  # else the sink does not count
                state.written = (state.written or 0) + written
            state.rate, state.seconds = progress.processedRowsPerSecond, progress.batchDuration / 1000
            state.seen, state.lags = time.time(), lags

    def idle(self, query_id: str) -> None:
        """Note that a query looked for messages and found none."""
        with self._lock:
            if query_id in self._queries:
                self._queries[query_id].seen = time.time()

    def ended(self, query_id: str, name: str, *, failed: bool) -> None:
        """Drop a query; of one that failed, export that."""
        with self._lock:
            self._queries.pop(query_id, None)
            if failed:
                self._queries[query_id] = _QueryState(name, up=False)
                self._failures[name] += 1

    def collect(self) -> Iterator[Metric]:
        """Render all metrics."""

        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"spark_jetstream_{name}", text, labels=(*_QUERY, *labels))

        up = gauge("query_up", "1 while the query runs, 0 after it failed.")
        seen = gauge("last_progress_timestamp_seconds", "When the query last started, made progress or was idle.")
        rate = gauge("rows_per_second", "Rows per second of the last micro-batch.")
        seconds = gauge("batch_duration_seconds", "Duration of the last micro-batch.")
        messages = gauge("lag_messages", "Sequences between the query and the end of the stream.", "stream")
        lag_seconds = gauge("lag_seconds", "Time between the last message read and the last message stored.", "stream")
        rows = CounterMetricFamily("spark_jetstream_rows_read", "Rows that the query has read.", labels=_QUERY)
        written = CounterMetricFamily("spark_jetstream_rows_written", "Rows that the query has written.", labels=_QUERY)
        failures = CounterMetricFamily("spark_jetstream_query_failures", "Failures of the query.", labels=_QUERY[:1])
        with self._lock:
            for query_id, state in self._queries.items():
                query = (state.name, query_id)
                up.add_metric(query, state.up)
                if state.up:
                    rows.add_metric(query, state.rows)
                    seen.add_metric(query, state.seen)
                for family, value in ((written, state.written), (rate, state.rate), (seconds, state.seconds)):
                    if value is not None:
                        family.add_metric(query, value)
                for lag in state.lags.values():
                    for family, value in ((messages, lag.messages), (lag_seconds, lag.seconds)):
                        if value is not None:
                            family.add_metric((*query, lag.stream), value)
            for name, count in self._failures.items():
                failures.add_metric((name,), count)
        return iter((up, seen, rate, seconds, messages, lag_seconds, rows, written, failures))
