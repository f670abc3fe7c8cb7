"""Protobuf messages: their types in Spark, several versions of a class, and bytes that are no
message.
"""

from __future__ import annotations

import datetime
import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jetstream.decoding.columns import read_all
from spark_jetstream.decoding.protobuf import ProtobufReader
from spark_jetstream.errors import SchemaError
from tests.support.protos import message_classes

SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum State { NEW = 0; SENT = 1; }
message Other { string text = 1; }
message Order {
  message Item { int32 n = 1; map<string, int64> by = 2; }
  int32 a = 1; sint64 b = 2; fixed32 c = 3; uint64 d = 4; double e = 5; float f = 6; bool g = 7;
  State state = 8; string text = 9; bytes data = 10; repeated string tags = 11; optional int32 maybe = 12;
  Item item = 13; repeated Item items = 14; map<int32, Item> by = 15; google.protobuf.Timestamp at = 16;
  oneof one { string first = 17; int64 second = 18; }
}
message Node { repeated Node nodes = 1; }
message Timed { map<string, google.protobuf.Timestamp> at = 1; }
message Same { int32 a = 1; int32 A = 2; }
message None {}
"""
TYPES = (
    "struct<a: int32, b: int64, c: int64, d: decimal128(20, 0), e: double, f: float, g: bool, "
    "state: string, text: string, data: binary, tags: list<item: string>, maybe: int32, "
    "item: struct<n: int32, by: map<string, int64>>, items: list<item: struct<n: int32, by: "
    "map<string, int64>>>, by: map<int32, struct<n: int32, by: map<string, int64>>>, at: "
    "timestamp[us, tz=UTC], first: string, second: int64>"
)
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("a", "b", "c", "e", "f"), 0),
    "d": Decimal(0),
    "g": False,
    "state": "NEW",
    "text": "",
    "data": b"",
    **{name: [] for name in ("tags", "items", "by")},
    **dict.fromkeys(("maybe", "item", "at", "first", "second")),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[Any]]:
    return message_classes(tmp_path_factory.mktemp("protos"), SHOP)


def read(
    reader: ProtobufReader, *payloads: bytes | None, version: str = ""
) -> list[dict[str, Any]]:
    """The rows of payloads, read together as in a worker, each a `value` and an `error`."""
    sent = pickle.loads(pickle.dumps(reader))
    array = read_all(
        sent, pa.array(payloads, pa.binary()), pa.array([version] * len(payloads), pa.string())
    )
    return array.to_pylist()  # type: ignore[no-any-return]


def full(order: type[Any]) -> Any:
    made = order(
        a=-1,
        b=-(2**63),
        c=2**32 - 1,
        d=2**64 - 1,
        e=0.1,
        f=0.5,
        g=True,
        state=1,
        text="ü",
        data=b"\xff",
    )
    made.tags.extend(["new", "eu"])
    made.maybe = 0
    made.item.n = 1
    made.item.by["k"] = 2
    made.items.add().n = 3
    made.by[7].n = 4
    made.at.FromJsonString("2026-03-01T12:30:00.000005999Z")
    made.second = 0
    return made


def test_types(shop: dict[str, type[Any]]) -> None:
    order = shop["shop.Order"]
    reader = ProtobufReader({"": order}, indexed=False)
    assert str(reader.fields) == TYPES
    item = {"n": 3, "by": []}
    expected = {
        "a": -1,
        "b": -(2**63),
        "c": 2**32 - 1,
        "d": Decimal(2**64 - 1),
        "e": 0.1,
        "f": 0.5,
        "g": True,
        "state": "SENT",
        "text": "ü",
        "data": b"\xff",
        "tags": ["new", "eu"],
        "maybe": 0,
        "item": {"n": 1, "by": [("k", 2)]},
        "items": [item],
        "by": [(7, {**item, "n": 4})],
        "at": datetime.datetime(2026, 3, 1, 12, 30, 0, 5, datetime.timezone.utc),
        "first": None,
        "second": 0,
    }
    # The last one: an enumeration's number that the class does not know, and a field.
    rows = read(reader, full(order).SerializeToString(), None, b"", b"\x40\x09\xf8\x3f\x01")
    assert rows == [
        {"value": expected, "error": None},
        {"value": None, "error": None},
        {"value": DEFAULTS, "error": None},
        {"value": {**DEFAULTS, "state": "9"}, "error": None},
    ]
    assert str(ProtobufReader({"": shop["shop.Timed"]}, indexed=False).fields) == (
        "struct<at: map<string, timestamp[us, tz=UTC]>>"
    )


def test_bytes_that_are_no_message_are_errors_of_their_rows(shop: dict[str, type[Any]]) -> None:
    order = shop["shop.Order"]
    reader = ProtobufReader({"": order}, indexed=False)
    late = order()
    late.at.seconds = 2**40
    broken = [
        b"\x07",
        b"\x4a\x01\xff",
        late.SerializeToString(),
        order(text="abc").SerializeToString()[:-1],
    ]
    *faults, whole = read(reader, *broken, order(a=1).SerializeToString())
    assert whole["value"]["a"] == 1
    assert [fault["value"] for fault in faults] == [None] * 4
    said = "the payload is not one Protobuf message shop.Order that fits the schema ("
    assert [fault["error"].startswith(said) for fault in faults] == [True] * 4
    assert ["DecodeError" in fault["error"] for fault in faults] == [True, True, False, True]


def test_required_fields_of_proto2(tmp_path: Path) -> None:
    text = """
    syntax = "proto2";
    message Order {
      message Item { required int32 n = 1; }
      required int32 id = 1; optional Item item = 2; optional int32 more = 3 [default = 7];
    }
    """
    order = message_classes(tmp_path, text)["Order"]
    reader = ProtobufReader({"": order}, indexed=False)
    *missing, whole = read(reader, b"", b"\x08\x01\x12\x00", b"\x08\x01\x12\x02\x08\x00")
    assert whole == {"value": {"id": 1, "item": {"n": 0}, "more": None}, "error": None}
    said = "the payload is not one Protobuf message Order that fits the schema (ValueError: "
    assert missing == [
        {"value": None, "error": f"{said}the message has no {field})"} for field in ("id", "item.n")
    ]


def test_any_bytes_are_a_message_or_an_error(shop: dict[str, type[Any]]) -> None:
    chance = random.Random(1)
    payload = full(shop["shop.Order"]).SerializeToString()
    reader = ProtobufReader({"": shop["shop.Order"]}, indexed=False)
    changed = [bytearray(payload) for _ in range(1000)]
    for one in changed:
        for at in chance.sample(range(len(one)), 3):
            one[at] = chance.randrange(256)
    cut = [payload[:end] for end in range(len(payload))]
    for row in read(reader, *map(bytes, changed), *cut):
        assert (row["value"] is None) != (row["error"] is None)


def test_versions_are_read_as_the_last_one(tmp_path: Path) -> None:
    text = 'syntax = "proto3"; package shop; message Order { int32 id = 1; %s }'
    first = message_classes(tmp_path, text % "string old = 2;")["shop.Order"]
    last = message_classes(tmp_path, text % "string country = 3;")["shop.Order"]
    reader = ProtobufReader({"1": first, "2": last}, indexed=False)
    assert read(reader, first(id=1, old="x").SerializeToString(), version="1")[0]["value"] == {
        "id": 1,
        "country": "",
    }
    rows = read(reader, last(id=2, country="de").SerializeToString(), version="2")
    assert rows == [{"value": {"id": 2, "country": "de"}, "error": None}]


def test_the_index_of_a_message_precedes_it(shop: dict[str, type[Any]]) -> None:
    first, item = shop["shop.Other"], shop["shop.Order"].Item
    reader = ProtobufReader({"1": first}, indexed=True)
    payload = first(text="x").SerializeToString()
    assert (
        read(reader, b"\0" + payload, b"\2\0" + payload, version="1")
        == [{"value": {"text": "x"}, "error": None}] * 2
    )
    # Zigzag varints: the count 2, then 1 and 0, in one byte each or in more.
    nested = ProtobufReader({"1": item}, indexed=True)
    one = item(n=1).SerializeToString()
    rows = read(nested, b"\4\2\0" + one, b"\4\x82\0\x80\0" + one, version="1")
    assert rows == [{"value": {"n": 1, "by": []}, "error": None}] * 2
    wrong = [
        b"",
        b"\0",
        b"\4\2",
        b"\4\2\x80",
        b"\4\4\0",
        b"\1",
        b"\x80" * 11,
        b"\xfe" + b"\xff" * 8 + b"\1",
    ]
    assert [row["value"] for row in read(nested, *wrong, version="1")] == [None] * len(wrong)
    assert (
        "the indexes in front are [0], those of shop.Order.Item [1, 0]"
        in read(nested, b"\0", version="1")[0]["error"]
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            [""],
            "argument schema must be the class of a Protobuf message or a descriptor set (bytes",
        ),
        (
            ["", "shop.Order"],
            "argument schema, version 0 must be the class of a Protobuf message or a descriptor",
        ),
        (
            ["shop.Other", "shop.Order"],
            "argument schema has shop.Order and shop.Other: all versions are one message's",
        ),
        (
            ["shop.Node"],
            "argument schema: message shop.Node contains itself, for which Spark has no type",
        ),
        (
            ["shop.Same"],
            "argument schema: message shop.Same: two of its fields have one name to Spark (a, A)",
        ),
        (["shop.None"], "argument schema: message shop.None has no field"),
    ],
)
def test_classes_that_are_refused(shop: dict[str, type[Any]], names: list[str], said: str) -> None:
    schemas = {
        str(n) if len(names) > 1 else "": shop.get(name, object) for n, name in enumerate(names)
    }
    with pytest.raises(SchemaError) as raised:
        ProtobufReader(schemas, indexed=False)
    assert str(raised.value).startswith(said)
