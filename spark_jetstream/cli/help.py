"""Help that fits a terminal of 80 columns, and the names that the ``nats`` tool has for our commands and options.

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
"""The panels of the options that are fields of a configuration. Of the second, help has the first sentences."""

_ELSEWHERE = "Connection options (--server, --context, ...): see spark-jetstream --help."
_HYPHEN = "\u2011"  # where lines do not break
_FLAGS_WIDE = 27  # a longer flag has its help below it
_TYPES = (
    (r"(<int[^>]*>|INTEGER.*)", "NUMBER"),
    (r"<[^>|]*>", "TEXT"),
    (r"<([^>]*)>", r"\1"),
)  # as typer writes them
WrongUsage: Any = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that it does not understand; only this subclass has a public name."""


class _Helpful:
    """Writes the help of a command or a group, and accepts the options of the ``nats`` tool under their names there."""

    params: list[Any]
    without = ""
    """The panel that help leaves out."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the help without boxes and columns of types."""
        self.format_usage(ctx, formatter)
        self.write_text(formatter, inspect.cleandoc(self.help or ""))
        self.format_options(ctx, formatter)
        if any(getattr(option, "rich_help_panel", None) == CONNECTION for option in self.params) and ctx.parent:
            self.write_text(formatter, _ELSEWHERE)
        self.write_text(formatter, self.epilog or "")
        formatter.buffer[:] = [part.replace(_HYPHEN, "-") for part in formatter.buffer]

    def write_text(self, formatter: Any, text: str) -> None:
        """Write paragraphs; no line ends inside of an option."""
        if text:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text.replace("-", _HYPHEN))

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by their panels, each panel where its first one is."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            panel, record = (
                getattr(parameter, "rich_help_panel", None),
                parameter.get_help_record(ctx),
            )
            if parameter.param_type_name == "argument":
                panels.setdefault("Arguments", []).append(
                    (argument(parameter), parameter.help or ""),
                )
            elif record is not None and panel != self.without:
                row = (_flags(parameter, record[0]), option_help(parameter, brief=True))
                panels.setdefault(panel or "Options", []).append(row)
        for name, rows in panels.items():
            with formatter.section(name):
                formatter.write_dl(
                    [(flags, help.replace("-", _HYPHEN)) for flags, help in rows],
                    col_max=_FLAGS_WIDE,
                )

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, which knows the aliases too; neither help nor completion has them."""
        parser = super().make_parser(ctx)  # type: ignore[misc]  # of the command
        known = {flag: option for option in self.params for flag in (*option.opts, *option.secondary_opts)}
        for alias, flag in _of_place(OPTIONS, ctx):
            if flag in known and alias not in known:
                twin = copy.copy(known[flag])
                twin.opts, twin.secondary_opts = (
                    [alias],
                    [f"--no-{alias[2:]}"] if twin.secondary_opts else [],
                )
                twin.add_to_parser(parser, ctx)
        return parser

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        """Read the options; of one that only the ``nats`` tool has, say what to write instead."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]  # of the command
        except WrongUsage as error:
            missing = getattr(error, "param", None)
            if missing is not None and missing.param_type_name == "option" and "Missing" in type(error).__name__:
                example = (self.epilog or "").removeprefix("Example: ")
                ctx.fail(f"option {missing.opts[0]} is missing: name it as in `{example}`")
            name = getattr(
                error,
                "option_name",
                "ARGUMENT" if "extra argument" in error.message else "",
            )
            if hint := dict(_of_place(OPTION_HINTS, ctx)).get(name):
                ctx.fail(
                    f"there is no {'further argument' if name == 'ARGUMENT' else f'option {name}'}: {hint}",
                )
            raise


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
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a name, or of an alias; fail with a hint where there is nothing like it."""
        group = " ".join(ctx.command_path.split()[1:])
        name = COMMANDS.get(group, {}).get(args[0], args[0])
        hint = COMMAND_HINTS.get(group, {}).get(name)
        if hint and name not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {name}: {hint}")
        return super().resolve_command(
            ctx,
            [args[0] if name not in self.commands else name, *args[1:]],
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with the first sentences of their help, then the options."""
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        with formatter.section("Commands"):
            rows = [(name, first_sentence(command.help or "")) for name, command in shown]
            formatter.write_dl([(name, help.replace("-", _HYPHEN)) for name, help in rows])
        super().format_options(ctx, formatter)


def quick(parameters: list[Any]) -> list[Any]:
    """Let parameters that are not on the command line be None at once; typer makes a pydantic model for each."""
    for parameter in parameters:
        if not parameter.required:
            parameter.process_value = functools.partial(_value, parameter)
    return parameters


def _value(parameter: Any, ctx: Any, value: Any) -> Any:
    if value is None:
        return parameter.callback and parameter.callback(ctx, parameter, None)
    return type(parameter).process_value(parameter, ctx, value)


def _of_place(table: Any, ctx: Any) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table for a command: those of all commands, of its group, and its own."""
    names = ctx.command_path.split()[1:]
    for depth in range(len(names) + 1):
        yield from table.get(" ".join(names[:depth]), {}).items()


def _flags(option: Any, flags: str) -> str:
    """Return the flags of an option and what it takes: upper case in place of types, and no opposite of a field."""
    shown, _, opposite = flags.partition(" / ")
    for pattern, word in _TYPES:
        shown = re.sub(pattern, word, shown)
    return f"{shown}/{opposite}" if opposite and option.rich_help_panel is None else shown


def option_help(option: Any, *, brief: bool = False) -> str:
    """Return the help of an option with its default. ``brief`` leaves out what the panel `ADVANCED` has no room for."""
    help = " ".join((option.help or "").split())
    if brief and getattr(option, "rich_help_panel", None) == ADVANCED:
        help = re.sub(r" \(server [0-9.]+\)", "", help)
        help = re.sub(r"(?<=\.) .*?(?=Fields: |$)", " ", help).strip()
        help = re.sub(r"(Fields: (\w+, ){3})\w+, .*", r"\1...", help)
    return help if option.is_flag or option.default in (None, "", ()) else f"{help} [default: {option.default}]"


def argument(parameter: Any) -> str:
    """Return an argument as usage shows it."""
    return f"{parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"


def usage(command: Any) -> str:
    """Return the arguments of a command, those in brackets that may be left out, and a word for its options."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    parts = [argument(given) if given.required else f"[{argument(given)}]" for given in arguments]
    return " ".join([*parts, "[OPTIONS]"])


def first_sentence(text: str) -> str:
    """Return what a list of commands says of one."""
    return re.split(r"(?<=[.;]) ", " ".join(text.split()), maxsplit=1)[0].rstrip(";.")
