"""Reads a range of sequences to its end with pull consumers.

docs/architecture.md has the rules ("How a range is read", "Outages"). A `RangeReader` owns the
position in the stream, and decides what is lost. Each of its attempts reads with one consumer
(`session.PullSession`); `outages.through_outages` makes the attempts.

| the session returns | the reader |
|---|---|
| `Delivered` | hands out what is in the range, and moves `next` past it |
| `EndOfRange` | ends the range if `confirm` agrees, or the leader has nothing more either |
| `EndOfRange`, and the leader has more | raises an error that may pass: a replica lags |
| `EndOfRange`, and the leader cannot be asked | ends the range at the third one in a row |
| `EndOfRange` that is not certain | asks another consumer, after a pause |
| ... for the third time in a row | raises an error that may pass |
| `Lost` | raises the error |
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect, Requests, settled_info
from spark_jetstream.errors import (
    ApiError,
    ConsumerLost,
    DataLossError,
    JetStreamError,
    NoResponders,
    PermissionDenied,
    StreamNotFound,
)
from spark_jetstream.protocol.columns import Delivered, MessageRun
from spark_jetstream.protocol.conventions import reader_consumer
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.streams.consumers import (
    FEW_FILTERS,
    LEADER_TRIES,
    Created,
    create_reader,
    delete_reader,
    first_at_leader,
)
from spark_jetstream.streams.leader import leader_has, look
from spark_jetstream.streams.lookup import next_sequence
from spark_jetstream.streams.outages import Cuts, through_outages
from spark_jetstream.streams.session import EndOfRange, Ends, Lost, Policy, PullSession

log = logging.getLogger(__name__)

Messages = TypeVar("Messages", bound=MessageRun)

CONFIRMATIONS = 3
"""Consumers in a row that end a range by finding nothing, where the leader cannot be asked.

