"""The consumer that shows how far Spark has committed, as data: what it is to be, and what the server says of it. Pure.

Nobody pulls from it. Its position moves only when a batch is committed, so that it holds the messages of an interest
stream, reserves its part of a work queue, and shows a query's lag to everybody who looks at the stream's consumers.

The requests about the durable consumers of a query: what `progress` asks of the server, one method each.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import ApiError, ConsumerNotFound, JetStreamError, OptionError, ProtocolError, ServerBusy
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.protocol.stream import StreamState, stream_state
from spark_jetstream.protocol.subjects import subjects_overlap

RESET_LEVEL = 4
"""The API level of the first server that can move a consumer (2.14)."""
SEVERAL_FILTERS_LEVEL = 5
"""The API level of the first server that purges one of several filters of a work queue's consumer safely (2.15).

Those before move the consumer behind what they purge, and past messages of its other filters. A cluster takes these
for acknowledged and removes them when its leaders change (seen with 2.12.8 and 2.14.6).
"""
SWEPT = 100_000
"""From so many sequences in an interest stream on, a server before 2.14 leaves there what a deleted consumer held."""

_SECOND = 1_000_000_000


@dataclass(frozen=True)
class ConsumerState:
    """What the server said of a consumer.

    ``next`` is the first stream sequence that is not committed, ``deliveries`` how many messages were pulled from it
    (zero, unless somebody else uses it). ``run`` is the token of the run that has it, None when no query ever had it.
    ``level`` is the API level of the server that answered, 0 before 2.11. ``inactive_threshold`` is in seconds, 0 for
    none.
    """

    config: Mapping[str, Any]
    next: int
    deliveries: int
    run: str | None
    since: str
    level: int
    inactive_threshold: float

    @property
    def filters(self) -> tuple[str, ...]:
        """Its subject filters, empty for all."""
        return _filters(self.config)

    @property
    def lowest(self) -> int:
        """The first sequence it can be moved to."""
        start = self.config.get("opt_start_seq")
        return start if isinstance(start, int) and self.config.get("deliver_policy") == "by_start_sequence" else 1


def seen(body: Mapping[str, Any], context: str) -> ConsumerState:
    """A `ConsumerState` from a reply that describes a consumer.

    `context` says what was asked, as an infinitive without "to". Raises `ProtocolError` when a field is missing.
    """
    config: Mapping[str, Any] = jsapi.field(body, "config", dict, context)
    deliveries = int(jsapi.field(body, "delivered.consumer_seq", int, context))
    # The floor of a consumer that begins at a sequence is 0 before 2.14; what was delivered begins right on all.
    position = "ack_floor" if deliveries else "delivered"
    metadata = _metadata(config)
    level = metadata.get("_nats.level", "0")
    threshold = config.get("inactive_threshold", 0)
    if not level.isascii() or not level.isdigit() or not isinstance(threshold, int):
        raise ProtocolError(f"cannot {context}: the server's reply has an unusable configuration")
    return ConsumerState(
        config=config,
        next=int(jsapi.field(body, f"{position}.stream_seq", int, context)) + 1,
        deliveries=deliveries,
        run=metadata.get(RUN),
        since=metadata.get(SINCE, ""),
        level=int(level),
        inactive_threshold=threshold / _SECOND,
    )


def consumer_config(
    name: str, filters: tuple[str, ...], run: str, since: str, start: int | None = None
) -> dict[str, Any]:
    """What to create: a durable pull consumer that begins with the first message, or at the sequence `start`.

    Only what server 2.10 knows. Everything else is left to the server's defaults, and to the stream.
    """
    config: dict[str, Any] = {
        "durable_name": name,
        "name": name,
        "description": "how far a Spark query has committed",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "metadata": {RUN: run, SINCE: since},
    }
    if start is not None and start > 1:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    if len(filters) == 1:
        config["filter_subject"] = filters[0]
    elif filters:
        config["filter_subjects"] = list(filters)
    return config


def taken_over(config: Mapping[str, Any], run: str, since: str) -> dict[str, Any]:
    """The same configuration in the name of another run. The keys that the server itself adds are left out."""
    kept = {key: value for key, value in _metadata(config).items() if not key.startswith("_nats.")}
    return {**config, "metadata": {**kept, RUN: run, SINCE: since}}


def filters_in_subject(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The filters as `jsapi.consumer_create` wants them: one that stands in a list is no part of the subject."""
    one = config.get("filter_subject")
    return (one,) if isinstance(one, str) and one else ()


