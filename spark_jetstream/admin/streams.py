"""Streams: list, create, change, copy, save, purge, delete, and where their replicas are.

Long lists of the JetStream API, a page at a time.
"""

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

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def pages(model: type[P], ask: Ask, request: Mapping[str, Any], context: str) -> Iterator[P]:
    """The pages of a list, each asked for when it is needed. ``ask(body)`` returns a reply.

    What is created or deleted between two pages may be missed, or come twice.
    """
    offset = 0
    while True:
        page = model.from_server(ask({**request, **({"offset": offset} if offset else {})}), context)
        yield page
        # Not by what came: a server of a cluster that did not answer leaves its part of a page out.
        following = page.offset + page.limit
        if following >= page.total or following <= offset:
            return
        offset = following


class Absent:
    """What a list lacks, page by page."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def add(self, page: StreamPage | ConsumerPage) -> None:
        """Note what is not in a page, though it belongs there."""
        self._said += [f"no server answered for {name}" for name in page.missing]
        self._said += [f"no server can run {name} ({why})" for name, why in page.offline.items()]

    def check(self, context: str) -> None:
        """Raise `ServerBusy` when something was not there."""
        if self._said:
            said = f"cannot {context} as a whole: {'; '.join(self._said)}"
            raise ServerBusy(said, code=0, err_code=0, description="")


Config = StreamConfig | StreamInfo | Mapping[str, Any]


class Streams:
    """The streams of an account; ``admin.streams``.

    A configuration is a `StreamConfig`, a mapping (a template, say), a `StreamInfo`, single fields by name, or one of
    the former with fields, which win. All methods raise what `Api` raises; `StreamNotFound` names the stream.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    # Looking

    def names(self, subject: str | None = None) -> Iterator[str]:
        """The names of all streams, or of those that store ``subject`` or a part of it; sorted, page by page."""
        request = {} if subject is None else {"subject": subject_filter(subject)}
        context = "list the streams" if subject is None else f"list the streams that store {subject}"
        ask = partial(self._api.ask, jsapi.STREAM_NAMES, context=context)
        for page in pages(StreamNamesPage, ask, request, context):
            yield from page.streams

    def infos(self, subject: str | None = None) -> Iterator[StreamInfo]:
        """All streams, or those that store ``subject`` or a part of it; sorted by name, page by page.

        Raises `ServerBusy` at the end when servers of a cluster did not answer for some, which it names.
        """
        request = {} if subject is None else {"subject": subject_filter(subject)}
        context = "list the streams" if subject is None else f"list the streams that store {subject}"
        absent = Absent()
        ask = partial(self._api.ask, jsapi.STREAM_LIST, context=context)
        for page in pages(StreamPage, ask, request, context):
            yield from page.streams
            absent.add(page)
        absent.check(context)

    def load(self, name: str, *, deleted: bool = False) -> StreamInfo:
        """A stream: its configuration and state; with ``deleted`` also the sequences that are missing in it."""
        context = f"look at stream {name}"
        request = {"deleted_details": True} if deleted else None
        body = self._api.ask(jsapi.STREAM_INFO, request, context=context, stream=stream_name(name))
        return StreamInfo.from_server(body, context)

    def subjects(self, name: str, subject: str = ">") -> Iterator[tuple[str, int]]:
        """The subjects of a stream that have messages, with how many; sorted, 100,000 at a time."""
        context = f"count the messages of stream {name} by subject"
        request = {"subjects_filter": subject_filter(subject)}
        ask = partial(self._api.ask, jsapi.STREAM_INFO, context=context, stream=stream_name(name))
        for page in pages(StreamInfo, ask, request, context):
            yield from sorted(page.state.subjects.items())

    def replicas(self, name: str) -> tuple[Replica, ...]:
        """The servers that keep a stream, the leader first; outside of a cluster the server itself."""
        return replicas(self.load(name).cluster)

    def origins(self, name: str) -> tuple[StreamSourceInfo, ...]:
        """The streams that a mirror or a stream with sources copies, sorted by name, each with its ``lag``."""
        return self.load(name).origins

    # Creating and changing

    def create(self, name: str | Config | None = None, config: Config | None = None, /, **fields: Any) -> StreamInfo:
        """Create a stream. One that exists just so stays as it is.

        Args:
            name: The stream's name. A configuration with a name, or ``name=...``, may stand here instead.
            config: The configuration; its own name does not count beside ``name``.
            **fields: Fields of `StreamConfig`, such as ``subjects=["orders.>"]``.

        Raises:
            OptionError: The configuration cannot be one.
            StreamExists: There is a stream of this name with another configuration; the text lists the differences.
            JetStreamError: The server is too old for something in it, or created the stream and left something out.
        """
        wanted = self._wanted(name, config, fields)
        context = f"create stream {wanted.name}"
        self._api.need_for(wanted, context)
        self._check_origin(wanted)
        try:
            body = self._api.ask(jsapi.STREAM_CREATE, wanted.body(), context=context, stream=wanted.name)
        except InsufficientResources:
            # The server looks for room, which the stream itself may have taken, before it looks for the stream.
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
        """Refuse ``mirror_direct`` for an origin without ``allow_direct``: the server would turn it off in silence."""
        mirror = wanted.mirror
        if mirror is None or mirror.external is not None or not wanted.mirror_direct:
            return
        try:
            allowed = self.load(mirror.name).config.allow_direct
        except (StreamNotFound, PermissionDenied):
            return  # the server cannot see it either, or checks it alone
        if not allowed:
            raise OptionError(f"stream {wanted.name}: mirror_direct needs allow_direct of its origin {mirror.name}")

    def _existing(self, wanted: StreamConfig) -> StreamInfo | None:
        """The stream that is there already, just so."""
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
        """The stream, created if there is none. The arguments are those of `create`.

        `JetStreamError` that lists the differences when there is one with another configuration. ``given_only``
        compares nothing but what is given here; else what is not given stands for its default.
        """
        wanted = self._wanted(name, config, fields)
        try:
            info = self.load(wanted.name)
        except StreamNotFound:
            try:
                return self.create(wanted)
            except StreamExists:
                # Somebody else was quicker.
                info = self.load(wanted.name)
        refuse_difference(wanted, info.config, f"stream {wanted.name}", given_only=given_only)
        return info

    def plan(self, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """What `update` with the same arguments would change. Nothing is changed.

        Each difference says whether the server would refuse it (``refused``), and what it would do beside (``risk``).
        """
        return self._planned(name, changes, fields)[2]

    def update(self, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """Change a stream; returns what was changed.

        A mapping and single fields are what is to change; each replaces the field as a whole, and None takes one back
        to its default. A `StreamConfig` is all that is wanted: what it does not set becomes the default.

        Changes nothing, and raises `JetStreamError` with the reasons, when the server cannot do all of it. Raises it
        too when the server has done less than was asked. What somebody else changes at the same time may be undone.
        """
        wanted, actual, found = self._planned(name, changes, fields)
        refuse_impossible(found, f"stream {name}")
        if found:
            context = f"update stream {name}"
            self._api.need_for(wanted, context)
            body = self._api.ask(
                jsapi.STREAM_UPDATE, update_body(wanted, actual), context=context, stream=stream_name(name)
            )
            confirm(wanted, StreamInfo.from_server(body, context).config, f"stream {name} was updated")
        return found

    def copy(self, name: str, new_name: str, /, **changes: Any) -> StreamInfo:
        """Create a stream with the configuration of another one, and these changes; the messages stay behind.

        Two streams cannot store the same subject, so ``subjects`` most likely must change. What only an existing
        stream can be is left out: the copy of a sealed stream is not sealed. Mirror and sources are the same.
        """
        what = f"stream {stream_name(new_name)}"
        config = self.load(name).config
        return self.create(changed(config, {"sealed": None, **changes, "name": new_name}, what))

    def seal(self, name: str) -> list[Difference]:
        """Let nothing in and nothing out, for ever; as `update`. The server turns other limits off along with it."""
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
        """Save a stream, with its consumers, at ``target``: a single file when that ends with ``.tar``, else a
        directory. What else can be said, and all errors: `spark_jetstream.admin.backup.backup`.
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
        """Make a stream again from a backup, under another ``name`` if given, with these changes of its configuration.

        The backup is read and checked (``checking`` gets the bytes read and their total) before anything is asked of
        the server, and then sent (``progress``). `Restored.differences` is empty for a stream that is what it was. All
        errors: `spark_jetstream.admin.restore.restore`.
        """
        named = None if name is None else stream_name(name)
        connection = self._api.connection
        return restore(connection, source, name=named, changes=changes, checking=checking, progress=progress)

    # Removing

    def delete(self, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a stream, its messages and its consumers; whether there was one. `StreamNotFound` without one, unless
        ``missing_ok``."""
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
        """Remove messages, all if nothing is said: those on ``subject`` (wildcards allowed), those before ``sequence``,
        all but the last ``keep`` of those. Returns how many went.

        ``sequence`` and ``keep`` cannot be given together. A ``sequence`` behind the last message means no more than
        all that are there now: the server would go on at that sequence, or count up to it for hours.
        """
        context = f"purge stream {name}"
        given = {"filter": None if subject is None else subject_filter(subject), "seq": sequence, "keep": keep}
        request = PurgeRequest.parse(given, context)
        if sequence is not None:
            end = min(sequence, self.load(name).state.last_seq + 1)
            if end < 2:
                return 0  # to the server, a purge below 0 is one of everything
            request = request.changed(seq=end)
        body = self._api.ask(jsapi.STREAM_PURGE, request.body(), context=context, stream=stream_name(name))
        reply = PurgeReply.from_server(body, context)
        confirm_done(reply, context)
        return reply.purged

    # Where it is

    def step_down(self, name: str, *, preferred: str | None = None) -> None:
        """Let the leader of a stream give way to another server, ``preferred`` if it is one of its replicas.

        Returns when the leader has agreed; `replicas` shows the new one once it is elected. A server older than 2.11
        knows no preference (`JetStreamError`). `ApiError` 10010 outside of a cluster.
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
        """Take a server out of those that keep a stream; the cluster chooses another one, if it has one.

        `ApiError` when it keeps no replica, or none can take its place; 10010 outside of a cluster.
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
    """Body of a request that lets a leader step down; only servers since 2.11 know a preference."""
    if preferred is None:
        return None
    api.need(1, f"{context} in favour of {preferred}")
    return {"placement": {"preferred": preferred}}


def _what(config: object, fields: Mapping[str, Any]) -> str:
    given = fields.get("name") or (config.get("name") if isinstance(config, Mapping) else getattr(config, "name", ""))
    return f"stream {given}" if given else "stream"
