"""Streams and consumers alike: create one, compare it with a configuration, update it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.asked import planned
from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.changes import Difference, differences, update_body
from spark_jetstream.admin.models.consumers import ConsumerConfig, ConsumerInfo
from spark_jetstream.admin.models.rules import FOR_NEW
from spark_jetstream.admin.models.streams import StreamConfig, StreamInfo, StreamNamesPage
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    PermissionDenied,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import PEDANTIC_REQUESTS
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.protocol.subjects import FilterIndex
from spark_jetstream.protocol.units import CLOCK_RANGE, Timestamp, beyond_clock, shown

Config = StreamConfig | ConsumerConfig
Info = TypeVar("Info", StreamInfo, ConsumerInfo)
Check = Callable[[Any, Any, str], None]

_OVERLAP = 10065  # subjects overlap with an existing stream (nats-server: server/errors.json)


def send(
    api: Api,
    stream: str,
    consumer: str,
    wanted: Config,
    actual: Model | None,
    context: str,
    endpoint: Endpoint | None = None,
    pedantic: bool = False,
) -> Any:
    """Create a stream, or a consumer of it, or update the ``actual`` one; return its info.

    ``endpoint`` is another one for the request that creates a consumer. ``pedantic`` is that of
    `Streams.create`. Raises `OptionError` for a new start time that no server can compare with
    those of messages.
    """
    _refuse_far_starts(wanted, actual, context)
    body = _new_body(wanted) if actual is None else update_body(wanted, actual)
    mode: dict[str, Any] = {}
    if pedantic:
        mode = {"pedantic": True}
        api.need(PEDANTIC_REQUESTS.level, f"{context} with pedantic")
    if isinstance(wanted, StreamConfig):
        # Streams have two endpoints; for consumers, the request has the action.
        form = jsapi.STREAM_CREATE if actual is None else jsapi.STREAM_UPDATE
        return _send_stream(api, form, stream, wanted, {**body, **mode}, context)
    # The subject of this form ends with the filter, so that permissions can limit an account to it.
    # A filter in `filter_subjects` stands in the body alone (error 10137).
    if endpoint is None and wanted.filter_subject:
        endpoint = jsapi.CONSUMER_CREATE_FILTERED
    request = {
        "stream_name": stream,
        "config": body,
        "action": "create" if actual is None else "update",
        **mode,
    }
    return api.reply(
        ConsumerInfo,
        endpoint or jsapi.CONSUMER_CREATE_NAMED,
        request,
        context=context,
        stream=stream,
        consumer=consumer,
        filter=wanted.filter_subject,
    )


def _new_body(wanted: Config) -> dict[str, Any]:
    """Return the configuration of a new stream or consumer, as it is sent."""
    return {**FOR_NEW[type(wanted)], **wanted.body()}


def _send_stream(
    api: Api,
    endpoint: Endpoint,
    stream: str,
    wanted: StreamConfig,
    request: dict[str, Any],
    context: str,
) -> StreamInfo:
    """Send a configuration; an error about overlapping subjects names the other streams."""
    try:
        return api.reply(StreamInfo, endpoint, request, context=context, stream=stream)
    except ApiError as error:
        if error.err_code != _OVERLAP:
            raise
        others = sorted(_streams_with(api, wanted) - {stream})
        # The account may not list the streams: the server's error says all that is known.
        if not others:
            raise
        verb = "have" if len(others) > 1 else "has"
        text = f"{error}: {' and '.join(others)} {verb} overlapping subjects"
        raise jsapi.reworded(error, text) from None


def _refuse_far_starts(wanted: Config, actual: Model | None, context: str) -> None:
    """Raise `OptionError` for a new start time that the clock of a server lacks.

    The server takes a time beyond its clock, and begins at another message.
    """
    # An existing start time stays as it is.
    known = _starts(actual) if isinstance(actual, (StreamConfig, ConsumerConfig)) else {}
    for name, time in _starts(wanted).items():
        # The year 1 means "never": it is no start.
        is_new = not time.never and time not in known.values()
        if is_new and beyond_clock(time):
            expected = f"a time that the clock of a server has, {CLOCK_RANGE}"
            raise OptionError(f"cannot {context}: {name} must be {expected}, not {shown(time)}")


def _starts(config: Config) -> dict[str, Timestamp]:
    """Return the start times of a consumer, or of a stream's origins, by field."""
    if isinstance(config, ConsumerConfig):
        given = {"opt_start_time": config.opt_start_time}
    else:
        given = {}
        for at, source in enumerate(config.sources):
            given[f"sources.{at}.opt_start_time"] = source.opt_start_time
        if config.mirror is not None:
            given["mirror.opt_start_time"] = config.mirror.opt_start_time
    return {name: time for name, time in given.items() if time is not None}


