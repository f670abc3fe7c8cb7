"""`JetStreamListener`: logs the lag of every progress; hands it to Prometheus and `OpenLineage`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_jetstream.monitoring.stream_lag import StreamLag, lag

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from spark_jetstream.monitoring.metrics import QueryMetrics
    from spark_jetstream.monitoring.openlineage import OpenLineage

log = logging.getLogger("spark_jetstream.monitoring")

_Method = Callable[[Any, Any], None]


def _harmless(method: _Method) -> _Method:
    """Return a method that logs its own errors."""

    @functools.wraps(method)
    def wrapped(self: Any, event: Any) -> None:
        try:
            method(self, event)
        except Exception:
            # Spark would print a stack trace of the JVM for each event. test_listener.py,
            # test_an_error_does_not_reach_spark, holds it.
            log.exception("%s failed", method.__name__)

    return wrapped


class JetStreamListener(StreamingQueryListener):
    """Reports all streaming queries of a session.

    Add it with ``spark.streams.addListener(JetStreamListener())``. The listener logs one line for
    each progress to the logger ``spark_jetstream.monitoring``: rows, duration, and for each stream
    of format ``jetstream`` how far the query is behind. It logs failed queries as errors. With
    ``port`` or ``registry`` it also exports metrics for Prometheus (docs/monitoring.md).

    Args:
        level: Level of the lines about progress, starts and ends.
        port: Serve the metrics by HTTP at this port; 0 takes a free one.
        address: Where the HTTP server listens, with ``port``: on this machine alone, unless another
            address is named.
        registry: Register the metrics here. With ``port`` alone they get a registry of their own.
        openlineage: Sends run events about the queries.

    Raises:
        ImportError: ``port`` or ``registry`` is given, and the extra ``prometheus`` is not
            installed.
        OSError: The port is in use.
        ValueError: ``registry`` has the metrics of another listener.
    """

    def __init__(
        self,
        *,
        level: int = logging.INFO,
        port: int | None = None,
        # The HTTP server has no authentication: test_listener.py,
        # test_only_this_machine_is_served_unless_an_address_is_named.
        address: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
        openlineage: OpenLineage | None = None,
    ) -> None:
        self._level = level
        self._lineage = openlineage
        self._names: dict[str, str] = {}  # by run
        self._metrics: QueryMetrics | None = None
        if port is not None or registry is not None:
            # prometheus_client comes with the extra `prometheus`, which others need not install.
            try:
                from spark_jetstream.monitoring.metrics import QueryMetrics  # noqa: PLC0415
            except ImportError as error:
                raise ImportError(
                    "metrics need prometheus_client: pip install 'spark-jetstream[prometheus]'",
                    name=error.name,
                ) from error
            self._metrics = QueryMetrics(port=port, address=address, registry=registry)

    @property
    def port(self) -> int | None:
        """The port at which the metrics are served, None without."""
        return None if self._metrics is None else self._metrics.port

    def close(self) -> None:
        """End the metrics and the run events. The log goes on until ``removeListener``."""
        metrics = self._metrics
        lineage = self._lineage
        # Neither gets an event while they end.
        self._metrics = None
        self._lineage = None
        if metrics is not None:
            metrics.close()
        if lineage is not None:
            lineage.close()

    @_harmless
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Log the start."""
        run = str(event.runId)
        name = self._name(event)
        log.log(self._level, "query %s started, run %s", name, run)
        if self._metrics is not None:
            self._metrics.started(str(event.id), run, name)
        if self._lineage is not None:
            self._lineage.send("START", run, name)

    @_harmless
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log rows, duration and lag of a micro-batch."""
        progress = event.progress
        name = self._name(progress)
        lags: dict[str, StreamLag] = {}
        try:
            lags = lag(progress)
        finally:  # The rest counts, also where a newer release has written the offset.
            if self._metrics is not None:
                self._metrics.progressed(name, progress, lags)
        rows = f"{progress.numInputRows:,} rows in {progress.batchDuration / 1000:.1f} s"
        line = "; ".join([rows, *map(_shown, lags.values())])
        log.log(self._level, "query %s, batch %d: %s", name, progress.batchId, line)
        if self._lineage is not None:
            self._lineage.send("RUNNING", str(progress.runId), name, progress)

    @_harmless
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that the query is alive, with nothing to read."""
        if self._metrics is not None:
            self._metrics.idle(str(event.runId))

    @_harmless
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Log the end, as an error if the query failed."""
        query_id = str(event.id)
        run = str(event.runId)
        failure = event.exception
        # This event has no name of the query. Its run is over, so the name is of no more use.
        name = self._names.pop(run, query_id)
        if failure is None:
            log.log(self._level, "query %s ended", name)
        else:
            log.error("query %s failed: %s", name, failure)
        if self._lineage is not None:
            self._lineage.send(
                "COMPLETE" if failure is None else "FAIL",
                run,
                name,
                failure=failure,
            )
        if self._metrics is not None:
            self._metrics.ended(query_id, run, name, failed=failure is not None)

    def _name(self, described: Any) -> str:
        """Return the name of a query, or its id; the event of the end of a run has no name."""
        # Runs that began before the listener was added are named by their first progress.
        return self._names.setdefault(str(described.runId), described.name or str(described.id))


def _shown(lag: StreamLag) -> str:
    if lag.messages is None:
        return f"{lag.stream} read up to sequence {lag.next - 1:,}, lag unknown"
    behind = "" if lag.seconds is None else f" and {lag.seconds:.1f} s"
    return f"{lag.stream} {lag.messages:,} messages{behind} behind"
