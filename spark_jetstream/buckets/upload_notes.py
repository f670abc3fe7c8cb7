"""Notes of uploads: under which ids chunks of an object may be. Pure.

`object_store` says when a writer stores and removes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from spark_jetstream.buckets.objects import chunk_subject
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.conventions import upload_note
from spark_jetstream.protocol.json_text import json_object

_TOKEN = re.compile(r"[^\s.*>]+")


def note_subject(bucket: str, name: str) -> str:
    """Return the subject of the note of an object's uploads.

    It is among the chunks, where no reader looks.
    """
    return chunk_subject(bucket, upload_note(name))


def note_body(nuids: Sequence[str]) -> bytes:
    """Return the payload of a note: all ids under which chunks of an object may be."""
    return json.dumps({"version": 1, "uploads": list(nuids)}).encode()


def read_note(data: bytes, subject: str) -> tuple[str, ...]:
    """Return the ids of a note; raise `ProtocolError` for another payload.

    A server leaves an empty message in place of one that expired (ADR-43 "JetStream Per-Message
    TTL").
    """
    if not data:
        return ()
    uploads = _uploads_of(data)
    if uploads is None:
        raise ProtocolError(f"what is noted of uploads at {subject} cannot be read: {data[:120]!r}")
    return uploads


def _uploads_of(data: bytes) -> tuple[str, ...] | None:
    """Return the ids of a note that is not empty; None if it is no note."""
    try:
        body = json_object(data)
        version, uploads = body["version"], body["uploads"]
    # Any client of the account can write to this subject.
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if version != 1 or not isinstance(uploads, list):
        return None
    for nuid in uploads:
        # An id with a wildcard would match the chunks of other objects.
        if not isinstance(nuid, str) or _TOKEN.fullmatch(nuid) is None:
            return None
    return tuple(uploads)
