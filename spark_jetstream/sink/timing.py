"""The times of a write: how long a check holds, and how long rows and failures wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WriteTiming:
    """All fields but `clock` are seconds.

    Times that a user chooses are fields of `SinkOptions`; those of the ledger are
    `ledger.LedgerTimes`.
    """

    check_holds: float = 60.0
    """The time for which a process remembers the check before the first row: Spark builds a writer
    twice in each micro-batch."""
    pauses: Sequence[float] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
    """The time before each retry of a row; the last one before all later retries."""
    subject_known: float = 1.0
    """The time for which an answer about a subject, or a failed request for one, is valid. The
    longest of `pauses` is as long, so each retry may ask once."""
    last_answers: float = 2.0
    """The most time that a task which fails waits for answers, to count the stored rows."""
    clock: Callable[[], float] = time.monotonic
    """The clock that measures all these times but `last_answers`. It is monotonic."""


WRITE_TIMING = WriteTiming()
