"""The users that docs/permissions.md shows, each with what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from spark_jetstream.permissions import Permission, merged, needed

need = partial(needed, inbox_prefix="_INBOX_spark")

PAGE_PASSWORD = "change-me"
USERS: Mapping[str, tuple[Permission, ...]] = {
    "reader": need("read", stream="ORDERS"),
    "eu_reader": need("read", stream="ORDERS", subjects=["orders.eu.>"]),
    "direct_reader": need("read-direct", stream="ORDERS"),
    "query": merged(need("read", stream="EVENTS"), need("durable", stream="EVENTS", durable="spark")),
    "old_query": merged(need("read", stream="EVENTS"), need("durable-old", stream="EVENTS", durable="spark")),
    "worker": merged(need("read-direct", stream="JOBS"), need("durable-queue", stream="JOBS", durable="spark")),
    "prices_reader": need("kv-read", bucket="prices"),
    "prices_direct_reader": need("kv-read-direct", bucket="prices"),
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
    "saver": need("admin-backup"),
    "restorer": need("admin-restore"),
    "prices": need("admin-kv", bucket="prices"),
    "images": need("admin-objects", bucket="IMAGES"),
    "listener": need("admin-events"),
}
