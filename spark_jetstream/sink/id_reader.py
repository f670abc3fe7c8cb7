"""Reads the message ids of a stream: which rows of a batch it holds, whoever has stored them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import OutageError
from spark_jetstream.protocol.arrow import as_vector, binaries
from spark_jetstream.protocol.columns import Delivered
from spark_jetstream.protocol.conventions import SCHEDULED_ID
from spark_jetstream.protocol.headers import decode_headers
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.sink.stored_ids import GUARDED, SCHEDULED, Marks, StoredIds
from spark_jetstream.streams.lookup import next_message
from spark_jetstream.streams.pull import PullSettings, read_range

_IDS = binaries([b"Nats-Msg-Id", SCHEDULED_ID.encode()])
_OF_SCHEDULES = binaries([b"Nats-Schedule", SCHEDULED_ID.encode()])
_OF_GUARDS = binaries([b"Nats-Expected-Last-Subject-Sequence", b"Nats-Batch-Id"])
# Of one pull request.
_MESSAGES = 20_000
_BYTES = 8 * 1024 * 1024


class IdReader:
    """Reads streams by consumers whose names begin with `label`.

    Methods raise what `Requests.call` does.
    """

    def __init__(self, requests: Requests, label: str) -> None:
        self._requests = requests
        self._label = label

    def read(self, state: StreamSummary, first: int, stored: StoredIds) -> None:
        """Add the ids of the messages from sequence `first` to the last one of `state`.

        Raises `OutageError` if the stream cannot be read up to there within `retryTimeout`.
        """
        deadline = Deadline(self._requests.retry_timeout)
        at = first
        while at <= state.last_seq:
            unread_part = SequenceRange(state.name, at, state.last_seq + 1, None, state.created)
            at = self._scan(unread_part, stored) + 1
            if at > state.last_seq:
                return
            # The last messages were removed, or a replica that lags behind served the reader: only
            # the leader knows.
            unread = self._requests.call(
                partial(next_message, stream=state.name, subject=">", sequence=at)
            )
            if unread is None:
                return
            if deadline.expired:
                raise OutageError(
                    f"stream {state.name} cannot be read up to sequence {state.last_seq} within "
                    f"{deadline.seconds:g} s (option retryTimeout): a replica lags behind"
                )
            at = unread.sequence

    def _scan(self, part: SequenceRange, stored: StoredIds) -> int:
        """Add the ids of a range.

        Return the last sequence that was read, or the one before the range if there was none.
        """
        settings = PullSettings(
            batch=_MESSAGES,
            max_bytes=_BYTES,
            expires=30.0,
            retry_timeout=self._requests.retry_timeout,
            fail_on_data_loss=False,
            headers_only=True,
        )
        last = part.first - 1
        for pulled in read_range(self._requests.connect, part, settings, self._label):
            last = int(pulled.sequences[-1])
            _add(pulled, stored)
        return last


def _add(pulled: Delivered, stored: StoredIds) -> None:
    frames = pulled.frames
    # As bytes: an id need not be UTF-8.
    headers = decode_headers(frames.data, frames.line_end, frames.head, raw=True)
    names = headers.keys
    # The index of its message for each header.
    parents = as_vector(pc.list_parent_indices(pa.ListArray.from_arrays(headers.offsets, names)))
    marks: Marks = np.zeros(len(pulled), np.uint8)
    for header_names, mark in ((_OF_SCHEDULES, SCHEDULED), (_OF_GUARDS, GUARDED)):
        marked = as_vector(pc.is_in(names, value_set=header_names))
        marks[parents[marked]] |= mark
    # A header has a list of values, and a value the index of its header among the chosen ones.
    chosen = pc.indices_nonzero(pc.is_in(names, value_set=_IDS))
    values = headers.items.take(chosen)
    rows = parents[as_vector(chosen)][as_vector(pc.list_parent_indices(values))]
    stored.add(pc.list_flatten(values), pulled.sequences[rows], marks[rows])
