"""Requests of the administration to the JetStream API, and the level of the server's API."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from spark_jetstream.admin.models.account import AccountInfo
from spark_jetstream.admin.models.base import Model, Page
from spark_jetstream.admin.models.consumers import ConsumerPage
from spark_jetstream.admin.models.messages import DoneReply, PurgeReply
from spark_jetstream.admin.models.rules import needed
from spark_jetstream.admin.models.streams import StreamPage
from spark_jetstream.client import pool
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    PermissionDenied,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.names import Name, PublishSubject, Subject
from spark_jetstream.options.values import Kind
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import LEVELS, PREFERRED_LEADER, shown_version
from spark_jetstream.protocol.jsapi import ACCOUNT_INFO, Endpoint
from spark_jetstream.protocol.units import Timestamp, shown
from spark_jetstream.streams.lookup import nearest_stream

Body = Mapping[str, Any] | bytes | None
M = TypeVar("M", bound=Model)
P = TypeVar("P", bound=Page)
D = TypeVar("D", DoneReply, PurgeReply)


class Api:
    """Requests to the JetStream API of one account.

    It holds no state that a fork or a lost connection invalidates. Any thread may use it. Every
    method raises:

    - `ApiError` and its subclasses: the server answered with an error.
    - `PermissionDenied`: the account may not publish to the subject, which the error has.
    - `NoResponders`: no server answers at the subject.
    - `RequestTimeout`: no reply arrived within option ``requestTimeout``.
    - `ConnectionFailed`: the connection is lost, or could not be opened.
    - `ProtocolError`: the reply cannot be read.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        connection: Connection | None = None,
        *,
        connect: Callable[[ConnectionOptions], Connection] = pool.connect,
    ) -> None:
        """Requests go over ``connection``, else over the one that ``connect`` returns."""
        self.options = options
        self._own = connection
        self._connect = connect
        self.requests = Requests(self.connect, options.request_timeout)
        self._closed = False  # `close` was called, and nothing is asked any more
        # The connection, its reconnects, and the level that the server had then: another server may
        # have another one.
        self._level: tuple[tuple[Connection, int] | None, int | None] = (None, None)

    @property
    def connection(self) -> Connection:
        """The connection. Opens it if it is not open."""
        if self._closed:
            raise JetStreamError("this JetStreamAdmin is closed: make another one")
        return self._own or self._connect(self.options)

    def connect(self, seconds: float = 0.0) -> Connection:
        """Return `connection`, for functions that take a `Connect`.

        The options say how long to wait for it.
        """
        return self.connection

    def close(self) -> None:
        """Refuse further requests. The connection stays open for others with the same options."""
        self._closed = True

    def ask(self, endpoint: Endpoint, body: Body = None, *, context: str, **names: str) -> Any:
        """Return the reply (a JSON object) to a request.

        A `StreamNotFound` names the stream that may be meant.

        ``endpoint`` is one of `jsapi`, ``names`` are the values of its placeholders, ``context``
        says what is asked, as an infinitive without "to". During an election a cluster answers that
        it is busy, or does not answer: a request that changes nothing is repeated for option
        ``requestTimeout``.

        Raises:
            OptionError: A name is not that of a stream or consumer.
            JetStreamError: The server is too old to answer at this subject.
        """
        try:
            return self._ask(endpoint, body, context, names)
        except StreamNotFound as error:
            # The system account asks for streams of other accounts.
            if "stream" not in names or endpoint.system:
                raise
            meant = self.nearest(names["stream"])
            raise jsapi.reworded(error, f"{error}{meant}") from None

    def nearest(self, stream: str, prefix: str = "") -> str:
        """Return the end of an error that a stream does not exist, as `nearest_stream` does."""
        return nearest_stream(self.connect, [stream], prefix)

    def _ask(self, endpoint: Endpoint, body: Body, context: str, names: Mapping[str, str]) -> Any:
        _check_names(endpoint, names)
        connection = self.connection
        if endpoint.since is not None:
            self.need_endpoint(endpoint, context)
        full = jsapi.subject(connection.prefix, endpoint, **names)
        sent = _encoded(body)
        # A request that changes something is sent once:
        # without a reply it may have been carried out.
        if not endpoint.repeatable:
            return connection.api(full, sent, context=context)
        # `Connection.ask` repeats a request sooner than a server that gathers or counts can reply.
        # The server would count for each copy, and the next request would wait behind all of them.
        is_slow = endpoint.gathers or endpoint.counts
        ask = connection.api if is_slow else connection.ask
        deadline = Deadline(self.options.request_timeout)
        backoff = Backoff()
        while True:
            try:
                return ask(full, sent, context=context)
            # A cluster answers so during an election, which passes.
            except ServerBusy:
                backoff.pause(deadline)
                if deadline.expired:
                    raise

    def reply(
        self,
        model: type[M],
        endpoint: Endpoint,
        body: Body = None,
        *,
        context: str,
        **names: str,
    ) -> M:
        """Return the reply to a request, as `ask` does, as a model."""
        return model.from_server(self.ask(endpoint, body, context=context, **names), context)

    def find(self, model: type[M], endpoint: Endpoint, *, context: str, **names: str) -> M | None:
        """Return the reply as `reply` does, None if the stream or consumer does not exist."""
        # Not `ask`: absence is a result here, and needs no search for the stream that may be meant.
        try:
            return model.from_server(self._ask(endpoint, None, context, names), context)
        except (StreamNotFound, ConsumerNotFound):
            return None

    def do(
        self,
        model: type[D],
        endpoint: Endpoint,
        body: Body = None,
        *,
        context: str,
        **names: str,
    ) -> D:
        """Return the reply as `reply` does.

        Raises `JetStreamError` when it does not say that the request was done.
        """
        reply = self.reply(model, endpoint, body, context=context, **names)
        # A reply without an error may still lack the confirmation
        # (`test_a_reply_that_says_nothing_is_no_success`).
        if not reply.success:
            raise JetStreamError(f"cannot {context}: the server does not say that it was done")
        return reply

    def delete(
        self,
        endpoint: Endpoint,
        missing: type[ApiError],
        missing_ok: bool,
        *,
        context: str,
        **names: str,
    ) -> bool:
        """Delete something; return whether it existed.

        Raises ``missing`` when it did not, unless ``missing_ok``.
        """
        try:
            self.do(DoneReply, endpoint, None, context=context, **names)
        except missing:
            if missing_ok:
                return False
            raise
        return True

    def step_down(
        self, endpoint: Endpoint, preferred: str | None, *, context: str, **names: str
    ) -> None:
        """Let a leader step down, in favour of a server if one is given.

        Raises what `do` raises.
        """
        request = None
        if preferred is not None:
            self.need(PREFERRED_LEADER.level, f"{context} in favour of {preferred}")
            request = {"placement": {"preferred": preferred}}
        self.do(DoneReply, endpoint, request, context=context, **names)

    def pages(
        self,
        model: type[P],
        endpoint: Endpoint,
        request: Mapping[str, Any],
        *,
        context: str,
        **names: str,
    ) -> Iterator[P]:
        """Return the pages of a list, each requested when it is needed.

        An item that is created or deleted between two requests may be missing, or appear twice.
        Raises `ServerBusy` at the end when the server named missing streams or consumers.
        """
        offset = 0
        missing: list[str] = []
        while True:
            body = {**request, "offset": offset} if offset else request
            page = self.reply(model, endpoint, body, context=context, **names)
            yield page
            missing += _missing(page)
            # Not the number of entries: in a cluster the entries of a server that did not answer
            # are missing.
            following = page.offset + page.limit
            # A page without a limit would lead to itself again.
            is_last = following >= page.total or following <= offset
            if is_last:
                break
            offset = following
        # Raised after the last page: the caller has all entries that servers answered for
        # (`test_a_list_that_is_not_whole_is_no_list`).
        if missing:
            text = f"cannot {context} as a whole: {'; '.join(missing)}"
            raise ServerBusy(text, code=0, err_code=0, description="")

    def account(self) -> AccountInfo:
        """Return usage and limits of the account.

        Raises `JetStreamNotEnabled` where there is no JetStream.
        """
        return self.reply(AccountInfo, ACCOUNT_INFO, context="look at the account")

    def level(self) -> int | None:
        """Return the level of the JetStream API; 0 before server 2.11.

        None when the account may not ask for it.
        """
        connection = self.connection
        session = (connection, connection.reconnects)
        known, level = self._level
        # Another server, perhaps of another version, may answer after a reconnect.
        if known != session:
            level = None
            # An account that may not ask can still use the rest of the API
            # (`test_a_level_that_may_not_be_asked_for_is_trusted`).
            with contextlib.suppress(PermissionDenied):
                level = self.account().api.level
            self._level = (session, level)
        return level

    def newer(self) -> bool:
        """Return whether the server is surely newer than these models.

        A newer server may have fields that the models do not know.
        """
        try:
            return (self.level() or 0) > max(LEVELS)
        # A misspelt field is refused, too, where no server can be asked.
        except JetStreamError:
            return False

    def need_endpoint(self, endpoint: Endpoint, context: str) -> None:
        """Raise `JetStreamError` when the server is too old to answer at a subject."""
        feature = endpoint.since
        if feature is None:
            return
        if not endpoint.system:
            self.need(feature.level, context)
            return
        # The system account has no JetStream, so nobody tells it a level.
        connection = self.connection
        if not connection.can(feature):
            version = shown_version(connection.server_version)
            raise JetStreamError(
                f"cannot {context}: this needs nats-server {feature.since} or newer, and this one "
                f"is {version}"
            )

    def need_for(self, config: Model, context: str) -> None:
        """Raise `JetStreamError` when the server is too old for a field of a configuration."""
        for level, what in needed(config):
            self.need(level, f"{context} with {what}")

    def need(self, level: int, context: str) -> None:
        """Raise `JetStreamError` when the server's API has a lower level.

        A level that is not known is not checked.
        """
        actual = self.level()
        # An old server would leave the request unanswered, or ignore a field without an error
        # (`test_a_request_that_an_old_server_lacks_fails_without_being_sent`).
        if actual is not None and actual < level:
            needed_version = f"nats-server {LEVELS[level]} or newer (API level {level})"
            raise JetStreamError(
                f"cannot {context}: this needs {needed_version}, and this one has API level "
                f"{actual}",
            )


