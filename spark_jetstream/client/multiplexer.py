"""Requests under way on one connection.

Each waits for its reply, for a cut, which loses the reply, or for the server's word that it is not
permitted.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

import nats.errors

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.login import Login
from spark_jetstream.client.reasons import error_text
from spark_jetstream.client.registry import Carries, Event, Registry
from spark_jetstream.errors import ConnectionFailed, JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.wire import ApiReply, Frames, parse_status


class _Response(NamedTuple):
    """The reply to a request."""

    payload: bytes
    status: int | None
    """The code of a status of the server; None for a reply of a service."""


class _Request(NamedTuple):
    subject: str
    answer: asyncio.Future[_Response | JetStreamError]


class Multiplexer:
    """The requests of one connection. One subscription receives all replies."""

    carries = Carries.RESPONSES
    exclusive = False
    pace = 0.0

    def __init__(self, registry: Registry, login: Login) -> None:
        self.subject = f"{login.options.inbox_prefix}.{secrets.token_hex(11)}"
        self._registry = registry
        self._login = login
        self._subscribed = False
        self._tokens = count(1)
        self._waiting: dict[str, _Request] = {}  # by the last token of the reply subject
        self._deaf: PermissionDenied | None = None
        """Why no reply can come, from a refused subscription to the next cut."""

    async def request(
        self,
        subject: str,
        payload: bytes,
        context: str,
        seconds: float,
        headers: dict[str, str] | None = None,
        every: float | None = None,
    ) -> bytes:
        """Return the payload of the reply to a request; see `Connection.request`."""
        deadline = Deadline(seconds)
        # Part of the time of the request: test_waiting_for_a_connection_is_part_of_a_request.
        await self._login.wait(seconds)
        # Not a number alone: those are the reply subjects of rows.
        token = f"r{next(self._tokens)}"
        answer = asyncio.get_running_loop().create_future()
        if self._deaf is not None:
            answer.set_result(self._deaf)
        self._waiting[token] = _Request(subject, answer)
        try:
            self._subscribe()
            while not answer.done():
                reply = f"{self.subject}.{token}"
                self._login.publish(subject, payload, reply, (headers or {}).items())
                left = max(0.001, deadline.left)
                await asyncio.wait([answer], timeout=left if every is None else min(every, left))
                again = every is not None and not deadline.expired
                if not answer.done() and not again:
                    raise jsapi.no_reply(context, seconds, advice.REQUEST_TIMEOUT)
            return self._payload(answer.result(), subject, context)
        except (nats.errors.Error, OSError, ValueError) as error:
            raise ConnectionFailed(f"cannot {context}: {error_text(error)}") from None
        finally:
            del self._waiting[token]

    @staticmethod
    def _payload(answer: _Response | JetStreamError, subject: str, context: str) -> bytes:
        """Return the payload of a reply, or raise the error received in its place."""
        if isinstance(answer, PermissionDenied):
            raise PermissionDenied(f"cannot {context}: {answer}", subject=answer.subject)
        if isinstance(answer, JetStreamError):
            raise ConnectionFailed(f"cannot {context}: {answer}")
        if answer.status == jsapi.NO_RESPONDERS:
            raise NoResponders(
                f"cannot {context}: nobody answers at {subject}: is JetStream enabled for this "
                f"server and account, and {advice.API}"
            )
        return answer.payload

    def _subscribe(self) -> None:
        """Subscribe before the first request: an account may have no right to, and no need."""
        if not self._subscribed:
            self._registry.add(self, f"{self.subject}.*")
            self._subscribed = True

    # Called by the registry

    def put(self, event: Event) -> None:
        """Hand on replies."""
        if isinstance(event, ApiReply):
            self._answer(event.subject, _Response(event.payload, None))
        elif isinstance(event, Frames):
            subjects = event.lines.tobytes()
            for at, (block, payload) in enumerate(event.parts()):
                # A reply with headers may be that of a service, or a status of the server.
                status = parse_status(block) if block else None
                subject = subjects[int(event.subject_start[at]) : int(event.subject_end[at])]
                response = _Response(payload, None if status is None else status.code)
                self._answer(subject, response)

    def put_cut(self, message: str) -> None:
        """Fail what waits: the connection was cut."""
        # The next connection subscribes again, perhaps with other permissions.
        self._deaf = None
        self._fail(ConnectionFailed(message), [*self._waiting.values()])

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """Fail the requests that a refused publish, or subscription, concerns; whether any is.

        The server names the subject in its own spelling, and here it is in lower case.
        """
        if publishing:
            return self._fail_refused(subject)
        if not subject.startswith(f"{self.subject.lower()}."):
            return False
        self._deaf = inboxes
        self._fail(inboxes, self._waiting.values())
        return True

    def _fail_refused(self, subject: str) -> bool:
        """Fail the requests to a subject to which the account may not publish."""
        told = False
        for request in self._waiting.values():
            for name in self._login.spellings(request.subject):
                if name.lower() == subject:
                    text = f"the account may not publish to {name}"
                    self._fail(PermissionDenied(text, subject=name), [request])
                    told = True
                    break
        return told

    def _answer(self, subject: bytes, response: _Response) -> None:
        """Give a reply to its request; nobody waits any more for one that is late."""
        token = subject.decode("utf-8", "replace").removeprefix(f"{self.subject}.")
        request = self._waiting.get(token)
        if request is not None and not request.answer.done():
            request.answer.set_result(response)

    @staticmethod
    def _fail(error: JetStreamError, requests: Iterable[_Request]) -> None:
        for request in requests:
            if not request.answer.done():
                request.answer.set_result(error)
