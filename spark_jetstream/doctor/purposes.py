"""What is to be done with which stream, and the permissions that takes. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_jetstream.buckets import objects
from spark_jetstream.errors import OptionError
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.permissions import Permission, merged, needed

_ADMINISTER = ("admin-account", "admin-look", "admin-streams", "admin-consumers", "admin-messages")
_OF_STREAMS: Mapping[str, tuple[str, ...]] = {
    "read": ("read",),
    "direct": ("read-direct",),
    "durable": ("read", "durable"),
    "write": ("write",),
    "exactly-once": ("write-exactly-once",),
    "ensure": ("ensure-stream",),
    "administer": _ADMINISTER,
    "backup": ("admin-backup",),
    "restore": ("admin-restore",),
}
_OF_QUEUES = {"durable": ("read-direct", "durable-queue")}
_OF_OLD_SERVERS = {"durable": ("read", "durable-old")}
_OF_BUCKETS: Mapping[str, tuple[str, ...]] = {
    "read": ("kv-read",),
    "direct": ("kv-read-direct",),
    "write": ("kv-write",),
}
_OF_OBJECTS: Mapping[str, tuple[str, ...]] = {
    "read": ("object-read",),
    "direct": ("object-read-direct",),
    "write": ("object-write",),
}
_WITHOUT_STREAM = {"administer": _ADMINISTER}

FOR = tuple(_OF_STREAMS)
"""What may be meant to be done, in the words of the command line."""


@dataclass(frozen=True)
class Chosen:
    """What is to be done (some of `FOR`), with a stream, a bucket, an object bucket, or none of them."""

    purposes: tuple[str, ...]
    stream: str | None = None
    bucket: str | None = None
    object_bucket: str | None = None
    subject: str | None = None
    filters: tuple[str, ...] = ()
    durable: str | None = None

    @classmethod
    def of(
        cls,
        stream: str | None,
        bucket: str | None,
        object_bucket: str | None,
        purposes: Sequence[str],
        subject: str | None,
        filters: Sequence[str],
        durable: str | None,
    ) -> Chosen:
        """By the command line. ``subject`` is where rows go, ``filters`` are option subjects of a read.

        `OptionError` for what makes no sense together.
        """
        given = [name for name in (stream, bucket, object_bucket) if name is not None]
        if len(given) > 1:
            raise OptionError("--stream, --bucket and --object-bucket exclude each other", option="stream")
        wanted = list(purposes)
        wanted += ["write"] if subject is not None and not {"write", "exactly-once"} & set(wanted) else []
        wanted += ["durable"] if durable is not None and "durable" not in wanted else []
        wanted = wanted or (["read"] if given else [])
        known = _table(stream, bucket, object_bucket)
        for name in wanted:
            if name not in FOR:
                closest = difflib.get_close_matches(name, FOR, n=1, cutoff=0.0)[0]
                raise OptionError(f"--for {name} is none of {', '.join(FOR)}; did you mean {closest}")
            if name not in known:
                what = "a bucket" if given else "nothing: name a stream with --stream"
                raise OptionError(f"--for {name} has no meaning for {what}")
        if {"write", "exactly-once"} & set(wanted) and bucket is None and object_bucket is None and subject is None:
            raise OptionError("--for write needs --subject, where rows are to go; it may have wildcards")
        return cls(tuple(dict.fromkeys(wanted)), stream, bucket, object_bucket, subject, tuple(filters), durable)

    @property
    def stream_name(self) -> str | None:
        """The stream, or that of the bucket; None for none."""
        if self.bucket is not None:
            return f"KV_{self.bucket}"
        return objects.stream_name(self.object_bucket) if self.object_bucket is not None else self.stream

    def permissions(self, options: ConnectionOptions, *, queue: bool, old: bool) -> tuple[Permission, ...]:
        """The least permissions for all of it. ``queue``: the stream is a work queue; ``old``: a server before 2.14."""
        changed = _OF_QUEUES if queue else _OF_OLD_SERVERS if old else {}
        table = {**_table(self.stream, self.bucket, self.object_bucket), **changed}
        sets = [
            needed(
                purpose,
                stream=self.stream or "*",
                bucket=self.bucket or self.object_bucket or "",
                subjects=self._subjects(purpose),
                durable=self.durable or "*",
                inbox_prefix=options.inbox_prefix,
                prefix=options.api_prefix_resolved,
            )
            for name in self.purposes
            for purpose in table[name]
        ]
        return merged(*sets)

    def _subjects(self, purpose: str) -> Sequence[str]:
        if purpose in ("write", "write-exactly-once", "kv-write"):
            return () if self.subject is None else (self.subject,)
        return self.filters


def _table(stream: str | None, bucket: str | None, object_bucket: str | None) -> Mapping[str, tuple[str, ...]]:
    if bucket is not None:
        return _OF_BUCKETS
    if object_bucket is not None:
        return _OF_OBJECTS
    return _OF_STREAMS if stream is not None else _WITHOUT_STREAM
