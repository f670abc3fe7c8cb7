"""Reply subjects of delivered messages: `$JS.ACK...`, in one of two forms. Pure.

`columns.Acks` reads many at once.

The second form has the domain (`_` without one) and a hash of the account before the stream. It may
have more tokens at its end (nats-server: server/consumer.go, `replyInfo`; feature flag
`js_ack_fc_v2`).
"""

from __future__ import annotations

from typing import NamedTuple

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.units import Timestamp, shown, whole_number

PREFIX = "$JS.ACK."
V1_DOTS = 8  # nine tokens
V2_DOTS = 10  # eleven tokens and more
# Tokens of the first form.
DELIVERIES = 4
STREAM_SEQUENCE = 5
CONSUMER_SEQUENCE = 6
TIMESTAMP = 7
PENDING = 8
NO_NUMBER = "the reply subject of a message has no numbers where they belong"


class AckSubject(NamedTuple):
    """The fields of the reply subject of a delivered message.

    ``deliveries`` counts the deliveries of this message, ``consumer_seq`` all deliveries of the
    consumer, and ``stream_seq`` is the message's sequence. The message was stored at ``time``. The
    consumer had still ``pending`` messages to deliver. ``domain``, and the hash ``account``, are
    empty in the form of nine tokens.
    """

    stream: str
    consumer: str
    deliveries: int
    stream_seq: int
    consumer_seq: int
    time: Timestamp
    pending: int
    domain: str = ""
    account: str = ""


def parse_ack(subject: str) -> AckSubject:
    """Read the reply subject of a delivered message, to which its acknowledgement is published.

    It has nine tokens, ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer
    sequence>.<nanoseconds since the epoch>.<pending>``; or eleven and more, with
    ``<domain>.<account hash>`` before the stream and anything at the end. Raises `ProtocolError`
    for any other text.
    """
    tokens = subject.split(".")
    has_known_form = len(tokens) == V1_DOTS + 1 or len(tokens) > V2_DOTS
    if not subject.startswith(PREFIX) or not all(tokens) or not has_known_form:
        raise ProtocolError(
            f"{shown(subject)} is not the reply subject of a message of a JetStream consumer"
        )
    domain = account = ""
    if len(tokens) > V2_DOTS:
        # Without these two tokens the second form begins as the first one.
        domain, account = ("" if token == "_" else token for token in tokens[2:4])
        del tokens[2:4]
    stream, consumer, *numbers = tokens[2 : PENDING + 1]
    deliveries, stream_seq, consumer_seq, time, pending = map(ack_number, numbers)
    return AckSubject(
        stream,
        consumer,
        deliveries,
        stream_seq,
        consumer_seq,
        Timestamp.of(time),
        pending,
        domain,
        account,
    )


def ack_number(digits: str | bytes) -> int:
    """Return a number of a reply subject. Raises `ProtocolError` unless it is from 0 to 2^63-1."""
    number = whole_number(digits)
    if number is None:
        raise ProtocolError(NO_NUMBER)
    return number
