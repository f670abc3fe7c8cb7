"""The entry point of the command line ``spark-jetstream``.

Help lists the groups in the order of this module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import spark_jetstream
from spark_jetstream.errors import JetStreamError, printable

try:
    import rich  # noqa: F401  # the output needs it
    import typer

    from spark_jetstream.cli import messages  # noqa: F401  # it adds commands to `streams`
    from spark_jetstream.cli.account import account
    from spark_jetstream.cli.aliases import COMMANDS
    from spark_jetstream.cli.app import (
        FAILED,
        WRONG_USAGE,
        connection_options,
        exit_code,
        keyword,
        signed,
    )
    from spark_jetstream.cli.bench import group as bench
    from spark_jetstream.cli.check import checks
    from spark_jetstream.cli.cluster import cluster
    from spark_jetstream.cli.consumer import consumers
    from spark_jetstream.cli.context import contexts, rtt
    from spark_jetstream.cli.core import core
    from spark_jetstream.cli.counter import counter
    from spark_jetstream.cli.dead_letters import letters
    from spark_jetstream.cli.doctor import doctor
    from spark_jetstream.cli.events import events
    from spark_jetstream.cli.help import Command, Group, WrongUsage, first_sentence
    from spark_jetstream.cli.kv import kv
    from spark_jetstream.cli.lag import lag
    from spark_jetstream.cli.object import objects
    from spark_jetstream.cli.output import Output
    from spark_jetstream.cli.pub import pub
    from spark_jetstream.cli.schedule import schedules
    from spark_jetstream.cli.schema import schemas
    from spark_jetstream.cli.server import server
    from spark_jetstream.cli.stream import find, streams
    from spark_jetstream.cli.top import live
    from spark_jetstream.cli.trace import traces
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    # A module of this package that is missing is a bug, so its traceback is shown.
    if missing in ("", "spark_jetstream"):
        raise
    raise SystemExit(
        f"spark-jetstream: {missing} is missing: pip install 'spark-jetstream[cli]'",
    ) from error
except KeyboardInterrupt:
    # Ctrl-C during the imports, which take a while.
    raise SystemExit(130) from None

_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="spark-jetstream",
    cls=Group,
    # typer's own tracebacks may show local variables, secrets among them.
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spark-jetstream {spark_jetstream.__version__}")
        raise typer.Exit


def _root(ctx: typer.Context, **given: Any) -> None:
    """Read and write NATS JetStream with Apache Spark, and administer it.

    Options before the command count for it as well, as with the nats CLI.
    """
    ctx.obj = {"options": connection_options(given), "as_json": given["as_json"]}


_VERSION = typer.Option(
    "--version",
    "-V",
    callback=_print_version,
    # typer handles it before the other parameters, so a line without a command is no error.
    is_eager=True,
    help="Print the version.",
)
app.callback(epilog="Example: spark-jetstream demo --messages 50000")(
    signed(_root, [keyword("version", Annotated[bool, _VERSION], False)])
)


@app.command(cls=Command, epilog="Example: spark-jetstream demo --messages 50000 --json")
def demo(
    messages: Annotated[
        int | None,
        typer.Option(min=1, help="Load only this many of the 336,776 flights, from the first on."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            metavar="FILE",
            help="Also write tables and results as an SVG picture.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object instead of a table."),
    ] = False,
) -> None:
    """Stream a year of flights through an embedded server and Spark, and check the sums with pandas.

    Needs no server and no Java. Ends with 1 when Spark and pandas differ.
    """
    try:
        from spark_jetstream.demo.run import run

        code = run(messages, as_json=as_json, picture=picture)
    except ModuleNotFoundError as error:
        missing = _missing_package(error)
        raise SystemExit(
            f"spark-jetstream: {missing} is missing: pip install 'spark-jetstream[demo]'",
        ) from error
    raise typer.Exit(code)


@app.command(cls=Command, epilog="Example: spark-jetstream cheat stream")
def cheat(
    ctx: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="A command, or a group of commands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the examples of the help texts, all or those of a topic."""
    root: Any = ctx.find_root().command
    chosen = root.commands
    if topic is not None:
        topic = COMMANDS[""].get(topic, topic)
        if topic not in root.commands:
            known = ", ".join(root.commands)
            raise typer.BadParameter(f"there is no topic {topic}, but {known}")
        chosen = {topic: root.commands[topic]}
    examples = {}
    for name, command in chosen.items():
        # A group has commands; a command stands for itself.
        # typer keeps the examples in the epilogs, which its help prints last.
        for single in getattr(command, "commands", {name: command}).values():
            example = single.epilog.removeprefix("Example: ")
            examples[example] = first_sentence(single.help)
    out = Output(as_json=as_json)
    out.text("\n\n".join(f"# {help}\n{example}" for example, help in examples.items()))
    out.json([{"example": example, "help": help} for example, help in examples.items()])


