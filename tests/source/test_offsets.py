"""The offset is a file format: old checkpoints must be read for ever, and equal offsets have equal
text.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import StructType

from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.errors import JetStreamError
from spark_jetstream.source.offsets import Offset, OffsetError, StreamPosition
from spark_jetstream.source.reader import JetStreamStreamReader
from spark_jetstream.source.shared.held import Held

CREATED = "2026-02-03T04:05:06.123456789Z"

GOLDEN = (
    '{"version": 1, "streams": {'
    '"ORDERS": {"next": 1001, "created": "2026-02-03T04:05:06.123456789Z",'
    ' "last_timestamp": 1770091506000000001}, '
    '"RETURNS": {"next": 1, "created": "2026-02-03T04:05:07Z", "last_timestamp": 0}}}'
)

GOLDEN_OFFSET = Offset(
    {
        "RETURNS": StreamPosition(1, "2026-02-03T04:05:07Z"),
        "ORDERS": StreamPosition(1001, CREATED, 1770091506000000001),
    }
)

# Whose end the same offset is, and how the micro-batch that ends there is cut into tasks.
CUT = Offset(GOLDEN_OFFSET.streams, {"ORDERS": (11, 4, 501, 1, 1001)})
GOLDEN_CUT = (
    GOLDEN.replace('"version": 1', '"version": 2').removesuffix("}")
    + ', "cuts": {"ORDERS": [11, 4, 501, 1, 1001]}}'
)

# The end of a micro-batch that has reserved messages of a shared consumer.
HELD = Offset(
    {"JOBS": StreamPosition(4202, CREATED, 1770091506000000001)},
    held={"JOBS": Held(CREATED, "$JS.ACK.JOBS.pool", (4001, 4002, 4006, 4201))},
)
GOLDEN_HELD = (
    '{"version": 3, "streams": {"JOBS": {"next": 4202,'
    ' "created": "2026-02-03T04:05:06.123456789Z", "last_timestamp": 1770091506000000001}},'
    ' "held": {"JOBS": {"consumer": "2026-02-03T04:05:06.123456789Z", "ack": "$JS.ACK.JOBS.pool",'
    ' "first": 4001, "count": 4, "gaps": "eNpjZDnMCAABmwDK"}}}'
)

COLUMNS_SCHEMA = StructType().add("sequence", "long")

positions = st.builds(
    StreamPosition,
    next=st.integers(1, 2**64 - 1),
    created=st.text(min_size=1),
    last_timestamp=st.integers(0, 2**63 - 1),
)


def _cut(streams: dict[str, StreamPosition]) -> st.SearchStrategy[Offset]:
    def cuts(edges: set[int], end: int) -> tuple[int, ...]:
        first, *others = sorted({*edges, end})
        return first, *(each for edge in others for each in (1, edge))

    def some(position: StreamPosition) -> st.SearchStrategy[tuple[int, ...]]:
        below = st.sets(st.integers(1, position.next - 1), min_size=1, max_size=5)
        return below.map(lambda edges: cuts(edges, position.next))

    given_cuts = {name: some(position) for name, position in streams.items() if position.next > 1}
    return st.fixed_dictionaries({}, optional=given_cuts).map(
        lambda chosen: Offset(streams, chosen)
    )


offsets = st.dictionaries(st.text(min_size=1), positions, min_size=1, max_size=5).flatmap(_cut)


def one(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"next": 5, "created": CREATED, "last_timestamp": 7}
    fields.update(changes)
    return {"version": 1, "streams": {"ORDERS": {k: v for k, v in fields.items() if v is not ...}}}


def test_the_golden_text() -> None:
    assert json.dumps(GOLDEN_OFFSET.to_json()) == GOLDEN
    assert Offset.from_json(json.loads(GOLDEN)) == GOLDEN_OFFSET
    assert json.dumps(CUT.to_json()) == GOLDEN_CUT
    assert Offset.from_json(json.loads(GOLDEN_CUT)).cuts == CUT.cuts
    assert json.dumps(HELD.to_json()) == GOLDEN_HELD
    assert Offset.from_json(json.loads(GOLDEN_HELD)) == HELD


def test_the_text_of_another_zlib_stays() -> None:
    """Spark takes another text for the same position for new data."""
    stored = base64.b64encode(zlib.compress(bytes([1, 4, 195, 1]), 0)).decode()
    content = json.loads(GOLDEN_HELD)
    assert content["held"]["JOBS"]["gaps"] != stored
    content["held"]["JOBS"]["gaps"] = stored
    offset = Offset.from_json(content)
    assert offset == HELD
    assert offset.to_json() == pickle.loads(pickle.dumps(offset)).to_json() == content


@settings(deadline=None)
@given(offsets, st.randoms(use_true_random=False))
def test_round_trip_in_whatever_order_the_keys_are(offset: Offset, random: Any) -> None:
    text = json.dumps(offset.to_json())
    names = list(offset.streams)
    random.shuffle(names)
    shuffled = Offset(
        {name: offset.streams[name] for name in names},
        {name: offset.cuts[name] for name in names if name in offset.cuts},
    )
    copies = (
        pickle.loads(pickle.dumps(offset)),
        copy.deepcopy(offset),
        shuffled,
        Offset.from_json(json.loads(text)),
    )
    for other in copies:
        assert other == offset
        assert other.cuts == offset.cuts
        assert json.dumps(other.to_json()) == text
    content = offset.to_json()
    content["streams"] = {name: dict(reversed(content["streams"][name].items())) for name in names}
    assert json.dumps(Offset.from_json(dict(reversed(content.items()))).to_json()) == text


def test_a_query_may_have_found_no_stream() -> None:
    nothing = {"version": 1, "streams": {}}
    assert Offset.from_json(nothing).to_json() == Offset({}).to_json() == nothing


def test_cuts_do_not_count_for_equality() -> None:
    """Where a query is does not depend on the tasks that brought it there."""
    assert CUT == GOLDEN_OFFSET


def cut(cuts: Any, name: str = "ORDERS") -> dict[str, Any]:
    return {**one(next=100), "version": 2, "cuts": {name: cuts}}


def held(**changes: Any) -> dict[str, Any]:
    """`GOLDEN_HELD` with other fields of what is held, or of the position."""
    content: dict[str, Any] = json.loads(GOLDEN_HELD)
    for name, value in changes.items():
        place = content["streams" if name == "next" else "held"]["JOBS"]
        place[name] = value
    return content


def packed(*varints: int) -> str:
    """Distances as the text of an offset has them."""
    return base64.b64encode(zlib.compress(bytes(varints), 9)).decode()


#: Malformed offsets, each with a part of the error.
BAD: list[tuple[Any, str]] = [
    ([], "must be a JSON object, not []"),
    ("x" * 100, "must be a JSON object, not 'xxx"),
    ({"streams": {}}, "has no field 'version'"),
    ({"version": 4, "streams": {}, "more": 1}, "newer release of spark-jetstream (format 4"),
    ({"version": True, "streams": {}}, "'version' of an offset must be an integer"),
    ({"version": 0, "streams": {}}, "at least 1, not 0"),
    ({"version": 1}, "lacks the field 'streams'"),
    ({"version": 1, "streams": {}, "x": 1}, "unknown field 'x'"),
    ({"version": 1, "streams": []}, "'streams' of an offset must be a JSON object"),
    ({"version": 1, "streams": {"": one()["streams"]["ORDERS"]}}, "with text, not with ''"),
    ({"version": 1, "streams": {"A": 5}}, "the offset of stream A must be a JSON object"),
    (one(next=...), "stream ORDERS lacks the field 'next'"),
    (one(extra=1), "stream ORDERS has the unknown field 'extra'"),
    *(
        (one(next=bad), "stream ORDERS: 'next' of an offset must be an integer from 1 to")
        for bad in (True, 0, 2**64, 5.0)
    ),
    *((one(created=bad), "'created' of an offset must be a time") for bad in (5, "")),
    *(
        (one(last_timestamp=bad), "'last_timestamp' of an offset must be an integer from 0")
        for bad in (False, -1, 2**63)
    ),
    ({**cut([1, 1, 100]), "version": 1}, "the offset has the unknown field 'cuts'"),
    ({**one(), "version": 2}, "the offset lacks the field 'cuts'"),
    ({**cut([1, 1, 100]), "x": 1}, "the offset has the unknown field 'x'"),
    ({**cut([1, 1, 100]), "cuts": {}}, "'cuts' of an offset must be a JSON object of at"),
    (cut([1, 1, 100], "RETURNS"), "names 'RETURNS', which is none of its streams"),
    *(
        (cut(cuts), "stream ORDERS: 'cuts' of an offset must be rising sequences up to 100")
        for cuts in (
            *(5, [], [100], [1, 100], [1, 1, 99], [1, 1, 60, 1, 50, 1, 100]),
            *([0, 1, 100], [1, 0, 100], [1, 1.0, 100], [True, 1, 100], [90, 11, 100]),
        )
    ),
    ({**one(next=2**62), "version": 2, "cuts": {"ORDERS": [1, 10**6 + 1, 2**62]}}, "'cuts' of"),
    ({**one(), "version": 3}, "the offset lacks the field 'held'"),
    ({**one(), "version": 3, "held": {}}, "'held' of an offset must be a JSON object of all"),
    ({**one(), "version": 3, "held": {"ORDERS": 5}}, "'held' of stream ORDERS must be a JSON"),
    (held(next=4203), "'held' of stream JOBS must end before 'next', which is 4203"),
    (held(more=1), "'held' of stream JOBS has the unknown field 'more'"),
    (held(consumer=5), "'held' of stream JOBS: 'consumer' must be text"),
    (held(consumer=""), "'consumer' must be a time as text"),
    *(
        (held(ack=bad), "'ack' must be the beginning of a reply subject")
        for bad in (
            "",
            "jobs.a",
            "$JS.ACK.JOBS",
            "$JS.ACK.JOBS.>",
            "$JS.ACK.d.JOBS.pool",
            "$JS.ACK.a.",
        )
    ),
    (held(first=True), "'first' must be an integer"),
    (held(first=0), "its sequences must rise, from 1 to 2**63-1"),
    (held(first=2**63), "its sequences must rise, from 1 to 2**63-1"),
    (held(count=0), "'first' must be 0 and 'gaps' empty where 'count' is 0"),
    (held(count=10**6 + 1), "'count' must be an integer from 0 to 1000000"),
    *((held(count=bad), f"'gaps' must have {bad - 1} distances") for bad in (2, 3, 5)),
    *(
        (held(gaps=bad), "'gaps' must be compressed distances as base64")
        for bad in ("x", "eHg=", packed(1, 4, 195, 1)[:-4], packed(*[1] * 100_000))
    ),
    (held(gaps=packed(1, 4, 195)), "'gaps' ends within a distance"),
    (held(gaps=packed(1, 0, 195, 1)), "its sequences must rise"),
]


@pytest.mark.parametrize(("content", "said"), BAD, ids=str)
def test_refuses_in_one_sentence(content: Any, said: str) -> None:
    with pytest.raises(OffsetError) as caught:
        Offset.from_json(content)
    message = str(caught.value)
    assert said in message
    assert message.endswith(
        "; restore the checkpoint from a backup, or start the query with a new one"
    )
    assert "\n" not in message
    assert len(message) < 300
    assert isinstance(caught.value, JetStreamError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


# The text, which Spark's process parses


def hand_over(text: str) -> None:
    """Hand the text of an offset over as Spark's process for a streaming source does (`main` of its
    module).
    """
    reader = JetStreamStreamReader({"stream": "ORDERS"}, COLUMNS_SCHEMA)
    infile, content = io.BytesIO(), text.encode(errors="replace")
    for _ in ("start", "end"):
        infile.write(struct.pack(">i", len(content)) + content)
    infile.seek(0)
    try:
        runner.partitions_func(
            reader, JetStreamDataSource({}), COLUMNS_SCHEMA, 1, infile, io.BytesIO()
        )
    finally:
        reader.stop()


def refused(text: str) -> str:
    with pytest.raises(OffsetError) as caught:
        hand_over(text)
    message = str(caught.value)
    assert message.endswith(
        "; restore the checkpoint from a backup, or start the query with a new one"
    )
    assert "\n" not in message
    assert len(message) < 300
    # Spark prints a chain of errors as several tracebacks.
    assert caught.value.__suppress_context__
    return message


def test_the_text_of_an_offset_is_whole() -> None:
    hand_over(GOLDEN)
    hand_over(f" {GOLDEN}\n")
    for end in range(len(GOLDEN)):
        refused(GOLDEN[:end])
    for more in (*"x}]0", GOLDEN):
        refused(GOLDEN + more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON: Expecting value: line 1 column 1"),
        ("-", "is not JSON: Expecting value: line 1 column 1"),
        ("hello", "is not JSON: Expecting value"),
        ("\ufeff{}", "is not JSON: Unexpected UTF-8 BOM"),
        ("[" * 100_000, "is not JSON, or its parts are too large"),
        (GOLDEN.replace("1001", "9" * 5000), "is not JSON, or its parts are too large"),
        ("null", "an offset must be a JSON object"),
        (
            GOLDEN.replace("}}}", '}}, "streams": []}'),
            "'streams' of an offset must be a JSON object",
        ),
    ],
    ids=["empty", "dash", "word", "mark", "deep", "huge", "null", "twice"],
)
def test_a_malformed_offset_is_an_error_with_the_reason(text: str, said: str) -> None:
    assert said in refused(text)


def test_json_that_is_hardly_too_deep() -> None:
    """Its parser takes it and `repr` does not, at a depth that depends on the stack."""
    for depth in range(1, 1100):
        refused('{"version": 1, "streams": %s}' % ("[" * depth + "]" * depth))


def test_errors_of_the_reader_itself_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> Offset:
        return Offset(json.loads("{"))

    monkeypatch.setattr(Offset, "from_json", fail)
    with pytest.raises(json.JSONDecodeError):
        hand_over(GOLDEN)
