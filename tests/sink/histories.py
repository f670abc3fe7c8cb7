"""Histories of writes that a seed makes: streams, options, rows, what happens to them, and what
must be stored then.

A plan knows of each row what the documentation promises of it: the message that is stored, the dead
letter, or the error. Nothing here asks a server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    """The columns of a plan beside subject and payload, and the main stream's configuration for them."""

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
    """A fault that befalls an attempt at one of its steps."""

    step: int
    what: str
    amount: int


class Run(NamedTuple):
    """One time that Spark runs a batch, or the first `tasks` tasks of it; each task succeeds in the
    end.

    `parts` are the rows of each partition, which an earlier run may have divided in another way.
    `attempts` are the faults of the first attempts of each task. The tasks run side by side with
    `together`, and those in `twins` have a second attempt beside the others. `commit` are the faults
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
        """Return the beginning of the message ids of a task.

        That of a batch write without `writeId` has a name for itself.
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
