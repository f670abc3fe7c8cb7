"""Rows of a DataFrame as the parts of messages, and why some can never be stored. Pure: Arrow in, Arrow out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream import schema
from spark_jetstream.errors import SchemaError
from spark_jetstream.protocol.arrow import (
    NOTHING,
    ZERO,
    BoolArray,
    IntArray,
    as_arrow,
    as_bytes,
    as_vector,
    binary,
    decimal,
    flags,
    lengths,
    piece,
    repeated,
    without,
)
from spark_jetstream.protocol.conventions import ATOMIC_GROUP, SCHEDULED_ID
from spark_jetstream.protocol.subjects import MAX_SUBJECT
from spark_jetstream.protocol.units import (
    CLOCK_RANGE,
    INT64_MAX,
    INT64_MIN,
    LONGEST_TTL,
    beyond_clock,
    go_duration,
)
from spark_jetstream.schema import closest_column, zone_hint

Unfit = dict[int, dict[bytes, bytes]]

Types = Mapping[str, tuple[str, ...]]
TEXT, BYTES, TIME = ("string",), ("binary", "string"), ("timestamp",)
NUMBER = ("bigint", "int", "smallint", "tinyint")
# Of a column that is left out: rows that were stored under TIMESTAMP_NTZ have the second type.
LEFT_OUT_TIME = ("timestamp", "timestamp_ntz")
WHOLE = ("string", "tinyint", "smallint", "int", "bigint", "decimal(p,0)")
MAPS = ("map<string,array<string>>", "map<string,string>")
C = TypeVar("C", bound="Columns")

#: Headers that a server acts on, refuses, removes, or adds by itself (nats-server: server/stream.go, server/client.go),
#: and those that the sink adds; the sink leaves them out.
SERVER_HEADERS = re.compile(
    rb"Nats-(Msg-Id|Expected-.*|Batch-.*|TTL|Rollup|Stream-Source|Schedule.*|Incr|Counter-Sources|Stream|Subject"
    rb"|Sequence|Time-Stamp|Last-Sequence|Num-Pending|UpTo-Sequence|Pin-Id|Msg-Size|Marker-Reason|Required-Api-Level"
    rb"|Request-Info|Trace-.*)|Status|Description|" + f"{SCHEDULED_ID}|{ATOMIC_GROUP}".encode()
)
#: Those of them without which a row would be another message: stored at another time, in place of others, or added up.
COMMANDS = re.compile(rb"Nats-(Schedule.*|Rollup|Incr)")
INCREMENT = b"Nats-Incr: "
"""What the header lines of a row that changes a counter begin with, and those of no other row."""
GROUP = f"{ATOMIC_GROUP}: ".encode()
"""What a header line of a row of a group begins with."""
#: Those of them that columns ask for (ADR-49, ADR-51).
COMMAND_COLUMNS = {
    b"Nats-Incr": "incr",
    b"Nats-Schedule": "schedule",
    b"Nats-Schedule-Target": "schedule_target",
    b"Nats-Schedule-TTL": "schedule_ttl",
    b"Nats-Rollup": "rollup",
}
_VOID = "void"
_PRECISION = re.compile(r"\(\d+,0\)")
#: Arrow's types of the first type of each column.
_ARROW = {
    **dict.fromkeys(("string", "binary"), pa.binary()),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    MAPS[0]: pa.map_(pa.string(), pa.list_(pa.string())),
}
_COMMAND_HEADERS = {column: header for header, column in COMMAND_COLUMNS.items()}
_PAIRS = (
    ("schedule", "schedule_target"),
    ("schedule_target", "schedule"),
    ("schedule_ttl", "schedule"),
)
_HEADER_NAME = re.compile(rb"[^\x00-\x20\x7f:]([^\x00-\x1f\x7f:]*[^\x00-\x20\x7f:])?")
_CR_OR_LF = r"[\r\n]"
_BLANK_OR_CONTROL = r"[\x00-\x20\x7f]"
_NO_VALUE = rf"^\z|{_BLANK_OR_CONTROL}"
_INTEGER = r"^[+-]?[0-9]+$"
_BLANK_OR_CONTROL_BYTE = re.compile(_BLANK_OR_CONTROL.encode())
_NO_SCHEDULE = r"^ *\z|[\x00-\x1f\x7f]"
# Schedules with a time or a duration that need no closer look: their year is well within a server's
# clock, or their duration has too few characters to be too long ("999999h" is 114 years).
_NEAR_SCHEDULE = r"^@at (167[89]|16[89]\d|1[7-9]\d\d|2[01]\d\d|22[0-5]\d|226[01])-|^@every .{0,7}\z"
_SHORT_TTL = 7  # bytes; such a TTL needs no closer look for the same reason
_AT, _EVERY = b"@at ", b"@every "
_FIRST_MICROSECOND, _LAST_MICROSECOND = INT64_MIN // 1000 + 1, INT64_MAX // 1000
_SCHEDULE_IS = "column schedule is"
_NO_TIME = f"a time that a server's clock does not have: it must be {CLOCK_RANGE}"
_LONGEST = f"200 years ({LONGEST_TTL // 3_600_000_000_000}h)"
_TOO_LONG = f"more than {_LONGEST}, for which no server can wait"
_ROLLUP = r"^(sub|all)\z"


# Parts of expressions. Numbers and bytes of Python, `pa.scalar`, `pa.array` and `to_numpy` would make pyarrow import
# pandas, in which Spark looks for garbage after each task.
@dataclass(frozen=True)
class Columns:
    """The names of the checked columns of a DataFrame. `subject` is the option, which replaces the column."""

    names: tuple[str, ...]
    subject: str | None = None

    #: The possible types of each column that is written.
    accepted: ClassVar[Types]
    #: Those of the columns that the source adds. The sink ignores them, so that rows can be written back as read.
    ignored: ClassVar[Types]
    #: Columns that must be there, and the rest of the sentence that one is missing.
    required: ClassVar[Mapping[str, str]]
    #: Required columns that may be null in every row beside another column.
    empty_beside: ClassVar[Mapping[str, str]] = {}
    #: The column that holds most of the bytes.
    payload: ClassVar[str]

    def of(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns of a record batch by name, each with a type that it can hold.

        Spark gives a column without any value the type void, which is Arrow's null.
        """
        columns: dict[str, pa.Array] = {}
        for index, name in enumerate(self.names):
            column = batch.column(index)
            if pa.types.is_null(column.type) and name in self.accepted:
                column = pa.nulls(len(column), _ARROW[self.accepted[name][0]])
            columns[name] = column
        return columns

    @classmethod
    def check(cls: type[C], fields: Sequence[tuple[str, str]], subject: str | None = None) -> C:
        """Return the columns of `fields`, which are pairs of name and Spark `simpleString` type.

        Raises `SchemaError` for columns that cannot be written.
        """
        known = {**cls.accepted, **cls.ignored}
        names: list[str] = []
        for name, kind in fields:
            if name in COMMAND_COLUMNS.values() and name not in known:
                raise SchemaError(
                    f'column "{name}" is for rows that go to subjects: the server allows no schedules in the stream of '
                    "a bucket, and a bucket replaces values and objects without roll-ups, and adds none up; drop it"
                )
            if name not in known:
                nearest = closest_column(name, known)
                hint = f'; did you mean "{nearest}"' if nearest else ""
                raise SchemaError(
                    f'the sink knows no column "{name}"{hint} (columns: {", ".join(cls.accepted)}): drop it, or make '
                    f"it part of {cls.payload}"
                )
            if not _is_kind(kind, known[name]):
                possible = " or ".join(known[name])
                hint = zone_hint(kind)
                raise SchemaError(
                    f'column "{name}" is of type {kind}, but must be {possible}{hint}'
                )
            if name in names:
                raise SchemaError(f'the DataFrame has column "{name}" twice')
            names.append(name)
        cls._check_required(dict(fields), subject)
        for name, other in _PAIRS:
            if name in names and other not in names:
                raise SchemaError(f'column "{name}" needs column "{other}" beside it')
        for name in ("incr", "schedule", "rollup"):
            if name in names and "atomic_group" in names:
                raise SchemaError(
                    f'columns "atomic_group" and "{name}" cannot be used together: drop one of them'
                )
        if "schedule" in names and subject is not None:
            raise SchemaError(
                'column "schedule" cannot be used with option subject: a subject keeps one schedule, so each row would '
                'replace the one before it; give each row a subject of its own (column "subject")'
            )
        return cls(tuple(names), subject)

    @classmethod
    def _check_required(cls, kinds: Mapping[str, str], subject: str | None) -> None:
        """Raise `SchemaError` for a required column that is missing, or null in every row."""
        for name, rest in cls.required.items():
            if name == "subject" and subject is not None:
                continue
            if name not in kinds:
                if name == "data" and "incr" in kinds:
                    continue
                raise SchemaError(f'the DataFrame has no column "{name}"{rest}')
            if kinds[name] == _VOID and cls.empty_beside.get(name) not in kinds:
                allowed = " or ".join(cls.accepted[name])
                raise SchemaError(
                    f'column "{name}" is null in every row (type void), but must be {allowed}'
                )


