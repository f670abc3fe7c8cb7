"""When schedules are due, by the rules of the server (server/scheduler.go, server/cron.go).

tests/admin/test_schedules.py compares them with a real server.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo

import pytest

from spark_jetstream.protocol.schedules import CronTable, Due, next_due, repeats
from spark_jetstream.protocol.units import parse_time, rfc3339

SECOND = 1_000_000_000
NOW = "2026-11-29T12:00:00.5Z"

#: Pattern, zone, the time before, and the times that follow. 2026-11-29 is a Sunday.
TABLES: list[tuple[str, str, str, list[str]]] = [
    ("* * * * * *", "", NOW, ["2026-11-29T12:00:01", "2026-11-29T12:00:02"]),
    ("*/20 * * * * *", "", NOW, ["2026-11-29T12:00:20", "2026-11-29T12:00:40", "2026-11-29T12:01:00"]),
    ("50/5 59 23 * * *", "", NOW, ["2026-11-29T23:59:50", "2026-11-29T23:59:55", "2026-11-30T23:59:50"]),
    ("0 0,30 8-10/2 * * ?", "", NOW, ["2026-11-30T08:00:00", "2026-11-30T08:30:00", "2026-11-30T10:00:00"]),
    ("0 30 8 * * mon-fri", "", NOW, ["2026-11-30T08:30:00", "2026-12-01T08:30:00"]),
    ("0 0 0 1 JAN,jul *", "", NOW, ["2027-01-01T00:00:00", "2027-07-01T00:00:00"]),
    # With a star in one field both count, and without one either.
    ("0 0 0 1 * sun", "", NOW, ["2026-12-01T00:00:00", "2026-12-06T00:00:00"]),
    ("0 0 0 */2 * sun", "", NOW, ["2026-12-01T00:00:00", "2026-12-03T00:00:00", "2026-12-05T00:00:00",
                                  "2026-12-06T00:00:00"]),
    ("0 0 0 * * 0", "", NOW, ["2026-12-06T00:00:00"]),
    ("0 0 0 29 2 *", "", NOW, ["2028-02-29T00:00:00"]),
    ("@yearly", "", NOW, ["2027-01-01T00:00:00"]),
    ("@annually", "", NOW, ["2027-01-01T00:00:00"]),
    ("@monthly", "", NOW, ["2026-12-01T00:00:00", "2027-01-01T00:00:00"]),
    ("@weekly", "", NOW, ["2026-12-06T00:00:00"]),
    ("@daily", "", NOW, ["2026-11-30T00:00:00"]),
    ("@midnight", "", NOW, ["2026-11-30T00:00:00"]),
    ("@hourly", "", NOW, ["2026-11-29T13:00:00"]),
    ("@daily", "America/New_York", NOW, ["2026-11-30T05:00:00"]),
    ("@daily", "Asia/Kolkata", NOW, ["2026-11-29T18:30:00"]),
    # Half past two does not exist on the day when summer begins, and comes twice when it ends.
    ("0 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-30T00:30:00"]),
    ("0 30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
        ["2026-10-25T00:30:00", "2026-10-25T01:30:00", "2026-10-26T01:30:00"]),
    # Midnight does not exist on the day when summer begins.
    ("@daily", "America/Asuncion", "2023-09-30T12:00:00Z", ["2023-10-02T03:00:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "zone", "after", "times"), TABLES)
def test_the_next_times_of_a_table(pattern: str, zone: str, after: str, times: list[str]) -> None:
    now = parse_time(after)
    for time in times:
        due = next_due(pattern, zone, stored=0, now=now)
        assert due is not None
        assert (rfc3339(due.time), due.exact) == (f"{time}.000000000Z", True)
        now = due.time


#: Texts that the server refuses as well (tests/admin/test_schedules.py).
NO_SCHEDULES = [
    "@ hourly",
    "@never",
    "@at tomorrow",
    "@every day",
    "@every 999ms",
    "0 0 * * *",
    "0 0 0 * * * *",
    "60 * * * * *",
    "* 60 * * * *",
    "* * 24 * * *",
    "* * * 0 * *",
    "* * * 32 * *",
    "* * * * 0 *",
    "* * * * 13 *",
    "* * * * * 7",
    "* * * * * sunday",
    "5-1 * * * * *",
    "1-2-3 * * * * *",
    "1/2/3 * * * * *",
    "*/0 * * * * *",
    "-5 * * * * *",
    "1_0 * * * * *",
    "0 0 0 31 2 *",
]


# The server looks for a time of the last one for seconds, so the other test leaves it out.
@pytest.mark.parametrize("pattern", [*NO_SCHEDULES, ", * * * * *"])
def test_a_text_that_is_no_schedule_is_never_due(pattern: str) -> None:
    assert next_due(pattern, "", stored=0, now=parse_time(NOW)) is None


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "Local", "../etc/passwd", "/etc/passwd", "Europe"]
)
def test_a_zone_that_is_not_known(zone: str) -> None:
    assert next_due("@hourly", zone, stored=0, now=0) is None


def test_a_time_is_due_once() -> None:
    due = next_due("@at 2030-01-31T08:00:00.5+01:00", "", stored=0, now=0, announced=7)
    assert due == Due(parse_time("2030-01-31T07:00:00.5Z"), True)
    assert not repeats("@at 2030-01-31T08:00:00Z")
    assert repeats("@every 5m")
    assert repeats("@hourly")


def test_an_interval_begins_with_the_last_message() -> None:
    """Else it is computed from the time at which the schedule was stored, to the nearest second."""
    stored = 100 * SECOND + SECOND // 2
    for now, end in ((100, 161), (161, 161), (162, 221), (1000, 1001)):
        due = next_due("@every 1m", "", stored=stored, now=now * SECOND)
        assert due == Due(end * SECOND, False)
    # Also one that is late.
    due = next_due("@every 1m", "", stored=stored, now=1000 * SECOND, announced=990 * SECOND)
    assert due == Due(990 * SECOND, True)


def test_a_year_has_the_days_of_its_table() -> None:
    """By counting days, without the steps of `next_time`."""
    table = CronTable.parse("0 0 12 13 * fri")
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    after = dt.datetime(2026, 1, 1, tzinfo=zone)
    found = []
    while (time := table.next_time(after, zone)) is not None and time.year == 2026:
        found.append(time.astimezone(zone))
        after = time
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=zone)
    days = [noon + dt.timedelta(days=number) for number in range(365)]
    assert found == [day for day in days if day.day == 13 or day.weekday() == 4]
