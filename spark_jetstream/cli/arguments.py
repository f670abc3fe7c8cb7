"""Arguments and options that several commands have, with what a shell may complete them to.

Creating one stream, consumer or bucket; showing what would change of it, asking, and changing it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Protocol, TypeVar

import typer
from pydantic import SecretStr

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.changes import Difference
from spark_jetstream.admin.plan import difference_data, difference_words
from spark_jetstream.cli.app import FAILED, Run, connection_options
from spark_jetstream.errors import ConsumerNotFound, JetStreamError, PermissionDenied, StreamNotFound
from spark_jetstream.protocol.units import Nanoseconds, minutes_or_months, shown

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

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.", show_default=False)
]

CREATED = "was created"
UNCHANGED = "already exists, unchanged"


class Made(Protocol):
    """A stream, a consumer or a bucket, which says when it was created."""

    @property
    def created(self) -> str: ...


M = TypeVar("M", bound=Made)


def create(load: Callable[[], M], make: Callable[[], M]) -> tuple[M, str]:
    """Create a stream, a consumer or a bucket, and say what became of it: `CREATED` or `UNCHANGED`.

    A server gives the same answer for one that it creates and for one that exists with the same configuration, so
    ``load`` looks first. Where the account may not look it is "exists", which is true in both cases. Raises what
    ``make`` raises, and what ``load`` raises besides `StreamNotFound` and `ConsumerNotFound`.
    """
    before: M | None = None
    said = CREATED
    try:
        before = load()
    except (StreamNotFound, ConsumerNotFound):
        pass
    except PermissionDenied:
        said = "exists"
    info = make()
    return info, UNCHANGED if before is not None and before.created == info.created else said


def created(run: Run, what: str, load: Callable[[], M], make: Callable[[], M]) -> M:
    """`create`, with a note on standard error when ``what`` was not created."""
    info, done = create(load, make)
    if done != CREATED:
        run.out.note(f"{what} {done}")
    return info


def change(
    run: Run,
    what: str,
    found: Sequence[Difference],
    carry_out: Callable[[], Sequence[Difference]],
    *,
    data: Mapping[str, Any],
    force: bool,
    dry_run: bool = False,
) -> None:
    """Change something after showing how, field by field, and asking. Refused changes end with 1, and nothing is done.

    ``what`` is it in words, ``data`` what JSON says beside ``changed`` and ``differences``. ``carry_out`` returns what
    it has changed.
    """

    def report(said: str, differences: Sequence[Difference], *, changed: bool) -> None:
        run.out.done(said, **data, changed=changed, differences=[difference_data(each) for each in differences])

    for each in found:
        style = "red" if each.refused else "yellow" if each.risk else None
        run.out.text(f"    {difference_words(each)}", style=style)
    if any(each.refused for each in found):
        report(f"{what} cannot be changed so, and stays as it is", found, changed=False)
        raise typer.Exit(FAILED)
    if not found:
        report(f"{what}: nothing to change", found, changed=False)
    elif dry_run:
        report(f"{what} would be changed", found, changed=False)
    else:
        run.out.confirm(f"Change {what}?", force=force)
        report(f"{what} was changed", carry_out(), changed=True)
