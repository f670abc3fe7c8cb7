"""The losses that a query must report, and the sentences that report them: see docs/data-loss.md."""

from __future__ import annotations

import re

from tests.model.query import Position
from tests.model.stream import Life

WENT = "went before being read"
DELETED = "was deleted"
RECREATED = "deleted and created again"
DOUBTED = "are gone"
#: The sentences of docs/data-loss.md, after the name of the stream.
SENTENCES = f"{WENT}|{DELETED}|lost its tail|after this read was planned|stream not found|{DOUBTED}"


def names_loss(line: str, stream: str, sentence: str = SENTENCES) -> bool:
    """Whether a line reports a loss on a stream."""
    return re.search(rf"\bstream {re.escape(stream)}\b.*(?:{sentence})", line) is not None


def loss_at(life: Life | None, position: Position, kind: str, filters: str) -> str:
    """Return the loss at a position: "" for none, "?..." for a warning, "~" if it may be one.

    `kind` is the retention of the stream, or ``bucket``. `filters` are those of the query.
    """
    if life is None:
        return DELETED
    if life.created != position.created:
        return RECREATED
    if life.first <= position.next:
        return ""
    reach = life.limits_reach(position)
    if kind == "bucket":
        return "" if life.present or life.setting("allow_msg_ttl") else WENT
    replaces = life.setting("max_msgs_per_subject") > 0
    if kind == "limits":
        return "" if replaces and life.present and reach == "no" else WENT
    if not (filters or replaces) or reach == "yes" or life.purged_to > position.next:
        return WENT
    passed_over = kind == "workqueue" and not filters and life.deleted_to > position.next
    if life.maybe_purged_to > position.next or passed_over:
        return "~"
    return "" if reach == "no" else f"?{DOUBTED}"