def _check_names(endpoint: Endpoint, names: Mapping[str, str]) -> None:
    """Raise `OptionError` for a name in a subject that is not that of a stream or consumer."""
    # A name is a token of the subject. With a dot or a wildcard it would be another request
    # (`test_a_name_that_would_be_another_request`).
    for kind in ("stream", "consumer"):
        if f"{{{kind}}}" in endpoint.template:
            checked(Name(kind), kind, names[kind])


def _encoded(body: Body) -> bytes:
    """Return the payload of a request; empty for a body without fields."""
    if isinstance(body, bytes):
        return body
    if not body:
        return b""
    return json.dumps(body).encode()


def _missing(page: Page) -> Iterator[str]:
    """Yield why entries of a page are missing."""
    if isinstance(page, (StreamPage, ConsumerPage)):
        for name in page.missing:
            yield f"no server answered for {name}"
        for name, reason in page.offline.items():
            yield f"no server can run {name} ({reason})"


def stream_name(name: object) -> str:
    """Return the name of a stream.

    Raises `OptionError`: with a dot or a wildcard it would be another request.
    """
    return str(checked(Name("stream"), "stream", name))


def consumer_name(name: object) -> str:
    """Return the name of a consumer. Raises `OptionError`."""
    return str(checked(Name("consumer"), "consumer", name))


