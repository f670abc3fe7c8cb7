"""Administering JetStream from Python: streams, consumers, messages, and the account.

`JetStreamAdmin` is what to begin with; `models` has all configurations and replies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_jetstream.admin.public import *  # noqa: F403  # its `__all__`


def __getattr__(name: str) -> Any:
    """Return a public name. All of them are imported with the first: a module of this package needs only its own."""
    public = importlib.import_module("spark_jetstream.admin.public")
    if name == "__all__":
        return public.__all__
    if name not in public.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(public, name)


def __dir__() -> list[str]:
    """Return the public names, for completion in notebooks."""
    names: list[str] = __getattr__("__all__")
    return names
