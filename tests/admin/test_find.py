"""Streams and consumers by criteria: each alone, and turned into its opposite."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jetstream.admin import (
    ConsumerInfo,
    ConsumerQuery,
    JetStreamAdmin,
    StreamInfo,
    StreamQuery,
)
from spark_jetstream.errors import OptionError, StreamNotFound
from tests.admin.conftest import Fill

TIMES = {"created": "2026-01-01T00:00:00Z", "ts": "2026-01-03T00:00:00Z"}
STATE = {
    "messages": 1,
    "bytes": 1,
    "first_seq": 1,
    "last_seq": 1,
    "last_ts": "2026-01-02T00:00:00Z",
}
STREAM = StreamInfo.from_server(
    {"config": {"name": "S", "subjects": ["s.*"]}, "state": STATE, **TIMES}
)
WAITING = {"num_pending": 3, "num_ack_pending": 2, "num_waiting": 1}
DELIVERED = {
    "delivered": {"consumer_seq": 1, "stream_seq": 1, "last_active": "2026-01-02T00:00:00Z"}
}
CONSUMER = ConsumerInfo.from_server(
    {
        "stream_name": "S",
        "name": "c",
        "config": {"durable_name": "c"},
        **TIMES,
        **WAITING,
        **DELIVERED,
    }
)

#: Criteria that the one above meets, and those that it only just does not.
OF_BOTH: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"created": "2d"}, {"created": "172800000000001ns"}),
    ({"idle": "1d"}, {"idle": "86400000000001ns"}),
    ({"replicas": 1, "offline": False}, {"server_name": "*"}),
    (
        {"expression": " info.ts > info.created and not config.metadata"},
        {"expression": "config.metadata['a'] == 'b'"},
    ),
    ({}, {"expression": "info.cluster.name in ['a', 'b']"}),
)
OF_STREAMS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"empty": False}, {"empty": True}),
    ({"consumers": 0}, {"sourced": True}),
    ({"subject": "*.a"}, {"subject": "s.a.b"}),
    (
        {"expression": "state.messages == 1 and 's.*' in config.subjects"},
        {"expression": "state.messages > 1"},
    ),
    (
        {"expression": "config.max_msgs == -1 and config.storage in ('file', 'memory')"},
        {"expression": "-1 > 0"},
    ),
    ({"expression": "config.subjects == ['s.*']"}, {"expression": "config.subjects[1] == 's.*'"}),
    ({"mirrored": False, "sourced": False, "empty": None}, {"mirrored": True}),
)
OF_CONSUMERS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"pull": True, "push": False}, {"pull": False}),
    ({"bound": True}, {"push": True}),
    ({"durable": True}, {"durable": False}),
    ({"pending": 4}, {"pending": 3}),
    ({"ack_pending": 3}, {"ack_pending": 2}),
    ({"waiting": 2}, {"waiting": 1}),
)
CASES = [
    *((StreamQuery, STREAM, *pair) for pair in (*OF_BOTH, *OF_STREAMS)),
    *((ConsumerQuery, CONSUMER, *pair) for pair in (*OF_BOTH, *OF_CONSUMERS)),
]


@pytest.mark.parametrize(("query", "info", "met", "missed"), CASES)
def test_each_criterion(query: Any, info: Any, met: dict[str, Any], missed: dict[str, Any]) -> None:
    assert query.parse(met, "find").matches(info)
    assert not query.parse(missed, "find").matches(info)
    assert not query.parse({**met, **missed}, "find").matches(info)
    assert query.parse({**missed, "invert": True}, "find").matches(info)
    assert query.parse({**met, "invert": True}, "find").matches(info) == (not met)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("state.message > 1", "'StreamState' object has no attribute 'message'"),
        ("name == 'S'", "name 'name' is not defined"),
        ("config.name > 1", "'>' not supported"),
        ("config.name ==", "invalid syntax"),
        ("open('f')", r"only comparisons are possible, not open\('f'\)"),
        ("config.__class__", "only comparisons are possible, not config.__class__"),
        ("9 ** 9 ** 9", "only comparisons are possible, not 9"),
        ("\0", "null byte"),
        ("not " * 100_000 + "info", "(nested too deeply|recursion|nested)"),
    ],
)
def test_an_expression_that_is_none(expression: str, problem: str) -> None:
    with pytest.raises(OptionError, match=f"^expression .*: .*{problem}"):
        StreamQuery.parse({"expression": expression}, "find").matches(STREAM)


def test_find(admin: JetStreamAdmin, name: str, fill: Fill) -> None:
    admin.streams.create(f"{name}A", subjects=f"{name}a.*")
    admin.streams.create(f"{name}B", mirror=f"{name}A")
    fill(f"{name}a", 3)

    def names(**criteria: Any) -> list[str]:
        return [
            info.config.name
            for info in admin.streams.find(**criteria)
            if info.config.name.startswith(name)
        ]

    assert names() == [f"{name}A", f"{name}B"]
    assert names(mirrored=True) == [f"{name}B"]
    assert names(subject=f"{name}a.0", invert=True) == [f"{name}B"]
    for consumer, fields in {"pull": {}, "push": {"deliver_subject": "d"}}.items():
        admin.consumers.create(f"{name}A", consumer, {"ack_policy": "explicit", **fields})
    admin.consumers.next(f"{name}A", "pull", 2, ack="none")
    found = {
        info.name
        for info in admin.consumers.find(ack_pending=2, invert=True)
        if info.stream_name == f"{name}A"
    }
    assert found == {"pull"}
    assert [info.name for info in admin.consumers.find(f"{name}A", idle="1h")] == ["push"]
    with pytest.raises(
        OptionError, match=r'find streams: there is no field "emtpy" \(did you mean empty\?\)'
    ):
        admin.streams.find(emtpy=True)
    with pytest.raises(OptionError, match="find consumers: created must be a duration"):
        admin.consumers.find(created="yesterday")
    with pytest.raises(StreamNotFound):
        list(admin.consumers.find(f"{name}C"))
