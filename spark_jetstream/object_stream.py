"""What is asked of an Object Store bucket's stream by those who write: state, messages, removal of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from spark_jetstream import jsapi
from spark_jetstream.connection import Connection
from spark_jetstream.errors import ProtocolError, StreamNotFound
from spark_jetstream.lookup import StoredMessage, last_message
from spark_jetstream.objects import ObjectMeta, chunk_filter, meta_filter, stream_name
from spark_jetstream.pool import retrying
from spark_jetstream.streams import StreamState, stream_state, subject_pattern

log = logging.getLogger(__name__)

T = TypeVar("T")


class ObjectStream:
    """The stream of one bucket; whatever may pass is tried again for ``patience`` seconds.

    ``hint`` ends what errors say of the bucket: which option names it. Methods raise `StreamNotFound` when there is no
    such bucket, and what `Connection.api` raises.
    """

    def __init__(self, connect: Callable[[float], Connection], bucket: str, patience: float, hint: str = "") -> None:
        self.bucket = bucket
        self.name = stream_name(bucket)
        self._connect = connect
        self._patience = patience
        self._hint = hint

    def state(self) -> StreamState:
        """What the stream says of itself."""
        context = f"look at bucket {self.bucket}{self._hint}"

        def ask(connection: Connection) -> StreamState:
            subject = jsapi.stream_info(connection.prefix, self.name)
            return stream_state(connection.ask(subject, b"", context=context), context)

        return self._ask(ask)

    def last(self, subject: str) -> StoredMessage | None:
        """The last message on a subject."""
        return self._ask(lambda connection: last_message(connection, self.name, subject))

    def remove(self, subject: str, last: int | None = None) -> int:
        """Remove all messages on a subject, or those up to a sequence; how many that were."""
        context = f"remove {subject} from bucket {self.bucket}"
        body = jsapi.purge_subject_request(subject) if last is None else jsapi.purge_request(last + 1, subject)

        def ask(connection: Connection) -> int:
            reply = connection.api(jsapi.stream_purge(connection.prefix, self.name), body, context=context)
            return int(jsapi.field(reply, "purged", int, context))

        return self._ask(ask)

    def nuid_of(self, meta: StoredMessage | None) -> str:
        """Where the chunks of the object with this meta message lie; "" for none."""
        if meta is None:
            return ""
        try:
            return ObjectMeta.from_json(meta.data, self.bucket).nuid
        except ProtocolError as error:
            log.warning("%s: it is replaced, and its chunks stay", error)
            return ""

    def _ask(self, work: Callable[[Connection], T]) -> T:
        try:
            return retrying(lambda: work(self._connect(self._patience)), self._patience)
        except StreamNotFound as error:
            raise StreamNotFound(
                f"there is no Object Store bucket {self.bucket}{self._hint}",
                code=error.code,
                err_code=error.err_code,
                description=error.description,
            ) from None


class Settings(Protocol):
    """What a stream says of itself, or how it is set up."""

    @property
    def name(self) -> str: ...
    @property
    def subjects(self) -> tuple[str, ...]: ...
    @property
    def mirror(self) -> object: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def no_ack(self) -> bool: ...
    @property
    def deny_purge(self) -> bool: ...


def writing_fault(state: Settings, bucket: str) -> str:
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
