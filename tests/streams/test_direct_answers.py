"""`read_direct` against answers that lie: replicas that lag, mirrors that lack messages, answers
with holes.

Each comes from a fake JetStream that gives it on purpose; what a real server does is in
`test_direct.py`.
"""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_jetstream.client import deadline
from spark_jetstream.client.pool import close_all
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import DataLossError, JetStreamError, OutageError, ProtocolError
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange, stream_summary
from spark_jetstream.source.probes import ConsumerProbe, DirectProbe
from spark_jetstream.streams import direct
from spark_jetstream.streams.direct import read_direct
from tests.support.fake_jetstream import CREATED, NOT_FOUND, Answer, FakeJetStream, end_of_batch
from tests.support.reading import SETTINGS, collect, connecting, sequences

COUNT = 100
ALL = list(range(1, COUNT + 1))
WHOLE = SequenceRange("S", 1, COUNT + 1, COUNT, CREATED)
Request = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """The first frames load parts of pyarrow, which takes longer than some tests wait for an
    answer.
    """
    assert len(pa.array(np.zeros(3, np.int64)).take(pa.array(np.arange(2)))) == 2


@pytest.fixture
def fake() -> Iterator[FakeJetStream]:
    with FakeJetStream() as running:
        running.store(COUNT)
        yield running
        close_all()


@pytest.fixture
def silent() -> None:
    """Marks a test in which an answer does not come."""


@pytest.fixture
def to_fake(fake: FakeJetStream, request: pytest.FixtureRequest) -> Connect:
    return connecting(fake.url, requestTimeout="1s" if "silent" in request.fixturenames else "60s")


Read = Callable[..., Iterator[MessageRun]]


@pytest.fixture
def read(to_fake: Connect) -> Read:
    def run(part: SequenceRange = WHOLE, **settings: Any) -> Iterator[MessageRun]:
        return read_direct(to_fake, part, replace(SETTINGS, **settings), "test")

    return run


def in_turn(fake: FakeJetStream, *answers: Callable[[Request], list[Answer]]) -> None:
    """The first Direct Gets are answered like this, all others as they should be."""
    left = list(answers)
    fake.direct = lambda request: left.pop(0)(request) if left else fake.batch(request)


# How much is asked


def test_a_range_in_one_answer_costs_two_requests(fake: FakeJetStream, read: Read) -> None:
    assert sequences(read()) == ALL
    first = {"seq": 1, "batch": 101, "max_bytes": 1 << 20}
    assert fake.asked == [("DIRECT.GET.S", first), ("STREAM.INFO.S", {})]
    # The leader decides about a range that ends behind the stream.
    assert sequences(read(replace(WHOLE, end=1000, count=None))) == ALL
    assert fake.asked[-2:] == [
        ("STREAM.MSG.GET.S", {"seq": 101, "next_by_subj": ">"}),
        ("STREAM.INFO.S", {}),
    ]


def test_a_message_behind_the_range_proves_its_end(fake: FakeJetStream, read: Read) -> None:
    fake.messages = dict.fromkeys((1, 2, 50), "S.a")
    assert sequences(read(replace(WHOLE, end=40, count=2))) == [1, 2]
    assert fake.count("MSG.GET") == 0


def test_a_full_batch_is_followed_by_the_next_when_it_was_handed_out(
    fake: FakeJetStream, read: Read
) -> None:
    for number, run in enumerate(read(batch=30), start=1):
        assert run.sequences.tolist() == ALL[30 * number - 30 : 30 * number]
        assert fake.count("DIRECT.GET") == number
    asked = [request for subject, request in fake.asked if subject == "DIRECT.GET.S"]
    assert [(request["seq"], request["batch"]) for request in asked] == [
        (1, 30),
        (31, 30),
        (61, 30),
        (91, 11),
    ]
    # The messages are older than the first look at the stream: once more at the end is enough.
    assert fake.count("INFO") == 2


@pytest.mark.parametrize(
    ("given", "filters", "asked"),
    [
        (10, 1, 10),
        (1 << 20, 1, 1 << 20),
        (1 << 30, 1, 32 << 20),
        (1 << 20, 4, 1 << 18),
        (1 << 20, 30, 64 << 10),
        (100, 5, 100),
    ],
)
def test_the_bytes_of_a_request_are_bounded(
    fake: FakeJetStream, read: Read, given: int, filters: int, asked: int
) -> None:
    subjects = ("S.a", *(f"S.{number}" for number in range(1, filters)))
    assert sequences(read(replace(WHOLE, subjects=subjects), max_bytes=given)) == ALL
    requests = [request for subject, request in fake.asked if subject == "DIRECT.GET.S"]
    assert {request["max_bytes"] for request in requests} == {asked}
    assert {request["next_by_subj"] for request in requests} == set(subjects)


