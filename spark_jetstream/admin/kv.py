"""Key-Value buckets: list, create, change, delete (ADR-8, ADR-48).

How a revision of a key gets into a Key-Value bucket, and what it means that it does not.

One Key-Value bucket: its keys, their values and revisions, read, written and watched (ADR-8).
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.kv import (
    KEY_VALUE,
    BucketConfig,
    BucketInfo,
    Entry,
    entries_of,
    entry_of,
    stream_changes,
    stream_fields,
)
from spark_jetstream.admin.models.messages import PubAck, StoredMessage
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import LABEL, settings, watch
from spark_jetstream.buckets.kv import EXPECTED, OPERATION_HEADERS, WRONG_REVISION, Origin, last_revision, stream_name
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    KeyNotFound,
    MessageNotFound,
    NoResponders,
    OptionError,
    PermissionDenied,
    ServerBusy,
    StreamNotFound,
    WrongRevision,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Messages as Run
from spark_jetstream.protocol.subjects import MAX_SUBJECT, key_fault, subjects_overlap
from spark_jetstream.protocol.units import Nanoseconds, minutes_or_months, rfc3339, shown
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.lookup import StoredMessage as Stored
from spark_jetstream.streams.lookup import last_message

log = logging.getLogger(__name__)

_TTL = "Nats-TTL"
_NEVER = "never"
_SECOND = 1_000_000_000
_DOMAIN = re.compile(r"\$JS\.([^.]+)\.API")
_LOOK = 0.5  # seconds: while a leader is elected nobody answers
_HEADER_BYTES = len("NATS/1.0\r\n\r\n")


def revision_number(what: str, revision: Any) -> int:
    """A revision, or `OptionError`: to a server 0 may mean none."""
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 1:
        raise OptionError(f"{what} must be a whole number from 1 on, not {shown(revision)}")
    return revision


def ttl_header(ttl: Any, info: BucketInfo | None) -> dict[str, str]:
    """The header for a time to live: a duration, ``never``, or None for no header. `OptionError`.

    So it is for one that the server would silently take for a longer one (seen with 2.15.1): where a bucket keeps
    several revisions of a key, none goes by itself before ``limit_marker_ttl``. ``info`` is
    None where nobody may see it.
    """
    if ttl is None:
        return {}
    if ttl == _NEVER:
        return {_TTL: _NEVER}
    try:
        span = Nanoseconds.of(ttl)
    except ValueError:
        span = Nanoseconds(0)
    if span < _SECOND or span % _SECOND:
        raise OptionError(
            "ttl must be a duration of whole seconds such as 90s or 5m, or never, "
            f"not {shown(ttl)}{minutes_or_months(ttl)}"
        )
    if info is not None and span < info.limit_marker_ttl and info.history != 1:
        raise OptionError(
            f"ttl must be at least limit_marker_ttl of bucket {info.bucket} ({info.limit_marker_ttl}) where it keeps "
            f"more than one revision, not {shown(ttl)}"
        )
    return {_TTL: f"{span // _SECOND}s"}


def octets(value: Any) -> bytes:
    """A value as bytes: text is UTF-8. `OptionError` for anything else."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise OptionError("the value is no text that can be written as UTF-8") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise OptionError(f"a value must be text or bytes, not {type(value).__name__}")


def store(
    api: Api, bucket: str, origin: Origin, key: str, value: str | bytes, headers: Mapping[str, str], what: str
) -> int:
    """Store a message of a key in the ``origin`` of a bucket; its revision.

    ``what`` is what is done, an infinitive. Where nobody is there to store it (an election) it is sent again, for as
    long as option ``requestTimeout`` says. Raises `WrongRevision`, `StreamNotFound` when there is no such bucket,
    `ApiError` with what to change for what the bucket refuses, and what `Connection.request` raises.
    """
    context = f"{what} key {key} of bucket {bucket}"
    data = octets(value)
    connection = api.connection
    size = len(data) + sum(len(f"{name}: {text}\r\n") for name, text in headers.items())
    size += _HEADER_BYTES if headers else 0
    if size > connection.max_payload:
        raise JetStreamError(
            f"cannot {context}: with its headers the value has {size:,} bytes, and the server takes no more than "
            f"{connection.max_payload:,} (its max_payload)"
        )
    # No header says which stream it is for: that would be stored, and count as a part of the value.
    deadline, backoff = Deadline(api.options.request_timeout), Backoff()
    while True:
        try:
            payload = connection.request(
                f"{origin.write_prefix}{key}", data, context=context, headers=dict(headers) or None
            )
            ack = PubAck.from_server(jsapi.reply(payload, context), context)
            break
        except (NoResponders, ServerBusy) as error:
            # Nothing was stored.
            if isinstance(error, NoResponders):
                _look_for(connection, origin, context, deadline.within(_LOOK))
            if deadline.expired:
                raise _unheard(error, origin, context) from error
            backoff.pause(deadline)
        except ApiError as error:
            raise _refusal(error, bucket, origin, key, headers, context) from error
    _check(ack, connection, origin, context)
    return ack.seq


