"""Messages, and requests and replies about them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from spark_jetstream.admin.models.base import (
    Boolean,
    Check,
    Content,
    Count,
    Model,
    OptionalSubject,
    Reply,
    Sequence64,
    String,
    Time,
    Volume,
)
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.units import NEVER, Bytes

_ADDED = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp")


class StoredMessage(Model):
    """A message of a stream."""

    subject: String
    """Its subject."""
    seq: Sequence64
    """Its sequence in the stream."""
    time: Time = NEVER
    """When it was stored."""
    data: Content = b""
    """Its content."""
    hdrs: Content = b""
    """Its header block, as it is; empty without one."""
    stream: String = ""
    """The stream, or the mirror, that answered; only known from a direct get."""

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers: every value of every name, in their order.

        Bytes that are not UTF-8 become U+FFFD.
        """
        return block_headers(self.hdrs)

    @classmethod
    def from_direct(
        cls,
        block: bytes,
        data: bytes,
        context: str = "read a direct get",
    ) -> StoredMessage:
        """From the header block and the content of an answer to a direct get, one of a batch included.

        The server puts its own headers (ADR-31) in place of the last two bytes of the message's
        block. The block may have the same names, and need not end with an empty line.
        `ProtocolError` when one of the server's headers is missing or malformed.
        """
        # The last place counts: headers of the message, which may have
        # the same name, are in front of the server's (ADR-31).
        own, mark, rest = block.rpartition(b"Nats-Stream: ")
        added = {}
        for line in (mark + rest).decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(": ")
            added[name] = value
        stream, subject, sequence, stored = (added.get(name, "") for name in _ADDED)
        is_number = sequence.isascii() and sequence.isdigit()
        if not (stream and subject and is_number):
            raise ProtocolError(
                f"cannot {context}: the answer has no usable headers {', '.join(_ADDED)}",
            )
        # The rest of the block is that of the message: a first line alone means no headers.
        hdrs = b"" if own == b"NATS/1.0\r\n" else own + b"\r\n"
        body = {
            "subject": subject,
            "seq": int(sequence),
            "time": stored,
            "data": data,
            "hdrs": hdrs,
            "stream": stream,
        }
        return cls.from_server(body, context)


class MessageReply(Reply):
    """The answer to a request for one message."""

    message: StoredMessage
    """The message."""


class PubAck(Model):
    """The acknowledgement of a published message."""

    stream: String
    """The stream that stored it."""
    seq: Sequence64
    """Its sequence; that of the first one, when ``duplicate``."""
    domain: String = ""
    """The domain of the stream."""
    duplicate: Boolean = False
    """Whether a message with this id was there already, and nothing was stored."""
    val: String = ""
    """The value of the counter that this changed, in decimal digits."""
    batch: String = ""
    """The batch that this confirms."""
    count: Count = 0
    """How many messages it had."""


class PurgeRequest(Model):
    """Which messages to remove; all, if no field is set."""

    filter: OptionalSubject = ""
    """Only those on these subjects."""
    seq: Sequence64 = 0
    """Only those before this sequence. Not together with ``keep``."""
    keep: Count = 0
    """How many of the last messages stay. Not together with ``seq``."""

    def _checks(self) -> Iterator[Check]:
        yield self.seq and self.keep, "seq and keep cannot be set together"


class PurgeReply(Reply):
    """The reply to a purge."""

    success: Boolean = False
    """Whether it was done."""
    purged: Count = 0
    """Number of messages removed."""


class DoneReply(Reply):
    """Whether a request was done: a deletion, a step-down of a leader, the removal of a server."""

    success: Boolean = False
    """Whether it was done."""


class SnapshotConfig(Model):
    """How a backup is to be sent."""

    deliver_subject: OptionalSubject
    """The subject that the server sends the chunks to."""
    no_consumers: Boolean = False
    """Leave the consumers out."""
    chunk_size: Volume = Bytes(0)
    """Bytes of a chunk, 1 KiB to 1 MiB; 0 for 128 KiB."""
    window_size: Volume = Bytes(0)
    """Bytes that the server sends before the client has acknowledged them, 1 KiB to 32 MiB; 0 for 8
    MiB."""
    jsck: Boolean = False
    """Check all messages first."""
