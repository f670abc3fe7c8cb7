"""The search for rows of a batch that the noted streams have stored already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import DeliveryError
from spark_jetstream.protocol.arrow import IntArray
from spark_jetstream.protocol.conventions import ledger_label
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.id_reader import IdReader
from spark_jetstream.sink.ledger_streams import NotedStreams
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.stored_ids import StoredIds

StoredRows = dict[str, tuple[IntArray, IntArray]]
"""By stream: the indices of rows that it has stored, and the sequences of their messages."""


class BatchSearch:
    """Reads which rows of the batch of a task its noted streams have stored.

    `own_ids`: rows may have ids of the user's. `scheduled`: rows may be schedules, which the server
    removes when it has published them. `attempt` names the consumers. Methods raise what
    `Requests.call` does.
    """

    def __init__(
        self, requests: Requests, streams: NotedStreams, task: WriteTask, attempt: str
    ) -> None:
        self.own_ids = False
        self.scheduled = False
        self._streams = streams
        self._task = task
        self._prefix = task.prefix.encode()
        self._reader = IdReader(requests, ledger_label(attempt))

    def nothing(self) -> StoredIds:
        """Return an empty account of the ids that a stream has stored."""
        return StoredIds(self._prefix, own=self.own_ids)

    def read(self, state: StreamSummary, first: int, stored: StoredIds) -> None:
        """Add the ids of the messages from sequence `first` to the last one of `state`."""
        self._reader.read(state, first, stored)

    def read_since(
        self, name: str, note: Mapping[str, Any], first: int, stored: StoredIds
    ) -> tuple[StreamSummary, int]:
        """Add the ids from the noted sequence on, or from `first` if that is later.

        Return the state of the stream, and the sequence at which reading began. Raises
        `DeliveryError` if the stream has removed messages since.
        """
        state = self._streams.state(name)
        first = max(first, int(note["next"]))
        if state.created != note["created"]:
            # The stream was deleted and made again: it has lost what was stored.
            first = 1
        elif state.first_kept > first and not self._published_only(state):
            raise DeliveryError(
                f"stream {name} has removed messages from sequence {first} to "
                f"{state.first_kept - 1} since {self._task.where} was begun: the sink cannot tell "
                "which of its rows are stored (option delivery); keep messages longer, or let this "
                "batch through with deduplicated"
            )
        self.read(state, first, stored)
        if self.scheduled:
            # A schedule that was published meanwhile, before it was read, is gone: its message
            # comes after the end.
            end = state.last_seq
            state = self._streams.state(name)
            self.read(state, end + 1, stored)
        return state, first

    def _published_only(self, state: StreamSummary) -> bool:
        """Whether the server has removed nothing but schedules, which it has published."""
        return self.scheduled and state.max_age <= 0 and not state.evicts

    def rows_in(
        self,
        stored: Mapping[str, StoredIds],
        ids: pa.BinaryArray,
        subjects: pa.BinaryArray,
        stream: str | None,
    ) -> StoredRows:
        """Return which of these rows the streams have stored.

        `stream` is the only one that may store them, if that is known.
        """
        found: StoredRows = {}
        # A row is in one stream at most.
        left = np.ones(len(ids), np.bool_)
        for name, known in stored.items():
            sequences = known.find(ids)
            here = (sequences > 0) & left
            if self.own_ids:
                for index in np.flatnonzero(here).tolist():
                    message_id = ids[index].as_py()
                    subject = subjects[index].as_py()
                    here[index] = self._is_row(message_id, subject, name, stream)
            left &= ~here
            indices = np.flatnonzero(here)
            if len(indices):
                found[name] = indices, sequences[indices]
        return found

    def _is_row(self, message_id: bytes, subject: bytes, name: str, stream: str | None) -> bool:
        """Whether the message that stream `name` has with an id is the row with this id.

        Users use one id in two streams.
        """
        if self._task.has_made(message_id):
            return True
        if stream is not None:
            return name == stream
        return self._streams.captures(name, subject.decode("utf-8", "replace"))


@dataclass
class _Searched:
    """The ids of the batch that a stream has, up to a sequence."""

    ids: StoredIds
    last: int


class EarlierRows:
    """The rows that earlier attempts of the task, or earlier runs of its batch, have stored.

    `stragglers` is how long a stream may still store what an earlier attempt has sent, in seconds.
    """

    def __init__(
        self,
        search: BatchSearch,
        streams: NotedStreams,
        stragglers: float,
        clock: Callable[[], float],
    ) -> None:
        self._search = search
        self._streams = streams
        self._stragglers = stragglers
        self._clock = clock
        self._stored: dict[str, _Searched] = {}
        self._taken_over = float("inf")
        self._last_search = float("inf")

    def __len__(self) -> int:
        return sum(len(searched.ids) for searched in self._stored.values())

    def begin(self) -> None:
        """Note that this attempt takes the task over now: others send nothing more."""
        self._taken_over = self._clock()
        self._last_search = self._taken_over

    def add(self, name: str, ids: StoredIds, last: int) -> None:
        """Add the ids that a stream has up to sequence `last`."""
        self._stored[name] = _Searched(ids, last)

    def find(self, ids: pa.BinaryArray, subjects: pa.BinaryArray, stream: str | None) -> StoredRows:
        """Return which of these rows are among them. See `BatchSearch.rows_in`."""
        stored = {name: searched.ids for name, searched in self._stored.items()}
        return self._search.rows_in(stored, ids, subjects, stream)

    def search_again(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        """Search for rows that the earlier attempt had in flight.

        To be called before this attempt sends rows whose ids the streams may have forgotten. The
        last search is so late that no row can come after it.
        """
        now = self._clock()
        window = self._streams.duplicate_window
        if now - self._last_search < window / 2:
            return
        if self._last_search - self._taken_over > window + self._stragglers:
            return
        self._last_search = now
        for name, searched in self._stored.items():
            state, _ = self._search.read_since(name, notes[name], searched.last + 1, searched.ids)
            searched.last = state.last_seq
