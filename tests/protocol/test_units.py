"""Durations, sizes and times: exact, and printed as they are read."""

from __future__ import annotations

import datetime as dt
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.protocol.units import (
    LONGEST_TTL,
    NEVER,
    Bytes,
    Nanoseconds,
    Timestamp,
    beyond_clock,
    counted,
    duration_seconds,
    go_duration,
    minutes_or_months,
    parse_time,
    rfc3339,
    rough,
    sized,
    time_nanoseconds,
)

SECOND = 1_000_000_000
INT64 = st.integers(0, 2**63 - 1)


@given(st.timedeltas(dt.timedelta(0), dt.timedelta(days=36500)))
def test_a_timedelta_is_taken_exactly(delta: dt.timedelta) -> None:
    assert Nanoseconds.of(delta).timedelta == delta


DURATIONS: list[tuple[object, int, str]] = [
    ("10s", 10 * SECOND, "10s"),
    ("5m", 300 * SECOND, "5m"),
    ("1h30m", 5400 * SECOND, "1h30m"),
    ("90m", 5400 * SECOND, "1h30m"),
    ("1.5s", 1_500_000_000, "1.5s"),
    ("250ms", 250_000_000, "250ms"),
    ("25h", 90_000 * SECOND, "1d1h"),
    ("1.000000001s", SECOND + 1, "1.000000001s"),
    ("7ns", 7, "7ns"),
    ("1 day 2 hours", 93_600 * SECOND, "1d2h"),
    ("0", 0, "0s"),
    (0, 0, "0s"),
    (1500, 1500, "1.5us"),
    (dt.timedelta(minutes=2), 120 * SECOND, "2m"),
    (-1, -1, "-1ns"),
]
SIZES = [
    ("1g", 2**30, "1GiB"),
    ("512k", 2**19, "512KiB"),
    ("1000", 1000, "1000"),
    (0, 0, "0"),
    (-1, -1, "-1"),
]


@pytest.mark.parametrize(
    ("kind", "given", "number", "printed"),
    [*((Nanoseconds, *row) for row in DURATIONS), *((Bytes, *row) for row in SIZES)],
)
def test_durations_and_sizes(
    kind: type[Nanoseconds | Bytes], given: object, number: int, printed: str
) -> None:
    found = kind.of(given)
    assert (found, str(found), f"{found}", json.dumps(found)) == (
        number,
        printed,
        printed,
        str(number),
    )


@given(INT64)
def test_a_time_keeps_its_nanoseconds(nanoseconds: int) -> None:
    found = Timestamp.of(nanoseconds)
    assert found.nanoseconds == nanoseconds
    assert Timestamp.of(str(found)) == found
    assert found.datetime == dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(
        microseconds=nanoseconds // 1000
    )


@given(
    st.datetimes(dt.datetime.fromisoformat("1970-01-02"), dt.datetime.fromisoformat("2200-01-01")),
    st.integers(-1439, 1439),
)
def test_a_datetime_is_taken_exactly(moment: dt.datetime, minutes: int) -> None:
    aware = moment.replace(tzinfo=dt.timezone(dt.timedelta(minutes=minutes)))
    if aware.timestamp() >= 0:
        assert Timestamp.of(aware).datetime == aware


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00.500+01:00", "2026-03-01T11:00:00.5Z"),
        ("2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:00.123456789Z"),
        (1_772_366_400_000_000_001, "2026-03-01T12:00:00.000000001Z"),
    ],
)
def test_a_users_time_becomes_utc(given: object, written: str) -> None:
    assert Timestamp.of(given) == written


REFUSED: list[tuple[type[Nanoseconds | Bytes | Timestamp], str, list[object]]] = [
    (
        Nanoseconds,
        "not a duration",
        ["", "10", "soon", "-1s", "1h 2", "0.0000000001s", 1.5, True, None, b"1s"],
    ),
    (Nanoseconds, "finer than a nanosecond", ["0.5ns"]),
    (Bytes, "not a size", ["", "big", "1.5k", 1.5, True, None]),
    (Timestamp, "with its zone", ["2026-03-01T12:00:00", dt.datetime.fromisoformat("2026-03-01")]),
    (Timestamp, "between 1970 and 2262", ["1969-12-31T23:59:59Z"]),
    (Timestamp, "a time such as", [True, 1.5, None]),
]


@pytest.mark.parametrize(
    ("kind", "words", "given"),
    [(kind, words, given) for kind, words, values in REFUSED for given in values],
)
def test_a_wrong_duration_size_or_time_is_an_error(
    kind: type[Nanoseconds | Bytes | Timestamp], words: str, given: object
) -> None:
    with pytest.raises(ValueError, match=words):
        kind.of(given)


def test_the_year_1_is_never() -> None:
    assert NEVER.never
    assert NEVER.nanoseconds == 0
    assert NEVER.datetime.year == 1
    assert not Timestamp("1970-01-01T00:00:00Z").never


