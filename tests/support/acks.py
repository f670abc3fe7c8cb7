"""Acknowledgements of an Object Store bucket's stream that are lost on their way to the publisher."""

from __future__ import annotations

import re
import threading

from tests.support.proxy import WireProxy


def is_ack(frame: bytes) -> bool:
    """Whether a frame is the acknowledgement of a publish that was stored."""
    return re.search(rb'\r\n\{"stream":"OBJ_\w+",("domain":"\w+",)? ?"seq":', frame[:400]) is not None


class Acks:
    """Lets so many acknowledgements pass, and loses those that follow; `lost` is set when the first one is."""

    def __init__(self, proxy: WireProxy, passing: int) -> None:
        self.left = passing
        self.lost = threading.Event()
        self._proxy = proxy
        proxy.drop(self._frame)

    def _frame(self, frame: bytes) -> bytes:
        if not is_ack(frame):
            return frame
        self.left -= 1
        if self.left >= 0:
            return frame
        self.lost.set()
        return b""

    def end(self) -> None:
        self._proxy.drop(None)
