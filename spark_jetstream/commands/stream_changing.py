"""``spark-jetstream stream``: creating, changing and copying streams, with an option for each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.admin.stream_replies import StreamInfo
from spark_jetstream.admin.templates import DEFAULT_STREAM, DEFAULT_WORK_QUEUE, template
from spark_jetstream.commands.applying import CREATED, DryRun, change, create
from spark_jetstream.commands.arguments import Force, StreamName
from spark_jetstream.commands.fields import with_fields
from spark_jetstream.commands.framework import Run, alone, command
from spark_jetstream.commands.output import as_data

changing = alone()

_TEMPLATES: Mapping[str, Mapping[str, Any]] = {"stream": DEFAULT_STREAM, "work-queue": DEFAULT_WORK_QUEUE}

NewName = Annotated[str, typer.Argument(help="Name of the new stream.")]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Fields from a JSON or YAML file; options win over it.",
        show_default=False,
    ),
]


@command(changing, "add", example="stream add ORDERS --subjects 'orders.>' --max-age 30d --max-bytes 10g")
@with_fields(StreamConfig, without=("name",))
def add(
    run: Run,
    name: NewName,
    fields: dict[str, Any],
    config: ConfigFile = None,
    begin_with: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="stream|work-queue|FILE",
            help="What to begin with: stream, unless there is a --config; a work queue; or a file of your own.",
            show_default=False,
            autocompletion=lambda incomplete: [each for each in _TEMPLATES if each.startswith(incomplete)],
        ),
    ] = None,
) -> None:
    """Create a stream. One that exists with this configuration stays as it is; one that is different is an error."""
    wanted = StreamConfig.parse({**_template(begin_with, config), **fields, "name": name}, f"stream {name}")
    streams = run.admin.streams
    _created(run, *create(lambda: streams.load(name), lambda: streams.create(wanted)))


@command(changing, "edit", example="stream edit ORDERS --max-age 60d --unset max-bytes --dry-run")
@with_fields(StreamConfig, without=("name",), unset=True)
def edit(
    run: Run,
    stream: StreamName,
    fields: dict[str, Any],
    config: ConfigFile = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Change a stream: shows what changes, and what cannot be undone, and asks.

    An option replaces its field as a whole: all subjects, all metadata. What is not given stays as it is.
    """
    changes = {**_file(config), **fields}
    if not changes:
        raise typer.BadParameter("nothing to change was given: name a field, such as --max-age 30d")
    streams = run.admin.streams
    change(
        run,
        f"stream {stream}",
        streams.plan(stream, changes),
        lambda: streams.update(stream, changes),
        data={"stream": stream},
        force=force,
        dry_run=dry_run,
    )


@command(changing, "copy", example="stream copy ORDERS ORDERS_TEST --subjects 'orders-test.>'")
@with_fields(StreamConfig, without=("name",), unset=True)
def copy(run: Run, stream: StreamName, name: NewName, fields: dict[str, Any]) -> None:
    """Create a stream with the configuration of another one; its messages stay behind.

    Two streams cannot store the same subject, so give it others, or --mirror ORDERS --unset subjects.
    """
    streams = run.admin.streams
    _created(run, *create(lambda: streams.load(name), lambda: streams.copy(stream, name, **fields)))


@command(changing, "seal", example="stream seal ORDERS_2025")
def seal(run: Run, stream: StreamName, dry_run: DryRun = False, force: Force = False) -> None:
    """Let nothing in and nothing out, for ever. Age limits end with it."""
    streams = run.admin.streams
    change(
        run,
        f"stream {stream}",
        streams.plan(stream, sealed=True),
        lambda: streams.seal(stream),
        data={"stream": stream},
        force=force,
        dry_run=dry_run,
    )


def _template(begin_with: str | None, config: str | None) -> dict[str, Any]:
    """The fields that a new stream begins with."""
    if begin_with is None:
        begun: Mapping[str, Any] = {} if config else DEFAULT_STREAM
    else:
        begun = _TEMPLATES[begin_with] if begin_with in _TEMPLATES else template(begin_with)
    return {**begun, **_file(config)}


def _file(config: str | None) -> dict[str, Any]:
    return {} if config is None else template(config, "configuration")


def _created(run: Run, info: StreamInfo, done: str) -> None:
    stores = ", ".join(info.config.subjects) or "what it copies"
    data = {**as_data(info), "did_create": done == CREATED}
    run.out.done(f"stream {info.config.name} {done}; it stores {stores}", **data)
