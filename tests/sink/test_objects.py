"""Objects written from rows: what nats-py reads is what was written, and nothing else lies in the
bucket.

After each test of a failure the bucket is looked at as a whole: meta messages, the chunks that they
speak of, and nothing beside them.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import logging
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from nats.js.errors import NotFoundError

from spark_jetstream.buckets.objects import meta_subject
from spark_jetstream.buckets.upload_notes import note_body, note_subject
from spark_jetstream.buckets.uploads import MAX_BYTES_IN_FLIGHT
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import (
    OptionError,
    OutageError,
    PermissionDenied,
    RowRefused,
    StreamNotFound,
)
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE as CHUNK
from spark_jetstream.sink.objects import ObjectColumns, object_rows
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.testing import NatsServer
from tests.support.calls import store, writer_of
from tests.support.leaf import Linked
from tests.support.objects import assert_only_objects, content, in_store
from tests.support.proxy import Acks, WireProxy, answer, is_ack
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until
from tests.support.sinking import HEADERS, Sink, batch, seen
from tests.support.streams import MakeStream, Stream
from tests.support.write_job import run_apart

pytestmark = pytest.mark.usefixtures("no_connection_left")

_numbers = itertools.count(1)
PASSWORD = "pw"
ANN = f"//ann:{PASSWORD}@"
Make = Callable[..., "Bucket"]


class Bucket(Stream):
    """The stream of an object bucket, and what nats-py and the sink make of it."""

    def __init__(
        self, url: str, name: str = "", publisher: Publisher | None = None, **config: Any
    ) -> None:
        self.bucket = name or f"B{next(_numbers)}"
        usual: dict[str, Any] = {"discard": "new", "allow_rollup_hdrs": True, "allow_direct": True}
        usual["subjects"] = [f"$O.{self.bucket}.C.>", f"$O.{self.bucket}.M.>"]
        super().__init__(url, f"OBJ_{self.bucket}", publisher, **{**usual, **config})

    @property
    def options(self) -> dict[str, Any]:
        return {"servers": self.url, "objectBucket": self.bucket}

    def sink(self, **given: Any) -> Sink:
        return Sink(**{**self.options, **given})

    def write(self, *objects: tuple[Any, Any], **given: object) -> TaskReport:
        """Write these names and contents in one task."""
        names, contents = (list(column) for column in zip(*objects, strict=True))
        return self.sink(**given).write([batch(name=names, content=contents)])

    def nats(self, work: Callable[[Any], Any]) -> Any:
        """Return the result of `work` with nats-py's object store."""
        return in_store(self.url, self.bucket, work)

    def contents(self) -> dict[str, bytes]:
        """All objects, their digests verified by nats-py."""

        async def read(store: Any) -> dict[str, bytes]:
            try:
                found = await store.list(ignore_deletes=True)
            except NotFoundError:
                return {}
            # Without a file, nats-py copies all that it has of an object for each chunk.
            contents = {each.name: io.BytesIO() for each in found}
            for name, into in contents.items():
                await asyncio.wait_for(store.get(name, writeinto=into), 300)
            return {name: into.getvalue() for name, into in contents.items()}

        found: dict[str, bytes] = self.nats(read)
        return found

    def meta(self, name: str) -> dict[str, Any]:
        """The meta message of an object."""
        body: dict[str, Any] = json.loads(base64.b64decode(self.last(name)["data"]))
        return body

    def last(self, name: str) -> dict[str, Any]:
        """The message that holds the meta message of an object."""
        body = {"last_by_subj": meta_subject(self.bucket, name)}
        message: dict[str, Any] = self.publisher.api(f"STREAM.MSG.GET.{self.name}", body)["message"]
        return message

    def check(self) -> None:
        """Nothing is in the bucket but objects: meta messages, and as many chunks as they say."""
        assert_only_objects(self.publisher.api, self.bucket)


@pytest.fixture
def make(nats_server: NatsServer, publisher: Publisher) -> Iterator[Make]:
    """A function that makes a bucket in memory, on the shared server unless told; gone after the
    test.
    """
    made: list[Bucket] = []

    def make(name: str = "", url: str = "", **config: Any) -> Bucket:
        here = Publisher(url) if url else publisher
        made.append(Bucket(url or nats_server.url, name, here, **{"storage": "memory", **config}))
        return made[-1]

    yield make
    for bucket in made:
        if bucket.publisher is not publisher:
            bucket.publisher.close()
        elif bucket.name in publisher.api("STREAM.NAMES")["streams"]:
            bucket.delete()


