"""Tasks of an earlier run that may still store rows when another run takes their batch over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.ledger import Ledger
from tests.support.proxy import WireProxy
from tests.support.publish import Publisher
from tests.support.sinking import (
    SECOND,
    TASK,
    WINDOW,
    Sink,
    die,
    forget,
    numbers,
    rows,
    seen_in,
    sent_again,
    set_write_timing,
)
from tests.support.streams import Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")

ANOTHER_RUN = replace(TASK, run="another run")


def test_the_first_task_of_another_run_waits_for_the_lease_of_the_batch(s: Stream) -> None:
    """The task itself has no earlier attempt: only the batch tells of rows on their way."""
    die(Sink.exactly(s.url), s, rows("s.a", 0, 10))
    with WireProxy(s.url) as proxy:
        task = replace(ANOTHER_RUN, partition=1)
        report = Sink.exactly(proxy.url).write([rows("s.a", 0, 20)], task)
        first, second, *_ = re.findall(rb'"settled": (true|false)', proxy.client_bytes)
    # A task that is killed in its wait leaves the wait to the next one.
    assert (first, second) == (b"false", b"true")
    # A wait is never shorter than it was asked to be.
    assert report.seconds >= MessageSink.ledger_times.lease
    assert (report.stored, report.duplicates) == (20, 10)
    assert numbers(s.url, "S") == list(range(20))


def test_a_row_of_the_earlier_attempt_may_come_before_rows_that_this_attempt_has_stored(
    s: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has forgotten its message id when the attempt asks the ledger for it."""
    die(Sink.exactly(s.url), s, rows("s.a", 0, 10))
    with Publisher(s.url) as admin:
        late = seen_in(admin, "S")[9]
        # As if the last row had stayed in some buffer, and the stream had never seen it.
        s.remove(10)
        forget(admin, s.name, s.subject)
        passed = 0.0
        # By the clock of the ledger no time passes: it does not look for late rows by itself.
        times = replace(MessageSink.ledger_times, clock=lambda: 0.0)
        monkeypatch.setattr(MessageSink, "ledger_times", times)
        set_write_timing(monkeypatch, clock=lambda: passed)
        check = Ledger.check

        def slow(ledger: Ledger) -> None:
            nonlocal passed
            passed += WINDOW / SECOND
            check(ledger)

        def second() -> Iterator[pa.RecordBatch]:
            yield rows("s.a", 0, 9)
            admin.publish([sent_again(late)])
            forget(admin, s.name, s.subject)
            # With one row in flight, the answer to the first of these comes before the last one.
            yield rows("s.a", 10, 1)
            yield rows("s.a", 11, 1)
            monkeypatch.setattr(Ledger, "check", slow)
            yield rows("s.a", 9, 1)

        names = ("data", "subject")
        report = Sink.exactly(s.url, maxInFlight=1).write(second(), names=names)
    assert (report.stored, report.duplicates) == (12, 10)
    assert sorted(numbers(s.url, "S")) == list(range(12))