def subject_filter(subject: object, *, literal: bool = False) -> str:
    """Return a subject, with wildcards unless ``literal``.

    Raises `OptionError`, for None and an empty text too.
    """
    return str(checked(Subject(literal=literal), "subject", subject))


def publish_subject(subject: object) -> str:
    """Return a subject that one can publish to. Raises `OptionError`."""
    return str(checked(PublishSubject(), "subject", subject))


def positive(sequence: Any, what: str = "sequence") -> int:
    """Return a sequence of a stream. Raises `OptionError`: to a server 0 may mean none, or all."""
    # True is an `int` to Python.
    is_number = isinstance(sequence, int) and not isinstance(sequence, bool)
    if not is_number or sequence < 1:
        raise OptionError(f"{what} must be a whole number from 1 on, not {shown(sequence)}")
    return int(sequence)


def moment(what: str, time: Any) -> Timestamp:
    """Return a time. Raises `OptionError`, which calls it ``what``."""
    try:
        return Timestamp.of(time)
    except ValueError as expected:
        raise OptionError(f"{what} must be {expected}, not {shown(time)}") from None


def seconds_or_ever(timeout: float | None) -> float:
    """Return the seconds of a timeout; infinity for None."""
    return math.inf if timeout is None else timeout


def checked(kind: Kind, what: str, value: object) -> Any:
    """Return the value of an argument, read as an option is.

    Raises `OptionError`, which calls it ``what``.
    """
    try:
        return kind.read(value)
    except ValueError as problem:
        raise OptionError(f"{what} {problem}") from None