def differences(found: ConsumerState, filters: tuple[str, ...], *, in_memory: bool) -> list[str]:
    """What keeps an existing consumer from holding a query's position, each as "field: wanted X, is Y".

    The order of the filters does not matter, nor does what changes nothing for a consumer that nobody pulls from
    (descriptions, metadata, limits of pulls and deliveries, a pause). `in_memory`: the stream is kept in memory, and
    its consumers may be too.
    """
    config = found.config
    differing: list[str] = []

    def compare(field: str, wanted: str, value: str) -> None:
        if wanted != value:
            differing.append(f"{field}: wanted {wanted}, is {value}")

    compare("ack_policy", "explicit", str(config.get("ack_policy", "none")))
    # On a server that cannot move consumers a query's own begins where the last commit was.
    begins = str(config.get("deliver_policy", "all"))
    compare("deliver_policy", "by_start_sequence" if found.run and begins == "by_start_sequence" else "all", begins)
    compare("filter_subjects", _named(filters), _named(found.filters))
    compare("deliver_subject", "none", str(config.get("deliver_subject") or "none"))
    if not in_memory:
        compare("mem_storage", "false", str(bool(config.get("mem_storage"))).lower())
    return differing


def unfit(durable: str, stream: str, differing: Iterable[str]) -> OptionError:
    """The error of a consumer that is there and cannot be used, for the reasons that `differences` gives."""
    return OptionError(
        f"consumer {durable} of stream {stream} (option durable) has another configuration than this query needs: "
        f"{'; '.join(differing)}. Give durable another name (a query with other subjects needs one of its own), or "
        "delete the consumer, which lets go of what only it holds",
        option="durable",
    )


def of_an_application(durable: str, stream: str) -> OptionError:
    """The error of a consumer that no query ever had, and that messages were pulled from."""
    return OptionError(
        f"consumer {durable} of stream {stream} (option durable) has delivered messages to an application; give "
        "durable a name that nobody else uses",
        option="durable",
    )


def several_filters(stream: str, filters: tuple[str, ...]) -> OptionError:
    """The error of a work queue with several filters, on a server where a purge of one loses messages of the others."""
    return OptionError(
        f"stream {stream} is a work queue on a server before 2.15, which may lose unread messages of a consumer with "
        f"several filters when those of one are removed (option subjects: {_named(filters)}): read with one filter, "
        "with one query for each, or upgrade the server",
        option="subjects",
    )


def filter_taken(stream: str, consumers: Iterable[Mapping[str, Any]], filters: tuple[str, ...]) -> OptionError:
    """The error of a work queue where another of its `consumers` has the filter."""
    return OptionError(
        f"stream {stream} is a work queue, which gives each message to one consumer only, and "
        f"{', '.join(_holders(consumers, filters)) or 'another consumer'} already has what this query reads "
        f"({_named(filters)}): the option subjects must not overlap with the filters of other consumers",
        option="subjects",
    )


def taken(durable: str, stream: str, found: ConsumerState) -> JetStreamError:
    """The error of a run that finds its consumer in the name of another one."""
    when = f" at {found.since}" if found.since else ""
    return JetStreamError(
        f"another run has taken over consumer {durable} of stream {stream} (option durable){when}: each query needs a "
        "durable of its own, and only one run of it may go on"
    )


def missing(durable: str, stream: str) -> str:
    """What is wrong when the consumer is not there."""
    return (
        f"consumer {durable} of stream {stream} (option durable) does not exist: it was deleted, or the option is new "
        "for this checkpoint"
    )


