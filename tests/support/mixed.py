"""Clusters that look as if their servers were of several versions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.support.proxy import WireProxy

_VERSION = re.compile(rb'"ver":"([0-9.]+)"')


def tells(proxy: WireProxy, versions: Mapping[str, bytes]) -> None:
    """Let servers tell these versions, by name; b"" for no answer."""

    def told(frame: bytes) -> bytes:
        if b'"ver":' not in frame:
            return frame
        name = next((name for name in versions if b'"name":"%s"' % name.encode() in frame), None)
        if name is None:
            return frame
        if not versions[name]:
            return b""
        real = _VERSION.search(frame)
        assert real is not None
        # A space keeps the length of the frame.
        other = b'"ver":"%s"' % versions[name]
        return frame.replace(real[0], other.ljust(len(real[0])))

    proxy.drop(told)
