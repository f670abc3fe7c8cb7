"""Readers to measure the source against: they do less with the same messages, or do it plainly."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol import jsapi

_DONE = b"NATS/1.0 409 Batch Completed"
_OVERHEAD = 200  # bytes of a message that count beside payload and headers: more than its subjects


@dataclass(frozen=True)
class _Share:
    """The messages that one byte-counting reader reads, and the limits of its requests."""

    stream: str
    first: int
    count: int
    name: str
    batch: int
    max_bytes: int


def _count_bytes(url: str, share: _Share) -> None:
    """Pull `count` messages with the requests that the source makes, and look at nothing but how
    many bytes come.
    """
    address = urlsplit(url)
    stream, name = share.stream, share.name
    with socket.create_connection((str(address.hostname), address.port or 4222)) as wire:
        wire.recv(1 << 16)
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "raw",
            "version": "1",
        }
        wire.sendall(
            b"CONNECT " + json.dumps(hello).encode() + b"\r\nSUB inbox.%s.* 1\r\n" % name.encode()
        )
        config = jsapi.reader_config(name, (), start_sequence=share.first)
        request = jsapi.consumer_request(stream, config)
        create = jsapi.consumer_create("$JS.API", stream, name, ()).encode()
        wire.sendall(
            b"PUB %s inbox.%s.0 %d\r\n%s\r\n" % (create, name.encode(), len(request), request)
        )
        while b"num_pending" not in wire.recv(1 << 16):
            continue
        subject = jsapi.subject("$JS.API", jsapi.CONSUMER_NEXT, stream, name).encode()
        left = share.count
        under_way = 0
        tail = b""
        while left > 0 or under_way:
            while left > 0 and under_way < 2:
                size = min(share.batch, left)
                body = jsapi.next_request(size, max_bytes=share.max_bytes, expires=30, heartbeat=5)
                wire.sendall(
                    b"PUB %s inbox.%s.1 %d\r\n%s\r\n" % (subject, name.encode(), len(body), body)
                )
                left -= size
                under_way += 1
            data = wire.recv(1 << 20)
            if not data:
                raise RuntimeError("the server closed the connection")
            under_way -= (tail + data).count(_DONE)
            tail = data[-len(_DONE) + 1 :]


def count_bytes(
    url: str, stream: str, count: int, connections: int = 2, message_bytes: int = 200
) -> float:
    """Messages a second of readers that only count bytes, each in a process of its own with its
    share.
    """
    options = SourceOptions.from_spark({"stream": stream}, streaming=True)
    part = count // connections
    # A request that the limit of its bytes ended would not count as done.
    batch = min(options.fetch_batch, options.fetch_max_bytes // (message_bytes + _OVERHEAD))
    context = multiprocessing.get_context("fork")
    workers = []
    for i in range(connections):
        name = f"raw-{i}-{time.time_ns()}"
        share = _Share(stream, 1 + i * part, part, name, batch, options.fetch_max_bytes)
        workers.append(context.Process(target=_count_bytes, args=(url, share)))
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError("a byte-counting reader failed")
    return part * connections / (time.perf_counter() - began)


def fetch(url: str, stream: str, count: int) -> float:
    """Messages a second of nats-py's `fetch`."""

    async def run() -> float:
        client = await nats.connect(url)
        subscription = await client.jetstream().pull_subscribe(
            "", stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
        )
        began = time.perf_counter()
        seen = 0
        while seen < count:
            seen += len(await subscription.fetch(min(1000, count - seen), timeout=10))
        elapsed = time.perf_counter() - began
        await client.close()
        return seen / elapsed

    return asyncio.run(run())
