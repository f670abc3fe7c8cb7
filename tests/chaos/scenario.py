"""What one run of the fault suite does: which servers, which queries, which faults. Made from a seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Options of every source and sink. An outage may last as long as the longest fault, also when a query starts again.
TIMES = {"connectTimeout": "60s", "requestTimeout": "5s", "retryTimeout": "180s"}

_SMALL_BATCHES = {"maxMessagesPerTrigger": "150", "minPartitions": "2", "fetchTimeout": "2s", "fetchBatch": "50"}
_HOUR = 3600 * 10**9  # nanoseconds; longer than a run, so that what is sent again is stored once


@dataclass(frozen=True)
class Source:
    """How a query reads: its options, and the configuration of its streams."""

    options: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    streams: int = 1
    subject: str | None = None
    """The last token of the only subject that it reads; None for all."""


SOURCES = {
    "consumer": Source({"readWith": "consumer"}),
    "direct": Source({"readWith": "direct"}),
    "auto": Source({"readWith": "auto"}),
    "durable": Source({"durable": "spark"}),
    "interest": Source({"durable": "spark"}, {"retention": "interest"}),
    "queue": Source({"durable": "spark"}, {"retention": "workqueue"}),
    "filtered": Source(subject="1"),
    "several": Source(streams=3),
}

#: Levels of the sink, each with the duplicate window of its stream in nanoseconds.
LEVELS = {"at-least-once": _HOUR, "deduplicated": _HOUR, "exactly-once": 10**9}


@dataclass(frozen=True)
class Query:
    """One streaming query, from streams of its own to Spark's file sink, or with `level` to another stream."""

    name: str
    kind: str
    level: str | None = None
    accepts: bool = False
    """Whether it goes on after a loss (failOnDataLoss=false)."""
    own_ids: bool = False
    """Whether the rows that it writes have message ids of the user's."""

    @property
    def source(self) -> Source:
        return SOURCES[self.kind]

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it reads."""
        return tuple(f"{self.name}{number}" for number in range(self.source.streams))

    @property
    def target(self) -> str:
        """The stream that it writes to."""
        return f"{self.name}_OUT"

    def options(self, url: str) -> dict[str, str]:
        """Its options: those of the sink have the prefix ``sink.``."""
        of_source = {**TIMES, **_SMALL_BATCHES, **self.source.options, "stream": ",".join(self.streams)}
        if self.source.subject is not None:
            of_source["subjects"] = ",".join(f"{name}.{self.source.subject}" for name in self.streams)
        if self.accepts:
            of_source["failOnDataLoss"] = "false"
        if self.level is None:
            return {"servers": url, **of_source}
        of_sink = {**TIMES, "servers": url, "delivery": self.level, "stream": self.target, "maxInFlight": "60"}
        if self.own_ids:
            of_sink["ids"] = "own"
        sink = {f"sink.{name}": value for name, value in of_sink.items()}
        return {"servers": url, **of_source, **sink, "sink.subject": f"{self.target}.row"}

    def configs(self, replicas: int) -> dict[str, dict[str, Any]]:
        """The configurations of its streams, by name."""
        common = {"storage": "file", "num_replicas": replicas, "allow_direct": True}
        configs = {name: {**common, "duplicate_window": _HOUR, **self.source.config} for name in self.streams}
        if self.level is not None:
            configs[self.target] = {**common, "duplicate_window": LEVELS[self.level]}
        return configs

    def reads(self, subject: str) -> bool:
        """Whether a message of its streams is one that it reads."""
        return self.source.subject in (None, subject.rpartition(".")[2])


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, by its name in `tests.chaos.world`; `settled`: all queries have gone on before."""

    name: str
    seconds: float
    settled: bool
    target: int
    """Which of several it is that suffers, modulo their number."""


#: What befalls Spark's processes.
_OF_SPARK = ("workers_killed", "planners_killed", "driver_killed")
#: What befalls one server, and the wire to it.
_OF_SERVER = ("server_killed", "server_frozen", "wire_cut", "wire_cut_inside", "wire_stalled", "wire_refused")
#: What befalls a cluster of three.
_OF_CLUSTER = ("leader_killed", "meta_leader_killed", "leader_frozen", "leader_steps_down", "replicas_changed")
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


@dataclass(frozen=True)
class Scenario:
    """A run: the same seed and number of faults make the same one."""

    seed: int
    servers: int
    queries: tuple[Query, ...]
    faults: tuple[Fault, ...]
    losing: bool = False
    """Whether the faults take something away, which the queries must report."""

    @classmethod
    def of(cls, seed: int, faults: int, *, longest: float = 8.0) -> Scenario:
        """Return the scenario of a seed, with so many faults that last at most `longest` seconds."""
        chance = random.Random(f"faults {seed}")
        servers = 1 if seed % 2 else 3
        losing = seed % 3 == 0
        kinds = chance.sample(sorted(SOURCES), 3)
        level = chance.choice(sorted(LEVELS))
        own_ids = level == "deduplicated" and losing and chance.random() < 0.5
        accepts = [losing and chance.random() < 0.4 for _ in kinds]
        queries = (
            Query("A", kinds[0], accepts=accepts[0]),
            Query("B", kinds[1], accepts=accepts[1]),
            Query("C", kinds[2], level, accepts[2], own_ids),
        )
        if losing:
            # Each of them once before one comes again.
            rounds = -(-faults // len(_OF_LOSSES))
            names = [name for _ in range(rounds) for name in chance.sample(_OF_LOSSES, len(_OF_LOSSES))][:faults]
        else:
            of_world = _OF_SERVER if servers == 1 else _OF_CLUSTER
            names = [chance.choice(_OF_SPARK if chance.random() < 0.25 else of_world) for _ in range(faults)]
        suffered = tuple(
            Fault(name, round(chance.uniform(0.0, longest), 1), chance.random() < 0.7, chance.randrange(100))
            for name in names
        )
        return cls(seed, servers, queries, suffered, losing)

    def __str__(self) -> str:
        queries = ", ".join(f"{query.name}: {query.kind} to {query.level or 'files'}" for query in self.queries)
        return f"seed {self.seed}: {self.servers} server(s); {queries}; {len(self.faults)} faults"
