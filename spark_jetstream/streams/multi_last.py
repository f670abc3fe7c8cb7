"""Answers to a Direct Get for the last message of several subjects (ADR-31, `multi_last`)."""

from __future__ import annotations

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.direct_get import DirectBatch, EndOfBatch, read_answers
from spark_jetstream.streams.direct import AnswerRejected, receive

MOST_SUBJECTS = 1024
"""Subjects with a message that one request may match (nats-server: `getDirectMulti`)."""
TOO_MANY = 413
"""Status: more subjects match."""
# The server's own limit of an answer is its max_pending, 64 MiB, sent without flow control. A
# client that does not keep up counts as a slow consumer, and the server cuts its connection.
ANSWER_BYTES = 8 * 1024 * 1024
"""The bytes after which an answer ends; its last message may exceed them."""


def take_answer(
    connection: Connection, inbox: Inbox, context: str, number: int = 1
) -> tuple[list[DirectBatch], EndOfBatch]:
    """Return the messages of the answer to request `number`, and its end.

    Raises `AnswerRejected` when a message is missing, and what `receive` raises.
    """
    runs: list[DirectBatch] = []
    last = 0
    lost = AnswerRejected(f"cannot {context}: messages of an answer were lost on the way")
    while True:
        for part in read_answers(receive(connection, inbox, context), inbox.subject):
            # A late answer to an earlier request.
            if part.number != number:
                continue
            if isinstance(part, EndOfBatch):
                # The end names the last message, so a message
                # that is lost just before it is noticed, too.
                if part.code == jsapi.END_OF_BATCH and (part.last or 0) != last:
                    raise lost
                return runs, part
            if not _continues(part, last):
                raise lost
            runs.append(part)
            last = int(part.sequences[-1])


def _continues(part: DirectBatch, last: int) -> bool:
    """Return whether no message is missing after sequence ``last``, nor between those of a part."""
    # `sequences` has the sequence of each message, `previous` that of the message which the server
    # sent before it (Nats-Last-Sequence); 0 before the first one of an answer.
    first = int(part.previous[0])
    gaps = part.previous[1:] != part.sequences[:-1]
    return first == last and not gaps.any()
