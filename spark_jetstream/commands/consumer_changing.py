"""``spark-jetstream consumer``: creating consumers, and changing their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from spark_jetstream.admin.consumer_models import ConsumerConfig
from spark_jetstream.admin.templates import DEFAULT_CONSUMER, template
from spark_jetstream.commands.applying import DryRun, change, created
from spark_jetstream.commands.arguments import ConsumerName, Force, StreamName
from spark_jetstream.commands.consumer_text import print_consumer
from spark_jetstream.commands.fields import with_fields
from spark_jetstream.commands.framework import Run, alone, command
from spark_jetstream.commands.stream_changing import ConfigFile

changing = alone()

#: The name is an argument, and the last two are the server's own.
_NO_OPTIONS = ("name", "durable_name", "direct", "sourcing")
_FILTERS = ("filter_subject", "filter_subjects")

AnyFilter = Annotated[
    bool,
    typer.Option("--any-filter", help="Allow filters that match no subject of the stream.", show_default=False),
]


@command(changing, "add", example="consumer add ORDERS billing --filter-subject 'orders.eu.>' --max-deliver 5")
@with_fields(ConsumerConfig, without=_NO_OPTIONS)
def add(
    run: Run,
    stream: StreamName,
    name: Annotated[str | None, typer.Argument(help="Its name; the server chooses one, if none is given.")] = None,
    config: ConfigFile = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Gone when nobody uses it for a while.", show_default=False)
    ] = False,
    durable_form: Annotated[
        bool,
        typer.Option(
            "--durable-form",
            help="Ask at CONSUMER.DURABLE.CREATE, as clients before server 2.9 did.",
            show_default=False,
        ),
    ] = False,
    any_filter: AnyFilter = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Create a consumer. One that exists with this configuration stays as it is; one that is different is an error.

    It is durable if you name it, unless you say --ephemeral; without NAME it is what the file says. Each message must
    be acknowledged (--ack-policy explicit) where neither options nor the file say something else.
    """
    wanted = _over({**DEFAULT_CONSUMER, **_read(config)}, fields)
    if name is not None:
        wanted |= {"name": name, "durable_name": name}
    if ephemeral:
        wanted |= {"name": wanted.get("name") or wanted.get("durable_name"), "durable_name": None}
    config_ = ConsumerConfig.parse(wanted, f"consumer of stream {stream}")
    known, consumers = config_.durable_name or config_.name, run.admin.consumers
    make = partial(consumers.create, stream, config_, durable_form=durable_form, any_filter=any_filter)
    load = partial(consumers.load, stream, known)
    print_consumer(run, created(run, f"consumer {known} of stream {stream}", load, make) if known else make())


@command(changing, "edit", example="consumer edit ORDERS billing --ack-wait 1m --unset max_deliver")
@with_fields(ConsumerConfig, without=("name", "direct", "sourcing"), unset=True)
def edit(
    run: Run,
    stream: StreamName,
    name: ConsumerName,
    config: ConfigFile = None,
    any_filter: AnyFilter = False,
    dry_run: DryRun = False,
    force: Force = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Change a consumer, after showing the differences and asking.

    What you do not name stays as it is. What the server can never change is refused with the reason, and then nothing
    is changed at all.
    """
    changes = _over(_read(config), fields)
    if not changes:
        raise typer.BadParameter("say what to change: an option for each field, --unset FIELD, or --config FILE")
    changes = _over(dict.fromkeys(_FILTERS) if changes.keys() & {*_FILTERS} else {}, changes)
    change(
        run,
        f"consumer {name} of stream {stream}",
        run.admin.consumers.plan(stream, name, changes),
        lambda: run.admin.consumers.update(stream, name, changes, any_filter=any_filter),
        data={"stream": stream, "consumer": name},
        force=force,
        dry_run=dry_run,
    )


@command(changing, "copy", example="consumer copy ORDERS billing billing-test --filter-subject orders.test")
@with_fields(ConsumerConfig, without=_NO_OPTIONS, unset=True)
def copy(
    run: Run,
    stream: StreamName,
    name: ConsumerName,
    new_name: Annotated[str, typer.Argument(help="Name of the new consumer.")],
    any_filter: AnyFilter = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Create a consumer with the configuration of another one of the stream.

    Options change it. It begins where its deliver policy says: the position of the other one is not copied.
    """
    consumers = run.admin.consumers
    make = partial(consumers.copy, stream, name, new_name, any_filter=any_filter, **fields)
    load = partial(consumers.load, stream, new_name)
    print_consumer(run, created(run, f"consumer {new_name} of stream {stream}", load, make))


def _read(config: str | None) -> dict[str, Any]:
    return {} if config is None else template(config, "configuration")


def _over(below: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Both together, where ``fields`` win; filters are one thing that can be written in two ways."""
    if fields.keys() & {*_FILTERS}:
        below = {**below, **{each: None for each in _FILTERS if each in below}}
    return {**below, **fields}