As many in a row that deliver nothing of what they count are an error.
"""


@dataclass(frozen=True)
class PullSettings:
    """How to pull: messages and bytes of one request; times in seconds."""

    batch: int
    max_bytes: int
    expires: float
    retry_timeout: float
    fail_on_data_loss: bool
    headers_only: bool = False
    too_much: str = ""
    """The remedy if the server closes connections because a request asks for too much (`Cuts`)."""

    def policy(
        self,
        ends: Ends = Ends.COUNT,
        *,
        heartbeat: float = 5.0,
        expires: float = math.inf,
        **more: Any,
    ) -> Policy:
        """Return how a session pulls.

        `expires` and `heartbeat` limit those of the settings, `more` are other fields of `Policy`.
        """
        # The server refuses a heartbeat of more than half of `expires`
        # (400, "heartbeat value too large").
        usual = min(5.0, self.expires / 2)
        limited = min(self.expires, expires)
        # Silence for longer than two heartbeats means that the consumer is lost.
        silence = 2 * usual + 1.0
        own = {
            "batch": self.batch,
            "max_bytes": self.max_bytes,
            "expires": limited,
            "heartbeat": min(usual, heartbeat, limited / 2),
            "silence": silence,
            "ends": ends,
        }
        return Policy(**{**own, **more})


def read_range(
    connect: Connect, part: SequenceRange, settings: PullSettings, label: str
) -> Iterator[Delivered]:
    """Yield the messages of `part`, in stream order, each exactly once, whatever fails in between.

    The names of the consumers begin with `label`. Raises `DataLossError` if messages that were
    planned are gone, `OutageError` after `settings.retry_timeout`, and `JetStreamError` for another
    error that no retry can mend.
    """
    reader = RangeReader(connect, part, settings, label)
    return checked(part, settings, reader.read(), reader.miscounted)


def checked(
    part: SequenceRange,
    settings: PullSettings,
    runs: Generator[Messages, None, None],
    miscounted: Callable[[], bool] = lambda: False,
) -> Generator[Messages, None, None]:
    """Yield `runs`.

    Raises `DataLossError` if they have fewer messages than were planned, unless that is
    `miscounted`.

    Where `settings` accept a loss, this or another one that `runs` raises ends in the log.
    """
    count = 0
    try:
        with contextlib.closing(runs):
            for run in runs:
                count += len(run)
                yield run
        if part.count is not None and count < part.count and not miscounted():
            raise DataLossError(
                f"{part.count - count} of {part.count} messages of stream {part.stream}, "
                f"sequences {part.first} to {part.end - 1}, were removed (expired, purged or "
                "deleted) after this read was planned"
            )
    except DataLossError as error:
        if settings.fail_on_data_loss:
            raise
        log.warning("%s", error)


class RangeReader:
    """Reads one range, with one consumer after the other.

    With `Ends.LIST` in `policy` it reads the last message of each subject, in a range that begins
    at 1 and ends where the stream does. A consumer that replaces a lost one delivers its list from
    the beginning; the reader skips the messages that it has read.
    """

    def __init__(
        self,
        connect: Connect,
        part: SequenceRange,
        settings: PullSettings,
        label: str,
        policy: Policy | None = None,
        *,
        confirm: Callable[[Connection, int], bool] = lambda _, __: False,
        check: Callable[[], None] = lambda: None,
        confirming: Backoff | None = None,
        leader_tries: int = LEADER_TRIES,
    ) -> None:
        """Read ``part``; the names of the consumers begin with ``label``.

        ``confirm`` says, after a consumer has nothing from a sequence on, that this ends the range
        whatever the leader has. ``check`` is called after each consumer was created, and raises
        what ends the read. ``confirming`` has the pauses between two consumers that find nothing.
        ``leader_tries`` are the consumers of which one must be with the leader, where consumers
        stand for it.
        """
        self.part = part
        #: The first sequence that was not handed out yet; the end of the range once that is
        #: reached.
        self.next = part.first
        #: Messages that were handed out: what the plan counted is compared with it.
        self.count = 0
        self._connect = connect
        self._settings = settings
        self._label = label
        self._policy = policy or settings.policy()
        self._confirm = confirm
        self._check = check
        self._confirming = confirming or Backoff(0.1, 1.0)
        self._leader_tries = leader_tries
        self._cuts = Cuts(settings.too_much)
        #: Whether the account may ask the leader for single messages; false once it was refused.
        self._asks_leader = True
        #: Consumers in a row that found nothing from `next` on, without the leader; back to 0 with
        #: each message.
        self._nothing = 0
        #: Consumers in a row that counted messages and delivered none; back to 0 with each message.
        self._uncertain = 0
        #: Settings that the stream wants to decide itself: a refusal adds one, for all consumers
        #: that follow.
        self._left_to_stream: dict[str, Any] = {}
        #: Whether the first consumer has requests under way; only a follower says so.
        self._begun = False
        #: Whether an attempt has failed: the stream may have lost its tail since.
        self._interrupted = False

    def read(self) -> Generator[Delivered, None, None]:
        """Yield the messages in stream order.

        Raises what `read_range` raises. Does not check `part.count`.
        """
        return (run for run in self._read("reading stream") if run is not None)

    def follow(self) -> Iterator[Delivered | None]:
        """Yield the messages of a range with `Ends.NEVER`, and None when requests are sent.

        From the first None on the caller gets every message that is stored, even if it is removed
        before the caller takes it. A later None shows that the server is alive.
        """
        return self._read("watching stream")

    def _read(self, doing: str) -> Iterator[Delivered | None]:
        return through_outages(self, self._settings.retry_timeout, Backoff(at_once=True), doing)

    def miscounted(self) -> bool:
        """Whether the range never had as many messages as were planned; to be asked after `read`.

        Two replicas may have counted, one of which lacked the latest messages. The stream's leader
        shows it: it has removed nothing since then. Where the leader could not say that the range
        ends, the count has the last word. Raises what `Requests.call` raises.
        """
        part = self.part
        requests = Requests(self._connect, self._settings.retry_timeout)
        # Without the leader's word the count decides:
        # its replica may have lagged as the reader's did.
        if part.removals is None or self._nothing >= CONFIRMATIONS:
            return False

        def unchanged(state: StreamSummary) -> bool:
            return state.created == part.created and state.removals == part.removals

        context = f"look at stream {part.stream}"
        try:
            if not unchanged(requests.stream(part.stream, context)):
                return False
            # A replica may remove a message before the leader does, and the server may be one that
            # led before.
            return unchanged(
                requests.call(partial(settled_info, name=part.stream, context=context))
            )
        except StreamNotFound:
            return False

    def attempt(self, patience: Deadline) -> Iterator[Delivered | None]:
        """Read with one new consumer until the range ends or nothing seems to be left of it."""
        connection = self._connect(patience.left)
        stream = self.part.stream
        # A list begins at the first message, whatever the end is.
        has_position = self._policy.ends is not Ends.LIST
        # Only after a failure: for the first consumer the plan has looked at the end of the stream.
        if self._interrupted and has_position and self._is_past_the_end(connection):
            self._check()
            self.next = self.part.end
            return
        name = reader_consumer(self._label)
        # Nobody waits for the subscription:
        # it goes out before the pull requests, on the same connection.
        with self._cuts.counting(), connection.inbox() as inbox:
            try:
                pending = self._create(connection, name, patience).pending
                self._check()
                session = PullSession(connection, inbox, stream, name, self._policy, pending)
                self._begin(connection, session)
                ended = yield from self._drain(session)
            finally:
                # A consumer that stays takes room from others (`max_consumers`) for its
                # `inactive_threshold`: test_the_consumer_goes_with_its_reader.
                delete_reader(connection, stream, name)
        if ended:
            # Without the consumer, in case the stream has no room for another one.
            self._nothing_more(connection, patience)
        if self.next < self.part.end:
            self._confirming.pause()

    def failed(self, error: JetStreamError) -> bool:
        """Log a failure, but not of a watch: nobody waits for the next message of that."""
        if self._policy.ends is not Ends.NEVER:
            log.warning(
                "stream %s, going on at sequence %d: %s", self.part.stream, self.next, error
            )
        self._interrupted = True
        return True

    def _is_past_the_end(self, connection: Connection) -> bool:
        """Whether the stream lost its tail, so that a consumer would begin past its end.

        Two consumers past the end that are deleted together purge an interest stream
        (`PAST_THE_END` in source/interest_streams.py).
        """
        state = look(connection, self.part, self.next)
        if state.clustered and state.last_seq + 1 < self.next:
            state = settled_info(connection, self.part.stream, f"look at stream {self.part.stream}")
        return state.last_seq + 1 < self.next

    def _create(self, connection: Connection, name: str, patience: Deadline) -> Created:
        """Create a consumer. It has messages beyond the range to deliver as well."""
        part = self.part
        start: dict[str, Any] = {"start_sequence": self.next}
        if self._policy.ends is Ends.LIST:
            start = {"last_per_subject": True}
        try:
            return create_reader(
                connection,
                part.stream,
                name,
                part.subjects,
                {**start, "headers_only": self._settings.headers_only},
                left_to_stream=self._left_to_stream,
                patience=patience,
            )
        except StreamNotFound as error:
            look(connection, part, self.next)
            raise ConsumerLost(f"{error}, which exists") from None

    def _begin(self, connection: Connection, session: PullSession) -> None:
        """Begin the session.

        Raises what `look` raises: what the consumer reads must be the stream that was planned.
        """
        try:
            if session.begin(self._wanted()) == self.part.created:
                return
        except StreamNotFound:
            pass  # by the word of one server
        except (ApiError, PermissionDenied):
            look(connection, self.part, self.next)  # which names what failed
            raise
        look(connection, self.part, self.next)

    def _drain(self, session: PullSession) -> Generator[Delivered | None, None, bool]:
        """Yield what a session delivers, until that or the range ends.

        Return whether the consumer has nothing more for sure, though the range may.
        """
        follows = self._policy.ends is Ends.NEVER
        if follows and not self._begun:
            self._begun = True
            yield None
        quiet = Deadline(self._policy.idle)
        while self.next < self.part.end:
            event = session.next(self._wanted(), quiet.left)
            if isinstance(event, Lost):
                raise event.error
            if isinstance(event, EndOfRange):
                if not event.certain:
                    self._count_uncertain()
                return event.certain
            if event is None:
                if follows:
                    yield None
                continue
            run = self._take(event)
            if run is not None:
                yield run
            quiet = Deadline(self._policy.idle)  # the caller may have taken some time
        return False

    def _count_uncertain(self) -> None:
        """Count a consumer that counted messages and delivered none.

        Raises `ConsumerLost` at last.
        """
        self._uncertain += 1
        if self._uncertain >= CONFIRMATIONS:
            raise ConsumerLost("the server counts messages that it does not deliver")

    def _wanted(self) -> int:
        """Return how many messages of the range may still come."""
        if self._policy.ends is Ends.LIST:
            return sys.maxsize  # messages that came already are on the list of another consumer too
        wanted = self.part.end - self.next
        if self.part.count is None:
            return wanted
        # The planned count can be too low, so it bounds the requests and not the reading: beyond it
        # the reader requests one message (most likely one past the range, which ends it), then more
        # and more.
        planned = self.part.count - self.count
        if planned <= 0:
            planned = 1 << min(-planned, 20)
        return min(wanted, planned)

    def _take(self, run: Delivered) -> Delivered | None:
        """Return the messages of `run` that are new and in the range, or None; move `next`."""
        sequences = run.sequences
        # Rows before `first` were handed out already; rows from `end` on are past the range.
        first = int(sequences.searchsorted(self.next))
        # Only a list begins again: another consumer delivers messages that came already.
        came_already = first > 0 and self._policy.ends is not Ends.LIST
        if came_already or not (sequences[1:] > sequences[:-1]).all():
            raise ConsumerLost("the consumer delivered messages out of order")
        if first == len(run):
            return None
        end = int(sequences.searchsorted(self.part.end))
        self.next = min(int(sequences[-1]) + 1, self.part.end)
        # Both count consumers in a row, and a message ends the row.
        self._nothing = self._uncertain = 0
        self._confirming.reset()
        self.count += end - first
        if end - first == len(run):
            return run
        if end == first:
            return None
        return run[first:end]

    def _nothing_more(self, connection: Connection, patience: Deadline) -> None:
        """End the range after a consumer has nothing more, unless that consumer lacks messages."""
        if self._confirm(connection, self.next) or self._is_complete(connection, patience):
            self.next = self.part.end

    def _leader_has(self, connection: Connection, patience: Deadline) -> int | None:
        """Return the leader's first sequence of the range from `next` on, None if it has none."""
        part, filters = self.part, self.part.subjects
        again = partial(look, connection, part, self.next)
        if len(filters) <= FEW_FILTERS:
            ask = partial(next_sequence, connection, part.stream, filters, self.next)
            return leader_has(connection, part, ask, again)

        def ask_consumers() -> int | None:
            found = first_at_leader(
                connection,
                part.stream,
                filters,
                {"start_sequence": self.next},
                again,
                left_to_stream=self._left_to_stream,
                patience=patience,
                tries=self._leader_tries,
            )
            if found is None:
                return None
            sequence, _ = found
            return sequence

        # `first_at_leader` has made sure that a majority follows this leader.
        return leader_has(connection, part, ask_consumers, again, followed=True)

    def _is_complete(self, connection: Connection, patience: Deadline) -> bool:
        """Whether the stream has nothing more of the range either.

        Raises `ConsumerLost` if the leader has more.

        A consumer has one replica, on any server of the stream: on one that was restarted it knows
        only what this server has fetched so far.
        """
        if self._asks_leader:
            try:
                first = self._leader_has(connection, patience)
            except (PermissionDenied, NoResponders) as error:
                log.info("stream %s: %s; other consumers are asked", self.part.stream, error)
                # A refusal lasts. A leader that nobody hears may answer the next time:
                # test_a_leader_that_nobody_hears_once.
                self._asks_leader = isinstance(error, NoResponders)
            else:
                if first is None:
                    return True
                raise ConsumerLost(
                    f"a replica that lags does not have message {first} (yet), which the leader has"
                )
        if self._policy.ends is Ends.LIST:
            return True
        # Whatever was counted: the replica that counted may have lagged too.
        self._nothing += 1
        return self._nothing >= CONFIRMATIONS