def plain_type(kind: str) -> str:
    """Return a Spark `simpleString` type without what makes no difference to the sink.

    Collations and the lengths of varchar and char say how Spark compares texts. A map that has no
    names, or no values, has the type void for them.
    """
    kind = schema.plain_type(kind)
    return kind.replace(_VOID, "string") if kind.startswith("map<") else kind


def _is_kind(kind: str, kinds: tuple[str, ...]) -> bool:
    """Return whether a Spark type is one of `kinds`; void is one of any."""
    plain = _PRECISION.sub("(p,0)", plain_type(kind))
    return plain == _VOID or plain in kinds


class SinkColumns(Columns):
    """The columns of a DataFrame that is written to subjects."""

    accepted: ClassVar[Types] = {
        "data": BYTES,
        "subject": TEXT,
        "headers": MAPS,
        "msg_id": TEXT,
        "ttl": TEXT,
        "expected_last_subject_sequence": NUMBER,
        "incr": WHOLE,
        "schedule": TIME + TEXT,
        "schedule_target": TEXT,
        "schedule_ttl": TEXT,
        "rollup": TEXT,
        "atomic_group": TEXT,
    }
    ignored: ClassVar[Types] = {"stream": TEXT, "sequence": NUMBER, "timestamp": LEFT_OUT_TIME}
    required: ClassVar[Mapping[str, str]] = {
        "data": ", which holds the payload (binary or string)",
        "subject": ": add it, or set option subject",
    }
    empty_beside: ClassVar[Mapping[str, str]] = {"data": "incr"}
    payload: ClassVar[str] = "data"


