"""Showing what would change, asking, and changing it: for one stream or consumer, and for a whole plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from spark_jetstream.admin.differences import Difference
from spark_jetstream.admin.plan import difference_data, difference_words
from spark_jetstream.commands.framework import FAILED, Run

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.", show_default=False)
]


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