# Replicas that lag


@pytest.mark.parametrize("lag", [0, 1, 99])
def test_a_replica_that_lags(fake: FakeJetStream, read: Read, lag: int) -> None:
    in_turn(fake, *[lambda request: fake.batch(request, up_to=lag)] * 3)
    assert sequences(read()) == ALL
    assert fake.count("MSG.GET") == 3


@pytest.mark.parametrize("lag", [0, 60, None])
def test_a_replica_that_never_catches_up(fake: FakeJetStream, read: Read, lag: int | None) -> None:
    # Without a lag: one that ends its batch without a message.
    fake.direct = lambda request: (
        [end_of_batch(5, 0)] if lag is None else fake.batch(request, up_to=lag)
    )
    lag = lag or 0
    found: list[int] = []
    with pytest.raises(OutageError) as caught:
        collect(read(retry_timeout=0.5), found)
    assert found == ALL[:lag]
    assert fake.count("DIRECT.GET") < 40
    for said in ("stream S", "retryTimeout", f"does not have message {lag + 1} ", "leader"):
        assert said in str(caught.value)


def test_a_gap_that_the_leader_knows_of(fake: FakeJetStream, read: Read) -> None:
    # The replica still lacks what lies behind the gap.
    fake.messages = dict.fromkeys((*range(1, 20), *range(90, 101)), "S.a")
    in_turn(fake, *[lambda request: fake.batch(request, up_to=30)] * 2)
    assert sequences(read(replace(WHOLE, count=30))) == sorted(fake.messages)
    asked = [request["seq"] for subject, request in fake.asked if subject == "DIRECT.GET.S"]
    assert asked == [1, 90, 90]


def test_messages_that_go_while_they_are_waited_for(fake: FakeJetStream, read: Read) -> None:
    def lag(request: Request) -> list[Answer]:
        return fake.batch(request, up_to=0)

    def lag_and_lose(request: Request) -> list[Answer]:
        fake.messages.clear()
        return lag(request)

    in_turn(fake, lag, lag_and_lose)
    assert sequences(read(replace(WHOLE, count=None))) == []


# Mirrors


