"""``spark-jetstream context`` and ``rtt``: servers to connect to, and how far away they are."""

from __future__ import annotations

from statistics import mean
from typing import Annotated

import typer
from typer import Argument, BadParameter, Option

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import Force
from spark_jetstream.errors import OptionError

contexts = group(
    "context",
    "Contexts of the nats tool: servers and credentials by name.",
)
rtt = typer.Typer()

ContextName = Annotated[str, Argument(help="Name of the context.")]


@command(contexts, "ls", example="context ls")
def show_all(run: Run) -> None:
    """List the contexts, with their servers. Credentials are not shown.

    The selected one counts where neither options nor NATS_* variables name another. A context that
    cannot be used is listed with the reason.
    """
    from spark_jetstream.options.contexts import context_names, context_options, selected_context

    selected = selected_context()
    contexts = []
    for name in context_names():
        servers = ""
        problem = ""
        try:
            servers = _shown(context_options(name)).get("servers", "")
        except OptionError as error:
            # One context that cannot be used, such as one with a missing file, must not hide the
            # others.
            problem = str(error)
        contexts.append(
            {"name": name, "selected": name == selected, "servers": servers, "problem": problem},
        )
    empty = "there are no contexts: context save makes one"
    run.out.table(contexts, _row, data=dict, empty=empty)


def _row(context: dict[str, object]) -> dict[str, object]:
    return {
        "name": context["name"],
        "selected": "yes" if context["selected"] else "",
        "servers": context["servers"],
        "": context["problem"],
    }


@command(
    contexts,
    "save",
    example="context save production --server nats://a:4222 --creds ~/production.creds",
)
def save(
    run: Run,
    name: ContextName,
    description: Annotated[str | None, Option(help="The purpose of the context.")] = None,
    select: Annotated[bool, Option("--select", help="Let it be the selected one.")] = False,
) -> None:
    """Store the connection options of this command as a context, for --context and for the nats tool.

    Options that you do not give stay as they are in a context of this name. NATS_* variables are
    not stored. The file can be read by its owner alone. The shell's history keeps a secret that you
    type. Write env://VARIABLE or file://PATH in its place, as in --password
    env://PRODUCTION_PASSWORD. The context then holds that text, and is read with the secret in its
    place.
    """
    from spark_jetstream.admin import JetStreamAdmin
    from spark_jetstream.options.connection import ConnectionOptions
    from spark_jetstream.options.contexts import save_context, select_context
    from spark_jetstream.options.specs import given_options

    JetStreamAdmin(**run.given)  # which checks the options
    # As they were given: env://NAME stays a name, so the file holds no secret.
    path = save_context(name, given_options(run.given, ConnectionOptions.specs), description)
    if select:
        select_context(name)
    run.out.done(f"context {name} is stored in {path}", name=name, path=str(path), selected=select)


@command(contexts, "select", example="context select production")
def select(run: Run, name: ContextName) -> None:
    """Let commands, here and of the nats tool, use a context where nothing else names one.

    Options of a command count first, then --context, then NATS_CONTEXT, then the selected context.
    """
    from spark_jetstream.options.contexts import select_context

    select_context(name)
    run.out.done(f"context {name} is selected", name=name, selected=True)


@command(contexts, "show", example="context show production")
def show(
    run: Run,
    name: Annotated[str | None, Argument(help="The context, else the selected one.")] = None,
) -> None:
    """Show the connection options of a context. In place of a secret there are asterisks."""
    from spark_jetstream.options.contexts import context_options, selected_context

    name = name or selected_context()
    if name is None:
        raise BadParameter("no context is selected: name one, or select one with context select")
    options = _shown(context_options(name))
    selected = name == selected_context()
    run.out.record(
        options,
        data={"name": name, "selected": selected, "options": options},
        title=f"Context {name}",
    )


def _shown(options: dict[str, str]) -> dict[str, str]:
    """Return options with asterisks in place of secrets, and servers without paths."""
    from spark_jetstream.options.connection import ConnectionOptions
    from spark_jetstream.options.servers import address

    # The options say themselves which of them are secret: a new one is hidden too.
    secret = {spec.name for spec in ConnectionOptions.specs if spec.secret}
    shown = {option: "***" if option in secret else text for option, text in options.items()}
    if "servers" in shown:
        # The path of a URL may be a key.
        shown["servers"] = ",".join(map(address, shown["servers"].split(",")))
    return shown


@command(contexts, "rm", example="context rm production")
def remove(run: Run, name: ContextName, force: Force = False) -> None:
    """Delete a context. The selected one needs --force; then no context is selected."""
    from spark_jetstream.options.contexts import remove_context, selected_context

    # `remove_context` refuses the selected one without --force, so a question would be in vain.
    run.out.confirm(f"Delete context {name}?", force=force or name == selected_context())
    remove_context(name, force=force)
    run.out.done(f"context {name} was deleted", name=name, deleted=True)


@command(rtt, "rtt", example="rtt --count 10")
def measure(
    run: Run,
    count: Annotated[int, Option(min=1, max=1000, help="How many times, 1 to 1,000.")] = 5,
) -> None:
    """Measure round trips to the server, from PING to PONG.

    All are made on one connection. JSON has seconds.
    """
    # The first call connects; `rtt` is only the time from PING to PONG.
    times = [run.admin.account.connected()["rtt"] for _ in range(count)]
    seconds = {"fastest": min(times), "mean": mean(times), "slowest": max(times)}
    sentence = ", ".join(f"{name} {value * 1000:.2f} ms" for name, value in seconds.items())
    run.out.done(f"{sentence}, of {count:,}", **seconds, count=count)
