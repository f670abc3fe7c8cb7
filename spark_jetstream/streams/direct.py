"""Reads a range of sequences to its end with batched Direct Gets (ADR-31 "JetStream Direct Get").

`read_direct` and `read_auto` keep the contract of `pull.read_range`. Any server that has the stream
may answer, hence these rules:

- A replica of the stream may lag behind its leader. A replica has all messages up to its last one,
  so a message proves that nothing is missing in front of it. An empty answer proves nothing. The
  range ends with a message at its last sequence or after it, or when the leader says
  (`STREAM.MSG.GET`) that no more matches. If the leader knows of another message the reader repeats
  its request.
- A mirror answers for its origin even if it lacks messages, has others, or has other subjects for
  them. The reader drops messages that do not carry the name of the stream itself, and repeats its
  request.
- A Direct Get has one filter, and a server may look through the whole stream for each. So a range
  with many filters is sifted where that costs less (`sifts`): the reader takes all messages, and
  leaves out those that none matches.
- Each message of an answer names the one before it, and a status ends the answer: the reader
  requests what was lost.
- An answer does not say when its stream was created. The reader looks that up after the first
  answer, after the last one, and after each answer with messages that are younger than the last
  look.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import DataLossError, JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.direct_get import (
    DirectBatch,
    EndOfBatch,
    MergedReplies,
    merge,
    read_answers,
)
from spark_jetstream.protocol.features import DIRECT_BATCHES, shown_version
from spark_jetstream.protocol.matching import Matcher
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.subjects import is_wild
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.leader import leader_has, look
from spark_jetstream.streams.lookup import next_sequence
from spark_jetstream.streams.outages import Cuts, through_outages
from spark_jetstream.streams.pull import PullSettings, RangeReader, checked, read_range

log = logging.getLogger(__name__)

CLOCK_SKEW = 5_000_000_000  # ns that the clocks of the servers of a cluster may differ
_LEAST_BYTES = 64 * 1024  # of one request, however many filters share the memory
_MOST_BYTES = 32 * 1024 * 1024  # the server closes a connection that has 64 MiB to receive
# Microseconds that a message takes, and each of its bytes; see `sifts`.
_MESSAGE, _BYTE = 4.0, 0.002
# Those of a request with a filter, at least; and for each byte that the server looks through.
_WILDCARD, _LITERAL, _LOOK_AT_BYTE = 4000.0, 400.0, 0.005
_BLOCK_BYTES = 8 << 20  # of a stream's file (nats-server: defaultLargeBlockSize)
_AT_ONCE = 8  # filters of a range whose next messages are requested at the same time
TRIED_FOR = 2.0
"""Seconds for which `read_auto` tries again after answers that are rejected."""
_MIRROR_ANSWERS = 20  # in a row that cost no pause: the stream itself is one of several that answer


class AnswerRejected(JetStreamError):
    """An answer to a Direct Get proves nothing; another answer may."""

    retriable = True


class MirrorAnswered(AnswerRejected):
    """An answer of a mirror."""


def read_direct(
    connect: Connect, part: SequenceRange, settings: PullSettings, label: str
) -> Iterator[MessageRun]:
    """Yield the messages of `part`, whose filters must not overlap, in stream order.

    Raises what `read_range` raises.

    The reader holds one batch at a time, of up to `settings.max_bytes` as stored and one message
    more; filters share that. Payloads are read even with `headers_only`. Messages of the log begin
    with `label`.
    """
    return checked(part, settings, _gets(connect, part, settings, label))


def read_auto(
    connect: Connect,
    part: SequenceRange,
    settings: PullSettings,
    label: str,
    *,
    tried_for: float = TRIED_FOR,
) -> Iterator[MessageRun]:
    """Yield the messages of `part` by Direct Gets, and by a consumer those that these do not bring.

    The consumer takes over, and the log says why, at the first error that is no `DataLossError`, or
    when answers have been rejected for `tried_for` seconds. With `headers_only` it reads all, since
    Direct Gets bring payloads. Raises what `read_range` raises.
    """
    # A Direct Get always brings the payload; only a consumer has `headers_only`.
    if settings.headers_only:
        return read_range(connect, part, settings, label)
    return checked(part, settings, _gets_or_pulls(connect, part, settings, label, tried_for))


def _gets_or_pulls(
    connect: Connect, part: SequenceRange, settings: PullSettings, label: str, tried_for: float
) -> Generator[MessageRun, None, None]:
    first = part.first
    briefly = replace(settings, retry_timeout=min(tried_for, settings.retry_timeout))
    try:
        with contextlib.closing(_gets(connect, part, briefly, label, gives_up=True)) as runs:
            for run in runs:
                first = int(run.sequences[-1]) + 1
                yield run
        return
    # The stream was deleted or created again: a consumer would read the other one.
    except DataLossError:
        raise
    except JetStreamError as error:
        log.warning(
            "%s: a consumer reads stream %s from sequence %d on: %s",
            label,
            part.stream,
            first,
            error,
        )
    if first < part.end:
        yield from RangeReader(connect, replace(part, first=first), settings, label).read()


def _gets(
    connect: Connect,
    part: SequenceRange,
    settings: PullSettings,
    label: str,
    *,
    gives_up: bool = False,
) -> Generator[MessageRun, None, None]:
    """Yield the messages of `part` in stream order, without a check of its count.

    `gives_up` is that of `_Filtered`.
    """
    whole = _Filtered(connect, part, settings, label, gives_up)
    most = min(settings.max_bytes, _MOST_BYTES)
    filters: Sequence[str | None] = part.subjects or (None,)
    if part.sifted:
        # A Direct Get without a filter brings all messages;
        # `_matching` drops those that no filter matches.
        filters = (None,)
    # The reader holds a batch of each filter at the same time, so the filters share the bytes.
    share = max(most // len(filters), min(most, _LEAST_BYTES))
    readers = [
        through_outages(
            _FilterReader(whole, subject, share),
            settings.retry_timeout,
            Backoff(0.01, at_once=True),
        )
        for subject in filters
    ]
    with contextlib.ExitStack() as stack:
        for reader in readers:
            stack.callback(reader.close)
        if part.sifted:
            yield from _matching(readers[0], Matcher(part.subjects))
        elif len(readers) == 1:
            yield from readers[0]
        else:
            pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="spark-jetstream-get")
            stack.callback(pool.shutdown, cancel_futures=True)  # before the readers are closed
            yield from merge(readers, pool.map)


def sifts(state: StreamSummary, part: SequenceRange, count: int | None = None) -> bool:
    """Whether all messages of a range cost less than a Direct Get for each of its filters.

    ``count`` is how many messages match, None if that is not known. A server looks through a whole
    block of messages for each filter with a wildcard that has a message there; through one without
    a message it passes quickly. Measured with 2.15.1, in microseconds of one core.
    """
    filters = len(part.subjects)
    if filters < 2:
        return False
    # `messages` is an upper bound for the range. `size` is the mean size of a message in bytes.
    messages = min(part.width, state.messages)
    size = state.bytes // max(1, state.messages)
    # With a wildcard the server counts all messages that match, again for each request.
    wild = len([each for each in part.subjects if is_wild(each)])
    asked = wild * _WILDCARD + (filters - wild) * _LITERAL
    if count is not None:
        asked += min(wild * messages * size, count * _BLOCK_BYTES) * _LOOK_AT_BYTE
    return messages * (_MESSAGE + size * _BYTE) <= asked


def _matching(runs: Iterator[DirectBatch], matcher: Matcher) -> Iterator[MessageRun]:
    """Yield the messages of runs that match."""
    for run in runs:
        # int64 (m,): the rows of the run that some filter matches.
        rows = np.flatnonzero(matcher.matches(run.raw_subjects()))
        if len(rows) == len(run):
            yield run
        elif len(rows):
            yield MergedReplies((run,), rows, run.sequences[rows])


def receive(connection: Connection, inbox: Inbox, context: str) -> Frames:
    """Return the next frames of an answer. Raises `RequestTimeout` if none arrive in time."""
    seconds = connection.options.request_timeout
    event = inbox.get(seconds)
    if not isinstance(event, Frames):
        # If the connection is closed, its error says more than the silence does.
        connection.check()
        raise jsapi.no_reply(context, seconds, advice.REQUEST_TIMEOUT)
    return event


def check_server(connection: Connection) -> None:
    """Raise `JetStreamError` if the server is too old for batched Direct Gets."""
    if not connection.can(DIRECT_BATCHES):
        version = shown_version(connection.server_version)
        raise JetStreamError(
            f"reading by direct gets needs nats-server {DIRECT_BATCHES.since} or newer, and this "
            f"is {version}"
        )


def refuse_indirect(state: StreamSummary) -> None:
    """Raise `JetStreamError` if the stream does not allow Direct Gets."""
    if not state.allow_direct:
        raise JetStreamError(
            f"stream {state.name} does not answer direct gets; set its allow_direct to true"
        )


def check_ending(ending: EndOfBatch, stream: str, look_again: Callable[[], StreamSummary]) -> None:
    """Raise what a status means that does not end an answer.

    Looks at the stream again if nobody answered.
    """
    if ending.code == jsapi.NO_RESPONDERS:
        # A server answers 503 where `allow_direct` is off, and also while nobody can answer.
        refuse_indirect(look_again())
        raise NoResponders(f"nobody answers direct gets of stream {stream}")
    # An unknown status is never an end: test_a_status_that_is_not_known_is_no_end.
    if ending.code not in (jsapi.END_OF_BATCH, jsapi.NOT_FOUND):
        status = f"{ending.code} {ending.description}".rstrip()
        raise JetStreamError(f"the server refused a direct get of stream {stream}: {status}")


def next_at_leader(
    connection: Connection, stream: str, subjects: Sequence[str], sequence: int
) -> int | None:
    """Return the sequence of the leader's first matching message from a sequence on, or None."""
    with _leader_needed(stream):
        return next_sequence(connection, stream, subjects, sequence)


