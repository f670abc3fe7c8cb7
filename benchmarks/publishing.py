"""Measures loops that only publish: single messages, fast ingest and atomic batches.

They show the throughput that a sink can reach at the server.

`python -m benchmarks.publishing --rounds 5 --count 300000` compares them on a server of its own, in
one run, round by round. The frames are built before the clock starts. A loop reads from the answers
only what limits its messages in flight. A sink also encodes rows and matches every answer with its
row, so it stays below these figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import socket
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import nats
import numpy as np
import pyarrow as pa

from benchmarks.load import PAYLOAD_BYTES
from benchmarks.processes import cpu_seconds
from benchmarks.tables import Table
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.message_ids import MessageIds, WriteTask
from spark_jetstream.sink.row_reading import rows_of
from spark_jetstream.testing import NatsServer

SUBJECTS = 10
ATOMIC_BATCH = 1000  # the server's limit for one atomic batch
_SINK_ROWS = 2000  # of one portion, as in the sink
# messages between two acknowledgements of fast ingest, as asked for; the server makes it 500 or
# less
_FLOW = 1000
_AHEAD = 2  # how many such portions a fast publisher may be ahead of the last acknowledgement
_READ = 1 << 18
_TIMEOUT = 30.0
_PAYLOAD = bytes(
    random.Random(13).choices(b'abcdefghijklmnopqrstuvwxyz {}":,0123456789', k=PAYLOAD_BYTES)
)
_FLOW_ACK = re.compile(rb'"type":"ack","seq":(\d+),"msgs":(\d+)')
_COMMITTED = re.compile(rb'"batch":"[^"]*","count":(\d+)')


@dataclass(frozen=True)
class Way:
    """One way to publish; `window` is in messages and does not count for `fast`.

    `single` shares one reply subject; `own` sends frames that the sink makes, each with a reply
    subject of its own; `fast` and `atomic` are the server's batches.
    """

    name: str
    window: int
    ids: bool
    connections: int


class Taken(NamedTuple):
    """Messages a second over all connections, and CPU seconds of the publishing processes."""

    rate: float
    client_cpu: float


class _Share(NamedTuple):
    """The messages that one connection publishes.

    `name` is a token of its own, part of its inbox, batches and ids.
    """

    way: Way
    stream: str
    name: str
    messages: int


class _Frames(NamedTuple):
    """All frames of a connection in one piece; message `i` (from 0) is `data[starts[i]:starts[i +
    1]]`.
    """

    data: memoryview
    starts: array[int]

    def between(self, first: int, end: int) -> memoryview:
        return self.data[self.starts[first] : self.starts[end]]


def _frame(subject: str, reply: str, headers: str) -> bytes:
    """A publish of the payload; `headers` are lines with their ends, or nothing."""
    address = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"PUB %s %d\r\n%s\r\n" % (address.encode(), PAYLOAD_BYTES, _PAYLOAD)
    block = f"NATS/1.0\r\n{headers}\r\n".encode()
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (
        address.encode(),
        len(block),
        len(block) + PAYLOAD_BYTES,
        block,
        _PAYLOAD,
    )


def _messages(share: _Share) -> Iterator[bytes]:
    """The frames of a share, with the replies and headers that its way needs."""
    way, last = share.way, share.messages - 1
    inbox = f"inbox.{share.name}"
    for number in range(share.messages):
        subject = f"{share.stream}.{number % SUBJECTS}"
        # As long as what a sink makes of query, batch, partition and row.
        headers = f"Nats-Msg-Id: {share.name:0>31}-{number:08d}\r\n" if way.ids else ""
        reply = inbox
        if way.name == "fast":
            step = 2 if number == last else 0 if number == 0 else 1
            reply = f"{inbox}.{_FLOW}.fail.{number + 1}.{step}.$FI"
        elif way.name == "atomic":
            batch, place = divmod(number, ATOMIC_BATCH)
            headers += (
                f"Nats-Batch-Id: {share.name}-{batch}\r\nNats-Batch-Sequence: {place + 1}\r\n"
            )
            commit = place == ATOMIC_BATCH - 1 or number == last
            headers += "Nats-Batch-Commit: 1\r\n" if commit else ""
            reply = inbox if commit or place == 0 else ""
        yield _frame(subject, reply, headers)


def _sink_frames(share: _Share) -> _Frames:
    """Return the frames of the sink for the same messages where rows do not share a reply subject."""
    rows = share.messages
    subjects = pa.array([f"{share.stream}.{number % SUBJECTS}" for number in range(rows)])
    batch = pa.record_batch(
        [pa.array([_PAYLOAD] * rows, pa.binary()), subjects], names=["data", "subject"]
    )
    columns = SinkColumns.check([("data", "binary"), ("subject", "string")], None)
    identifier = MessageIds(WriteTask(share.name, 0, 0)) if share.way.ids else None
    pieces: list[bytes] = []
    sizes: list[int] = []
    for first in range(0, rows, _SINK_ROWS):
        some = rows_of(batch.slice(first, _SINK_ROWS), columns, first + 1)
        ids = identifier.ids(some) if identifier else None
        encoded = encode(some, ids, None, inbox=f"inbox.{share.name}", first_number=first + 1)
        pieces.append(bytes(encoded.frames(0, len(some))))
        sizes += np.diff(encoded.bounds).tolist()
    return _Frames(memoryview(b"".join(pieces)), array("q", accumulate(sizes, initial=0)))


def _prepared(share: _Share) -> _Frames:
    if share.way.name == "own":
        return _sink_frames(share)
    frames = list(_messages(share))
    return _Frames(
        memoryview(b"".join(frames)), array("q", accumulate(map(len, frames), initial=0))
    )


def _opened(url: str, share: _Share) -> socket.socket:
    """A connection whose subscription is in place."""
    address = urlsplit(url)
    wire = socket.create_connection((str(address.hostname), address.port or 4222), _TIMEOUT)
    wire.recv(_READ)
    hello = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "lang": "raw",
        "version": "1",
    }
    inbox = f"inbox.{share.name}" + (".>" if share.way.name in ("fast", "own") else "")
    wire.sendall(f"CONNECT {json.dumps(hello)}\r\nSUB {inbox} 1\r\nPING\r\n".encode())
    seen = b""
    while b"PONG\r\n" not in seen:
        seen += _received(wire)
    return wire


def _received(wire: socket.socket) -> bytes:
    data = wire.recv(_READ)
    if not data:
        raise RuntimeError("the server closed the connection")
    return data


def _counting(wire: socket.socket, frames: _Frames, share: _Share) -> None:
    """Publish with at most `window` messages unacknowledged, and count closing braces.

    Every acknowledgement of a stored message or of an atomic batch holds exactly one, a PING holds
    none, and no read can cut a single byte in two. A refusal holds two, and is found when the
    stream's messages are counted.
    """
    each = ATOMIC_BATCH if share.way.name == "atomic" else 1
    step = max(share.way.window // 4, each)
    sent = acknowledged = 0
    while acknowledged < share.messages:
        end = min(share.messages, acknowledged + share.way.window)
        if end - sent >= min(step, share.messages - sent) > 0:
            end -= 0 if end == share.messages else end % each
            wire.sendall(frames.between(sent, end))
            sent = end
        else:
            acknowledged = min(acknowledged + each * _received(wire).count(b"}"), share.messages)


def _flowing(wire: socket.socket, frames: _Frames, share: _Share) -> None:
    """Publish one fast batch: wait for the first acknowledgement, keep to what the others allow,
    and commit.
    """
    wire.sendall(frames.between(0, 1))
    sent, acknowledged, portion = 1, -1, 0
    tail = b""
    while True:
        # Behind the last line end an answer may be cut; a whole one always has its line.
        whole, _, tail = (tail + _received(wire)).rpartition(b"\n")
        if b'"error"' in whole or b'"gap"' in whole or b"NATS/1.0" in whole:
            raise RuntimeError(f"fast ingest into {share.stream} was refused: {whole[-500:]!r}")
        for acknowledgement in _FLOW_ACK.finditer(whole):
            acknowledged, portion = int(acknowledgement[1]), int(acknowledgement[2])
        committed = _COMMITTED.search(whole)
        if committed:
            if int(committed[1]) != share.messages:
                raise RuntimeError(
                    f"fast ingest into {share.stream} ended at {int(committed[1])} of "
                    f"{share.messages}"
                )
            return
        end = min(share.messages, acknowledged + portion * _AHEAD)
        if end > sent:
            wire.sendall(frames.between(sent, end))
            sent = end


def _publish_share(url: str, share: _Share, parent: Connection) -> None:
    """The life of a publishing process: build, say so, wait for the word, publish, tell the times
    and the CPU.
    """
    frames = _prepared(share)
    with _opened(url, share) as wire:
        parent.send("ready")
        parent.recv()
        used = cpu_seconds(os.getpid())
        began = time.perf_counter()
        (_flowing if share.way.name == "fast" else _counting)(wire, frames, share)
        parent.send((began, time.perf_counter(), cpu_seconds(os.getpid()) - used))


def _api(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        client = await nats.connect(url)
        answer = await client.request(
            f"$JS.API.{path}", json.dumps(body).encode() if body else b"", timeout=_TIMEOUT
        )
        await client.close()
        content: dict[str, Any] = json.loads(answer.data)
        if "error" in content:
            raise RuntimeError(f"{path}: {content['error']}")
        return content

    return asyncio.run(run())


def create(url: str, stream: str, **config: Any) -> None:
    """Make a file-backed stream that takes `<stream>.>`."""
    wanted = {
        "name": stream,
        "subjects": [f"{stream}.>"],
        "storage": "file",
        "num_replicas": 1,
        **config,
    }
    _api(url, f"STREAM.CREATE.{stream}", wanted)


def delete(url: str, stream: str) -> None:
    """Delete a stream."""
    _api(url, f"STREAM.DELETE.{stream}")


def stored(url: str, stream: str) -> int:
    """How many messages a stream holds."""
    return int(_api(url, f"STREAM.INFO.{stream}")["state"]["messages"])


def publish(
    url: str, stream: str, count: int, way: Way, started: Callable[[], None] = lambda: None
) -> Taken:
    """Publish `count` messages of 200 bytes under `<stream>.0` to `<stream>.9`, each connection in
    its own process.

    `started` is called when all is built and connected, right before the clock starts.

    Raises:
        RuntimeError: a publisher failed, or the stream does not hold `count` messages more than before.
    """
    before = stored(url, stream)
    context = multiprocessing.get_context("fork")
    workers = []
    for number in range(way.connections):
        part = count * (number + 1) // way.connections - count * number // way.connections
        share = _Share(way, stream, f"{time.time_ns():x}-{number}", part)
        ours, theirs = context.Pipe()
        worker = context.Process(target=_publish_share, args=(url, share, theirs))
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    try:
        for _, pipe in workers:
            pipe.recv()
        started()
        for _, pipe in workers:
            pipe.send("go")
        times = [pipe.recv() for _, pipe in workers]
    except EOFError as error:
        raise RuntimeError(f"a publisher to {stream} failed") from error
    finally:
        for worker, pipe in workers:
            pipe.close()
            worker.join()
    found = stored(url, stream) - before
    if found != count:
        raise RuntimeError(f"{found} of {count} messages were stored in {stream}")
    elapsed = max(ended for _, ended, _ in times) - min(began for began, _, _ in times)
    return Taken(count / elapsed, sum(used for _, _, used in times))


def raw_publish(
    url: str, stream: str, count: int, window: int, ids: bool, connections: int = 1
) -> float:
    """Messages a second of single publishes with at most `window` of them unacknowledged on each
    connection.

    The stream is there already and takes `<stream>.>`. With `ids` every message has a `Nats-Msg-Id`
    of its own.
    """
    return publish(url, stream, count, Way("single", window, ids, connections)).rate


def fast_publish(url: str, stream: str, count: int, ids: bool, connections: int = 1) -> float:
    """Messages a second of fast ingest, one batch on each connection; the stream needs
    `allow_batched`.
    """
    return publish(url, stream, count, Way("fast", 0, ids, connections)).rate


def atomic_publish(
    url: str, stream: str, count: int, ids: bool, connections: int = 1, under_way: int = 4
) -> float:
    """Messages a second of atomic batches of 1000, `under_way` of them at a time; the stream needs
    `allow_atomic`.
    """
    return publish(
        url, stream, count, Way("atomic", under_way * ATOMIC_BATCH, ids, connections)
    ).rate


def _ways() -> list[Way]:
    single = [Way("single", window, False, 1) for window in (1000, 4000, 16000)]
    one = [
        *single,
        Way("own", 4000, False, 1),
        Way("fast", 0, False, 1),
        Way("atomic", 4 * ATOMIC_BATCH, False, 1),
    ]
    return [
        replace(way, ids=ids, connections=number)
        for number in (1, 2)
        for ids in (False, True)
        for way in one
    ]


def _measured(server: NatsServer, stream: str, count: int, way: Way) -> tuple[float, float, float]:
    """Messages a second, and CPU microseconds a message of the publishers and of the server, with a
    fresh stream.
    """
    batches = {"fast": {"allow_batched": True}, "atomic": {"allow_atomic": True}}
    create(server.url, stream, **batches.get(way.name, {}))
    since = 0.0

    def started() -> None:
        nonlocal since
        since = cpu_seconds(server.pid)

    taken = publish(server.url, stream, count, way, started)
    used = cpu_seconds(server.pid) - since
    delete(server.url, stream)
    return taken.rate, taken.client_cpu / count * 1e6, used / count * 1e6


def compare(rounds: int, count: int = 300_000) -> None:
    """Print a table of all ways, on a server of its own: medians, and ratios taken within each
    round.

    The ratio is to single publishes with a window of 4000 on one connection, with ids or without as
    the row has it. Each round begins with another way, since a machine may slow down in the course
    of one.
    """
    ways = _ways()
    found: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in ways}
    with NatsServer() as server:
        _measured(server, "WARM", count // 10, ways[0])
        for number in range(rounds):
            shift = number * len(ways) // rounds
            for place, way in enumerate(ways[shift:] + ways[:shift]):
                found[way].append(_measured(server, f"P{number}-{place}", count, way))
    texts = dict.fromkeys(("way", "window", "ids", "connections"), "s")
    rates_forms = dict.fromkeys(("messages/s", "from", "to"), ",.0f")
    table = Table(
        "publishing",
        f"{count:,} messages of {PAYLOAD_BYTES} B into a file-backed stream, {rounds} rounds; "
        "medians; the window is that of each connection, in messages",
        **{**texts, **rates_forms, "ratio": ".2f", "client us": ".2f", "server us": ".2f"},
    )
    for way in ways:
        base = found[Way("single", 4000, way.ids, 1)]
        rates, client, served = zip(*found[way], strict=True)
        ratio = statistics.median(rate / other[0] for rate, other in zip(rates, base, strict=True))
        names = (
            way.name,
            str(way.window) if way.window else "flow",
            "yes" if way.ids else "no",
            str(way.connections),
        )
        spread = (statistics.median(rates), min(rates), max(rates))
        table.add(*names, *spread, ratio, statistics.median(client), statistics.median(served))


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publishing", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all ways (default 5)")
    parser.add_argument(
        "--count", type=int, default=300_000, help="messages for each measurement (default 300,000)"
    )
    arguments = parser.parse_args()
    compare(arguments.rounds, arguments.count)


if __name__ == "__main__":
    main()
