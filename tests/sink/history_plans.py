"""Plans of histories of writes: all that a seed chooses."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tests.sink.histories import (
    DISTINCT,
    FAULTS,
    HOUR,
    KINDS,
    LAST_WINS,
    MOST,
    ORIGINS,
    REFUSED,
    SHORT,
    Fault,
    Plan,
    Row,
    Run,
)


def planned(seed: int) -> Plan:
    """The plan of a seed."""
    r = Random(seed)
    kind = r.choice(list(KINDS))
    alone, level = KINDS[kind].alone, r.choice(KINDS[kind].levels)
    rate = {"exactly-once": 0.3, "deduplicated": 0.05}.get(level, 0.0)
    window = SHORT if r.random() < rate and kind not in ("full subjects", *LAST_WINS) else HOUR
    options = {"delivery": level, "maxInFlight": r.choice(["1", "5", "40", "8000"])}
    hasty, patient = (
        {"ackTimeout": "300ms", "maxRetries": "20"},
        {"ackTimeout": "10s", "maxRetries": "0"},
    )
    options |= patient if r.random() < 0.1 else hasty
    plan = Plan(seed, kind, window, r.random() < 0.7, options)
    common = {"storage": "file", "duplicate_window": window}
    plan.streams = {plan.main: {**common, **KINDS[kind].config}, plan.dead: dict(common)}
    if kind in ("plain", "own ids", "expected") and r.random() < 0.6:
        plan.streams[plan.other] = {**common, "allow_msg_ttl": True}
        if r.random() < 0.5:
            name = plan.other.lower()
            plan.streams[plan.other]["subject_transform"] = {
                "src": f"{name}.>",
                "dest": f"moved.{name}.>",
            }
    if kind == "bucket":
        options["bucket"] = f"B{seed}"
    elif alone or r.random() < 0.4:
        options["stream"] = plan.main
    if kind == "plain" and r.random() < 0.2:
        options["subject"] = f"{plan.main.lower()}.all"
    if kind != "bucket" and r.random() < 0.5:
        options["serverHeaders"] = "drop"
    if r.random() < 0.6:
        options["deadLetterSubject"] = f"{plan.dead.lower()}.dead"
    if not plan.streaming and level != "at-least-once" and r.random() < 0.8:
        options["writeId"] = f"write-{seed}"
    plan.columns = ("data", "subject", *KINDS[kind].columns)
    if kind in ORIGINS and level != "at-least-once" and r.random() < 0.3:
        plan.columns += ("stream", "sequence")
    if kind in DISTINCT and level != "at-least-once" and r.random() < 0.2:
        options["messageIds"] = "content"
    _Rows(r, plan).fill()
    for parts in plan.batches:
        before, after = (r.choice([0, 0, 1, 2]), r.choice([0, 1])) if plan.repeatable else (0, 0)
        plan.runs.append(
            [_run(r, plan, parts, whole=at >= before) for at in range(before + 1 + after)]
        )
    return plan


def divided(r: Random, parts: list[list[Row]]) -> list[list[Row]]:
    """The rows of these partitions in others. Those of a group stay together."""
    together: dict[str, list[Row]] = {}
    for number, row in enumerate(row for part in parts for row in part):
        name = row.values.get("atomic_group") or f"row {number}"
        together.setdefault(name, []).append(row)
    new: list[list[Row]] = [[] for _ in range(r.randint(1, 4))]
    for some in together.values():
        r.choice(new).extend(some)
    return new


def _run(r: Random, plan: Plan, parts: list[list[Row]], *, whole: bool) -> Run:
    if plan.free and r.random() < 0.5:
        parts = divided(r, parts)
    tasks = len(parts) if whole else r.randint(0, len(parts))
    together = r.random() < 0.4
    twins = [
        part
        for part in range(tasks)
        if together and plan.window == HOUR and plan.kind not in LAST_WINS
    ]
    commit = [] if whole else [Fault(r.randint(0, 6), "die", 0)]
    faults = FAULTS if plan.window == HOUR else [*FAULTS, *["outage"] * 6]
    # A single server stores a part of a group if its stream gets a lower limit while the group
    # commits (docs/delivery.md), so groups have a test of their own
    # (test_a_stream_without_room_for_a_group_stores_it_whole_later).
    is_limited = plan.kind not in ("counters", "schedules", "bucket", "groups")
    faults = [*faults, "full"] if is_limited else [*faults]
    faults += ["lose acks", "lose acks"] if plan.options["maxRetries"] != "0" else []
    # A late row may reach the stream after the window, where the sink promises nothing.
    # Without ids it may also follow a later row, which then is not the last.
    ordered = plan.kind not in LAST_WINS or plan.options["delivery"] != "at-least-once"
    late = plan.window == HOUR and plan.repeatable and not together and ordered
    faults += ["die late"] if late else []

    def some() -> list[Fault]:
        steps = (int(r.paretovariate(0.7)) - 1 for _ in range(r.choice([1, 1, 2, 3])))
        made = [Fault(step, r.choice(faults), int(10 ** r.uniform(0, 4.5))) for step in steps]
        # Before an outage some rows are stored whose acknowledgements never come.
        return sorted(
            made + [Fault(fault.step - 3, "deaf", 0) for fault in made if fault.what == "outage"]
        )

    attempts = [[some() for _ in range(r.choice([0, 0, 1, 1, 2]))] for _ in range(tasks)]
    return Run(
        parts,
        attempts,
        tasks,
        together,
        r.sample(twins, min(len(twins), r.choice([0, 0, 1]))),
        commit,
    )


class _Rows:
    """Makes the rows of a plan."""

    def __init__(self, r: Random, plan: Plan) -> None:
        self.r = r
        self.plan = plan
        self.count = 0
        self.bad = r.choice([0.0, 0.0, 0.02, 0.1]) if plan.kind != "bucket" else 0.0
        self.sizes = r.choice([[0, 10, 100], [10, 1000], [0, 5, 200_000], [3, 900_000]])
        if plan.kind == "small":
            self.sizes = [0, MOST // 2]
        self.spoilt_groups = {None}  # and none: each group is refused for one reason

    def fill(self) -> None:
        r = self.r
        most = (
            4
            if self.sizes[-1] > 1000
            else r.choice([15, 40, 40 if self.plan.kind in LAST_WINS else 200])
        )
        for batch in range(r.randint(1, 3) if self.plan.streaming else 1):
            self.plan.batches.append([])
            for partition in range(r.randint(1, 3)):
                rows = [
                    self.row(f"{batch}.{partition}")
                    for _ in range(r.choice([0, 1, most // 4, most, most]))
                ]
                self.plan.batches[-1].append(rows)
            equal = (
                self.plan.kind in ("plain", "counters", "groups")
                and "messageIds" not in self.plan.options
                and not self.plan.refuses_copies
            )
            if equal and r.random() < 0.5:
                self.repeat_some(self.plan.batches[-1])
            self.plan.batches[-1] = [self.with_effects(rows) for rows in self.plan.batches[-1]]

    def repeat_some(self, parts: list[list[Row]]) -> None:
        """Add rows that are equal to others of their partition, or of another one; those of a group
        to their own.
        """
        r = self.r
        for rows in parts:
            for row in r.choices(rows, k=3) if rows else ():
                alone = row.values.get("atomic_group") is not None
                target = rows if alone or r.random() < 0.5 else r.choice(parts)
                target.append(row)

    def row(self, place: str) -> Row:
        """One row, of the plan's kind."""
        self.count += 1
        r, plan, main = self.r, self.plan, self.plan.main.lower()
        size = r.choice(self.sizes)
        values: dict[str, Any] = dict.fromkeys(plan.columns)
        if "sequence" in values:
            values |= {"stream": "SOURCE", "sequence": self.count}
        named = size or "messageIds" in plan.options
        values |= {
            "data": f"row {self.count} of {place} ".encode().ljust(size, b".") if named else b""
        }
        values |= {"subject": f"{main}.{r.choice('abc')}"}
        if "headers" in values and r.random() < 0.5:
            values["headers"] = [
                ("Color", ["red", "blue"]),
                ("nats-odd", [place]),
                ("Nats-Msg-Id", ["left out"]),
            ]
            values["headers"] += [("Nats-Incr", ["5"])] if "serverHeaders" in plan.options else []
        if plan.other in plan.streams and "stream" not in plan.options and r.random() < 0.4:
            values["subject"] = f"{plan.other.lower()}.{r.choice('xy')}"
        own = f"id-{plan.seed}-{self.count}"
        match plan.kind:
            case "plain" | "small":
                values["ttl"] = r.choice([None, None, "2h", "never"])
            case "own ids":
                again = plan.window == HOUR and r.random() < 0.3
                values["msg_id"] = r.choice(
                    [None, f"id-{plan.seed}-{r.randint(1, self.count)}" if again else own, own]
                )
            case "expected":
                # A row without an id that an earlier attempt has stored would be refused.
                values["msg_id"] = (
                    own if plan.options["delivery"] == "at-least-once" else r.choice([None, own])
                )
                if r.random() < 0.5:
                    values |= {
                        "subject": f"{values['subject']}.{self.count}",
                        "expected_last_subject_sequence": 0,
                    }
            case "counters":
                values |= {
                    "data": r.choice([None, b""]),
                    "incr": r.choice(["1", "+5", "-3", "0", str(10**30)]),
                }
            case "groups":
                values["atomic_group"] = r.choice(
                    [None, *(f"g-{place}-{number}" for number in range(4))]
                )
            case "schedules" if r.random() < 0.6:
                values |= {
                    "subject": f"{main}.at.{self.count}",
                    "schedule": "@at 2199-01-01T00:00:00Z",
                }
                values |= {"schedule_target": f"{main}.due", "schedule_ttl": r.choice([None, "2h"])}
            case (
                "full subjects"
            ):  # rows of a subject are alike, so it does not matter which are stored
                number = self.count // 4 if self.bad else self.count
                values |= {"subject": f"{main}.{place}.{number}", "data": b"one of some"}
            case "roll-ups":
                values |= {
                    "subject": f"{values['subject']}.{place}",
                    "rollup": r.choice([None, None, "sub"]),
                }
            case "bucket":
                values |= {"subject": f"{r.choice('abc')}.{place}"}
                values["operation"] = r.choice([None, "PUT", "DELETE", "PURGE"])
        if values.get("atomic_group") in self.spoilt_groups - {None} or r.random() >= self.bad:
            return Row(values)
        self.spoilt_groups.add(values.get("atomic_group"))
        return self.spoilt(values)

    def spoilt(self, values: dict[str, Any]) -> Row:
        """A row like this one that can never be stored."""
        plan = self.plan
        have = {*plan.columns, *plan.streams[plan.main]} - {
            "incr" if plan.kind != "counters" else ""
        }
        have -= {"subject"} if "subject" in plan.options else set()
        elsewhere = (
            plan.other in plan.streams
            and "stream" in plan.options
            and "subject" not in plan.options
        )
        have |= {"other stream"} if elsewhere else set()
        ways = [why for why, refused in REFUSED.items() if refused.needs in have]
        if plan.kind in ("counters", "small"):
            ways.remove("too long")  # it is refused for more than one reason
        why = self.r.choice(ways)
        names = {
            "main": plan.main.lower(),
            "other": plan.other.lower(),
            "seed": plan.seed,
            "count": self.count,
        }
        changed = {key: value for key, value in REFUSED[why].values.items() if key in values}
        changed |= {
            key: value.format_map(names) for key, value in changed.items() if isinstance(value, str)
        }
        if values.get("msg_id"):
            changed = {"msg_id": f"id-{plan.seed}-bad-{self.count}", **changed}
        return Row({**values, **changed}, why)

    def with_effects(self, rows: list[Row]) -> list[Row]:
        """The rows, with what some mean for others of their task: those of their group, or at their
        subject.
        """
        if self.plan.kind == "groups":
            whys = {row.values["atomic_group"]: row.why for row in rows if row.why} | {None: None}
            rows = [
                row._replace(why=row.why or whys.get(row.values["atomic_group"])) for row in rows
            ]
        if self.plan.kind == "full subjects":
            seen: Counter[str] = Counter()
            for at, row in enumerate(rows):
                seen[row.values["subject"]] += row.why is None
                if row.why is None and seen[row.values["subject"]] > 2:
                    rows[at] = row._replace(why="full")
        return rows
