"""A run of the fault suite: its servers, its queries and its faults.

Made from a seed alone. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_jetstream.protocol import features
from spark_jetstream.protocol.features import Version
from tests.support.jobs import SWAPPED

#: Options of every source and sink. An outage may last as long as the longest fault, also when a
#: query starts again.
TIMES = {"connectTimeout": "60s", "requestTimeout": "5s", "retryTimeout": "180s"}

NEWEST: Version = (2, 15, 0)
"""A nats-server that knows everything that a scenario may need."""

_SMALL_BATCHES = {
    "maxMessagesPerTrigger": "150",
    "minPartitions": "2",
    "fetchTimeout": "2s",
    "fetchBatch": "50",
}
_LARGE_BATCHES = "1000"  # where a batch takes seconds, whatever its size
_LARGEST = 1000  # bytes of a message, where there are dead letters
_HOUR = 3600 * 10**9  # nanoseconds; longer than a run, so that what is sent again is stored once


@dataclass(frozen=True)
class Source:
    """How a query reads: its options, and the configuration of its streams."""

    options: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    streams: int = 1
    subject: str | None = None
    """The last token of the only subject that it reads; None for all."""
    of: str = "stream"
    """What it reads: ``files``, or the option ``stream``, ``streamPattern``, ``bucket`` or
    ``objectBucket``.
    """

    @property
    def prefix(self) -> str:
        """How the names of its streams begin before those of their buckets."""
        return _PREFIXES.get(self.of, "")

    @property
    def durable(self) -> bool:
        """Whether a consumer on the server has its position."""
        return "durable" in self.options

    @property
    def held(self) -> bool:
        """Whether its streams keep only what a consumer has not acknowledged."""
        return "retention" in self.config

    @property
    def purges(self) -> bool:
        """Whether its commits remove messages."""
        return self.config.get("retention") == "workqueue"

    @property
    def names_origins(self) -> bool:
        """Whether its rows have the columns ``stream`` and ``sequence``."""
        return self.of in ("stream", "streamPattern")


_BUCKET = {"discard": "new", "allow_rollup_hdrs": True}

SOURCES = {
    "consumer": Source({"readWith": "consumer"}),
    "direct": Source({"readWith": "direct"}),
    "auto": Source({"readWith": "auto"}),
    "durable": Source({"durable": "spark"}),
    "interest": Source({"durable": "spark"}, {"retention": "interest"}),
    "queue": Source({"durable": "spark"}, {"retention": "workqueue"}),
    "shared": Source({"durable": "spark"}, {"retention": "workqueue"}, subject="1"),
    "filtered": Source(subject="1"),
    "several": Source(streams=3),
    "found": Source({"maxMessagesPerTrigger": "600"}, streams=3, of="streamPattern"),
    "changes": Source(config={"max_msgs_per_subject": 64, **_BUCKET}, of="bucket"),
    "objects": Source(config=_BUCKET, of="objectBucket"),
    "files": Source(of="files"),
}

FILES = "FILE_"
"""How the names of folders begin to which the load writes files in place of messages."""
_PREFIXES = {"bucket": "KV_", "objectBucket": "OBJ_", "files": FILES}
_SUBJECTS = {"bucket": ("$KV.{0}.>",), "objectBucket": ("$O.{0}.C.>", "$O.{0}.M.>")}

#: Options that a query may get anew when it starts again, also in the middle of a batch.
_RESTARTS = (
    {"maxMessagesPerTrigger": "40"},
    {"maxMessagesPerTrigger": "1000"},
    {"fetchBatch": "7"},
    {"fetchBatch": "2000", "fetchTimeout": "1s"},
    {"fetchMaxBytes": "64k"},
    {"minPartitions": "1"},
    {"minPartitions": "5"},
    {"maxMessagesPerPartition": "20"},
)


def _readers(server: Version) -> Iterator[Mapping[str, str]]:
    """Each value of the option `readWith` that this nats-server allows."""
    yield {"readWith": "consumer"}
    if features.DIRECT_BATCHES.is_in(server):
        yield {"readWith": "direct"}
    yield {"readWith": "auto"}


#: Levels of the sink, each with the duplicate window of its stream in nanoseconds.
LEVELS = {"at-least-once": _HOUR, "deduplicated": _HOUR, "exactly-once": 10**9}

_TEXT = "cast(data as string)"
_NUMBER = f"substring_index({_TEXT}, ' ', -1)"  # of a message in its portion


@dataclass(frozen=True)
class Rows:
    """The rows of a sink: columns in SQL, with ``{0}`` for the stream, and the kind of its streams.

    ``part`` in a column is the number of one of several rows of a message.
    """

    columns: Mapping[str, str] = field(default_factory=lambda: {"data": "data"})
    config: Mapping[str, Any] = field(default_factory=dict)
    streams: int = 1
    parts: int = 1


ROWS = {
    "plain": Rows(),
    "routed": Rows(
        {
            "data": "data",
            "subject": f"concat('{{0}}', if({_NUMBER} in ('1', '3'), '1', ''), '.row')",
        },
        streams=2,
    ),
    # A portion of the load has a counter, and each of its messages two digits of the value.
    "counters": Rows(
        {
            "subject": f"concat('{{0}}.row.', replace(substring_index({_TEXT}, ' ', 2), ' ', '.'))",
            "incr": f"rpad('1', 1 + 2 * int({_NUMBER}), '0')",
        },
        {"allow_msg_counter": True},
    ),
    "groups": Rows(
        {
            "data": f"cast(concat({_TEXT}, '/', part) as binary)",
            "atomic_group": f"replace({_TEXT}, ' ', '-')",
        },
        {"allow_atomic": True},
        parts=3,
    ),
}


SPREADS = ("read", "shuffled", "copied", "united")
"""How the rows of a query come to its sink (`tests.support.job`): in the partitions in which they
were read, in others after a shuffle, twice in other partitions, or by `foreachBatch` from two halves
in either order, with a `writeId` if the level has ids."""


@dataclass(frozen=True)
class Layout:
    """The settings by which Spark makes partitions. `swapped`: the second half of a union comes first."""

    cores: int
    shuffles: int
    adaptive: bool
    swapped: bool

    @classmethod
    def of(cls, number: int) -> Layout:
        """Return one of many."""
        chance = random.Random(f"layout {number}")
        return cls(
            cores=chance.randint(2, 5),
            shuffles=chance.choice((3, 5, 7)),
            adaptive=chance.random() < 0.7,
            swapped=chance.random() < 0.5,
        )

    def conf(self, *, executors: bool) -> dict[str, str]:
        """Return the configuration of Spark.

        With `executors` tasks run in processes of their own.
        """
        of_each = 1 + self.cores % 2
        return {
            "spark.master": f"local-cluster[2,{of_each},1024]"
            if executors
            else f"local[{self.cores},30]",
            "spark.sql.shuffle.partitions": str(self.shuffles),
            "spark.sql.adaptive.enabled": str(self.adaptive).lower(),
            # Otherwise a batch of a few kilobytes has one partition, whatever the cores, and so
            # have files.
            "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1",
            "spark.sql.files.openCostInBytes": "1",
            SWAPPED: str(self.swapped).lower(),
        }


@dataclass(frozen=True)
class Query:
    """One streaming query, from streams of its own to Spark's file sink, or with `level` to another
    stream.
    """

    name: str
    kind: str
    level: str | None = None
    accepts: bool = False
    """Whether it goes on after a loss (failOnDataLoss=false)."""
    own_ids: bool = False
    """Whether its rows have message ids of the user's."""
    dead_letters: bool = False
    """Whether rows that can never be stored go to another stream."""
    writes: str = "plain"
    """What its rows are."""
    spread: str = "read"
    """How they come to the sink, one of `SPREADS`."""
    origins: bool = False
    """Whether they have the columns ``stream`` and ``sequence`` of the messages that they were read
    from.
    """
    server: Version = NEWEST
    """The oldest nats-server that it meets."""

    @property
    def source(self) -> Source:
        return SOURCES[self.kind]

    @property
    def rows(self) -> Rows:
        return ROWS[self.writes]

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it reads."""
        return tuple(
            f"{self.source.prefix}{self.name}{number}" for number in range(self.source.streams)
        )

    @property
    def passing(self) -> tuple[str, ...]:
        """Those of them that come and go."""
        return self.streams[1:] if self.source.of == "streamPattern" else ()

    @property
    def moves(self) -> bool:
        """Whether its rows may be in other partitions when a batch comes again."""
        return self.spread != "read" or self.source.of == "files"

    @property
    def copies(self) -> int:
        """How many equal rows it makes of each message."""
        return 2 if self.spread == "copied" else 1

    @property
    def by_content(self) -> bool:
        """Whether `deduplicated` would know its rows by their partitions alone, if the option were
        not set.
        """
        return self.level == "deduplicated" and self.moves and not self.origins and not self.own_ids

    @property
    def shares(self) -> bool:
        """Whether others take the rest of its stream."""
        return self.source.purges and self.source.subject is not None

    @property
    def targets(self) -> tuple[str, ...]:
        """The streams that it writes to."""
        return tuple(
            f"{self.name}_OUT{number or ''}"
            for number in range(self.rows.streams if self.level else 0)
        )

    @property
    def target(self) -> str:
        """The first of them."""
        return self.targets[0]

    @property
    def dead(self) -> str:
        """The stream of its dead letters."""
        return f"{self.name}_DEAD"

    def options(self, url: str, changed: int | None = None) -> dict[str, str]:
        """Its options: those of the sink have the prefix ``sink.``.

        `changed` is the number of a change of them.
        """
        names = ",".join(name.removeprefix(self.source.prefix) for name in self.streams)
        if self.source.of == "files":
            names = self.streams[0]
        read = f"{self.name}[0-9]" if self.source.of == "streamPattern" else names
        of_source = {
            **TIMES,
            **_SMALL_BATCHES,
            "servers": url,
            **self.source.options,
            self.source.of: read,
        }
        if self.source.subject is not None:
            of_source["subjects"] = ",".join(
                f"{name}.{self.source.subject}" for name in self.streams
            )
        if self.accepts:
            of_source["failOnDataLoss"] = "false"
        if self.spread == "united":
            of_source["maxMessagesPerTrigger"] = _LARGE_BATCHES
        change = {} if changed is None else dict(self.changes()[changed % len(self.changes())])
        level = change.pop("delivery", self.level)
        of_source |= change
        if level is None:
            return of_source
        of_sink = {**TIMES, "servers": url, "maxInFlight": "60", "delivery": level}
        if self.by_content:
            of_sink["messageIds"] = "content"
        if len(self.targets) == 1:
            of_sink["stream"] = self.target
        if self.dead_letters:
            of_sink["deadLetterSubject"] = f"{self.dead}.row"
        elif "subject" not in self.rows.columns:
            of_sink["subject"] = f"{self.target}.row"
        how = {"select": self._columns(), "spread": self.spread}
        return {**of_source, **{f"sink.{name}": value for name, value in of_sink.items()}, **how}

    def _columns(self) -> str:
        """The columns of its sink, in SQL.

        Among five messages one is too large, and one has a subject of no stream.
        """
        columns = {name: column.format(self.target) for name, column in self.rows.columns.items()}
        if self.origins:
            columns |= {"stream": "stream", "sequence": "sequence"}
        if self.own_ids:
            columns["msg_id"] = f"md5({columns.get('data', 'data')})"
        if self.dead_letters:
            columns["data"] = (
                f"if({_NUMBER} = '3', cast(rpad({_TEXT}, {2 * _LARGEST}, '.') as binary), data)"
            )
            subject = columns.get("subject", f"'{self.target}.row'")
            columns["subject"] = f"if({_NUMBER} = '4', ' ', {subject})"
        if self.rows.parts == 1:
            return ";".join(f"{column} as {name}" for name, column in columns.items())
        row = ", ".join(f"'{name}', {column}" for name, column in columns.items())
        return f"inline(transform(sequence(0, {self.rows.parts - 1}), part -> named_struct({row})))"

    def changes(self) -> list[Mapping[str, str]]:
        """The changes of its options that it must survive when it starts again in the middle of a
        batch.
        """
        plain = self.source.of not in _PREFIXES and not self.source.held
        # What was stored with ids within the window may go on with another level that makes the
        # same ids.
        same_ids = self.origins or self.own_ids or self.by_content
        stronger = self.level == "at-least-once" or (self.level == "deduplicated" and same_ids)
        other = stronger and self.source.of != "objectBucket"
        return [
            *([{"maxFilesPerTrigger": "3"}] if self.source.of == "files" else _RESTARTS),
            *(_readers(self.server) if plain else ()),
            *([{"delivery": "exactly-once"}] if other else []),
        ]

    def configs(self, replicas: int) -> dict[str, dict[str, Any]]:
        """The configurations of its streams, by name."""
        common = {"storage": "file", "num_replicas": replicas, "allow_direct": True}
        subjects = _SUBJECTS.get(self.source.of, ("{0}.>",))
        configs: dict[str, dict[str, Any]] = {}
        for name in self.streams if self.source.of != "files" else ():
            of = [subject.format(name.removeprefix(self.source.prefix)) for subject in subjects]
            configs[name] = {
                **common,
                "subjects": of,
                "duplicate_window": _HOUR,
                **self.source.config,
            }
        if self.level is not None:
            window = {"duplicate_window": LEVELS[self.level]}
            most = {"max_msg_size": _LARGEST} if self.dead_letters else {}
            for name in self.targets:
                configs[name] = {
                    **common,
                    **window,
                    **most,
                    **self.rows.config,
                    "subjects": [f"{name}.>"],
                }
            for name in self.targets[1:]:
                configs[name]["subject_transform"] = {
                    "src": f"{name}.>",
                    "dest": f"{name}.stored.>",
                }
            if self.dead_letters:
                configs[self.dead] = {**common, **window, "subjects": [f"{self.dead}.>"]}
        return configs

    def dies(self, text: str) -> bool:
        """Whether the row of this text can never be stored."""
        return self.dead_letters and text.rpartition(" ")[2] in ("3", "4")

    def reads(self, subject: str) -> bool:
        """Whether a message of its streams is one that it reads."""
        return self.source.subject in (None, subject.rpartition(".")[2])

    def __str__(self) -> str:
        words = {
            "own ids": self.own_ids,
            "dead letters": self.dead_letters,
            "origins": self.origins,
        }
        more = [word for word, given in words.items() if given]
        where = f"{self.level} {self.spread} {self.writes}" if self.level else "files"
        return f"{self.name}: {self.kind} to {' with '.join([where, *more])}"


def _recovers(server: Version, fault: Fault) -> bool:
    """Whether a cluster of this version is healthy again after a fault.

    A 2.10 server that was killed never says again that it has a consumer which was deleted and
    created while it ran ("monitor goroutine not running", 2.10.26).
    """
    kills = fault.name in ("leader_killed", "meta_leader_killed")
    return not kills or server >= (2, 11, 0)


def _on(server: Version, query: Query) -> Query:
    """Return a query without what a nats-server of this version does not know."""
    if not features.DIRECT_BATCHES.is_in(server):
        # A work queue is read without a consumer of the task.
        instead = {"direct": "auto", "queue": "durable", "shared": "durable"}
        query = replace(query, kind=instead.get(query.kind, query.kind))
    # Servers know both since the same version.
    if query.writes in ("counters", "groups") and not features.COUNTERS.is_in(server):
        query = replace(query, writes="plain")
    return replace(query, server=server)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, by its name in `tests.chaos.world`; `settled`: all queries have
    gone on before.
    """

    name: str
    seconds: float
    settled: bool
    target: int
    """Which of several it is that suffers, modulo their number."""


