"""Listeners: whether a stream captures the subject of a row, as far as the server says."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Set

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import stream_info
from spark_jetstream.errors import JetStreamError, PermissionDenied
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.timing import WriteTiming
from spark_jetstream.sink.window import InFlight
from spark_jetstream.streams.lookup import streams_of, why_silent

log = logging.getLogger(__name__)

_NEVER = float("-inf")
_UNKNOWN = (math.inf, _NEVER)  # times from when until when: no time is between them


class Listeners:
    """Asks which streams capture the subjects of one task, and remembers what the server said."""

    def __init__(self, connection: Connection, target: Target, timing: WriteTiming) -> None:
        self._connection = connection
        self._target = target
        self._clock = timing.clock
        self._valid = timing.subject_known
        #: Streams that have answered, each with its domain, "" for none.
        self._streams: set[tuple[str, str]] = set()
        #: From when until when these had leaders, as far as known; nothing is known at first.
        self._led = _UNKNOWN
        # What the JetStream API says of subjects, by API prefix and subject:
        #: No stream captures it; emptied with new answers.
        self._no_stream: set[tuple[str | None, str]] = set()
        #: When the API named a stream.
        self._captured: dict[tuple[str | None, str], float] = {}
        #: When the API named none, and a stream may have been away when the row was sent.
        self._unproven: dict[tuple[str | None, str], float] = {}
        # When an API, by its prefix, gave no answer; and those that the account may not ask.
        self._failed: dict[str | None, float] = {}
        self._forbidden: set[str | None] = set()

    def note_answers(self, streams: Set[tuple[str, str]]) -> None:
        """Forget which subjects no stream captures.

        The server has sent new answers, from these streams and domains.
        """
        self._no_stream.clear()
        self._streams |= streams

    def capturing(self, target: Target, subject: str) -> list[str]:
        """Return the names of the streams that capture a subject.

        Raises what `Connection.api` raises.
        """
        # STREAM.NAMES knows the subjects as the stream stores them, which a bucket behind a domain
        # or in another account renames.
        return streams_of(self._connection, target.stored_at(subject), prefix=target.api_prefix)

    def nobody_listens(self, subject: str, since: float, *, too_long: bool) -> bool:
        """Whether no stream captures a subject. Asks once a second.

        The streams must have had leaders `since` this time, when the row was sent; with infinity it
        counts which have leaders now. If the account may not ask, no stream captures the subject
        once it takes `too_long`.
        """
        prefix = self._target.at(subject).api_prefix
        if not self._is_known(prefix, subject, since):
            self._ask(subject, since)
        # Rows that went over the link of a leaf node, to another domain, find no stream when the
        # link is gone, and the server then knows only the streams of its own domain.
        near = {"", self._connection.server_info.get("domain")}
        if prefix is None and any(domain not in near for _, domain in self._streams):
            return False
        # An account without the right to ask can only wait, as long as an outage may last.
        if too_long and prefix in self._forbidden:
            return True
        return (prefix, subject) in self._no_stream

    def _is_known(self, prefix: str | None, subject: str, since: float) -> bool:
        """Whether the server need not be asked about a subject now."""
        key = (prefix, subject)
        if key in self._no_stream:
            return True
        asked = max(self._failed.get(prefix, _NEVER), self._captured.get(key, _NEVER))
        # A doubt about the time when a row was sent says nothing about the leaders of now.
        if since != math.inf:
            asked = max(asked, self._unproven.get(key, _NEVER))
        return self._clock() - asked < self._valid

    def _ask(self, subject: str, since: float) -> None:
        """Ask the server whether a stream captures a subject; `since` as in `nobody_listens`."""
        target = self._target.at(subject)
        prefix = target.api_prefix
        began = self._clock()
        try:
            # The server does not name a stream that a mapping brings rows to: so the streams of the
            # task must have had leaders when the row was sent.
            captured = bool(self.capturing(target, subject))
            if not captured and self._had_leaders(since, prefix):
                self._no_stream.add((prefix, subject))
                return
        except JetStreamError as error:
            # An election, most likely: the API, or a stream, has no leader either.
            log.info("%s", error)
            # No answer proves nothing (test_an_api_that_does_not_answer_proves_nothing).
            self._failed[prefix] = self._clock()
            if isinstance(error, PermissionDenied):
                self._forbidden.add(prefix)
            else:
                self._forbidden.discard(prefix)
            return
        # Rows may have any number of subjects, so old answers are dropped here.
        self._captured = _later_than(began - self._valid, self._captured)
        self._unproven = _later_than(began - self._valid, self._unproven)
        answers = self._captured if captured else self._unproven
        answers[prefix, subject] = self._clock()

    def _had_leaders(self, at: float, prefix: str | None) -> bool:
        """Whether the streams that have answered, and the target's, had leaders at this time.

        A stream that the account may not see, or that is gone, is left out. Raises the error of one
        that does not answer at once.
        """
        names = {name for name, _ in self._streams}
        if self._target.stream:
            names.add(self._target.stream)
        if not names:
            return True
        first, last = self._led
        # Only an answer of the streams after the row was sent says anything about that time.
        if at > last:
            self._led = _UNKNOWN  # unless all of them answer
            for name in names:
                try:
                    stream_info(self._connection, name, prefix=prefix, timeout=self._valid)
                except JetStreamError as error:
                    # The stream may be in an election. Other errors last:
                    # the account may not see it, or it is gone.
                    if error.retriable:
                        raise
            now = self._clock()
            first = min(first, now)
            self._led = (first, now)
        # A row that was sent before the streams answered again is sent once more
        # (test_the_stream_of_mapped_subjects_comes_back_between_a_refusal_and_the_question).
        return first <= at

    def why_silent(self, flight: InFlight, index: int, now: float) -> str:
        """Return why a row got no answer, as far as the server says."""
        subject = flight.portion.members(index)[-1].subject
        target = self._target.at(subject)
        return why_silent(
            self._connection,
            target.stored_at(subject),
            now - flight.sent,
            None if flight.portion.any_stream else target.stream,
            prefix=target.api_prefix,
        )


def _later_than(
    earliest: float, answers: Mapping[tuple[str | None, str], float]
) -> dict[tuple[str | None, str], float]:
    """Return the answers that were given after a time."""
    return {key: given for key, given in answers.items() if given > earliest}
