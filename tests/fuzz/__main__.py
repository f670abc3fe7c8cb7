"""The long run: ``python -m tests.fuzz --target wire --seconds 3600 --seed 7``; with files, only
those are run.

Inputs that are findings go to build/fuzz/findings, and those that reach new lines to
build/fuzz/reached. When you mend a finding, move its input to tests/fuzz/corpus. ``--engine
atheris`` lets libFuzzer choose the inputs of one target; it ends with the first finding: ``pip
install atheris``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.engine import Target

FOUND = Path("build", "fuzz")


def main() -> int:
    """Run some targets; return how many findings there are."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", help="one target (default: all of them, one after the other)")
    parser.add_argument("--seconds", type=float, default=600, help="of all targets together")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    logging.disable()
    if given.engine == "atheris":
        _libfuzzer(given.target, given.seconds, given.seed)
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415  # atheris has to see how it is imported

    names = [given.target] if given.target else list(TARGETS)
    if given.files:
        return sum(
            _finding(TARGETS[name], path.read_bytes(), set())
            for name in names
            for path in given.files
        )
    print(f"seed {given.seed}; a target has {given.seconds / len(names):.0f} s")
    return sum(_search(TARGETS[name], given.seconds / len(names), given.seed) for name in names)


def _search(one: Target, seconds: float, seed: int) -> int:
    """Search one target, and say what was found."""
    from tests.fuzz.engine import Reached, inputs, keep  # noqa: PLC0415

    known, new = [path.read_bytes() for path in one.corpus], 0
    findings: set[str] = set()
    began, tried = time.monotonic(), 0
    with Reached() as reached:
        for data in known:
            _finding(one, data, findings)
        at_first = lines = reached.lines
        for data in inputs(one, Random(f"{seed} {one.name}"), known):
            if time.monotonic() - began > seconds:
                break
            tried += 1
            if _finding(one, data, findings):
                keep(FOUND / "findings" / one.name, data)
            if reached.lines > lines:
                lines, new = reached.lines, new + 1
                known.append(data)
                keep(FOUND / "reached" / one.name, data)
    print(f"{one.name:14} {tried:>10,} inputs {time.monotonic() - began:6.0f} s {at_first:>6,} "
          "lines by the corpus, "
          f"{lines - at_first:>4} more by {new} inputs, {len(findings)} findings", flush=True)  # fmt: skip
    return len(findings)


def _finding(one: Target, data: bytes, known: set[str]) -> bool:
    """Run an input, and print a finding whose place is not known yet; whether there was one."""
    from tests.fuzz.engine import TooSlow, watched  # noqa: PLC0415

    try:
        with watched(data):
            one.attempt(data)
        return False
    except (Exception, TooSlow) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = " < ".join(
            f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-4:-1]
        )
        if place not in known:
            known.add(place)
            print(
                f"{one.name}: {type(error).__name__}: {str(error)[:300]}\n  at {place}\n  input "
                f"{data[:200]!r}",
                flush=True,
            )
        return True


def _libfuzzer(name: str, seconds: float, seed: int) -> None:
    """Let libFuzzer search; it ends the process."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["spark_jetstream"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    from tests.fuzz.engine import CORPUS  # noqa: PLC0415

    one = TARGETS[name]
    folders = [FOUND / "reached" / name, CORPUS / name]
    for folder in (folders[0], FOUND / "findings" / name):
        folder.mkdir(parents=True, exist_ok=True)

    def change(data: bytes, longest: int, number: int) -> bytes:
        random = Random(number)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, longest))
        return one.mutate(random, data, random.choice(one.corpus).read_bytes(), one.words)[:longest]

    limits = [
        f"-max_total_time={seconds:.0f}",
        f"-seed={seed % 2**32}",
        "-timeout=60",
        "-rss_limit_mb=4096",
    ]
    artifacts = f"-artifact_prefix={FOUND / 'findings' / name}/"
    atheris.Setup(
        [sys.argv[0], *limits, artifacts, *map(str, folders)], one.attempt, custom_mutator=change
    )
    atheris.Fuzz()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(min(main(), 1))
