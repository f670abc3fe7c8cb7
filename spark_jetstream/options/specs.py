"""Declarations of options, the base of their models, and which options exclude or need others.

Each option is declared once, by a field of `ConnectionOptions`, `SourceOptions` or `SinkOptions`
whose default is `option(...)`. Parsing, the tables and docs/options.md come from these
declarations. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spark_jetstream.errors import OptionError
from spark_jetstream.options.values import (
    Choice,
    Kind,
    Secret,
    Text,
    did_you_mean,
    revealed,
    unseen,
)

Side = Literal["connection", "source", "sink"]
OnConflict = Literal["error", "update", "ignore"]
Model = TypeVar("Model", bound="Options")


@dataclass(frozen=True)
class OptionSpec:
    """One option.

    ``name`` is written as users write it. ``doc`` is one line for them; tables show its part before
    the first colon or semicolon. ``default`` is the text that means the same as leaving the option
    out (None: there is none). ``only`` says where it is valid when not everywhere, and ``instead``
    what to use in the other place. ``field_name`` is the model's field.
    """

    doc: str
    kind: Kind
    default: str | None = None
    only: Literal["batch", "stream"] | None = None
    instead: str = ""
    name: str = ""
    field_name: str = ""

    @property
    def secret(self) -> bool:
        """Whether no error, log line or ``repr`` may show the value."""
        return isinstance(self.kind, Secret)


_UNSET: Any = object()


def option(
    doc: str,
    kind: Kind,
    default: str | None = None,
    only: Literal["batch", "stream"] | None = None,
    instead: str = "",
    *,
    value: Any = _UNSET,
    name: str = "",
) -> Any:
    """Return the default of a field that declares an option.

    The arguments are those of `OptionSpec`; its name is by default that of the field in camel case.
    ``value`` is the value of the field when the option is left out, where ``default`` does not say
    it.
    """
    if value is _UNSET:
        # The text is parsed as a user's would be, so a default that is not allowed fails at import.
        value = None if default is None else kind.parse("", default)
    info = Field(default=value)
    # Pydantic keeps it with the field, where `__pydantic_init_subclass__` finds it.
    info.metadata.append(OptionSpec(doc, kind, default, only, instead, name))
    return info


ENSURE_STREAM = option(
    "create the stream if it does not exist: its configuration as JSON, or the path of a JSON or "
    "YAML file",
    Text(required=True),
)
ON_CONFLICT = option(
    "how to treat a stream that exists and differs in fields that `ensureStream` names: `error` "
    "fails and lists the differences, `update` changes the stream, `ignore` uses it as it is",
    Choice(get_args(OnConflict)),
    "error",
)


class Options(BaseModel):
    """The base of the models of options: frozen, and without options that exclude each other."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=False,
    )

    specs: ClassVar[tuple[OptionSpec, ...]] = ()
    """The options that the model declares, in the order of the reference."""
    side: ClassVar[Side]
    sides: ClassVar[dict[Side, type[Options]]] = {}
    """The model of each side: it registers itself when it is imported."""
    without_field: ClassVar[tuple[OptionSpec, ...]] = ()
    """Options that only stand for others; they follow the first one."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Collect the options that the fields declare."""
        # A base of models has no side, and no options of its own.
        if not hasattr(cls, "side"):
            return
        declared = []
        for field_name, info in cls.model_fields.items():
            for spec in info.metadata:
                if isinstance(spec, OptionSpec):
                    name = spec.name or _camel_case(field_name)
                    declared.append(replace(spec, name=name, field_name=field_name))
        cls.specs = (*declared[:1], *cls.without_field, *declared[1:])
        cls.sides[cls.side] = cls

    @classmethod
    def _names(cls) -> frozenset[str]:
        """Return the names of the model's options."""
        return frozenset(spec.name for spec in cls.specs)

    @classmethod
    def _spec_of(cls, field_name: str) -> OptionSpec | None:
        return next((spec for spec in cls.specs if spec.field_name == field_name), None)

    @classmethod
    def _option_at(cls, location: tuple[int | str, ...]) -> str | None:
        """Return the name of the option that an error of pydantic is about, None without one."""
        if not location:
            return None
        spec = cls._spec_of(str(location[0]))
        if spec is None:
            return None
        return spec.name

    @classmethod
    def _fields_of(cls, given: Mapping[str, SecretStr]) -> dict[str, object]:
        """Return the values of the model's options, by the names of the fields."""
        return {spec.field_name: given[spec.name] for spec in cls.specs if spec.name in given}

    @classmethod
    @unseen
    def _build(cls: type[Model], fields: Mapping[str, object]) -> Model:
        try:
            return cls.model_validate(fields)
        except ValidationError as failure:
            # Without the input, which may be a secret.
            first = failure.errors(include_url=False, include_input=False)[0]
            cause = first.get("ctx", {}).get("error")
            # Its sentence names the option and the value already.
            if isinstance(cause, OptionError):
                raise cause from None
            option = cls._option_at(first["loc"])
            message = f"option {option} is not valid: {first['msg'].lower()}"
            # Without its cause: pydantic's error holds the input, which may be a secret.
            raise OptionError(message, option=option) from None

    @field_validator("*", mode="before")
    @classmethod
    def _parse(cls, value: object, info: ValidationInfo) -> object:
        spec = cls._spec_of(str(info.field_name))
        # None is an option that is left out.
        if spec is None or value is None:
            return value
        return _parsed(spec, value)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for field, value in super().__repr_args__():
            spec = self._spec_of(str(field))
            if spec is None:
                yield field, value
            else:
                yield field, spec.kind.display(value)

    def given(self) -> frozenset[str]:
        """Return the names of the options that were given a value."""
        options = {spec.field_name: spec.name for spec in self.specs}
        given = set()
        for field in self.model_fields_set:
            if getattr(self, field) is not None:
                given.add(options.get(field, field))
        return frozenset(given)

    @model_validator(mode="after")
    def _refuse_pairs(self: Model) -> Model:
        given = self.given()
        for one, other in EXCLUSIVE:
            if one in given and other in given:
                raise OptionError(f"options {one} and {other} exclude each other", option=one)
        for name, needed in NEEDED.items():
            if name in given and given.isdisjoint(needed.split(" or ")):
                raise OptionError(f"option {name} has no meaning without {needed}", option=name)
        return self


