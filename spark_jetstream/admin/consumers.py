"""Consumers: list, create, change, pause, reset, delete; receive and acknowledge messages."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import Any, Literal, get_args

from spark_jetstream.admin.api import (
    Api,
    checked,
    consumer_name,
    moment,
    positive,
    seconds_or_ever,
)
from spark_jetstream.admin.assets import Asset, filter_fault
from spark_jetstream.admin.balance import Balanced
from spark_jetstream.admin.deliveries import (
    DELIVERY_TIMES,
    DeliveredMessage,
    DeliveryTimes,
    Receiver,
)
from spark_jetstream.admin.lag import first_from
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.asked import changed, named, parse_user
from spark_jetstream.admin.models.changes import Difference
from spark_jetstream.admin.models.consumers import (
    ConsumerConfig,
    ConsumerHandover,
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    PauseReply,
    ResetReply,
)
from spark_jetstream.admin.models.messages import DoneReply
from spark_jetstream.admin.models.queries import ConsumerQuery
from spark_jetstream.admin.models.streams import Replica, StreamInfo, replicas
from spark_jetstream.admin.pulls import Pull, check_can_serve, pull_request, waits_for_acks
from spark_jetstream.admin.streams import Streams
from spark_jetstream.client.deadline import Backoff
from spark_jetstream.client.versions import versions_of
from spark_jetstream.errors import (
    ConnectionFailed,
    ConsumerNotFound,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from spark_jetstream.options.values import Seconds
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.ack_subject import parse_ack
from spark_jetstream.protocol.features import CONSUMER_RESET, Version, shown_version
from spark_jetstream.protocol.handover import Handover
from spark_jetstream.protocol.units import (
    INT64_MAX,
    Nanoseconds,
    Timestamp,
    minutes_or_months,
    shown,
)
from spark_jetstream.streams.outages import through_outages

log = logging.getLogger(__name__)

Ack = Literal["ack", "nak", "term", "none"]
Config = ConsumerConfig | ConsumerInfo | Mapping[str, Any]


class Consumers(Balanced):
    """The consumers of an account's streams; ``admin.consumers``.

    A configuration is a `ConsumerConfig`, a `ConsumerInfo`, a mapping, or single fields by name, as
    for `Streams`. All methods raise what `Api` raises; `ConsumerNotFound` and `StreamNotFound` name
    what was asked for; `OptionError` for an argument that cannot be one.
    """

    def __init__(self, api: Api, *, times: DeliveryTimes = DELIVERY_TIMES) -> None:
        self._api = api
        self._times = times

    # Looking

    def names(self, stream: str) -> Iterator[str]:
        """Return the names of a stream's consumers, sorted, page by page.

        Raises `StreamNotFound`.
        """
        context = f"list the consumers of stream {stream}"
        pages = self._api.pages(
            ConsumerNamesPage,
            jsapi.CONSUMER_NAMES,
            {},
            context=context,
            stream=stream,
        )
        for page in pages:
            yield from page.consumers

    def infos(self, stream: str | None = None) -> Iterator[ConsumerInfo]:
        """Return the consumers of a stream, or of all streams; sorted.

        Raises `ServerBusy` as `Streams.infos` does.
        """
        names = Streams(self._api).names() if stream is None else [stream]
        for name in names:
            context = f"list the consumers of stream {name}"
            pages = self._api.pages(
                ConsumerPage,
                jsapi.CONSUMER_LIST,
                {},
                context=context,
                stream=name,
            )
            try:
                for page in pages:
                    yield from page.consumers
            except StreamNotFound:
                # A stream of the list may have been deleted since the list was read.
                if stream is not None:
                    raise

    def find(self, stream: str | None = None, /, **criteria: Any) -> Iterator[ConsumerInfo]:
        """Return the consumers that meet all criteria, of one stream or of all streams.

        The criteria are the fields of `ConsumerQuery`.

        Raises `OptionError` for a criterion that is not possible; what `infos` raises.
        """
        # The server cannot search by these criteria: all consumers are read, and compared here.
        return filter(ConsumerQuery.parse(criteria, "find consumers").matches, self.infos(stream))

    def load(self, stream: str, name: str) -> ConsumerInfo:
        """Return configuration and state of a consumer.

        Raises `ConsumerNotFound`, `StreamNotFound`.
        """
        context = f"look at {_what(stream, name)}"
        return self._api.reply(
            ConsumerInfo,
            jsapi.CONSUMER_INFO,
            context=context,
            stream=stream,
            consumer=name,
        )

    def handover(self, stream: str, name: str) -> ConsumerHandover:
        """Return where a query begins that takes over from a consumer (``startingConsumer``).

        The stream is asked for the first message there, once for each filter of the consumer.
        Raises `ConsumerNotFound`, `StreamNotFound`.
        """
        info = self.load(stream, name)
        at = Handover.from_reply(
            info.model_dump(mode="json", exclude_unset=True), f"look at {_what(stream, name)}"
        )
        first = first_from(Messages(self._api), stream, at.filters, at.first)
        return ConsumerHandover(
            stream=stream,
            consumer=name,
            ack_policy=at.ack_policy,
            filters=info.config.filters,
            first_sequence=at.first,
            first_message=None if first is None else first.seq,
            first_time=None if first is None else first.time,
            messages=at.older + at.again + at.waiting,
            ack_floor=at.floor,
            delivered=at.delivered,
            read_again=at.again,
            ack_pending=at.pending,
            acknowledged=at.settled,
            not_delivered=at.waiting,
            active=at.active,
            paused=info.paused,
        )

    def replicas(self, stream: str, name: str) -> tuple[Replica, ...]:
        """Return the servers with a replica of a consumer, the leader first.

        Empty outside of a cluster. Raises `ConsumerNotFound`, `StreamNotFound`.
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

        ``name`` is the name of a durable consumer; or a configuration; or nothing, with the field
        ``durable_name=...``, or ``name=...`` for a consumer that is not durable. Without any name
        the server chooses one. Fields that are not given have the server's defaults; its
        ``ack_policy`` is ``none``. `DEFAULT_CONSUMER` is a template with ``explicit``. To the
        server, a consumer with an ``inactive_threshold`` and no durable name is always different.

        The subject of the request decides which permissions it needs: ``CONSUMER.CREATE.STREAM``,
        with a name ``CONSUMER.CREATE.STREAM.NAME``, with a ``filter_subject`` too
        ``CONSUMER.CREATE.STREAM.NAME.FILTER``; with ``durable_form``
        ``CONSUMER.DURABLE.CREATE.STREAM.NAME``, the form of clients before server 2.9.

        ``any_filter`` allows filters that match no subject of the stream, which the server accepts.
        ``pedantic`` is that of `Streams.create`.

        Raises:
            OptionError: The configuration is not possible, or a filter matches nothing that the
                stream stores or holds. Filters are not checked where the account may not read the
                stream's configuration.
            ApiError: Error 10148: the consumer exists with another configuration; the error lists
                the differences.
            JetStreamError: The server is too old for a field; or it created the consumer and
                ignored one.
        """
        wanted = self._wanted(stream, name, config, fields)
        own = wanted.durable_name or wanted.name
        context = f"create {_what(stream, own)}"
        self._api.need_for(wanted, context)
        if durable_form and not wanted.durable_name:
            raise OptionError(f"cannot {context}: durable_form needs a durable_name")
        endpoint = None
        if durable_form:
            endpoint = jsapi.CONSUMER_CREATE_DURABLE
        # The other forms of the subject end with a name. Here the server chooses one.
        elif not own:
            endpoint = jsapi.CONSUMER_CREATE
        if not any_filter:
            self._check_filters(stream, own, wanted, context)
        return self._asset(stream, own).create(wanted, endpoint, pedantic=pedantic)

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
        """Return the consumer; create it if there is none, as `Streams.load_or_create`.

        Raises `JetStreamError`.
        """
        wanted = self._wanted(stream, name, config, fields)
        name = wanted.durable_name or wanted.name
        if not name:
            raise OptionError(f"consumer of stream {stream}: a name or durable_name is required")
        make = partial(self.create, stream, wanted, any_filter=any_filter)
        return self._asset(stream, name).load_or_create(
            wanted,
            make,
            given_only=given_only,
            any_config=any_config,
        )

    def plan(
        self,
        stream: str,
        name: str,
        changes: Config | None = None,
        /,
        **fields: Any,
    ) -> list[Difference]:
        """Return what `update` with the same arguments would change.

        Raises `OptionError`, `ConsumerNotFound`.
        """
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
        """Change a consumer; return what was changed, as `Streams.update`.

        Raises `OptionError`, `JetStreamError`.

        ``filter_subject`` and ``filter_subjects`` replace each other. New filters are checked as
        `create` does, unless ``any_filter``. ``pedantic`` is that of `Streams.create`.
        """

        def check(wanted: ConsumerConfig, actual: ConsumerConfig, context: str) -> None:
            # Filters that the consumer has already are no reason to refuse another change.
            if set(wanted.filters) != set(actual.filters):
                # Without a name: that the consumer exists does not excuse its new filters.
                self._check_filters(stream, "", wanted, context)

        asset = self._asset(stream, name)
        return asset.update(changes, fields, None if any_filter else check, pedantic=pedantic)

    def copy(
        self, stream: str, name: str, new_name: str, /, *, any_filter: bool = False, **changes: Any
    ) -> ConsumerInfo:
        """Create a consumer of the same stream with another one's configuration and these changes.

        It begins where its ``deliver_policy`` says. It is durable if the other one is. The metadata
        of a Spark query (option ``durable``) and a pause that is over are not copied. Raises
        `ConsumerNotFound`, and what `create` raises.
        """
        what = _what(stream, consumer_name(new_name))
        info = self.load(stream, name)
        config = info.config
        # With the marks of a Spark query the copy would count as a consumer that has held messages
        # for that query, and a loss on an interest stream would go unreported.
        new = {
            "name": new_name,
            "durable_name": new_name if config.durable_name else None,
            "metadata": config.own_metadata or None,
            "pause_until": config.pause_until if info.paused else None,
        }
        return self.create(stream, changed(config, {**new, **changes}, what), any_filter=any_filter)

    def delete(self, stream: str, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a consumer; return whether there was one.

        Raises `ConsumerNotFound` unless ``missing_ok``.

        Its position is lost, and on a stream with interest retention the messages that only it had
        to deliver.
        """
        context = f"delete {_what(stream, name)}"
        return self._api.delete(
            jsapi.CONSUMER_DELETE,
            ConsumerNotFound,
            missing_ok,
            context=context,
            stream=stream,
            consumer=name,
        )

    # Using

    def pause(self, stream: str, name: str, until: Any) -> PauseReply:
        """Let a consumer deliver nothing until a time (server 2.11).

        ``until`` is an aware `datetime`, text such as ``2026-03-01T12:00:00Z``, or nanoseconds
        since the epoch. Or a duration from now, by the server's clock: a `timedelta`, or text such
        as ``10m``. Raises `JetStreamError` for a time that is past, which the server would take as
        a request to resume, and where the server is too old.
        """
        context = f"pause {_what(stream, name)}"
        end = _duration_or_time(until)
        # The server compares the end with its own clock.
        now = self.load(stream, name).ts.nanoseconds
        if isinstance(end, Timestamp):
            time = end
        elif 0 <= now + end <= INT64_MAX:
            time = Timestamp.of(now + end)
        else:
            raise _no_end(until)
        past = f"cannot {context} until {time}: that is past by the server's clock"
        # To the server a past time is a request to resume (`test_pause_and_resume`).
        if time.nanoseconds <= now:
            raise JetStreamError(f"{past}; nothing was changed")
        reply = self._api.reply(
            PauseReply,
            jsapi.CONSUMER_PAUSE,
            {"pause_until": time},
            context=context,
            stream=stream,
            consumer=name,
        )
        if not reply.paused:
            # The time went by while the request was under way.
            raise JetStreamError(f"{past}, and the consumer delivers")
        return reply

    def resume(self, stream: str, name: str) -> PauseReply:
        """Let a paused consumer deliver again. Raises `JetStreamError` before server 2.11."""
        context = f"resume {_what(stream, name)}"
        # A request without a time resumes.
        return self._api.reply(
            PauseReply,
            jsapi.CONSUMER_PAUSE,
            context=context,
            stream=stream,
            consumer=name,
        )

    def reset(self, stream: str, name: str, sequence: int | None = None) -> ResetReply:
        """Let a consumer continue at a sequence of the stream (server 2.14).

        By default it continues after the acknowledged messages. The consumer forgets deliveries
        that were not acknowledged. Raises `ApiError` (10204) when its ``deliver_policy`` does not
        allow the sequence, `JetStreamError` where a server that keeps the consumer is too old.
        """
        context = f"reset {_what(stream, name)}"
        request = None
        if sequence is not None:
            context = f"{context} to sequence {sequence}"
            request = {"seq": positive(sequence)}
        # The server does not reply for a consumer that does not exist.
        self._check_followers(self.load(stream, name), context)
        return self._api.reply(
            ResetReply,
            jsapi.CONSUMER_RESET,
            request,
            context=context,
            stream=stream,
            consumer=name,
        )

    def _check_followers(self, info: ConsumerInfo, context: str) -> None:
        """Raise `JetStreamError` if a server that keeps the consumer would end with a panic.

        A server before 2.14 does that when it reads of a reset in the log of the consumer.
        """
        cluster = info.cluster
        if cluster is None or not cluster.replicas:
            return
        followers = [each.name for each in cluster.replicas]
        versions: dict[str, Version] = {}
        # A user who may not ask is trusted to know the versions.
        with contextlib.suppress(PermissionDenied):
            versions = versions_of(self._api.connection, cluster.name, followers)
        for name, version in versions.items():
            if not CONSUMER_RESET.is_in(version):
                raise JetStreamError(
                    f"cannot {context}: server {name} is nats-server {shown_version(version)}, "
                    f"which would crash: update it to {CONSUMER_RESET.since} first"
                )

    def unpin(self, stream: str, name: str, group: str) -> None:
        """Unpin the pinned client of a priority group (server 2.11).

        The next client that pulls is pinned. Raises `ApiError` when the group does not exist,
        `JetStreamError` where the server is too old.
        """
        context = f"unpin group {group} of {_what(stream, name)}"
        self._api.ask(
            jsapi.CONSUMER_UNPIN,
            {"group": group},
            context=context,
            stream=stream,
            consumer=name,
        )

    def step_down(self, stream: str, name: str, *, preferred: str | None = None) -> None:
        """Let the leader of a consumer step down, as `Streams.step_down`.

        Raises `ApiError`, `JetStreamError`.
        """
        context = f"let the leader of {_what(stream, name)} step down"
        self._api.step_down(
            jsapi.CONSUMER_STEP_DOWN,
            preferred,
            context=context,
            stream=stream,
            consumer=name,
        )

    def remove_peer(self, stream: str, name: str, server: str, *, evacuate: bool = False) -> None:
        """Remove a server from those with a replica of a consumer (server 2.15).

        The cluster chooses another one among those of the stream. ``evacuate`` keeps the replica
        until the other one is up to date. Without it a consumer with one replica may lose its
        acknowledgements and deliver its messages again. Raises `ApiError` when the server has no
        replica, or none can replace it; 10010 outside of a cluster.
        """
        context = f"remove server {server} from {_what(stream, name)}"
        if not server:
            raise OptionError(f"cannot {context}: server must not be empty")
        endpoint = jsapi.CONSUMER_PEER_EVACUATE if evacuate else jsapi.CONSUMER_PEER_REMOVE
        body = {"peer": server}
        self._api.do(DoneReply, endpoint, body, context=context, stream=stream, consumer=name)

    def next(
        self,
        stream: str,
        name: str,
        count: int = 1,
        *,
        timeout: float = 5.0,
        ack: Ack = "ack",
        no_wait: bool | None = None,
        max_bytes: int | str | None = None,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        id: str | None = None,
    ) -> list[DeliveredMessage]:
        """Return up to ``count`` messages of a pull consumer, at most 1,000.

        These are the pending messages, or else the next ones.

        An empty list means that there was none within ``timeout`` seconds. ``ack`` acknowledges
        each message, ``nak`` has it delivered again at once, and ``term`` never again. The server
        confirms each of these answers before this returns. ``none`` leaves the answer to the method
        `ack` and its like. Messages already received are returned even if the request then fails.
        If a confirmation fails, this logs the error, and returns the messages that are, or may be,
        settled by then.

        The other arguments are fields of the request (ADR-37, ADR-42). ``no_wait`` takes only
        pending messages, as a ``timeout`` of 0 does; ``no_wait=False`` waits for ``count``
        messages. ``max_bytes`` limits subjects, headers and contents together. ``idle_heartbeat``
        is the number of seconds between heartbeats of the server, at most half of ``timeout``.
        Without a heartbeat for twice as long the server counts as silent. Consumers with a
        ``priority_policy`` need a ``group``. With ``overflow``, ``min_pending`` and
        ``min_ack_pending`` say how many messages must be pending, or wait for their
        acknowledgement. With ``prioritized``, ``priority`` is from 0, which is served first, to 9.
        With ``pinned_client``, ``id`` is the ``pin_id`` of the messages that the pinned client got.

        Raises:
            ConsumerLost: The consumer was deleted meanwhile, or has moved to another server.
            PinMismatch: Another client is pinned.
            PullRefused: The next message is larger than ``max_bytes``, too many requests wait, or
                the consumer's limits do not allow this one.
            RequestTimeout: The server is silent.
            JetStreamError: It is a push consumer, or paused, or that of a Spark query, which would
                lose the messages.
        """
        if ack not in get_args(Ack):
            raise OptionError(f"ack must be one of {', '.join(get_args(Ack))}, not {shown(ack)}")
        request = pull_request(
            count,
            timeout,
            no_wait=no_wait,
            max_bytes=max_bytes,
            idle_heartbeat=idle_heartbeat,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
            id=id,
        )
        info = self.load(stream, name)
        consumer = _what(stream, name)
        check_can_serve(info, request, consumer)
        # The server would send no answer at all before a message is acknowledged.
        if not request.expires and waits_for_acks(info):
            return []
        messages = Pull(self._api.connection, info, request, self._times).run()
        # A consumer with ack_policy none does not listen for acknowledgements (status 503).
        if ack == "none" or info.config.ack_policy == "none":
            return messages
        return self._settle_all(messages, ack, consumer)

    def receive(
        self,
        stream: str,
        name: str,
        *,
        timeout: float | None = None,
    ) -> Generator[DeliveredMessage]:
        """Return what a push consumer delivers.

        The iterator has no end, or ends when no message arrives for ``timeout`` seconds.

        The messages are yet to be acknowledged. A request of the consumer's ``flow_control`` is
        answered when all messages before it were taken; without it, more than 96 MiB that wait are
        a `ProtocolError`. Cuts, restarts of servers, silence for two heartbeats, and another
        ``deliver_subject`` or ``deliver_group`` begin another subscription. The clients of a
        ``deliver_group`` share the messages.

        Raises:
            DataLossError: Deliveries were lost that the consumer does not make again
                (``ack_policy`` none).
            ConsumerNotFound: It was deleted; noticed by the missing heartbeats, or after 30 seconds
                of silence.
            OutageError: Nothing could be received for option ``retryTimeout``.
            JetStreamError: It is a pull consumer, or became one; noticed in the same way.
        """
        idle = seconds_or_ever(timeout)
        if not idle > 0:
            raise OptionError(
                f"timeout must be a number of seconds above 0, or None, not {shown(timeout)}",
            )

        def load() -> ConsumerInfo:
            info = self.load(stream, name)
            if not info.config.push:
                raise JetStreamError(f"{_what(stream, name)} has no deliver_subject: use next")
            return info

        load()
        receiver = Receiver(self._api, stream, load, idle, self._times)
        doing = f"receiving from consumer {name} of stream"
        messages = through_outages(
            receiver,
            self._api.options.retry_timeout,
            Backoff(at_once=True),
            doing,
        )
        # None is a sign of life, which only the loop of outages needs.
        return (message for message in messages if message is not None)

    def ack(self, message: DeliveredMessage | str) -> None:
        """Acknowledge a message of `next` or `receive`.

        With ``ack_policy`` all, this acknowledges the messages before it too. ``message`` may be
        the reply subject of one that another client got. The server confirms the acknowledgement
        before this returns, as for `nak`, `in_progress` and `term`. Raises `ProtocolError` for a
        text that is not the reply subject of a delivery. Raises `NoResponders` where the consumer
        is gone, or its ``ack_policy`` is none. Raises `RequestTimeout` where the consumer has not
        delivered the message, because it was created again since.
        """
        self._settle(message, b"+ACK")

    def nak(self, message: DeliveredMessage | str, *, delay: float = 0.0) -> None:
        """Have a message delivered again, after ``delay`` seconds or at once.

        Raises what `ack` raises.
        """
        nanoseconds = jsapi.nanoseconds(checked(Seconds("0s", "3650d"), "delay", delay))
        answer = b"-NAK"
        if nanoseconds:
            # The server reads JSON, with the delay in nanoseconds, behind the word.
            answer += b" " + jsapi.request_body(delay=nanoseconds)
        self._settle(message, answer)

    def in_progress(self, message: DeliveredMessage | str) -> None:
        """Begin the ``ack_wait`` of a message anew: it is being worked on.

        Raises what `ack` raises.
        """
        self._settle(message, b"+WPI")

    def term(self, message: DeliveredMessage | str, *, reason: str = "") -> None:
        """Have a message never delivered again; the event of it has the ``reason``.

        Raises what `ack` raises.
        """
        self._settle(message, f"+TERM {reason}".rstrip().encode("utf-8", "replace"))

    def _settle_all(
        self,
        messages: list[DeliveredMessage],
        ack: Ack,
        consumer: str,
    ) -> list[DeliveredMessage]:
        """Settle messages in their order until one fails; return the ones that may be settled.

        No client gets a settled message again, so the caller must have it. Raises the error of the
        first message if it surely is not settled.
        """
        settle = getattr(self, ack)
        for count, message in enumerate(messages):
            try:
                settle(message)
            except JetStreamError as error:
                # Without a reply, the server may have settled this message.
                maybe = isinstance(error, (ConnectionFailed, RequestTimeout))
                settled = messages[: count + 1] if maybe else messages[:count]
                if not settled:
                    raise
                again = len(messages) - len(settled)
                log.warning("%s; %d more of %s are delivered again", error, again, consumer)
                return settled
        return messages

    def _settle(self, message: DeliveredMessage | str, answer: bytes) -> None:
        reply = message if isinstance(message, str) else message.reply
        ack = parse_ack(reply)
        message_text = f"message {ack.stream_seq} of stream {ack.stream}"
        context = f"acknowledge {message_text} to consumer {ack.consumer}"
        # The reply subject is sent as the server wrote it. It has two forms (9 tokens; 11 and more
        # with the feature flag js_ack_fc_v2 of nats-server), and is never built here.
        try:
            self._api.connection.request(reply, answer, context=context)
        except NoResponders as error:
            raise NoResponders(
                f"cannot {context}: it is gone, or its ack_policy is none",
            ) from error

    def _asset(self, stream: str, name: str) -> Asset[ConsumerInfo]:
        return Asset(self._api, _what(stream, name), lambda: self.load(stream, name), stream, name)

    def _wanted(
        self,
        stream: str,
        name: object,
        config: object,
        fields: Mapping[str, Any],
    ) -> ConsumerConfig:
        given, own = named(ConsumerConfig, name, config, fields, "name", "durable_name")
        return parse_user(
            ConsumerConfig,
            given,
            own,
            f"consumer of stream {stream}",
            self._api.newer,
        )

    def _check_filters(self, stream: str, name: str, wanted: ConsumerConfig, context: str) -> None:
        """Raise `OptionError` if a filter surely matches nothing.

        A consumer ``name`` that exists already is not refused for its filters.
        """
        if not wanted.filters:
            return
        # An account that may not read the stream's configuration can create consumers, without the
        # check.
        with contextlib.suppress(PermissionDenied, NoResponders):
            info = self._api.reply(StreamInfo, jsapi.STREAM_INFO, context=context, stream=stream)
            fault = filter_fault(self._api, info.config, wanted, context)
            # `create` returns an existing consumer of the same configuration.
            if fault and not (name and self._exists(stream, name)):
                raise OptionError(f"cannot {context}: {fault}")

    def _exists(self, stream: str, name: str) -> bool:
        with contextlib.suppress(ConsumerNotFound):
            self.load(stream, name)
            return True
        return False


def _duration_or_time(until: Any) -> Nanoseconds | Timestamp:
    """Return the end of a pause as it was given. Raises `OptionError`."""
    if isinstance(until, (str, dt.timedelta)):
        # A text that is no duration, such as an RFC 3339 time, is read as a time below.
        with contextlib.suppress(ValueError):
            return Nanoseconds.of(until)
    try:
        return moment("until", until)
    except OptionError:
        if not isinstance(until, str):
            raise
    raise _no_end(until)


def _no_end(until: Any) -> OptionError:
    given = f"{shown(until)}{minutes_or_months(until)}"
    return OptionError(
        "until must be a time before 2262-04-11 such as 2026-03-01T12:00:00Z, or a duration such "
        f"as 10m that ends before that, not {given}"
    )


def _what(stream: str, name: str) -> str:
    if name:
        return f"consumer {name} of stream {stream}"
    return f"a consumer on stream {stream}"
