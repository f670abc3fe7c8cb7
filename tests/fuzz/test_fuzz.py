"""All targets, with inputs that once were findings, and with some hundreds that a seed makes.

``make fuzz`` searches as long as you like, with a seed of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from itertools import islice
from random import Random

import pytest

from tests.fuzz.engine import MEMORY, MEMORY_FOR_A_BYTE, inputs, peak
from tests.fuzz.targets import TARGETS
from tests.support.project import ROOT

SEED, COUNT = 20, 150


@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_of_the_corpus(name: str) -> None:
    for path in TARGETS[name].corpus:
        data = path.read_bytes()
        assert peak(partial(TARGETS[name].attempt, data)) <= MEMORY + MEMORY_FOR_A_BYTE * len(
            data
        ), path


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


def test_a_search_begins_with_the_corpus() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--target", "ledger", "--seconds", "0"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert re.search(
        r"ledger +0 inputs .* [1-9]\d* lines by the corpus, +0 more by 0 inputs, 0 findings",
        ran.stdout,
    )
