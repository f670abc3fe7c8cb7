"""Reading below Spark: ranges of a stream as planning makes them, read with `read_range`.

A test prepares its streams with a `Publisher`, so that they do not depend on what the test is
about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Connect
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.columns import Delivered, MessageRun
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams.direct import read_auto, read_direct
from spark_jetstream.streams.pull import PullSettings, read_range
from spark_jetstream.testing import NatsCluster
from spark_jetstream.testing.process import poll
from tests.support.publish import Message, Publisher

#: Short times, so that a test that waits for one of them ends soon; long enough for a busy machine.
QUICK = {"connectTimeout": "3s", "requestTimeout": "3s", "retryTimeout": "30s"}
SETTINGS = PullSettings(
    batch=500, max_bytes=1 << 20, expires=1.0, retry_timeout=30.0, fail_on_data_loss=True
)
COUNT = 3000
Where = ConnectionOptions | str
ALL = list(range(1, COUNT + 1))
POUR = (
    500  # messages of 4 KB: more than what is compressed together, so that nothing is found twice
)


def options(url: str, **given: str) -> ConnectionOptions:
    """Connection options with the short times of `QUICK`."""
    return ConnectionOptions.from_spark({**QUICK, "servers": url, **given})


def connecting(where: Where, **given: str) -> Connect:
    """A function that returns the process's connection; `given` goes with a URL."""
    parsed = options(where, **given) if isinstance(where, str) else where
    return lambda patience: connect(parsed, patience=patience)


def api(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The reply to `$JS.API.<path>`; of several servers the first is asked."""
    with Publisher(url.partition(",")[0]) as publisher:
        return publisher.api(path, body)


def create(url: str, stream: str, **config: Any) -> None:
    """Make a stream with the subjects `<stream>.>`, in memory unless `config` says otherwise."""
    api(
        url,
        f"STREAM.CREATE.{stream}",
        {"name": stream, "subjects": [f"{stream}.>"], "storage": "memory", **config},
    )


def fill(
    url: str,
    stream: str,
    count: int,
    subject: Callable[[int], str] = lambda _: "a",
    size: int = 100,
) -> None:
    """Publish `count` more messages; on return the stream has stored them.

    Message i (from 0) goes to `<stream>.<subject(i)>` and has `size` bytes, or a few more, that
    begin with i as text.
    """
    messages = [
        Message(f"{stream}.{subject(i)}", str(i).encode().ljust(size, b".")) for i in range(count)
    ]
    with Publisher(url.partition(",")[0]) as publisher:
        publisher.publish(messages)


def consumers(url: str, stream: str) -> list[str]:
    return list(api(url, f"CONSUMER.NAMES.{stream}").get("consumers") or [])


def delete_consumers(url: str) -> None:
    """Delete the consumers of stream S."""
    for name in consumers(url, "S"):
        api(url, f"CONSUMER.DELETE.S.{name}")


def part_of(
    url: str, stream: str, first: int = 1, end: int | None = None, **fields: Any
) -> SequenceRange:
    """A range of the stream as planning would make it now: without filters, to the end, and
    counted.
    """
    info = api(url, f"STREAM.INFO.{stream}")
    end = info["state"]["last_seq"] + 1 if end is None else end
    plain = {
        "stream": stream,
        "first": first,
        "end": end,
        "count": end - first,
        "created": info["created"],
    }
    return SequenceRange(**{**plain, **fields})


def replicated(cluster: NatsCluster, stream: str) -> SequenceRange:
    """A stream with three replicas and `COUNT` messages, all of it."""
    create(cluster.url, stream, num_replicas=3, storage="file", allow_direct=True)
    cluster.wait_ready()
    fill(cluster.urls[cluster.leader_of(stream)], stream, COUNT)
    return part_of(cluster.url, stream)


def pulls(
    where: Where, part: SequenceRange, settings: PullSettings = SETTINGS, label: str = "test"
) -> Iterator[Delivered]:
    """`read_range` over the process's pooled connection."""
    return read_range(connecting(where), part, settings, label)


def direct(
    where: Where, part: SequenceRange, settings: PullSettings = SETTINGS
) -> Iterator[MessageRun]:
    """`read_direct` over the process's pooled connection."""
    return read_direct(connecting(where, requestTimeout="1s"), part, settings, "test")


def auto(
    where: Where, part: SequenceRange, settings: PullSettings = SETTINGS
) -> Iterator[MessageRun]:
    """`read_auto` over the process's pooled connection."""
    return read_auto(connecting(where, requestTimeout="1s"), part, settings, "test")


def sequences(read: Iterable[MessageRun]) -> list[int]:
    return [int(sequence) for pulled in read for sequence in pulled.sequences]


def some(read: Iterator[MessageRun], number: int = 1) -> list[int]:
    """The sequences of the next `number` pieces."""
    return sequences(islice(read, number))


def collect(read: Iterator[MessageRun], into: list[int]) -> None:
    """Add the sequences to `into` one run after another: after an error it has those before the
    error.
    """
    for messages in read:
        into += messages.sequences.tolist()


def wait_until(check: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    poll(
        lambda: True if check() else None,
        timeout,
        lambda: TimeoutError(f"not seen within {timeout:g} s: {what}"),
    )


def table(connection: Connection, url: str, stream: str) -> pa.Table:
    """All messages of a stream in their order, and all there is of each."""
    part = part_of(url, stream, 1, count=None)
    pieces = [
        pa.table(
            {
                "sequence": some.sequences,
                "subject": some.subjects(),
                "time": some.timestamps(),
                "headers": some.headers(),
                "data": some.payloads(),
            }
        )
        for some in (
            read_range(lambda _: connection, part, SETTINGS, "compare")
            if part.end > part.first
            else ()
        )
    ]
    return pa.concat_tables(pieces) if pieces else pa.table({})


def incompressible(subject: str) -> bytes:
    """The frames of `POUR` messages of 4,000 random bytes with a header each, at subjects that
    begin with this.
    """
    source = random.Random(7)
    messages = (
        Message(f"{subject}.{n % 7}", source.randbytes(4000), [("N", str(n))]) for n in range(POUR)
    )
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


def between(first: int, end: int) -> list[int]:
    """The sequences from `first` on, up to `end`."""
    return list(range(first, end))
