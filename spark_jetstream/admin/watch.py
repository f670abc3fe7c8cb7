"""An endless read of a stream: each message once, in order.

Reconnects, restarts of servers and lost consumers do not end it. It first returns the messages that
the stream has when the watch begins, then those that are stored from then on. If a message is
replaced before its turn, the first part lacks it, and the second part has its replacement. So the
second part begins before the None, which is returned when a consumer has caught up with the
writers. Both parts come from the readers of `streams.pull`, so that consumers are replaced and
outages outlasted as everywhere. This module says how they pull, and what it asks the leader.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from spark_jetstream.admin.api import Api, seconds_or_ever
from spark_jetstream.admin.deliveries import stored_messages
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import ConsumerLost, DataLossError, OptionError
from spark_jetstream.protocol.columns import Delivered
from spark_jetstream.protocol.conventions import ADMIN_READER
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import shown
from spark_jetstream.streams.latest import END, read_list, read_to_end
from spark_jetstream.streams.pull import PullSettings, RangeReader
from spark_jetstream.streams.session import Ends

LABEL = ADMIN_READER
"""The beginning of the names of the consumers that the administration creates."""

Begin = Literal["all", "latest", "new"]
"""The first messages of a watch: all, the last one of each subject, or only new ones."""

BATCH = 500  # messages of one request
_BATCH_BYTES = 4 * 1024 * 1024  # of one request
_EXPIRES = 30.0  # seconds until a request ends
_SOON = 0.5  # seconds between heartbeats, until the messages from before the watch are read


def settings(api: Api, batch: int = BATCH, *, headers_only: bool = False) -> PullSettings:
    """Return the settings for reads of streams; ``batch`` is the messages of one request."""
    timeout = api.options.retry_timeout
    return PullSettings(
        batch,
        _BATCH_BYTES,
        _EXPIRES,
        timeout,
        fail_on_data_loss=True,
        headers_only=headers_only,
    )


def watch(
    api: Api,
    stream: str,
    filters: Sequence[str],
    begin: Begin,
    *,
    timeout: float | None = None,
    follow: bool = True,
) -> Iterator[StoredMessage | None]:
    """Return the messages of a stream in order, each once, without an end.

    After the messages that the stream had at the beginning, it returns None once. Closing the
    iterator ends it. Messages that the stream removes first (limits, a purge) are not returned.
    ``filters`` are subjects. After the None, it ends when no message arrives for ``timeout``
    seconds. Without ``follow`` it ends before the None, at the end of the stream.

    Raises:
        StreamNotFound: At once: the stream does not exist.
        DataLossError: The stream was deleted or created again, or a server lost data that it had.
        OutageError: The server was away for longer than option ``retryTimeout``.
        ApiError: Error 10138: the filters overlap; and other errors that do not pass.
    """
    if timeout is not None and not timeout > 0:
        raise OptionError(
            f"timeout must be a number of seconds above 0, or None, not {shown(timeout)}",
        )
    info = Streams(api).load(stream)
    # What takes the place of a message before its turn is stored after this look.
    end = info.state.last_seq + 1 if follow else END
    part = SequenceRange(
        stream,
        end if begin == "new" else 1,
        end,
        None,
        info.created,
        tuple(filters),
    )
    how = settings(api)

    def messages() -> Iterator[StoredMessage | None]:
        # First the messages that the stream has, then those that were stored since: a message that
        # is replaced before its turn comes in the second part
        # (`test_a_key_that_is_written_again_before_its_turn_comes_before_the_none`).
        try:
            yield from _present(api, part, how, begin, info)
            if follow:
                rest = replace(part, first=part.end, end=END)
                idle = seconds_or_ever(timeout)
                yield from _follow(api, rest, how, info, idle, new=begin == "new")
        except DataLossError as error:
            raise DataLossError(
                f"stream {stream} was deleted, or created again, while it was watched, "
                "or a server restarted without messages that it had stored"
            ) from error

    return messages()


def _present(
    api: Api, part: SequenceRange, how: PullSettings, begin: Begin, info: StreamInfo
) -> Iterator[StoredMessage]:
    """Return the messages that a stream has, or the last one of each subject.

    A message that is replaced before its turn is missing.
    """
    if begin == "latest":
        runs = read_list(api.connect, part, how, LABEL)
    else:
        # Without replicas the consumer knows where the stream ends; else the leader is asked.
        alone = info.config.num_replicas == 1
        # Short heartbeats, since the watch waits for the end of this part before its None.
        policy = how.policy(heartbeat=_SOON, quiet_heartbeats=1)

        def is_end(_: object, __: object) -> bool:
            return alone

        runs = RangeReader(api.connect, part, how, LABEL, policy, confirm=is_end).read()
    for run in runs:
        yield from stored_messages(run.frames, part.stream)


def _follow(
    api: Api, part: SequenceRange, how: PullSettings, info: StreamInfo, timeout: float, *, new: bool
) -> Iterator[StoredMessage | None]:
    """Return None, then the messages stored since, until none arrives for ``timeout`` seconds.

    ``info`` is the stream before that. Unless ``new``, messages that were stored since then come
    before the None.
    """
    # `last` remembers the last message across consumers: each new one begins after it.
    last = _Last(api, part, info)

    def is_end(_: object, __: object) -> bool:
        return True

    # The messages stored since the first look come first,
    # until a consumer has caught up with the writers.
    if not new:
        for run in read_to_end(api.connect, part, how, LABEL, last.check):
            yield from last.taken(run)
    part = replace(part, first=last.seq + 1)
    # The server may have no message to send for any time.
    policy = how.policy(
        Ends.NEVER,
        quiet_heartbeats=sys.maxsize,
        fruitless=sys.maxsize,
        idle=timeout,
    )
    reader = RangeReader(api.connect, part, how, LABEL, policy, confirm=is_end, check=last.check)
    # The reader's first None says that its requests are sent: all that is stored from then on
    # comes, even if the stream removes it before the caller takes it.
    begun = False
    for event in reader.follow():
        if event is not None:
            yield from last.taken(event)
        elif not begun:
            begun = True
            yield None


class _Last:
    """The last message of a watch: its sequence, and its time in nanoseconds."""

    def __init__(self, api: Api, part: SequenceRange, info: StreamInfo) -> None:
        self.seq = info.state.last_seq
        self.time = info.state.last_ts.nanoseconds
        self._api = api
        self._part = part

    def taken(self, run: Delivered) -> Iterator[StoredMessage]:
        """Return the messages of a run; the last one is the last of the watch now."""
        self.seq = int(run.sequences[-1])
        self.time = int(run.timestamps()[-1])
        return stored_messages(run.frames, self._part.stream)

    def check(self) -> None:
        """Compare the stream with the last message.

        Raises `DataLossError` if it is another stream, `ConsumerLost` if a replica may lag.
        """
        # Called after each consumer was created: the stream may be another one by then.
        now = Streams(self._api).load(self._part.stream)
        if now.created != self._part.created:
            raise DataLossError(f"created again at {now.created}")
        state = now.state
        # Sequence and time of the last message no longer belong together
        # (`test_a_server_that_comes_back_without_what_it_had`).
        used_again = state.first_seq <= self.seq and state.first_ts.nanoseconds > self.time
        if state.messages and used_again:
            # A server came back with fewer messages, and has used sequences a second time.
            start = f"sequence {state.first_seq}, stored at {state.first_ts}"
            raise DataLossError(f"it begins anew with {start}")
        if state.last_seq < self.seq:
            # A replica lags; or the server has lost messages.
            now_end = f"the stream ends at sequence {state.last_seq}"
            raise ConsumerLost(f"{now_end}, before {self.seq}, which it had")
