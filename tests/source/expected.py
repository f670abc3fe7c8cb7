"""The behaviour that a history expects of its query, by the messages that its streams have.

It knows the offsets of the checkpoint, and docs/data-loss.md, and asks nothing of the query's
planner.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spark_jetstream.errors import DataLossError, StreamNotFound
from spark_jetstream.protocol.stream import SequenceRange
from tests.model.losses import loss_at, names_loss
from tests.model.query import Position, positions
from tests.model.stream import LAST, Kept, Life
from tests.source.query_options import Options
from tests.support.streams import Stored

Row = tuple[Any, ...]


class Difference(AssertionError):
    """The query does not do what the model says."""


class Stopped(Exception):
    """The query ends with an error, as it has to."""


class Expected(Options):
    """The state of a query between Spark's steps, and what must hold then."""

    def __init__(
        self, chance: random.Random, url: str, name: str, what: str, retention: str, log: list[str]
    ) -> None:
        super().__init__(chance, url, name, what, retention, log)
        # The checkpoint: where the last finished batch ended, and where the one ends that is not
        # finished.
        self.start: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        # The rows of the sink, and the tasks of the batch that is not finished, with their number:
        # they are always the same.
        self.sink: set[tuple[str, str, int]] = set()
        self.task_of: dict[tuple[str, int], int] = {}
        self.tasks: int | None = None
        # The run.
        self.reader: Any = None
        self.draining = False  # the query reads the rest
        self.legacy = False  # Spark 4.0 does not say where a batch begins
        self.target: dict[str, Position] | None = None  # of Trigger.AvailableNow
        self.decided = False  # by this run, which has not planned its tasks yet
        # a run that has not decided its first batch by a start reads nothing at its next look
        self.anew = False
        self.looks: dict[
            str, list[tuple[str, int, int]]
        ] = {}  # creation, end and last match of each look
        self.seen: dict[str, tuple[str, set[int]]] = {}  # of the streams that a pattern finds
        self.met = False  # the run has seen streams of its checkpoint
        self.beginning: dict[
            str, Position
        ] = {}  # where a new query begins, which lets go of what is before
        self.begin: dict[str, Position] = {}
        self.parts: list[Any] | None = None
        self.counted: list[
            dict[str, set[int]]
        ] = []  # when the batch was decided, and when it was cut
        self.unread: list[int] = []
        self.rows: dict[int, list[Stored]] = {}
        self.to_commit: dict[str, Any] | None = None

    def say(self, text: object) -> None:
        self.log.append(str(text))

    def check(self, holds: object, what: str) -> None:
        if not holds:
            raise Difference(what)

    def loss(self, kept: Kept, position: Position) -> str:
        """Return the loss at a position, as `loss_at` does, unless the run has reported it."""
        life = kept.life
        if any(
            (life.created, position.created) == (created, created)
            and last_match < position.next
            and life.first <= end
            for created, end, last_match in self.looks.get(kept.name, ())
            if life is not None
        ):
            return ""  # the run knows, or has said, what is gone
        kind = "bucket" if self.what == "bucket" else self.retention
        return loss_at(life, position, kind, self.filters)

    @contextmanager
    def expecting(self, doing: str, losses: Mapping[str, str] | None = None) -> Iterator[None]:
        """Errors and warnings of losses, and no others; and that no message goes that is not in the
        sink.
        """
        losses = losses or {}
        sure = {name: loss for name, loss in losses.items() if loss[:1] not in ("", "?", "~")}
        self.warnings.clear()
        before = self._uncommitted()
        try:
            yield
        except (DataLossError, StreamNotFound) as error:
            self.say(f"{doing}: {error}")
            self.check(self.fails and (sure or "~" in losses.values()), f"{doing} must not fail")
            # Another stream of the query may have been committed before the loss was found.
            self._check_removed(doing, before)
            self._end_run()
            raise Stopped from None
        self.check(not sure or not self.fails, f"{doing} does not report {losses}")
        for name, loss in sure.items():
            # A run says once of a stream that it was deleted.
            said = self._warned(name, loss)
            self.check(
                said or loss == "was deleted",
                f"{doing} does not warn of {losses}, only of {self.warnings}",
            )
        for name, loss in losses.items():
            life = self.by_name()[name].life
            doubted = self._warned(name, "are gone")
            self.check(doubted or loss[:1] != "?", f"{doing} does not warn: {self.warnings}")
            if doubted and life is not None:  # a run says once of a gap that it may be a loss
                self.looks.setdefault(name, []).append((life.created, life.first, 0))
        self._check_removed(doing, before)

    def _end_run(self) -> None:
        self.reader = self.parts = self.target = self.to_commit = None
        self.decided = self.met = False
        self.beginning = {}
        self.looks.clear()
        self.seen.clear()

    def _check_removed(self, doing: str, before: set[tuple[str, int]]) -> None:
        """No message that `_uncommitted` had before is gone; the model knows what commits removed."""
        if self.options["durable"] and self.reader is not None:
            self.reader.open_planner(resumed=True).progress.settle()
        self._look()
        gone = before - self._uncommitted()
        self.check(not gone, f"{doing} removes {sorted(gone)}")

    def _warned(self, stream: str, text: str) -> bool:
        return any(names_loss(line, stream, text) for line in self.warnings)

    def _look(self) -> None:
        for kept in self.streams:
            if self.retention != "limits" and kept.life is not None:
                kept.look()

    def _uncommitted(self) -> set[tuple[str, int]]:
        at = positions(self.start) if self.start is not None else self.beginning
        return {
            (name, n)
            for name, kept in self.by_name().items()
            if kept.life is not None and (name not in at or at[name].created == kept.life.created)
            for n in kept.life.matching(self.filters, at[name].next if name in at else 1)
        }

    def _named_others(self) -> bool:
        """Whether the option names none of the streams in the checkpoint."""
        known = self.start["streams"] if self.start is not None else {}
        return self.what == "stream" and bool(known) and not known.keys() & self.by_name().keys()

    def _begun(self, at: dict[str, Position]) -> dict[str, Position]:
        """Positions with those of the streams that a query with a pattern has found since."""
        if self.what == "streamPattern":
            for name, kept in self.by_name().items():
                if (
                    kept.life is not None
                    and name not in at
                    and (self.target is None or name in self.target)
                ):
                    at[name] = Position(1, kept.life.created)
        return at

    def _losses(self, begin: Mapping[str, Position], known: Collection[str]) -> dict[str, str]:
        """Return the losses at these positions; `known` are the streams of the checkpoint."""
        named = {
            name: self.loss(kept, begin[name])
            for name, kept in self.by_name().items()
            if name in begin
        }
        if self.what == "streamPattern":
            deleted = {name for name, loss in named.items() if loss == "was deleted"}
            if self.fails and deleted and deleted >= set(known) and not self.met:
                return dict.fromkeys(deleted, "none of the streams in the checkpoint exists")
            named |= {name: self._left(self.by_name()[name], begin[name]) for name in deleted}
        return {name: loss for name, loss in named.items() if loss}

    def _left(self, kept: Kept, position: Position) -> str:
        """Return the loss with a stream that was found and is deleted.

        It is what this run has seen of the stream and not read.
        """
        created, messages = self.seen.get(kept.name, ("", set[int]()))
        if created != position.created:
            return ""
        unread = {n for n in messages & kept.lives[created].present if n >= position.next}
        return "had messages that were not read" if unread else "~"

    def _see(self, names: Collection[str], *, matches_too: bool) -> None:
        for name in names:
            kept = self.by_name()[name]
            if kept.life is not None and (matches_too or not self.filters):
                self.seen[name] = kept.life.created, kept.life.matching(self.filters)

    def _check_beginning(self, life: Life, first: int, given: Mapping[str, Any]) -> None:
        name, starting = life.info["config"]["name"], given["startingOffsets"]
        if "startingTimestamp" in given:
            wanted = {n for n in life.matching(self.filters) if life.times[n] >= self.time}
            self.check(life.matching(self.filters, first) == wanted, f"begins {name} at {first}")
            return
        begin = {"earliest": life.first, "latest": max(life.first, life.last + 1)}.get(starting)
        if begin is None:
            begin = max(json.loads(starting)[name], life.first)
        self.check(first == begin, f"begins {name} at {first}, not {begin}")

    def _check_end(
        self, begin: Mapping[str, Position], end: Mapping[str, Position], losses: Mapping[str, str]
    ) -> None:
        """A micro-batch ends where the next one must begin, and reads as much as it may."""
        given, total, waiting = self.given(), 0, 0
        limited = "maxMessagesPerTrigger" in given or "maxBytesPerTrigger" in given
        starts_latest = (
            self.start is None
            and given["startingOffsets"] == "latest"
            and "startingTimestamp" not in given
        )
        # A batch that says where streams begin, or begin again, has no rows.
        no_rows = starts_latest or self.anew or "deleted and created again" in losses.values()
        no_rows |= any(
            kept.life is not None and name not in begin for name, kept in self.by_name().items()
        )
        self.anew = False
        for name, kept in self.by_name().items():
            life, since, to = kept.life, begin.get(name), end.get(name)
            if life is None:
                self.check(to in (None, since), f"{name} moves from {since} to {to}")
                continue
            if since is None:
                if to is not None:
                    self._check_beginning(life, to.next, given)
                continue
            assert to is not None
            self.check(to.created == life.created, f"{name} is read to {to}")
            if since.created != life.created:
                self.check(to.next <= life.first, f"{name} goes on at {to}, after {life.first}")
                continue
            self.check(to.next >= since.next, f"{name} goes back from {since} to {to}")
            last = life.last_match(self.filters)
            if self.target is not None:
                target = self.target.get(name, since)
                last = max(target.next, life.first) - 1 if target.created == life.created else 0
            read, there = (
                life.matching(self.filters, since.next, stop) for stop in (to.next, last + 1)
            )
            total, waiting = total + len(read), waiting + len(there)
            self.check(read <= there, f"{name} is read to {to}, past {last}")
            self.check(
                read == there or limited or no_rows, f"{name} is read to {to}, not up to {last}"
            )
        if not no_rows:
            most = given.get("maxMessagesPerTrigger", LAST)
            self.check(total <= most, f"{total} messages in a batch of {most}")
            # Where only deleted messages are left, a replica may lag: direct reads look there.
            is_direct = given["readWith"] == "direct" or self.retention == "workqueue"
            looks = is_direct and begin != end
            self.check(total or not waiting or looks, "nothing is read although messages wait")

    def _ranges(self) -> dict[str, tuple[Life, int, int]]:
        """Return the range of the micro-batch in each stream that is still the one that was
        planned.
        """
        assert self.end is not None
        found = {}
        for name, to in positions(self.end).items():
            life, since = self.by_name()[name].life, self.begin.get(name)
            if self.what == "streamPattern" and since is None:
                since = Position(1, to.created)
            if life is not None and life.created == to.created and since is not None:
                found[name] = life, since.next if since.created == to.created else 1, to.next
        return {name: each for name, each in found.items() if each[1] < each[2]}

    def _count(self) -> dict[str, set[int]]:
        return {
            name: life.matching(self.filters, *span)
            for name, (life, *span) in self._ranges().items()
        }

    def _check_tasks(self) -> None:
        """Each message has one task, always the same, and there are as many tasks as the options
        ask for.
        """
        assert self.parts is not None
        assert self.end is not None
        cut = self.end["version"] == 2
        if cut:
            self.check(
                self.tasks in (None, len(self.parts)),
                f"{len(self.parts)} tasks instead of {self.tasks}",
            )
            self.tasks = len(self.parts)
        if self.decided and cut:
            messages = min(sum(map(len, counted.values())) for counted in self.counted)
            least = min(self.options["minPartitions"] or 1, messages)
            self.check(len(self.parts) >= least, f"{len(self.parts)} tasks for {messages} messages")
        for part in self.parts:
            if part.value is None or part.value.count is None:
                continue
            life = self.by_name()[part.value.stream].life
            # A task of a stream that was created again finds that, and promises nothing.
            if life is not None and life.created == part.value.created:
                self._check_promise(part.value, life)
        for name, (life, first, end) in self._ranges().items():
            spans = [
                (number, part.value.first, part.value.end)
                for number, part in enumerate(self.parts)
                if part.value is not None and part.value.stream == name
            ]
            for sequence in life.matching(self.filters, first, end):
                of = [number for number, low, high in spans if low <= sequence < high]
                self.check(len(of) == 1, f"message {sequence} of {name} is in tasks {of}")
                before = self.task_of.setdefault((name, sequence), of[0])
                self.check(
                    before == of[0] or not cut,
                    f"message {sequence} is in task {of[0]}, and was in {before}",
                )

    def _check_promise(self, task: SequenceRange, life: Life) -> None:
        """A task promises as many messages as its range had when the batch was decided or cut."""
        assert task.count is not None
        had = [
            sum(task.first <= n < task.end for n in counted.get(task.stream, ()))
            for counted in self.counted
        ]
        self.check(min(had) <= task.count <= max(had), f"{task}: its range had {had} messages")
        # Newer messages replace others, and these are no loss.
        replaces = life.setting("max_msgs_per_subject") > 0
        self.check(not replaces, f"{task} promises messages that may be replaced")

    def _row(self, message: Stored) -> Row:
        """A message as the row that it must be."""
        headers = message.headers or {}
        if self.what == "bucket":
            key, operation = (
                message.subject.removeprefix(f"$KV.{self.name}."),
                headers.get("KV-Operation", ["PUT"])[0],
            )
            operation = operation.replace("DEL", "DELETE")
            value = message.data if operation == "PUT" else None
            return self.name, key, value, message.sequence, operation, message.micros
        shown = message.headers if self.options["includeHeaders"] == "true" else None
        return (
            message.stream,
            message.subject,
            message.sequence,
            message.micros,
            shown,
            message.data,
        )