#: What befalls Spark's processes.
_OF_SPARK = (
    *("workers_killed", "planners_killed", "driver_killed", "driver_killed_between_commits"),
    *("options_changed", "layout_changed"),
)
_OF_EXECUTORS = "executor_killed"
#: The same, where a query has its position on the server.
_OF_DURABLE = "planners_killed_committing"
#: What befalls one server, and the wire to it.
_OF_SERVER = (
    *(
        "server_killed",
        "server_shut_down",
        "server_frozen",
        "disk_full",
        "driver_started_without_server",
    ),
    *("storage_limited", "streams_limited", "consumers_limited", "connections_limited"),
    *(
        "wire_cut",
        "wire_cut_inside",
        "wire_truncated",
        "wire_stalled",
        "wire_refused",
        "wire_slow",
        "wire_in_bytes",
    ),
    *("workers_killed_reading", "workers_killed_writing"),
)
#: What befalls a cluster of three.
_OF_CLUSTER = (
    *("leader_killed", "meta_leader_killed", "leader_frozen", "meta_leader_frozen"),
    *("rolling_update", "leader_shut_down", "leader_steps_down", "replicas_changed"),
)
#: What takes messages from a stream, or what a query knows about it (`tests.chaos.losses`).
_OF_LOSSES = (
    "stream_purged",
    "stream_purged_to",
    "subject_purged",
    "messages_deleted",
    "messages_pushed_out",
    "messages_expired",
    "stream_edited",
    "stream_recreated",
    "store_rolled_back",
    "target_purged",
    "target_recreated",
    "checkpoint_rolled_back",
    "offsets_gone",
    "offsets_emptied",
    "offsets_cut",
)
FAULTS = frozenset((*_OF_SPARK, _OF_EXECUTORS, _OF_DURABLE, *_OF_SERVER, *_OF_CLUSTER, *_OF_LOSSES))
_FREEZES = ("server_frozen", "leader_frozen", "meta_leader_frozen")
_SHORTEST_FREEZE = 5.0  # seconds: longer than servers wait before they elect another leader
_LONGEST = 8.0  # seconds, of what is no freeze


