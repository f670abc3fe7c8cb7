"""The stream of an Object Store bucket: what a writer asks it, and whether it can be written to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from spark_jetstream.buckets.objects import ObjectMeta, chunk_filter, meta_filter, stream_name
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, Requests, stream_info
from spark_jetstream.errors import ProtocolError, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.fitness import StreamFault, Write, faults
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.streams.lookup import RawMessage, last_message, message, nearest_stream

log = logging.getLogger(__name__)

T = TypeVar("T")


class ObjectStream:
    """Requests to the stream of one bucket, each retried for ``patience`` seconds.

    Until a request succeeds, requests are retried for ``first`` seconds if that is less. ``hint``
    ends the name of the bucket in errors: which option names it. Methods raise `StreamNotFound`
    when the bucket does not exist, and what `Connection.api` raises.
    """

    def __init__(
        self,
        connect: Connect,
        bucket: str,
        patience: float,
        hint: str = "",
        first: float | None = None,
    ) -> None:
        self.bucket = bucket
        self.name = stream_name(bucket)
        self._requests = Requests(connect, patience, first)
        self._hint = hint

    def state(self) -> StreamSummary:
        """Return the state of the stream."""
        context = f"look at bucket {self.bucket}{self._hint}"
        return self._call(partial(stream_info, name=self.name, context=context))

    def last(self, subject: str) -> RawMessage | None:
        """Return the last message on a subject, None if there is none."""
        return self._call(partial(last_message, stream=self.name, subject=subject))

    def message(self, sequence: int) -> RawMessage | None:
        """Return the message at a sequence, None if there is none."""
        return self._call(partial(message, stream=self.name, sequence=sequence))

    def remove(self, subject: str, last: int | None = None) -> int:
        """Remove all messages on a subject, or those up to a sequence, and return their number."""
        context = f"remove {subject} from bucket {self.bucket}"
        if last is None:
            body = jsapi.purge_subject_request(subject)
        else:
            # `seq` of a purge excludes that sequence.
            body = jsapi.purge_request(last + 1, subject)

        def ask(connection: Connection) -> int:
            purge = jsapi.subject(connection.prefix, jsapi.STREAM_PURGE, self.name)
            reply = connection.api(purge, body, context=context)
            return int(jsapi.field(reply, "purged", int, context))

        return self._call(ask)

    def nuid_of(self, meta: RawMessage | None) -> str:
        """Return the id of the chunks of the object with this meta message; "" without one."""
        if meta is None or not meta.data:  # none, or it has expired
            return ""
        try:
            return ObjectMeta.from_json(meta.data, self.bucket).nuid
        except ProtocolError as error:
            log.warning("%s: it is replaced, and its chunks stay", error)
            return ""

    def _call(self, work: Callable[[Connection], T]) -> T:
        try:
            return self._requests.call(work)
        except StreamNotFound as error:
            hint = nearest_stream(
                self._requests.connect, [self.name], stream_name(""), options=bool(self._hint)
            )
            raise jsapi.reworded(
                error, f"there is no Object Store bucket {self.bucket}{self._hint}{hint}"
            ) from None


_WHY_UNWRITABLE = {
    StreamFault.MIRROR: (
        "is a mirror, which nobody can write to: write to the bucket that it is a mirror of"
    ),
    StreamFault.SEALED: "is sealed and takes no more objects",
    StreamFault.UNACKNOWLEDGED: (
        "has no_ack set on its stream, so nothing says whether an object is stored"
    ),
    StreamFault.KEPT_CHUNKS: (
        "has deny_purge set on its stream, so the chunks of what is replaced could never be removed"
    ),
}


def object_write(bucket: str) -> Write:
    """Return the use of a stream that stores objects of a bucket."""
    filters = (meta_filter(bucket), chunk_filter(bucket))
    return Write("objects", tuple(filter_.replace(">", "a") for filter_ in filters))


def writing_fault(state: StreamSummary, bucket: str) -> str:
    """Return why no object can be written to the bucket of a stream, "" if objects can."""
    for fault in faults(state, object_write(bucket)):
        if fault is StreamFault.UNCAPTURED:
            captured = ", ".join(state.subjects) or "nothing"
            return f"is no Object Store bucket: stream {state.name} captures {captured}"
        return _WHY_UNWRITABLE[fault]
    return ""
