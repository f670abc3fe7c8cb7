"""Answers to published rows: which frames they are, others in their place, and answers that are lost on their way."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from tests.support.proxy import WireProxy

_STORED = re.compile(rb'\r\n\{"stream":"(\w+)",("domain":"\w+",)? ?"seq":')
_OBJECTS = r"OBJ_\w+"


def is_answer(frame: bytes) -> bool:
    """Whether a frame answers a published row: it comes to `<inbox>.<number>`."""
    words = frame.partition(b"\r\n")[0].split(b" ")
    return words[0] in (b"MSG", b"HMSG") and words[1].rpartition(b".")[2].isdigit()


def answer(frame: bytes, body: bytes, head: bytes = b"") -> bytes:
    """The frame with another payload and header block."""
    words = frame.partition(b"\r\n")[0].split(b" ")
    if head:
        size = b"%d %d" % (len(head), len(head) + len(body))
        return b"HMSG %s %s %s\r\n%s%s\r\n" % (words[1], words[2], size, head, body)
    return b"MSG %s %s %d\r\n%s\r\n" % (words[1], words[2], len(body), body)


def is_ack(frame: bytes, stream: str = _OBJECTS) -> bool:
    """Whether a frame says that a message is stored in a stream whose name matches, those of object buckets if none."""
    stored = _STORED.search(frame[:400])
    return stored is not None and re.fullmatch(stream, stored[1].decode()) is not None


class Acks:
    """Lets so many acknowledgements of each stream pass, and loses those that follow.

    `passing` is a number for the stream of an Object Store bucket, or numbers by stream. `lost` is set when each of the
    streams has lost one: the task that waits for it stands still, with rows stored that it does not know of.
    """

    def __init__(self, proxy: WireProxy, passing: int | Mapping[str, int]) -> None:
        self.lost = threading.Event()
        self._left = {_OBJECTS: passing} if isinstance(passing, int) else dict(passing)
        self._proxy = proxy
        proxy.drop(self._frame)

    def _frame(self, frame: bytes) -> bytes:
        for stream in self._left:
            if is_ack(frame, stream):
                self._left[stream] -= 1
                if self._left[stream] >= 0:
                    return frame
                if all(left < 0 for left in self._left.values()):
                    self.lost.set()
                return b""
        return frame

    def end(self) -> None:
        """Let everything pass."""
        self._proxy.drop(None)