@pytest.mark.parametrize(
    ("size", "words", "whole"),
    [
        (0, "0B", "0 bytes"),
        (1, "1B", "1 byte"),
        (1023, "1023B", "1,023 bytes"),
        (1024, "1KiB", "1,024 bytes (1KiB)"),
        (68_890, "67.3KiB", "68,890 bytes (67.3KiB)"),
        (3 << 29, "1.5GiB", "1,610,612,736 bytes (1.5GiB)"),
        (10**12, "931.3GiB", "1,000,000,000,000 bytes (931.3GiB)"),
    ],
)
def test_sizes_and_counts_for_people(size: int, words: str, whole: str) -> None:
    assert (rough(size), sized(size)) == (words, whole)
    assert [counted(number, "message") for number in (0, 1, 2000)] == [
        "0 messages",
        "1 message",
        "2,000 messages",
    ]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1h30m", 5400 * SECOND),
        ("1.5h", 5400 * SECOND),
        ("1.s", SECOND),
        (".5s", SECOND // 2),
        ("+5s", 5 * SECOND),
        ("-5s", -5 * SECOND),
        ("7ns1us1µs1μs1ms", 1_003_007),
        ("2h2h", 4 * 3600 * SECOND),
        (f"1.{'0' * 50}9s", SECOND),
        ("2562047h47m16.854775807s", 2**63 - 1),
        ("1d", None),
        ("5", None),
        ("1 h", None),
        ("1H", None),
        ("1e3s", None),
        ("-", None),
        ("", None),
        ("never", None),
    ],
)
def test_a_duration_is_read_as_servers_read_it(text: str, nanoseconds: int | None) -> None:
    assert go_duration(text) == nanoseconds


DAY = 1_795_910_400 * SECOND  # 2026-11-29
NOON = DAY + 12 * 3600 * SECOND
FORM = "a time such as 2026-03-01T12:00:00Z, 2026-03-01T12:00:00.5+01:00, or epoch milliseconds"
ZONE = "a time with its zone (Z or +01:00 at the end)"
BETWEEN = "a time between 1970 and 2262"
SECONDS = "in epoch milliseconds when it is a number (is this seconds?)"
#: A time, and its nanoseconds, or what it must be.
TIMES: dict[str, int | str] = {
    "2026-11-29T12:00:00Z": NOON,
    "2026-11-29T12:00Z": NOON,
    **{
        f"2026-11-29T12:00:00.{'123456789'[:digits]}Z": NOON
        + int("123456789"[:digits].ljust(9, "0"))
        for digits in range(1, 10)
    },
    "2026-11-29T12:00:00.000000001Z": NOON + 1,
    "2026-11-29t12:00:00,5z": NOON + SECOND // 2,
    "2026-11-29 12:00:00 UTC": NOON,
    "2026-11-29 12:00:00GMT": NOON,
    "  2026-11-29T12:00:00Z\n": NOON,
    "2026-11-29T12:00:00.25+05": NOON - 5 * 3600 * SECOND + SECOND // 4,
    "2026-11-29T12:00:00+05:30": NOON - 19_800 * SECOND,
    "2026-11-29T12:00:00-0530": NOON + 19_800 * SECOND,
    "2026-11-29T12:00:00-00:01": NOON + 60 * SECOND,
    "2026-11-29T12:00:00+18:59": NOON - 68_340 * SECOND,
    "1970-01-01T00:00:00Z": 0,
    "1970-01-01T01:00:00+01:00": 0,
    "2024-02-29T00:00:00Z": 1_709_164_800 * SECOND,
    "2262-04-11T23:47:16.854775807Z": 2**63 - 1,
    "0": 0,
    "100000000000": 10**17,
    "+1795953600123": NOON + 123_000_000,
    "1969-12-31T23:59:59.999999999Z": BETWEEN,
    "1970-01-01T00:00:00+00:01": BETWEEN,
    "2262-04-11T23:47:16.854775808Z": BETWEEN,
    "0001-01-01T00:00:00Z": BETWEEN,
    "-1": BETWEEN,
    "9223372036855": BETWEEN,
    "1": SECONDS,
    "99999999999": SECONDS,
    "2026-11-29T12:00:00": ZONE,
    "2026-11-29": ZONE,
    "2026-11-29T12:00:00.1234567890Z": "a time of at most nine digits after the second",
    **dict.fromkeys(
        (
            *("", "Z", "now", "12:00:00Z", "1e12", "1_795_953_600_123", "1" * 31, "²"),
            *("2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-00-01T00:00:00Z"),
            *("2026-11-29T24:00:00Z", "2026-11-29T12:60:00Z", "2026-11-29T12:00:60Z"),
            *("2026-11-29T12:00:00.Z", "2026-11-29T12:00:00.5Z.", "2026-11-29T12:00:00ZZ"),
            *("2026-11-29T12:00:00+19:00", "2026-11-29T12:00:00+01:60", "2026-11-29T12:00:00+1"),
            *("26-11-29T12:00:00Z", "2026-1-29T12:00:00Z", "2026-11-29Z", "202٣-11-29T12:00:00Z"),
            *("2026-11-29T12:00:00\x00Z", "0000-01-01T00:00:00Z", "2026-11-29T12:00:00CET"),
        ),
        FORM,
    ),
}


