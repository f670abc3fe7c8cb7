"""``spark-jetstream stream``: what removes messages, or all of a stream."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_jetstream.commands.arguments import Force, StreamName
from spark_jetstream.commands.framework import Run, alone, command

removing = alone()


@command(removing, "purge", example="stream purge ORDERS --subject 'orders.eu.>' --keep 10")
def purge(
    run: Run,
    stream: StreamName,
    subject: Annotated[str | None, typer.Option(help="Only messages on this subject; wildcards allowed.")] = None,
    sequence: Annotated[int | None, typer.Option(min=0, help="Only messages before this sequence.")] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="All but so many of the last.")] = None,
    force: Force = False,
) -> None:
    """Remove messages of a stream; all of them, if nothing else is said."""
    which = [f" on {subject}" if subject is not None else ""]
    which += [f" before sequence {sequence:,}"] if sequence is not None else []
    which += [f" but the last {keep:,}"] if keep is not None else []
    run.out.confirm(f"Remove all messages{''.join(which)} of stream {stream}?", force=force)
    purged = run.admin.streams.purge(stream, subject=subject, sequence=sequence, keep=keep)
    run.out.done(f"{purged:,} messages of stream {stream} were removed", stream=stream, purged=purged)


@command(removing, "rm", example="stream rm ORDERS_TEST --force")
def remove(run: Run, stream: StreamName, force: Force = False) -> None:
    """Delete a stream with its messages and its consumers."""
    if not force:
        state = run.admin.streams.load(stream).state
        held = f"{state.messages:,} messages and {state.consumer_count:,} consumers"
        run.out.confirm(f"Delete stream {stream} with {held}?", force=force)
    run.admin.streams.delete(stream)
    run.out.done(f"stream {stream} was deleted", stream=stream, deleted=True)
