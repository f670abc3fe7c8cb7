"""Why a connection failed, in words: errors of sockets, TLS and nats-py, without numbers."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Sequence

import nats.errors

from spark_jetstream.errors import brief

UNKNOWN_HOST = "no host has this name"
NOTHING_LISTENS = "the connection was refused, nothing listens there"
NO_ANSWER = "no answer in time"
HUNG_UP = "the server closed the connection"

_WORDS = {
    errno.ECONNREFUSED: NOTHING_LISTENS,
    errno.ETIMEDOUT: NO_ANSWER,
    **dict.fromkeys((errno.ECONNRESET, errno.EPIPE), HUNG_UP),
    socket.EAI_NONAME: UNKNOWN_HOST,
    socket.EAI_NODATA: UNKNOWN_HOST,
}
_SEVERAL = "Multiple exceptions: "  # aiohttp's text for a host with several addresses
_NUMBER = re.compile(r"\[Errno (\d+)\]")


class NoAddress(OSError):
    """None of a host's addresses could be reached. ``failures`` has the error of each."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        super().__init__(", ".join(dict.fromkeys(map(error_text, failures))))
        self.failures = tuple(failures)


def error_text(error: BaseException | None) -> str:
    """Return the text of an error, or the name of its class if it has none."""
    if isinstance(error, OSError) and (words := _words(error)):
        return brief(words)
    if isinstance(error, nats.errors.UnexpectedEOF):
        return HUNG_UP
    text = brief(str(error).removeprefix("nats: ").strip())
    if not text and isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return NO_ANSWER
    return text or type(error).__name__


def nowhere(error: Exception) -> str:
    """Return why there is no server, or "" if there may be one.

    Its host is unknown, or nothing listens at any of its addresses.
    """
    text = error_text(error)
    return text if text in (UNKNOWN_HOST, NOTHING_LISTENS) else ""


def _words(error: OSError) -> str:
    """Return what the number of an error means; "" for an error that has a text of its own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        # The rest may be the name that an option asks for.
        return f"the certificate is not trusted: {error.verify_message.partition(',')[0]}"
    if isinstance(error, ssl.SSLError):
        return (getattr(error, "reason", None) or "").replace("_", " ").lower()
    if error.errno is not None:
        if isinstance(error, socket.gaierror):
            # A number of the resolver is none of the system's.
            return _meaning(error.errno, str(error.strerror))
        return _meaning(error.errno)
    text = str(error)
    if _SEVERAL not in text:
        return ""
    numbers = _NUMBER.findall(text)
    return ", ".join(dict.fromkeys(_meaning(int(number)) for number in numbers))


def _meaning(number: int, text: str = "") -> str:
    return _WORDS.get(number) or (text or os.strerror(number)).lower()
