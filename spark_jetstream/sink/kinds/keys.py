"""Rows as values of a Key-Value bucket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from spark_jetstream.buckets.kv import stream_name
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import OptionError
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.stream import stream_summary
from spark_jetstream.sink.fitness import refuse_key_stream
from spark_jetstream.sink.kinds.kind import Fields, SinkKind
from spark_jetstream.sink.kv import BucketColumns
from spark_jetstream.sink.kv_task import write_bucket
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.preflight import NEWER_COLUMNS, StartCheck, check_start
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.stream_warnings import warn_of_lost_rows
from spark_jetstream.sink.target import KeyBucket


class KeySink(SinkKind):
    """A Key-Value bucket. `bucket` has its names, and what `start` has seen of it."""

    option: ClassVar[str] = "bucket"

    def __init__(self, options: SinkOptions, fields: Fields) -> None:
        super().__init__(options)
        self.columns = BucketColumns.check(fields)
        self.bucket = KeyBucket()

    def refuse_ids_of_partitions(self, engine: str) -> None:
        if self.options.delivery != "at-least-once":
            raise OptionError(
                f"option delivery cannot be {self.options.delivery} with bucket on {engine}: it "
                "does not number its tasks, so a row that is written again would have another "
                "message id; set it to at-least-once, which makes one more revision with the same "
                "value",
                option="delivery",
            )

    def start(self, connect: Connect) -> None:
        needs = self.columns.with_values(NEWER_COLUMNS)
        # The configuration of a mirror says where rows go, so an election fails the check.
        self.bucket = check_start(
            connect, self.options, self._check, needs, in_elections=True, timing=self.timing
        )

    def write(
        self, batches: Iterable[pa.RecordBatch], connect: Connect, task: WriteTask
    ) -> TaskReport:
        return write_bucket(
            batches,
            connect,
            self.options,
            self.columns,
            self.bucket,
            task,
            timing=self.timing,
        )

    def _check(self, check: StartCheck) -> KeyBucket:
        """Check the bucket that stores the rows, and return it.

        A bucket that the account cannot see counts as one that is no mirror.
        """
        name = self.options.bucket or ""
        info = check.visible(
            lambda: check.info(stream_name(name), self.option, f"Key-Value bucket {name}")
        )
        mirror = (info or {}).get("config", {}).get("mirror")
        bucket = KeyBucket.of(name, check.prefix, mirror)
        origin = bucket.origin
        if info is not None and origin.bucket != name:
            # The rows go to the bucket that this one is a mirror of.
            what = f"Key-Value bucket {origin.bucket}, which bucket {name} is a mirror of"
            info = check.visible(
                lambda: check.info(origin.stream, self.option, what, bucket.api_prefix)
            )
        if info is not None:
            state = stream_summary(info, f"read bucket {origin.bucket}")
            refuse_key_stream(state, bucket)
            bucket = replace(bucket, history=state.max_msgs_per_subject != 1)
            warn_of_lost_rows(state, self.options)
        check.dead_letters()
        return bucket