@pytest.mark.parametrize(
    "lacks", [lambda _: False, lambda sequence: sequence < 50], ids=["nothing", "its head"]
)
def test_a_mirror_that_always_answers(
    fake: FakeJetStream, read: Read, lacks: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    # No time passes but in the pauses between two requests.
    monkeypatch.setattr(deadline, "time", types.SimpleNamespace(monotonic=lambda: now, sleep=pause))
    # Even one that lacks nothing may have other subjects, or the messages of a stream that is gone.
    fake.direct = lambda request: fake.batch(request, stream="MIRROR", lacks=lacks)
    with pytest.raises(OutageError) as caught:
        sequences(read(retry_timeout=1.0))
    assert 20 < fake.count("DIRECT.GET") < 40
    for said in ("mirror MIRROR", "stream S", "retryTimeout"):
        assert said in str(caught.value)


# A consumer where Direct Gets do not do (`read_auto`)


def auto(
    connect: Connect, *, tried_for: float = direct.TRIED_FOR, **settings: Any
) -> Iterator[MessageRun]:
    return direct.read_auto(
        connect, WHOLE, replace(SETTINGS, **settings), "test", tried_for=tried_for
    )


def test_direct_gets_that_bring_everything_need_no_consumer(
    fake: FakeJetStream, to_fake: Connect
) -> None:
    assert sequences(auto(to_fake)) == ALL
    assert [path for path, _ in fake.asked] == ["DIRECT.GET.S", "STREAM.INFO.S"]
    assert sequences(auto(to_fake, headers_only=True)) == ALL
    assert (fake.count("DIRECT.GET"), fake.count("CONSUMER.CREATE")) == (1, 1)


INSUFFICIENT: dict[str, tuple[Callable[[FakeJetStream, Request], list[Answer]], int]] = {
    "a mirror": (lambda fake, request: fake.batch(request, stream="MIRROR"), 1),
    "a replica that lags": (lambda fake, request: fake.batch(request, up_to=50), 51),
    "a replica with nothing": (lambda fake, request: [NOT_FOUND], 1),
    "a refusal": (lambda fake, request: [Answer(b"NATS/1.0 408 Huh\r\n\r\n")], 1),
    "one reply for each request": (lambda fake, request: fake.batch(request)[:1], 1),
    "nobody": (lambda fake, request: [Answer(b"NATS/1.0 503\r\n\r\n")], 1),
    "an old server": (
        lambda fake, request: [Answer(b"NATS/1.0\r\nNats-Stream: S\r\nNats-Sequence: 1\r\n\r\n")],
        1,
    ),
}


@pytest.mark.parametrize("what", INSUFFICIENT)
def test_a_consumer_brings_the_rest(
    fake: FakeJetStream,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Only this answer has no end, for which the reader waits.
    endless = what == "one reply for each request"
    to_fake = connecting(fake.url, requestTimeout="1s" if endless else "60s")
    answer, first = INSUFFICIENT[what]
    fake.direct = lambda request: answer(fake, request)
    assert sequences(auto(to_fake, tried_for=0.3)) == ALL
    begun = [
        request["config"].get("opt_start_seq", 1)
        for path, request in fake.asked
        if "CONSUMER.CREATE" in path
    ]
    assert begun == [first]
    [said] = [message for message in caplog.messages if "a consumer reads stream S" in message]
    assert f"from sequence {first} on: " in said


def test_a_message_that_no_consumer_can_deliver_is_lost(
    fake: FakeJetStream, to_fake: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    del fake.messages[77]
    fake.direct = lambda request: [Answer(b"NATS/1.0 408 Huh\r\n\r\n")]
    lost = "1 of 100 messages of stream S, sequences 1 to 100, were removed"
    with pytest.raises(DataLossError, match=lost):
        sequences(auto(to_fake))
    assert sequences(auto(to_fake, fail_on_data_loss=False)) == [
        sequence for sequence in ALL if sequence != 77
    ]
    assert [message[: len(lost)] for message in caplog.messages if "removed" in message] == [lost]


# Answers with holes


def without(*places: int) -> Callable[[list[Answer]], list[Answer]]:
    return lambda answers: [
        answer for at, answer in enumerate(answers) if at not in {p % len(answers) for p in places}
    ]


HOLES: dict[str, Callable[[list[Answer]], list[Answer]]] = {
    "the first": without(0),
    "one": without(7),
    "the last": without(-2),
    "the last two": without(-2, -3),
    "all but the end": lambda answers: answers[-1:],
    "all but the last": lambda answers: answers[-2:],
    "the end": without(-1),
    "everything": lambda _: [],
    "half, and the end": lambda answers: answers[:10],
    "one that comes twice": lambda answers: [*answers[:5], *answers[4:]],
    "two that change places": lambda answers: [*answers[:5], answers[6], answers[5], *answers[7:]],
    "an end too early": lambda answers: [*answers[:5], *answers[-1:], *answers[5:]],
    "an end that comes twice": lambda answers: [*answers, *answers[-1:]],
    "another end": lambda answers: [*answers[:-1], end_of_batch(0, 3)],
    "an end that forgets what is pending": lambda answers: [
        *answers[:-1],
        answers[-1]._replace(head=re.sub(rb"Nats-Num-Pending: .*\r\n", b"", answers[-1].head)),
    ],
    "nothing found behind messages": lambda answers: [*answers[:5], NOT_FOUND],
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("hole", HOLES.values(), ids=HOLES.keys())
def test_lost_answers_are_requested_again(
    fake: FakeJetStream, read: Read, hole: Callable[[list[Answer]], list[Answer]]
) -> None:
    def broken(request: Request) -> list[Answer]:
        return hole(fake.batch(request))

    in_turn(fake, broken, fake.batch, broken)
    assert sequences(read(batch=30)) == ALL


def test_a_lost_end_is_no_matter_for_the_leader(fake: FakeJetStream, read: Read) -> None:
    in_turn(fake, lambda request: without(-2)(fake.batch(request)))
    assert sequences(read(replace(WHOLE, end=100, count=99))) == ALL[:99]
    in_turn(fake, lambda request: without(-2, -3)(fake.batch(request)))
    assert sequences(read()) == ALL
    assert fake.count("MSG.GET") == 0


def after_the_end(fake: FakeJetStream, request: Request) -> list[Answer]:
    return fake.batch(request) + fake.batch(request)[-3:]


def late(fake: FakeJetStream, request: Request) -> list[Answer]:
    first = fake.batch({**request, "seq": 1})
    return [*(answer._replace(late=True) for answer in first[-5:]), *fake.batch(request)]


def too_early(fake: FakeJetStream, request: Request) -> list[Answer]:
    return fake.batch({**request, "seq": 5})


@pytest.mark.parametrize(("answer", "requests"), [(after_the_end, 4), (late, 4), (too_early, 5)])
def test_answers_that_were_not_requested_are_dropped(
    fake: FakeJetStream,
    read: Read,
    answer: Callable[[FakeJetStream, Request], list[Answer]],
    requests: int,
) -> None:
    in_turn(fake, fake.batch, lambda request: answer(fake, request))
    assert sequences(read(batch=30)) == ALL
    assert (fake.count("DIRECT.GET"), fake.count("MSG.GET")) == (requests, 0)


@pytest.mark.parametrize("code", [400, 408, 409, 500, 100])
def test_a_status_that_is_not_known_is_no_end(fake: FakeJetStream, read: Read, code: int) -> None:
    in_turn(fake, lambda _: [Answer(b"NATS/1.0 %d Such Is Life\r\n\r\n" % code)])
    with pytest.raises(JetStreamError, match=f"stream S: {code} Such Is Life") as caught:
        sequences(read())
    assert not caught.value.retriable


def test_a_server_that_knows_no_batches(fake: FakeJetStream, read: Read) -> None:
    def single(request: Request) -> list[Answer]:
        message = fake.batch(request)[0]
        lines = message.head.splitlines(keepends=True)
        return [message._replace(head=b"".join(line for line in lines if b"Pend" not in line))]

    in_turn(fake, single)
    with pytest.raises(ProtocolError, match=r"older than 2\.11"):
        sequences(read())


# The stream


@pytest.mark.parametrize("when", [1, 2], ids=["first look", "last look"])
def test_a_stream_that_was_created_again(fake: FakeJetStream, read: Read, when: int) -> None:
    def look() -> dict[str, Any]:
        if fake.count("INFO") >= when:
            fake.created = "2024-01-01T00:00:00Z"
        return fake.info()

    fake.look = look
    found: list[int] = []
    with pytest.raises(DataLossError, match=r"stream S was deleted and created again \(at 2024"):
        collect(read(batch=30), found)
    # Rows after the last good check are not handed out where that check would be the last one.
    assert found == (ALL[:90] if when == 2 else [])


def test_a_stream_that_goes_while_its_leader_is_asked(fake: FakeJetStream, read: Read) -> None:
    gone = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}

    def go(_: Request) -> dict[str, Any]:
        fake.look = lambda: gone
        return gone

    fake.leader = go
    with pytest.raises(DataLossError, match="stream S was deleted"):
        sequences(read(replace(WHOLE, end=200, count=None)))


def test_messages_younger_than_the_last_look(fake: FakeJetStream, read: Read) -> None:
    fake.look = lambda: {**fake.info(), "ts": "2023-11-14T22:13:21Z"}
    assert sequences(read(batch=30)) == ALL
    assert fake.count("INFO") == 4


def test_nobody_answers_for_a_while(fake: FakeJetStream, read: Read) -> None:
    in_turn(fake, *[lambda _: [Answer(b"NATS/1.0 503\r\n\r\n")]] * 3)
    assert sequences(read()) == ALL
    fake.direct = lambda _: [Answer(b"NATS/1.0 503\r\n\r\n")]
    with pytest.raises(OutageError, match="nobody answers direct gets of stream S"):
        sequences(read(retry_timeout=0.3))


@pytest.mark.parametrize("err_code", [10008, 10118])
def test_a_leader_that_is_away_for_a_while(fake: FakeJetStream, read: Read, err_code: int) -> None:
    left = [{"error": {"code": 503, "err_code": err_code, "description": "unavailable"}}] * 3

    def busy(other: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return left.pop() if left else other()

    fake.look = lambda: busy(fake.info)
    assert sequences(read()) == ALL
    left += [{"error": {"code": 503, "err_code": err_code, "description": "unavailable"}}] * 2
    fake.look, fake.leader = fake.info, lambda request: busy(lambda: fake.message(request))
    assert sequences(read(replace(WHOLE, end=200, count=None))) == ALL
    assert not left


# All at once


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 20))]
)
def test_any_answers(fake: FakeJetStream, read: Read, seed: int) -> None:
    chance = random.Random(seed)
    fake.messages = {
        s: chance.choice(["S.a", "S.b", "S.c"])
        for s in sorted(chance.sample(ALL, chance.randrange(1, 100)))
    }
    holes = [
        hole
        for name, hole in HOLES.items()
        if name not in ("the end", "everything", "half, and the end")
    ]

    def any_answer(request: Request) -> list[Answer]:
        kind = chance.randrange(6)
        if kind == 0:
            return fake.batch(request, up_to=chance.choice(ALL))
        if kind == 1:
            return fake.batch(request, stream="MIRROR", lacks=lambda _: chance.random() < 0.5)
        return chance.choice(holes)(fake.batch(request)) if kind == 2 else fake.batch(request)

    fake.direct = any_answer
    subjects = chance.choice([(), ("S.a",), ("S.a", "S.b"), ("S.*",)])
    first = chance.choice(ALL)
    end = chance.randrange(first, 120)
    wanted = [
        s
        for s, name in fake.messages.items()
        if first <= s < end and (not subjects or {name, "S.*"} & set(subjects))
    ]
    sifted = bool(subjects) and chance.random() < 0.5
    part = SequenceRange("S", first, end, len(wanted), CREATED, subjects, sifted=sifted)
    assert sequences(read(part, batch=chance.choice([1, 7, 500]))) == wanted


