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
    """A run of a query. Of one that has failed only ``up`` is exported."""

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
        """Return whether it is a run of this query, which has another id if it starts again without its checkpoint."""
        return query_id == self.query_id or name == self.name


class QueryMetrics(Collector):
    """Keeps the state of queries, and renders it whenever Prometheus asks. Arguments: see `JetStreamListener`."""

    def __init__(self, *, port: int | None, address: str, registry: CollectorRegistry | None) -> None:
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
        with self._lock:
            for key in [key for key, state in self._runs.items() if state.is_of(query_id, name) and not state.up]:
                del self._runs[key]
            self._runs[run] = _QueryState(query_id, name)
            self._failures[name] += 0

    def progressed(self, name: str, progress: StreamingQueryProgress, lags: Mapping[str, StreamLag]) -> None:
        """Count a micro-batch, with the lag after it. A scrape sees all of the micro-batch or nothing."""
        run, written = str(progress.runId), progress.sink.numOutputRows
        if run not in self._runs:  # it began before the listener was added
            self.started(str(progress.id), run, name)
        with self._lock:
            state = self._runs[run]
            state.rows += progress.numInputRows
            if written >= 0:  # else the sink does not count
                state.written = (state.written or 0) + written
            state.rate, state.seconds = (
                progress.processedRowsPerSecond,
                progress.batchDuration / 1000,
            )
            state.seen, state.lags = time.time(), lags

    def idle(self, run: str) -> None:
        """Note that a query looked for messages and found none."""
        with self._lock:
            if run in self._runs:
                self._runs[run].seen = time.time()

    def ended(self, query_id: str, run: str, name: str, *, failed: bool) -> None:
        """Drop a run; of one that failed, export that, unless the query runs again already."""
        with self._lock:
            runs = [key for key, state in self._runs.items() if state.query_id == query_id]
            # With the newest run older ones are gone, whose end the listener may have missed.
            for key in runs if runs[-1:] == [run] else [run]:
                self._runs.pop(key, None)
            if failed:
                self._failures[name] += 1
                if not any(state.up and state.is_of(query_id, name) for state in self._runs.values()):
                    self._runs[run] = _QueryState(query_id, name, up=False)
            elif name == query_id and not self._failures[name]:
                del self._failures[name]  # with each new checkpoint comes another id

    def collect(self) -> Iterator[Metric]:
        """Render all metrics."""

        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"spark_jetstream_{name}", text, labels=(*_QUERY, *labels))

        up = gauge("query_up", "1 while the query runs, 0 after it failed.")
        seen = gauge(
            "last_progress_timestamp_seconds",
            "When the query last started, made progress or was idle.",
        )
        rate = gauge("rows_per_second", "Rows per second of the last micro-batch.")
        seconds = gauge("batch_duration_seconds", "Duration of the last micro-batch.")
        messages = gauge("lag_messages", "Sequences between the query and the end of the stream.", "stream")
        lag_seconds = gauge(
            "lag_seconds",
            "Time between the last message read and the last message stored.",
            "stream",
        )
        rows = CounterMetricFamily("spark_jetstream_rows_read", "Rows that the query has read.", labels=_QUERY)
        written = CounterMetricFamily("spark_jetstream_rows_written", "Rows that the query has written.", labels=_QUERY)
        failures = CounterMetricFamily("spark_jetstream_query_failures", "Failures of the query.", labels=_QUERY[:1])
        with self._lock:
            # Spark tells of the end of a run after the start of the next one if that comes at once.
            newest = {state.query_id: state for state in self._runs.values()}
            for query_id, state in newest.items():
                query = (state.name, query_id)
                up.add_metric(query, state.up)
                if state.up:
                    rows.add_metric(query, state.rows)
                    seen.add_metric(query, state.seen)
                for family, value in (
                    (written, state.written),
                    (rate, state.rate),
                    (seconds, state.seconds),
                ):
                    if value is not None:
                        family.add_metric(query, value)
                for lag in state.lags.values():
                    for family, value in ((messages, lag.messages), (lag_seconds, lag.seconds)):
                        if value is not None:
                            family.add_metric((*query, lag.stream), value)
            for name, count in self._failures.items():
                failures.add_metric((name,), count)
        return iter((up, seen, rate, seconds, messages, lag_seconds, rows, written, failures))
