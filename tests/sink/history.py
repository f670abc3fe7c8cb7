"""A history of writes as it goes: the runs of a plan, and what must be stored after each."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from spark_jetstream.errors import DeliveryError, JetStreamError, RowRefused
from spark_jetstream.sink.report import TaskReport
from tests.model.rows import Wrong
from tests.sink.histories import (
    LAST_WINS,
    REFUSED,
    ROLLUP,
    SHORT,
    Content,
    Fault,
    Plan,
    Row,
    Run,
    Sent,
)
from tests.sink.history_world import Attempt, Turns, World
from tests.support.calls import writer_of
from tests.support.proxy import WireProxy
from tests.support.reading import QUICK
from tests.support.sinking import KINDS, Died, batch

IN_BUCKET = {"subject": "key", "data": "value"}

Tasks = Mapping[
    WireProxy, bytes
]  # the writer as Spark sends it to a task, by the wire that it uses


class Task(NamedTuple):
    """A task of one run."""

    batch: int
    run: int
    partition: int


class History:
    """A plan under way. `log` has all attempts."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.plan = plan
        self.world = world
        self.log: list[str] = []
        self._random = Random(plan.seed)
        self._begun: dict[
            Task, Sequence[Row]
        ] = {}  # tasks that have begun in any run, with their rows
        self._done: dict[
            Task, Sequence[Row]
        ] = {}  # those of them that have said that their rows are stored
        self._committed: set[int] = set()  # batches of which the driver has said so
        self._last: dict[Task, Sequence[Row]] = {}  # tasks of which the last attempt has said so
        self._reports: list[tuple[Task, TaskReport]] = []
        self._run = 0  # runs so far

    def run(self) -> None:
        for number, runs in enumerate(self.plan.runs):
            for run in runs:
                if not self._batch(number, run):
                    if not self.plan.repeatable:
                        return
                    self.plan.options["deadLetterSubject"] = f"{self.plan.dead.lower()}.dead"
                    self.log.append("with dead letters from now on")
                    assert self._batch(number, run)
            self._other_rows(number)

    def _batch(self, number: int, run: Run) -> bool:
        """Run a batch as far as the plan says. Return false if a row of it can never be stored."""
        self._run += 1
        writer, tasks = self._writer()
        done = self._lanes(tasks, number, run)
        self.world.calm()
        for part in range(run.tasks):
            done[part] = done.get(part) or self._attempt(tasks, number, part, run.parts[part])
        self._check()
        messages = [pickle.loads(message) if message else None for message in done.values()]
        batch_id = (number,) if self.plan.streaming else ()
        if len(messages) < len(run.parts) or None in messages:
            writer.abort(messages, *batch_id)
        else:
            with (
                suppress(Died),
                Attempt(self.plan, number, 0, run.commit, _go_on).running(self.world),
            ):
                writer.commit(messages, *batch_id)
                self._committed.add(number)
        self._check()
        return None not in messages

    def _writer(self) -> tuple[Any, Tasks]:
        """Return the driver's writer, and what tasks get of it."""
        plan, mode = self.plan, "s" if self.plan.streaming else "b"
        names = [
            IN_BUCKET.get(name, name) if plan.kind == "bucket" else name for name in plan.columns
        ]
        self._schema = pa.schema([(name, KINDS[name][1]) for name in names])
        options = {**QUICK, "requestTimeout": "1s", **plan.options}
        made: dict[WireProxy, Any] = {}
        for wire in self.world.wires:
            made[wire] = writer_of(mode, {**options, "servers": wire.url}, self._schema)
        for writer in made.values():
            writer.run = f"run-{self._run}"  # Spark makes one writer for all tasks of a run
        return made[self.world.wires[0]], {
            wire: pickle.dumps(writer) for wire, writer in made.items()
        }

    def _lanes(self, tasks: Tasks, number: int, run: Run) -> dict[int, bytes | None]:
        """Run the tasks with their faults, one after the other or side by side.

        Return the messages of their ends.
        """
        done: dict[int, bytes | None] = {}
        rare = self._random.choice(
            [0.01, 1.0]
        )  # a second attempt that has few turns is one that was suspended
        lanes = {(part, False): 1.0 for part in range(run.tasks)} | {
            (part, True): rare for part in run.twins
        }
        turns = Turns(self.plan.seed, dict(lanes))

        def follow(lane: tuple[int, bool]) -> None:
            part, twin = lane
            turn = partial(turns.wait, lane) if run.together else _go_on
            turn()
            try:
                if twin:
                    self._attempt(tasks, number, part, run.parts[part], [], turn)
                    return
                for faults in run.attempts[part]:
                    done[part] = done.get(part) or self._attempt(
                        tasks, number, part, run.parts[part], faults, turn
                    )
            finally:
                turns.leave(lane)

        with ThreadPoolExecutor(len(lanes) if run.together and lanes else 1) as pool:
            for _ in pool.map(follow, lanes):
                continue
        return done

    def _attempt(
        self,
        tasks: Tasks,
        number: int,
        part: int,
        all_rows: Sequence[Row],
        faults: Sequence[Fault] | None = None,
        turn: Callable[[], None] | None = None,
    ) -> bytes | None:
        """Return the message of an attempt that says that all rows are stored, None if it ends as
        it may.

        Without `faults` nothing happens to it, and it may only fail for a row that can never be
        stored.
        """
        task = Task(number, self._run, part)
        self._begun[task] = all_rows
        self._last = {
            known: rows
            for known, rows in self._last.items()
            if (known.batch, known.partition) != (number, part)
        }
        rows = list(all_rows)
        if self.plan.kind not in LAST_WINS and self._random.random() < 0.3:
            self._random.shuffle(rows)
        refused = [row for row in rows if row.why]
        attempt = Attempt(self.plan, number, part, faults or [], turn or _go_on)
        what = (
            f"batch {number}, task {part}, "
            f"{'calm' if faults is None else [tuple(fault) for fault in faults]}"
        )
        try:
            with attempt.running(self.world):
                message = pickle.dumps(
                    pickle.loads(tasks[self.world.wires[0]]).write(self._arrow(rows))
                )
        except (Died, JetStreamError) as error:
            self.log.append(f"{what}: {error!r} at step {attempt.steps}")
            if isinstance(error, RowRefused):
                self._check_count(task, error)
            if faults is None:
                self._check_refusal(error, rows)
            return None
        self.log.append(f"{what}: stored at step {attempt.steps}")
        report = pickle.loads(message).report
        assert not refused or "deadLetterSubject" in self.plan.options, (
            "a row is neither stored nor refused"
        )
        assert report.rows == len(rows)
        if (
            number not in self._committed
        ):  # of a batch that is done, nobody looks up what became of its rows
            assert (report.stored, report.dead_letters) == (len(rows) - len(refused), len(refused))
            self._reports.append((task, report))
        self._done[task] = self._last[task] = all_rows
        return message

    def _arrow(self, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        size = 1 + len(rows) // 3 if len(rows) % 2 else 1000
        for at in range(0, len(rows), size):
            some = [
                [row.values[name] for row in rows[at : at + size]] for name in self.plan.columns
            ]
            yield batch(**dict(zip(self._schema.names, some, strict=True)))

    def _other_rows(self, number: int) -> None:
        """Run a batch that is committed once more, with other rows or partitions: exactly-once
        refuses it.
        """
        if self.plan.options["delivery"] != "exactly-once" or not self.plan.repeatable:
            return
        parts = [list(rows) for rows in self.plan.batches[number]]
        new = Row({**dict.fromkeys(self.plan.columns), "data": b"", "subject": "s"})
        part = self._random.randrange(len(parts) + 1)
        if part == len(parts):
            parts.append([new])
        elif parts[part]:
            parts[part].pop(0)
        else:
            return
        self._run += 1
        writer, tasks = self._writer()
        refusal = pytest.raises(DeliveryError, match="was written before with other rows")
        with refusal, Attempt(self.plan, number, part, [], _go_on).running(self.world):
            messages = [
                pickle.loads(tasks[self.world.wires[0]]).write(self._arrow(rows)) for rows in parts
            ]
            writer.commit(messages, *((number,) if self.plan.streaming else ()))
        self._check()

    # Rows that must be stored

    def _sent(self, task: Task, rows: Sequence[Row], *, most: bool = False) -> Counter[Sent]:
        found = Counter(self.plan.sent(task.batch, task.partition, rows))
        # Equal rows are one row, if the ids are those of the content and the stream remembers them.
        once = "messageIds" in self.plan.options and not (most and self.plan.window == SHORT)
        return Counter(set(found)) if once else found

    def _wanted(self, tasks: Mapping[Task, Sequence[Row]], *, most: bool) -> Counter[Content]:
        """Return how often each message is stored at most, or at least, if these tasks have begun,
        or are done.
        """
        # By rows: another run may have other rows in its tasks, whose messages look the same.
        by_run: dict[tuple[int, int], Counter[Sent]] = {}
        for task, rows in tasks.items():
            wanted = by_run.setdefault((task.batch, task.run), Counter())
            sent = self._sent(task, rows, most=most)
            # Equal rows of two tasks have one message until the driver has stored the other.
            shared = self.plan.free and not most and task.batch not in self._committed
            once = "messageIds" in self.plan.options and not (most and self.plan.window == SHORT)
            if shared or once:
                wanted |= sent
            else:
                wanted += sent
        by_batch: dict[int, Counter[Sent]] = {}
        for (batch_number, _), wanted in by_run.items():
            by_batch.setdefault(batch_number, Counter()).update(
                wanted - by_batch.get(batch_number, Counter())
            )
        return _contents(sum(by_batch.values(), Counter()))

    def _check(self) -> None:
        found = self.world.stored()
        stored = Counter(one for one, _ in found)
        asked = self._wanted(self._begun, most=True)
        owed = self._wanted(self._done, most=False)
        if self.plan.kind in LAST_WINS:
            self._check_last([one for one, _ in found])
            owed = Counter(one for one in owed if one.stream == self.plan.dead)
            stored = Counter(set(stored))
        if self.plan.kind == "own ids":
            # Rows with the same id are one. The stream may have any of them.
            ids = {one: _own_id(one) for one in asked if _own_id(one)}
            alike = {one: min(other for other in ids if ids[other] == ids[one]) for one in ids}
            stored, owed = (
                Counter(alike.get(one, one) for one in some.elements()) for some in (stored, owed)
            )
            asked = Counter({one: 1 if one in ids else count for one, count in asked.items()})
            owed = Counter({one: min(count, asked[one]) for one, count in owed.items()})
        wrong = Wrong(stored, owed, asked, exact=self.plan.exact)
        too_many = wrong.repeated + wrong.foreign
        assert not too_many, f"stored too often: {_shown(too_many)}"
        assert not wrong.missing, f"not stored: {_shown(wrong.missing)}"
        if self.plan.counted:
            for task, report in self._reports:
                contents = _contents(self._sent(task, self._begun[task]))
                mine = {
                    one
                    for one in contents
                    if one.stream != self.plan.dead and contents[one] == asked[one]
                }
                for one, sequence in found:
                    first, last = report.streams[one.stream] if one in mine else (0, sequence)
                    assert first <= sequence <= last, (
                        f"{task} has stored {one} as {sequence}: {report}"
                    )
        self._reports.clear()

    def _check_last(self, stored: Sequence[Content]) -> None:
        """Compare what subjects hold from the last roll-up of a task on."""
        for task, rows in self._last.items():
            wanted: dict[tuple[str, str], list[Content]] = {}
            for one in self.plan.contents(task.batch, task.partition, rows):
                if ROLLUP in one.lines or one[:2] not in wanted:
                    wanted[one[:2]] = []
                wanted[one[:2]].append(one)
            for place, contents in wanted.items():
                there = [one for one in stored if one[:2] == place]
                if place[0] == self.plan.dead:
                    continue
                assert ROLLUP not in contents[0].lines or there[0] == contents[0]
                assert self.plan.kind != "bucket" or there[-1] == contents[-1]
                same = (
                    Counter(there) == Counter(contents)
                    if self.plan.exact
                    else set(there) == set(contents)
                )
                assert same, f"{task}: {place} has {there}, and not {contents}"

    def _check_refusal(self, error: Exception, rows: Sequence[Row]) -> None:
        """A task to which nothing has happened fails only for a row that can never be stored, and
        names it.
        """
        assert isinstance(error, RowRefused), error
        assert "deadLetterSubject" not in self.plan.options, error
        subject = rows[error.number - 1].values["subject"]
        whys = [row.why for row in rows if row.why and row.values["subject"] == subject]
        assert any(re.search(REFUSED[why].pattern, str(error)) for why in whys), error

    def _check_count(self, task: Task, error: RowRefused) -> None:
        """A task that fails names no more rows as stored than there are."""
        if self.plan.counted:
            wanted = _contents(self._sent(task, self._begun[task]))
            mine = Counter(
                {one: count for one, count in wanted.items() if one.stream != self.plan.dead}
            )
            assert (Counter(one for one, _ in self.world.stored()) & mine).total() >= error.stored


def _contents(sent: Counter[Sent]) -> Counter[Content]:
    """Return how often each message occurs, whichever rows it is of."""
    found: Counter[Content] = Counter()
    for (content, _), count in sent.items():
        found[content] += count
    return found


def _own_id(one: Content) -> tuple[str, ...]:
    """The stream and the id of a message with an id of the user's."""
    return next(((one.stream, line) for line in one.lines if line.startswith("Nats-Msg-Id: ")), ())


def _shown(contents: Counter[Content]) -> str:
    return "\n".join(
        f"  {count} of {one._replace(data=one.data[:60])}"
        for one, count in [*contents.items()][:10]
    )


def _go_on() -> None:
    """Wait for no turn."""
