"""Every name that the connector creates on a server, and when what has the name goes away. Pure.

- `LEDGER_BUCKET`: the Key-Value bucket of delivery `exactly-once`, which says which tasks have begun, and where.
  The user deletes it; its entries expire.
- `plan_consumer`: an ephemeral consumer that counts messages for a plan. It is deleted after the count, and by its
  inactive threshold if the driver was killed.
- `reader_consumer`: the ephemeral consumer of one task that reads. It is deleted at the end of the range, and by its
  inactive threshold if the task was killed.
- Option `durable`: the durable consumer of a query that keeps its position on the server, with `RUN` and `SINCE` in its
  metadata. The user deletes it.
- `stand_in`: the consumer that holds the messages while a durable consumer is created again. It is deleted at the end
  of the move, or when the next run of the query starts.
- `upload_note`: a message beside the chunks of an object that names the uploads that have begun. It is removed at the
  end of the upload, or when the object is written again.
"""

from __future__ import annotations

import hashlib
import uuid

LEDGER_BUCKET = "spark_jetstream_ledger"
PLAN_CONSUMER = "spark-plan-"
RUN = "spark_jetstream_run"
"""The key of the token of the run that has the durable consumer."""
SINCE = "spark_jetstream_since"
"""The key of the time at which that run took it, by the server's clock (RFC 3339)."""

_UPLOAD_NOTE = "spark-jetstream-"
_DIGEST_BYTES = 12


def stand_in(durable: str) -> str:
    """Return the name of the consumer that holds the messages while the one named `durable` is created again."""
    return f"{durable}-spark-moving"


def plan_consumer() -> str:
    """Return a fresh name for a consumer that counts messages."""
    return f"{PLAN_CONSUMER}{uuid.uuid4().hex[:12]}"


def reader_consumer(label: str) -> str:
    """Return a fresh name for a consumer that reads; `label` says for whom."""
    return f"{label}-{uuid.uuid4().hex[:8]}"


def upload_note(name: str) -> str:
    """Return the last token of the subject at which the uploads of an object are noted."""
    return _UPLOAD_NOTE + hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
