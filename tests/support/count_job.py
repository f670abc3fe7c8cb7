"""A task that counts, in a process of its own, which whoever kills it leads step by step.

    python -m tests.support.count_job '{"servers": "nats://...", ...}'

takes the options of a sink. The task is the same in each process: `BATCHES` record batches of
`ROWS` increments, each of which waits for a line of standard input. At the end it prints how many
rows are stored.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import TracebackType

import pyarrow as pa

from spark_jetstream.sink.task import WriteTask
from tests.support.project import ROOT
from tests.support.sinking import Sink, batch

BATCHES, ROWS, COUNTERS = 40, 25, 3


def increments(number: int) -> list[tuple[str, int]]:
    """Counter and increment of each row of a record batch."""
    places = range(number * ROWS, (number + 1) * ROWS)
    return [(f"c{place % COUNTERS}", place % 11 - 3) for place in places]


def expected() -> dict[str, int]:
    """The value of each counter when every row has counted once."""
    rows = [row for number in range(BATCHES) for row in increments(number)]
    return {name: sum(value for other, value in rows if other == name) for name, _ in rows}


class Counting:
    """The task in a process: use it as a context manager, which kills it (SIGKILL) unless it has
    ended.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tests.support.count_job", json.dumps(dict(options))]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Counting:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def step(self, batches: int) -> None:
        """Let the task have `batches` more record batches."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n" * batches)
        self._process.stdin.flush()

    def end(self) -> int:
        """Let it have all that are left; how many rows are stored."""
        out, _ = self._process.communicate("\n" * BATCHES)
        return int(out)


def _batches() -> Iterator[pa.RecordBatch]:
    for number in range(BATCHES):
        if not sys.stdin.readline():
            raise EOFError("nobody leads this task any more")
        subjects, values = zip(*increments(number), strict=True)
        rows = [[("Row", [f"{number}.{place}"])] for place in range(ROWS)]
        yield batch(
            subject=[f"count.{name}" for name in subjects],
            incr=[str(value) for value in values],
            headers=rows,
        )


if __name__ == "__main__":
    report = (
        Sink(**json.loads(sys.argv[1]))
        .started()
        .write(_batches(), WriteTask("count", 1, 0), names=["subject", "incr", "headers"])
    )
    json.dump(report.stored, sys.stdout)