@pytest.fixture
def bucket(make: Make) -> Bucket:
    return make(storage="file")


# -- pure --


class TestRows:
    #: With one of the columns that the source adds, which is passed over.
    COLUMNS = ObjectColumns.check(
        [
            ("name", "string"),
            ("size", "bigint"),
            ("content", "binary"),
            ("headers", "map<string,array<string>>"),
        ]
    )

    def test_reads_rows_without_copying_contents(self) -> None:
        contents = pa.array([b"ab", None, b"", b"cde", b"f"], pa.binary())
        given = [
            [("A", ["1"]), ("ü: \r\n", ["2", ""]), ("e", [])],
            None,
            [],
            [("A", [None])],
            [("B", None)],
        ]
        headers = pa.array(given, HEADERS)
        names, sizes = pa.array(["a", "b", "c", "d", "e"]), pa.array([1, 2, 3, 4, 5])
        rows = pa.record_batch(
            {"name": names, "size": sizes, "content": contents, "headers": headers}
        )
        found = list(object_rows(rows, self.COLUMNS, 5))
        assert [(row.number, row.name, bytes(row.content)) for row in found] == [
            (5, "a", b"ab"),
            (6, "b", b""),
            (7, "c", b""),
            (8, "d", b"cde"),
            (9, "e", b"f"),
        ]
        assert [row.headers for row in found] == [
            {"A": ("1",), "ü: \r\n": ("2", ""), "e": ()},
            {},
            {},
            {},
            {},
        ]
        assert [row.problem for row in found] == [
            None,
            "column content is null: an object without bytes is empty, not null",
            None,
            "column headers holds null as a value of 'A'",
            "column headers holds null as a value of 'B'",
        ]
        assert found[0].content.obj is found[3].content.obj

    @pytest.mark.parametrize(
        "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str
    )
    def test_reads_any_kind_of_text_and_slices(self, kind: pa.DataType) -> None:
        values = pa.array(["x", "é", "", "z"]).cast(kind)
        rows = pa.record_batch({"content": values, "name": pa.array(["a", "b/c", "d", "e"])})
        columns = ObjectColumns.check([("content", "string"), ("name", "string")])
        found = [
            (row.name, bytes(row.content)) for row in object_rows(rows.slice(1, 2), columns, 1)
        ]
        assert found == [("b/c", "é".encode()), ("d", b"")]
        assert list(object_rows(rows.slice(4), columns, 1)) == []

    @pytest.mark.parametrize(
        ("name", "said"),
        [(None, "name is null"), ("", "name is empty"), ("é" * 1025, "its name has 2050 bytes")],
    )
    def test_refuses_names(self, name: str | None, said: str) -> None:
        columns = ObjectColumns.check([("name", "string"), ("content", "binary")])
        (row,) = object_rows(batch(name=[name], content=[b"x"]), columns, 1)
        assert (row.name, said in str(row.problem)) == (name or "", True)

    def test_takes_headers_without_a_value_for_none(self) -> None:
        """Spark's types are void for `lit(None)`, and map<void,void> for `create_map()`."""
        nothing = pa.MapArray.from_arrays([0, 0], pa.nulls(0), pa.nulls(0))
        columns = ObjectColumns(("name", "content", "headers"))
        for headers in (pa.nulls(1), nothing):
            (row,) = object_rows(batch(name=["a"], content=[b"x"], headers=headers), columns, 1)
            assert (row.headers, row.problem) == ({}, None)

    def test_refuses_text_that_is_not_utf8(self) -> None:
        """Spark makes text of this kind where bytes are cast to a string."""
        texts = pa.array([b"gr\xfcn", b"green"], pa.binary()).view(pa.string())
        headers = pa.MapArray.from_arrays([0, 0, 1], ["A"], texts.slice(0, 1))
        for rows in (
            batch(name=texts, content=[b"x"] * 2),
            batch(name=["b", "a"], content=[b"x"] * 2, headers=headers),
        ):
            problems = [
                row.problem for row in object_rows(rows, ObjectColumns(tuple(rows.schema.names)), 1)
            ]
            assert sorted(map(str, problems)) == [
                "None",
                "its name, or one of its headers, is not UTF-8",
            ]


