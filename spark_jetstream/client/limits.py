"""The limits of connections: how many bytes may wait for readers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryLimits:
    """All fields are bytes of memory."""

    inbox: int = 96 << 20
    """Those that may wait in an inbox beside those that its reader expects: a limit for servers
    that send more than was requested. The largest message has as many."""
    listener: int = 64 << 20
    """Those that may wait before a listener drops messages: a limit for readers that are too
    slow."""


LIMITS = MemoryLimits()
