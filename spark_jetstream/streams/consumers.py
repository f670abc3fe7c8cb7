"""Ephemeral consumers for reading, without acknowledgements."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.errors import ApiError, ConsumerLimitReached
from spark_jetstream.protocol import jsapi

log = logging.getLogger(__name__)

#: Error code -> the setting that the stream wants to decide itself.
_LEFT_TO_STREAM = {10134: "replicas", 10153: "inactive_threshold"}


def create_reader(
    connection: Connection,
    stream: str,
    name: str,
    filters: tuple[str, ...],
    settings: Mapping[str, Any],
    *,
    left_to_stream: dict[str, Any],
    patience: Deadline,
) -> int:
    """Create a consumer by `jsapi.reader_config` and return how many messages it has to deliver.

    If the stream has as many consumers as it may have, the request is repeated until `patience` expires: other readers
    end, and their consumers go. A setting that the stream wants to decide itself is added to `left_to_stream`, for the
    next consumer.

    Raises:
        ConsumerLimitReached: The stream still has too many consumers after `patience`.
        JetStreamError: What `Connection.api` raises.
    """
    context = f"create a consumer on stream {stream}"
    subject = jsapi.consumer_create(connection.prefix, stream, name, filters)
    backoff, waiting = Backoff(), False
    while True:
        request = jsapi.create_request(stream, jsapi.reader_config(name, filters, **settings, **left_to_stream))
        try:
            body = connection.api(subject, request, context=context)
        except ConsumerLimitReached as error:
            if patience.expired:
                raise _no_room(error, patience.seconds) from error
            if not waiting:
                log.warning("waiting for up to %.3g s until another consumer is gone: %s", patience.left, error)
                waiting = True
            backoff.pause(patience)
        except ApiError as error:
            setting = _LEFT_TO_STREAM.get(error.err_code)
            if setting is None or setting in left_to_stream:
                raise
            left_to_stream[setting] = None
        else:
            return jsapi.whole(body, "num_pending", context)


def delete_reader(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer that `create_reader` has, or may have, created; does not wait and raises nothing."""
    connection.send(
        jsapi.subject(connection.prefix, jsapi.CONSUMER_DELETE, stream, name), b"", f"delete consumer {name}"
    )


def _no_room(error: ConsumerLimitReached, seconds: float) -> ConsumerLimitReached:
    return ConsumerLimitReached(
        f"{error}, and no other consumer went within {seconds:g} s (option retryTimeout); let fewer tasks read at the "
        "same time (a larger maxMessagesPerPartition, a smaller minPartitions), or raise the stream's max_consumers",
        code=error.code,
        err_code=error.err_code,
        description=error.description,
    )
