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
from spark_jetstream.protocol.features import MESSAGES_SINCE
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.shared.held import Held
from spark_jetstream.streams.lookup import RawMessage, first_messages, message, messages

log = logging.getLogger(__name__)

# ns: the time of a message is that of its leader, whose clock may be behind the last leader's.
_CLOCKS_DIFFER = 10**9


class Replay:
    """Looks at the stream of a shared consumer. All methods raise what `Requests.call` raises."""

    def __init__(self, requests: Requests, stream: str) -> None:
        self._requests = requests
        self._stream = stream
        self._context = f"look at stream {stream}"

    def fault(self, connection: Connection, position: StreamPosition, held: Held) -> str:
        """Return why the held sequences belong to other messages than an offset means, or "".

        The stream was created again, or has lost its tail in a power failure. Asked once, over
        this connection. A server older than 2.11 hides a lost tail if the stream has grown past it,
        and has no message in the place of the last one.
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
        if stored is None:
            stored = self._later(connection, position.last_timestamp)
            other = stored is not None and stored.sequence <= last
        else:
            other = stored.time != position.last_timestamp
        if stored is not None and other:
            return (
                f"stream {self._stream} has lost messages: {stored.sequence} is another message now"
            )
        return ""

    def _later(self, connection: Connection, time: int) -> RawMessage | None:
        """Return the first message that was stored after a time (ns), None if none shows."""
        if not connection.can(MESSAGES_SINCE):
            return None
        since = time + _CLOCKS_DIFFER
        found = first_messages(connection, self._stream, (), since)
        # Of missing sequences, servers before 2.12 find an earlier message.
        return next((each for each in found if each.time >= since), None)

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
