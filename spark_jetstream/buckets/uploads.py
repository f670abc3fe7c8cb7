"""Publishes the messages of one subject in order: the chunks of an object, or its meta message.

The stream has stored all of them, one after the other, or the upload has failed: a message that is
sent again would be stored after its successors. So nothing is sent again here, and there is no
window in common with `sink.window`, which counts rows by the thousand, in any order.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from spark_jetstream.buckets.kv import WRONG_REVISION
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied
from spark_jetstream.options import advice
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol.features import EXPECTED_STREAM_PASSES_MIRRORS
from spark_jetstream.protocol.pub_ack import (
    NO_STREAM,
    AckReader,
    Cause,
    Outcome,
    Refusal,
    RefusalCode,
    StoredAcks,
    StoreFault,
    is_undecided,
    outcome,
    reason,
)
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.lookup import why_silent

MAX_BYTES_IN_FLIGHT = 8 * 1024 * 1024


class Disposition(enum.Enum):
    """Whether to try again."""

    NONE = "nothing"
    RETRY = "it may be stored the next time"
    OUTAGE = "it will be stored when something is back: the connection, a leader"


@dataclass(eq=False)
class ObjectNotStored(Exception):
    """An object was not stored, and the writer does not try again.

    Callers turn it into an error of their own. ``why`` ends a sentence. With the disposition
    `OUTAGE` an outage lasted longer than `retry_timeout`. ``denied`` is the account's missing
    permission, and ``err_code`` the server's reason, 0 without one.
    """

    why: str
    disposition: Disposition
    err_code: int = 0
    denied: PermissionDenied | None = None

    @property
    def overtaken(self) -> bool:
        """Whether the last message of the subject is not the one that was to be replaced."""
        return self.err_code == WRONG_REVISION


@dataclass(eq=False, kw_only=True)
class NotStored(ObjectNotStored):
    """A message was not stored; `object_store` tries again, or raises `ObjectNotStored`.

    ``settled`` is true when no message of the upload can be stored any more. ``cut`` is the error
    of a lost connection, ``silent`` says that an answer did not come in time.
    """

    settled: bool = False
    cut: ConnectionFailed | None = None
    silent: bool = False


@dataclass(frozen=True, kw_only=True)
class UploadSettings:
    """How to upload; ``ack_timeout`` is in seconds.

    ``ack_option`` and ``retries`` are how errors speak of two settings.

    With the option ``domain`` of the ``connection`` only answers of that JetStream domain count.
    """

    connection: ConnectionOptions
    max_in_flight: int
    ack_timeout: float
    max_retries: int
    ack_option: str
    retries: str


class Uploads:
    """Publishes to one subject after the other, over one connection, from one thread."""

    def __init__(self, connect: Connect, stream: str, settings: UploadSettings) -> None:
        self.stream = stream
        self._settings = settings
        self._connection = connect(settings.connection.retry_timeout)
        self._inbox = self._connection.inbox(replies=True)
        self._acks = AckReader(self._inbox.subject)
        self._next = 1  # the first number of a reply subject that was never used
        #: When the last first answer came, or the first payload of all in flight was sent.
        self._heard = 0.0
        # Of the last call of `store`:
        self._subject = ""
        #: Number -> size of the payloads in flight.
        self._waiting: dict[int, int] = {}
        #: The sum of these sizes.
        self._bytes = 0
        #: Number -> sequence of the payloads that are stored.
        self._sequences: dict[int, int] = {}
        self._refusals: list[Refusal] = []

    def close(self) -> None:
        """Drop the answers that come from now on."""
        self._inbox.close()

    @property
    def max_payload(self) -> int:
        """Largest message the server takes, header and payload, in bytes."""
        return self._connection.max_payload

    def head(self, lines: bytes = b"") -> bytes:
        """Return the header block of a message with these lines of its own."""
        # On a server before 2.11.6 a mirror stops for good at the first message with this header:
        # test_a_server_whose_mirrors_stop_at_the_name_of_a_stream.
        named = self._connection.can(EXPECTED_STREAM_PASSES_MIRRORS)
        expected = b"Nats-Expected-Stream: %b\r\n" % self.stream.encode() if named else b""
        return b"NATS/1.0\r\n%b%b\r\n" % (expected, lines)

    def store(
        self, subject: str, payloads: Iterable[bytes | memoryview], lines: bytes = b""
    ) -> list[int]:
        """Publish the payloads in order and return their sequences in the stream, ascending.

        At most `max_in_flight` payloads and `MAX_BYTES_IN_FLIGHT` bytes are in flight. Raises
        `NotStored` for a payload, and what `Inbox.get` raises for the whole connection.
        """
        head = self.head(lines)
        first = self._next
        self._forget(subject)
        for payload in payloads:
            size = len(head) + len(payload)
            self._refuse_large(size)
            self._await_room(size)
            # Between two payloads, without waiting: a refusal ends the upload early.
            self._pump(wait=False)
            if self._refusals:
                break
            self._send(head, payload, size)
        self._settle()
        if self._refusals:
            raise _refused(self._refusals[0])
        # Numbers are in the order of sending, so the sequences must ascend.
        sequences = [self._sequences[number] for number in range(first, self._next)]
        if any(later <= earlier for earlier, later in pairwise(sequences)):
            # The stream came back without its end, or two streams capture the same subjects.
            raise NotStored(
                f"stream {self.stream} has stored its parts out of order",
                Disposition.RETRY,
                settled=True,
            )
        return sequences

    def _forget(self, subject: str) -> None:
        """Begin to publish to a subject: nothing is in flight, nothing stored, nothing refused."""
        self._subject = subject
        self._waiting = {}
        self._bytes = 0
        self._sequences = {}
        self._refusals = []

    def _refuse_large(self, size: int) -> None:
        """Raise `NotStored` for a message that is larger than the server takes."""
        if size <= self.max_payload:
            return
        # All answers come first: after this error no payload can be stored any more.
        self._settle()
        raise NotStored(
            f"header and payload have {size} bytes, and the server takes {self.max_payload} "
            "(max_payload)",
            Disposition.NONE,
            settled=True,
        )

    def _await_room(self, size: int) -> None:
        """Wait for answers until a message of this size may be in flight too, at least alone."""
        while self._waiting:
            full = len(self._waiting) >= self._settings.max_in_flight
            if not full and self._bytes + size <= MAX_BYTES_IN_FLIGHT:
                return
            self._pump(wait=True)

    def settle(self) -> bool:
        """Return, after an error has ended `store`, whether no payload can be stored any more."""
        try:
            self._settle()
        except NotStored as failure:
            return failure.settled
        # An answer is still missing: a payload may be stored later.
        except JetStreamError:
            return False
        return True

    def resume(self, failure: NotStored) -> None:
        """Wait, after a failure, for a connection that works.

        Raises `ConnectionFailed` after `retry_timeout`.
        """
        cut = failure.cut
        if failure.silent:
            try:
                self._connection.check()
            except ConnectionFailed as error:
                cut = error
        # `resume` forgets the cuts before it, so that the next upload does not meet them again.
        if cut is not None:
            self._inbox.resume(self._settings.connection.retry_timeout)

    def why_silent(self) -> str:
        """Return why the messages of the last `store` got no answer in time."""
        seconds = time.monotonic() - self._heard
        return why_silent(self._connection, self._subject, seconds, self.stream)

    def _send(self, head: bytes, payload: bytes | memoryview, size: int) -> None:
        number = self._next
        self._next += 1
        if not self._waiting:
            self._heard = time.monotonic()
        self._waiting[number] = size
        self._bytes += size
        line = (
            f"HPUB {self._subject} {self._inbox.subject}.{number} {len(head)} {size}\r\n".encode()
        )
        self._inbox.send([line, head, payload, b"\r\n"])

    def _settle(self) -> None:
        while self._waiting:
            self._pump(wait=True)

    def _pump(self, *, wait: bool) -> None:
        """Read the answers that have arrived; with ``wait``, wait up to `ack_timeout` for one."""
        timeout = self._settings.ack_timeout
        # The rest of `ack_timeout`. When nothing is left, the shortest wait still takes answers
        # that have arrived.
        if wait:
            patience = max(self._heard + timeout - time.monotonic(), 0.001)
        else:
            patience = 0.0
        try:
            event = self._inbox.get(patience)
            while isinstance(event, Frames):
                self._take(event)
                event = self._inbox.get(0.0)
        except PermissionDenied as denied:
            self._on_denied(denied)
        except ConnectionFailed as cut:
            raise NotStored(str(cut), Disposition.OUTAGE, cut=cut) from None
        if self._waiting and time.monotonic() - self._heard > timeout:
            why = f"no acknowledgement within {timeout:g} s (option {self._settings.ack_option})"
            raise NotStored(why, Disposition.RETRY, silent=True)

    def _take(self, frames: Frames) -> None:
        answers = self._acks.read(frames)
        for stored in answers.stored:
            # Subjects have no domain: a bucket of the same name on the way stores the message too.
            if not self._is_of_bucket(stored):
                continue
            numbers, sequences = stored.numbers.tolist(), stored.sequences.tolist()
            for number, sequence in zip(numbers, sequences, strict=True):
                if self._is_first(number):
                    self._sequences[number] = sequence
        for refusal in answers.refused:
            if self._is_first(refusal.number):
                self._refusals.append(refusal)

    def _is_of_bucket(self, stored: StoredAcks) -> bool:
        """Whether these acknowledgements are of the bucket's stream, in the right domain."""
        domain = self._settings.connection.domain
        own_domain = domain is None or stored.domain in ("", domain)
        return own_domain and stored.stream == self.stream

    def _is_first(self, number: int) -> bool:
        """Note an answer to a payload; whether it is the first one."""
        size = self._waiting.pop(number, None)
        # An answer of an upload that was given up, or the second answer to a payload.
        if size is None:
            return False
        self._bytes -= size
        self._heard = time.monotonic()
        return True

    def _on_denied(self, denied: PermissionDenied) -> None:
        # The subject is in lower case, and may be that of another user of this connection.
        inboxes = self._inbox.subject.rpartition(".")[0].lower()
        if denied.subject is None or denied.subject.lower().startswith(inboxes):
            raise denied
        # Another user's refusal is no failure of this upload.
        if self._waiting and denied.subject.lower() == self._subject.lower():
            text = f"the account may not publish to {self._subject}"
            raise NotStored(
                text,
                Disposition.NONE,
                settled=True,
                denied=PermissionDenied(text, subject=self._subject),
            )


