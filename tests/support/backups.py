"""Backups as a test needs them: a stream to save, one to compare, and files to damage."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.streams.pull import read_range
from tests.support.publish import Message
from tests.support.reading import SETTINGS, part_of

POUR = 500  # messages of 4 KB: more than what is compressed together, so that nothing is found twice


def table(connection: Connection, url: str, stream: str) -> pa.Table:
    """All messages of a stream in their order, and all there is of each."""
    part = part_of(url, stream, 1, count=None)
    found = [
        pa.table(
            {
                "sequence": some.sequences,
                "subject": some.subjects(),
                "time": some.timestamps(),
                "headers": some.headers(),
                "data": some.payloads(),
            }
        )
        for some in (read_range(lambda _: connection, part, SETTINGS, "compare") if part.end > part.first else ())
    ]
    return pa.concat_tables(found) if found else pa.table({})


def incompressible(subject: str, seed: int = 7) -> bytes:
    """The frames of `POUR` messages of 4,000 random bytes with a header each, at subjects that begin with this."""
    source = random.Random(seed)
    messages = (Message(f"{subject}.{n % 7}", source.randbytes(4000), [("N", str(n))]) for n in range(POUR))
    return b"".join(message.frame() for message in messages)


def still(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a consumer, without what depends on when it is asked."""
    names = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    return {
        name: {key: value for key, value in state[name].items() if key != "last_active"}
        if isinstance(state[name], dict)
        else state[name]
        for name in names
    }
