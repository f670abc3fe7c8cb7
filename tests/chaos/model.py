"""What must hold after a run of the fault suite, whatever went wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

_SHOWN = 5


def violations(stored: Collection[str], sent: Collection[str], rows: Counter[str], level: str | None) -> list[str]:
    """Return what is wrong with the rows that a query has written, in words; nothing for a right result.

    `stored` are the messages that the server has acknowledged, `sent` those that it may have: a sink has each of the
    first once, and none that was not sent. `level` is the sink's option `delivery`, None for a transactional sink; only
    `at-least-once` may have a row twice.
    """
    missing = [body for body in stored if body not in rows]
    repeated = [body for body, times in rows.items() if times > 1] if level != "at-least-once" else []
    foreign = [body for body in rows if body not in sent]
    return [
        f"{len(bodies)} {what}, such as {bodies[:_SHOWN]}"
        for what, bodies in (("missing", missing), ("repeated", repeated), ("never sent", foreign))
        if bodies
    ]
