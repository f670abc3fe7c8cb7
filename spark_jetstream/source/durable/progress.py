"""`Progress`: keeps on the server how far Spark has committed (option durable).

How it works (docs/progress.md is for users). Nobody pulls from the consumer: it stands at the first
sequence that is not committed, and an interest stream holds what follows. Its metadata has the
token of the run that owns it. How a commit moves it, and what a crash leaves, say `moving` (streams
with limits and interest retention) and `purging` (work queues).
"""

from __future__ import annotations

import logging
import uuid

from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.fitness import refuses_commits
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.durable.consumers import DurableConsumers
from spark_jetstream.source.durable.moving import SUSPENDED, MovingProgress
from spark_jetstream.source.durable.purging import PurgingProgress
from spark_jetstream.source.durable.stream_progress import StreamProgress
from spark_jetstream.source.interest_streams import LONG

log = logging.getLogger(__name__)


class Progress:
    """The consumers of one name (option durable), one on each stream of a query.

    One object belongs to one run of a query with the option, and to one thread. With
    ``readWith=direct`` messages are looked at without a consumer. All methods raise what
    `Requests.call` raises (`PermissionDenied` names the subject that is missing), and

    - `OptionError` (durable) when the consumer has another configuration, or belongs to an
      application;
    - `OptionError` (subjects) when another consumer of a work queue has the filter;
    - `DataLossError`, unless ``failOnDataLoss`` is false, when messages of an interest stream were
      not held;
    - `JetStreamError` when another run has taken the consumer over, or another client uses or moved
      it.

    `longest` and `suspended` are those of `MovingProgress`.
    """

    def __init__(
        self,
        requests: Requests,
        options: SourceOptions,
        *,
        longest: int = LONG,
        suspended: float = SUSPENDED,
    ) -> None:
        self._requests = requests
        self._options = options
        self._longest = longest
        self._suspended = suspended
        # The token of this run is new with each object, so that an earlier run notices it.
        self._consumers = DurableConsumers(requests, options.subjects, run=uuid.uuid4().hex)
        #: The progress on each stream, from `open` on.
        self._streams: dict[str, StreamProgress] = {}

    def open(self, state: StreamSummary, *, fresh: bool) -> None:
        """Create the consumer if it is missing, check it if it exists, and take it over.

        Must be called once for each stream and run, before the first position on the stream is
        decided: from here on an interest stream holds what is published. `fresh`: the query has no
        checkpoint yet. Otherwise it resumes from one, and a consumer that is missing on an interest
        stream has not held what was published since.
        """
        if refuses_commits(state):
            raise OptionError(
                f"stream {state.name} is a work queue that cannot be purged (deny_purge, or "
                "sealed): messages that Spark has committed cannot be removed from it (option durable); "
                "read a stream that was made without deny_purge",
                option="durable",
            )
        self._requests.call(lambda _: self._open(state, fresh=fresh))

    def _open(self, state: StreamSummary, *, fresh: bool) -> None:
        # A work queue keeps each message until it is acknowledged or purged, so its commits purge.
        progress: StreamProgress
        if state.retention == "workqueue":
            progress = PurgingProgress(self._consumers, self._options, state)
        else:
            progress = MovingProgress(
                self._consumers,
                self._options,
                state,
                longest=self._longest,
                suspended=self._suspended,
            )
        progress.open(state, fresh=fresh)
        self._streams[state.name] = progress

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """Tell the server that everything below `next_sequence` is in Spark's sink.

        It need not be held any more. May be called again for a position that was reached, and for
        an earlier one. `state` is of the stream that the position belongs to (`created`), and need
        not be new. In a stream that was created again since, or that is shorter than the position,
        nothing is committed and a warning is logged: those sequences belong to other messages.
        """
        progress = self._streams[state.name]
        if state.created != progress.created:
            progress.log_other_stream()
            return
        try:
            self._requests.call(lambda _: progress.commit(state, next_sequence))
        except StreamNotFound as error:
            # Whether this is a loss is for the next look to say.
            log.warning("%s: nothing is committed", error)

    def holds(self, state: StreamSummary, sequence: int) -> bool:
        """Whether the consumer has existed since ``sequence`` was next, and was not moved past it.

        Then no purge of the query's subjects has removed a message from ``sequence`` on, and no
        other consumer's acknowledgement has removed a matching one. A purge moves the consumers
        whose filter contains its own or is in it, whether it finds a matching message or not (tried
        on 2.10.26, 2.12.8 and 2.15.1). It does not move those whose filter overlaps its own in part
        (2.15.1).
        """
        progress = self._streams.get(state.name)
        return progress is not None and progress.holds(state, sequence)

    def check(self, state: StreamSummary, done: int) -> None:
        """Check with one request that the consumer exists and is this run's.

        `state` is what the stream is now. Everything below sequence `done` is in Spark's sink.
        """
        progress = self._streams[state.name]
        if state.created == progress.created:
            self._requests.call(lambda _: progress.check(state, done))
            return
        progress.report_not_held(
            state,
            f"stream {state.name} was deleted and created again, and its consumer went with it",
        )
        self.open(state, fresh=True)
