"""Columns to rows: which schemas there are, which rows can be published, and what their headers
become.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jetstream.errors import SchemaError
from spark_jetstream.schema import BUCKET_COLUMNS, COLUMNS, OBJECT_COLUMNS
from spark_jetstream.sink.columns import Columns, SinkColumns, plain_type
from spark_jetstream.sink.faults import subject_fault
from spark_jetstream.sink.kv import BucketColumns
from spark_jetstream.sink.objects import ObjectColumns
from spark_jetstream.sink.row_reading import rows_of
from tests.support.sinking import HEADERS, batch, read, read_rows

# -- columns, as DDL --

ROWS, KEYS, OBJECTS = SinkColumns, BucketColumns, ObjectColumns


def fields_of(text: str) -> list[tuple[str, str]]:
    """Pairs of name and type."""
    return [
        (name.strip("`"), kind)
        for name, _, kind in (field.partition(" ") for field in text.split(", "))
    ]


def test_columns_can_be_written_as_the_source_gives_them() -> None:
    for kind, columns in ((ROWS, COLUMNS), (KEYS, BUCKET_COLUMNS), (OBJECTS, OBJECT_COLUMNS)):
        checked = kind.check([(column.name, column.spark) for column in columns])
        assert checked.names == tuple(column.name for column in columns)
        assert checked.payload in checked.names


#: Beside those of `test_like_kafka`.
BAD_COLUMNS: list[tuple[type[Columns], str, list[str]]] = [
    (
        ROWS,
        "data binary, subject string, colour string",
        ['no column "colour"', "make it part of data", "msg_id"],
    ),
    (
        ROWS,
        "data binary, expected_last_subject_sequence string",
        ["of type string", "must be bigint"],
    ),
    (
        ROWS,
        "data void, subject string",
        ['"data" is null in every row (type void), but must be binary'],
    ),
    (
        ROWS,
        "data binary, subject void",
        ['"subject" is null in every row (type void), but must be '],
    ),
    (
        ROWS,
        "data binary, subject string, headers map<string,array<int>>",
        ["map<string,array<int>>"],
    ),
    (KEYS, "key void, value binary", ['"key" is null in every row (type void)']),
    (KEYS, "key string, value void", ['"value" is null in every row (type void)']),
    (OBJECTS, "name void, content binary", ['"name" is null in every row (type void)']),
    (OBJECTS, "name string, content void", ['"content" is null in every row (type void)']),
    (ROWS, "data binary, sequence string", ['"sequence" is of type string', "must be bigint"]),
    (ROWS, "data binary, subject string, data binary", ['column "data" twice']),
    (
        ROWS,
        "data binary, subject string, schedule string",
        ['column "schedule" needs column "schedule_target"'],
    ),
    (
        ROWS,
        "data binary, subject string, schedule_target string",
        ['"schedule_target" needs column "schedule"'],
    ),
    *(
        (
            ROWS,
            f"data binary, subject string, {name} string",
            [f'"{name}" needs column "schedule"'],
        )
        for name in ("schedule_ttl", "schedule_time_zone", "schedule_source", "schedule_rollup")
    ),
    (
        ROWS,
        "data binary, subject string, schedule bigint",
        ["of type bigint", "must be timestamp or string"],
    ),
    (
        ROWS,
        "data binary, subject string, schedule timestamp_ntz, schedule_target string",
        ["of type timestamp_ntz", "must be timestamp or string (in DDL timestamp_ltz, where "],
    ),
    *(
        (
            kind,
            f"{columns}, {name} string",
            [f'column "{name}" is for rows that go to subjects: a bucket allows no'],
        )
        for kind, columns in (
            (KEYS, "key string, value binary"),
            (OBJECTS, "name string, content binary"),
        )
        for name in ("schedule", "schedule_target", "schedule_ttl", "schedule_source", "rollup")
    ),
    (KEYS, "value binary", ['no column "key"']),
    (
        KEYS,
        "key string, value binary, subject string",
        ['no column "subject"', "columns: key, value, operation"],
    ),
    (KEYS, "key string, value bigint", ['"value" is of type bigint', "binary or string"]),
    (OBJECTS, "content binary", ['no column "name"', "option objectBucket"]),
    (OBJECTS, "name string, content array<int>", ['column "content" is of type array<int>']),
    (
        OBJECTS,
        "name string, content binary, length bigint",
        ["drop it, or make it part of content"],
    ),
]


@pytest.mark.parametrize(("kind", "text", "parts"), BAD_COLUMNS)
def test_other_columns_are_refused_by_name(
    kind: type[Columns], text: str, parts: list[str]
) -> None:
    with pytest.raises(SchemaError) as caught:
        kind.check(fields_of(text))
    for part in parts:
        assert part in str(caught.value)


#: Types that Spark may give a column, and what the sink takes them for.
SAME_TYPES = {
    "string collate UTF8_LCASE": "string",
    "string collate UTF8_BINARY_RTRIM": "string",
    "varchar(10)": "string",
    "char(3)": "string",
    "void": "void",
    "map<string collate UNICODE,string collate UNICODE_CI_AI>": "map<string,string>",
    "map<string,array<string collate UNICODE>>": "map<string,array<string>>",
    "map<varchar(10),array<char(3)>>": "map<string,array<string>>",
    "map<void,void>": "map<string,string>",
    "map<string,void>": "map<string,string>",
    "map<string,array<void>>": "map<string,array<string>>",
    "decimal(10,0)": "decimal(10,0)",
}


@pytest.mark.parametrize("given_type", SAME_TYPES)
def test_collations_lengths_and_void_make_no_other_type(given_type: str) -> None:
    plain = SAME_TYPES[given_type]
    assert plain_type(given_type) == plain
    column = "headers" if plain.startswith("map") else "incr"
    fields = [("data", "binary"), ("subject", "string"), (column, given_type)]
    assert ROWS.check(fields).names == ("data", "subject", column)


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "int", "bigint", "void"])
def test_a_number_may_have_any_size(kind: str) -> None:
    ROWS.check(fields_of(f"data binary, subject string, expected_last_subject_sequence {kind}"))
    ROWS.check(fields_of(f"data binary, subject string, sequence {kind}"))
    KEYS.check(fields_of(f"key string, value binary, expected_revision {kind}, revision {kind}"))
    OBJECTS.check(fields_of(f"name string, content binary, size {kind}"))


def test_a_schedule_and_option_subject_do_not_go_together() -> None:
    names = "data binary, schedule timestamp, schedule_target string, subject string"
    assert ROWS.check(fields_of(names)).names[1] == "schedule"
    with pytest.raises(
        SchemaError,
        match="a subject keeps one schedule, so each row would replace the one before it",
    ):
        ROWS.check(fields_of(names), "orders.delayed")


# -- rows --


def test_the_option_subject_wins_over_the_column() -> None:
    for found in (
        read_rows("orders.new", data=[b"x", b"y"]),
        read(batch(data=[b"x", b"y"], subject=[None, "a b"]), "orders.new"),
    ):
        assert found.subject.to_pylist() == [b"orders.new"] * 2
        assert not found.faults


LARGE = {
    "data": pa.large_string(),
    "subject": pa.large_string(),
    "headers": pa.map_(pa.large_string(), pa.large_list(pa.large_string())),
    "msg_id": pa.large_string(),
    "ttl": pa.large_string(),
}
TYPES: dict[str, dict[str, pa.DataType]] = {
    "usual": {},
    "large": LARGE,
    "large, binary data": {**LARGE, "data": pa.large_binary()},
    "string data": {"data": pa.string()},
}


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_rows_are_the_same_from_all_types_and_slices(types: dict[str, pa.DataType]) -> None:
    binary = types.get("data") not in (pa.string(), pa.large_string())
    data = ["null", "x", "", None, "größe"]
    table = batch(
        types,
        data=[value.encode() if binary and value is not None else value for value in data],
        subject=["a b", "a", "b", "c", "*"],
        headers=[[("x y\n", ["1"])], None, [("A", ["1", "2"]), ("B", [])], [], [("C", [""])]],
        msg_id=["", None, "id-2", "id-3", "id 4"],
        ttl=["5s", "5s", None, "never", None],
        expected_last_subject_sequence=[-1, 0, None, 2**63 - 1, -1],
    )
    [joined] = (
        pa.Table.from_batches([table.slice(0, 2), table.slice(2)]).combine_chunks().to_batches()
    )
    for part in (table.slice(1), joined.slice(1)):
        found = read(part, first=11)
        assert found.number.tolist() == [11, 12, 13, 14]
        assert found.number.dtype == np.int64
        assert {found.data.type, found.subject.type, found.lines.type} == {pa.binary()}
        assert found.data.to_pylist() == [b"x", b"", b"", "größe".encode()]
        assert found.subject.to_pylist() == [b"a", b"b", b"c", b"*"]
        assert found.lines.to_pylist() == [
            b"Nats-TTL: 5s\r\nNats-Expected-Last-Subject-Sequence: 0\r\n",
            b"A: 1\r\nA: 2\r\n",
            b"Nats-TTL: never\r\nNats-Expected-Last-Subject-Sequence: 9223372036854775807\r\n",
            b"C: \r\n",
        ]
        assert found.msg_id is not None
        assert found.msg_id.to_pylist() == [None, b"id-2", b"id-3", None]
        assert found.faults == {2: "column data is null", 3: "its subject '*' has a wildcard"}
        assert read(part.slice(1, 1)).lines.to_pylist() == [b"A: 1\r\nA: 2\r\n"]


#: Optional columns of each kind of target, and those that they need beside them.
BESIDE = {
    "schedule": ("schedule_target",),
    "schedule_target": ("schedule",),
    **dict.fromkeys(
        ("schedule_ttl", "schedule_time_zone", "schedule_source", "schedule_rollup"),
        ("schedule", "schedule_target"),
    ),
}
OPTIONAL = [name for name in SinkColumns.accepted if name not in SinkColumns.required]


@pytest.mark.parametrize("column", OPTIONAL)
def test_a_column_without_a_value_is_as_none(column: str) -> None:
    """Spark's type of `lit(None)` is void, and Arrow's null."""
    empty = dict.fromkeys((column, *BESIDE.get(column, ())), pa.nulls(2))
    found = read(batch(data=[b"x", b"y"], subject=["a", "b"], **empty))
    assert found.lines.to_pylist() == [b"", b""]
    assert found.faults == {}
    assert found.msg_id is None or found.msg_id.null_count == 2


def test_an_increment_without_a_value_is_no_payload() -> None:
    with pytest.raises(SchemaError, match='the DataFrame has no column "data"'):
        SinkColumns.check([("subject", "string"), ("incr", "void")])
    with pytest.raises(SchemaError, match='column "data" is null in every row'):
        SinkColumns.check([("data", "void"), ("subject", "string"), ("incr", "void")])


def test_an_increment_has_a_payload_without_a_value() -> None:
    columns = SinkColumns.check([("data", "void"), ("subject", "string"), ("incr", "int")])
    given = batch({"incr": pa.int32()}, data=pa.nulls(2), subject=["a", "b"], incr=[1, -2])
    found = rows_of(given, columns, 1)
    assert found.lines.to_pylist() == [b"Nats-Incr: 1\r\n", b"Nats-Incr: -2\r\n"]
    assert (found.data.to_pylist(), found.faults) == ([b"", b""], {})


def test_the_option_subject_wins_over_a_column_without_a_value() -> None:
    SinkColumns.check([("data", "binary"), ("subject", "void")], "orders.new")
    found = read(batch(data=[b"x"], subject=pa.nulls(1)), "orders.new")
    assert (found.subject.to_pylist(), found.faults) == ([b"orders.new"], {})


#: Maps in which Spark knows no type for names or values, and the fault of the only row.
EMPTY_MAPS: dict[str, tuple[pa.Array, str | None]] = {
    "map()": (pa.MapArray.from_arrays([0, 0], pa.nulls(0), pa.nulls(0)), None),
    "map('A', null)": (
        pa.MapArray.from_arrays([0, 1], pa.array(["A"]), pa.nulls(1)),
        "column headers holds a null value",
    ),
    "map('A', array())": (
        pa.MapArray.from_arrays([0, 1], pa.array(["A"]), pa.array([[]], pa.list_(pa.null()))),
        None,
    ),
    "map('A', array(null))": (
        pa.MapArray.from_arrays([0, 1], pa.array(["A"]), pa.array([[None]], pa.list_(pa.null()))),
        "column headers holds a null value",
    ),
}


@pytest.mark.parametrize(("headers", "fault"), EMPTY_MAPS.values(), ids=EMPTY_MAPS)
def test_a_map_without_a_value_has_no_headers(headers: pa.Array, fault: str | None) -> None:
    found = read(batch(data=[b"x"], subject=["a"], headers=headers))
    assert found.lines.to_pylist() == [b""]
    assert found.faults == ({} if fault is None else {0: fault})


# -- subjects --

GOOD_SUBJECTS = [
    "a", "a.b.c", "a*b", "*a", "a>", ">>", "a.b*.c", "größe.日本.🙂", "$KV.bucket.key", "$JSX.a", "a.$JS", "$OBJ.b.C.x",
    "_INBOX.x", "-_/=#!\"'", "\u00a0", "\u0085", "x" * 1024, "ü" * 512,
]  # fmt: skip
BAD_SUBJECTS = {
    "": "is empty",
    "a\r\nb": "blank or a control character",
    "a\x00b": "blank or a control character",
    "a\x7f": "blank or a control character",
    " a": "blank or a control character",
    "a ": "blank or a control character",
    "a..b": "empty token",
    "a.": "empty token",
    "a.*": "wildcard",
    ">": "wildcard",
    "$JS": "server's own",
    "$SYS.REQ.SERVER.PING": "server's own",
    "ü" * 513: "1026 bytes, more than 1024",
}


def test_each_bad_subject_is_told_and_leaves_the_others_alone() -> None:
    subjects: list[str | None] = []
    for bad in [*BAD_SUBJECTS, None]:
        subjects += [bad, GOOD_SUBJECTS[len(subjects) % len(GOOD_SUBJECTS)]]
    subjects += GOOD_SUBJECTS
    found = read_rows(data=[b"x"] * len(subjects), subject=subjects)
    expected = {
        index: reason
        for index, reason in enumerate(map(BAD_SUBJECTS.get, map(str, subjects)))
        if reason
    }
    expected[subjects.index(None)] = "column subject is null"
    assert found.faults.keys() == expected.keys()
    for index, reason in expected.items():
        assert reason in found.faults[index]
        assert not set(found.faults[index]) & set("\r\n\x00\x7f")
    # Where it should have gone is still there, for those who look after it.
    assert found.subject.to_pylist() == [(subject or "").encode() for subject in subjects]


def test_a_bad_subject_is_shown_in_part() -> None:
    fault = subject_fault(b"a b" + b"x" * 900)
    assert fault is not None
    assert "a bxxx" in fault
    assert len(fault) < 200


@pytest.mark.parametrize("subject", [b"a.\xff\xfe", b"\xc3"])
def test_text_that_is_not_utf8_is_published_as_it_is(subject: bytes) -> None:
    # A server takes it; a Spark string can hold it (a cast from binary).
    text = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, len(subject)], np.int32)), pa.py_buffer(subject)],
    )
    headers = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), text, text)
    found = read(batch(data=[b"x"], subject=text, headers=headers, msg_id=text, ttl=text))
    assert found.subject.to_pylist() == [subject]
    assert found.lines.to_pylist() == [b"%b: %b\r\nNats-TTL: %b\r\n" % (subject, subject, subject)]
    assert not found.faults


# -- headers --

Map = list[tuple[str, list[str | None] | None]] | None

#: (the map of a row, its lines, its fault), with lists of values. `test_encode` has more good ones.
HEADER_CASES: dict[str, tuple[Map, bytes, str | None]] = {
    "repeated": ([("A", ["1", "2", "1"])], b"A: 1\r\nA: 2\r\nA: 1\r\n", None),
    "a key twice": ([("A", ["1"]), ("B", ["2"]), ("A", ["3"])], b"A: 1\r\nB: 2\r\nA: 3\r\n", None),
    "names that differ in case": ([("case", ["1"]), ("CASE", ["2"])], b"case: 1\r\nCASE: 2\r\n", None),
    "no values": ([("A", []), ("B", ["1"])], b"B: 1\r\n", None),
    "a blank in a name": ([("A b", ["1"])], b"A b: 1\r\n", None),
    "null list": ([("A", ["1"]), ("B", None)], b"A: 1\r\n", "null list of values"),
    "null value": ([("A", ["1", None, "2"])], b"A: 1\r\nA: 2\r\n", "null value"),
    "CR LF in a value": ([("A", ["1\r\nNats-Rollup: all"]), ("B", ["2"])], b"B: 2\r\n", "line end"),
    "LF in a value": ([("A", ["1\n"])], b"", "line end"),
    "CR in a value": ([("A", ["\r1"])], b"", "line end"),
    "colon in a name": ([("a:b", ["1"]), ("B", ["2"])], b"B: 2\r\n", "the name 'a:b'"),
    "empty name": ([("", ["1"])], b"", "the name ''"),
    "CR LF in a name": ([("A\r\nB", ["1"])], b"", r"the name 'A\r\nB'"),
    "NUL in a name": ([("A\x00", ["1"])], b"", r"the name 'A\x00'"),
    "tab in a name": ([("A\tB", ["1"])], b"", r"the name 'A\tB'"),
    "blank before a name": ([(" A", ["1"])], b"", "the name ' A'"),
    "blank after a name": ([("A ", ["1"])], b"", "the name 'A '"),
    "first of two faults": ([("", ["1"]), ("A", [None]), ("B", ["\n"])], b"", "the name ''"),
    "the server's own": ([("Nats-TTL", ["5s"]), ("A", ["1"]), ("Status", ["404"])], b"A: 1\r\n", None),
    "the server's own, broken": ([("Nats-TTL", ["\n", None]), ("Nats-Rollup", None)], b"", None),
}  # fmt: skip


def as_strings(case: Map) -> list[tuple[str, str | None]] | None:
    """The same map with strings for values, as long as there is one value for each name."""
    return (
        None if case is None else [(name, value) for name, values in case for value in values or []]
    )


@pytest.mark.parametrize("around", [0, 3])
@pytest.mark.parametrize(("case", "lines", "fault"), HEADER_CASES.values(), ids=HEADER_CASES)
def test_headers_become_lines(case: Map, lines: bytes, fault: str | None, around: int) -> None:
    other: Map = [("X", ["y"])]
    listed: list[Map] = [other] * around + [case] + [other] * around
    strings = [as_strings(each) for each in listed]
    arrays = [pa.array(listed, HEADERS), pa.array(strings, pa.map_(pa.string(), pa.string()))]
    if any(values is None for _, values in case or []):
        arrays.pop()
    for headers in arrays:
        found = read(batch(data=[b"x"] * len(listed), headers=headers), "a")
        assert found.lines.to_pylist() == [b"X: y\r\n"] * around + [lines] + [b"X: y\r\n"] * around
        assert found.faults.keys() == ({around} if fault else set())
        assert (fault or "") in found.faults.get(around, "")


@pytest.mark.parametrize("values", [pa.list_(pa.string()), pa.string()])
def test_the_entries_of_a_null_map_are_not_published(values: pa.DataType) -> None:
    some = ["1", "2", "3"] if values == pa.string() else [["1"], ["2"], ["3"]]
    items = pa.array(some, values)
    headers = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.array(["A", "", "C"]),
        items,
        mask=pa.array([False, True, False]),
    )
    assert len(headers.keys) == 3
    found = read(batch(data=[b"x"] * 3, headers=headers), "a")
    assert found.lines.to_pylist() == [b"A: 1\r\n", b"", b"C: 3\r\n"]
    assert not found.faults


#: What a server acts on, refuses, removes, or adds by itself.
SERVER_HEADERS = [
    "Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Expected-Last-Msg-Id", "Nats-Batch-Id", "Nats-Batch-Sequence",
    "Nats-Batch-Commit", "Nats-TTL", "Nats-Rollup", "Nats-Stream-Source", "Nats-Schedule", "Nats-Schedule-Target",
    "Nats-Schedule-Source", "Nats-Schedule-TTL", "Nats-Schedule-Rollup", "Nats-Schedule-Time-Zone",
    "Nats-Schedule-Next", "Nats-Scheduler", "Nats-Incr", "Nats-Counter-Sources", "Nats-Stream", "Nats-Subject",
    "Nats-Sequence", "Nats-Time-Stamp", "Nats-Last-Sequence", "Nats-Num-Pending", "Nats-UpTo-Sequence", "Nats-Pin-Id",
    "Nats-Msg-Size", "Nats-Marker-Reason", "Nats-Required-Api-Level", "Nats-Trace-Dest", "Nats-Trace-Only", "Status",
    "Description", "Nats-Request-Info", "Scheduled-Msg-Id",
]  # fmt: skip
NEAR_MISSES = [
    "nats-msg-id", "NATS-TTL", "Nats-Foo", "Nats-Msg-Idx", "X-Nats-Msg-Id", "Nats-TTL-X", "Nats-Streams", "status",
    "Statuses", "Descriptions", "Nats", "Nats-", "Nats-Expected", "KV-Operation", "Nats-Incremental", "Nats-Batch",
]  # fmt: skip


@pytest.mark.parametrize(("names", "kept"), [(SERVER_HEADERS, False), (NEAR_MISSES, True)])
def test_only_headers_that_are_the_servers_business_are_left_out(
    names: list[str], kept: bool
) -> None:
    listed = [[("A", ["1"]), (name, ["2", "3"]), ("B", ["4"])] for name in names]
    found = read_rows("a", data=[b""] * len(names), headers=listed)
    between = [f"{name}: 2\r\n{name}: 3\r\n".encode() if kept else b"" for name in names]
    assert found.lines.to_pylist() == [b"A: 1\r\n" + lines + b"B: 4\r\n" for lines in between]
    assert not found.faults


def test_the_first_row_of_each_header_that_is_left_out() -> None:
    maps: list[Map] = [
        None,
        [("B", ["1"])],
        [("Nats-TTL", ["1s"]), ("Status", [])],
        [("Nats-Incr", ["1"])],
        [("Nats-TTL", ["2s"])],
    ]
    found = read(batch(data=[b""] * 5, headers=maps).slice(1), "a")
    assert list(found.left_out.items()) == [(b"Nats-TTL", 1), (b"Status", 1), (b"Nats-Incr", 2)]
    assert read_rows("a", data=[b""]).left_out == {}


NAMES = st.sampled_from(
    ["A", "B", "Nats-TTL", "Nats-Foo", "", "a:b", " ", "x\n", "Status", "größe"]
)
VALUES = st.sampled_from(["", "1", "a: b", None, "x\r\ny", "\n", "日本"])
MAPS = st.none() | st.lists(st.tuples(NAMES, st.none() | st.lists(VALUES, max_size=3)), max_size=4)


# -- the other columns --

GOOD_WORDS = ["5s", "never", "a:b", "größe"]
BAD_WORDS = ["", " ", "a b", "a\r\nb", "a\t", "\x00", "\x7f"]
WORDS = {word: word in GOOD_WORDS for word in [*GOOD_WORDS, *BAD_WORDS]}


#: Columns whose values may be any text without blanks, and the headers that they become.
WORD_COLUMNS = {
    "msg_id": b"",
    "ttl": b"Nats-TTL",
    "schedule_target": b"Nats-Schedule-Target",
    "schedule_ttl": b"Nats-Schedule-TTL",
    "schedule_time_zone": b"Nats-Schedule-Time-Zone",
    "schedule_source": b"Nats-Schedule-Source",
}


@pytest.mark.parametrize("column", WORD_COLUMNS)
def test_a_value_that_is_no_header_is_a_fault_and_left_out(column: str) -> None:
    count, timed = len(WORDS) + 1, {}
    if column.startswith("schedule"):
        timed = {"schedule": ["@hourly"] * count, "schedule_target": ["due"] * count}
    found = read_rows("a", data=[b"x"] * count, **{**timed, column: [*WORDS, None]})
    reason = f"column {column} is empty or holds a blank or a control character"
    bad = {index: reason for index, good in enumerate(WORDS.values()) if not good}
    if column == "schedule_target":
        bad[count - 1] = "column schedule_target is null, unlike schedule"
    assert found.faults == bad
    kept = [word.encode() if good else None for word, good in WORDS.items()] + [None]
    if column == "msg_id":
        assert found.msg_id is not None
        assert found.msg_id.to_pylist() == kept
    else:
        before = b"Nats-Schedule: @hourly\r\n" if timed else b""
        if timed and column != "schedule_target":
            before += b"Nats-Schedule-Target: due\r\n"
        name = WORD_COLUMNS[column]
        lines = [b"" if word is None else b"%b: %b\r\n" % (name, word) for word in kept]
        assert found.lines.to_pylist() == [before + line for line in lines]


#: What column schedule holds, and what the server gets; None for a fault.
SCHEDULES: dict[str, str | None] = {
    "2030-01-31T08:00:00Z": "@at 2030-01-31T08:00:00Z",
    "2030-01-31T08:00:00.5+02:00": "@at 2030-01-31T08:00:00.5+02:00",
    "@at 2030-01-31T08:00:00Z": "@at 2030-01-31T08:00:00Z",
    "@every 5m": "@every 5m",
    "0 30 8 * * mon-fri": "0 30 8 * * mon-fri",
    "": None,
    "  ": None,
    "@every 5m\r\nNats-Rollup: all": None,
}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_schedules_as_the_server_reads_them(kind: pa.DataType) -> None:
    count = len(SCHEDULES) + 1
    given = {
        "schedule": [*SCHEDULES, None],
        "schedule_target": ["due"] * count,
        "schedule_ttl": ["5m"] * count,
    }
    found = read(
        batch({"schedule": kind}, data=[b"x"] * count, rollup=["sub"] * count, **given), "a"
    )
    assert found.faults == {
        at: "column schedule is no schedule"
        for at, text in enumerate(SCHEDULES.values())
        if text is None
    }
    rest = "Nats-Schedule-Target: due\r\nNats-Schedule-TTL: 5m\r\nNats-Rollup: sub\r\n"
    good = {
        at: f"Nats-Schedule: {text}\r\n{rest}"
        for at, text in enumerate(SCHEDULES.values())
        if text is not None
    }
    lines = found.lines.to_pylist()
    assert {at: lines[at].decode() for at in good} == good
    # A row without a schedule is stored for now.
    assert lines[-1] == b"Nats-Rollup: sub\r\n"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", None])
def test_a_timestamp_is_a_schedule_in_utc(zone: str | None) -> None:
    micros = [1_896_163_200_000_000, 1_896_163_200_000_005, None]
    times = pa.array(micros, pa.timestamp("us", tz=zone))
    found = read(batch(data=[b"x"] * 3, schedule=times, schedule_target=pa.array(["due"] * 3)), "a")
    assert [line.partition(b"\r\n")[0] for line in found.lines.to_pylist()] == [
        b"Nats-Schedule: @at 2030-02-01T08:00:00.000000Z",
        b"Nats-Schedule: @at 2030-02-01T08:00:00.000005Z",
        b"",
    ]


NO_TIME = "a time that a server's clock does not have: it must be from 1677-09-22 to 2262-04-11"
TOO_LONG = "more than 200 years (1752000h), for which no server can wait"
#: Schedules, and the ends of the faults of those that a server would publish too early, or never.
FAR_SCHEDULES: dict[str, str | None] = {
    "2262-04-11T23:47:16Z": None,
    "@at 1678-01-01T00:00:00Z": None,
    "@at soon": None,
    "2262-04-11T23:47:17Z": f"'@at 2262-04-11T23:47:17Z', {NO_TIME}",
    "@at 2263-01-01T00:00:00Z": f"'@at 2263-01-01T00:00:00Z', {NO_TIME}",
    "@at 9999-12-31T23:59:59+01:00": f"'@at 9999-12-31T23:59:59+01:00', {NO_TIME}",
    "1677-01-01T00:00:00Z": f"'@at 1677-01-01T00:00:00Z', {NO_TIME}",
    "0001-01-01T00:00:00Z": f"'@at 0001-01-01T00:00:00Z', {NO_TIME}",
    "@every 1752000h": None,
    "@every 99999999s": None,
    "@every a long time": None,
    "@every 1752001h": f"'@every 1752001h', {TOO_LONG}",
    "@every 999999h999999h": f"'@every 999999h999999h', {TOO_LONG}",
    # Servers pass over the blanks before the value of a header.
    " @at 2030-01-01T00:00:00Z": None,
    "  @at 2263-01-01T00:00:00Z": f"'  @at 2263-01-01T00:00:00Z', {NO_TIME}",
    " @every 1752001h": f"' @every 1752001h', {TOO_LONG}",
}


def test_a_schedule_that_no_server_can_keep_is_a_fault() -> None:
    times = [*FAR_SCHEDULES] * 2
    ends = [*FAR_SCHEDULES.values()] * 2
    count = len(times)
    found = read_rows("a", data=[b"x"] * count, schedule=times, schedule_target=["due"] * count)
    faults = {at: f"column schedule is {end}" for at, end in enumerate(ends) if end is not None}
    assert found.faults == faults
    kept = [line.startswith(b"Nats-Schedule: ") for line in found.lines.to_pylist()]
    assert kept == [end is None for end in ends]


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (2**63 // 1000, None),
        (-(2**63) // 1000 + 1, None),
        (0, None),
        (2**63 // 1000 + 1, "'@at 2262-04-11T23:47:16.854776Z'"),
        (-(2**63) // 1000, "'@at 1677-09-21T00:12:43.145224Z'"),
        (-62_135_596_800_000_000, "'@at 0001-01-01T00:00:00.000000Z'"),
        (253_402_300_800_000_000, "'@at 10000-01-01T00:00:00.000000Z'"),
        (2**63 - 1, "'<value out of range: 9223372036854775807>'"),
    ],
)
def test_a_timestamp_that_no_server_can_keep_is_a_fault(micros: int, shown: str | None) -> None:
    times = pa.array([0, micros, None], pa.timestamp("us", tz="UTC"))
    found = read(batch(data=[b"x"] * 3, schedule=times, schedule_target=pa.array(["due"] * 3)), "a")
    assert found.faults == ({} if shown is None else {1: f"column schedule is {shown}, {NO_TIME}"})


#: TTLs, and whether a server would take them for one that is over.
LONG_TTLS = {
    "1752000h": False,
    "1752000h0m0.0000000001s": True,
    "6307200000": False,
    "6307200001": True,
    "00000000000000000090": False,
    "99999999999999": True,
    "9" * 5000: True,
    "2562047h": True,
    "876001h876000h": True,
    "105120000m": False,
    "soon after": False,
}


@pytest.mark.parametrize("column", ["ttl", "schedule_ttl"])
def test_a_ttl_beyond_the_clock_of_servers_is_a_fault(column: str) -> None:
    words = [word.replace(" ", "-") for word in LONG_TTLS]
    count = len(words)
    timed = {"schedule": ["@hourly"] * count, "schedule_target": ["due"] * count}
    beside = timed if column == "schedule_ttl" else {}
    found = read_rows("a", data=[b"x"] * count, **beside, **{column: words})
    assert found.faults.keys() == {at for at, long in enumerate(LONG_TTLS.values()) if long}
    assert found.faults[7] == (
        f"column {column} is '2562047h', more than 200 years (1752000h): a server's clock ends in "
        "2262, and it removes the message at once; use never"
    )
    kept = [b"TTL: " in lines for lines in found.lines.to_pylist()]
    assert kept == [not long for long in LONG_TTLS.values()]


def test_the_roll_up_of_a_schedule_is_sub() -> None:
    given = ["sub", "all", None, "SUB", ""]
    found = read_rows(
        "a",
        data=[b"x"] * 5,
        schedule=["@hourly"] * 5,
        schedule_target=["due"] * 5,
        schedule_rollup=given,
    )
    reason = "column schedule_rollup must be sub, or null"
    assert found.faults == dict.fromkeys((1, 3, 4), reason)
    kept = [b"Nats-Schedule-Rollup: sub\r\n" in line for line in found.lines.to_pylist()]
    assert kept == [True, False, False, False, False]
    # The dead letter of a row shows the value as it was given.
    assert found.commands.schedule_rollup is not None
    assert found.commands.schedule_rollup.to_pylist()[1] == b"all"


def test_the_header_lines_of_a_schedule_keep_their_order() -> None:
    """Message ids of option messageIds `content` depend on it."""
    found = read_rows(
        "a",
        data=[b"x"],
        schedule=["@hourly"],
        schedule_target=["due"],
        schedule_rollup=["sub"],
        schedule_source=["last"],
        schedule_time_zone=["Europe/Berlin"],
        schedule_ttl=["5m"],
    )
    assert found.lines[0].as_py().decode().split("\r\n") == [
        "Nats-Schedule: @hourly",
        "Nats-Schedule-Target: due",
        "Nats-Schedule-TTL: 5m",
        "Nats-Schedule-Time-Zone: Europe/Berlin",
        "Nats-Schedule-Source: last",
        "Nats-Schedule-Rollup: sub",
        "",
    ]


def test_without_a_schedule_a_target_and_a_ttl_do_not_count() -> None:
    odd = ["", "a b", "a\r\nb", None, "due"]
    names = ("target", "ttl", "time_zone", "source", "rollup")
    others = {f"schedule_{name}": odd for name in names}
    found = read_rows("a", data=[b"x"] * 5, schedule=[None] * 5, **others)
    assert found.faults == {}
    assert found.lines.to_pylist() == [b""] * 5


def test_a_rollup_is_sub_or_all() -> None:
    found = read_rows("a", data=[b"x"] * 5, rollup=["sub", "all", None, "ALL", ""])
    assert found.faults == dict.fromkeys((3, 4), "column rollup must be sub or all, or null")
    assert found.lines.to_pylist() == [
        b"Nats-Rollup: sub\r\n",
        b"Nats-Rollup: all\r\n",
        b"",
        b"",
        b"",
    ]


# -- take --


def test_rows_can_be_taken_apart() -> None:
    columns = {
        "data": [b"0", None, b"2", None],
        "subject": ["a", "b", "c", "d"],
        "msg_id": ["i0", "i1", None, "i3"],
    }
    found = read(batch(**columns, headers=[[("A", ["0"])], None, [("A", ["2"])], None]), first=5)
    some = found.take(np.array([3, 2, 0]))
    assert some.number.tolist() == [8, 7, 5]
    assert some.subject.to_pylist() == [b"d", b"c", b"a"]
    assert some.data.to_pylist() == [b"", b"2", b"0"]
    assert some.lines.to_pylist() == [b"", b"A: 2\r\n", b"A: 0\r\n"]
    assert some.msg_id is not None
    assert some.msg_id.to_pylist() == [b"i3", None, b"i0"]
    assert some.faults == {0: "column data is null"}
    nothing = read_rows(data=[b"x"], subject=["a"]).take(np.array([], np.int64))
    assert (len(nothing), len(nothing.data), nothing.msg_id) == (0, 0, None)


# -- any rows --

ANY_SUBJECT = st.sampled_from([*list(GOOD_SUBJECTS)[:6], *list(BAD_SUBJECTS)[:12], None])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9), ANY_SUBJECT, st.sampled_from([*WORDS, None]), MAPS
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 8), max_size=4),
)
@example([(None, None, "", [("", None)])], [0])
@example(
    [(None, "a", "1", None), (None, "a", "2", None), (None, "a", "", None)], [1]
)  # wrong with pyarrow up to 23
def test_a_row_is_judged_alone(content: list[tuple[Any, ...]], cuts: list[int]) -> None:
    names = ("data", "subject", "msg_id", "headers")
    table = batch(**{name: [row[at] for row in content] for at, name in enumerate(names)})
    whole = read(table)
    places = [0, *sorted(cut for cut in cuts if cut <= len(content)), len(content)]
    parts = [read(table.slice(a, b - a), first=a + 1) for a, b in pairwise(places)]
    for field in ("subject", "data", "lines", "msg_id"):
        assert getattr(whole, field).to_pylist() == [
            x for part in parts for x in getattr(part, field).to_pylist()
        ]
    assert whole.number.tolist() == [number for part in parts for number in part.number.tolist()]
    together = {
        int(part.number[at]) - 1: reason for part in parts for at, reason in part.faults.items()
    }
    assert whole.faults == together
