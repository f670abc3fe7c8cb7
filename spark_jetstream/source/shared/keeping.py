"""`Keeping`: keeps reserved messages from being delivered to other clients.

The server delivers a message again when its ``ack_wait`` has passed since the last sign of life,
``+WPI`` at its reply subject (nats-server: server/consumer.go, `progressUpdate`). Nothing here
matters to whether messages are lost: a sign of life that does not arrive may cost a second
processing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import JetStreamError

log = logging.getLogger(__name__)

IN_PROGRESS = b"+WPI"
_ROUNDS = 4  # of signs of life within the time that the server waits
_PATIENCE = 5.0  # seconds for one round


@dataclass
class _Kept:
    """Reserved messages by their reply subjects, and the seconds that the server waits for a sign."""

    subjects: Sequence[str]
    lapse: float
    heard: float  # when the server has last heard of them, by the clock


class Keeping:
    """Sends signs of life for one set of messages at a time, from a thread of its own.

    The thread ends with the process, so that the messages of a process that was killed go to other
    clients. Use by one thread; `close` ends it. ``clock`` returns seconds.
    """

    def __init__(self, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._kept: _Kept | None = None
        self._due = 0.0  # when the next signs are sent, by the clock
        self._closed = False
        self._thread: threading.Thread | None = None

    def keep(self, subjects: Sequence[str], lapse: float, delivered: float | None = None) -> None:
        """Keep the messages with these reply subjects, in place of others.

        They were ``delivered`` at that time of the clock or later, and the server waits ``lapse``
        seconds for each sign of life. Where the time is not known the first sign is sent at once.
        Warns if the server has waited too long already.
        """
        now = self._clock()
        kept = _Kept(subjects, lapse, now if delivered is None else delivered)
        self._heard(kept, now)
        with self._changed:
            self._kept = kept
            self._due = now if delivered is None else delivered + lapse / _ROUNDS
            self._changed.notify()
            if self._thread is None:
                name = "spark-jetstream-keeping"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def release(self) -> None:
        """Keep no messages any more."""
        with self._changed:
            self._kept = None

    def close(self) -> None:
        """End the thread; wait until it sends nothing any more."""
        with self._changed:
            self._closed = True
            self._kept = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                kept = self._kept
                pause = None if kept is None else max(0.0, self._due - self._clock())
                # A change ends the pause: other messages may have another time.
                if self._changed.wait(pause):
                    continue
                if self._kept is not None:
                    self._due = self._clock() + self._kept.lapse / _ROUNDS
            self.send_signs()

    def send_signs(self) -> None:
        """Send a sign of life for each message, and warn if the one before was too long ago."""
        kept = self._kept
        if kept is None:
            return
        try:
            connection = self._connect(_PATIENCE)
            # A connection that is down would send the signs after the next login, and only then.
            connection.wait(_PATIENCE)
            connection.post_all(kept.subjects, IN_PROGRESS)
            # The server answers the ping after it has taken the signs.
            connection.check(_PATIENCE)
        except JetStreamError as error:
            log.info("signs of life of %d reserved messages: %s", len(kept.subjects), error)
            return
        self._heard(kept, self._clock())

    def _heard(self, kept: _Kept, now: float) -> None:
        """Note that the server hears of messages now, and warn if it has waited too long."""
        silence = now - kept.heard
        kept.heard = now
        if silence > kept.lapse:
            log.warning(
                "the server has not heard of %d reserved messages for %.0f s, and waits %g s "
                "(ack_wait): other clients may have received them, and process them as well",
                len(kept.subjects),
                silence,
                kept.lapse,
            )
