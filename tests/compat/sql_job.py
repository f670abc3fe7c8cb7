"""SQL on a server that holds nothing, on whichever Spark the environment has: the results, as plain
JSON.

python sql_job.py (classic|connect) URL FOLDER
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from spark_jetstream import attach, decode, lookup, register, schema_of
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import OptionError
from tests.compat.registry_job import by_registry
from tests.support.protos import message_classes


def rows(frame: DataFrame) -> list[list[Any]]:
    """The rows of a frame, sorted; bytes as text."""
    found = [
        [bytes(item).decode() if isinstance(item, (bytes, bytearray)) else item for item in row]
        for row in frame.collect()
    ]
    return sorted(found, key=repr)


def error_of(work: Callable[[], Any]) -> str:
    """The text of the error that `work` raises, "" when there is none."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - of Spark, classic or Connect, or of the connector
        return str(error)
    return ""


def views(spark: SparkSession) -> list[str]:
    return sorted(row["viewName"] for row in spark.sql("SHOW VIEWS IN global_temp").collect())


def clear(spark: SparkSession, admin: JetStreamAdmin) -> None:
    """Leave no view and no stream behind."""
    for view in views(spark):
        spark.catalog.dropTempView(view)
    for name in list(admin.streams.names()):
        admin.streams.delete(name)


def attached(spark: SparkSession, url: str) -> dict[str, Any]:
    """Views of an account whose streams come, grow and go."""
    result: dict[str, Any] = {}
    with JetStreamAdmin(servers=url) as admin:
        admin.streams.create({"name": "ORDERS", "subjects": ["orders"], "allow_direct": True})
        for text in (
            '{"id": 1, "timestamp": "noon", "item": {"n": 2}}',
            '{"id": 2, "ID": 3}',
            "no JSON",
            b"\xff",
            "[1]",
        ):
            admin.publish("orders", text)
        admin.streams.create({"name": "eu-log", "subjects": ["log"]})
        admin.publish("log", "plain")
        admin.streams.create({"name": "2024", "subjects": ["2024"]})
        admin.streams.create({"name": "KV_no", "subjects": ["kv"]})
        admin.kv.create("CONFIG")
        admin.kv.bucket("CONFIG").put("a", '{"on": true}')
        admin.kv.bucket("CONFIG").put("b", '{"on": false}')
        admin.kv.bucket("CONFIG").delete("b")
        admin.objects.create("FILES")
        admin.objects.bucket("FILES").put("f", b"12345")

        result["attached"] = attach(spark, servers=url, user=None)
        # A frame is planned at its first use, not when it is made.
        admin.publish("orders", '{"id": 4}')
        result["orders"] = rows(
            spark.sql(
                "SELECT sequence, payload_id, payload_timestamp, id, item.n FROM orders WHERE "
                "payload_id > 0"
            )
        )
        result["config"] = rows(spark.sql("SELECT key, `on` FROM kv_config"))
        result["files"] = rows(spark.sql("SELECT name, size FROM obj_files"))
        result["log"] = rows(spark.sql("SELECT stream, data FROM eu_log"))
        result["empty"] = spark.sql("SELECT * FROM _2024").columns

        admin.publish("orders", '{"id": 5, "new": 6}')
        result["planned again"] = spark.table("orders").count()
        spark.sql("CREATE TEMPORARY VIEW large AS SELECT * FROM orders WHERE payload_id > 4")
        spark.table("eu_log").createOrReplaceTempView("kept")
        spark.sql("CREATE TEMPORARY VIEW broken AS SELECT * FROM eu_log")
        admin.streams.delete("eu-log")
        admin.streams.create({"name": "RETURNS", "subjects": ["returns"]})
        result["some"] = attach(spark, "ORD*", servers=url)
        result["after some"] = views(spark)
        attach(spark, servers=url)
        result["after all"] = views(spark)
        result["refreshed"] = rows(
            spark.sql("SELECT payload_id, new FROM orders WHERE payload_id > 2")
        )
        result["prefixed"] = attach(spark, "ORDERS", prefix="My-", sample=0, servers=url)

        # A view whose stream is gone makes way for that of another stream; a view whose stream is
        # there does not.
        admin.streams.create({"name": "a-b", "subjects": ["a"]})
        attach(spark, "a-b", servers=url)
        admin.streams.delete("a-b")
        admin.streams.create({"name": "a_b", "subjects": ["a"]})
        attach(spark, "a[-_]b", servers=url)
        result["in its place"] = "a_b" in views(spark)
        admin.streams.create({"name": "a-b", "subjects": ["b"]})

        spark.range(1).createOrReplaceTempView("their_orders")
        result["errors"] = [
            error_of(lambda: attach(spark, "ORDERS", prefix="their_", servers=url)),
            error_of(lambda: attach(spark, "ORDERS", servers=url, user="other", password="x")),
            error_of(lambda: attach(spark, "a-b", servers=url)),
            error_of(lambda: attach(spark, "ORD[", servers=url)),
            error_of(lambda: attach(spark, servers=url, strem="x")),
            error_of(lambda: attach(spark, "ORDRES", servers=url)),
            error_of(lambda: schema_of(spark, "2024", servers=url)),
            error_of(lambda: schema_of(spark, "ORDRES", servers=url)),
        ]
        result["schema"] = schema_of(spark, "ORDERS", servers=url).simpleString()
        result["schema of the last"] = schema_of(
            spark, "ORDERS", sample=1, servers=url
        ).simpleString()
        clear(spark, admin)
    return result


