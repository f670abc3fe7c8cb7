"""Writes what is in `formats/`: what a release leaves in checkpoints and on servers, and what users
see of it.

    python -m tests.compat.write_formats interface outputs names
    python -m tests.compat.write_formats checkpoint ledger

Run the first line after a change on purpose of the interface, the output of a command, or a name.
Look at what changes in the files, and say so in the changelog.

The second line replaces what an older release has written, and forgets whether that can still be
read. Run it only for a new version of a format, when the older version is read no more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.java import ensure_java
from spark_jetstream.protocol.conventions import stand_in
from spark_jetstream.sink.ledger import BUCKET, STREAM
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.testing import NatsServer
from tests.compat.interface import interface
from tests.support.command import run_command
from tests.support.publish import Message, Publisher, Tap
from tests.support.queries import Run, available_now, batch, streaming
from tests.support.sinking import Sink, die, seen_in
from tests.support.sinking import batch as record_batch
from tests.support.streams import Stream

FORMATS = Path(__file__).with_name("formats")
SOURCES = ("ORDERS", "RETURNS")
READ, TO_READ = 5, 4  # messages of each source, before and after the checkpoint was written
CHECKPOINT = ("metadata", "offsets/0", "commits/0")
QUERY = "9f1b3c5d7e2a4068"


# -- a checkpoint --


def fill_source(publisher: Publisher, name: str, count: int) -> None:
    """Store messages whose payloads count from 1 on."""
    subject = name.lower()
    first = publisher.api(f"STREAM.INFO.{name}")["state"]["last_seq"] + 1
    publisher.publish(
        [
            Message(f"{subject}.{n % 3}", b"%d" % n, [("N", str(n))])
            for n in range(first, first + count)
        ]
    )


def read_on(spark: SparkSession, url: str, checkpoint: Path) -> Run:
    """A run of the query that the stored checkpoint is of."""
    return available_now(streaming(spark, url, ",".join(SOURCES)), checkpoint)


def created(publisher: Publisher, name: str) -> str:
    """When a stream was created, as the server prints it."""
    return str(publisher.api(f"STREAM.INFO.{name}")["created"])


def write_checkpoint(spark: SparkSession) -> None:
    """The checkpoint of a query after its first micro-batch, what the second adds to it, and the
    streams before it.
    """
    folder = FORMATS / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    with (
        NatsServer() as server,
        Publisher(server.url) as publisher,
        JetStreamAdmin(servers=server.url) as admin,
    ):
        for name in SOURCES:
            admin.streams.create(name=name, subjects=[f"{name.lower()}.>"])
            fill_source(publisher, name, READ)
        with tempfile.TemporaryDirectory() as kept:
            read_on(spark, server.url, Path(kept))
            for name in SOURCES:
                fill_source(publisher, name, TO_READ)
                admin.streams.backup(name, folder / name)
            read_on(spark, server.url, Path(kept))
            for file in (*CHECKPOINT, "offsets/1"):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(kept, file), folder / file)
        write_json(folder / "created.json", {name: created(publisher, name) for name in SOURCES})


# -- a ledger --


def tasks() -> Iterator[tuple[WriteTask, list[pa.RecordBatch]]]:
    """Return tasks and their rows: the first task is of a query, and is done.

    The others are of a query and of a batch write. The target holds only the rows of their first
    record batch.
    """
    plain: dict[str, list[Any]] = {
        "data": [b"row %d" % n for n in range(6)],
        "subject": [f"copies.{n % 2}" for n in range(6)],
        "headers": [[("N", [str(n), "x"])] if n % 2 else None for n in range(6)],
        "msg_id": [None] * 6,
    }
    yield WriteTask(QUERY, 12, 0), [record_batch(**plain)]
    # Equal rows, and one that no stream takes.
    some = {
        **plain,
        "data": [b"equal", b"other", b"equal"] * 2,
        "subject": ["copies.a"] * 4 + ["nowhere", "copies.a"],
    }
    some["headers"] = [None] * 6
    others = {**plain, "data": [b"line %d" % n for n in range(6)]}
    yield (
        WriteTask(QUERY, 12, 1),
        [record_batch(**some), record_batch(**others), record_batch(**some)],
    )
    own = {**plain, "msg_id": ["mine-0", None, "mine-2", None, "mine-4", None]}
    later = {**own, "msg_id": [None, "mine-7"] * 3}
    later["msg_id"][3:] = [None, "mine-8", None]
    yield WriteTask("w-load", 0, 3, 30 * 86400.0), [record_batch(**own), record_batch(**later)]


def sink(url: str) -> Sink:
    """A sink as a new process has it, which has checked nothing yet."""
    return Sink(url, delivery="exactly-once", deadLetterSubject="copies.dead").started()


def target(publisher: Publisher, url: str) -> Stream:
    """The stream that the tasks write to."""
    return Stream(url, "COPIES", publisher, duplicate_window=100_000_000)


def messages(publisher: Publisher, stream: str) -> list[dict[str, Any]]:
    """All messages of a stream as they are stored."""
    return [
        {
            "subject": entry.subject,
            "sequence": entry.sequence,
            "headers": entry.block.decode(),
            "data": entry.data.decode(),
        }
        for entry in seen_in(publisher, stream)
    ]


def on_server(publisher: Publisher) -> dict[str, Any]:
    """Streams of target and ledger as they are, and when the target was created."""
    config = publisher.api(f"STREAM.INFO.{STREAM}")["config"]
    return {
        "bucket": {name: value for name, value in config.items() if name != "metadata"},
        "created": created(publisher, "COPIES"),
        "rows": messages(publisher, "COPIES"),
        "entries": messages(publisher, STREAM),
    }


def write_ledger() -> None:
    """Write what the tasks leave when two of them are killed, and when these are run again."""
    with NatsServer() as server, Publisher(server.url) as publisher:
        copies = target(publisher, server.url)
        copies.send(Message("copies.before", b"not ours"))
        (done, batches), *killed = tasks()
        sink(server.url).write(batches, done)
        for task, batches in killed:
            die(sink(server.url), copies, batches[0], task=task, names=batches[0].schema.names)
        before = on_server(publisher)
        for task, batches in tasks():
            sink(server.url).write(batches, task)
        after = comparable(on_server(publisher))
        after["rows"] = after["rows"][len(before["rows"]) :]
        write_json(FORMATS / "ledger.json", {"before": before, "after": after})


def put_ledger(publisher: Publisher, url: str, before: dict[str, Any]) -> None:
    """Put target and ledger on a server as they are stored; entries name the new target by its time
    of creation.
    """
    target(publisher, url)
    publisher.api(f"STREAM.CREATE.{STREAM}", before["bucket"])
    now = created(publisher, "COPIES")
    for entry in (*before["rows"], *before["entries"]):
        # Here an entry is written over nothing.
        head = re.sub(r"(Nats-Expected-Last-Subject-Sequence: )\d+", r"\g<1>0", entry["headers"])
        data = entry["data"].replace(before["created"], now)
        publisher.publish([Message(entry["subject"], data.encode(), block=head.encode() or None)])


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """The same without what differs from run to run, and with entries by their keys."""
    text = json.dumps(
        {**state, "entries": sorted(state["entries"], key=lambda entry: str(entry["subject"]))}
    )
    for pattern, instead in (
        (re.escape(state["created"]), "<created>"),
        (r'(attempt\\": \\")[0-9a-f]{16}\\"', r'\1<16 hex>\\"'),
        (r'(seconds\\": )[0-9.]+', r"\1<seconds>"),
        (r"(Nats-Expected-Last-Subject-Sequence: )\d+", r"\1<revision>"),
    ):
        text = re.sub(pattern, instead, text)
    plain: dict[str, Any] = json.loads(text)
    for entry in plain["entries"]:
        del entry["sequence"]
    return {"rows": plain["rows"], "entries": plain["entries"]}


def filled(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries as they could be stored, with values for what `comparable` has taken out."""
    text = (
        json.dumps(entries)
        .replace("<16 hex>", "0" * 16)
        .replace("<seconds>", "0.1")
        .replace("<revision>", "0")
    )
    printed: list[dict[str, Any]] = json.loads(
        text.replace("<created>", read_json("ledger.json")["before"]["created"])
    )
    return printed


