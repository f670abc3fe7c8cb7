"""Reply subjects of delivered messages, in both forms; what is cut off, or has something behind it,
is none.
"""

from __future__ import annotations

import pytest

from spark_jetstream.admin import AckSubject, parse_ack
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.units import Timestamp

STORED = 1_700_000_000_123_456_789
READ = AckSubject("ORDERS", "c-1", 1, 22, 333, Timestamp("2023-11-14T22:13:20.123456789Z"), 5)
NUMBERS = f"1.22.333.{STORED}.5"
MOST = 2**63 - 1
SUBJECTS = {
    f"$JS.ACK.ORDERS.c-1.{NUMBERS}": READ,
    f"$JS.ACK._.szMpdrwD.ORDERS.c-1.{NUMBERS}": READ._replace(account="szMpdrwD"),
    f"$JS.ACK.hub.szMpdrwD.ORDERS.c-1.{NUMBERS}": READ._replace(domain="hub", account="szMpdrwD"),
    f"$JS.ACK.hub.szMpdrwD.ORDERS.c-1.{NUMBERS}.Rn9a": READ._replace(
        domain="hub", account="szMpdrwD"
    ),
    f"$JS.ACK.hub.szMpdrwD.ORDERS.c-1.{NUMBERS}.Rn9a.x": READ._replace(
        domain="hub", account="szMpdrwD"
    ),
    f"$JS.ACK.größe.1.{MOST}.{MOST}.0.0.{MOST}": AckSubject(
        "größe", "1", MOST, MOST, 0, Timestamp.of(0), MOST
    ),
}


@pytest.mark.parametrize(("subject", "read"), SUBJECTS.items())
def test_a_whole_reply_subject_is_parsed_and_a_cut_one_refused(
    subject: str, read: AckSubject
) -> None:
    assert parse_ack(subject) == read
    last = (
        subject.rindex(f".{read.pending}", 0, subject.index("Rn9a") if "Rn9a" in subject else None)
        + 1
    )
    for end in range(last + 1):
        with pytest.raises(ProtocolError):
            parse_ack(subject[:end])
    for behind in (".", ".."):
        with pytest.raises(ProtocolError):
            parse_ack(subject + behind)


@pytest.mark.parametrize("behind", [" ", "\r\n", "²", "٣", "x", "\x00", ".6", ".x.y", "0" * 20])
def test_text_after_nine_tokens_is_a_protocol_error(behind: str) -> None:
    with pytest.raises(ProtocolError):
        parse_ack(f"$JS.ACK.ORDERS.c-1.{NUMBERS}{behind}")


@pytest.mark.parametrize(
    "number", ["", "-1", "+1", "1_0", "1,0", "x", "²", str(MOST + 1), "1" * 5000]
)
@pytest.mark.parametrize("front", ["$JS.ACK.", "$JS.ACK.hub.szMpdrwD."])
def test_a_malformed_number_in_a_reply_subject_is_a_protocol_error(front: str, number: str) -> None:
    for place in range(5):
        numbers = ["1"] * 5
        numbers[place] = number
        with pytest.raises(ProtocolError):
            parse_ack(f"{front}ORDERS.c-1.{'.'.join(numbers)}")


@pytest.mark.parametrize(
    "subject", ["", "$JS.ACK", "$JS.ACK.", "$JS.API.S.c.1.1.1.1.1", "$JS.FC.S.c.x", " $JS.ACK.S"]
)
def test_other_subjects(subject: str) -> None:
    with pytest.raises(
        ProtocolError, match="is not the reply subject of a message of a JetStream consumer"
    ):
        parse_ack(subject)
