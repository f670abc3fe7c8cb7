"""The messages of streams, one row each."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_jetstream.protocol.columns import MessageRun, record_batch
from spark_jetstream.source.kinds.kind import MessageKind


class StreamMessages(MessageKind):
    """The messages of the streams that the options name or find."""

    def batch(self, messages: MessageRun, stream: str, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the messages with the named columns of `schema.COLUMNS`."""
        return record_batch(
            messages, columns=columns, with_headers=self.options.include_headers, stream=stream
        )
