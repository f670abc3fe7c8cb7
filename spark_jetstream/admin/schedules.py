"""Schedules: messages that the server publishes later. ADR-51 "JetStream Message Scheduler"."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_jetstream.admin.api import Api, publish_subject, subject_filter
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import LABEL, settings
from spark_jetstream.errors import JetStreamError, MessageNotFound
from spark_jetstream.protocol.schedules import (
    NEXT,
    PATTERN,
    SCHEDULER,
    is_interval,
    next_due,
    repeats,
)
from spark_jetstream.protocol.units import Timestamp, parse_time
from spark_jetstream.streams.latest import TablePart, read_table

_NO_SCHEDULE = 10037  # error code of a message that does not exist


@dataclass(frozen=True)
class Schedule:
    """A schedule as its message has it.

    ``pattern`` is the time (``@at …``), interval (``@every …``) or cron table, ``target`` the
    subject to which the server publishes. ``ttl``, ``time_zone``, ``source`` and ``rollup`` are
    empty if they are not set.
    """

    stream: str
    subject: str
    seq: int
    time: Timestamp
    """When the schedule was stored."""
    pattern: str
    target: str
    ttl: str
    time_zone: str
    source: str
    rollup: str
    repeats: bool
    """Whether the server keeps the schedule when it has published it."""
    due: Timestamp | None
    """When the server publishes next, in UTC. A time that has passed means that it is late.

    None where that is unknown: this machine does not know the time zone, or the pattern.
    """
    exact: bool
    """Whether ``due`` is certain.

    The next end of an interval is certain if the last message at the target is that of the
    schedule. Otherwise it is computed from the time at which the schedule was stored.
    """


class _Latest(NamedTuple):
    """The last message of a subject, without its payload."""

    subject: str
    seq: int
    time: Timestamp
    headers: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, message: StoredMessage) -> _Latest:
        return cls(message.subject, message.seq, message.time, message.headers)

    def first(self, name: str) -> str:
        """Return the first value of a header; empty without one."""
        values = self.headers.get(name)
        return values[0] if values else ""


class _Upcoming:
    """The times of the next messages, as the last messages that the server has published say."""

    def __init__(self) -> None:
        # The sequence of the message, and the time, by the subject of the schedule.
        self._announced: dict[str, tuple[int, int]] = {}

    def note(self, message: _Latest) -> None:
        """Note the time that a message announces, if any."""
        upcoming = parse_time(message.first(NEXT))
        if upcoming:
            self._announced[message.first(SCHEDULER)] = message.seq, upcoming

    def time(self, schedule: _Latest) -> int | None:
        """Return the announced time of a schedule in nanoseconds, None if it is not known."""
        seq, upcoming = self._announced.get(schedule.subject, (0, 0))
        # Before that there was another schedule at its subject.
        return upcoming if seq > schedule.seq else None


class Schedules:
    """The schedules of an account; ``admin.schedules``.

    Schedules are the last messages of their subjects in streams with ``allow_msg_schedules``. All
    methods raise what `Api` raises, `StreamNotFound`, and `OptionError` for an argument that cannot
    be one.
    """

    def __init__(self, api: Api, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._api = api
        self._streams = Streams(api)
        self._messages = Messages(api)
        self._clock = clock

    def list(self, stream: str, *subjects: str) -> Sequence[Schedule]:
        """Return the schedules of a stream, the next one due first.

        With ``subjects`` (wildcards allowed), only schedules at these; no two may match the same
        subject. They are looked for among the last messages of all subjects that match, and with
        another retention than limits among all messages: name subjects in a stream that has many.
        Schedules whose time is unknown come last.
        """
        filters = tuple(map(subject_filter, subjects))
        info = self._streams.load(stream)
        if not info.config.allow_msg_schedules:
            return []
        found: list[_Latest] = []
        seen: set[str] = set()
        upcoming = _Upcoming()
        for message in self._latest(info, filters):
            seen.add(message.subject)
            upcoming.note(message)
            if message.first(PATTERN):
                found.append(message)
        self._note_targets(stream, upcoming, found, seen)
        return sorted((self._schedule(stream, each, upcoming) for each in found), key=_order)

    def get(self, stream: str, subject: str) -> Schedule:
        """Return the schedule at a subject.

        Raises `MessageNotFound` if there is no message, `JetStreamError` if the last one is no
        schedule.
        """
        message = _Latest.of(self._messages.last(stream, publish_subject(subject)))
        active = self._streams.load(stream).config.allow_msg_schedules
        if not active or not message.first(PATTERN):
            lacking = "it has no header Nats-Schedule" if active else "no allow_msg_schedules"
            raise JetStreamError(
                f"the last message at {subject} in stream {stream} (sequence {message.seq}) is no "
                f"schedule: {lacking}"
            )
        upcoming = _Upcoming()
        self._note_targets(stream, upcoming, [message], set())
        return self._schedule(stream, message, upcoming)

    def remove(self, stream: str, subject: str) -> Schedule:
        """Remove the schedule at a subject: the server does not publish it any more. Return it.

        Raises what `get` raises, and `MessageNotFound` if the server has published or somebody has
        replaced the schedule meanwhile.
        """
        schedule = self.get(stream, subject)
        # Not what came to the subject since.
        removed = self._streams.purge(stream, subject=subject, sequence=schedule.seq + 1)
        if not removed:
            raise MessageNotFound(
                f"cannot remove the schedule at {subject} of stream {stream}: it was published, "
                "or replaced, meanwhile",
                code=404,
                err_code=_NO_SCHEDULE,
                description="no message found",
            )
        return schedule

    def _latest(self, info: StreamInfo, filters: Sequence[str]) -> Iterator[_Latest]:
        """Yield the last message of each subject that the filters match."""
        name = info.config.name
        if info.config.retention != "limits":
            # A consumer would acknowledge messages, or keep them.
            yield from self._latest_without_consumer(name, filters)
            return
        part = TablePart(name, info.created, tuple(filters))
        how = settings(self._api, headers_only=True)
        for messages in read_table(self._api.connect, part, how, LABEL):
            # Four columns with an item for each message; times (nanoseconds) are int64.
            rows = zip(
                messages.subjects().to_pylist(),
                messages.sequences.tolist(),
                messages.timestamps().tolist(),
                messages.headers().to_pylist(),
                strict=True,
            )
            for subject, seq, stored, headers in rows:
                yield _Latest(subject, seq, Timestamp.of(stored), dict(headers or ()))

    def _latest_without_consumer(self, name: str, filters: Sequence[str]) -> Iterator[_Latest]:
        last: dict[str, _Latest] = {}
        for subject in filters or (">",):
            for message in self._messages.read(name, subject):
                last[message.subject] = _Latest.of(message)
        yield from last.values()

    def _note_targets(
        self, stream: str, upcoming: _Upcoming, schedules: Sequence[_Latest], seen: set[str]
    ) -> None:
        """Note the messages at the targets of intervals, but those of subjects that were `seen`."""
        targets = set()
        for each in schedules:
            if is_interval(each.first(PATTERN)):
                targets.add(each.first(f"{PATTERN}-Target"))
        for target in sorted(targets - seen):
            with contextlib.suppress(MessageNotFound):
                upcoming.note(_Latest.of(self._messages.last(stream, target)))

    def _schedule(self, stream: str, message: _Latest, upcoming: _Upcoming) -> Schedule:
        pattern = message.first(PATTERN)
        zone = message.first(f"{PATTERN}-Time-Zone")
        due = next_due(
            pattern,
            zone,
            stored=message.time.nanoseconds,
            now=self._clock(),
            announced=upcoming.time(message),
        )
        return Schedule(
            stream,
            message.subject,
            message.seq,
            message.time,
            pattern,
            message.first(f"{PATTERN}-Target"),
            message.first(f"{PATTERN}-TTL"),
            zone,
            message.first(f"{PATTERN}-Source"),
            message.first(f"{PATTERN}-Rollup"),
            repeats(pattern),
            None if due is None else Timestamp.of(due.time),
            due is not None and due.exact,
        )


def _order(schedule: Schedule) -> tuple[bool, int, str]:
    """The next one due comes first, and one whose time is unknown last."""
    due = schedule.due
    return due is None, 0 if due is None else due.nanoseconds, schedule.subject
