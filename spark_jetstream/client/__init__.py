"""Connections to a server. The only package that imports nats."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_lock = threading.Lock()


class _Aiohttp(ModuleType):
    """Stands for aiohttp until one of its names is used.

    nats-py imports it, for the URL schemes ws and wss alone: a tenth of a second of CPU in each
    worker of Spark. `importlib.util.LazyLoader` would load it at an `import`.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec  # what `import` looks at

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if sys.modules.get("aiohttp") is self:
                del sys.modules["aiohttp"]
        return getattr(importlib.import_module("aiohttp"), name)


if "aiohttp" not in sys.modules and (_spec := find_spec("aiohttp")) is not None:
    sys.modules["aiohttp"] = _Aiohttp(_spec)