def _camel_case(field_name: str) -> str:
    first, *others = field_name.split("_")
    return first + "".join(map(str.capitalize, others))


@unseen
def _parsed(spec: OptionSpec, value: object) -> object:
    return spec.kind.parse(spec.name, revealed(value))


#: The options that name the things to read or to write.
WHAT = ("stream", "streamPattern", "streamMetadata", "bucket", "objectBucket", "deadLettersOf")

#: Options that mean nothing for a query that takes its messages from a shared consumer. The consumer
#: has the filters and the beginning. Others acknowledge messages, which then look like lost ones.
NOT_SHARED = (
    "durable",
    "subjects",
    "readWith",
    "fetchTimeout",
    "startingOffsets",
    "startingTimestamp",
    "startingConsumer",
    "failOnDataLoss",
    "minMessagesPerTrigger",
    "counters",
)

#: Pairs of which one at most may be given.
EXCLUSIVE: tuple[tuple[str, str], ...] = (
    # Both name the prefix of the API.
    ("domain", "apiPrefix"),
    # A file, or its content.
    ("credentialsFile", "credentialsSecret"),
    ("jwtFile", "jwtSecret"),
    ("nkeySeedFile", "nkeySeedSecret"),
    ("tlsCaFile", "tlsCaPem"),
    ("tlsCertFile", "tlsCertPem"),
    ("tlsKeyFile", "tlsKeySecret"),
    ("endingOffsets", "endingTimestamp"),
    # A query reads one thing. Streams may be found by both of these options.
    *(pair for pair in combinations(WHAT, 2) if pair != ("streamPattern", "streamMetadata")),
    # These options are about one stream, or make it.
    *product(("streamPattern", "streamMetadata"), ("durable", "ensureStream")),
    # Dead letters have columns of their own.
    *product(("deadLettersOf",), ("subjects", "includeHeaders", "counters", "ensureStream")),
    *product(("deadLettersOf",), ("startingOffsets", "endingOffsets")),
    ("asOfRevision", "asOfTimestamp"),
    # Each says where a query begins.
    *product(("startingConsumer",), ("startingOffsets", "startingTimestamp")),
    # Nobody knows the consumers of streams that are found later, and those of buckets are watchers.
    *product(
        ("streamPattern", "streamMetadata", "bucket", "objectBucket", "deadLettersOf"),
        ("startingConsumer",),
    ),
    *product(("streamPattern", "streamMetadata", "bucket", "objectBucket"), ("share",)),
    *product(("share",), NOT_SHARED),
)

#: The error of a source without an option of `WHAT`.
NOTHING_TO_READ = (
    f"option stream is required: the name of the stream to read (or {', '.join(WHAT[1:])})"
)
#: The same where no option has arrived at all. Spark (4.0 to 4.3) hands those of a table to no
#: Python data source.
FORGOTTEN = (
    f"{NOTHING_TO_READ}, and no option was given; Spark forgets the options of CREATE TABLE: "
    'read with spark.read.format("jetstream").option(...), '
    "or a view made by CREATE TEMPORARY VIEW ... USING jetstream OPTIONS (...), "
    "or give the options of a table in each statement, SELECT ... FROM t WITH (...)"
)

