"""Looks up many keys of a Key-Value bucket at once, and proves how new their values are.

Batched Direct Gets bring the values (ADR-31 "JetStream Direct Get", `multi_last`). Any server that
has the stream may answer, with the messages that it has, hence these rules:

- The leader says its last revision before the first request. The end of an answer says up to which
  revision the server has looked (`Nats-UpTo-Sequence`). The lookup drops an answer that ends before
  the leader's revision, and repeats the request.
- A mirror may have other messages than its origin. The lookup drops its answers.
- An answer without a message, a 404, names no revision. The lookup repeats the request with one
  subject more that has a message: that of the last message of the leader.
- A server before 2.15 first notes its last revision, and then finds the messages up to that one
  (server/stream.go, `getDirectMulti`). If another client writes a key in between, the answer lacks
  the key. So the lookup asks the leader about a key that an answer lacks. The key has no value if
  the leader has no later revision than the answer, or no message of the key (STREAM.MSG.GET).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.buckets.kv import (
    OPERATIONS,
    PUT,
    bucket_batch,
    key_of,
    operation,
    stream_name,
)
from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.requests import Connect, Requests, settled_info, stream_info
from spark_jetstream.errors import JetStreamError, OutageError, ProtocolError
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.arrow import (
    flags,
    lengths,
    microseconds,
    texts,
    without,
)
from spark_jetstream.protocol.direct_get import DirectBatch, EndOfBatch
from spark_jetstream.protocol.features import DIRECT_BATCHES, shown_version
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.subjects import KEY_PATTERN
from spark_jetstream.streams.direct import AnswerRejected, check_ending, not_the_stream
from spark_jetstream.streams.lookup import RawMessage, last_message, last_messages
from spark_jetstream.streams.multi_last import ANSWER_BYTES, TOO_MANY, take_answer
from spark_jetstream.streams.outages import begun_outage

log = logging.getLogger(__name__)

FOUND = pa.struct(
    {
        "value": pa.binary(),
        "revision": pa.int64(),
        "updated": pa.timestamp("us", tz="UTC"),
    }
)
"""The type of what is found for a key; null for a key without a value."""
MOST_KEYS = 1000
"""Keys of one request, with room for one subject more (`multi_last.MOST_SUBJECTS`)."""
_REQUEST_BYTES = 256 * 1024  # of the keys of one request
_LEADER_KEYS = 256  # keys that the leader is asked for between two looks at it
_MOST_BYTES = 2**31 - 1  # of all values in an Arrow array of type binary
# All values that were found may have more bytes than an array of type binary can have.
_LARGE_FOUND = pa.struct({**{each.name: each.type for each in FOUND}, "value": pa.large_binary()})
_SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "value": pa.large_binary(),
        "revision": pa.int64(),
        "operation": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
)
_NO_RESULTS = "No Results"  # of a 404: no subject has a message (nats-server: `getDirectMulti`)
_PUT = OPERATIONS[PUT]


class KeyLookup:
    """Looks up keys of one bucket, for one thread.

    With ``leader`` the leader alone is asked, with one request for each key (STREAM.MSG.GET):
    buckets without `allow_direct` and servers before 2.11 allow that, too. ``instead`` says in
    errors how to ask for that. ``retry_timeout`` is in seconds.
    """

    def __init__(
        self,
        connect: Connect,
        bucket: str,
        retry_timeout: float,
        *,
        leader: bool = False,
        instead: str = "",
    ) -> None:
        self.connect = connect
        self.bucket = bucket
        self.retry_timeout = retry_timeout
        self.leader = leader
        self.instead = instead

    def find(self, keys: pa.StringArray) -> pa.StructArray:
        """Return an array of type `FOUND`, with one element for each of the keys.

        It is null for null, for a key without a value (never put, deleted, purged or expired), and
        for a text that can be no key. Each key is looked up once. Each write that was acknowledged
        before the call is in the result. The result is no snapshot of one moment.

        Raises:
            OptionError: The bucket does not exist.
            OutageError: No key got a proven answer for ``retry_timeout``.
            JetStreamError: The bucket does not allow Direct Gets, the server has no batches of
                them, or the values of all keys have more than 2 GiB. Also what `Connection.ask`
                raises and does not pass.
        """
        encoded = pc.dictionary_encode(keys)
        distinct = encoded.dictionary
        possible = flags(pc.match_substring_regex(distinct, KEY_PATTERN))
        # None for a text that can be no key, which need not be UTF-8.
        names = without(distinct, ~possible).to_pylist()
        places, found = self._look_up([name for name in names if name is not None]).latest()
        # For each distinct key the place of what was found, null if it has no value.
        place = pa.array([places.get(name) for name in names], pa.int64())
        rows = place.take(encoded.indices)
        self._check_size(found, rows)
        return found.take(rows).cast(FOUND)

    def _check_size(self, found: pa.StructArray, rows: pa.Int64Array) -> None:
        # int64: the bytes of each value that was found, then of each row.
        sizes = lengths(found.field("value"))
        size = int(sizes[rows.drop_null().to_numpy()].sum())
        if size > _MOST_BYTES:
            raise JetStreamError(
                f"the values of {len(rows):,} keys of bucket {self.bucket} have {size:,} bytes, "
                f"more than the {_MOST_BYTES:,} of one record batch: set "
                "spark.sql.execution.arrow.maxRecordsPerBatch lower"
            )

    def _remedy(self, error: JetStreamError) -> str:
        """Return the end of an error about servers that answered, and proved nothing; else ""."""
        if self.leader or not isinstance(error, AnswerRejected):
            return ""
        return f"; wait longer {advice.RETRY_TIMEOUT}{self.instead}"

    def _look_up(self, keys: Sequence[str]) -> _Entries:
        search = _Search(self, keys)
        outage: Deadline | None = None  # from the first failure to the next progress
        backoff = Backoff(0.01, at_once=True)
        while search.steps:
            before = search.steps
            attempt = Deadline(self.retry_timeout)
            try:
                search.attempt(outage or attempt)
            except JetStreamError as error:
                if not error.retriable:
                    raise
                if search.steps < before:
                    outage = Deadline(self.retry_timeout)
                    backoff.reset()
                elif outage is None:
                    outage = begun_outage(error, attempt)
                if outage.expired:
                    raise OutageError(
                        f"looking up keys of bucket {self.bucket} got no further for "
                        f"{self.retry_timeout:g} s {advice.RETRY_TIMEOUT}: {error}"
                        f"{self._remedy(error)}"
                    ) from error
                log.info("bucket %s, looking up keys again: %s", self.bucket, error)
                backoff.pause(outage)
        return search.entries


class _Entries:
    """Revisions of keys, deletions included, of which the latest one of each key counts."""

    def __init__(self) -> None:
        self._batches = [pa.RecordBatch.from_pylist([], schema=_SCHEMA)]

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns of `_SCHEMA`; the values may be of type binary."""
        self._batches.append(batch.cast(_SCHEMA))

    def latest(self) -> tuple[dict[str, int], pa.StructArray]:
        """Return the keys that have a value, each with its place in an array of type `_LARGE_FOUND`."""
        key, value, revision, done, time = [
            pa.concat_arrays([batch.column(name) for batch in self._batches])
            for name in _SCHEMA.names
        ]
        names = key.to_pylist()
        places: dict[str, int] = {}
        # A bucket with messages from other buckets may have several subjects for a key.
        for place in np.argsort(revision.to_numpy(), kind="stable").tolist():
            places[names[place]] = place
        is_put = flags(pc.equal(done, _PUT))
        live = {name: place for name, place in places.items() if is_put[place]}
        return live, pa.StructArray.from_arrays([value, revision, time], fields=list(_LARGE_FOUND))


