"""``spark-jetstream stream``: backup and restore."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.commands.arguments import StreamName
from spark_jetstream.commands.fields import with_fields
from spark_jetstream.commands.framework import FAILED, Run, alone, command

saving = alone()


@command(saving, "backup", example="stream backup ORDERS /backups/orders-2026-03-01")
def backup(
    run: Run,
    stream: StreamName,
    target: Annotated[
        str, typer.Argument(help="Where to: a single file when it ends with .tar, else a directory that is made.")
    ],
    consumers: Annotated[bool, typer.Option("--consumers/--no-consumers", help="With its consumers.")] = True,
    check: Annotated[
        bool,
        typer.Option("--check", help="Let a server before 2.15 check all messages first.", show_default=False),
    ] = False,
) -> None:
    """Save a stream with its messages and consumers. The target is there when it is complete, and not before.

    It has a checksum, and is what "nats stream restore" reads, too.
    """
    with run.out.progress(f"Saving {stream}") as progress:
        made = run.admin.streams.backup(stream, target, consumers=consumers, check=check, progress=progress)
    state, manifest = made.reply.state, made.manifest
    run.out.done(
        f"stream {stream} was saved at {made.path}: {state.messages:,} messages in {int(manifest.data_bytes):,} bytes, "
        f"SHA-256 {manifest.data_sha256}",
        stream=stream,
        path=str(made.path),
        messages=state.messages,
        bytes=int(state.bytes),
        consumers=consumers,
        data_bytes=int(manifest.data_bytes),
        sha256=manifest.data_sha256,
    )


@command(saving, "restore", example="stream restore /backups/orders-2026-03-01 --name ORDERS_OLD --subjects 'old.>'")
@with_fields(StreamConfig, without=("name",), unset=True)
def restore(
    run: Run,
    source: Annotated[str, typer.Argument(help="The directory or the .tar file of the backup.")],
    fields: dict[str, Any],
    name: Annotated[str | None, typer.Option(help="Another name for the stream.", show_default=False)] = None,
) -> None:
    """Make a stream again from a backup, with its messages and consumers.

    The backup is checked before anything is sent. Ends with 1, and says so, when the stream is not what it was. Options
    change its configuration: other subjects, where those of the backup belong to a stream that exists.
    """
    # Once until it is checked, and once more until it is sent.
    with run.out.progress(f"Restoring {name or source}") as progress:
        found = run.admin.streams.restore(source, name, checking=progress, progress=progress, **fields)
    state, stream = found.info.state, found.info.config.name
    checked = f"its checksum was right, SHA-256 {found.sha256}" if found.sha256 else "it had no checksum"
    for note in found.notes:
        run.out.note(f"note: {note}")
    for difference in found.differences:
        run.out.note(f"not as it was: {difference}")
    run.out.done(
        f"stream {stream} was restored from {source}: {state.messages:,} messages; {checked}",
        stream=stream,
        messages=state.messages,
        bytes=int(state.bytes),
        consumers=state.consumer_count,
        sha256=found.sha256 or None,
        differences=list(found.differences),
        notes=list(found.notes),
    )
    if found.differences:
        raise typer.Exit(FAILED)
