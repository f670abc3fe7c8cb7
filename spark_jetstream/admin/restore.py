"""A stream, made again from a backup, by the restore protocol of the server (backup and restore, version 2).

The data goes to a subject that the server names, in chunks that are requests; an empty answer asks for the next one.
An empty request ends it, and is answered like one that creates a stream. The server makes the stream as soon as it has
read the first chunks, and lets it stay, with what it has by then, when the restore fails or is broken off: so it is
removed here.

Needed permissions, besides the inbox: publish to ``$JS.API.STREAM.RESTORE.<stream>``,
``$JS.SNAPSHOT.RESTORE.<stream>.*`` and ``$JS.API.STREAM.NAMES``, and to tidy up ``$JS.API.STREAM.INFO.<stream>`` and
``$JS.API.STREAM.DELETE.<stream>``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spark_jetstream.admin.backup import CHUNK_SIZE, Progress
from spark_jetstream.admin.backup_files import MANIFEST, EntryKind, Saved, checked, opened
from spark_jetstream.admin.models.base import complaint
from spark_jetstream.admin.models.changes import differences
from spark_jetstream.admin.models.streams import RestoreReply, StreamConfig, StreamInfo, StreamState
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.errors import (
    ApiError,
    BackupError,
    JetStreamError,
    NoResponders,
    OptionError,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol import jsapi

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds for the answer to a chunk: the server writes what came before
_ROUTED = 4.0  # seconds, fewer than a server waits for data
_COMPARED = ("messages", "bytes", "first_seq", "last_seq")
_BUCKETS = ("KV_", "OBJ_")


@dataclass(frozen=True)
class Restored:
    """A stream that was restored.

    `differences` says, a sentence each, where it is not what it was when the backup began; `notes` what else to know.
    `sha256` is the checksum that the data was found to have, in hexadecimal digits; empty for a backup without one.
    """

    info: StreamInfo
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    sha256: str = ""


def restore(
    connection: Connection,
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    changes: Mapping[str, Any] | None = None,
    chunk_size: int = CHUNK_SIZE,
    checking: Progress | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make a stream again, with its consumers, from the backup at `source`: a directory or a tar file.

    Under another `name`, if given, and with `changes` of its configuration, fields and values as `StreamConfig` has
    them: other subjects where those of the backup belong to a stream that exists, another storage, fewer replicas. The
    messages keep their sequences, times and subjects. `progress` gets the bytes sent and their total.

    All of the backup is read and checked before anything is asked of the server; `checking` gets the bytes read and
    their total. A backup without our manifest, such as one of ``nats stream backup``, is taken, and `notes` says so:
    the server then finds most damage, and some only when much was sent.

    Raises `BackupError` when the backup is damaged or the server cannot restore it; `OptionError` for changes that are
    not possible; `StreamExists` when a stream of this name exists; other answers of the API; `PermissionDenied` with
    the subject; `ConnectionFailed`. The stream is removed then, if it was begun; where that is not possible, the error
    is a `BackupError` that says so.
    """
    if chunk_size < 1:
        raise OptionError(f"chunk_size must be 1 or more, not {chunk_size}", option="chunk_size")
    with opened(Path(file_path("source", source))) as saved:
        config = _config(saved, name, changes or {})
        kind = checked(saved, checking)
        _refuse_old(saved, config, kind)
        _refuse_taken_subjects(connection, config)
        upload = _Upload(connection, saved, config, kind)
        info = upload.carry_out(_pieces(saved, min(chunk_size, connection.max_payload)), progress)
        sha256 = saved.manifest.data_sha256 if saved.manifest else ""
        return Restored(info, tuple(_changed(saved, info)), tuple(_notes(saved, config)), sha256)


def _config(saved: Saved, name: str | None, changes: Mapping[str, Any]) -> StreamConfig:
    """What the stream shall be."""
    if "name" in changes:
        raise OptionError("changes cannot hold name: give it as name", option="changes")
    renamed = {} if name is None else {"name": name}
    try:
        return saved.meta.config.changed(**changes, **renamed)
    except ValidationError as error:
        said = complaint(error)
    raise OptionError(f"the configuration of stream {name or saved.meta.config.name}: {said}", option="changes")


