"""Streams to measure with."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import nats

from spark_jetstream.protocol.stream import SequenceRange

PAYLOAD_BYTES = 200
# acknowledgements under way, each for so many messages and bytes, or the server's queue overflows
_WINDOW = 20
_TOGETHER, _BYTES_TOGETHER = 1000, 2_000_000


async def _fill(
    url: str,
    stream: str,
    count: int,
    subjects: int,
    rare: int,
    payload_bytes: int,
    headers: int,
    config: dict[str, Any],
) -> SequenceRange:
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name=stream, subjects=[f"{stream}.>"], **config)
    payload = bytes(
        random.Random(13).choices(b'abcdefghijklmnopqrstuvwxyz {}":,0123456789', k=payload_bytes)
    )
    pairs = {f"Header-{number}": f"value {number}" for number in range(headers)} or None
    each = max(1, min(_TOGETHER, _BYTES_TOGETHER // payload_bytes))
    arrived = 0
    more = asyncio.Event()

    async def acknowledged(_: object) -> None:
        nonlocal arrived
        arrived += 1
        more.set()

    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=acknowledged)
    expected = 0
    for number in range(count):
        last = number % each == each - 1 or number == count - 1
        subject = (
            f"{stream}.rare"
            if rare and number % rare == rare - 1
            else f"{stream}.{number % subjects}"
        )
        await client.publish(subject, payload, reply=inbox if last else "", headers=pairs)
        if last:
            expected += 1
            while arrived < expected - (_WINDOW if number < count - 1 else 0):
                more.clear()
                await asyncio.wait_for(more.wait(), 30)
    info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=30)).data)
    await client.close()
    if info["state"]["messages"] != count:
        raise RuntimeError(f"{info['state']['messages']} of {count} messages were stored")
    return SequenceRange(stream, 1, count + 1, count, info["created"])


def fill(
    url: str,
    stream: str,
    count: int,
    *,
    subjects: int = 10,
    rare: int = 0,
    payload_bytes: int = PAYLOAD_BYTES,
    headers: int = 0,
    **config: Any,
) -> SequenceRange:
    """Create a file-backed stream of `count` messages under `<stream>.<number>`; return all of it.

    With `rare`, every `rare`-th message goes to `<stream>.rare` instead. `config` is more of the
    configuration.
    """
    return asyncio.run(_fill(url, stream, count, subjects, rare, payload_bytes, headers, config))
