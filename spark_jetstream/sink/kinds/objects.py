"""Rows as objects of an Object Store bucket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pyarrow as pa

from spark_jetstream.buckets.object_stream import ObjectStream, writing_fault
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import OptionError
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.kinds.kind import Fields, SinkKind
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.objects import HINT, ObjectColumns, write_objects
from spark_jetstream.sink.preflight import StartCheck, check_start
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.stream_warnings import warn_of_lost_rows


class ObjectSink(SinkKind):
    """An Object Store bucket."""

    option: ClassVar[str] = "objectBucket"
    # Objects come one at a time: many at once would need their memory.
    batch_rows: ClassVar[int] = 1

    def __init__(self, options: SinkOptions, fields: Fields) -> None:
        super().__init__(options)
        self.columns = ObjectColumns.check(fields)

    def start(self, connect: Connect) -> None:
        check_start(connect, self.options, self._check, timing=self.timing)

    def write(
        self, batches: Iterable[pa.RecordBatch], connect: Connect, task: WriteTask
    ) -> TaskReport:
        return write_objects(batches, connect, self.options, self.columns, task)

    def _check(self, check: StartCheck) -> None:
        name = self.options.object_bucket or ""
        requests = check.requests
        bucket = ObjectStream(requests.connect, name, requests.retry_timeout, HINT)
        state = check.visible(bucket.state)
        if state is None:
            return
        problem = writing_fault(state, name)
        if problem:
            raise OptionError(f"option objectBucket: {name} {problem}", option=self.option)
        warn_of_lost_rows(state, self.options)