# -- what others read --


class TestReaders:
    @pytest.mark.full
    def test_a_large_object(self, bucket: Bucket) -> None:
        data = content("large", 1, 100_000_001)
        rows = batch(name=["large"], content=[data])
        tracemalloc.start()
        assert bucket.sink().write([rows]).size == len(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * MAX_BYTES_IN_FLIGHT
        assert bucket.contents()["large"] == data
        assert bucket.meta("large")["chunks"] == 763
        bucket.check()

    def test_takes_the_place_of_what_was_there(self, bucket: Bucket) -> None:
        async def prepare(store: Any) -> None:
            for name in ("other client", "deleted"):
                await store.put(name, content(name, 1, 5 * CHUNK))
            await store.put("empty", b"")
            await store.delete("deleted")

        bucket.nats(prepare)
        link = {
            "name": "link",
            "bucket": bucket.bucket,
            "nuid": "",
            "options": {"link": {"bucket": "x", "name": "y"}},
        }
        for name, body in (("link", json.dumps(link).encode()), ("broken meta", b"{")):
            bucket.send(Message(meta_subject(bucket.bucket, name), body))
        names = ("other client", "deleted", "empty", "link", "broken meta", "new")
        sizes = (2 * CHUNK, CHUNK + 1, CHUNK, CHUNK - 1, 1, 0)
        objects = {name: content(name, 2, size) for name, size in zip(names, sizes, strict=True)}
        report = bucket.write(*objects.items())
        assert bucket.contents() == objects
        assert (report.rows, report.stored, report.size) == (6, 6, sum(sizes))
        assert report.streams[bucket.name][1] == bucket.last("new")["seq"]
        assert "link" not in bucket.meta("link").get("options", {})
        bucket.check()

    def test_takes_the_place_of_what_has_expired(self, make: Make) -> None:
        """The note of a killed writer, and an object: a server with limit markers leaves an empty
        message of each.
        """
        second = 1_000_000_000
        made = make(max_age=second, allow_msg_ttl=True, subject_delete_marker_ttl=3600 * second)
        note = Message(note_subject(made.bucket, "a"), note_body(["killed"]))
        made.send(note, Message(meta_subject(made.bucket, "a"), b'{"name":"a","nuid":"n"}'))
        wait_until(lambda: made.state()["last_seq"] == 4, "the markers")
        made.update(max_age=0)
        made.write(("a", b"x"))
        assert made.contents() == {"a": b"x"}
        made.check()


# -- rows and buckets that cannot be --


class TestRefusals:
    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ({"sealed": True}, "is sealed and takes no more objects"),
            ({"no_ack": True}, "has no_ack set"),
            ({"deny_purge": True, "allow_rollup_hdrs": False}, "has deny_purge set"),
            (
                {"subjects": ["$O.nothing.>"]},
                r"is no Object Store bucket: stream OBJ_\w+ captures \$O\.nothing\.>",
            ),
            (
                {"subjects": [], "mirror": {"name": "KEPT"}},
                "is a mirror, which nobody can write to",
            ),
        ],
    )
    def test_a_bucket_that_takes_nothing(
        self, make: Make, config: dict[str, Any], said: str
    ) -> None:
        made = make(**config)
        with pytest.raises(
            OptionError, match=f"option objectBucket: {made.bucket} {said}"
        ) as raised:
            made.sink().started()
        assert raised.value.option == "objectBucket"

    def test_a_bucket_that_is_missing(self, bucket: Bucket) -> None:
        bucket.sink().started()
        said = r"there is no Object Store bucket nowhere \(option objectBucket\)"
        with pytest.raises(StreamNotFound, match=f"^{said}$"):
            bucket.sink(objectBucket="nowhere").started()
        with pytest.raises(
            StreamNotFound,
            match=rf"^row 1 of partition 0, object 'a' of bucket nowhere: {said}; 0 obj",
        ):
            bucket.write(("a", b"x"), objectBucket="nowhere")

    def test_a_row_that_is_no_object(self, bucket: Bucket) -> None:
        said = (
            r"^row 3 of partition 0, object 'c' of bucket B.* column content is null.*; "
            r"2 objects of the task are stored$"
        )
        with pytest.raises(RowRefused, match=said) as raised:
            bucket.write(("a", b"1"), ("b", b"2"), ("c", None), ("d", b"4"))
        assert (raised.value.number, raised.value.stored) == (3, 2)
        assert bucket.contents() == {"a": b"1", "b": b"2"}

    def test_a_full_bucket(self, bucket: Bucket) -> None:
        bucket.write(("a", content("a", 1, 3 * CHUNK)))
        bucket.update(max_bytes=6 * CHUNK)
        with pytest.raises(
            RowRefused,
            match=r"maximum bytes exceeded \(error 10077\): the bucket is full: raise its "
            r"max_bytes, or remove "
            r"objects, also after 2 retries \(option maxRetries\); 1 object of the task is stored",
        ) as raised:
            bucket.write(("b", b"x"), ("a", content("a", 2, 4 * CHUNK)), maxRetries=2)
        assert (raised.value.number, raised.value.err_code) == (2, 10077)
        assert bucket.contents()["a"] == content("a", 1, 3 * CHUNK)
        bucket.check()

    def test_a_stream_with_small_messages(self, make: Make) -> None:
        made = make(max_msg_size=1000)
        data = content("a", 1, 100_000)
        made.write(("a", data))
        assert made.contents()["a"] == data
        assert made.meta("a")["options"]["max_chunk_size"] < 1000
        long = batch(name=["b"], content=[b"x"], headers=[[("X", ["y" * 1000])]])
        with pytest.raises(RowRefused, match=r"object 'b' .*error 10054"):
            made.sink().write([long])
        made.check()
        made.update(max_msg_size=30)
        with pytest.raises(
            RowRefused,
            match=r"takes messages of so few bytes .*max_msg_size 30\) that no chunk fits",
        ):
            made.write(("c", b"x"))

    @pytest.mark.parametrize(
        "limits", [{"max_msgs_per_subject": 2}, {"max_bytes": 4 * CHUNK, "discard": "old"}]
    )
    def test_a_stream_that_removes_chunks(self, make: Make, limits: dict[str, Any]) -> None:
        """It acknowledges all of them.

        A part of an object does not replace the object that was stored before.
        """
        made = make(**limits)
        made.write(("a", content("a", 1, CHUNK)))
        with pytest.raises(
            RowRefused, match=r"object 'a' .*: stream OBJ_\w+ has not kept its first chunk: a limit"
        ):
            made.write(("a", content("a", 2, 5 * CHUNK)), maxRetries=1)
        if "max_bytes" not in limits:  # which takes the old object as well
            assert made.contents() == {"a": content("a", 1, CHUNK)}
            made.check()

    def test_a_server_with_small_payloads(
        self, nats_server_factory: Callable[..., NatsServer], make: Make
    ) -> None:
        made = make(url=nats_server_factory(max_payload=4096).url)
        data = content("a", 1, 100_000)
        made.write(("a", data))
        assert (made.contents()["a"], made.meta("a")["chunks"]) == (data, 25)
        long = batch(name=["b"], content=[b"x"], headers=[[("X", ["y" * 4096])]])
        with pytest.raises(RowRefused, match=r"the server takes 4096 \(max_payload\)"):
            made.sink().write([long])
        made.check()

    def test_missing_permissions(
        self, nats_server_factory: Callable[..., NatsServer], make: Make
    ) -> None:
        denied = {
            "nochunks": ("$O.P.C.>", r"\$O\.P\.C\.spark-jetstream-\w+"),
            "nometa": ("$O.P.M.>", r"\$O\.P\.M\.YQ=="),
            "noget": ("$JS.API.STREAM.MSG.GET.>", r"\$JS\.API\.STREAM\.MSG\.GET\.OBJ_P"),
            "nopurge": ("$JS.API.STREAM.PURGE.>", r"\$JS\.API\.STREAM\.PURGE\.OBJ_P"),
        }
        allowed = {
            user: {"allow": [">"], "deny": [subject]} for user, (subject, _) in denied.items()
        }
        # Who may not see the stream can write to it all the same.
        blind = {
            "blind": {
                "allow": ["$O.P.>", "$JS.API.STREAM.MSG.GET.OBJ_P", "$JS.API.STREAM.PURGE.OBJ_P"]
            }
        }
        users = "\n".join(
            f'{{ user: {user}, password: "{PASSWORD}", permissions: {{ publish: '
            f"{json.dumps(publish)}, "
            'subscribe: ["_INBOX.>"] } }'
            for user, publish in {**allowed, **blind}.items()
        )
        ann = f'{{ user: ann, password: "{PASSWORD}" }}'
        config = f"accounts {{ A {{ jetstream: enabled, users: [\n{ann}\n{users}\n] }} }}"
        url = nats_server_factory(config=config).url
        made = make("P", url.replace("//", ANN))
        for user, (_, said) in denied.items():
            login = {"servers": url, "user": user, "password": PASSWORD}
            with pytest.raises(
                PermissionDenied, match=rf"the account may not publish to {said}; 0 objects"
            ) as raised:
                made.write(("a", b"x"), **login)
            assert re.fullmatch(said, raised.value.subject or "")
            if user != "nopurge":
                made.check()
        login = {"servers": url, "user": "blind", "password": PASSWORD}
        made.sink(**login).started()
        made.write(("a", b"1"), ("a", b"2"), **login)
        assert made.contents() == {"a": b"2"}
        made.check()

    def test_no_bucket_that_is_another_stream(self, make: Make, stream: MakeStream) -> None:
        """Another stream has the subjects of the bucket: it must not take what is meant for the
        bucket.
        """
        made = make(subjects=["$O.nothing.>"])
        other = stream(subjects=[f"$O.{made.bucket}.>"], storage="memory")
        with pytest.raises(
            RowRefused,
            match=r"\(error 10060\): the subjects of the bucket belong to another stream",
        ):
            made.write(("a", b"x"))
        assert other.state()["messages"] == 0


