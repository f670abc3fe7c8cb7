"""`trace_context`: which trace a message belongs to, by W3C Trace Context."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

# A version after 00 may go on after a dash:
# https://www.w3.org/TR/trace-context/#versioning-of-traceparent
# Version ff is forbidden, version 00 has exactly 55 characters, and ids of zeros are not valid.
_TRACEPARENT = r"^(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?\z"


def trace_context(headers: Column) -> Column:
    """Return the header ``traceparent`` as a struct.

    It is ``struct<trace_id: string, span_id: string, sampled: boolean>``.
    The name of the header may have any case. Without one, with several, and with a malformed one
    the result is null.
    """
    values = F.flatten(
        F.map_values(F.map_filter(headers, lambda name, _: F.lower(name) == "traceparent")),
    )
    # With several headers the parent is not known, so the message belongs to no trace.
    value = F.when(F.size(values) == 1, F.get(values, F.lit(0)))
    trace_id, span_id, flags = (F.regexp_extract(value, _TRACEPARENT, group) for group in (1, 2, 3))
    # The flag sampled is the lowest bit, so an odd digit has it.
    sampled = flags.rlike("[13579bdf]")
    found = F.struct(trace_id.alias("trace_id"), span_id.alias("span_id"), sampled.alias("sampled"))
    return F.when(value.rlike(_TRACEPARENT), found)
