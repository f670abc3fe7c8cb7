"""JSON of servers, other clients and checkpoints: INFO, API replies, events, offsets, ledger
entries, objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nats.aio.client import ServerVersion

from spark_jetstream.admin.event_parsing import parse_event
from spark_jetstream.admin.event_text import cloud_event, event_details, event_json
from spark_jetstream.admin.models import account, consumers, messages, streams
from spark_jetstream.admin.models.base import Model, readable, rendered
from spark_jetstream.admin.models.changes import differences
from spark_jetstream.admin.models.kv import entry_of
from spark_jetstream.admin.models.trace import MessageTrace, TraceReport, trace_report
from spark_jetstream.buckets.kv import Origin, last_revision
from spark_jetstream.buckets.objects import ObjectMeta, StoredObject, digest_bytes, digest_text
from spark_jetstream.buckets.upload_notes import read_note
from spark_jetstream.errors import ApiError, JetStreamError, OptionError, ProtocolError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.json_text import MAX_DEPTH, json_object
from spark_jetstream.protocol.server_info import checked_info
from spark_jetstream.protocol.stream import stream_summary
from spark_jetstream.protocol.units import (
    INT64_MAX,
    Bytes,
    Nanoseconds,
    Timestamp,
    parse_time,
    time_nanoseconds,
)
from spark_jetstream.protocol.wire import parse_status
from spark_jetstream.sink.ledger_entry import TaskEntry
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.source.offsets import Offset
from tests.fuzz.engine import target
from tests.fuzz.mutations import change_json

_DEEP = (b"[" * 200, b'{"a":' * 150, b"1e999", b"NaN", b"\\ud800")


@target("json", *_DEEP, b'{"a":', b"}", b"]", mutate=change_json)
def json_texts(data: bytes) -> None:
    """JSON as bytes and as text: the same object, or `ValueError`."""

    def read(text: bytes | str) -> Any:
        try:
            return json_object(text)
        except ValueError as error:
            assert str(error).startswith("is ")
            return None

    body = read(data)
    if body is not None:
        assert len(json.dumps(body)) >= 2
        assert _depth(body) <= MAX_DEPTH
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if not data.startswith(b"\xef\xbb\xbf") and b"\0" not in data:
        assert repr(read(text)) == repr(body)


def _depth(body: Any) -> int:
    parts = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return 1 + max(map(_depth, parts), default=0) if isinstance(body, (dict, list)) else 0


@target(
    "info",
    *_DEEP,
    b'"connect_urls":["127.0.0.1:4222"]',
    b'"version":"2.15.1-beta.1"',
    mutate=change_json,
)
def info(data: bytes) -> None:
    """An INFO line: what is passed on is what nats-py can read."""
    first = checked_info(b"INFO " + data, first=True)
    body = json.loads(first.removeprefix(b"INFO "))
    assert first.endswith(b"}\r\n")
    assert b"\n" not in first[:-1]
    assert str(ServerVersion(body["version"]))
    assert 0 < body["max_payload"] < 2**31
    assert checked_info(first) == first


_MODELS: tuple[type[Model], ...] = (
    *(
        streams.StreamInfo,
        streams.StreamPage,
        streams.StreamNamesPage,
        streams.SnapshotReply,
        streams.RestoreReply,
    ),
    *(
        consumers.ConsumerInfo,
        consumers.ConsumerPage,
        consumers.ConsumerNamesPage,
        consumers.PauseReply,
    ),
    *(
        messages.MessageReply,
        messages.PubAck,
        messages.PurgeReply,
        messages.DoneReply,
        account.AccountInfo,
    ),
)
_CONFIGS: tuple[type[streams.StreamConfig | consumers.ConsumerConfig], ...] = (
    streams.StreamConfig,
    consumers.ConsumerConfig,
)


@target(
    "reply",
    *_DEEP,
    b'"error":{"code":404}',
    b'"config":{}',
    b'"0001-01-01T00:00:00Z"',
    mutate=change_json,
)
def reply(data: bytes) -> None:
    """A reply of the API, for each model: a model that is written and read again as the same, or an
    error.
    """
    body = jsapi.reply(data, "ask")
    _quietly(lambda: stream_summary(body, "look"))
    for model in _MODELS:
        read = _quietly(lambda model=model: model.from_server(body))  # type: ignore[misc]
        if read is not None:
            _again(read)
    found = _quietly(lambda: messages.MessageReply.from_server(body))
    if isinstance(found, messages.MessageReply):
        _quietly(lambda: entry_of("B", found.message))
        _quietly(lambda: StoredObject.read(found.message.data, "B", "$O.B.M.x", 1, 1))
        parse_status(found.message.hdrs)


@target("config", *_DEEP, b'"max_age":"1h"', b'"subjects":["a.>"]', mutate=change_json)
def config(data: bytes) -> None:
    """A configuration, as a user writes it and as a server sends it."""
    body = _object(data)
    for model in _CONFIGS:
        wanted = _quietly(lambda model=model: model.parse(body, "wanted"))  # type: ignore[misc]
        have = _quietly(lambda model=model: model.from_server(body))  # type: ignore[misc]
        for read in (wanted, have):
            if read is not None:
                _again(read)
                assert list(differences(read, read)) == []
        if wanted is not None:
            assert model.parse(rendered(wanted), "wanted again") == wanted
        if wanted is not None and have is not None:
            list(differences(wanted, have))
    mirror = body.get("mirror")
    _quietly(lambda: Origin.of("B", "$JS.API", mirror if isinstance(mirror, dict) else None))


@target(
    "event",
    *_DEEP,
    b'"type":"io.nats.jetstream.advisory.v1.api_audit"',
    b'"timestamp":""',
    mutate=change_json,
)
def event(data: bytes) -> None:
    """A message on the subjects of events: no message may end a watch, so nothing is raised."""
    read = parse_event("$JS.EVENT.ADVISORY.API", data)
    assert all(line.isprintable() for line in event_details(read).split("\n"))
    for body in (event_json(read), cloud_event(read)):
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


@target("trace", *_DEEP, b'"type":"js"', b'"hop":"1.1"', b'"from":""', mutate=change_json)
def trace(data: bytes) -> None:
    """The report of a server on a traced message: alone it is a way with an end, or an error."""
    read = _quietly(lambda: trace_report(data, "trace"))
    if isinstance(read, TraceReport):
        way = MessageTrace("a", {"": read, read.hop: read})
        assert 1 <= len(list(way.walk())) <= 2
        assert all(isinstance(place, str) for place in (*way.missing, *way.blind_spots))
        json.dumps([way.data(), way.accounts], ensure_ascii=False, allow_nan=False).encode()


@target(
    "offset",
    *_DEEP,
    b'"version":1',
    b'"next":1',
    b'"count":1000000',
    mutate=change_json,
)
def offset(data: bytes) -> None:
    """An offset of a checkpoint: written as it was read, or refused."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return
    read = Offset.from_json(content)
    written = json.dumps(read.to_json())
    assert Offset.from_json(json.loads(written)) == read
    assert json.dumps(Offset.from_json(json.loads(written)).to_json()) == written


