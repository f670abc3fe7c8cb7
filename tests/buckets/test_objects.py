"""The layout of Object Store buckets, and which task reads which object: bytes and numbers, no
server.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js import api as nats_api

from spark_jetstream.buckets.content_reader import (
    BucketStream,
    ContentReader,
    ObjectVersion,
    Read,
    Reading,
)
from spark_jetstream.buckets.object_content import Assembly
from spark_jetstream.buckets.object_store import Tries
from spark_jetstream.buckets.objects import (
    ObjectLink,
    ObjectMeta,
    ObjectOptions,
    StoredObject,
    chunk_subject,
    digest_bytes,
    digest_text,
    meta_subject,
)
from spark_jetstream.buckets.uploads import Disposition, UploadSettings
from spark_jetstream.errors import JetStreamError, ProtocolError
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.objects import LARGEST_CONTENT, live_objects, pack, refuse_large
from tests.support.objects import link_to, meta_of
from tests.support.wire import Made

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
Row = tuple[str, bytes, None]
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
TOKEN = st.from_regex(r"[A-Za-z0-9_-]{1,22}", fullmatch=True)
METAS = st.builds(
    ObjectMeta,
    bucket=TOKEN,
    name=NAME,
    nuid=TOKEN,
    size=st.integers(0, 2**63 - 1),
    chunks=st.integers(0, 2**32 - 1),
    digest=st.binary(min_size=32, max_size=32).map(digest_text),
    headers=st.dictionaries(NAME, st.lists(TEXT, max_size=3).map(tuple), max_size=3),
    description=st.none() | TEXT,
    metadata=st.dictionaries(NAME, TEXT, max_size=3),
    options=st.builds(
        ObjectOptions,
        link=st.none() | st.builds(ObjectLink, bucket=TOKEN, name=TEXT),
        max_chunk_size=st.none() | st.integers(0, 2**31 - 1),
        new_option=st.integers(),
    ),
    deleted=st.booleans(),
    new_field=TEXT,
)

#: As Go's client writes it.
GO = (
    b'{"name":"a/b.txt","description":"d","headers":{"X":["1","2"]},"metadata":{"k":"v"},'
    b'"options":{"max_chunk_size":131072},"bucket":"B","nuid":"N1","size":5,"mtime":"0001-01-01T00:00:00Z","chunks":1,'
    b'"digest":"SHA-256=7RACaydZhSbEe34RKlCcyOqQSDPAl6Gn0kP7F6QGqRA="}'
)


# Meta messages


def test_subjects_of_objects() -> None:
    # The example of ADR-20: URL-safe base64, padded.
    assert meta_subject("B", "S3_icon.png") == "$O.B.M.UzNfaWNvbi5wbmc="
    assert meta_subject("B", "Ünï ?>/") == "$O.B.M.w5xuw68gPz4v"


@given(METAS)
def test_a_meta_message_comes_back_as_it_was_and_nats_py_reads_it(meta: ObjectMeta) -> None:
    data = meta.to_json()
    assert ObjectMeta.from_json(data, "other") == meta
    info = nats_api.ObjectInfo.from_response(json.loads(data))
    for name in ("bucket", "name", "nuid", "size", "chunks", "digest"):
        assert getattr(info, name) == getattr(meta, name)
    assert bool(info.deleted) == meta.deleted
    assert info.headers == ({name: list(values) for name, values in meta.headers.items()} or None)
    assert info.is_link() == (meta.link is not None)


def test_metadata_keeps_unknown_fields_and_accepts_missing_ones() -> None:
    newer = {**json.loads(GO), "compression": {"with": "s2"}, "options": {"encrypted": True}}
    meta = ObjectMeta.from_json(json.dumps(newer).encode(), "B")
    assert meta.model_extra == {"compression": {"with": "s2"}}
    assert json.loads(meta.to_json()) == newer
    nothing = dict.fromkeys(
        ["description", "headers", "metadata", "options", "digest", "deleted", "nuid", "size"]
    )
    assert ObjectMeta.from_json(json.dumps({"name": "a", **nothing}).encode(), "B") == ObjectMeta(
        bucket="B", name="a"
    )
    assert ObjectMeta.from_json(b'{"name":"a","headers":{"X":"1"}}', "B").headers == {"X": ("1",)}


def broken(**fields: Any) -> bytes:
    return json.dumps({**json.loads(GO), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not JSON"),
        (broken(name=""), "no usable field name"),
        (broken(name=1), "no usable field name"),
        (broken(size=-1), "no usable field size"),
        (broken(size=2**63), "no usable field size"),
        (broken(size=True), "no usable field size"),
        (broken(chunks="1"), "no usable field chunks"),
        (broken(deleted="yes"), "no usable field deleted"),
        (broken(nuid="*"), "no usable field nuid"),
        (broken(nuid="a.b"), "no usable field nuid"),
        (broken(headers={"a": 1}), "no usable field headers"),
        (broken(headers={"a": [1]}), "no usable field headers"),
        (broken(metadata={"a": 1}), "no usable field metadata"),
        (broken(options=[]), "no usable field options"),
        (broken(options={"link": "B"}), "no usable field options.link"),
        (broken(options={"link": {"bucket": ">"}}), "no usable field options.link.bucket"),
        (broken(options={"link": {"name": "x"}}), "no usable field options.link.bucket"),
    ],
)
def test_malformed_metadata_is_an_error_that_names_the_bucket(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        ObjectMeta.from_json(data, "MY_BUCKET")
    assert "bucket MY_BUCKET" in str(caught.value)


# Digests


@given(st.binary(min_size=32, max_size=32))
def test_digests(sha: bytes) -> None:
    text = digest_text(sha)
    assert text.startswith("SHA-256=")
    plain = text.removeprefix("SHA-256=")
    for same in (plain, plain.rstrip("="), plain.replace("-", "+").replace("_", "/")):
        assert digest_bytes(f"SHA-256={same}") == digest_bytes(f"sha-256={same}") == sha


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SHA-256=",
        "SHA-256=a",
        "SHA-256=YQ==",
        "MD5=" + "a" * 43,
        "SHA-256=" + "é" * 43,
        "SHA-256=a b" * 9,
    ],
)
def test_a_malformed_digest_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="the digest '"):
        digest_bytes(text)


# Listing the objects


def meta_row(name: str, **fields: Any) -> Row:
    return meta_subject("B", name), ObjectMeta(bucket="B", name=name, **fields).to_json(), None


def live(*runs: Made) -> list[tuple[str, int]]:
    objects = live_objects(runs, "B", None)
    assert all(stored.timestamp == stored.sequence * 1000 for stored in objects)
    return [(stored.meta.name, stored.sequence) for stored in objects]


def test_the_newest_version_of_each_object_that_is_there() -> None:
    runs = (
        Made([meta_row("a"), meta_row("b"), meta_row("gone"), meta_row("expired")]),
        Made([meta_row("c"), meta_row("a"), meta_row("gone", deleted=True)], 5),
        Made(
            [(meta_subject("B", "expired"), b"", None), meta_row("all", options=link_to("O", ""))],
            8,
        ),
        Made([meta_row("one", options=link_to("O", "x"))], 10),
    )
    assert live(*runs) == [("b", 2), ("c", 5), ("a", 6), ("one", 10)]
    assert live() == []


def test_a_malformed_meta_message_is_named() -> None:
    with pytest.raises(
        ProtocolError,
        match=r"bucket B: a meta message is not JSON \(sequence 7, subject \$O\.B\.M\.x",
    ):
        live(Made([("$O.B.M.x", b"?", None)], 7))


# Tasks


def stored(sequence: int, size: int) -> StoredObject:
    name = f"o{sequence}"
    return StoredObject(
        ObjectMeta(bucket="B", name=name, size=size), meta_subject("B", name), sequence, 0
    )


SIZES = st.lists(st.integers(0, 1000) | st.integers(0, 5_000_000), max_size=60)


@given(SIZES, st.integers(1, 20), st.integers(1, 20), st.integers(1, 8_000_000), st.booleans())
def test_each_object_is_in_one_task(
    sizes: list[int], most: int, least: int, most_bytes: int, content: bool
) -> None:
    objects = [stored(at, size) for at, size in enumerate(sizes, 1)]
    groups = pack(
        objects, max_objects=most, min_groups=least, max_bytes=most_bytes, with_content=content
    )
    assert [each for group in groups for each in group] == objects
    assert all(1 <= len(group) <= most for group in groups)
    assert len(groups) >= min(least, len(objects))
    if content:
        assert all(
            len(group) == 1 or sum(each.meta.size for each in group) <= most_bytes
            for group in groups
        )


def test_tasks_are_as_even_as_the_objects_are() -> None:
    groups = pack([stored(at, 1000) for at in range(1, 101)], max_objects=1000, min_groups=4)
    assert [len(group) for group in groups] == [25, 25, 25, 25]
    groups = pack([stored(at, 1000) for at in range(1, 5)], max_objects=9, min_groups=3)
    assert [len(group) for group in groups] == [1, 2, 1]
    # An object that is large by itself does not keep the others together.
    large = pack(
        [stored(1, 10**9), *(stored(at, 10) for at in range(2, 10))], max_objects=1000, min_groups=4
    )
    assert [len(group) for group in large] == [1, 3, 3, 2]
    # Without content only the number counts.
    huge = [stored(at, 10**12) for at in range(1, 101)]
    assert len(pack(huge, max_objects=1000)) == 100
    assert [len(group) for group in pack(huge, max_objects=40, with_content=False)] == [33, 34, 33]


def test_an_object_too_large_for_a_binary_column_is_an_error() -> None:
    refuse_large(ObjectMeta(bucket="B", name="fits", size=LARGEST_CONTENT), "B")
    with pytest.raises(
        JetStreamError, match=r"bucket B, object 'big' has 2,147,483,648 bytes.*contentOff=true"
    ):
        refuse_large(ObjectMeta(bucket="B", name="big", size=LARGEST_CONTENT + 1), "B")


# Content


def reading_of(metas: Sequence[ObjectMeta], together: int = 1, read: Read | None = None) -> Reading:
    stream = BucketStream("OBJ_B", "")
    versions = [
        ObjectVersion(holder, holder, stream)
        for holder in (
            StoredObject(meta, meta_subject("B", meta.name), 1000 + at, 0)
            for at, meta in enumerate(metas)
        )
    ]
    return Reading(versions, read or (lambda part: iter(())), together)


def read_from(rows: Sequence[tuple[str, bytes]], step: int = 3) -> Read:
    """Reads chunks, each with its id, as a consumer of their subjects would, in runs of ``step``."""

    def read(part: SequenceRange) -> Iterator[Made]:
        chunks = [(chunk_subject("B", nuid), data) for nuid, data in rows]
        wanted = [(subject, data, None) for subject, data in chunks if subject in part.subjects]
        for at in range(0, len(wanted), step):
            yield Made(wanted[at : at + step])

    return read


def assembled(reading: Reading) -> list[bytes]:
    assembly = Assembly([version.holder.meta.size for version in reading.versions])
    for index, chunk in reading.chunks():
        assembly.add(index, chunk)
    contents: list[bytes] = assembly.column().to_pylist()
    return contents


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=40), max_size=6), max_size=6),
    st.randoms(use_true_random=False),
)
def test_chunks_of_several_objects_in_any_mixture(
    contents: list[list[bytes]], shuffle: random.Random
) -> None:
    # A reader is made for at least one object.
    contents = contents or [[b"one"]]
    metas = [meta_of("B", "x", f"n{at}", chunks) for at, chunks in enumerate(contents)]
    queues = [(meta.nuid, list(chunks)) for meta, chunks in zip(metas, contents, strict=True)]
    rows = []
    while left := [queue for queue in queues if queue[1]]:
        nuid, queue = shuffle.choice(left)
        rows.append((nuid, queue.pop(0)))
    parts: list[SequenceRange] = []
    read = read_from(rows)

    def noted(part: SequenceRange) -> Iterator[MessageRun]:
        parts.append(part)
        return read(part)

    reading = reading_of(metas, 2, noted)
    assert assembled(reading) == [b"".join(chunks) for chunks in contents]
    assert reading.faults() == [None] * len(metas)
    # Each range has the number of its messages, and ends before the last of the meta messages.
    assert sum(part.count or 0 for part in parts) == len(rows)
    assert {part.end for part in parts} <= {1000 + len(metas) - 1}
    assert [subject for part in parts for subject in part.subjects] == [
        chunk_subject("B", meta.nuid) for meta in metas if meta.size
    ]


def test_two_names_for_the_same_chunks() -> None:
    metas = [meta_of("B", name, "n", [b"ab", b"c"]) for name in ("old", "new")]
    counts: list[int | None] = []
    read = read_from([("n", b"ab"), ("n", b"c")])

    def noted(part: SequenceRange) -> Iterator[MessageRun]:
        counts.append(part.count)
        return read(part)

    reading = reading_of(metas, 10, noted)
    assert assembled(reading) == [b"abc", b"abc"]
    assert counts == [2]
    assert reading.faults() == [None, None]


CHUNKS = [b"abc", b"de"]


@pytest.mark.parametrize(
    ("chunks", "fields", "said"),
    [
        ([b"abc"], {}, "says 2 chunks, and there are 1"),
        ([], {}, "says 2 chunks, and there are 0"),
        ([*CHUNKS, b"f"], {}, "says 2 chunks, and there are 3"),
        ([b"abc", b"d"], {}, "says 5 bytes, and its chunks hold 4"),
        ([b"abc", b"def"], {}, "says 5 bytes, and its chunks hold 6"),
        ([b"abc", b"dE"], {}, "has another digest"),
        ([b"de", b"abc"], {}, "has another digest"),
        (CHUNKS, {"digest": ""}, "the digest '' is not a SHA-256"),
        (CHUNKS, {"nuid": ""}, "does not say where its chunks are"),
        ([], {"size": 0, "chunks": 0}, "has another digest"),
        (CHUNKS, {}, None),
        ([], {"size": 0, "chunks": 0, "digest": ""}, None),
    ],
)
def test_content_that_is_not_what_its_meta_message_says(
    chunks: list[bytes], fields: dict[str, Any], said: str | None
) -> None:
    good = meta_of("B", "good", "good", [b"xyz"])
    metas = [
        good,
        meta_of("B", "x", "x", CHUNKS).model_copy(update=fields),
        good.model_copy(update={"nuid": "also"}),
    ]
    rows = [("good", b"xyz"), *(("x", chunk) for chunk in chunks), ("also", b"xyz")]
    reading = reading_of(metas, 3, read_from(rows))
    contents = assembled(reading)
    first, fault, last = reading.faults()
    assert (first, last) == (None, None)
    assert contents[0] == contents[2] == b"xyz"
    assert (fault is None) if said is None else (fault is not None and said in fault)


# Versions


def version_of(sequence: int, chunks: list[bytes]) -> ObjectVersion:
    meta = meta_of("B", "x", f"n{sequence}", chunks)
    holder = StoredObject(meta, meta_subject("B", "x"), sequence, 0)
    return ObjectVersion(holder, holder, BucketStream("OBJ_B", ""))


def read_versions(
    stored: Sequence[tuple[str, bytes]],
    newer: Sequence[ObjectVersion | None],
    may_lag: bool = False,
    attempts: int = 3,
) -> tuple[list[bytes], list[str]]:
    """Read version 1, with the chunk ``one``: its contents of each read, and what was lost.

    ``newer`` are the versions that the object has when it is looked at again.
    """
    looks, lost = iter(newer), list[str]()
    reader = ContentReader(
        read_from(stored),
        lambda _: next(looks),
        named=lambda version: version.listed.meta.name,
        lost=lost.append,
        may_lag=lambda _: may_lag,
        attempts=attempts,
    )
    contents = [
        b"".join(chunk for _, chunk in reading.chunks())
        for reading in reader.readings([version_of(1, [b"one"])])
    ]
    assert next(looks, "all were taken") == "all were taken"
    return contents, lost


def test_an_object_that_was_replaced_is_read_again() -> None:
    second = version_of(2, [b"2"])
    assert read_versions([("n1", b"one")], []) == ([b"one"], [])
    assert read_versions([("n2", b"2")], [second]) == ([b"", b"2"], [])
    third = version_of(3, [b"3"])
    assert read_versions([("n3", b"3")], [second, third]) == ([b"", b"", b"3"], [])
    assert read_versions([("n3", b"3")], [second, None]) == ([b"", b""], [])


def test_an_object_that_is_the_same_is_damaged() -> None:
    first = version_of(1, [b"one"])
    said = "x is damaged: its meta message says 1 chunks, and there are 0"
    assert read_versions([], [first]) == ([b""], [said])
    # Replicas may lag: a meta message that is the same is believed the fourth time.
    assert read_versions([], [first] * 4, may_lag=True, attempts=9) == ([b""] * 4, [said])


def test_an_object_that_is_replaced_each_time_it_is_read() -> None:
    newer = [version_of(at, [b"x"]) for at in (2, 3)]
    with pytest.raises(JetStreamError, match="x was replaced again each time it was read, 2 times"):
        read_versions([], newer, attempts=2)


@pytest.mark.parametrize(("patience", "again"), [("1m", True), ("0s", False)])
def test_only_an_outage_may_last_beyond_the_retries(patience: str, again: bool) -> None:
    connection = ConnectionOptions.from_spark({"retryTimeout": patience})
    settings = UploadSettings(
        connection=connection,
        max_in_flight=1,
        ack_timeout=1.0,
        max_retries=0,
        ack_option="",
        retries="",
    )
    left = {disposition: Tries(settings).again_after(disposition) for disposition in Disposition}
    assert left == {Disposition.NONE: False, Disposition.RETRY: False, Disposition.OUTAGE: again}
