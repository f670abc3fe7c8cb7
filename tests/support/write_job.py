"""Tasks of a write that die in the middle: `write_task` without Spark, in processes of their own.

    python -m tests.support.write_job '{"options": {...}, "write_name": "w1"}'

writes the task of partition 1 until its first moment and is killed there (SIGKILL), partition 2
until its second, and so on until one gets to its end. Moments are those right before and after
whatever goes out to the server, and the one when the server has got what was published. Prints the
names of the moments as JSON. For an Object Store bucket, whose tasks write one object each:

    python -m tests.support.write_job '{"options": {...}, "names": "fresh", "size": 300000}'

writes the object ``<names>-<n>`` in the task that is killed at its n-th moment.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from tests.support.jobs import run_python
from tests.support.objects import content
from tests.support.sinking import Sink, batch

COUNT = 20
DELAYED = 200  # rows of a task of delayed rows
_BATCH = 7


def values(partition: int, count: int = COUNT) -> list[str]:
    """The payloads of a task's rows: no two of all tasks are the same."""
    return [f"{partition}.{index}" for index in range(count)]


def batches(
    partition: int, delayed: str | None = None, groups: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in two record batches. With `delayed` they are schedules for
    `<delayed>.row`, due now.

    With `groups` they are of `groups` groups, in turn.
    """
    everything = values(partition, COUNT if delayed is None else DELAYED)
    half = len(everything) // 2
    for some in (everything[:half], everything[half:]):
        columns: dict[str, pa.Array] = {"data": pa.array(some, pa.binary())}
        if delayed is not None:
            columns["subject"] = pa.array([f"{delayed}.wait.{value}" for value in some])
            columns["schedule"] = pa.array(["2020-01-01T00:00:00Z"] * len(some))
            columns["schedule_target"] = pa.array([f"{delayed}.row"] * len(some))
        if groups:
            columns["atomic_group"] = pa.array(
                [f"{partition}-{index % groups}" for index in range(len(some))]
            )
        yield pa.record_batch(columns)


def write(options: Mapping[str, str], write: str, partition: int, groups: int = 0) -> TaskReport:
    """One attempt of a task, on the connection that this process has for its options; delayed
    without a subject.

    The task has a write of its own, so that no other one has begun its batch.
    """
    delayed = None if "subject" in options else options["stream"]
    names = ["data"] if delayed is None else ["data", "subject", "schedule", "schedule_target"]
    names += ["atomic_group"] if groups else []
    task = WriteTask(f"{write}-{partition}", _BATCH, partition)
    return Sink(**options).write(batches(partition, delayed, groups), task, names=names)


_connections: dict[Inbox, Connection] = {}


def inbox(connection: Connection, **named: Any) -> Inbox:
    """`Connection.inbox`, which notes of which connection the inbox is."""
    made = _make_inbox(connection, **named)
    _connections[made] = connection
    return made


_make_inbox = Connection.inbox


class Death:
    """Counts moments, and ends the process at one of them."""

    def __init__(self, moment: int, tell: int) -> None:
        self._left = moment
        self._tell = tell

    def at(self, moment: str) -> None:
        self._left -= 1
        if self._left == 0:
            os.write(self._tell, moment.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def around(
        self, function: Callable[..., Any], name: Callable[..., str], received: bool
    ) -> Callable[..., Any]:
        """The function with a moment before it and one after it."""

        @functools.wraps(function)
        def watched(instance: Any, *args: Any, **named: Any) -> Any:
            what = name(*args)
            self.at(f"before {what}")
            result = function(instance, *args, **named)
            self.at(f"after {what}")
            if received:
                # The server answers when it has got all that was sent before.
                _connections[instance].check()
                self.at(f"received {what}")
            return result

        return watched


def arm(death: Death, *, apart: bool = False) -> None:
    """Make every request and every publish of this process a moment; with `apart` also each message
    of a publish.
    """
    numbers = itertools.count(1)
    setattr(Connection, "inbox", inbox)  # noqa: B010
    request = death.around(Connection.request, lambda subject, *_: str(subject), False)
    setattr(Connection, "request", request)  # noqa: B010
    send = death.around(Inbox.send, lambda *_: f"publish {next(numbers)}", True)

    def send_apart(inbox: Inbox, frames: memoryview) -> None:
        left = bytes(frames)
        while left:
            line = left.partition(b"\r\n")[0]
            size = len(line) + int(line.rpartition(b" ")[2]) + 4
            send(inbox, left[:size])
            left = left[size:]

    setattr(Inbox, "send", send_apart if apart else send)  # noqa: B010


def die_everywhere(work: Callable[[int], object], *, apart: bool = False) -> list[str]:
    """Kill one task after the other, `work` of 1, 2, ..., each a moment later; the names of the
    moments.
    """
    moments: list[str] = []
    while True:
        number = len(moments) + 1
        listen, tell = os.pipe()
        process = os.fork()
        if not process:
            arm(Death(number, tell), apart=apart)
            work(number)
            os._exit(0)
        os.close(tell)
        with os.fdopen(listen) as pipe:
            moment = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status == 0:
            return moments
        assert (status, bool(moment)) == (-signal.SIGKILL, True)
        moments.append(moment)


def run_apart(**work: Any) -> str:
    """Do this work in a process of its own; return what that prints."""
    return run_python("-m", "tests.support.write_job", json.dumps(work))


def run(
    options: dict[str, str], write_name: str = "", names: str = "", size: int = 0, groups: int = 0
) -> None:
    """Print the moments at which tasks were killed; with `names` they write objects of this size.

    With `groups` the rows of a task have `groups` groups, and each message is a moment.
    """
    # A slow task would ask the ledger once more who owns it, and have more moments than others.
    MessageSink.ledger_times = replace(MessageSink.ledger_times, clock=lambda: 0.0)

    def task(number: int) -> object:
        if not names:
            return write(options, write_name, number, groups)
        name = f"{names}-{number}"
        return Sink(**options).write([batch(name=[name], content=[content(name, 2, size)])])

    json.dump(die_everywhere(task, apart=groups > 0), sys.stdout)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
