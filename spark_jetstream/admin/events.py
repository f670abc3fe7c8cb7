"""Events as they happen: `JetStreamAdmin.events`. No server keeps these core NATS messages: see docs/events.md."""

from __future__ import annotations

import contextlib
import math
import os
import time
import uuid
import weakref

from spark_jetstream.admin.api import Api, consumer_name, stream_name, subject_filter
from spark_jetstream.admin.event_parsing import PREFIX, event_subjects, parse_event
from spark_jetstream.admin.models.events import Event, Gap
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.subscription import Dropped, Listener
from spark_jetstream.errors import (
    ApiError,
    ConnectionFailed,
    JetStreamError,
    JetStreamNotEnabled,
    NoResponders,
    OptionError,
    OutageError,
    PermissionDenied,
    RequestTimeout,
)
from spark_jetstream.protocol.jsapi import ACCOUNT_INFO
from spark_jetstream.protocol.units import Timestamp, shown

_SYSTEM = "$SYS.REQ.SERVER.PING"
_SIGN_OF_LIFE = 2.0  # seconds for the reply to a ping
_QUIET = 10.0  # seconds without an event after which the server is pinged
_LOOK_AGAIN = 1.0  # seconds


class Events:
    """The events of an account; ``admin.events``. Raises what `Api` raises."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def watch(
        self,
        *wanted: str | type[Event],
        advisories: bool = True,
        metrics: bool = True,
        stream: str | None = None,
        consumer: str | None = None,
        timeout: float | None = None,
        count: int | None = None,
        prefix: str | None = None,
    ) -> Watch:
        """Subscribe to events; all events after this call are received.

        ``wanted`` are kinds (``"max_deliver"`` or `MaxDeliver`), or subjects (``"ADVISORY.CONSUMER.>"``); by default
        all. ``stream`` and ``consumer`` choose events whose subject names them; so none of the API, a server, or a
        domain. It ends after ``timeout`` seconds, or ``count`` events; a `Gap` does not count. ``prefix`` begins the
        subjects, for events of another account that this one imports. By default it is ``$JS.EVENT``, and the account
        must have JetStream, or be the system account.

        Raises:
            OptionError: The arguments do not fit together.
            PermissionDenied: The account may not subscribe to a subject, which the error has.
            JetStreamNotEnabled: The account has no JetStream, as far as it may ask.
            NoResponders: The server has no JetStream, as far as the account may ask.
        """
        if timeout is not None and not timeout > 0:
            raise OptionError(f"timeout must be a number of seconds above 0, not {shown(timeout)}")
        if count is not None and not count > 0:
            raise OptionError(f"count must be a number from 1 on, not {shown(count)}")
        subjects = event_subjects(
            wanted,
            advisories=advisories,
            metrics=metrics,
            stream=None if stream is None else stream_name(stream),
            consumer=None if consumer is None else consumer_name(consumer),
            prefix=PREFIX if prefix is None else subject_filter(prefix, literal=True),
        )
        if prefix is None:
            self._need_jetstream()
        return Watch(self._api, subjects, timeout, count)

    def _need_jetstream(self) -> None:
        """Raise where there can be no event. Other errors are ignored: events also report a cluster in trouble."""
        connection, context = self._api.connection, "listen to events"
        try:
            connection.ask(f"{connection.prefix}.{ACCOUNT_INFO}", b"", context=context, timeout=_SIGN_OF_LIFE)
        except (JetStreamNotEnabled, NoResponders):
            # The system account has no JetStream, but events of servers and domains. Only it reaches this subject.
            with contextlib.suppress(NoResponders, PermissionDenied, RequestTimeout):
                connection.request(_SYSTEM, b"", context=context, timeout=_SIGN_OF_LIFE)
                return
            raise
        except (ApiError, PermissionDenied, RequestTimeout):
            pass


class Watch:
    """An iterator of events, and a context manager that ends it. One thread uses it; any thread may call `close`.

    It survives the loss of the connection: a `Gap` reports the loss, another one the end of it, and ``gaps`` counts
    them. After a loss of more than option ``retryTimeout`` it raises `OutageError`. When it ends by itself, the server
    has answered a ping, so all events before were received; otherwise the last event is a `Gap` without ``until``.
    """

    def __init__(self, api: Api, subjects: tuple[str, ...], timeout: float | None, count: int | None) -> None:
        self.subjects = subjects
        self.gaps = 0
        self._api = api
        self._remaining = math.inf if count is None else count  # events until the end
        self._pid = os.getpid()  # a forked child does not hear what the connection of its parent receives
        self._closed = False  # `close` was called
        self._ending = False  # the time is over: events that came are still returned, and no other
        # Why and until when the connection may be lost; from its `Gap` on, until events are received again.
        self._lost: tuple[ConnectionFailed, Deadline] | None = None
        self._connect(api.connection)
        self._since = _now()  # the last moment at which the connection is known to have worked
        self._deadline = Deadline(math.inf if timeout is None else timeout)

    def close(self) -> None:
        """End the iteration. May be called again."""
        self._closed = True
        self._forget()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        if os.getpid() != self._pid:
            raise JetStreamError("this watch was begun before a fork, and hears nothing here: begin another one")
        try:
            event = self._next() if self._remaining else None
        except JetStreamError:
            self.close()
            raise
        if event is None:
            self.close()
            raise StopIteration
        if not isinstance(event, Gap):
            self._remaining -= 1
        elif event.until is None or event.lost:
            self.gaps += 1
        return event

    def _connect(self, connection: Connection) -> None:
        generation = connection.reconnects
        listener = connection.listen(self.subjects)
        listener.generation = generation
        self._connection, self._listener = connection, listener
        # For callers that leave the loop without `close`.
        self._forget = weakref.finalize(self, _close, listener, self._pid)
        self._forget.atexit = False

    def _next(self) -> Event | None:
        if self._lost is not None:
            return self._back(*self._lost)
        try:
            while not self._closed:
                event = self._hear()
                if event is not None or self._ending:
                    return event
        except ConnectionFailed as error:
            self._lost = error, Deadline(self._api.options.retry_timeout)
            return _gap(self._since, None, str(error))
        return None

    def _hear(self) -> Event | None:
        """Return the next event of some seconds, or None; then the server has answered that there was none."""
        if self._deadline.expired and not self._ending:
            self._connection.check(_SIGN_OF_LIFE)
            self._ending = True
            self._forget()  # events that were received are still returned
        heard = self._listener.hear(self._deadline.within(_QUIET))
        if heard is None:
            if not (self._ending or self._closed):
                # Events before the reply were received.
                self._connection.check(_SIGN_OF_LIFE)
                self._since = _now()
            return None
        self._since = _now()
        if isinstance(heard, Dropped):
            return _gap(
                self._since, self._since, "this program takes events more slowly than they come", heard.messages
            )
        return parse_event(heard.subject, heard.data, self._since)

    def _back(self, error: ConnectionFailed, outage: Deadline) -> Event | None:
        """Wait until events are received again; return the gap, None when the watch ends before."""
        backoff = Backoff()
        while not self._closed and not self._deadline.expired:
            try:
                self._rejoin(self._deadline.within(outage.within(_LOOK_AGAIN)))
            except ConnectionFailed as failure:
                if outage.expired:
                    raise OutageError(
                        f"no events were received for {outage.seconds:g} s (option retryTimeout): {error}; {failure}"
                    ) from failure
                backoff.pause(outage)
                continue
            self._lost = None
            since, self._since = self._since, _now()
            return _gap(since, self._since, str(error))
        return None

    def _rejoin(self, patience: float) -> None:
        """Subscribe again. Raises `ConnectionFailed` when that is not possible yet."""
        if not self._connection.usable:
            self._forget()
            self._connect(self._api.connection)
            return
        self._connection.wait(patience)
        generation = self._connection.reconnects
        # nats-py sends its subscriptions before anything else.
        self._connection.check(_SIGN_OF_LIFE)
        self._listener.generation = generation


def _close(listener: Listener, pid: int) -> None:
    if os.getpid() == pid:
        listener.close()


def _now() -> Timestamp:
    return Timestamp.of(time.time_ns())


def _gap(since: Timestamp, until: Timestamp | None, reason: str, lost: int = 0) -> Gap:
    return Gap(
        type=Gap.TYPE,
        id=uuid.uuid4().hex,
        timestamp=until or _now(),
        since=since,
        until=until,
        reason=reason,
        lost=lost,
    )
