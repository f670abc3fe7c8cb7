"""When the server publishes a schedule next, by its pattern: a time, an interval or a cron table. Pure.

ADR-51 "JetStream Message Scheduler"; nats-server: server/scheduler.go (parseMsgSchedule) and
server/cron.go (parseCron). The server does not tell the time, so it is computed by the same rules.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from zoneinfo import ZoneInfo

from spark_jetstream.protocol.units import SECOND, go_duration, parse_time

PATTERN = "Nats-Schedule"
"""The header of a schedule, with its pattern. Those of its other settings begin with it."""
SCHEDULER = "Nats-Scheduler"
"""The header of a published message with the subject of its schedule."""
NEXT = "Nats-Schedule-Next"
"""The header of a published message with the time of the next one, or `purge` for none."""

_AT, _EVERY = "@at ", "@every "
_NAMED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_YEARS = 5  # the server refuses a cron table without a time in so many years
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Due(NamedTuple):
    """When a schedule is due: nanoseconds since the epoch, and whether that is certain."""

    time: int
    exact: bool


def repeats(pattern: str) -> bool:
    """Whether the server keeps a schedule when it has published it."""
    return not pattern.startswith(_AT)


def is_interval(pattern: str) -> bool:
    """Whether a schedule repeats after an interval, which begins with its last message."""
    return pattern.startswith(_EVERY)


def next_due(
    pattern: str, zone: str, *, stored: int, now: int, announced: int | None = None
) -> Due | None:
    """Return when the server publishes a schedule next, None for a text that is no schedule.

    All times are nanoseconds since the epoch. `zone` is "" for UTC. `stored` is the time of the
    schedule's message, and `announced` the next time by the last message that the server has
    published for it. A time before `now` means that the server is late.

    Without `announced` the time of an interval is not exact: the interval begins with the last
    message, and anew when a server recovers the stream without its state.
    """
    if pattern.startswith(_AT):
        time = parse_time(pattern[len(_AT) :])
        return Due(time, True) if time else None
    if announced is not None:
        return Due(announced, True)
    if pattern.startswith(_EVERY):
        interval = int(go_duration(pattern[len(_EVERY) :]) or 0)
        if interval < SECOND:
            return None
        return Due(_interval_end(stored, interval, now), False)
    try:
        table = CronTable.parse(_NAMED.get(pattern, pattern))
        found = table.next_time(_time(now), ZoneInfo(zone) if zone else dt.timezone.utc)
    # Also a zone that the time zone database of this machine does not have.
    except (ValueError, OSError, KeyError):
        return None
    return None if found is None else Due(_nanoseconds(found), True)


def _interval_end(stored: int, interval: int, now: int) -> int:
    """Return the first end of an interval that is not before `now`; the first one begins at `stored`."""
    # The server rounds to the second nearest to the time.
    end = (stored + SECOND // 2) // SECOND * SECOND + interval
    if end < now:
        end += -(-(now - end) // interval) * interval
    return end


def _time(nanoseconds: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=nanoseconds // 1000)


def _nanoseconds(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(microseconds=1) * 1000


class _Field(NamedTuple):
    """The values of a field of a cron table, and whether it has a star, which restricts nothing."""

    values: frozenset[int]
    any_value: bool


class _Bounds(NamedTuple):
    """The least and the greatest value of a field, and names of values from the least one on."""

    least: int
    greatest: int
    names: tuple[str, ...] = ()


_FIELDS = {
    "second": _Bounds(0, 59),
    "minute": _Bounds(0, 59),
    "hour": _Bounds(0, 23),
    "day": _Bounds(1, 31),
    "month": _Bounds(1, 12, _MONTHS),
    "weekday": _Bounds(0, 6, _DAYS),
}


@dataclass(frozen=True)
class CronTable:
    """The six fields of a cron table, as servers read them."""

    second: _Field
    minute: _Field
    hour: _Field
    day: _Field
    month: _Field
    weekday: _Field

    @classmethod
    def parse(cls, text: str) -> CronTable:
        """Return the table of a text such as ``0 30 8 * * mon-fri``. `ValueError` if it is none."""
        fields = text.split()
        if len(fields) != len(_FIELDS):
            raise ValueError(f"a cron table has six fields, not {len(fields)}")
        pairs = zip(_FIELDS.items(), fields, strict=True)
        return cls(**{name: _field(given, bounds) for (name, bounds), given in pairs})

    def next_time(self, after: dt.datetime, zone: dt.tzinfo) -> dt.datetime | None:
        """Return the first time of the table after another one, in a zone.

        None if there is none within five years.
        """
        clock = _Clock(after.replace(microsecond=0) + dt.timedelta(seconds=1), zone)
        limit = clock.local.year + _YEARS
        while clock.local.year <= limit:
            if all(self._goes_on(clock, step) for step in _STEPS):
                return clock.instant
        return None

    def _goes_on(self, clock: _Clock, step: _UnitStep) -> bool:
        """Advance a clock until its unit is in the table. Return False when a larger unit has changed."""
        while not step.matches(self, clock.local):
            # The units below begin anew, once for all units above them.
            if not clock.truncated:
                clock.truncated = True
                step.truncate(clock)
            step.advance(clock)
            if step.has_wrapped(clock.local):
                return False
        return True

    def has_day(self, time: dt.datetime) -> bool:
        """Whether a day is in the table: by both of its fields, or by one where neither is a star."""
        in_month = time.day in self.day.values
        in_week = time.isoweekday() % 7 in self.weekday.values
        if self.day.any_value or self.weekday.any_value:
            return in_month and in_week
        return in_month or in_week


class _Clock:
    """A time that advances, in a zone.

    Hours and smaller units advance in time, days and months on the calendar.
    """

    def __init__(self, instant: dt.datetime, zone: dt.tzinfo) -> None:
        self.instant = instant
        self.truncated = False
        self._zone = zone

    @property
    def local(self) -> dt.datetime:
        return self.instant.astimezone(self._zone)

    def set_date(self, local: dt.datetime) -> None:
        """Go to a time on the calendar, which the zone may have twice or not at all, as Go's `time.Date`."""
        naive = local.replace(tzinfo=dt.timezone.utc)
        offset = self._offset(naive)
        self.instant = naive - self._offset(naive - offset)

    def add(self, duration: dt.timedelta) -> None:
        self.instant += duration

    def _offset(self, instant: dt.datetime) -> dt.timedelta:
        return instant.astimezone(self._zone).utcoffset() or dt.timedelta()


