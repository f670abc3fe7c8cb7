"""``spark-jetstream consumer``: what works on a consumer without changing its configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_jetstream.admin.delivered import ACKS, DeliveredMessage
from spark_jetstream.admin.placing import replicas
from spark_jetstream.commands.arguments import DURATION, ConsumerName, Force, Preferred, StreamName
from spark_jetstream.commands.framework import FAILED, Run, alone, command
from spark_jetstream.commands.message_text import message_data, print_message
from spark_jetstream.commands.output import as_data
from spark_jetstream.commands.showing import rounded
from spark_jetstream.units import Nanoseconds

using = alone()

_SECOND = 1_000_000_000
_WAIT = Nanoseconds(5 * _SECOND)


@command(using, "pause", example="consumer pause ORDERS billing 10m")
def pause(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    until: Annotated[
        str,
        typer.Argument(
            help="A time such as 2026-03-01T12:00:00Z, or for how long: 10m, counted by the server's clock."
        ),
    ],
) -> None:
    """Deliver nothing for a while; what comes in waits. Needs server 2.11."""
    reply = run.admin.consumers.pause(stream, consumer, until)
    run.out.done(
        f"consumer {consumer} of stream {stream} is paused until {reply.pause_until}, "
        f"for {rounded(reply.pause_remaining)}",
        **as_data(reply),
    )


@command(using, "resume", example="consumer resume ORDERS billing")
def resume(run: Run, stream: StreamName, consumer: ConsumerName) -> None:
    """Deliver again what a pause held back. Needs server 2.11."""
    reply = run.admin.consumers.resume(stream, consumer)
    run.out.done(f"consumer {consumer} of stream {stream} delivers", **as_data(reply))


@command(using, "reset", example="consumer reset ORDERS billing --sequence 1000")
def reset(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    sequence: Annotated[int | None, typer.Option(help="The stream sequence to go on at.")] = None,
    force: Force = False,
) -> None:
    """Let a consumer go on at another sequence of the stream. Needs server 2.14.

    Without one it goes on behind the message up to which all is acknowledged. What lies behind the sequence is
    delivered, again if need be; what lies before it is not, and counts as acknowledged.
    """
    what = f"consumer {consumer} of stream {stream}"
    info = run.admin.consumers.load(stream, consumer)
    to = "behind what is acknowledged" if sequence is None else f"to sequence {sequence:,}"
    last = info.delivered.stream_seq
    question = f"Set {what} {to}? The last message that it delivered is {last:,}." if last else f"Set {what} {to}?"
    run.out.confirm(question, force=force)
    reply = run.admin.consumers.reset(stream, consumer, sequence)
    run.out.done(
        f"{what} goes on at sequence {reply.reset_seq:,}, with {reply.num_pending:,} to deliver", **as_data(reply)
    )


@command(using, "next", example="consumer next ORDERS billing --count 5 --no-ack")
def show_next(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many messages, at most.")] = 1,
    ack: Annotated[
        str,
        typer.Option(
            metavar="|".join(ACKS),
            help="ack settles each message, nak has it delivered again, term never again, none leaves it to ack_wait.",
            autocompletion=lambda: list(ACKS),
        ),
    ] = "ack",
    no_ack: Annotated[bool, typer.Option("--no-ack", help="The same as --ack none.", show_default=False)] = False,
    wait: Annotated[Nanoseconds, typer.Option(**DURATION, help="How long to wait for the first message.")] = _WAIT,
    group: Annotated[str | None, typer.Option(help="The priority group, where the consumer has one.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the content, as it is.", show_default=False)] = False,
) -> None:
    """Messages of a pull consumer: what there is, or what comes while this waits.

    To have a look, not to process a stream. They are acknowledged, so nobody else gets them, unless you say --no-ack.
    Ends with 1 when nothing comes.
    """
    if no_ack and ack not in ("ack", "none"):
        raise typer.BadParameter(f"--no-ack and --ack {ack} contradict each other")
    if raw and run.out.as_json:
        raise typer.BadParameter("--raw and --json contradict each other")
    how = "none" if no_ack else ack
    found = run.admin.consumers.next(
        stream,
        consumer,
        count,
        timeout=wait / _SECOND,
        ack=how,  # type: ignore[arg-type]  # `next` checks it
        group=group,
    )
    if raw:
        for each in found:
            run.out.raw(each.message.data)
    elif run.out.as_json:
        run.out.record({}, data=[_as_data(each) for each in found])
    else:
        for each in found:
            _print(run, each)
    if not found:
        run.out.note(f"nothing came from consumer {consumer} of stream {stream} within {wait}")
        raise typer.Exit(FAILED)


@command(using, "unpin", example="consumer unpin ORDERS billing workers")
def unpin(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    group: Annotated[str, typer.Argument(help="The priority group.")],
) -> None:
    """Take the place of the pinned client of a priority group away. Needs server 2.11.

    The next one that pulls gets it. Fails when the consumer has no such group.
    """
    run.admin.consumers.unpin(stream, consumer, group)
    said = f"group {group} of consumer {consumer} of stream {stream} has no pinned client any more"
    run.out.done(said, stream=stream, consumer=consumer, group=group)


@command(using, "step-down", example="consumer step-down ORDERS billing --preferred n2")
def step_down(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    preferred: Preferred = None,
) -> None:
    """Let the leader of a consumer give way to another server of the cluster.

    Done when it has agreed: the servers elect another one within seconds.
    """
    before = replicas(run.admin.consumers.load(stream, consumer).cluster)
    leader = next((each.server for each in before if each.leader), None)
    run.admin.consumers.step_down(stream, consumer, preferred=preferred)
    run.out.done(
        f"{leader or 'the leader'} steps down from consumer {consumer} of stream {stream}",
        stream=stream,
        consumer=consumer,
        leader_before=leader,
        preferred=preferred,
    )


def _as_data(each: DeliveredMessage) -> dict[str, object]:
    delivery = {"deliveries": each.deliveries, "consumer_seq": each.consumer_seq, "pending": each.pending}
    return {**message_data(each.message), "consumer": each.consumer, **delivery}


def _print(run: Run, each: DeliveredMessage) -> None:
    times = f", delivered {each.deliveries:,} times" if each.deliveries > 1 else ""
    print_message(run, each.message, f"{times}, {each.pending:,} to come")
