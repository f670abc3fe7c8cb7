"""Each name that the connector creates on a server, and the size of an object's chunks. Pure.

Connections, and consumers that read or count, end with the process. The server removes the
consumers of a killed process when nobody has used them for a while. The next run of a query removes
a `stand_in` that an earlier run left. The next writer of an object removes the notes of an earlier
one. The user deletes the rest:

- the ledger's bucket, whose entries expire;
- a durable consumer, which has `RUN`, `SINCE` and perhaps `PURGE` in its metadata;
- the stream of a benchmark that was killed;
- dead letters, and the stream of the dead letters of consumers (`dead_letter_stream`).
"""

from __future__ import annotations

import hashlib
import uuid

CONNECTION = "spark-jetstream"
"""The name of each connection, which the server's monitoring shows."""
LEDGER_BUCKET = "spark_jetstream_ledger"
"""The Key-Value bucket of delivery `exactly-once`, which says which tasks have begun, and where."""
RUN = "spark_jetstream_run"
"""The key of the token of the run that has the durable consumer."""
SINCE = "spark_jetstream_since"
"""The key of the time at which that run took it, by the server's clock (RFC 3339)."""
PURGE = "spark_jetstream_purge"
"""The key of a purge on a work queue whose commit is not finished (`source.durable.consumer_state.Purge`)."""
DEAD_LETTER = b"Dead-Letter-"
"""The beginning of the names of a dead letter's own headers."""
SCHEDULED_ID = "Scheduled-Msg-Id"
"""The header with the message id of a schedule.

The server publishes the schedule's message without `Nats-Msg-Id`.
"""
ATOMIC_GROUP = "Atomic-Group"
"""The header with the name of the group that a row was stored with."""
ADMIN_READER = "spark-jetstream-admin"
"""The label (`reader_consumer`) of the consumers that read for the administration."""
DEFAULT_CHUNK_SIZE = 128 * 1024
"""Bytes of a chunk of an object, unless the writer is told another number."""


def dead_letter_stream(stream: str) -> str:
    """Return the name of the stream that keeps which messages the consumers of `stream` gave up."""
    return f"{stream}_DEAD_LETTERS"


def stand_in(durable: str) -> str:
    """Return the name of the consumer that holds the messages while `durable` is created again."""
    return f"{durable}-spark-moving"


def plan_consumer() -> str:
    """Return a fresh name for a consumer that counts messages."""
    return f"spark-plan-{uuid.uuid4().hex[:12]}"


def task_label(query: str, batch: str, partition: int, attempt: int) -> str:
    """Return the label (`reader_consumer`) of a task's consumers."""
    return f"spark-{query}-{batch}-{partition}-{attempt}"


def ledger_label(attempt: object) -> str:
    """Return the label of consumers that look which rows an earlier attempt has stored."""
    return f"spark-ledger-{attempt}"


def bench_stream() -> str:
    """Return a fresh name for the stream of a benchmark."""
    return f"SPARK_JETSTREAM_BENCH_{uuid.uuid4().hex[:12]}"


def reader_consumer(label: str) -> str:
    """Return a fresh name for a consumer that reads; `label` says for whom."""
    return f"{label}-{uuid.uuid4().hex[:8]}"


def upload_note(name: str) -> str:
    """Return the last token of the subject at which the uploads of an object are noted."""
    return f"spark-jetstream-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"
