"""One Key-Value bucket: its keys, their values and revisions, read, written and watched (ADR-8)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_jetstream import jsapi
from spark_jetstream.admin.api import Api
from spark_jetstream.admin.kv_entries import Entry, entries_of, entry_of
from spark_jetstream.admin.kv_models import KEY_VALUE, BucketInfo
from spark_jetstream.admin.kv_writing import revision_number, store, ttl_header
from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.admin.stored import Messages
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watching import LABEL, settings, watch
from spark_jetstream.columns import Messages as Run
from spark_jetstream.errors import (
    KeyNotFound,
    MessageNotFound,
    OptionError,
    PermissionDenied,
    WrongRevision,
)
from spark_jetstream.kv import EXPECTED, OPERATION_HEADERS, Origin, stream_name
from spark_jetstream.lookup import StoredMessage as Stored
from spark_jetstream.lookup import last_message
from spark_jetstream.pool import retrying
from spark_jetstream.subjects import MAX_SUBJECT, key_fault, subjects_overlap
from spark_jetstream.table import TablePart, read_table
from spark_jetstream.units import Nanoseconds, minutes_or_months, rfc3339, shown

log = logging.getLogger(__name__)

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