@target("ledger", *_DEEP, b'"done":true', b'"lease":1.5', b'"next":7', mutate=change_json)
def ledger(data: bytes) -> None:
    """An entry of the ledger: written as it was read, or refused."""
    entry = TaskEntry.from_json(data, "k")
    assert TaskEntry.from_json(entry.to_json(), "k") == entry
    assert 0 < entry.lease <= 86_400
    if entry.report is not None:
        TaskReport.from_json(entry.report)


@target(
    "object",
    *_DEEP,
    b'"options":{"link":{"bucket":"b"}}',
    b'"digest":"SHA-256="',
    mutate=change_json,
)
def object_meta(data: bytes) -> None:
    """A meta message of an object: written as it was read, or refused; and what is noted of
    uploads.
    """
    _quietly(lambda: read_note(data, "$O.B.C.x"))
    meta = ObjectMeta.from_json(data, "B")
    again = ObjectMeta.from_json(meta.to_json(), "B")
    assert again == meta
    try:
        digest = digest_bytes(meta.digest)
    except ValueError:
        return
    assert digest_bytes(digest_text(digest)) == digest


@target(
    "units",
    b"1h30m",
    b"1.5s",
    b"64KiB",
    b"2026-03-01T12:00:00.123456789+01:00",
    b"1700000000000",
    b"wrong last sequence: 7",
)
def units(data: bytes) -> None:
    """Durations, sizes and times as text: exact numbers that print as themselves, or `ValueError`."""
    text = data.decode("utf-8", "surrogateescape")
    kinds: tuple[type[Nanoseconds] | type[Bytes] | type[Timestamp], ...] = (
        Nanoseconds,
        Bytes,
        Timestamp,
    )
    for kind in kinds:
        try:
            value = kind.of(text)
        except ValueError:
            continue
        # A server has no number that is larger; what is read of one goes through a check of its
        # range.
        if isinstance(value, str) or abs(value) <= INT64_MAX:
            assert kind.of(str(value)) == value
    try:
        assert time_nanoseconds(text) == parse_time(text)
    except ValueError:
        assert parse_time(text) == 0
    last_revision(text[:500])


def _object(data: bytes) -> dict[str, Any]:
    try:
        return json_object(data)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _quietly(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except JetStreamError as error:
        assert isinstance(error, (ProtocolError, OptionError, ApiError)), repr(error)
        return None


def _again(read: Model) -> None:
    """Check that a model sends JSON, and that a model read from it is equal."""
    body: Mapping[str, Any] = read.model_dump(mode="json", exclude_unset=True)
    text = json.dumps(body)
    assert type(read).from_server(json.loads(text)) == read
    rendered(read)
    repr(read)
    for name in read.field_names:
        readable(getattr(read, name))
