"""Settings of Spark that change what a type name means, or how schemas and Arrow batches are made
and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.publish import Message
from tests.support.queries import available_now, batch, stored, streaming
from tests.support.streams import MakeStream

SETTINGS: dict[str, dict[str, str]] = {
    "timestamps and large columns": {
        "timestampType": "TIMESTAMP_NTZ",
        "session.timeZone": "+05:30",
        "execution.arrow.useLargeVarTypes": "true",
        "execution.arrow.pyspark.validateSchema.enabled": "true",
    },
    "names, literals and batches": {
        "caseSensitive": "true",
        "ansi.enforceReservedKeywords": "true",
        "ansi.doubleQuotedIdentifiers": "true",
        "parser.escapedStringLiterals": "true",
        "execution.arrow.compression.codec": "zstd",
        "execution.arrow.maxRecordsPerBatch": "3",
        "execution.pyspark.binaryAsBytes": "false",
        "preserveCharVarcharTypeInfo": "true",
    },
    "lax types": {
        "ansi.enabled": "false",
        "storeAssignmentPolicy": "LEGACY",
        "legacy.charVarcharAsString": "true",
        "legacy.doLooseUpcast": "true",
        "legacy.createEmptyCollectionUsingStringType": "true",
    },
}


@contextmanager
def settings(spark: SparkSession, chosen: dict[str, str]) -> Iterator[None]:
    names = {f"spark.sql.{name}": value for name, value in chosen.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@pytest.mark.parametrize("chosen", SETTINGS.values(), ids=SETTINGS)
def test_reads_and_writes_are_the_same_under_settings_of_spark(
    spark: SparkSession, stream: MakeStream, tmp_path: Path, chosen: dict[str, str]
) -> None:
    s, copy = stream(), stream()
    s.fill(5)
    s.send(Message(f"{s.subject}.h", b"x", [("A", "1"), ("A", "2")]))
    moved = F.concat(F.lit(f"{copy.subject}."), "subject").alias("subject")
    with settings(spark, chosen):
        table = batch(spark, s.url, s.name)
        assert stored(table) == s.rows()
        named = "sequence bigint NOT NULL, timestamp timestamp_ltz NOT NULL, data binary NOT NULL"
        assert batch(spark, s.url, s.name, named).where("sequence > 2").count() == len(s.rows()) - 2
        rows = streaming(spark, s.url, s.name)
        assert available_now(rows, tmp_path / "read").stored == s.rows()

        writer = (
            table.select(moved, "data", "headers", "timestamp")
            .write.format("jetstream")
            .options(servers=s.url, delivery="at-least-once")
        )
        writer.mode("append").save()
        text = (
            f"SELECT '{copy.subject}.text' AS subject, CAST('x' AS char(3)) AS data, map('A', 'b') "
            "AS headers"
        )
        spark.sql(text).write.format("jetstream").options(
            servers=s.url, delivery="at-least-once"
        ).mode("append").save()
        query = (
            rows.select(moved, "data", "headers")
            .writeStream.format("jetstream")
            .options(servers=s.url, delivery="at-least-once")
        )
        query = query.option("checkpointLocation", str(tmp_path / "written")).trigger(
            availableNow=True
        )
        query.start().awaitTermination()
    copied = [(f"{copy.subject}.{row.subject}", row.data, row.headers) for row in s.rows()]
    padded = b"x  " if "preserveCharVarcharTypeInfo" in chosen else b"x"
    one_text = (f"{copy.subject}.text", padded, {"A": ["b"]})
    written = [
        (row.subject, row.data, row.headers) for row in stored(batch(spark, s.url, copy.name))
    ]
    assert written == [*copied, one_text, *copied]


def test_texts_with_a_collation_are_read_and_written(
    spark: SparkSession, stream: MakeStream
) -> None:
    s = stream()
    subject = f"'{s.subject}.A' COLLATE UTF8_LCASE AS subject"
    row = spark.sql(
        f"SELECT {subject}, 'x' COLLATE UNICODE_CI AS data, map('A', 'b' COLLATE UTF8_LCASE) AS "
        "headers"
    )
    row.write.format("jetstream").options(servers=s.url, delivery="at-least-once").mode(
        "append"
    ).save()
    named = (
        "subject string COLLATE UTF8_LCASE NOT NULL, headers map<string,array<string COLLATE "
        "UTF8_LCASE>>"
    )
    table = batch(spark, s.url, s.name, named)
    assert table.where(F.col("subject") == f"{s.subject}.a".upper()).count() == 1
    assert [tuple(found) for found in table.collect()] == [(f"{s.subject}.A", {"A": ["b"]})]
