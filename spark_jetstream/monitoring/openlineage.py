"""`OpenLineage`: what queries read and write, as run events of OpenLineage (spec 2-0-2), sent by HTTP."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from spark_jetstream import __version__
from spark_jetstream.client.reasons import error_text
from spark_jetstream.errors import OptionError
from spark_jetstream.monitoring.stream_lag import ranges
from spark_jetstream.options.connection import ConnectionOptions

log = logging.getLogger("spark_jetstream.monitoring")

_SPEC = "https://openlineage.io/spec"
_REPOSITORY = "https://github.com/spark-jetstream/spark-jetstream"
_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}
_WAITING = 1000  # events
_SECONDS = 10.0  # for one request, and for `OpenLineage.close`

Datasets = Iterable[tuple[str, str]]


class OpenLineage:
    """Sends run events about a session's queries to an HTTP endpoint: ``JetStreamListener(openlineage=...)``.

    A thread sends each event once. One that is not taken, or that comes while 1,000 wait, is lost,
    and logged. The variable OPENLINEAGE_API_KEY is sent as a bearer token. docs/monitoring.md shows
    an event.

    Args:
        url: The endpoint, such as ``http://marquez:5000/api/v1/lineage``.
        servers: Option ``servers`` of the queries, which progress does not name. The first server is the namespace of
            all streams that are read: ``nats://host:4222``.
        outputs: By name of a query, namespace and name of each dataset that it writes. Progress names none.
        namespace: The namespace of the jobs. A job has the name of its query.

    Raises `ValueError` for a malformed URL; `OptionError`, which is one, for a ``url`` with a user
    or, after the host, a character outside ASCII.
    """

    def __init__(
        self,
        url: str,
        *,
        servers: str,
        outputs: Mapping[str, Datasets] | None = None,
        namespace: str = "default",
    ) -> None:
        self._url = urlsplit(url)
        reachable = self._url.scheme in _CONNECTIONS and self._url.hostname and self._url.port != 0
        if not reachable or "@" in self._url.netloc:
            raise OptionError(
                "url of OpenLineage must be http:// or https:// and a host, without a user",
            )
        if not f"{self._url.path}{self._url.query}".isascii():
            raise OptionError(
                "url of OpenLineage has a character outside ASCII after the host: percent-encode it",
            )
        host = ConnectionOptions.from_spark({"servers": servers}).servers[0].split("/")[2]
        self._streams = f"nats://{host}" if host.rpartition(":")[2].isdigit() else f"nats://{host}:4222"
        named = (outputs or {}).items()
        self._outputs = {query: [{"namespace": place, "name": name} for place, name in each] for query, each in named}
        self._namespace = namespace
        self._read: dict[
            str,
            dict[str, list[dict[str, int]]],
        ] = {}  # by run: of its last micro-batch
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(
            target=self._post_all,
            name="spark-jetstream-openlineage",
            daemon=True,
        )
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Send the events that wait, for some ten seconds; the others, and later ones, are lost."""
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_SECONDS)
            self._thread.join(_SECONDS)
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
        """Let the thread send an event about a run of a query, with a micro-batch's progress or a failure's text.

        Raises `OffsetError` for the progress of a newer release.
        """
        inputs, read = [], self._read.pop(run, {}) if progress is None else ranges(progress)
        if progress is not None:
            self._read[run] = read
        for stream, sequences in read.items():
            schema = f"{_REPOSITORY}/raw/v{__version__}/docs/monitoring/SparkJetstreamSequencesInputDatasetFacet.json"
            facet = progress and _facet(schema, batch=progress.batchId, sequences=sequences)
            facets = {"sparkJetstream_sequences": facet} if facet else {}
            inputs.append({"namespace": self._streams, "name": stream, "inputFacets": facets})
        job_type = _facet(
            f"{_SPEC}/facets/2-0-3/JobTypeJobFacet.json",
            processingType="STREAMING",
            integration="SPARK",
        )
        error = _facet(
            f"{_SPEC}/facets/1-0-1/ErrorMessageRunFacet.json",
            message=failure,
            programmingLanguage="JAVA",
        )
        event = {
            "eventType": kind,
            "eventTime": datetime.now(timezone.utc).isoformat(),
            "run": {"runId": run, "facets": {} if failure is None else {"errorMessage": error}},
            "job": {"namespace": self._namespace, "name": query, "facets": {"jobType": job_type}},
            "inputs": inputs,
            "outputs": self._outputs.get(query, []),
            "producer": f"{_REPOSITORY}/tree/v{__version__}",
            "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        }
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._lose(event, f"{_WAITING:,} events wait")

    def _post_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._post(json.dumps(event).encode())
            except OSError as error:
                self._lose(event, error_text(error))
            except HTTPException as error:
                self._lose(event, repr(error))
            except ValueError as error:
                bad_key = "OPENLINEAGE_API_KEY holds a character that no header may have"
                # The error's text may have the key.
                self._lose(event, bad_key if os.environ.get("OPENLINEAGE_API_KEY") else repr(error))

    def _post(self, body: bytes) -> None:
        key = os.environ.get("OPENLINEAGE_API_KEY")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        path = self._url._replace(scheme="", netloc="", fragment="").geturl() or "/"
        with contextlib.closing(
            _CONNECTIONS[self._url.scheme](self._url.netloc, timeout=_SECONDS),
        ) as connection:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            if answer.status // 100 != 2:  # a redirect, too, which would take the key elsewhere
                raise HTTPException(f"status {answer.status} {answer.reason}")

    def _lose(self, event: Mapping[str, Any], reason: str) -> None:
        kind, query = event["eventType"], event["job"]["name"]
        log.warning(
            "OpenLineage at %s: event %s of query %s is lost: %s",
            self._url.netloc,
            kind,
            query,
            reason,
        )


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    """Return a facet; its schema has one definition, of the file's name."""
    name = schema.rpartition("/")[2].removesuffix(".json")
    return {
        "_producer": f"{_REPOSITORY}/tree/v{__version__}",
        "_schemaURL": f"{schema}#/$defs/{name}",
        **fields,
    }
