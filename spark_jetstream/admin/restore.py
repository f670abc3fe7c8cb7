"""Restore of a stream from a backup, by the restore protocol of the server.

The protocol stands in nats-server: server/jetstream_api.go. The data goes to a subject that the
server names, in chunks that are requests; an empty reply asks for the next one. An empty request
ends the data; its reply is that of a request that creates a stream. The server creates the stream
when it has read the first chunks, and keeps it when the restore fails: so the stream is removed
here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.backup import CHUNK_SIZE, Progress
from spark_jetstream.admin.backup_files import DATA, MANIFEST, Saved, checked, opened
from spark_jetstream.admin.models.asked import changed
from spark_jetstream.admin.models.changes import differences
from spark_jetstream.admin.models.streams import RestoreReply, StreamConfig, StreamInfo, StreamState
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.errors import (
    ApiError,
    BackupError,
    JetStreamError,
    NoResponders,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import BACKUPS_OF_2_15
from spark_jetstream.streams.lookup import streams_of

log = logging.getLogger(__name__)

# Fields of a stream's state that a restore must bring back.
_COMPARED = ("messages", "bytes", "first_seq", "last_seq")
# Prefixes of the streams of buckets. The subjects of their messages have the bucket's name.
_BUCKETS = ("KV_", "OBJ_")


@dataclass(frozen=True)
class RestoreTimes:
    """How long a restore waits for the server, in seconds."""

    chunk: float = 30.0
    """For the reply to a chunk: the server writes the chunks before it first."""
    end: float = 3600.0
    """For the reply to the end: a server before 2.15 only then reads the received data, which takes
    minutes for a large stream. The nats tool waits as long
    (`test_the_end_of_a_restore_takes_its_time`)."""
    routed: float = 4.0
    """Until a server of a cluster hears the first chunk: shorter than it waits for data."""


RESTORE_TIMES = RestoreTimes()


@dataclass(frozen=True)
class Restored:
    """A stream that was restored.

    `differences` has a sentence for each difference from the stream that was saved; `notes` has
    other remarks. `sha256` is the checksum of the data, in hexadecimal digits; empty for a backup
    without a manifest.
    """

    info: StreamInfo
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    sha256: str = ""


def restore(
    api: Api,
    source: str | os.PathLike[str],
    name: str | None,
    changes: Mapping[str, Any],
    *,
    checking: Progress | None = None,
    progress: Progress | None = None,
    times: RestoreTimes = RESTORE_TIMES,
) -> Restored:
    """Create a stream, with its consumers, from the backup at `source`.

    Messages keep their sequences, times and subjects. All of the backup is read and checked before
    the first request. Without a manifest, as in a backup of ``nats stream backup``, there are no
    checksums: the server finds most damage, some only at the end.

    ``name`` is another name for the stream, ``changes`` are other values for fields of its
    configuration. ``checking`` is called with the bytes read and their total, ``progress`` with the
    bytes sent and their total. ``times`` are those to wait for the server.

    Raises:
        BackupError: The backup is damaged, or the server cannot restore it; or the restore failed
            and the stream could not be removed, which the error says. After any other error the
            stream is removed.
        OptionError: The changes are not possible.
        StreamExists: There is a stream of this name.
        JetStreamError: What `Api` raises.
    """
    with opened(Path(file_path("source", source))) as saved:
        wanted = changes if name is None else {**changes, "name": name}
        config = changed(
            saved.config,
            wanted,
            f"the configuration of stream {name or saved.config.name}",
        )
        # All of the data is read before the first request: a damaged backup leaves nothing on the
        # server (`test_a_damaged_backup_is_refused_and_leaves_nothing`).
        archive = checked(saved, checking)
        # An archive of server 2.15 can be restored under another name, and in another storage.
        if not archive:
            _refuse_other_form(saved, config)
        _refuse_taken_subjects(api.connection, config)
        info = _Restore(api, saved, config, archive, times).carry_out(progress)
        sha256 = saved.manifest.data_sha256 if saved.manifest else ""
        return Restored(info, tuple(_changed(saved, info)), tuple(_notes(saved, config)), sha256)


def _refuse_other_form(saved: Saved, config: StreamConfig) -> None:
    """Refuse another name or storage for a backup of a server before 2.15.

    The backup is a copy of the server's files.
    """
    was = saved.config
    # A server would restore a stream of files into memory without its messages, and without an
    # error.
    for asked, had in ((config.name, was.name), (config.storage, was.storage)):
        if asked != had:
            made = f"{saved.source / DATA} was made by a server before 2.15"
            raise BackupError(f"{made} and can only be restored as {had}, not as {asked}")


def _refuse_taken_subjects(connection: Connection, config: StreamConfig) -> None:
    """Refuse subjects of other streams.

    The server does so too, but only when it has all of the data.
    """
    for subject in config.subjects:
        for other in streams_of(connection, subject, ""):
            if other != config.name:
                problem = f"its subject {subject} overlaps those of stream {other}"
                raise BackupError(
                    f"stream {config.name} cannot be restored: {problem}; "
                    "give it other subjects (changes), or delete that stream"
                )


class _Restore:
    """One restore. After an error it removes the stream."""

    def __init__(
        self,
        api: Api,
        saved: Saved,
        config: StreamConfig,
        archive: bool,
        times: RestoreTimes,
    ) -> None:
        self.name = config.name
        self.context = f"restore stream {config.name} from {saved.source}"
        self._api = api
        self._connection = api.connection
        self._saved = saved
        self._config = config
        self._archive = archive
        self._times = times
        self._to = ""

    def carry_out(self, progress: Progress | None) -> StreamInfo:
        state = self._saved.state.model_dump(mode="json", exclude_unset=True)
        # The metadata of the server is kept: it tells other servers what the stream needs.
        config = self._config.model_dump(mode="json", exclude_unset=True)
        request = {"config": config, "state": state}
        reply = self._api.reply(
            RestoreReply,
            jsapi.STREAM_RESTORE,
            request,
            context=self.context,
            stream=self.name,
        )
        # From here on the server waits for data, so an error must end the transfer.
        self._to = reply.deliver_subject
        try:
            return self._send(progress)
        except StreamExists:
            # Another client has created it while this was sent.
            raise
        # Ctrl-C, too, must not leave a part of the stream behind.
        except BaseException as error:
            self._take_back(error)
            raise

    def _send(self, progress: Progress | None) -> StreamInfo:
        sent = 0
        # Each chunk is one message, which the server limits to its max_payload.
        size = min(CHUNK_SIZE, self._connection.max_payload)
        while piece := self._saved.data.read(size):
            answer = self._ask(piece, self._times.chunk) if sent else self._ask_first(piece)
            # An empty reply asks for the next chunk; any other one ends the restore
            # (`test_an_answer_to_a_chunk_ends_it`).
            if answer:
                self._refuse(answer)
                raise BackupError(
                    f"cannot {self.context}: the server ended it after {sent + len(piece):,} bytes",
                )
            sent += len(piece)
            if progress is not None:
                progress(sent, self._saved.size)
        # The empty request ends the data. Its reply is that of a request that creates a stream.
        end = self._refuse(self._ask(b"", self._times.end))
        return StreamInfo.from_server(end, self.context)

    def _ask_first(self, piece: bytes) -> bytes:
        """Send the first chunk.

        In a cluster, interest of the server that receives it may not have spread yet.
        """
        # The server ends a restore after five seconds without data.
        deadline = Deadline(self._times.routed)
        backoff = Backoff()
        while True:
            try:
                return self._ask(piece, self._times.chunk)
            except NoResponders:
                if deadline.expired:
                    raise
                backoff.pause(deadline)

    def _ask(self, piece: bytes, timeout: float) -> bytes:
        # A server waits five seconds for the next piece, so a longer wait for the connection is
        # useless.
        patience = self._api.options.request_timeout
        self._connection.wait(patience)
        seconds = max(timeout, patience)
        return self._connection.request(self._to, piece, context=self.context, timeout=seconds)

    def _refuse(self, answer: bytes) -> dict[str, Any]:
        """Return the reply, or raise its error."""
        try:
            return jsapi.reply(answer, self.context)
        # The stream of another client stays, and `carry_out` removes nothing for this error.
        except StreamExists:
            raise
        except ApiError as error:
            hint = ""
            if self._archive and not self._connection.can(BACKUPS_OF_2_15):
                hint = "; a backup of nats-server 2.15 or later needs nats-server 2.15 or later"
            raise BackupError(f"{error}{hint}") from error

    def _take_back(self, error: BaseException) -> None:
        """Remove the stream."""
        context = f"remove what was restored of stream {self.name}"
        try:
            self._connection.wait(self._api.options.request_timeout)
            # A transfer that goes on may create the stream after the look below.
            self._end_transfer(context)
            info = self._look(context)
            if info is None:
                # There is no stream to find. In a cluster its name may be taken nevertheless.
                if not self._may_keep_name():
                    return
                info = self._look(context)
            # When the restore began there was no stream of this name. Another client may have
            # created one since.
            if info is not None and not self._is_of_the_backup(info):
                raise BackupError(f"stream {self.name} has other messages than the backup")
            self._api.delete(
                jsapi.STREAM_DELETE,
                StreamNotFound,
                True,
                context=context,
                stream=self.name,
            )
        # The server is out of reach, or refuses
        # (`test_a_failed_restore_names_the_partial_stream_that_it_cannot_delete`).
        except JetStreamError as second:
            first = str(error) or type(error).__name__
            left = f"a part of stream {self.name} may be left"
            raise BackupError(
                f"{first}; {left}, delete it before you try again: {second}",
            ) from error

    def _end_transfer(self, context: str) -> None:
        """Tell the server not to wait for more data."""
        try:
            self._connection.request(self._to, b"", context=context)
        except JetStreamError as ended:
            # The server has ended the restore already.
            log.info("%s", ended)

    def _may_keep_name(self) -> bool:
        """Return whether the server may still have the name of a stream that it does not find.

        A cluster keeps the name of a stream whose restore failed, though STREAM.INFO does not find
        it. The list of streams has it, unless it has no subjects.
        """
        # The list is asked for by subject, so it cannot find a stream without subjects.
        subjects = self._config.subjects
        return not subjects or self.name in streams_of(self._connection, subjects[0], "")

    def _look(self, context: str) -> StreamInfo | None:
        return self._api.find(StreamInfo, jsapi.STREAM_INFO, context=context, stream=self.name)

    def _is_of_the_backup(self, info: StreamInfo) -> bool:
        """Return whether a stream can be the restored one.

        It has the same configuration, and no messages but those of the backup.
        """
        state = info.state
        whole = self._saved.state
        # A part of the backup ends at or before the end of the whole.
        if state.last_seq > whole.last_seq:
            return False
        # Restored messages keep their times, so a later message was stored by another client.
        if state.messages and state.last_ts.nanoseconds > whole.last_ts.nanoseconds:
            return False
        return not differences(self._config, info.config)


def _changed(saved: Saved, info: StreamInfo) -> Iterator[str]:
    """Yield a sentence for each difference of the state from that in the backup."""
    was = _comparable(saved.state)
    state = _comparable(info.state)
    same_storage = saved.config.storage == info.config.storage
    for name in _COMPARED:
        # Files and memory need different numbers of bytes.
        if name == "bytes" and not same_storage:
            continue
        before = int(getattr(was, name))
        after = int(getattr(state, name))
        if before != after:
            yield f"{name} was {before:,} and is {after:,}"
    # Without a manifest nobody knows whether the backup has the consumers.
    if saved.manifest is not None:
        expected = was.consumer_count if saved.manifest.consumers else 0
        if state.consumer_count != expected:
            yield f"consumer_count was {expected:,} and is {state.consumer_count:,}"


def _comparable(state: StreamState) -> StreamState:
    # The first sequence of a stream that never had a message is 0 or 1.
    return state.changed(first_seq=max(1, state.first_seq))


def _notes(saved: Saved, config: StreamConfig) -> Iterator[str]:
    was = saved.config.name
    if saved.manifest is None:
        missing = f"{saved.source / MANIFEST} is missing"
        yield f"{missing}: the backup was made by another tool, and has no checksums"
    if config.name != was and was.startswith(_BUCKETS):
        kept = f"what is in stream {config.name} belongs to the bucket of {was}"
        yield f"messages keep their subjects: {kept}"
