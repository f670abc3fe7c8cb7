"""`OpenLineage`: what queries read and write, as run events of OpenLineage, spec 2-0-2, by HTTP."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from spark_jetstream import __version__
from spark_jetstream.client.reasons import error_text
from spark_jetstream.errors import OptionError
from spark_jetstream.monitoring.stream_lag import ranges
from spark_jetstream.options.connection import ConnectionOptions

log = logging.getLogger("spark_jetstream.monitoring")

_SPEC = "https://openlineage.io/spec"
_REPOSITORY = "https://github.com/spark-jetstream/spark-jetstream"
_SEQUENCES_FILE = "docs/monitoring/SparkJetstreamSequencesInputDatasetFacet.json"
_SEQUENCES = f"{_REPOSITORY}/raw/v{__version__}/{_SEQUENCES_FILE}"
_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}

Datasets = Iterable[tuple[str, str]]
_Ranges = dict[str, list[dict[str, int]]]


@dataclass(frozen=True)
class PostLimits:
    """How much may wait for an endpoint, and how long the endpoint may take."""

    events: int = 1000
    """Events that wait."""
    seconds: float = 10.0
    """For one request, and for each step of `OpenLineage.close`."""


class OpenLineage:
    """Sends run events about a session's queries to an HTTP endpoint.

    Give it to the listener: ``JetStreamListener(openlineage=...)``. A thread sends each event once.
    One that is not taken, or that comes while 1,000 wait, is lost, and logged. The variable
    OPENLINEAGE_API_KEY is sent as a bearer token. docs/monitoring.md shows an event.

    Args:
        url: The endpoint, such as ``http://marquez:5000/api/v1/lineage``.
        servers: Option ``servers`` of the queries, which progress does not name. The first server
            is the namespace of all streams that are read: ``nats://host:4222``.
        outputs: By name of a query, namespace and name of each dataset that it writes. Progress
            names none.
        namespace: The namespace of the jobs. A job has the name of its query.

    Raises `ValueError` for a malformed URL; `OptionError`, which is one, for a ``url`` with a user
    or, after the host, a character outside ASCII.
    """

    _limits: ClassVar[PostLimits] = PostLimits()  # a subclass may have others

    def __init__(
        self,
        url: str,
        *,
        servers: str,
        outputs: Mapping[str, Datasets] | None = None,
        namespace: str = "default",
    ) -> None:
        self._url = _checked_url(url)
        host = ConnectionOptions.from_spark({"servers": servers}).servers[0].split("/")[2]
        has_port = host.rpartition(":")[2].isdigit()
        # The namespace of a stream must be the same in all jobs, with and without the default port.
        self._streams = f"nats://{host}" if has_port else f"nats://{host}:4222"
        self._outputs: dict[str, list[dict[str, str]]] = {}
        for query, datasets in (outputs or {}).items():
            self._outputs[query] = [{"namespace": space, "name": name} for space, name in datasets]
        self._namespace = namespace
        self._read: dict[str, _Ranges] = {}  # by run: of its last micro-batch
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue(self._limits.events)
        self._thread = threading.Thread(
            target=self._post_all,
            name="spark-jetstream-openlineage",
            # Python must not wait for a request that does not end: test_openlineage.py,
            # test_closing_ends_beside_a_request_that_does_not.
            daemon=True,
        )
        self._thread.start()
        # Events that wait are sent at the end of Python: test_openlineage.py,
        # test_the_end_of_python_sends_what_waits.
        atexit.register(self.close)

    def close(self) -> None:
        """Send the events that wait, for some ten seconds; the others, and later ones, are lost."""
        atexit.unregister(self.close)
        # A queue that stays full has had its ten seconds, so the thread is not waited for as well.
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=self._limits.seconds)
            self._thread.join(self._limits.seconds)
        if self._thread.is_alive():
            log.warning("OpenLineage at %s: the events that wait are lost", self._url.netloc)

    def send(
        self,
        kind: str,
        run: str,
        query: str,
        progress: Any = None,
        failure: str | None = None,
    ) -> None:
        """Let the thread send an event about a run of a query.

        It has a micro-batch's progress, or the text of a failure. Raises `OffsetError` for the
        progress of a newer release.
        """
        job_type = _facet(
            f"{_SPEC}/facets/2-0-3/JobTypeJobFacet.json",
            processingType="STREAMING",
            integration="SPARK",
        )
        event = {
            "eventType": kind,
            "eventTime": datetime.now(timezone.utc).isoformat(),
            "run": {"runId": run, "facets": _run_facets(failure)},
            "job": {"namespace": self._namespace, "name": query, "facets": {"jobType": job_type}},
            "inputs": self._inputs(run, progress),
            "outputs": self._outputs.get(query, []),
            "producer": f"{_REPOSITORY}/tree/v{__version__}",
            "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        }
        try:
            # The thread of Spark's events never waits for the endpoint: test_openlineage.py,
            # test_events_beyond_those_that_wait_are_lost_and_logged.
            self._waiting.put_nowait(event)
        except queue.Full:
            self._lose(event, f"{self._limits.events:,} events wait")

    def _inputs(self, run: str, progress: Any) -> list[dict[str, Any]]:
        """Return the streams that a run has read; without a progress, those of its last one."""
        if progress is None:
            # COMPLETE has the streams too, since some endpoints look at this event alone.
            read = self._read.pop(run, {})
            return [self._input(stream, {}) for stream in read]
        read = ranges(progress)
        self._read[run] = read
        inputs = []
        for stream, sequences in read.items():
            facet = _facet(_SEQUENCES, batch=progress.batchId, sequences=sequences)
            inputs.append(self._input(stream, {"sparkJetstream_sequences": facet}))
        return inputs

    def _input(self, stream: str, facets: dict[str, Any]) -> dict[str, Any]:
        return {"namespace": self._streams, "name": stream, "inputFacets": facets}

    def _post_all(self) -> None:
        """Send the events that wait, until `close`."""
        while (event := self._waiting.get()) is not None:
            try:
                self._post(json.dumps(event).encode())
            except OSError as error:
                # No connection, a cut one, a certificate that is not trusted, or no answer in time.
                self._lose(event, error_text(error))
            except HTTPException as error:
                # An answer that is not HTTP, or a status other than 200 to 299.
                self._lose(event, repr(error))
            except ValueError as error:
                # http.client refuses a header with a line end, and one outside Latin-1.
                reason = repr(error)
                if os.environ.get("OPENLINEAGE_API_KEY"):
                    # The error's text may have the key.
                    reason = "OPENLINEAGE_API_KEY holds a character that no header may have"
                self._lose(event, reason)

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENLINEAGE_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        # A request names the path and the query; the connection has the rest.
        path = self._url._replace(scheme="", netloc="", fragment="").geturl() or "/"
        connect = _CONNECTIONS[self._url.scheme]
        endpoint = connect(self._url.netloc, timeout=self._limits.seconds)
        with contextlib.closing(endpoint) as connection:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            # A redirect is an error, too: it would take the key elsewhere.
            if answer.status // 100 != 2:
                raise HTTPException(f"status {answer.status} {answer.reason}")

    def _lose(self, event: Mapping[str, Any], reason: str) -> None:
        log.warning(
            "OpenLineage at %s: event %s of query %s is lost: %s",
            self._url.netloc,
            event["eventType"],
            event["job"]["name"],
            reason,
        )


def _checked_url(url: str) -> SplitResult:
    """Return the parts of an endpoint's URL.

    Raises `ValueError`, and `OptionError`, which is one.
    """
    parts = urlsplit(url)
    # `port` raises `ValueError` for a port that is no number up to 65535.
    reachable = parts.scheme in _CONNECTIONS and parts.hostname and parts.port != 0
    if not reachable or "@" in parts.netloc:
        raise OptionError(
            "url of OpenLineage must be http:// or https:// and a host, without a user",
        )
    # http.client encodes the request line as ASCII, so each event would be lost.
    # test_openlineage.py, test_a_url_that_no_request_can_have_is_refused, holds it.
    if not f"{parts.path}{parts.query}".isascii():
        raise OptionError(
            "url of OpenLineage has a character outside ASCII after the host: percent-encode it",
        )
    return parts


def _run_facets(failure: str | None) -> dict[str, Any]:
    """Return the facets of a run: its failure, if it failed."""
    if failure is None:
        return {}
    error = _facet(
        f"{_SPEC}/facets/1-0-1/ErrorMessageRunFacet.json",
        message=failure,
        # The text of the failure comes from the JVM.
        programmingLanguage="JAVA",
    )
    return {"errorMessage": error}


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    """Return a facet; its schema has one definition, of the file's name."""
    name = schema.rpartition("/")[2].removesuffix(".json")
    return {
        "_producer": f"{_REPOSITORY}/tree/v{__version__}",
        "_schemaURL": f"{schema}#/$defs/{name}",
        **fields,
    }
