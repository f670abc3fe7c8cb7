"""The least permissions of a NATS user for each purpose, and the server's configuration of them.

Pure. docs/permissions.md shows them. Tests run each purpose with them, and with each one left out.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from spark_jetstream.buckets import objects
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import LEDGER_BUCKET, dead_letter_stream, stand_in
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.protocol.subjects import covers

PermissionKind = Literal["publish", "subscribe"]


@dataclass(frozen=True)
class Permission:
    """The permission to publish or to subscribe to the subjects that a filter matches.

    ``why`` says what needs it. ``when`` says in which case, "" for always. ``without`` says what
    happens if an optional permission is missing; it is "" if the absence is an error.
    """

    subject: str
    why: str
    when: str = ""
    without: str = ""
    kind: PermissionKind = "publish"

    def covers(self, other: Permission) -> bool:
        """Return whether this permission includes the other one."""
        return self.kind == other.kind and covers(self.subject, other.subject)


@dataclass(frozen=True)
class Names:
    """The names in the subjects of permissions.

    ``subjects`` is None for any filters, and empty for none.
    """

    stream: str
    bucket: str
    subjects: Sequence[str] | None
    durable: str
    dead_letter: str
    prefix: str
    inbox_prefix: str

    def api(self, endpoint: Endpoint, **names: str) -> str:
        """Return the subject of an endpoint as a filter, with wildcards for what has no name."""
        # A task makes up the name of its consumer, and NATS has no wildcard for a part of a token.
        known = {"stream": self.stream, "consumer": "*", "filter": ">", "subject": ">"}
        return jsapi.subject(self.prefix, endpoint, **{**known, **names})

    def of(self, subject: Endpoint | str) -> str:
        """Return the subject of an endpoint as `api` does, or another subject of the stream."""
        if isinstance(subject, Endpoint):
            return self.api(subject)
        return subject.format(stream=self.stream)

    def data(self, subject: str) -> str:
        """Return where clients publish to a subject of a Key-Value bucket."""
        if self.prefix == jsapi.DEFAULT_PREFIX:
            return subject
        # The bucket of another domain or account has its subjects below their prefix.
        return f"{self.prefix}.{subject}"


Lines = Iterator[Permission]


class _NeededSubject(NamedTuple):
    """A subject that a purpose publishes to, and the use that needs it."""

    subject: Endpoint | str
    """An endpoint of the API, or a subject with the placeholder ``{stream}``."""
    why: str
    when: str = ""

    @property
    def case(self) -> str:
        """In which case the purpose needs it, "" for always."""
        # These requests move leaders and replicas, and a single server has neither.
        if isinstance(self.subject, Endpoint) and self.subject.clustered:
            return "cluster"
        return self.when


_LOOK_AT_STREAMS = (
    _NeededSubject(jsapi.STREAM_NAMES, "streams.names"),
    _NeededSubject(jsapi.STREAM_LIST, "streams.infos"),
    _NeededSubject(jsapi.STREAM_INFO, "streams.load, subjects, replicas, origins, plan"),
)
_ENSURE = (
    _NeededSubject(jsapi.STREAM_INFO, "whether it exists as described"),
    _NeededSubject(jsapi.STREAM_CREATE, "create it"),
)
#: Purposes, or parts of some, that need a subject for each of their uses.
_LISTED: Mapping[str, Sequence[_NeededSubject]] = {
    "read-direct": (
        _NeededSubject(jsapi.STREAM_INFO, "where the stream begins and ends"),
        # Any replica answers a Direct Get, and one that lags does not know the last messages.
        _NeededSubject(
            jsapi.MESSAGE_GET, "single messages of the leader, which knows where it ends"
        ),
        _NeededSubject(jsapi.DIRECT_GET, "the messages"),
    ),
    "kv-lookup": (
        _NeededSubject(jsapi.STREAM_INFO, "the revision up to which an answer must go"),
        _NeededSubject(jsapi.DIRECT_GET, "the values"),
        # A replica that lags does not know the last keys.
        _NeededSubject(jsapi.MESSAGE_GET, "whether the leader has a key that an answer lacks"),
    ),
    "kv-lookup-leader": (
        _NeededSubject(jsapi.STREAM_INFO, "whether the bucket exists, and who leads it"),
        _NeededSubject(jsapi.MESSAGE_GET, "the values"),
    ),
    "find-streams": (
        _NeededSubject(jsapi.STREAM_NAMES, "the streams that match", "streamPattern alone"),
        _NeededSubject(
            jsapi.STREAM_LIST, "the streams that match, with their metadata", "streamMetadata"
        ),
    ),
    "ensure-stream": _ENSURE,
    "ensure-stream-update": (*_ENSURE, _NeededSubject(jsapi.STREAM_UPDATE, "change what differs")),
    "admin-account": (_NeededSubject(jsapi.ACCOUNT_INFO, "account.info, tiers, server"),),
    "admin-look": (
        *_LOOK_AT_STREAMS,
        _NeededSubject(jsapi.CONSUMER_NAMES, "consumers.names"),
        _NeededSubject(jsapi.CONSUMER_LIST, "consumers.infos, lag"),
        _NeededSubject(jsapi.CONSUMER_INFO, "consumers.load, handover, replicas, plan"),
        _NeededSubject(jsapi.MESSAGE_GET, "lag with ages, consumers.handover"),
    ),
    "admin-streams": (
        *_LOOK_AT_STREAMS,
        _NeededSubject(jsapi.STREAM_CREATE, "streams.create, load_or_create, copy"),
        _NeededSubject(jsapi.STREAM_UPDATE, "streams.update, seal"),
        _NeededSubject(jsapi.STREAM_PURGE, "streams.purge"),
        _NeededSubject(jsapi.STREAM_DELETE, "streams.delete"),
        _NeededSubject(jsapi.STREAM_STEP_DOWN, "streams.step_down"),
        _NeededSubject(jsapi.STREAM_PEER_REMOVE, "streams.remove_peer"),
        _NeededSubject(jsapi.PEER_EVACUATE, "streams.remove_peer with evacuate"),
        _NeededSubject(jsapi.CANCEL_MOVE, "streams.cancel_move"),
    ),
    "admin-consumers": (
        _NeededSubject(jsapi.CONSUMER_NAMES, "consumers.names"),
        _NeededSubject(jsapi.CONSUMER_LIST, "consumers.infos"),
        _NeededSubject(jsapi.CONSUMER_INFO, "consumers.load, replicas, plan, next"),
        _NeededSubject(jsapi.CONSUMER_CREATE, "consumers.create without a name"),
        _NeededSubject(jsapi.CONSUMER_CREATE_NAMED, "consumers.create, load_or_create, update"),
        _NeededSubject(jsapi.CONSUMER_CREATE_FILTERED, "the same, with filter_subject"),
        _NeededSubject(jsapi.CONSUMER_CREATE_DURABLE, "consumers.create with durable_form"),
        _NeededSubject(jsapi.CONSUMER_PAUSE, "consumers.pause, resume"),
        _NeededSubject(jsapi.CONSUMER_RESET, "consumers.reset"),
        _NeededSubject(jsapi.CONSUMER_UNPIN, "consumers.unpin"),
        _NeededSubject(jsapi.CONSUMER_DELETE, "consumers.delete"),
        _NeededSubject(jsapi.CONSUMER_STEP_DOWN, "consumers.step_down"),
        _NeededSubject(jsapi.CONSUMER_PEER_REMOVE, "consumers.remove_peer"),
        _NeededSubject(jsapi.CONSUMER_PEER_EVACUATE, "consumers.remove_peer with evacuate"),
        _NeededSubject(jsapi.CONSUMER_NEXT, "consumers.next"),
        _NeededSubject("$JS.ACK.{stream}.>", "consumers.next, ack, nak, in_progress, term"),
        _NeededSubject("$JS.FC.{stream}.>", "consumers.receive", "flow_control"),
    ),
    "admin-messages": (
        _NeededSubject(jsapi.STREAM_INFO, "messages.read"),
        _NeededSubject(jsapi.MESSAGE_GET, "messages.get, last, next, since; read one by one"),
        _NeededSubject(
            jsapi.DIRECT_GET, "messages.read, last_of_each; get, next, since with direct"
        ),
        _NeededSubject(jsapi.DIRECT_GET_LAST, "messages.last with direct"),
        _NeededSubject(jsapi.MESSAGE_DELETE, "messages.delete, erase"),
    ),
    "admin-backup": (
        _NeededSubject(jsapi.STREAM_SNAPSHOT, "begin"),
        _NeededSubject("$JS.SNAPSHOT.ACK.{stream}.>", "each chunk came"),
    ),
    "admin-restore": (
        _NeededSubject(jsapi.STREAM_NAMES, "whether another stream has the subjects"),
        _NeededSubject(jsapi.STREAM_RESTORE, "begin"),
        _NeededSubject("$JS.SNAPSHOT.RESTORE.{stream}.*", "each chunk"),
        _NeededSubject(jsapi.STREAM_INFO, "what is left of it", "a restore that fails"),
        _NeededSubject(jsapi.STREAM_DELETE, "remove that", "a restore that fails"),
    ),
    "bucket": (
        _NeededSubject(jsapi.STREAM_NAMES, "names"),
        _NeededSubject(jsapi.STREAM_LIST, "infos"),
        _NeededSubject(jsapi.STREAM_INFO, "load, status, and how the bucket is set up"),
        _NeededSubject(jsapi.STREAM_CREATE, "create, load_or_create"),
        _NeededSubject(jsapi.STREAM_UPDATE, "update"),
        _NeededSubject(jsapi.STREAM_DELETE, "delete"),
    ),
}


def _listed(purpose: str) -> Callable[[Names], Lines]:
    """Return the function for a purpose of `_LISTED`."""
    return functools.partial(_rows, purpose)


def _rows(purpose: str, names: Names) -> Lines:
    for use in _LISTED[purpose]:
        yield Permission(names.of(use.subject), use.why, use.case)


# Reading


#: The cases in which the subject that creates a consumer has no filter, and in which it has one.
_CASES = ("without a filter, or with several", "with one filter")


def read(
    names: Names,
    why: str = "a consumer for each task",
    cases: tuple[str, str] = _CASES,
) -> Lines:
    yield Permission(names.api(jsapi.STREAM_INFO), "where the stream begins and ends")
    yield from _creating(names, "*", why, cases)
    yield from _using(names, "its messages", "when the task is done")
    # A user with a filter must not have it: it shows any message of the stream.
    if not names.subjects:
        # This permission lets the user see all messages of the stream.
        yield _compared(names)


def _compared(names: Names) -> Permission:
    """Return the permission for asking the leader after a consumer has found nothing more."""
    return Permission(
        names.api(jsapi.MESSAGE_GET),
        "whether the leader has more than a consumer",
        # A server that was restarted creates consumers before it has fetched what it missed.
        without="a consumer on a replica that lags may leave out the last messages",
    )


def _using(names: Names, messages: str, done: str) -> Lines:
    """Yield the permissions for pulling from consumers, and for deleting them."""
    yield Permission(names.api(jsapi.CONSUMER_NEXT), messages)
    # The readers give their consumers this inactive_threshold (docs/architecture.md).
    idle = "consumers stay until they have been idle for 30 seconds"
    yield Permission(names.api(jsapi.CONSUMER_DELETE), done, without=idle)


def _creating(names: Names, consumer: str, why: str, cases: tuple[str, str] = _CASES) -> Lines:
    """Yield the permissions for creating consumers of this name."""

    def create(filters: Sequence[str]) -> str:
        return jsapi.consumer_create(names.prefix, names.stream, consumer, filters)

    if names.subjects is not None:
        yield Permission(create(names.subjects), why)
        return
    # A single filter is part of the subject; none, or several, are not.
    without_filter, with_filter = cases
    yield Permission(create(()), why, without_filter)
    yield Permission(create((">",)), why, with_filter)


def starting_consumer(names: Names) -> Lines:
    yield Permission(
        names.api(jsapi.CONSUMER_INFO, consumer=names.durable),
        "what the consumer has acknowledged, until the query has a checkpoint",
    )


# A server since 2.14 moves the consumer by CONSUMER.RESET. An older one has no such request, so the
# query makes the consumer again, and meanwhile a stand-in.
def durable(names: Names) -> Lines:
    yield from _position(names)
    yield from _creating(names, names.durable, "the consumer that has the position")
    yield _alive(names)
    yield Permission(names.api(jsapi.CONSUMER_RESET, consumer=names.durable), "a commit")
    yield _versions()


def _versions() -> Permission:
    """Return the permission for asking servers for their versions."""
    return Permission(
        jsapi.ASK_SERVERS,
        "whether all servers can move the consumer",
        "cluster",
        without="while servers are updated from before 2.14, a commit crashes the older ones",
    )


def durable_old(names: Names) -> Lines:
    yield from _position(names)
    for consumer in (names.durable, _moving(names)):
        yield from _creating(names, consumer, "the consumer that has the position, or its stand-in")
        # Not optional here: a consumer that stays could not be made again elsewhere.
        yield Permission(names.api(jsapi.CONSUMER_DELETE, consumer=consumer), "a commit")
    yield _alive(names)


def _position(names: Names) -> Lines:
    yield Permission(names.api(jsapi.CONSUMER_INFO, consumer=names.durable), "the position")
    yield Permission(
        names.api(jsapi.CONSUMER_INFO, consumer=_moving(names)),
        "what a broken move has left",
    )


def _alive(names: Names) -> Permission:
    """Return the permission for pulling nothing from the consumer."""
    # The server counts only pulls as activity.
    return Permission(
        names.api(jsapi.CONSUMER_NEXT, consumer=names.durable),
        "signs of life of the consumer",
        "the stream's consumer_limits have an inactive_threshold",
    )


def _moving(names: Names) -> str:
    """Return the name of the consumer that stands in while the durable one is moved."""
    if names.durable == "*":
        return "*"
    return stand_in(names.durable)


def durable_queue(names: Names) -> Lines:
    yield Permission(
        names.api(jsapi.CONSUMER_INFO, consumer=names.durable),
        "whether it is still ours",
    )
    yield from _creating(names, names.durable, "the consumer that reserves the filter")
    yield _alive(names)
    # NATS cannot allow the purge of one filter only (docs/permissions.md).
    yield Permission(names.api(jsapi.STREAM_PURGE), "a commit removes what was read")
    yield Permission(
        names.api(jsapi.CONSUMER_RESET, consumer=names.durable),
        "a commit leaves the consumer at the position",
        # The purge moves the consumer on to the next message that matches, so the commit moves it
        # back.
        "with a filter, or max_msgs_per_subject",
        without="the server shows the next message that matches in place of the position",
    )
    yield _versions()


def share(names: Names) -> Lines:
    yield Permission(names.api(jsapi.STREAM_INFO), "whether it is still the same stream")
    yield Permission(
        names.api(jsapi.CONSUMER_INFO, consumer=names.durable), "the settings of the consumer"
    )
    yield Permission(names.api(jsapi.CONSUMER_NEXT, consumer=names.durable), "its messages")
    yield Permission(
        f"$JS.ACK.{names.stream}.{names.durable}.>", "acknowledgements and signs of life"
    )
    yield Permission(names.api(jsapi.MESSAGE_GET), "the messages of a micro-batch that comes again")
    yield Permission(
        names.api(jsapi.MESSAGE_DELETE),
        "remove committed messages after the consumer was created again or set back",
        without="a consumer that was created again or set back delivers the messages of the last "
        "micro-batch once more",
    )


def _kv(names: Names) -> Names:
    keys = [f"$KV.{names.bucket}.{key}" for key in names.subjects or ()]
    # Without keys the consumer of a read may have the filter of all keys, or none.
    return replace(names, stream=f"KV_{names.bucket}", subjects=keys or None)


def kv_read(names: Names) -> Lines:
    cases = (
        "without keys, with several, or as of the past",
        "one key, or the table of a bucket with history",
    )
    return read(_kv(names), cases=cases)


def kv_read_direct(names: Names) -> Lines:
    return _rows("read-direct", _kv(names))


def kv_lookup(names: Names) -> Lines:
    return _rows("kv-lookup", _kv(names))


def kv_lookup_leader(names: Names) -> Lines:
    return _rows("kv-lookup-leader", _kv(names))


def dead_letters_read(names: Names) -> Lines:
    kept = "*" if names.stream == "*" else dead_letter_stream(names.stream)
    # The advisories are read without a filter.
    yield from read(replace(names, stream=kept, subjects=()))
    # A message is joined to its advisory only if the leader still has it, and only if the stream
    # has not been created again since: the permissions for the columns of the message.
    yield Permission(names.api(jsapi.MESSAGE_GET), "the messages", "columns of the message")
    yield Permission(
        names.api(jsapi.STREAM_INFO),
        "when the stream was created",
        "columns of the message",
    )


def object_read(names: Names) -> Lines:
    bucket = _objects(names)
    yield from read(bucket, "consumers for the list of objects")
    # The read has filters of its own, so `read` leaves this permission out.
    yield _compared(bucket)
    chunks = objects.chunk_subject(names.bucket, "*")
    of_one = jsapi.consumer_create(names.prefix, bucket.stream, "*", [chunks])
    of_several = jsapi.consumer_create(names.prefix, bucket.stream, "*", [])
    yield Permission(of_one, "a consumer for the content of one", "unless contentOff=true")
    yield Permission(of_several, "a consumer for the content of several", "unless contentOff=true")


def object_read_direct(names: Names) -> Lines:
    return _rows("read-direct", _objects(names))


def _objects(names: Names) -> Names:
    return replace(
        names,
        stream=objects.stream_name(names.bucket),
        subjects=[objects.meta_filter(names.bucket)],
    )


# Writing

_UNSEEN = "mistakes are found by the rows, not before the first one"


def _dead_letters(names: Names) -> Lines:
    if names.dead_letter:
        yield Permission(names.dead_letter, "rows that are refused")
        # The sink learns before the first row whether a stream stores the dead letters.
        yield _find(names, "option deadLetterSubject")


def _find(names: Names, when: str) -> Permission:
    return Permission(
        names.api(jsapi.STREAM_NAMES),
        "which stream has a subject",
        when,
        without=_UNSEEN,
    )


def write(names: Names) -> Lines:
    for subject in names.subjects or ():
        yield Permission(subject, "the rows")
    yield from _dead_letters(names)
    yield Permission(
        names.api(jsapi.STREAM_INFO),
        "a check of the stream before the first row",
        without=_UNSEEN,
    )
    yield _find(names, "without option stream")
    yield Permission(
        names.api(jsapi.MESSAGE_GET),
        "whether a row is stored already",
        "at-least-once, or column expected_last_subject_sequence",
        # After a lost acknowledgement the writer asks the leader for the message.
        without="a row that is sent again fails although it is stored, or is stored twice",
    )


def write_exactly_once(names: Names) -> Lines:
    ledger = replace(names, stream=f"KV_{LEDGER_BUCKET}")
    for line in write(names):
        # A later attempt looks for its rows from where the stream ended, so the line is not
        # optional here.
        if line.subject == names.api(jsapi.STREAM_INFO):
            yield replace(line, why="where the stream ends when a task begins", without="")
        elif line.subject == names.api(jsapi.STREAM_NAMES):
            yield replace(line, when="without option stream, or with deadLetterSubject", without="")
        else:
            yield line
    yield Permission(ledger.api(jsapi.STREAM_INFO), "whether the ledger exists")
    yield Permission(ledger.api(jsapi.STREAM_CREATE), "make the ledger", "unless it exists")
    yield Permission(ledger.api(jsapi.MESSAGE_GET), "what the ledger says of a task")
    yield Permission(names.data(f"$KV.{LEDGER_BUCKET}.*.*"), "entries of the ledger")
    again = "a task that is run again"
    # The earlier rows may be at any subject, so the consumer has no filter.
    for line in read(replace(names, subjects=())):
        yield replace(line, why="what an earlier attempt has stored", when=again)
    # It covers the optional line of `write`, and is not optional: `merged` keeps the stricter one.
    yield Permission(names.api(jsapi.MESSAGE_GET), "the same, where messages were removed", again)


def kv_write(names: Names) -> Lines:
    bucket = _kv(names)
    for key in names.subjects or (">",):
        yield Permission(names.data(f"$KV.{names.bucket}.{key}"), "the rows")
    yield from _dead_letters(names)
    yield Permission(
        bucket.api(jsapi.STREAM_INFO),
        "a check of the bucket before the first row",
        without=_UNSEEN,
    )
    yield Permission(
        bucket.api(jsapi.MESSAGE_GET),
        "which revision a key has",
        "column expected_revision",
        without="a row that is sent again fails, although it is stored",
    )


def object_write(names: Names) -> Lines:
    bucket = _objects(names)
    yield Permission(
        objects.meta_subject(names.bucket, "").removesuffix(".") + ".*",
        "meta messages of objects",
    )
    yield Permission(objects.chunk_subject(names.bucket, "*"), "chunks, and the notes beside them")
    yield Permission(bucket.api(jsapi.MESSAGE_GET), "what is replaced")
    yield Permission(bucket.api(jsapi.STREAM_PURGE), "remove chunks of what was replaced")
    yield Permission(
        bucket.api(jsapi.STREAM_INFO),
        "a check of the bucket, and its max_msg_size",
        without=_UNSEEN,
    )


def leaf_copy(names: Names) -> Lines:
    without_filter, with_filter = _CASES
    # Where a leaf node subscribes, the server finds `.>`, and not the narrower `.*.>` (tried on
    # 2.15.1).
    create = names.api(jsapi.CONSUMER_CREATE, consumer=">")
    create_named = names.api(jsapi.CONSUMER_CREATE_NAMED, consumer=">")
    yield Permission(create, "the consumer that sends the copy", without_filter)
    yield Permission(create_named, "the consumer that sends the copy", with_filter)
    # Messages of mirrors and sources come by a push consumer, whose flow control wants answers.
    yield Permission(f"$JS.FC.{names.stream}.>", "answers to its flow control")
    yield Permission("$JSC.R.*", "the answer that it was created", kind="subscribe")
    yield Permission("$JS.M.*", "messages and heartbeats", "mirrors", kind="subscribe")
    yield Permission("$JS.S.*", "messages and heartbeats", "sources", kind="subscribe")


def leaf_origin(names: Names) -> Lines:
    # The hub publishes to the subjects that the leaf node subscribes to, and the other way round.
    for line in leaf_copy(names):
        if line.kind == "subscribe":
            yield replace(line, kind="publish")
        else:
            yield replace(line, kind="subscribe")


def _reading(names: Names, uses: Sequence[tuple[str, str]]) -> Lines:
    """Yield the permissions for reading with consumers.

    ``uses`` are pairs of a filter and its use; the filter "" stands for none or several.
    """
    for subject, why in uses:
        filters = (subject,) if subject else ()
        yield Permission(jsapi.consumer_create(names.prefix, names.stream, "*", filters), why)
    yield from _using(names, "what they deliver", "when it is read")


def kv(names: Names) -> Lines:
    bucket = _kv(names)
    keys = f"$KV.{names.bucket}.>"
    yield from _listed("bucket")(bucket)
    yield Permission(bucket.api(jsapi.MESSAGE_GET), "get; history and watch of replicas")
    yield Permission(bucket.api(jsapi.DIRECT_GET), "get with a revision and direct")
    yield Permission(bucket.api(jsapi.DIRECT_GET_LAST, subject=keys), "get with direct")
    yield from _reading(
        bucket,
        [(keys, "keys, entries, history, watch"), ("", "the same with several filters")],
    )
    yield Permission(names.data(keys), "put, create, update, delete, purge, revert")
    yield Permission(bucket.api(jsapi.STREAM_PURGE), "purge_deletes")


def counters(names: Names) -> Lines:
    yield Permission(
        names.api(jsapi.STREAM_NAMES),
        "which stream captures a subject",
        "without stream",
    )
    yield Permission(names.api(jsapi.STREAM_INFO), "list")
    yield Permission(names.api(jsapi.MESSAGE_GET), "get; list of replicas")
    yield from _reading(names, [(">", "list"), ("", "list without a subject, or with several")])
    for subject in names.subjects or ():
        yield Permission(subject, "increment")


def schedules(names: Names) -> Lines:
    yield Permission(names.api(jsapi.STREAM_INFO), "list, get, remove")
    yield Permission(
        names.api(jsapi.MESSAGE_GET),
        "get, remove; list of intervals and of replicas",
    )
    yield from _reading(names, [(">", "list"), ("", "list without a subject, or with several")])
    yield Permission(names.api(jsapi.STREAM_PURGE), "remove")


def object_store(names: Names) -> Lines:
    bucket = _objects(names)
    metas = objects.meta_filter(names.bucket)
    chunks = objects.chunk_subject(names.bucket, "*")
    yield from _listed("bucket")(bucket)
    yield Permission(bucket.api(jsapi.MESSAGE_GET), "info, what is replaced; watch of replicas")
    yield from _reading(bucket, [(metas, "list, watch"), (chunks, "get, get_file")])
    yield Permission(metas.removesuffix(">") + "*", "put, delete, update_meta, link")
    yield Permission(chunks, "put, put_file")
    yield Permission(
        bucket.api(jsapi.STREAM_PURGE),
        "remove chunks of what was replaced or deleted",
    )


def events(names: Names) -> Lines:
    subjects = ["ADVISORY.>", "METRIC.>"]
    if names.stream != "*":
        # Events about no stream, such as those of requests to the API, are left out then.
        subjects = [
            f"ADVISORY.STREAM.*.{names.stream}",
            f"ADVISORY.CONSUMER.*.{names.stream}.*",
            f"METRIC.CONSUMER.*.{names.stream}.*",
        ]
    for subject in subjects:
        yield Permission(f"$JS.EVENT.{subject}", "events.watch", kind="subscribe")


def trace(names: Names) -> Lines:
    for subject in names.subjects or ():
        yield Permission(subject, "the message to trace, which is not delivered")
    # Servers report in the name of the user (nats-server: server/msgtrace.go,
    # allowedToPublishOnMsgTraceDest).
    yield Permission(f"{names.inbox_prefix}.>", "the reports of the servers")


_PURPOSES: Mapping[str, tuple[str, Callable[[Names], Lines]]] = {
    "read": ("read a stream", read),
    "read-direct": (
        "read a stream by direct gets (readWith=direct), which makes no consumer",
        _listed("read-direct"),
    ),
    "find-streams": (
        "find the streams to read by name or metadata (streamPattern, streamMetadata), beside "
        "reading them",
        _listed("find-streams"),
    ),
    "durable": (
        "keep a query's position (durable) on a stream with limits or interest, beside reading it",
        durable,
    ),
    "durable-old": ("the same on a server before 2.14, which cannot move a consumer", durable_old),
    "durable-queue": (
        "keep a query's position (durable) on a work queue, beside reading it",
        durable_queue,
    ),
    "share": ("share a consumer of a work queue with other clients (share)", share),
    "starting-consumer": (
        "begin after what a consumer has acknowledged (startingConsumer), beside reading the stream",
        starting_consumer,
    ),
    "dead-letters-read": (
        "read what consumers of a stream gave up (deadLettersOf)",
        dead_letters_read,
    ),
    "kv-read": ("read a Key-Value bucket: its table, all revisions, its changes", kv_read),
    "kv-read-direct": ("read a Key-Value bucket by direct gets", kv_read_direct),
    "kv-lookup": ("look up keys of a Key-Value bucket (lookup)", kv_lookup),
    "kv-lookup-leader": ("look up keys at the leader (lookup with leader=True)", kv_lookup_leader),
    "kv-write": ("write to a Key-Value bucket", kv_write),
    "object-read": ("read an Object Store bucket", object_read),
    "object-read-direct": ("read objects by direct gets", object_read_direct),
    "object-write": ("write to an Object Store bucket", object_write),
    "write": ("write to a stream, at-least-once or deduplicated", write),
    "write-exactly-once": ("write to a stream, exactly-once", write_exactly_once),
    "ensure-stream": ("create a stream on demand (ensureStream)", _listed("ensure-stream")),
    "ensure-stream-update": (
        "the same with ensureStreamOnConflict=update",
        _listed("ensure-stream-update"),
    ),
    "admin-account": ("look at the account", _listed("admin-account")),
    "admin-look": (
        "look at streams and consumers, and at the lag of consumers",
        _listed("admin-look"),
    ),
    "admin-streams": (
        "create, change, purge and delete streams, besides looking at them",
        _listed("admin-streams"),
    ),
    "admin-consumers": (
        "create, change, use, delete consumers, besides looking at them",
        _listed("admin-consumers"),
    ),
    "admin-messages": ("read and remove single messages", _listed("admin-messages")),
    "admin-counters": ("read counters, and add to those of the given subjects", counters),
    "admin-schedules": ("read and remove schedules", schedules),
    "admin-backup": ("back up a stream", _listed("admin-backup")),
    "admin-restore": ("restore a stream", _listed("admin-restore")),
    "admin-kv": ("make, read, write and remove a Key-Value bucket", kv),
    "admin-objects": ("make, read, write and remove an Object Store bucket", object_store),
    "admin-events": ("hear events", events),
    "admin-trace": ("see which streams would store a message, and by which way", trace),
    "leaf-copy": (
        "let a leaf node, as its remote's user, mirror or source a stream of the hub",
        leaf_copy,
    ),
    "leaf-origin": (
        "let the hub mirror or source a stream of a leaf node, as the remote's user",
        leaf_origin,
    ),
}

# These send no requests, so they need no inbox for the answers.
_WITHOUT_INBOX = ("admin-events", "leaf-copy", "leaf-origin")
PURPOSES: Mapping[str, str] = {name: description for name, (description, _) in _PURPOSES.items()}
"""What a user may be allowed to do -> a description, as an infinitive without "to"."""


def needed(
    purpose: str,
    *,
    stream: str = "*",
    bucket: str = "",
    subjects: Sequence[str] | None = None,
    durable: str = "*",
    dead_letter: str = "",
    inbox_prefix: str = "_INBOX",
    prefix: str = jsapi.DEFAULT_PREFIX,
) -> tuple[Permission, ...]:
    """Return the least permissions for one of `PURPOSES`, none twice.

    The purposes durable, durable-queue, starting-consumer and find-streams have only what they need
    beside read or read-direct; `merged` combines sets.

    ``stream`` and ``durable`` are ``*`` for any. ``durable`` is the consumer of option durable, share
    or startingConsumer. ``subjects`` depends on the purpose:

    - the filters of a read (option subjects); empty for none, None for any
    - the subjects of the rows of a write; wildcards are allowed
    - keys of a bucket and filters of keys; None and empty for all

    ``dead_letter`` and ``inbox_prefix`` are options. ``prefix`` is the prefix of the JetStream API
    with options apiPrefix and domain.

    Raises `ValueError` when the purpose is unknown, or needs a bucket or subjects.
    """
    if purpose not in _PURPOSES:
        raise ValueError(f"purpose {purpose!r} is none of {', '.join(PURPOSES)}")
    if purpose.removeprefix("admin-").startswith(("kv", "object")) and not bucket:
        raise ValueError(f"purpose {purpose} needs a bucket")
    # `>` includes $JS.API.>, the whole API.
    if purpose.startswith(("write", "admin-trace")) and not subjects:
        raise ValueError(
            f"purpose {purpose} needs the subjects of the rows: any would be those of the API as "
            "well",
        )
    names = Names(stream, bucket, subjects, durable, dead_letter, prefix, inbox_prefix)
    _, lines_for = _PURPOSES[purpose]
    if purpose in _WITHOUT_INBOX:
        return merged(lines_for(names))
    inbox = Permission(f"{inbox_prefix}.>", "answers", kind="subscribe")
    return merged([inbox], lines_for(names))


def merged(*sets: Iterable[Permission]) -> tuple[Permission, ...]:
    """Return the permissions of several sets in order, without those that another one covers.

    A permission that covers others is needed when one of them is. It takes the place of one that is
    not optional, if any, and first of one that is needed in any case.
    """
    # Equal lines once, in their order: a set would shuffle them.
    lines = list(dict.fromkeys(itertools.chain.from_iterable(sets)))
    kept: dict[tuple[PermissionKind, str], Permission] = {}
    for line in lines:
        # Two lines may have the same subject; then they cover each other, and the first one stays.
        if any(other.covers(line) and not line.covers(other) for other in lines):
            continue
        covered = [other for other in lines if line.covers(other)]
        # A permission that covers a needed one is needed, even if its own use is optional.
        most_needed = min(covered, key=_optionality)
        merged_line = replace(line, when=most_needed.when, without=most_needed.without)
        kept.setdefault((line.kind, line.subject), merged_line)
    return tuple(kept.values())


def _optionality(line: Permission) -> tuple[bool, bool]:
    """Return a key that sorts permissions: needed in any case, needed in a case, optional."""
    return line.without != "", line.when != ""


# Configuration of a server

#: Characters that JSON escapes in a way that nats-server does not read.
_UNWRITABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def user_config(
    user: str,
    password: str,
    permissions: Iterable[Permission],
    *,
    notes: bool = False,
    indent: str = "",
    allow_responses: bool | Mapping[str, Any] = False,
) -> str:
    """Return a user with these permissions and no others, as nats-server's configuration has it.

    ``notes`` adds a comment to each permission. Each line begins with ``indent``.
    ``allow_responses`` lets the user answer messages that it received, at their reply subjects:
    True once, within two minutes; or such as ``{"max": 3, "expires": "1h"}``. Raises `ValueError`
    for a control character, unless it is a tab or a line end.
    """
    lines = list(permissions)
    login = f"user: {_quoted('user', user)}, password: {_quoted('password', password)}"
    text = ["{", f"  {login}", "  permissions {"]
    text += _rights("publish", lines, notes)
    text += _rights("subscribe", lines, notes)
    # Without values the server allows one answer within two minutes (nats-server: server/const.go,
    # DEFAULT_ALLOW_RESPONSE_MAX_MSGS and _EXPIRATION).
    if allow_responses:
        text.append(f"    allow_responses: {json.dumps(allow_responses)}")
    text += ["  }", "}"]
    return "\n".join(f"{indent}{line}" for line in text)


def _quoted(noun: str, text: str) -> str:
    if _UNWRITABLE.search(text):
        problem = "with a control character is not possible in nats-server's configuration"
        raise ValueError(f"a {noun} {problem}")
    # nats-server does not read the escapes \u of JSON, and does not start with one: test_sets.py,
    # test_a_user_may_have_any_text_that_a_server_can_read.
    return json.dumps(text, ensure_ascii=False)


def _rights(kind: PermissionKind, lines: Iterable[Permission], notes: bool) -> Iterator[str]:
    """Yield the lines of the configuration that allow to publish, or to subscribe."""
    allowed = [line for line in lines if line.kind == kind]
    if not allowed:
        # Without an entry the server would allow all subjects.
        yield f'    {kind} {{ deny: [">"] }}'
        return
    yield f"    {kind} {{"
    yield "      allow: ["
    for line in allowed:
        subject = _quoted("subject", line.subject)
        if notes:
            yield f"        {subject}  # {_note(line)}"
        else:
            yield f"        {subject}"
    yield "      ]"
    yield "    }"


def _note(line: Permission) -> str:
    note = line.why
    if line.without:
        note = f"optional: {note}"
    if line.when:
        note = f"{note} ({line.when})"
    return note


__all__ = ["PURPOSES", "Permission", "merged", "needed", "user_config"]