class _UnitStep(NamedTuple):
    """How a clock reaches a unit of a table; `first` is the first value of the unit."""

    unit: str
    first: int
    truncate: Callable[[_Clock], None]
    advance: Callable[[_Clock], None]

    def matches(self, table: CronTable, time: dt.datetime) -> bool:
        """Whether a table has the unit of a time."""
        if self.unit == "day":
            return table.has_day(time)
        field: _Field = getattr(table, self.unit)
        return getattr(time, self.unit) in field.values

    def has_wrapped(self, time: dt.datetime) -> bool:
        """Whether a larger unit has changed when a clock has advanced to a time."""
        return bool(getattr(time, self.unit) == self.first)


def _to_month(clock: _Clock) -> None:
    clock.set_date(clock.local.replace(day=1, hour=0, minute=0, second=0))


def _to_day(clock: _Clock) -> None:
    clock.set_date(clock.local.replace(hour=0, minute=0, second=0))


def _to_hour(clock: _Clock) -> None:
    clock.set_date(clock.local.replace(minute=0, second=0))


def _to_minute(clock: _Clock) -> None:
    clock.add(-dt.timedelta(seconds=clock.instant.second))


def _to_second(clock: _Clock) -> None:
    """A clock has whole seconds."""


def _next_month(clock: _Clock) -> None:
    local = clock.local
    # The day is the first one by now.
    months = local.year * 12 + local.month
    clock.set_date(local.replace(year=months // 12, month=months % 12 + 1))


def _next_day(clock: _Clock) -> None:
    # On the calendar: a day may have 23 or 25 hours.
    clock.set_date(clock.local.replace(tzinfo=dt.timezone.utc) + dt.timedelta(days=1))


def _next_hour(clock: _Clock) -> None:
    clock.add(dt.timedelta(hours=1))


def _next_minute(clock: _Clock) -> None:
    clock.add(dt.timedelta(minutes=1))


def _next_second(clock: _Clock) -> None:
    clock.add(dt.timedelta(seconds=1))


_STEPS = (
    _UnitStep("month", 1, _to_month, _next_month),
    _UnitStep("day", 1, _to_day, _next_day),
    _UnitStep("hour", 0, _to_hour, _next_hour),
    _UnitStep("minute", 0, _to_minute, _next_minute),
    _UnitStep("second", 0, _to_second, _next_second),
)


def _field(text: str, bounds: _Bounds) -> _Field:
    """Return a field of a table: ranges between commas."""
    values: set[int] = set()
    any_value = False
    for part in filter(None, text.split(",")):
        some, star = _range(part, bounds)
        values.update(some)
        any_value = any_value or star
    # The server looks for a time through all seconds of five years before it refuses this one.
    if not values:
        raise ValueError(f"{text} has no values")
    return _Field(frozenset(values), any_value)


def _range(text: str, bounds: _Bounds) -> tuple[range, bool]:
    """Return the values of ``number``, ``number-number`` or ``*``, with ``/step`` or not.

    Also whether it is a star without a step. `ValueError` for another text.
    """
    given, *steps = text.split("/")
    low, *highs = given.split("-")
    if max(len(steps), len(highs)) > 1:
        raise ValueError(f"{text} has a dash or a slash too many")
    star = low in ("*", "?")
    # A single number with a step is the beginning of a range.
    is_open = star or (bool(steps) and not highs)
    start = bounds.least if star else _number(low, bounds)
    end = bounds.greatest if is_open else _number([low, *highs][-1], bounds)
    step = _whole(steps[0]) if steps else 1
    if step < 1 or not bounds.least <= start <= end <= bounds.greatest:
        raise ValueError(f"{text} is not from {bounds.least} to {bounds.greatest}")
    return range(start, end + 1, step), star and step == 1


def _number(text: str, bounds: _Bounds) -> int:
    """Return the number of a value, or of its name."""
    name = text.lower()
    if name in bounds.names:
        return bounds.least + bounds.names.index(name)
    return _whole(text)


def _whole(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text} is no number")
    return int(text)
