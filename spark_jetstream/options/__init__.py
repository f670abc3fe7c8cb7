"""Options, parsed once into frozen models.

All are made with ``from_spark`` from what Spark hands over, on the driver; they are hashable, pickle to the executors,
and hold Python values: durations in seconds (float), sizes in bytes, times in nanoseconds since the epoch.

Whatever is wrong with an option is an `OptionError` of one sentence that names it. Neither an error (nor anything
reachable from it) nor a ``repr`` holds the value of a secret option or the user info of a URL.
"""

from __future__ import annotations

from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.reference import options_markdown
from spark_jetstream.options.sink import Delivery, SinkOptions
from spark_jetstream.options.source import SourceOptions

__all__ = ["ConnectionOptions", "Delivery", "SinkOptions", "SourceOptions", "options_markdown"]
