"""The check of a consumer whose messages a query shares with other clients (option share)."""

from __future__ import annotations

from collections.abc import Iterator

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.doctor.findings import Finding, failed, ok, unread_consumer, warning
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.fitness import (
    SHARED_MESSAGES,
    consumer_cautions,
    consumer_faults,
    lapse_of,
)

_CHECK = "share"


def check_shared(admin: JetStreamAdmin, stream: str, consumer: str) -> Iterator[Finding]:
    """Yield why a query cannot share a consumer of a stream, and what may go wrong if it can."""
    try:
        info = admin.consumers.load(stream, consumer)
    except JetStreamError as error:
        settings = "--ack explicit --wait 5m --max-ack-pending 50000"
        advice = f"spark-jetstream consumer add {stream} {consumer} {settings}"
        yield unread_consumer(_CHECK, error, advice)
        return
    config = info.config.model_dump(mode="json", exclude_unset=True)
    faults = consumer_faults(config)
    for fault in faults:
        text = f"consumer {consumer} cannot be shared: {fault.value}"
        yield failed(_CHECK, text, "change the consumer, or make another one")
    cautions = consumer_cautions(config, SHARED_MESSAGES)
    for caution in cautions:
        yield warning(_CHECK, f"consumer {consumer}: {caution}", f"edit consumer {consumer}")
    if not faults and not cautions:
        text = f"consumer {consumer} gives messages to others after {lapse_of(config):g} s"
        yield ok(_CHECK, f"{text} without a sign of life")