@dataclass(frozen=True)
class Rows:
    """The parts of n messages.

    `subject`, `data` and `lines` are Arrow binary arrays of length n without nulls; `lines` holds the header lines of
    each row (`Name: value` CR LF ..., empty for a row without any), without the version line. `msg_id` is a binary
    array with nulls for rows without one, or None. `number` counts the rows of the task from 1 (int64).

    `faults` maps indices to the reason why the row can never be stored. Such a row has its subject as it was given; a
    dead letter can hold the rest: invalid headers and ids are left out, and null is empty.

    `left_out` maps the names of `SERVER_HEADERS` that column headers held to the first row of each, in the order of
    the rows. With `ends` they are groups: group i, which ends before row `ends[i]`, is stored whole or not at all.

    `origin` names the message that each row was read from, by stream and sequence, with nulls where a row does not say;
    None if the columns are not there. `unfit` has the values of command columns that cannot be headers, for
    dead letters, by index and by the name of the header.
    """

    number: IntArray
    subject: pa.BinaryArray
    data: pa.BinaryArray
    lines: pa.BinaryArray
    msg_id: pa.BinaryArray | None
    faults: dict[int, str] = field(default_factory=dict)
    left_out: dict[bytes, int] = field(default_factory=dict)
    ends: IntArray | None = None
    origin: pa.BinaryArray | None = None
    unfit: Unfit = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.number)

    def take(self, indices: IntArray) -> Rows:
        """Return the rows with these indices, no index twice, without `ends`."""
        pick = as_arrow(indices)
        subject, data, lines = (part.take(pick) for part in (self.subject, self.data, self.lines))
        msg_id = None if self.msg_id is None else self.msg_id.take(pick)
        kept = {int(old): new for new, old in enumerate(indices)} if self.faults else {}
        faults = {kept[index]: reason for index, reason in self.faults.items() if index in kept}
        unfit = {kept[index]: values for index, values in self.unfit.items() if index in kept}
        origin = None if self.origin is None else self.origin.take(pick)
        number = self.number[indices]
        return Rows(number, subject, data, lines, msg_id, faults, origin=origin, unfit=unfit)


