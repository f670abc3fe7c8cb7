"""`Replay`: reads the messages of a micro-batch that comes again, as far as the stream has them.

Only the stream's leader is asked (STREAM.MSG.GET), and a message that it does not have is gone for
good: in a work queue somebody has acknowledged it. So a batch that comes again never has more
messages than the first time. A sink that skips a batch which it has loses nothing by that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests, info_of, settled_info
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.shared.held import Held
from spark_jetstream.streams.lookup import RawMessage, message, messages

log = logging.getLogger(__name__)


class Replay:
    """Looks at the stream of a shared consumer. All methods raise what `Requests.call` raises."""

    def __init__(self, requests: Requests, stream: str) -> None:
        self._requests = requests
        self._stream = stream
        self._context = f"look at stream {stream}"

    def fault(self, connection: Connection, position: StreamPosition, held: Held) -> str:
        """Return why the held sequences belong to other messages than an offset means, or "".

        The stream was created again, or has lost its tail in a power failure. A stream that has
        grown past a lost tail shows it only while it has the last of these messages. Asked once,
        over this connection.
        """
        if not held.sequences:
            return ""
        state = info_of(connection, self._stream, position.created, self._context)
        if state.created != position.created:
            return f"stream {self._stream} was deleted and created again (at {state.created})"
        last = held.sequences[-1]
        if state.last_seq < last and state.clustered:
            # A leader that was just elected may not have applied its log yet.
            state = settled_info(connection, self._stream, self._context)
        if state.last_seq < last:
            return (
                f"stream {self._stream} has lost messages: it ends at sequence {state.last_seq}, "
                f"before {last}"
            )
        stored = message(connection, self._stream, last)
        if stored is not None and stored.time != position.last_timestamp:
            return f"stream {self._stream} has lost messages: {last} is another message now"
        return ""

    def read(self, held: Held) -> list[RawMessage]:
        """Return the messages of ``held`` that the stream has, in the order of their sequences."""
        return self._requests.call(lambda connection: self._read(connection, held.sequences))

    def _read(self, connection: Connection, sequences: Sequence[int]) -> list[RawMessage]:
        found = messages(connection, self._stream, sequences)
        has = {each.sequence for each in found}
        missing = [sequence for sequence in sequences if sequence not in has]
        if missing and self._state(connection).clustered:
            # A server that was frozen answers as the leader it was, until it hears its successor.
            settled_info(connection, self._stream, self._context)
            found += messages(connection, self._stream, missing)
            found.sort(key=lambda each: each.sequence)
        return found

    def _state(self, connection: Connection) -> StreamSummary:
        return info_of(connection, self._stream, None, self._context)
