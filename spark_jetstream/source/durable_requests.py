"""The requests about the durable consumers of a query: what `progress` asks of the server, one method each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from spark_jetstream import jsapi
from spark_jetstream.connection import Connection
from spark_jetstream.errors import ApiError, ConsumerNotFound, JetStreamError, ServerBusy
from spark_jetstream.source import durable as pure
from spark_jetstream.source.durable import Seen
from spark_jetstream.streams import StreamState, stream_state

log = logging.getLogger(__name__)


class Requests:
    """What the run `run` of a query asks of the server. All methods raise what `Connection.api` raises.

    `connect()` gives the connection, anew for each request.
    """

    def __init__(self, connect: Callable[[], Connection], filters: tuple[str, ...], run: str) -> None:
        self._connect = connect
        self._filters = filters
        self._run = run

    def state(self, stream: str) -> StreamState:
        """What STREAM.INFO says now."""
        context = f"read stream {stream} (option stream)"
        connection = self._connect()
        return stream_state(connection.ask(jsapi.stream_info(connection.prefix, stream), b"", context=context), context)

    def info(self, stream: str, name: str) -> Seen | None:
        """The consumer, None if there is none."""
        context = f"look at consumer {name} of stream {stream} (option durable)"
        connection = self._connect()
        try:
            body = connection.ask(jsapi.consumer_info(connection.prefix, stream, name), b"", context=context)
        except ConsumerNotFound:
            return None
        return pure.seen(body, context)

    def create(self, stream: str, name: str, since: str, start: int | None = None) -> Seen:
        """Make the consumer, in the name of this run; nothing happens if this run has made the same before.

        Raises `OptionError` when another consumer of a work queue has the filter, `JetStreamError` when another run
        has made one of this name.
        """
        context = f"create consumer {name} on stream {stream} (option durable)"
        config = pure.consumer_config(name, self._filters, self._run, since, start)
        connection = self._connect()
        subject = jsapi.consumer_create(connection.prefix, stream, name, self._filters)
        try:
            body = connection.api(subject, jsapi.create_request(stream, config), context=context)
        except ApiError as error:
            if error.err_code in jsapi.FILTER_TAKEN:
                raise pure.filter_taken(stream, self._holders(stream), self._filters) from None
            other = self.info(stream, name) if error.err_code == jsapi.CONSUMER_EXISTS else None
            if other is not None and other.run != self._run:
                raise pure.taken(name, stream, other) from None
            raise
        return pure.seen(body, context)

    def take_over(self, stream: str, name: str, found: Seen, since: str) -> Seen:
        """Write into a consumer that this run has it now; nothing else about it changes."""
        context = f"take over consumer {name} of stream {stream} (option durable)"
        config = pure.taken_over(found.config, self._run, since)
        connection = self._connect()
        subject = jsapi.consumer_create(connection.prefix, stream, name, pure.filters_in_subject(found.config))
        return pure.seen(connection.api(subject, jsapi.update_request(stream, config), context=context), context)

    def reset(self, stream: str, name: str, to: int) -> Seen:
        """Move the consumer. For a missing one no reply comes at all (`RequestTimeout`)."""
        context = f"move consumer {name} of stream {stream} to sequence {to} (option durable)"
        connection = self._connect()
        subject = jsapi.consumer_reset(connection.prefix, stream, name)
        return pure.seen(connection.api(subject, jsapi.reset_request(to), context=context), context)

    def delete(self, stream: str, name: str) -> None:
        """Delete the consumer, if it is there."""
        context = f"delete consumer {name} of stream {stream} (option durable)"
        connection = self._connect()
        with contextlib.suppress(ConsumerNotFound):
            connection.api(jsapi.consumer_delete(connection.prefix, stream, name), b"", context=context)

    def touch(self, stream: str, name: str) -> None:
        """Keep the server from deleting a consumer that has an `inactive_threshold`: only pulls count for that."""
        context = f"keep consumer {name} of stream {stream} (option durable)"
        connection = self._connect()
        connection.request(jsapi.consumer_next(connection.prefix, stream, name), jsapi.touch_request(), context=context)

    def purge(self, stream: str, end: int) -> None:
        """Remove the messages of the query's filters below a sequence, which is at least 2."""
        for one in self._filters or (None,):
            self._purge(stream, jsapi.purge_request(end, one))

    def sweep(self, stream: str) -> None:
        """Remove from an interest stream what no consumer needs any more, if the server did not.

        One before 2.14 looks for that when a consumer is deleted, but not in a stream of `pure.SWEPT` sequences or
        more, and then never. Failing to do so loses nothing: a warning is logged.
        """
        state = self.state(stream)
        if state.last_seq - state.first_kept < pure.SWEPT:
            return
        try:
            end = min(pure.seen(each, f"list the consumers of stream {stream}").next for each in self._all(stream))
            if end > state.first_kept:
                self._purge(stream, jsapi.purge_request(end, None))
        except JetStreamError as error:
            log.warning("stream %s keeps messages that no consumer needs any more: %s", stream, error)

    def _purge(self, stream: str, request: bytes) -> None:
        context = f"remove what was committed from stream {stream} (option durable)"
        connection = self._connect()
        connection.api(jsapi.stream_purge(connection.prefix, stream), request, context=context)

    def _holders(self, stream: str) -> list[dict[str, Any]]:
        with contextlib.suppress(JetStreamError):  # the names help, and are not needed
            return self._all(stream)
        return []

    def _all(self, stream: str) -> list[dict[str, Any]]:
        """The stream's consumers, as CONSUMER.LIST has them: all, or an error."""
        context = f"list the consumers of stream {stream}"
        connection = self._connect()
        subject = jsapi.consumer_list(connection.prefix, stream)
        found: list[dict[str, Any]] = []
        total = 1
        while len(found) < total:
            body = connection.api(subject, jsapi.consumer_list_request(len(found)), context=context)
            page = jsapi.field(body, "consumers", list, context)
            found += page
            total = int(jsapi.field(body, "total", int, context))
            if body.get("missing") or (not page and total):
                raise ServerBusy(f"cannot {context}: not all are known now", code=0, err_code=0, description="")
        return found