@contextlib.contextmanager
def _leader_needed(stream: str) -> Iterator[None]:
    try:
        yield
    except PermissionDenied as error:
        raise PermissionDenied(
            f"{error}; only the leader can say where stream {stream} ends, since any replica or "
            "mirror may answer a direct get",
            subject=error.subject,
        ) from None


def not_the_stream(stream: str, mirror: str) -> MirrorAnswered:
    """Return the error for an answer that a mirror sent."""
    return MirrorAnswered(
        f"mirror {mirror} answers the direct gets of stream {stream}, and may have other messages"
    )


@dataclass
class _Filtered:
    """The state and steps that the readers of a range's filters share."""

    connect: Connect
    part: SequenceRange
    settings: PullSettings
    label: str
    gives_up: bool
    """Whether an error ends the read, unless another answer to the same request may mend it."""
    known: int = 0
    """Messages stored before this time (ns) are those of the stream that was planned."""

    def knows(self, runs: list[DirectBatch]) -> bool:
        """Whether the last look shows that these messages belong to the stream that was planned."""
        return not runs or int(runs[-1][-1:].timestamps()[0]) < self.known

    def look(self, connection: Connection) -> StreamSummary:
        """Check that all messages so far belong to the stream that was planned.

        Raises `DataLossError`.
        """
        state = look(connection, self.part, self.part.first)
        # The clock of the server that stored a message may be ahead
        # of the one that answers, or behind it.
        self.known = state.server_time - CLOCK_SKEW
        return state


