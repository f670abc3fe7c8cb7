"""The page about permissions: its configurations are those of the data, and Spark runs with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jetstream.permissions import Permission, merged, needed, user_config
from spark_jetstream.testing import NatsServer
from tests.support.pages import ROOT, blocks
from tests.support.publish import Publisher
from tests.support.queries import available_now, streaming
from tests.support.streams import Stream

PAGE = ROOT / "docs" / "permissions.md"
need = partial(needed, inbox_prefix="_INBOX_spark")

PAGE_PASSWORD = "change-me"
USERS: Mapping[str, tuple[Permission, ...]] = {
    "reader": need("read", stream="ORDERS"),
    "eu_reader": need("read", stream="ORDERS", subjects=["orders.eu.>"]),
    "direct_reader": need("read-direct", stream="ORDERS"),
    "finder": merged(need("read"), need("find-streams")),
    "successor": merged(
        need("read", stream="ORDERS"), need("starting-consumer", stream="ORDERS", durable="billing")
    ),
    "letters_reader": need("dead-letters-read", stream="ORDERS"),
    "query": merged(
        need("read", stream="EVENTS"), need("durable", stream="EVENTS", durable="spark")
    ),
    "old_query": merged(
        need("read", stream="EVENTS"), need("durable-old", stream="EVENTS", durable="spark")
    ),
    "worker": merged(
        need("read-direct", stream="JOBS"), need("durable-queue", stream="JOBS", durable="spark")
    ),
    "sharer": need("share", stream="JOBS", durable="pool"),
    "prices_reader": need("kv-read", bucket="prices"),
    "prices_direct_reader": need("kv-read-direct", bucket="prices"),
    "prices_lookup": need("kv-lookup", bucket="prices"),
    "prices_leader_lookup": need("kv-lookup-leader", bucket="prices"),
    "prices_writer": need("kv-write", bucket="prices", dead_letter="totals.refused"),
    "images_reader": need("object-read", bucket="IMAGES"),
    "images_direct_reader": need("object-read-direct", bucket="IMAGES"),
    "images_writer": need("object-write", bucket="IMAGES"),
    "writer": need("write", stream="TOTALS", subjects=["totals.>"]),
    "careful_writer": need("write-exactly-once", stream="TOTALS", subjects=["totals.>"]),
    "creator": need("ensure-stream-update", stream="TOTALS"),
    "account": need("admin-account"),
    "onlooker": need("admin-look"),
    "streams": need("admin-streams"),
    "consumers": need("admin-consumers"),
    "messages": need("admin-messages", stream="ORDERS"),
    "counter": need("admin-counters", stream="VISITS", subjects=["visits.>"]),
    "scheduler": need("admin-schedules", stream="REMINDERS"),
    "saver": need("admin-backup"),
    "restorer": need("admin-restore"),
    "prices": need("admin-kv", bucket="prices"),
    "images": need("admin-objects", bucket="IMAGES"),
    "listener": need("admin-events"),
    "tracer": need("admin-trace", subjects=["orders.>"]),
    "copier": need("leaf-copy", stream="ORDERS", prefix="$JS.hub.API"),
    "shop": need("leaf-origin", stream="ORDERS", prefix="$JS.leaf.API"),
}
"""The users that the page shows."""


def configurations() -> dict[str, str]:
    """Return the configurations of the page by their users."""
    texts = [block.text.strip() for block in blocks(PAGE, "conf")]
    by_user = {re.findall(r'user: "(\w+)"', text)[0]: text for text in texts}
    assert len(by_user) == len(texts)
    return by_user


def test_the_page_shows_what_the_tests_enforce() -> None:
    assert configurations() == {
        name: user_config(name, PAGE_PASSWORD, lines, notes=True) for name, lines in USERS.items()
    }


def test_the_page_says_what_happens_without_a_line() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    missing = {
        line.without for lines in USERS.values() for line in lines if line.without not in text
    }
    assert missing == set()


def test_its_example_prints_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(PAGE, "python")
    block.run({}, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "subscribe _INBOX_spark.> answers"
    assert len(lines) == len(USERS["eu_reader"])


@pytest.fixture(scope="module")
def shop() -> Iterator[NatsServer]:
    """Start a server with the account of the page and all of its users."""
    (frame,) = (block.text for block in blocks(PAGE, "text") if "accounts {" in block.text)
    users = "\n".join(configurations().values())
    with NatsServer(config=frame.replace("# blocks of this page", users)) as server:
        yield server


@pytest.mark.full
def test_spark_reads_keeps_its_position_and_writes(
    spark: SparkSession, shop: NatsServer, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"password": PAGE_PASSWORD, "inboxPrefix": "_INBOX_spark"}
    with Publisher(shop.url, user="admin", **{"pass": PAGE_PASSWORD}) as admin:
        events = Stream(shop.url, "EVENTS", admin, retention="interest")
        totals = Stream(shop.url, "TOTALS", admin)
        frame = streaming(spark, shop.url, "EVENTS", None, user="query", durable="spark", **given)
        available_now(frame, tmp_path)  # creates the consumer that holds messages
        events.fill(20)
        assert available_now(frame, tmp_path).counts == [20]
        assert events.state()["messages"] == 0
        rows = spark.range(5).selectExpr("'totals.a' AS subject", "CAST(id AS STRING) AS data")
        where = {"servers": shop.url, "stream": "TOTALS", "user": "writer", **given}
        rows.write.format("jetstream").options(**where).mode("append").save()
        assert totals.state()["messages"] == 5
        with pytest.raises(
            Exception, match=r"the account may not publish to \$JS.API.STREAM.INFO.EVENTS"
        ):
            spark.read.format("jetstream").options(**{**where, "stream": "EVENTS"}).load().count()