#: What to change when a bucket refuses a message of an object.
_ADVICE: Mapping[Cause, str] = {
    **advice.REFUSED_MESSAGES,
    RefusalCode.OTHER_STREAM: "the subjects of the bucket belong to another stream",
    RefusalCode.WRONG_LAST_SEQUENCE: "another writer has stored an object of this name meanwhile",
    StoreFault.STREAM_FULL: "the bucket is full: raise its max_bytes, or remove objects",
    RefusalCode.ROLLUP_DISABLED: (
        "the stream is no Object Store bucket: it does not allow rollup headers"
    ),
}


def _refused(refusal: Refusal) -> NotStored:
    """Return the failure for a refusal, once all other payloads have their answers."""
    text = reason(refusal, _ADVICE)
    # A status has no error code. 503: no stream listens, or its leader is being elected.
    no_leader = refusal.err_code == 0 and refusal.code == NO_STREAM
    # Another writer has stored this object meanwhile. The next attempt reads the new meta message
    # first.
    if refusal.err_code == WRONG_REVISION:
        disposition = Disposition.RETRY
    elif outcome(refusal) is not Outcome.RETRY:
        disposition = Disposition.NONE
    elif no_leader or is_undecided(refusal):
        disposition = Disposition.OUTAGE
    else:
        disposition = Disposition.RETRY
    return NotStored(text, disposition, settled=True, err_code=refusal.err_code)