@dataclass(frozen=True)
class RefusedRow:
    """A row that can never be stored: row `index` of `rows`, with its message id if it has one."""

    rows: Rows
    index: int
    message_id: bytes | None
    reason: str
    err_code: int

    @property
    def subject(self) -> str:
        """The subject it was meant for, with U+FFFD for bytes that are not UTF-8."""
        return self.raw_subject.decode("utf-8", "replace")

    @property
    def raw_subject(self) -> bytes:
        """The bytes of that subject."""
        return bytes(self.rows.subject[self.index].as_py())

    @property
    def data(self) -> bytes:
        """The payload."""
        return bytes(self.rows.data[self.index].as_py())

    @property
    def lines(self) -> bytes:
        """The row's own header lines."""
        return bytes(self.rows.lines[self.index].as_py())

    def rest(self, line: bytes) -> bytes:
        """Return the rest of the header line that begins with `line`, b"" if there is none."""
        return (b"\r\n" + self.lines).partition(b"\r\n" + line)[2].partition(b"\r\n")[0]

    def command(self, header: bytes) -> bytes:
        """Return what a command column has asked for with this header, b"" for nothing."""
        given = self.rows.unfit.get(self.index, {})
        return given.get(header) or self.rest(header + b": ")

    @property
    def number(self) -> int:
        """The number of the row in its task, from 1."""
        return int(self.rows.number[self.index])


def rows_of(batch: pa.RecordBatch, columns: Columns, first_number: int) -> Rows:
    """Return the rows of a record batch whose columns `SinkColumns.check` has checked."""
    count = batch.num_rows
    faults: dict[int, str] = {}
    given = columns.of(batch)
    data = as_bytes(given["data"]) if "data" in given else pa.nulls(count, pa.binary())
    if "incr" in given:
        note(
            faults,
            pc.and_(pc.is_null(data), pc.is_null(given["incr"])),
            "columns data and incr are null",
        )
    else:
        note(faults, pc.is_null(data), "column data is null")
    if columns.subject is not None:
        subject = repeated(columns.subject.encode(), count)
    else:
        subject = as_bytes(given["subject"])
        _check_subjects(subject, faults)
    lines = repeated(b"", count)
    left_out: dict[bytes, int] = {}
    if "headers" in given:
        lines, left_out = header_lines(given["headers"], faults)
    lines = with_ttl_and_expected(lines, given, "expected_last_subject_sequence", faults)
    unfit: Unfit = {}
    lines = _with_schedule_and_rollup(lines, given, faults, unfit)
    if "incr" in given:
        lines = _with_increments(lines, given, data, faults, unfit)
    if "atomic_group" in given:
        lines = with_header(
            lines,
            ATOMIC_GROUP.encode(),
            header_values(given["atomic_group"], "atomic_group", faults),
        )
    msg_id = header_values(given["msg_id"], "msg_id", faults) if "msg_id" in given else None
    numbers = np.arange(first_number, first_number + count, dtype=np.int64)
    data = pc.fill_null(data, NOTHING)
    subject = pc.fill_null(subject, NOTHING)
    return Rows(
        numbers,
        subject,
        data,
        lines,
        msg_id,
        faults,
        left_out,
        origin=_origins(given),
        unfit=unfit,
    )


def _origins(given: Mapping[str, pa.Array]) -> pa.BinaryArray | None:
    """Return the message that each row was read from, as columns stream and sequence of the source name it."""
    if "stream" not in given or "sequence" not in given:
        return None
    return pc.binary_join_element_wise(
        as_bytes(given["stream"]), decimal(given["sequence"]), piece(b" ")
    )


def header_lines(
    headers: pa.Array, faults: dict[int, str]
) -> tuple[pa.BinaryArray, dict[bytes, int]]:
    """Return the header lines of each row of a map column without `SERVER_HEADERS`, and `Rows.left_out`.

    Values of a repeated name follow each other in their order. An invalid header (a null, a name with a colon, a line
    end in a value) is left out, and noted in `faults` by row.
    """
    count = len(headers)
    given = np.flatnonzero(as_vector(headers.is_valid()))
    headers = headers.drop_null()  # a null map may have entries in the child array
    offsets = as_vector(headers.offsets).astype(np.int64)
    base = int(offsets[0]) if len(given) else 0
    sizes = np.diff(offsets)
    total = int(sizes.sum())
    names = as_bytes(headers.keys.slice(base, total))
    values = headers.items.slice(base, total)
    row = np.repeat(given, sizes)
    allowed, left_out = _allowed(names, row, faults)
    if not allowed.all():
        names, values, row = (
            names.filter(as_arrow(allowed)),
            values.filter(as_arrow(allowed)),
            row[allowed],
        )
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        note(faults, pc.is_null(values), "column headers holds a null list of values", row)
        counts = as_vector(pc.coalesce(pc.list_value_length(values), ZERO))
        parents = np.repeat(np.arange(len(row)), counts)
        names, row = names.take(as_arrow(parents)), row[parents]
        values = pc.list_flatten(values)
    values = as_bytes(values)
    bad = note(faults, pc.is_null(values), "column headers holds a null value", row)
    bad |= note(
        faults,
        pc.match_substring_regex(values, _CR_OR_LF),
        "a value in column headers holds a line end",
        row,
    )
    if bad.any():
        good = as_arrow(~bad)
        names, values, row = names.filter(good), values.filter(good), row[~bad]
    lines = pc.binary_join_element_wise(names, piece(b": "), values, piece(b"\r\n"), NOTHING)
    return _grouped(lines, np.searchsorted(row, np.arange(count + 1))), left_out


