"""`JetStreamAdmin`: the administration of the JetStream of one account."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from spark_jetstream.admin.api import Api, checked, subject_filter
from spark_jetstream.admin.backup import Backup, Progress
from spark_jetstream.admin.backup_files import draft_folder, saved_name
from spark_jetstream.admin.cluster import Cluster
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.admin.descriptions import description, read_wanted
from spark_jetstream.admin.lag import (
    ConsumerLag,
    OriginLag,
    consumer_lag,
    oldest_waiting,
    origin_lags,
)
from spark_jetstream.admin.messages import Messages, publish
from spark_jetstream.admin.models.account import AccountInfo, ServerInfo, ServerReport, Tier
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.messages import PubAck
from spark_jetstream.admin.plan import Plan, carry_out, make_plan
from spark_jetstream.admin.restore import Restored
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.subscription import Headers, Subscription, request
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.pool import connect, connect_at_once
from spark_jetstream.client.subscription import CoreMessage
from spark_jetstream.errors import (
    BackupError,
    ConnectionFailed,
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    StreamNotFound,
)
from spark_jetstream.options.connection import ConnectionOptions, beside
from spark_jetstream.options.contexts import (
    PLAIN,
    context_options,
    environment_options,
    selected_context,
)
from spark_jetstream.options.names import Name
from spark_jetstream.options.specs import given_options
from spark_jetstream.options.values import did_you_mean, file_path, hidden
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import shown_version
from spark_jetstream.protocol.units import Timestamp
from spark_jetstream.protocol.wire import Frames

if TYPE_CHECKING:
    from spark_jetstream.admin.counters import Counters
    from spark_jetstream.admin.events import Events
    from spark_jetstream.admin.kv import KeyValue
    from spark_jetstream.admin.models.trace import MessageTrace
    from spark_jetstream.admin.objects import Objects
    from spark_jetstream.admin.schedules import Schedules

_NAMES = {spec.name.lower(): spec.name for spec in ConnectionOptions.specs}


class Account:
    """The account of the connection; ``admin.account``. All methods raise what `Api` raises."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def info(self) -> AccountInfo:
        """Return usage, limits and number of requests.

        Raises `JetStreamNotEnabled` where there is no JetStream.
        """
        return self._api.account()

    def tiers(self) -> dict[str, Tier]:
        """Return usage and limits by tier (``R1``), or under ``""`` without tiers.

        Raises what `info` raises.
        """
        info = self.info()
        return info.tiers or {"": info}

    def server(self, info: AccountInfo | None = None) -> ServerInfo:
        """Return the server and its API; ``info`` saves a request. Raises what `info` raises."""
        info = info or self.info()
        connection = self._api.connection
        version = shown_version(connection.server_version)
        return ServerInfo(version, info.api.level, info.domain, connection.max_payload)

    def connected(self) -> dict[str, Any]:
        """Return the INFO of the connection's server, and as ``rtt`` a round trip in seconds."""
        connection = self._api.connection
        begun = time.perf_counter()
        connection.check()
        return {**connection.server_info, "rtt": time.perf_counter() - begun}

    def servers(self) -> list[ServerReport]:
        """Return the reports of all servers, sorted by name.

        Any account but the system account gets that of the server it is connected to. Ends when as
        many have answered as one of them knows of, or after option ``requestTimeout``.
        """
        try:
            return sorted(self._reports(), key=lambda report: report.server.name)
        # Only the system account reaches servers at that subject. Another account gets the INFO of
        # the server that it is connected to.
        except (NoResponders, PermissionDenied):
            own = self.connected()
            server = {
                "name": own["server_name"],
                "ver": own["version"],
                "cluster": own.get("cluster", ""),
            }
            return [ServerReport.from_server({"server": server, "rtt": own["rtt"]})]

    def _reports(self) -> Iterator[ServerReport]:
        context = "ask all servers"
        deadline = Deadline(self._api.options.request_timeout)
        begun = time.perf_counter()
        answered = 0
        known = 1  # how many servers the best informed one knows of
        with self._api.connection.inbox(whole=True) as inbox:
            inbox.publish("$SYS.REQ.SERVER.PING", b"", "1")
            while answered < known:
                frames = inbox.get(deadline.left)
                if not isinstance(frames, Frames):
                    # The time is over: the servers that have answered are the result.
                    return
                for header, reply in frames.parts():
                    # A server replies without headers. The status
                    # 503 (nobody listens) has a header block.
                    if header:
                        raise NoResponders(
                            f"cannot {context}: the account is not the system account",
                        )
                    body = {**jsapi.reply(reply, context), "rtt": time.perf_counter() - begun}
                    report = ServerReport.from_server(body, context)
                    yield report
                    answered += 1
                    # A server may know of more servers than those that have answered.
                    if report.statsz:
                        known = max(known, report.statsz.active_servers)

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        consumers: bool = True,
        progress: Progress | None = None,
    ) -> list[Backup]:
        """Save all streams, one after the other, as `Streams.backup`.

        Each has a directory of its name in ``target``. ``target`` appears when all are saved; after
        an error ``TARGET.part`` has those that are complete. A stream that cannot be saved does not
        keep others from it. ``progress`` is called with the number of streams that are done, and of
        all. Raises what `Streams.backup` raises, and `BackupError` for several streams.
        """
        streams = Streams(self._api)
        path = Path(file_path("target", target))
        saved = []
        failures: list[JetStreamError] = []
        with draft_folder(path) as folder:
            for name in _counting(list(streams.names()), progress):
                try:
                    saved.append(streams.backup(name, folder / name, consumers=consumers))
                except StreamNotFound:
                    # It was deleted since the list was read.
                    continue
                # Without a connection no other stream can be saved either.
                except ConnectionFailed:
                    raise
                # A stream without a leader must not keep those after it from being saved, in every
                # run (`test_a_stream_that_cannot_be_saved_does_not_keep_others_from_it`).
                except JetStreamError as error:
                    failures.append(error)
            if len(failures) > 1:
                raise BackupError("; ".join(map(str, failures))) from failures[0]
            if failures:
                raise failures[0]
        # The paths still lead into the draft, which has the name of the target now.
        return [replace(made, path=path / made.path.name) for made in saved]

    def restore(
        self,
        source: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> list[Restored]:
        """Create all streams of a directory that `backup` made, as `Streams.restore`.

        One is created after the other. ``progress`` as for `backup`. Hidden files are passed over
        (``.DS_Store``).

        Raises:
            BackupError: Something else in the directory is no backup of a stream: nothing is
                restored.
            JetStreamError: Streams of these names exist: nothing is restored. And what
                `Streams.restore` raises: the streams before that one are restored.
            OSError: The directory cannot be read.
        """
        streams = Streams(self._api)
        folder = Path(file_path("source", source))
        saved = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        # The names in the backups count: all of them are read before the first stream is created.
        names = {saved_name(path) for path in saved}
        existing = names.intersection(streams.names())
        if existing:
            listed = ", ".join(sorted(existing))
            raise JetStreamError(
                f"cannot restore {source}: there is {listed} already; nothing was restored",
            )
        return [streams.restore(path) for path in _counting(saved, progress)]


def _counting(items: list[Any], progress: Progress | None) -> Iterator[Any]:
    """Yield items; report how many are done when the next one is asked for."""
    for done, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(done, len(items))


class JetStreamAdmin:
    """Administers the JetStream of one account.

    For example:

        with JetStreamAdmin(servers="nats://127.0.0.1:4222") as admin:
            admin.streams.create(DEFAULT_STREAM, name="ORDERS", subjects=["orders.>"])
            for lag in admin.lag():
                print(lag.stream, lag.consumer, lag.total, lag.age)

    ``streams``, ``consumers``, ``messages``, ``counters``, ``schedules``, ``account``, ``cluster``,
    ``events``, ``kv`` and ``objects`` have the methods. Options are the connection options of
    ``docs/options.md``; case does not matter. The first method sends the first request.

    All methods block. Any thread may call them, also one that runs an event loop (a notebook), and
    a forked child. The connection is shared with everything in this process that has the same
    options, such as Spark's readers, and stays open for them after `close`.

    All methods raise `OptionError` for an invalid argument, and `JetStreamError` or a subclass for
    a request that fails. The subclasses are `ApiError` (an error of the server, with its code),
    `PermissionDenied` (with the subject), `RequestTimeout`, `NoResponders` and `ConnectionFailed`.
    The methods name further classes under "Raises".
    """

    def __init__(self, **options: object) -> None:
        """Check the options.

        Raises `OptionError` for an unknown option, and for a value that is not possible.
        """
        given = hidden(options)
        # `hidden` joins a list to one text: which options were lists must be known before.
        lists = _lists(options)
        # A traceback with local variables would show the options.
        del options
        checked_options = ConnectionOptions.from_given(_own(given, lists))
        api = Api(checked_options, connect=self._connect)
        self._api = api
        self.streams = Streams(api)
        self.consumers = Consumers(api)
        self.messages = Messages(api)
        self.account = Account(api)
        self.cluster = Cluster(api)

    @staticmethod
    def _connect(options: ConnectionOptions) -> Connection:
        """Connect.

        It waits for servers that are starting, since another program may start them beside this
        one.
        """
        return connect(options)

    # These are imported when they are used: a command has no time for all of them.

    @functools.cached_property
    def counters(self) -> Counters:
        """The counters of the account's streams."""
        from spark_jetstream.admin.counters import Counters  # noqa: PLC0415

        return Counters(self._api)

    @functools.cached_property
    def schedules(self) -> Schedules:
        """The schedules of the account's streams."""
        from spark_jetstream.admin.schedules import Schedules  # noqa: PLC0415

        return Schedules(self._api)

    @functools.cached_property
    def kv(self) -> KeyValue:
        """The Key-Value buckets of the account."""
        from spark_jetstream.admin.kv import KeyValue  # noqa: PLC0415

        return KeyValue(self._api)

    @functools.cached_property
    def objects(self) -> Objects:
        """The Object Store buckets of the account."""
        from spark_jetstream.admin.objects import Objects  # noqa: PLC0415

        return Objects(self._api)

    @functools.cached_property
    def events(self) -> Events:
        """The events of servers and of JetStream."""
        from spark_jetstream.admin.events import Events  # noqa: PLC0415

        return Events(self._api)

    @classmethod
    def from_environment(cls, **options: object) -> JetStreamAdmin:
        """Connect as the ``nats`` command does.

        The options come from variables such as ``NATS_URL`` and ``NATS_CONTEXT`` (see
        `environment_options`), else from the context that ``nats context select`` chose.
        ``options`` replace them: a user replaces all variables of the authentication, and a context
        replaces ``NATS_URL``, which the command prefers. Raises `OptionError` for an option that is
        not known or not possible; it says which variable, or selection, the option comes from.
        """
        wanted = hidden(options)
        lists = _lists(options)
        # A traceback with local variables would show the options.
        del options
        given = _own(wanted, lists)
        chosen = {}
        if "context" in given:
            values = hidden(context_options(given["context"]))
            chosen = given_options(values, ConnectionOptions.specs)
        # An option that is named here must not act on the server, or with the login, that some
        # variable names: `beside` drops the variables that it replaces.
        inherited = beside({**chosen, **given}, hidden(environment_options(os.environ)))
        origins = {option: f"the environment, {variable}" for variable, option in PLAIN.items()}
        # As in the nats command, NATS_CONTEXT counts before the selected context.
        if "context" not in given and "context" not in inherited:
            selected = selected_context()
            if selected is not None:
                inherited["context"] = SecretStr(selected)
                origins["context"] = "nats context select"
        try:
            return cls(**{**inherited, **given})
        except OptionError as error:
            # The caller has given the option: the error needs no origin.
            if error.option not in inherited:
                raise
            origin = origins.get(error.option or "", "the environment, NATS_*")
            problem = OptionError(f"{error} (it comes from {origin})", option=error.option)
        # Raised here so that it does not carry the options that caused it.
        raise problem

    @property
    def options(self) -> ConnectionOptions:
        """The connection options."""
        return self._api.options

    def publish(
        self,
        subject: str,
        data: str | bytes,
        headers: Mapping[str, str] | None = None,
    ) -> PubAck:
        """Publish one message; return its stream and sequence.

        The result says whether it is a duplicate by its ``Nats-Msg-Id``. Text is stored as UTF-8. A
        header has one value. After `RequestTimeout` or `ConnectionFailed` the message may be stored
        or not. Raises `StreamNotFound` when no stream captures the subject, `NoResponders` when its
        stream had no leader for option ``requestTimeout``, and `ApiError` when the stream refuses
        the message.
        """
        return publish(self._api, subject, data, headers)

    def request(
        self,
        subject: str,
        data: str | bytes = b"",
        headers: Headers | None = None,
        *,
        replies: int | None = 1,
        timeout: float | None = None,
    ) -> list[CoreMessage]:
        """Send a request of core NATS; return its replies.

        The subject may be one of an API, such as ``$JS.API.INFO``. The replies are the first
        ``replies``, or fewer if no more arrive within ``timeout`` seconds (option
        ``requestTimeout`` by default). With None for ``replies`` they are all that arrive in that
        time. Text is sent as UTF-8. Raises `NoResponders` when nobody listens at the subject, and
        `RequestTimeout` when no reply arrives.
        """
        return request(self._api, subject, data, headers, replies, timeout)

    def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        timeout: float | None = None,
        count: int | None = None,
    ) -> Subscription[CoreMessage]:
        """Subscribe to a subject of core NATS (wildcards allowed).

        All messages after this call are received. Each message goes to one member of a ``queue``
        group. The iterator ends after ``timeout`` seconds, or ``count`` messages. A `Gap` says that
        messages may be missing, because the connection was lost for a time. Raises
        `PermissionDenied` when the account may not subscribe to the subject, and `OutageError` in
        the iteration after a loss of more than option ``retryTimeout``.
        """
        group = str(checked(Name("queue group", optional=True), "queue", queue))
        subjects = (subject_filter(subject),)
        return Subscription(self._api, subjects, _message, timeout, count, group)

    def trace(
        self,
        subject: str,
        data: str | bytes = b"",
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
    ) -> MessageTrace:
        """Return the way that a message to a subject would take; no stream stores it.

        No subscriber receives it either, but for clients of MQTT. The servers report the accounts,
        streams, links to other servers and subscribers that the message comes to (ADR-41). Ends
        when all servers have reported, or after ``timeout`` seconds (option ``requestTimeout`` by
        default): `MessageTrace.missing` names those that have not. The account must be allowed to
        publish to the subject, and to its inbox.

        Raises:
            OptionError: The subject has wildcards or is one of the server's own (``$JS.>``), or a
                header is one that the server would act on.
            PermissionDenied: The account may not publish to the subject, or to its inbox.
            JetStreamError: The server is older than 2.11; nothing was sent.
            RequestTimeout: No server has reported.
        """
        from spark_jetstream.admin.trace import trace  # noqa: PLC0415

        return trace(self._api, subject, data, headers, timeout)

    def lag(
        self, stream: str | None = None, consumer: str | None = None, *, ages: bool = True
    ) -> Iterator[ConsumerLag]:
        """Return how far one consumer lags, or each consumer of one stream or of all streams.

        They are sorted by name. ``ages`` asks for the oldest message that is not processed: a
        request for each filter of a consumer that lags. Raises `ConsumerNotFound`, and
        `OptionError` when ``consumer`` is given without ``stream``.
        """
        if consumer is None:
            return (self._lag(info, ages) for info in self.consumers.infos(stream))
        if stream is None:
            raise OptionError(f"consumer {consumer}: name its stream, too")
        return iter([self._lag(self.consumers.load(stream, consumer), ages)])

    def _lag(self, info: ConsumerInfo, ages: bool) -> ConsumerLag:
        return consumer_lag(info, oldest_waiting(self.messages, info) if ages else None)

    def origin_lag(self, stream: str | None = None) -> Iterator[OriginLag]:
        """Return how far one stream, or each stream, lags behind its mirror origin or its sources.

        They are sorted. Raises `StreamNotFound`; `ServerBusy` as `Streams.infos` does.
        """
        infos = self.streams.infos() if stream is None else [self.streams.load(stream)]
        for info in infos:
            yield from origin_lags(info)

    def plan(
        self,
        *described: str | os.PathLike[str] | Mapping[str, Any],
        given_only: bool = False,
        any_filter: bool = False,
    ) -> Plan:
        """Return the steps that make streams and consumers what descriptions say.

        Nothing is changed.

        ``described`` are files or mappings (see `spark_jetstream.admin.descriptions`). Consumers
        that no description names are ignored. ``given_only``: fields that a description does not
        set stay; else they get their defaults. A consumer with a new filter that matches nothing,
        as for `Consumers.create`, is refused unless ``any_filter``. Raises `OptionError`, which
        names the file, for a description that is not possible.
        """
        wanted = read_wanted(*described, newer=self._api.newer)
        return make_plan(self._api, wanted, given_only=given_only, any_filter=any_filter)

    def apply(self, plan: Plan) -> None:
        """Carry out a plan; the next plan of the same descriptions has no changes.

        Raises:
            PlanOutdated: Another client changed a stream or consumer after the plan was made.
            JetStreamError: A step is refused, or the server is too old for one: nothing was done.
        """
        # All steps are checked before the first one is
        # sent: an old server leaves no plan half done.
        for step in plan.steps:
            if step.action in ("create", "update"):
                self._api.need_for(step.target, f"{step.action} {step.what}")
        carry_out(self._api, plan)

    def describe(self, stream: str, *, readable: bool = True) -> dict[str, Any]:
        """Return the `description` of a stream and its durable consumers, for `plan`.

        Raises `StreamNotFound`.
        """
        # The server removes other consumers when they are unused.
        durable = [info.config for info in self.consumers.infos(stream) if info.config.durable_name]
        return description(self.streams.load(stream).config, durable, readable=readable)

    def close(self) -> None:
        """End the administration: all methods then raise `JetStreamError`. May be called again."""
        self._api.close()

    def __enter__(self) -> JetStreamAdmin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not hasattr(self, "_api"):
            # The constructor has failed, and a traceback shows its local variables.
            return "<JetStreamAdmin>"
        return f"<JetStreamAdmin {self.options.display_servers} {self.options.api_prefix_resolved}>"


def _message(message: CoreMessage, received: Timestamp) -> CoreMessage:
    """Return the item of a subscription for a message: itself."""
    return message


class CommandAdmin(JetStreamAdmin):
    """A `JetStreamAdmin` for one command."""

    @staticmethod
    def _connect(options: ConnectionOptions) -> Connection:
        # A user waits for the command. It ends once the ports of all named servers have refused.
        return connect_at_once(options)


def _lists(options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the options that have several values."""
    return tuple(name for name, value in options.items() if isinstance(value, (list, tuple)))


def _own(options: Mapping[str, SecretStr | None], lists: tuple[str, ...]) -> dict[str, SecretStr]:
    """Return the options by their proper names.

    Raises `OptionError` for an unknown one, or one with several values.
    """
    for name in options:
        if name.lower() not in _NAMES:
            hint = did_you_mean(name.replace("_", ""), _NAMES.values())
            raise OptionError(f"there is no option {name}{hint}", option=name)
        option = _NAMES[name.lower()]
        # Only servers are written as a list; any other list would be read as one joined text.
        if name in lists and option != "servers":
            raise OptionError(f"option {option} must be a single value, not a list", option=option)
    return given_options(options, ConnectionOptions.specs)
