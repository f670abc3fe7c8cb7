"""The versions that servers tell."""

from __future__ import annotations

import json

import pytest

from spark_jetstream.client.versions import told_version
from spark_jetstream.protocol.features import Version

REPLY = {"server": {"name": "n1", "ver": "2.12.8", "jetstream": True}, "data": {}}
OTHERS = {
    "a number more": ({"server": {"name": "n1", "ver": "2.14.0-RC.2"}}, ("n1", (2, 14, 0))),
    "no version": ({"server": {"name": "n1"}}, ("", None)),
    "an odd version": ({"server": {"name": "n1", "ver": "next"}}, ("n1", None)),
    "a version that is a number": ({"server": {"name": "n1", "ver": 2.12}}, ("", None)),
    "no server": ({"data": {}}, ("", None)),
    "an error": ({"error": {"code": 503, "description": "no"}}, ("", None)),
}


@pytest.mark.parametrize(("reply", "expected"), OTHERS.values(), ids=OTHERS)
def test_replies(reply: object, expected: tuple[str, Version | None]) -> None:
    assert told_version(json.dumps(reply).encode()) == expected


def test_a_reply_is_read_as_a_whole() -> None:
    whole = json.dumps(REPLY).encode()
    assert told_version(whole) == ("n1", (2, 12, 8))
    cut = [told_version(whole[:size]) for size in range(len(whole))]
    assert set(cut) == {("", None)}
    assert told_version(whole + b"{}") == ("", None)
