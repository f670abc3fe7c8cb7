"""The positions at which the options begin and end a read, and those that a retention allows."""

from __future__ import annotations

import logging

from spark_jetstream.errors import OptionError, brief
from spark_jetstream.options import advice
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.fitness import Read, StreamFault, faults
from spark_jetstream.protocol.own_traffic import in_other_account, stored_replies, stored_requests
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.subjects import FilterIndex
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.source.continuity import earliest_position, latest_position
from spark_jetstream.source.interest_streams import LONG
from spark_jetstream.source.kinds.kind import ReadKind
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.probes import StreamProbe
from spark_jetstream.streams.direct import CLOCK_SKEW

log = logging.getLogger(__name__)


def starting_position(kind: ReadKind, probe: StreamProbe, state: StreamSummary) -> StreamPosition:
    """Return where a query without checkpoint starts, by its options. Raise `OptionError`.

    Not by startingConsumer: see `ConsumerStart`.
    """
    options = kind.options
    if options.starting_timestamp is not None:
        return _position_since(options.starting_timestamp, options, probe, state)
    starting = options.starting_offsets
    if starting == "earliest":
        return earliest_position(state)
    if isinstance(starting, str):
        return latest_position(state)
    sequence = dict(starting)[options.named(state.name)]
    return position_from(sequence, kind, state, "startingOffsets")


def _position_since(
    nanoseconds: int, options: SourceOptions, probe: StreamProbe, state: StreamSummary
) -> StreamPosition:
    """Return the position of the first message since a time (`startingTimestamp`)."""
    # The clock of the server, or at least a time that it has shown.
    ahead = nanoseconds - max(state.server_time, state.last_timestamp)
    if options.streaming and state.server_time and ahead > CLOCK_SKEW:
        raise OptionError(
            "startingTimestamp is in the future: the server's clock shows "
            f"{rfc3339(state.server_time)}",
            option="startingTimestamp",
        )
    message = probe.first_after(nanoseconds, state)
    if message is None:
        return latest_position(state)
    return StreamPosition(message[0], state.created)


def position_from(
    sequence: int, kind: ReadKind, state: StreamSummary, option: str, why: str = ""
) -> StreamPosition:
    """Return the position at a sequence that an option gives. Raise `OptionError`.

    `why` ends the clause that names the sequence in errors.
    """
    begins = f"{option} begins stream {state.name} at sequence {sequence}{why}"
    if sequence > max(state.last_seq + 1, state.first_kept):
        raise OptionError(
            f"{begins}, but its last message has sequence {state.last_seq}",
            option=option,
        )
    if sequence < state.first_kept and not kind.replaces:
        problem = f"{begins}, but the first message kept has sequence {state.first_kept}"
        if kind.options.fail_on_data_loss:
            raise OptionError(
                f"{problem}; set failOnDataLoss to false to begin there", option=option
            )
        log.warning("%s: beginning there", problem)
        return earliest_position(state)
    return StreamPosition(max(sequence, state.first_kept), state.created)


def ending_position(
    options: SourceOptions, probe: StreamProbe, state: StreamSummary, start: StreamPosition
) -> StreamPosition:
    """Return where a batch read ends, by its options. Raise `OptionError`."""
    name = state.name
    if options.ending_timestamp is not None:
        message = probe.first_after(options.ending_timestamp, state)
        end = latest_position(state).next if message is None else message[0]
        return StreamPosition(max(start.next, end), state.created)
    ending = options.ending_offsets
    if isinstance(ending, str):
        return latest_position(state)
    sequence = dict(ending)[options.named(name)]
    if sequence > state.last_seq + 1:
        raise OptionError(
            f"endingOffsets ends stream {name} before sequence {sequence}, but its last message "
            f"has sequence {state.last_seq}",
            option="endingOffsets",
        )
    if sequence < start.next:
        problem = (
            f"endingOffsets ends stream {name} before sequence {sequence}, "
            f"but reading starts at sequence {start.next}"
        )
        if options.fail_on_data_loss or sequence > state.first_kept:
            raise OptionError(problem, option="endingOffsets")
        log.warning("%s: all that was to be read is gone", problem)
        return start
    return StreamPosition(sequence, state.created)


def read_use(options: SourceOptions, *, endangered: bool = False) -> Read:
    """Return the use of a stream by a read with these options; ``endangered`` as in `Read`."""
    return Read(
        batch=not options.streaming,
        reserved=options.durable is not None,
        shared=options.share is not None,
        direct=options.read_with == "direct",
        endangered=endangered,
    )


def check_retention(state: StreamSummary, options: SourceOptions, use: Read) -> None:
    """Raise `OptionError` when the stream cannot be read with these options."""
    for fault in faults(state, use):
        if fault is StreamFault.NOT_RESERVED:
            raise _not_reserved(state, options)
        if fault is StreamFault.NO_QUEUE:
            raise OptionError(
                f"stream {state.name} has {state.retention} retention, and option share needs a "
                "work queue, which removes each message that was acknowledged; leave the option "
                "out, and the query reads all messages of the stream",
                option="share",
            )
        raise _not_direct(state, endangered=use.endangered)