#: Why `ensureStream` makes no buckets, and which command of the `nats` CLI does.
NOT_MADE = (
    "a bucket is more than a stream with some name, and is made by hand (spark-jetstream {} add)"
)

#: Options that mean nothing alone, and the option, or one of several, that they need.
NEEDED: Mapping[str, str] = {
    "keys": "bucket",
    "history": "bucket or counters",
    "asOfRevision": "bucket",
    "asOfTimestamp": "bucket",
    "pathGlobFilter": "objectBucket",
    "contentOff": "objectBucket",
    "maxTriggerDelay": "minMessagesPerTrigger",
    "ensureStreamOnConflict": "ensureStream",
}

#: Keys that Spark itself puts beside the user's options, in lower case, each with where it comes
#: from.
SPARK_KEYS: Mapping[str, str] = {
    "path": "`load(path)`, `save(path)`, `start(path)`",
    "paths": "`load([path, path])`",
    "checkpointlocation": "`writeStream.option(...)`, handed to the sink",
    "queryname": "`writeStream.queryName(...)`, handed to the sink",
    "mode": "`write.mode(...)`, where it is given as an option",
    "outputmode": "`writeStream.outputMode(...)`, where it is given as an option",
    # Spark's reserved table properties (TableCatalog) come along when CREATE TABLE ... USING makes
    # a source.
    "provider": "`CREATE TABLE ... USING`",
    "owner": "`CREATE TABLE`",
    "location": "`CREATE TABLE ... LOCATION`",
    "is_managed_location": "`CREATE TABLE`",
    "external": "`CREATE EXTERNAL TABLE`",
    "comment": "`CREATE TABLE ... COMMENT`",
    "collation": "`CREATE TABLE ... DEFAULT COLLATION`",
}
#: CREATE TABLE hands each option over twice: as it is, and with this prefix
#: (TableCatalog.OPTION_PREFIX).
_SPARK_PREFIX = "option."


#: Options here, and what other connectors for Spark call those that do the same, without the prefix
#: of `_FOREIGN_PREFIX`: Kafka (KafkaSourceProvider), Event Hubs, Kinesis, Delta, and
#: nats-spark-connector with its folders V2 and load_balanced; creds is a word of the nats command.
_FOREIGN: Mapping[str, str] = {
    "apiPrefix": "js.api-prefix",
    "asOfRevision": "versionAsOf",
    "asOfTimestamp": "timestampAsOf",
    "connectTimeout": "connection.timeout",
    "credentialsFile": "credential.file creds",
    "durable": "consumer consumerGroup consumerName durable.name group.id groupIdPrefix "
    "pull.consumer.create pull.subscription.durable.name",
    "endingOffsets": "endingPosition",
    "endingTimestamp": "endingOffsetsByTimestamp",
    "ensureStream": "js.define-stream storage.replicas storage.type",
    "fetchBatch": "maxRecordsPerFetch msg.fetch.batch.size pull.batch.size pull.consumer.max.batch",
    "fetchTimeout": "msg.receive.wait.millis pollTimeoutMs pull.wait.time receiverTimeout",
    "maxMessagesPerPartition": "maxFetchRecordsPerShard maxRecordsPerPartition",
    "maxMessagesPerTrigger": "maxEventsPerTrigger maxFilesPerTrigger maxOffsetsPerTrigger",
    "minMessagesPerTrigger": "minOffsetsPerTrigger",
    "minPartitions": "num.listeners",
    "password": "connection.user.password",
    "requestTimeout": "operationTimeout",
    "retryTimeout": "fetchOffset.numRetries fetchOffset.retryIntervalMs reconnect.wait.secs",
    "servers": "bootstrap.servers connectionString endpointUrl host port security.protocol url",
    "startingOffsets": "initialPosition startingPosition",
    "startingTimestamp": "startingOffsetsByTimestamp",
    "stream": "name pull.subscription.stream.name stream.name streamName",
    "stream subject": "topic",
    "stream subjects": "assign subscribe",
    "streamPattern": "subscribePattern",
    "subject": "stream.subject",
    "subjects": "stream.subjects",
    "tlsCaFile": "ssl.truststore.location trust-store.path",
    "tlsCertFile tlsKeyFile": "key-store.path ssl.keystore.location",
    "user": "connection.user.name",
    "user password": "sasl.jaas.config",
}
_FOREIGN_PREFIX = re.compile(
    r"(?i)("
    r"kafka(consumer)?"
    r"|eventhubs"
    r"|kinesis(\.executor)?"
    r"|nats(\.(source|sink))?"
    r")\."
)
#: By the lower-case name of another connector: the name as it is written there, and the options
#: here.
_OURS_BY_FOREIGN: Mapping[str, tuple[str, list[str]]] = {
    name.lower(): (name, ours.split())
    for ours, theirs in _FOREIGN.items()
    for name in theirs.split()
}