def _look_for(connection: Connection, origin: Origin, context: str, seconds: float) -> None:
    """Raise `StreamNotFound` when the bucket is not there; where nobody says so within so many seconds it may be."""
    subject = jsapi.stream_info(origin.api_prefix or connection.prefix, origin.stream)
    try:
        with KEY_VALUE.naming(origin.bucket, context):
            jsapi.reply(connection.request(subject, b"", context=context, timeout=seconds), context)
    except StreamNotFound:
        raise
    except JetStreamError as error:
        log.info("cannot see whether bucket %s is there: %s", origin.bucket, error)


def _unheard(error: JetStreamError, origin: Origin, context: str) -> JetStreamError:
    if isinstance(error, NoResponders):
        return NoResponders(
            f"cannot {context}: nobody answers at {origin.write_prefix}>: the bucket has no leader, or what is "
            "published there does not reach it"
        )
    return error


def _check(ack: PubAck, connection: Connection, origin: Origin, context: str) -> None:
    """Raise `JetStreamError` for a confirmation that is not that of this message in this bucket."""
    domain = _DOMAIN.fullmatch(origin.api_prefix or connection.prefix)
    elsewhere = domain is not None and ack.domain != domain[1]
    if ack.stream != origin.stream or elsewhere:
        place = f"stream {ack.stream}" + (f" of domain {ack.domain}" if ack.domain else "")
        raise JetStreamError(f"cannot {context}: {place} has stored it (sequence {ack.seq}), not {origin.stream}")
    if ack.duplicate or not ack.seq:
        raise JetStreamError(f"cannot {context}: the server took it for a duplicate, and has stored nothing")


def _refusal(error: ApiError, bucket: str, origin: Origin, key: str, sent: Mapping[str, str], context: str) -> ApiError:
    if error.err_code in WRONG_REVISION and EXPECTED in sent:
        expected, found = int(sent[EXPECTED]), last_revision(error.description)
        there = "another one" if found is None else "none" if found == 0 else f"revision {found}"
        wanted = f"revision {expected} was expected" if expected else "none was expected"
        return WrongRevision(
            f"cannot {context}: {wanted}, but it has {there}",
            bucket=bucket,
            key=key,
            expected=expected,
            found=found,
            err_code=error.err_code,
        )
    advice = {
        10054: f"with its headers the value is larger than max_value_size of bucket {origin.bucket}",
        10077: f"bucket {origin.bucket} takes nothing more: it is full (max_bytes)",
        10109: f"bucket {origin.bucket} is sealed",
        10111: f"a purge needs allow_rollup_hdrs on stream {origin.stream}",
        10166: f"a ttl needs limit_marker_ttl of bucket {origin.bucket}",
    }
    why = advice.get(error.err_code)
    if why is None:
        return error
    said = f"cannot {context}: {why}: {error.description} (code {error.code}, error {error.err_code})"
    return type(error)(said, code=error.code, err_code=error.err_code, description=error.description)


_ATTEMPTS = 10
_MOST_BYTES = MAX_SUBJECT - 256 - len("$KV..")  # of a key, however long the name of its bucket is
_ANY = "$KV.*"
_HALF_AN_HOUR = Nanoseconds.of("30m")


@dataclass(frozen=True)
class _Place:
    """Where the keys of a bucket are. ``subjects`` begins the subjects under which its stream keeps them.

    ``info`` is None where the account may not see how the bucket is set up: it is taken for one that copies nothing.
    """

    info: BucketInfo | None
    origin: Origin
    subjects: str