def _streams_with(api: Api, wanted: StreamConfig) -> set[str]:
    """Return the streams that store subjects of a configuration, if the account may see them."""
    others: set[str] = set()
    # The names only complete an error. An account that may not list streams gets it without them.
    with contextlib.suppress(JetStreamError):
        for subject in wanted.subjects or (wanted.name,):
            request = {"subject": subject}
            pages = api.pages(StreamNamesPage, jsapi.STREAM_NAMES, request, context="list streams")
            for page in pages:
                others.update(page.streams)
    return others


def filter_fault(
    api: Api,
    stream: StreamConfig,
    consumer: ConsumerConfig,
    context: str,
    *,
    exists: bool = True,
) -> str:
    """Return why a filter of a consumer surely matches nothing of its stream; "" if there is none.

    With ``exists`` the server has the stream, perhaps with messages from when it had other
    subjects.
    """
    if stream.mirror or stream.sources or stream.subject_transform:
        # Its messages may have other subjects than its own.
        return ""
    stored = stream.subjects or [stream.name]
    index = FilterIndex(stored)
    # The server accepts a filter of subjects that the stream does not store, and never delivers
    # (`test_filters_that_match_nothing`).
    for filter_ in consumer.filters:
        if index.overlapping(filter_) is not None:
            continue
        # Messages from before a change of the subjects can still be delivered
        # (`test_filters_of_streams_that_hold_other_subjects`).
        if not (exists and _holds(api, stream.name, filter_, context)):
            return (
                f"{shown(filter_)} matches nothing that the stream stores "
                f"({', '.join(stored)}), so nothing would ever be delivered for it; "
                "any_filter=True (--any-filter) allows it nevertheless"
            )
    return ""


def _holds(api: Api, stream: str, subject: str, context: str) -> bool:
    """Return whether a stream holds messages on a subject, which it may not store any more.

    The caller has loaded the stream just now, so that it has a leader, which replies.
    """
    request = {"subjects_filter": subject}
    info = api.reply(StreamInfo, jsapi.STREAM_SUBJECTS, request, context=context, stream=stream)
    return bool(info.state.subjects)


