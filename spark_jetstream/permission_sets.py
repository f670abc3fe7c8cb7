"""The least permissions for reading and writing: one function for each purpose of `permissions.PURPOSES`. Pure."""

from __future__ import annotations

from dataclasses import replace

from spark_jetstream import jsapi, objects
from spark_jetstream.admin import api_subjects
from spark_jetstream.permission_lines import Lines, Names, Permission
from spark_jetstream.source.durable import stand_in

LEDGER = "spark_jetstream_ledger"
"""The Key-Value bucket in which exactly-once keeps its notes (`sink.ledger`)."""

# Reading


def read(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.STREAM_INFO), "where the stream begins and ends")
    yield from _consumers(names)


def _consumers(names: Names) -> Lines:
    """What reading with consumers of one's own takes."""
    yield from _creating(names, "*", "a consumer for each task")
    yield Permission(names.api(api_subjects.CONSUMER_NEXT), "its messages")
    yield Permission(
        names.api(api_subjects.CONSUMER_DELETE),
        "when the task is done",
        without="consumers stay until they have been idle for 30 seconds",
    )


def _creating(names: Names, consumer: str, why: str) -> Lines:
    """What creating consumers of this name takes: a single filter is part of the subject."""
    if names.subjects is not None:
        yield Permission(jsapi.consumer_create(names.prefix, names.stream, consumer, names.subjects), why)
        return
    for filters, when in (((), "without a filter, or with several"), ((">",), "with one filter")):
        yield Permission(jsapi.consumer_create(names.prefix, names.stream, consumer, filters), why, when)


def read_direct(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.STREAM_INFO), "where the stream begins and ends")
    yield Permission(names.api(api_subjects.MESSAGE_GET), "single messages of the leader, which knows where it ends")
    yield Permission(names.api(api_subjects.DIRECT_GET), "the messages")


def durable(names: Names) -> Lines:
    yield from _position(names)
    yield from _creating(names, names.durable, "the consumer that has the position")
    yield Permission(names.api(api_subjects.CONSUMER_RESET, consumer=names.durable), "a commit")


def durable_old(names: Names) -> Lines:
    yield from _position(names)
    for consumer in (names.durable, _moving(names)):
        yield from _creating(names, consumer, "the consumer that has the position, or its stand-in")
        yield Permission(names.api(api_subjects.CONSUMER_DELETE, consumer=consumer), "a commit")


def _position(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.CONSUMER_INFO, consumer=names.durable), "the position")
    yield Permission(names.api(api_subjects.CONSUMER_INFO, consumer=_moving(names)), "what a broken move has left")


def _moving(names: Names) -> str:
    return names.durable if names.durable == "*" else stand_in(names.durable)


def durable_queue(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.CONSUMER_INFO, consumer=names.durable), "whether it is still ours")
    yield from _creating(names, names.durable, "the consumer that reserves the filter")
    yield Permission(names.api(api_subjects.STREAM_PURGE), "a commit removes what was read")


def _kv(names: Names) -> Names:
    keys = [f"$KV.{names.bucket}.{key}" for key in names.subjects or ()]
    return names.of(f"KV_{names.bucket}", keys or None)


def kv_read(names: Names) -> Lines:
    bucket = _kv(names)
    for line in read(bucket):
        if bucket.subjects is None and line.subject.endswith("*.>"):
            yield replace(line, when="one key, or the table of a bucket with history")
        elif bucket.subjects is None and line.when:
            yield replace(line, when="without keys, or with several")
        else:
            yield line


def kv_read_direct(names: Names) -> Lines:
    yield from read_direct(_kv(names))


def object_read(names: Names) -> Lines:
    bucket = names.of(objects.stream_name(names.bucket), [objects.meta_filter(names.bucket)])
    for line in read(bucket):
        yield replace(line, why="consumers for the list of objects") if line.subject.endswith(".M.>") else line
    contents = "unless contentOff=true"
    chunks = [objects.chunk_subject(names.bucket, "*")]
    yield from _when(contents, _creating(names.of(bucket.stream, chunks), "*", "a consumer for the content of one"))
    yield from _when(contents, _creating(names.of(bucket.stream, []), "*", "a consumer for the content of several"))


