"""What reads bytes of others, with inputs that once were findings, and with some hundreds that a seed makes.

``make fuzz`` searches as long as you like, with a seed of its own.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import islice
from random import Random

import pytest

from tests.fuzz.engine import MEMORY, MEMORY_FOR_A_BYTE, Reached, inputs, peak
from tests.fuzz.targets import TARGETS
from tests.support.project import ROOT

SEED, COUNT = 20, 150


@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_of_the_corpus(name: str) -> None:
    for path in TARGETS[name].corpus:
        data = path.read_bytes()
        assert peak(partial(TARGETS[name].attempt, data)) <= MEMORY + MEMORY_FOR_A_BYTE * len(data), path


@pytest.mark.full
@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_of_a_seed(name: str) -> None:
    one = TARGETS[name]
    known = [path.read_bytes() for path in one.corpus]
    for data in islice(inputs(one, Random(SEED), known), COUNT):
        try:
            one.attempt(data)
        except Exception as error:
            raise AssertionError(f"target {name}, input {data!r}") from error


def test_an_input_is_of_use_if_it_reaches_new_lines() -> None:
    one = TARGETS["units"]
    with Reached() as reached:
        one.attempt(b"nothing")
        before = reached.lines
        one.attempt(b"nothing")
        assert reached.lines == before > 0
        one.attempt(b"1h30m")
        assert reached.lines > before


def test_a_file_is_run_by_hand() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--target", "ledger", *map(str, TARGETS["ledger"].corpus)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
