"""Frames of a client, byte for byte."""

from __future__ import annotations

import pytest

from spark_jetstream.protocol import commands


def test_a_publish() -> None:
    assert commands.publish("a.b", b"") == b"PUB a.b 0\r\n\r\n"
    assert commands.publish("a.b", b"\r\nx", "r.1") == b"PUB a.b r.1 3\r\n\r\nx\r\n"


def test_a_publish_with_headers() -> None:
    headers = [("A", " 1 "), ("A", "2\r\nPUB x 0"), ("", "left out")]
    block = b"NATS/1.0\r\nA: 1\r\nA: 2  PUB x 0\r\n\r\n"
    frame = b"HPUB a r.1 %d %d\r\n%sxy\r\n" % (len(block), len(block) + 2, block)
    assert commands.publish("a", b"xy", "r.1", headers) == frame


@pytest.mark.parametrize(
    ("subject", "group", "line"),
    [
        ("a.*.c", "", b"SUB a.*.c 7\r\n"),
        ("a.>", "workers", b"SUB a.> workers 7\r\n"),
        (">", "", b"SUB > 7\r\n"),
    ],
)
def test_a_subscription(subject: str, group: str, line: bytes) -> None:
    assert commands.subscribe(subject, group, 7) == line
    assert commands.unsubscribe(7) == b"UNSUB 7\r\n"


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPING", "a\tb"])
def test_a_subject_that_would_be_another_frame_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match="invalid subject"):
        commands.publish(subject, b"")
    with pytest.raises(ValueError, match="invalid subject"):
        commands.subscribe(subject, "", 1)
    if subject:  # else there is no reply subject, and no group
        with pytest.raises(ValueError, match="invalid subject"):
            commands.publish("a", b"", subject)
        with pytest.raises(ValueError, match="invalid subject"):
            commands.subscribe("a", subject, 1)


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", "a.>.b", "a*", "a.b>", ">.a", "**"])
def test_a_subscription_with_a_wildcard_or_dot_in_the_wrong_place_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match="invalid subject"):
        commands.subscribe(subject, "", 1)


@pytest.mark.parametrize("name", ["a b", "a:", "a\r\nb", "ä"])
def test_a_header_name_that_no_server_takes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="invalid header"):
        commands.publish("a", b"", headers=[(name, "1")])