def _allowed(
    names: pa.BinaryArray, row: IntArray, faults: dict[int, str]
) -> tuple[npt.NDArray[np.bool_], dict[bytes, int]]:
    """Mark the headers that may be written, note invalid names, and return `Rows.left_out`, all by distinct names."""
    coded = names.dictionary_encode()
    distinct: list[bytes] = coded.dictionary.to_pylist()
    codes = as_vector(coded.indices)
    bad = np.array([not _HEADER_NAME.fullmatch(name) for name in distinct], np.bool_)
    drop = np.array([bool(SERVER_HEADERS.fullmatch(name)) for name in distinct], np.bool_)
    if bad.any():
        for at in np.flatnonzero(bad[codes]):
            reason = f"column headers holds the name {shown_bytes(distinct[codes[at]])}, which is not possible"
            faults.setdefault(int(row[at]), reason)
    left_out: dict[bytes, int] = {}
    if drop.any():
        # The values of a dictionary are in the order in which they come first.
        first = row[np.unique(codes, return_index=True)[1]]
        left_out = {distinct[code]: int(first[code]) for code in np.flatnonzero(drop)}
    return ~(bad | drop)[codes], left_out


def _grouped(lines: pa.BinaryArray, bounds: IntArray) -> pa.BinaryArray:
    """Join neighbours without a copy: element i of the result is lines[bounds[i]:bounds[i+1]]."""
    _, offsets, content = lines.buffers()
    ends = np.frombuffer(offsets, np.int32, len(lines) + 1) if len(lines) else np.zeros(1, np.int32)
    return binary(len(bounds) - 1, ends[bounds], content or b"")


def header_values(values: pa.Array, column: str, faults: dict[int, str]) -> pa.BinaryArray:
    """Return the values of a column that becomes a header; invalid ones are noted, and null in the result."""
    values = as_bytes(values)
    broken = pc.match_substring_regex(values, _NO_VALUE)
    bad = note(faults, broken, f"column {column} is empty or holds a blank or a control character")
    return without(values, bad)


def with_header(lines: pa.BinaryArray, name: bytes, values: pa.BinaryArray) -> pa.BinaryArray:
    """Add a header line to the rows whose value is not null."""
    added = pc.binary_join_element_wise(piece(name + b": "), values, piece(b"\r\n"), NOTHING)
    return pc.binary_join_element_wise(lines, pc.fill_null(added, NOTHING), NOTHING)


def with_ttl_and_expected(
    lines: pa.BinaryArray, given: Mapping[str, pa.Array], expected: str, faults: dict[int, str]
) -> pa.BinaryArray:
    """Add the header lines of columns `ttl` and `expected`, if there are such columns; invalid values are noted."""
    if "ttl" in given:
        lines = with_header(lines, b"Nats-TTL", _ttls(given["ttl"], "ttl", faults))
    if expected in given:
        bad = note(faults, pc.less(given[expected], ZERO), f"column {expected} is negative")
        sequences = decimal(without(given[expected], bad))
        lines = with_header(lines, b"Nats-Expected-Last-Subject-Sequence", sequences)
    return lines


def _ttls(values: pa.Array, column: str, faults: dict[int, str]) -> pa.BinaryArray:
    """Return the values of a column with TTLs; invalid ones are noted, and null in the result."""
    ttls = header_values(values, column, faults)
    long = lengths(ttls) > _SHORT_TTL
    return without(ttls, _note_each(faults, ttls, long, partial(_ttl_fault, column=column)))


