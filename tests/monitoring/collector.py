"""An HTTP endpoint that takes run events, and what the specification of OpenLineage asks of them."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonschema
from referencing import Registry, Resource

from spark_jetstream import __version__
from tests.support.project import ROOT, URLS

Event = dict[str, Any]

_SPEC = "https://openlineage.io/spec"
_CORE = "2-0-2/OpenLineage.json"
URI = {"type": "string", "pattern": r"^https://\S+$"}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _facets(of: str) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"$ref": f"#/$defs/{of}Facet"}}


_FACET = _object("_producer _schemaURL", _producer=URI, _schemaURL=URI)
_DATASET = {"namespace": {"type": "string"}, "name": {"type": "string"}}
#: What https://openlineage.io/spec/2-0-2/OpenLineage.json requires of a run event.
_DEFINITIONS = {
    "RunEvent": _object(
        "eventTime producer schemaURL run job",
        eventType={"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        eventTime={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00$"},
        producer=URI,
        schemaURL=URI,
        run=_object(
            "runId",
            runId={"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        )
        | {"facets": _facets("Run")},
        job=_object("namespace name", **_DATASET, facets=_facets("Job")),
        inputs={
            "type": "array",
            "items": _object("namespace name", **_DATASET, inputFacets=_facets("InputDataset")),
        },
        outputs={"type": "array", "items": _object("namespace name", **_DATASET)},
    ),
    **dict.fromkeys(("RunFacet", "JobFacet", "InputDatasetFacet"), _FACET),
}
#: What the files of the standard facets require.
_STANDARD = {
    "2-0-3/JobTypeJobFacet": _object(
        "processingType integration",
        processingType={"enum": ["BATCH", "STREAMING"]},
        integration={"type": "string"},
    ),
    "1-0-1/ErrorMessageRunFacet": _object(
        "message programmingLanguage",
        message={"type": "string"},
        programmingLanguage={"type": "string"},
    ),
}


OWN = "docs/monitoring/SparkJetstreamSequencesInputDatasetFacet.json"


def _registry() -> Registry[Any]:
    """All schemas that an event may name.

    The tag of the release is in the URL of the project's own one.
    """
    standard = {
        f"facets/{path}.json": {path.rpartition("/")[2]: schema}
        for path, schema in _STANDARD.items()
    }
    schemas = {
        f"{_SPEC}/{path}": {"$defs": schema}
        for path, schema in {_CORE: _DEFINITIONS, **standard}.items()
    }
    own = json.loads((ROOT / OWN).read_text(encoding="utf-8"))
    schemas[f"{URLS['Source']}/raw/v{__version__}/{OWN}"] = own
    dialect = {"$schema": own["$schema"]}
    return Registry().with_resources(
        (uri, Resource.from_contents(dialect | schema)) for uri, schema in schemas.items()
    )


def check(event: Event) -> None:
    """Raise unless an event has the form of its schema, and each facet that of its own."""
    facets = [*event["run"]["facets"].values(), *event["job"]["facets"].values()]
    facets += [facet for dataset in event["inputs"] for facet in dataset["inputFacets"].values()]
    for part, schema in [
        (event, event["schemaURL"]),
        *((facet, facet["_schemaURL"]) for facet in facets),
    ]:
        jsonschema.Draft202012Validator({"$ref": schema}, registry=_registry()).validate(part)
    assert event["producer"] == f"{URLS['Source']}/tree/v{__version__}"


def inputs(event: Event) -> dict[tuple[str, str], Any]:
    """The sequences by dataset; None for one without the facet."""
    return {
        (dataset["namespace"], dataset["name"]): dataset["inputFacets"]
        .get("sparkJetstream_sequences", {})
        .get("sequences")
        for dataset in event["inputs"]
    }


class Collector:
    """Takes events at `url`, in `events`; `answer` is called for each and returns the status of the
    answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.events: list[Event] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.answer: Callable[[Event], int] = lambda event: 201

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(event["job"]["name"], event["eventType"]) for event in self.events]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        event = json.loads(body)
        check(event)
        self.requests.append((path, headers))
        status = self.answer(event)
        if status == 201:
            self.events.append(event)
        return status


@contextlib.contextmanager
def collecting(context: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """Serve a collector; with `context` by TLS."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(collector.take(self.path, dict(self.headers), body))
            self.send_header("Location", collector.url)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if context is None else "https"
    collector = Collector(f"{scheme}://127.0.0.1:{server.server_port}/api/v1/lineage")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
