"""The check of a consumer that a query takes over from (option startingConsumer)."""

from __future__ import annotations

from collections.abc import Iterator

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.doctor.findings import Finding, failed, ok, unread_consumer, warning
from spark_jetstream.doctor.permissions import Job
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.handover import (
    Handover,
    filter_differences,
    keeps_for_consumers,
)
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.protocol.units import counted

_CHECK = "startingConsumer"


def summary_of(info: StreamInfo) -> StreamSummary:
    """Return the state as source and sink see it. Raises `ProtocolError` for a contradiction."""
    return stream_summary(info.model_dump(mode="json", exclude_unset=True), "read the stream")


def check_handover(
    admin: JetStreamAdmin, info: StreamInfo, job: Job, consumer: str
) -> Iterator[Finding]:
    """Check that a query can begin after a consumer of a stream, and that nothing is left out."""
    stream = info.config.name
    context = f"look at consumer {consumer} of stream {stream}"
    try:
        state = summary_of(info)
        reply = admin.consumers.load(stream, consumer).model_dump(mode="json", exclude_unset=True)
        handover = Handover.from_reply(reply, context)
        if _is_ahead(handover, state):
            # The consumer may have received messages that were stored after the stream was asked.
            state = summary_of(admin.streams.load(stream))
    except JetStreamError as error:
        advice = f"spark-jetstream consumer ls {stream} lists the consumers"
        yield unread_consumer(_CHECK, error, advice)
        return
    yield _begins(handover, state)
    if state.retention == "workqueue":
        text = "a work queue hands over by itself: a streaming query cannot begin after a consumer"
        advice = "delete the consumer, and start the query with durable alone"
        yield failed(_CHECK, text, advice)
    if handover.active:
        advice = f"stop its clients, or spark-jetstream consumer pause {stream} {consumer} 1d"
        yield warning(_CHECK, "its clients go on to receive messages that the query reads", advice)
    differences = filter_differences(handover, job.filters, state, handover.first)
    if differences:
        yield warning(_CHECK, differences, "set option subjects to the filters of the consumer")


def _is_ahead(handover: Handover, state: StreamSummary) -> bool:
    """Return whether the consumer has received more than the stream has stored."""
    return handover.first > max(state.last_seq + 1, state.first_kept)


def _begins(handover: Handover, state: StreamSummary) -> Finding:
    """Return the finding about the sequence at which a query begins."""
    begins = f"the query begins at sequence {handover.first:,}"
    if _is_ahead(handover, state):
        text = f"{begins}, and the last message of the stream has sequence {state.last_seq:,}"
        return failed(_CHECK, text, "was the stream created again, or has it lost its end?")
    if handover.first < state.first_kept and not keeps_for_consumers(state):
        text = f"{begins}, and the first message kept has sequence {state.first_kept:,}"
        advice = "set failOnDataLoss to false to begin there"
        return failed(_CHECK, text, advice)
    waiting = f"{counted(handover.waiting, 'message')} never delivered"
    again = handover.repeated() or "none is read again"
    return ok(_CHECK, f"{begins}: {waiting}; {again}")
