"""Schedules on a real server: list them, see when they are due, remove one."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, Schedule
from spark_jetstream.admin.schedules import Schedules
from spark_jetstream.errors import ApiError, JetStreamError, MessageNotFound, StreamNotFound
from spark_jetstream.protocol.schedules import next_due
from spark_jetstream.protocol.units import Timestamp, parse_time
from tests.admin.conftest import Make
from tests.protocol.test_schedules import NO_SCHEDULES
from tests.support.reading import wait_until

WITH_SCHEDULES = {"allow_msg_schedules": True, "allow_msg_ttl": True, "allow_direct": True}
TOKENS = ("b.every", "a.zone", "a.far", "b.local")
LATER = "2100-01-01T00:00:00Z"
SECOND = 1_000_000_000


def put(admin: JetStreamAdmin, subject: str, pattern: str, target: str, **settings: str) -> int:
    """Store a schedule; return its sequence."""
    headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": target}
    for name, value in settings.items():
        headers[f"Nats-Schedule-{name.replace('_', '-')}"] = value
    return admin.publish(subject, b"x", headers).seq


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
def test_schedules_are_listed_by_their_next_times(
    admin: JetStreamAdmin, make_stream: Make, retention: str
) -> None:
    name = make_stream({**WITH_SCHEDULES, "retention": retention})
    if retention == "interest":
        # Without a consumer nothing is stored.
        admin.consumers.create(name, "keeper", durable_name="keeper")
    s = name.lower()
    admin.publish(f"{s}.plain", b"x")
    put(admin, f"{s}.a.far", f"@at {LATER}", f"{s}.due")
    put(admin, f"{s}.a.zone", "0 0 0 1 1 *", f"{s}.due", Time_Zone="Asia/Kolkata", TTL="5m")
    put(admin, f"{s}.b.every", "@every 1h", f"{s}.due", Source=f"{s}.plain", Rollup="sub")
    put(admin, f"{s}.b.local", "@hourly", f"{s}.due", Time_Zone="Local")
    found = admin.schedules.list(name)
    tokens = [each.subject.removeprefix(f"{s}.") for each in found]
    by_token = dict(zip(tokens, found, strict=True))
    every, zone, far, local = (by_token[token] for token in TOKENS)
    assert list(found[2:]) == [far, local]
    times = [each.due.nanoseconds for each in found[:3] if each.due is not None]
    assert times == sorted(times)
    stored = admin.messages.last(name, f"{s}.a.zone").time
    assert zone == Schedule(
        name,
        f"{s}.a.zone",
        zone.seq,
        stored,
        "0 0 0 1 1 *",
        f"{s}.due",
        "5m",
        "Asia/Kolkata",
        "",
        "",
        True,
        zone.due,
        True,
    )
    assert zone.due is not None
    assert zone.due.endswith("-12-31T18:30:00Z")
    assert (every.source, every.rollup, every.repeats, every.exact) == (
        f"{s}.plain",
        "sub",
        True,
        False,
    )
    assert every.due is not None
    assert abs(every.due.nanoseconds - every.time.nanoseconds - 3600 * SECOND) <= SECOND // 2
    assert (far.due, far.repeats, far.exact) == (Timestamp.of(LATER), False, True)
    # The zone of the server, which nobody else knows.
    assert (local.due, local.exact) == (None, False)
    assert admin.schedules.list(name, f"{s}.a.*") == [zone, far]
    assert admin.schedules.get(name, f"{s}.b.every") == every


def test_the_end_of_an_interval_is_that_of_the_servers_message(
    admin: JetStreamAdmin, make_stream: Make
) -> None:
    name = make_stream(WITH_SCHEDULES)
    s = name.lower()
    put(admin, f"{s}.wait.a", "@every 2s", f"{s}.due")

    def announced() -> str:
        try:
            (time,) = admin.messages.last(name, f"{s}.due").headers["Nats-Schedule-Next"]
        except MessageNotFound:
            return ""
        return time

    wait_until(lambda: bool(announced()), "a message of the schedule")
    # The list is the same with the target among the subjects that it reads, and without.
    for subjects in ((), (f"{s}.wait.*",)):
        before = announced()
        (each,) = admin.schedules.list(name, *subjects)
        after = announced()
        assert each.exact
        assert each.due is not None
        assert parse_time(before) <= each.due.nanoseconds <= parse_time(after)
    # A new schedule at the subject has another interval, which no message has announced. It comes
    # right after a message of the old one, whose next one is two seconds away.
    last = announced()
    wait_until(lambda: announced() != last, "another message of the schedule")
    put(admin, f"{s}.wait.a", "@every 1h", f"{s}.due")
    (each,) = admin.schedules.list(name)
    assert not each.exact
    assert each.due is not None
    assert each.due.nanoseconds - each.time.nanoseconds > 3000 * SECOND


#: Cron tables that match a time and a zone; the fields are those of the time.
MATCHING = [
    "{s} {m} {h} * * *",
    "{s} {m} {h} {day} * *",
    "{s} {m} {h} {day} {month} *",
    "{s} {m} {h} * * {weekday}",
    "{s} {m} {h} {day} * mon",
    "{s} {m} {h} */1 * {weekday}",
    "{s} {m}/7 {h} * * *",
    "{s} {m}-59/5 {h}/3 * * *",
    "{s} {m} {h}-23/2 {day}-31 * *",
    "{s} {m} * * {month} *",
]
ZONES = ["", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Chatham", "UTC"]


def put_matching(admin: JetStreamAdmin, s: str, fires: dt.datetime) -> dict[str, int]:
    """Store schedules that match a time; return the computed time after that one, by subject."""
    computed: dict[str, int] = {}
    for zone in ZONES:
        local = fires.astimezone(zoneinfo.ZoneInfo(zone or "UTC"))
        for number, form in enumerate(MATCHING):
            pattern = form.format(
                s=local.second,
                m=local.minute,
                h=local.hour,
                day=local.day,
                month=local.month,
                weekday=local.isoweekday() % 7,
            )
            subject = f"{s}.wait.{zone.replace('/', '-') or 'none'}.{number}"
            settings = {"Time_Zone": zone} if zone else {}
            put(admin, subject, pattern, subject.replace("wait", "due"), **settings)
            now = int(fires.timestamp()) * SECOND
            due = next_due(pattern, zone, stored=0, now=now)
            assert due is not None
            computed[subject] = due.time
    return computed


def test_the_times_of_tables_are_those_of_the_server(
    admin: JetStreamAdmin, make_stream: Make
) -> None:
    """The message of a schedule says when the next one comes."""
    name = make_stream(WITH_SCHEDULES)
    s = name.lower()
    computed: dict[str, int] = {}
    seconds = 4
    while not computed:
        fires = dt.datetime.now(dt.timezone.utc).replace(microsecond=0) + dt.timedelta(
            seconds=seconds
        )
        computed = put_matching(admin, s, fires)
        if dt.datetime.now(dt.timezone.utc) >= fires:
            # A machine that is busy stored some of them too late for this time.
            admin.streams.purge(name)
            computed, seconds = {}, 2 * seconds

    def announced() -> dict[str, int]:
        messages = admin.messages.last_of_each(name, f"{s}.due.>")
        return {
            message.headers["Nats-Scheduler"][0]: parse_time(
                message.headers["Nats-Schedule-Next"][0]
            )
            for message in messages
        }

    wait_until(lambda: announced().keys() == computed.keys(), "a message of each schedule")
    assert announced() == computed
    # A schedule list has them as well.
    listed = {each.subject: each.due for each in admin.schedules.list(name, f"{s}.wait.>")}
    assert listed.keys() == computed.keys()


@pytest.mark.parametrize("pattern", NO_SCHEDULES)
def test_the_server_refuses_the_same_texts(
    admin: JetStreamAdmin, make_stream: Make, pattern: str
) -> None:
    s = make_stream(WITH_SCHEDULES).lower()
    with pytest.raises(ApiError) as caught:
        put(admin, f"{s}.wait", pattern, f"{s}.due")
    assert caught.value.err_code == 10189


def test_a_schedule_is_removed(admin: JetStreamAdmin, make_stream: Make) -> None:
    name = make_stream(WITH_SCHEDULES)
    s = name.lower()

    def count(subject: str) -> int:
        return dict(admin.streams.subjects(name)).get(f"{s}.{subject}", 0)

    put(admin, f"{s}.wait.a", "@every 1s", f"{s}.due.a")
    wait_until(lambda: count("due.a") > 0, "a message of the schedule")
    removed = admin.schedules.remove(name, f"{s}.wait.a")
    assert (removed.subject, removed.pattern) == (f"{s}.wait.a", "@every 1s")
    assert list(admin.schedules.list(name)) == []
    # Another schedule goes on, and a message that was under way has come before its first one.
    put(admin, f"{s}.wait.b", "@every 1s", f"{s}.due.b")
    wait_until(lambda: count("due.b") > 0, "a message of the other schedule")
    before = count("due.a")
    wait_until(lambda: count("due.b") > 2, "further messages of the other schedule")
    assert count("due.a") == before


def test_only_a_schedule_is_removed(admin: JetStreamAdmin, make_stream: Make) -> None:
    name = make_stream(WITH_SCHEDULES)
    s = name.lower()
    admin.publish(f"{s}.plain", b"x")
    said = f"the last message at {s}.plain in stream {name} .sequence 1. is no schedule: it has no"
    with pytest.raises(JetStreamError, match=said):
        admin.schedules.remove(name, f"{s}.plain")
    with pytest.raises(MessageNotFound):
        admin.schedules.remove(name, f"{s}.none")
    assert dict(admin.streams.subjects(name)) == {f"{s}.plain": 1}
    with pytest.raises(StreamNotFound):
        admin.schedules.list("NOWHERE")


def test_a_schedule_that_is_replaced_meanwhile_is_not_removed(
    admin: JetStreamAdmin, make_stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_stream(WITH_SCHEDULES)
    s = name.lower()
    put(admin, f"{s}.wait", f"@at {LATER}", f"{s}.due")
    get = Schedules.get

    def get_then_replace(self: Schedules, *given: Any) -> Schedule:
        found = get(self, *given)
        put(admin, f"{s}.wait", "@hourly", f"{s}.due")
        return found

    monkeypatch.setattr(Schedules, "get", get_then_replace)
    with pytest.raises(MessageNotFound, match="it was published, or replaced, meanwhile"):
        admin.schedules.remove(name, f"{s}.wait")
    assert [each.pattern for each in admin.schedules.list(name)] == ["@hourly"]


def test_a_mirror_has_no_schedules(admin: JetStreamAdmin, make_stream: Make) -> None:
    """It has their messages, and its server publishes nothing."""
    name = make_stream(WITH_SCHEDULES)
    s = name.lower()
    put(admin, f"{s}.wait", f"@at {LATER}", f"{s}.due")
    copy = make_stream({"mirror": {"name": name}})
    wait_until(lambda: admin.streams.load(copy).state.messages == 1, "the copy")
    assert list(admin.schedules.list(copy)) == []
    with pytest.raises(JetStreamError, match="is no schedule: no allow_msg_schedules"):
        admin.schedules.get(copy, f"{s}.wait")
