"""Help that fits a terminal of 80 columns, and the names of the ``nats`` tool for our commands.

Click measures the help and wraps it. The connection options, which all commands share, are shown by
the top help alone.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from spark_jetstream.cli.aliases import COMMAND_HINTS, COMMANDS, OPTION_HINTS, OPTIONS

CONNECTION = "Connection (as in the nats CLI)"
"""The panel of the options that only the top help shows."""

COMMON, ADVANCED = "Common fields", "Advanced fields (docs/commands says more)"
"""The panels of options that are fields of a configuration. Help is brief in the second."""

_ELSEWHERE = "Connection options (--server, --context, ...): see spark-jetstream --help."
_ARGUMENT = "ARGUMENT"  # in `OPTION_HINTS`: an argument too many
_HYPHEN = "\u2011"  # where lines do not break
_FLAGS_WIDE = 27  # a longer flag has its help below it
#: The types of values as typer writes them, and the words in their place.
_TYPES = (
    (r"(<int[^>]*>|INTEGER.*)", "NUMBER"),
    (r"<[^>|]*>", "TEXT"),
    (r"<([^>]*)>", r"\1"),
)
WrongUsage: Any = typer.BadParameter.__mro__[1]
"""An error of typer about a command line; only its subclass has a public name."""


class _Helpful:
    """Writes the help of a command or a group, and accepts option names of the ``nats`` tool."""

    params: list[Any]
    without = ""
    """The panel that help leaves out."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the help without boxes and columns of types."""
        self.format_usage(ctx, formatter)
        self.write_text(formatter, inspect.cleandoc(self.help or ""))
        self.format_options(ctx, formatter)
        # Some commands connect to no server, such as `server run`.
        connects = any(_panel(option) == CONNECTION for option in self.params)
        if connects and ctx.parent:
            self.write_text(formatter, _ELSEWHERE)
        self.write_text(formatter, self.epilog or "")
        # The text is wrapped by now. The hyphen that does not break is no hyphen to a shell, so
        # options could not be copied.
        formatter.buffer[:] = [part.replace(_HYPHEN, "-") for part in formatter.buffer]

    def write_text(self, formatter: Any, text: str) -> None:
        """Write paragraphs; no line ends inside of an option."""
        if text:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(_unbroken(text))

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by their panels, each panel where its first one is."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            panel = _panel(parameter)
            if parameter.param_type_name == "argument":
                row = (argument(parameter), parameter.help or "")
                panels.setdefault("Arguments", []).append(row)
            elif record is not None and panel != self.without:
                flags, _ = record
                row = (_flags(parameter, flags), option_help(parameter, brief=True))
                panels.setdefault(panel or "Options", []).append(row)
        for name, rows in panels.items():
            with formatter.section(name):
                unbroken = [(flags, _unbroken(help)) for flags, help in rows]
                formatter.write_dl(unbroken, col_max=_FLAGS_WIDE)

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, which knows the aliases too; neither help nor completion has them."""
        parser = super().make_parser(ctx)  # type: ignore[misc]  # of the command
        known = {}
        for option in self.params:
            for flag in (*option.opts, *option.secondary_opts):
                known[flag] = option
        for alias, flag in _of_place(OPTIONS, ctx):
            # An option of the command itself wins over the alias of the same name.
            if flag in known and alias not in known:
                # A copy of the option sets the same parameter. Its names alone differ.
                twin = copy.copy(known[flag])
                twin.opts = [alias]
                if twin.secondary_opts:
                    twin.secondary_opts = [f"--no-{alias[2:]}"]
                twin.add_to_parser(parser, ctx)
        return parser

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        """Read the options; for one that only the ``nats`` tool has, say what to write instead."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]  # of the command
        except WrongUsage as error:
            if missing := _missing_option(error):
                example = (self.epilog or "").removeprefix("Example: ")
                # The example of each command has its required options.
                ctx.fail(f"option {missing} is missing: name it as in `{example}`")
            name = _refused_name(error)
            # The rows of the narrowest place come last, and so they win.
            if hint := dict(_of_place(OPTION_HINTS, ctx)).get(name):
                noun = "further argument" if name == _ARGUMENT else f"option {name}"
                ctx.fail(f"there is no {noun}: {hint}")
            raise


def _panel(parameter: Any) -> str | None:
    """Return the panel of a parameter in help; None without one."""
    panel: str | None = getattr(parameter, "rich_help_panel", None)
    return panel