def _ttl_fault(ttl: bytes, column: str) -> str | None:
    """Return why no server can keep a message for this time, or None.

    Servers refuse a text that is no TTL.
    """
    text = ttl.decode("utf-8", "replace")
    if text.isascii() and text.isdigit():  # seconds
        digits = text.lstrip("0")
        too_long = len(digits) > 10 or int(digits or 0) > LONGEST_TTL // 10**9
    else:
        too_long = (go_duration(text) or 0) > LONGEST_TTL
    if not too_long:
        return None
    return (
        f"column {column} is {shown_bytes(ttl)}, more than {_LONGEST}: a server's clock ends in "
        "2262, and it removes the message at once; use never"
    )


def _with_increments(
    lines: pa.BinaryArray,
    given: Mapping[str, pa.Array],
    data: pa.BinaryArray,
    faults: dict[int, str],
    unfit: Unfit,
) -> pa.BinaryArray:
    """Put the header line of column `incr` before the others. Rows that a server would refuse are noted (ADR-49)."""
    values = decimal(given["incr"])
    bad = flags(pc.invert(pc.match_substring_regex(values, _INTEGER)))
    for at in np.flatnonzero(bad):
        faults.setdefault(
            int(at), f"column incr is {shown_bytes(values[at].as_py())}, which is no integer"
        )
    _keep(unfit, _COMMAND_HEADERS["incr"], values, bad)
    others = [
        name
        for name in ("ttl", "expected_last_subject_sequence", "schedule", "rollup")
        if name in given
    ]
    beside = {"data": pc.greater(pc.binary_length(data), ZERO)} | {
        name: pc.is_valid(given[name]) for name in others
    }
    for name, there in beside.items():
        both = pc.and_(pc.is_valid(values), there)
        note(
            faults,
            both,
            f"it has column incr and column {name}: an increment of a counter can have no {name}",
        )
    increments = pc.binary_join_element_wise(
        piece(INCREMENT), without(values, bad), piece(b"\r\n"), NOTHING
    )
    return pc.binary_join_element_wise(pc.fill_null(increments, NOTHING), lines, NOTHING)


def _with_schedule_and_rollup(
    lines: pa.BinaryArray, given: Mapping[str, pa.Array], faults: dict[int, str], unfit: Unfit
) -> pa.BinaryArray:
    """Add the header lines of `COMMAND_COLUMNS` but `incr`. A row without a schedule has no target and no TTL."""
    if "schedule" in given:
        times, target = _schedules(given["schedule"]), given["schedule_target"]
        broken = note(
            faults, pc.match_substring_regex(times, _NO_SCHEDULE), "column schedule is no schedule"
        )
        broken |= _note_far(given["schedule"], times, faults)
        _keep(unfit, _COMMAND_HEADERS["schedule"], times, broken)
        lines = with_header(lines, _COMMAND_HEADERS["schedule"], without(times, broken))
        lacking = pc.and_(pc.is_valid(times), pc.is_null(target))
        note(faults, lacking, "column schedule_target is null, unlike schedule")
        for column, read in (("schedule_target", header_values), ("schedule_ttl", _ttls)):
            if column in given:
                values = without(given[column], flags(pc.is_null(times)))
                good = read(values, column, faults)
                _keep(unfit, _COMMAND_HEADERS[column], as_bytes(values), flags(pc.is_null(good)))
                lines = with_header(lines, _COMMAND_HEADERS[column], good)
    if "rollup" in given:
        values = as_bytes(given["rollup"])
        unknown = pc.invert(pc.match_substring_regex(values, _ROLLUP))
        broken = note(faults, unknown, "column rollup must be sub or all, or null")
        _keep(unfit, _COMMAND_HEADERS["rollup"], values, broken)
        lines = with_header(lines, _COMMAND_HEADERS["rollup"], without(values, broken))
    return lines


def _keep(unfit: Unfit, header: bytes, values: pa.BinaryArray, bad: BoolArray) -> None:
    """Note the bad values of a command column that are not null."""
    for at in np.flatnonzero(bad & flags(values.is_valid())).tolist():
        unfit.setdefault(at, {})[header] = values[at].as_py()


