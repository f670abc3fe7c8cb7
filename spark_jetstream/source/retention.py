"""Checks the options of a read against the stream's retention (limits, interest or work queue)."""

from __future__ import annotations

import logging

from spark_jetstream.errors import OptionError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import StreamState

log = logging.getLogger(__name__)


def needs_direct(state: StreamState, options: SourceOptions) -> bool:
    """Whether the stream is read with Direct Get: because the option says so, or because it is a work queue.

    A work queue gives each message to one consumer and allows no second one: only Direct Get reads it again.
    """
    return options.read_with == "direct" or state.retention == "workqueue"


def check_retention(state: StreamState, options: SourceOptions) -> None:
    """Raise `OptionError` when the stream cannot be read with these options."""
    if state.retention == "workqueue":
        if options.streaming and options.durable is None:
            raise OptionError(
                f"stream {state.name} has work-queue retention: reading it needs the option durable, the name of the "
                "consumer that reserves its messages for this query",
                option="durable",
            )
        if not options.streaming and options.read_with != "direct":
            raise OptionError(
                f"stream {state.name} has work-queue retention: a batch can look at its messages with readWith=direct, "
                "and removes none of them",
                option="readWith",
            )
    if needs_direct(state, options) and not state.allow_direct:
        why = "has work-queue retention, which is read" if state.retention == "workqueue" else "is read"
        raise OptionError(
            f"stream {state.name} {why} with Direct Get, and does not allow that: set allow_direct on the stream (nats "
            f'stream edit {state.name} --allow-direct), or let the options ensureStream={{"allow_direct": true}} and '
            "ensureStreamOnConflict=update do it; without it, readWith=consumer reads all but work queues",
            option="readWith",
        )


def check_start(state: StreamState, options: SourceOptions) -> None:
    """Raise `OptionError` when a new query would skip messages of a work queue: its first commit would remove them."""
    if state.retention != "workqueue":
        return
    if options.starting_timestamp is not None or options.starting_offsets != "earliest":
        name = "startingTimestamp" if options.starting_timestamp is not None else "startingOffsets"
        raise OptionError(
            f"option {name} has no meaning for stream {state.name}, a work queue: what a query passes over would be "
            "removed from it unread; leave the option out, and purge the stream yourself if its messages shall go",
            option=name,
        )


def warn_of_interest(state: StreamState) -> None:
    """Log that nothing holds the messages of an interest stream for a query without `durable`."""
    log.warning(
        "stream %s keeps messages only as long as its consumers are interested, and nothing holds them for this query "
        "(option durable): those that all other consumers have acknowledged are gone before they are read",
        state.name,
    )
