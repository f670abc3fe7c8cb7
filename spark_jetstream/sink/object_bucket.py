"""What the sink asks of an Object Store bucket's stream: its state, single messages, the removal of others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spark_jetstream import jsapi
from spark_jetstream.connection import Connection
from spark_jetstream.errors import (
    NoResponders,
    OptionError,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    StreamNotFound,
)
from spark_jetstream.lookup import StoredMessage, last_message
from spark_jetstream.objects import ObjectMeta, chunk_filter, meta_filter, stream_name
from spark_jetstream.options import SinkOptions
from spark_jetstream.pool import retrying
from spark_jetstream.streams import StreamState, stream_state, subject_pattern

log = logging.getLogger(__name__)

T = TypeVar("T")

_VALID = 60.0  # seconds for which a check holds in one process: Spark builds a writer twice in every micro-batch
_checked: dict[SinkOptions, float] = {}


class ObjectBucket:
    """One bucket; whatever may pass is tried again for ``patience`` seconds.

    Methods raise `StreamNotFound` when there is no such bucket, and what `Connection.api` raises.
    """

    def __init__(self, connect: Callable[[float], Connection], name: str, patience: float) -> None:
        self.name = name
        self.stream = stream_name(name)
        self._connect = connect
        self._patience = patience

    def state(self) -> StreamState:
        """What the bucket's stream says of itself."""
        context = f"look at bucket {self.name} (option objectBucket)"

        def ask(connection: Connection) -> StreamState:
            subject = jsapi.stream_info(connection.prefix, self.stream)
            return stream_state(connection.api(subject, b"", context=context), context)

        return self._ask(ask)

    def last(self, subject: str) -> StoredMessage | None:
        """The last message on a subject."""
        return self._ask(lambda connection: last_message(connection, self.stream, subject))

    def remove(self, subject: str, last: int | None = None) -> None:
        """Remove all messages on a subject, or those up to a sequence."""
        context = f"remove {subject} from bucket {self.name}"
        body = jsapi.purge_subject_request(subject) if last is None else jsapi.purge_request(last + 1, subject)

        def ask(connection: Connection) -> None:
            connection.api(jsapi.stream_purge(connection.prefix, self.stream), body, context=context)

        self._ask(ask)

    def nuid_of(self, meta: StoredMessage | None) -> str:
        """Where the chunks of the object with this meta message lie; "" for none."""
        if meta is None:
            return ""
        try:
            return ObjectMeta.from_json(meta.data, self.name).nuid
        except ProtocolError as error:
            log.warning("%s: it is replaced, and its chunks stay", error)
            return ""

    def _ask(self, work: Callable[[Connection], T]) -> T:
        try:
            return retrying(lambda: work(self._connect(self._patience)), self._patience)
        except StreamNotFound as error:
            raise StreamNotFound(
                f"there is no Object Store bucket {self.name} (option objectBucket)",
                code=error.code,
                err_code=error.err_code,
                description=error.description,
            ) from None


def check_object_bucket(connect: Callable[[float], Connection], options: SinkOptions) -> None:
    """Look at the bucket that objects are to be written to. Runs on the driver.

    What the permissions do not let it see is not checked. Raises `OptionError`, `StreamNotFound`, and what ``connect``
    raises.
    """
    checked = _checked.get(options)
    if checked is not None and time.monotonic() - checked < _VALID:
        return
    # Where it was good a while ago an outage may pass; at a start it is better to hear of it soon.
    patience = options.connection.connect_timeout if checked is None else options.connection.retry_timeout
    connect(patience)
    bucket = ObjectBucket(connect, options.object_bucket or "", patience)
    try:
        fault = _fault(bucket.state(), bucket.name)
    except (PermissionDenied, NoResponders, RequestTimeout) as error:
        inboxes = f"{options.connection.inbox_prefix}."
        if isinstance(error, PermissionDenied) and (error.subject or "").startswith(inboxes):
            # Who may not hear answers hears none to what is published either.
            raise
        log.info("cannot look at bucket %s before writing: %s", bucket.name, error)
        fault = ""
    if fault:
        raise OptionError(f"option objectBucket: {bucket.name} {fault}", option="objectBucket")
    _checked[options] = time.monotonic()


def _fault(state: StreamState, bucket: str) -> str:
    """Why no object can be written to the bucket that a stream is, or ""."""
    captured = subject_pattern(state.subjects)
    if state.mirror:
        return "is a mirror, which nobody can write to: write to the bucket that it is a mirror of"
    if state.sealed:
        return "is sealed and takes no more objects"
    if state.no_ack:
        return "has no_ack set on its stream, so nothing says whether an object is stored"
    if state.deny_purge:
        return "has deny_purge set on its stream, so the chunks of what is replaced could never be removed"
    if not all(captured.fullmatch(each.replace(">", "a")) for each in (meta_filter(bucket), chunk_filter(bucket))):
        return f"is no Object Store bucket: stream {state.name} captures {', '.join(state.subjects) or 'nothing'}"
    return ""
