"""Record batches of subjects and payloads -> rows. Pure: Arrow in, Arrow out.

Header lines of a row are in this order: the increment, column headers, and those of the other
columns. Message ids depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import (
    NOTHING,
    ZERO,
    as_bytes,
    decimal,
    flags,
    piece,
    repeated,
    without,
)
from spark_jetstream.sink.columns import Columns
from spark_jetstream.sink.commands import COMMAND_HEADERS, GROUP_HEADER, NO_COMMANDS, Commands
from spark_jetstream.sink.faults import Faults, note, note_subjects, shown_bytes
from spark_jetstream.sink.header_lines import (
    expected_sequences,
    header,
    header_lines,
    header_values,
    ttl_values,
    with_expected,
    with_header,
    with_ttl,
)
from spark_jetstream.sink.lifetimes import schedule_faults, schedules
from spark_jetstream.sink.rows import Rows

_INTEGER = r"^[+-]?[0-9]+$"
_ROLLUP = r"^(sub|all)\z"
_SCHEDULE_ROLLUP = r"^sub\z"
#: Columns that an increment of a counter cannot have (ADR-49), beside a payload.
_NOT_WITH_INCR = ("ttl", "expected_last_subject_sequence", "schedule", "rollup")

Given = Mapping[str, pa.Array]
"""The columns of a record batch by name."""


def _schedule_rollups(values: pa.Array, column: str, faults: Faults) -> pa.BinaryArray:
    """Return the roll-ups of schedules as bytes. Note those that are none, which become null."""
    values = as_bytes(values)
    unknown = pc.invert(pc.match_substring_regex(values, _SCHEDULE_ROLLUP))
    return without(values, note(faults, unknown, f"column {column} must be sub, or null"))


#: Columns beside `schedule`, and what reads the values of each. Message ids depend on the order of
#: their header lines, so new ones come last.
_SCHEDULE_COLUMNS = {
    "schedule_target": header_values,
    "schedule_ttl": ttl_values,
    "schedule_time_zone": header_values,
    "schedule_source": header_values,
    "schedule_rollup": _schedule_rollups,
}


def rows_of(batch: pa.RecordBatch, columns: Columns, first_number: int) -> Rows:
    """Return the rows of a record batch whose columns `SinkColumns.check` has checked."""
    count = batch.num_rows
    faults: Faults = {}
    given = columns.of(batch)
    # Of several faults of a row the first one counts: the order of these steps is that of its
    # reasons.
    data = _payloads(given, count, faults)
    if columns.subject is not None:
        subject = repeated(columns.subject.encode(), count)
    else:
        subject = as_bytes(given["subject"])
        note_subjects(faults, subject)
    lines = repeated(b"", count)
    left_out: dict[bytes, int] = {}
    if "headers" in given:
        lines, left_out = header_lines(given["headers"], faults)
    lines = with_ttl(lines, given, faults)
    lines, commands = _with_commands(lines, given, data, faults)
    if "msg_id" in given:
        msg_id = header_values(given["msg_id"], "msg_id", faults)
    else:
        msg_id = None
    return Rows(
        np.arange(first_number, first_number + count, dtype=np.int64),
        pc.fill_null(subject, NOTHING),
        pc.fill_null(data, NOTHING),
        lines,
        msg_id,
        faults,
        left_out,
        origin=_origins(given),
        commands=commands,
    )


def _payloads(given: Given, count: int, faults: Faults) -> pa.BinaryArray:
    """Return the payloads, null where a row has none, and note the rows that need one."""
    data = as_bytes(given["data"]) if "data" in given else pa.nulls(count, pa.binary())
    if "incr" in given:
        empty = pc.and_(pc.is_null(data), pc.is_null(given["incr"]))
        # An increment of a counter has no payload (ADR-49).
        note(faults, empty, "columns data and incr are null")
    else:
        note(faults, pc.is_null(data), "column data is null")
    return data


def _origins(given: Given) -> pa.BinaryArray | None:
    """Return the message that each row was read from, by columns stream and sequence."""
    if "stream" not in given or "sequence" not in given:
        return None
    return pc.binary_join_element_wise(
        as_bytes(given["stream"]), decimal(given["sequence"]), piece(b" ")
    )


def _with_commands(
    lines: pa.BinaryArray, given: Given, data: pa.BinaryArray, faults: Faults
) -> tuple[pa.BinaryArray, Commands]:
    """Add the header lines of all command columns. Return the commands as well."""
    # Message ids depend on the order of the header lines, so the order of these steps must stay.
    expected = expected_sequences(given, "expected_last_subject_sequence", faults)
    lines = with_expected(lines, expected)
    asked: dict[str, pa.BinaryArray] = {}
    if "schedule" in given:
        lines = _with_schedules(lines, given, faults, asked)
    if "rollup" in given:
        lines = _with_rollups(lines, given, faults, asked)
    if "incr" in given:
        lines = _with_increments(lines, given, data, faults, asked)
    group = None
    if "atomic_group" in given:
        group = header_values(given["atomic_group"], "atomic_group", faults)
        lines = with_header(lines, GROUP_HEADER, group)
    # Most rows ask for nothing, and `Rows.take` then has no columns to take.
    if expected is None and group is None and not asked:
        return lines, NO_COMMANDS
    return lines, Commands(group, expected, **asked)


def _with_schedules(
    lines: pa.BinaryArray, given: Given, faults: Faults, asked: dict[str, pa.BinaryArray]
) -> pa.BinaryArray:
    """Add the header lines of the columns `schedule` and `schedule_...`.

    In a row without a schedule the others mean nothing.
    """
    times = schedules(given["schedule"])
    target = given["schedule_target"]
    bad = schedule_faults(given["schedule"], times, faults)
    asked["schedule"] = times
    lines = with_header(lines, COMMAND_HEADERS["schedule"], without(times, bad))
    lacking = pc.and_(pc.is_valid(times), pc.is_null(target))
    note(faults, lacking, "column schedule_target is null, unlike schedule")
    for column, read in _SCHEDULE_COLUMNS.items():
        if column in given:
            # A target or a TTL without a schedule means nothing
            # (test_without_a_schedule_a_target_and_a_ttl_do_not_count).
            values = without(given[column], flags(pc.is_null(times)))
            asked[column] = as_bytes(values)
            lines = with_header(lines, COMMAND_HEADERS[column], read(values, column, faults))
    return lines


def _with_rollups(
    lines: pa.BinaryArray, given: Given, faults: Faults, asked: dict[str, pa.BinaryArray]
) -> pa.BinaryArray:
    """Add the header lines of column `rollup`."""
    values = as_bytes(given["rollup"])
    unknown = pc.invert(pc.match_substring_regex(values, _ROLLUP))
    bad = note(faults, unknown, "column rollup must be sub or all, or null")
    # The dead letter of a row shows the value as it was given, also an invalid one.
    asked["rollup"] = values
    return with_header(lines, COMMAND_HEADERS["rollup"], without(values, bad))


def _with_increments(
    lines: pa.BinaryArray,
    given: Given,
    data: pa.BinaryArray,
    faults: Faults,
    asked: dict[str, pa.BinaryArray],
) -> pa.BinaryArray:
    """Put the header line of column `incr` before the others.

    Rows that a server would refuse are noted (ADR-49).
    """
    values = decimal(given["incr"])
    bad = flags(pc.invert(pc.match_substring_regex(values, _INTEGER)))
    for at in np.flatnonzero(bad).tolist():
        shown = shown_bytes(values[at].as_py())
        faults.setdefault(at, f"column incr is {shown}, which is no integer")
    asked["incr"] = values
    beside = {"data": pc.greater(pc.binary_length(data), ZERO)}
    for name in _NOT_WITH_INCR:
        if name in given:
            beside[name] = pc.is_valid(given[name])
    for name, there in beside.items():
        both = pc.and_(pc.is_valid(values), there)
        why = f"it has column incr and column {name}: an increment of a counter can have no {name}"
        note(faults, both, why)
    # The increment is the first line, so that `Commands.in_lines` finds it
    # (test_the_header_is_the_first_line).
    increments = header(COMMAND_HEADERS["incr"], without(values, bad))
    return pc.binary_join_element_wise(increments, lines, NOTHING)