# -- a wire that breaks --


@contextmanager
def standing_still(
    bucket: Bucket,
    proxy: WireProxy,
    passing: int,
    *objects: tuple[str, Any],
    cut: bool = True,
    **given: Any,
) -> Iterator[None]:
    """While this lasts a write has lost an answer, after those that pass.

    Then it goes on, and stores everything.
    """
    acks = Acks(proxy, passing)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(
            bucket.write, *objects, servers=proxy.url, **{"ackTimeout": "60s", **given}
        )
        assert acks.lost.wait(60)
        yield
        acks.end()
        if cut:
            proxy.cut()
        assert writing.result(60).stored == len(objects)
    assert bucket.contents() == dict(objects)
    bucket.check()


class TestWire:
    @pytest.mark.parametrize(
        ("size", "sent", "given"),
        [
            (2 * MAX_BYTES_IN_FLIGHT, MAX_BYTES_IN_FLIGHT // (CHUNK + 50), {}),
            (10 * CHUNK, 3, {"maxInFlight": 3}),
        ],
        ids=["bytes", "messages"],
    )
    def test_bounds_what_is_under_way(
        self, bucket: Bucket, proxy: WireProxy, size: int, sent: int, given: dict[str, Any]
    ) -> None:
        with standing_still(bucket, proxy, 1, ("a", content("a", 1, size)), **given):
            proxy.wait(lambda: proxy.dropped == sent)
            assert proxy.client_bytes.count(b"HPUB $O.") == 1 + sent
            assert proxy.bytes_from_client < MAX_BYTES_IN_FLIGHT + 10_000

    @pytest.mark.parametrize("passing", [0, 3, 6], ids=["note", "chunk", "meta message"])
    @pytest.mark.parametrize("trouble", ["cut", "silence"])
    def test_an_answer_that_is_lost(
        self, bucket: Bucket, proxy: WireProxy, passing: int, trouble: str
    ) -> None:
        bucket.write(("a", content("a", 1, 3 * CHUNK)))
        cut, timeout = trouble == "cut", "60s" if trouble == "cut" else "1s"
        with standing_still(
            bucket, proxy, passing, ("a", content("a", 2, 5 * CHUNK)), cut=cut, ackTimeout=timeout
        ):
            pass
        assert bucket.meta("a")["chunks"] == 5

    @pytest.mark.full
    def test_a_server_that_is_killed(
        self, nats_server_factory: Callable[..., NatsServer], make: Make
    ) -> None:
        server = nats_server_factory()
        made = make(url=server.url, storage="file")
        objects = [(f"o{index}", content(f"o{index}", 1, 4 * CHUNK)) for index in range(6)]
        with WireProxy(server.url) as proxy, standing_still(made, proxy, 12, *objects, cut=False):
            made.publisher.close()
            server.kill()
            proxy.drop(None)  # the task goes on as soon as the server does
            server.start()
            made.reconnect()

    def test_a_stream_that_has_lost_its_chunks(self, bucket: Bucket, proxy: WireProxy) -> None:
        """A server that comes back without what it had not written to its disk; the meta message
        must not be alone.
        """
        # The note's and five chunks' answers pass.
        with standing_still(bucket, proxy, 6, ("a", content("a", 1, 5 * CHUNK))):
            bucket.purge()

    def test_a_refusal_of_what_may_be_stored_already(
        self, bucket: Bucket, proxy: WireProxy
    ) -> None:
        """The meta message has no answer, and is not seen; sent again it is refused for a reason of
        another kind.
        """
        hidden, refused = threading.Event(), threading.Event()
        left = 7  # the note's, five chunks', its own

        def confuse(frame: bytes) -> bytes:
            nonlocal left
            if left and is_ack(frame):
                left -= 1
                return frame if left else b""
            if not left and not hidden.is_set() and b"stream_msg_get_response" in frame:
                hidden.set()
                return answer(
                    frame,
                    b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}',
                )
            if hidden.is_set() and not refused.is_set() and b'"err_code":10071' in frame:
                refused.set()
                return answer(
                    frame,
                    b'{"error":{"code":503,"err_code":10047,"description":"insufficient storage"}}',
                )
            return frame

        proxy.drop(confuse)
        data = content("a", 1, 5 * CHUNK)
        assert bucket.write(("a", data), servers=proxy.url, ackTimeout="3s").stored == 1
        assert refused.is_set()
        assert bucket.contents()["a"] == data
        # It was stored by the first upload: the second message in the bucket is its first chunk.
        assert bucket.last("a")["seq"] == 7
        bucket.check()

    def test_a_meta_message_in_front_of_its_chunks(self, bucket: Bucket, proxy: WireProxy) -> None:
        left = 7

        def early(frame: bytes) -> bytes:
            nonlocal left
            left -= is_ack(frame)
            if left:
                return frame
            left = -1
            return re.sub(
                rb'"seq": ?\d+', lambda found: b'"seq":' + b"1".rjust(len(found[0]) - 6), frame
            )

        proxy.drop(early)
        data = content("a", 1, 5 * CHUNK)
        assert bucket.write(("a", data), servers=proxy.url).stored == 1
        assert left < 0
        assert bucket.contents()["a"] == data
        bucket.check()

    def test_an_outage_that_is_too_long(self, bucket: Bucket, proxy: WireProxy) -> None:
        acks = Acks(proxy, 5)
        given = {"servers": proxy.url, "retryTimeout": "1s", "connectTimeout": "1s"}
        bucket.sink(**given).connect(30)
        with ThreadPoolExecutor(1) as pool:
            objects = [(name, content(name, 1, 5 * CHUNK)) for name in ("a", "b")]
            writing = pool.submit(bucket.write, ("first", b"x"), *objects, **given)
            assert acks.lost.wait(60)
            proxy.refuse()
            proxy.cut()
            with pytest.raises(
                OutageError,
                match=r"^row 2 of partition 0, object 'a' of bucket B\d+ cannot be stored: .*not "
                r"made again within 1 s"
                r".*; 1 object of the task is stored$",
            ):
                writing.result(60)
        acks.end()
        assert bucket.contents() == {"first": b"x"}
        # The next attempt removes what this one has left.
        with pytest.raises(AssertionError):
            bucket.check()
        bucket.write(("first", b"x"), *objects)
        bucket.check()

    def test_no_answers_for_good(self, bucket: Bucket, proxy: WireProxy) -> None:
        bucket.write(("a", b"old"))
        Acks(proxy, 1)
        with pytest.raises(
            RowRefused,
            match=r"no acknowledgement within 0.3 s \(option ackTimeout\), also after 1 retries "
            r"\(option maxRetries\): "
            r"stream OBJ_\w+ ",
        ):
            bucket.write(
                ("a", content("a", 1, 2 * CHUNK)),
                servers=proxy.url,
                ackTimeout="300ms",
                maxRetries=1,
            )
        proxy.drop(None)
        assert bucket.contents()["a"] == b"old"
        bucket.write(("a", b"new"))
        bucket.check()

    def test_a_bucket_that_is_removed_meanwhile(self, bucket: Bucket) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            yield batch(name=["a"], content=[b"x"])
            bucket.delete()
            yield batch(name=["b"], content=[b"x"])

        with pytest.raises(
            StreamNotFound,
            match=r"^row 2 of .*there is no Object Store bucket .*; 1 object of the task is stored",
        ):
            bucket.sink().write(rows())


