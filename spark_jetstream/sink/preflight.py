"""Checks on the driver before the first row: the part that all kinds of datasets share.

Each kind (`sink.kinds`) asks its own questions through `StartCheck`. The checks leave out
everything that a publisher's permissions hide from it, and everything that no server can show
during an election. They never leave out what delivery exactly-once and the columns schedule and
atomic_group need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from spark_jetstream.buckets.kv import stream_name
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import (
    DeliveryError,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    SchemaError,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.options import SinkOptions
from spark_jetstream.options.connection import may_rename_subjects
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import (
    COUNTERS,
    MESSAGE_TTL,
    SCHEDULE_DETAILS,
    shown_version,
)
from spark_jetstream.sink.fitness import refuse_unfit
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming
from spark_jetstream.streams.lookup import nearest_stream, nearest_subject, streams_of

log = logging.getLogger(__name__)

T = TypeVar("T")

NEWER_COLUMNS = {
    "incr": COUNTERS,
    "ttl": MESSAGE_TTL,
    "schedule_time_zone": SCHEDULE_DETAILS,
    "schedule_source": SCHEDULE_DETAILS,
    "schedule_rollup": SCHEDULE_DETAILS,
}
"""The features of the server that columns need."""


class _Checked(NamedTuple):
    """When a check ended, on the clock of `WriteTiming`, and its result."""

    time: float
    result: Any


_checked: dict[tuple[SinkOptions, frozenset[str]], _Checked] = {}


def check_start(
    connect: Connect,
    options: SinkOptions,
    check: Callable[[StartCheck], T],
    needs: frozenset[str] = frozenset(),
    *,
    patient: bool = False,
    in_elections: bool = False,
    timing: WriteTiming = WRITE_TIMING,
) -> T:
    """Check the server, and the dataset by `check`. Return what `check` has returned.

    `needs` has the columns that need a setting of the stream or a feature of the server. For
    `timing.check_holds` the result holds for other writes with these options and columns. With
    `patient` a micro-batch waits long for the answers; without `in_elections` the checks leave out
    what no server can show during one.

    Raises `SchemaError` for a column that the server is too old for, `StreamNotFound`, and what
    `connect` and `check` raise.
    """
    # Each write of a query with foreachBatch has a writeId of its own.
    key = options.model_copy(update={"write_id": None}), needs
    last = _checked.get(key)
    if last is not None and timing.clock() - last.time < timing.check_holds:
        result: T = last.result
        return result
    first = last is None
    # A batch write that was never checked in this process more likely names the wrong server than
    # one that restarts. A micro-batch builds its writer anew, often in a new process, which cannot
    # know whether the query just begins.
    begins = first and not options.streaming
    short = options.connection.connect_timeout
    long = options.connection.retry_timeout
    connection = connect(short if begins else long)
    _check_server(connection, needs)
    brief = begins or (first and not patient and not _must_be_checked(options))
    questions = StartCheck(
        connect,
        options,
        prefix=connection.prefix,
        patience=short if brief else long,
        in_elections=in_elections,
    )
    result = check(questions)
    _checked[key] = _Checked(timing.clock(), result)
    return result


def _must_be_checked(options: SinkOptions) -> bool:
    """Whether a micro-batch waits long for the checks, for any kind of dataset.

    Delivery exactly-once needs them. With option domain, a missing answer may mean that the domain
    does not exist.
    """
    return options.delivery == "exactly-once" or options.connection.domain is not None


def _check_server(connection: Connection, needs: frozenset[str]) -> None:
    for column, feature in NEWER_COLUMNS.items():
        if column in needs and not connection.can(feature):
            version = shown_version(connection.server_version)
            raise SchemaError(
                f'column "{column}" needs nats-server {feature.since}, and this one is {version}'
            )


class StartCheck:
    """Questions about the streams of a write, before its first row.

    `prefix` is that of the API of the account.
    """

    def __init__(
        self,
        connect: Connect,
        options: SinkOptions,
        *,
        prefix: str,
        patience: float,
        in_elections: bool,
    ) -> None:
        self.prefix = prefix
        self.requests = Requests(connect, patience)
        self._options = options
        self._in_elections = in_elections

    def visible(self, read: Callable[[], T], needed: str = "") -> T | None:
        """Return what `read` returns, None if the account may not see it, or no server shows it now.

        `needed` says what has to be seen all the same, in the `DeliveryError` that is raised then.
        Also raises if acknowledgements can never arrive: the inbox is forbidden, or the JetStream
        domain does not exist; and in an election with `in_elections`.
        """
        try:
            return read()
        except (PermissionDenied, NoResponders, RequestTimeout, ServerBusy) as error:
            if needed:
                raise DeliveryError(f"{needed}: {error}") from None
            if self._is_fatal(error):
                raise
            log.info("not checked before writing: %s", error)
            return None

    def _is_fatal(self, error: JetStreamError) -> bool:
        connection = self._options.connection
        if isinstance(error, PermissionDenied):
            inboxes = f"{connection.inbox_prefix}."
            return (error.subject or "").startswith(inboxes)
        if isinstance(error, NoResponders):
            return connection.domain is not None
        return isinstance(error, ServerBusy) and self._in_elections

    def info(
        self, stream: str, option: str, what: str, prefix: str | None = None
    ) -> dict[str, Any]:
        """Return the reply of STREAM.INFO. Errors call the stream `what`."""
        try:
            return self.requests.ask(
                jsapi.STREAM_INFO, stream, context=f"read {what} (option {option})", prefix=prefix
            )
        except StreamNotFound as error:
            kind = "" if option == "stream" else stream_name("")
            hint = nearest_stream(self.requests.connect, [stream], kind, options=True)
            raise jsapi.reworded(error, f"there is no {what} (option {option}){hint}") from None

    def streams_capturing(self, subject: str, option: str) -> list[str] | None:
        """Return the streams that capture a subject, None if the account cannot see them.

        Raises `OptionError` if there is none.
        """
        capturing = partial(streams_of, subject=subject, hint=f" (option {option})")
        names = self.visible(partial(self.requests.call, capturing))
        if names == [] and not may_rename_subjects(self._options.connection):
            meant = nearest_subject(self.requests.connect, subject)
            raise OptionError(
                f"option {option}: no stream captures {subject}, so nothing would be stored{meant}",
                option=option,
            )
        return names

    def dead_letters(self) -> None:
        """Check the stream of option `deadLetterSubject`, if it is set."""
        subject = self._options.dead_letter_subject
        option = "deadLetterSubject"
        if subject is None:
            return
        names = self.streams_capturing(subject, option)
        if self._options.delivery != "exactly-once":
            return
        for name in names or ():
            state = self.visible(partial(self.requests.stream, name))
            if state is not None:
                refuse_unfit(state, f" (option {option})")
