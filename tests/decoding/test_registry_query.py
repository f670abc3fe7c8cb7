"""Queries of Spark that decode by a schema registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jetstream import decode
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.compat.registry_job import FIRST, LAST, by_registry, check_by_registry, framed
from tests.support.registry import FakeRegistry


def test_payloads_with_a_registry(spark: SparkSession, tmp_path: Path) -> None:
    check_by_registry(by_registry(spark.newSession(), str(tmp_path)))


def test_a_query_meets_versions_that_are_registered_while_it_runs(
    spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    with JetStreamAdmin(servers=server.url) as admin, FakeRegistry().running() as registry:
        admin.streams.create({"name": "ORDERS", "subjects": ["orders.*"]})
        frame = spark.readStream.format("jetstream").options(servers=server.url, stream="ORDERS")
        login = registry.client(user="me", password="hidden")
        parsed = decode(frame.load(), "avro", LAST, registry=login)

        def shown() -> list[list[Any]]:
            found = spark.sql("SELECT sequence, id, country, decode_error FROM met ORDER BY 1")
            return [list(row) for row in found.collect()]

        query = (
            parsed.select("sequence", "decoded.*", "decode_error")
            .writeStream.format("memory")
            .queryName("met")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        first = registry.add("orders.eu-value", FIRST)
        admin.publish("orders.eu", framed(first, b"\2"))
        query.processAllAvailable()
        assert shown() == [[1, 1, "unknown", None]]
        admin.publish("orders.eu", framed(first + 1, b"\4\4de"))
        query.processAllAvailable()
        last = registry.add("orders.eu-value", LAST)
        assert last == first + 1
        admin.publish("orders.eu", framed(last, b"\6\4fr"))
        query.processAllAvailable()
        assert shown() == [
            [1, 1, "unknown", None],
            [2, None, None, f"the registry has no schema {last}"],
            [3, 3, "fr", None],
        ]
        assert "hidden" not in query._jsq.explainInternal(True)
        # An outage is not the fault of a payload: the query fails, and no row has an error.
        registry.login = "another"
        admin.publish("orders.eu", framed(last + 1, b"\6\4it"))
        with pytest.raises(StreamingQueryException) as raised:
            query.processAllAvailable()
        text = str(raised.value)
        assert f"argument registry: {registry.url} refuses the request /schemas/ids/3" in text
        assert "hidden" not in text
        assert len(shown()) == 3
        registry.login = None
        registry.add("orders.eu-value", {**LAST, "aliases": ["Before"]})
        again = (
            parsed.select("sequence", "decoded.*", "decode_error")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "again"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        again.awaitTermination()
        table = spark.read.parquet(str(tmp_path / "table")).orderBy("sequence")
        assert [row["id"] for row in table.collect()] == [1, 2, 3, 3]
