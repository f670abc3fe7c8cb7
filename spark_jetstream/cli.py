"""The command line: ``spark-jetstream``."""

from __future__ import annotations

from typing import Annotated

import spark_jetstream
from spark_jetstream.errors import JetStreamError

try:
    import typer
except ModuleNotFoundError as error:
    raise SystemExit(f"spark-jetstream: {error.name} is missing: pip install 'spark-jetstream[cli]'") from error

app = typer.Typer(
    name="spark-jetstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spark-jetstream {spark_jetstream.__version__}")
        raise typer.Exit


@app.callback(epilog="Example: spark-jetstream demo --messages 50000")
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read and write NATS JetStream with Apache Spark."""


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


def main() -> None:
    """Entry point of the console script.

    An error of this package is one line on standard error, and exit code 1.
    """
    try:
        app()
    except JetStreamError as error:
        raise SystemExit(f"spark-jetstream: {error}") from error
