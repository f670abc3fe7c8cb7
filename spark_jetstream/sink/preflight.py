"""Checks on the driver before the first row is written, of the stream or bucket that the options name.

What a publisher's permissions do not let it see, and what no server can show during an election, is not checked, except
what delivery exactly-once and the columns schedule and atomic_group need.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from spark_jetstream.buckets.kv import stream_name
from spark_jetstream.buckets.object_store import ObjectStream, writing_fault
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import (
    ApiError,
    DeliveryError,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    SchemaError,
    ServerBusy,
    StreamExists,
    StreamNotFound,
    brief,
)
from spark_jetstream.options import ConnectionOptions, SinkOptions, advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import COUNTERS, MESSAGE_TTL, shown_version
from spark_jetstream.protocol.own_traffic import in_other_account, stored_replies, stores_any_inbox
from spark_jetstream.protocol.stream import StreamSummary, stream_summary, subject_pattern
from spark_jetstream.sink.ledger import BUCKET, STREAM, bucket_config, refuse_unfit
from spark_jetstream.sink.target import KeyBucket
from spark_jetstream.spark_process import first_time
from spark_jetstream.streams.lookup import message, nearest_stream, nearest_subject, streams_of

log = logging.getLogger(__name__)

T = TypeVar("T")

HINT = " (option objectBucket)"
"""The end of errors about an Object Store bucket."""

#: Columns that need a setting of the stream.
_SETTINGS = {
    "incr": "allow_msg_counter",
    "schedule": "allow_msg_schedules",
    "rollup": "allow_rollup_hdrs",
    "atomic_group": "allow_atomic",
}
_NEW = {"schedule", "atomic_group"}  # those that servers before 2.12 would store as plain messages
#: Columns that only newer servers know.
_FEATURES = {"incr": COUNTERS, "ttl": MESSAGE_TTL}
_MAX_BYTES_REQUIRED = 10113  # error code: streams of this account must have max_bytes
_VALID = 60.0  # seconds for which a check holds in one process: Spark builds a writer twice in every micro-batch
_checked: dict[tuple[SinkOptions, frozenset[str]], tuple[float, KeyBucket]] = {}
_warned: set[tuple[str, str]] = set()


def check_start(connect: Connect, options: SinkOptions, columns: Collection[str] = ()) -> KeyBucket:
    """Check the streams or the bucket that a write goes to, and create the ledger if delivery exactly-once needs one.

    `columns` are the names of the columns of rows for messages: some of them need a setting of the stream, or a server
    that knows them.
    Return the Key-Value bucket, without a name for a write to something else. A bucket that the account cannot see
    counts as one that is no mirror. Raises `OptionError` if the options do not fit the stream, `DeliveryError` if
    exactly-once is not possible, `SchemaError` for a column that the server is too old for, `StreamNotFound`, and what
    `connect` raises.
    """
    needs = frozenset(columns).intersection({*_SETTINGS, *_FEATURES})
    _check_columns(options, needs)
    # Each write of a query with foreachBatch has a writeId of its own.
    key = options.model_copy(update={"write_id": None}), needs
    checked, bucket = _checked.get(key, (None, KeyBucket()))
    if checked is not None and time.monotonic() - checked < _VALID:
        return bucket
    # A batch write that was never checked in this process more likely names the wrong server than one that restarts. A
    # micro-batch builds its writer anew, often in a new process, which cannot know whether the query just begins.
    times = options.connection
    starts = checked is None and not options.streaming
    connection = connect(times.connect_timeout if starts else times.retry_timeout)
    for column, feature in _FEATURES.items():
        if column in needs and not connection.can(feature):
            version = shown_version(connection.server_version)
            raise SchemaError(f'column "{column}" needs nats-server {feature.since}, and this one is {version}')
    # A micro-batch waits long for the checks only if delivery exactly-once or such a column needs them, or if no answer
    # would mean that there is no such domain.
    needed = options.delivery == "exactly-once" or needs & _NEW or times.domain is not None
    brief = starts or (checked is None and not needed)
    check = _Check(connect, options, times.connect_timeout if brief else times.retry_timeout)
    if options.bucket is not None:
        bucket = _check_keys(check, options.bucket, connection.prefix)
    elif options.object_bucket is not None:
        _check_objects(check, options.object_bucket)
    else:
        _check_subjects(check, needs)
    _checked[key] = time.monotonic(), bucket
    return bucket


def check_interval(
    connect: Connect, options: SinkOptions, write: str, batch: int, streams: Mapping[str, tuple[int, int]]
) -> None:
    """Warn if the micro-batches of a query are further apart than a stream remembers message ids.

    `write` is the id of the query in message ids, `batch` the number of the committed micro-batch, and `streams` holds
    its first and last sequence in each stream. The message before the first one tells how far apart the batches are, if
    it is of the batch before: the process that commits may be a new one each time, so it cannot remember.
    """
    if options.delivery != "deduplicated" or not batch:
        return
    requests = Requests(connect, options.connection.connect_timeout)
    for name, (first, _) in streams.items():
        if (write, name) in _warned or first < 2:
            continue
        try:
            here, earlier = (requests.call(partial(message, stream=name, sequence=at)) for at in (first, first - 1))
            if here is None or earlier is None or not earlier.message_id.startswith(f"{write}.{batch - 1}.".encode()):
                continue
            seconds, window = (here.time - earlier.time) / 1e9, requests.stream(name).duplicate_window
        except JetStreamError as error:
            log.info("cannot see how far apart the micro-batches in stream %s are: %s", name, error)
            _warned.add((write, name))
            continue
        if seconds > window:
            _warned.add((write, name))
            log.warning(
                "micro-batches are %.3g s apart, and stream %s remembers message ids for %g s (duplicate_window): when "
                "the query is restarted in the middle of one, rows may be stored twice; make the window longer than "
                "the trigger interval or set delivery to exactly-once",
                seconds,
                name,
                window,
            )


class _Check:
    def __init__(self, connect: Connect, options: SinkOptions, patience: float) -> None:
        self.options = options
        self.requests = Requests(connect, patience)

    def visible(self, read: Callable[[], T], needed: str = "") -> T | None:
        """Return what `read` returns, None if the server does not let the account see it, or cannot show it now.

        `needed` says what has to be seen all the same, in the `DeliveryError` that is raised then. Also raises if
        acknowledgements can never arrive: the inbox is forbidden, or the JetStream domain does not exist; and in an
        election if rows go to a bucket, whose own configuration says where that is.
        """
        try:
            return read()
        except (PermissionDenied, NoResponders, RequestTimeout, ServerBusy) as error:
            if needed:
                raise DeliveryError(f"{needed}: {error}") from None
            inboxes = f"{self.options.connection.inbox_prefix}."
            if isinstance(error, PermissionDenied) and (error.subject or "").startswith(inboxes):
                raise
            if isinstance(error, NoResponders) and self.options.connection.domain is not None:
                raise
            if isinstance(error, ServerBusy) and self.options.bucket is not None:
                raise
            log.info("not checked before writing: %s", error)
            return None

    def info(self, stream: str, option: str, what: str, prefix: str | None = None) -> dict[str, Any]:
        """Return the reply of STREAM.INFO. Errors call the stream `what`."""
        try:
            return self.requests.ask(jsapi.STREAM_INFO, stream, context=f"read {what} (option {option})", prefix=prefix)
        except StreamNotFound as error:
            kind = "" if option == "stream" else stream_name("")
            hint = nearest_stream(self.requests.connect, [stream], kind, options=True)
            raise jsapi.reworded(error, f"there is no {what} (option {option}){hint}") from None

    def streams_capturing(self, subject: str, option: str) -> list[str] | None:
        """Return the streams that capture a subject, None if the account cannot see them. Raise if there is none."""
        hint = f" (option {option})"
        names = self.visible(lambda: self.requests.call(lambda connection: streams_of(connection, subject, hint)))
        if names == [] and self.options.connection.api_prefix_resolved == jsapi.DEFAULT_PREFIX:
            meant = nearest_subject(self.requests.connect, subject)
            raise OptionError(
                f"option {option}: no stream captures {subject}, so nothing would be stored{meant}", option=option
            )
        return names

    def dead_letters(self) -> None:
        subject, option = self.options.dead_letter_subject, "deadLetterSubject"
        if subject is None:
            return
        names = self.streams_capturing(subject, option)
        if self.options.delivery != "exactly-once":
            return
        for name in names or ():
            state = self.visible(partial(self.requests.stream, name))
            if state is not None:
                refuse_unfit(state, f" (option {option})")

    def ledger(self, replicas: int) -> None:
        context = f"make the ledger of delivery exactly-once, the Key-Value bucket {BUCKET}"
        request = jsapi.request_body(**bucket_config(replicas))

        def create(connection: Connection) -> None:
            connection.api(jsapi.subject(connection.prefix, jsapi.STREAM_CREATE, STREAM), request, context=context)

        knows_ttl = self.requests.can(MESSAGE_TTL)
        try:
            state = self.requests.stream(STREAM)
            expires = knows_ttl and not self.options.streaming
            fault = _ledger_fault(state, expires=expires)
            if fault is not None:
                ledger = f"the ledger of delivery exactly-once, stream {STREAM}"
                raise DeliveryError(f"{ledger}, {fault}")
        except StreamNotFound:
            try:
                self.requests.call(create)
            except StreamExists:
                log.info("another process has made %s at the same moment", BUCKET)
            except (ApiError, PermissionDenied) as error:
                bounded = isinstance(error, ApiError) and error.err_code == _MAX_BYTES_REQUIRED
                command = _ledger_command(replicas, with_ttl=knows_ttl, bounded=bounded)
                raise DeliveryError(
                    f"{error}; make it beforehand ({command}), or set delivery to deduplicated"
                ) from None
        except PermissionDenied as error:
            raise DeliveryError(f"cannot see the ledger of delivery exactly-once: {error}") from None


def _ledger_fault(state: StreamSummary, *, expires: bool) -> str | None:
    """Return why the ledger's stream may lose entries, or refuses those that expire.

    None for a good one.
    """
    edit = f"spark-jetstream stream edit {STREAM}"
    if state.persist_mode == "async":
        crash = "a crash of its server loses what was noted"
        return f"has persist_mode async, so {crash}: create it again without"
    if state.max_age > 0:
        return f"forgets what was noted after its max_age: take that back ({edit} --max-age 0)"
    if state.evicts:
        change = f"{edit} --discard new"
        return f"drops the oldest entries at its limits: let it refuse new ones ({change})"
    if expires and not state.allow_msg_ttl:
        change = f"{edit} --allow-msg-ttl"
        return f"was made without allow_msg_ttl, and the entries of a batch write expire: set it ({change})"
    return None


def _ledger_command(replicas: int, *, with_ttl: bool, bounded: bool) -> str:
    """Return the command that makes the ledger's bucket.

    `bounded`: the account demands a limit.
    """
    parts = [f"spark-jetstream kv add {BUCKET} --replicas {replicas}"]
    if with_ttl:
        parts.append("--limit-marker-ttl 1s")  # entries of batch writes expire
    if bounded:
        parts.append("--max-bytes 64m")
    return " ".join(parts)


def _check_columns(options: SinkOptions, needs: frozenset[str]) -> None:
    named = sorted(needs - _FEATURES.keys())
    if named and options.stream is None:
        raise OptionError(f'option stream must name the stream for column "{named[0]}"', option="stream")
    if "rollup" in needs and options.delivery == "exactly-once":
        raise DeliveryError(
            'option delivery cannot be exactly-once with column "rollup": a roll-up removes the rows that a second '
            "attempt looks for, which would store them again, after the roll-up; use deduplicated"
        )


def _check_subjects(check: _Check, needs: frozenset[str]) -> None:
    options = check.options
    exactly_once = options.delivery == "exactly-once"
    stream = options.stream
    if stream is None and options.subject is not None:
        names = check.streams_capturing(options.subject, "subject")
        stream = names[0] if names and len(names) == 1 else None
    info = None
    if stream is not None:
        who = "delivery exactly-once" if exactly_once else "".join(f'column "{column}"' for column in needs & _NEW)
        needed = f"{who} has to see the state of stream {stream}" if who else ""
        info = check.visible(partial(check.info, stream, "stream", f"stream {stream}"), needed)
    if info is not None:
        _check_stream(check, stream_summary(info, f"read stream {stream}"), needs)
    check.dead_letters()
    if exactly_once:
        check.ledger(int((info or {}).get("config", {}).get("num_replicas", 1)))


def _check_stream(check: _Check, state: StreamSummary, needs: frozenset[str]) -> None:
    name = state.name
    options = check.options
    if state.mirror:
        raise OptionError(f"option stream: {name} is a mirror, which nobody can publish to", option="stream")
    if state.sealed:
        raise OptionError(f"option stream: {name} is sealed and takes no more messages", option="stream")
    if state.no_ack:
        raise OptionError(
            f"option stream: {name} has no_ack set, so nothing says whether a row is stored", option="stream"
        )
    mapped = options.connection.api_prefix_resolved != jsapi.DEFAULT_PREFIX
    if options.subject is not None and not mapped and not subject_pattern(state.subjects).fullmatch(options.subject):
        raise OptionError(
            f"option subject: stream {name} does not capture {options.subject} (its subjects: "
            f"{', '.join(state.subjects)})",
            option="subject",
        )
    for column in sorted(needs & _SETTINGS.keys()):
        setting = _SETTINGS[column]
        if not getattr(state, setting):
            edit = f"set {setting} on it (spark-jetstream stream edit {name} --{setting.replace('_', '-')})"
            mend = f"it was made without {setting}" if column == "incr" else edit
            raise OptionError(f'option stream: {name} refuses column "{column}": {mend}', option="stream")
    if options.delivery == "exactly-once":
        refuse_unfit(state)
    _warn_of_lost_rows(state, options)
    _warn_of_lost_ids(state, options, needs)
    _warn_of_a_small_stream(check, state)
    _warn_of_own_replies(state, options.connection)
    needed = max(options.connection.retry_timeout, options.ack_timeout)
    if state.duplicate_window < needed and options.delivery == "deduplicated":
        log.warning(
            "stream %s remembers message ids for %g s (duplicate_window), less than the %g s for which a row may be "
            "sent again (options retryTimeout, ackTimeout): after an outage a row may be stored twice; make the window "
            "longer or set delivery to exactly-once",
            name,
            state.duplicate_window,
            needed,
        )


def _warn_of_lost_rows(state: StreamSummary, options: SinkOptions) -> None:
    if state.persist_mode == "async" and first_time(f"persist_mode of {state.name} at {options.connection!r}"):
        log.warning(
            "stream %s acknowledges rows before it has stored them (persist_mode async): a crash of its server loses "
            "rows that count as written; write to a stream without it",
            state.name,
        )
    dropped = state.retention == "interest" and not state.consumers
    if dropped and first_time(f"consumers of {state.name} at {options.connection!r}"):
        log.warning(
            "stream %s keeps messages only for its consumers (retention interest) and has none: it acknowledges rows "
            "and drops them; create a consumer before you write",
            state.name,
        )


def _warn_of_lost_ids(state: StreamSummary, options: SinkOptions, needs: frozenset[str]) -> None:
    """Warn of a stream that removes messages within the duplicate window: a restart of its server forgets their ids.

    The server then takes the ids from the messages that it still has (nats-server: server/stream.go, rebuildDedupe).
    """
    reason = None
    if state.retention != "limits":
        reason = f"when they were acknowledged (retention {state.retention})"
    elif state.max_msgs_per_subject > 0:
        reason = f"when newer ones of their subject come (max_msgs_per_subject {state.max_msgs_per_subject})"
    elif "schedule" in needs:
        reason = "of schedules when it has published them"
    elif 0 < state.max_age < state.duplicate_window * 1e9:
        reason = f"after {state.max_age / 1e9:g} s (max_age), within its duplicate_window"
    keeps_ids = options.delivery == "deduplicated" and state.duplicate_window > 0
    if reason is None or not keeps_ids or not first_time(f"ids of {state.name} at {options.connection!r}"):
        return
    log.warning(
        "stream %s removes messages %s. Its server forgets their message ids when it restarts: rows that are written "
        "again after a restart may be stored twice, also within the duplicate window (option delivery deduplicated)",
        state.name,
        reason,
    )


def _warn_of_a_small_stream(check: _Check, state: StreamSummary) -> None:
    """Warn of a stream that discards old messages and has less room than the largest message needs.

    It stores such a message, acknowledges it, and removes it at once.
    """
    if state.discard != "old" or state.max_bytes <= 0:
        return
    largest = check.requests.call(lambda connection: connection.max_payload)
    if state.max_msg_size >= 0:
        largest = min(largest, state.max_msg_size)
    small = state.max_bytes < largest
    if small and first_time(f"max_bytes of {state.name} at {check.options.connection!r}"):
        log.warning(
            "stream %s keeps %d bytes (max_bytes), and takes messages of up to %d bytes: it "
            "acknowledges a row for which it has no room, and drops it; raise max_bytes, or set "
            "max_msg_size below it",
            state.name,
            state.max_bytes,
            largest,
        )


def _warn_of_own_replies(state: StreamSummary, connection: ConnectionOptions) -> None:
    if in_other_account(connection.api_prefix):
        return
    inboxes = stored_replies(state.subjects, connection.inbox_prefix)
    if inboxes and first_time(f"replies in {state.name} at {connection!r}"):
        log.warning(
            "stream %s stores the acknowledgements of rows as well, because its subjects (%s) match those at which the "
            "writer receives them (%s.>): %s",
            state.name,
            brief(", ".join(inboxes)),
            connection.inbox_prefix,
            advice.NARROW if stores_any_inbox(state.subjects) else advice.OTHER_INBOX,
        )


def _check_keys(check: _Check, name: str, prefix: str) -> KeyBucket:
    info = check.visible(lambda: check.info(stream_name(name), "bucket", f"Key-Value bucket {name}"))
    bucket = KeyBucket.of(name, prefix, (info or {}).get("config", {}).get("mirror"))
    if info is not None and bucket.origin.bucket != name:
        what = f"Key-Value bucket {bucket.origin.bucket}, which bucket {name} is a mirror of"
        info = check.visible(lambda: check.info(bucket.origin.stream, "bucket", what, bucket.api_prefix))
    if info is not None:
        state = stream_summary(info, f"read bucket {bucket.origin.bucket}")
        _check_key_stream(state, bucket)
        bucket = replace(bucket, history=state.max_msgs_per_subject != 1)
        _warn_of_lost_rows(state, check.options)
    check.dead_letters()
    return bucket


def _check_key_stream(state: StreamSummary, bucket: KeyBucket) -> None:
    name = bucket.origin.bucket
    problem = None
    if state.mirror:
        problem = (
            f"{bucket.name} is a mirror of {name}, which is a mirror as well; name the bucket that this one is a "
            "mirror of"
        )
    elif not subject_pattern(state.subjects).fullmatch(bucket.origin.subject("key")):
        problem = (
            f"stream {state.name} is no Key-Value bucket: it does not capture $KV.{name}.> (its subjects: "
            f"{', '.join(state.subjects)})"
        )
    elif state.sealed:
        problem = f"{name} is sealed and takes no more values"
    elif state.no_ack:
        problem = f"{name} has no_ack set on its stream, so nothing says whether a row is stored"
    if problem is not None:
        raise OptionError(f"option bucket: {problem}", option="bucket")


def _check_objects(check: _Check, name: str) -> None:
    bucket = ObjectStream(check.requests.connect, name, check.requests.retry_timeout, HINT)
    state = check.visible(bucket.state)
    if state is None:
        return
    if problem := writing_fault(state, name):
        raise OptionError(f"option objectBucket: {name} {problem}", option="objectBucket")
    _warn_of_lost_rows(state, check.options)
