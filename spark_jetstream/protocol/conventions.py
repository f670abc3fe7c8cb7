"""Every name that the connector creates on a server, and when what has the name goes away. Pure.

The user deletes the ledger's bucket, whose entries expire, and the consumers of option `durable`, which have `RUN` and
`SINCE` in their metadata. The writer and the reader remove everything else when they have done with it; an inactive
threshold removes the ephemeral consumers of a process that was killed, and the next run of the query, or the next
writer of the object, what else such a process leaves.
"""

from __future__ import annotations

import hashlib
import uuid

LEDGER_BUCKET = "spark_jetstream_ledger"
"""The Key-Value bucket of delivery `exactly-once`, which says which tasks have begun, and where."""
RUN = "spark_jetstream_run"
"""The key of the token of the run that has the durable consumer."""
SINCE = "spark_jetstream_since"
"""The key of the time at which that run took it, by the server's clock (RFC 3339)."""
DEFAULT_CHUNK_SIZE = 128 * 1024
"""Bytes of a chunk of an object, unless the writer is told another number."""


def stand_in(durable: str) -> str:
    """Return the name of the consumer that holds the messages while the one named `durable` is created again."""
    return f"{durable}-spark-moving"


def plan_consumer() -> str:
    """Return a fresh name for a consumer that counts messages."""
    return f"spark-plan-{uuid.uuid4().hex[:12]}"


def reader_consumer(label: str) -> str:
    """Return a fresh name for a consumer that reads; `label` says for whom."""
    return f"{label}-{uuid.uuid4().hex[:8]}"


def upload_note(name: str) -> str:
    """Return the last token of the subject at which the uploads of an object are noted."""
    return f"spark-jetstream-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"
