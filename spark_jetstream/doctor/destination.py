"""Which stream stores the rows of a sink without option `stream`: a trace of its subject tells."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.trace import (
    MessageTrace,
    TracedStream,
    TraceIngress,
    TraceMapping,
    TraceServiceImport,
    TraceStreamExport,
)
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, warning
from spark_jetstream.errors import JetStreamError, JetStreamNotEnabled, NoResponders
from spark_jetstream.protocol.units import counted

_CHECK = "destination"
_MQTT = "$MQTT_"  # what the names of these streams begin with (nats-server: server/mqtt.go)
_MQTT_SUBJECTS = "$MQTT.>"
_NAME_STREAM = "name the stream with --stream, and in option stream"


@dataclass(frozen=True)
class Destination:
    """The finding about a subject, and the one stream that captures it, if the API leads to that one.

    ``stream`` is None without a stream, with several, and when the subject is renamed on the way. It
    is also None when the stream may belong to another account or domain.
    """

    finding: Finding
    stream: str | None = None


def find_destination(admin: JetStreamAdmin, subject: str, domain: str | None) -> Destination:
    """Ask the servers which streams would store a row at a subject. Nothing is stored.

    ``domain`` is that of the JetStream that answers the account, None if it is not known. A row
    would be published to the same subject. Where the servers cannot tell, the finding is unknown
    and says why.
    """
    if any(token in ("*", ">") for token in subject.split(".")):
        text = f"skipped: {subject} has wildcards, and a trace follows one subject"
        return Destination(unknown(_CHECK, text, f"give one subject, or {_NAME_STREAM}"))
    try:
        # Clients of MQTT have used the account: the server made streams for them then. It delivers
        # a traced message to them (seen with 2.15.1).
        if any(name.startswith(_MQTT) for name in _capturing(admin, _MQTT_SUBJECTS)):
            text = "skipped: the account has clients of MQTT, which would receive the trace"
            return Destination(unknown(_CHECK, text, _NAME_STREAM))
        traced = admin.trace(subject)
        if traced.streams or traced.blind_spots:
            return _judged(traced, domain)
        return Destination(_none(traced, _capturing(admin, subject)))
    # A server that is too old, or a user who may not publish or list streams: the job itself may
    # still work.
    except JetStreamError as error:
        return Destination(unknown(_CHECK, f"skipped: {error}", _NAME_STREAM))


def _capturing(admin: JetStreamAdmin, subject: str) -> list[str]:
    """Return the streams of the account that capture a subject, as they are configured."""
    try:
        return list(admin.streams.names(subject))
    # Another account may store what this one exports.
    except (JetStreamNotEnabled, NoResponders):
        return []


def _judged(traced: MessageTrace, domain: str | None) -> Destination:
    streams = traced.streams
    if len(streams) > 1:
        return Destination(_several(traced))
    if traced.blind_spots:
        places = "; ".join(traced.blind_spots)
        known = f"{streams[0].name} stores it, and more is not known" if streams else "not known"
        text = f"{known}: {places}"
        return Destination(unknown(_CHECK, text, _NAME_STREAM))
    (stream,) = streams
    is_renamed = _is_renamed(traced)
    finding = _one(traced.subject, stream, is_renamed=is_renamed)
    if domain != stream.server.domain or is_renamed:
        return Destination(finding)
    return Destination(finding, stream.stream)


def _is_renamed(traced: MessageTrace) -> bool:
    """Return whether the subject, or the account, is another one where the stream captures it."""
    renaming = (TraceMapping, TraceServiceImport, TraceStreamExport)
    accounts = set()
    for report in traced.walk():
        for event in report.events:
            if isinstance(event, renaming):
                return True
            if isinstance(event, TraceIngress):
                accounts.add(event.acc)
    # A leaf node may lead into another account.
    return len(accounts) > 1


def _several(traced: MessageTrace) -> Finding:
    names = " and ".join(stream.name for stream in traced.streams)
    text = f"{names} store each row at {traced.subject} (accounts: {', '.join(traced.accounts)})"
    advice = (
        "the first acknowledgement counts, whichever stream it is of: set option stream, or let "
        "one stream alone capture the subject"
    )
    return warning(_CHECK, text, advice)


def _none(traced: MessageTrace, leaderless: list[str]) -> Finding:
    """Return the finding about a subject that no stream stores.

    ``leaderless`` are streams that have the subject, and that no server brings rows to.
    """
    if leaderless:
        text = f"{', '.join(leaderless)} has no leader now: writes at {traced.subject} wait for one"
        return failed(_CHECK, text, "start the servers that are away")
    subscribers = len(traced.subscribers)
    advice = f"add {traced.subject} to the subjects of a stream, or correct option subject"
    if subscribers:
        text = (
            f"no stream stores a row at {traced.subject}, which has "
            f"{counted(subscribers, 'subscriber')}: writes wait for an acknowledgement, and fail"
        )
    else:
        text = (
            f"no stream stores a row at {traced.subject}: writes fail, because nobody listens "
            "(status 503)"
        )
    return failed(_CHECK, text, advice)


def _one(subject: str, stream: TracedStream, *, is_renamed: bool) -> Finding:
    if stream.error:
        advice = "correct what the stream refuses, or write to another subject"
        return failed(_CHECK, f"{stream.name} refuses a row at {subject}: {stream.error}", advice)
    if stream.dropped:
        text = (
            f"{stream.name} acknowledges rows at {subject} and drops them: it keeps messages only "
            "for consumers, and none wants this subject"
        )
        return warning(_CHECK, text, "create a consumer before you write")
    renamed = f" as {stream.subject}" if stream.subject != subject else ""
    text = f"{stream.name} stores rows at {subject}{renamed}"
    if is_renamed:
        # The preflight of the sink compares option `subject` with the subjects of streams.
        return ok(
            _CHECK, text, "give the subject in column subject: option subject knows no mapping"
        )
    return ok(_CHECK, text)
