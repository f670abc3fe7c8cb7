"""Every command and flag of the ``nats`` tool works here, or is answered with what to write
instead.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import typer

from spark_jetstream.cli import aliases
from spark_jetstream.cli.main import app
from tests.cli.conftest import refused
from tests.cli.nats_names import GLOBAL, lines
from tests.cli.test_help import walk
from tests.support.command import run_command

ROOT: Any = typer.main.get_command(app)
LINES = [*lines()]


def known(*words: str) -> bool:
    """Whether a command line is one of a command here, up to what its arguments are."""
    return run_command(*words, "--help").code == 0


@pytest.mark.parametrize(
    ("names", "flags"), LINES, ids=[" ".join(name[0] for name in names) for names, _ in LINES]
)
def test_a_command_of_the_nats_tool_works_or_is_answered(
    names: tuple[tuple[str, ...], ...], flags: list[str]
) -> None:
    for path in itertools.product(*names):
        ran = run_command(*path, "--help")
        if ran.code == 0:
            used = re.match(r"Usage: spark-jetstream ((?:[a-z-]+ )*)", ran.out)
            assert used is not None
            if len(used[1].split()) < len(path):
                # The names after the command are arguments to it: are these answered?
                refused(run_command(*path, "x"), 2, "there is no further argument: ")
        else:
            refused(ran, 2, "there is no command ", ": ", "(see spark-jetstream")
    path = tuple(name[0] for name in names)
    for flag in flags:
        if known(*path) and not known(*path, flag, "x"):
            refused(run_command(*path, flag), 2, f"there is no option {flag}: ")


@pytest.mark.parametrize("flag", GLOBAL.split())
def test_a_flag_of_all_commands_works_or_is_answered(flag: str) -> None:
    if not known("rtt", flag, "x"):
        for line in (("rtt", flag), (flag, "rtt")):
            refused(run_command(*line), 2, f"there is no option {flag}: ")


def test_hints_name_only_commands_and_flags_that_exist() -> None:
    commands = dict(walk(ROOT))
    flags = {
        flag for command in commands.values() for option in command.params for flag in option.opts
    }
    for place, rows in (*aliases.COMMAND_HINTS.items(), *aliases.OPTION_HINTS.items()):
        path = tuple(place.split())
        assert path in {(), *commands}, place
        for hint in rows.values():
            assert {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", hint)} <= flags | {
                "--install-completion"
            }, hint
            assert re.match(
                "use |leave |give |set |write |pipe |redirect |this tool |`sub` receives ", hint
            ), hint
            for named in re.findall(r"`([a-z][a-z-]*(?: [a-z][a-z-]*)?)", hint):
                assert tuple(named.split()) in commands, hint
    for place, names in aliases.COMMANDS.items():
        for name, own in names.items():
            path = (*place.split(), own)
            assert path in commands, path
            assert (*place.split(), name) not in commands, name
    assert {own for names in aliases.OPTIONS.values() for own in names.values()} <= flags