@pytest.mark.parametrize("text", TIMES)
def test_a_time_is_read_exactly_or_the_error_says_its_form(text: str) -> None:
    expected = TIMES[text]
    if isinstance(expected, int):
        assert (time_nanoseconds(text), parse_time(text)) == (expected, expected)
        assert time_nanoseconds(rfc3339(expected)) == expected
        assert Timestamp.of(text).nanoseconds == expected
        return
    assert parse_time(text) == 0
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        time_nanoseconds(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1y", 365 * 86_400 * SECOND),
        ("2w", 14 * 86_400 * SECOND),
        ("1 Year 1 WEEKS", 372 * 86_400 * SECOND),
        ("1.5 days", 129_600 * SECOND),
        ("3Min 2Sec", 182 * SECOND),
        ("5µs", 5000),
        ("5US", 5000),
        ("1ms1us1ns", 1_001_001),
        ("0.000000001s", 1),
        (" 1h\n", 3600 * SECOND),
        ("999999999999999999ns", 10**18 - 1),
        ("1M", None),
        ("1 mo", None),
        ("1ys", None),
        ("1e3s", None),
        ("+1s", None),
        ("1,5s", None),
        (".5s", None),
        ("1.s", None),
        ("1000000000000000000ns", None),
        ("1s,2ms", None),
        ("1s\x00", None),
        ("²s", None),
        ("s", None),
    ],
)
def test_a_duration_of_people_is_read_exactly_or_refused(
    text: str, nanoseconds: int | None
) -> None:
    seconds = duration_seconds(text)
    assert (seconds if seconds is None else seconds * SECOND) == nanoseconds


@pytest.mark.parametrize(
    ("text", "minutes", "days"),
    [("5M", "5m", "150d"), ("1h 1.5 M", "1.5m", "45d"), ("0.01M", "0.01m", "0.3d")],
)
def test_a_capital_m_is_told_to_be_minutes_or_months(text: str, minutes: str, days: str) -> None:
    assert duration_seconds(text) is None
    told = minutes_or_months(text)
    assert f"write {minutes} for minutes" in told
    assert told.endswith(f"such as {days}")
    assert minutes_or_months(text.replace("M", "Ms")) == minutes_or_months(text.lower()) == ""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("7b", 7),
        ("8m", 8 << 20),
        ("8MiB", 8 << 20),
        ("8 mb", 8 << 20),
        ("1T", 1 << 40),
        ("1kB", 1 << 10),
        (" 1GiB ", 1 << 30),
        ("9223372036854775807", 2**63 - 1),
        ("1ki", None),
        ("1bb", None),
        ("1p", None),
        ("-1", None),
        ("1k2", None),
        ("1_000", None),
        ("1e3", None),
        ("²", None),
        ("1\x00", None),
        ("1" * 20, None),
    ],
)
def test_a_size_is_read_in_powers_of_1024_or_refused(text: str, size: int | None) -> None:
    if size is not None:
        assert Bytes.of(text) == size
        return
    with pytest.raises(ValueError, match=r"^not a size$"):
        Bytes.of(text)


FAR_TIMES = {
    "0000-01-01T00:00:00Z": True,
    "0001-01-01T00:00:00Z": True,
    "1676-12-31T23:59:59Z": True,
    "1677-09-21T00:12:43Z": True,
    "1677-09-21T00:12:44Z": False,
    "1960-01-01T00:00:00Z": False,
    "2026-03-01T12:00:00.1234567890123Z": False,
    "2262-04-11T23:47:16.854775807Z": False,
    "2262-04-11T23:47:16.854775808Z": True,
    "2262-04-12T00:47:16+01:00": False,
    "2262-04-11T22:47:17-01:00": True,
    "2263-01-01T00:00:00Z": True,
    "9999-12-31T23:59:59Z": True,
    "tomorrow": False,
    "": False,
}


@pytest.mark.parametrize("text", FAR_TIMES)
def test_a_time_beyond_64_bits_of_nanoseconds_is_told(text: str) -> None:
    assert beyond_clock(text) == FAR_TIMES[text]


def test_a_server_can_add_the_longest_ttl_to_its_clock_for_decades() -> None:
    last = Timestamp.of("2060-01-01T00:00:00Z").nanoseconds
    assert last + LONGEST_TTL < 2**63
