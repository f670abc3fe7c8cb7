"""The objects of an Object Store bucket: a table of the present ones, or each new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.client.requests import Requests
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.advice import advice
from spark_jetstream.source.kinds.kind import Access, Driver, ReadKind, TaskInput
from spark_jetstream.source.kinds.tables import table_part
from spark_jetstream.source.object_reader import ObjectRows
from spark_jetstream.source.objects import ObjectGroup, plan_objects


class BucketObjects(ReadKind):
    """The objects of the bucket that option objectBucket names."""

    # An object has one meta message, which is read, and one message for each chunk of its content.
    chunked = True
    # A new version of an object removes the one before it.
    replaces = True

    def __init__(self, options: SourceOptions) -> None:
        """Take the options of a query."""
        super().__init__(options)
        assert options.object_bucket is not None
        self.bucket = options.object_bucket

    def with_filters(self, requests: Requests) -> SourceOptions:
        """Return the options with the subject of meta messages.

        Raises what `find_bucket` raises.
        """
        _, subjects = find_bucket(requests, self.bucket, None)
        return self.options.model_copy(update={"subjects": subjects})

    def plan_batch(self, driver: Driver) -> Sequence[TaskInput]:
        """Return the tasks that read the objects of now. Raises what `plan_objects` raises."""
        state, subjects = find_bucket(driver.requests, self.bucket, None)
        part = table_part(self, state, subjects)
        settings = self.settings(driver.columns)
        with advice():
            return plan_objects(
                driver.connect, part, settings, driver.label, self.options, driver.columns
            )

    def read(self, part: TaskInput, access: Access) -> Iterator[pa.RecordBatch]:
        """Yield the rows of objects. Raises what `ObjectRows` raises."""
        settings = self.settings(access.columns)
        objects = ObjectRows(access.connect, settings, access.label, self.options, access.columns)
        if isinstance(part, ObjectGroup):
            return objects.of_group(part)
        assert isinstance(part, SequenceRange)
        return objects.of_range(part)
