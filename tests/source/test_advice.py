"""Errors of the layers below name no option; what a task and the driver raise says which option
helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import ConsumerLimitReached, DataLossError, JetStreamError, OutageError
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.advice import READERS, advice
from spark_jetstream.streams.direct import MirrorAnswered
from tests.support.calls import reading
from tests.support.fake_jetstream import CREATED, FakeJetStream, HangUp, Honest
from tests.support.reading import SETTINGS, connecting

MIRROR = ": read the mirror itself (option stream), or set readWith to consumer"
ERRORS: list[tuple[JetStreamError, str]] = [
    (MirrorAnswered("mirror M answers"), f"mirror M answers{MIRROR}"),
    (
        ConsumerLimitReached("no room within 5 s", code=400, err_code=10026, description="x"),
        "no room within 5 s (option retryTimeout); let fewer tasks read at the same time (a larger "
        "maxMessagesPerPartition, a smaller minPartitions), or raise the stream's max_consumers",
    ),
    (
        OutageError("it took more than 5 s"),
        "it took more than 5 s (option retryTimeout; readWith=consumer and a larger fetchBatch are "
        "faster)",
    ),
    (JetStreamError("anything else"), "anything else"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS, ids=str)
def test_an_error_says_which_option_helps(error: JetStreamError, text: str) -> None:
    with pytest.raises(JetStreamError) as caught, advice():
        raise error
    assert (type(caught.value), str(caught.value)) == (type(error), text)
    assert getattr(caught.value, "err_code", 0) == getattr(error, "err_code", 0)


def test_an_outage_during_which_only_mirrors_answered_says_so() -> None:
    with pytest.raises(OutageError, match="got no further") as caught, advice():
        raise OutageError("got no further: mirror M answers") from MirrorAnswered(
            "mirror M answers"
        )
    assert str(caught.value).endswith(MIRROR)


@pytest.fixture
def fake() -> Iterator[FakeJetStream]:
    with FakeJetStream() as running:
        running.store(100)
        yield running
        close_all()


@pytest.mark.parametrize(
    ("read_with", "stage"), [("consumer", "CONSUMER.MSG.NEXT"), ("direct", "DIRECT.GET")]
)
def test_a_reader_that_the_server_cuts_off_twice_names_the_option(
    fake: FakeJetStream, read_with: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is restarted cuts it off once; one whose client is too slow says no more."""
    cuts = iter(range(2))

    def cut(honest: Honest) -> Iterable[bytes]:
        if next(cuts, None) is not None:
            raise HangUp
        return [honest.frames]

    fake.lies[stage] = cut
    given = {"servers": fake.url, "stream": "S", "readWith": read_with, "retryTimeout": "60s"}
    assert len(list(reading(given))) == 100
    said = [message for message in caplog.messages if "the server closed the connection" in message]
    assert ["set option fetchMaxBytes lower" in message for message in said] == [False, True]


@pytest.mark.parametrize("read_with", READERS)
def test_a_loss_says_how_to_accept_it(fake: FakeJetStream, read_with: str) -> None:
    del fake.messages[7]
    whole = SequenceRange("S", 1, 101, 100, CREATED)

    def read(*, fail: bool) -> int:
        settings = replace(SETTINGS, fail_on_data_loss=fail)
        return sum(
            len(run) for run in READERS[read_with](connecting(fake.url), whole, settings, "test")
        )

    with pytest.raises(
        DataLossError, match=r"were removed .*; set failOnDataLoss to false to go on without them$"
    ):
        read(fail=True)
    assert read(fail=False) == 99
