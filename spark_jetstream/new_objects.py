"""What is to be stored in an Object Store bucket, how often that is tried, and how it may end."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_jetstream.deadline import Backoff
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.objects import DEFAULT_CHUNK_SIZE, ObjectMeta
from spark_jetstream.uploads import WRONG_SEQUENCE, Hope

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


class ObjectNotStored(Exception):
    """An object was not stored, and there is to be no other try. Who wrote it makes his own error of this.

    ``why`` ends a sentence. With the hope `OUTAGE` an outage lasted longer than `retryTimeout`; ``denied`` is the
    account's missing permission, and ``err_code`` the server's reason, 0 without one.
    """

    def __init__(self, why: str, hope: Hope, *, err_code: int = 0, denied: PermissionDenied | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.hope = hope
        self.err_code = err_code
        self.denied = denied

    @property
    def overtaken(self) -> bool:
        """Whether another meta message is there than the one that was to be replaced."""
        return self.err_code in WRONG_SEQUENCE


@dataclass(frozen=True, kw_only=True)
class UploadSettings:
    """Times in seconds. ``mapped``: an API prefix leads to the bucket, which need not be where subjects lead.

    ``ack_option`` and ``retries`` are how errors speak of two settings.
    """

    max_in_flight: int
    ack_timeout: float
    retry_timeout: float
    max_retries: int
    domain: str | None
    mapped: bool
    ack_option: str
    retries: str


@dataclass(frozen=True, kw_only=True)
class NewObject:
    """What is to be stored. ``parts(size)`` makes the chunks, each of ``size`` bytes but the last one, none empty.

    It is called once for each upload, or once in all if not ``repeatable``. ``chunk_size`` is what is asked for; server
    and stream may allow less.
    """

    name: str
    parts: Callable[[int], Iterable[bytes | memoryview]]
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    chunk_size: int = DEFAULT_CHUNK_SIZE
    repeatable: bool = True


@dataclass(frozen=True)
class Stored:
    """An object that was stored: its meta message, and the first and the last sequence of all its messages."""

    meta: ObjectMeta
    first: int
    last: int


class Tries:
    """How often and for how long one object has been tried."""

    def __init__(self, settings: UploadSettings) -> None:
        self._most = settings.max_retries
        self._patience = settings.retry_timeout
        self._count = 0
        self._since: float | None = None
        self._backoff = Backoff()

    def left(self, hope: Hope) -> bool:
        """After a failure: whether there is to be another try. An outage may also last for `retryTimeout`."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._count += 1
        if hope is Hope.OUTAGE:
            return self._count <= self._most or now - self._since <= self._patience
        return hope is Hope.RETRY and self._count <= self._most

    def pause(self) -> None:
        """Sleep before the next try."""
        self._backoff.pause()


def new_nuid() -> str:
    """A fresh id for the chunks of an object."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(22))