# -- names on a server --


def names(spark: SparkSession, url: str) -> dict[str, Any]:
    """Return the names of all that the connector makes on a server, seen on the wire.

    In place of an id a name has the length of the id.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        publisher, tap = stack.enter_context(Publisher(url)), stack.enter_context(Tap(url))
        admin = stack.enter_context(JetStreamAdmin(servers=url))
        admin.streams.create(name="ORDERS", subjects=["orders.>"])
        admin.streams.create(name="COPIES", subjects=["copies.>"])
        fill_source(publisher, "ORDERS", 2)
        rows = streaming(spark, url, "ORDERS", durable="job").select(
            "data", F.lit("copies.stream").alias("subject")
        )
        writer = rows.writeStream.format("jetstream").options(servers=url, delivery="exactly-once")
        query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
        query.awaitTermination()
        whole = query.id.replace("-", "")
        table = batch(
            spark, url, "ORDERS", subjects="orders.1", startingTimestamp="2020-01-01T00:00:00Z"
        )
        load = (
            table.select("data", F.lit("copies.batch").alias("subject"))
            .coalesce(1)
            .write.mode("append")
        )
        load.format("jetstream").options(
            servers=url, delivery="exactly-once", writeId="load"
        ).save()
        publisher.publish(
            [Message(f"$KV.{BUCKET}.{QUERY}.0", _entry_of_another(publisher, attempt="0"))]
        )
        publisher.publish([Message(f"$KV.{BUCKET}.{QUERY}.batch", _entry_of_another(publisher))])
        done, batches = next(tasks())
        sink(url).write(batches, done)
        _objects(spark, url, admin)
        _keys(spark, url, admin)
        heard = tap.heard()
        stored = messages(publisher, "COPIES")
        ids = [
            line
            for message in stored
            for line in message["headers"].split("\r\n")
            if line.startswith("Nats-Msg-Id")
        ]
        entries = {
            message["subject"]: message["headers"] for message in messages(publisher, STREAM)
        }
        names = {
            "streams": sorted(admin.streams.names()),
            "consumers": [
                message.subject for message in heard if ".CONSUMER.CREATE." in message.subject
            ],
            "durable": [
                json.loads(message.data)["config"]
                for message in heard
                if message.subject.endswith(".CREATE.ORDERS.job")
            ],
            "stand-in of a durable": stand_in("job"),
            "ledger": entries,
            "message ids": ids,
            "notes of uploads": [
                message.data.decode()
                for message in heard
                if ".C.spark-jetstream-" in message.subject
            ],
            "subjects of notes": sorted(
                {message.subject for message in heard if ".C.spark-jetstream-" in message.subject}
            ),
        }
        plain: dict[str, Any] = _without_ids(
            names, {whole[:16]: "<query 16>", whole[:8]: "<query 8>"}
        )
        # How often, and in which order, is not a name.
        return plain | {
            consumer: sorted(set(plain[consumer])) for consumer in ("consumers", "message ids")
        }


def _entry_of_another(publisher: Publisher, **more: str) -> bytes:
    """Return an entry of an attempt that has begun a task, or of its batch.

    The next attempt then checks which rows are stored.
    """
    streams = {"COPIES": {"created": created(publisher, "COPIES"), "next": 1}}
    entry = {"version": 2, "batch": 12, "run": "", "lease": 0.1, "streams": streams, **more}
    return json.dumps(entry).encode()


def _objects(spark: SparkSession, url: str, admin: JetStreamAdmin) -> None:
    admin.objects.create("files")
    rows = spark.createDataFrame([("a/b.txt", b"content")], "name string, content binary").coalesce(
        1
    )
    rows.write.mode("append").format("jetstream").options(servers=url, objectBucket="files").save()
    spark.read.format("jetstream").options(servers=url, objectBucket="files").load().collect()


def _keys(spark: SparkSession, url: str, admin: JetStreamAdmin) -> None:
    admin.kv.create("settings")
    admin.kv.bucket("settings").put("colour", b"red")
    spark.read.format("jetstream").options(servers=url, bucket="settings").load().collect()
    next(admin.kv.bucket("settings").watch(timeout=0.1))


def _without_ids(expected: Any, known: dict[str, str]) -> Any:
    text = json.dumps(expected)
    for value, name in known.items():
        text = text.replace(value, name)
    # 24 digits are a hash, and the same every time.
    hexadecimal = r"(?<![0-9A-Za-z])([0-9a-f]{8,16}|[0-9a-f]{32})(?![0-9A-Za-z])"
    text = re.sub(hexadecimal, lambda match: f"<{len(match[0])} hex>", text)
    text = re.sub(r"\b[0-9A-Za-z]{22}\b", "<22 letters and digits>", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", text)
    return json.loads(re.sub(r"(Nats-Expected-Last-Subject-Sequence: )\d+", r"\1<revision>", text))


# -- output of commands --

OUTPUTS = (
    "stream info ORDERS",
    "stream ls",
    "stream get ORDERS 1",
    "consumer info ORDERS worker",
    "consumer ls ORDERS",
    "kv ls",
    "kv info settings",
    "kv ls settings",
    "kv get settings colour",
    "object ls",
    "object ls files",
    "account info",
    "lag",
    "doctor --no-spark --stream ORDERS",
)


def outputs(url: str) -> dict[str, Any]:
    """The fields of what commands print with ``--json``, and what others end with."""
    with JetStreamAdmin(servers=url) as admin, Publisher(url) as publisher:
        admin.streams.create(name="ORDERS", subjects=["orders.>"])
        admin.consumers.create(
            "ORDERS", name="worker", durable_name="worker", ack_policy="explicit"
        )
        fill_source(publisher, "ORDERS", 3)
        admin.kv.create("settings")
        admin.kv.bucket("settings").put("colour", b"red")
        admin.objects.create("files")
        admin.objects.bucket("files").put("a", b"content")
    printed: dict[str, Any] = {}
    for line in OUTPUTS:
        ran = run_command(*line.split(), "--json", url=url)
        assert ran.raw, (line, ran.err)
        printed[line] = fields(ran.json)
    for line, at in (
        ("stream info NONE", url),
        ("stream info --wrong", url),
        ("stream ls", "nats://127.0.0.1:1"),
    ):
        printed[f"{line} ({'wrong' if at == url else 'no server'})"] = run_command(
            *line.split(), url=at
        ).code
    return printed


def fields(value: Any) -> Any:
    """Return the names of fields without their values; elements of a list count as one."""
    if isinstance(value, dict):
        # The server's own entries depend on its version.
        return {name: "" if name == "metadata" else fields(item) for name, item in value.items()}
    if isinstance(value, list):
        whole: list[Any] = []
        for item in map(fields, value):
            if whole and isinstance(item, dict):
                whole[0].update(item)
            elif not whole:
                whole.append(item)
        return whole
    return ""


# -- writing --


def write_json(path: Path, content: Any) -> None:
    """JSON with a line for each field, and lists of plain values on one line."""
    text = json.dumps(content, indent=1)
    plain = re.compile(r"\[\s+[^\[\]{}]*?\s+\]")
    path.write_text(plain.sub(lambda match: re.sub(r"\n\s*", " ", match[0]), text) + "\n")


def read_json(name: str) -> Any:
    return json.loads((FORMATS / name).read_text())


def main(wanted: list[str]) -> None:
    """Write these parts."""
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()

    def with_server(make: Callable[[str], Any]) -> Any:
        with NatsServer() as server:
            return make(server.url)

    parts: dict[str, Callable[[], None]] = {
        "interface": lambda: write_json(FORMATS / "interface.json", interface()),
        "outputs": lambda: write_json(FORMATS / "outputs.json", with_server(outputs)),
        "names": lambda: write_json(
            FORMATS / "names.json", with_server(lambda url: names(spark, url))
        ),
        "checkpoint": lambda: write_checkpoint(spark),
        "ledger": write_ledger,
    }
    for part in wanted:
        parts[part]()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
