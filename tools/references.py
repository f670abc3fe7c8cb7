"""The references of all options and commands in Markdown, made from the models and the commands.

``python -m tools.references`` writes docs/options.md and docs/commands/, with a page for each
group of commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from spark_jetstream.cli.app import SHARED, unwrapped
from spark_jetstream.cli.help import ADVANCED, COMMON, argument, first_sentence, option_help, usage
from spark_jetstream.cli.main import app
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.options.specs import EXCLUSIVE, NEEDED, Options, OptionSpec

DOCS = Path(__file__).parents[1] / "docs"
OPTIONS = DOCS / "options.md"
_MADE = "<!-- Made by `make generate`; do not edit. -->"

_OPTIONS_HEAD = f"""\
# Options

{_MADE}

All options of `format("jetstream")`. [reading.md](reading.md) and [writing.md](writing.md) show them at work, and the
[glossary](glossary.md) explains words of NATS. Names match in any case. An option that does not exist, or has no
meaning where it is used, is an error.
"""
_TABLE_HEAD = """\
## All options

Each name links to a section with the full description and the accepted values.

| option | default | batch or streaming | source or sink | meaning |
|---|---|---|---|---|"""

_NOTES = """\
## How values are written

- Durations need a unit: `500ms`, `10s`, `5m`, `2h`, `1d`, `2w`, `1y` (365 days), `10 seconds`, `1m 30s`. A
  capital `M` is an error: it could mean minutes, or months as in the `nats` command. Write months as days (`180d`).
- Sizes are bytes, or have a unit that is a power of 1,024: `65536`, `512k`, `8m`, `8mb`, `8MiB`, `1g`. Upper
  and lower case are the same: `8m` and `8M` both are 8 mebibytes.
- Times are ISO-8601 with a zone, down to nanoseconds (`2026-03-01T12:00:00.123456789Z`,
  `2026-03-01 12:00+01:00`), or epoch milliseconds (`1772366400000`).
- Positions are JSON that names every stream of the query: `{"ORDERS": 1001, "RETURNS": 7}`.
- Lists are separated by commas; a name with a comma in it cannot be given.

## Authentication

Give one kind at a time. User info in a server URL (`nats://user:password@host`, or `nats://token@host`) is a kind
too; the connector percent-decodes it and uses it for all servers. Options whose names end in `Secret`, `password` and
`token` are never shown: not in logs, errors, `repr`, progress or checkpoints. Errors repeat the wrong value of any
other option, and the scheme, host and port of a URL of `servers`. A secret may end up in the wrong option by mistake.
Therefore errors do not repeat a value that looks like a secret: an NKey seed, a JWT, or a block of a PEM or `.creds`
file. Nor do they repeat a text with `@`, `password=`, `token=` or the like. Logs and `repr` show no paths, user names
and other texts.

Files may be local on every node, or sent along with `--files` or `spark.addArtifacts`.

## Contexts

A context is a file in which the `nats` command keeps servers and credentials. The driver reads it when it makes the
source or sink; the executors need neither the file nor the environment variables that it refers to. An option beside
`context` wins over the same setting of the context. Any option for authentication replaces all authentication of the
context. `domain` and `apiPrefix` replace each other, and so do `tlsCaFile` and `tlsCaPem`, and the options of the
client's certificate and key. The connector does not use what `nats context select` chose. A context that sets
`socks_proxy`, `nsc` or `windows_*`, or a token beside another kind of authentication, is refused; so are `op://` and
`nsc://` in its secret fields.
"""
_COMMANDS_HEAD = f"""\
# Commands

{_MADE}

Every command of `spark-jetstream`, by its group, for those who work in a shell. `spark-jetstream COMMAND --help` says
the same. What commands have in common:

