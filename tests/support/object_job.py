"""Tasks of the sink that write one object each, killed at every moment of them.

    python object_job.py '{"options": {...}, "names": "fresh", "size": 300000}'
    python object_job.py '{"options": {...}, "names": "again", "size": 3000000, "kills": 10}'

Without `kills` the object ``<names>-<n>`` is written by a task that is killed at its n-th moment (`write_job.Death`),
n = 1, 2, ... until one lives through; the moments are printed as JSON. With `kills` the object ``<names>`` is written
by so many tasks, each killed from outside when it has stored a few chunks more than the one before.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.objects import ObjectColumns, write_objects
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from tests.support.publish import Publisher
from tests.support.write_job import Death, arm

KINDS = {
    "name": ("string", pa.string()),
    "content": ("binary", pa.binary()),
    "headers": ("map<string,array<string>>", pa.map_(pa.string(), pa.list_(pa.string()))),
}


def content(name: str, version: int, size: int) -> bytes:
    """The bytes of one version of an object."""
    return random.Random(f"{name} {version}").randbytes(size)


def write(given: dict[str, str], batches: Iterable[pa.RecordBatch], partition: int = 0) -> TaskReport:
    """One attempt of a task, on the connection that this process has for its options."""
    options = SinkOptions.from_spark(given, streaming=True)

    def to_server(patience: float) -> Connection:
        return connect(options.connection, patience=patience)

    batches = iter(batches)
    first = next(batches)
    columns = ObjectColumns.check([(name, KINDS[name][0]) for name in first.schema.names])
    return write_objects(itertools.chain([first], batches), to_server, options, columns, WriteTask("q", 7, partition))


def batch(**columns: list[object]) -> pa.RecordBatch:
    """A record batch with these columns."""
    return pa.record_batch({name: pa.array(values, KINDS[name][1]) for name, values in columns.items()})


def _child(work: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_everywhere(options: dict[str, str], names: str, size: int) -> list[str]:
    """Kill one task after the other, each a moment later; the names of the moments."""
    moments: list[str] = []
    while True:
        number = len(moments) + 1
        name = f"{names}-{number}"
        told, tell = os.pipe()

        def work(name: str = name, number: int = number, tell: int = tell) -> None:
            arm(Death(number, tell))
            write(options, [batch(name=[name], content=[content(name, 2, size)])])

        child = _child(work)
        os.close(tell)
        with os.fdopen(told) as pipe:
            moment = pipe.read()
        status = _ended(child)
        if status == 0:
            return moments
        assert (status, bool(moment)) == (-signal.SIGKILL, True)
        moments.append(moment)


def die_again_and_again(options: dict[str, str], name: str, size: int, kills: int) -> None:
    """Kill the writers of one object, wherever they are when the bucket has grown by so many messages."""
    stream = f"OBJ_{options['objectBucket']}"
    with Publisher(options["servers"]) as publisher:

        def last() -> int:
            return int(publisher.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])

        for number in range(kills):
            before = last()
            version = content(name, number + 2, size)
            child = _child(lambda version=version: write(options, [batch(name=[name], content=[version])]))  # type: ignore[misc]
            while last() < before + 1 + 2 * number:
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "the task was too quick for this"
            os.kill(child, signal.SIGKILL)
            assert _ended(child) == -signal.SIGKILL


def run(options: dict[str, str], names: str, size: int, kills: int = 0) -> None:
    """Do one of the two things."""
    if kills:
        die_again_and_again(options, names, size, kills)
    else:
        json.dump(die_everywhere(options, names, size), sys.stdout)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
