"""The streams that rows of a task go to, as its ledger entry notes them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from spark_jetstream.client.requests import Requests, settled_info
from spark_jetstream.protocol.stream import StreamSummary, subject_pattern


class NotedStreams:
    """The noted streams of a task, and what decides about rows there.

    `duplicate_window` is the shortest one of the streams, in seconds. `renaming` has the streams
    that store messages under other subjects than theirs. Methods raise what `Requests.call` does.
    """

    def __init__(self, requests: Requests) -> None:
        self.duplicate_window = float("inf")
        self.renaming: set[str] = set()
        self._requests = requests
        self._subjects: dict[str, re.Pattern[str]] = {}

    def state(self, name: str) -> StreamSummary:
        """Return the state of a stream, noted or not."""
        context = f"read the state of stream {name}, which delivery exactly-once needs"
        state = self._requests.stream(name, context)
        if state.followed:
            return state
        # A server that led the stream before names an end that is too early.
        return self._requests.call(partial(settled_info, name=name, context=context))

    def add(self, state: StreamSummary) -> None:
        """Keep what decides about rows in a stream that is noted."""
        self.duplicate_window = min(self.duplicate_window, state.duplicate_window)
        self._subjects[state.name] = subject_pattern(state.subjects)
        if state.transforms:
            self.renaming.add(state.name)

    def captures(self, name: str, subject: str) -> bool:
        """Whether a noted stream captures a subject."""
        return self._subjects[name].fullmatch(subject) is not None

    def any_captures(self, subject: str) -> bool:
        """Whether a subject is captured by any of the noted streams."""
        return any(pattern.fullmatch(subject) for pattern in self._subjects.values())


def end_of(state: StreamSummary) -> dict[str, Any]:
    """Return the note of where a stream ends, before the first row goes there."""
    return {"created": state.created, "next": state.last_seq + 1}