def _refuse_old(saved: Saved, config: StreamConfig, kind: EntryKind) -> None:
    """Before server 2.15 a backup was a copy of the server's files: it fits to nothing but what it was made of."""
    was = saved.meta.config
    for asked, had in ((config.name, was.name), (config.storage, was.storage)):
        # Into memory it would be restored without its messages, and without an error.
        if kind is EntryKind.TAR and asked != had:
            raise BackupError(
                f"{saved.data_path} was made by a server before 2.15 and can only be restored as {had}, not as {asked}"
            )


def _refuse_taken_subjects(connection: Connection, config: StreamConfig) -> None:
    """The server would say so too, when it has all of the data."""
    context = f"see which streams have the subjects of stream {config.name}"
    for subject in config.subjects:
        others = [other for other in _streams_with(connection, subject, context) if other != config.name]
        if others:
            raise BackupError(
                f"stream {config.name} cannot be restored: its subject {subject} overlaps those of stream {others[0]}; "
                "give it other subjects (changes), or delete that stream"
            )


def _streams_with(connection: Connection, subject: str, context: str) -> list[str]:
    body = jsapi.stream_names_request(subject)
    return connection.api(jsapi.stream_names(connection.prefix), body, context=context).get("streams") or []


def _pieces(saved: Saved, size: int) -> Iterator[bytes]:
    while piece := saved.data.read(size):
        yield piece