class _FilterReader:
    """Reads the messages of a range that match one filter.

    `next` is the first sequence that was not handed out yet.
    """

    def __init__(self, whole: _Filtered, subject: str | None, max_bytes: int) -> None:
        self.whole = whole
        self.part = whole.part
        self.subject = subject
        self.max_bytes = max_bytes
        self.next = whole.part.first
        self.number = 0
        self.mirrored = 0
        self._cuts = Cuts(whole.settings.too_much)
        # Of the request `number`
        self.position = 0  # the next sequence not yet seen, or the end of the range
        self.last = 0  # the sequence of the last message that came, 0 before the first one

    def failed(self, error: JetStreamError) -> bool:
        """Log a failure, or give up; return whether to pause: not after a mirror's first answers."""
        rejected = isinstance(error, AnswerRejected)
        # Another answer mends a rejected one. After other errors a consumer goes on at once: an
        # import from another account may let one reply through for each request, and a reader would
        # wait for the second one again and again.
        if self.whole.gives_up and not rejected:
            raise error
        where = self.whole.label, self.part.stream, self.next
        level = logging.INFO if rejected else logging.WARNING
        log.log(level, "%s: stream %s, going on at sequence %d: %s", *where, error)
        self.mirrored = self.mirrored + 1 if isinstance(error, MirrorAnswered) else 0
        return not 0 < self.mirrored <= _MIRROR_ANSWERS

    def attempt(self, patience: Deadline) -> Iterator[DirectBatch]:
        """Read over one connection until the range ends."""
        connection = self.whole.connect(patience.left)
        check_server(connection)
        with self._cuts.counting(), connection.inbox(whole=True) as inbox:
            inbox.expect(self.max_bytes)
            self._ask(connection, inbox, self.next)
            runs: list[DirectBatch] = []
            while True:
                more, ending = self._take(connection, inbox)
                runs += more
                done = self.position >= self.part.end
                known = self.whole.knows(runs)
                # Messages younger than the last look wait for the end of the answer,
                # so one look serves them all.
                if not (known or done or ending):
                    continue
                # Nothing is yielded before this look: test_a_stream_that_was_created_again.
                if done or not known:
                    self.whole.look(connection)
                yield from self._hand_out(runs)
                runs = []
                if done:
                    return
                if ending is None:
                    continue
                if not self._is_full(ending):
                    self._nothing_more(connection, ending)
                    return
                # Not earlier: one batch ahead made no measurable difference, and takes twice the
                # memory.
                self._ask(connection, inbox, self.position)

    def _hand_out(self, runs: list[DirectBatch]) -> Iterator[DirectBatch]:
        """Yield runs, and move `next` past each, at last to `position`."""
        for run in runs:
            self.next = int(run.sequences[-1]) + 1
            self.mirrored = 0
            yield run
        # Below `position` no other message matches: the answer has passed over them all.
        self.next = self.position

    def _is_full(self, ending: EndOfBatch) -> bool:
        """Whether an answer ended because it had as many messages or bytes as were requested."""
        has_messages = self.last > 0
        return ending.code == jsapi.END_OF_BATCH and has_messages and bool(ending.pending)

    def _ask(self, connection: Connection, inbox: Inbox, position: int) -> None:
        # One more than the range can hold: a message past its end proves that nothing is missing
        # before it.
        batch = min(self.whole.settings.batch, self.part.end - position + 1)
        self.number += 1
        self.position = position
        self.last = 0
        body = jsapi.direct_request(position, self.subject, batch=batch, max_bytes=self.max_bytes)
        inbox.publish(
            jsapi.subject(connection.prefix, jsapi.DIRECT_GET, self.part.stream), body, self.number
        )

    def _take(
        self, connection: Connection, inbox: Inbox
    ) -> tuple[list[DirectBatch], EndOfBatch | None]:
        """Wait for more of the answer; return its messages, and the status that ends it, if any."""
        runs: list[DirectBatch] = []
        frames = receive(connection, inbox, f"read stream {self.part.stream} by direct gets")
        for answer in read_answers(frames, inbox.subject):
            # Late answers to earlier requests, and messages after the end of the range, are no
            # error: test_answers_that_were_not_requested_are_dropped.
            if answer.number != self.number or self.position >= self.part.end:
                continue
            if isinstance(answer, EndOfBatch):
                return runs, answer
            runs += self._accept(answer)
        return runs, None

    def _accept(self, answer: DirectBatch) -> list[DirectBatch]:
        """Check that messages follow the ones before; return those that are in the range."""
        # Even a mirror that lacks nothing may have other subjects,
        # or messages of a stream that is gone.
        if answer.stream != self.part.stream:
            raise not_the_stream(self.part.stream, answer.stream)
        # Of each message (n,): its sequence, and that of the message
        # before it in the answer (`Nats-Last-Sequence`, 0 for the first one).
        sequences, previous = answer.sequences, answer.previous
        if int(previous[0]) != self.last or (previous[1:] != sequences[:-1]).any():
            raise AnswerRejected("messages of an answer were lost on the way")
        if int(sequences[0]) < self.position or (sequences[1:] <= sequences[:-1]).any():
            raise AnswerRejected("a direct get was answered with messages out of order")
        self.last = int(sequences[-1])
        self.position = min(self.last + 1, self.part.end)
        # Messages ascend, so the first `inside` of them are in the range.
        inside = int(sequences.searchsorted(self.part.end))
        return [answer[:inside]] if inside else []

    def _nothing_more(self, connection: Connection, ending: EndOfBatch) -> None:
        """End the range if nothing more matches at the leader, else raise why it does not end."""
        stream, position = self.part.stream, self.position
        check_ending(ending, stream, partial(look, connection, self.part, self.part.first))
        # A 404 names no last sequence, because nothing was sent.
        if (ending.last or 0) != self.last:
            raise AnswerRejected("messages of an answer were lost on the way")
        with _leader_needed(stream):
            subjects = (self.subject,) if self.subject else ()
            ask = partial(next_sequence, connection, stream, subjects, position)
            again = partial(self.whole.look, connection)
            sequence = leader_has(connection, self.part, ask, again)
        if sequence is None:
            self.next = self.part.end
            return
        # Nothing matches in front of that one.
        self.next = max(position, sequence)
        raise AnswerRejected(
            f"a server that answered does not have message {sequence} (yet), which the leader of "
            f"stream {stream} has"
        )