#: Names that are like no option, or were one, and the end of the sentence with the alternative.
_INSTEAD: Mapping[str, str] = {
    "filterPushdown": " any more: Spark keeps one plan for each load(), so a frame read with other "
    "predicates had wrong rows; choose the messages with subjects (of a bucket: keys), "
    "startingOffsets, endingOffsets, startingTimestamp and endingTimestamp",
    "format": ": column data is the payload, byte for byte; functions such as from_json and "
    "to_json convert it",
}


def _suggestion(key: str, valid: Collection[str]) -> tuple[str, str]:
    """Return an unknown option as its connector writes it, and a hint at ``valid`` options."""
    match = _FOREIGN_PREFIX.match(key)
    prefix = match[0] if match else ""
    name, ours = _OURS_BY_FOREIGN.get(key.removeprefix(prefix).lower(), (key, []))
    # Only an option of this side can be meant.
    meant = [option for option in ours if option in valid]
    if meant:
        return prefix + name, f"; did you mean {' and '.join(meant)}"
    if prefix:
        # The user knows another connector: the name is no misspelt option of this one.
        return key, ""
    return key, did_you_mean(key, valid)


def _unknown_option(key: str, valid: Iterable[OptionSpec]) -> OptionError:
    for name, instead in _INSTEAD.items():
        if key.lower() == name.lower():
            return OptionError(f"there is no option {name}{instead}", option=name)
    written, hint = _suggestion(key, [spec.name for spec in valid])
    return OptionError(f"there is no option {written}{hint}", option=written)


def _is_of_spark(key: str) -> bool:
    """Return whether Spark itself put this key, in lower case, beside the user's options."""
    return key in SPARK_KEYS or key.startswith(_SPARK_PREFIX)


def given_options(
    mapping: Mapping[str, SecretStr | None],
    valid: Iterable[OptionSpec],
) -> dict[str, SecretStr]:
    """Return the options in ``mapping`` by their proper names, hidden, without Spark's own keys.

    Keys without a value (None) are left out, too. Names match in any case. Raises `OptionError` for
    an unknown name, and for one given twice in different cases.
    """
    # Options of the other side are known: `refuse_elsewhere` has a better error for them.
    names: dict[str, str] = {}
    for model in Options.sides.values():
        names.update((name.lower(), name) for name in model._names())
    given: dict[str, SecretStr] = {}
    for key, value in mapping.items():
        if value is None or _is_of_spark(key.lower()):
            continue
        name = names.get(key.lower())
        if name is None:
            raise _unknown_option(key, valid)
        if name in given:
            raise OptionError(f"option {name} is given twice, in different cases", option=name)
        given[name] = value
    return given


#: The option that a user means who gives an option of the sink to a source, or the reverse.
_COUNTERPARTS = {"subject": "subjects", "subjects": "subject"}


def refuse_elsewhere(given: Container[str], model: type[Options], *, streaming: bool) -> None:
    """Raise `OptionError` for an option that the model's side or kind of query does not have."""
    _refuse_other_side(given, model)
    query, elsewhere = _query(model.side, streaming=streaming)
    for spec in model.specs:
        if spec.name in given and spec.only == elsewhere:
            message = f"option {spec.name} has no meaning in a {query}: {spec.instead}"
            raise OptionError(message, option=spec.name)


def _refuse_other_side(given: Container[str], model: type[Options]) -> None:
    """Raise `OptionError` for a source's option that is given to a sink, or the other way round."""
    own = model._names()
    other = Options.sides["sink" if model.side == "source" else "source"]
    for spec in other.specs:
        # Both sides have some options, such as `stream` and `bucket`.
        if spec.name in own or spec.name not in given:
            continue
        message = (
            f"option {spec.name} belongs to the {other.side} and has no meaning for a {model.side}"
        )
        if spec.name in _COUNTERPARTS:
            message += f"; did you mean {_COUNTERPARTS[spec.name]}"
        raise OptionError(message, option=spec.name)


def _query(side: Side, *, streaming: bool) -> tuple[str, Literal["batch", "stream"]]:
    """Return the name of this kind of query, and the `OptionSpec.only` of the other kind."""
    if streaming:
        return "streaming query", "batch"
    if side == "source":
        return "batch read", "stream"
    return "batch write", "stream"