def _when(case: str, lines: Lines) -> Lines:
    return (replace(line, when=case) for line in lines)


def object_read_direct(names: Names) -> Lines:
    yield from read_direct(names.of(objects.stream_name(names.bucket), ()))


# Writing

_UNSEEN = "mistakes are found by the rows, not before the first one"


def _dead_letters(names: Names) -> Lines:
    if names.dead_letter:
        yield Permission(names.dead_letter, "rows that are refused")
        yield _find(names, "option deadLetterSubject")


def _find(names: Names, when: str) -> Permission:
    return Permission(names.api(api_subjects.STREAM_NAMES), "which stream has a subject", when, without=_UNSEEN)


def write(names: Names) -> Lines:
    for subject in names.subjects or ():
        yield Permission(subject, "the rows")
    yield from _dead_letters(names)
    yield Permission(names.api(api_subjects.STREAM_INFO), "a look at the stream before the first row", without=_UNSEEN)
    yield _find(names, "without option stream")
    yield Permission(
        names.api(api_subjects.MESSAGE_GET),
        "whether a row is there already",
        "column expected_last_subject_sequence",
        without="a row that is sent again fails, although it is stored",
    )


def write_exactly_once(names: Names) -> Lines:
    ledger = names.of(f"KV_{LEDGER}", None)
    for line in write(names):
        if line.subject == names.api(api_subjects.STREAM_INFO):
            yield replace(line, why="where the stream ends when a task begins", without="")
        elif line.subject == names.api(api_subjects.STREAM_NAMES):
            yield replace(line, when="without option stream, or with deadLetterSubject", without="")
        else:
            yield line
    yield Permission(ledger.api(api_subjects.STREAM_INFO), "whether the ledger is there")
    yield Permission(ledger.api(api_subjects.STREAM_CREATE), "make the ledger", "unless it is there")
    yield Permission(ledger.api(api_subjects.MESSAGE_GET), "what the ledger says of a task")
    yield Permission(names.data(f"$KV.{LEDGER}.*.*"), "entries of the ledger")
    again = "a task that is run again"
    for line in _consumers(names.of(names.stream, ())):
        yield replace(line, why="what an earlier attempt has stored", when=again)
    yield Permission(names.api(api_subjects.MESSAGE_GET), "the same, where messages were removed", again)


def kv_write(names: Names) -> Lines:
    bucket = _kv(names)
    for key in names.subjects or (">",):
        yield Permission(names.data(f"$KV.{names.bucket}.{key}"), "the rows")
    yield from _dead_letters(names)
    yield Permission(bucket.api(api_subjects.STREAM_INFO), "a look at the bucket before the first row", without=_UNSEEN)
    yield Permission(
        bucket.api(api_subjects.MESSAGE_GET),
        "which revision a key has",
        "column expected_revision",
        without="a row that is sent again fails, although it is stored",
    )


def object_write(names: Names) -> Lines:
    bucket = names.of(objects.stream_name(names.bucket), ())
    yield Permission(objects.meta_subject(names.bucket, "").removesuffix(".") + ".*", "meta messages of objects")
    yield Permission(objects.chunk_subject(names.bucket, "*"), "chunks, and the notes beside them")
    yield Permission(bucket.api(api_subjects.MESSAGE_GET), "what is replaced")
    yield Permission(bucket.api(api_subjects.STREAM_PURGE), "remove chunks of what was replaced")
    yield Permission(
        bucket.api(api_subjects.STREAM_INFO), "a look at the bucket, and its max_msg_size", without=_UNSEEN
    )


def ensure_stream(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.STREAM_INFO), "whether it is there, and as described")
    yield Permission(names.api(api_subjects.STREAM_CREATE), "create it")


def ensure_stream_update(names: Names) -> Lines:
    yield from ensure_stream(names)
    yield Permission(names.api(api_subjects.STREAM_UPDATE), "change what differs")
