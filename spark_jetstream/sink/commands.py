"""Commands of rows to the server, made of columns, and the headers that no row may have. Pure.

A server reads commands from headers. So the header lines of a row hold them as well (`sink.rows`),
and nobody looks for them there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.buckets.kv import EXPECTED
from spark_jetstream.protocol.conventions import ATOMIC_GROUP, SCHEDULED_ID

#: Headers that a server acts on, refuses, removes, or adds by itself (nats-server:
#: server/stream.go, server/client.go), and those that the sink adds; the sink leaves them out.
SERVER_HEADERS = re.compile(
    rb"Nats-(Msg-Id|Expected-.*|Batch-.*|TTL|Rollup|Stream-Source|Schedule.*|Incr|Counter-Sources"
    rb"|Stream|Subject|Sequence|Time-Stamp|Last-Sequence|Num-Pending|UpTo-Sequence|Pin-Id|Msg-Size"
    rb"|Marker-Reason|Required-Api-Level|Request-Info|Trace-.*)|Status|Description|"
    + f"{SCHEDULED_ID}|{ATOMIC_GROUP}".encode()
)
#: Those of them without which a row would be another message: stored at another time, in place of
#: others, or added up.
COMMANDS = re.compile(rb"Nats-(Schedule.*|Rollup|Incr)")
#: Those of them that columns ask for (ADR-49, ADR-51).
COMMAND_COLUMNS = {
    b"Nats-Incr": "incr",
    b"Nats-Schedule": "schedule",
    b"Nats-Schedule-Target": "schedule_target",
    b"Nats-Schedule-TTL": "schedule_ttl",
    b"Nats-Schedule-Time-Zone": "schedule_time_zone",
    b"Nats-Schedule-Source": "schedule_source",
    b"Nats-Schedule-Rollup": "schedule_rollup",
    b"Nats-Rollup": "rollup",
}
COMMAND_HEADERS = {column: header for header, column in COMMAND_COLUMNS.items()}
INCREMENT = b"Nats-Incr: "
"""The beginning of the header lines of a message that changes a counter, and of no other."""
GROUP_HEADER = ATOMIC_GROUP.encode()
EXPECTED_HEADER = EXPECTED.encode()

# At most as many digits as fit into 64 bits.
_EXPECTED_LINE = rf"(?m)^{EXPECTED}: (?P<sequence>\d{{1,18}})\r\n"
# The sink puts the increment before all other lines (`sink.row_reading`).
_INCREMENT_LINE = rf"\A{INCREMENT.decode()}(?P<number>[^\r]*)"


@dataclass(frozen=True)
class Commands:
    """The command columns of n rows: Arrow arrays of length n, or None without the column.

    `group` (binary) is the group that a row is stored with, and `expected` (integers) the last
    sequence that its subject must have. Values of these two that cannot be headers are null. The
    others are binary columns and named as in the DataFrame. They have every value as the server
    would read it, also one that cannot be a header: the row then has a fault, and its dead letter
    shows the value.
    """

    group: pa.BinaryArray | None = None
    expected: pa.Array | None = None
    incr: pa.BinaryArray | None = None
    schedule: pa.BinaryArray | None = None
    schedule_target: pa.BinaryArray | None = None
    schedule_ttl: pa.BinaryArray | None = None
    schedule_time_zone: pa.BinaryArray | None = None
    schedule_source: pa.BinaryArray | None = None
    schedule_rollup: pa.BinaryArray | None = None
    rollup: pa.BinaryArray | None = None

    @classmethod
    def in_lines(cls, lines: pa.BinaryArray) -> Commands:
        """Return the commands in header lines that the sink has not made itself.

        Only `expected` and `incr`: no other command matters to a row that is published as it is.
        """
        found = pc.struct_field(pc.extract_regex(lines, _EXPECTED_LINE), "sequence")
        expected = found.cast(pa.string()).cast(pa.int64())
        incr = pc.struct_field(pc.extract_regex(lines, _INCREMENT_LINE), "number")
        return cls(expected=expected, incr=incr)

    @classmethod
    def joined(cls, parts: Sequence[Commands]) -> Commands:
        """Return the commands of several rows, one after the other.

        All parts have the same columns.
        """
        columns = {}
        for name, values in vars(parts[0]).items():
            if values is not None:
                columns[name] = pa.concat_arrays([vars(part)[name] for part in parts])
        return cls(**columns)

    def take(self, pick: pa.Array) -> Commands:
        """Return the commands of the rows with these indices."""
        # Most rows ask for nothing, and this is called for each portion.
        if self is NO_COMMANDS:
            return self
        columns = {}
        for name, values in vars(self).items():
            if values is not None:
                columns[name] = values.take(pick)
        return Commands(**columns)


NO_COMMANDS = Commands()
"""The commands of rows whose columns ask for nothing."""
