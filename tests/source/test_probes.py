"""Both probes of a stream against the real server: what they say of it is what it holds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import pytest

from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.source.probes import DirectProbe, StreamProbe
from tests.support.publish import Message
from tests.support.reading import options
from tests.support.streams import Stream

pytestmark = pytest.mark.usefixtures("no_connection_left")

COUNT = 40


@pytest.mark.parametrize("kind", [StreamProbe, DirectProbe])
def test_answers_are_what_the_stream_holds(
    stream: Callable[..., Stream], kind: type[StreamProbe | DirectProbe]
) -> None:
    # 10153: the stream allows no consumer to be idle for longer.
    s = stream(allow_direct=True, storage="memory", consumer_limits={"inactive_threshold": 1_000_000_000})
    requests = Requests(lambda _: connect(options(s.url)), 5.0)

    def check() -> None:
        times = {sequence: s.stored_time(sequence) for sequence in s.messages}
        for filters in ((), ("0",), ("0", "1"), ("none",)):
            probe = kind(requests, s.name, tuple(f"{s.subject}.{token}" for token in filters))
            subjects = [f"{s.subject}.{token}" for token in filters or ("*",)]
            matching = [
                (sequence, times[sequence])
                for sequence, message in s.messages.items()
                if any(fnmatch.fnmatchcase(message.subject, subject) for subject in subjects)
            ]
            if filters:
                assert probe.last() == max(matching, default=None)
            assert probe.state().messages == len(s.messages)
            for first in (1, 2, 20, COUNT, COUNT + 1):
                following = [message for message in matching if message[0] >= first]
                assert probe.pending(first) == len(following)
                assert probe.peek(first) == min(following, default=None)
            for since in {0, *sorted(times.values())[::20], *(time + 1 for time in [*times.values()][-1:])}:
                after = [message for message in matching if message[1] >= since]
                assert probe.first_after(since) == min(after, default=None)
                assert probe.first_of_all_after(since) == min(
                    ((sequence, time) for sequence, time in times.items() if time >= since), default=None
                )

    check()
    s.send(*(Message(f"{s.subject}.{number % 4}") for number in range(COUNT)))
    check()
    s.remove(1, 20, COUNT)
    check()
