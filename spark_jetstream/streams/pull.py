"""Reads a range of sequences to its end with pull consumers.

docs/architecture.md has the rules ("How a range is read", "What happens in an outage"). A `RangeReader` owns the
position in the stream, and decides what is lost. Each of its attempts reads with one consumer (`session.PullSession`);
`through_outages` makes the attempts, for the readers of this package and for a watch alike.

| the session returns | the reader |
|---|---|
| `Delivered` | hands out what is in the range, and moves `next` past it |
| `EndOfRange` | ends the range if its `confirm` agrees, or the stream's leader has nothing more either |
| `EndOfRange`, and the leader has more | raises an error that may pass: the consumer is on a replica that lags |
| `EndOfRange`, and the leader cannot be asked | ends the range if the third consumer in a row says so |
| `EndOfRange` that is not certain | asks another consumer, after a pause |
| ... for the third time in a row | raises an error that may pass |
| `Lost` | raises the error |

| an attempt | `through_outages` |
|---|---|
| yields something | ends the outage |
| ends, and `next` is before the end of the range | makes another attempt |
| raises an error that may pass | makes another one after a pause; `OutageError` without progress for `retry_timeout` |
| raises another error | raises it |
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.reasons import HUNG_UP
from spark_jetstream.client.requests import Connect, Requests, info_of, settled_info
from spark_jetstream.errors import (
    ApiError,
    ConnectionFailed,
    ConsumerLost,
    DataLossError,
    JetStreamError,
    NoResponders,
    OutageError,
    PermissionDenied,
    StreamNotFound,
)
from spark_jetstream.options import advice
from spark_jetstream.protocol.columns import Delivered, MessageRun
from spark_jetstream.protocol.conventions import reader_consumer
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.streams.consumers import (
    FEW_FILTERS,
    Created,
    create_reader,
    delete_reader,
    first_at_leader,
)
from spark_jetstream.streams.lookup import next_sequence
from spark_jetstream.streams.session import EndOfRange, Ends, Lost, Policy, PullSession

log = logging.getLogger(__name__)

Run_co = TypeVar("Run_co", covariant=True)
Messages = TypeVar("Messages", bound=MessageRun)

CONFIRMATIONS = 3
"""Consumers in a row that must find nothing, where the leader cannot be asked; or that may deliver nothing."""


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
    """What to do if the server closes connections because these settings ask for too much at a time (`Cuts`)."""

    def policy(
        self,
        ends: Ends = Ends.COUNT,
        *,
        heartbeat: float = 5.0,
        expires: float = math.inf,
        **more: Any,
    ) -> Policy:
        """Return how a session pulls; `expires` and `heartbeat` limit what the settings say, `more` is as it has it."""
        usual = min(5.0, self.expires / 2)
        limited = min(self.expires, expires)
        silence = 2 * usual + 1.0
        own = {
            "batch": self.batch,
            "max_bytes": self.max_bytes,
            "expires": limited,
            "silence": silence,
        }
        return Policy(
            **{**own, "heartbeat": min(usual, heartbeat, limited / 2), "ends": ends, **more}
        )


def read_range(
    connect: Connect, part: SequenceRange, settings: PullSettings, label: str
) -> Iterator[Delivered]:
    """Yield the messages of `part`, in stream order, each exactly once, whatever fails in between.

    The names of the consumers begin with `label`. Raises `DataLossError` if messages that were planned are gone,
    `OutageError` after `settings.retry_timeout`, and `JetStreamError` for another error that no retry can mend.
    """
    reader = RangeReader(connect, part, settings, label)
    return checked(part, settings, reader.read(), reader.miscounted)


def checked(
    part: SequenceRange,
    settings: PullSettings,
    runs: Generator[Messages, None, None],
    miscounted: Callable[[], bool] = lambda: False,
) -> Generator[Messages, None, None]:
    """Yield `runs`. Raises `DataLossError` if they have fewer messages than were planned, unless that is `miscounted`.

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
                f"{part.count - count} of {part.count} messages of stream {part.stream}, sequences {part.first} to "
                f"{part.end - 1}, were removed (expired, purged or deleted) after this read was planned"
            )
    except DataLossError as error:
        if settings.fail_on_data_loss:
            raise
        log.warning("%s", error)


