"""Entries of the ledger of delivery exactly-once: their formats, and a key that holds one."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from spark_jetstream.buckets.kv import EXPECTED, WRONG_REVISION, stream_name
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import ApiError, DeliveryError, ServerBusy, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import LEDGER_BUCKET
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.streams.lookup import last_message

BUCKET = LEDGER_BUCKET
STREAM = stream_name(BUCKET)
_VERSION = 2
_LONGEST_LEASE = 86_400.0  # seconds

E = TypeVar("E", bound="_LedgerEntry")
"""The kind of an entry."""

Notes = dict[str, dict[str, Any]]
"""By stream: when it was created, as the server prints it, and the sequence of its next message."""

OLD_RUN = "version 1"
"""The run of entries that a release has written whose message ids had the partition in them."""


class _LedgerEntry(ABC):
    """An entry of either kind. The order of its fields is that of the stored JSON.

    `run` is that of `WriteTask`. `streams` notes where the streams ended that rows went to, before
    the first row. With `done`, `report` counts the stored rows.
    """

    batch: int
    lease: float
    streams: Notes
    report: dict[str, Any] | None

    def to_json(self) -> bytes:
        """Return the entry as the ledger keeps it."""
        return json.dumps({"version": _VERSION, **vars(self)}).encode()

    @classmethod
    def from_json(cls: type[E], data: bytes, key: str) -> E:
        """Return the entry that `to_json` has written.

        Raises `DeliveryError` for anything else.
        """
        try:
            content = json_object(data)
            version = content.pop("version")
            if version == 1:
                return cls.of_version_1(int(content["batch"]))
            if version != _VERSION:
                raise DeliveryError(
                    f"ledger entry {key} was written by a newer release of spark-jetstream: use "
                    "that one"
                )
            entry = cls(**content)
            entry._check()
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise DeliveryError(
                f"ledger entry {key} of bucket {BUCKET} cannot be read: {data[:200]!r}"
            ) from None
        return entry

    @classmethod
    @abstractmethod
    def of_version_1(cls: type[E], batch: int) -> E:
        """Return what is still known of an entry of an earlier format."""

    def _check(self) -> None:
        """Give each field its type.

        Raises `ValueError`, and errors of wrong types, for values that no release writes.
        """
        self.streams = {name: _note(note) for name, note in self.streams.items()}
        self.batch = int(self.batch)
        self.lease = float(self.lease)
        # With another lease, an attempt that waits for its end would never ask whether it still
        # owns the task.
        if not 0 < self.lease <= _LONGEST_LEASE:
            raise ValueError("a lease that makes no sense")
        if not isinstance(self.report, (dict, type(None))):
            raise ValueError("a report that is none")


@dataclass
class TaskEntry(_LedgerEntry):
    """The entry of a task. `attempt` names the attempt of the task that has written it."""

    batch: int
    run: str
    attempt: str
    lease: float
    done: bool = False
    streams: Notes = field(default_factory=dict)
    report: dict[str, Any] | None = None

    @classmethod
    def of_version_1(cls, batch: int) -> TaskEntry:
        """See `_LedgerEntry.of_version_1`."""
        return cls(batch, OLD_RUN, "", 1.0)


@dataclass
class BatchEntry(_LedgerEntry):
    """The entry of a batch, which its runs write together. `streams` notes those of all tasks.

    `run` owns the batch, and the runs in `earlier` have lost it. Their tasks may go on for `lease`
    seconds, unless `settled` says that the time is over.
    """

    batch: int
    run: str
    lease: float
    earlier: list[str] = field(default_factory=list)
    settled: bool = True
    done: bool = False
    streams: Notes = field(default_factory=dict)
    report: dict[str, Any] | None = None

    @classmethod
    def of_version_1(cls, batch: int) -> BatchEntry:
        """See `_LedgerEntry.of_version_1`."""
        return cls(batch, OLD_RUN, 1.0)

    def _check(self) -> None:
        super()._check()
        if not isinstance(self.earlier, list):
            raise ValueError("runs that are no list")
        self.earlier = [str(run) for run in self.earlier]


def _note(note: dict[str, Any]) -> dict[str, Any]:
    following = int(note["next"])
    if following < 1:
        raise ValueError("a sequence that makes no sense")
    return {"created": str(note["created"]), "next": following}


class LedgerSlot(Generic[E]):
    """A key of the ledger's bucket, for entries of one kind.

    `revision` is the one that `write` replaces, 0 for none. An entry expires `expires` seconds
    after it is written, if that is given. `written` is when the entry that was read last was
    written, in nanoseconds since the epoch by the server's clock, 0 for none. Methods raise what
    `Requests.call` does.
    """

    def __init__(
        self,
        requests: Requests,
        key: str,
        expires: float | None,
        from_json: Callable[[bytes, str], E],
    ) -> None:
        self.key = key
        self.revision = 0
        self.written = 0
        self._requests = requests
        self._expires = expires
        self._from_json: Callable[[bytes, str], E] = from_json
        self._subject = f"$KV.{BUCKET}.{key}"

    def read(self) -> tuple[E | None, int]:
        """Return the entry, None if there is none, and its revision.

        Raises `DeliveryError` if the entry cannot be read, or without the bucket.
        """
        newest = partial(last_message, stream=STREAM, subject=self._subject)
        try:
            message = self._requests.call(newest)
        except StreamNotFound:
            raise DeliveryError(
                f"delivery exactly-once needs the Key-Value bucket {BUCKET}, which does not exist: "
                "it is made when a query starts, if the account may publish to "
                f"$JS.API.STREAM.CREATE.{STREAM}"
            ) from None
        if message is None:
            self.written = 0
            return None, 0
        self.written = message.time
        if b"KV-Operation:" in message.headers or not message.data:
            return None, message.sequence
        return self._from_json(message.data, self.key), message.sequence

    def write(self, entry: E) -> bool:
        """Write an entry over the revision in `revision`.

        Return false if another attempt has written since.
        """
        revision = self._requests.call(partial(self._put, entry=entry, body=entry.to_json()))
        if revision is None:
            return False
        self.revision = revision
        return True

    def _put(self, connection: Connection, entry: E, body: bytes) -> int | None:
        """Send an entry to the server. Return its revision, None if another attempt has written."""
        context = f"write ledger entry {self.key} of bucket {BUCKET}"
        subject = self._subject
        if connection.prefix != jsapi.DEFAULT_PREFIX:
            subject = f"{connection.prefix}.{subject}"
        guard = {EXPECTED: str(self.revision)}
        if self._expires is not None:
            guard["Nats-TTL"] = f"{self._expires:.0f}s"
        try:
            answer = connection.request(subject, body, headers=guard, context=context)
            reply = jsapi.reply(answer, context)
        except ApiError as error:
            if error.err_code != WRONG_REVISION:
                raise
            return self._revision_of(entry, error)
        return int(jsapi.field(reply, "seq", int, context))

    def _revision_of(self, entry: E, refusal: ApiError) -> int | None:
        """Return the revision of an entry whose write was refused, None if another is stored."""
        stored, revision = self.read()
        # The server may have stored an earlier try of this write, and its answer may be lost.
        if stored is not None and vars(stored) == vars(entry):
            return revision
        if revision <= self.revision:
            # No other attempt has written, as far as this leader knows: it may not have applied its
            # log yet.
            raise ServerBusy(
                str(refusal),
                code=refusal.code,
                err_code=refusal.err_code,
                description=refusal.description,
            ) from None
        return None


def fought_over(slot: LedgerSlot[Any]) -> DeliveryError:
    """Return the error for a key that another process writes again and again."""
    return DeliveryError(
        f"ledger entry {slot.key} of bucket {BUCKET} has two writers: is the query running twice?"
    )