class Asset(Generic[Info]):
    """A stream or a consumer.

    ``what`` names it in errors (``stream ORDERS``), ``load`` asks the server for it.
    """

    def __init__(
        self,
        api: Api,
        what: str,
        load: Callable[[], Info],
        stream: str,
        consumer: str = "",
    ) -> None:
        self.what = what
        self._api = api
        self._load: Callable[[], Info] = load
        self._names = stream, consumer

    def create(
        self, wanted: Config, endpoint: Endpoint | None = None, *, pedantic: bool = False
    ) -> Info:
        """Create it; return the existing asset if it equals ``wanted``.

        ``endpoint`` and ``pedantic`` are those of `send`.

        Raises:
            ApiError: It exists with another configuration; the error lists the differences, if the
                account may look.
            OptionError: A start time is one that no server can count.
            JetStreamError: The server ignored a field.
        """
        try:
            info: Info = send(
                self._api,
                *self._names,
                wanted,
                None,
                f"create {self.what}",
                endpoint,
                pedantic,
            )
        except ApiError as error:
            if not already_exists(error):
                raise
            # The server treats [] and a missing field as
            # different, and refuses the one for the other.
            return self._existing(error, wanted)
        except OptionError as error:
            # A start time that an existing consumer has already is no new one
            # (`test_a_start_that_no_server_can_count_is_refused_unless_it_is_there`).
            return self._as_it_is(error, wanted)
        confirm(wanted, info.config, f"{self.what} was created")
        return info

    def load_or_create(
        self,
        wanted: Model,
        create: Callable[[], Info],
        *,
        given_only: bool,
        any_config: bool = False,
    ) -> Info:
        """Return what exists, else what ``create`` makes.

        `JetStreamError` if it differs, unless ``any_config``.
        """
        try:
            info = self._load()
        except (StreamNotFound, ConsumerNotFound):
            created = self._create_unless_exists(create)
            if created is not None:
                return created
            # Another client was faster.
            info = self._load()
        if not any_config:
            refuse_difference(wanted, info.config, self.what, given_only=given_only)
        return info

    def _create_unless_exists(self, create: Callable[[], Info]) -> Info | None:
        try:
            return create()
        except ApiError as error:
            if already_exists(error):
                return None
            raise

    def plan(self, changes: object, fields: Mapping[str, Any]) -> list[Difference]:
        """Return what `update` would change. Raises `OptionError`."""
        return planned(self._load().config, changes, fields, self.what)[1]

    def update(
        self,
        changes: object,
        fields: Mapping[str, Any],
        check: Check | None = None,
        *,
        pedantic: bool = False,
    ) -> list[Difference]:
        """Change it; return what was changed.

        ``check`` gets the wanted and the actual configuration, and what is done, before the request
        is sent. Raises `OptionError`, `JetStreamError` as `Streams.update` does.
        """
        actual = self._load().config
        wanted, differing = planned(actual, changes, fields, self.what)
        # One change that the server cannot make refuses all of them: an update replaces the whole
        # configuration, so nothing is changed by halves.
        refused = [f"{change} ({change.refused})" for change in differing if change.refused]
        if refused:
            raise JetStreamError(f"cannot update {self.what}: {'; '.join(refused)}")
        if differing:
            context = f"update {self.what}"
            self._api.need_for(wanted, context)
            if check is not None:
                check(wanted, actual, context)
            info = send(self._api, *self._names, wanted, actual, context, pedantic=pedantic)
            confirm(wanted, info.config, f"{self.what} was updated")
        return differing

    def _as_it_is(self, refusal: OptionError, wanted: Model) -> Info:
        """Return what another client has created as ``wanted``.

        Raises ``refusal`` if there is none, or it differs.
        """
        try:
            info = self._load()
        # There is none, or the account may not look.
        except (ApiError, PermissionDenied):
            raise refusal from None
        if differences(wanted, info.config):
            raise refusal
        return info

    def _existing(self, refusal: ApiError, wanted: Model) -> Info:
        """Return what exists if nothing differs.

        Raises ``refusal``, with the differences if the account may look.
        """
        try:
            info = self._load()
        # The account may not look, or another client has
        # deleted it: the refusal is all that is known.
        except (ApiError, PermissionDenied):
            raise refusal from None
        if changes := _listed(wanted, info.config):
            # The class and the codes of the server's error stay.
            refusal.args = (f"{refusal}; there -> asked for: {changes}", *refusal.args[1:])
        elif not differences(info.config, wanted):
            return info
        raise refusal


def already_exists(error: ApiError) -> bool:
    """Return whether the server refused a new stream or consumer because it exists."""
    return isinstance(error, StreamExists) or error.err_code == jsapi.CONSUMER_EXISTS


def confirm(wanted: Model, actual: Model, done: str, *, given_only: bool = False) -> None:
    """Raise `JetStreamError` when the server left out a part of a configuration."""
    # A server before 2.12 drops fields that it does not know, without an error
    # (`test_a_setting_that_the_server_drops_is_an_error_that_names_it`).
    changes = differences(wanted, actual, given_only=given_only)
    # The server chooses the name of a consumer that has none.
    lost = [str(change) for change in changes if change.field != "name" or change.wanted]
    if lost:
        raise JetStreamError(
            f"{done}, but the server has not taken all of it, perhaps because it is too old "
            f"(on the server -> asked for): {'; '.join(lost)}"
        )


def refuse_difference(wanted: Model, actual: Model, what: str, *, given_only: bool) -> None:
    """Raise `JetStreamError`, with the differences, when a configuration is not as wanted."""
    if changes := _listed(wanted, actual, given_only=given_only):
        raise JetStreamError(
            f"{what} exists with another configuration (on the server -> asked for): {changes}",
        )


def _listed(wanted: Model, actual: Model, *, given_only: bool = False) -> str:
    return "; ".join(map(str, differences(wanted, actual, given_only=given_only)))
