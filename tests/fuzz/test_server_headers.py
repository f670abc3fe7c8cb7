"""Header blocks that nobody meant, through a real server: what it makes of them, and what the
connector does.

A server stores whatever block a publisher sends. Each block here comes back by a pull consumer, by
Direct Gets and by STREAM.MSG.GET; and its message id counts for the server just where the connector
sees one.
"""

from __future__ import annotations

import base64
import contextlib
import re
from itertools import islice
from pathlib import Path
from random import Random

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.sink.commands import SERVER_HEADERS
from spark_jetstream.streams.lookup import RawMessage
from spark_jetstream.testing.process import find_server_binary
from tests.fuzz.engine import inputs
from tests.fuzz.messages import slow_headers
from tests.fuzz.targets import TARGETS
from tests.support.calls import stored
from tests.support.publish import Message, Refused
from tests.support.streams import MakeStream

SEED, COUNT = 20, 200
MOST = 2000  # bytes of a block


def blocks() -> list[bytes]:
    """Blocks that end as a server expects them; in most of them is a line with an id of their own."""
    random = Random(SEED)
    known = [
        block for path in TARGETS["headers"].corpus for block in path.read_bytes().split(b"\x1e")
    ]
    lines = (
        b"Nats-Msg-Id: @\r\n",
        b"\nNats-Msg-Id: @",
        b"\r\nNats-Msg-Id:@ \r\n",
        b"Nats-Msg-Id : @\r\n",
        b" Nats-Msg-Id: @\r\n",
    )
    made = []
    for number, block in enumerate(islice(inputs(TARGETS["headers"], random, known), COUNT)):
        at = random.randint(0, min(len(block), MOST))
        with_id = block[:at] + random.choice(lines) + block[at:MOST]
        made.append(
            with_id.replace(b"@", b"id-%d-" % number).removesuffix(b"\r\n\r\n") + b"\r\n\r\n"
        )
    return made


def test_any_header_block_means_to_the_connector_what_it_means_to_the_server(
    stream: MakeStream,
) -> None:
    # The server must know the ids as long as the test runs.
    made = stream(allow_direct=True, duplicate_window=3600 * 10**9)
    sent: dict[int, tuple[int, bytes]] = {}
    for number, block in enumerate(blocks()):
        with contextlib.suppress(Refused):
            [sequence] = made.send(Message(f"{made.subject}.{number}", b"%d" % number, block=block))
            sent[sequence] = number, block
    assert len(sent) > COUNT // 2
    with JetStreamAdmin(servers=made.url) as admin:
        for sequence, (number, block) in sent.items():
            whole = made.publisher.api(f"STREAM.MSG.GET.{made.name}", {"seq": sequence})["message"]
            sent[sequence] = number, base64.b64decode(whole.get("hdrs", ""))
            # The server takes what looks like a status out of the first line.
            assert sent[sequence][1] in (
                block,
                re.sub(rb"^NATS/1.0[^\r]+", b"NATS/1.0", block),
                b"",
            )
            assert slow_headers(sent[sequence][1]) == slow_headers(block)
            one = admin.messages.get(made.name, sequence, direct=True)
            assert (one.headers, one.data) == (dict(slow_headers(block) or []), b"%d" % number)
    read = {sequence: slow_headers(block) for sequence, (_, block) in sent.items()}
    for way in ("consumer", "direct"):
        rows = {row.sequence: row.headers for row in stored(made, readWith=way)}
        assert rows == {sequence: found and dict(found) for sequence, found in read.items()}
    for sequence, (number, block) in sent.items():
        name = b"id-%d-" % number
        [again] = made.send(
            Message(f"{made.subject}.{number}", b"again", [("Nats-Msg-Id", name.decode())])
        )
        assert (RawMessage("", sequence, block, b"", 0).message_id == name) == (
            again == sequence
        ), block


def test_a_server_keeps_the_headers_that_the_sink_lets_through(stream: MakeStream) -> None:
    # All names in the server's program, and all their beginnings: there the strings stand without
    # an end.
    program = Path(find_server_binary()).read_bytes()
    texts = {match[0] for match in re.finditer(rb"Nats-[A-Z][A-Za-z-]{2,50}", program)}
    names = sorted({text[:end] for text in texts for end in range(len(b"Nats-x"), len(text) + 1)})
    names = [name for name in names if SERVER_HEADERS.fullmatch(name) is None]
    assert len(names) > 100
    made = stream()
    blocks = [b"NATS/1.0\r\n%s: 1\r\n\r\n" % name for name in names]
    sent = made.send(*(Message(f"{made.subject}.a", b"", block=block) for block in blocks))
    assert sent == list(range(1, len(names) + 1))
    assert [row.headers for row in stored(made)] == [{name.decode(): ["1"]} for name in names]
