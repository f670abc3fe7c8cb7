"""The client that fills streams in tests, with a real server."""

from __future__ import annotations

from contextlib import closing

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.client import stored
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import create


class Early(Publisher):
    """Publishes before the server knows a listener; the first answer makes it create the stream."""

    def __init__(self, url: str, subject: str) -> None:
        super().__init__(url)
        self._url, self._subject = url, subject
        self.unheard = 0

    def _replies(self, numbers: list[int]) -> list[bytes]:
        try:
            return super()._replies(numbers)
        except Refused:
            self.unheard += 1
            create(self._url, "S", subjects=[self._subject])
            raise


def test_messages_keep_their_order_if_nobody_listens_at_first() -> None:
    with NatsServer() as server, closing(Early(server.url, "a.*")) as publisher:
        assert publisher.publish(Message(f"a.{number}", b"x") for number in range(1200)) == list(
            range(1, 1201)
        )
        assert publisher.unheard == 1
        assert stored(server.url) == 1200


def test_a_subject_that_no_stream_captures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.publish._AGAIN", 0.05)
    with NatsServer() as server, Publisher(server.url) as publisher:
        with pytest.raises(Refused, match="nobody answers") as caught:
            publisher.publish([Message("a.1", b"x")])
        assert caught.value.err_code == 503
