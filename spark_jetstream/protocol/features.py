"""Features of nats-server that not every supported server has. Pure.

Each has the first version of the server, and the first level of the API, that have it.

A server that a client is connected to tells its version. The JetStream that answers requests may be
another server, behind a leaf node or in another domain: of that one only the level of its API is
known (ADR-44).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, int, int]

LEVELS: Mapping[int, str] = {1: "2.11", 2: "2.12", 4: "2.14", 5: "2.15"}
"""API level -> the first server that has it (ADR-44)."""


@dataclass(frozen=True)
class Feature:
    """Something that servers do from a version, and from a level of the API, on."""

    version: Version
    level: int

    def is_in(self, version: Version) -> bool:
        """Whether a server of this version has the feature."""
        return version >= self.version

    def is_at(self, level: int) -> bool:
        """Whether a server with this level of the API has the feature."""
        return level >= self.level

    @property
    def since(self) -> str:
        """The first version that has it, without the patch level."""
        major, minor, _ = self.version
        return f"{major}.{minor}"


CONSUMER_PAUSE = Feature((2, 11, 0), 1)
"""Consumers that deliver nothing until a time (CONSUMER.PAUSE)."""

PINNED_CLIENTS = Feature((2, 11, 0), 1)
"""Consumers that deliver to one client at a time, until it is unpinned (CONSUMER.UNPIN; ADR-42)."""

PEDANTIC_REQUESTS = Feature((2, 11, 0), 1)
"""Requests for a stream or consumer that refuse a configuration which the server would change."""

MESSAGES_SINCE = Feature((2, 11, 0), 1)
"""The first message that was stored since a time (STREAM.MSG.GET, DIRECT.GET).

See `FIRST_SINCE`.
"""

PREFERRED_LEADER = Feature((2, 11, 0), 1)
"""Leaders that step down in favour of a server that the request names."""

DIRECT_BATCHES = Feature((2, 11, 0), 1)
"""A Direct Get that asks for several messages (ADR-31)."""

MESSAGE_TRACES = Feature((2, 11, 0), 1)
"""Messages that are traced and not delivered (ADR-41). Older servers deliver them."""

MESSAGE_TTL = Feature((2, 11, 0), 1)
"""Messages with a TTL of their own (ADR-43). Older servers keep them for good."""

EXPECTED_STREAM_PASSES_MIRRORS = Feature((2, 11, 6), 1)
"""Mirrors that pass over the header Nats-Expected-Stream.

A mirror of an older server stops for good at a message that has it (seen with 2.10.26 to 2.11.4).
There only the acknowledgement says which stream has stored a message.
"""

COUNTERS = Feature((2, 12, 0), 2)
"""Streams of counters (ADR-49). Older servers store an increment as a message without payload."""

FIRST_SINCE = Feature((2, 12, 0), 2)
"""The first message since a time, also where sequences are missing.

Older servers answer with another message there (seen with 2.10.26 and 2.11.11).
"""

PURGE_OF_LONG_STREAMS = Feature((2, 12, 0), 2)
"""A fault: the deletion of consumers may purge a long interest stream (`LONG` in source/interest_streams.py).

Seen with 2.12.8, 2.14.6 and 2.15.1, and not with 2.10.26 and 2.11.11.
"""

CONSUMER_RESET = Feature((2, 14, 0), 4)
"""Consumers that a request moves (CONSUMER.RESET)."""

SCHEDULE_DETAILS = Feature((2, 14, 0), 4)
"""Schedules with a time zone, a source or a roll-up, and repeated ones (ADR-51).

Older servers ignore the headers of the first three.
"""

FILTERED_PURGE = Feature((2, 15, 0), 5)
"""A purge of one of several filters of a work queue's consumer that leaves the others alone.

An older server moves the consumer past what it purges, and past messages of the consumer's other
filters. A cluster takes these for acknowledged, and removes them when its leaders change (seen with
2.12.8 and 2.14.6; tests/source/durable/test_progress.py,
test_several_filters_of_a_work_queue_and_an_older_server).
"""

CONSUMERS_BOUNDED = Feature((2, 15, 0), 5)
"""Streams without `max_consumers` that take 1,000 consumers at most."""

PEER_EVACUATION = Feature((2, 15, 0), 5)
"""Replicas of streams and consumers that move off a server, and moves that are cancelled (ADR-62)."""

CONSUMER_PEER_REMOVAL = Feature((2, 15, 0), 5)
"""Replicas of a single consumer that are removed from a server (ADR-62)."""

QUORUM_RESCUE = Feature((2, 15, 0), 5)
"""A cluster that has lost most of its servers, and lets fewer decide (ADR-61)."""

BACKUPS_OF_2_15 = Feature((2, 15, 0), 5)
"""Restoring backups that a server of this version, or a later one, has made."""


def since(level: int) -> str:
    """Return the first version of the server with an API level, ``before 2.11`` for level 0."""
    known = [each for each in LEVELS if each <= level]
    if not known:
        return "before 2.11"
    return LEVELS[max(known)]


def shown_version(version: Version) -> str:
    """Return a version as servers write it."""
    return ".".join(map(str, version))
