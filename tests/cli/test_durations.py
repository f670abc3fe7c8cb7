"""The unit ``M`` of a duration: six minutes to one tool, 180 days to the other. No command takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from tests.cli.conftest import Command
from tests.support.publish import Message, Publisher

HINT = (
    "M could mean minutes, or months as in the nats command; write 6m for minutes, and days instead of months, "
    "such as 180d"
)


def said(text: str) -> str:
    """Without the frame that is drawn around wrong usage."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def stream(admin: JetStreamAdmin, publisher: Publisher, name: str) -> Iterator[str]:
    """A stream with a message and a consumer, and a bucket of the same name."""
    admin.streams.create(name=name, subjects=[f"{name}.>"], max_age="10m")
    admin.consumers.create(name, durable_name="billing", ack_policy="explicit")
    publisher.publish([Message(f"{name}.a", b"kept")])
    admin.kv.create(name)
    yield name
    admin.kv.delete(name)


@pytest.mark.parametrize(
    "line",
    [
        "stream edit {name} --max-age 6M --force",
        "stream edit {name} --config {yaml} --force",
        "stream edit {name} --config {json} --force",
        "stream apply {json} --force",
        "stream apply {yaml} --force",
        "stream add {name}NEW --duplicate-window 6M",
        "stream add {name}NEW --consumer-limits inactive_threshold=6M",
        "consumer add {name} new --ack-wait 6M",
        "consumer add {name} new --backoff 1s,6M",
        "consumer edit {name} billing --inactive-threshold 6M --force",
        "consumer pause {name} billing 6M",
        "consumer next {name} billing --wait 6M",
        "kv add {name}NEW --ttl 6M",
        "kv create {name} a b --ttl 6M",
        "kv compact {name} --older-than 6M",
        "kv watch {name} --wait 6M",
        "object add {name}NEW --ttl 6M",
        "object watch {name} --wait 6M",
        "lag --max-age 6M",
        "lag --watch --every 6M",
        "events --for 6M",
        "stream ls --timeout 6M",
        "stream ls -o retryTimeout=6M",
    ],
)
def test_a_capital_m_is_refused_with_both_readings(
    line: str, run: Command, admin: JetStreamAdmin, stream: str, tmp_path: Path
) -> None:
    files = {"json": tmp_path / "stream.json", "yaml": tmp_path / "stream.yaml"}
    files["json"].write_text(f'{{"name": "{stream}", "subjects": ["{stream}.>"], "max_age": "6M"}}')
    files["yaml"].write_text(f"name: {stream}\nsubjects: ['{stream}.>']\nmax_age: 6M\n")
    before = [info.config for info in (admin.streams.load(stream), admin.consumers.load(stream, "billing"))]
    ran = run(*line.format(name=stream, **files).split())
    assert (ran.code, ran.out) == (2, "")
    assert HINT in said(ran.err)
    after = [info.config for info in (admin.streams.load(stream), admin.consumers.load(stream, "billing"))]
    assert (after, admin.streams.load(stream).state.messages) == (before, 1)


@pytest.mark.parametrize(
    ("given", "kept"), [("1y", "365d"), ("2w", "14d"), ("1y2w3d", "382d"), ("1.5h", "1h30m"), ("1W1h30m", "7d1h30m")]
)
def test_what_the_nats_command_reads_in_one_way(
    given: str, kept: str, do: Command, admin: JetStreamAdmin, name: str
) -> None:
    do("stream", "add", name, "--max-age", given)
    assert str(admin.streams.load(name).config.max_age) == kept
