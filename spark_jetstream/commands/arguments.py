"""Arguments and options that several commands have, with what a shell may complete them to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from spark_jetstream.admin.manager import JetStreamAdmin
from spark_jetstream.commands.framework import Run, connection_options
from spark_jetstream.errors import JetStreamError
from spark_jetstream.units import Nanoseconds, minutes_or_months, shown

_MOST = 100  # that a shell is given to choose from
_QUICKLY = "2s"  # nobody waits longer for a list of names


def completion(
    names: Callable[[JetStreamAdmin, dict[str, Any]], Iterator[str]],
) -> Callable[[typer.Context, str], list[str]]:
    """What completes a name: ``names`` gets a `JetStreamAdmin` and what is on the line already. A server that cannot
    be asked completes nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        given = {**(ctx.find_root().params or {}), **{k: v for k, v in ctx.params.items() if v is not None}}
        with contextlib.suppress(JetStreamError, typer.BadParameter):
            quick = SecretStr(_QUICKLY)
            options = {"requestTimeout": quick, "connectTimeout": quick, **connection_options(given)}
            found = names(Run(options, as_json=False).admin, given)
            return list(islice((name for name in found if name.startswith(incomplete)), _MOST))
        return []

    return complete


def _consumers(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    yield from admin.consumers.names(given.get("stream", ""))


complete_stream = completion(lambda admin, given: admin.streams.names())
complete_consumer = completion(_consumers)

StreamName = Annotated[str, typer.Argument(help="Name of the stream.", autocompletion=complete_stream)]
ConsumerName = Annotated[str, typer.Argument(help="Name of the consumer.", autocompletion=complete_consumer)]


def _duration(text: str | Nanoseconds) -> Nanoseconds:
    if isinstance(text, Nanoseconds):  # a default
        return text
    try:
        return Nanoseconds.of(text)
    except ValueError:
        said = f"{shown(text)} is no duration such as 10s, 5m or 1h30m{minutes_or_months(text)}"
        raise typer.BadParameter(said) from None


DURATION: dict[str, Any] = {"parser": _duration, "metavar": "DURATION"}
"""What makes an option a duration: ``Annotated[Nanoseconds, typer.Option(**DURATION, help=...)]``."""

Preferred = Annotated[str | None, typer.Option(help="The server that should lead (server 2.11).")]

Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask.", show_default=False)]
