"""How administration asks the JetStream API: connection, subject, body, reply; and which API the server has."""

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
from spark_jetstream.errors import JetStreamError, OptionError, PermissionDenied, ServerBusy
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.names import Name, Subject
from spark_jetstream.options.values import Kind
from spark_jetstream.protocol.jsapi import ACCOUNT_INFO, GATHERED, LEVELS, LOOKING, NEEDED
from spark_jetstream.protocol.units import Timestamp, shown


class Api:
    """Requests to the JetStream API of one account, over the connection that this process has for ``options``.

    Holds nothing that a fork or a lost connection would spoil. For any thread. Every method raises what
    `Connection.api` raises: `ApiError` and its kinds, `PermissionDenied` with the subject, `RequestTimeout`,
    `NoResponders`, `ConnectionFailed`.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._closed = False
        self._level: tuple[Connection, int, int | None] | None = None

    @property
    def connection(self) -> Connection:
        """The connection, opened if need be."""
        if self._closed:
            raise JetStreamError("this JetStreamAdmin is closed: make another one")
        return pool.connect(self.options)

    def close(self) -> None:
        """Refuse further requests. The connection stays, for others with the same options."""
        self._closed = True

    def ask(self, subject: str, body: Mapping[str, Any] | bytes | None = None, *, context: str, **names: str) -> Any:
        """The reply (a JSON object) to a request at one of `api_subjects`, with ``names`` put in.

        ``context`` says what is asked, as an infinitive without "to". Raises `JetStreamError` when the server is too
        old for the subject, instead of waiting for a reply that never comes.

        While a cluster elects a leader it says that it is busy, or nothing at all. Requests that change nothing are
        made again then, for as long as option ``requestTimeout`` says (see `Connection.ask`).
        """
        if subject in NEEDED:
            self.need(NEEDED[subject], context)
        sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        connection = self.connection
        full = f"{connection.prefix}.{subject.format(**names)}"
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
        """What the server says of the account. Raises `JetStreamNotEnabled` where there is no JetStream."""
        context = "look at the account"
        return AccountInfo.from_server(self.ask(ACCOUNT_INFO, context=context), context)

    def level(self) -> int | None:
        """The level of the JetStream API; 0 before server 2.11. None when the account may not ask for it."""
        connection = self.connection
        known = self._level
        if known is None or known[0] is not connection or known[1] != connection.reconnects:
            reconnects = connection.reconnects
            try:
                found: int | None = self.account().api.level
            except PermissionDenied:
                found = None
            known = self._level = (connection, reconnects, found)
        return known[2]

    def newer(self) -> bool:
        """Whether the server is newer than the models of this version, and may have fields that they do not know.

        A server that does not say so is not: an unknown field is then an error of its own.
        """
        try:
            return (self.level() or 0) > max(LEVELS)
        except JetStreamError:
            return False

    def need_for(self, config: Model, context: str) -> None:
        """Raise `JetStreamError` when the server does not know something that a configuration has."""
        for level, what in needed(config):
            self.need(level, f"{context} with {what}")

    def need(self, level: int, context: str) -> None:
        """Raise `JetStreamError` when the server's API has a lower level; one that may not be asked is trusted."""
        found = self.level()
        if found is not None and found < level:
            raise JetStreamError(
                f"cannot {context}: this needs nats-server {LEVELS[level]} or newer (API level {level}), and this one "
                f"has API level {found}"
            )


def stream_name(name: object) -> str:
    """The name of a stream, or `OptionError`: with a dot or a wildcard it would be another request."""
    return _checked(Name("stream"), "stream", name)


def consumer_name(name: object) -> str:
    """The name of a consumer, or `OptionError`."""
    return _checked(Name("consumer"), "consumer", name)


def subject_filter(subject: object, *, literal: bool = False) -> str:
    """A subject, with wildcards unless ``literal``, or `OptionError`. None and an empty text are none."""
    return _checked(Subject(literal=literal), "subject", subject)


def positive(sequence: Any) -> int:
    """A sequence of a stream, or `OptionError`: to a server 0 may mean none, or all."""
    if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
        raise OptionError(f"sequence must be a whole number from 1 on, not {shown(sequence)}")
    return sequence


def moment(what: str, time: Any) -> Timestamp:
    """A time, or `OptionError` that names it ``what``."""
    try:
        return Timestamp.of(time)
    except ValueError as error:
        words = str(error)
    raise OptionError(f"{what} must be {words}, not {shown(time)}")


def _checked(kind: Kind, what: str, value: object) -> str:
    try:
        return str(kind.read(value))
    except ValueError as error:
        words = str(error)
    raise OptionError(f"{what} {words}")
