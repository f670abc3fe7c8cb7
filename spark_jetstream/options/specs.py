"""Which options there are: one list for each side, for checking names, reading values and making docs/options.md.

Pure data. What a value means is in `values`, `names`, `subjects`, `positions` and `server_urls`; who may use an option
where is in `option_table`, and how options depend on each other in the models (`connection_options` and the like).

Checks of options that need nothing but their names: which exist, which belong to this side and kind of query.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.options.names import (
    ConsumerName,
    Identifier,
    KeyFilters,
    NamePattern,
    Positions,
    Prefix,
    StreamName,
    StreamNames,
    Subject,
    SubjectFilters,
)
from spark_jetstream.options.servers import Servers, address
from spark_jetstream.options.values import (
    Choice,
    Duration,
    Flag,
    Kind,
    Secret,
    Size,
    Text,
    Time,
    Whole,
    revealed,
    unseen,
)

Side = Literal["source", "sink"]
OnConflict = Literal["error", "update", "ignore"]
NOT_SHOWN = "given, not shown"


@dataclass(frozen=True)
class OptionSpec:
    """One option.

    ``name`` is written as users write it, ``doc`` one line for them, ``default`` the text that would mean the
    same as leaving it out (None: there is none). ``only`` says where it is valid when not everywhere, and
    ``instead`` what to use in the other place. ``counterpart`` is the option of the source that somebody who
    gives this one to a source means, and the other way round. ``field_name`` is the model's field, by default
    the name in snake case; no two options share one.
    """

    name: str
    doc: str
    kind: Kind
    default: str | None = None
    only: Literal["batch", "stream"] | None = None
    instead: str = ""
    counterpart: str = ""
    field_name: str = ""

    def __post_init__(self) -> None:
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()
        object.__setattr__(self, "field_name", self.field_name or snake)

    @property
    def secret(self) -> bool:
        """Whether no error, log line or ``repr`` may show the value."""
        return isinstance(self.kind, Secret)

    def display(self, value: object) -> object:
        """The value of the model's field as it may be shown.

        Text of no particular form is not: a password or a seed given in the place of a path passes for one.
        """
        if isinstance(self.kind, (Secret, Text, NamePattern)):
            return NOT_SHOWN
        if isinstance(self.kind, Servers) and isinstance(value, tuple):
            return tuple(map(address, value))
        return value


CONNECTION_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("servers", "the servers to try, in any order", Servers(), "nats://127.0.0.1:4222"),
    OptionSpec("context", "name of a `nats` CLI context, or a path to its JSON; options beside it win", Text()),
    OptionSpec("user", "user name, together with `password`", Text()),
    OptionSpec("password", "password, together with `user`", Secret()),
    OptionSpec("token", "token", Secret()),
    OptionSpec("credentialsFile", "path of a `.creds` file", Text()),
    OptionSpec("credentialsSecret", "content of a `.creds` file", Secret()),
    OptionSpec("nkeySeedFile", "path of a file with a user NKey seed", Text()),
    OptionSpec("nkeySeedSecret", "user NKey seed", Secret()),
    OptionSpec("tlsCaFile", "path of the CA certificates (PEM) that servers are checked against", Text()),
    OptionSpec("tlsCaPem", "the CA certificates themselves", Text()),
    OptionSpec("tlsCertFile", "path of the client's certificate (PEM)", Text()),
    OptionSpec("tlsCertPem", "the client's certificate itself", Text()),
    OptionSpec("tlsKeyFile", "path of the client's unencrypted key (PEM)", Text()),
    OptionSpec("tlsKeySecret", "the client's key itself", Secret()),
    OptionSpec("tlsHostname", "name to check servers' certificates against, when it is not the host's", Text()),
    OptionSpec("tlsHandshakeFirst", "start TLS before the server says hello", Flag(), "false"),
    OptionSpec("domain", "JetStream domain", Prefix(tokens=1)),
    OptionSpec("apiPrefix", "prefix of the JetStream API, for another account's JetStream", Prefix(), "$JS.API"),
    OptionSpec("inboxPrefix", "prefix of the subjects on which replies come", Prefix(), "_INBOX"),
    OptionSpec("connectTimeout", "time for one attempt to connect", Duration("100ms", "10m"), "10s"),
    OptionSpec("requestTimeout", "time for one request to be answered", Duration("100ms", "10m"), "10s"),
    OptionSpec(
        "retryTimeout",
        "how long an outage (restart, leader election, network cut) is ridden out before a task fails",
        Duration("0s", "1d"),
        "60s",
    ),
)

_ENSURE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "ensureStream",
        "create the stream if it is missing: its configuration as JSON, or the path of a JSON or YAML file",
        Text(),
    ),
    OptionSpec(
        "ensureStreamOnConflict",
        "what becomes of a stream that is there and differs in the fields that `ensureStream` names: `error` lists the "
        "differences, `update` changes it, `ignore` uses it as it is",
        Choice(get_args(OnConflict)),
        "error",
    ),
)

SOURCE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "stream",
        "the streams to read; this, `bucket` or `objectBucket` is required",
        StreamNames(),
        field_name="streams",
    ),
    OptionSpec("subjects", "read only subjects that match one of these filters; the server filters", SubjectFilters()),
    OptionSpec(
        "readWith",
        "`consumer`: each task has a pull consumer of its own; `direct`: batched Direct Get, no consumer is made "
        "(needs `allow_direct` on the stream)",
        Choice(("consumer", "direct")),
        "consumer",
    ),
    OptionSpec(
        "durable",
        "name of the consumer that keeps the query's committed position on the server",
        ConsumerName(),
        None,
        "stream",
        "a batch keeps no position",
    ),
    OptionSpec(
        "startingOffsets",
        "first sequence to read of each stream; `latest` only on a stream",
        Positions(("earliest", "latest")),
        "earliest",
    ),
    OptionSpec("startingTimestamp", "first message stored at or after; wins over `startingOffsets`", Time()),
    OptionSpec(
        "endingOffsets",
        "sequence of each stream before which to stop",
        Positions(("latest",)),
        "latest",
        "batch",
        "stop the query, or use trigger(availableNow=True)",
    ),
    OptionSpec(
        "endingTimestamp",
        "stop before the first message stored at or after",
        Time(),
        None,
        "batch",
        "stop the query, or use trigger(availableNow=True)",
    ),
    OptionSpec(
        "failOnDataLoss",
        "fail when messages that should be read are gone; `false` logs what is missing and goes on",
        Flag(),
        "true",
    ),
    OptionSpec(
        "maxMessagesPerTrigger",
        "most matching messages of one micro-batch",
        Whole(),
        None,
        "stream",
        "bound a batch with endingOffsets or endingTimestamp",
    ),
    OptionSpec(
        "maxBytesPerTrigger",
        "most bytes of one micro-batch",
        Size("1", "1024t"),
        None,
        "stream",
        "bound a batch with endingOffsets or endingTimestamp",
    ),
    OptionSpec(
        "minMessagesPerTrigger",
        "wait until so many messages match",
        Whole(),
        None,
        "stream",
        "a batch reads what is there when it starts",
    ),
    OptionSpec(
        "maxTriggerDelay",
        "but no longer than this; needs `minMessagesPerTrigger`",
        Duration("1ms", "30d"),
        "15m",
        "stream",
        "a batch reads what is there when it starts",
    ),
    OptionSpec("minPartitions", "fewest tasks of a micro-batch that has as many messages", Whole(1, 100_000), "1"),
    OptionSpec("maxMessagesPerPartition", "most matching messages of one task", Whole(), "100000"),
    OptionSpec("fetchBatch", "messages of one pull request", Whole(1, 100_000), "20000"),
    OptionSpec("fetchMaxBytes", "bytes of one pull request", Size("64k", "512m"), "8m"),
    OptionSpec("fetchTimeout", "how long a pull request stays open", Duration("1s", "10m"), "30s"),
    OptionSpec("includeHeaders", "`false` leaves `headers` null and skips decoding them", Flag(), "true"),
    OptionSpec(
        "filterPushdown",
        "let the server filter by `stream`, `subject`, `sequence` and `timestamp` (`bucket` and `key` of a Key-Value "
        "bucket); needs `spark.sql.python.filterPushdown.enabled=true`",
        Flag(),
        "false",
        "batch",
        "name what to read with stream, subjects, startingOffsets or startingTimestamp",
    ),
    OptionSpec("bucket", "read a Key-Value bucket: its current table, or on a stream the changes", Identifier(252)),
    OptionSpec("keys", "read only keys that match one of these filters; needs `bucket`", KeyFilters()),
    OptionSpec(
        "history",
        "`true` reads every revision that the bucket keeps, not only the latest of each key; needs `bucket`",
        Flag(),
        "false",
        "batch",
        "a stream has every revision as it comes",
    ),
    OptionSpec(
        "objectBucket", "read an Object Store bucket: its objects, or on a stream those that are put", Identifier(251)
    ),
    OptionSpec(
        "pathGlobFilter",
        "read only objects whose names match this pattern with `*`, `?`, `[a-z]` and `{a,b}`; needs `objectBucket`",
        NamePattern(),
    ),
    OptionSpec("contentOff", "`true` leaves `content` null and reads no chunks; needs `objectBucket`", Flag(), "false"),
    *_ENSURE_OPTIONS,
)

SINK_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("subject", "where every row goes; wins over column `subject`", Subject(), counterpart="subjects"),
    OptionSpec("stream", "the stream that must store the rows; no other one does", StreamName()),
    OptionSpec(
        "delivery",
        "how often a row may be stored when something fails: at least once, once as long as the stream remembers "
        "message ids, or once",
        Choice(("at-least-once", "deduplicated", "exactly-once")),
        "deduplicated",
    ),
    OptionSpec("maxInFlight", "most messages of one task that wait for the server's answer", Whole(1, 100_000), "8000"),
    OptionSpec(
        "ackTimeout",
        "time for the server to answer a message before it is sent again",
        Duration("100ms", "10m"),
        "10s",
    ),
    OptionSpec("maxRetries", "how often a message is sent again before the task fails", Whole(0, 1000), "5"),
    OptionSpec(
        "deadLetterSubject",
        "where rows go that the server refuses for good; without it they fail the task",
        Subject(),
    ),
    OptionSpec("bucket", "the Key-Value bucket that rows are written to: columns `key`, `value`", Identifier(252)),
    OptionSpec(
        "objectBucket", "the Object Store bucket that rows are written to: columns `name`, `content`", Identifier(251)
    ),
    OptionSpec(
        "writeId",
        "name of this write, of which message ids are made: one that failed can be run again under its name",
        Identifier(100),
        None,
        "batch",
        "the query's own id and its batch numbers are used",
    ),
    *_ENSURE_OPTIONS,
)

#: Ways to say who we are; only one of them at a time.
AUTHENTICATION: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "password"),
    "token": ("token",),
    "credentials": ("credentialsFile", "credentialsSecret"),
    "NKey": ("nkeySeedFile", "nkeySeedSecret"),
}

#: Pairs of which one at most may be given.
EXCLUSIVE: tuple[tuple[str, str], ...] = (
    ("domain", "apiPrefix"),
    ("credentialsFile", "credentialsSecret"),
    ("nkeySeedFile", "nkeySeedSecret"),
    ("tlsCaFile", "tlsCaPem"),
    ("tlsCertFile", "tlsCertPem"),
    ("tlsKeyFile", "tlsKeySecret"),
    ("endingOffsets", "endingTimestamp"),
    ("stream", "bucket"),
    ("stream", "objectBucket"),
    ("bucket", "objectBucket"),
)

#: Why `ensureStream` makes no buckets, and which command of the `nats` CLI does.
NOT_MADE = "a bucket is more than a stream with some name, and is made by hand (spark-jetstream {} add)"

#: What an option needs beside it to mean anything.
NEEDED: Mapping[str, str] = {
    "keys": "bucket",
    "history": "bucket",
    "pathGlobFilter": "objectBucket",
    "contentOff": "objectBucket",
    "maxTriggerDelay": "minMessagesPerTrigger",
    "ensureStreamOnConflict": "ensureStream",
}

#: Keys that Spark itself puts beside the user's options, in lower case, each with where it comes from.
SPARK_KEYS: Mapping[str, str] = {
    "path": "`load(path)`, `save(path)`, `start(path)`",
    "paths": "`load([path, path])`",
    "checkpointlocation": "`writeStream.option(...)`, handed to the sink",
    "queryname": "`writeStream.queryName(...)`, handed to the sink",
    "mode": "`write.mode(...)`, where it is given as an option",
    "outputmode": "`writeStream.outputMode(...)`, where it is given as an option",
    # Spark's reserved table properties (TableCatalog) come along when CREATE TABLE ... USING makes a source.
    "provider": "`CREATE TABLE ... USING`",
    "owner": "`CREATE TABLE`",
    "location": "`CREATE TABLE ... LOCATION`",
    "is_managed_location": "`CREATE TABLE`",
    "external": "`CREATE EXTERNAL TABLE`",
    "comment": "`CREATE TABLE ... COMMENT`",
    "collation": "`CREATE TABLE ... DEFAULT COLLATION`",
}
#: CREATE TABLE hands each option over twice: as it is, and behind this prefix (TableCatalog.OPTION_PREFIX).
_SPARK_PREFIX = "option."

_SPECS = (*CONNECTION_OPTIONS, *SOURCE_OPTIONS, *SINK_OPTIONS)
_NAMES = {spec.name.lower(): spec.name for spec in _SPECS}
_BY_FIELD = {spec.field_name: spec for spec in _SPECS}
_BY_SIDE: Mapping[Side, tuple[OptionSpec, ...]] = {"source": SOURCE_OPTIONS, "sink": SINK_OPTIONS}
_COUNTERPARTS = {
    one: other
    for spec in _SPECS
    if spec.counterpart
    for one, other in ((spec.name, spec.counterpart), (spec.counterpart, spec.name))
}


def given_options(mapping: Mapping[str, SecretStr | None], valid: Iterable[OptionSpec]) -> dict[str, SecretStr]:
    """The options in ``mapping`` by their proper names, hidden; Spark's own keys and None are left out.

    Names match in any case. Raises `OptionError` for a name that nobody knows, with the closest of ``valid``,
    and for one that is given twice in different cases.
    """
    given: dict[str, SecretStr] = {}
    for key, value in mapping.items():
        lower = key.lower()
        if value is None or lower in SPARK_KEYS or lower.startswith(_SPARK_PREFIX):
            continue
        name = _NAMES.get(lower)
        if name is None:
            proper = {spec.name.lower(): spec.name for spec in valid}
            closest = proper[difflib.get_close_matches(lower, proper, n=1, cutoff=0.0)[0]]
            raise OptionError(f"there is no option {key}; did you mean {closest}", option=key)
        if name in given:
            raise OptionError(f"option {name} is given twice, in different cases", option=name)
        given[name] = value
    return given


def refuse_elsewhere(given: Container[str], side: Side, *, streaming: bool) -> None:
    """Raise `OptionError` for an option that ``side`` does not have, or not in this kind of query."""
    other: Side = "sink" if side == "source" else "source"
    own = {spec.name for spec in _BY_SIDE[side]}
    for name in (spec.name for spec in _BY_SIDE[other]):
        if name in given and name not in own:
            _refuse_other(name, other, side)
    here, elsewhere = ("stream", "batch") if streaming else ("batch", "stream")
    doing = "reading" if side == "source" else "writing"
    for spec in _BY_SIDE[side]:
        if spec.name in given and spec.only == elsewhere:
            raise OptionError(
                f"option {spec.name} has no meaning when {doing} a {here}: {spec.instead}", option=spec.name
            )


def _refuse_other(name: str, owner: Side, side: Side) -> None:
    counterpart = _COUNTERPARTS.get(name)
    hint = f"; did you mean {counterpart}" if counterpart else ""
    raise OptionError(f"option {name} belongs to the {owner} and has no meaning for a {side}{hint}", option=name)


@unseen
def parse_field(field_name: str, value: object) -> object:
    """The Python value of the model field ``field_name``; None and values of other fields are passed on."""
    spec = _BY_FIELD.get(field_name)
    return value if spec is None or value is None else spec.kind.parse(spec.name, revealed(value))


def display_field(field_name: str, value: object) -> object:
    """The value of a model field as a ``repr`` shows it: without what may be a secret."""
    spec = _BY_FIELD.get(field_name)
    return value if spec is None or value is None else spec.display(value)


def option_name(field_name: str) -> str:
    """The option behind a model field: ``fetch_batch`` -> ``fetchBatch``."""
    spec = _BY_FIELD.get(field_name)
    return field_name if spec is None else spec.name
