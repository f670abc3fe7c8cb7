"""What is noted of the uploads of an object, so that nothing stays behind of those that were killed. Pure.

The note is one message beside the chunks; `object_uploads` says when it is written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from spark_jetstream.errors import ProtocolError
from spark_jetstream.objects import chunk_subject

_NOTE_BYTES = 12
_TOKEN = re.compile(r"[^\s.*>]+")


def note_subject(bucket: str, name: str) -> str:
    """Where it is noted which uploads of an object have begun; among the chunks, where no reader looks."""
    digest = hashlib.blake2b(name.encode(), digest_size=_NOTE_BYTES).hexdigest()
    return chunk_subject(bucket, f"spark-jetstream-{digest}")


def note_body(nuids: Sequence[str]) -> bytes:
    """The note: all ids under which chunks of an object may lie, except those that were removed."""
    return json.dumps({"version": 1, "uploads": list(nuids)}).encode()


def read_note(data: bytes, subject: str) -> tuple[str, ...]:
    """The ids of a note; `ProtocolError` when it is none."""
    try:
        body = json.loads(data)
        uploads = body["uploads"] if body["version"] == 1 else None
    except (ValueError, KeyError, TypeError):
        uploads = None
    # An id with a wildcard in it would stand for the chunks of others.
    if not isinstance(uploads, list) or not all(isinstance(each, str) and _TOKEN.fullmatch(each) for each in uploads):
        raise ProtocolError(f"what is noted of uploads at {subject} cannot be read: {data[:120]!r}")
    return tuple(uploads)
