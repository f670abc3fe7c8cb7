"""Runs a target with inputs from a seed, and keeps those that reach lines of the package that no
other has reached.

The bounded run keeps none, so that its inputs depend on nothing but the seed and the corpus.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import resource
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

import spark_jetstream
from spark_jetstream.errors import LAYOUT, LONGEST_MESSAGE, JetStreamError
from tests.fuzz.mutations import Mutate, change_bytes

CORPUS = Path(__file__).parent / "corpus"
PACKAGE = str(Path(spark_jetstream.__file__).parent)
CPU_SECONDS = 10
"""CPU time of one input from which on it is a finding of the long run."""
MEMORY = 64 << 20
"""Bytes that one input may take at a time, beside `MEMORY_FOR_A_BYTE` for each of its own."""
MEMORY_FOR_A_BYTE = 2000


@dataclass(frozen=True)
class Target:
    """A part of the package that reads bytes of others.

    ``run`` may raise a `JetStreamError`; anything else is a finding.
    """

    name: str
    run: Callable[[bytes], None]
    mutate: Mutate
    words: tuple[bytes, ...]

    @property
    def corpus(self) -> list[Path]:
        """The files with its inputs, in a fixed order."""
        return sorted((CORPUS / self.name).iterdir())

    def attempt(self, data: bytes) -> None:
        """Run an input. Raises what is a finding."""
        try:
            self.run(data)
        except JetStreamError as error:
            text = str(error)
            assert all(char.isprintable() or char in LAYOUT for char in text), (
                f"control characters in {text!r}"
            )
            assert len(text) <= LONGEST_MESSAGE + len("...")
            text.encode()
            assert str(pickle.loads(pickle.dumps(error))) == text


TARGETS: dict[str, Target] = {}


def target(
    name: str, *words: bytes, mutate: Mutate = change_bytes
) -> Callable[[Callable[[bytes], None]], Any]:
    """Decorate the function of a target."""

    def add(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[name] = Target(name, run, mutate, words)
        return run

    return add


def inputs(one: Target, random: Random, known: Sequence[bytes]) -> Iterator[bytes]:
    """Yield new inputs without end; ``known`` may grow meanwhile."""
    while True:
        yield one.mutate(random, random.choice(known), random.choice(known), one.words)


class Reached:
    """Counts the lines of the package that were reached for the first time while it is entered."""

    def __init__(self) -> None:
        self.lines = 0
        self._left: dict[CodeType, set[int]] = {}

    def __enter__(self) -> Reached:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._left:
            inside = code.co_filename.startswith(PACKAGE)
            self._left[code] = {line for _, _, line in code.co_lines() if line and inside}
        return self._trace if self._left[code] else None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.lines += 1
        return self._trace


class TooSlow(BaseException):
    """An input takes more than `CPU_SECONDS`."""


@contextlib.contextmanager
def watched(data: bytes) -> Iterator[None]:
    """Raise `TooSlow`, or `MemoryError` for an input that takes too much at a time."""

    def stop(*_: object) -> None:
        raise TooSlow(f"{len(data)} bytes take more than {CPU_SECONDS} s of CPU time")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (
        1 if sys.platform == "darwin" else 1024
    )
    if grown > MEMORY + MEMORY_FOR_A_BYTE * len(data):
        raise MemoryError(f"{len(data)} bytes take {grown:,} bytes of memory")


def peak(work: Callable[[], None]) -> int:
    """Bytes that Python and numpy have allocated at a time during ``work``."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def keep(folder: Path, data: bytes) -> Path:
    """Write an input into a folder, under a name of its content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    return path