# -- several writers --


class TestTogether:
    @pytest.mark.full
    def test_two_attempts_at_the_same_time(self, bucket: Bucket) -> None:
        count = 12
        together = threading.Barrier(3)

        def attempt(number: int) -> TaskReport:
            together.wait(60)
            objects = [
                (f"o{index % 3}", content(f"o{index % 3}", number, 6 * CHUNK))
                for index in range(count)
            ]
            # Options that differ give each attempt a connection of its own, as processes have.
            return bucket.write(*objects, connectTimeout=f"{3 + number}s", maxRetries=1000)

        with ThreadPoolExecutor(3) as pool:
            reports = list(pool.map(attempt, range(3)))
        assert [report.stored for report in reports] == [count] * 3
        for name, data in bucket.contents().items():
            assert data in [content(name, number, 6 * CHUNK) for number in range(3)]
        bucket.check()

    @pytest.mark.parametrize("client", ["another attempt", "nats-py"])
    def test_another_stores_the_object_meanwhile(
        self, bucket: Bucket, proxy: WireProxy, client: str
    ) -> None:
        """The attempt has all its chunks then, and the other one may take them away; then it begins
        anew.
        """
        bucket.write(("a", content("a", 1, 3 * CHUNK)))
        # The note's answer and those of four of five chunks pass.
        with standing_still(bucket, proxy, 5, ("a", content("a", 2, 5 * CHUNK))):
            other = content("a", 3, 2 * CHUNK)
            if client == "nats-py":
                bucket.nats(lambda store: store.put("a", other))
            else:
                bucket.write(("a", other))
                bucket.check()
            assert bucket.contents() == {"a": other}


