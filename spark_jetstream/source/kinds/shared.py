"""The messages of a shared consumer, one row each: the driver has fetched them (`source.shared`)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_jetstream.source.kinds.kind import Access, TaskInput
from spark_jetstream.source.kinds.messages import StreamMessages
from spark_jetstream.source.shared.rows import SharedRows


class SharedMessages(StreamMessages):
    """The messages that a query takes from the consumer of option share."""

    def read(self, part: TaskInput, access: Access) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a part carries."""
        del access
        assert isinstance(part, SharedRows)
        return part.batches()
