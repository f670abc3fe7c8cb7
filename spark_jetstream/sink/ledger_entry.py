"""An entry of the ledger of delivery exactly-once: its format, and how it is read and written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

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
_VERSION = 1
_LONGEST_LEASE = 86_400.0  # seconds


@dataclass
class TaskEntry:
    """What an attempt notes of its task; with `done`, `report` says what the task has stored."""

    batch: int
    attempt: str
    lease: float
    done: bool = False
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    report: dict[str, Any] | None = None

    def to_json(self) -> bytes:
        """Return the entry as the ledger keeps it."""
        return json.dumps({"version": _VERSION, **vars(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> TaskEntry:
        """Return the entry that `to_json` has written. Raises `DeliveryError` for anything else."""
        try:
            content = json_object(data)
            if content.pop("version") != _VERSION:
                raise DeliveryError(
                    f"ledger entry {key} was written by a newer release of spark-jetstream: use that one"
                )
            entry = cls(**content)
            entry.streams = {
                name: {"created": str(at["created"]), "next": int(at["next"])} for name, at in entry.streams.items()
            }
            entry.batch, entry.lease = int(entry.batch), float(entry.lease)
            numbers = 0 < entry.lease <= _LONGEST_LEASE and all(at["next"] > 0 for at in entry.streams.values())
            if not (numbers and isinstance(entry.report, (dict, type(None)))):
                raise ValueError("a number that makes no sense, or a report that is none")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise DeliveryError(f"ledger entry {key} of bucket {BUCKET} cannot be read: {data[:200]!r}") from None
        return entry


class Slot:
    """A key of the ledger's bucket. `revision` is the one that `write` replaces, 0 for none.

    An entry that is written expires after `expires` seconds, if that is given. Methods raise what `Requests.call` does.
    """

    def __init__(self, requests: Requests, key: str, expires: float | None) -> None:
        self.key = key
        self.revision = 0
        self._requests = requests
        self._expires = expires
        self._subject = f"$KV.{BUCKET}.{key}"

    def read(self) -> tuple[TaskEntry | None, int]:
        """Return the entry, None if there is none, and its revision. Raises `DeliveryError` if it cannot be read."""
        try:
            message = self._requests.call(lambda connection: last_message(connection, STREAM, self._subject))
        except StreamNotFound:
            raise DeliveryError(
                f"delivery exactly-once needs the Key-Value bucket {BUCKET}, which does not exist: it is made when a "
                f"query starts, if the account may publish to $JS.API.STREAM.CREATE.{STREAM}"
            ) from None
        if message is None:
            return None, 0
        if b"KV-Operation:" in message.headers or not message.data:
            return None, message.sequence
        return TaskEntry.from_json(message.data, self.key), message.sequence

    def write(self, entry: TaskEntry) -> bool:
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
