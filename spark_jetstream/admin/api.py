"""Requests of the administration to the JetStream API, and the level of the API that the server has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spark_jetstream.admin.models.account import AccountInfo
from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.changes import needed
from spark_jetstream.client import pool
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import JetStreamError, OptionError, PermissionDenied, ServerBusy
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.names import Name, Subject
from spark_jetstream.options.values import Kind
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.jsapi import ACCOUNT_INFO, GATHERED, LEVELS, LOOKING, NEEDED
from spark_jetstream.protocol.units import Timestamp, shown


class Api:
    """Requests to the JetStream API of one account, over the connection that this process has for ``options``.

    It holds no state that a fork or a lost connection invalidates. Any thread may use it. Every method raises:

    - `ApiError` and its subclasses: the server answered with an error.
    - `PermissionDenied`: the account may not publish to the subject, which the error has.
    - `NoResponders`: no server answers at the subject.
    - `RequestTimeout`: no reply came within option ``requestTimeout``.
    - `ConnectionFailed`: the connection is lost, or could not be opened.
    - `ProtocolError`: the reply cannot be read.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.requests = Requests(self.connect, options.request_timeout)
        self._closed = False
        self._level: tuple[Connection, int, int | None] | None = None

    @property
    def connection(self) -> Connection:
        """The connection. Opens it if it is not open."""
        if self._closed:
            raise JetStreamError("this JetStreamAdmin is closed: make another one")
        return pool.connect(self.options)

    def connect(self, seconds: float = 0.0) -> Connection:
        """Return `connection`, for functions that take a `Connect`; the options say how long to wait for it."""
        return self.connection

    def close(self) -> None:
        """Refuse further requests. The connection stays open for others with the same options."""
        self._closed = True

    def ask(self, subject: str, body: Mapping[str, Any] | bytes | None = None, *, context: str, **names: str) -> Any:
        """Return the reply (a JSON object) to a request.

        During an election a cluster answers that it is busy, or does not answer. A request that changes nothing is
        then repeated for option ``requestTimeout`` (see `Connection.ask`).

        Args:
            subject: One of the subjects of `jsapi`, without the prefix of the API.
            body: The JSON of the request.
            context: What is asked, as an infinitive without "to"; errors repeat it.
            **names: Values of the placeholders in ``subject``.

        Raises:
            JetStreamError: The server is too old to answer at this subject.
        """
        if subject in NEEDED:
            self.need(NEEDED[subject], context)
        sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        connection = self.connection
        full = jsapi.subject(connection.prefix, subject, **names)
        if subject not in LOOKING:
            return connection.api(full, sent, context=context)
        ask = connection.api if subject in GATHERED else connection.ask
        deadline, backoff = Deadline(self.options.request_timeout), Backoff()
        while True:
            try:
                return ask(full, sent, context=context)
            except ServerBusy:
                backoff.pause(deadline)
                if deadline.expired:
                    raise

    def account(self) -> AccountInfo:
        """Return usage and limits of the account. Raises `JetStreamNotEnabled` where there is no JetStream."""
        context = "look at the account"
        return AccountInfo.from_server(self.ask(ACCOUNT_INFO, context=context), context)

    def level(self) -> int | None:
        """Return the level of the JetStream API; 0 before server 2.11, None when the account may not ask for it."""
        connection = self.connection
        known = self._level
        if known is None or known[0] is not connection or known[1] != connection.reconnects:
            reconnects = connection.reconnects
            try:
                level: int | None = self.account().api.level
            except PermissionDenied:
                level = None
            known = self._level = (connection, reconnects, level)
        return known[2]

    def newer(self) -> bool:
        """Return whether the server is newer than these models, and may have fields that they do not know.

        A server whose level is not known counts as not newer: an unknown field is then an error.
        """
        try:
            return (self.level() or 0) > max(LEVELS)
        except JetStreamError:
            return False

    def need_for(self, config: Model, context: str) -> None:
        """Raise `JetStreamError` when the server is too old for a field of a configuration."""
        for level, what in needed(config):
            self.need(level, f"{context} with {what}")

    def need(self, level: int, context: str) -> None:
        """Raise `JetStreamError` when the server's API has a lower level. A level that is not known is not checked."""
        actual = self.level()
        if actual is not None and actual < level:
            raise JetStreamError(
                f"cannot {context}: this needs nats-server {LEVELS[level]} or newer (API level {level}), and this one "
                f"has API level {actual}"
            )


def stream_name(name: object) -> str:
    """Return the name of a stream. Raises `OptionError`: with a dot or a wildcard it would be another request."""
    return _checked(Name("stream"), "stream", name)


def consumer_name(name: object) -> str:
    """Return the name of a consumer. Raises `OptionError`."""
    return _checked(Name("consumer"), "consumer", name)


def subject_filter(subject: object, *, literal: bool = False) -> str:
    """Return a subject, with wildcards unless ``literal``. Raises `OptionError`, for None and an empty text too."""
    return _checked(Subject(literal=literal), "subject", subject)


def positive(sequence: Any, what: str = "sequence") -> int:
    """Return a sequence of a stream. Raises `OptionError`: to a server 0 may mean none, or all."""
    if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
        raise OptionError(f"{what} must be a whole number from 1 on, not {shown(sequence)}")
    return sequence


def moment(what: str, time: Any) -> Timestamp:
    """Return a time. Raises `OptionError`, which calls it ``what``."""
    try:
        return Timestamp.of(time)
    except ValueError as error:
        expected = str(error)
    raise OptionError(f"{what} must be {expected}, not {shown(time)}")


def _checked(kind: Kind, what: str, value: object) -> str:
    try:
        return str(kind.read(value))
    except ValueError as error:
        problem = str(error)
    raise OptionError(f"{what} {problem}")
