"""The least permissions for reading: all are enough, and without any one of them something fails."""

from __future__ import annotations

from functools import partial

import pytest

from spark_jetstream.permissions import merged
from spark_jetstream.source import durable as durable_module
from tests.support.permissions import Case, Trial, sampled
from tests.support.permitted_reading import (
    CONSUMING,
    CREATE,
    bucket_kv,
    bucket_objects,
    durable,
    filled,
    kv_keys,
    made,
    need,
    queue,
    read_all_ways,
    read_kv,
    read_kv_directly,
    read_objects,
    read_one_filter,
    read_tidily,
    read_untidily,
)

OLD = "durable on an older server"
CASES = [
    Case("read", need("read", stream="S"), filled, read_tidily, {"CONSUMER.DELETE": read_untidily}, CONSUMING),
    Case(
        "read one filter",
        need("read", stream="S", subjects=["s.a"]),
        filled,
        read_one_filter,
        {"CONSUMER.DELETE": read_one_filter},
        ("CONSUMER.DELETE.S.other", "CONSUMER.MSG.NEXT.S.other"),
    ),
    Case("read-direct", need("read-direct", stream="S"), filled, partial(read_all_ways, readWith="direct")),
    Case(
        "durable",
        merged(need("read", stream="S", subjects=[]), need("durable", stream="S", durable="query", subjects=[])),
        partial(made, retention="interest"),
        durable,
        {"CONSUMER.DELETE": durable},
        (CREATE, *CONSUMING[2:]),
    ),
    Case(
        "durable with a filter",
        merged(
            need("read", stream="S", subjects=["s.a"]),
            need("durable", stream="S", durable="query", subjects=["s.a"]),
        ),
        made,
        partial(durable, subjects="s.a"),
        {"CONSUMER.DELETE": partial(durable, subjects="s.a")},
        CONSUMING[2:],
    ),
    Case(
        OLD,
        merged(need("read", stream="S", subjects=[]), need("durable-old", stream="S", durable="query", subjects=[])),
        partial(made, retention="interest"),
        durable,
        may=(CREATE, *CONSUMING[2:]),
    ),
    Case(
        "durable on an older server, with direct gets",
        merged(
            need("read-direct", stream="S"),
            need("durable-old", stream="S", durable="query", subjects=[]),
        ),
        made,
        partial(durable, readWith="direct"),
    ),
    Case(
        "durable with direct gets",
        merged(need("read-direct", stream="S"), need("durable", stream="S", durable="query", subjects=[])),
        made,
        partial(durable, readWith="direct"),
    ),
    Case(
        "durable-queue",
        merged(need("read-direct", stream="S"), need("durable-queue", stream="S", durable="query", subjects=[])),
        partial(made, retention="workqueue"),
        queue,
        may=("STREAM.PURGE.S",),
    ),
    Case(
        "durable-queue with a filter",
        merged(
            need("read-direct", stream="S"),
            need("durable-queue", stream="S", durable="query", subjects=["s.a"]),
        ),
        partial(made, retention="workqueue"),
        partial(durable, subjects="s.a"),
        may=("STREAM.PURGE.S",),
    ),
    Case(
        "kv-read",
        need("kv-read", bucket="b"),
        bucket_kv,
        read_kv,
        {"CONSUMER.DELETE": read_kv},
        stream="KV_b",
        may=tuple(each.replace(".S.", ".KV_b.") for each in CONSUMING),
    ),
    Case(
        "kv-read one key",
        need("kv-read", bucket="b", subjects=["x"]),
        bucket_kv,
        kv_keys,
        {"CONSUMER.DELETE": kv_keys},
        stream="KV_b",
        may=("CONSUMER.DELETE.KV_b.other", "CONSUMER.MSG.NEXT.KV_b.other"),
    ),
    Case(
        "kv-read-direct",
        need("kv-read-direct", bucket="b"),
        partial(bucket_kv, history=1),
        read_kv_directly,
        stream="KV_b",
    ),
    Case(
        "object-read",
        need("object-read", bucket="b"),
        bucket_objects,
        read_objects,
        {"CONSUMER.DELETE": read_objects},
        stream="OBJ_b",
        may=("CONSUMER.CREATE.OBJ_b.other", "CONSUMER.DELETE.OBJ_b.other", "CONSUMER.MSG.NEXT.OBJ_b.other"),
    ),
    Case(
        "object-read-direct",
        need("object-read-direct", bucket="b"),
        bucket_objects,
        partial(read_objects, readWith="direct"),
        stream="OBJ_b",
    ),
]


@pytest.fixture(autouse=True)
def old_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cases of an older server believe that the server cannot reset consumers."""
    if OLD in request.node.name:
        monkeypatch.setattr(durable_module, "RESET_LEVEL", 99)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_permissions_are_enough(name: str, trial: Trial) -> None:
    trial.run(name)


@pytest.mark.parametrize("name", sampled(CASES, "read", "durable", "kv-read-direct"))
def test_each_permission_is_needed(name: str, trial: Trial) -> None:
    trial.run_without_each(name)
