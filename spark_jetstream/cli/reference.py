"""The reference of all commands in Markdown, made from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from spark_jetstream.cli.app import SHARED, unwrapped

_HEAD = """\
# Commands

Made by `python -m spark_jetstream.cli.reference > docs/commands.md`; do not edit.

`spark-jetstream COMMAND --help` says the same. What commands have in common:

- They connect as [docs/admin.md](admin.md#how-it-connects) says: by the options below, else by the `NATS_*` variables
  and contexts of the `nats` command. These options may stand before the command too.
- `--json` prints what a program reads: one JSON document with exact numbers, and a line for each object where the
  output has no end. Tables are for people, and have colours only on a terminal. Notes, progress bars and errors go to
  standard error.
- What removes or overwrites something asks first; `--force` says yes. Where there is no terminal to ask, it is needed.
- The exit code is 0 when it is done, 1 when it failed or a check found something, 2 when the command line or a file is
  wrong, 3 when no server could be reached or none answered, and 130 after Ctrl-C.
- `spark-jetstream --install-completion` teaches your shell to complete commands, options, and names of streams and
  consumers.

"""
_SHARED = {name for parameter in SHARED for name in (parameter.name,)}


def commands_markdown() -> str:
    """docs/commands.md."""
    from spark_jetstream.cli.main import app

    root = typer.main.get_command(app)
    parts = [_HEAD, "## Options of every command\n\n", _options(root, shared=True)]
    for name, command in _commands(root, ()):
        said = unwrapped(inspect.cleandoc(command.help or ""))
        parts.append(f"\n## {' '.join(name)}\n\n{said}\n")
        parts.append(f"\n```\n{_usage(name, command)}\n```\n")
        own = _options(command, shared=False)
        parts.append(f"\n{own}" if own else "")
        example = (command.epilog or "").removeprefix("Example: ")
        parts.append(f"\nExample: `{example}`\n")
    return "".join(parts)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _usage(name: tuple[str, ...], command: Any) -> str:
    words = ["spark-jetstream", *name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
            words.append(word if parameter.required else f"[{word}]")
    return " ".join([*words, "[OPTIONS]"])


def _options(command: Any, *, shared: bool) -> str:
    """A table of the options, and of arguments that have something to say."""
    rows = []
    for parameter in command.params:
        if (parameter.name in _SHARED) is not shared or parameter.name in ("help", "version"):
            continue
        if getattr(parameter, "hidden", False) or "completion" in parameter.name:
            continue
        if parameter.param_type_name == "argument":
            names = parameter.name.upper()
        else:
            names = "`, `".join([*parameter.opts, *parameter.secondary_opts])
        said = " ".join((parameter.help or "").split()).replace("|", "\\|")
        rows.append(f"| `{names}` | {said} |\n")
    return "| | |\n|---|---|\n" + "".join(rows) if rows else ""


if __name__ == "__main__":
    typer.echo(commands_markdown(), nl=False)
