"""The command line: ``spark-jetstream``."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated, Any

import spark_jetstream
from spark_jetstream.errors import JetStreamError

try:
    import typer

    from spark_jetstream.commands import framework
    from spark_jetstream.commands.all import GROUPS
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("typer", "rich"):
        raise
    raise SystemExit(f"spark-jetstream: {missing} is missing: pip install 'spark-jetstream[cli]'") from error

app = typer.Typer(name="spark-jetstream", no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spark-jetstream {spark_jetstream.__version__}")
        raise typer.Exit


def _root(ctx: typer.Context, **given: Any) -> None:
    """Read and write NATS JetStream with Apache Spark, and administer it.

    Options that come before the command count for it as well, as with the nats CLI.
    """
    ctx.obj = {"options": framework.connection_options(given), "as_json": given["as_json"]}


_VERSION = inspect.Parameter(
    "version",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ],
)
app.callback(epilog="Example: spark-jetstream demo --messages 50000")(framework.signed(_root, [_VERSION]))


@app.command(epilog="Example: spark-jetstream demo --messages 50000 --json")
def demo(
    messages: Annotated[
        int | None, typer.Option(min=1, help="Load only the first so many of the 336,776 flights.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Stream a year of flights through an embedded server and Spark, and check the sums with pandas.

    Needs no server and no Java. Ends with 1 when Spark and pandas differ.
    """
    try:
        from spark_jetstream.demo import run

        code = run(messages, as_json=as_json)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "spark_jetstream"):
            raise
        raise SystemExit(f"spark-jetstream: {missing} is missing: pip install 'spark-jetstream[demo]'") from error
    raise typer.Exit(code)


for group in GROUPS:
    app.add_typer(group)


def main() -> None:
    """Entry point of the console script.

    An error of this package is one line on standard error, and an exit code of `framework`.
    """
    try:
        app()
    except JetStreamError as error:
        typer.echo(f"spark-jetstream: {error}", err=True)
        raise SystemExit(framework.exit_code(error)) from error
    except BrokenPipeError as error:
        # Whoever read this has seen enough. Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(framework.FAILED) from error
