"""Administering JetStream from Python: streams, consumers, messages, and the account.

`JetStreamAdmin` is what to begin with; `models` has all configurations and replies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_jetstream.admin.public import *  # noqa: F403  # all of its names


def __getattr__(name: str) -> Any:
    """Return a public name.

    All of them are imported with the first: a module of this package needs only its own.
    """
    if name == "__all__":
        return __dir__()
    if name not in __dir__():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("spark_jetstream.admin.public"), name)


def __dir__() -> list[str]:
    """Return the public names, for completion in notebooks."""
    return [
        name
        for name in dir(importlib.import_module("spark_jetstream.admin.public"))
        if name[0].isalpha()
    ]
