"""Backup of a stream and its consumers, by the snapshot protocol of the server (nats-server: server/jetstream_api.go).

The server sends chunks to an inbox. A full chunk has a reply subject, at which the client
acknowledges it; the server sends no more than a window of bytes without acknowledgements. The end
is an empty message with status 204, or without a status when all data fitted into one chunk.
Another status says what went wrong.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.backup_files import MANIFEST, META, Draft, Framing, Manifest, indented
from spark_jetstream.admin.models.messages import SnapshotConfig
from spark_jetstream.admin.models.streams import SnapshotReply
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import BackupError, PermissionDenied, RequestTimeout, brief
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import shown_version
from spark_jetstream.protocol.units import Bytes, Timestamp
from spark_jetstream.protocol.wire import Frames, Status

Progress = Callable[[int, int], None]
"""Called again and again with the bytes that are done, and their total."""

CHUNK_SIZE = 512 * 1024
"""Bytes of a chunk, where the server takes messages of that size."""

SILENCE = 30.0
"""Seconds without a message after which the backup fails."""

_ACKS = "$JS.SNAPSHOT.ACK."
_TOKEN = "snapshot"


@dataclass(frozen=True)
class Backup:
    """A complete backup: its path, the server's reply, and the manifest."""

    path: Path
    reply: SnapshotReply
    manifest: Manifest


def backup(
    api: Api,
    stream: str,
    target: str | os.PathLike[str],
    *,
    consumers: bool = True,
    chunk_size: int = CHUNK_SIZE,
    window_size: int = 0,
    check: bool = False,
    silence: float = SILENCE,
    progress: Progress | None = None,
) -> Backup:
    """Save a stream at `target`, which appears when the backup is complete and on the disk.

    ``nats stream restore`` reads the backup too; a single file must be unpacked for it. Servers
    before 2.15 cannot save a stream in memory.

    The stream is not locked: messages that are removed or stored during the backup are missing. In
    a cluster, deliveries after the acknowledgement floor of a consumer are not saved: after a
    restore they are delivered again.

    ``target`` is a file if it ends with ``.tar``, else a directory. ``chunk_size`` and
    ``window_size`` (bytes without acknowledgements, about the memory needed) are those of
    `SnapshotConfig`. ``check`` lets a server before 2.15 check all messages first; later ones
    always do. The backup fails after ``silence`` seconds without a message. ``progress`` is called
    with the bytes received and the size of the stream: an estimate, since data is compressed.

    Raises:
        OptionError: The target exists.
        StreamNotFound: The stream does not exist.
        BackupError: The server stopped, was silent, or sent data that cannot be a backup. The
            target is removed.
        JetStreamError: What `Api` raises.
    """
    connection = api.connection
    # The inbox comes first: chunks may arrive before the reply to the request. Its token is no
    # wildcard, because the server looks for a subscriber of that one subject, and begins two
    # seconds later if it sees none.
    with connection.inbox(replies=True, token=_TOKEN) as inbox:
        draft = Draft(Path(file_path("target", target)))
        try:
            reply = _begin(
                api,
                stream,
                {
                    "deliver_subject": f"{inbox.subject}.{_TOKEN}",
                    "no_consumers": not consumers,
                    "jsck": check,
                    # A chunk is one message of the server, which
                    # limits it to the client's max_payload.
                    "chunk_size": min(chunk_size, connection.max_payload),
                    "window_size": window_size or None,
                },
            )
            framing = Framing(f"what the server sent of stream {stream}")
            count = 0
            for data in _chunks(connection, inbox, stream, silence):
                count += 1
                # Fed before it is written: bytes that cannot be a backup end it at once.
                framing.feed(data)
                draft.write(data)
                if progress is not None:
                    progress(draft.size, reply.state.bytes)
            # The server's end proves nothing about bytes lost on the way; the chain of chunks does.
            framing.finish()
            # backup.json holds the server's reply, in the layout of `nats stream backup`.
            described = reply.model_dump(
                mode="json",
                exclude_unset=True,
                include={"config", "state"},
            )
            meta = indented(described)
            manifest = Manifest(
                stream=stream,
                server=shown_version(connection.server_version),
                time=Timestamp.of(dt.datetime.now(dt.timezone.utc)),
                consumers=consumers,
                chunks=count,
                data_bytes=Bytes(draft.size),
                data_sha256=draft.sha256,
                meta_sha256=hashlib.sha256(meta).hexdigest(),
            )
            draft.complete({META: meta, MANIFEST: indented(manifest.model_dump(mode="json"))})
        finally:
            # A complete draft has the name of the target, so this removes only one that failed
            # (`test_a_backup_that_is_disturbed_leaves_nothing`).
            draft.discard()
    return Backup(draft.target, reply, manifest)