# -- kills --


@pytest.mark.full
class TestKills:
    @pytest.mark.parametrize("before", ["nothing", "other"])
    def test_a_task_killed_at_every_step(self, bucket: Bucket, before: str) -> None:
        size, most = 2 * CHUNK + 1, 34
        names = [f"n-{number}" for number in range(1, most)]
        if before == "other":

            async def put(store: Any) -> None:
                for name in names:
                    await store.put(name, content(name, 1, size))

            bucket.nats(put)
        moments = json.loads(run_apart(options=bucket.options, names="n", size=size))
        # The note, three chunks and the meta message. What is asked: the object, limits, removal of
        # note and chunks.
        sends = [
            f"{when} publish {number}"
            for number in range(1, 6)
            for when in ("before", "after", "received")
        ]
        assert [each for each in moments if " publish " in each] == sends
        asked = [each for each in moments if "STREAM.PURGE" in each]
        assert len(asked) == 2 * (1 if before == "nothing" else 2)
        assert len(moments) < most - 1
        killed = [f"n-{number}" for number in range(1, len(moments) + 1)]
        found = bucket.contents()
        old_or_new = {name: [content(name, version, size) for version in (1, 2)] for name in killed}
        states = [old_or_new[name].index(found[name]) if name in found else -1 for name in killed]
        # The old one until its meta message is stored, and the new one from then on.
        assert states == sorted(states)
        assert set(states) == {-1 if before == "nothing" else 0, 1}
        bucket.write(*((name, content(name, 2, size)) for name in killed))
        found = bucket.contents()
        assert {name: found[name] for name in killed} == {
            name: content(name, 2, size) for name in killed
        }
        bucket.check()


