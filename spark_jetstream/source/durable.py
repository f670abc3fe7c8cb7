"""The durable consumers that show how far Spark has committed (option durable): their state, and requests about them.

No client pulls from such a consumer; `progress` moves it when a batch is committed (docs/progress.md).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests, ask, stream_info
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    ProtocolError,
    ServerBusy,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import PURGE, RUN, SINCE
from spark_jetstream.protocol.features import CONSUMER_RESET, FILTERED_PURGE
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.subjects import FilterIndex

log = logging.getLogger(__name__)

LONG = 50_000
"""Where an interest stream spans more sequences, consumers are neither created nor deleted without need.

A server that deletes a consumer looks for what nobody needs any more. Beyond 100,000 sequences it does that in the
background (`checkInterestState`). If another consumer is deleted before the server comes to it, the server compacts the
stream to 0, which purges it: all messages are lost, whoever needs them (`PURGE_OF_LONG_STREAMS`;
tests/source/test_planner.py, test_a_long_interest_stream). Half of that leaves room for what is published meanwhile.
"""
PAST_THE_END = 2
"""A consumer must not begin so many sequences, or more, past the last one of an interest stream.

The server takes the distance from there to the end, which is below zero, for more than 100,000 sequences, and does the
same as for a `LONG` stream when it deletes the consumer: two such consumers that are deleted together purge the stream
(`cleanupNoInterestMessages` in server/consumer.go; 59 of 60 tries with 2.15.1). Only a stream that lost its tail is
shorter than what is read of it.
"""
_SECOND = 1_000_000_000

_PURGE = re.compile(r"below ([0-9]{1,19}), then at ([0-9]{1,19})( or later)?")


@dataclass(frozen=True)
class Purge:
    """The purge of a commit on a work queue, which a run notes in the consumer's metadata first.

    The server moves the consumer on to the first message that still matches, or to the end of the
    stream, and the run then moves it back to `below`. If the run ends before that, the note tells
    the next run this purge from one by another client, which may have removed unread messages.

    The purge removes what matches below the sequence ``below``: all of that is in Spark's sink.
    When the note was written, nothing matched from there to below the sequence ``next``. If
    ``certain``, the purge moves the consumer no further than ``next``, because the message there
    matches. Otherwise ``next`` was the end of the stream, and the purge moves the consumer on past
    the messages that were stored since and do not match.
    """

    below: int
    next: int
    certain: bool

    def may_move_to(self, sequence: int) -> bool:
        """Whether this purge may have moved the consumer there."""
        return self.below < sequence and (sequence <= self.next or not self.certain)

    def is_doubtful(self, sequence: int) -> bool:
        """Whether a later purge by another client may as well have moved the consumer there."""
        return not self.certain and sequence > self.next

    @classmethod
    def noted(cls, metadata: Mapping[str, str]) -> Purge | None:
        """Return what `note` has written; None also for a text that it does not write."""
        found = _PURGE.fullmatch(metadata.get(PURGE, ""))
        return found and cls(int(found[1]), int(found[2]), certain=found[3] is None)

    def note(self) -> str:
        """Return the text for the metadata."""
        later = "" if self.certain else " or later"
        return f"below {self.below}, then at {self.next}{later}"


@dataclass(frozen=True)
class ConsumerState:
    """What the server said of a consumer.

    ``next`` is the first stream sequence that is not committed, ``deliveries`` how many messages were pulled from it
    (zero, unless another client uses it). ``run`` is the token of the run that has it, None when no query ever had it.
    ``level`` is the API level of the server that answered, 0 before 2.11. ``inactive_threshold`` is in seconds, 0 for
    none. ``purge`` is that of a commit on a work queue that is not finished, None without a note.
    """

    config: Mapping[str, Any]
    next: int
    deliveries: int
    run: str | None
    since: str
    level: int
    inactive_threshold: float
    purge: Purge | None = None

    @property
    def filters(self) -> tuple[str, ...]:
        """Its subject filters, empty for all."""
        return _filters(self.config)

    def can_move_to(self, sequence: int) -> bool:
        """Whether the server can move the consumer there: since 2.14, and not before the sequence it began at."""
        start = self.config.get("opt_start_seq")
        by_start = self.config.get("deliver_policy") == "by_start_sequence"
        return CONSUMER_RESET.is_at(self.level) and sequence >= (
            start if by_start and isinstance(start, int) else 1
        )

    def differences(self, filters: tuple[str, ...], *, in_memory: bool) -> list[str]:
        """What keeps the consumer from holding a query's position, each as "field: wanted X, is Y".

        `in_memory`: the stream is kept in memory, and its consumers may be too.
        """
        config = self.config
        # On a server that cannot move consumers a query's own begins where the last commit was.
        begins = str(config.get("deliver_policy", "all"))
        fields = [
            ("ack_policy", "explicit", str(config.get("ack_policy", "none"))),
            (
                "deliver_policy",
                begins if self.run and begins == "by_start_sequence" else "all",
                begins,
            ),
            ("filter_subjects", _listed(filters), _listed(self.filters)),
            ("deliver_subject", "none", str(config.get("deliver_subject") or "none")),
        ]
        if not in_memory:
            fields.append(("mem_storage", "false", str(bool(config.get("mem_storage"))).lower()))
        return [
            f"{field}: wanted {wanted}, is {value}"
            for field, wanted, value in fields
            if wanted != value
        ]


def consumer_state(body: Mapping[str, Any], context: str) -> ConsumerState:
    """Return the state that a reply about a consumer describes. Raises `ProtocolError` for an unusable one."""
    config: Mapping[str, Any] = jsapi.field(body, "config", dict, context)
    deliveries = int(jsapi.field(body, "delivered.consumer_seq", int, context))
    following = int(jsapi.field(body, "delivered.stream_seq", int, context)) + 1
    start = config.get("opt_start_seq")
    if deliveries or isinstance(start, int):
        floor = int(jsapi.field(body, "ack_floor.stream_seq", int, context))
        if deliveries:
            following = floor + 1
        elif floor == 0 and isinstance(start, int):
            # Before 2.14 the ack floor stays 0 until something moves the consumer, such as a purge. It begins at the
            # stream's first message, if that comes later than its start, and holds what matches from the start on
            # (tried on 2.10.26, 2.11.11 and 2.12.8).
            following = min(following, max(1, start))
    metadata = _metadata(config)
    level = metadata.get("_nats.level", "0")
    threshold = config.get("inactive_threshold", 0)
    if not level.isascii() or not level.isdigit() or not isinstance(threshold, int):
        raise ProtocolError(f"cannot {context}: the server's reply has an unusable configuration")
    return ConsumerState(
        config=config,
        next=following,
        deliveries=deliveries,
        run=metadata.get(RUN),
        since=metadata.get(SINCE, ""),
        level=int(level),
        inactive_threshold=threshold / _SECOND,
        purge=Purge.noted(metadata),
    )


def is_long(state: StreamSummary) -> bool:
    """Whether deleting consumers of the stream is a danger (see `LONG`)."""
    return state.retention == "interest" and state.last_seq + 1 - state.first_kept > LONG


def taken(durable: str, stream: str, consumer: ConsumerState) -> JetStreamError:
    """Return the error of a run whose consumer belongs to another run now."""
    when = f" at {consumer.since}" if consumer.since else ""
    return JetStreamError(
        f"another run has taken over consumer {durable} of stream {stream} (option durable){when}: each query needs a "
        "durable of its own, and only one run of it may continue"
    )


def several_filters(stream: str, filters: tuple[str, ...]) -> OptionError:
    """Return the error of a work queue with several filters, where a purge of one loses messages of the others."""
    return OptionError(
        f"stream {stream} is a work queue on a server before 2.15, which may lose unread messages of a consumer with "
        f"several filters when those of one are removed (option subjects: {_listed(filters)}): read with one filter, "
        "with one query for each, or upgrade the server",
        option="subjects",
    )


@dataclass(frozen=True)
class DurableConsumers:
    """The durable consumers of one run of a query. All methods raise what `Connection.api` raises, and retry nothing.

    `requests` gives the connection, anew for each request. `filters` are the subject filters of the query, empty for
    all, `run` is the token of the run.
    """

    requests: Requests
    filters: tuple[str, ...]
    run: str

    def stream(self, stream: str) -> StreamSummary:
        """Return the state of the stream."""
        return stream_info(self._connection(), stream, f"read stream {stream} (option stream)")

    def info(self, stream: str, name: str) -> ConsumerState | None:
        """Return the consumer, None if there is none."""
        context = f"look at consumer {name} of stream {stream} (option durable)"
        try:
            body = ask(self._connection(), jsapi.CONSUMER_INFO, stream, name, context=context)
        except ConsumerNotFound:
            return None
        return consumer_state(body, context)

    def create(self, stream: str, name: str, since: str, start: int | None = None) -> ConsumerState:
        """Create the consumer in the name of this run; nothing happens if this run has created the same before.

        It begins at the sequence `start`, by default at the first message. `since`: when the run began, by the server's
        clock. Raises `OptionError` if another consumer of a work queue has the filter, and `JetStreamError` if another
        run was faster.
        """
        context = f"create consumer {name} on stream {stream} (option durable)"
        # Only fields that server 2.10 knows. Everything else is left to the defaults of the server and the stream.
        config: dict[str, Any] = {
            "durable_name": name,
            "name": name,
            "description": "how far a Spark query has committed",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "metadata": {RUN: self.run, SINCE: since},
        }
        if start is not None and start > 1:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        try:
            request = jsapi.consumer_request(stream, config | jsapi.filter_fields(self.filters))
            return self._write(stream, name, self.filters, request, context)
        except ApiError as error:
            if error.err_code in jsapi.FILTER_TAKEN:
                raise self._filter_taken(stream) from None
            other = self.info(stream, name) if error.err_code == jsapi.CONSUMER_EXISTS else None
            if other is not None and other.run != self.run:
                raise taken(name, stream, other) from None
            raise

    def take_over(
        self, stream: str, name: str, consumer: ConsumerState, since: str
    ) -> ConsumerState:
        """Write into the consumer's metadata that this run has it now; nothing else about it changes."""
        context = f"take over consumer {name} of stream {stream} (option durable)"
        marks = {**_metadata(consumer.config), RUN: self.run, SINCE: since}
        return self._mark(stream, name, consumer, marks, context)

    def note(
        self,
        stream: str,
        name: str,
        consumer: ConsumerState,
        purge: Purge | None,
    ) -> ConsumerState:
        """Note a purge in the consumer's metadata; None deletes the note. Nothing else changes."""
        context = f"note a commit in consumer {name} of stream {stream} (option durable)"
        marks = _metadata(consumer.config)
        marks.pop(PURGE, None)
        if purge is not None:
            marks[PURGE] = purge.note()
        return self._mark(stream, name, consumer, marks, context)

    def _mark(
        self,
        stream: str,
        name: str,
        consumer: ConsumerState,
        metadata: Mapping[str, str],
        context: str,
    ) -> ConsumerState:
        # The server itself adds the keys that are left out.
        kept = {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
        config = {**consumer.config, "metadata": kept}
        # A filter that the configuration has in a list must not be part of the request's subject.
        in_subject = consumer.filters if config.get("filter_subject") else ()
        request = jsapi.consumer_request(stream, config, action="update")
        return self._write(stream, name, in_subject, request, context)

    def reset(self, stream: str, name: str, sequence: int) -> ConsumerState:
        """Move the consumer. The server does not reply for a missing one (`RequestTimeout`)."""
        context = f"move consumer {name} of stream {stream} to sequence {sequence} (option durable)"
        body = jsapi.request_body(seq=sequence)
        return consumer_state(
            self._api(jsapi.CONSUMER_RESET, stream, name, body=body, to=context), context
        )

    def delete(self, stream: str, name: str) -> None:
        """Delete the consumer, if it exists."""
        context = f"delete consumer {name} of stream {stream} (option durable)"
        with contextlib.suppress(ConsumerNotFound):
            self._api(jsapi.CONSUMER_DELETE, stream, name, to=context)

    def touch(self, stream: str, name: str) -> None:
        """Keep the server from deleting a consumer that has an `inactive_threshold`: only pulls count for that."""
        context = f"keep consumer {name} of stream {stream} (option durable)"
        connection = self._connection()
        subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, stream, name)
        # No message fits into it: it delivers nothing, and counts as activity.
        connection.request(
            subject, jsapi.request_body(batch=1, max_bytes=1, no_wait=True), context=context
        )

    def loses_messages(self, state: StreamSummary, consumer: ConsumerState) -> bool:
        """Whether the purge of one filter of a work queue takes messages of the others (`FILTERED_PURGE`)."""
        several = state.retention == "workqueue" and len(self.filters) > 1
        return several and not FILTERED_PURGE.is_at(consumer.level)

    def purge(self, stream: str, end: int) -> None:
        """Remove the messages of the query's filters below the sequence `end`, which is at least 2."""
        for subject in self.filters or (None,):
            self._purge(stream, end, subject)

    def sweep(self, stream: str, end: int, own: Sequence[str]) -> None:
        """Purge an interest stream below `end`, as far as no consumer but those named `own` needs it; they move along.

        A failure loses nothing: it is logged as a warning.
        """
        try:
            context = f"list the consumers of stream {stream}"
            others = [consumer for consumer in self._all(stream) if consumer.get("name") not in own]
            end = min([end, *(consumer_state(consumer, context).next for consumer in others)])
            if end > self.stream(stream).first_kept:
                self._purge(stream, end, None)
        except JetStreamError as error:
            log.warning(
                "stream %s keeps messages that no consumer needs any more: %s", stream, error
            )

    def _connection(self) -> Connection:
        return self.requests.connect(self.requests.retry_timeout)

    def _api(self, template: str, *names: str, body: bytes = b"", to: str) -> dict[str, Any]:
        connection = self._connection()
        return connection.api(jsapi.subject(connection.prefix, template, *names), body, context=to)

    def _write(
        self, stream: str, name: str, filters: Sequence[str], request: bytes, context: str
    ) -> ConsumerState:
        connection = self._connection()
        subject = jsapi.consumer_create(connection.prefix, stream, name, filters)
        return consumer_state(connection.api(subject, request, context=context), context)

    def _purge(self, stream: str, end: int, subject: str | None) -> None:
        context = f"remove what was committed from stream {stream} (option durable)"
        self._api(jsapi.STREAM_PURGE, stream, body=jsapi.purge_request(end, subject), to=context)

    def _filter_taken(self, stream: str) -> OptionError:
        holders: list[str] = []
        mine = FilterIndex(self.filters or (">",))
        with contextlib.suppress(JetStreamError):  # the names help, and are not needed
            for consumer in self._all(stream):
                theirs = _filters(jsapi.field(consumer, "config", dict, "list"))
                if any(mine.overlapping(other) is not None for other in theirs or (">",)):
                    holders.append(f"{consumer.get('name')} ({_listed(theirs)})")
        return OptionError(
            f"stream {stream} is a work queue, which gives each message to one consumer only, and "
            f"{', '.join(holders) or 'another consumer'} already has what this query reads "
            f"({_listed(self.filters)}): the option subjects must not overlap with the filters of other consumers",
            option="subjects",
        )

    def _all(self, stream: str) -> list[dict[str, Any]]:
        """Return the stream's consumers, as CONSUMER.LIST describes them. Raise `ServerBusy` if some are missing."""
        context = f"list the consumers of stream {stream}"
        consumers: list[dict[str, Any]] = []
        total = 1
        while len(consumers) < total:
            request = jsapi.request_body(offset=len(consumers))
            body = self._api(jsapi.CONSUMER_LIST, stream, body=request, to=context)
            page = jsapi.field(body, "consumers", list, context)
            consumers += page
            total = int(jsapi.field(body, "total", int, context))
            if body.get("missing") or (not page and total):
                raise ServerBusy(
                    f"cannot {context}: not all are known now", code=0, err_code=0, description=""
                )
        return consumers


def _filters(config: Mapping[str, Any]) -> tuple[str, ...]:
    several = config.get("filter_subjects")
    if isinstance(several, list):
        return tuple(str(subject) for subject in several)
    one = config.get("filter_subject")
    return (one,) if isinstance(one, str) and one else ()


def _metadata(config: Mapping[str, Any]) -> dict[str, str]:
    metadata = config.get("metadata")
    return (
        {str(key): str(value) for key, value in metadata.items()}
        if isinstance(metadata, dict)
        else {}
    )


def _listed(filters: Iterable[str]) -> str:
    return ", ".join(sorted(filters)) or "all subjects"
