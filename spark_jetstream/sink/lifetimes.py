"""TTLs and schedules: which of them no server can keep. Pure.

A server counts time in nanoseconds of 64 bits, so its clock ends in 2262. It takes a longer TTL for
one that is over, and a later schedule for one that is due.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import ZERO, BoolArray, as_bytes, as_vector, flags, lengths
from spark_jetstream.protocol.units import (
    CLOCK_RANGE,
    INT64_MAX,
    INT64_MIN,
    LONGEST_TTL,
    beyond_clock,
    go_duration,
)
from spark_jetstream.sink.faults import Faults, note, note_each, shown_bytes

# Servers pass over the blanks before the value of a header (nats-server: `sliceHeader`).
PUBLISHED_ONCE = r"^ *@at "
"""The beginning of a schedule that does not repeat."""
_TIMED = r"^ *@(at|every) "
_NO_SCHEDULE = r"^ *\z|[\x00-\x1f\x7f]"
# Schedules with a time or a duration that need no closer look: their year is well within a server's
# clock, or their duration has too few characters to be too long ("999999h" is 114 years).
_NEAR_SCHEDULE = r"^@at (167[89]|16[89]\d|1[7-9]\d\d|2[01]\d\d|22[0-5]\d|226[01])-|^@every .{0,7}\z"
_SHORT_TTL = 7  # bytes; such a TTL needs no closer look for the same reason
_AT, _EVERY = "@at ", "@every "
_FIRST_MICROSECOND, _LAST_MICROSECOND = INT64_MIN // 1000 + 1, INT64_MAX // 1000
_SCHEDULE_IS = "column schedule is"
_NO_TIME = f"a time that a server's clock does not have: it must be {CLOCK_RANGE}"
_LONGEST = f"200 years ({LONGEST_TTL // 3_600_000_000_000}h)"
_TOO_LONG = f"more than {_LONGEST}, for which no server can wait"


def ttl_faults(ttls: pa.BinaryArray, column: str, faults: Faults) -> BoolArray:
    """Note the TTLs that are too long. Return the bad ones."""
    long = lengths(ttls) > _SHORT_TTL
    return note_each(faults, ttls, long, partial(_ttl_fault, column=column))


def _ttl_fault(ttl: bytes, column: str) -> str | None:
    """Return why no server can keep a message for this time, or None.

    Servers refuse a text that is no TTL.
    """
    text = ttl.decode("utf-8", "replace")
    # `isdigit` alone also takes digits of other scripts.
    if text.isascii() and text.isdigit():  # seconds
        digits = text.lstrip("0")
        # More than ten digits are beyond 317 years, and Python refuses to read thousands of digits.
        too_long = len(digits) > 10 or int(digits or 0) > LONGEST_TTL // 10**9
    else:
        too_long = (go_duration(text) or 0) > LONGEST_TTL
    if not too_long:
        return None
    return (
        f"column {column} is {shown_bytes(ttl)}, more than {_LONGEST}: a server's clock ends in "
        "2262, and it removes the message at once; use never"
    )


def schedules(values: pa.Array) -> pa.BinaryArray:
    """Return schedules as the server reads them: `@at` before a time.

    A timestamp is a time in UTC.
    """
    if pa.types.is_timestamp(values.type):
        # Without its zone Arrow writes the time as it counts it, which is UTC
        # (test_a_timestamp_is_a_schedule_in_utc).
        values = values.cast(pa.timestamp("us")).cast(pa.string())
        return pc.replace_substring_regex(as_bytes(values), r"^(\d+-\d+-\d+) (.+)", r"@at \1T\2Z")
    return pc.replace_substring_regex(as_bytes(values), r"^(\d{4}-\d\d-\d\dT)", r"@at \1")


def schedule_faults(values: pa.Array, times: pa.BinaryArray, faults: Faults) -> BoolArray:
    """Note the schedules that are none, or that a server cannot count. Return the bad ones.

    `values` is the column, and `times` holds the same as the server reads it.
    """
    broken = pc.match_substring_regex(times, _NO_SCHEDULE)
    bad = note(faults, broken, "column schedule is no schedule")
    return bad | _note_far(values, times, faults)


def _note_far(values: pa.Array, times: pa.BinaryArray, faults: Faults) -> BoolArray:
    """Note the schedules with a time or a duration that a server cannot count.

    Return the bad ones.
    """
    if pa.types.is_timestamp(values.type):
        # `micros` (int64) has microseconds since 1970, 0 for null, which is near enough.
        micros = as_vector(pc.coalesce(values.cast(pa.timestamp("us")).cast(pa.int64()), ZERO))
        far = (micros < _FIRST_MICROSECOND) | (micros > _LAST_MICROSECOND)
        return note_each(faults, times, far, _no_time)
    timed = flags(pc.match_substring_regex(times, _TIMED))
    # Only these few are read one by one in Python.
    doubtful = timed & ~flags(pc.match_substring_regex(times, _NEAR_SCHEDULE))
    return note_each(faults, times, doubtful, _schedule_fault)


def _schedule_fault(schedule: bytes) -> str | None:
    """Return why a server would publish the message of a schedule too early, or never.

    None if it can count the time. Servers refuse a text that is no schedule.
    """
    text = schedule.decode("utf-8", "replace").lstrip(" ")
    if text.startswith(_AT):
        return _no_time(schedule) if beyond_clock(text[len(_AT) :]) else None
    if (go_duration(text[len(_EVERY) :]) or 0) <= LONGEST_TTL:
        return None
    return f"{_SCHEDULE_IS} {shown_bytes(schedule)}, {_TOO_LONG}"


def _no_time(schedule: bytes) -> str:
    return f"{_SCHEDULE_IS} {shown_bytes(schedule)}, {_NO_TIME}"
