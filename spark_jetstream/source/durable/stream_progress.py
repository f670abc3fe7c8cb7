"""`StreamProgress`: the consumer of one stream, as one run of a query knows it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from spark_jetstream.errors import DataLossError, JetStreamError, OptionError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.source.durable.consumer_state import ConsumerState
from spark_jetstream.source.durable.consumers import DurableConsumers, taken

log = logging.getLogger(__name__)


class StreamProgress(ABC):
    """The position of a query on one stream, kept by a consumer on the server.

    `open` must be called first, and once. `state` is that of the stream. The methods retry nothing,
    and may be called again after an error. They raise what `Progress` and `Connection.api` raise.
    """

    def __init__(
        self, consumers: DurableConsumers, options: SourceOptions, state: StreamSummary
    ) -> None:
        assert options.durable is not None
        self._consumers = consumers
        self._options = options
        self._stream = state.name
        self._name = options.durable
        #: When the stream was created: in one that was created again nothing is committed.
        self.created = state.created
        #: When this run began, by the server's clock, in the metadata of each consumer it creates.
        self._since = rfc3339(state.server_time) if state.server_time else ""
        #: The position as last seen, or as last set. Another client has moved a consumer beyond it.
        self._next = 1
        #: Messages that had been pulled when the consumer was last created or moved: more are
        #: another client's.
        self._deliveries = 0
        #: The consumer has held each matching message from this sequence on; later if it had to be
        #: created again.
        self._held_from = 1

    @abstractmethod
    def open(self, state: StreamSummary, *, fresh: bool) -> None:
        """Create the consumer, or take it over. `fresh` is that of `Progress.open`."""

    @abstractmethod
    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """See `Progress.commit`. The stream is the one in which the consumer was opened."""

    def check(self, state: StreamSummary, done: int) -> None:
        """See `Progress.check`. The stream is the one in which the consumer was opened."""
        self._look(state)

    def holds(self, state: StreamSummary, sequence: int) -> bool:
        """See `Progress.holds`."""
        same_stream = self.created == state.created
        return same_stream and max(self._next, self._held_from) <= sequence

    # Taking over

    def _take_over(
        self, state: StreamSummary, consumer: ConsumerState, *, fresh: bool
    ) -> ConsumerState:
        """Check a consumer that exists already, and write this run into its metadata."""
        self._compare(state, consumer)
        # Acknowledgements of an application remove messages that Spark has not read.
        if consumer.run is None and consumer.deliveries:
            raise OptionError(
                f"consumer {self._name} of stream {self._stream} (option durable) has delivered "
                "messages to an application; give durable a name that no application uses",
                option="durable",
            )
        if consumer.run is None:
            self._held_from = self._unheld_before(state, fresh=fresh)
        else:
            self._held_from = 0
        if consumer.run != self._consumers.run:
            self._log_taking_over(consumer)
            consumer = self._consumers.take_over(self._stream, self._name, consumer, self._since)
        return consumer

    def _unheld_before(self, state: StreamSummary, *, fresh: bool) -> int:
        """Return from where on a consumer holds what matches that no query has had yet."""
        if fresh:
            return state.first_kept
        # The consumer may be younger than the checkpoint.
        return state.last_seq + 1

    def _log_taking_over(self, consumer: ConsumerState) -> None:
        had = f", which another run has had since {consumer.since}" if consumer.since else ""
        log.info(
            "stream %s: this run continues with consumer %s (option durable) at sequence %d%s",
            self._stream,
            self._name,
            consumer.next,
            had,
        )

    def _compare(self, state: StreamSummary, consumer: ConsumerState) -> None:
        """Raise `OptionError` if the consumer cannot hold the query's position."""
        differences = consumer.differences(
            self._consumers.filters, in_memory=state.storage == "memory"
        )
        if differences:
            raise OptionError(
                f"consumer {self._name} of stream {self._stream} (option durable) has another "
                f"configuration than this query needs: {'; '.join(differences)}. Give durable "
                "another name (a query with other subjects needs one of its own), or delete the "
                "consumer, which lets go of what only it holds",
                option="durable",
            )

    def _remember(self, consumer: ConsumerState) -> None:
        """Take up where the consumer is after this run has created, moved or taken it over."""
        self._next = consumer.next
        self._deliveries = consumer.deliveries

    # Looking

    def _look(self, state: StreamSummary) -> ConsumerState | None:
        """Return this run's consumer, created again if it was missing.

        None if the stream was created again.
        """
        consumer = self._consumers.info(self._stream, self._name)
        if consumer is None:
            return self._create_missing(state)
        if consumer.run != self._consumers.run:
            consumer = self._take_back(consumer)
        self._compare(state, consumer)
        # Nobody pulls from the consumer of a query, so each delivery is another client's.
        if consumer.deliveries > self._deliveries:
            raise JetStreamError(
                f"another client pulls messages from consumer {self._name} of stream "
                f"{self._stream} (option durable), which only this query may use"
            )
        self._see_moved(state, consumer)
        # The server counts the time without a pull: a look does not keep a consumer.
        if consumer.inactive_threshold:
            self._consumers.touch(self._stream, self._name)
        return consumer

    def _take_back(self, consumer: ConsumerState) -> ConsumerState:
        """Return this run's consumer where it has the token of another run; else raise."""
        raise taken(self._name, self._stream, consumer)

    @abstractmethod
    def _see_moved(self, state: StreamSummary, consumer: ConsumerState) -> None:
        """Compare where the consumer is with where this run has moved it."""

    def _create_missing(self, state: StreamSummary) -> ConsumerState | None:
        now = self._consumers.stream(self._stream)
        if now.created != self.created:
            self.log_other_stream()
            return None
        consumer = self._restored(state, now)
        self._remember(consumer)
        return consumer

    def _restored(self, state: StreamSummary, now: StreamSummary) -> ConsumerState:
        """Create a consumer that has gone. `now` is the state of the stream after that."""
        self.report_not_held(state, self._missing_text())
        consumer = self._consumers.create(self._stream, self._name, self._since)
        self._held_from = now.last_seq + 1
        return consumer

    # Committing

    def _can_commit(self, state: StreamSummary, next_sequence: int) -> bool:
        """Whether the stream still has the sequences below a position; log why not.

        The position may be of another stream, or of one that has lost its tail since. There these
        sequences belong to other messages.
        """
        if state.created != self.created:
            self.log_other_stream()
            return False
        if next_sequence > state.last_seq + 1:
            log.warning(
                "stream %s ends at sequence %d, before the position %d that was read up to: "
                "nothing is committed",
                self._stream,
                state.last_seq,
                next_sequence,
            )
            return False
        return True

    # Reporting

    def report_not_held(self, state: StreamSummary, problem: str) -> None:
        """Raise, or warn, that an interest stream may have removed unread messages.

        Other streams keep them: there it is a warning.
        """
        if state.retention != "interest":
            log.warning("%s; going on with consumer %s (option durable)", problem, self._name)
            return
        problem += (
            f"; messages of stream {self._stream} (interest retention) that no consumer held are "
            "gone unread"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{problem}; set failOnDataLoss=false to go on with the messages that are left, and "
                f"to have consumer {self._name} (option durable) hold later ones"
            )
        log.warning("%s; failOnDataLoss is false, so reading goes on", problem)

    def _missing_text(self) -> str:
        return (
            f"consumer {self._name} of stream {self._stream} (option durable) does not exist: it "
            "was deleted, or the option is new for this checkpoint"
        )

    def log_other_stream(self) -> None:
        """Log that nothing is committed in a stream that was created again."""
        log.warning(
            "stream %s was deleted and created again: nothing is committed in the new one",
            self._stream,
        )