def look(
    connection: Connection, part: SequenceRange, first: int, *, settled: bool = False
) -> StreamSummary:
    """Return the stream's state now; with `settled` as a leader says it that a majority follows.

    Raises `DataLossError` unless the stream is the one that was planned, and what `settled_info` raises.
    """
    context = f"look at stream {part.stream}"
    try:
        state = info_of(connection, part.stream, part.created, context)
        if settled and not state.followed:
            state = settled_info(connection, part.stream, context)
    except StreamNotFound as error:
        raise DataLossError(
            f"stream {part.stream} was deleted while sequences {first} to {part.end - 1} were to be read"
        ) from error
    if state.created != part.created:
        raise DataLossError(
            f"stream {part.stream} was deleted and created again (at {state.created}) while sequences {first} to "
            f"{part.end - 1} of the one created at {part.created} were to be read"
        )
    return state


class Cuts:
    """Counts how often the server has closed the connection of a reader without a word.

    It does that to a client for which more bytes wait than its `max_pending`. A server that is shut down says nothing
    either; but that a reader meets this twice is unlikely.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._count = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count a cut inside of the block. From the second one on its error ends with the remedy, if there is one."""
        try:
            yield
        except ConsumerLost as error:
            if not str(error).endswith(HUNG_UP):
                raise
            self._count += 1
            if self._count < 2 or not self._remedy:
                raise
            raise ConsumerLost(f"{error}; {self._remedy}") from None


class Reader(Protocol[Run_co]):
    """What `through_outages` needs: a reader that owns its position."""

    part: SequenceRange
    next: int

    def attempt(self, patience: Deadline) -> Iterator[Run_co]:
        """Yield what comes from `next` on, over one connection, for which `patience` is left; move `next` past it."""

    def failed(self, error: JetStreamError) -> bool:
        """Log the failure of an attempt that may pass, or raise it; return whether to pause before the next attempt."""


def through_outages(
    reader: Reader[Run_co], retry_timeout: float, backoff: Backoff, doing: str = "reading stream"
) -> Generator[Run_co, None, None]:
    """Yield what the attempts of a reader yield, until `next` is the end of its range (see the table above).

    Raises `OutageError`, which begins with `doing` and the name of the stream, and errors that do not pass.
    """
    outage: Deadline | None = None  # from the first failure to the next progress
    while reader.next < reader.part.end:
        before, progressed, attempt = reader.next, False, Deadline(retry_timeout)
        try:
            for run in reader.attempt(outage or attempt):
                progressed = True
                yield run
        except JetStreamError as error:
            if not error.retriable:
                raise
            if progressed or reader.next > before:
                outage = Deadline(retry_timeout)
                backoff.reset()
            elif outage is None:
                # Waiting for a connection is part of the outage; waiting for a reply came before it.
                outage = attempt if isinstance(error, ConnectionFailed) else Deadline(retry_timeout)
            if outage.expired:
                raise OutageError(
                    f"{doing} {reader.part.stream} at sequence {reader.next} got no further for {retry_timeout:g} s "
                    f"{advice.RETRY_TIMEOUT}: {error}"
                ) from error
            if reader.failed(error):
                backoff.pause(outage)
        else:
            outage = None
            backoff.reset()


