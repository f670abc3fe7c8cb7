"""Messages looked at and removed one by one, and read in batches, on a real server."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from spark_jetstream.admin import DEFAULT_CONSUMER, JetStreamAdmin, PubAck, StoredMessage
from spark_jetstream.admin.messages import publish
from spark_jetstream.errors import (
    ApiError,
    DataLossError,
    JetStreamError,
    MessageNotFound,
    NoResponders,
    OptionError,
    RequestTimeout,
    StreamNotFound,
)
from spark_jetstream.testing import NatsServer
from tests.admin.configs import read
from tests.admin.conftest import Make
from tests.support.client import Raw
from tests.support.fake_jetstream import Answer, FakeJetStream
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until

HEADERS = [("Nats-Msg-Id", "1"), ("Tag", "one"), ("Tag", "two"), ("Nats-Sequence", "mine")]
COUNT = 30


@pytest.fixture(scope="module", params=[True, False], ids=["direct", "leader"])
def stream(request: pytest.FixtureRequest, publisher: Publisher) -> Iterator[str]:
    """A stream with 30 messages at ``looked.0`` to ``looked.2`` in turn, the 8th deleted; the 4th
    has headers.
    """
    config = {"name": "LOOKED", "subjects": ["looked.*"], "allow_direct": bool(request.param)}
    publisher.api("STREAM.CREATE.LOOKED", config)
    publisher.publish(
        Message(f"looked.{number % 3}", b"\x00%d" % number, HEADERS if number == 4 else None)
        for number in range(1, COUNT + 1)
    )
    publisher.api("STREAM.MSG.DELETE.LOOKED", {"seq": 8})
    yield "LOOKED"
    publisher.api("STREAM.DELETE.LOOKED")


def test_single_messages(admin: JetStreamAdmin, stream: str) -> None:
    message = admin.messages.get(stream, 4)
    assert (message.seq, message.subject, message.data) == (4, "looked.1", b"\x004")
    assert message.headers == {
        "Nats-Msg-Id": ["1"],
        "Tag": ["one", "two"],
        "Nats-Sequence": ["mine"],
    }
    assert admin.messages.last(stream).seq == COUNT
    assert admin.messages.last(stream, "looked.1").seq == 28
    assert admin.messages.next(stream).seq == 1
    assert admin.messages.next(stream, sequence=8).seq == 9
    assert admin.messages.next(stream, "looked.2", 8).seq == 11
    for found in (
        admin.messages.since(stream, message.time),
        admin.messages.since(stream, message.time.nanoseconds),
    ):
        assert found == message
    assert (
        admin.messages.since(
            stream, dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), "looked.2"
        ).seq
        == 2
    )


def test_messages_that_are_not_there(admin: JetStreamAdmin, stream: str) -> None:
    requests: list[tuple[Callable[[], object], str]] = [
        (lambda: admin.messages.get(stream, 8), "get message 8 of stream LOOKED: no message found"),
        (lambda: admin.messages.get(stream, 999), "get message 999 of stream LOOKED"),
        (lambda: admin.messages.last(stream, "looked.9"), "get the last looked.9 of stream LOOKED"),
        (
            lambda: admin.messages.next(stream, "*.1", 29),
            r"get the first \*.1 from sequence 29 on of stream LOOKED",
        ),
        (
            lambda: admin.messages.since(stream, "2036-01-01T00:00:00Z"),
            "get the first > since 2036-01-01T00:00:00Z of",
        ),
        (
            lambda: admin.messages.erase(stream, 8),
            "erase message 8 of stream LOOKED: the message does not exist",
        ),
        (
            lambda: admin.messages.delete(stream, 999),
            "delete message 999 of stream LOOKED: the message does not exist",
        ),
    ]
    for request, said in requests:
        with pytest.raises(MessageNotFound, match=f"cannot {said}"):
            request()


def test_requests_about_messages_that_cannot_be(admin: JetStreamAdmin, stream: str) -> None:
    requests: list[tuple[Callable[[], object], str]] = [
        (
            lambda: admin.messages.get(stream, 0),
            'sequence must be a whole number from 1 on, not "0"',
        ),
        (lambda: admin.messages.delete(stream, -1), "sequence must be"),
        (lambda: admin.messages.get(stream, "4"), "sequence must be"),  # type: ignore[arg-type]
        (lambda: admin.messages.last(stream, "a..b"), "subject must be"),
        (lambda: admin.messages.since(stream, "noon"), 'time must be .*, not "noon"'),
        (
            lambda: admin.messages.since(stream, dt.datetime.fromisoformat("2020-01-01")),
            "must be a time with its zone",
        ),
        (lambda: list(admin.messages.read(stream, "a..b")), "subject must be"),
        (lambda: list(admin.messages.read(stream, sequence=0)), "sequence must be"),
    ]
    for request, said in requests:
        with pytest.raises(OptionError, match=said):
            request()


def test_read(admin: JetStreamAdmin, stream: str) -> None:
    everything = [sequence for sequence in range(1, COUNT + 1) if sequence != 8]
    found = list(admin.messages.read(stream))
    assert [each.seq for each in found] == everything
    assert [plain(each) for each in found] == [
        plain(admin.messages.get(stream, sequence)) for sequence in everything
    ]
    assert sequences(admin.messages.read(stream, "looked.1")) == list(range(1, COUNT + 1, 3))
    assert sequences(admin.messages.read(stream, "*.2", sequence=8, count=3)) == [11, 14, 17]
    assert sequences(admin.messages.read(stream, sequence=27, count=100)) == [27, 28, 29, 30]
    assert sequences(admin.messages.read(stream, since=found[24].time, count=2)) == [26, 27]
    assert sequences(admin.messages.read(stream, "looked.0", since=found[24].time)) == [27, 30]
    assert sequences(admin.messages.read(stream, sequence=29, since=found[24].time)) == [29, 30]
    nothing = [
        admin.messages.read(stream, "looked.9"),
        admin.messages.read(stream, sequence=31),
        admin.messages.read(stream, sequence=2**62),
        admin.messages.read(stream, count=0),
        admin.messages.read(stream, since="2036-01-01T00:00:00Z"),
    ]
    assert [list(each) for each in nothing] == [[]] * 5


def test_read_insists_on_a_way(admin: JetStreamAdmin, stream: str) -> None:
    assert sequences(admin.messages.read(stream, sequence=28, direct=False)) == [28, 29, 30]
    if admin.streams.load(stream).config.allow_direct:
        assert sequences(admin.messages.read(stream, sequence=28, direct=True)) == [28, 29, 30]
        assert {each.stream for each in admin.messages.read(stream, direct=True)} == {stream}
    else:
        with pytest.raises(JetStreamError, match="stream LOOKED does not allow direct reads"):
            list(admin.messages.read(stream, direct=True))


@pytest.fixture
def direct(publisher: Publisher, make_stream: Make) -> str:
    """A stream that allows direct gets, with messages at ``d.0``, ``d.1``, ``d.2``, ``d.0``; the
    last has headers.
    """
    name = make_stream({"name": "DIRECT", "subjects": ["d.*"], "allow_direct": True})
    publisher.publish(
        [
            *(Message(f"d.{number}", b"%d" % number) for number in range(3)),
            Message("d.0", b"", HEADERS),
        ]
    )
    return name


def test_single_messages_directly(admin: JetStreamAdmin, direct: str) -> None:
    asked: list[Callable[[bool], StoredMessage]] = [
        lambda way: admin.messages.get(direct, 4, direct=way),
        lambda way: admin.messages.get(direct, 1, direct=way),
        lambda way: admin.messages.last(direct, "d.1", direct=way),
        lambda way: admin.messages.last(direct, "d.*", direct=way),
        lambda way: admin.messages.last(direct, direct=way),
        lambda way: admin.messages.next(direct, "d.2", 2, direct=way),
        lambda way: admin.messages.since(direct, "2020-01-01T00:00:00Z", "d.2", direct=way),
    ]
    for ask in asked:
        found = ask(True)
        assert found.stream == direct
        assert plain(found) == plain(ask(False))
    missing: list[Callable[[], object]] = [
        lambda: admin.messages.get(direct, 9, direct=True),
        lambda: admin.messages.last(direct, "d.9", direct=True),
        lambda: admin.messages.next(direct, "d.1", 3, direct=True),
        lambda: admin.messages.since(direct, "2036-01-01T00:00:00Z", direct=True),
    ]
    said = r"of stream DIRECT: the server that answered does not have this message \(404"
    for request in missing:
        with pytest.raises(MessageNotFound, match=said):
            request()


def test_messages_that_look_like_the_end_of_an_answer(
    admin: JetStreamAdmin, direct: str, publisher: Publisher
) -> None:
    blocks = [
        b"NATS/1.0 404 Message Not Found\r\n\r\n",
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\n\r\n",
        b"NATS/1.0\r\nStatus: 503\r\n\r\n",
    ]
    stored = publisher.publish(
        [*(Message("d.odd", b"", block=block) for block in blocks), Message("d.odd", b"last")]
    )
    for sequence in stored:
        assert plain(admin.messages.get(direct, sequence, direct=True)) == plain(
            admin.messages.get(direct, sequence)
        )
    assert [each.seq for each in admin.messages.read(direct, "d.odd", direct=True)] == stored
    assert admin.messages.last_of_each(direct, "d.odd")[0].data == b"last"
    assert admin.messages.last_of_each(direct, "d.odd", sequence=stored[0])[0].seq == stored[0]
    admin.consumers.create(direct, DEFAULT_CONSUMER, name="odd", filter_subject="d.odd")
    assert [each.message.seq for each in admin.consumers.next(direct, "odd", 4)] == stored


@pytest.mark.parametrize(
    "block", [b"NATS/1.0\r\nA: b--", b"NATS/1.0\r\nNats-Stream: A\r\nNats-Subject: b\r\n--"]
)
def test_headers_without_an_empty_line_at_their_end(
    block: bytes, admin: JetStreamAdmin, direct: str, publisher: Publisher
) -> None:
    """The server replaces the last two bytes of a header block by its own lines, whatever they are."""
    (sequence,) = publisher.publish([Message("d.odd", b"content", block=block)])
    found = [
        admin.messages.get(direct, sequence, direct=True),
        *admin.messages.read(direct, "d.odd", direct=True),
        *admin.messages.last_of_each(direct, "d.odd"),
    ]
    assert [(each.seq, each.subject, each.data) for each in found] == [
        (sequence, "d.odd", b"content")
    ] * 3
    assert {each.hdrs for each in found} == {block[:-2] + b"\r\n"}


@pytest.mark.parametrize("way", [True, False], ids=["direct", "leader"])
def test_a_header_block_without_headers(
    way: bool, admin: JetStreamAdmin, direct: str, publisher: Publisher
) -> None:
    (sequence,) = publisher.publish([Message("d.odd", b"content", block=b"NATS/1.0\r\n\r\n")])
    message = admin.messages.get(direct, sequence, direct=way)
    assert (message.headers, message.data) == ({}, b"content")


def test_the_last_of_each(admin: JetStreamAdmin, direct: str) -> None:
    def last_sequences(*subjects: str, **limit: object) -> list[int]:
        return [each.seq for each in admin.messages.last_of_each(direct, *subjects, **limit)]  # type: ignore[arg-type]

    assert last_sequences() == last_sequences("d.*") == [2, 3, 4]
    assert last_sequences("d.0", "d.2") == [3, 4]
    assert last_sequences(sequence=3) == [1, 2, 3]
    assert last_sequences("d.0", time=admin.messages.get(direct, 4).time.nanoseconds - 1) == [1]
    assert last_sequences("d.9") == []
    with pytest.raises(OptionError, match="sequence and time cannot be set together"):
        last_sequences(sequence=3, time="2036-01-01T00:00:00Z")


def test_the_last_of_each_with_sequences_of_nineteen_digits(
    admin: JetStreamAdmin, make_stream: Make, publisher: Publisher
) -> None:
    first = 10**18
    name = make_stream({"name": "FAR", "allow_direct": True, "first_seq": first})
    publisher.publish(Message(f"far.{number % 2}") for number in range(3))
    assert sequences(iter(admin.messages.last_of_each(name))) == [first + 1, first + 2]


def test_the_last_of_each_in_several_answers(
    admin: JetStreamAdmin, direct: str, publisher: Publisher
) -> None:
    """One answer has no more than 8 MiB."""
    publisher.publish(Message(f"d.big{number}", b"x" * 1_000_000) for number in range(20))
    found = admin.messages.last_of_each(direct, "d.*")
    assert [each.seq for each in found] == list(range(2, 25))
    assert {len(each.data) for each in found[3:]} == {1_000_000}
    publisher.publish(Message(f"d.{number}") for number in range(10, 1100))
    with pytest.raises(JetStreamError, match="more than 1,024 subjects match"):
        admin.messages.last_of_each(direct)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_answer_that_lacks_a_message_is_asked_for_again(lost: int) -> None:
    with FakeJetStream() as fake, JetStreamAdmin(servers=fake.url) as admin:
        fake.store(3)
        end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 3\r\nNats-UpTo-Sequence: 3\r\n\r\n"
        whole = [*fake.batch({"batch": 3})[:-1], Answer(end)]
        answers = [whole[:lost] + whole[lost + 1 :], whole]
        fake.direct = lambda request: answers.pop(0)
        assert sequences(iter(admin.messages.last_of_each("S"))) == [1, 2, 3]
        fake.direct = lambda request: whole[:lost] + whole[lost + 1 :]
        with pytest.raises(JetStreamError, match="messages of an answer were lost on the way"):
            admin.messages.last_of_each("S")


def test_direct_gets_that_nobody_answers(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make
) -> None:
    make_stream({"name": "CLOSED", "subjects": ["closed"]})
    publisher.publish([Message("closed")])
    requests: list[Callable[[str], object]] = [
        lambda name: admin.messages.get(name, 1, direct=True),
        lambda name: admin.messages.last(name, "closed", direct=True),
        admin.messages.last_of_each,
    ]
    for stream, request in itertools.product(("CLOSED", "NOWHERE"), requests):
        said = (
            f"nobody answers direct gets of stream {stream}: does it exist, and is its "
            "allow_direct set"
        )
        with pytest.raises(NoResponders, match=said):
            request(stream)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("level", [1, None])
def test_a_server_before_2_12_is_not_asked_which_message_is_the_first_since_a_time(
    level: int | None, direct: bool
) -> None:
    """It answers with the first of all messages, or the last of each up to the last one, whatever
    the time.
    """

    def reply(request: dict[str, Any]) -> list[Answer]:
        if "multi_last" not in request:
            return fake.batch({**request, "batch": 1})[:1]
        latest = {
            subject: at
            for at, subject in fake.messages.items()
            if at <= request.get("up_to_seq", COUNT)
        }
        kept = sorted(latest.values())
        answers = [
            fake.batch({"seq": at, "batch": 1}, lacks=partial(operator.ne, at))[0] for at in kept
        ]
        heads = [
            re.sub(rb"Last-Sequence: \d+", b"Last-Sequence: %d" % before, answer.head)
            for answer, before in zip(answers, [0, *kept], strict=False)
        ]
        end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: %d\r\nNats-UpTo-Sequence: 30\r\n\r\n"
        return [*map(Answer, heads, [answer.payload for answer in answers]), Answer(end % kept[-1])]

    def first(time: int, subject: str = ">") -> int:
        with contextlib.suppress(MessageNotFound):
            return admin.messages.since("S", start + time, subject, direct=direct).seq
        return 0

    with FakeJetStream() as fake, JetStreamAdmin(servers=fake.url) as admin:
        fake.lies["INFO"] = lambda honest: [
            honest.saying(json.dumps({"api": {"level": level}}).encode())
        ]
        if level is None:
            refused = b"-ERR 'Permissions Violation for Publish to \"$JS.API.INFO\"'\r\n"
            fake.lies["INFO"] = lambda honest: [refused]
        fake.direct = reply
        fake.store(COUNT, lambda number: f"S.{number % 3}")
        start = admin.messages.get("S", COUNT).time.nanoseconds - COUNT
        for number in (1, 2, 8, *range(14, 23), COUNT):
            del fake.messages[number]
        for time in (COUNT + 1, COUNT, COUNT - 1, 23, 18, 9, 8, 4, 3, 0):
            late = [number for number in fake.messages if number >= time]
            assert first(time) == min(late, default=0)
            assert first(time, "S.1") == min(
                (number for number in late if number % 3 == 1), default=0
            )
            early = {number % 3: number for number in fake.messages if number < time}
            latest = admin.messages.last_of_each("S", time=start + time)
            assert sequences(iter(latest)) == sorted(early.values())
        assert sequences(admin.messages.read("S", since=start + 14, direct=False)) == list(
            range(23, COUNT)
        )


@pytest.mark.parametrize("direct", [True, False])
def test_reading_ends_in_a_gap(
    direct: bool, admin: JetStreamAdmin, publisher: Publisher, make_stream: Make
) -> None:
    name = make_stream({"subjects": ["gap"], "allow_direct": True})
    assert list(admin.messages.read(name)) == []
    publisher.publish([Message("gap")] * 3)
    reading = admin.messages.read(name, direct=direct)
    assert next(reading).seq == 1
    admin.messages.delete(name, 3)
    publisher.publish([Message("gap")])
    assert set(sequences(reading)) <= {2, 3}
    admin.streams.purge(name)
    assert list(admin.messages.read(name)) == []


@pytest.mark.parametrize("direct", [True, False])
def test_a_stream_that_goes_while_it_is_read(
    direct: bool, admin: JetStreamAdmin, publisher: Publisher, make_stream: Make
) -> None:
    config = {"name": "SHORT", "subjects": ["short.*"], "allow_direct": True}
    make_stream(config)
    publisher.publish(Message("short.a", b"%d" % number) for number in range(1200))
    reading, beside = (admin.messages.read("SHORT", direct=direct) for _ in range(2))
    messages = [next(reading)]
    next(beside)
    publisher.api("STREAM.DELETE.SHORT")
    if not direct:
        with pytest.raises(
            DataLossError, match="stream SHORT was deleted, or created again, while it was read"
        ):
            next(beside)
    publisher.api("STREAM.CREATE.SHORT", config)
    publisher.publish([Message("short.a", b"other")] * 1200)
    with pytest.raises(
        DataLossError, match="stream SHORT was deleted, or created again, while it was read"
    ):
        messages.extend(reading)
    assert b"other" not in {message.data for message in messages}


@pytest.mark.usefixtures("no_connection_left")
@pytest.mark.parametrize("erase", [True, False])
def test_erase_and_delete(erase: bool) -> None:
    secret = b"nobody may read this 4711"
    with (
        NatsServer() as server,
        JetStreamAdmin(servers=server.url) as admin,
        Publisher(server.url) as own,
    ):
        admin.streams.create(name="S", subjects=["s"])
        own.publish([Message("s", secret), Message("s", b"other")])
        blocks = [path for path in server.store_dir.rglob("*.blk") if secret in path.read_bytes()]
        assert blocks
        (admin.messages.erase if erase else admin.messages.delete)("S", 1)
        assert sequences(admin.messages.read("S")) == [2]
        if erase:
            wait_until(
                lambda: not any(secret in path.read_bytes() for path in blocks),
                "nothing of it on the disk",
                10,
            )


def test_a_message_that_deny_delete_protects_cannot_be_removed(
    admin: JetStreamAdmin, publisher: Publisher, make_stream: Make
) -> None:
    name = make_stream({"subjects": ["held"], "deny_delete": True})
    publisher.publish([Message("held", b"1")])
    for remove in (admin.messages.erase, admin.messages.delete):
        with pytest.raises(
            ApiError, match=rf"message 1 of stream {name}: .*not permitted"
        ) as caught:
            remove(name, 1)
        assert not isinstance(caught.value, MessageNotFound)
    assert admin.messages.get(name, 1).data == b"1"


def sequences(messages: Iterator[StoredMessage]) -> list[int]:
    return [each.seq for each in messages]


def plain(message: StoredMessage) -> tuple[object, ...]:
    return message.seq, message.subject, message.data, message.hdrs, message.time.nanoseconds


def test_acknowledgements(make_stream: Make, publisher: Publisher) -> None:
    def ack(stream: str, *headers: tuple[str, str]) -> PubAck:
        return read(PubAck, json.loads(publisher.request(f"{stream.lower()}.a", headers=headers)))

    plain = make_stream({})
    acks = [ack(plain, ("Nats-Msg-Id", "1")), ack(plain, ("Nats-Msg-Id", "1")), ack(plain)]
    assert [(each.stream, each.seq, each.duplicate) for each in acks] == [
        (plain, 1, False),
        (plain, 1, True),
        (plain, 2, False),
    ]
    assert (
        ack(make_stream({"allow_msg_counter": True, "allow_direct": True}), ("Nats-Incr", "5")).val
        == "5"
    )
    headers = [("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", "1"), ("Nats-Batch-Commit", "1")]
    batch = ack(make_stream({"allow_atomic": True}), *headers)
    assert (batch.batch, batch.count) == ("b", 1)


# Publishing


def test_a_message_is_published(admin: JetStreamAdmin, make_stream: Make) -> None:
    name = make_stream({"max_msg_size": 100})
    first = admin.publish(f"{name.lower()}.a", "é", {"Tag": " one ", "Nats-Msg-Id": "1"})
    assert (first.stream, first.seq, first.duplicate) == (name, 1, False)
    again = admin.publish(f"{name.lower()}.a", b"other", {"Nats-Msg-Id": "1"})
    assert (again.seq, again.duplicate) == (1, True)
    assert admin.publish(f"{name.lower()}.b", b"\x00\n").seq == 2
    stored = [admin.messages.get(name, seq) for seq in (1, 2)]
    assert [(each.subject[-2:], each.data) for each in stored] == [
        (".a", "é".encode()),
        (".b", b"\x00\n"),
    ]
    assert [each.headers for each in stored] == [{"Tag": ["one"], "Nats-Msg-Id": ["1"]}, {}]
    with pytest.raises(
        ApiError, match=f"cannot publish to {name.lower()}.a: message size exceeds maximum"
    ) as caught:
        admin.publish(f"{name.lower()}.a", "x" * 101)
    assert caught.value.err_code == 10054
    assert admin.streams.load(name).state.messages == 2


def test_messages_that_cannot_be_published(admin: JetStreamAdmin, make_stream: Make) -> None:
    name = make_stream({})
    wrong: Any = 5
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: admin.publish(f"{name.lower()}.*", "x"), "there is a wildcard"),
        (lambda: admin.publish("$JS.API.INFO", "x"), "belongs to the server"),
        (lambda: admin.publish(f"{name.lower()}.a", wrong), "data must be text or bytes, not int"),
        (
            lambda: admin.publish(f"{name.lower()}.a", "x", {"a b": "c"}),
            'header "a b" is not possible',
        ),
        (
            lambda: admin.publish(f"{name.lower()}.a", "x", {"a": "b\r\nNats-Rollup: all"}),
            'header "a" is not possible',
        ),
        (
            lambda: admin.publish(f"{name.lower()}.a", "x", {"a": wrong}),
            'header "a" is not possible',
        ),
        (
            lambda: admin.publish(f"{name.lower()}.a", "x", {"a": "caf\udce9"}),
            'header "a" is not possible',
        ),
        (lambda: admin.request("a", "x", {"a": ["b", "caf\udce9"]}), 'header "a" is not possible'),
    ]
    for work, said in cases:
        with pytest.raises(OptionError, match=said):
            work()
    with pytest.raises(
        JetStreamError,
        match=r"with its headers it has 3,000,000 bytes, and the server takes no more",
    ):
        admin.publish(f"{name.lower()}.a", "x" * 3_000_000)
    assert admin.streams.load(name).state.messages == 0


def test_a_subject_that_no_stream_captures(
    admin: JetStreamAdmin, nats_server: NatsServer, make_stream: Make
) -> None:
    def publish_patiently(admin: JetStreamAdmin, subject: str) -> None:
        # The server must answer here when it is asked whether a stream captures the subject.
        publish(admin._api, subject, "x", None, look_time=5.0)

    with pytest.raises(
        StreamNotFound, match=r"^cannot publish to nobody.here: no stream captures this subject$"
    ):
        publish_patiently(admin, "nobody.here")
    with JetStreamAdmin(servers=nats_server.url, requestTimeout="1s") as hasty:
        # Another subscriber gets the message, and confirms nothing.
        with contextlib.closing(Raw(nats_server.url)) as listening:
            listening.hello("nobody.>")
            with pytest.raises(StreamNotFound, match="no stream captures"):
                publish_patiently(hasty, "nobody.here")
        silent = make_stream({"no_ack": True}).lower()
        with pytest.raises(RequestTimeout, match=f"publish to {silent}.a: no reply within"):
            publish_patiently(hasty, f"{silent}.a")


def test_a_message_that_another_domain_has_stored(
    nats_server: NatsServer, make_stream: Make
) -> None:
    name = make_stream({})
    with (
        JetStreamAdmin(servers=nats_server.url, domain="far") as admin,
        pytest.raises(
            JetStreamError,
            match=f"stream {name} has stored it .sequence 1., not a stream of domain far",
        ),
    ):
        admin.publish(f"{name.lower()}.a", "x")


def test_publishing_where_there_is_no_jetstream() -> None:
    with (
        NatsServer(jetstream=False) as server,
        JetStreamAdmin(servers=server.url) as admin,
        pytest.raises(NoResponders, match="is JetStream enabled"),
    ):
        admin.publish("a", "x")