# -- domains --


def test_a_server_whose_mirrors_stop_at_the_name_of_a_stream(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages do not name it then: their acknowledgements alone tell which stream has stored them."""
    for version, named in (((2, 11, 6), True), ((2, 11, 5), False)):
        monkeypatch.setattr(Connection, "server_version", version)
        bucket.purge()
        bucket.write(("a", bytes(2 * CHUNK)))
        assert {b"\r\nNats-Expected-Stream: " in message.block for message in seen(bucket)} == {
            named
        }
        assert bucket.contents() == {"a": bytes(2 * CHUNK)}


@pytest.mark.full
def test_a_bucket_behind_a_leaf_node(make: Make) -> None:
    """Its subjects have no prefix of a domain, unlike those of the API (and of Key-Value buckets)."""
    with Linked() as linked:
        made = make("far", linked.hub.url)
        data = content("a", 1, 5 * CHUNK)
        report = made.write(("a", b"old"), ("a", data), servers=linked.leaf.url, domain="hub")
        assert (report.stored, made.contents()["a"]) == (2, data)
        made.check()
        # Where both have such a bucket both store what is published; only the answers of the right
        # one count.
        twin = make("twin", linked.hub.url)
        make("twin", linked.leaf.url)
        twin.write(("x", b"1"), ("y", b"2"))
        assert twin.write(("a", data), servers=linked.leaf.url, domain="hub").stored == 1
        assert twin.contents()["a"] == data


@pytest.mark.parametrize("imported", [True, False])
def test_a_bucket_of_another_account(
    nats_server_factory: Callable[..., NatsServer], make: Make, imported: bool
) -> None:
    """Option apiPrefix says where the API leads, and subjects are a matter of their own."""
    more = ', { service: { account: A, subject: "$O.P.>" } }' if imported else ""
    config = f"""accounts {{
        A {{ jetstream: enabled, users: [ {{ user: ann, password: "{PASSWORD}" }} ], exports: [
            {{ service: "$JS.API.>", response_type: stream }}, {{ service: "$O.P.>" }} ] }}
        B {{ jetstream: enabled, users: [ {{ user: bob, password: "{PASSWORD}" }} ], imports: [
            {{ service: {{ account: A, subject: "$JS.API.>" }}, to: "JSA.API.>" }} {more} ] }} }}"""
    url = nats_server_factory(config=config).url
    made = make("P", url.replace("//", ANN))
    made.write(("x", b"1"))
    bob = {"servers": url, "user": "bob", "password": PASSWORD}
    if not imported:
        # What is published goes to a bucket of the account's own.
        make("P", url.replace("//", f"//bob:{PASSWORD}@"))
        with pytest.raises(
            RowRefused,
            match=r"C\.spark-jetstream-\w+ is stored elsewhere than where option apiPrefix",
        ):
            made.write(("a", b"2"), apiPrefix="JSA.API", **bob)
        assert made.contents() == {"x": b"1"}
        return
    made.write(("a", content("a", 1, 5 * CHUNK)), ("x", b"2"), apiPrefix="JSA.API", **bob)
    assert made.contents() == {"a": content("a", 1, 5 * CHUNK), "x": b"2"}
    made.check()


def test_micro_batches(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for number in range(3):
        some = range(10 * number, 10 * number + 10)
        frame = batch(
            name=[f"o{row % 7}" for row in some],
            content=[str(row).encode() for row in some],
            headers=[[("Row", [str(row)])] for row in some],
        )
        store(writer_of("s", bucket.options, frame.schema), [frame], number)
    assert bucket.contents() == {f"o{row % 7}": str(row).encode() for row in range(23, 30)}
    meta = bucket.meta("o1")
    assert (meta["bucket"], meta["headers"]) == (bucket.bucket, {"Row": ["29"]})
    bucket.check()
    report = (
        rf"batch 2 of query \w+: 10 of 10 rows stored, 20 bytes of content, {bucket.name} \d+ to "
        r"\d+; 1 task, "
    )
    assert re.search(report, caplog.text)
