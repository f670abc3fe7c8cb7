"""The table of a Key-Value bucket as it was at a revision or a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.source.as_of import PastTable, plan_past, read_past
from spark_jetstream.source.kinds.keys import BucketKeys
from spark_jetstream.source.kinds.kind import Access, Driver, TaskInput
from spark_jetstream.source.kinds.tables import table_part


class PastKeys(BucketKeys):
    """The keys of a bucket as of the options asOfRevision or asOfTimestamp."""

    def plan_batch(self, driver: Driver) -> Sequence[TaskInput]:
        """Return one task, which reads the table and proves it."""
        state, subjects = find_bucket(driver.requests, self.bucket, self.options.keys)
        part = table_part(self, state, subjects)
        return [plan_past(part, driver.requests, state, self.options)]

    def pull(self, part: TaskInput, access: Access) -> Iterator[MessageRun]:
        """Yield the last message of each key. Raises what `read_past` raises."""
        assert isinstance(part, PastTable)
        return read_past(access.connect, part, self.settings(access.columns), access.label)