- They connect as [docs/admin.md](../admin.md#how-it-connects) says: by the [options below](#options-of-every-command),
  else by the `NATS_*` variables and contexts of the `nats` command. These options may stand before the command too.
- `--json` prints what a program reads: one JSON document with exact numbers, and a line for each object where the
  output has no end. Tables are for people, and have colours only on a terminal. Notes, progress bars and errors go to
  standard error.
- A command asks before it removes or overwrites something; `--force` answers yes, and is needed without a terminal.
- The exit code is 0 after success, 1 after a failure or if a check found something, 2 for a wrong command line or file,
  3 if no server could be reached or none answered, and 130 after Ctrl-C. `check` has [codes of its
  own](../monitoring.md#health-checks).
- Most commands and options of the `nats` tool work under their names there, such as `s report`, `rmm`, `--replicas` and
  `--dupe-window`. Each other one is answered with what to write instead, or that it is not what this command does.
- `spark-jetstream cheat` prints an example of each command.
- `spark-jetstream --install-completion` teaches your shell to complete commands, options, and names of streams and
  consumers.
- A default of an option is that of the command that creates something: `edit` and `copy` change what you name.
"""
_NO_GROUP = "general"
_EVERY = "options of every command"
_SHARED = {parameter.name for parameter in SHARED}
_CONFIGURATIONS = {
    "stream": "a stream",
    "consumer": "a consumer",
    "kv": "a Key-Value bucket",
    "object": "an Object Store bucket",
}
"""Groups of commands -> what their options of the help panels `COMMON` and `ADVANCED` configure."""


_MODELS = (ConnectionOptions, SourceOptions, SinkOptions)
_QUERIES = {None: "both", "batch": "batch", "stream": "streaming"}
"""`OptionSpec.only` -> the kinds of queries."""


def option_titles() -> Iterator[tuple[type[Options], OptionSpec, str]]:
    """Yield each option with its model and the title of its section.

    If an earlier model has an option of that name, the title also names the side.
    """
    taken: set[str] = set()
    for model in _MODELS:
        for spec in model.specs:
            yield model, spec, f"{spec.name} ({model.side})" if spec.name in taken else spec.name
        taken |= {spec.name for spec in model.specs}


def option_row(model: type[Options], spec: OptionSpec, title: str) -> str:
    """Return the row of an option in the table of all options."""
    sides = "both" if model is ConnectionOptions else model.side
    default = f"`{spec.default}`" if spec.default else "none"
    short = re.split("[:;] ", spec.doc, maxsplit=1)[0]
    cells = (
        f"[`{spec.name}`](#{re.sub(r'[()]', '', _anchor(title))})",
        default,
        _QUERIES[spec.only],
        sides,
        f"{short[0].upper()}{short[1:]}",
    )
    return f"| {' | '.join(cells)} |"


def options_markdown() -> str:
    """Return the reference of all options, docs/options.md."""
    titles = list(option_titles())
    lines = [_OPTIONS_HEAD, _TABLE_HEAD, *(option_row(*described) for described in titles)]
    places = {"stream": "in a streaming query", "batch": "in a batch"}
    for model in _MODELS:
        lines += ["", f"## {model.side.capitalize()}"]
        for owner, spec, title in titles:
            if owner is not model:
                continue
            only = f"; only {places[spec.only]}" if spec.only else ""
            default = f" Default: `{spec.default}`." if spec.default else ""
            value = spec.kind.expects.partition(" such as")[0]
            lines += ["", f"### {title}", "", f"{spec.doc[0].upper()}{spec.doc[1:]}{only}."]
            lines += ["", f"Value: {value}.{default}"]
    pairs = [f"`{one}` and `{other}`" for one, other in EXCLUSIVE]
    lines += ["", "## Options that exclude each other", "", *(f"- {pair}" for pair in pairs)]
    lines += ["- different kinds of authentication: user and password, token, credentials, NKey"]
    lines += [
        "",
        "## Options that need another one",
        "",
        *(f"- `{one}` needs `{other.replace(' or ', '` or `')}`" for one, other in NEEDED.items()),
    ]
    return "\n".join([*lines, "", _NOTES])


def command_pages() -> dict[str, str]:
    """Return the pages of docs/commands/ by their names.

    They are an overview, and a page for each group of commands.
    """
    root: Any = typer.main.get_command(app)
    groups: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for path, command in commands_of(root):
        groups.setdefault(path[0] if len(path) > 1 else _NO_GROUP, []).append((path, command))
    overview, pages = [_COMMANDS_HEAD], {}
    for group, commands in groups.items():
        text = root.commands[group].help if group in root.commands else "Commands without a group."
        rows = {
            f"[{' '.join(path)}]({group}.md#{'-'.join(path)})": first_sentence(command.help or "")
            for path, command in commands
        }
        overview.append(f"\n## {group}\n\n{text}\n\n{_table(rows, '{}')}")
        pages[f"{group}.md"] = _group_page(group, text, commands)
    shared = _options(root, lambda parameter: parameter.name in _SHARED)
    overview.append(f"\n## Options of every command\n\n{_table(shared)}")
    return {"index.md": "".join(overview), **pages}


def _group_page(group: str, text: str, commands: list[tuple[tuple[str, ...], Any]]) -> str:
    """Return the page of a group.

    Options that several of its commands share have a section of their own.
    """
    title = "General commands" if group == _NO_GROUP else f"spark-jetstream {group}"
    parts = [
        f"# {title}\n\n{_MADE}\n\n{text}\n",
        f"All take the [{_EVERY}](index.md#{_anchor(_EVERY)}) too.\n",
    ]
    shared: dict[str, str] = {}
    for _, command in commands:
        shared = {**_options(command, _configures), **shared}  # the first command shows defaults
    for path, command in commands:
        help_text = unwrapped(inspect.cleandoc(command.help or ""))
        parts.append(
            f"\n## {' '.join(path)}\n\n{help_text}\n\n```\nspark-jetstream {' '.join(path)} "
            f"{usage(command)}\n```\n"
        )
        own = _options(
            command, lambda parameter: parameter.name not in _SHARED and not _configures(parameter)
        )
        parts.append(f"\n{_table(own)}" if own else "")
        if fields := _options(command, _configures):
            heading = f"options of {_CONFIGURATIONS[group]}"
            absent = ", ".join(f"`{names}`" for names in shared if names not in fields)
            parts.append(
                f"\nAlso the [{heading}](#{_anchor(heading)}){f', except {absent}' if absent else ''}.\n"
            )
        example = (command.epilog or "").removeprefix("Example: ")
        parts.append(f"\nExample: `{example}`\n")
    parts.append(f"\n## Options of {_CONFIGURATIONS[group]}\n\n{_table(shared)}" if shared else "")
    return "".join(parts)


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands of a group, and of the groups in it, with their names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
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
            names, text = (
                "`, `".join([*parameter.opts, *parameter.secondary_opts]),
                option_help(parameter),
            )
        rows[names] = text.replace("|", "\\|")
    return rows


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _table(rows: Mapping[str, str], form: str = "`{}`") -> str:
    return "| | |\n|---|---|\n" + "".join(
        f"| {form.format(names)} | {text} |\n" for names, text in rows.items()
    )


def pages() -> dict[Path, str]:
    """Return the pages that are made here, by their files."""
    commands = {DOCS / "commands" / name: text for name, text in command_pages().items()}
    return {OPTIONS: options_markdown(), **commands}


def main() -> None:
    """Write the pages, and remove those of groups that no longer exist."""
    for old in (DOCS / "commands").glob("*.md"):
        old.unlink()
    for page, content in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
