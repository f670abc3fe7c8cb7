"""Requests about the durable consumers that show how far Spark has committed.

No client pulls from a durable consumer of a query; `Progress` moves it when a batch is committed
(docs/progress.md).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests, ask, settled_info, stream_info
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    ServerBusy,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import PURGE, RUN, SINCE
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.subjects import FilterIndex
from spark_jetstream.source.durable.consumer_state import (
    ConsumerState,
    Purge,
    listed,
    metadata_of,
)
from spark_jetstream.source.durable.moves import Moves, Way
from spark_jetstream.source.probes import DirectProbe

log = logging.getLogger(__name__)

_EVERYTHING = (">",)  # what a consumer without filters has


def taken(durable: str, stream: str, consumer: ConsumerState) -> JetStreamError:
    """Return the error of a run whose consumer belongs to another run now."""
    when = f" at {consumer.since}" if consumer.since else ""
    return JetStreamError(
        f"another run has taken over consumer {durable} of stream {stream} (option durable){when}: "
        "each query needs a durable of its own, and only one run of it may continue"
    )


@dataclass(frozen=True)
class DurableConsumers:
    """The durable consumers of one run of a query, and their stand-ins.

    All methods raise what `Connection.api` raises, and retry nothing. `requests` gives the
    connection, anew for each request. `filters` are the subject filters of the query, empty for
    all, `run` is the token of the run. `moves` knows how they can be moved.
    """

    requests: Requests
    filters: tuple[str, ...]
    run: str
    moves: Moves = field(default_factory=Moves)

    def stream(self, stream: str) -> StreamSummary:
        """Return the state of the stream."""
        return stream_info(self._connection(), stream, f"read stream {stream} (option stream)")

    # One consumer

    def info(self, stream: str, name: str) -> ConsumerState | None:
        """Return the consumer, None if there is none."""
        context = f"look at consumer {name} of stream {stream} (option durable)"
        try:
            body = ask(self._connection(), jsapi.CONSUMER_INFO, stream, name, context=context)
        except ConsumerNotFound:
            return None
        return ConsumerState.from_reply(body, context)

    def create(self, stream: str, name: str, since: str, start: int | None = None) -> ConsumerState:
        """Create the consumer in the name of this run.

        Nothing happens if this run has created the same before. The consumer begins at the sequence
        `start`, by default at the first message. `since`: when the run began, by the server's
        clock. Raises `OptionError` if another consumer of a work queue has the filter, and
        `JetStreamError` if another run was faster.
        """
        context = f"create consumer {name} on stream {stream} (option durable)"
        # Only fields that server 2.10 knows. The server and the stream have defaults for the rest.
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
            # `all` begins at the first message anyway, and a work queue allows no other policy.
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        config |= jsapi.filter_fields(self.filters)
        try:
            request = jsapi.consumer_request(stream, config)
            return self._write(stream, name, self.filters, request, context)
        except ApiError as error:
            # Only a work queue refuses a consumer for the filter of another one.
            if error.err_code in jsapi.FILTER_TAKEN:
                raise self._filter_taken(stream) from None
            if error.err_code == jsapi.CONSUMER_EXISTS:
                other = self.info(stream, name)
                # Two runs that begin together: the slower one finds the consumer
                # of the faster one (test_two_runs_begin_at_the_same_moment).
                if other is not None and other.run != self.run:
                    raise taken(name, stream, other) from None
            raise

    def take_over(
        self, stream: str, name: str, consumer: ConsumerState, since: str
    ) -> ConsumerState:
        """Write into the consumer's metadata that this run has it now; nothing else changes."""
        context = f"take over consumer {name} of stream {stream} (option durable)"
        # Marks of other clients stay: test_a_consumer_that_fits_is_taken_over_as_it_is.
        marks = {**metadata_of(consumer.config), RUN: self.run, SINCE: since}
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
        marks = metadata_of(consumer.config)
        marks.pop(PURGE, None)
        if purge is not None:
            marks[PURGE] = purge.note()
        return self._mark(stream, name, consumer, marks, context)

    def way(self, consumer: ConsumerState, sequence: int) -> Way:
        """Return how the consumer can be moved to a sequence: see `Moves.way`."""
        return self.moves.way(self._connection(), consumer, sequence)

    def reset(self, stream: str, name: str, sequence: int) -> ConsumerState:
        """Move the consumer. The server does not reply for a missing one (`RequestTimeout`)."""
        context = f"move consumer {name} of stream {stream} to sequence {sequence} (option durable)"
        request = jsapi.request_body(seq=sequence)
        body = self._api(jsapi.CONSUMER_RESET, stream, name, body=request, to=context)
        return ConsumerState.from_reply(body, context)

    def delete(self, stream: str, name: str) -> None:
        """Delete the consumer, if it exists."""
        context = f"delete consumer {name} of stream {stream} (option durable)"
        # An earlier try, or a new run, has deleted it.
        with contextlib.suppress(ConsumerNotFound):
            self._api(jsapi.CONSUMER_DELETE, stream, name, to=context)

    def touch(self, stream: str, name: str) -> None:
        """Keep the server from deleting a consumer that has an `inactive_threshold`.

        Only pulls count for that.
        """
        context = f"keep consumer {name} of stream {stream} (option durable)"
        connection = self._connection()
        subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, stream, name)
        # No message fits into it: it delivers nothing, and counts as activity.
        request = jsapi.request_body(batch=1, max_bytes=1, no_wait=True)
        connection.request(subject, request, context=context)

    # Purges

    def purge(self, state: StreamSummary, end: int) -> None:
        """Remove the messages of the query's filters below the sequence `end`, at least 2.

        `state` is that of the stream.
        """
        for subject in self.filters or _EVERYTHING:
            if subject in _EVERYTHING:
                self._purge(state.name, self._end_of_purge(state, end), None)
            else:
                self._purge(state.name, end, subject)

    def sweep(self, stream: str, end: int, own: Sequence[str]) -> None:
        """Purge an interest stream below `end`, as far as no consumer but those in `own` needs it.

        The consumers move along. A failure loses nothing: it is logged as a warning.
        """
        context = f"list the consumers of stream {stream}"
        try:
            for consumer in self._all(stream):
                if consumer.get("name") not in own:
                    # A purge removes a message for all consumers,
                    # so it stops at the one that is furthest behind.
                    end = min(end, ConsumerState.from_reply(consumer, context).next)
            # Otherwise nothing is left to purge.
            # So `end` is at least 2, which `purge_request` needs.
            state = self.stream(stream)
            if end > state.first_kept:
                self._purge(stream, self._end_of_purge(state, end), None)
        except JetStreamError as error:
            log.warning(
                "stream %s keeps messages that no consumer needs any more: %s", stream, error
            )

    def _end_of_purge(self, state: StreamSummary, end: int) -> int:
        """Return where a purge of all subjects below the sequence `end` has to end.

        If each message from there on was deleted, that is after the last sequence. Otherwise a file
        store would count what is purged twice (`compactLocked` in server/filestore.go). A later
        purge that leaves one message would remove it as well (seen from 2.10.26 to 2.15.1).
        """
        has_no_gap = state.num_deleted == 0
        if has_no_gap or end > state.last_seq:
            return end
        probe = DirectProbe(self.requests, state.name, ())
        left = probe.peek(end)
        if left is None and state.clustered:
            # A former leader may have answered, which lacks the newest messages. When the state has
            # settled, it has heard its successor.
            context = f"read stream {state.name} (option stream)"
            self.requests.call(partial(settled_info, name=state.name, context=context))
            left = probe.peek(end)
        # Messages that are published meanwhile come after the last sequence, and stay.
        return state.last_seq + 1 if left is None else end

    def _purge(self, stream: str, end: int, subject: str | None) -> None:
        context = f"remove what was committed from stream {stream} (option durable)"
        self._api(jsapi.STREAM_PURGE, stream, body=jsapi.purge_request(end, subject), to=context)

    # The requests themselves

    def _connection(self) -> Connection:
        return self.requests.connect(self.requests.retry_timeout)

    def _api(self, endpoint: Endpoint, *names: str, body: bytes = b"", to: str) -> dict[str, Any]:
        connection = self._connection()
        return connection.api(jsapi.subject(connection.prefix, endpoint, *names), body, context=to)

    def _mark(
        self,
        stream: str,
        name: str,
        consumer: ConsumerState,
        metadata: Mapping[str, str],
        context: str,
    ) -> ConsumerState:
        """Replace the consumer's metadata."""
        # The server itself adds the keys that are left out.
        kept = {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
        # An update sets each field that it leaves out to its default, so the request repeats the
        # whole configuration.
        config = {**consumer.config, "metadata": kept}
        in_subject: tuple[str, ...] = ()
        if config.get("filter_subject"):
            # A filter that the configuration has in a list must not be part of the subject.
            in_subject = consumer.filters
        request = jsapi.consumer_request(stream, config, action="update")
        return self._write(stream, name, in_subject, request, context)

    def _write(
        self, stream: str, name: str, filters: Sequence[str], request: bytes, context: str
    ) -> ConsumerState:
        connection = self._connection()
        subject = jsapi.consumer_create(connection.prefix, stream, name, filters)
        body = connection.api(subject, request, context=context)
        return ConsumerState.from_reply(body, context)

    def _filter_taken(self, stream: str) -> OptionError:
        """Return the error of a work queue where other consumers have what the query reads."""
        mine = FilterIndex(self.filters or _EVERYTHING)
        holders: list[str] = []
        # The names of the others help, and are not needed.
        with contextlib.suppress(JetStreamError):
            for consumer in self._all(stream):
                theirs = jsapi.filters_of(jsapi.field(consumer, "config", dict, "list"))
                if any(map(mine.overlapping, theirs or _EVERYTHING)):
                    holders.append(f"{consumer.get('name')} ({listed(theirs)})")
        return OptionError(
            f"stream {stream} is a work queue, which gives each message to one consumer only, and "
            f"{', '.join(holders) or 'another consumer'} already has messages of this query "
            f"({listed(self.filters)}); the option subjects must not overlap with the filters of "
            "other consumers",
            option="subjects",
        )

    def _all(self, stream: str) -> list[dict[str, Any]]:
        """Return the stream's consumers, as CONSUMER.LIST describes them.

        Raises `ServerBusy` if some are missing.
        """
        context = f"list the consumers of stream {stream}"
        consumers: list[dict[str, Any]] = []
        total = 1
        while len(consumers) < total:
            request = jsapi.request_body(offset=len(consumers))
            body = self._api(jsapi.CONSUMER_LIST, stream, body=request, to=context)
            page = jsapi.field(body, "consumers", list, context)
            consumers += page
            total = int(jsapi.field(body, "total", int, context))
            # The list has shrunk meanwhile, or the server has sent less than it has counted.
            ends_early = not page and total
            if body.get("missing") or ends_early:
                raise ServerBusy(
                    f"cannot {context}: not all are known now", code=0, err_code=0, description=""
                )
        return consumers
