"""Tasks of the sink that write one object each, killed at every moment of them.

    python object_job.py '{"options": {...}, "names": "fresh", "size": 300000}'
    python object_job.py '{"options": {...}, "names": "again", "size": 3000000, "kills": 10}'

Without `kills` the object ``<names>-<n>`` is written by a task that is killed at its n-th moment (`write_job.Death`),
n = 1, 2, ... until one lives through; the moments are printed as JSON. With `kills` the object ``<names>`` is written
by so many tasks, each killed from outside when it has stored a few chunks more than the one before.
"""

from __future__ import annotations

import json
import random
import sys

from tests.support.publish import Publisher
from tests.support.sinking import Sink, batch
from tests.support.write_job import die_everywhere, kill_when


def content(name: str, version: int, size: int) -> bytes:
    """The bytes of one version of an object."""
    return random.Random(f"{name} {version}").randbytes(size)


def write(options: dict[str, str], name: str, data: bytes) -> None:
    """One attempt of a task with one object."""
    Sink(**options).write([batch(name=[name], content=[data])])


def die_again_and_again(options: dict[str, str], name: str, size: int, kills: int) -> None:
    """Kill the writers of one object, wherever they are when the bucket has grown by so many messages."""
    stream = f"OBJ_{options['objectBucket']}"
    with Publisher(options["servers"]) as publisher:

        def last() -> int:
            return int(publisher.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])

        for number in range(kills):
            version, aim = content(name, number + 2, size), last() + 1 + 2 * number
            kill_when(
                lambda version=version: write(options, name, version),  # type: ignore[misc]
                lambda aim=aim: last() >= aim,  # type: ignore[misc]
            )


def run(options: dict[str, str], names: str, size: int, kills: int = 0) -> None:
    """Do one of the two things."""
    if kills:
        die_again_and_again(options, names, size, kills)
        return

    def one(number: int) -> None:
        name = f"{names}-{number}"
        write(options, name, content(name, 2, size))

    json.dump(die_everywhere(one), sys.stdout)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
