"""Options, parsed once into frozen models.

``from_spark`` makes each of them on the driver, from the options that Spark hands over. They are
hashable and pickle to the executors. They hold Python values: durations in seconds (float), sizes
in bytes, times in nanoseconds since the epoch.

A wrong option raises an `OptionError` of one sentence that names it. Neither an error
(nor anything reachable from it) nor a ``repr`` holds the value of a secret option or the user info
of a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_jetstream.options.connection import ConnectionOptions
    from spark_jetstream.options.sink import Delivery, SinkOptions
    from spark_jetstream.options.source import SourceOptions

__all__ = ["ConnectionOptions", "Delivery", "SinkOptions", "SourceOptions"]


def __getattr__(name: str) -> Any:
    """Import the models when one is asked for: a command needs neither pyarrow nor pydantic.

    All of them, because a model must know which options are those of another one
    (`specs.Options.sides`).
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_jetstream.options import connection, sink, source  # noqa: PLC0415

    return {**vars(connection), **vars(sink), **vars(source)}[name]
