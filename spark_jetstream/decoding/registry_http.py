"""Requests to a schema registry over HTTP, sent again while it cannot answer."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPException, InvalidURL
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import (
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.reasons import NO_ANSWER, error_text
from spark_jetstream.decoding.registry import SchemaRegistry
from spark_jetstream.errors import RegistryError, brief

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_ACCEPTED = f"{_MEDIA_TYPE}, application/vnd.schemaregistry+json, application/json"
#: Statuses after which the same request may succeed: a time-out, too many requests.
_BUSY = (408, 429)
_LONGEST_ANSWER = 64 * 2**20  # bytes; schemas have thousands
_PORTION = 2**16  # bytes


class HttpAnswer(NamedTuple):
    """An answer of a registry: 2xx, or a 4xx that says something about the request."""

    status: int
    content: Any

    @property
    def error_code(self) -> int | None:
        """The registry's own number of an error, None without one."""
        code = self.content.get("error_code") if isinstance(self.content, dict) else None
        return code if isinstance(code, int) else None

    @property
    def message(self) -> str:
        """The registry's own words about an error, short enough for another error."""
        said = self.content.get("message") if isinstance(self.content, dict) else None
        return brief(said) if isinstance(said, str) else "no reason"


class RegistryHttp:
    """Sends requests to one registry, each over a connection of its own.

    `ask` blocks its thread. Proxies of the environment (``https_proxy``, ``no_proxy``) are used. A
    redirect is an error: it could lead the login to another server.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> HttpAnswer:
        """Return the answer to GET, or to POST with ``body``.

        Raises `RegistryError` for an outage that lasts longer than ``retry_timeout``, and at once
        for a refused login, a certificate that is not trusted, and an answer of another program.
        Also at once for an address to which no request can be sent.
        """
        registry = self._registry
        deadline = Deadline(registry.retry_timeout)
        pauses = Backoff(first=0.1, most=5.0)
        while True:
            # Looked at before: the last attempt begins in time.
            is_last = deadline.expired
            try:
                status, content = self._once(path, body)
                if status < 500 and status not in _BUSY:
                    return self._checked(path, status, content)
                reason = f"it answers {status}"
            except (OSError, HTTPException, ValueError) as error:
                reason = self._reason(error)
            if is_last:
                raise RegistryError(
                    f"argument registry: {registry.url} did not answer {_shown(path)} for "
                    f"{registry.retry_timeout:g} seconds ({reason}): start the task again when it "
                    "does, or raise retry_timeout of SchemaRegistry",
                )
            pauses.pause(deadline)

    def _once(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        registry = self._registry
        deadline = Deadline(registry.timeout)
        headers = {"Accept": _ACCEPTED}
        if registry.authorization is not None:
            headers["Authorization"] = registry.authorization
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = _MEDIA_TYPE
        request = Request(f"{registry.url}{path}", data, headers)
        with self._opener().open(request, timeout=registry.timeout) as answer:
            content = b""
            # The time-out of a socket begins again with each byte.
            while portion := answer.read1(_PORTION):
                content += portion
                if deadline.expired:
                    raise TimeoutError(NO_ANSWER)
                if len(content) > _LONGEST_ANSWER:
                    raise self._wrong(path, "answers with more bytes than schemas have")
            # `read1` does not tell a body that was cut.
            announced = answer.headers.get("Content-Length", "")
            if announced.isdigit() and len(content) < int(announced):
                raise ConnectionResetError("the answer was cut")
            return answer.status, content

    def _opener(self) -> OpenerDirector:
        # Without a processor of errors: neither a redirect nor a status of an error raises.
        opener = OpenerDirector()
        opener.add_handler(ProxyHandler())
        opener.add_handler(HTTPHandler())
        if self._registry.url.startswith("https:"):
            context = ssl.create_default_context(cadata=self._registry.ca_pem)
            opener.add_handler(HTTPSHandler(context=context))
        return opener

    def _reason(self, error: Exception) -> str:
        """Return why the registry has not answered. Raises `RegistryError` if waiting cannot help."""
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise RegistryError(
                f"argument registry: {self._registry.url}: {error_text(cause)}: "
                "give ca_file of SchemaRegistry",
            ) from None
        # The host is no name, which is a UnicodeError, or a proxy is malformed.
        if isinstance(cause, InvalidURL) or not isinstance(error, OSError | HTTPException):
            # The text of the error may have the password of the proxy.
            raise RegistryError(
                f"argument registry: no request can be sent to {self._registry.url}: check the "
                "URL, and the proxies of the environment (http_proxy, https_proxy)",
            ) from None
        if isinstance(cause, TimeoutError):
            return NO_ANSWER
        if isinstance(cause, Exception):
            return error_text(cause)
        return brief(str(cause))

    def _checked(self, path: str, status: int, content: bytes) -> HttpAnswer:
        """Return an answer of a registry. Raises `RegistryError` for any other."""
        if status in (401, 403):
            raise RegistryError(
                f"argument registry: {self._registry.url} refuses {_shown(path)} with {status}: "
                "check user and password, or token, of SchemaRegistry, and their permissions",
            )
        if 300 <= status < 400:
            raise self._wrong(path, f"redirects with {status}")
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError):
            raise self._wrong(path, f"answers {status} without JSON") from None
        answer = HttpAnswer(status, parsed)
        # A server that knows no such path answers 404, too.
        if status >= 400 and answer.error_code in (None, status):
            if status in (409, 422):
                return answer
            raise self._wrong(path, f"answers {status} ({answer.message})")
        return answer

    def _wrong(self, path: str, what: str) -> RegistryError:
        return RegistryError(
            f"argument registry: {self._registry.url} {what} to {_shown(path)}: check the URL, "
            "with its path, and the version of the registry",
        )


def _shown(path: str) -> str:
    return brief(f"the request {path}")
