"""What to read, from where to where, and in what portions: the options of a source as one frozen model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.base import Options, build, fields_of
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.specs import (
    CONNECTION_OPTIONS,
    NOT_MADE,
    SOURCE_OPTIONS,
    OnConflict,
    given_options,
    refuse_elsewhere,
)
from spark_jetstream.options.values import hidden
from spark_jetstream.schema import BUCKET_COLUMNS, COLUMNS, OBJECT_COLUMNS, Column

#: What has no meaning for a bucket, with what is meant instead.
_NOT_FOR_BUCKETS = {
    "subjects": "use keys",
    "includeHeaders": "its rows have no headers",
    "ensureStream": NOT_MADE.format("kv"),
}
_NOT_FOR_OBJECTS = {
    "subjects": "use pathGlobFilter",
    "includeHeaders": "leave headers out of the schema",
    "filterPushdown": "use pathGlobFilter",
    "ensureStream": NOT_MADE.format("object"),
}
_POSITIONS = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")

Positions = Literal["earliest", "latest"] | tuple[tuple[str, int], ...]


class SourceOptions(Options):
    """What to read, from where to where, and in what portions.

    ``starting_offsets`` and ``ending_offsets`` are a word, or (stream, sequence) pairs, one for each of
    ``streams`` (or for the bucket) and sorted by name: the first sequence to read, and the first not to read.
    ``starting_timestamp``, when set, wins over ``starting_offsets``, and ``ending_timestamp`` over ``ending_offsets``.
    ``subjects`` is empty when nothing is filtered. Just one of ``streams``, ``bucket`` and ``object_bucket`` is set;
    `read_streams` are the streams behind any of them. ``ensure_stream`` is JSON, or the path of a file.
    """

    connection: ConnectionOptions = Field(default_factory=ConnectionOptions)
    streaming: bool
    streams: tuple[str, ...] = ()
    bucket: str | None = None
    object_bucket: str | None = None
    subjects: tuple[str, ...] = ()
    starting_offsets: Positions = "earliest"
    starting_timestamp: int | None = None
    ending_offsets: Positions = "latest"
    ending_timestamp: int | None = None
    fail_on_data_loss: bool = True
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_messages_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    min_partitions: int = 1
    max_messages_per_partition: int = 100_000
    fetch_batch: int = 20_000
    fetch_max_bytes: int = 8 * 1024 * 1024
    fetch_timeout: float = 30.0
    include_headers: bool = True
    read_with: Literal["consumer", "direct"] = "consumer"
    durable: str | None = None
    filter_pushdown: bool = False
    keys: tuple[str, ...] = ()
    history: bool = False
    path_glob_filter: str | None = None
    content_off: bool = False
    ensure_stream: str | None = None
    ensure_stream_on_conflict: OnConflict = "error"

    @classmethod
    def from_spark(cls, mapping: Mapping[str, object], *, streaming: bool) -> SourceOptions:
        """The options of a source, ``connection`` included, for a stream or for a batch.

        Names match in any case. Raises `OptionError` for whatever is wrong, unknown names first.
        """
        mapping = hidden(mapping)
        given = given_options(mapping, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))
        refuse_elsewhere(given, "source", streaming=streaming)
        if not {"stream", "bucket", "objectBucket"} & given.keys():
            raise OptionError(
                "option stream is required: the name of the stream to read (or bucket, or objectBucket)",
                option="stream",
            )
        connection = ConnectionOptions.from_given(given)
        return build(cls, {**fields_of(given, SOURCE_OPTIONS), "streaming": streaming, "connection": connection})

    @property
    def read_streams(self) -> tuple[str, ...]:
        """The streams to read; that of a bucket has a name made of the bucket's (ADR-8, ADR-20)."""
        if self.bucket is not None:
            return (f"KV_{self.bucket}",)
        return self.streams if self.object_bucket is None else (f"OBJ_{self.object_bucket}",)

    def named(self, stream: str) -> str:
        """What the user calls one of `read_streams`."""
        return self.bucket or self.object_bucket or stream

    @property
    def table(self) -> bool:
        """Whether a bucket is read as it is now, and not by its revisions."""
        return not self.streaming and (self.object_bucket is not None or (self.bucket is not None and not self.history))

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """The columns that there are."""
        if self.bucket is not None:
            return BUCKET_COLUMNS
        return COLUMNS if self.object_bucket is None else OBJECT_COLUMNS

    @model_validator(mode="after")
    def _check_kind(self) -> SourceOptions:
        given = self.given()
        kind = "bucket" if self.bucket is not None else "objectBucket"
        refused = {"bucket": _NOT_FOR_BUCKETS, "objectBucket": _NOT_FOR_OBJECTS}[kind]
        if self.streams:
            return self
        for name, instead in refused.items():
            if name in given:
                raise OptionError(f"option {name} has no meaning with {kind}: {instead}", option=name)
        if not self.table:
            return self
        also = ("minPartitions", "maxMessagesPerPartition") if kind == "bucket" else ()
        for name in (*_POSITIONS, *also):
            if name in given:
                hint = "; history=true reads its revisions" if kind == "bucket" else ""
                raise OptionError(
                    f"option {name} has no meaning for a batch with {kind}, which is read as it is now{hint}",
                    option=name,
                )
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> SourceOptions:
        if not self.streaming and self.starting_offsets == "latest":
            raise OptionError(
                "option startingOffsets cannot be latest when reading a batch: nothing would be read",
                option="startingOffsets",
            )
        start = self._check_streams("startingOffsets", self.starting_offsets)
        end = self._check_streams("endingOffsets", self.ending_offsets)
        if self.starting_timestamp is not None:
            if self.ending_timestamp is not None and self.ending_timestamp < self.starting_timestamp:
                raise OptionError("option endingTimestamp is before startingTimestamp", option="endingTimestamp")
            return self
        for stream, first in start.items():
            if end.get(stream, first) < first:
                raise OptionError(
                    f'option endingOffsets stops "{stream}" before {end[stream]}, '
                    f"but startingOffsets begins at {first}",
                    option="endingOffsets",
                )
        return self

    def _check_streams(self, option: str, positions: Positions) -> dict[str, int]:
        if isinstance(positions, str):
            return {}
        found = dict(positions)
        what, kind = ("stream", "stream") if self.streams else ("bucket", "bucket" if self.bucket else "objectBucket")
        named = [self.named(stream) for stream in self.read_streams]
        for name in found:
            if name not in named:
                raise OptionError(f'option {option} names {what} "{name}", which option {kind} does not', option=option)
        for name in named:
            if name not in found:
                raise OptionError(f'option {option} gives no sequence for {what} "{name}"', option=option)
        return found

    @model_validator(mode="after")
    def _check_portions(self) -> SourceOptions:
        least, most = self.min_messages_per_trigger, self.max_messages_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"option minMessagesPerTrigger ({least}) is larger than maxMessagesPerTrigger ({most})",
                option="minMessagesPerTrigger",
            )
        return self
