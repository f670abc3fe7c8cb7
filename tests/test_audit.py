"""The audit of the locked dependencies, against a service for advisories that runs here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from packaging.utils import canonicalize_name

from tests.support.project import ROOT
from tests.test_repository import locked


@contextmanager
def service(vulnerable: str | None, status: int = 200) -> Iterator[tuple[str, set[str]]]:
    """The URL of a service in the manner of osv.dev, and the packages that it is asked about."""
    asked = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.add(f"{query['package']['name']} {query['version']}")
            known = {"vulns": [{"id": "OSV-1", "summary": "bad", "affected": []}]}
            body = json.dumps(known if query["package"]["name"] == vulnerable else {}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.full
@pytest.mark.parametrize(
    ("vulnerable", "status"),
    [(None, 200), ("numpy", 200), (None, 503)],
    ids=["without a finding", "vulnerable", "unreachable"],
)
def test_an_audit_ends_with_an_error_unless_every_version_is_known_to_be_good(
    vulnerable: str | None, status: int
) -> None:
    with service(vulnerable, status) as (url, asked):
        command = [
            sys.executable,
            "-m",
            "tools.audit",
            "--vulnerability-service",
            "osv",
            "--osv-url",
            url,
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    versions = {
        f"{canonicalize_name(one.name)} {str(one.specifier).removeprefix('==')}" for one in locked()
    }
    if (vulnerable, status) == (None, 200):
        assert ran.returncode == 0, ran.stderr
        assert asked == versions
    else:
        assert ran.returncode != 0
        assert asked
        assert "the audit of constraints.txt failed" in ran.stderr
        assert ("numpy" in ran.stdout and "OSV-1" in ran.stdout) is (vulnerable is not None)