def _not_reserved(state: StreamSummary, options: SourceOptions) -> OptionError:
    """Return the error for a work queue whose messages nothing reserves for the query."""
    if not options.streaming:
        return OptionError(
            f"stream {state.name} has work-queue retention: a batch can look at its messages with "
            "readWith=direct, and removes none of them",
            option="readWith",
        )
    if options.finds_streams:
        return OptionError(
            f"stream {state.name}, which option {options.chosen_by} finds, has work-queue "
            "retention: leave it out, and read it with the options stream and durable",
            option=options.chosen_by,
        )
    return OptionError(
        f"stream {state.name} has work-queue retention: reading it needs the option durable, the "
        "name of the consumer that reserves its messages for this query; or it needs share, the "
        "name of a consumer whose messages other clients get as well",
        option="durable",
    )


def _not_direct(state: StreamSummary, *, endangered: bool) -> OptionError:
    """Return the error for a stream that must be read with Direct Get, and does not allow that."""
    why = "is read"
    otherwise = "; without it, readWith=consumer reads all but work queues"
    if state.retention == "workqueue":
        why = "has work-queue retention, which is read"
    elif endangered:
        spanned = state.last_seq + 1 - state.first_kept
        why = (
            f"has interest retention and spans {spanned:,} sequences: a server since 2.12 may "
            "remove all of its messages, read or not, when the consumers of tasks are deleted; "
            "so it is read"
        )
        otherwise = ""
    return OptionError(
        f"stream {state.name} {why} with Direct Get, which it does not allow; set allow_direct on "
        f"the stream (spark-jetstream stream edit {state.name} --allow-direct), or let the options "
        f'ensureStream={{"allow_direct": true}} and ensureStreamOnConflict=update do it{otherwise}',
        option="readWith",
    )


def check_start(state: StreamSummary, options: SourceOptions) -> None:
    """Raise `OptionError` when a new query would skip messages of a work queue.

    Its first commit would remove them.
    """
    if state.retention != "workqueue":
        return
    if options.starting_consumer is not None:
        raise OptionError(
            f"option startingConsumer has no meaning for stream {state.name}, a work queue: the "
            "queue keeps each message until it is acknowledged, so it hands over by itself; stop the old "
            "service, delete its consumer, and start the query with durable and without "
            "startingConsumer",
            option="startingConsumer",
        )
    name = "startingOffsets" if options.starting_timestamp is None else "startingTimestamp"
    if name == "startingTimestamp" or options.starting_offsets != "earliest":
        raise OptionError(
            f"option {name} has no meaning for stream {state.name}, a work queue: messages that "
            "a query passes over would be removed from it unread; leave the option out, and purge the "
            "stream if you do not want its messages",
            option=name,
        )


def warn_of_interest(state: StreamSummary, *, held: bool) -> None:
    """Log what may end a query on an interest stream later.

    ``held``: a consumer (`durable`) holds its messages.
    """
    if not held:
        log.warning(
            "stream %s keeps messages only as long as its consumers need them, and no consumer "
            "holds them for this query (option durable); messages that all other consumers have "
            "acknowledged are removed unread",
            state.name,
        )
    if not state.allow_direct:
        log.warning(
            "stream %s has interest retention without allow_direct: on a server since 2.12 the "
            "query ends with an error when the stream spans more than %s sequences",
            state.name,
            f"{LONG:,}",
        )


def warn_of_filters(state: StreamSummary, options: SourceOptions) -> None:
    """Log that option subjects matches nothing that a named stream takes now.

    A typing error may be the cause.
    """
    if not options.subjects or not state.subjects:
        return
    # The messages have other subjects than they came with, or the streams were not named.
    if state.renames or options.finds_streams:
        return
    stored = FilterIndex(state.subjects)
    if any(stored.overlapping(each) is not None for each in options.subjects):
        return
    log.warning(
        "no subject of stream %s (%s) matches option subjects (%s)",
        state.name,
        brief(", ".join(state.subjects)),
        brief(", ".join(options.subjects)),
    )


def warn_of_own_traffic(state: StreamSummary, options: SourceOptions) -> None:
    """Log that a stream stores what a read sends and receives.

    It grows, and a query never reaches its end.
    """
    connection = options.connection
    inboxes = stored_replies(state.subjects, connection.api_prefix, connection.inbox_prefix)
    if inboxes:
        log.warning(
            "stream %s stores a copy of each message that is read from it, because its subjects "
            "(%s) match those at which the reader receives (%s.>): %s",
            state.name,
            brief(", ".join(inboxes)),
            connection.inbox_prefix,
            advice.stored_inboxes(state.subjects),
        )
    if not options.streaming or in_other_account(connection.api_prefix):
        return
    causes = stored_requests(state.subjects, options.subjects, connection.api_prefix_resolved)
    if causes:
        log.warning(
            "stream %s stores what this query causes (%s), and the query reads it: each "
            "micro-batch causes the next one; set option subjects to the subjects that the query "
            "is for",
            state.name,
            ", ".join(causes),
        )