def _holders(consumers: Iterable[Mapping[str, Any]], filters: tuple[str, ...]) -> list[str]:
    """The consumers of a work queue that have subjects of these filters, each as "NAME (its filters)"."""
    found = []
    for consumer in consumers:
        config = consumer.get("config")
        if isinstance(config, dict):
            theirs = _filters(config)
            if any(subjects_overlap(one, other) for one in filters or (">",) for other in theirs or (">",)):
                found.append(f"{consumer.get('name')} ({_named(theirs)})")
    return found


def may_be_deleted(durable: str, stream: str, found: ConsumerState) -> str:
    """What to warn of when the server deletes the consumer of an interest stream while nothing is heard of it."""
    return (
        f"stream {stream}: its limits (consumer_limits), or its account's, let the server delete consumer {durable} "
        f"(option durable) after {found.inactive_threshold:g} s without a sign of life. The query gives one at each "
        "trigger; if it is down for longer, messages are lost: raise inactive_threshold"
    )


def _filters(config: Mapping[str, Any]) -> tuple[str, ...]:
    several = config.get("filter_subjects")
    return tuple(str(each) for each in several) if isinstance(several, list) else filters_in_subject(config)


def _metadata(config: Mapping[str, Any]) -> dict[str, str]:
    metadata = config.get("metadata")
    return {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def _named(filters: Iterable[str]) -> str:
    return ", ".join(sorted(filters)) or "all subjects"


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

    def info(self, stream: str, name: str) -> ConsumerState | None:
        """The consumer, None if there is none."""
        context = f"look at consumer {name} of stream {stream} (option durable)"
        connection = self._connect()
        try:
            body = connection.ask(jsapi.consumer_info(connection.prefix, stream, name), b"", context=context)
        except ConsumerNotFound:
            return None
        return seen(body, context)

    def create(self, stream: str, name: str, since: str, start: int | None = None) -> ConsumerState:
        """Make the consumer, in the name of this run; nothing happens if this run has made the same before.

        Raises `OptionError` when another consumer of a work queue has the filter, `JetStreamError` when another run
        has made one of this name.
        """
        context = f"create consumer {name} on stream {stream} (option durable)"
        config = consumer_config(name, self._filters, self._run, since, start)
        connection = self._connect()
        subject = jsapi.consumer_create(connection.prefix, stream, name, self._filters)
        try:
            body = connection.api(subject, jsapi.create_request(stream, config), context=context)
        except ApiError as error:
            if error.err_code in jsapi.FILTER_TAKEN:
                raise filter_taken(stream, self._holders(stream), self._filters) from None
            other = self.info(stream, name) if error.err_code == jsapi.CONSUMER_EXISTS else None
            if other is not None and other.run != self._run:
                raise taken(name, stream, other) from None
            raise
        return seen(body, context)

    def take_over(self, stream: str, name: str, found: ConsumerState, since: str) -> ConsumerState:
        """Write into a consumer that this run has it now; nothing else about it changes."""
        context = f"take over consumer {name} of stream {stream} (option durable)"
        config = taken_over(found.config, self._run, since)
        connection = self._connect()
        subject = jsapi.consumer_create(connection.prefix, stream, name, filters_in_subject(found.config))
        return seen(connection.api(subject, jsapi.update_request(stream, config), context=context), context)

    def reset(self, stream: str, name: str, to: int) -> ConsumerState:
        """Move the consumer. For a missing one no reply comes at all (`RequestTimeout`)."""
        context = f"move consumer {name} of stream {stream} to sequence {to} (option durable)"
        connection = self._connect()
        subject = jsapi.consumer_reset(connection.prefix, stream, name)
        return seen(connection.api(subject, jsapi.reset_request(to), context=context), context)

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
        if state.last_seq - state.first_kept < SWEPT:
            return
        try:
            end = min(seen(each, f"list the consumers of stream {stream}").next for each in self._all(stream))
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