class Bucket:
    """A Key-Value bucket; ``admin.kv.bucket(name)``.

    Values are bytes, and text becomes UTF-8. A revision is a sequence of the bucket's stream. Of a mirror, reads come
    from the mirror, and writes go to its origin. What is asked of the server first is how the bucket is set up; an
    account that may not see that can still write, and `get`.

    All methods raise what `Api` raises; `StreamNotFound` when there is no such bucket, `OptionError` for a key that
    cannot be one. A write that ends with `RequestTimeout` or `ConnectionFailed` may have been stored or not.
    """

    def __init__(self, api: Api, name: str) -> None:
        self.name = KEY_VALUE.name(name)
        self._api = api
        self._messages = Messages(api)
        self._found: _Place | None = None

    def __repr__(self) -> str:
        return f"<Bucket {self.name}>"

    # Looking

    def status(self) -> BucketInfo:
        """How the bucket is set up, and what it holds."""
        with KEY_VALUE.naming(self.name):
            return BucketInfo(Streams(self._api).load(self._stream))

    def get(self, key: str, *, revision: int | None = None, direct: bool = False) -> Entry:
        """The value of a key, the latest one or that of a revision.

        `KeyNotFound`, which says whether the key was deleted or purged, or never was. The stream's leader answers, or,
        with ``direct``, whichever server comes first, which may be behind; for accounts that may do no more.
        """
        context = f"get key {_key(key)} of bucket {self.name}"
        try:
            with KEY_VALUE.naming(self.name, context):
                if revision is None:
                    message = self._messages.last(self._stream, f"{self._place.subjects}.{key}", direct=direct)
                else:
                    message = self._messages.get(self._stream, revision_number("revision", revision), direct=direct)
        except MessageNotFound:
            if revision is None:
                said = f"cannot {context}: there is no such key"
            else:
                said = f"cannot {context} at revision {revision}: the bucket has no such revision (any more)"
            raise KeyNotFound(said, bucket=self.name, key=key) from None
        found = entry_of(self.name, message)
        if found.key != key:
            said = f"cannot {context} at revision {revision}: that is a revision of key {found.key}"
            raise KeyNotFound(said, bucket=self.name, key=key)
        if not found.live:
            done = "deleted" if found.operation == "DELETE" else "purged"
            raise KeyNotFound(
                f"cannot {context}: it was {done} at revision {found.revision}",
                bucket=self.name,
                key=key,
                operation=found.operation,
                revision=found.revision,
            )
        return found

    def keys(self, *filters: str) -> Iterator[str]:
        """The keys that have a value, all or those that match a filter (``*`` and ``>``), in the order of their
        revisions.

        A key that has a value all the while comes, and comes once, however many others write.
        """
        return (entry.key for entry in self._current(filters, headers_only=True) if entry.live)

    def entries(self, *filters: str, include_deletes: bool = False) -> Iterator[Entry]:
        """The latest revision of each key, as `keys`; ``include_deletes`` adds keys that were deleted or purged."""
        return (entry for entry in self._current(filters) if entry.live or include_deletes)

    def history(self, key: str) -> list[Entry]:
        """All revisions of a key that the bucket keeps, deletions included, the oldest first. `KeyNotFound`."""
        subject = f"{self._place.subjects}.{_key(key)}"
        messages = watch(self._api, self._stream, [subject])
        found = [entry_of(self.name, each) for each in iter(partial(next, messages), None)]
        if not found:
            raise KeyNotFound(
                f"cannot get the history of key {key} of bucket {self.name}: there is no such key",
                bucket=self.name,
                key=key,
            )
        return found

    def watch(
        self,
        *filters: str,
        history: bool = False,
        updates_only: bool = False,
        include_deletes: bool = True,
        timeout: float | None = None,
    ) -> Iterator[Entry | None]:
        """The latest revision of each key, or of those that match a filter, and then every change, without an end.

        None comes once, between the two. ``history`` begins with all revisions that the bucket keeps, ``updates_only``
        with the first change after this call, and so with None. Behind the None it ends when nothing came for
        ``timeout`` seconds. Closing the iterator ends it at any time.

        No change is lost and none comes twice, whatever happens to servers and connections, unless the bucket itself
        forgets it first: it keeps so many revisions of a key (``history``), and the latest one always comes. Raises
        what `watching.watch` raises.
        """
        if history and updates_only:
            raise OptionError("history and updates_only cannot be set together")
        found = watch(
            self._api,
            self._stream,
            self._subjects(filters),
            start=None if updates_only else 1,
            latest=not (history or updates_only),
            timeout=timeout,
        )
        changes = (None if each is None else entry_of(self.name, each) for each in found)
        return (each for each in changes if each is None or each.live or include_deletes)

    # Writing

    def put(self, key: str, value: str | bytes) -> int:
        """Give a key a value, whatever it had before; the revision."""
        return self._store(key, value, {}, "put")

    def create(self, key: str, value: str | bytes, *, ttl: Any = None) -> int:
        """Give a value to a key that has none; the revision. `WrongRevision` when it has one.

        With ``ttl`` (a duration, or ``never``) it goes by itself, which the bucket must allow (``limit_marker_ttl``,
        and a ``ttl`` must not be shorter than that unless ``history`` is 1).
        """
        expected, headers = 0, self._ttl(ttl)
        for attempt in itertools.count(1):
            try:
                return self._store(key, value, {EXPECTED: str(expected), **headers}, "create")
            except WrongRevision as error:
                # What is there may be the mark of a deletion, in whose place the value goes.
                last = self._last(key)
                if (last is not None and last.live) or attempt == _ATTEMPTS:
                    found = error.found if last is None else last.revision
                    raise WrongRevision(
                        f"cannot create key {key} of bucket {self.name}: it exists, with revision {found}",
                        bucket=self.name,
                        key=key,
                        expected=0,
                        found=found,
                        err_code=error.err_code,
                    ) from None
                expected = 0 if last is None else last.revision
        raise AssertionError("unreachable")

    def update(self, key: str, value: str | bytes, revision: int) -> int:
        """Give a key a value if ``revision`` is its latest one, a deletion included; the new revision.

        `WrongRevision` when it is not: somebody else was quicker.
        """
        return self._store(key, value, {EXPECTED: str(revision_number("revision", revision))}, "update")

    def delete(self, key: str, *, revision: int | None = None) -> int:
        """Mark a key as deleted, and keep what it had as history; the revision of the mark.

        With ``revision`` only if that is its latest one, else `WrongRevision`. A key that does not exist is marked too.
        """
        return self._remove(key, "DELETE", revision, {})

    def purge(self, key: str, *, revision: int | None = None, ttl: Any = None) -> int:
        """Mark a key as purged, and remove all that it had; the revision of the mark. As `delete`.

        With ``ttl`` the mark goes by itself, which the bucket must allow (``limit_marker_ttl``).
        """
        return self._remove(key, "PURGE", revision, self._ttl(ttl))

    def revert(self, key: str, revision: int) -> int:
        """Put the value once more that a key had at a revision; the new revision.

        `KeyNotFound` when that is gone or no value, `WrongRevision` when somebody else writes the key meanwhile.
        """
        before = self.get(key, revision=revision)
        last = self._last(key)
        expected = before.revision if last is None else last.revision
        return self._store(key, before.value, {EXPECTED: str(expected)}, "revert")

    def purge_deletes(self, older_than: Any = _HALF_AN_HOUR) -> int:
        """Remove the marks of deletions that are older than a duration, with what their keys had before; how many.

        Of a younger one only what the key had before it goes. A value that is put meanwhile is never removed. A mark
        with a wildcard in its subject, which a server stores if somebody publishes it, stays: whoever asks for it to
        be purged purges what it matches.
        """
        context = f"remove the marks of deleted keys from bucket {self.name}"
        try:
            age = Nanoseconds.of(older_than)
        except ValueError:
            age = Nanoseconds(-1)
        if age < 0:
            words = f"a duration such as 30m, not {shown(older_than)}{minutes_or_months(older_than)}"
            raise OptionError(f"older_than must be {words}")
        limit = self.status().stream.ts.nanoseconds - age
        origin = self._place.origin
        connection = self._api.connection
        purge = jsapi.stream_purge(origin.api_prefix or connection.prefix, origin.stream)
        count = 0
        for run in self._table((), headers_only=True):
            subjects = run.subjects().to_pylist()
            for subject, entry in zip(subjects, entries_of(self.name, run), strict=True):
                if entry.live:
                    continue
                if not {"*", ">"}.isdisjoint(subject.split(".")):
                    log.warning("message %d of bucket %s on %s stays", entry.revision, self.name, subject)
                    continue
                old = entry.created.nanoseconds < limit
                # Only what is not younger than the mark: what is put meanwhile is.
                end = entry.revision + old
                if end > 1:
                    connection.api(purge, jsapi.purge_request(end, subject), context=context)
                count += old
        return count

    # Inside

    @property
    def _stream(self) -> str:
        return stream_name(self.name)

    @property
    def _place(self) -> _Place:
        if self._found is None:
            prefix = self._api.connection.prefix
            try:
                info = self.status()
            except PermissionDenied as error:
                log.info("%s", error)
                self._found = _Place(None, Origin.of(self.name, prefix), f"$KV.{self.name}")
                return self._found
            config = info.stream.config
            mirror = None if config.mirror is None else config.mirror.body()
            # What comes from another bucket may keep the subjects that it has there.
            foreign = mirror is not None or any(not each.subject_transforms for each in config.sources)
            origin = Origin.of(self.name, prefix, mirror)
            self._found = _Place(info, origin, _ANY if foreign else f"$KV.{self.name}")
        return self._found

    def _subjects(self, filters: tuple[str, ...]) -> tuple[str, ...]:
        """The filters of a stream that filters of keys stand for; `OptionError`."""
        for at, one in enumerate(filters):
            fault = key_fault(one, filters=True)
            if fault:
                raise OptionError(f"filter {shown(one)} of keys cannot be: {fault}")
            for other in filters[:at]:
                if subjects_overlap(one, other):
                    raise OptionError(f"the filters {shown(other)} and {shown(one)} overlap, which the server refuses")
        return tuple(f"{self._place.subjects}.{each}" for each in filters or (">",))

    def _table(self, filters: tuple[str, ...], *, headers_only: bool = False) -> Iterator[Run]:
        part = TablePart(self._stream, self.status().stream.created, self._subjects(filters))
        pulling = settings(self._api, headers_only=headers_only)
        return read_table(lambda patience: self._api.connection, part, pulling, LABEL)

    def _current(self, filters: tuple[str, ...], *, headers_only: bool = False) -> Iterator[Entry]:
        """The latest revision of each key, deletions included."""
        runs = self._table(filters, headers_only=headers_only)
        found = itertools.chain.from_iterable(entries_of(self.name, run) for run in runs)
        if self._place.subjects != _ANY:
            return found
        # A key may have several subjects, those of the buckets that it comes from.
        latest: dict[str, Entry] = {}
        for entry in found:
            if entry.key not in latest or latest[entry.key].revision < entry.revision:
                latest[entry.key] = entry
        return iter(sorted(latest.values(), key=lambda each: each.revision))

    def _last(self, key: str) -> Entry | None:
        """The latest revision of a key where it is written, deletions included."""
        origin = self._place.origin
        subject = origin.subject(key)

        def ask() -> Stored | None:
            return last_message(self._api.connection, origin.stream, subject, prefix=origin.api_prefix)

        found = retrying(ask, self._api.options.request_timeout)
        if found is None:
            return None
        body = {"subject": subject, "seq": found.sequence, "time": rfc3339(found.time)}
        return entry_of(self.name, StoredMessage.from_server({**body, "data": found.data, "hdrs": found.headers}))

    def _remove(self, key: str, operation: str, revision: int | None, headers: dict[str, str]) -> int:
        expected = {} if revision is None else {EXPECTED: str(revision_number("revision", revision))}
        return self._store(key, b"", {**OPERATION_HEADERS[operation], **expected, **headers}, operation.lower())

    def _ttl(self, ttl: Any) -> dict[str, str]:
        return ttl_header(ttl, self._place.info)

    def _store(self, key: str, value: str | bytes, headers: dict[str, str], what: str) -> int:
        return store(self._api, self.name, self._place.origin, _key(key), value, headers, what)