class _Upload:
    """One restore: it becomes a stream, or nothing is left of it."""

    def __init__(self, connection: Connection, saved: Saved, config: StreamConfig, kind: EntryKind) -> None:
        self.name = config.name
        self.context = f"restore stream {config.name} from {saved.source}"
        self.seconds = max(_PATIENCE, connection.options.request_timeout)
        self._connection = connection
        self._saved = saved
        self._config = config
        self._kind = kind
        self._to = ""
        self._ended = False

    def carry_out(self, pieces: Iterator[bytes], progress: Progress | None) -> StreamInfo:
        self._begin()
        try:
            return self._send(pieces, progress)
        except StreamExists:
            # Somebody else has made it while this was sent.
            raise
        except BaseException as error:
            self._take_back(error)
            raise

    def _begin(self) -> None:
        state = self._saved.meta.state.model_dump(mode="json", exclude_unset=True)
        # With the metadata of the server, which tells other servers what this stream needs: only here it is kept.
        config = self._config.model_dump(mode="json", exclude_unset=True)
        body = json.dumps({"config": config, "state": state}).encode()
        subject = jsapi.stream_restore(self._connection.prefix, self.name)
        reply = self._connection.api(subject, body, context=self.context)
        self._to = RestoreReply.from_server(reply, self.context).deliver_subject

    def _send(self, pieces: Iterator[bytes], progress: Progress | None) -> StreamInfo:
        sent = 0
        for piece in pieces:
            answer = self._ask(piece) if sent else self._ask_first(piece)
            if answer:
                self._refuse(answer)
                raise BackupError(f"cannot {self.context}: the server ended it after {sent + len(piece):,} bytes")
            sent += len(piece)
            if progress is not None:
                progress(sent, self._saved.size)
        answer = self._ask(b"")
        self._ended = True
        return StreamInfo.from_server(self._refuse(answer), self.context)

    def _ask_first(self, piece: bytes) -> bytes:
        """In a cluster another server may wait for the data, and ours not know of it yet."""
        deadline, backoff = Deadline(_ROUTED), Backoff()
        while True:
            try:
                return self._ask(piece)
            except NoResponders:
                if deadline.expired:
                    raise
                backoff.pause(deadline)

    def _ask(self, piece: bytes) -> bytes:
        # A server waits five seconds for the next piece: no use to wait long for a connection.
        self._connection.wait(self._connection.options.request_timeout)
        return self._connection.request(self._to, piece, context=self.context, timeout=self.seconds)

    def _refuse(self, answer: bytes) -> dict[str, Any]:
        """The answer, unless it is an error."""
        try:
            return jsapi.reply(answer, self.context)
        except StreamExists:
            raise
        except ApiError as error:
            hint = ""
            if self._kind is EntryKind.ARCHIVE and self._connection.server_version < (2, 15, 0):
                hint = "; backups of servers from 2.15 on need such a server"
            raise BackupError(f"{error}{hint}") from error

    def _take_back(self, error: BaseException) -> None:
        """Remove what there is of the stream."""
        connection = self._connection
        context = f"remove what was restored of stream {self.name}"
        try:
            connection.wait(connection.options.request_timeout)
            if not self._ended:
                self._end(context)
            info = self._look(context)
            if info is None and self._is_listed(context):
                # A cluster keeps the name of a stream whose restore has failed, for a stream that nobody can see.
                info = self._look(context)
            elif info is None:
                return
            # The server began, so there was no stream of this name; but it could have been made by others since.
            if info is not None and not self._is_of_the_backup(info):
                raise BackupError(f"stream {self.name} has other messages than the backup")
            connection.api(jsapi.stream_delete(connection.prefix, self.name), b"", context=context)
        except StreamNotFound:
            return
        except JetStreamError as second:
            raise BackupError(
                f"{str(error) or type(error).__name__}; a part of stream {self.name} may be left, delete it before "
                f"you try again: {second}"
            ) from error

    def _end(self, context: str) -> None:
        """Say that nothing more comes, so that the server does not wait for it."""
        try:
            self._connection.request(self._to, b"", context=context)
        except JetStreamError as error:
            # It has given up by itself. That the stream is gone is what counts, and is looked at.
            log.info("%s", error)

    def _look(self, context: str) -> StreamInfo | None:
        subject = jsapi.stream_info(self._connection.prefix, self.name)
        try:
            return StreamInfo.from_server(self._connection.api(subject, b"", context=context), context)
        except StreamNotFound:
            return None

    def _is_listed(self, context: str) -> bool:
        """Whether the name is taken, as far as that is known: a stream without subjects can be anywhere in the list."""
        subjects = self._config.subjects
        return not subjects or self.name in _streams_with(self._connection, subjects[0], context)

    def _is_of_the_backup(self, info: StreamInfo) -> bool:
        """Whether a stream can be what this has made: so set up, and with no message that is not of the backup."""
        state, whole = info.state, self._saved.meta.state
        old = not state.messages or state.last_ts.nanoseconds <= whole.last_ts.nanoseconds
        return old and state.last_seq <= whole.last_seq and not differences(self._config, info.config)


def _changed(saved: Saved, info: StreamInfo) -> Iterator[str]:
    was, state = saved.meta.state, info.state
    names = [name for name in _COMPARED if name != "bytes" or saved.meta.config.storage == info.config.storage]
    # In a stream that never had a message the first sequence is 0 or 1.
    was, state = (each.changed(first_seq=max(1, each.first_seq)) for each in (was, state))
    yield from (_difference(name, was, state) for name in names if getattr(was, name) != getattr(state, name))
    if saved.manifest is not None:
        expected = was.consumer_count if saved.manifest.consumers else 0
        if state.consumer_count != expected:
            yield f"consumer_count was {expected:,} and is {state.consumer_count:,}"


def _difference(name: str, was: StreamState, state: StreamState) -> str:
    return f"{name} was {int(getattr(was, name)):,} and is {int(getattr(state, name)):,}"


def _notes(saved: Saved, config: StreamConfig) -> Iterator[str]:
    was = saved.meta.config.name
    if saved.manifest is None:
        yield f"{saved.source / MANIFEST} is missing: the backup was made by another tool, and has no checksums"
    if config.name != was and was.startswith(_BUCKETS):
        yield f"messages keep their subjects: what is in stream {config.name} belongs to the bucket of {was}"