class _Search:
    """One lookup of some keys, which several attempts may bring to its end."""

    def __init__(self, lookup: KeyLookup, keys: Iterable[str]) -> None:
        self.entries = _Entries()
        self._lookup = lookup
        self._bucket = lookup.bucket
        self._stream = stream_name(lookup.bucket)
        self._context = f"look up keys of bucket {lookup.bucket}"
        self._waiting = dict.fromkeys(keys)  # without an answer
        # Key -> the revision up to which the server looked whose answer lacks the key. Whether it
        # has no value is not proven yet.
        self._lacking: dict[str, int] = {}
        self._created = ""  # when the stream was created that `_floor` is about
        self._floor = 0  # the last revision when the lookup began
        self._begin = ""  # of the subject of each key; its wildcard stands for a bucket
        self._witness: str | None = None  # a subject that has a message
        self._most = MOST_KEYS  # keys of the next request
        self._number = 0  # of the last request

    @property
    def steps(self) -> int:
        """How many steps are left: an answer for each key, and a proof for those that it lacks."""
        return 2 * len(self._waiting) + len(self._lacking)

    def attempt(self, patience: Deadline) -> None:
        """Go on over one connection until no step is left.

        Raises `AnswerRejected` for an answer that proves nothing, and what `KeyLookup.find` raises.
        """
        connection = self._lookup.connect(patience.left)
        state = self._look(connection)
        if not self._lookup.leader:
            self._check_direct(connection, state)
        self._check_longest(connection)
        if not state.messages:
            # The leader has no message of any key.
            self._waiting.clear()
            self._lacking.clear()
        elif self._lookup.leader:
            self._ask_leader(connection, state, [*self._waiting])
        else:
            with connection.inbox(whole=True) as inbox:
                inbox.expect(ANSWER_BYTES)
                while self._waiting:
                    self._ask(connection, inbox)
            self._prove(connection)

    def _look(self, connection: Connection) -> StreamSummary:
        """Return the state of the bucket's stream, as a leader says it that a majority follows."""
        requests = Requests(lambda _: connection, 0.0)
        state, (all_keys,) = find_bucket(requests, self._bucket, (">",))
        self._begin = all_keys.removesuffix(">")
        # An attempt that is repeated asks for no newer revisions: a replica can catch up.
        if state.created != self._created:
            self._created = state.created
            self._floor = state.last_seq
        return state

    def _state(self, connection: Connection) -> StreamSummary:
        state = stream_info(connection, self._stream, self._context)
        if not state.followed:
            state = settled_info(connection, self._stream, self._context)
        return state

    def _check_direct(self, connection: Connection, state: StreamSummary) -> None:
        """Raise `JetStreamError` if the server or the stream has no batched Direct Gets."""
        if not connection.can(DIRECT_BATCHES):
            raise JetStreamError(
                f"cannot {self._context} by direct gets: they need nats-server "
                f"{DIRECT_BATCHES.since} or newer, and this is "
                f"{shown_version(connection.server_version)}{self._lookup.instead}"
            )
        if not state.allow_direct:
            raise JetStreamError(
                f"cannot {self._context} by direct gets: its stream does not allow them; run "
                f"spark-jetstream stream edit {self._stream} --allow-direct{self._lookup.instead}"
            )

    def _check_longest(self, connection: Connection) -> None:
        """Raise `JetStreamError` for a key that no request has room for."""
        longest = max(map(len, [*self._waiting, *self._lacking]))
        most = connection.max_payload // 2
        # The server would close the connection, which others use as well.
        if longest > most:
            raise JetStreamError(
                f"cannot {self._context}: a key has {longest:,} bytes, and the server takes no "
                f"request with a key of more than {most:,} (half of its max_payload)"
            )

    def _ask(self, connection: Connection, inbox: Inbox) -> None:
        """Ask once for the next keys that wait."""
        keys = self._next_keys(connection)
        subjects = self._subjects(keys)
        if self._witness is not None:
            subjects.append(self._witness)
        self._number += 1
        body = jsapi.request_body(multi_last=subjects, max_bytes=ANSWER_BYTES)
        where = jsapi.subject(connection.prefix, jsapi.DIRECT_GET, self._stream)
        inbox.publish(where, body, self._number)
        runs, ending = take_answer(connection, inbox, self._context, self._number)
        if ending.code == jsapi.NOT_FOUND and ending.description == _NO_RESULTS and not runs:
            self._find_witness(connection)
        elif ending.code in (jsapi.NOT_FOUND, TOO_MANY):
            # A server before 2.15 ends the answer with a 404 when another client replaces one of
            # its messages. And a key may have a subject for each bucket that its bucket copies.
            self._ask_for_fewer(connection, keys)
        else:
            check_ending(ending, self._stream, lambda: self._state(connection))
            self._take(connection, keys, runs, ending)

    def _next_keys(self, connection: Connection) -> list[str]:
        room = min(_REQUEST_BYTES, connection.max_payload // 2)  # bytes
        keys: list[str] = []
        for key in itertools.islice(self._waiting, self._most):
            room -= len(self._begin) + len(key) + len('"", ')
            if keys and room < 0:
                break
            keys.append(key)
        return keys

    def _subjects(self, keys: Iterable[str]) -> list[str]:
        return [f"{self._begin}{key}" for key in keys]

    def _find_witness(self, connection: Connection) -> None:
        """Find a subject with a message, so that the next answer names a revision."""
        was_asked_for = self._witness is not None
        message = last_message(connection, self._stream, ">")
        self._witness = None if message is None else message.subject
        # Without a message the next attempt finds an empty bucket.
        if was_asked_for or message is None:
            raise AnswerRejected(
                f"a server that answered has no message at all (yet) of bucket {self._bucket}"
            )

    def _ask_for_fewer(self, connection: Connection, keys: Sequence[str]) -> None:
        """Ask for half of the keys in the next requests; the leader, if there is one key."""
        if len(keys) == 1:
            self._ask_leader(connection, self._state(connection), keys)
        self._most = max(1, len(keys) // 2)

    def _take(
        self,
        connection: Connection,
        keys: Sequence[str],
        runs: Sequence[DirectBatch],
        ending: EndOfBatch,
    ) -> None:
        """Take an answer about these keys, if it is as new as the bucket was at the beginning."""
        up_to, pending = self._checked(runs, ending)
        # More messages of the same keys may be pending, which would count.
        if pending and "*" in self._begin:
            self._ask_for_fewer(connection, keys)
            return
        lacking = dict.fromkeys(keys)
        asked = texts(keys)
        for run in runs:
            batch = bucket_batch(run, bucket=self._bucket, columns=_SCHEMA.names)
            # The witness is another key: its message is no answer for that.
            batch = batch.filter(pc.is_in(batch.column("key"), value_set=asked))
            self.entries.add(batch)
            for key in batch.column("key").to_pylist():
                lacking.pop(key, None)
                self._waiting.pop(key, None)
        # The server has more messages than an answer holds: the keys of those still wait.
        if pending:
            if len(lacking) == len(keys):
                # The answer ended after the witness, so it is too large to be asked for again.
                self._witness = None
            return
        for key in lacking:
            del self._waiting[key]
            self._lacking[key] = up_to

    def _checked(self, runs: Sequence[DirectBatch], ending: EndOfBatch) -> tuple[int, int]:
        """Return up to which revision a server has looked, and how many messages are pending.

        Raises `AnswerRejected` for an answer that proves nothing.
        """
        for run in runs:
            if run.stream != self._stream:
                raise not_the_stream(self._stream, run.stream)
        if ending.up_to is None or ending.pending is None:
            raise ProtocolError(
                f"cannot {self._context}: the end of the answer does not say how far it goes"
            )
        if ending.up_to < self._floor:
            raise AnswerRejected(
                f"a server that answered has bucket {self._bucket} up to revision {ending.up_to} "
                f"(yet), and its leader had it up to {self._floor}"
            )
        if ending.pending and not runs:
            raise AnswerRejected("an answer ended before its first message")
        return ending.up_to, ending.pending

    def _prove(self, connection: Connection) -> None:
        """Prove of the keys that answers lack that they have no value, or find it."""
        if not self._lacking:
            return
        state = self._state(connection)
        doubtful = []
        for key, up_to in [*self._lacking.items()]:
            if up_to < state.last_seq:
                doubtful.append(key)
            else:
                # No message was stored since, so none took the place of another.
                del self._lacking[key]
        self._ask_leader(connection, state, doubtful)

    def _ask_leader(
        self, connection: Connection, state: StreamSummary, keys: Sequence[str]
    ) -> None:
        """Ask the leader for each of the keys. ``state`` is what it said of itself before."""
        for some in _portions(keys, _LEADER_KEYS):
            messages = last_messages(connection, self._stream, self._subjects(some))
            self._check_leader(connection, state)
            self.entries.add(_as_batch(messages))
            for key in some:
                self._waiting.pop(key, None)
                self._lacking.pop(key, None)

    def _check_leader(self, connection: Connection, before: StreamSummary) -> None:
        """Raise `AnswerRejected` if another server may have answered than the leader of before."""
        # A single server has no successor.
        if not before.clustered:
            return
        now = self._state(connection)
        if (now.leader, now.term) != (before.leader, before.term):
            raise AnswerRejected(
                f"the leader of stream {self._stream} changed while it was asked for keys"
            )


def _portions(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(keys), size):
        yield keys[first : first + size]


def _as_batch(messages: Sequence[RawMessage]) -> pa.RecordBatch:
    """Return messages of keys as rows of `_SCHEMA`."""
    done = [operation(block_headers(message.headers)) for message in messages]
    keys = [key_of(message.subject, message.sequence) for message in messages]
    values = []
    for message, each in zip(messages, done, strict=True):
        values.append(message.data if each == _PUT else None)
    times = np.array([message.time for message in messages], np.int64)
    columns = [
        texts(keys),
        pa.array(values, pa.large_binary()),
        pa.array([message.sequence for message in messages], pa.int64()),
        texts(done),
        microseconds(times),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