def _key(key: Any) -> str:
    fault = key_fault(key) if isinstance(key, str) else "there is no text"
    if not fault and len(key) > _MOST_BYTES:
        fault = f"there are {len(key):,} bytes, more than {_MOST_BYTES}"
    if fault:
        raise OptionError(f"key {shown(key)} cannot be one: {fault}")
    return str(key)


class KeyValue(Buckets[BucketConfig, BucketInfo]):
    """The Key-Value buckets of an account; ``admin.kv``.

    A bucket is set up by the fields of `BucketConfig`, each by its name, or a whole one, or a mapping; ``mirror`` and
    ``sources`` are named by bucket. What is made is what the clients of NATS make. All methods raise what `Api` raises;
    `StreamNotFound` names the bucket. A smaller ``history`` or a shorter ``ttl`` removes revisions.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api, BucketInfo)

    def bucket(self, name: str) -> Bucket:
        """A bucket's keys. Nothing is asked of a server yet."""
        return Bucket(self._api, name)

    # Inside

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return stream_changes(bucket, self.load(bucket).stream.config, changes)

    def _wanted(
        self, bucket: str, config: BucketConfig | Mapping[str, Any] | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        wanted = stream_fields(KEY_VALUE.name(bucket), config, fields)
        mirror = wanted.get("mirror")
        if mirror is None:
            return wanted
        # The server does with `mirror_direct` what it sees the origin do, whatever is asked for.
        direct = True
        if mirror.external is None:
            origin = mirror.name.removeprefix(KEY_VALUE.prefix)
            with KEY_VALUE.naming(origin, f"create bucket {bucket} as its mirror"):
                direct = self._streams.load(mirror.name).config.allow_direct
        return {**wanted, "mirror_direct": direct}
