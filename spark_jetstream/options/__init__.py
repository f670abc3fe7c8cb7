"""Options, parsed once into frozen models.

All are made with ``from_spark`` from what Spark hands over, on the driver; they are hashable, pickle to the executors,
and hold Python values: durations in seconds (float), sizes in bytes, times in nanoseconds since the epoch.

Whatever is wrong with an option is an `OptionError` of one sentence that names it. Neither an error (nor anything
reachable from it) nor a ``repr`` holds the value of a secret option or the user info of a URL.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_jetstream.options.connection import ConnectionOptions
    from spark_jetstream.options.reference import options_markdown
    from spark_jetstream.options.sink import Delivery, SinkOptions
    from spark_jetstream.options.source import SourceOptions

__all__ = ["ConnectionOptions", "Delivery", "SinkOptions", "SourceOptions", "options_markdown"]

_HOMES: Final = {
    "ConnectionOptions": "connection",
    "Delivery": "sink",
    "SinkOptions": "sink",
    "SourceOptions": "source",
    "options_markdown": "reference",
}


def __getattr__(name: str) -> Any:
    """Return a public name from its module, which is imported then: a command needs neither pyarrow nor pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
