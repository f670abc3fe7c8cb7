"""Consumers: list, create, change, pause, reset, delete; and pull a few messages from one."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from spark_jetstream.admin.api import Api, consumer_name, moment, positive
from spark_jetstream.admin.assets import Asset
from spark_jetstream.admin.balance import Balanced
from spark_jetstream.admin.models.changes import Difference, changed, named, parse_user
from spark_jetstream.admin.models.consumers import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    PauseReply,
    ResetReply,
)
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.queries import ConsumerQuery
from spark_jetstream.admin.models.streams import Replica, StreamInfo, replicas
from spark_jetstream.admin.streams import Streams
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.errors import (
    ConsumerNotFound,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.protocol.subjects import subjects_overlap
from spark_jetstream.protocol.units import Nanoseconds, Timestamp, minutes_or_months, shown
from spark_jetstream.protocol.wire import Frames

Ack = Literal["ack", "nak", "term", "none"]
ACKS: dict[str, bytes] = {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM", "none": b""}
_SLACK = 2.0  # seconds that the server's reply may come late
_MOST = 1000
_SHORTEST = 0.1  # seconds: a server may drop a pull that expires sooner before it looks for messages


@dataclass(frozen=True)
class DeliveredMessage:
    """A message as a consumer delivered it.

    ``deliveries`` counts the deliveries of this message, ``consumer_seq`` all deliveries of the consumer. ``pending``
    messages were not delivered yet. ``reply`` is the subject of the acknowledgement.
    """

    message: StoredMessage
    consumer: str
    deliveries: int
    consumer_seq: int
    pending: int
    reply: str


def pull(
    connection: Connection, info: ConsumerInfo, count: int, timeout: float, group: str | None
) -> list[DeliveredMessage]:
    """Return up to ``count`` messages as `Consumers.next` does. Raises `RequestTimeout` when the server is silent."""
    stream, name = info.stream_name, info.name
    context = f"get messages from consumer {name} of stream {stream}"
    # Without a heartbeat: the server drops a pull with one, without an error, where too many pulls wait already.
    request: dict[str, Any] = {"batch": count}
    if timeout:
        request["expires"] = jsapi.nanoseconds(timeout)
    if count > 1 or not timeout:
        request["no_wait"] = True  # with "expires" the pull waits for the first message only
    if group is not None:
        request["group"] = group
    messages: list[DeliveredMessage] = []
    deadline = Deadline(timeout + _SLACK)
    with connection.inbox() as inbox:
        subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, stream, name)
        inbox.publish(subject, jsapi.request_body(**request), 1)
        while len(messages) < count:
            event = inbox.get(deadline.left)
            if event is None:
                connection.check(_SLACK)
                if not timeout:
                    break  # while too many messages wait for acknowledgements, the server does not answer such a pull
                raise jsapi.no_reply(context, deadline.seconds)
            if isinstance(event, Frames):
                acks = Acks(event)
                for at, message in enumerate(stored_messages(event, acks, stream)):
                    messages.append(DeliveredMessage(message, name, *acks.delivery(at), event.reply_subject(at)))
            elif jsapi.pull_status(event, stream).outcome is jsapi.PullOutcome.ENDED:
                break
    return messages


def stored_messages(frames: Frames, acks: Acks, stream: str) -> Iterator[StoredMessage]:
    """Return the messages that a consumer delivered."""
    lines, sequences, times = frames.lines.tobytes(), acks.sequences(), acks.timestamps()
    for at, (head, data) in enumerate(frames.parts()):
        yield StoredMessage.from_server(
            {
                "subject": lines[frames.subject_start[at] : frames.subject_end[at]].decode("utf-8", "replace"),
                "seq": int(sequences[at]),
                "time": Timestamp.of(int(times[at])),
                "data": data,
                "hdrs": head,
                "stream": stream,
            }
        )


Config = ConsumerConfig | ConsumerInfo | Mapping[str, Any]


class Consumers(Balanced):
    """The consumers of an account's streams; ``admin.consumers``.

    A configuration is a `ConsumerConfig`, a `ConsumerInfo`, a mapping, or single fields by name, as for `Streams`. All
    methods raise what `Api` raises; `ConsumerNotFound` and `StreamNotFound` name what was asked for; `OptionError` for
    an argument that cannot be one.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    # Looking

    def names(self, stream: str) -> Iterator[str]:
        """Return the names of a stream's consumers, sorted, page by page. Raises `StreamNotFound`."""
        context = f"list the consumers of stream {stream}"
        for page in self._api.pages(ConsumerNamesPage, jsapi.CONSUMER_NAMES, {}, context=context, stream=stream):
            yield from page.consumers

    def infos(self, stream: str | None = None) -> Iterator[ConsumerInfo]:
        """Return the consumers of a stream, or of all streams; sorted. Raises `ServerBusy` as `Streams.infos` does."""
        for name in Streams(self._api).names() if stream is None else [stream]:
            context = f"list the consumers of stream {name}"
            try:
                for page in self._api.pages(ConsumerPage, jsapi.CONSUMER_LIST, {}, context=context, stream=name):
                    yield from page.consumers
            except StreamNotFound:
                if stream is not None:
                    raise
                # The stream was deleted since the list was read.

    def find(self, stream: str | None = None, /, **criteria: Any) -> Iterator[ConsumerInfo]:
        """Return the consumers, of a stream or of all, that meet all criteria, which are fields of `ConsumerQuery`.

        Raises `OptionError` for a criterion that is not possible; what `infos` raises.
        """
        return filter(ConsumerQuery.parse(criteria, "find consumers").matches, self.infos(stream))

    def load(self, stream: str, name: str) -> ConsumerInfo:
        """Return configuration and state of a consumer. Raises `ConsumerNotFound`, `StreamNotFound`."""
        context = f"look at {_what(stream, name)}"
        return self._api.reply(ConsumerInfo, jsapi.CONSUMER_INFO, context=context, stream=stream, consumer=name)

    def replicas(self, stream: str, name: str) -> tuple[Replica, ...]:
        """Return the servers with a replica of a consumer, the leader first; empty outside of a cluster.

        Raises `ConsumerNotFound`, `StreamNotFound`.
        """
        return replicas(self.load(stream, name).cluster)

    # Creating and changing

    def create(
        self,
        stream: str,
        name: str | Config | None = None,
        config: Config | None = None,
        /,
        *,
        durable_form: bool = False,
        any_filter: bool = False,
        pedantic: bool = False,
        **fields: Any,
    ) -> ConsumerInfo:
        """Create a consumer; one that exists with the same configuration stays as it is.

        ``name`` is the name of a durable consumer; or a configuration; or nothing, with the field ``durable_name=...``,
        or ``name=...`` for a consumer that is not durable. Without any name the server chooses one. Fields that are not
        given have the server's defaults; its ``ack_policy`` is ``none``. `DEFAULT_CONSUMER` is a template with
        ``explicit``. To the server, a consumer with an ``inactive_threshold`` and no durable name is always different.

        The subject of the request decides which permissions it needs: ``CONSUMER.CREATE.STREAM``, with a name
        ``CONSUMER.CREATE.STREAM.NAME``, with a ``filter_subject`` too ``CONSUMER.CREATE.STREAM.NAME.FILTER``; with
        ``durable_form`` ``CONSUMER.DURABLE.CREATE.STREAM.NAME``, the form of clients before server 2.9.

        ``any_filter`` allows filters that match no subject of the stream, which the server accepts. ``pedantic`` is
        that of `Streams.create`.

        Raises:
            OptionError: The configuration is not possible, or a filter matches nothing that the stream stores or holds.
                Filters are not checked where the account may not read the stream's configuration.
            ApiError: Error 10148: the consumer exists with another configuration; the error lists the differences.
            JetStreamError: The server is too old for a field; or it created the consumer and ignored one.
        """
        wanted = self._wanted(stream, name, config, fields)
        own = wanted.durable_name or wanted.name
        context = f"create {_what(stream, own)}"
        self._api.need_for(wanted, context)
        form = "" if own else jsapi.CONSUMER_CREATE
        if durable_form:
            form = jsapi.CONSUMER_CREATE_DURABLE
            if not wanted.durable_name:
                raise OptionError(f"cannot {context}: durable_form needs a durable_name")
        if not any_filter:
            self._check_filters(stream, own, wanted, context)
        return self._asset(stream, own).create(wanted, form, pedantic=pedantic)

    def load_or_create(
        self,
        stream: str,
        name: str | Config | None = None,
        config: Config | None = None,
        /,
        *,
        given_only: bool = False,
        any_config: bool = False,
        any_filter: bool = False,
        **fields: Any,
    ) -> ConsumerInfo:
        """Return the consumer; create it if there is none, as `Streams.load_or_create`. Raises `JetStreamError`."""
        wanted = self._wanted(stream, name, config, fields)
        name = wanted.durable_name or wanted.name
        if not name:
            raise OptionError(f"consumer of stream {stream}: a name or durable_name is required")
        make = partial(self.create, stream, wanted, any_filter=any_filter)
        return self._asset(stream, name).load_or_create(wanted, make, given_only=given_only, any_config=any_config)

    def plan(self, stream: str, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """Return what `update` with the same arguments would change. Raises `OptionError`, `ConsumerNotFound`."""
        return self._asset(stream, name).plan(changes, fields)

    def update(
        self,
        stream: str,
        name: str,
        changes: Config | None = None,
        /,
        *,
        any_filter: bool = False,
        pedantic: bool = False,
        **fields: Any,
    ) -> list[Difference]:
        """Change a consumer; return what was changed, as `Streams.update`. Raises `OptionError`, `JetStreamError`.

        To change between ``filter_subject`` and ``filter_subjects``, give the other one as None. New filters are
        checked as `create` does, unless ``any_filter``. ``pedantic`` is that of `Streams.create`.
        """

        def check(wanted: ConsumerConfig, actual: ConsumerConfig, context: str) -> None:
            if set(wanted.filters) != set(actual.filters):
                self._check_filters(stream, "", wanted, context)

        asset = self._asset(stream, name)
        return asset.update(changes, fields, None if any_filter else check, pedantic=pedantic)

    def copy(
        self, stream: str, name: str, new_name: str, /, *, any_filter: bool = False, **changes: Any
    ) -> ConsumerInfo:
        """Create a consumer of the same stream with the configuration of another one and these changes.

        It begins where its ``deliver_policy`` says. It is durable if the other one is. The metadata of a Spark query
        (option ``durable``) and a pause that is over are not copied. Raises `ConsumerNotFound`, and what
        `create` raises.
        """
        what = _what(stream, consumer_name(new_name))
        info = self.load(stream, name)
        config = info.config
        metadata = {key: value for key, value in config.own_metadata.items() if key not in (RUN, SINCE)}
        new = {
            "name": new_name,
            "durable_name": new_name if config.durable_name else None,
            "metadata": metadata or None,
            "pause_until": config.pause_until if info.paused else None,
        }
        if "filter_subject" in changes or "filter_subjects" in changes:
            new |= {"filter_subject": None, "filter_subjects": None}
        return self.create(stream, changed(config, {**new, **changes}, what), any_filter=any_filter)

    def delete(self, stream: str, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a consumer; return whether there was one. Raises `ConsumerNotFound` unless ``missing_ok``.

        Its position is lost, and on a stream with interest retention the messages that only it had to deliver.
        """
        context = f"delete {_what(stream, name)}"
        return self._api.delete(
            jsapi.CONSUMER_DELETE, ConsumerNotFound, missing_ok, context=context, stream=stream, consumer=name
        )

    # Using

    def pause(self, stream: str, name: str, until: Any) -> PauseReply:
        """Let a consumer deliver nothing until a time (server 2.11).

        ``until`` is an aware `datetime`, text such as ``2026-03-01T12:00:00Z``, or nanoseconds since the epoch. Or a
        duration from now, by the server's clock: a `timedelta`, or text such as ``10m``. Raises `JetStreamError` for a
        time that is past, which the server would take as a request to resume, and where the server is too old.
        """
        context = f"pause {_what(stream, name)}"
        end = _duration_or_time(until)
        now = self.load(stream, name).ts.nanoseconds
        time = end if isinstance(end, Timestamp) else moment("until", now + end)
        past = f"cannot {context} until {time}: that is past by the server's clock"
        if time.nanoseconds <= now:
            raise JetStreamError(f"{past}; nothing was changed")
        reply = self._api.reply(
            PauseReply, jsapi.CONSUMER_PAUSE, {"pause_until": time}, context=context, stream=stream, consumer=name
        )
        if not reply.paused:  # the time went by while the request was under way
            raise JetStreamError(f"{past}, and the consumer delivers")
        return reply

    def resume(self, stream: str, name: str) -> PauseReply:
        """Let a paused consumer deliver again. Raises `JetStreamError` before server 2.11."""
        context = f"resume {_what(stream, name)}"
        return self._api.reply(PauseReply, jsapi.CONSUMER_PAUSE, context=context, stream=stream, consumer=name)

    def reset(self, stream: str, name: str, sequence: int | None = None) -> ResetReply:
        """Let a consumer continue at a sequence of the stream, by default after the acknowledged ones (server 2.14).

        The consumer forgets deliveries that were not acknowledged. Raises `ApiError` (10204) when its
        ``deliver_policy`` does not allow the sequence, `JetStreamError` where the server is too old.
        """
        context = f"reset {_what(stream, name)}" + (f" to sequence {sequence}" if sequence is not None else "")
        request = {"seq": positive(sequence)} if sequence is not None else None
        # The server does not reply for a consumer that does not exist.
        self.load(stream, name)
        return self._api.reply(ResetReply, jsapi.CONSUMER_RESET, request, context=context, stream=stream, consumer=name)

    def unpin(self, stream: str, name: str, group: str) -> None:
        """Unpin the pinned client of a priority group; the next client that pulls is pinned (server 2.11).

        Raises `ApiError` when there is no such group, `JetStreamError` where the server is too old.
        """
        context = f"unpin group {group} of {_what(stream, name)}"
        self._api.ask(jsapi.CONSUMER_UNPIN, {"group": group}, context=context, stream=stream, consumer=name)

    def step_down(self, stream: str, name: str, *, preferred: str | None = None) -> None:
        """Let the leader of a consumer step down, as `Streams.step_down`. Raises `ApiError`, `JetStreamError`."""
        context = f"let the leader of {_what(stream, name)} step down"
        self._api.step_down(jsapi.CONSUMER_STEP_DOWN, preferred, context=context, stream=stream, consumer=name)

    def next(
        self,
        stream: str,
        name: str,
        count: int = 1,
        *,
        timeout: float = 5.0,
        ack: Ack = "ack",
        group: str | None = None,
    ) -> list[DeliveredMessage]:
        """Return up to ``count`` messages of a pull consumer, at most 1,000: the pending ones, or else the next ones.

        An empty list means that there was none within ``timeout`` seconds; 0 returns only messages that are pending.
        ``ack`` acknowledges each message, ``nak`` has it delivered again at once, ``term`` never again, ``none`` leaves
        it to the consumer's ``ack_wait``; the server confirms each before this returns.

        Raises:
            ConsumerLost: The consumer was deleted meanwhile.
            JetStreamError: It is a push consumer, or paused; or the server refuses the pull.
        """
        if ack not in get_args(Ack):
            raise OptionError(f"ack must be one of {', '.join(get_args(Ack))}, not {shown(ack)}")
        if not 1 <= count <= _MOST:
            raise OptionError(f"count must be a number from 1 to {_MOST:,}, not {count}")
        if timeout != 0 and not timeout >= _SHORTEST:
            raise OptionError(f"timeout must be 0 (do not wait), or at least {_SHORTEST:g} seconds, not {timeout:g}")
        info = self.load(stream, name)
        what = _what(stream, name)
        if info.config.push:
            raise JetStreamError(f"{what} delivers to {info.config.deliver_subject}, and cannot be asked for messages")
        if info.paused:
            raise JetStreamError(f"{what} is paused for {Nanoseconds(info.pause_remaining)}, and delivers nothing")
        limit = info.config.max_ack_pending
        if not timeout and info.config.ack_policy != "none" and 0 < limit <= info.num_ack_pending:
            return []  # the server would not answer
        connection = self._api.connection
        messages = pull(connection, info, count, timeout, group)
        if ack != "none" and info.config.ack_policy != "none":
            for message in messages:
                context = f"acknowledge message {message.message.seq} of stream {stream} to consumer {name}"
                connection.request(message.reply, ACKS[ack], context=context)
        return messages

    def _asset(self, stream: str, name: str) -> Asset[ConsumerInfo]:
        return Asset(self._api, _what(stream, name), lambda: self.load(stream, name), stream, name)

    def _wanted(self, stream: str, name: object, config: object, fields: Mapping[str, Any]) -> ConsumerConfig:
        given, own = named(ConsumerConfig, name, config, fields, "name", "durable_name")
        return parse_user(ConsumerConfig, given, own, f"consumer of stream {stream}", self._api.newer)

    def _check_filters(self, stream: str, name: str, wanted: ConsumerConfig, context: str) -> None:
        """Raise `OptionError` if a filter surely matches nothing, unless the consumer ``name`` exists already."""
        if not wanted.filters:
            return
        look = partial(self._api.reply, StreamInfo, jsapi.STREAM_INFO, context=context, stream=stream)
        with contextlib.suppress(PermissionDenied, NoResponders):
            config = look().config
            if config.mirror or config.sources or config.subject_transform:
                return
            stored = config.subjects
            for filter_ in wanted.filters:
                if any(subjects_overlap(filter_, subject) for subject in stored):
                    continue
                if look({"subjects_filter": filter_}).state.subjects:
                    continue  # messages from when the stream had other subjects
                if name:
                    with contextlib.suppress(ConsumerNotFound):
                        self.load(stream, name)
                        return
                raise OptionError(
                    f"cannot {context}: {shown(filter_)} matches nothing that the stream stores "
                    f"({', '.join(stored)}), so nothing would ever be delivered for it; "
                    "any_filter=True (--any-filter) allows it nevertheless"
                )


def _duration_or_time(until: Any) -> Nanoseconds | Timestamp:
    """Return the end of a pause as it was given. Raises `OptionError`."""
    if isinstance(until, (str, dt.timedelta)):
        with contextlib.suppress(ValueError):
            return Nanoseconds.of(until)
    try:
        return moment("until", until)
    except OptionError:
        if not isinstance(until, str):
            raise
    expected = "a time such as 2026-03-01T12:00:00Z, or a duration such as 10m"
    raise OptionError(f"until must be {expected}, not {shown(until)}{minutes_or_months(until)}")


def _what(stream: str, name: str) -> str:
    return f"consumer {name} of stream {stream}" if name else f"a consumer on stream {stream}"
