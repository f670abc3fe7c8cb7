"""The errors for streams and buckets that rows cannot be written to (`protocol.fitness`). Pure."""

from __future__ import annotations

from spark_jetstream.errors import DeliveryError, OptionError
from spark_jetstream.options import SinkOptions
from spark_jetstream.options.connection import may_rename_subjects
from spark_jetstream.protocol.fitness import StreamFault, Write, faults, forgets
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.target import KeyBucket

_WHY_UNWRITABLE = {
    StreamFault.MIRROR: "is a mirror, which nobody can publish to",
    StreamFault.SEALED: "is sealed and takes no more messages",
    StreamFault.UNACKNOWLEDGED: "has no_ack set, so nothing says whether a row is stored",
}
_WHY_FORGETFUL = {
    StreamFault.REPLACED: (
        "it keeps few messages of each subject (max_msgs_per_subject), and older ones can no "
        "longer be found"
    ),
    StreamFault.LOST_IN_A_CRASH: (
        "it acknowledges rows before it has stored them (persist_mode async), and a crash loses "
        "them"
    ),
}


def refuse_unwritable(state: StreamSummary, options: SinkOptions) -> None:
    """Raise `OptionError` if the stream takes no rows, or none at option `subject`."""
    subjects: tuple[str, ...] = ()
    if options.subject is not None and not may_rename_subjects(options.connection):
        subjects = (options.subject,)
    for fault in faults(state, Write("rows", subjects)):
        if fault is StreamFault.UNCAPTURED:
            raise OptionError(
                f"option subject: stream {state.name} does not capture {options.subject} (its "
                f"subjects: {', '.join(state.subjects)})",
                option="subject",
            )
        raise OptionError(f"option stream: {state.name} {_WHY_UNWRITABLE[fault]}", option="stream")


def refuse_key_stream(state: StreamSummary, bucket: KeyBucket) -> None:
    """Raise `OptionError` if the stream of a Key-Value bucket takes no values."""
    name = bucket.origin.bucket
    why = {
        StreamFault.MIRROR: (
            f"{bucket.name} is a mirror of {name}, which is a mirror as well; name the bucket that "
            "this one is a mirror of"
        ),
        StreamFault.UNCAPTURED: (
            f"stream {state.name} is no Key-Value bucket: it does not capture $KV.{name}.> (its "
            f"subjects: {', '.join(state.subjects)})"
        ),
        StreamFault.SEALED: f"{name} is sealed and takes no more values",
        StreamFault.UNACKNOWLEDGED: (
            f"{name} has no_ack set on its stream, so nothing says whether a row is stored"
        ),
    }
    for fault in faults(state, Write("values", (bucket.origin.subject("key"),))):
        raise OptionError(f"option bucket: {why[fault]}", option="bucket")


def refuse_unfit(state: StreamSummary, hint: str = "") -> None:
    """Raise `DeliveryError` if a stream can lose or remove rows before their batch is committed.

    `hint` follows the name of the stream in the error.
    """
    for fault in forgets(state):
        if fault is StreamFault.CONSUMED:
            why = (
                f"it has {state.retention} retention, and what was consumed can no longer be found"
            )
        else:
            why = _WHY_FORGETFUL[fault]
        what = f"delivery exactly-once is not possible with stream {state.name}{hint}"
        raise DeliveryError(f"{what}: {why}; use deduplicated")