# Planning


@pytest.fixture
def view(to_fake: Connect) -> Callable[..., DirectProbe]:
    return lambda patience=30.0: DirectProbe(Requests(to_fake, patience), "S", ())


def test_nothing_is_counted_only_when_the_leader_says_so(
    fake: FakeJetStream, view: Callable[..., DirectProbe]
) -> None:
    in_turn(fake, *[lambda _: [NOT_FOUND]] * 3)
    assert view().pending(41) == 60
    fake.direct = lambda _: [NOT_FOUND]
    with pytest.raises(JetStreamError, match="does not have message 41 of stream S"):
        view(0.5).pending(41)
    # Places are asked of the leader alone.
    message = view().peek(17)
    assert message is not None
    assert message[0] == 17
    assert view().peek(101) is None


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_leader_has_the_last_word_about_what_consumers_find(
    fake: FakeJetStream, to_fake: Connect, replicas: int
) -> None:
    """A consumer knows all messages of a stream without replicas."""
    view = ConsumerProbe(Requests(to_fake, 0.5), "S", ("S.a",))
    fake.lagging = [40] * 5
    view.check(stream_summary(fake.info(num_replicas=replicas), "look"))
    places = [view.peek(41), view.last(), view.peek(17)]
    assert [place and place[0] for place in places] == (
        [None, 40, 17] if replicas == 1 else [41, COUNT, 17]
    )


