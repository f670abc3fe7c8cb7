"""What is looked at before objects are written to an Object Store bucket."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_jetstream.connection import Connection
from spark_jetstream.errors import NoResponders, OptionError, PermissionDenied, RequestTimeout
from spark_jetstream.object_stream import ObjectStream, writing_fault
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.checks import patience_before_rows

log = logging.getLogger(__name__)

HINT = " (option objectBucket)"
"""How errors end that speak of the bucket."""

_VALID = 60.0  # seconds for which a check holds in one process: Spark builds a writer twice in every micro-batch
_checked: dict[SinkOptions, float] = {}


def check_object_bucket(connect: Callable[[float], Connection], options: SinkOptions) -> None:
    """Look at the bucket that objects are to be written to. Runs on the driver.

    What the permissions do not let it see is not checked. Raises `OptionError`, `StreamNotFound`, and what ``connect``
    raises.
    """
    checked = _checked.get(options)
    if checked is not None and time.monotonic() - checked < _VALID:
        return
    connect(patience_before_rows(options, checked))
    patience = patience_before_rows(options, checked, needed=False)
    bucket = ObjectStream(connect, options.object_bucket or "", patience, HINT)
    try:
        fault = writing_fault(bucket.state(), bucket.bucket)
    except (PermissionDenied, NoResponders, RequestTimeout) as error:
        inboxes = f"{options.connection.inbox_prefix}."
        if isinstance(error, PermissionDenied) and (error.subject or "").startswith(inboxes):
            # Who may not hear answers hears none to what is published either.
            raise
        log.info("cannot look at bucket %s before writing: %s", bucket.bucket, error)
        fault = ""
    if fault:
        raise OptionError(f"option objectBucket: {bucket.bucket} {fault}", option="objectBucket")
    _checked[options] = time.monotonic()