def _schedules(values: pa.Array) -> pa.BinaryArray:
    """Return schedules as the server reads them: `@at` before a time, which a timestamp is in UTC."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us")).cast(pa.string())
        return pc.replace_substring_regex(as_bytes(values), r"^(\d+-\d+-\d+) (.+)", r"@at \1T\2Z")
    return pc.replace_substring_regex(as_bytes(values), r"^(\d{4}-\d\d-\d\dT)", r"@at \1")


def _note_far(values: pa.Array, times: pa.BinaryArray, faults: dict[int, str]) -> BoolArray:
    """Note the schedules with a time or a duration that a server cannot count. Return the bad ones.

    `values` is the column, and `times` holds the same as the server reads it.
    """
    if pa.types.is_timestamp(values.type):
        micros = as_vector(pc.coalesce(values.cast(pa.timestamp("us")).cast(pa.int64()), ZERO))
        far = (micros < _FIRST_MICROSECOND) | (micros > _LAST_MICROSECOND)
        return _note_each(faults, times, far, _no_time)
    timed = flags(pc.or_(pc.starts_with(times, _AT), pc.starts_with(times, _EVERY)))
    doubtful = timed & ~flags(pc.match_substring_regex(times, _NEAR_SCHEDULE))
    return _note_each(faults, times, doubtful, _schedule_fault)


def _schedule_fault(schedule: bytes) -> str | None:
    """Return why a server would publish the message of a schedule too early, or never.

    None if it can count the time. Servers refuse a text that is no schedule.
    """
    text = schedule.decode("utf-8", "replace")
    if schedule.startswith(_AT):
        return _no_time(schedule) if beyond_clock(text[len(_AT) :]) else None
    if (go_duration(text[len(_EVERY) :]) or 0) <= LONGEST_TTL:
        return None
    return f"{_SCHEDULE_IS} {shown_bytes(schedule)}, {_TOO_LONG}"


def _no_time(schedule: bytes) -> str:
    return f"{_SCHEDULE_IS} {shown_bytes(schedule)}, {_NO_TIME}"


def _check_subjects(subject: pa.BinaryArray, faults: dict[int, str]) -> None:
    """Note the rows with an invalid subject. Looks at each distinct subject once."""
    coded = subject.dictionary_encode("encode")
    distinct = coded.dictionary.to_pylist()
    reasons = ["column subject is null" if one is None else subject_fault(one) for one in distinct]
    if any(reasons):
        for index, code in enumerate(coded.indices.to_pylist()):
            reason = reasons[code]
            if reason is not None:
                faults.setdefault(index, reason)


def subject_fault(subject: bytes) -> str | None:
    """Return why a subject is invalid for publishing, or None."""
    if not subject:
        return "its subject is empty"
    if len(subject) > MAX_SUBJECT:
        return f"its subject has {len(subject)} bytes, more than {MAX_SUBJECT}"
    if _BLANK_OR_CONTROL_BYTE.search(subject):
        return f"its subject {shown_bytes(subject)} holds a blank or a control character"
    tokens = subject.split(b".")
    if b"" in tokens:
        return f"its subject {shown_bytes(subject)} has an empty token"
    if b"*" in tokens or b">" in tokens:
        return f"its subject {shown_bytes(subject)} has a wildcard"
    if tokens[0] in (b"$JS", b"$SYS"):
        return f"its subject {shown_bytes(subject)} is one of the server's own"
    return None


def shown_bytes(text: bytes) -> str:
    """Return bytes as an error message quotes them."""
    return repr(text[:80].decode("utf-8", "replace"))


def note(
    faults: dict[int, str], bad: pa.Array, reason: str, row: IntArray | None = None
) -> BoolArray:
    """Note a reason for the bad rows, unless they have one already. Return the flags of `bad`."""
    marked = flags(bad)
    for at in np.flatnonzero(marked):
        faults.setdefault(int(at if row is None else row[at]), reason)
    return marked


def _note_each(
    faults: dict[int, str],
    values: pa.BinaryArray,
    doubtful: BoolArray,
    fault: Callable[[bytes], str | None],
) -> BoolArray:
    """Note what `fault` says of doubtful values, and return the bad ones.

    Looks at each distinct value once.
    """
    bad = np.zeros(len(values), np.bool_)
    reasons: dict[bytes, str | None] = {}
    for at in np.flatnonzero(doubtful).tolist():
        value = values[at].as_py()
        if value not in reasons:
            reasons[value] = fault(value)
        reason = reasons[value]
        if reason is not None:
            faults.setdefault(at, reason)
            bad[at] = True
    return bad
