"""The columns of a DataFrame that is written: which there may be, and of which types. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import pyarrow as pa

from spark_jetstream import schema
from spark_jetstream.errors import SchemaError
from spark_jetstream.schema import closest_column, zone_hint
from spark_jetstream.sink.commands import COMMAND_COLUMNS

Types = Mapping[str, tuple[str, ...]]
"""The Spark types that each column may have."""
TEXT, BYTES, TIME = ("string",), ("binary", "string"), ("timestamp",)
NUMBER = ("bigint", "int", "smallint", "tinyint")
# Of a column that is left out: rows that were stored under TIMESTAMP_NTZ have the second type.
LEFT_OUT_TIME = ("timestamp", "timestamp_ntz")
WHOLE = ("string", "tinyint", "smallint", "int", "bigint", "decimal(p,0)")
MAPS = ("map<string,array<string>>", "map<string,string>")
C = TypeVar("C", bound="Columns")

_VOID = "void"
_PRECISION = re.compile(r"\(\d+,0\)")
#: Arrow's types of the first type of each column.
_ARROW = {
    **dict.fromkeys(("string", "binary"), pa.binary()),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    MAPS[0]: pa.map_(pa.string(), pa.list_(pa.string())),
}
#: Columns that mean nothing without another one.
_NEEDED = (
    ("schedule", "schedule_target"),
    ("schedule_target", "schedule"),
    ("schedule_ttl", "schedule"),
    ("schedule_time_zone", "schedule"),
    ("schedule_source", "schedule"),
    ("schedule_rollup", "schedule"),
)
_NEVER_IN_A_GROUP = ("incr", "schedule", "rollup")


@dataclass(frozen=True)
class Columns:
    """The names of the checked columns of a DataFrame.

    `subject` is the option, which replaces the column.
    """

    names: tuple[str, ...]
    subject: str | None = None
    empty: frozenset[str] = frozenset()
    """The columns that are null in every row: their type is void."""

    #: The possible types of each column that is written.
    accepted: ClassVar[Types]
    #: Those of the columns that the source adds. The sink ignores them, so that rows can be written
    #: back as read.
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
            # Later steps expect nulls of a type that the column can have.
            if pa.types.is_null(column.type) and name in self.accepted:
                column = pa.nulls(len(column), _ARROW[self.accepted[name][0]])
            columns[name] = column
        return columns

    @classmethod
    def check(cls: type[C], fields: Sequence[tuple[str, str]], subject: str | None = None) -> C:
        """Return the columns of `fields`, which are pairs of name and Spark `simpleString` type.

        Raises `SchemaError` for columns that cannot be written.
        """
        names: list[str] = []
        for name, kind in fields:
            cls._check_column(name, kind)
            if name in names:
                raise SchemaError(f'the DataFrame has column "{name}" twice')
            names.append(name)
        cls._check_required(dict(fields), subject)
        _check_together(names, subject)
        return cls(tuple(names), subject, frozenset(name for name, kind in fields if kind == _VOID))

    def with_values(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of `names` that are columns, without columns that are null in every row."""
        return frozenset(self.names).intersection(names) - self.empty

    @classmethod
    def _check_column(cls, name: str, kind: str) -> None:
        """Raise `SchemaError` for a column that this sink does not know, or of another type."""
        known = {**cls.accepted, **cls.ignored}
        if name not in known:
            if name in COMMAND_COLUMNS.values():
                raise SchemaError(
                    f'column "{name}" is for rows that go to subjects: a bucket allows no '
                    "schedules, replaces values and objects without roll-ups, and adds no values "
                    "up; drop it"
                )
            nearest = closest_column(name, known)
            hint = f'; did you mean "{nearest}"' if nearest else ""
            raise SchemaError(
                f'the sink knows no column "{name}"{hint} (columns: {", ".join(cls.accepted)}): '
                f"drop it, or make it part of {cls.payload}"
            )
        if not _is_kind(kind, known[name]):
            possible = " or ".join(known[name])
            raise SchemaError(
                f'column "{name}" is of type {kind}, but must be {possible}{zone_hint(kind)}'
            )

    @classmethod
    def _check_required(cls, kinds: Mapping[str, str], subject: str | None) -> None:
        """Raise `SchemaError` for a required column that is missing, or null in every row."""
        with_values = {name for name, kind in kinds.items() if kind != _VOID}
        for name, rest in cls.required.items():
            is_replaced = name == "subject" and subject is not None
            if name in with_values or is_replaced:
                continue
            if name in kinds:
                cls._check_empty(name, with_values)
                continue
            # An increment of a counter has no payload.
            is_increment = name == "data" and "incr" in with_values
            if not is_increment:
                raise SchemaError(f'the DataFrame has no column "{name}"{rest}')

    @classmethod
    def _check_empty(cls, name: str, with_values: Collection[str]) -> None:
        """Raise `SchemaError` for a required column without values, unless another makes up for it."""
        if cls.empty_beside.get(name) not in with_values:
            allowed = " or ".join(cls.accepted[name])
            raise SchemaError(
                f'column "{name}" is null in every row (type void), but must be {allowed}'
            )


def _check_together(names: Sequence[str], subject: str | None) -> None:
    """Raise `SchemaError` for columns that need each other, or exclude each other."""
    for name, other in _NEEDED:
        if name in names and other not in names:
            raise SchemaError(f'column "{name}" needs column "{other}" beside it')
    if "atomic_group" in names:
        for name in _NEVER_IN_A_GROUP:
            if name in names:
                raise SchemaError(
                    f'columns "atomic_group" and "{name}" cannot be used together: drop one of them'
                )
    if "schedule" in names and subject is not None:
        raise SchemaError(
            'column "schedule" cannot be used with option subject: a subject keeps one schedule, '
            "so each row would replace the one before it; give each row its own subject "
            '(column "subject")'
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
        "schedule_time_zone": TEXT,
        "schedule_source": TEXT,
        "schedule_rollup": TEXT,
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
