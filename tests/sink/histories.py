"""Histories of writes that a seed makes: streams, options, rows, what happens to them, and what
must be stored then.

A plan knows of each row what the documentation promises of it: the message that is stored, the dead
letter, or the error. Nothing here asks a server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

HOUR, SHORT = 3600 * 10**9, 2 * 10**9  # duplicate windows, in nanoseconds
MOST, MAX_PAYLOAD = 2000, 1024 * 1024  # max_msg_size of a stream that has one; the server's limit
LEVELS = ["at-least-once", "deduplicated", "exactly-once", "exactly-once"]
LAST_WINS = ("roll-ups", "bucket")
ORIGINS = (
    "plain",
    "small",
    "own ids",
    "counters",
    "groups",
)  # kinds whose rows may name a message of a source
DISTINCT = (
    "plain",
    "small",
    "own ids",
)  # kinds whose rows may be told apart by their content alone
ROLLUP = "Nats-Rollup: sub"


#: What may happen in each plan; `World.happen` does it.
FAULTS = [
    "die",
    "die",
    "cut",
    "cut",
    "cut to server",
    "cut to server",
    "cut to clients",
    "hold",
    "restart",
    "outage",
]


class Kind(NamedTuple):
    """What rows of a plan have beside a subject and a payload, and what the main stream needs for
    them.
    """

    columns: tuple[str, ...] = ()
    config: Mapping[str, Any] = {}
    levels: list[str] = LEVELS
    alone: bool = False  # the option `stream` names the main stream, and all rows are for it


KINDS = {
    "plain": Kind(("headers", "ttl"), {"allow_msg_ttl": True}),
    "small": Kind(("headers", "ttl"), {"allow_msg_ttl": True, "max_msg_size": MOST}),
    "own ids": Kind(("headers", "msg_id")),
    "expected": Kind(("expected_last_subject_sequence", "msg_id")),
    "counters": Kind(("incr", "headers"), {"allow_msg_counter": True}, alone=True),
    "groups": Kind(("atomic_group", "headers"), {"allow_atomic": True}, alone=True),
    "schedules": Kind(
        ("schedule", "schedule_target", "schedule_ttl"),
        {"allow_msg_schedules": True, "allow_msg_ttl": True},
        alone=True,
    ),
    "full subjects": Kind(
        (),
        {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True},
        LEVELS[1:2],
        alone=True,
    ),
    "roll-ups": Kind(("rollup", "headers"), {"allow_rollup_hdrs": True}, LEVELS[:2], alone=True),
    "bucket": Kind(
        ("operation",),
        {"allow_rollup_hdrs": True, "max_msgs_per_subject": 64},
        LEVELS[:2],
        alone=True,
    ),
}


class Refused(NamedTuple):
    """Why a row can never be stored: in the sink's words, with the error code; and the values that
    make it so.

    A row can be made so if it has column `needs`; only values of columns that it has are changed.
    """

    pattern: str
    code: int
    needs: str
    values: Mapping[str, Any] = {}


REFUSED = {
    "null": Refused(
        "column data is null|columns data and incr are null",
        0,
        "data",
        {"data": None, "incr": None},
    ),
    "no subject": Refused("column subject is null", 0, "subject", {"subject": None}),
    "empty subject": Refused("its subject is empty", 0, "subject", {"subject": ""}),
    "empty token": Refused("has an empty token", 0, "subject", {"subject": "{main}..x"}),
    "wildcard": Refused("has a wildcard", 0, "subject", {"subject": "{main}.*"}),
    "blank": Refused("its subject .* holds a blank", 0, "subject", {"subject": "{main}.a b"}),
    "own subject": Refused("is one of the server's own", 0, "subject", {"subject": "$JS.API.INFO"}),
    "nobody": Refused(
        "no stream captures this subject", 503, "subject", {"subject": "nobody.{seed}.{count}"}
    ),
    "other stream": Refused("error 10060", 10060, "other stream", {"subject": "{other}.x"}),
    "header name": Refused(
        "holds the name 'a:b', which is not", 0, "headers", {"headers": [("a:b", ["c"])]}
    ),
    "header value": Refused(
        "holds a line end", 0, "headers", {"headers": [("a", ["b", "c\r\nd"])]}
    ),
    "msg_id": Refused("column msg_id is empty or holds a blank", 0, "msg_id", {"msg_id": "a b"}),
    "ttl": Refused("error 10165", 10165, "ttl", {"ttl": "0s", "subject": "{main}.a"}),
    "too long": Refused(
        "the server takes [0-9]+ .max_payload", 0, "data", {"data": b"y" * (MAX_PAYLOAD + 1)}
    ),
    "larger": Refused(
        "error 10054", 10054, "max_msg_size", {"data": b"x" * (MOST + 1), "subject": "{main}.a"}
    ),
    "expected": Refused(
        "error 10071",
        10071,
        "expected_last_subject_sequence",
        {"expected_last_subject_sequence": 999_999},
    ),
    "no integer": Refused("which is no integer", 0, "incr", {"incr": "1.5"}),
    "incr and data": Refused("it has column incr and column data", 0, "incr", {"data": b"no"}),
    "no increment": Refused("error 10169", 10169, "incr", {"incr": None, "data": b"plain"}),
    "full": Refused("maximum messages per subject exceeded", 10077, "full subjects"),
}


HEADERS = {
    "ttl": "Nats-TTL",
    "expected_last_subject_sequence": "Nats-Expected-Last-Subject-Sequence",
    "schedule": "Nats-Schedule",
    "schedule_target": "Nats-Schedule-Target",
    "schedule_ttl": "Nats-Schedule-TTL",
    "schedule_time_zone": "Nats-Schedule-Time-Zone",
    "schedule_source": "Nats-Schedule-Source",
    "schedule_rollup": "Nats-Schedule-Rollup",
    "atomic_group": "Atomic-Group",
    "rollup": "Nats-Rollup",
    "msg_id": "Nats-Msg-Id",
    "incr": "Nats-Incr",
}


class Row(NamedTuple):
    """The values of a row by column, and why it can never be stored (a key of `REFUSED`), None if
    it can.
    """

    values: dict[str, Any]
    why: str | None = None


class Content(NamedTuple):
    """A message as the model knows it: its header lines are sorted, and tell which task has made
    the message id.
    """

    stream: str
    subject: str
    lines: tuple[str, ...]
    data: bytes


Sent = tuple[Content, tuple[object, ...]]
"""A message, and what the stream does not show of its row: rows with the same of both are equal to
the sink.
"""


class Fault(NamedTuple):
    """What happens when an attempt has done so many steps."""

    step: int
    what: str
    amount: int


class Run(NamedTuple):
    """One time that Spark runs a batch, or the first `tasks` tasks of it; each task succeeds in the
    end.

    `parts` are the rows of each partition, which an earlier run may have divided in another way.
    `attempts` are the faults of the first attempts of each task. The tasks run side by side with
    `together`, and second attempts of those in `twins` beside the others. `commit` are the faults
    of the driver's commit.
    """

    parts: list[list[Row]]
    attempts: list[list[list[Fault]]]
    tasks: int
    together: bool
    twins: list[int]
    commit: list[Fault]


@dataclass
class Plan:
    """All that a seed chooses."""

    seed: int
    kind: str
    window: int
    streaming: bool
    options: dict[str, str]
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    batches: list[list[list[Row]]] = field(default_factory=list)
    runs: list[list[Run]] = field(default_factory=list)

    @property
    def main(self) -> str:
        return f"KV_B{self.seed}" if self.kind == "bucket" else f"S{self.seed}"

    @property
    def other(self) -> str:
        """A second stream, which not every plan has."""
        return f"T{self.seed}"

    @property
    def dead(self) -> str:
        """The stream of dead letters."""
        return f"D{self.seed}"

    @property
    def exact(self) -> bool:
        """Whether each row must be stored once, and not only at least once."""
        return self.options["delivery"] == "exactly-once" or (
            self.options["delivery"] == "deduplicated" and self.window == HOUR
        )

    @property
    def counted(self) -> bool:
        """Whether each message tells of which task it is, and two messages are two rows."""
        return self.exact and self.kind not in (*LAST_WINS, "own ids", "expected", "full subjects")

    @property
    def repeatable(self) -> bool:
        """Whether a later run of a batch makes the same message ids, or needs none."""
        return self.streaming or "writeId" in self.options

    @property
    def largest_group(self) -> int:
        """How many rows the largest group of a task has, 0 without groups."""
        names = [
            row.values.get("atomic_group")
            for batch in self.batches
            for part in batch
            for row in part
        ]
        sizes = Counter(name for name in names if name is not None)
        return max(sizes.values(), default=0)

    @property
    def query(self) -> str:
        return f"{self.seed:08d}-2222-3333-4444-555555555555"

    @property
    def free(self) -> bool:
        """Whether a row has its message id in whichever partition it is."""
        delivery = self.options["delivery"]
        if delivery == "exactly-once" or self.options.get("messageIds") == "content":
            return True
        return delivery == "deduplicated" and "sequence" in self.columns

    @property
    def refuses_copies(self) -> bool:
        """Whether the driver may find equal rows in several tasks of which it can make no copies."""
        # It does not know which subjects they were published to (docs/delivery.md).
        renames = "subject_transform" in self.streams.get(self.other, {})
        return renames and self.free and self.options["delivery"] == "deduplicated"

    def prefix(self, batch: int, partition: int) -> str:
        """What the message ids of a task begin with; that of a batch write without `writeId` has a
        name for itself.
        """
        write = (
            f"{self.seed:08d}22223333"
            if self.streaming
            else f"w-{self.options.get('writeId', 'once')}"
        )
        return f"{write}.{batch}" if self.free else f"{write}.{batch}.{partition}"

    def contents(self, batch: int, partition: int, rows: Sequence[Row]) -> Iterator[Content]:
        """The messages that the rows of a task become, in their order.

        A row that fails the task becomes none.
        """
        return (content for content, _ in self.sent(batch, partition, rows))

    def sent(self, batch: int, partition: int, rows: Sequence[Row]) -> Iterator[Sent]:
        """The same, with what else the message ids tell apart: messages of different rows may look
        the same.
        """
        # Ids of the content do not have the origin in them.
        origin = () if "messageIds" in self.options else ("stream", "sequence")
        # A dead letter has neither the TTL nor the expected sequence of its row.
        apart = ("ttl", "expected_last_subject_sequence", *origin)
        for row in rows:
            rest = tuple(row.values.get(name) for name in apart)
            if row.why is None:
                yield self._message(row.values, self.prefix(batch, partition)), rest
            elif "deadLetterSubject" in self.options:
                yield self._dead_letter(row, self.prefix(batch, partition)), rest

    def _message(self, values: dict[str, Any], prefix: str) -> Content:
        lines, data = _header_lines(values), values["data"] or b""
        subject, stream = self.options.get("subject", values["subject"]), self.main
        lines += [
            f"{header}: {values[name]}"
            for name, header in HEADERS.items()
            if values.get(name) is not None
        ]
        if values.get("schedule") is not None:
            lines.append(ROLLUP)  # the server adds it
        if self.kind == "bucket":
            subject = f"$KV.B{self.seed}.{subject}"
            marker = {
                "DELETE": ["KV-Operation: DEL"],
                "PURGE": ["KV-Operation: PURGE", ROLLUP],
            }.get(values["operation"])
            lines, data = marker or [], b"" if marker else data
        if values.get("incr") is not None:
            data = b"counted"
        if self._has_ids and values.get("msg_id") is None:
            lines.append(f"id of {prefix}")
        if subject.startswith(f"{self.other.lower()}."):
            stream = self.other
            if "subject_transform" in self.streams[stream]:
                subject = f"moved.{subject}"
        return Content(stream, subject, tuple(sorted(lines)), data)

    def _dead_letter(self, row: Row, prefix: str) -> Content:
        assert row.why is not None
        lines, data, code = (
            _header_lines(row.values),
            row.values["data"] or b"",
            REFUSED[row.why].code,
        )
        lines += [
            f"Dead-Letter-Subject: {self.options.get('subject', row.values['subject']) or ''}"
        ]
        lines += [f"Dead-Letter-Reason: {row.why}", f"Dead-Letter-Error-Code: {code}"]
        for name in ("incr", "schedule", "schedule_target", "schedule_ttl", "rollup"):
            if row.values.get(name) is not None:
                header = HEADERS[name].removeprefix("Nats-")
                lines.append(f"Dead-Letter-{header}: {row.values[name]}")
        if row.values.get("atomic_group") is not None:
            lines.append(f"Dead-Letter-Group: {row.values['atomic_group']}")
        if len(data) > MAX_PAYLOAD:
            lines.append(f"Dead-Letter-Size: {len(data)}")
            data = b"cut"
        if self._has_ids:
            own = None if row.why == "msg_id" else row.values.get("msg_id")
            lines.append(f"id of {own or prefix}, dead")
        return Content(self.dead, self.options["deadLetterSubject"], tuple(sorted(lines)), data)

    @property
    def _has_ids(self) -> bool:
        return self.options["delivery"] != "at-least-once" and self.kind not in LAST_WINS


def _header_lines(values: Mapping[str, Any]) -> list[str]:
    given = [(key, value) for key, items in values.get("headers") or [] for value in items]
    return [
        f"{key}: {value}"
        for key, value in given
        if not (key.startswith("Nats-") or ":" in key or "\n" in value)
    ]


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
    faults = (
        [*faults, "full"] if plan.kind not in ("counters", "schedules", "bucket") else [*faults]
    )
    faults += ["lose acks", "lose acks"] if plan.options["maxRetries"] != "0" else []
    # What is late may come after the window, where the sink promises nothing.
    # Without ids it may come after a later row, which then is not the last.
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
