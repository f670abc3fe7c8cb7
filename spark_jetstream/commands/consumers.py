"""``spark-jetstream consumer``: looking at consumers, and removing them; the other commands are in ``consumer_*``."""

from __future__ import annotations

from spark_jetstream.commands.arguments import ConsumerName, Force, StreamName
from spark_jetstream.commands.consumer_changing import changing
from spark_jetstream.commands.consumer_text import print_consumer, print_consumers
from spark_jetstream.commands.consumer_using import using
from spark_jetstream.commands.framework import Run, command, group
from spark_jetstream.commands.showing import print_names
from spark_jetstream.durables import RUN

consumer = group("consumer", "Consumers: list, create, change, pause, reset, try out, remove.")


@command(consumer, "ls", example="consumer ls ORDERS")
def show_all(run: Run, stream: StreamName) -> None:
    """The consumers of a stream: kind, filters, and how far they are."""
    print_consumers(run, run.admin.consumers.infos(stream))


@command(consumer, "names", example="consumer names ORDERS")
def show_names(run: Run, stream: StreamName) -> None:
    """The names of a stream's consumers, a line each; takes fewer permissions than ls."""
    print_names(run, run.admin.consumers.names(stream))


@command(consumer, "info", example="consumer info ORDERS billing")
def info(run: Run, stream: StreamName, name: ConsumerName) -> None:
    """Configuration and state of a consumer."""
    print_consumer(run, run.admin.consumers.load(stream, name))


@command(consumer, "rm", example="consumer rm ORDERS billing")
def remove(run: Run, stream: StreamName, name: ConsumerName, force: Force = False) -> None:
    """Delete a consumer.

    Its position is lost, and on a stream with interest retention the messages that only it waited for.
    """
    found = run.admin.consumers.load(stream, name)
    lost = f", which has {found.lag:,} messages to process" if found.lag else ""
    lost += ", and by which a Spark query keeps its position" if RUN in found.config.metadata else ""
    run.out.confirm(f"Delete consumer {name} of stream {stream}{lost}?", force=force)
    run.admin.consumers.delete(stream, name)
    run.out.done(f"consumer {name} of stream {stream} was deleted", stream=stream, consumer=name, deleted=True)


consumer.add_typer(changing)
consumer.add_typer(using)
