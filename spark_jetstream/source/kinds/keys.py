"""The keys of a Key-Value bucket: their current values as a table, or all their revisions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_jetstream.buckets.kv import bucket_batch
from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.client.requests import Requests
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.source.kinds.kind import Driver, MessageKind, TaskInput
from spark_jetstream.source.kinds.tables import refuse_direct, table_part


class BucketKeys(MessageKind):
    """The keys of the bucket that option bucket names."""

    # A bucket removes revisions by its history and its TTL, and when a key is purged.
    replaces = True

    def __init__(self, options: SourceOptions) -> None:
        """Take the options of a query."""
        super().__init__(options)
        assert options.bucket is not None
        self.bucket = options.bucket
        # A table has no row for a key that was deleted or purged.
        self.live_only = options.table

    def with_filters(self, requests: Requests) -> SourceOptions:
        """Return the options with the subjects of the keys to read.

        Raises what `find_bucket` raises.
        """
        _, subjects = find_bucket(requests, self.bucket, self.options.keys)
        return self.options.model_copy(update={"subjects": subjects})

    def plan_batch(self, driver: Driver) -> Sequence[TaskInput]:
        """Return one task for the table, or the ranges of all revisions with history."""
        if not self.options.table:
            return driver.plan_ranges()
        state, subjects = find_bucket(driver.requests, self.bucket, self.options.keys)
        part = table_part(self, state, subjects)
        refuse_direct(self, state, "revision of a key")
        return [part]

    def batch(self, messages: MessageRun, stream: str, columns: Sequence[str]) -> pa.RecordBatch:
        """Return revisions with the named columns of `schema.BUCKET_COLUMNS`.

        A table has only those that put a value.
        """
        del stream
        return bucket_batch(messages, bucket=self.bucket, columns=columns, live_only=self.live_only)
