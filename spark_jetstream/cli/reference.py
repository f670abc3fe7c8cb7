"""The reference of all commands in Markdown, made from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from spark_jetstream.cli.app import SHARED, unwrapped
from spark_jetstream.cli.help import ADVANCED, COMMON, argument, first_sentence, option_help, usage

_HEAD = """\
# Commands

Made by `python -m spark_jetstream.cli.reference > docs/commands.md`; do not edit.

`spark-jetstream COMMAND --help` says the same. What commands have in common:

- They connect as [docs/admin.md](admin.md#how-it-connects) says: by the options below, else by the `NATS_*` variables
  and contexts of the `nats` command. These options may stand before the command too.
- `--json` prints what a program reads: one JSON document with exact numbers, and a line for each object where the
  output has no end. Tables are for people, and have colours only on a terminal. Notes, progress bars and errors go to
  standard error.
- A command asks before it removes or overwrites something; `--force` answers yes, and is needed without a terminal.
- The exit code is 0 after success, 1 after a failure or if a check found something, 2 for a wrong command line or file,
  3 if no server could be reached or none answered, and 130 after Ctrl-C.
- Most commands and options of the `nats` tool work under their names there, such as `s report`, `rmm`, `--replicas` and
  `--dupe-window`. Where there is nothing alike, the error names what to write instead.
- `spark-jetstream --install-completion` teaches your shell to complete commands, options, and names of streams and
  consumers.
- A default of an option is that of the command that creates something: `edit` and `copy` change what you name.

"""
_SHARED = {parameter.name for parameter in SHARED}
_CONFIGURATIONS = {
    "stream": "a stream",
    "consumer": "a consumer",
    "kv": "a Key-Value bucket",
    "object": "an Object Store bucket",
}
"""Groups of commands -> what their options of the help panels `COMMON` and `ADVANCED` configure."""


def commands_markdown() -> str:
    """Return docs/commands.md. Options that several commands share have a section of their own."""
    from spark_jetstream.cli.main import app

    root = typer.main.get_command(app)
    commands = list(_commands(root, ()))
    shared = _options(root, lambda parameter: parameter.name in _SHARED)
    index = {f"[{' '.join(path)}](#{'-'.join(path)})": first_sentence(command.help or "") for path, command in commands}
    parts = [_HEAD, _table(index, "{}"), "\n## Options of every command\n\n", _table(shared)]
    configurations: dict[str, dict[str, str]] = {}
    for path, command in commands:
        fields = _options(command, _configures)
        configurations[path[0]] = {**fields, **configurations.get(path[0], {})}  # the first command shows defaults
    for group, what in _CONFIGURATIONS.items():
        parts.append(f"\n## Options of {what}\n\n{_table(configurations[group])}")
    for path, command in commands:
        text = unwrapped(inspect.cleandoc(command.help or ""))
        parts.append(
            f"\n## {' '.join(path)}\n\n{text}\n\n```\nspark-jetstream {' '.join(path)} {usage(command)}\n```\n"
        )
        own = _options(command, lambda parameter: parameter.name not in _SHARED and not _configures(parameter))
        parts.append(f"\n{_table(own)}" if own else "")
        if fields := _options(command, _configures):
            heading = f"options of {_CONFIGURATIONS[path[0]]}"
            absent = ", ".join(f"`{names}`" for names in configurations[path[0]] if names not in fields)
            link = f"[{heading}](#{heading.lower().replace(' ', '-')})"
            parts.append(f"\nAlso the {link}{f', except {absent}' if absent else ''}.\n")
        example = (command.epilog or "").removeprefix("Example: ")
        parts.append(f"\nExample: `{example}`\n")
    return "".join(parts)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _configures(parameter: Any) -> bool:
    """Return whether an option is a field of a configuration."""
    return getattr(parameter, "rich_help_panel", None) in (COMMON, ADVANCED)


def _options(command: Any, wanted: Callable[[Any], bool]) -> dict[str, str]:
    """Return the help of options, and of arguments that have a help, by their names."""
    rows = {}
    for parameter in command.params:
        if not wanted(parameter) or getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            names, text = argument(parameter), parameter.help or ""
        else:
            names, text = "`, `".join([*parameter.opts, *parameter.secondary_opts]), option_help(parameter)
        rows[names] = text.replace("|", "\\|")
    return rows


def _table(rows: Mapping[str, str], form: str = "`{}`") -> str:
    return "| | |\n|---|---|\n" + "".join(f"| {form.format(names)} | {text} |\n" for names, text in rows.items())


if __name__ == "__main__":
    typer.echo(commands_markdown(), nl=False)