def _unbroken(text: str) -> str:
    """Return a text whose lines do not break inside of an option."""
    return text.replace("-", _HYPHEN)


def _missing_option(error: Any) -> str:
    """Return the option that a command line lacks; "" if the error is another one."""
    # typer has no public name for the class.
    if "Missing" not in type(error).__name__:
        return ""
    parameter = getattr(error, "param", None)
    if parameter is None or parameter.param_type_name != "option":
        return ""
    return str(parameter.opts[0])


def _refused_name(error: Any) -> str:
    """Return the option that does not exist, or `_ARGUMENT` for one too many; else ""."""
    name = getattr(error, "option_name", None)
    # typer has no class of its own for this error.
    if name is None and "extra argument" in error.message:
        return _ARGUMENT
    return name or ""


class Command(_Helpful, TyperCommand):
    """A command."""

    without = CONNECTION

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments in upper case, before the options."""
        formatter.write_usage(ctx.command_path, usage(self))


class Group(_Helpful, TyperGroup):
    """A group of commands, or all of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options in front of a command."""
        return quick(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Show the help, and end with 2, when no command is named."""
        # typer parses a line that is being completed in this mode.
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            # A line without a command is wrong usage.
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a name or an alias; fail with a hint for one of ``nats`` alone."""
        group = " ".join(ctx.command_path.split()[1:])
        name = COMMANDS.get(group, {}).get(args[0], args[0])
        hint = COMMAND_HINTS.get(group, {}).get(name)
        if hint and name not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {name}: {hint}")
        # The error about an unknown command has the name that the user has written.
        found = name if name in self.commands else args[0]
        return super().resolve_command(ctx, [found, *args[1:]])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with the first sentences of their help, then the options."""
        rows = []
        for name, command in self.commands.items():
            if not command.hidden:
                rows.append((name, _unbroken(first_sentence(command.help or ""))))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        super().format_options(ctx, formatter)


def quick(parameters: list[Any]) -> list[Any]:
    """Let parameters that are not on the command line be None at once.

    typer makes a pydantic model for each.
    """
    for parameter in parameters:
        # A required one has to raise an error without a value.
        if not parameter.required:
            parameter.process_value = functools.partial(_value, parameter)
    return parameters


def _value(parameter: Any, ctx: Any, value: Any) -> Any:
    if value is None:
        # --version has one, which must see that it is not given.
        if parameter.callback is None:
            return None
        return parameter.callback(ctx, parameter, None)
    return type(parameter).process_value(parameter, ctx, value)


def _of_place(table: Any, ctx: Any) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table for a command: those of all commands, of its group, and its own."""
    names = ctx.command_path.split()[1:]
    for depth in range(len(names) + 1):
        yield from table.get(" ".join(names[:depth]), {}).items()


def _flags(option: Any, flags: str) -> str:
    """Return the flags of an option and its value, in upper case."""
    # typer writes both forms of a flag in this way.
    shown, _, opposite = flags.partition(" / ")
    for pattern, word in _TYPES:
        shown = re.sub(pattern, word, shown)
    # The option of a field, which is in a panel, stands without its opposite.
    if opposite and _panel(option) is None:
        shown += f"/{opposite}"
    return shown


def option_help(option: Any, *, brief: bool = False) -> str:
    """Return the help of an option with its default.

    ``brief`` leaves out the parts for which the panel `ADVANCED` has no room.
    """
    help = " ".join((option.help or "").split())
    if brief and _panel(option) == ADVANCED:
        # docs/commands has the whole help.
        help = re.sub(r" \(server [0-9.]+\)", "", help)
        help = re.sub(r"(?<=\.) .*?(?=Fields: |$)", " ", help).strip()
        help = re.sub(r"(Fields: (\w+, ){3})\w+, .*", r"\1...", help)
    if option.is_flag or option.default in (None, "", ()):
        return help
    return f"{help} [default: {option.default}]"


def argument(parameter: Any) -> str:
    """Return an argument as usage shows it."""
    name: str = parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 else name


def usage(command: Any) -> str:
    """Return the arguments of a command, optional ones in brackets, and a word for its options."""
    parts = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = argument(parameter)
            parts.append(name if parameter.required else f"[{name}]")
    return " ".join([*parts, "[OPTIONS]"])


def first_sentence(text: str) -> str:
    """Return the part of a help text that stands in a list of commands."""
    return re.split(r"(?<=[.;]) ", " ".join(text.split()), maxsplit=1)[0].rstrip(";.")
