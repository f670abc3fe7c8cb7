"""Streams: list, create, change, copy, save, purge, delete, and their replicas."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from spark_jetstream.admin.api import Api, stream_name, subject_filter
from spark_jetstream.admin.backup import Backup, Progress, backup
from spark_jetstream.admin.models.base import Page
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
from spark_jetstream.admin.models.consumers import ConsumerPage
from spark_jetstream.admin.models.messages import DoneReply, PurgeReply, PurgeRequest
from spark_jetstream.admin.models.streams import (
    Replica,
    StreamConfig,
    StreamInfo,
    StreamNamesPage,
    StreamPage,
    StreamSourceInfo,
    confirm_done,
    replicas,
)
from spark_jetstream.admin.restore import Restored, restore
from spark_jetstream.errors import (
    InsufficientResources,
    OptionError,
    PermissionDenied,
    ServerBusy,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi

P = TypeVar("P", bound=Page)
L = TypeVar("L", StreamPage, ConsumerPage)

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def pages(model: type[P], ask: Ask, request: Mapping[str, Any], context: str) -> Iterator[P]:
    """Return the pages of a list, each requested when it is needed; ``ask(body)`` returns a reply.

    What is created or deleted between two requests may be missing, or appear twice.
    """
    offset = 0
    while True:
        page = model.from_server(ask({**request, **({"offset": offset} if offset else {})}), context)
        yield page
        # Not the number of entries: in a cluster the entries of a server that did not answer are missing.
        following = page.offset + page.limit
        if following >= page.total or following <= offset:
            return
        offset = following


def whole_pages(model: type[L], ask: Ask, request: Mapping[str, Any], context: str) -> Iterator[L]:
    """Return the pages as `pages` does. Raises `ServerBusy` at the end when the server named missing entries."""
    missing: list[str] = []
    for page in pages(model, ask, request, context):
        yield page
        missing += [f"no server answered for {name}" for name in page.missing]
        missing += [f"no server can run {name} ({why})" for name, why in page.offline.items()]
    if missing:
        text = f"cannot {context} as a whole: {'; '.join(missing)}"
        raise ServerBusy(text, code=0, err_code=0, description="")


Config = StreamConfig | StreamInfo | Mapping[str, Any]


class Streams:
    """The streams of an account; ``admin.streams``.

    A configuration is a `StreamConfig`, a `StreamInfo`, a mapping such as a template, or single fields by name. Fields
    beside one of the others replace its fields.

    All methods raise what `Api` raises; `StreamNotFound` names the stream; `OptionError` for an argument that cannot be
    one.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    # Looking

    def names(self, subject: str | None = None) -> Iterator[str]:
        """Return the names of all streams, or of those that store ``subject`` or a part of it; sorted, page by page."""
        request, context = _listed(subject)
        ask = partial(self._api.ask, jsapi.STREAM_NAMES, context=context)
        for page in pages(StreamNamesPage, ask, request, context):
            yield from page.streams

    def infos(self, subject: str | None = None) -> Iterator[StreamInfo]:
        """Return all streams, or those that store ``subject`` or a part of it; sorted by name, page by page.

        Raises:
            ServerBusy: At the end, when servers of a cluster did not answer for some streams, which it names.
        """
        request, context = _listed(subject)
        ask = partial(self._api.ask, jsapi.STREAM_LIST, context=context)
        for page in whole_pages(StreamPage, ask, request, context):
            yield from page.streams

    def load(self, name: str, *, deleted: bool = False) -> StreamInfo:
        """Return configuration and state of a stream; with ``deleted`` the missing sequences too."""
        context = f"look at stream {name}"
        request = {"deleted_details": True} if deleted else None
        body = self._api.ask(jsapi.STREAM_INFO, request, context=context, stream=stream_name(name))
        return StreamInfo.from_server(body, context)

    def subjects(self, name: str, subject: str = ">") -> Iterator[tuple[str, int]]:
        """Return the subjects of a stream with their number of messages; sorted, 100,000 of a request."""
        context = f"count the messages of stream {name} by subject"
        request = {"subjects_filter": subject_filter(subject)}
        ask = partial(self._api.ask, jsapi.STREAM_INFO, context=context, stream=stream_name(name))
        for page in pages(StreamInfo, ask, request, context):
            yield from sorted(page.state.subjects.items())

    def replicas(self, name: str) -> tuple[Replica, ...]:
        """Return the servers with a replica of a stream, the leader first; outside of a cluster the only server."""
        return replicas(self.load(name).cluster)

    def origins(self, name: str) -> tuple[StreamSourceInfo, ...]:
        """Return the streams that a mirror or a stream with sources copies, sorted by name, each with its ``lag``."""
        return self.load(name).origins

    # Creating and changing

    def create(self, name: str | Config | None = None, config: Config | None = None, /, **fields: Any) -> StreamInfo:
        """Create a stream; one that exists with the same configuration stays as it is.

        Args:
            name: The stream's name; or a configuration with a name; or nothing, with ``name=...`` as a field.
            config: The configuration; ``name`` replaces its name.
            **fields: Fields of `StreamConfig`, such as ``subjects=["orders.>"]``.

        Raises:
            OptionError: The configuration is not possible.
            StreamExists: There is a stream of this name with another configuration; the error lists the differences.
            JetStreamError: The server is too old for a field; or it created the stream and ignored one.
        """
        wanted = self._wanted(name, config, fields)
        context = f"create stream {wanted.name}"
        self._api.need_for(wanted, context)
        self._check_origin(wanted)
        try:
            body = self._api.ask(jsapi.STREAM_CREATE, wanted.body(), context=context, stream=wanted.name)
        except InsufficientResources:
            # The server checks the room, which the stream itself may take, before it checks whether the stream exists.
            existing = self._existing(wanted)
            if existing is None:
                raise
            return existing
        except StreamExists as error:
            return existing_instead(error, wanted, lambda: self.load(wanted.name))
        info = StreamInfo.from_server(body, context)
        confirm(wanted, info.config, f"stream {wanted.name} was created")
        return info

    def _check_origin(self, wanted: StreamConfig) -> None:
        """Refuse ``mirror_direct`` for an origin without ``allow_direct``: the server turns it off without an error."""
        mirror = wanted.mirror
        if mirror is None or mirror.external is not None or not wanted.mirror_direct:
            return
        try:
            allowed = self.load(mirror.name).config.allow_direct
        except (StreamNotFound, PermissionDenied):
            return
        if not allowed:
            raise OptionError(f"stream {wanted.name}: mirror_direct needs allow_direct of its origin {mirror.name}")

    def _existing(self, wanted: StreamConfig) -> StreamInfo | None:
        """Return the stream if it exists with this configuration."""
        try:
            info = self.load(wanted.name)
        except (StreamNotFound, PermissionDenied):
            return None
        return None if differences(wanted, info.config) else info

    def load_or_create(
        self,
        name: str | Config | None = None,
        config: Config | None = None,
        /,
        *,
        given_only: bool = False,
        **fields: Any,
    ) -> StreamInfo:
        """Return the stream; create it if there is none. The arguments are those of `create`.

        Args:
            name: As for `create`.
            config: As for `create`.
            given_only: Compare an existing stream in the given fields only; else the others must have their defaults.
            **fields: As for `create`.

        Raises:
            JetStreamError: The stream exists with another configuration (the error lists the differences), and what
                `create` raises.
        """
        wanted = self._wanted(name, config, fields)
        try:
            info = self.load(wanted.name)
        except StreamNotFound:
            try:
                return self.create(wanted)
            except StreamExists:
                # Another client was faster.
                info = self.load(wanted.name)
        refuse_difference(wanted, info.config, f"stream {wanted.name}", given_only=given_only)
        return info

    def plan(self, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """Return what `update` with the same arguments would change.

        Each difference says why the server would refuse it (``refused``), and what else it would cause (``risk``).
        """
        return self._planned(name, changes, fields)[2]

    def update(self, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """Change a stream; return what was changed. Changes of another client at the same time may be undone.

        Args:
            name: The stream's name.
            changes: A mapping of the fields to change; or a `StreamConfig`, whose unset fields get their defaults.
            **fields: More fields to change. Each replaces the whole field; None sets its default.

        Raises:
            OptionError: A value is not possible.
            JetStreamError: The server cannot make all changes: nothing was changed, and the error has the reasons. Or
                the server is too old for a field, or ignored one.
        """
        wanted, actual, changed_fields = self._planned(name, changes, fields)
        refuse_impossible(changed_fields, f"stream {name}")
        if changed_fields:
            context = f"update stream {name}"
            self._api.need_for(wanted, context)
            body = self._api.ask(
                jsapi.STREAM_UPDATE, update_body(wanted, actual), context=context, stream=stream_name(name)
            )
            confirm(wanted, StreamInfo.from_server(body, context).config, f"stream {name} was updated")
        return changed_fields

    def copy(self, name: str, new_name: str, /, **changes: Any) -> StreamInfo:
        """Create a stream with the configuration of another one and these changes, without its messages.

        Two streams cannot store the same subject, so ``subjects`` usually must change. The copy of a sealed stream is
        not sealed. Raises what `create` raises.
        """
        what = f"stream {stream_name(new_name)}"
        config = self.load(name).config
        return self.create(changed(config, {"sealed": None, **changes, "name": new_name}, what))

    def seal(self, name: str) -> list[Difference]:
        """Forbid all changes of the messages, for ever; as `update`. The server turns other limits off with it."""
        return self.update(name, sealed=True)

    # Saving

    def backup(
        self,
        name: str,
        target: str | os.PathLike[str],
        *,
        consumers: bool = True,
        check: bool = False,
        progress: Progress | None = None,
    ) -> Backup:
        """Save a stream, with its consumers, as a file if ``target`` ends with ``.tar``, else as a directory.

        Arguments and errors are those of `spark_jetstream.admin.backup.backup`.
        """
        connection = self._api.connection
        return backup(connection, stream_name(name), target, consumers=consumers, check=check, progress=progress)

    def restore(
        self,
        source: str | os.PathLike[str],
        name: str | None = None,
        *,
        checking: Progress | None = None,
        progress: Progress | None = None,
        **changes: Any,
    ) -> Restored:
        """Create a stream from a backup, under another ``name`` if given, with these changes of its configuration.

        `Restored.differences` is empty for a stream that is as it was. Arguments and errors are those of
        `spark_jetstream.admin.restore.restore`.
        """
        named = None if name is None else stream_name(name)
        connection = self._api.connection
        return restore(connection, source, name=named, changes=changes, checking=checking, progress=progress)

    # Removing

    def delete(self, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a stream, its messages and its consumers; return whether there was one.

        Raises:
            StreamNotFound: There is no such stream, and ``missing_ok`` is False.
        """
        context = f"delete stream {name}"
        try:
            body = self._api.ask(jsapi.STREAM_DELETE, context=context, stream=stream_name(name))
        except StreamNotFound:
            if missing_ok:
                return False
            raise
        confirm_done(DoneReply.from_server(body, context), context)
        return True

    def purge(
        self, name: str, *, subject: str | None = None, sequence: int | None = None, keep: int | None = None
    ) -> int:
        """Remove messages, by default all; return how many were removed.

        Args:
            name: The stream's name.
            subject: Only messages on this subject (wildcards allowed).
            sequence: Only messages before this sequence. One beyond the last message is reduced to that: the server
                would set the next sequence to it, or count up to it for hours.
            keep: All of these messages but the last ``keep``. Not together with ``sequence``.

        Raises:
            OptionError: Both ``sequence`` and ``keep`` are given, or a value is not possible.
        """
        context = f"purge stream {name}"
        given = {"filter": None if subject is None else subject_filter(subject), "seq": sequence, "keep": keep}
        request = PurgeRequest.parse(given, context)
        if sequence is not None:
            end = min(sequence, self.load(name).state.last_seq + 1)
            if end < 2:
                return 0  # the server would take sequence 0 for none, and remove everything
            request = request.changed(seq=end)
        body = self._api.ask(jsapi.STREAM_PURGE, request.body(), context=context, stream=stream_name(name))
        reply = PurgeReply.from_server(body, context)
        confirm_done(reply, context)
        return reply.purged

    # Where it is

    def step_down(self, name: str, *, preferred: str | None = None) -> None:
        """Let the leader of a stream step down, in favour of the replica on server ``preferred`` if given.

        Returns when the leader has agreed; `replicas` shows the new one once it is elected.

        Raises:
            ApiError: Error 10010 outside of a cluster.
            JetStreamError: A server older than 2.11 knows no preference.
        """
        context = f"let the leader of stream {name} step down"
        body = self._api.ask(
            jsapi.STREAM_STEP_DOWN,
            placement(self._api, preferred, context),
            context=context,
            stream=stream_name(name),
        )
        confirm_done(DoneReply.from_server(body, context), context)

    def remove_peer(self, name: str, server: str) -> None:
        """Remove a server from those with a replica of a stream; the cluster chooses another one, if it has one.

        Raises:
            ApiError: The server has no replica, or none can replace it; error 10010 outside of a cluster.
        """
        context = f"remove server {server} from stream {name}"
        if not server:
            raise OptionError(f"cannot {context}: the server must be named")
        body = self._api.ask(jsapi.STREAM_PEER_REMOVE, {"peer": server}, context=context, stream=stream_name(name))
        confirm_done(DoneReply.from_server(body, context), context)

    def _wanted(self, name: object, config: object, fields: Mapping[str, Any]) -> StreamConfig:
        given, own = named(StreamConfig, name, config, fields, "name")
        return asked_for(StreamConfig, given, own, _what(given, own), self._api.newer)

    def _planned(
        self, name: str, changes: Config | None, fields: Mapping[str, Any]
    ) -> tuple[StreamConfig, StreamConfig, list[Difference]]:
        actual = self.load(name).config
        wanted = target(actual, changes, fields, f"stream {name}")
        return wanted, actual, differences(wanted, actual)


def placement(api: Api, preferred: str | None, context: str) -> dict[str, Any] | None:
    """Return the body of a request that lets a leader step down. Raises `JetStreamError` before server 2.11."""
    if preferred is None:
        return None
    api.need(1, f"{context} in favour of {preferred}")
    return {"placement": {"preferred": preferred}}


def _listed(subject: str | None) -> tuple[dict[str, Any], str]:
    """Return the request of a list, and what it asks for."""
    if subject is None:
        return {}, "list the streams"
    return {"subject": subject_filter(subject)}, f"list the streams that store {subject}"


def _what(config: object, fields: Mapping[str, Any]) -> str:
    given = fields.get("name") or (config.get("name") if isinstance(config, Mapping) else getattr(config, "name", ""))
    return f"stream {given}" if given else "stream"
