"""decode: what it adds to a frame, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_jetstream
from spark_jetstream.errors import JetStreamError, SchemaError
from spark_jetstream.testing import NatsServer
from tests.compat import sql_job
from tests.support.jobs import run_python

NOT_ONE = "the payload is not one JSON object that fits the schema"
FAULTS = [
    *[NOT_ONE] * 2,
    "the payload has no id",
    *[NOT_ONE] * 15,
    *[f"the payload has no {part}.n" for part in ("item", "all", "by")],
    "the payload is not UTF-8",
]
DECODED: dict[str, Any] = {
    "columns": [
        "stream",
        "subject",
        "sequence",
        "timestamp",
        "headers",
        "data",
        "decoded",
        "decode_error",
    ],
    "rows": [
        [1, '{"id":1,"amount":2.5,"item":{"n":1},"all":[{"n":1},null],"by":{"a":{"n":1}}}', None],
        [2, '{"id":2}', None],
        *([sequence, None, fault] for sequence, fault in enumerate(FAULTS, 3)),
    ],
    "ids": [[1, 1], [2, 2]],
    "null ids": len(FAULTS),
    "good": [[1, 1], [2, 2]],
    "dead": [
        [sequence, fault, sql_job.PAYLOADS[sequence - 1].hex().upper()]
        for sequence, fault in enumerate(FAULTS, 3)
    ],
    "type": "struct<id:bigint,amount:double,price:struct<amount:double>>",
    "versions": [
        [1, '{"id":1,"amount":2.0}', None],
        [2, '{"id":2,"price":{"amount":3.0}}', None],
        [3, None, "there is no schema of version 3"],
        [4, None, "there is no version of a schema"],
    ],
    "framed": [
        [1, "{}", None],
        [2, '{"id":2}', None],
        [3, None, "there is no schema of version 18"],
        *(
            [
                number,
                None,
                "the payload does not begin with a zero byte and the version of a schema",
            ]
            for number in (4, 5)
        ),
        [6, None, NOT_ONE],
    ],
    "bucket": [[4, None, "there is no payload"], [5, 1, None]],
}


def check_decoded(result: dict[str, Any]) -> None:
    assert result == {
        name: sorted(item, key=repr) if name in ("rows", "dead") else item
        for name, item in DECODED.items()
    }


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        (
            "a int",
            {"format": "xml"},
            "argument format must be json, avro or protobuf, but it is 'xml'",
        ),
        ("a int", {"format": "avro"}, "argument schema is not a schema of Avro: "),
        (
            "a int",
            {"format": "protobuf"},
            "argument schema: the descriptor set 'a int' cannot be read: No such file or directory",
        ),
        (None, {}, "argument schema is missing"),
        ("a int", {"subject": "orders"}, "arguments subject and registry_subject need argument re"),
        ("a int", {"message": "Order"}, "argument message is for Protobuf, and argument format is"),
        (
            "a int",
            {"registry": 7},
            "argument registry must be a URL or a SchemaRegistry, but it is",
        ),
        (
            "a int",
            {"version": F.lit, "registry": "https://a"},
            "arguments version and registry exclude each other: both name the schema of a payload",
        ),
        (
            "a int",
            {"subject": "orders", "registry": "https://a"},
            "either argument schema or one of subject and registry_subject must name the schema",
        ),
        (
            None,
            {"registry": "https://a"},
            "either argument schema or one of subject and registry_subject must name the schema",
        ),
        (
            "a int",
            {"version": F.lit, "confluent": True},
            "arguments version and confluent exclude each other",
        ),
        (
            "a int",
            {"column": "value"},
            'argument column: the frame has no column "value" that is binary or a string (data',
        ),
        (
            "a int",
            {"column": "n"},
            'argument column: the frame has no column "n" that is binary or a string (data string, '
            "n",
        ),
        (
            "a int",
            {"confluent": True},
            "argument schema must map versions to schemas where argument version or confluent",
        ),
        ({}, {"confluent": True}, "argument schema must map versions to schemas"),
        ("a in", {}, 'argument schema: [UNSUPPORTED_DATATYPE] Unsupported data type "IN"'),
        (
            "bigint",
            {},
            "argument schema: 'bigint' is neither DDL text nor a StructType with fields",
        ),
        ("", {}, "argument schema: '' is neither DDL text nor a StructType with fields"),
        (
            {1: "a int"},
            {},
            "argument schema: {1: 'a int'} is neither DDL text nor a StructType with fields",
        ),
        (
            {1: "a int", 0: "a in"},
            {"confluent": True},
            "argument schema, version 0: [UNSUPPORTED_DATATYPE]",
        ),
        (
            "id int, ID int",
            {},
            "argument schema: two of its fields have one name to Spark (id, ID)",
        ),
        (
            {1: "a int, b int", 2: "b string"},
            {"confluent": True},
            "argument schema: field b is int, and string in version 2: give it one type, such as "
            "string",
        ),
        (
            {1: "a int, id int", 2: "ID int"},
            {"confluent": True},
            "argument schema: field ID in version 2 and field id have one name to Spark",
        ),
        (
            {1: "a int", "1": "b int"},
            {"confluent": True},
            "argument schema has version 1 twice, as text and otherwise",
        ),
    ],
)
def test_payloads_that_cannot_be_decoded(
    spark: SparkSession, schema: Any, given: dict[str, Any], said: str
) -> None:
    frame = spark.createDataFrame([], "data string, n int")
    if "version" in given:
        given = {**given, "version": F.lit(1)}
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as raised:
        spark_jetstream.decode(
            frame,
            given.get("format", "json"),
            schema,
            **{n: v for n, v in given.items() if n != "format"},
        )
    assert isinstance(raised.value, JetStreamError)


def test_names_that_decoded_payloads_take(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "data string, Decoded int")
    with pytest.raises(
        SchemaError, match=r"^argument df has a column decoded already: rename or drop it$"
    ):
        spark_jetstream.decode(frame, "json", "a int")


def test_decoded_payloads(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    check_decoded(sql_job.decoded(spark.newSession(), server.url, str(tmp_path)))


VARIANTS: dict[str, Any] = {
    "parsed": [
        ['{"id":1,"item":{"sizes":[1,2],"sku":"tea"}}', False],
        ['{"id":"2"}', False],
        ['{"id":"two"}', False],
        ["[1,2]", False],
        ['"text"', False],
        ["null", True],
        [None, False],
        [None, False],
        ['{"id":4}', False],
        ['{"id":"\ufffd"}', False],
        [None, False],
    ],
    "ids": [[1], [2], *[[None]] * 6, [4], [None], [None]],
    "item": [[2]],
    "decoded": [
        ['{"id":1,"item":{"sizes":[1,2],"sku":"tea"}}', "tea", None],
        *[[None, None, NOT_ONE]] * 8,
        [None, None, "the payload is not UTF-8"],
        ['{"id":7}', None, None],
    ],
    "whole": "argument schema: 'variant' is neither DDL text nor a StructType with fields",
}
VARIANT_ERRORS = {
    "not JSON": "MALFORMED_RECORD_IN_PARSING",
    "other type": "INVALID_VARIANT_CAST",
    "binary": "UNEXPECTED_INPUT_TYPE",
    "grouped": "GROUP_EXPRESSION_TYPE_IS_NOT_ORDERABLE",
    "sorted": "INVALID_ORDERING_TYPE",
}


def check_variants(result: dict[str, Any], *, has_colon: bool = True) -> None:
    """The statements of the page on reading about VARIANT; Spark 4.0 has no colon."""
    assert {name: result[name] for name in VARIANTS} == VARIANTS
    for name, said in VARIANT_ERRORS.items():
        assert said in result[name], name
    assert ("PARSE_SYNTAX_ERROR" in result["colon"]) is not has_colon
    assert has_colon is not bool(result["colon"])


def test_variants(spark: SparkSession) -> None:
    check_variants(sql_job.variants(spark.newSession()))


FRAMELESS = "the payload does not begin with a zero byte and the version of a schema"
READ_BY_LIBRARIES: dict[str, Any] = {
    "avro": [
        [1, '{"id":1,"country":"unknown"}', None],
        [2, '{"id":2,"country":"de"}', None],
        [
            3,
            None,
            "the payload is not one Avro record that fits the schema (EOFError: Expected 2 bytes, "
            "read 1)",
        ],
        [4, None, "there is no schema of version 19"],
        [5, None, FRAMELESS],
    ],
    "avro type": "struct<id:bigint,country:string>",
    "avro ids": [[1], [2]],
    "protobuf": [
        [1, '{"id":1,"tags":["new"]}', None],
        [2, '{"id":2,"country":"de","tags":[]}', None],
        [
            3,
            None,
            "the payload is not one Protobuf message Order that fits the schema (ValueError: the "
            "indexes in front are [1], those of Order [0])",
        ],
        [4, None, "there is no schema of version 19"],
        [5, None, FRAMELESS],
    ],
    "protobuf type": "struct<id:bigint,country:string,tags:array<string>>",
    "protobuf ids": [[1], [2]],
}


def check_read_by_libraries(result: dict[str, Any], *, newer: bool = True) -> None:
    refused = "argument format must be json on Spark 4.0: Avro and Protobuf need Spark 4.1 or later"
    assert result == (READ_BY_LIBRARIES if newer else {"refused": refused})


def test_payloads_that_libraries_read(
    spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    check_read_by_libraries(sql_job.by_libraries(spark.newSession(), server.url, str(tmp_path)))


@pytest.mark.parametrize(
    ("format", "module", "library"),
    [
        ("avro", "avro", "fastavro"),
        ("avro", "avro_writer", "fastavro"),
        ("protobuf", "protobuf", "google.protobuf.descriptor"),
        ("protobuf", "protobuf_writer", "google.protobuf.descriptor"),
    ],
)
def test_a_library_that_is_missing(format: str, module: str, library: str) -> None:
    """A worker without it fails its task, too: it imports the module of the reader or writer."""
    code = f"""
import sys
sys.modules[{library!r}] = None
try:
    import spark_jetstream.decoding.{module}
except ModuleNotFoundError as error:
    print(error)
"""
    said = run_python("-c", code)
    assert said.strip().endswith(f"pip install 'spark-jetstream[{format}]', on every node")