def test_counts_of_mirrors_do_not_count(
    fake: FakeJetStream, view: Callable[..., DirectProbe]
) -> None:
    def mirror(request: Request) -> list[Answer]:
        return fake.batch(request, stream="MIRROR", lacks=lambda sequence: sequence % 2 == 0)

    in_turn(fake, *[mirror] * 15)
    assert view().pending(1) == COUNT
    fake.direct = mirror
    with pytest.raises(JetStreamError, match="mirror MIRROR answers"):
        view(0.5).pending(1)


def test_counting_where_a_status_answers(
    fake: FakeJetStream, view: Callable[..., DirectProbe]
) -> None:
    for code, text in ((503, "nobody answers direct gets of stream S"), (408, "stream S: 408 Huh")):
        answer = Answer(b"NATS/1.0 %d Huh\r\n\r\n" % code)
        fake.direct = lambda _, answer=answer: [answer]  # type: ignore[misc]
        with pytest.raises(JetStreamError, match=text) as caught:
            view(0.5).pending(1)
        assert caught.value.retriable == (code == 503)
    in_turn(fake, lambda _: [Answer(b"NATS/1.0 503\r\n\r\n")])
    assert view().pending(1) == COUNT


@pytest.mark.usefixtures("silent")
def test_counting_where_nothing_answers(fake: FakeJetStream, to_fake: Connect) -> None:
    in_turn(fake, lambda _: [])
    assert DirectProbe(Requests(to_fake, 5.0), "S", ()).pending(1) == COUNT
