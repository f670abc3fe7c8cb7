"""The least permissions for writing: all are enough, and without any one of them something fails."""

from __future__ import annotations

import pytest

from spark_jetstream.permissions import LEDGER
from tests.support.permissions import Case, Trial, sampled
from tests.support.permitted_reading import CONSUMING, CREATE, bucket_objects, made, need, nothing
from tests.support.permitted_writing import (
    bucket_kv_beside_a_stream,
    ensure,
    ensure_update,
    kv_write,
    kv_write_unseen,
    kv_write_without_looking,
    kv_write_without_names,
    object_write,
    object_write_unseen,
    store,
    write,
    write_exactly_once,
    write_unseen,
    write_without_looking,
    write_without_names,
)

CASES = [
    Case(
        "write",
        need("write", stream="S", subjects=["s.a", "s.e"], dead_letter="s.dead"),
        made,
        write,
        {"STREAM.INFO": write_unseen, "STREAM.NAMES": write_without_names, "MSG.GET": write_without_looking},
        ("s.a",),
    ),
    Case(
        "write at-least-once",
        tuple(line for line in need("write", stream="S", subjects=["s.*"]) if not line.without),
        made,
        lambda account: store(account, delivery="at-least-once"),
        may=("s.a",),
    ),
    Case(
        "write-exactly-once",
        need("write-exactly-once", stream="S", subjects=["s.a"], dead_letter="s.dead"),
        made,
        write_exactly_once,
        {"CONSUMER.DELETE": write_exactly_once},
        (CREATE, *CONSUMING[2:], "s.a", f"$KV.{LEDGER}.a.0"),
    ),
    Case(
        "kv-write",
        need("kv-write", bucket="b", dead_letter="s.dead"),
        bucket_kv_beside_a_stream,
        kv_write,
        {"INFO": kv_write_unseen, "NAMES": kv_write_without_names, "MSG.GET": kv_write_without_looking},
        ("$KV.b.k",),
        "KV_b",
    ),
    Case(
        "object-write",
        need("object-write", bucket="b"),
        bucket_objects,
        object_write,
        {"STREAM.INFO": object_write_unseen},
        ("$O.b.C.n", "$O.b.M.n", "STREAM.PURGE.OBJ_b"),
        "OBJ_b",
    ),
    Case("ensure-stream", need("ensure-stream", stream="S"), nothing, ensure, may=("STREAM.CREATE.S",)),
    Case(
        "ensure-stream-update",
        need("ensure-stream-update", stream="S"),
        nothing,
        ensure_update,
        may=("STREAM.CREATE.S", "STREAM.UPDATE.S"),
    ),
]


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_permissions_are_enough(name: str, trial: Trial) -> None:
    trial.run(name)


@pytest.mark.parametrize("name", sampled(CASES, "write", "ensure-stream"))
def test_each_permission_is_needed(name: str, trial: Trial) -> None:
    trial.run_without_each(name)
