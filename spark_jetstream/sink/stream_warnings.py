"""Warnings about streams that may lose rows, or store them twice, once for each application of Spark.

A write goes on all the same: the user may know, and the level `exactly-once` refuses what it cannot
hold.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from operator import attrgetter

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import JetStreamError, brief
from spark_jetstream.options import ConnectionOptions, SinkOptions, advice
from spark_jetstream.protocol.fitness import StreamFault, drops_rows, removing_setting
from spark_jetstream.protocol.own_traffic import stored_replies
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.spark_process import first_time
from spark_jetstream.streams.lookup import RawMessage, message

log = logging.getLogger(__name__)

_warned: set[tuple[str, str]] = set()


def warn_of_stream(
    requests: Requests, state: StreamSummary, options: SinkOptions, needs: frozenset[str]
) -> None:
    """Log what may become of rows in a stream.

    `needs` has the columns that need more than a plain stream.
    """
    warn_of_lost_rows(state, options)
    _warn_of_lost_ids(state, options, needs)
    _warn_of_a_small_stream(requests, state, options.connection)
    _warn_of_own_replies(state, options.connection)
    _warn_of_a_short_window(state, options)


def warn_of_lost_rows(state: StreamSummary, options: SinkOptions) -> None:
    """Log that a stream acknowledges rows that it may lose."""
    if state.persist_mode == "async" and first_time(
        f"persist_mode of {state.name} at {options.connection!r}"
    ):
        log.warning(
            "stream %s acknowledges rows before it has stored them (persist_mode async): a crash "
            "of its server loses rows that count as written; write to a stream without it",
            state.name,
        )
    if drops_rows(state) and first_time(f"consumers of {state.name} at {options.connection!r}"):
        log.warning(
            "stream %s keeps messages only for its consumers (retention interest) and has none: it "
            "acknowledges rows and drops them; create a consumer before you write",
            state.name,
        )


def _warn_of_lost_ids(state: StreamSummary, options: SinkOptions, needs: frozenset[str]) -> None:
    """Warn of a stream that removes messages within the duplicate window: a restart of its server forgets their ids.

    The server then takes the ids from the messages that it still has (nats-server:
    server/stream.go, rebuildDedupe).
    """
    # At-least-once promises nothing about copies, and exactly-once finds ids in the stream itself.
    keeps_ids = options.delivery == "deduplicated" and state.duplicate_window > 0
    removals = _removals_within_window(state, needs) if keeps_ids else None
    if removals is None or not first_time(f"ids of {state.name} at {options.connection!r}"):
        return
    log.warning(
        "stream %s removes messages %s. Its server forgets their message ids when it restarts: "
        "rows that are written again after a restart may be stored twice, also within the "
        "duplicate window (option delivery deduplicated)",
        state.name,
        removals,
    )


def _removals_within_window(state: StreamSummary, needs: frozenset[str]) -> str | None:
    """Return when a stream removes messages whose ids it remembers; None if it does not."""
    removing = removing_setting(state)
    if removing is StreamFault.CONSUMED:
        return f"when they were acknowledged (retention {state.retention})"
    if removing is StreamFault.REPLACED:
        return (
            "when newer ones of their subject come (max_msgs_per_subject "
            f"{state.max_msgs_per_subject})"
        )
    if "schedule" in needs:
        return "of schedules when it has published them"
    # `max_age` is in nanoseconds, `duplicate_window` in seconds.
    if 0 < state.max_age < state.duplicate_window * 1e9:
        return f"after {state.max_age / 1e9:g} s (max_age), within its duplicate_window"
    return None


def _warn_of_a_small_stream(
    requests: Requests, state: StreamSummary, connection: ConnectionOptions
) -> None:
    """Warn of a stream that discards old messages and has less room than the largest message needs.

    The stream stores a message for which it has no room, acknowledges it, and removes it at once.
    """
    # A stream that discards what is new refuses such a row instead (`sink.room`).
    if state.discard != "old" or state.max_bytes <= 0:
        return
    largest = requests.call(attrgetter("max_payload"))
    if state.max_msg_size >= 0:
        largest = min(largest, state.max_msg_size)
    small = state.max_bytes < largest
    if small and first_time(f"max_bytes of {state.name} at {connection!r}"):
        log.warning(
            "stream %s keeps %d bytes (max_bytes), and takes messages of up to %d bytes: it "
            "acknowledges a row for which it has no room, and drops it; raise max_bytes, or set "
            "max_msg_size below it",
            state.name,
            state.max_bytes,
            largest,
        )


def _warn_of_own_replies(state: StreamSummary, connection: ConnectionOptions) -> None:
    inboxes = stored_replies(state.subjects, connection.api_prefix, connection.inbox_prefix)
    if inboxes and first_time(f"replies in {state.name} at {connection!r}"):
        log.warning(
            "stream %s stores the acknowledgements of rows as well, because its subjects (%s) "
            "match those at which the writer receives them (%s.>): %s",
            state.name,
            brief(", ".join(inboxes)),
            connection.inbox_prefix,
            advice.stored_inboxes(state.subjects),
        )


def _warn_of_a_short_window(state: StreamSummary, options: SinkOptions) -> None:
    # A row may be sent again as long as an outage, or the wait for its acknowledgement, may last.
    needed = max(options.connection.retry_timeout, options.ack_timeout)
    if options.delivery != "deduplicated" or state.duplicate_window >= needed:
        return
    log.warning(
        "stream %s remembers message ids for %g s (duplicate_window), less than the %g s for which "
        "a row may be sent again (options retryTimeout, ackTimeout); after an outage a row may be "
        "stored twice; make the window longer, or set delivery to exactly-once",
        state.name,
        state.duplicate_window,
        needed,
    )


def check_interval(
    connect: Connect,
    options: SinkOptions,
    write: str,
    batch: int,
    streams: Mapping[str, tuple[int, int]],
) -> None:
    """Warn if the micro-batches of a query are further apart than a stream remembers message ids.

    `write` is the id of the query in message ids, `batch` the number of the committed micro-batch,
    and `streams` holds its first and last sequence in each stream.
    """
    # The first micro-batch of a query, number 0, has none before it.
    if options.delivery != "deduplicated" or not batch:
        return
    requests = Requests(connect, options.connection.connect_timeout)
    before = f"{write}.{batch - 1}.".encode()
    for name, (first, _) in streams.items():
        # Without a message before the first one there is nothing to compare with.
        if (write, name) in _warned or first < 2:
            continue
        try:
            seconds = _seconds_between(requests, name, first, before)
            window = requests.stream(name).duplicate_window
        except JetStreamError as error:
            # The rows are committed, so a warning that cannot be given is no failure.
            # It is not tried again.
            log.info("cannot see how far apart the micro-batches in stream %s are: %s", name, error)
            _warned.add((write, name))
            continue
        if seconds is not None and seconds > window:
            _warned.add((write, name))
            _warn_of_a_long_interval(name, seconds, window)


def _seconds_between(requests: Requests, stream: str, first: int, before: bytes) -> float | None:
    """Return the seconds between the first message of a batch and the last one of the batch before.

    `before` begins the message ids of that one. None if the message before the first one is
    another.
    """
    # The process that commits may be a new one each time, so it cannot remember the time.
    here = _message(requests, stream, first)
    earlier = _message(requests, stream, first - 1)
    if here is None or earlier is None or not earlier.message_id.startswith(before):
        return None
    return (here.time - earlier.time) / 1e9


def _message(requests: Requests, stream: str, sequence: int) -> RawMessage | None:
    return requests.call(partial(message, stream=stream, sequence=sequence))


def _warn_of_a_long_interval(stream: str, seconds: float, window: float) -> None:
    log.warning(
        "micro-batches are %.3g s apart, and stream %s remembers message ids for %g s "
        "(duplicate_window): a restart in the middle of one may store rows twice; "
        "make the window longer than the trigger interval, or set delivery to exactly-once",
        seconds,
        stream,
        window,
    )