def paths(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """A stream's name as the path of reads and writes."""
    result: dict[str, Any] = {}

    def reader(**options: str) -> DataFrameReader:
        return spark.read.format("jetstream").options(servers=url, **options)

    with JetStreamAdmin(servers=url) as admin:
        admin.streams.create({"name": "ORDERS", "subjects": ["orders"]})
        admin.streams.create({"name": "COPIES", "subjects": ["copies"]})
        admin.publish("orders", "1")
        # No message has headers: Spark 4.0 then hands over lists without offsets, which pyarrow's
        # `nbytes` reads.
        copy = reader().load("ORDERS").selectExpr("'copies' AS subject", "headers", "data")
        copy.write.format("jetstream").option("servers", url).mode("append").save("COPIES")
        streamed = spark.readStream.format("jetstream").option("servers", url).load("ORDERS")
        query = (
            streamed.selectExpr("'copies' AS subject", "data")
            .writeStream.format("jetstream")
            .option("servers", url)
        )
        run = (
            query.option("checkpointLocation", f"{folder}/copies")
            .trigger(availableNow=True)
            .start("COPIES")
        )
        run.awaitTermination()
        result["copies"] = rows(reader().load("COPIES").select("sequence", "data"))
        result["errors"] = [
            error_of(lambda: reader().load("ORDRES").count()),
            error_of(lambda: reader().load(["ORDERS", "COPIES"]).count()),
            error_of(lambda: reader(bucket="B").load("ORDERS").count()),
            error_of(
                lambda: (
                    copy.write.format("jetstream")
                    .option("servers", url)
                    .mode("append")
                    .save("ORDERS")
                )
            ),
        ]
        result["both"] = reader().load("ORDERS,COPIES").count()
        for name in list(admin.streams.names()):
            admin.streams.delete(name)
    return result


def tables(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """Tables of the catalog, which keep columns and no options; views of them; streams in SQL."""
    result: dict[str, Any] = {}
    options = f"servers = '{url}', stream = 'ORDERS'"
    given = {"servers": url, "stream": "ORDERS"}
    made = ("messages", "sent", "keyed")

    def streamed(frame: DataFrame) -> int:
        query = (
            frame.writeStream.format("memory")
            .queryName("streamed")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return spark.table("streamed").count()

    with JetStreamAdmin(servers=url) as admin:
        admin.streams.create({"name": "ORDERS", "subjects": ["orders"]})
        admin.publish("orders", "1")
        spark.sql("CREATE TABLE messages USING jetstream OPTIONS (stream 'ANY')")
        admin.kv.create("B")
        admin.kv.bucket("B").put("a", "1")
        spark.sql("CREATE TABLE keyed USING jetstream OPTIONS (bucket 'ANY')")
        spark.sql("CREATE TABLE sent (subject STRING, data BINARY) USING jetstream")
        try:
            spark.sql(f"CREATE TEMPORARY VIEW text AS SELECT * FROM messages WITH ({options})")
            framed = (
                spark.read.options(**given)
                .table("messages")
                .selectExpr("sequence", "upper(subject)")
            )
            framed.createOrReplaceTempView("framed")
            frame = spark.read.options(**given).table("messages")
            reads: dict[str, Callable[[], DataFrame]] = {
                "with": lambda: spark.sql(f"SELECT * FROM messages WITH ({options})"),
                "path": lambda: spark.sql(
                    f"SELECT * FROM messages WITH (servers = '{url}', path = 'ORDERS')"
                ),
                "read.table": lambda: spark.read.options(**given).table("messages"),
                "view of text": lambda: spark.table("text"),
                "view of a frame": lambda: spark.table("framed"),
                "frame": lambda: frame,
            }
            result["first"] = {name: read().count() for name, read in reads.items()}
            spark.sql(f"INSERT INTO sent WITH ({options}) VALUES ('orders', CAST('2' AS BINARY))")
            result["second"] = {name: read().count() for name, read in reads.items()}
            new = spark.sql("SELECT 'orders' AS subject, CAST('3' AS BINARY) AS data")
            new.writeTo("sent").options(**given).append()
            new.write.format("jetstream").options(**given).mode("append").saveAsTable("sent")
            result["rows"] = rows(
                spark.sql(f"SELECT sequence, data FROM messages WITH ({options})")
            )
            result["keyed"] = rows(
                spark.sql(f"SELECT key, value FROM keyed WITH (servers = '{url}', bucket = 'B')")
            )
            overwrite = (
                f"INSERT OVERWRITE sent WITH ({options}) VALUES ('orders', CAST('2' AS BINARY))"
            )
            result["overwrite"] = error_of(lambda: spark.sql(overwrite))
            result["forgotten"] = error_of(lambda: spark.table("messages").count())
            stream = spark.readStream.options(**given).table("messages")
            result["readStream.table"] = streamed(stream)
            copied = stream.selectExpr("subject", "data").writeStream.options(
                **given, maxRetries="1"
            )
            copied = copied.option("checkpointLocation", f"{folder}/sent").trigger(
                availableNow=True
            )
            copied.toTable("sent").awaitTermination()
            result["after toTable"] = spark.sql(f"SELECT * FROM messages WITH ({options})").count()
            stream.createOrReplaceTempView("streaming")
            result["streaming view"] = streamed(spark.sql("SELECT sequence FROM streaming"))
            for name, text in {
                "STREAM t WITH": f"SELECT sequence FROM STREAM messages WITH ({options})",
                "STREAM(t) WITH": f"SELECT sequence FROM STREAM(messages) WITH ({options})",
                "STREAM(view)": "SELECT sequence FROM STREAM(streaming)",
            }.items():
                try:
                    result[name] = streamed(spark.sql(text))
                except Exception as error:  # noqa: BLE001 - as in `error_of`
                    result[name] = re.findall(r"\[([A-Z_.]+)\]", str(error))[0]
        finally:
            for name in made:
                spark.sql(f"DROP TABLE {name}")
            clear(spark, admin)
    return result


#: What a payload must have, as a bucket keeps it.
ORDER = (
    "id bigint NOT NULL, amount double, item struct<n int NOT NULL>, all array<struct<n int NOT "
    "NULL>>, by map<string, struct<n int NOT NULL>>"
)
PAYLOADS = (
    b'{"id": 1, "amount": 2.5, "item": {"n": 1}, "all": [{"n": 1}, null], "by": {"a": {"n": 1}}}',
    b' {"id": 2, "color": "red"}\n',
    # Spark's `from_json` alone makes a row of nulls of each of these, or ignores a part of it.
    b"",
    b"null",
    b"{}",
    b"[{}]",
    b'"text"',
    b'{"id": 1',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 1}, {"id": 2}',
    b'{"id": 1}}',
    b'{"id": 1}, "b": 2',
    b'{"id": 1}, "payload": {"id": 2}',
    b'{"id": 1}, "end": true}',
    b'{"id": "one"}',
    b'{"id": 1, "amount": "a lot"}',
    b'{"id": 1, "item": {"n": "one"}}',
    b'{"id": 1, "all": [{"n": "one"}]}',
    b'{"id": 1, "by": {"a": {"n": "one"}}}',
    b'{"id": 1, "item": {}}',
    b'{"id": 1, "all": [{"n": 1}, {}]}',
    b'{"id": 1, "by": {"a": {"n": 1}, "b": {}}}',
    b'{"id": 1, "color": "\xff"}',
)


def decoded(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """Payloads of a batch, a streaming query and a bucket; with versions in headers and in front of
    payloads.
    """
    result: dict[str, Any] = {}

    def read(**options: str) -> DataFrame:
        return spark.read.format("jetstream").options(servers=url, **options).load()

    with JetStreamAdmin(servers=url) as admin:
        admin.kv.create("SCHEMAS")
        schemas = admin.kv.bucket("SCHEMAS")
        schemas.put("order", ORDER)
        schemas.put("17", "id bigint, amount double")
        schemas.put("256", "id bigint, price struct<amount double>")
        for name in ("ORDERS", "DEAD", "VERSIONS", "FRAMED"):
            admin.streams.create({"name": name, "subjects": [name.lower()]})
        for payload in PAYLOADS:
            admin.publish("orders", payload)
        orders = decode(read(stream="ORDERS"), "json", schemas.get("order").text)
        result["columns"] = orders.columns
        result["rows"] = rows(orders.select("sequence", F.to_json("decoded"), "decode_error"))
        # Where Spark needs only a part of what it parses, and where it filters first.
        result["ids"] = rows(orders.where("decode_error IS NULL").select("sequence", "decoded.id"))
        result["null ids"] = orders.where("decoded.id IS NULL").count()

        stream = spark.readStream.format("jetstream").options(servers=url, stream="ORDERS").load()
        both = decode(stream, "json", ORDER)
        good = (
            both.where("decode_error IS NULL")
            .select("sequence", "decoded.*")
            .writeStream.format("memory")
        )
        good.queryName("good").trigger(availableNow=True).start().awaitTermination()
        bad = both.where("decode_error IS NOT NULL").selectExpr(
            "data",
            "'dead' AS subject",
            "map('Reason', decode_error, 'Sequence', CAST(sequence AS STRING)) AS headers",
        )
        sink = bad.writeStream.format("jetstream").options(servers=url, stream="DEAD")
        sink = sink.option("checkpointLocation", f"{folder}/dead").trigger(availableNow=True)
        sink.start().awaitTermination()
        result["good"] = rows(spark.table("good").select("sequence", "id"))
        result["dead"] = rows(
            read(stream="DEAD").selectExpr(
                "int(headers['Sequence'][0])", "headers['Reason'][0]", "hex(data)"
            )
        )

        for version, text in (
            (1, '{"id": 1, "amount": 2}'),
            (2, '{"id": 2, "amount": 9, "price": {"amount": 3}}'),
        ):
            admin.publish("versions", text, {"Schema-Version": str(version)})
        admin.publish("versions", '{"id": 3}', {"Schema-Version": "3"})
        admin.publish("versions", '{"id": 4}')
        by_header = {1: schemas.get("17").text, "2": schemas.get("256").text}
        header = F.col("headers")["Schema-Version"][0]
        frame = decode(read(stream="VERSIONS"), "json", by_header, version=header)
        result["type"] = frame.schema["decoded"].dataType.simpleString()
        result["versions"] = rows(frame.select("sequence", F.to_json("decoded"), "decode_error"))

        for payload in (
            b"\0\0\0\0\x11{}",
            b'\0\0\0\1\0{"id": 2}',
            b"\0\0\0\0\x12{}",
            b"\0\0\0\0",
            b"{}   ",
            b"\0\0\0\0\x11",
        ):
            admin.publish("framed", payload)
        by_number = {entry.key: entry.text for entry in schemas.entries() if entry.key.isdigit()}
        frame = decode(read(stream="FRAMED"), "json", by_number, confluent=True)
        result["framed"] = rows(frame.select("sequence", F.to_json("decoded"), "decode_error"))

        schemas.delete("256")
        schemas.put("a", '{"n": 1}')
        table = decode(read(bucket="SCHEMAS", history="true"), "json", "n int", column="value")
        result["bucket"] = rows(
            table.where("key IN ('a', '256')").select("revision", "decoded.n", "decode_error")
        )
        clear(spark, admin)
    return result


#: JSON of any form, in the order of `variants`.
ANY_JSON = (
    b'{"id": 1, "item": {"sku": "tea", "sizes": [1, 2]}}',
    b'{"id": "2"}',
    b'{"id": "two"}',
    b"[1, 2]",
    b'"text"',
    b"null",
    b'{"id": 3',
    b"",
    b'{"id": 4} {"id": 5}',
    b'{"id": "\xff"}',
    b'{"id": 6, "id": 7}',
)


def variants(spark: SparkSession) -> dict[str, Any]:
    """JSON as VARIANT, by functions of Spark and by `decode`: values, or the texts of errors."""
    frame = spark.createDataFrame(list(enumerate(ANY_JSON, 1)), "number int, data binary")
    text = F.col("data").cast("string")
    parsed = frame.withColumn("payload", F.try_parse_json(text))
    first = parsed.where("number = 1")
    decoded = decode(frame, "json", "id int, item variant")

    def values(of: DataFrame, *columns: Column) -> list[list[Any]]:
        return [list(row)[1:] for row in of.select("number", *columns).orderBy("number").collect()]

    def error_with(of: DataFrame, column: Column) -> str:
        return error_of(lambda: of.select(column).collect())

    return {
        "parsed": values(parsed, F.to_json("payload"), F.is_variant_null("payload")),
        "ids": values(parsed, F.try_variant_get("payload", "$.id", "int")),
        "item": values(first, F.try_variant_get("payload", "$.item.sizes[1]", "int")),
        "colon": error_of(lambda: first.selectExpr("payload:item.sku::string").collect()),
        "not JSON": error_with(frame, F.parse_json(text)),
        "other type": error_with(parsed, F.variant_get("payload", "$.id", "int")),
        "binary": error_with(frame, F.try_parse_json("data")),
        "grouped": error_of(lambda: parsed.groupBy("payload").count().collect()),
        "sorted": error_of(lambda: parsed.orderBy("payload").collect()),
        "decoded": values(
            decoded,
            F.to_json("decoded"),
            F.try_variant_get("decoded.item", "$.sku", "string"),
            F.col("decode_error"),
        ),
        "whole": error_of(lambda: decode(frame, "json", "variant")),
    }


def by_libraries(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """Payloads of Avro and of Protobuf with their versions in front: a batch, a streaming query,
    and a filter first.
    """
    fields = [{"name": "id", "type": "long"}]
    first = {"type": "record", "name": "Order", "fields": fields}
    last = {
        **first,
        "fields": [*fields, {"name": "country", "type": "string", "default": "unknown"}],
    }
    proto = 'syntax = "proto3"; message Order { int64 id = 1; %s repeated string tags = 3; }'
    classes = [
        message_classes(Path(folder), proto % more)["Order"]
        for more in ("", "optional string country = 2;")
    ]
    payloads = {
        "avro": [
            b"\0\0\0\0\x11\x02",
            b"\0\0\0\0\x12\x04\4de",
            b"\0\0\0\0\x12\x04\4d",
            b"\0\0\0\0\x13\x02",
            b"hello",
        ],
        "protobuf": [
            b"\0\0\0\0\x11\0" + classes[0](id=1, tags=["new"]).SerializeToString(),
            b"\0\0\0\0\x12\2\0" + classes[1](id=2, country="de").SerializeToString(),
            b"\0\0\0\0\x12\2\2",
            b"\0\0\0\0\x13\0",
            b"hello",
        ],
    }
    schemas: dict[str, dict[int, Any]] = {
        "avro": {17: json.dumps(first), 18: last},
        "protobuf": dict(zip((17, 18), classes, strict=True)),
    }
    result: dict[str, Any] = {}
    with JetStreamAdmin(servers=url) as admin:
        for format in ("avro", "protobuf"):
            stream = format.upper()
            admin.streams.create({"name": stream, "subjects": [format]})
            for payload in payloads[format]:
                admin.publish(format, payload)
            options = {"servers": url, "stream": stream}
            columns = ("sequence", "decoded.id", "decode_error")
            frame = spark.read.format("jetstream").options(**options).load()
            try:
                batch = decode(frame, format, schemas[format], confluent=True)
            except OptionError as error:
                return {"refused": str(error)}
            result[format] = rows(batch.select("sequence", F.to_json("decoded"), "decode_error"))
            result[f"{format} type"] = batch.schema["decoded"].dataType.simpleString()
            result[f"{format} ids"] = rows(batch.where("decode_error IS NULL").select("decoded.id"))
            frame = spark.readStream.format("jetstream").options(**options).load()
            streaming = decode(frame, format, schemas[format], confluent=True).select(*columns)
            query = (
                streaming.writeStream.format("memory")
                .queryName(f"of_{format}")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert rows(spark.table(f"of_{format}")) == rows(batch.select(*columns))
        clear(spark, admin)
    return result


def looked_up(spark: SparkSession, url: str) -> dict[str, Any]:
    """Orders with the values of a bucket: a batch, and a streaming query with a watermark."""
    result: dict[str, Any] = {}
    with JetStreamAdmin(servers=url) as admin:
        admin.kv.create("CITIES")
        cities = admin.kv.bucket("CITIES")
        for key, value in (("a", "Aachen"), ("b", "Bonn"), ("gone", "Gera")):
            cities.put(key, value)
        cities.delete("gone")
        admin.streams.create({"name": "ORDERS", "subjects": ["orders.>"]})
        for key in ("a", "b", "gone", "never", "a"):
            admin.publish(f"orders.{key}", "1")
        options = {"servers": url, "stream": "ORDERS"}
        city = F.substring_index("subject", ".", -1).alias("city.key")
        at = F.to_timestamp(F.lit("2026-03-01T12:00:00Z")).alias("at")
        frame = spark.read.format("jetstream").options(**options).load()
        try:
            batch = lookup(
                frame.select("sequence", city, at),
                "CITIES",
                "city.key",
                updated="since",
                servers=url,
            )
        except OptionError as error:
            clear(spark, admin)
            return {"refused": str(error)}
        result["schema"] = batch.schema.simpleString()
        result["batch"] = rows(batch.select("sequence", "value", "revision"))
        result["times"] = rows(batch.groupBy().agg(F.count("since"), F.countDistinct("since")))
        frame = spark.readStream.format("jetstream").options(**options).load()
        streaming = lookup(
            frame.select("sequence", city, at).withWatermark("at", "1 minute"),
            "CITIES",
            "city.key",
            value="City",
            revision=None,
            leader=True,
            servers=url,
        )
        # Spark refuses this without the watermark of the frame.
        once = streaming.dropDuplicatesWithinWatermark(["sequence"])
        query = (
            once.select("sequence", "City")
            .writeStream.format("memory")
            .queryName("looked_up")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        result["streamed"] = rows(spark.table("looked_up"))
        result["failed"] = error_of(
            lambda: lookup(
                frame_of_keys(spark), "NOWHERE", "key", servers=url, retryTimeout="1s"
            ).collect()
        )
        clear(spark, admin)
    return result


def frame_of_keys(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a",)], "key string")


def front_door(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """All of it."""
    return {
        "attached": attached(spark, url),
        "paths": paths(spark, url, folder),
        "tables": tables(spark, url, folder),
        "decoded": decoded(spark, url, folder),
        "variants": variants(spark),
        "by libraries": by_libraries(spark, url, folder),
        "looked up": looked_up(spark, url),
        "by registry": by_registry(spark, folder),
    }


if __name__ == "__main__":
    mode, url, folder = sys.argv[1:]
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config(
        "spark.sql.shuffle.partitions", "1"
    )
    builder = builder.config("spark.sql.warehouse.dir", str(Path(folder) / "warehouse"))
    session = (
        builder.remote("local[2]") if mode == "connect" else builder.master("local[2]")
    ).getOrCreate()
    register(session)
    print("RESULT", json.dumps({"spark": session.version, **front_door(session, url, folder)}))
    session.stop()
