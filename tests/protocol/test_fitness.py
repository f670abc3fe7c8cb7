"""What is wrong with a stream for a use, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jetstream.protocol.fitness import Read, StreamFault, Write, faults, forgets, needs_direct
from spark_jetstream.protocol.stream import StreamSummary

SOUND = StreamSummary(
    name="S",
    created="2026-02-03T04:05:06Z",
    first_seq=1,
    last_seq=9,
    messages=9,
    bytes=90,
    num_deleted=0,
    last_timestamp=1,
    retention="limits",
    subjects=("s.>",),
    allow_direct=True,
)
ALL_WRONG = replace(
    SOUND, subjects=("other",), sealed=True, no_ack=True, deny_purge=True, persist_mode="async"
)


@pytest.mark.parametrize("kind", ["rows", "values", "objects"])
def test_a_sound_stream_has_no_fault(kind: str) -> None:
    assert faults(SOUND, Write(kind, ("s.a",))) == []  # type: ignore[arg-type]
    assert forgets(SOUND) == []
    assert faults(SOUND, Read(batch=True, direct=True)) == []


def test_faults_are_listed_in_the_order_of_the_use() -> None:
    rows = [StreamFault.SEALED, StreamFault.UNACKNOWLEDGED, StreamFault.UNCAPTURED]
    assert faults(ALL_WRONG, Write("rows", ("s.a",))) == rows
    assert forgets(ALL_WRONG) == [StreamFault.LOST_IN_A_CRASH]
    assert faults(ALL_WRONG, Write("values", ("s.a",))) == [
        StreamFault.UNCAPTURED,
        StreamFault.SEALED,
        StreamFault.UNACKNOWLEDGED,
    ]


def test_only_objects_need_purges() -> None:
    kept = replace(SOUND, deny_purge=True)
    assert faults(kept, Write("objects", ("s.a",))) == [StreamFault.KEPT_CHUNKS]
    assert faults(kept, Write("rows", ("s.a",))) == []


def test_a_mirror_captures_nothing_and_is_a_mirror_alone() -> None:
    mirror = replace(SOUND, mirror=True, subjects=())
    assert faults(mirror, Write("rows", ("s.a",))) == [StreamFault.MIRROR]


@pytest.mark.parametrize(
    ("use", "fits"),
    [
        (Read(batch=True), False),
        (Read(batch=True, direct=True), True),
        (Read(batch=False), False),
        (Read(batch=False, direct=True), False),
        (Read(batch=False, reserved=True), True),
    ],
)
def test_a_work_queue_is_reserved_or_looked_at(use: Read, fits: bool) -> None:
    queue = replace(SOUND, retention="workqueue")
    assert (faults(queue, use) == []) is fits
    assert needs_direct(queue, use)
    assert StreamFault.NO_DIRECT_GETS in faults(replace(queue, allow_direct=False), use)
