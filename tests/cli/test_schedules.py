"""``spark-jetstream schedule`` on a real server."""

from __future__ import annotations

import pytest

from spark_jetstream.admin import JetStreamAdmin
from tests.cli.conftest import Command, refused

GROUP = ("schedule",)


@pytest.fixture
def reminders(name: str, admin: JetStreamAdmin) -> str:
    """A stream with three schedules, by its subject."""
    subject = name.lower()
    admin.streams.create(
        name=name, subjects=[f"{subject}.>"], storage="memory", allow_msg_schedules=True
    )
    for token, pattern, more in (
        ("a", "@at 2100-01-01T00:00:00Z", {}),
        ("b", "@every 1h", {}),
        ("c", "@hourly", {"Nats-Schedule-Time-Zone": "Local"}),
    ):
        headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": f"{subject}.due", **more}
        admin.publish(f"{subject}.{token}", b"x", headers)
    return subject


def test_schedules_are_listed(do: Command, reminders: str, name: str) -> None:
    heading, *rows = do("ls", name).rows
    assert heading == ["due", "subject", "schedule", "zone", "target", "source"]
    assert [row[1] for row in rows] == [f"{reminders}.b", f"{reminders}.a", f"{reminders}.c"]
    assert rows[0][0].startswith("~2")
    assert rows[1][0] == "2100-01-01T00:00:00Z"
    assert rows[2][0] == "unknown"
    (printed,) = do("list", name, f"{reminders}.a", "--json").json
    assert printed.pop("time")
    assert printed == {
        "stream": name,
        "subject": f"{reminders}.a",
        "seq": 1,
        "pattern": "@at 2100-01-01T00:00:00Z",
        "target": f"{reminders}.due",
        **dict.fromkeys(("ttl", "time_zone", "source", "rollup"), ""),
        "repeats": False,
        "due": "2100-01-01T00:00:00Z",
        "exact": True,
    }
    nothing = do("ls", name, f"{reminders}.z")
    assert (nothing.out, nothing.err) == ("", f"stream {name} has no matching schedules\n")


def test_a_schedule_is_removed(
    do: Command, run: Command, reminders: str, name: str, admin: JetStreamAdmin
) -> None:
    refused(run("rm", name, f"{reminders}.a"), 2, "--force")
    printed = do("rm", name, f"{reminders}.a", "--force", "--json").json
    assert printed == {"stream": name, "subject": f"{reminders}.a", "removed": 1}
    left = [each.subject for each in admin.schedules.list(name)]
    assert left == [f"{reminders}.b", f"{reminders}.c"]
    refused(run("rm", name, f"{reminders}.a", "-f"), 1, f"cannot get the last {reminders}.a of")
    admin.publish(f"{reminders}.plain", b"x")
    refused(run("rm", name, f"{reminders}.plain", "-f"), 1, "is no schedule")
