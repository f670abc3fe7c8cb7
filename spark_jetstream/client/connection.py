"""A blocking connection to NATS, over nats-py on the event loop of a background thread (`pool`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import nats.errors

from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.limits import LIMITS, MemoryLimits
from spark_jetstream.client.login import Login
from spark_jetstream.client.loop import Loop
from spark_jetstream.client.multiplexer import Multiplexer
from spark_jetstream.client.reasons import error_text
from spark_jetstream.client.registry import Carries, Registry
from spark_jetstream.client.subscription import Listener, Subscribed
from spark_jetstream.client.timing import TIMING, Timing
from spark_jetstream.errors import (
    ApiError,
    ConnectionFailed,
    JetStreamError,
    PermissionDenied,
    RequestTimeout,
)
from spark_jetstream.options import advice
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import Feature

log = logging.getLogger(__name__)

_CONFIRMED_TOGETHER = 1000  # publishes whose answers are under way at the same time


class Question(NamedTuple):
    """A request that changes nothing on the server; `context` is that of `Connection.request`."""

    subject: str
    context: str
    body: bytes = b""


class Connection:
    """One connection, shared by everything in this process that has the same connection options.

    Made by `pool.connect`, on the loop's thread. All methods block, and may be called from any
    thread but that one. The parts do the work: `Login` makes the connection and makes it again,
    `Registry` has the subscriptions, and `Multiplexer` the requests. The last two hear of cuts and
    refused permissions from the first.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        loop: asyncio.AbstractEventLoop,
        timing: Timing = TIMING,
        limits: MemoryLimits = LIMITS,
    ) -> None:
        self.timing = timing
        self.limits = limits
        self.options = options
        self.prefix = options.api_prefix_resolved
        self._loop = Loop(loop)
        self._login = Login(options, timing, self._loop)
        self._registry = Registry(self._login, self._loop)
        self._requests = Multiplexer(self._registry, self._login)
        self._login.serve(self._registry, self._on_denied)

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and made again."""
        return self._login.reconnects

    @property
    def server_version(self) -> tuple[int, int, int]:
        """The version of the server."""
        return self._login.server.version

    def can(self, feature: Feature) -> bool:
        """Whether the server has a feature."""
        return feature.is_in(self.server_version)

    @property
    def server_info(self) -> dict[str, Any]:
        """The INFO of the server, as it sent it last."""
        return dict(self._login.server.info)

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts, header and payload, in bytes."""
        return self._login.server.most_bytes

    @property
    def usable(self) -> bool:
        """False once the connection was closed, or the client library has given it up."""
        return not self._login.closed

    def request(
        self,
        subject: str,
        payload: bytes,
        *,
        context: str,
        timeout: float | None = None,
        headers: dict[str, str] | None = None,
        every: float | None = None,
    ) -> bytes:
        """Publish a request and return the payload of its reply.

        `context` says what is asked, as an infinitive without "to"; errors repeat it. `timeout` is
        `request_timeout` of the options if None. A request that changes nothing on the server may
        be sent again after `every` seconds. Raises `RequestTimeout`, `NoResponders` if no
        subscriber has the subject, `PermissionDenied`, and `ConnectionFailed`.
        """
        seconds = self.options.request_timeout if timeout is None else timeout
        try:
            work = self._requests.request(subject, payload, context, seconds, headers, every)
            # The loop's thread ends the request in time;
            # five seconds more are for a thread that is busy.
            return self._loop.run(work, seconds + 5)
        except RequestTimeout:
            # A dead connection looks like a server that does not answer.
            self.check()
            raise

    def api(self, subject: str, body: bytes, *, context: str) -> dict[str, Any]:
        """Send a request to the JetStream API; return its reply.

        Raises `ApiError`, and what `request` raises.
        """
        return jsapi.reply(self.request(subject, body, context=context), context)

    def ask(
        self, subject: str, body: bytes, *, context: str, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request that changes nothing on the server; return the JSON object of its reply.

        A stream without a leader does not reply, and its requests are lost. So the request is sent
        again every `Timing.ask_again` seconds within `timeout` (`request_timeout` if None), and the
        first reply counts. Raises what `api` raises.
        """
        every = self.timing.ask_again
        reply = self.request(subject, body, context=context, timeout=timeout, every=every)
        return jsapi.reply(reply, context)

    def ask_all(self, questions: Sequence[Question]) -> list[dict[str, Any] | ApiError]:
        """Send requests that change nothing on the server in one go; return the replies in order.

        Each is sent as `ask` sends one. An error that the API answers with is returned. Raises
        anything else that `ask` raises for the first that fails.
        """
        seconds = self.options.request_timeout

        def request(question: Question) -> Coroutine[Any, Any, bytes]:
            subject, context, body = question
            every = self.timing.ask_again
            return self._requests.request(subject, body, context, seconds, every=every)

        async def gather() -> list[bytes | BaseException]:
            return await asyncio.gather(*map(request, questions), return_exceptions=True)

        # `return_exceptions`: the other requests end too, so none is left without a reader.
        payloads = self._loop.run(gather(), seconds + 5)
        replies: list[dict[str, Any] | ApiError] = []
        for payload, question in zip(payloads, questions, strict=True):
            # As in `request`: a dead connection looks like a server that does not answer.
            if isinstance(payload, RequestTimeout):
                self.check()
            if isinstance(payload, BaseException):
                raise payload
            try:
                replies.append(jsapi.reply(payload, question.context))
            except ApiError as error:
                replies.append(error)
        return replies

    def confirm(self, subjects: Sequence[str], payload: bytes, *, context: str) -> None:
        """Publish the same payload to each subject, and wait until each has an answer.

        `context` is that of `request`. Raises what `request` raises, for the first that fails.
        """
        seconds = self.options.request_timeout

        async def gather(some: Sequence[str]) -> list[bytes | BaseException]:
            requests = [self._requests.request(each, payload, context, seconds) for each in some]
            return await asyncio.gather(*requests, return_exceptions=True)

        for first in range(0, len(subjects), _CONFIRMED_TOGETHER):
            portion = subjects[first : first + _CONFIRMED_TOGETHER]
            for answer in self._loop.run(gather(portion), seconds + 5):
                # As in `request`: a dead connection looks like a server that does not answer.
                if isinstance(answer, RequestTimeout):
                    self.check()
                if isinstance(answer, BaseException):
                    raise answer

    def post(self, subject: str) -> None:
        """Publish an empty message that nobody answers; does not wait.

        A cut may lose it, and a failure is logged.
        """
        self.post_all([subject], b"")

    def post_all(self, subjects: Sequence[str], payload: bytes) -> None:
        """Publish the same payload to each subject, as `post` does."""

        def publish() -> None:
            for subject in subjects:
                try:
                    self._login.publish(subject, payload)
                except (nats.errors.Error, OSError, ValueError) as error:
                    log.info("cannot publish to %s: %s", subject, error_text(error))

        self._loop.soon(publish)

    def inbox(self, replies: bool = False, *, whole: bool = False, token: str = "*") -> Inbox:
        """Return a new inbox, with `replies` for replies to what it sends.

        With `replies` it waits for the subscription. Without, it does not wait: `Inbox.get` raises
        a failure. `whole` is for Direct Get, whose messages have no reply subject. `token` is the
        last one of the subject: a server that looks for a subscriber of one subject does not see a
        wildcard (snapshots begin two seconds later).
        """
        carries = Carries.ANSWERS
        if replies:
            carries = Carries.REPLIES
        elif whole:
            carries = Carries.MESSAGES
        # Random: two inboxes of one name would mix their answers up.
        name = f"{self.options.inbox_prefix}.{secrets.token_hex(11)}"
        inbox = Inbox(self._registry, name, carries, self.limits)
        subject = f"{inbox.subject}.{token}"

        def subscribe() -> None:
            try:
                self._registry.add(inbox, subject)
            except ConnectionFailed as error:
                inbox.put_cut(str(error))

        if replies:
            self._subscribe(inbox, subject)
        else:
            self._loop.soon(subscribe)
        return inbox

    def subscribe(self, subject: str, group: str) -> Subscribed:
        """Return an inbox for all messages at a subject, or for its share in a queue group.

        `group` is empty for no group. `Inbox.get` raises a refused subscription. Raises
        `ConnectionFailed`.
        """
        inbox = Subscribed(self._registry, (subject,), self.limits)
        self._subscribe(inbox, subject, group)
        return inbox

    def listen(self, subjects: Sequence[str], group: str = "") -> Listener:
        """Subscribe to these subjects, with wildcards.

        The listener has all messages from the return of this call on, or its share in a queue group
        if given. A message that matches two subjects comes twice. Raises `PermissionDenied` and
        `ConnectionFailed`.
        """
        listener = Listener(self._registry, subjects, self.limits)
        try:
            for subject in listener.subjects:
                self._subscribe(listener, subject, group)
            # The server answers the ping after all subscriptions, and after it has refused one:
            # test_no_ping_overtakes_a_subscription.
            self.check(self.options.request_timeout)
            if listener.denied is not None:
                raise listener.denied
        except BaseException:
            listener.close()
            raise
        return listener

    def _subscribe(self, inbox: Inbox, subject: str, group: str = "") -> None:
        subscribing = self._registry.subscribe(inbox, subject, group)
        self._loop.run(subscribing, self.options.request_timeout)

    def check(self, timeout: float | None = None) -> None:
        """Ping the server; open the connection again without an answer in time.

        Without `timeout` the server has `Timing.sign_of_life` seconds. Raises `ConnectionFailed`
        without an answer, and at once while the connection is down.
        """
        seconds = self.timing.sign_of_life if timeout is None else timeout
        self._loop.run(self._login.ping(seconds), seconds + 5)

    def wait(self, patience: float) -> None:
        """Wait until the connection is up. Raises `ConnectionFailed` after `patience` seconds."""
        if not self._login.is_up:
            self._loop.run(self._login.wait(patience), patience + 5)

    def close(self) -> None:
        """Close the connection; readers that still use it see it cut."""
        with contextlib.suppress(JetStreamError):
            self._loop.run(self.end(), 4)

    def spellings(self, subject: str) -> tuple[str, ...]:
        """Return the names that the server may have for a published subject.

        It takes its own domain out first.
        """
        return self._login.spellings(subject)

    async def open(
        self, patience: float, find_file: Callable[[str], str], *, starting: bool = True
    ) -> None:
        """On the loop's thread: connect within `patience` seconds, or raise why it is not possible.

        A caller that waits longer than `connect_timeout` waits for the end of an outage, in which
        servers may refuse logins as well. Unless servers may be `starting`, `ConnectionFailed` is
        raised once the ports of all refuse.
        """
        await self._login.open(patience, find_file, starting=starting)

    async def end(self) -> None:
        """On the loop's thread: close the connection."""
        if self._login.is_up:
            # The last posted messages, such as the deletion of a consumer, still go out:
            # test_close_all_lets_the_last_requests_through.
            await self._loop.finish(1)
        await self._login.close()

    def _on_denied(self, publishing: bool, subject: str) -> None:
        inboxes = f"{self.options.inbox_prefix}.>"
        text = f"the account may not subscribe to {inboxes} {advice.INBOX_PREFIX}"
        self._registry.put_denied(publishing, subject, PermissionDenied(text, subject=inboxes))
