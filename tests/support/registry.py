"""A schema registry in this process, over real HTTP.

No registry that is a program of its own runs here: Karapace and Confluent's keep their schemas in
Kafka. This one implements the endpoints that `decode` and `encode` use, and those of Confluent's
Python client, as https://docs.confluent.io/platform/current/schema-registry/develop/api.html
describes them. Its answers were compared with Karapace's controller (src/karapace/api/controller.py
and routers/errors.py).

Protobuf schemas are FileDescriptorProtos in Base64, the form in which Confluent's Python client
registers them and `format=serialized` returns them. A real registry also takes the text of .proto
files, which this one does not.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from spark_jetstream import SchemaRegistry


class Fault(NamedTuple):
    """One answer in place of the right one: a status and bytes, of which `cut` are not sent."""

    status: int = 500
    body: bytes = b'{"error_code": 500, "message": "Internal Server Error"}'
    headers: tuple[tuple[str, str], ...] = ()
    cut: int = 0


#: The server does not answer until the test ends.
HANG = Fault(status=0)


class FakeRegistry:
    """Subjects with versions of schemas. `faults` are the next answers, `requests` all requests so
    far.
    """

    def __init__(self, login: str | None = None, context: ssl.SSLContext | None = None) -> None:
        self.login = login
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        #: The headers of the last request.
        self.headers: dict[str, str] = {}
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        # The port may be that of an earlier registry, whose schemas a process still knows.
        self.prefix = f"/{uuid.uuid4().hex}"
        self.url = f"{scheme}://localhost:{self._server.server_port}{self.prefix}"

    def client(self, **given: Any) -> SchemaRegistry:
        """The registry with short times for tests."""
        return SchemaRegistry(self.url, **{"timeout": 10, "retry_timeout": 0, **given})

    def add(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> int:
        """Register a schema, and return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": references or []}
        _, answer = self._register(subject, body)
        return int(answer["id"])

    def answer(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        parts = urlsplit(target)
        path = parts.path
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            schema = self.schemas.get(int(found[1]))
            if schema is None:
                return 404, {"error_code": 40403, "message": f"Schema {found[1]} not found"}
            return 200, schema
        if path == "/subjects" and method == "GET":
            return 200, sorted(self.subjects)
        if found := re.fullmatch(r"/subjects/([^/]+)/versions", path):
            subject = unquote(found[1])
            if method == "POST":
                return self._register(subject, body)
            return self._versions(subject)
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|\d+)", path):
            return self._version(unquote(found[1]), found[2])
        if (found := re.fullmatch(r"/subjects/([^/]+)", path)) and method == "POST":
            return self._look_up(unquote(found[1]), body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _versions(self, subject: str) -> tuple[int, Any]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        return 200, list(range(1, len(self.subjects[subject]) + 1))

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        ids = self.subjects.get(subject)
        if ids is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = len(ids) if version == "latest" else int(version)
        if not 1 <= number <= len(ids):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        found = {"subject": subject, "version": number, "id": ids[number - 1]}
        return 200, {**found, **self.schemas[ids[number - 1]]}

    def _register(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        schema = _stored(body)
        if schema["schema"] == "":
            return 422, {"error_code": 42201, "message": "Empty schema"}
        with self._lock:
            ids = [one for one, known in self.schemas.items() if _same(known, schema)]
            schema_id = ids[0] if ids else len(self.schemas) + 1
            self.schemas.setdefault(schema_id, schema)
            versions = self.subjects.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
        return 200, {"id": schema_id}

    def _look_up(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        for number, schema_id in enumerate(self.subjects[subject], 1):
            if _same(self.schemas[schema_id], _stored(body)):
                found = {"subject": subject, "version": number, "id": schema_id}
                return 200, {**found, **self.schemas[schema_id]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def take_fault(self) -> Fault | None:
        with self._lock:
            return self.faults.pop(0) if self.faults else None

    def wait_for_end(self) -> None:
        self._released.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeRegistry]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _stored(body: dict[str, Any]) -> dict[str, Any]:
    """A schema as the registry answers it: without the type AVRO, and without empty references."""
    stored = {"schema": body["schema"]}
    if body.get("schemaType", "AVRO") != "AVRO":
        stored["schemaType"] = body["schemaType"]
    if body.get("references"):
        stored["references"] = body["references"]
    return stored


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two schemas are one, whatever the blanks in their JSON."""
    if one.get("schemaType") == "PROTOBUF" or other.get("schemaType") == "PROTOBUF":
        return one == other
    try:
        texts = [json.loads(schema["schema"]) for schema in (one, other)]
    except ValueError:
        return one == other
    return {**one, "schema": texts[0]} == {**other, "schema": texts[1]}


def _handler(registry: FakeRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer(json.loads(self.rfile.read(length)))

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are kept in `requests`."""

        def _answer(self, body: dict[str, Any]) -> None:
            target = self.path.removeprefix(registry.prefix)
            registry.requests.append(f"{self.command} {target}")
            registry.headers = dict(self.headers.items())
            fault = registry.take_fault()
            if fault is HANG:
                registry.wait_for_end()
                return
            if fault is not None:
                self._send(fault)
                return
            status, content = 401, {"error_code": 401, "message": "Unauthorized"}
            if registry.login is None or self.headers["Authorization"] == registry.login:
                status, content = registry.answer(self.command, target, body)
            self._send(Fault(status, json.dumps(content).encode()))

        def _send(self, answer: Fault) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body[: len(answer.body) - answer.cut])

    return Handler
