"""What is wrong with a stream for a use, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_jetstream.protocol.fitness import (
    Read,
    StreamFault,
    Write,
    captures,
    drops_rows,
    faults,
    forgets,
    needs_direct,
    refuses_commits,
    removing_setting,
)
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


CONSUMED, REPLACED, LOST = (
    StreamFault.CONSUMED,
    StreamFault.REPLACED,
    StreamFault.LOST_IN_A_CRASH,
)
#: Settings; why the stream forgets, and whether it refuses commits and drops rows.
SETTINGS: dict[str, tuple[dict[str, Any], list[StreamFault], bool, bool]] = {
    "plain": ({}, [], False, False),
    "work queue": ({"retention": "workqueue"}, [CONSUMED], False, False),
    "work queue that denies purges": (
        {"retention": "workqueue", "deny_purge": True},
        [CONSUMED],
        True,
        False,
    ),
    "limits that deny purges": ({"deny_purge": True}, [], False, False),
    "interest of nobody": ({"retention": "interest"}, [CONSUMED], False, True),
    "interest of one": ({"retention": "interest", "consumers": 1}, [CONSUMED], False, False),
    "one a subject": ({"max_msgs_per_subject": 1}, [REPLACED], False, False),
    "no limit of a subject": ({"max_msgs_per_subject": -1}, [], False, False),
    "async": ({"persist_mode": "async"}, [LOST], False, False),
    "all": (
        {"retention": "interest", "max_msgs_per_subject": 9, "persist_mode": "async"},
        [CONSUMED, REPLACED, LOST],
        False,
        True,
    ),
}


@pytest.mark.parametrize(("given", "why", "refuses", "drops"), SETTINGS.values(), ids=SETTINGS)
def test_settings_of_a_stream_say_what_it_forgets_refuses_and_drops(
    given: dict[str, Any], why: list[StreamFault], refuses: bool, drops: bool
) -> None:
    state = replace(SOUND, **given)
    assert forgets(state) == why
    assert (refuses_commits(state), drops_rows(state)) == (refuses, drops)
    assert removing_setting(state) is next((each for each in why if each is not LOST), None)


@pytest.mark.parametrize(
    ("taken", "subject", "captured"),
    [
        *((("s.>",), "s.a", True), (("s.>",), "s.*", True), (("s.>",), "s.>", True)),
        *((("s.>",), "s", False), (("s.*",), "s.>", False), (("s.*",), "s.a.b", False)),
        *((("S.>",), "s.a", False), ((), "s.a", False), (("s.a", "s.b"), "s.*", False)),
        *(((">",), "s.a", True), (("x", "*.a"), "s.a", True)),
    ],
)
def test_a_stream_captures_a_filter_that_one_of_its_subjects_covers(
    taken: tuple[str, ...], subject: str, captured: bool
) -> None:
    state = replace(SOUND, subjects=taken)
    assert captures(state, subject) is captured
    assert (faults(state, Write("rows", (subject,))) == []) is captured