admin = (
    account,
    cluster,
    streams,
    consumers,
    find,
    pub,
    core,
    traces,
    counter,
    schedules,
    kv,
    objects,
    lag,
    live,
    checks,
    events,
    schemas,
)
for group in (server, *admin, letters, doctor, bench, contexts, rtt):
    app.add_typer(group)


def main() -> None:
    """Run the console script.

    An error is one line on standard error, and an exit code of `cli.app`.
    """
    # The search for plugins reads the metadata of all installed packages.
    # A user who needs plugins of pydantic may set the variable.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_closed_streams()
    try:
        # Otherwise typer would print errors itself, in boxes, and end the process.
        code = app(prog_name="spark-jetstream", standalone_mode=False)
    except JetStreamError as error:
        _complain(str(error))
        raise SystemExit(exit_code(error)) from error
    except ModuleNotFoundError as error:
        # A command imports some packages when it runs.
        _complain(f"{_missing_package(error)} is missing: pip install 'spark-jetstream[cli]'")
        raise SystemExit(FAILED) from error
    except OSError as error:
        # A full disk, a closed terminal, or a reader that has ended: whatever is still buffered
        # would fail again.
        _no_more_output()
        # A broken pipe says that its reader has ended, which is no error.
        if not isinstance(error, BrokenPipeError):
            _complain(_system_message(error))
        raise SystemExit(FAILED) from error
    except WrongUsage as error:
        message = _usage_message(error)
        if message:
            _complain(message)
        raise SystemExit(WRONG_USAGE) from error
    raise SystemExit(code or 0)


def _open_closed_streams() -> None:
    """Give this process standard streams, where the caller has closed its own."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Python has None for a descriptor that was closed: test_main.py,
        # test_streams_that_the_caller_has_closed_are_empty.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _missing_package(error: ModuleNotFoundError) -> str:
    """Return the package that is not installed; raise the error again if it is ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "spark_jetstream"):
        raise error
    return package


def _complain(message: str) -> None:
    typer.echo(f"spark-jetstream: {printable(message)}", err=True)


def _no_more_output() -> None:
    """Discard the rest of standard output; Python would report the error once more at its end."""
    # The buffer of `sys.stdout` is written at the end of Python, to the same descriptor.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system_message(error: OSError) -> str:
    """Return an error of the operating system in one line, with the file that it is about."""
    # The message stands after a colon, so it begins in lower case.
    problem = (error.strerror or str(error)).lower()
    return f"{error.filename}: {problem}" if error.filename else problem


def _usage_message(error: Any) -> str:
    """Return the problem of the command line in one line; "" if typer printed the help instead."""
    message = error.format_message().removeprefix("Invalid value: ")
    # pydantic puts these words before the text of an error.
    message = " ".join(message.replace(": Value error, ", ": ").split())
    if not message or _is_of_command(error):
        return message
    where = error.ctx.command_path if error.ctx else "spark-jetstream"
    return f"{message.removesuffix('.')} (see {where} --help)"


def _is_of_command(error: Any) -> bool:
    """Return whether a command itself has raised the error, which then says what to do."""
    # typer fills in the parameter of the errors that it finds itself.
    return type(error) is typer.BadParameter and error.param is None and error.param_hint is None
