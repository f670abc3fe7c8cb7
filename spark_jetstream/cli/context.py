"""``spark-jetstream context`` and ``spark-jetstream rtt``: what commands can connect to, and how far away it is."""

from __future__ import annotations

import time
from statistics import mean
from typing import Annotated

import typer
from typer import Option

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.errors import OptionError

contexts = group("context", "Contexts of the nats tool: servers and credentials under a name, for --context.")
rtt = typer.Typer()


@command(contexts, "ls", example="context ls")
def show_all(run: Run) -> None:
    """List the contexts that the nats tool has stored, with their servers. Credentials are not shown.

    The selected one counts where neither options nor NATS_* variables name another. A context that cannot be used is
    listed with the reason.
    """
    from spark_jetstream.options.contexts import context_names, context_options, selected_context

    selected = selected_context()
    rows = []
    for name in context_names():
        servers, problem = "", ""
        try:
            servers = context_options(name).get("servers", "")
        except OptionError as error:
            problem = str(error)
        rows.append({"name": name, "selected": name == selected, "servers": servers, "problem": problem})
    run.out.table(
        rows,
        {
            "name": lambda row: row["name"],
            "selected": lambda row: "yes" if row["selected"] else "",
            "servers": lambda row: row["servers"],
            "": lambda row: row["problem"],
        },
        data=dict,
        empty="there are no contexts: the nats tool makes them",
    )


@command(rtt, "rtt", example="rtt --count 10")
def measure(run: Run, count: Annotated[int, Option(min=1, max=1000, help="How many times, 1 to 1,000.")] = 5) -> None:
    """Measure round trips to the server, from PING to PONG.

    All are made on one connection. JSON has seconds.
    """
    from spark_jetstream.client.pool import connect

    connection = connect(run.admin.options)
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.check()
        times.append(time.perf_counter() - begun)
    seconds = {"fastest": min(times), "mean": mean(times), "slowest": max(times)}
    sentence = ", ".join(f"{name} {value * 1000:.2f} ms" for name, value in seconds.items())
    run.out.done(f"{sentence}, of {count:,}", **seconds, count=count)
