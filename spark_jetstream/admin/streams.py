"""Streams: list, create, change, copy, save, purge, delete, and their replicas."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from spark_jetstream.admin.api import Api, stream_name, subject_filter
from spark_jetstream.admin.assets import Asset
from spark_jetstream.admin.backup import Backup, Progress, backup
from spark_jetstream.admin.balance import Balanced
from spark_jetstream.admin.models.asked import changed, named, parse_user
from spark_jetstream.admin.models.changes import Difference
from spark_jetstream.admin.models.messages import DoneReply, PurgeReply, PurgeRequest
from spark_jetstream.admin.models.queries import StreamQuery
from spark_jetstream.admin.models.streams import (
    Replica,
    StreamConfig,
    StreamInfo,
    StreamNamesPage,
    StreamPage,
    StreamSourceInfo,
    replicas,
)
from spark_jetstream.admin.restore import Restored, restore
from spark_jetstream.errors import OptionError, PermissionDenied, StreamExists, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import dead_letter_stream

Config = StreamConfig | StreamInfo | Mapping[str, Any]


class Streams(Balanced):
    """The streams of an account; ``admin.streams``.

    A configuration is a `StreamConfig`, a `StreamInfo`, a mapping such as a template, or single
    fields by name. Fields beside one of the others replace its fields.

    All methods raise what `Api` raises; `StreamNotFound` names the stream; `OptionError` for an
    argument that cannot be one.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    # Looking

    def names(self, subject: str | None = None) -> Iterator[str]:
        """Return the names of all streams, sorted, page by page.

        With ``subject``, only of streams that store it or a part of it. Raises `OptionError` for a
        ``subject`` that cannot be one.
        """
        request, context = _listed(subject)
        for page in self._api.pages(StreamNamesPage, jsapi.STREAM_NAMES, request, context=context):
            yield from page.streams

    def infos(self, subject: str | None = None) -> Iterator[StreamInfo]:
        """Return all streams, sorted by name, page by page.

        With ``subject``, only streams that store it or a part of it. Raises `ServerBusy` at the
        end, when servers of a cluster did not answer for some, which it names.
        """
        request, context = _listed(subject)
        for page in self._api.pages(StreamPage, jsapi.STREAM_LIST, request, context=context):
            yield from page.streams

    def find(self, **criteria: Any) -> Iterator[StreamInfo]:
        """Return the streams that meet all criteria, sorted by name, page by page.

        The criteria are the fields of `StreamQuery`. Raises `OptionError` for a criterion that is
        not possible; `ServerBusy` as `infos` does.
        """
        # The server cannot search by these criteria: all streams are read, and compared here.
        return filter(StreamQuery.parse(criteria, "find streams").matches, self.infos())

    def load(self, name: str, *, deleted: bool = False) -> StreamInfo:
        """Return configuration and state; with ``deleted`` the missing sequences too.

        Raises `StreamNotFound`.
        """
        request = {"deleted_details": True} if deleted else None
        context = f"look at stream {name}"
        return self._api.reply(StreamInfo, jsapi.STREAM_INFO, request, context=context, stream=name)

    def subjects(self, name: str, subject: str = ">") -> Iterator[tuple[str, int]]:
        """Return the subjects of a stream with their number of messages, sorted.

        A request returns 100,000 of them, and for each the server counts all that match: seconds if
        a million do (option ``requestTimeout``). Raises `StreamNotFound`, and `OptionError` for a
        ``subject`` that cannot be one.
        """
        context = f"count the messages of stream {name} by subject"
        request = {"subjects_filter": subject_filter(subject)}
        # The request for a page is sent once, and is lost while the stream has no leader. This one
        # is repeated until a leader replies.
        self._api.ask(jsapi.STREAM_INFO, context=context, stream=name)
        pages = self._api.pages(
            StreamInfo,
            jsapi.STREAM_SUBJECTS,
            request,
            context=context,
            stream=name,
        )
        for page in pages:
            yield from sorted(page.state.subjects.items())

    def replicas(self, name: str) -> tuple[Replica, ...]:
        """Return the replicas, the leader first; outside of a cluster the only server.

        Raises `StreamNotFound`.
        """
        return replicas(self.load(name).cluster)

    def origins(self, name: str) -> tuple[StreamSourceInfo, ...]:
        """Return the streams that a stream copies, sorted by name, each with its ``lag``.

        Raises `StreamNotFound`.
        """
        return self.load(name).origins

    # Creating and changing

    def create(
        self,
        name: str | Config | None = None,
        config: Config | None = None,
        /,
        *,
        pedantic: bool = False,
        **fields: Any,
    ) -> StreamInfo:
        """Create a stream; one that exists with the same configuration stays as it is.

        ``name`` is the stream's name; or a configuration with a name; or nothing, with ``name=...``
        as a field. With ``pedantic`` the server refuses values that it would otherwise adjust
        (server 2.11).

        Raises:
            OptionError: The configuration is not possible.
            StreamExists: There is a stream of this name with another configuration; the error lists
                the differences.
            JetStreamError: The server is too old for a field; or it created the stream and ignored
                one.
        """
        wanted = self._wanted(name, config, fields)
        self._api.need_for(wanted, f"create stream {wanted.name}")
        self._check_origin(wanted)
        try:
            return self._asset(wanted.name).create(wanted, pedantic=pedantic)
        except StreamExists:
            # The stream that exists may be without.
            if "allow_direct" not in wanted.model_fields_set:
                with contextlib.suppress(StreamExists):
                    return self.create(wanted.changed(allow_direct=False), pedantic=pedantic)
            raise

    def _check_origin(self, wanted: StreamConfig) -> None:
        """Refuse ``mirror_direct`` for an origin without ``allow_direct``.

        The server turns it off without an error.
        """
        mirror = wanted.mirror
        # The server compares the field with an origin that it sees, not with one in another domain.
        if mirror is None or mirror.external is not None or not wanted.mirror_direct:
            return
        # Without a look at the origin, `assets.confirm`
        # reports a field that the server has turned off.
        with contextlib.suppress(StreamNotFound, PermissionDenied):
            if not self.load(mirror.name).config.allow_direct:
                needs = f"mirror_direct needs allow_direct of its origin {mirror.name}"
                raise OptionError(f"stream {wanted.name}: {needs}")

    def load_or_create(
        self,
        name: str | Config | None = None,
        config: Config | None = None,
        /,
        *,
        given_only: bool = False,
        any_config: bool = False,
        **fields: Any,
    ) -> StreamInfo:
        """Return the stream; create it, as `create`, if there is none.

        ``given_only`` compares what exists in the given fields only; else the others must have
        their defaults. ``any_config`` takes what exists, whatever its configuration. Raises
        `JetStreamError`, which lists the differences, when it exists with another configuration.
        """
        wanted = self._wanted(name, config, fields)
        return self._asset(wanted.name).load_or_create(
            wanted,
            functools.partial(self.create, wanted),
            given_only=given_only,
            any_config=any_config,
        )

    def plan(self, name: str, changes: Config | None = None, /, **fields: Any) -> list[Difference]:
        """Return what `update` with the same arguments would change.

        Raises `OptionError`, `StreamNotFound`.
        """
        return self._asset(name).plan(changes, fields)

    def update(
        self, name: str, changes: Config | None = None, /, *, pedantic: bool = False, **fields: Any
    ) -> list[Difference]:
        """Change a stream; return what was changed.

        Changes of another client at the same time may be undone.

        ``changes`` is a mapping of fields, each replaced as a whole, None for its default; or a
        `StreamConfig`, whose unset fields get their defaults. ``pedantic`` is that of `create`.

        Raises:
            OptionError: A value is not possible.
            JetStreamError: The server cannot make all changes: nothing was changed, and the error
                has the reasons. Or the server is too old for a field, or ignored one.
        """
        return self._asset(name).update(changes, fields, pedantic=pedantic)

    def keep_dead_letters(self, name: str, /, **fields: Any) -> StreamInfo:
        """Create the stream ``<name>_DEAD_LETTERS``, which keeps events about given up messages.

        These are messages that the consumers of stream ``name`` gave up. It has as many replicas as
        the stream, and the ``fields`` that are given, such as ``max_age``. Option ``deadLettersOf``
        reads it. Raises `StreamNotFound`, and what `create` raises.
        """
        # The server publishes these advisories and stores nothing. Their
        # subjects end with the names of stream and consumer.
        events = "$JS.EVENT.ADVISORY.CONSUMER"
        subjects = [f"{events}.MAX_DELIVERIES.{name}.*", f"{events}.MSG_TERMINATED.{name}.*"]
        fields = {"num_replicas": self.load(name).config.num_replicas, **fields}
        return self.create(dead_letter_stream(name), subjects=subjects, **fields)

    def copy(self, name: str, new_name: str, /, **changes: Any) -> StreamInfo:
        """Create a stream with the configuration of another one and these changes.

        Its messages are not copied. Two streams cannot store the same subject. The copy of a sealed
        stream is not sealed. Raises `StreamNotFound`, and what `create` raises.
        """
        what = f"stream {stream_name(new_name)}"
        config = self.load(name).config
        # The server refuses a new stream that is sealed.
        return self.create(changed(config, {"sealed": None, **changes, "name": new_name}, what))

    def seal(self, name: str) -> list[Difference]:
        """Forbid all changes of messages, forever; the server turns limits off.

        Raises `JetStreamError` as `update`.
        """
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
        """Save a stream, with its consumers.

        Arguments and errors as for `spark_jetstream.admin.backup.backup`.

        Raises `StreamNotFound`, `OptionError`, `BackupError`.
        """
        return backup(self._api, name, target, consumers=consumers, check=check, progress=progress)

    def restore(
        self,
        source: str | os.PathLike[str],
        name: str | None = None,
        *,
        checking: Progress | None = None,
        progress: Progress | None = None,
        **changes: Any,
    ) -> Restored:
        """Create a stream from a backup.

        Arguments and errors as for `spark_jetstream.admin.restore.restore`.

        Raises `BackupError`, `OptionError`, `StreamExists`.
        """
        named = None if name is None else stream_name(name)
        return restore(self._api, source, named, changes, checking=checking, progress=progress)

    # Removing

    def delete(self, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a stream and all it has; return whether it existed.

        Raises `StreamNotFound` unless ``missing_ok``.
        """
        context = f"delete stream {name}"
        return self._api.delete(
            jsapi.STREAM_DELETE,
            StreamNotFound,
            missing_ok,
            context=context,
            stream=name,
        )

    def purge(
        self,
        name: str,
        *,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
    ) -> int:
        """Remove messages, by default all; return how many were removed.

        Only those on ``subject`` (wildcards allowed), only those before ``sequence``, or all of
        these but the last ``keep``. Raises `OptionError` for both.

        ``sequence`` must be that of a message, or the one after the last. If it is that of a deleted
        message, and none follows, a later purge that leaves one message may remove this one too
        (`compactLocked` in server/filestore.go, up to 2.15.1).
        """
        context = f"purge stream {name}"
        given = {
            "filter": None if subject is None else subject_filter(subject),
            "seq": sequence,
            "keep": keep,
        }
        request = PurgeRequest.parse(given, context)
        if sequence is not None:
            # The server would set the next sequence to one beyond the last message, or count up to
            # it for hours.
            end = min(sequence, self.load(name).state.last_seq + 1)
            if end < 2:
                # The server would take sequence 0 for none, and remove everything.
                return 0
            request = request.changed(seq=end)
        return self._api.do(
            PurgeReply,
            jsapi.STREAM_PURGE,
            request.body(),
            context=context,
            stream=name,
        ).purged

    # Where it is

    def step_down(self, name: str, *, preferred: str | None = None) -> None:
        """Let the leader of a stream step down, in favour of server ``preferred`` if given.

        The election is not awaited. Raises `ApiError` (10010) outside of a cluster,
        `JetStreamError` before 2.11, which knows no preference.
        """
        context = f"let the leader of stream {name} step down"
        self._api.step_down(jsapi.STREAM_STEP_DOWN, preferred, context=context, stream=name)

    def remove_peer(self, name: str, server: str, *, evacuate: bool = False) -> None:
        """Remove a server from those with a replica of a stream.

        The cluster chooses another one, if it has one. ``evacuate`` keeps the replica until the
        other one has all messages (server 2.15). Raises `ApiError` when the server has no replica,
        or none can replace it; 10010 outside of a cluster.
        """
        context = f"remove server {server} from stream {name}"
        if not server:
            raise OptionError(f"cannot {context}: server must not be empty")
        endpoint = jsapi.PEER_EVACUATE if evacuate else jsapi.STREAM_PEER_REMOVE
        self._api.do(DoneReply, endpoint, {"peer": server}, context=context, stream=name)

    def cancel_move(self, name: str) -> StreamInfo:
        """Take back a change of servers, replicas or retention that is under way (server 2.15).

        Raises `ApiError`.
        """
        context = f"cancel the change of stream {name}"
        return self._api.reply(StreamInfo, jsapi.CANCEL_MOVE, context=context, stream=name)

    def _asset(self, name: str) -> Asset[StreamInfo]:
        return Asset(self._api, f"stream {name}", lambda: self.load(name), name)

    def _wanted(self, name: object, config: object, fields: Mapping[str, Any]) -> StreamConfig:
        given, own = named(StreamConfig, name, config, fields, "name")
        # An error names the stream as the user does, wherever its name stands.
        known = own.get("name")
        if not known and isinstance(given, Mapping):
            known = given.get("name")
        elif not known:
            known = getattr(given, "name", "")
        what = f"stream {known}" if known else "stream"
        return parse_user(StreamConfig, given, own, what, self._api.newer)


def _listed(subject: str | None) -> tuple[dict[str, Any], str]:
    """Return the request of a list, and what it asks for."""
    if subject is None:
        return {}, "list the streams"
    return {"subject": subject_filter(subject)}, f"list the streams that store {subject}"
