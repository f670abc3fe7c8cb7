"""What can be known to be wrong before the first row is written. Runs on the driver.

What is looked at before objects are written to an Object Store bucket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from spark_jetstream.buckets.kv import stream_name
from spark_jetstream.buckets.object_store import ObjectStream, writing_fault
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import (
    ApiError,
    DeliveryError,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import StreamState, stream_state, subject_pattern
from spark_jetstream.sink.kv import KeyBucket
from spark_jetstream.sink.ledger import BUCKET, STREAM, bucket_config, refuse_unfit
from spark_jetstream.streams.lookup import StoredMessage, message, streams_of

log = logging.getLogger(__name__)

_VALID = 60.0  # seconds for which a check holds in one process: Spark builds a writer twice in every micro-batch
_checked: dict[SinkOptions, float] = {}
_buckets: dict[SinkOptions, tuple[float, KeyBucket]] = {}
_windows: dict[tuple[SinkOptions, str], float] = {}
_warned: set[tuple[str, str]] = set()


def patience_before_rows(options: SinkOptions, checked: float | None, *, needed: bool = True) -> float:
    """For how many seconds the driver waits for the server before the first row of a write.

    A batch write that was never `checked` in this process more likely names the wrong server than one that restarts. A
    micro-batch builds its writer anew, often in a new process, which cannot know whether the query just begins.
    ``needed``: the write cannot go on without the answer.
    """
    starts = checked is None and not (options.streaming and needed)
    return options.connection.connect_timeout if starts else options.connection.retry_timeout


def check_start(connect: Callable[[float], Connection], options: SinkOptions) -> None:
    """Look at the streams that a write goes to, and make the ledger if it needs one.

    What a publisher's permissions do not let it see is not checked, except for `exactly-once`, which needs it. Raises
    `OptionError`, `DeliveryError`, `StreamNotFound`, and what `connect` raises.
    """
    checked = _checked.get(options)
    if checked is not None and time.monotonic() - checked < _VALID:
        return
    connect(patience_before_rows(options, checked))
    patience = patience_before_rows(options, checked, needed=options.delivery == "exactly-once")
    look = _Look(connect, options, patience)
    stream, body = look.target()
    if body is not None:
        _check_stream(stream_state(body, f"read stream {stream}"), options)
    if options.dead_letter_subject is not None:
        look.dead_letters(options.dead_letter_subject)
    if options.delivery == "exactly-once":
        look.ledger(int((body or {}).get("config", {}).get("num_replicas", 1)))
    _checked[options] = time.monotonic()


def check_bucket(connect: Callable[[float], Connection], options: SinkOptions) -> KeyBucket:
    """Look at the Key-Value bucket that a write goes to; where its keys have to be published to.

    What a publisher's permissions do not let it see is not checked, and a bucket that cannot be seen is taken for one
    that is no mirror. Raises `OptionError`, `StreamNotFound`, and what `connect` raises.
    """
    checked, bucket = _buckets.get(options, (None, KeyBucket()))
    if checked is not None and time.monotonic() - checked < _VALID:
        return bucket
    connection = connect(patience_before_rows(options, checked))
    patience = patience_before_rows(options, checked, needed=False)
    look = _Look(connect, options, patience)
    name = options.bucket or ""
    body = look.bucket(name, connection.prefix)
    mirror = (body or {}).get("config", {}).get("mirror")
    bucket = KeyBucket.of(name, connection.prefix, mirror)
    if body is not None and bucket.origin != name:
        body = look.bucket(
            bucket.origin, bucket.api_prefix or connection.prefix, f", which bucket {name} is a mirror of"
        )
    if body is not None:
        _check_bucket(stream_state(body, f"read bucket {bucket.origin}"), bucket)
    if options.dead_letter_subject is not None:
        look.dead_letters(options.dead_letter_subject)
    _buckets[options] = time.monotonic(), bucket
    return bucket


def _check_bucket(state: StreamState, bucket: KeyBucket) -> None:
    name = bucket.origin
    if state.mirror:
        raise OptionError(
            f"option bucket: {bucket.name} is a mirror of {name}, which is a mirror as well; name the bucket that this "
            "one is a mirror of",
            option="bucket",
        )
    if not subject_pattern(state.subjects).fullmatch(f"$KV.{name}.key"):
        raise OptionError(
            f"option bucket: stream {state.name} is no Key-Value bucket: it does not capture $KV.{name}.> (its "
            f"subjects: {', '.join(state.subjects)})",
            option="bucket",
        )
    if state.sealed:
        raise OptionError(f"option bucket: {name} is sealed and takes no more values", option="bucket")
    if state.no_ack:
        raise OptionError(
            f"option bucket: {name} has no_ack set on its stream, so nothing says whether a row is stored",
            option="bucket",
        )


def _check_stream(state: StreamState, options: SinkOptions) -> None:
    name = state.name
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
    if options.delivery == "exactly-once":
        refuse_unfit(state)
    if options.delivery == "at-least-once":
        return
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


def check_interval(
    connect: Callable[[float], Connection],
    options: SinkOptions,
    write: str,
    batch: int,
    streams: Mapping[str, tuple[int, int]],
) -> None:
    """Warn when the micro-batches of a query are further apart than a stream remembers message ids.

    ``streams`` are the first and last sequences of ``batch``. What stands in front of the first, if it is of the batch
    before, says how far apart they are: the process that commits may be a new one each time, and remembers nothing.
    """
    if options.delivery != "deduplicated" or not batch:
        return
    look = _Look(connect, options, options.connection.connect_timeout)
    for name, (first, _) in streams.items():
        if (write, name) in _warned or first < 2:
            continue
        try:
            seconds = look.interval(name, first, f"{write}.{batch - 1}.".encode())
            if seconds is None:
                continue
            window = _windows.get((options, name))
            if window is None:
                window = _windows[options, name] = look.state(name).duplicate_window
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


class _Look:
    def __init__(self, connect: Callable[[float], Connection], options: SinkOptions, patience: float) -> None:
        self.options = options
        self.needed = options.delivery == "exactly-once"
        self._connect = connect
        self._patience = patience

    def target(self) -> tuple[str, dict[str, Any] | None]:
        """The one stream that the options name, directly or by the subject, and what STREAM.INFO says of it."""
        stream = self.options.stream
        if stream is None and self.options.subject is not None:
            names = self._names(self.options.subject, "subject")
            stream = names[0] if names and len(names) == 1 else None
        if stream is None:
            return "", None
        try:
            return stream, self._info(stream)
        except StreamNotFound as error:
            raise StreamNotFound(
                f"there is no stream {stream} (option stream)",
                code=error.code,
                err_code=error.err_code,
                description=error.description,
            ) from None
        except (PermissionDenied, NoResponders, RequestTimeout) as error:
            if self.needed:
                raise DeliveryError(f"delivery exactly-once has to see the state of stream {stream}: {error}") from None
            self._refuse_deaf(error)
            log.info("cannot look at stream %s before writing: %s", stream, error)
            return stream, None

    def bucket(self, name: str, prefix: str, why: str = "") -> dict[str, Any] | None:
        """What STREAM.INFO says of a bucket's stream, None when it cannot be seen; ``why`` it is looked at."""
        stream = stream_name(name)
        context = f"read bucket {name} (option bucket)"
        try:
            return self._ask(lambda _: jsapi.stream_info(prefix, stream), context)
        except StreamNotFound as error:
            raise StreamNotFound(
                f"there is no Key-Value bucket {name}{why} (option bucket)",
                code=error.code,
                err_code=error.err_code,
                description=error.description,
            ) from None
        except (PermissionDenied, NoResponders, RequestTimeout) as error:
            self._refuse_deaf(error)
            log.info("cannot look at bucket %s before writing: %s", name, error)
            return None

    def state(self, stream: str) -> StreamState:
        return stream_state(self._info(stream), f"read stream {stream}")

    def interval(self, stream: str, first: int, before: bytes) -> float | None:
        """Seconds between message ``first`` and the one in front of it, if the id of that begins with ``before``."""

        def get(sequence: int) -> StoredMessage | None:
            return retrying(lambda: message(self._connect(self._patience), stream, sequence), self._patience)

        earlier = get(first - 1)
        if earlier is None or not earlier.message_id.startswith(before):
            return None
        here = get(first)
        return None if here is None else (here.time - earlier.time) / 1e9

    def dead_letters(self, subject: str) -> None:
        self._names(subject, "deadLetterSubject")

    def ledger(self, replicas: int) -> None:
        """Make the ledger's bucket unless it exists."""
        context = f"make the ledger of delivery exactly-once, the Key-Value bucket {BUCKET}"

        def create() -> None:
            connection = self._connect(self._patience)
            request = jsapi.stream_create_request(bucket_config(replicas))
            connection.api(jsapi.stream_create(connection.prefix, STREAM), request, context=context)

        try:
            self._info(STREAM)
        except StreamNotFound:
            try:
                retrying(create, self._patience)
            except StreamExists:
                log.info("somebody else has made %s at the same moment", BUCKET)
            except (ApiError, PermissionDenied) as error:
                raise DeliveryError(f"{error}; make it beforehand, or set delivery to deduplicated") from None
        except PermissionDenied as error:
            raise DeliveryError(f"cannot see the ledger of delivery exactly-once: {error}") from None

    def _names(self, subject: str, option: str) -> list[str] | None:
        """The streams that capture a subject; None when that cannot be known. None at all is an error."""
        try:
            names = retrying(
                lambda: streams_of(self._connect(self._patience), subject, f" (option {option})"), self._patience
            )
        except (PermissionDenied, NoResponders, RequestTimeout) as error:
            self._refuse_deaf(error)
            log.info("cannot look before writing: %s", error)
            return None
        if not names and self.options.connection.api_prefix_resolved == jsapi.DEFAULT_PREFIX:
            raise OptionError(
                f"option {option}: no stream captures {subject}, so nothing would be stored", option=option
            )
        return names

    def _refuse_deaf(self, error: JetStreamError) -> None:
        """Who may not hear answers hears none to what is published either, nor who asks a domain that is not there."""
        inboxes = f"{self.options.connection.inbox_prefix}."
        if isinstance(error, PermissionDenied) and (error.subject or "").startswith(inboxes):
            raise error
        if isinstance(error, NoResponders) and self.options.connection.domain is not None:
            raise error

    def _info(self, stream: str) -> dict[str, Any]:
        return self._ask(
            lambda connection: jsapi.stream_info(connection.prefix, stream),
            f"read stream {stream} (option stream)",
        )

    def _ask(self, subject: Callable[[Connection], str], context: str) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            connection = self._connect(self._patience)
            return connection.ask(subject(connection), b"", context=context)

        return retrying(ask, self._patience)


