"""Checks on the driver before the first row is written, of the stream or bucket that the options name.

What a publisher's permissions do not let it see, and what no server can show during an election, is not checked, except
what delivery exactly-once and the columns schedule and atomic_group need.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from spark_jetstream.buckets.kv import stream_name
from spark_jetstream.buckets.object_stream import ObjectStream, writing_fault
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import (
    DeliveryError,
    NoResponders,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    SchemaError,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import COUNTERS, MESSAGE_TTL, shown_version
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.sink.fitness import refuse_key_stream, refuse_unfit, refuse_unwritable
from spark_jetstream.sink.ledger_bucket import check_ledger
from spark_jetstream.sink.stream_warnings import warn_of_lost_rows, warn_of_stream
from spark_jetstream.sink.target import KeyBucket
from spark_jetstream.streams.lookup import nearest_stream, nearest_subject, streams_of

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
_VALID = 60.0  # seconds for which a check holds in one process: Spark builds a writer twice in every micro-batch
_checked: dict[tuple[SinkOptions, frozenset[str]], tuple[float, KeyBucket]] = {}


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
    first = checked is None
    # A batch write that was never checked in this process more likely names the wrong server than one that restarts. A
    # micro-batch builds its writer anew, often in a new process, which cannot know whether the query just begins.
    starts = first and not options.streaming
    times = options.connection
    connection = connect(times.connect_timeout if starts else times.retry_timeout)
    _check_server(connection, needs)
    brief = starts or (first and not _must_be_checked(options, needs))
    check = _Check(connect, options, times.connect_timeout if brief else times.retry_timeout)
    if options.bucket is not None:
        bucket = _check_keys(check, options.bucket, connection.prefix)
    elif options.object_bucket is not None:
        _check_objects(check, options.object_bucket)
    else:
        _check_subjects(check, needs)
    _checked[key] = time.monotonic(), bucket
    return bucket


def _must_be_checked(options: SinkOptions, needs: frozenset[str]) -> bool:
    """Whether a micro-batch waits long for the checks.

    Delivery exactly-once and some columns need them, and without an answer there may be no such domain.
    """
    if options.delivery == "exactly-once" or options.connection.domain is not None:
        return True
    return not needs.isdisjoint(_NEW)


def _check_server(connection: Connection, needs: frozenset[str]) -> None:
    for column, feature in _FEATURES.items():
        if column in needs and not connection.can(feature):
            version = shown_version(connection.server_version)
            raise SchemaError(
                f'column "{column}" needs nats-server {feature.since}, and this one is {version}'
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

    def info(
        self, stream: str, option: str, what: str, prefix: str | None = None
    ) -> dict[str, Any]:
        """Return the reply of STREAM.INFO. Errors call the stream `what`."""
        try:
            return self.requests.ask(
                jsapi.STREAM_INFO, stream, context=f"read {what} (option {option})", prefix=prefix
            )
        except StreamNotFound as error:
            kind = "" if option == "stream" else stream_name("")
            hint = nearest_stream(self.requests.connect, [stream], kind, options=True)
            raise jsapi.reworded(error, f"there is no {what} (option {option}){hint}") from None

    def streams_capturing(self, subject: str, option: str) -> list[str] | None:
        """Return the streams that capture a subject, None if the account cannot see them. Raise if there is none."""
        hint = f" (option {option})"
        names = self.visible(
            lambda: self.requests.call(lambda connection: streams_of(connection, subject, hint))
        )
        if names == [] and self.options.connection.api_prefix_resolved == jsapi.DEFAULT_PREFIX:
            meant = nearest_subject(self.requests.connect, subject)
            raise OptionError(
                f"option {option}: no stream captures {subject}, so nothing would be stored{meant}",
                option=option,
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


def _check_columns(options: SinkOptions, needs: frozenset[str]) -> None:
    named = sorted(needs - _FEATURES.keys())
    if named and options.stream is None:
        raise OptionError(
            f'option stream must name the stream for column "{named[0]}"', option="stream"
        )
    if "rollup" in needs and options.delivery == "exactly-once":
        raise DeliveryError(
            'option delivery cannot be exactly-once with column "rollup": a roll-up removes the rows that a second '
            "attempt looks for, which would store them again, after the roll-up; use deduplicated"
        )


def _check_subjects(check: _Check, needs: frozenset[str]) -> None:
    options = check.options
    exactly_once = options.delivery == "exactly-once"
    replicas = 1
    stream = _stream_of_rows(check)
    if stream is not None:
        info = check.visible(
            partial(check.info, stream, "stream", f"stream {stream}"),
            needed=_why_visible(options, needs, stream),
        )
        if info is not None:
            state = stream_summary(info, f"read stream {stream}")
            _check_stream(state, options, needs)
            warn_of_stream(check.requests, state, options, needs)
            replicas = state.num_replicas or replicas
    check.dead_letters()
    if exactly_once:
        check_ledger(check.requests, replicas, streaming=options.streaming)


def _stream_of_rows(check: _Check) -> str | None:
    """Return the stream that all rows go to, None if that is not known."""
    options = check.options
    if options.stream is not None or options.subject is None:
        return options.stream
    names = check.streams_capturing(options.subject, "subject")
    return names[0] if names and len(names) == 1 else None


def _why_visible(options: SinkOptions, needs: frozenset[str], stream: str) -> str:
    """Return why the account must see the state of a stream, "" if it need not."""
    if options.delivery == "exactly-once":
        who = "delivery exactly-once"
    else:
        who = "".join(f'column "{column}"' for column in needs & _NEW)
    return f"{who} has to see the state of stream {stream}" if who else ""


def _check_stream(state: StreamSummary, options: SinkOptions, needs: frozenset[str]) -> None:
    refuse_unwritable(state, options)
    for column in sorted(needs & _SETTINGS.keys()):
        _check_setting(state, column)
    if options.delivery == "exactly-once":
        refuse_unfit(state)


def _check_setting(state: StreamSummary, column: str) -> None:
    """Raise `OptionError` if the stream lacks the setting that a column needs."""
    setting = _SETTINGS[column]
    if getattr(state, setting):
        return
    mend = f"set {setting} on it (spark-jetstream stream edit {state.name} --{setting.replace('_', '-')})"
    if column == "incr":
        # No server changes this one.
        mend = f"it was made without {setting}"
    raise OptionError(
        f'option stream: {state.name} refuses column "{column}": {mend}', option="stream"
    )


def _check_keys(check: _Check, name: str, prefix: str) -> KeyBucket:
    info = check.visible(
        lambda: check.info(stream_name(name), "bucket", f"Key-Value bucket {name}")
    )
    bucket = KeyBucket.of(name, prefix, (info or {}).get("config", {}).get("mirror"))
    if info is not None and bucket.origin.bucket != name:
        what = f"Key-Value bucket {bucket.origin.bucket}, which bucket {name} is a mirror of"
        info = check.visible(
            lambda: check.info(bucket.origin.stream, "bucket", what, bucket.api_prefix)
        )
    if info is not None:
        state = stream_summary(info, f"read bucket {bucket.origin.bucket}")
        refuse_key_stream(state, bucket)
        bucket = replace(bucket, history=state.max_msgs_per_subject != 1)
        warn_of_lost_rows(state, check.options)
    check.dead_letters()
    return bucket


def _check_objects(check: _Check, name: str) -> None:
    bucket = ObjectStream(check.requests.connect, name, check.requests.retry_timeout, HINT)
    state = check.visible(bucket.state)
    if state is None:
        return
    if problem := writing_fault(state, name):
        raise OptionError(f"option objectBucket: {name} {problem}", option="objectBucket")
    warn_of_lost_rows(state, check.options)
