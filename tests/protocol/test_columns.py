"""Reply subjects read in bulk: the same numbers, and the same refusals, as one by one."""

from __future__ import annotations

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.ack_subject import parse_ack
from spark_jetstream.protocol.columns import Acks
from tests.support.wire import by_byte, frame, frames_in

TIME = 1_795_989_905_814_272_276
#: A reply subject: the sequence, the consumer's sequence and the pending messages that it tells.
SUBJECTS: dict[str, tuple[int, int, int]] = {
    f"$JS.ACK.S.c.1.2.3.{TIME}.4": (2, 3, 4),
    f"$JS.ACK.S.c.12.0.00.{TIME}.0": (0, 0, 0),
    f"$JS.ACK.größe.c_1-ö.7.{10**8}.{10**8 - 1}.{TIME}.{10**16}": (10**8, 10**8 - 1, 10**16),
    f"$JS.ACK._.5Aq.S.c.1.2.3.{TIME}.4": (2, 3, 4),
    f"$JS.ACK.hub.5Aq.S.c.1.2.3.{TIME}.4.Rn9a": (2, 3, 4),
    f"$JS.ACK.1.2.3.4.5.6.7.{TIME}.9.10.11.12.13": (6, 7, 9),
}
FORM = "the reply subject of a message is not that of a JetStream consumer"
NUMBER = "the reply subject of a message has no numbers where they belong"
#: Reply subjects that are refused, and how.
REFUSED: dict[str, str] = {
    "reply.to": FORM,
    "$JS.FC.S.c.wBXVhkQR": FORM,
    f"$JS.ACK.S.c.1.2.3.{TIME}": FORM,
    f"$JS.ACK.S.c.1.2.3.{TIME}.4.5": FORM,
    f"$JS.API.S.c.1.2.3.{TIME}.4": FORM,
    f"$js.ack.S.c.1.2.3.{TIME}.4": FORM,
    f"$JS.ACKS.S.c.1.2.3.{TIME}.4": FORM,
    f"$JS.ACK.S.c.1.-2.3.{TIME}.4": NUMBER,
    f"$JS.ACK.S.c.1.2x.3.{TIME}.4": NUMBER,
    f"$JS.ACK.S.c.1..3.{TIME}.4": NUMBER,
    f"$JS.ACK.S.c.1.{2**63}.3.{TIME}.4": NUMBER,
    f"$JS.ACK._.5Aq.S.c.1.٢.3.{TIME}.4": NUMBER,
}


def message(reply: str) -> bytes:
    return frame("a.b", 7, b"x.y 1.2", reply=reply.encode())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_reply_subject_is_read_alike_in_bulk_and_alone(subject: str) -> None:
    one = parse_ack(subject)
    assert (one.stream_seq, one.consumer_seq, one.pending) == SUBJECTS[subject]
    assert one.time.nanoseconds == TIME
    for replies in ([subject], [*SUBJECTS, subject], [subject, *SUBJECTS, subject]):
        data = b"".join(map(message, replies))
        for chunks in ([data], [data + b"MSG a.b 7 $JS.ACK.S"]):
            [frames] = frames_in(chunks, {7})
            acks = Acks(frames)
            assert acks.sequences().tolist() == [SUBJECTS[reply][0] for reply in replies]
            assert acks.timestamps().tolist() == [TIME] * len(replies)
            first, last = SUBJECTS[replies[0]][1], SUBJECTS[subject][1]
            assert (acks.consumer_sequences(), acks.pending()) == ((first, last), one.pending)
            assert frames.reply_subject(len(replies) - 1) == subject
    [frames] = frames_in(by_byte(message(subject)), {7})
    assert Acks(frames).sequences().tolist() == [one.stream_seq]


@pytest.mark.parametrize("subject", REFUSED)
def test_a_reply_subject_of_another_form_is_refused_in_bulk_and_alone(subject: str) -> None:
    with pytest.raises(ProtocolError):
        parse_ack(subject)
    for replies in ([subject], [*SUBJECTS, subject], [subject, *SUBJECTS]):
        [frames] = frames_in([b"".join(map(message, replies))], {7})
        with pytest.raises(ProtocolError, match=f"^{REFUSED[subject]}$"):
            Acks(frames).sequences()
