"""Key-Value buckets: list, create, change, delete; and the keys of one bucket: read, write, watch.

ADR-8 "JetStream based Key-Value Stores"; time to live of a key: ADR-48 "TTL Support for Key-Value
Buckets".
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.admin.api import Api, checked, positive
from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.messages import Messages, check_place, octets, store
from spark_jetstream.admin.models.buckets import BucketConfig, Nearest, fields_of
from spark_jetstream.admin.models.kv import KEY_VALUE, BucketInfo, Entry, entries_of, entry_of
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo, StreamSource
from spark_jetstream.admin.watch import LABEL, Begin, settings, watch
from spark_jetstream.buckets.kv import (
    EXPECTED,
    OPERATION_HEADERS,
    OPERATIONS,
    PUT,
    WRONG_REVISION,
    Origin,
    last_revision,
    operation,
    stream_name,
)
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import ask
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    KeyNotFound,
    MessageNotFound,
    NoResponders,
    OptionError,
    PermissionDenied,
    StreamNotFound,
    WrongRevision,
)
from spark_jetstream.options.names import CommaList, KeyFilter
from spark_jetstream.options.values import Span
from spark_jetstream.protocol import columns, jsapi
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.pub_ack import Cause, RefusalCode, StoreFault, cause
from spark_jetstream.protocol.subjects import MAX_SUBJECT, key_fault
from spark_jetstream.protocol.units import (
    LONGEST_TTL,
    SECOND,
    Nanoseconds,
    minutes_or_months,
    shown,
)
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.lookup import last_message

log = logging.getLogger(__name__)

_TTL = "Nats-TTL"
_NEVER = "never"
_ATTEMPTS = 10  # at a key that others write each time
_MOST_BYTES = MAX_SUBJECT - 256 - len("$KV..")  # of a key, however long the name of its bucket is
_ANY = "$KV.*"  # the subjects of a bucket with messages from other buckets
_HALF_AN_HOUR = Nanoseconds.of("30m")
_FILTERS = CommaList(KeyFilter(), "keys", apart=True)
#: What a refusal means for a bucket, by the server's error code (nats-server: server/errors.json).
_ADVICE: Mapping[Cause, str] = {
    RefusalCode.MESSAGE_TOO_LARGE: "with its headers the value is larger than max_value_size of "
    "bucket {0.bucket}",
    StoreFault.STREAM_FULL: "bucket {0.bucket} takes nothing more: it is full (max_bytes)",
    RefusalCode.STREAM_SEALED: "bucket {0.bucket} is sealed",
    RefusalCode.ROLLUP_DISABLED: "a purge needs allow_rollup_hdrs on stream {0.stream}",
    RefusalCode.TTL_DISABLED: "a ttl needs limit_marker_ttl of bucket {0.bucket}",
}


@dataclass(frozen=True)
class _Place:
    """Where the keys of a bucket are; ``subjects`` is the prefix of their subjects in its stream.

    If the account may not read the configuration, the bucket counts as one that copies nothing.
    """

    origin: Origin
    subjects: str


class Bucket:
    """A Key-Value bucket; ``admin.kv.bucket(name)``.

    Values are bytes; text is stored as UTF-8. A revision is a sequence of the bucket's stream. A
    mirror is read from the mirror and written at its origin. The first method reads the bucket's
    configuration; an account that may not read it can still write, and `get`.

    All methods raise what `Api` raises, `StreamNotFound` when the bucket does not exist, and
    `OptionError` for an invalid argument, such as a key with a blank. After a write that raises
    `RequestTimeout` or `ConnectionFailed` the value may be stored or not.
    """

    def __init__(self, api: Api, name: str) -> None:
        self.name = KEY_VALUE.name(name)
        self._stream = stream_name(self.name)
        self._api = api
        self._messages = Messages(api)

    def __repr__(self) -> str:
        return f"<Bucket {self.name}>"

    # Looking

    def status(self) -> BucketInfo:
        """Return the configuration of the bucket and its size. Raises `StreamNotFound`."""
        return KeyValue(self._api).load(self.name)

    def get(self, key: str, *, revision: int | None = None, direct: bool = False) -> Entry:
        """Return the value of a key, or the one that it had at a revision.

        ``direct`` is that of `Messages`. Raises `KeyNotFound`, which says whether the key was
        deleted, purged, or never there.
        """
        context = f"get key {_key(key)} of bucket {self.name}"
        wanted = context
        problem = "the key does not exist"
        if revision is not None:
            wanted = f"{context} at revision {revision}"
            problem = "the bucket does not have this revision (any more)"
        try:
            with KEY_VALUE.naming(self.name, self._api.nearest, context):
                message = self._message(key, revision, direct)
        except MessageNotFound:
            raise self._missing(key, wanted, problem) from None
        entry = entry_of(self.name, message)
        # A revision is a sequence of the stream, which any key may have.
        if entry.key != key:
            raise self._missing(key, wanted, f"that is a revision of key {entry.key}")
        # ADR-8: a deletion is a message of the key, so the key has a last message without a value.
        if not entry.live:
            done = "deleted" if entry.operation == "DELETE" else "purged"
            raise self._missing(
                key,
                context,
                f"it was {done} at revision {entry.revision}",
                operation=entry.operation,
                revision=entry.revision,
            )
        return entry

    def _message(self, key: str, revision: int | None, direct: bool) -> StoredMessage:
        """Return the message of a revision, of any key, or the last message of the key."""
        if revision is not None:
            sequence = positive(revision, "revision")
            return self._messages.get(self._stream, sequence, direct=direct)
        subject = f"{self._place.subjects}.{key}"
        return self._messages.last(self._stream, subject, direct=direct)

    def keys(self, *filters: str) -> Iterator[str]:
        """Return the keys that have a value, in the order of their revisions.

        A key that has a value all the time is returned exactly once, however often it changes
        meanwhile. With ``filters`` only keys that match one of them (``*`` and ``>`` as in
        subjects). Raises `StreamNotFound`, and `OutageError` if the bucket must be read again: a
        replica lagged, or others wrote faster than this reader.
        """
        return (entry.key for entry in self._current(filters, headers_only=True) if entry.live)

    def entries(self, *filters: str, include_deletes: bool = False) -> Iterator[Entry]:
        """Return the latest revision of each key.

        With ``include_deletes``, those of deleted keys too. Arguments and errors are those of
        `keys`.
        """
        return (entry for entry in self._current(filters) if entry.live or include_deletes)

    def history(self, key: str) -> list[Entry]:
        """Return the revisions of a key, deletions too, the oldest first.

        Raises `KeyNotFound` if there is none.
        """
        subject = f"{self._place.subjects}.{_key(key)}"
        # To the end of the stream as a consumer finds it, not as it was at the first look: a key
        # that is written in between has no revision before that end if the bucket keeps one
        # (`test_the_history_of_a_key_that_is_written_meanwhile`).
        messages = watch(self._api, self._stream, [subject], "all", follow=False)
        revisions = [entry_of(self.name, message) for message in messages if message is not None]
        if not revisions:
            context = f"get the history of key {key} of bucket {self.name}"
            raise self._missing(key, context, "the key does not exist")
        return revisions

    def watch(
        self,
        *filters: str,
        history: bool = False,
        updates_only: bool = False,
        include_deletes: bool = True,
        timeout: float | None = None,
    ) -> Iterator[Entry | None]:
        """Return the latest revision of each key, then None once, then every change.

        The iterator has no end. A key that changes before the None comes again before it, so that
        none is missing then. Every change is returned exactly once across reconnects and restarts
        of servers, unless the bucket, which keeps ``history`` revisions of a key, removes it first.
        Closing the iterator ends it. ``history`` begins with all revisions that the bucket keeps,
        ``updates_only`` with the None. After the None, it ends when no change arrives for
        ``timeout`` seconds.

        Raises:
            DataLossError: The bucket was deleted or created again, or a server lost data that it
                had.
            OutageError: The server was away for longer than option ``retryTimeout``.
        """
        if history and updates_only:
            raise OptionError("history and updates_only cannot be set together")
        begin: Begin = "latest"
        if updates_only:
            begin = "new"
        elif history:
            begin = "all"
        subjects = self._subjects(filters)
        # The stream is looked up now, not when the first change is asked for.
        messages = watch(self._api, self._stream, subjects, begin, timeout=timeout)
        return self._changes_of(messages, include_deletes)

    def _changes_of(
        self,
        messages: Iterator[StoredMessage | None],
        include_deletes: bool,
    ) -> Iterator[Entry | None]:
        for message in messages:
            if message is None:
                yield None
                continue
            entry = entry_of(self.name, message)
            if entry.live or include_deletes:
                yield entry

    # Writing

    def put(self, key: str, value: str | bytes) -> int:
        """Give a key a value, whatever value it has; return the revision.

        Raises `ApiError` if the server refuses.
        """
        return self._store(key, value, {}, "put")

    def create(self, key: str, value: str | bytes, *, ttl: Any = None) -> int:
        """Give a value to a key that has none; return the revision.

        Raises `WrongRevision` if the key has a value.

        After the duration ``ttl`` the server removes the value; ``never`` overrides the ``ttl`` of
        the bucket. The bucket (of a mirror, its origin) needs ``limit_marker_ttl``; unless its
        ``history`` is 1, ``ttl`` must not be shorter than that.
        """
        # ADR-8: sequence 0 expects that the subject has no message.
        expected = 0
        headers = self._ttl(ttl)
        for _ in range(_ATTEMPTS):
            try:
                return self._store(key, value, {EXPECTED: str(expected), **headers}, "create")
            except WrongRevision as error:
                refusal = error
            # The latest revision may be a deletion, which the value replaces.
            expected, live = self._last(key)
            # A value: the key exists. Else the next attempt expects the deletion.
            if live:
                break
        actual = expected or refusal.found
        exists = f"it exists, with revision {actual}"
        problem = f"cannot create key {key} of bucket {self.name}: {exists}"
        raise self._wrong_revision(problem, key, 0, actual, refusal.err_code)

    def update(self, key: str, value: str | bytes, revision: int) -> int:
        """Give a key a value; return the new revision.

        Raises `WrongRevision` if ``revision`` is not the latest one.
        """
        return self._store(key, value, {EXPECTED: str(positive(revision, "revision"))}, "update")

    def delete(self, key: str, *, revision: int | None = None) -> int:
        """Mark a key as deleted, whether it exists or not; return the revision of the mark.

        Its history stays.

        Raises `WrongRevision` if ``revision`` is not the latest one.
        """
        return self._remove(key, "DELETE", revision, {})

    def purge(self, key: str, *, revision: int | None = None, ttl: Any = None) -> int:
        """Mark a key as purged, and remove all its revisions. Raises `WrongRevision` as `delete`.

        After the duration ``ttl`` the server removes the mark; the bucket needs
        ``limit_marker_ttl``.
        """
        return self._remove(key, "PURGE", revision, self._ttl(ttl))

    def revert(self, key: str, revision: int) -> int:
        """Put the value again that a key had at a revision; return the new revision.

        It is read as `get` does, and written as `update` does. Raises `KeyNotFound`,
        `WrongRevision`.
        """
        before = self.get(key, revision=revision)
        # The latest revision where the key is written: a mirror may lag.
        expected = self._last(key)[0] or before.revision
        return self._store(key, before.value, {EXPECTED: str(expected)}, "revert")

    def purge_deletes(self, older_than: Any = _HALF_AN_HOUR) -> int:
        """Remove the marks of deleted and purged keys with all earlier revisions.

        Returns how many marks were removed. If a mark is younger than ``older_than``, only the
        earlier revisions are removed. A value that is put at the same time stays, and a mark whose
        subject has a wildcard: to purge that subject would purge all that it matches. Raises
        `OptionError` if ``older_than`` is no duration.
        """
        context = f"remove the marks of deleted keys from bucket {self.name}"
        age = checked(Span(), "older_than", older_than)
        # The server's clock: it also gave the marks their times.
        limit = self.status().stream.ts.nanoseconds - age
        origin = self._place.origin
        connection = self._api.connection
        # A mirror copies its messages, so marks are removed at its origin.
        purge = jsapi.subject(
            origin.api_prefix or connection.prefix,
            jsapi.STREAM_PURGE,
            origin.stream,
        )
        count = 0
        for subject, entry in self._marks():
            # No message after the mark is removed: a value that was put since stays.
            end = entry.revision
            is_old = entry.created.nanoseconds < limit
            if is_old:
                end += 1
            if end == 1:
                continue
            # The server removes messages before `end` (exclusive).
            request = jsapi.purge_request(end, subject)
            reply = connection.api(purge, request, context=context)
            # A mirror keeps the mark that its origin has removed already.
            if is_old and jsapi.field(reply, "purged", int, context) > 0:
                count += 1
        return count

    def _marks(self) -> Iterator[tuple[str, Entry]]:
        """Yield the marks of deleted and purged keys, with their subjects.

        A mark whose subject has a wildcard is left out.
        """
        for messages in self._table((), headers_only=True):
            subjects = messages.subjects().to_pylist()
            for subject, entry in zip(subjects, entries_of(self.name, messages), strict=True):
                if entry.live:
                    continue
                if {"*", ">"}.isdisjoint(subject.split(".")):
                    yield subject, entry
                else:
                    revision = entry.revision
                    log.warning("message %d of bucket %s on %s stays", revision, self.name, subject)

    def _missing(self, key: str, context: str, problem: str, **mark: Any) -> KeyNotFound:
        return KeyNotFound(f"cannot {context}: {problem}", bucket=self.name, key=key, **mark)

    @functools.cached_property
    def _place(self) -> _Place:
        prefix = self._api.connection.prefix
        try:
            config = self.status().stream.config
        # An account that may only write, or get, need not see the configuration.
        except PermissionDenied as error:
            log.info("%s", error)
            return _Place(Origin.of(self.name, prefix), f"$KV.{self.name}")
        mirror = None if config.mirror is None else config.mirror.body()
        # Messages from another bucket may keep the subjects that they have there.
        keeps_subjects = any(not source.subject_transforms for source in config.sources)
        foreign = mirror is not None or keeps_subjects
        subjects = _ANY if foreign else f"$KV.{self.name}"
        # Writes go to the origin; reads take the subjects that the messages have here.
        return _Place(Origin.of(self.name, prefix, mirror), subjects)

    @functools.cached_property
    def _written(self) -> BucketInfo | None:
        """The bucket where the keys are written; None if the account may not look at it."""
        origin = self._place.origin
        context = f"look at bucket {origin.bucket}"
        try:
            with KEY_VALUE.naming(origin.bucket, self._nearest(origin), context):
                reply = self._api.requests.call(
                    lambda connection: ask(
                        connection,
                        jsapi.STREAM_INFO,
                        origin.stream,
                        context=context,
                        prefix=origin.api_prefix,
                    )
                )
        # The server then decides alone about a time to live.
        except (PermissionDenied, NoResponders) as error:
            log.info("%s", error)
            return None
        return BucketInfo(StreamInfo.from_server(reply, context))

    def _subjects(self, filters: tuple[str, ...]) -> tuple[str, ...]:
        """Return the filters of the stream for filters of keys. Raises `OptionError`."""
        keys = checked(_FILTERS, "a filter of keys", filters) if filters else (">",)
        return tuple(f"{self._place.subjects}.{key}" for key in keys)

    def _table(
        self,
        filters: tuple[str, ...],
        *,
        headers_only: bool = False,
    ) -> Iterator[columns.MessageRun]:
        part = TablePart(self._stream, self.status().stream.created, self._subjects(filters))
        return read_table(
            self._api.connect,
            part,
            settings(self._api, headers_only=headers_only),
            LABEL,
        )

    def _current(self, filters: tuple[str, ...], *, headers_only: bool = False) -> Iterator[Entry]:
        """Return the latest revision of each key, deletions included."""
        tables = self._table(filters, headers_only=headers_only)
        runs = (entries_of(self.name, messages) for messages in tables)
        entries = itertools.chain.from_iterable(runs)
        if self._place.subjects != _ANY:
            return entries
        # A key may have several subjects, one of each bucket that it is copied from.
        latest: dict[str, Entry] = {}
        for entry in entries:
            known = latest.get(entry.key)
            if known is None or known.revision < entry.revision:
                latest[entry.key] = entry
        return iter(sorted(latest.values(), key=operator.attrgetter("revision")))

    def _last(self, key: str) -> tuple[int, bool]:
        """Return the latest revision of a key where it is written, and whether it has a value.

        The revision is 0 without one.
        """
        origin = self._place.origin
        subject = origin.subject(key)
        # From the leader (STREAM.MSG.GET): a replica may
        # lag, and its revision would be refused again.
        message = self._api.requests.call(
            lambda connection: last_message(
                connection,
                origin.stream,
                subject,
                prefix=origin.api_prefix,
            ),
        )
        if message is None:
            return 0, False
        return message.sequence, operation(block_headers(message.headers)) == OPERATIONS[PUT]

    def _remove(self, key: str, mark: str, revision: int | None, headers: dict[str, str]) -> int:
        if revision is None:
            expected = {}
        else:
            expected = {EXPECTED: str(positive(revision, "revision"))}
        all_headers = {**OPERATION_HEADERS[mark], **expected, **headers}
        return self._store(key, b"", all_headers, mark.lower())

    def _ttl(self, ttl: Any) -> dict[str, str]:
        """Return the header of a time to live: a duration, ``never``, or None for no header.

        Raises `OptionError`.
        """
        if ttl is None:
            return {}
        if ttl == _NEVER:
            return {_TTL: _NEVER}
        span = _ttl_span(ttl)
        info = self._written
        # The server (2.15.1) removes no value of a bucket with history before `limit_marker_ttl`.
        if info is not None and span < info.limit_marker_ttl and info.history != 1:
            raise OptionError(
                f"ttl must be at least limit_marker_ttl of bucket {info.bucket} "
                f"({info.limit_marker_ttl}) where it keeps more than one revision, not {shown(ttl)}"
            )
        # ADR-43 "JetStream Per-Message TTL": less than a second is refused (error 10165).
        return {_TTL: f"{span // SECOND}s"}

    def _store(
        self,
        key: str,
        value: str | bytes,
        headers: Mapping[str, str],
        operation: str,
    ) -> int:
        """Store a message of a key in the bucket's origin; return its revision.

        Raises `WrongRevision`, `ApiError`.
        """
        origin = self._place.origin
        context = f"{operation} key {_key(key)} of bucket {self.name}"
        data = octets(value, "a value")
        connection = self._api.connection
        look = functools.partial(_check_exists, connection, origin, context, self._nearest(origin))
        # No header names the expected stream: it would be stored as a part of the value.
        try:
            ack = store(self._api, f"{origin.write_prefix}{key}", data, headers, context, look)
        except NoResponders as error:
            raise NoResponders(
                f"cannot {context}: nobody answers at {origin.write_prefix}>: "
                "the bucket has no leader, or what is published there does not reach it"
            ) from error
        except ApiError as error:
            raise self._refusal(error, key, headers, context) from None
        # Another stream, or one of another domain, may capture the subject, too
        # (`test_a_put_that_another_stream_stores_is_an_error`).
        check_place(ack, origin.api_prefix or connection.prefix, context, origin.stream)
        if ack.duplicate or not ack.seq:
            raise JetStreamError(
                f"cannot {context}: the server took it for a duplicate, and has stored nothing",
            )
        return ack.seq

    def _refusal(
        self,
        error: ApiError,
        key: str,
        headers: Mapping[str, str],
        context: str,
    ) -> ApiError:
        """Return the error for a refused message, in words of the bucket."""
        if error.err_code == WRONG_REVISION and EXPECTED in headers:
            expected = int(headers[EXPECTED])
            actual = last_revision(error.description)
            wanted = f"revision {expected} was expected" if expected else "none was expected"
            problem = f"cannot {context}: {wanted}, but it has {_revision_text(actual)}"
            return self._wrong_revision(problem, key, expected, actual, error.err_code)
        advice = _ADVICE.get(cause(error.err_code, error.description))
        if advice is None:
            return error
        reason = f"{advice.format(self._place.origin)}: {error.description}"
        codes = f"code {error.code}, error {error.err_code}"
        return jsapi.reworded(error, f"cannot {context}: {reason} ({codes})")

    def _nearest(self, origin: Origin) -> Nearest:
        """Return how to find the bucket that is meant.

        No other account or domain is asked for its streams.
        """
        return _nearest_unknown if origin.api_prefix else self._api.nearest

    def _wrong_revision(
        self,
        text: str,
        key: str,
        expected: int,
        found: int | None,
        err_code: int,
    ) -> WrongRevision:
        return WrongRevision(
            text,
            bucket=self.name,
            key=key,
            expected=expected,
            found=found,
            err_code=err_code,
        )


def _ttl_span(ttl: Any) -> Nanoseconds:
    """Return a time to live. Raises `OptionError` for one that a server does not take."""
    try:
        span = Nanoseconds.of(ttl)
    # 0 is outside of the range, so the error below is raised for a text that is no duration, too.
    except ValueError:
        span = Nanoseconds(0)
    if not SECOND <= span <= LONGEST_TTL or span % SECOND:
        raise OptionError(
            "ttl must be a duration of whole seconds from 1s to 200y such as 90s or 5m, or "
            f"never, not {shown(ttl)}{minutes_or_months(ttl)}"
        )
    return span


def _revision_text(revision: int | None) -> str:
    """Return the latest revision of a key as text; None: the server does not say which."""
    if revision is None:
        return "another one"
    return f"revision {revision}" if revision else "none"


def _nearest_unknown(stream: str, prefix: str) -> str:
    return ""


def _check_exists(
    connection: Connection,
    origin: Origin,
    context: str,
    nearest: Nearest,
    seconds: float,
) -> None:
    """Raise `StreamNotFound` when the bucket does not exist.

    Any other outcome within ``seconds`` seconds is ignored.
    """
    subject = jsapi.subject(
        origin.api_prefix or connection.prefix,
        jsapi.STREAM_INFO,
        origin.stream,
    )
    try:
        with KEY_VALUE.naming(origin.bucket, nearest, context):
            connection.ask(subject, b"", context=context, timeout=seconds)
    except StreamNotFound:
        raise
    # During an election no server answers; the write itself then decides.
    except JetStreamError as error:
        log.info("cannot see whether bucket %s exists: %s", origin.bucket, error)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise OptionError(f"key {shown(key)} is not valid: it is not a text")
    problem = key_fault(key)
    if not problem and len(key) > _MOST_BYTES:
        problem = f"it has {len(key):,} bytes, more than {_MOST_BYTES}"
    if problem:
        raise OptionError(f"key {shown(key)} is not valid: {problem}")
    return key


class KeyValue(Buckets[BucketConfig, BucketInfo]):
    """The Key-Value buckets of an account; ``admin.kv``.

    A configuration is a `BucketConfig`, a mapping, or single fields by name; ``mirror`` and
    ``sources`` name buckets. The streams are those that the clients of NATS create. All methods
    raise what `Api` raises; `StreamNotFound` names the bucket.
    """

    _info = BucketInfo
    _config = BucketConfig
    # nats-py creates buckets without allow_direct unless it is asked for it.
    _free = ("allow_direct", "mirror_direct")

    def bucket(self, name: str) -> Bucket:
        """Return a bucket, to read and write its keys. No request is sent yet."""
        return Bucket(self._api, name)

    def _new(self, name: str, wanted: BucketConfig) -> dict[str, Any]:
        fields = fields_of(name, wanted, BucketConfig.model_fields)
        mirror: StreamSource | None = fields["mirror"]
        if mirror is not None:
            fields["mirror_direct"] = self._allows_direct(mirror, name)
        # A mirror has no subjects: its messages keep those of the origin.
        fields["subjects"] = None if mirror else (f"$KV.{name}.>",)
        # ADR-8. A key is deleted by a message, never by removing one.
        fields["deny_delete"] = True
        fields["allow_direct"] = True
        return fields

    def _allows_direct(self, mirror: StreamSource, name: str) -> bool:
        """Return whether the origin of a new mirror allows Direct Get.

        The server sets `mirror_direct` to that, whatever is asked for.
        """
        if mirror.external is not None:
            return True
        origin = mirror.name.removeprefix(KEY_VALUE.prefix)
        with KEY_VALUE.naming(origin, self._api.nearest, f"create bucket {name} as its mirror"):
            return self._streams.load(mirror.name).config.allow_direct

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        # A server can remove a mirror. The keys would then have the subjects of the former origin.
        if "mirror" in changes and self.load(bucket).mirror is not None:
            raise OptionError(
                f"bucket {bucket}: mirror cannot change: "
                "the keys of a mirror have the subjects that they have in its origin"
            )
        return super()._changes(bucket, changes)