HINT = " (option objectBucket)"
"""How errors end that speak of the bucket."""

_VALID_BUCKET = 60.0  # seconds for which a check holds in one process: Spark builds a writer twice in every micro-batch
_checked_bucket: dict[SinkOptions, float] = {}


def check_object_bucket(connect: Callable[[float], Connection], options: SinkOptions) -> None:
    """Look at the bucket that objects are to be written to. Runs on the driver.

    What the permissions do not let it see is not checked. Raises `OptionError`, `StreamNotFound`, and what ``connect``
    raises.
    """
    checked = _checked_bucket.get(options)
    if checked is not None and time.monotonic() - checked < _VALID_BUCKET:
        return
    connect(patience_before_rows(options, checked))
    patience = patience_before_rows(options, checked, needed=False)
    bucket = ObjectStream(connect, options.object_bucket or "", patience, HINT)
    try:
        fault = writing_fault(bucket.state(), bucket.bucket)
    except (PermissionDenied, NoResponders, RequestTimeout) as error:
        inboxes = f"{options.connection.inbox_prefix}."
        if isinstance(error, PermissionDenied) and (error.subject or "").startswith(inboxes):
            # Who may not hear answers hears none to what is published either.
            raise
        log.info("cannot look at bucket %s before writing: %s", bucket.bucket, error)
        fault = ""
    if fault:
        raise OptionError(f"option objectBucket: {bucket.bucket} {fault}", option="objectBucket")
    _checked_bucket[options] = time.monotonic()