class RangeReader:
    """Reads one range, with one consumer after the other.

    With `Ends.LIST` in `policy` it reads the last message of each subject in a range that begins at 1 and ends where
    the stream does: a consumer that replaces a lost one delivers its list from the beginning, and what came is skipped.
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
    ) -> None:
        """Read ``part``; the names of the consumers begin with ``label``.

        ``confirm`` says, after a consumer has nothing from a sequence on, that this ends the range whatever the leader
        has.
        ``check`` is called after each consumer was created, and raises what ends the read. ``confirming`` has the
        pauses between two consumers that find nothing.
        """
        self.part = part
        #: The first sequence that was not handed out yet; the end of the range once that is reached.
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
        self._cuts = Cuts(settings.too_much)
        #: Whether the account may ask the leader for single messages; false once it was refused.
        self._asks_leader = True
        #: Consumers in a row that found nothing from `next` on, without the leader; back to 0 with each message.
        self._nothing = 0
        #: Consumers in a row that counted messages and delivered none; back to 0 with each message.
        self._uncertain = 0
        #: Settings that the stream wants to decide itself: a refusal adds one, for all consumers that follow.
        self._left_to_stream: dict[str, Any] = {}
        #: Whether the first consumer has requests under way; only a follower says so.
        self._begun = False
        #: Whether an attempt has failed: the stream may have lost its tail since.
        self._interrupted = False

    def read(self) -> Generator[Delivered, None, None]:
        """Yield the messages in stream order. Raises what `read_range` raises, without a look at `part.count`."""
        return (run for run in self._read("reading stream") if run is not None)

    def follow(self) -> Iterator[Delivered | None]:
        """Yield the messages of a range with `Ends.NEVER`, and None: at first when the first requests are sent.

        What is stored from then on comes, even if it is removed before the caller takes it. Later a None shows that the
        server is alive.
        """
        return self._read("watching stream")

    def _read(self, doing: str) -> Iterator[Delivered | None]:
        return through_outages(self, self._settings.retry_timeout, Backoff(at_once=True), doing)

    def miscounted(self) -> bool:
        """Whether the range never had as many messages as were planned; to be asked after `read`.

        Two replicas may have counted, one of which lacked the latest messages. The stream's leader shows it: it has
        removed nothing since then. Where the leader could not say that the range ends, the count has the last word.
        Raises what `Requests.call` raises.
        """
        part, requests = self.part, Requests(self._connect, self._settings.retry_timeout)
        if part.removals is None or self._nothing >= CONFIRMATIONS:
            return False

        def unchanged(state: StreamSummary) -> bool:
            return state.created == part.created and state.removals == part.removals

        context = f"look at stream {part.stream}"
        try:
            if not unchanged(requests.stream(part.stream, context)):
                return False
            # A replica may remove a message before the leader does, and the server may be one that led before.
            return unchanged(
                requests.call(partial(settled_info, name=part.stream, context=context))
            )
        except StreamNotFound:
            return False

    def attempt(self, patience: Deadline) -> Iterator[Delivered | None]:
        """Read with one new consumer until the range ends or nothing seems to be left of it."""
        connection, stream = self._connect(patience.left), self.part.stream
        if (
            self._interrupted
            and self._policy.ends is not Ends.LIST
            and self._is_past_the_end(connection)
        ):
            self._check()
            self.next = self.part.end
            return
        name = reader_consumer(self._label)
        with self._cuts.counting(), connection.inbox() as inbox:
            try:
                pending = self._create(connection, name, patience).pending
                self._check()
                session = PullSession(connection, inbox, stream, name, self._policy, pending)
                self._begin(connection, session)
                ended = yield from self._drain(session)
            finally:
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

        Two such consumers that are deleted together purge an interest stream (`PAST_THE_END` in source/durable.py).
        """
        state = look(connection, self.part, self.next)
        if state.clustered and state.last_seq + 1 < self.next:
            state = settled_info(connection, self.part.stream, f"look at stream {self.part.stream}")
        return state.last_seq + 1 < self.next

    def _create(self, connection: Connection, name: str, patience: Deadline) -> Created:
        """Create a consumer. It has messages beyond the range to deliver as well."""
        part = self.part
        start = (
            {"last_per_subject": True}
            if self._policy.ends is Ends.LIST
            else {"start_sequence": self.next}
        )
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
        """Begin the session. Raises what `look` raises: what the consumer reads must be the stream that was planned."""
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
                    self._uncertain += 1
                    if self._uncertain >= CONFIRMATIONS:
                        raise ConsumerLost("the server counts messages that it does not deliver")
                return event.certain
            run = None if event is None else self._take(event)
            if run is not None or (follows and event is None):
                yield run
            if event is not None:
                quiet = Deadline(self._policy.idle)  # the caller may have taken some time
        return False

    def _wanted(self) -> int:
        """Return how many messages of the range may still come."""
        if self._policy.ends is Ends.LIST:
            return sys.maxsize  # messages that came already are on the list of another consumer too
        wanted = self.part.end - self.next
        if self.part.count is None:
            return wanted
        # The planned count can be too low, so it bounds the requests and not the reading: beyond it the reader
        # requests one message (most likely one past the range, which ends it), then more and more.
        planned = self.part.count - self.count
        return min(wanted, planned if planned > 0 else 1 << min(-planned, 20))

    def _take(self, run: Delivered) -> Delivered | None:
        """Return the messages of `run` that belong to the range and are new, None if none does; move `next`."""
        sequences = run.sequences
        first = int(sequences.searchsorted(self.next))
        if (first and self._policy.ends is not Ends.LIST) or not (
            sequences[1:] > sequences[:-1]
        ).all():
            raise ConsumerLost("the consumer delivered messages out of order")
        if first == len(run):
            return None
        end = int(sequences.searchsorted(self.part.end))
        self.next = min(int(sequences[-1]) + 1, self.part.end)
        self._nothing = self._uncertain = 0
        self._confirming.reset()
        self.count += end - first
        if end - first == len(run):
            return run
        if end == first:
            return None
        return run[first:end]

    def _nothing_more(self, connection: Connection, patience: Deadline) -> None:
        """End the range after a consumer has nothing from `next` on, unless that consumer lacks messages."""
        if self._confirm(connection, self.next) or self._is_complete(connection, patience):
            self.next = self.part.end

    def _leader_has(self, connection: Connection, patience: Deadline) -> int | None:
        """Return the first sequence of the range from `next` on that the leader has, None if there is none."""
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
            )
            return None if found is None else found[0]

        return leader_has(connection, part, ask_consumers, again, followed=True)

    def _is_complete(self, connection: Connection, patience: Deadline) -> bool:
        """Whether the stream has nothing more of the range either. Raises `ConsumerLost` if the leader has more.

        A consumer has one replica, on any server of the stream: on one that was restarted it knows only what this
        server has fetched so far.
        """
        if self._asks_leader:
            try:
                first = self._leader_has(connection, patience)
            except (PermissionDenied, NoResponders) as error:
                log.info("stream %s: %s; other consumers are asked", self.part.stream, error)
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


def leader_has(
    connection: Connection,
    part: SequenceRange,
    ask: Callable[[], int | None],
    look_again: Callable[[], StreamSummary],
    *,
    followed: bool = False,
) -> int | None:
    """Return the first sequence of a range that its stream's leader has, from a position on.

    ``ask`` asks the leader for the first sequence from there on, in the range or after it. None: there is none. In a
    cluster a second answer must say so, after another look at the stream: the first one may be that of a server which
    led before, unless ``ask`` has made sure that a majority ``followed`` it. If the stream ends within the range, a new
    leader may not have applied its log yet, or the tail is lost: the second answer then waits for `ELECTION`. Raises
    what ``ask``, ``look_again`` and `settled_info` raise.
    """

    def within() -> int | None:
        sequence = ask()
        return None if sequence is None or sequence >= part.end else sequence

    try:
        first = within()
        if first is not None or not (state := look_again()).clustered:
            return first
        if state.last_seq + 1 < part.end < INT64_MAX:
            settled_info(connection, part.stream, f"look at stream {part.stream}")
        elif followed:
            return None
        return within()
    except StreamNotFound as error:
        look_again()
        raise ConsumerLost(f"{error}, which exists") from None
