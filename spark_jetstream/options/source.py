"""The options of a source: what to read, from where to where, and in what portions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.connection import SideOptions
from spark_jetstream.options.names import (
    CommaList,
    ConsumerNames,
    Identifier,
    KeyFilter,
    Name,
    NamePattern,
    Pair,
    Positions,
    Subject,
)
from spark_jetstream.options.specs import (
    ENSURE_STREAM,
    NOT_MADE,
    NOTHING_TO_READ,
    ON_CONFLICT,
    WHAT,
    OnConflict,
    Side,
    option,
)
from spark_jetstream.options.values import Choice, Flag, Seconds, Size, Time, Whole
from spark_jetstream.protocol.conventions import dead_letter_stream
from spark_jetstream.protocol.fitness import SHARED_MESSAGES
from spark_jetstream.protocol.stream import ReadWith
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.schema import (
    BUCKET_COLUMNS,
    COLUMNS,
    COUNTER_COLUMNS,
    DEAD_LETTER_COLUMNS,
    LISTED_COLUMNS,
    OBJECT_COLUMNS,
    TABLE_COLUMNS,
    Column,
)

# Options that mean nothing for a dataset, and the alternative or the reason.
_NOT_FOR_BUCKETS = {
    "subjects": "use keys",
    "includeHeaders": "its rows have no headers",
    "counters": "counters are in a stream",
    "ensureStream": NOT_MADE.format("kv"),
}
_NOT_FOR_OBJECTS = {
    "subjects": "use pathGlobFilter",
    "includeHeaders": "leave headers out of the schema",
    "counters": "counters are in a stream",
    "ensureStream": NOT_MADE.format("object"),
}
_NOT_FOR_COUNTERS = {"includeHeaders": "its rows have no headers"}
# Arguments of options that only one kind of query has.
_OF_BATCH: dict[str, Any] = {
    "only": "batch",
    "instead": "stop the query, or use trigger(availableNow=True)",
}
_OF_STREAM: dict[str, Any] = {
    "only": "stream",
    "instead": "bound a batch with endingOffsets or endingTimestamp",
}
_WAITING: dict[str, Any] = {
    "only": "stream",
    "instead": "a batch reads what is there when it starts",
}
_TABLE: dict[str, Any] = {"only": "batch", "instead": "read one as a batch, with spark.read"}
_POSITIONS = (
    "startingOffsets",
    "startingTimestamp",
    "startingConsumer",
    "endingOffsets",
    "endingTimestamp",
)
_TASKS = ("minPartitions", "maxMessagesPerPartition")


# The driver holds a micro-batch with option share as a whole.
_SHARED_BYTES = 64 << 20
_MOST_SHARED = 1_000_000  # that one offset holds (source.shared.held)


class Dataset(NamedTuple):
    """The dataset of a query, as far as the other options depend on it.

    ``columns`` are those of its messages. ``option`` is the name by which errors speak of it.
    ``refused`` are the options that mean nothing for it, with the alternative or the reason.

    ``table`` are the columns of a batch that reads it as it is now; none if no batch does.
    ``history`` says what ``history=true`` reads in place of that table, if it does. ``divided``:
    several tasks read one table, and the options about their number and size apply.
    """

    columns: tuple[Column, ...]
    option: str
    refused: Mapping[str, str] = {}
    table: tuple[Column, ...] = ()
    history: str = ""
    divided: bool = False


_BUCKET = Dataset(BUCKET_COLUMNS, "bucket", _NOT_FOR_BUCKETS, TABLE_COLUMNS, history="revisions")

#: The field that chooses a dataset -> the dataset. The first field with a value counts, and the
#: last one where none has a value: a pattern may find the streams. `source.kinds` reads each. A
#: field that only changes how another one is read has a row before it, and all others refuse it.
DATASETS: Mapping[str, Dataset] = {
    "as_of_revision": _BUCKET,
    "as_of_timestamp": _BUCKET,
    "bucket": _BUCKET,
    "object_bucket": Dataset(
        OBJECT_COLUMNS, "objectBucket", _NOT_FOR_OBJECTS, OBJECT_COLUMNS, divided=True
    ),
    # `EXCLUSIVE` has the options that it refuses.
    "dead_letters_of": Dataset(DEAD_LETTER_COLUMNS, "deadLettersOf"),
    "counters": Dataset(
        COUNTER_COLUMNS, "counters", _NOT_FOR_COUNTERS, COUNTER_COLUMNS, history="changes"
    ),
    "share": Dataset(COLUMNS, "share"),
    "streams": Dataset(COLUMNS, "stream"),
}

Value = TypeVar("Value", int, str)
Bound = Literal["earliest", "latest"] | tuple[tuple[str, int], ...]


class SourceOptions(SideOptions):
    """The dataset of a query, the positions to read from and to, and the size of portions.

    ``starting_offsets`` and ``ending_offsets`` are a word, or (stream, sequence) pairs: the first
    sequence to read, and the first not to read. There is a pair for each of ``streams`` (or for the
    bucket), sorted by name. ``starting_consumer`` is the name of a consumer that each stream has, or
    (stream, consumer) pairs in the same form. ``subjects`` is empty when nothing is filtered.

    Just one of ``streams``, ``bucket``, ``object_bucket`` and ``dead_letters_of`` is set, and
    `read_streams` are its streams. Otherwise the server finds the streams, by ``stream_pattern``,
    ``stream_metadata`` or both.
    """

    side: ClassVar[Side] = "source"

    # Which streams.
    streams: tuple[str, ...] = option(
        "the streams to read, or the path of `load()` in its place; a query needs this option, "
        "or `streamPattern`, `streamMetadata`, `bucket`, `objectBucket` or `deadLettersOf`",
        CommaList(Name("stream"), "stream names"),
        name="stream",
        value=(),
    )
    stream_pattern: str | None = option(
        "read all streams whose names match this pattern with `*`, `?`, `[a-z]` and `{a,b}`; a "
        "streaming query also reads streams created later",
        NamePattern(),
    )
    stream_metadata: tuple[str, ...] = option(
        "read all streams whose metadata has each of these keys with this value; "
        "with `streamPattern` both must hold",
        CommaList(Pair(), "pairs key=value"),
        value=(),
    )
    # Which messages of them, and by which requests.
    subjects: tuple[str, ...] = option(
        "read only subjects that match one of these filters; the server filters",
        CommaList(Subject(), "subject filters", " with * and >", apart=True),
        value=(),
    )
    read_with: ReadWith = option(
        "how tasks read messages: with `consumer` each task creates a pull consumer. With `direct` "
        "each task sends batched Direct Gets and creates no consumer, and the stream must have "
        "`allow_direct`. With `auto` small tasks on a cluster send Direct Gets, if stream and "
        "account allow them, and all other tasks create consumers",
        Choice(("auto", "consumer", "direct")),
        "auto",
    )
    durable: str | None = option(
        "name of a consumer in which the query keeps its committed position on the server",
        Name("consumer"),
        only="stream",
        instead="a batch keeps no position",
    )
    share: str | None = option(
        "name of a pull consumer of a work queue that the query shares with other clients: one of "
        "them gets each message; needs Spark 4.2",
        Name("consumer", single=True),
        only="stream",
        instead="a batch acknowledges nothing",
    )
    # From where to where.
    starting_offsets: Bound = option(
        "first sequence to read of each stream; `latest` only in a streaming query",
        Positions(("earliest", "latest")),
        "earliest",
    )
    starting_timestamp: int | None = option(
        "read messages stored at this time or later; wins over `startingOffsets`",
        Time(),
    )
    starting_consumer: str | tuple[tuple[str, str], ...] | None = option(
        "begin after the messages that this consumer has acknowledged; with several streams each "
        'needs a consumer of this name, or JSON names the consumers, such as `{"ORDERS": "billing"}`',
        ConsumerNames(),
    )
    ending_offsets: Bound = option(
        "stop before this sequence of each stream",
        Positions(("latest",)),
        "latest",
        **_OF_BATCH,
    )
    ending_timestamp: int | None = option(
        "read only messages stored before this time",
        Time(),
        **_OF_BATCH,
    )
    fail_on_data_loss: bool = option(
        "fail if messages to be read are gone; with `false` the query logs which messages are missing, "
        "and continues",
        Flag(),
        "true",
    )
    # How much goes into one micro-batch.
    max_messages_per_trigger: int | None = option(
        "maximum matching messages per micro-batch; with `share` 10000 unless given",
        Whole(1),
        **_OF_STREAM,
    )
    max_bytes_per_trigger: int | None = option(
        "maximum bytes per micro-batch, by the mean size of the stream's messages; with `share` of "
        "the messages themselves, and 64m unless given",
        Size(1, 1 << 50),
        **_OF_STREAM,
    )
    min_messages_per_trigger: int | None = option(
        "wait until this many messages match",
        Whole(1),
        **_WAITING,
    )
    max_trigger_delay: float = option(
        "the longest time that the first message of a micro-batch waits for `minMessagesPerTrigger`",
        Seconds("1ms", "30d"),
        "15m",
        **_WAITING,
    )
    # How much goes into one task.
    min_partitions: int = option(
        "at least this many tasks for all streams of a micro-batch, "
        "if there are that many messages",
        Whole(1, 100_000),
        "1",
    )
    max_messages_per_partition: int = option(
        "maximum matching messages per task",
        Whole(1),
        "50000",
    )
    # How much a pull request asks for.
    fetch_batch: int = option("maximum messages per pull request", Whole(1, 100_000), "20000")
    fetch_max_bytes: int = option("maximum bytes per pull request", Size(64 << 10, 512 << 20), "8m")
    fetch_timeout: float = option("how long a pull request stays open", Seconds("1s", "10m"), "30s")
    # Other rows than messages with all their columns.
    include_headers: bool = option(
        "`false` leaves `headers` null and skips decoding them",
        Flag(),
        "true",
    )
    counters: bool = option(
        "`true` reads streams of counters (`allow_msg_counter`): a batch reads the value of each, "
        "a streaming query each change",
        Flag(),
        "false",
    )
    dead_letters_of: str | None = option(
        "read the messages that consumers of this stream gave up on; "
        "`spark-jetstream dead-letters keep` makes the server keep them",
        Name("stream", single=True),
        **_TABLE,
    )
    # A Key-Value bucket.
    bucket: str | None = option(
        "the Key-Value bucket to read: a batch reads its current table, "
        "a streaming query its changes",
        Identifier(252),  # with `KV_` the 255 characters that a stream's name may have
    )
    keys: tuple[str, ...] = option(
        "read only keys that match one of these filters; needs `bucket`",
        CommaList(KeyFilter(), "keys", ", or of filters of them with * and >", apart=True),
        value=(),
    )
    history: bool = option(
        "`true` reads every revision that the bucket keeps, or every change of a counter, not only "
        "the latest; needs `bucket` or `counters`",
        Flag(),
        "false",
        "batch",
        "a stream has every revision as it comes",
    )
    as_of_revision: int | None = option(
        "read the table of `bucket` as it was when this revision, "
        "a sequence of its stream, was the last one",
        Whole(1),
        **_TABLE,
    )
    as_of_timestamp: int | None = option(
        "read the table of `bucket` as it was at this time, "
        "before the first revision stored after it",
        Time(),
        **_TABLE,
    )
    # An Object Store bucket.
    object_bucket: str | None = option(
        "the Object Store bucket to read; a streaming query also reads later objects",
        Identifier(251),  # with `OBJ_` as many
    )
    path_glob_filter: str | None = option(
        "read only objects whose names match this pattern with `*`, `?`, "
        "`[a-z]` and `{a,b}`; needs `objectBucket`",
        NamePattern(),
    )
    content_off: bool = option(
        "`true` leaves `content` null and reads no chunks; needs `objectBucket`",
        Flag(),
        "false",
    )
    ensure_stream: str | None = ENSURE_STREAM
    ensure_stream_on_conflict: OnConflict = ON_CONFLICT

    @property
    def chosen_by(self) -> str:
        """The option that says what to read."""
        return next((name for name in WHAT if name in self.given()), "stream")

    @property
    def of_bucket(self) -> bool:
        """Whether a bucket is read."""
        return self.chosen_by in ("bucket", "objectBucket")

    @property
    def shared_messages(self) -> int:
        """How many messages a micro-batch with option share takes at most."""
        return self.max_messages_per_trigger or SHARED_MESSAGES

    @property
    def shared_bytes(self) -> int:
        """How many bytes a micro-batch with option share takes at most, but for a large message."""
        return self.max_bytes_per_trigger or _SHARED_BYTES

    @property
    def finds_streams(self) -> bool:
        """Whether the streams are found on the server, by their names or metadata."""
        return self.chosen_by in ("streamPattern", "streamMetadata")

    @property
    def read_streams(self) -> tuple[str, ...]:
        """The streams to read; that of a bucket has a name made of the bucket's (ADR-8, ADR-20)."""
        if self.bucket is not None:
            return (f"KV_{self.bucket}",)
        if self.object_bucket is not None:
            return (f"OBJ_{self.object_bucket}",)
        if self.dead_letters_of is not None:
            return (dead_letter_stream(self.dead_letters_of),)
        return self.streams

    def consumer_of(self, stream: str) -> str | None:
        """Return the consumer of a stream after which the query begins, None without the option."""
        if self.starting_consumer is None or isinstance(self.starting_consumer, str):
            return self.starting_consumer
        return dict(self.starting_consumer)[stream]

    def named(self, stream: str) -> str:
        """Return what the user calls one of `read_streams`."""
        return self.bucket or self.object_bucket or stream

    @property
    def table(self) -> bool:
        """Whether a bucket or counters are read as they are now, and not by their changes."""
        dataset = DATASETS[dataset_of(self)]
        # A streaming query reads every change: only a batch can be a table.
        if self.streaming or not dataset.table:
            return False
        return not (dataset.history and self.history)

    @property
    def as_of(self) -> str | None:
        """The name of the option that asks for a bucket's table as it was, None if none does."""
        return next(
            (name for name in ("asOfRevision", "asOfTimestamp") if name in self.given()),
            None,
        )

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """All columns that a row can have."""
        if self.content_off:
            return LISTED_COLUMNS
        dataset = DATASETS[dataset_of(self)]
        return dataset.table if self.table else dataset.columns

    @model_validator(mode="after")
    def _check_kind(self) -> SourceOptions:
        if self.given().isdisjoint(WHAT):
            raise OptionError(NOTHING_TO_READ, option="stream")
        dataset = DATASETS[dataset_of(self)]
        self._refuse_with(dataset.option, dataset.refused)
        self._check_history(dataset)
        if self.table:
            self._refuse_positions(dataset)
        return self

    def _check_history(self, dataset: Dataset) -> None:
        if self.as_of is not None and self.history:
            raise OptionError(
                f"options history and {self.as_of} exclude each other: {self.as_of} reads a "
                "table, not its revisions",
                option=self.as_of,
            )
        # Given as false, history needs no bucket: `NEEDED` refuses the option alone.
        if self.history and not dataset.history:
            raise OptionError(
                "option history has no meaning without bucket or counters",
                option="history",
            )

    def _refuse_positions(self, dataset: Dataset) -> None:
        """Refuse options that divide a read, for a table, which is read as a whole."""
        refused = _POSITIONS if dataset.divided else (*_POSITIONS, *_TASKS)
        hint = f"; history=true reads its {dataset.history}" if dataset.history else ""
        for name in refused:
            if name in self.given():
                raise OptionError(
                    f"option {name} has no meaning for a batch with {dataset.option}, "
                    f"which is read as a whole{hint}",
                    option=name,
                )

    @model_validator(mode="after")
    def _check_positions(self) -> SourceOptions:
        if not self.streaming and self.starting_offsets == "latest":
            raise OptionError(
                "option startingOffsets cannot be latest in a batch read: nothing would be read",
                option="startingOffsets",
            )
        start = self._by_stream("startingOffsets", self.starting_offsets, "sequence")
        end = self._by_stream("endingOffsets", self.ending_offsets, "sequence")
        if self.starting_consumer is not None:
            self._by_stream("startingConsumer", self.starting_consumer, "consumer")
        # A timestamp wins over offsets: test_a_timestamp_wins_over_offsets_without_an_error.
        if self.starting_timestamp is None:
            _check_order(start, end)
        else:
            self._check_times(self.starting_timestamp)
        return self

    def _check_times(self, start: int) -> None:
        """Refuse an end before the start. The time of an end says nothing about its sequence."""
        end = self.ending_timestamp
        if end is not None and end < start:
            raise OptionError(
                f"option endingTimestamp ({rfc3339(end)}) "
                f"is before startingTimestamp ({rfc3339(start)})",
                option="endingTimestamp",
            )

    def _by_stream(
        self, option: str, given: str | tuple[tuple[str, Value], ...], value: str
    ) -> dict[str, Value]:
        """Return the values that an option gives for the streams; none if it gives a word.

        An error calls them by the noun `value`. Raises `OptionError` unless the option names the
        same streams as the option that chooses them.
        """
        if isinstance(given, str):
            return {}
        values = dict(given)
        chosen_by = self.chosen_by
        if self.finds_streams:
            raise OptionError(
                f"option {option} cannot name streams beside {chosen_by}, which finds them: "
                "begin at earliest or latest, or at a time",
                option=option,
            )
        noun = "bucket" if self.of_bucket else "stream"
        named = [self.named(stream) for stream in self.read_streams]
        for name in values:
            if name not in named:
                raise OptionError(
                    f'option {option} names {noun} "{name}", which option {chosen_by} does not',
                    option=option,
                )
        for name in named:
            if name not in values:
                message = f'option {option} gives no {value} for {noun} "{name}"'
                raise OptionError(message, option=option)
        return values

    @model_validator(mode="after")
    def _check_shared(self) -> SourceOptions:
        if self.share is None:
            return self
        if len(self.streams) > 1:
            raise OptionError(
                "option share needs one stream, whose consumer it names; option stream names "
                f"{', '.join(self.streams)}",
                option="stream",
            )
        if self.shared_messages > _MOST_SHARED:
            raise OptionError(
                f"option maxMessagesPerTrigger is at most {_MOST_SHARED} with share, not "
                f"{self.shared_messages}: the checkpoint names each message",
                option="maxMessagesPerTrigger",
            )
        return self

    @model_validator(mode="after")
    def _check_portions(self) -> SourceOptions:
        least = self.min_messages_per_trigger
        most = self.max_messages_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"option minMessagesPerTrigger ({least}) "
                f"is larger than maxMessagesPerTrigger ({most})",
                option="minMessagesPerTrigger",
            )
        return self


def dataset_of(options: SourceOptions) -> str:
    """Return the field that chooses what the options read: a key of `DATASETS`."""
    for field in DATASETS:
        value = getattr(options, field)
        # A time may be 0, and a flag that is given may be false.
        if value is not None and value is not False:
            return field
    raise AssertionError("the field streams has always a value")


def _check_order(start: Mapping[str, int], end: Mapping[str, int]) -> None:
    """Refuse an end before the start of the same stream."""
    for stream, first in start.items():
        if end.get(stream, first) < first:
            raise OptionError(
                f'option endingOffsets stops "{stream}" before {end[stream]}, '
                f"but startingOffsets begins at {first}",
                option="endingOffsets",
            )
