"""Creating one stream, consumer or bucket; showing what would change of it, asking, and changing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar

import typer

from spark_jetstream.admin.differences import Difference
from spark_jetstream.admin.plan import difference_data, difference_words
from spark_jetstream.commands.framework import FAILED, Run
from spark_jetstream.errors import ConsumerNotFound, PermissionDenied, StreamNotFound

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
