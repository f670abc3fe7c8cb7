"""Faults that take messages away, or what a query knows about them, and what each query may make of
it.

docs/data-loss.md says what a query reports, and docs/delivery.md what a sink stores again.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_jetstream.client.pool import close_all
from spark_jetstream.source.offsets import StreamPosition
from tests.chaos.model import Loss, Step, false_alarms, repeatable, unreported, violations
from tests.chaos.scenario import Fault, Query, Scenario
from tests.chaos.world import LONGEST_RECOVERY, World, client_names, read_by
from tests.model.stream import look_at, present_in
from tests.support.publish import Refused
from tests.support.reading import wait_until

_DELETED = 5  # single messages
_BATCHES = 3  # that a checkpoint has when it is rolled back
_SECOND = 10**9  # nanoseconds


class LosingWorld(World):
    """A world in which each fault is judged by itself: the next one comes when all queries have
    seen its effects.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        super().__init__(scenario, folder)
        self._steps: dict[str, list[Step]] = {query.name: [] for query in scenario.queries}
        self._vanished: dict[str, Counter[str]] = {
            query.name: Counter() for query in scenario.queries
        }
        self._ends: dict[str, int] = {}
        """What follows the last message of each stream that a batch may have had when a fault
        began.
        """

    def run(self, fault: Fault) -> None:
        if not self.applied:
            self._settle()
        self._begin(fault.name)
        super().run(replace(fault, settled=False))
        self._settle()
        self._finish()

    def happen(self, fault: Fault) -> None:
        getattr(self, fault.name)(fault)

    # Steps

    def _settle(self) -> None:
        """Wait until all queries have committed the last messages.

        They do so by their own options and without a failure.
        """
        commits = [f"{query.name}/commits" for query in self.scenario.queries]
        self.job.wait(
            lambda: min(map(self.job.latest, commits)) >= _BATCHES,
            f"{_BATCHES} batches",
            LONGEST_RECOVERY,
        )
        self._read_all()
        failures = -1
        while failures < len(self.job.failures()):
            # A batch that was planned before a loss ends before the gap, and leaves it to the next
            # one.
            failures = len(self.job.failures())
            self._wait_for_more()
            self._read_all()

    def _wait_for_more(self) -> None:
        """Wait until each stream has got more messages."""
        counts = {name: len(bodies) for name, bodies in self.load.stored.items()}
        wait_until(
            lambda: all(len(self.load.stored[name]) > count for name, count in counts.items()),
            "more messages",
        )

    def _read_all(self) -> None:
        """Wait until each query has committed what its streams hold.

        Nothing is published meanwhile.
        """

        def seen(query: Query, name: str) -> bool:
            position, sequences = (
                self.position(query, "commits").get(name),
                self.load.sequences[name],
            )
            last = max(
                (at for body, at in sequences.items() if query.reads(self.load.stored[name][body])),
                default=0,
            )
            if position is None or position.created != streams[name]["created"]:
                return False
            return last < position.next <= int(streams[name]["state"]["last_seq"]) + 1

        def settled() -> bool:
            queries = self.scenario.queries
            mended = any((self._folder / f"{query.name}.mended").exists() for query in queries)
            return not mended and all(
                seen(query, name) for query in queries for name in query.streams
            )

        with self.load.held():
            streams = {name: self._stream(name) for name in self.inputs}
            self.job.wait(settled, "the end of the streams", LONGEST_RECOVERY)

    def _begin(self, name: str) -> None:
        for query in self.scenario.queries:
            self._steps[query.name].append(Step(name, [Loss(stream) for stream in query.streams]))
        self._failures, self._logged = (
            len(self.job.failures()),
            (self._folder / "log").stat().st_size,
        )

    def _step(self, query: Query) -> Step:
        """The effects of the present step on a query, as far as they are known."""
        return self._steps[query.name][-1]

    def _finish(self) -> None:
        with (self._folder / "log").open("rb") as file:
            file.seek(self._logged)
            lines = file.read().decode("utf-8", "replace").splitlines()
        for query in self.scenario.queries:
            self._step(query).errors, self._step(query).warnings = (
                self.job.errors(query.name, self._failures),
                lines,
            )

    def violations(self) -> list[str]:
        self._begin("the end")
        return super().violations()

    def _wrong(self, query: Query, rows: Counter[str]) -> list[str]:
        if query.name == self.scenario.queries[0].name:
            self._finish()
        steps = self._steps[query.name]
        rows = rows + self._vanished[query.name]
        kept, sent = read_by(query, self.load.stored), read_by(query, self.load.sent)
        excused = frozenset().union(*(loss.gone for step in steps for loss in step.losses))
        again = repeatable(steps, query.level, own_ids=query.own_ids)
        wrong = violations(kept, sent, rows, query.level, excused=excused, again=again)
        for step in steps:
            wrong += unreported(step, rows, accepts=query.accepts)
            wrong += false_alarms(step, accepts=query.accepts, level=query.level)
        return [f"{query.name}: {fault}" for fault in wrong]

    # What there is

    def _stream(self, name: str) -> dict[str, Any]:
        return self.api(f"STREAM.INFO.{name}")

    def _present(self, name: str) -> set[int]:
        """The sequences of the messages that a stream has."""
        return present_in(look_at(self.api, name))

    def _chosen(self, fault: Fault) -> tuple[Query, str]:
        """The stream that a fault takes from, and the query that reads it."""
        of_queries = [(query, name) for query in self.scenario.queries for name in query.streams]
        return of_queries[fault.target % len(of_queries)]

    # What goes

    @contextlib.contextmanager
    def _behind(self, fault: Fault) -> Iterator[None]:
        """Let streams get ahead of their queries, half of the time: what is published meanwhile
        nobody has read.
        """
        self._ends = {name: self._stream(name)["state"]["last_seq"] + 1 for name in self.inputs}
        if fault.target < 50:
            yield
            return
        with self.job.frozen():
            threading.Event().wait(fault.seconds)
            yield

    @contextlib.contextmanager
    def _watched(self, *names: str) -> Iterator[None]:
        """Note what is taken from streams while this lasts."""
        readers = [
            (query, name)
            for query in self.scenario.queries
            for name in query.streams
            if name in names
        ]
        committed = {name: self.position(query, "commits")[name] for query, name in readers}
        ends = {name: self._stream(name) for name in names}
        yield
        with self.load.held():
            for query, name in readers:
                self._note(query, name, committed[name], ends[name])

    def _note(
        self, query: Query, name: str, committed: StreamPosition, before: Mapping[str, Any]
    ) -> None:
        """Note what went from a stream, which the query had read up to `committed`."""
        now, present = self._stream(name), self._present(name)
        first, last = now["state"]["first_seq"], now["state"]["last_seq"]
        planned = self.position(query, "offsets").get(name, committed)
        sequences = self.load.sequences[name]
        anew = now["created"] != before["created"]
        after = {body: at for body, at in sequences.items() if at >= committed.next}
        unread = {body: at for body, at in after.items() if anew or at not in present}
        gone = {
            body: at for body, at in unread.items() if query.reads(self.load.stored[name][body])
        }
        tail = not anew and last < before["state"]["last_seq"]
        # Nobody can know of messages that came and went behind the position.
        past_end = tail and committed.next > last + 1
        if anew:
            loud = set(gone)
        elif tail:
            loud = set(gone) if past_end else set()
        elif query.shares and self._step(query).fault in (
            "messages_pushed_out",
            "messages_expired",
        ):
            # By the limits that the stream has now, others have taken the messages.
            loud = set()
        else:
            # A reader by Direct Get does not count what a batch must have. Its plan may have been
            # under way.
            counted = query.kind not in ("direct", "shared")
            loud = {
                body
                for body, at in gone.items()
                if at < first and (counted or at >= max(planned.next, self._ends.get(name, 0)))
            }
        may = anew or past_end or bool(unread)
        self._step(query).losses.append(
            Loss(name, frozenset(gone), frozenset(loud), anew or past_end, may)
        )
        if may:
            self._step(query).again |= set(after)
        # Sequences that the stream gives to other messages name these no more.
        for body in [body for body, at in sequences.items() if anew or body in unread or at > last]:
            del sequences[body]

    def stream_purged(self, fault: Fault) -> None:
        _, name = self._chosen(fault)
        with self._behind(fault), self._watched(name):
            self.api(f"STREAM.PURGE.{name}")

    def stream_purged_to(self, fault: Fault) -> None:
        """A purge up to the middle of what the query has not committed."""
        query, name = self._chosen(fault)
        with self._behind(fault), self._watched(name):
            after, last = (
                self.position(query, "commits")[name].next,
                self._stream(name)["state"]["last_seq"],
            )
            self.api(f"STREAM.PURGE.{name}", {"seq": max(after, (after + last) // 2)})

    def subject_purged(self, fault: Fault) -> None:
        _, name = self._chosen(fault)
        with self._behind(fault), self._watched(name):
            self.api(f"STREAM.PURGE.{name}", {"filter": f"{name}.{fault.target % 3}"})

    def messages_deleted(self, fault: Fault) -> None:
        """A few of the messages that the query has not committed, one by one."""
        query, name = self._chosen(fault)
        with self._behind(fault), self._watched(name):
            after = self.position(query, "commits")[name].next
            unread = sorted(sequence for sequence in self._present(name) if sequence >= after)
            for sequence in random.Random(fault.target).sample(unread, min(_DELETED, len(unread))):
                self._delete(name, sequence)

    def _delete(self, name: str, sequence: int) -> None:
        with contextlib.suppress(Refused):  # a consumer's acknowledgement was quicker
            self.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence, "no_erase": True})

    def messages_pushed_out(self, fault: Fault) -> None:
        """A limit that makes newer messages push out those that nobody has read, and that is taken
        away again.
        """
        _, name = self._chosen(fault)
        with self._behind(fault), self._watched(name), self._edited(name, max_msgs=_DELETED):
            last = self._stream(name)["state"]["last_seq"]
            wait_until(lambda: self._stream(name)["state"]["last_seq"] > last, f"more in {name}")

    def messages_expired(self, fault: Fault) -> None:
        """A limit of age that makes messages expire which nobody has read, and that is taken away
        again.
        """
        _, name = self._chosen(fault)
        with (
            self._behind(fault),
            self._watched(name),
            self._edited(name, max_age=_SECOND, duplicate_window=_SECOND),
        ):
            last = self._stream(name)["state"]["last_seq"]
            wait_until(lambda: self._stream(name)["state"]["first_seq"] > last, f"{name} expires")

    def stream_edited(self, fault: Fault) -> None:
        """Another configuration, and the first one again: nothing goes."""
        query, name = self._chosen(fault)
        subjects = [f"{name}.>", f"{name}_MORE.>"]
        direct = query.kind == "direct" or query.source.purges  # these need it
        with (
            self._watched(name),
            self._edited(
                name,
                subjects=subjects,
                allow_direct=direct,
                duplicate_window=_SECOND,
                max_age=3600 * _SECOND,
            ),
        ):
            self.goes_on()

    @contextlib.contextmanager
    def _edited(self, name: str, **fields: Any) -> Iterator[None]:
        """While this lasts a stream has other fields in its configuration."""
        config = self._stream(name)["config"]
        self.api(f"STREAM.UPDATE.{name}", {**config, **fields})
        yield
        self.api(f"STREAM.UPDATE.{name}", config)

    def stream_recreated(self, fault: Fault) -> None:
        _, name = self._chosen(fault)
        with contextlib.ExitStack() as stack:
            with self._behind(fault):
                # What is published while there is no stream would be published again to the new
                # one.
                stack.enter_context(self.load.held())
                with self._watched(name):
                    self._recreate(name, fault.seconds)
            # An interest stream keeps nothing before its consumer exists, and each of its replicas
            # knows that.
            self.wait(self._all_held, "the consumers that hold messages")
            self._ready()

    def _recreate(self, name: str, seconds: float) -> None:
        config = self._stream(name)["config"]
        self.api(f"STREAM.DELETE.{name}")
        threading.Event().wait(seconds)
        self.api(f"STREAM.CREATE.{name}", config)
        self._ready()

    def store_rolled_back(self, fault: Fault) -> None:
        """The store of a server is a copy of its own of some batches before.

        A cluster has two others.
        """
        server = self.servers[fault.target % len(self.servers)]
        copy = self._folder / "store"
        with self.load.held():
            server.stop()
            shutil.copytree(server.store_dir, copy)
            server.start()
            self._ready()
        self.goes_on()
        self._settle()
        sinks = [query for query in self.scenario.queries if query.level is not None]
        with self.job.frozen():
            threading.Event().wait(fault.seconds)
            with self.load.held(), self._watched(*self.inputs), self._lessened(*sinks):
                server.stop()
                shutil.rmtree(server.store_dir)
                shutil.move(copy, server.store_dir)
                server.start()
                self._ready()

    def _ready(self) -> None:
        if self.scenario.servers > 1:
            self.cluster.wait_ready()

    # What sinks have written

    @contextlib.contextmanager
    def _lessened(self, *queries: Query) -> Iterator[None]:
        """Note which rows go from the streams of sinks while this lasts, in which nothing is
        written.

        Rows under way may be stored again: the stream does not know that it had them.
        """
        before = {query: self.written(query) for query in queries}
        yield
        for query, rows in before.items():
            lost = rows - self.written(query)
            self._vanished[query.name] += lost
            if lost:
                self._step(query).twice |= {
                    body
                    for name, position in self.position(query, "commits").items()
                    for body, sequence in self.load.sequences[name].copy().items()
                    if sequence >= position.next
                }

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """While this lasts there is no job, and the servers have stored all that it sent."""
        self.job.kill()
        close_all()  # what this process has looked at streams with
        for server in self.servers:
            wait_until(lambda server=server: not client_names(server), "no client")  # type: ignore[misc]
        yield
        self.start_job()

    def target_purged(self, fault: Fault) -> None:
        """The stream that the last query writes to, in the middle of a batch."""
        query = self.scenario.queries[-1]
        with self._stopped(), self._lessened(query):
            self.api(f"STREAM.PURGE.{query.target}")

    def target_recreated(self, fault: Fault) -> None:
        """The stream that the last query writes to, in the middle of a batch."""
        query = self.scenario.queries[-1]
        with self._stopped(), self._lessened(query):
            self._recreate(query.target, 0.0)

    # What a query knows

    def checkpoint_rolled_back(self, fault: Fault) -> None:
        """The checkpoint is a copy of one or two batches before.

        It may have the plan of the batch after these.
        """
        query = self.scenario.queries[fault.target % len(self.scenario.queries)]
        with self._stopped():
            last = self.job.latest(f"{query.name}/commits") - 1 - fault.target // 3 % 2
            self._roll_back(query, last, planned=fault.target // 6 % 2 == 1)

    def _roll_back(self, query: Query, last: int, *, planned: bool) -> None:
        """Take a query back to when `last` was its last committed batch, and the next one
        `planned`.

        The log of Spark's file sink goes with it: otherwise the sink would leave out batches that it
        has, whatever they hold now.
        """
        assert last >= 0
        until = self.position(query, "offsets")
        committed = self.position(query, "commits", last)
        fixed = self.position(query, "offsets", last + planned)
        for folder, keep in (("offsets", last + planned), ("commits", last)):
            _forget(self.job.checkpoint / query.name / folder, keep)
        if query.level is None:
            _forget(self.job.folder / "rows" / query.name / "_spark_metadata", last)
        step = self._step(query)
        for name in query.streams:
            first, present = self._stream(name)["state"]["first_seq"], self._present(name)
            if query.source.config.get("retention") == "interest":
                # The server removes what the consumer has acknowledged, but not at once.
                acknowledged = self.api(f"CONSUMER.INFO.{name}.spark")["delivered"]["stream_seq"]
                present = {sequence for sequence in present if sequence > acknowledged}
            at, sequences = committed[name], self.load.sequences[name].copy()
            after = {body: sequence for body, sequence in sequences.items() if sequence >= at.next}
            gone = {
                body
                for body in after
                if after[body] not in present and query.reads(self.load.stored[name][body])
            }
            # A query with a consumer of its own has acknowledged what it read, and the stream may
            # have removed that.
            loud = {body for body in gone if after[body] < first}
            step.losses.append(Loss(name, frozenset(gone), frozenset(loud), may=bool(gone)))
            # A batch whose plan is left has its rows under the same ids; a sink that refused it
            # knows these no more.
            begin = fixed[name].next if query.level == "deduplicated" and not gone else at.next
            step.again |= {
                body for body, sequence in after.items() if begin <= sequence < until[name].next
            }

    def offsets_gone(self, fault: Fault) -> None:
        """The newest plan of a query, whose batch is not committed."""
        self._offsets(fault, None)

    def offsets_emptied(self, fault: Fault) -> None:
        """As after a crash of the machine; the query does not start before the file is gone."""
        self._offsets(fault, lambda text: "")

    def offsets_cut(self, fault: Fault) -> None:
        """In the position that the source has given; the query does not start before the file is
        gone.
        """

        def cut(text: str) -> str:
            begin = text.rindex("\n") + 1
            return text[: begin + 1 + fault.target * (len(text) - begin - 2) // 100]

        self._offsets(fault, cut)

    def _offsets(self, fault: Fault, damage: Callable[[str], str] | None) -> None:
        query = self.scenario.queries[fault.target % len(self.scenario.queries)]
        with self._stopped():
            newest = self.job.latest(f"{query.name}/offsets")
            path = self.job.checkpoint / query.name / "offsets" / str(newest)
            text = path.read_text()
            self._roll_back(query, newest - 1, planned=False)
            if damage is not None:
                path.write_text(damage(text))
                self._step(query).damaged = True
        if damage is not None:
            failures = len(self.job.failures())
            self.job.wait(
                lambda: any(
                    name == query.name
                    and "connect back" not in why  # Spark has no time to start Python
                    for name, why in self.job.failures()[failures:]
                ),
                f"the refusal of {path}, {path.read_text()!r}",
                LONGEST_RECOVERY,
            )
            path.unlink()


def _forget(folder: Path, last: int) -> None:
    """Remove the batches after `last` from a log of Spark's, with their checksums."""
    for path in folder.glob("[0-9]*"):
        if int(path.name.partition(".")[0]) > last:
            path.unlink()
    for path in folder.glob(".*.crc"):
        if not (folder / path.name[1:].removesuffix(".crc")).exists():
            path.unlink()