def _begin(api: Api, stream: str, fields: dict[str, Any]) -> SnapshotReply:
    """Ask for a snapshot; return the stream's configuration and state. Raises `StreamNotFound`."""
    context = f"back up stream {stream}"
    request = SnapshotConfig.parse(fields, context).body()
    try:
        return api.reply(
            SnapshotReply,
            jsapi.STREAM_SNAPSHOT,
            request,
            context=context,
            stream=stream,
        )
    except RequestTimeout:
        # In a cluster the leader of the stream answers: nobody does if there is no such stream.
        # Raises `StreamNotFound` (`test_a_cluster_says_that_a_stream_is_not_there`).
        # Without an answer the time-out stands.
        with contextlib.suppress(PermissionDenied, RequestTimeout):
            api.ask(jsapi.STREAM_INFO, context=context, stream=stream)
        raise


def _chunks(connection: Connection, inbox: Inbox, stream: str, silence: float) -> Iterator[bytes]:
    """Yield the chunks in their order, each acknowledged before."""
    count = acknowledged = 0
    while True:
        frames = _frames(connection, inbox, stream, silence)
        for index, (head, data) in enumerate(frames.parts()):
            # A chunk is never empty: this is the end, or the status that ends the backup.
            if not data:
                # Data that fits into one chunk that is not
                # full ends with a message without a status.
                single = count > 0 and not acknowledged
                _check_end(head, stream, single=single)
                return
            # Only the last chunk has no reply subject, so nothing may follow a chunk without one.
            if acknowledged < count:
                raise BackupError(f"the backup of stream {stream} continues after its last chunk")
            count += 1
            subject = frames.reply_subject(index)
            # The last chunk has no reply subject if it is not full (server 2.15).
            if subject:
                _check_place(subject, stream, len(data), count)
                # At once: the server sends no more than a window of bytes without acknowledgements.
                inbox.send(b"PUB %s 0\r\n\r\n" % subject.encode())
                acknowledged += 1
            yield data


def _frames(connection: Connection, inbox: Inbox, stream: str, silence: float) -> Frames:
    while True:
        try:
            event = inbox.get(silence)
        except PermissionDenied as error:
            # The inbox also receives the refusals of other publishers of this connection.
            denied = error.subject or ""
            if denied == f"{connection.options.inbox_prefix}.>":
                raise
            if not denied.startswith(f"{_ACKS}{stream}.".lower()):
                continue
            subject = f"{_ACKS}{stream}.>"
            raise PermissionDenied(
                f"cannot back up stream {stream}: the account may not publish to {subject}",
                subject=subject,
            ) from None
        if event is None:
            # Raises `ConnectionFailed` if that is why nothing comes.
            connection.check()
            problem = f"the server has sent nothing for {silence:g} s"
            raise BackupError(f"the backup of stream {stream} was broken off: {problem}")
        assert not isinstance(event, Status)  # an inbox with replies has none
        return event


def _check_place(subject: str, stream: str, size: int, number: int) -> None:
    """Raise `BackupError` when the reply subject of a chunk belongs to another chunk."""
    # $JS.SNAPSHOT.ACK.<stream>.<id>.<size>.<number>. Between accounts it may be mapped to another
    # subject.
    numbers = subject.rpartition(f"{_ACKS}{stream}.")[2].split(".")[1:]
    if subject.startswith(_ACKS) and numbers != [str(size), str(number)]:
        problem = f"chunk {number} has {size} bytes, and comes as {subject}"
        raise BackupError(f"the backup of stream {stream} has a hole: {problem}")


def _check_end(head: bytes, stream: str, *, single: bool) -> None:
    """Raise `BackupError` unless this ends a backup; that of a ``single`` chunk may end without a status."""
    line = head.partition(b"\r\n")[0].decode("utf-8", "replace").strip()
    # The first line is NATS/1.0, the code, and a description.
    status = line.split(None, 2)[1:]
    is_end = status[:1] == ["204"]
    may_lack_status = single and not line
    if is_end or may_lack_status:
        return
    reason = brief(" ".join(status)) or "an end without a status"
    raise BackupError(f"the backup of stream {stream} was broken off by the server: {reason}")
