"""Consumers: list, create, change, pause, reset, delete, and try them out.

A few messages pulled from a consumer: one request, what answers it, and the acknowledgements.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from spark_jetstream.admin.api import Api, consumer_name, moment, positive, stream_name
from spark_jetstream.admin.models.changes import (
    Difference,
    asked_for,
    changed,
    confirm,
    differences,
    existing_instead,
    named,
    refuse_difference,
    refuse_impossible,
    target,
    update_body,
)
from spark_jetstream.admin.models.consumers import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    PauseReply,
    ResetReply,
)
from spark_jetstream.admin.models.messages import DoneReply, StoredMessage
from spark_jetstream.admin.models.streams import Replica, StreamInfo, confirm_done, replicas
from spark_jetstream.admin.streams import Absent, pages, placement
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.protocol.subjects import subjects_overlap
from spark_jetstream.protocol.units import Nanoseconds, Timestamp, minutes_or_months, shown
from spark_jetstream.protocol.wire import Frames

Ack = Literal["ack", "nak", "term", "none"]
ACKS: dict[str, bytes] = {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM", "none": b""}
_SLACK = 2.0  # seconds that the server's answer may come late


@dataclass(frozen=True)
class DeliveredMessage:
    """A message as a consumer delivered it. ``deliveries`` counts how often it did, ``consumer_seq`` all that it
    delivered, ``pending`` what it had yet to deliver behind this one. ``reply`` is where an acknowledgement goes."""

    message: StoredMessage
    consumer: str
    deliveries: int
    consumer_seq: int
    pending: int
    reply: str


def pull(
    connection: Connection, info: ConsumerInfo, count: int, timeout: float, group: str | None
) -> list[DeliveredMessage]:
    """Up to ``count`` messages: what is there, or, when nothing is, what comes within ``timeout`` seconds.

    With a ``timeout`` of 0 what is there alone. A server does not answer such a pull while too many messages wait for
    their acknowledgement, so no answer of a server that lives means that there is nothing.

    Raises `ConsumerLost` when the consumer went away, `JetStreamError` when the server refuses the pull,
    `RequestTimeout` when it does not answer.
    """
    stream, name = info.stream_name, info.name
    context = f"get messages from consumer {name} of stream {stream}"
    found: list[DeliveredMessage] = []
    deadline = Deadline(timeout + _SLACK)
    with connection.inbox() as inbox:
        inbox.publish(jsapi.consumer_next(connection.prefix, stream, name), _request(count, timeout, group), 1)
        while len(found) < count:
            event = inbox.get(deadline.left)
            if event is None:
                connection.check(_SLACK)
                if not timeout:
                    break
                raise jsapi.no_reply(context, deadline.seconds)
            if isinstance(event, Frames):
                found += _read(event, info)
            elif jsapi.pull_status(event, stream).outcome is jsapi.PullOutcome.ENDED:
                break
    return found


def settle(connection: Connection, found: DeliveredMessage, ack: str) -> None:
    """Acknowledge a message in one of the ways of `ACKS`, and wait until the server has it."""
    context = f"acknowledge message {found.message.seq} of stream {found.message.stream} to consumer {found.consumer}"
    connection.request(found.reply, ACKS[ack], context=context)


def _request(count: int, timeout: float, group: str | None) -> bytes:
    # With no heartbeat: the server would silently drop a pull with one where too many wait already.
    body: dict[str, Any] = {"batch": count}
    if timeout:
        body["expires"] = jsapi.nanoseconds(timeout)
    if count > 1 or not timeout:
        body["no_wait"] = True  # where it expires, it waits for the first message only
    if group is not None:
        body["group"] = group
    return json.dumps(body).encode()


def stored_messages(frames: Frames, acks: Acks, stream: str) -> Iterator[StoredMessage]:
    """Messages of a stream, as a consumer delivered them."""
    lines = frames.lines.tobytes()
    sequences, times = acks.sequences(), acks.timestamps()
    for at in range(len(frames)):
        start = int(frames.line_end[at])
        head, size = int(frames.head[at]), int(frames.size[at])
        yield StoredMessage.from_server(
            {
                "subject": lines[frames.subject_start[at] : frames.subject_end[at]].decode("utf-8", "replace"),
                "seq": int(sequences[at]),
                "time": Timestamp.of(int(times[at])),
                "data": frames.data[start + head : start + size],
                "hdrs": frames.data[start : start + head],
                "stream": stream,
            }
        )


def _read(frames: Frames, info: ConsumerInfo) -> Iterator[DeliveredMessage]:
    lines = frames.lines.tobytes()
    for at, message in enumerate(stored_messages(frames, Acks(frames), info.stream_name)):
        space = int(frames.reply[at])
        first, last = frames.separators[space] + 1, frames.separators[space + int(frames.reply_dots[at]) + 1]
        reply = lines[first:last].decode("utf-8", "replace")
        tokens = reply.split(".")
        # Of its two forms one has a domain and an account in front (ADR-15); `Acks` has seen that it is one of them.
        shift = 0 if len(tokens) == 9 else 2
        deliveries, consumer_seq, pending = (int(tokens[shift + number]) for number in (4, 6, 8))
        yield DeliveredMessage(message, info.name, deliveries, consumer_seq, pending, reply)


Config = ConsumerConfig | ConsumerInfo | Mapping[str, Any]
_MOST = 1000
_SHORTEST = 0.1  # seconds: a server may drop a pull that expires sooner before it looks for messages


class Consumers:
    """The consumers of an account's streams; ``admin.consumers``.

    A configuration is given as for `Streams`. All methods raise what `Api` raises; `ConsumerNotFound` and
    `StreamNotFound` name what was asked for.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    # Looking

    def names(self, stream: str) -> Iterator[str]:
        """The names of a stream's consumers, sorted, page by page."""
        context = f"list the consumers of stream {stream}"
        ask = partial(self._api.ask, jsapi.CONSUMER_NAMES, context=context, stream=stream_name(stream))
        for page in pages(ConsumerNamesPage, ask, {}, context):
            yield from page.consumers

    def infos(self, stream: str) -> Iterator[ConsumerInfo]:
        """The consumers of a stream, sorted by name, page by page.

        Raises `ServerBusy` at the end when servers of a cluster did not answer for some, which it names.
        """
        context = f"list the consumers of stream {stream}"
        absent = Absent()
        ask = partial(self._api.ask, jsapi.CONSUMER_LIST, context=context, stream=stream_name(stream))
        for page in pages(ConsumerPage, ask, {}, context):
            yield from page.consumers
            absent.add(page)
        absent.check(context)

    def load(self, stream: str, name: str) -> ConsumerInfo:
        """A consumer: its configuration and state."""
        context = f"look at {_what(stream, name)}"
        return ConsumerInfo.from_server(self._ask(jsapi.CONSUMER_INFO, None, context, stream, name), context)

    def replicas(self, stream: str, name: str) -> tuple[Replica, ...]:
        """The servers that keep a consumer, the leader first; empty outside of a cluster."""
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
        **fields: Any,
    ) -> ConsumerInfo:
        """Create a consumer. One that exists just so stays as it is.

        One without a durable name and an ``inactive_threshold`` is always different to the server.

        The API has several forms of this request, which differ in their subjects, and so in the permissions they need:

        - without a name, ``CONSUMER.CREATE.STREAM``: the server names it, and removes it when nobody uses it;
        - with a name, ``CONSUMER.CREATE.STREAM.NAME``: ``durable_name`` makes it stay, ``name`` alone does not;
        - with a name and ``filter_subject``, ``CONSUMER.CREATE.STREAM.NAME.FILTER``: so permissions can name the
          filter; ``filter_subjects`` is no part of a subject, however many there are;
        - with ``durable_form=True``, ``CONSUMER.DURABLE.CREATE.STREAM.NAME``: what clients used before server 2.9, for
          accounts that may use nothing else.

        Where nothing is said the server's defaults hold, and its ``ack_policy`` is ``none``: `DEFAULT_CONSUMER` is a
        template with ``explicit``.

        Args:
            stream: The stream's name.
            name: The name of a durable consumer. A configuration, or ``durable_name=...``, may stand here instead; for
                one that is not durable ``name=...``.
            config: The configuration; its own names do not count beside ``name``.
            durable_form: Ask at the subject of old clients.
            any_filter: Allow filters that match no subject of the stream. The server takes them in silence.
            **fields: Fields of `ConsumerConfig`, such as ``filter_subject="orders.eu.>"``.

        Raises:
            OptionError: The configuration cannot be one, or a filter matches nothing that the stream stores or holds.
                Filters are not checked where the account may not look at the stream.
            ApiError: 10148, there is another consumer of this name; the text lists the differences.
            JetStreamError: The server is too old for something in it, or created the consumer and left something out.
        """
        wanted = self._wanted(stream, name, config, fields)
        own = wanted.durable_name or wanted.name
        context = f"create {_what(stream, own)}" if own else f"create a consumer on stream {stream}"
        self._api.need_for(wanted, context)
        form = jsapi.CONSUMER_CREATE
        if durable_form:
            if not wanted.durable_name:
                raise OptionError(f"cannot {context}: durable_form needs a durable_name")
            form = jsapi.CONSUMER_CREATE_DURABLE
        elif own:
            form = _form(wanted)
        if not any_filter:
            self._check_filters(stream, own, wanted, context)
        try:
            body = self._api.ask(
                form,
                jsapi.create_request(stream, wanted.body()),
                context=context,
                stream=stream_name(stream),
                consumer=own,
                filter=wanted.filter_subject,
            )
        except ApiError as error:
            if error.err_code != jsapi.CONSUMER_EXISTS:
                raise
            return existing_instead(error, wanted, lambda: self.load(stream, own))
        info = ConsumerInfo.from_server(body, context)
        # The name that the server chose is in the configuration of some versions.
        complete = wanted if own else wanted.changed(name=info.config.name)
        confirm(complete, info.config, f"{_what(stream, info.name)} was created")
        return info

    def load_or_create(
        self,
        stream: str,
        name: str | Config | None = None,
        config: Config | None = None,
        /,
        *,
        given_only: bool = False,
        any_filter: bool = False,
        **fields: Any,
    ) -> ConsumerInfo:
        """The consumer, created if there is none of its name. The arguments are those of `create`.

        `JetStreamError` that lists the differences when there is one with another configuration. ``given_only``
        compares nothing but what is given here; else what is not given stands for its default.
        """
        wanted = self._wanted(stream, name, config, fields)
        name = wanted.durable_name or wanted.name
        if not name:
            raise OptionError(f"consumer of stream {stream}: a name or durable_name is required")
        try:
            info = self.load(stream, name)
        except ConsumerNotFound:
            try:
                return self.create(stream, wanted, any_filter=any_filter)
            except ApiError as error:
                if error.err_code != jsapi.CONSUMER_EXISTS:
                    raise
                # Somebody else was quicker.
                info = self.load(stream, name)
        refuse_difference(wanted, info.config, _what(stream, name), given_only=given_only)
        return info

    def plan(self, stream: str, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """What `update` with the same arguments would change. Nothing is changed."""
        return self._planned(stream, name, changes, fields)[2]

    def update(
        self, stream: str, name: str, changes: Config | None = None, /, *, any_filter: bool = False, **fields: Any
    ) -> list[Difference]:
        """Change a consumer; returns what was changed. As `Streams.update`, errors included.

        ``filter_subject`` and ``filter_subjects`` are one thing: give the other one as None to change between them.
        New filters are checked as `create` does it, unless ``any_filter``.
        """
        wanted, actual, found = self._planned(stream, name, changes, fields)
        what = _what(stream, name)
        refuse_impossible(found, what)
        if found:
            context = f"update {what}"
            self._api.need_for(wanted, context)
            if not any_filter and any(each.field == "filter_subjects" for each in found):
                self._check_filters(stream, "", wanted, context)
            request = jsapi.update_request(stream, update_body(wanted, actual))
            body = self._ask(_form(wanted), request, context, stream, name, filter=wanted.filter_subject)
            confirm(wanted, ConsumerInfo.from_server(body, context).config, f"{what} was updated")
        return found

    def copy(
        self, stream: str, name: str, new_name: str, /, *, any_filter: bool = False, **changes: Any
    ) -> ConsumerInfo:
        """Create a consumer of the same stream with the configuration of another one, and these changes.

        It begins where its ``deliver_policy`` says: the position of the other one is its own. It is durable if that one
        is. What marks that one as a Spark query's (`durables`) is left out, and so is a pause that is over. Raises what
        `create` raises; on a work queue two consumers cannot have the same filter.
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
        """Delete a consumer; whether there was one. `ConsumerNotFound` without one, unless ``missing_ok``.

        Its position is lost, and on a stream with interest retention the messages that only it waited for.
        """
        context = f"delete {_what(stream, name)}"
        try:
            body = self._ask(jsapi.CONSUMER_DELETE, None, context, stream, name)
        except ConsumerNotFound:
            if missing_ok:
                return False
            raise
        confirm_done(DoneReply.from_server(body, context), context)
        return True

    # Using

    def pause(self, stream: str, name: str, until: Any) -> PauseReply:
        """Deliver nothing until a time: an aware `datetime`, text such as ``2026-03-01T12:00:00Z``, or nanoseconds
        since the epoch; or for a while from now on, by the server's clock: a `timedelta`, or text such as ``10m``.
        Server 2.11.

        `JetStreamError` when that time is past by the server's clock, before anything is changed: the server would take
        it as an order to resume.
        """
        context = f"pause {_what(stream, name)}"
        span = _while(until)
        time = None if span is not None else _time(until)
        now = self.load(stream, name).ts.nanoseconds
        time = time or moment("until", now + (span or 0))
        past = f"cannot {context} until {time}: that is past by the server's clock"
        if time.nanoseconds <= now:
            raise JetStreamError(f"{past}; nothing was changed")
        body = self._ask(jsapi.CONSUMER_PAUSE, {"pause_until": time}, context, stream, name)
        reply = PauseReply.from_server(body, context)
        if not reply.paused:  # the time went by while the request was under way
            raise JetStreamError(f"{past}, and the consumer delivers")
        return reply

    def resume(self, stream: str, name: str) -> PauseReply:
        """Deliver again. Server 2.11."""
        context = f"resume {_what(stream, name)}"
        return PauseReply.from_server(self._ask(jsapi.CONSUMER_PAUSE, None, context, stream, name), context)

    def reset(self, stream: str, name: str, sequence: int | None = None) -> ResetReply:
        """Let a consumer go on at a sequence of the stream, or, without one, behind what is acknowledged. Server 2.14.

        What it delivered and nobody acknowledged is forgotten. `ApiError` 10204 for a sequence that its
        ``deliver_policy`` does not allow.
        """
        context = f"reset {_what(stream, name)}" + (f" to sequence {sequence}" if sequence is not None else "")
        request = {"seq": positive(sequence)} if sequence is not None else None
        # For one that is missing there would be no reply at all.
        self.load(stream, name)
        return ResetReply.from_server(self._ask(jsapi.CONSUMER_RESET, request, context, stream, name), context)

    def unpin(self, stream: str, name: str, group: str) -> None:
        """Take the place of the pinned client of a priority group away; the next one that pulls gets it. Server 2.11.

        `ApiError` when the consumer has no such group.
        """
        context = f"unpin group {group} of {_what(stream, name)}"
        self._ask(jsapi.CONSUMER_UNPIN, {"group": group}, context, stream, name)

    def step_down(self, stream: str, name: str, *, preferred: str | None = None) -> None:
        """Let the leader of a consumer give way to another server. As `Streams.step_down`."""
        context = f"let the leader of {_what(stream, name)} step down"
        request = placement(self._api, preferred, context)
        body = self._ask(jsapi.CONSUMER_STEP_DOWN, request, context, stream, name)
        confirm_done(DoneReply.from_server(body, context), context)

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
        """Up to ``count`` messages of a pull consumer: what there is, or else what comes within ``timeout`` seconds.

        To have a look, not to process a stream. ``ack``: ``ack`` settles each message, ``nak`` has it delivered again
        at once, ``term`` never again, ``none`` leaves it to the consumer's ``ack_wait``; each is confirmed by the
        server before this returns. ``group`` is needed for a consumer with priority groups. An empty list: nothing
        came. A ``timeout`` of 0 takes what there is and does not wait.

        `JetStreamError` for a push consumer, and for one that is paused.
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
        found = pull(connection, info, count, timeout, group)
        if ack != "none" and info.config.ack_policy != "none":
            for each in found:
                settle(connection, each, ack)
        return found

    def _ask(self, subject: str, body: Any, context: str, stream: str, name: str, **names: str) -> Any:
        stream, name = stream_name(stream), consumer_name(name)
        return self._api.ask(subject, body, context=context, stream=stream, consumer=name, **names)

    def _wanted(self, stream: str, name: object, config: object, fields: Mapping[str, Any]) -> ConsumerConfig:
        given, own = named(ConsumerConfig, name, config, fields, "name", "durable_name")
        return asked_for(ConsumerConfig, given, own, f"consumer of stream {stream}", self._api.newer)

    def _check_filters(self, stream: str, name: str, wanted: ConsumerConfig, context: str) -> None:
        """Refuse a filter that matches nothing that the stream stores, or still holds from before.

        Nothing is refused where that is not certain, nor for a consumer ``name`` that exists already.
        """
        if not wanted.filters:
            return
        ask = partial(self._api.ask, jsapi.STREAM_INFO, context=context, stream=stream_name(stream))
        try:
            config = StreamInfo.from_server(ask(), context).config
            if config.mirror or config.sources or config.subject_transform:
                return
            stored = config.subjects
            outside = [each for each in wanted.filters if not any(subjects_overlap(each, one) for one in stored)]
            for each in outside:
                if StreamInfo.from_server(ask({"subjects_filter": each}), context).state.subjects:
                    continue  # of a time when the stream had other subjects
                if name and self._exists(stream, name):
                    return
                raise OptionError(
                    f"cannot {context}: {shown(each)} matches nothing that the stream stores "
                    f"({', '.join(stored)}), so nothing would ever be delivered for it; "
                    "any_filter=True (--any-filter) allows it nevertheless"
                )
        except (PermissionDenied, NoResponders):
            return

    def _exists(self, stream: str, name: str) -> bool:
        try:
            self.load(stream, name)
        except ConsumerNotFound:
            return False
        return True

    def _planned(
        self, stream: str, name: str, changes: Config | None, fields: Mapping[str, Any]
    ) -> tuple[ConsumerConfig, ConsumerConfig, list[Difference]]:
        actual = self.load(stream, name).config
        wanted = target(actual, changes, fields, _what(stream, name))
        return wanted, actual, differences(wanted, actual)


def _form(config: ConsumerConfig) -> str:
    """The subject of the request that creates or updates a consumer with a name."""
    return jsapi.CONSUMER_CREATE_FILTERED if config.filter_subject else jsapi.CONSUMER_CREATE_NAMED


def _while(until: Any) -> Nanoseconds | None:
    """How long that is; None when it is a time."""
    if not isinstance(until, (str, dt.timedelta)):
        return None
    try:
        return Nanoseconds.of(until)
    except ValueError:
        return None


def _time(until: Any) -> Timestamp:
    try:
        return moment("until", until)
    except OptionError:
        if not isinstance(until, str):
            raise
    words = "a time such as 2026-03-01T12:00:00Z, or a duration such as 10m"
    raise OptionError(f"until must be {words}, not {shown(until)}{minutes_or_months(until)}")


def _what(stream: str, name: str) -> str:
    return f"consumer {name} of stream {stream}"
