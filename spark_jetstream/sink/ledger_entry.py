"""Entries of the ledger of delivery exactly-once: their formats, and how they are read and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
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

Notes = dict[str, dict[str, Any]]
"""By stream: when it was created, as the server prints it, and the sequence that it would have given next."""


@dataclass
class TaskEntry:
    """What an attempt notes of its task; with `done`, `report` says what the task has stored.

    `run` is that of `WriteTask`. `streams` notes the streams that rows went to, from before the first row.
    """

    batch: int
    run: str
    attempt: str
    lease: float
    done: bool = False
    streams: Notes = field(default_factory=dict)
    report: dict[str, Any] | None = None

    def to_json(self) -> bytes:
        """Return the entry as the ledger keeps it."""
        return _to_json(self)

    @classmethod
    def from_json(cls, data: bytes, key: str) -> TaskEntry:
        """Return the entry that `to_json` has written. Raises `DeliveryError` for anything else."""
        entry: TaskEntry = _from_json(cls, data, key)
        return entry

    @classmethod
    def of_version_1(cls, batch: int) -> TaskEntry:
        """Return what is still known of an entry of an earlier format."""
        return cls(batch, OLD_RUN, "", 1.0)


@dataclass
class BatchEntry:
    """What the runs of a batch note together; with `done`, `report` says what the batch has stored.

    `run` owns the batch, and `earlier` have lost it. Their tasks may go on for `lease` seconds, unless `settled` says
    that the time is over. `streams` notes the streams that rows of any task went to, from before the first row.
    """

    batch: int
    run: str
    lease: float
    earlier: list[str] = field(default_factory=list)
    settled: bool = True
    done: bool = False
    streams: Notes = field(default_factory=dict)
    report: dict[str, Any] | None = None

    def to_json(self) -> bytes:
        """Return the entry as the ledger keeps it."""
        return _to_json(self)

    @classmethod
    def from_json(cls, data: bytes, key: str) -> BatchEntry:
        """Return the entry that `to_json` has written. Raises `DeliveryError` for anything else."""
        entry: BatchEntry = _from_json(cls, data, key)
        if not isinstance(entry.earlier, list):
            raise _unreadable(data, key)
        entry.earlier = [str(run) for run in entry.earlier]
        return entry

    @classmethod
    def of_version_1(cls, batch: int) -> BatchEntry:
        """Return what is still known of an entry of an earlier format."""
        return cls(batch, OLD_RUN, 1.0)


OLD_RUN = "version 1"
"""The run of entries that a release has written whose message ids had the partition in them."""


E = TypeVar("E", TaskEntry, BatchEntry)
"""The kind of an entry."""


def _to_json(entry: TaskEntry | BatchEntry) -> bytes:
    return json.dumps({"version": _VERSION, **vars(entry)}).encode()


def _from_json(kind: type[E], data: bytes, key: str) -> E:
    try:
        content = json_object(data)
        version = content.pop("version")
        if version == 1:
            return kind.of_version_1(int(content["batch"]))
        if version != _VERSION:
            raise DeliveryError(f"ledger entry {key} was written by a newer release of spark-jetstream: use that one")
        entry = kind(**content)
        entry.streams = {name: _note(note) for name, note in entry.streams.items()}
        entry.batch = int(entry.batch)
        entry.lease = float(entry.lease)
        # An attempt that waits for the end of such a lease would never ask whether it still owns the task.
        if not 0 < entry.lease <= _LONGEST_LEASE:
            raise ValueError("a lease that makes no sense")
        if not isinstance(entry.report, (dict, type(None))):
            raise ValueError("a report that is none")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise _unreadable(data, key) from None
    return entry


def _note(note: dict[str, Any]) -> dict[str, Any]:
    following = int(note["next"])
    if following < 1:
        raise ValueError("a sequence that makes no sense")
    return {"created": str(note["created"]), "next": following}


def _unreadable(data: bytes, key: str) -> DeliveryError:
    return DeliveryError(f"ledger entry {key} of bucket {BUCKET} cannot be read: {data[:200]!r}")


class Slot(Generic[E]):
    """A key of the ledger's bucket, for entries of one kind. `revision` is the one that `write` replaces, 0 for none.

    An entry that is written expires after `expires` seconds, if that is given. `written` is when the entry that was
    read last was written, in nanoseconds since the epoch by the server's clock, 0 for none. Methods raise what
    `Requests.call` does.
    """

    def __init__(
        self, requests: Requests, key: str, expires: float | None, from_json: Callable[[bytes, str], E]
    ) -> None:
        self.key = key
        self.revision = 0
        self.written = 0
        self._requests = requests
        self._expires = expires
        self._from_json: Callable[[bytes, str], E] = from_json
        self._subject = f"$KV.{BUCKET}.{key}"

    def read(self) -> tuple[E | None, int]:
        """Return the entry, None if there is none, and its revision. Raises `DeliveryError` if it cannot be read."""
        try:
            message = self._requests.call(lambda connection: last_message(connection, STREAM, self._subject))
        except StreamNotFound:
            raise DeliveryError(
                f"delivery exactly-once needs the Key-Value bucket {BUCKET}, which does not exist: it is made when a "
                f"query starts, if the account may publish to $JS.API.STREAM.CREATE.{STREAM}"
            ) from None
        self.written = 0 if message is None else message.time
        if message is None:
            return None, 0
        if b"KV-Operation:" in message.headers or not message.data:
            return None, message.sequence
        return self._from_json(message.data, self.key), message.sequence

    def write(self, entry: E) -> bool:
        """Write an entry over the revision in `revision`. Return false if another attempt has written since."""
        body = entry.to_json()
        guard = {EXPECTED: str(self.revision)}
        if self._expires is not None:
            guard["Nats-TTL"] = f"{self._expires:.0f}s"
        context = f"write ledger entry {self.key} of bucket {BUCKET}"

        def put(connection: Connection) -> int | None:
            subject = self._subject
            if connection.prefix != jsapi.DEFAULT_PREFIX:
                subject = f"{connection.prefix}.{subject}"
            try:
                reply = jsapi.reply(connection.request(subject, body, headers=guard, context=context), context)
            except ApiError as error:
                if error.err_code != WRONG_REVISION:
                    raise
                # The server may have stored an earlier try of this write, and its answer may be lost.
                stored, revision = self.read()
                if stored is not None and vars(stored) == vars(entry):
                    return revision
                if revision <= self.revision:
                    # No other attempt has written, as far as this leader knows: it may not have applied its log yet.
                    raise ServerBusy(
                        str(error), code=error.code, err_code=error.err_code, description=error.description
                    ) from None
                return None
            return int(jsapi.field(reply, "seq", int, context))

        revision = self._requests.call(put)
        if revision is None:
            return False
        self.revision = revision
        return True


def fought_over(slot: Slot[Any]) -> DeliveryError:
    """Return the error for a key that another process writes again and again."""
    return DeliveryError(f"ledger entry {slot.key} of bucket {BUCKET} has two writers: is the query running twice?")