@dataclass(frozen=True)
class Scenario:
    """A run: the same seed and number of faults make the same one."""

    seed: int
    servers: int
    executors: bool
    """Whether tasks run in processes of their own, not in the driver."""
    queries: tuple[Query, ...]
    faults: tuple[Fault, ...]
    losing: bool = False
    """Whether the faults take something away, which the queries must report."""

    @classmethod
    def of(cls, seed: int, faults: int, *, longest: float = _LONGEST) -> Scenario:
        """Return the scenario of a seed, with this number of faults.

        Freezes last at most `longest` seconds.
        """
        chance = random.Random(f"faults {seed}")
        servers = 1 if seed % 2 else 3
        losing = seed % 3 == 0
        executors = not losing and chance.random() < 0.25
        # What a bucket, or a stream of dead letters, may lose is not known here.
        kinds = chance.sample(
            [kind for kind, source in SOURCES.items() if source.of == "stream" or not losing], 3
        )
        level = chance.choice(sorted(LEVELS))
        writes = chance.choice(sorted(ROWS))
        own_ids = chance.random() < 0.4
        dead_letters = writes in ("plain", "routed") and not losing and chance.random() < 0.5
        if losing:
            own_ids = own_ids and level == "deduplicated"
        elif kinds[2] == "objects" and level != "at-least-once":
            # Objects may be replaced before a batch comes again: only ids of the user's name its
            # rows then.
            level, own_ids = "deduplicated", True
        accepts = [losing and chance.random() < 0.4 for _ in kinds]
        # A batch with less than before has other equal rows, and no number tells them apart then.
        spread = "read" if losing else chance.choice(SPREADS)
        origins = SOURCES[kinds[2]].names_origins and (
            level == "deduplicated" or chance.random() < 0.5
        )
        writer = Query(
            "C",
            kinds[2],
            level,
            accepts[2],
            own_ids,
            dead_letters,
            writes,
            spread,
            origins and spread != "read",
        )
        if spread == "copied" and (
            own_ids or dead_letters or writes == "groups" or writer.by_content
        ):
            # Equal rows with one id are one row, and those of one group are in one partition.
            writer = replace(writer, spread="shuffled")
        queries = (
            Query("A", kinds[0], accepts=accepts[0]),
            Query("B", kinds[1], accepts=accepts[1]),
            writer,
        )
        durable = servers == 1 and any(SOURCES[kind].durable for kind in kinds)
        of_spark = (
            *_OF_SPARK,
            *([_OF_EXECUTORS] if executors else []),
            *([_OF_DURABLE] if durable else []),
        )
        pool = _OF_LOSSES if losing else (*of_spark, *(_OF_SERVER if servers == 1 else _OF_CLUSTER))
        # Each of them once before one comes again.
        rounds = -(-faults // len(pool))
        names = [name for _ in range(rounds) for name in chance.sample(pool, len(pool))][:faults]

        def fault(name: str) -> Fault:
            shortest, most = (
                (_SHORTEST_FREEZE, longest) if name in _FREEZES else (0.0, min(longest, _LONGEST))
            )
            seconds = round(chance.uniform(min(shortest, most), most), 1)
            return Fault(name, seconds, chance.random() < 0.7, chance.randrange(100))

        return cls(seed, servers, executors, queries, tuple(map(fault, names)), losing)

    def on(self, server: Version) -> Scenario:
        """Return this scenario without what a nats-server of this version does not know."""
        faults = tuple(fault for fault in self.faults if _recovers(server, fault))
        return replace(
            self, queries=tuple(_on(server, query) for query in self.queries), faults=faults
        )

    def __str__(self) -> str:
        where = ", executors of their own" if self.executors else ""
        queries = ", ".join(map(str, self.queries))
        return (
            f"seed {self.seed}: {self.servers} server(s){where}; {queries}; {len(self.faults)} "
            "faults"
        )
