"""``spark-jetstream consumer``: the commands about consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, BadParameter, Exit, Option

from spark_jetstream.cli import arguments
from spark_jetstream.cli.app import FAILED, Run, command, group
from spark_jetstream.cli.arguments import (
    ConfigFile,
    ConsumerName,
    DryRun,
    Force,
    Pedantic,
    Preferred,
    Raw,
    StreamName,
)
from spark_jetstream.cli.output import (
    ago,
    as_data,
    message_data,
    rounded,
    server_text,
    to_the_second,
)
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.protocol.units import Bytes, Nanoseconds, counted

if TYPE_CHECKING:
    from spark_jetstream.admin.deliveries import DeliveredMessage
    from spark_jetstream.admin.models.consumers import (
        ConsumerHandover,
        ConsumerInfo,
        PriorityGroup,
        SequenceInfo,
    )

AnyStream = Annotated[
    str | None,
    arguments.stream_argument(help="Its stream; all streams without it."),
]
_WAIT = Nanoseconds.of("5s")
_ACK_HELP = (
    "ack settles each message, nak has it delivered again, term never again, none leaves it to "
    "ack_wait."
)

consumers = group("consumer", "Consumers: list, create, change, pause, reset, try out, remove.")

# Looking and removing


@command(consumers, "ls", example="consumer ls ORDERS")
def show_all(run: Run, stream: StreamName) -> None:
    """List the consumers of a stream: kind, filters, and how many messages they have yet to deliver."""
    infos = run.admin.consumers.infos(stream)
    run.out.table(infos, _row, data=as_data, empty="there are no consumers")


@command(consumers, "find", example="consumer find ORDERS --idle 1h --pending 1000 --invert")
@arguments.with_fields("consumers", (), creates=True)
def find(run: Run, fields: dict[str, Any], stream: AnyStream = None) -> None:
    """List the consumers that meet all criteria."""
    infos = run.admin.consumers.find(stream, **fields)
    run.out.table(infos, _found_row, data=as_data, empty="no consumer meets all criteria")


def _found_row(info: ConsumerInfo) -> dict[str, object]:
    return {"stream": info.stream_name, **_row(info)}


def _row(info: ConsumerInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "kind": _kind(info),
        "filters": ", ".join(info.config.filters),
        "ack": info.config.ack_policy,
        "pending": info.num_pending,
        "waiting for ack": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "created": to_the_second(info.created),
        "": _remarks(info),
    }


@command(consumers, "names", example="consumer names ORDERS")
def show_names(run: Run, stream: StreamName) -> None:
    """Print the names of a stream's consumers, one a line. Needs fewer permissions than ls."""
    run.out.names(run.admin.consumers.names(stream))


@command(consumers, "info", example="consumer info ORDERS billing")
def info(run: Run, stream: StreamName, name: ConsumerName) -> None:
    """Show the configuration and the state of a consumer."""
    print_consumer(run, run.admin.consumers.load(stream, name))


@command(consumers, "handover", example="consumer handover ORDERS billing")
def show_handover(run: Run, stream: StreamName, name: ConsumerName) -> None:
    """Show where a query begins that takes over from a consumer (option startingConsumer).

    It begins after the messages that the consumer has acknowledged without a gap. Nothing is
    changed on the server.
    """
    handover = run.admin.consumers.handover(stream, name)
    title = f"A query that takes over from consumer {name} of stream {stream}"
    data = as_data(handover) | {"options": handover.options}
    run.out.record(_handover(handover), data=data, title=title)
    run.out.text("")
    for key, value in handover.options.items():
        run.out.text(f'.option("{key}", "{value}")')


def _handover(handover: ConsumerHandover) -> dict[str, object]:
    first = "none yet"
    if handover.first_message is not None:
        first = f"sequence {handover.first_message:,}, stored at {handover.first_time}"
    use = "not in use"
    if handover.active:
        pause = f"spark-jetstream consumer pause {handover.stream} {handover.consumer} 1d"
        use = f"in use: stop its clients, or run {pause}"
    elif handover.paused:
        use = "paused"
    return {
        "begins at": f"sequence {handover.first_sequence:,}",
        "first message": first,
        "messages to read": f"{handover.messages:,}",
        "never delivered": f"{handover.not_delivered:,}",
        "delivered, read again": f"{handover.read_again:,}",
        "of these not acknowledged": f"{handover.ack_pending:,}",
        "of these acknowledged": f"{handover.acknowledged:,}",
        "ack floor": f"{handover.ack_floor:,}",
        "last delivered": f"{handover.delivered:,}",
        "ack policy": handover.ack_policy,
        "filters": ", ".join(handover.filters),
        "the consumer is": use,
    }


@command(consumers, "rm", example="consumer rm ORDERS billing")
def remove(run: Run, stream: StreamName, name: ConsumerName, force: Force = False) -> None:
    """Delete a consumer.

    Its position is lost, and on a stream with interest retention the messages that only it waited
    for.
    """
    # The question names the messages that are lost. A name with a typing error fails before it.
    consumer = run.admin.consumers.load(stream, name)
    lost = ""
    if consumer.lag:
        lost += f", which has {counted(consumer.lag, 'message')} to process"
    # The query fails without its consumer, and a new one has no position.
    if RUN in consumer.config.metadata:
        lost += ", and by which a Spark query keeps its position"
    run.out.confirm(f"Delete consumer {name} of stream {stream}{lost}?", force=force)
    run.admin.consumers.delete(stream, name)
    run.out.done(
        f"consumer {name} of stream {stream} was deleted",
        stream=stream,
        consumer=name,
        deleted=True,
    )


def print_consumer(run: Run, info: ConsumerInfo) -> None:
    """Print the configuration and the state of a consumer; as JSON, the reply of the API."""
    title = f"Consumer {info.name} of stream {info.stream_name}"
    run.out.record(_configuration(info), data=as_data(info), title=title)
    run.out.text("")
    run.out.record(_state(info), title="State")


def _configuration(info: ConsumerInfo) -> dict[str, object]:
    """Return the kind, the time of creation, and the fields that the server has set."""
    from spark_jetstream.cli.field_options import field_words

    config = info.config
    shown: dict[str, object] = {"kind": _kind(info), "created": info.created}
    for name in config.field_names:
        # The title has the name.
        # The server leaves out fields that have their defaults.
        if name in config.model_fields_set and name not in ("name", "durable_name"):
            # The meaning of 0 and -1 in words.
            shown[name] = field_words(config, name)
    return shown


def _state(info: ConsumerInfo) -> dict[str, object]:
    from spark_jetstream.admin.models.streams import replicas

    return {
        "to be delivered": f"{info.num_pending:,}",
        "waiting for ack": f"{info.num_ack_pending:,}",
        "redelivered": f"{info.num_redelivered:,}",
        # The server pushes to a push consumer, so no client pulls from it.
        "pulls that wait": "" if info.config.push else f"{info.num_waiting:,}",
        "last delivered": _position(info.delivered, info),
        "all acknowledged up to": _position(info.ack_floor, info),
        "priority groups": "; ".join(map(_pinned, info.priority_groups)),
        "servers": ", ".join(map(server_text, replicas(info.cluster))),
        "remarks": _remarks(info),
    }


def _pinned(group: PriorityGroup) -> str:
    """Return the client that is pinned to a priority group, and since when."""
    if not group.pinned_client_id:
        return f"{group.group}: no client is pinned"
    return f"{group.group}: pinned to {group.pinned_client_id} since {group.pinned_ts}"


def _kind(info: ConsumerInfo) -> str:
    delivery = "push" if info.config.push else "pull"
    life = "durable" if info.config.durable_name else "ephemeral"
    return f"{delivery}, {life}"


def _remarks(info: ConsumerInfo) -> str:
    """Return the push subject, priority groups, Spark query and pause of a consumer, if any."""
    config = info.config
    remarks = []
    if config.push:
        group = f" in queue group {config.deliver_group}" if config.deliver_group else ""
        bound = "" if info.push_bound else ", which has no subscriber"
        remarks.append(f"delivers to {config.deliver_subject}{group}{bound}")
    if config.priority_groups:
        remarks.append(f"{config.priority_policy} in group {', '.join(config.priority_groups)}")
    if SINCE in config.metadata:
        remarks.append(f"Spark query since {config.metadata[SINCE]}")
    if info.paused:
        remarks.append(f"paused for {rounded(info.pause_remaining)}")
    return "; ".join(remarks)


def _position(at: SequenceInfo, info: ConsumerInfo) -> str:
    """Return the sequences of a delivery or an acknowledgement, and how long ago it was."""
    # Sequences begin at 1.
    if not at.consumer_seq and not at.stream_seq:
        return "nothing"
    position = f"stream sequence {at.stream_seq:,}, delivery {at.consumer_seq:,}"
    # An older server does not say its time, and the clock here may differ.
    if at.last_active is None or at.last_active.never or info.ts.never:
        return position
    # `ts` is the server's clock.
    age = max(0, info.ts.nanoseconds - at.last_active.nanoseconds)
    return f"{position}, {ago(Nanoseconds(age))}"


# Creating and changing

#: The name is an argument, and the last two are the server's own.
_NO_OPTIONS = ("name", "durable_name", "direct", "sourcing")
_FILTERS = ("filter_subject", "filter_subjects")
_COMMON = (
    *_FILTERS, "description", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy",
    "ack_wait", "max_deliver", "backoff", "max_ack_pending", "inactive_threshold", "num_replicas",
)  # fmt: skip


@command(
    consumers,
    "add",
    example="consumer add ORDERS billing --filter-subject 'orders.eu.>' --max-deliver 5",
)
@arguments.with_fields("consumer", _COMMON, without=_NO_OPTIONS, creates=True)
def add(
    run: Run,
    stream: StreamName,
    name: Annotated[
        str | None,
        Argument(help="Its name; the server chooses one, if none is given."),
    ] = None,
    config: ConfigFile = None,
    ephemeral: Annotated[
        bool,
        Option("--ephemeral", help="Gone when nobody uses it for a while."),
    ] = False,
    durable_form: Annotated[
        bool,
        Option(
            "--durable-form",
            help="Ask at CONSUMER.DURABLE.CREATE, as clients before server 2.9 did.",
        ),
    ] = False,
    any_filter: arguments.AnyFilter = False,
    pedantic: Pedantic = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Create a consumer. One that exists with this configuration stays as it is; one that is different is an error.

    It is durable if you name it, unless you say --ephemeral; without NAME it is what the file says.
    Each message must be acknowledged (--ack-policy explicit) where neither options nor the file say
    something else.
    """
    from spark_jetstream.admin.models.consumers import DEFAULT_CONSUMER, ConsumerConfig

    # Options win over the file, and the file wins over the defaults of this command.
    wanted = _over({**DEFAULT_CONSUMER, **arguments.file_fields(config)}, fields)
    if name is not None:
        wanted |= {"name": name, "durable_name": name}
    if ephemeral:
        # An ephemeral consumer may have a name; only a durable one has `durable_name`.
        wanted |= {"name": wanted.get("name") or wanted.get("durable_name"), "durable_name": None}
    # Parsed here, so that a wrong field is an error before the first request.
    parsed = ConsumerConfig.parse(wanted, f"consumer of stream {stream}")
    known = parsed.durable_name or parsed.name
    admin = run.admin.consumers

    def load() -> ConsumerInfo | None:
        # A consumer without a name gets a new one from the server, so none exists yet.
        return admin.load(stream, known) if known else None

    make = partial(
        admin.create,
        stream,
        parsed,
        durable_form=durable_form,
        any_filter=any_filter,
        pedantic=pedantic,
    )
    print_consumer(run, arguments.created(run, _noun, load, make))


@command(
    consumers,
    "edit",
    example="consumer edit ORDERS billing --ack-wait 1m --unset max_deliver",
)
@arguments.with_fields("consumer", _COMMON, without=("name", "direct", "sourcing"))
def edit(
    run: Run,
    stream: StreamName,
    name: ConsumerName,
    config: ConfigFile = None,
    any_filter: arguments.AnyFilter = False,
    pedantic: Pedantic = False,
    dry_run: DryRun = False,
    force: Force = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Change a consumer, after showing the differences and asking.

    Fields that you do not name stay as they are. A change that the server can never make is refused
    with the reason, and then nothing is changed at all.
    """
    changes = _over(_over({}, arguments.file_fields(config)), fields)
    if not changes:
        raise BadParameter(
            "say what to change: an option for each field, --unset FIELD, or --config FILE",
        )
    admin = run.admin.consumers
    differences = admin.plan(stream, name, changes)
    update = partial(
        admin.update,
        stream,
        name,
        changes,
        any_filter=any_filter,
        pedantic=pedantic,
    )
    asset = {"stream": stream, "consumer": name}
    arguments.change(run, asset, differences, update, force=force, dry_run=dry_run)


@command(
    consumers,
    "copy",
    example="consumer copy ORDERS billing billing-test --filter-subject orders.test",
)
@arguments.with_fields("consumer", _COMMON, without=_NO_OPTIONS)
def copy(
    run: Run,
    stream: StreamName,
    name: ConsumerName,
    new_name: Annotated[str, Argument(help="Name of the new consumer.")],
    any_filter: arguments.AnyFilter = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Create a consumer with the configuration of another one of the stream.

    Options change it. It begins where its deliver policy says: the position of the other one is not
    copied.
    """
    admin = run.admin.consumers
    make = partial(admin.copy, stream, name, new_name, any_filter=any_filter, **fields)
    load = partial(admin.load, stream, new_name)
    print_consumer(run, arguments.created(run, _noun, load, make))


def _noun(info: ConsumerInfo) -> str:
    return f"consumer {info.name} of stream {info.stream_name}"


def _over(below: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``below`` updated with ``fields``."""
    if fields.keys() & {*_FILTERS}:
        # One filter or a list: either form replaces the other.
        below = {**below, **dict.fromkeys(_FILTERS)}
    return {**below, **fields}


# Using


@command(consumers, "pause", example="consumer pause ORDERS billing 10m")
def pause(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    until: Annotated[
        str,
        Argument(
            help="A time such as 2026-03-01T12:00:00Z, or for how long: 10m, counted by the "
            "server's clock.",
        ),
    ],
) -> None:
    """Pause a consumer: it delivers nothing for a while. Needs server 2.11."""
    reply = run.admin.consumers.pause(stream, consumer, until)
    run.out.done(
        f"consumer {consumer} of stream {stream} is paused until {reply.pause_until}, "
        f"for {rounded(reply.pause_remaining)}",
        **as_data(reply),
    )


@command(consumers, "resume", example="consumer resume ORDERS billing")
def resume(run: Run, stream: StreamName, consumer: ConsumerName) -> None:
    """End the pause of a consumer. Needs server 2.11."""
    reply = run.admin.consumers.resume(stream, consumer)
    run.out.done(f"consumer {consumer} of stream {stream} delivers", **as_data(reply))


@command(consumers, "reset", example="consumer reset ORDERS billing --sequence 1000")
def reset(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    sequence: Annotated[int | None, Option(help="The sequence to continue at.")] = None,
    force: Force = False,
) -> None:
    """Set the sequence of the stream at which a consumer continues. Needs server 2.14.

    Without --sequence it continues after the message up to which all are acknowledged. It delivers
    the messages from the sequence on, again if need be. Those before it count as acknowledged.
    """
    noun = f"consumer {consumer} of stream {stream}"
    # A reset cannot be taken back: the question says where the consumer is now.
    info = run.admin.consumers.load(stream, consumer)
    to = "after what is acknowledged" if sequence is None else f"to sequence {sequence:,}"
    question = f"Set {noun} {to}?"
    if last := info.delivered.stream_seq:
        question += f" The last message that it delivered is {last:,}."
    if RUN in info.config.metadata:
        # The query notices that its consumer was moved.
        question += " A Spark query keeps its position by it, and will end."
    run.out.confirm(question, force=force)
    reply = run.admin.consumers.reset(stream, consumer, sequence)
    run.out.done(
        f"{noun} goes on at sequence {reply.reset_seq:,}, with {reply.num_pending:,} to deliver",
        **as_data(reply),
    )


@command(consumers, "next", example="consumer next ORDERS billing --count 5 --no-ack")
def show_next(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    count: Annotated[int, Option(min=1, max=1000, help="How many messages, at most.")] = 1,
    ack: Annotated[
        Literal["ack", "nak", "term", "none"],
        Option(metavar="ANSWER", help=_ACK_HELP),
    ] = "ack",
    no_ack: Annotated[bool, Option("--no-ack", help="The same as --ack none.")] = False,
    wait: Annotated[
        Nanoseconds,
        arguments.duration_option(help="How long to wait for the first message."),
    ] = _WAIT,
    no_wait: Annotated[
        bool | None,
        Option(
            "--no-wait/--wait-for-all",
            help="Take only what is pending; or wait for all --count.",
        ),
    ] = None,
    delay: Annotated[
        Nanoseconds | None,
        arguments.duration_option(help="With --ack nak: again after this."),
    ] = None,
    reason: Annotated[
        str,
        Option(metavar="TEXT", help="With --ack term: why, for the event."),
    ] = "",
    max_bytes: Annotated[
        Bytes | None,
        arguments.size_option(help="No more than this, headers included."),
    ] = None,
    group: Annotated[
        str | None,
        Option(help="The priority group, where the consumer has one."),
    ] = None,
    min_pending: Annotated[
        int | None,
        Option(help="Policy overflow: only if as many messages are pending."),
    ] = None,
    min_ack_pending: Annotated[
        int | None,
        Option(help="Policy overflow: only if as many wait for ack."),
    ] = None,
    priority: Annotated[
        int | None,
        Option(help="Policy prioritized: 0, which is served first, to 9."),
    ] = None,
    id_: Annotated[
        str | None,
        Option("--id", help="Policy pinned_client: Nats-Pin-Id of earlier messages."),
    ] = None,
    raw: Raw = False,
) -> None:
    """Print messages of a pull consumer: the pending ones, or the first that arrive within --wait.

    This command shows messages; it is not for processing a stream. It acknowledges them, so that no
    other client gets them, unless you give --no-ack. It ends with 1 if no message arrives.
    """
    # Before any message is taken from the consumer.
    _check_answer(ack, no_ack, delay, reason)
    run.out.check_raw(raw)
    admin = run.admin.consumers
    request: dict[str, Any] = {
        "no_wait": no_wait, "max_bytes": max_bytes, "group": group, "min_pending": min_pending,
        "min_ack_pending": min_ack_pending, "priority": priority, "id": id_,
    }  # fmt: skip
    # Nothing is settled yet: a message that could not be printed comes again after ack_wait.
    delivered = admin.next(stream, consumer, count, timeout=wait / 1e9, ack="none", **request)
    run.out.json(list(map(_delivery_data, delivered)))
    for delivery in delivered:
        run.out.message(delivery.message, _delivery_words(delivery), raw=raw)
    if not delivered:
        run.out.note(f"consumer {consumer} of stream {stream} delivered no message within {wait}")
        raise Exit(FAILED)
    # A consumer with ack_policy none settles each message when it delivers it.
    if no_ack or ack == "none" or admin.load(stream, consumer).config.ack_policy == "none":
        return
    settle: dict[str, Callable[[DeliveredMessage], None]] = {
        "ack": admin.ack,
        # Seconds, from nanoseconds.
        "nak": partial(admin.nak, delay=(delay or 0) / 1e9),
        "term": partial(admin.term, reason=reason),
    }
    # Not before they are printed: the server never sends a settled message again.
    for delivery in delivered:
        settle[ack](delivery)


def _check_answer(ack: str, no_ack: bool, delay: Nanoseconds | None, reason: str) -> None:
    """Refuse options that do not belong to the answer."""
    if no_ack and ack not in ("ack", "none"):
        raise BadParameter(f"--no-ack and --ack {ack} contradict each other")
    if delay is not None and ack != "nak":
        raise BadParameter("--delay is for --ack nak")
    if reason and ack != "term":
        raise BadParameter("--reason is for --ack term")


def _delivery_words(delivery: DeliveredMessage) -> str:
    """Return how often a message was delivered, and how many follow."""
    to_come = f", {delivery.pending:,} to come"
    if delivery.deliveries > 1:
        return f", delivered {delivery.deliveries:,} times{to_come}"
    return to_come


def _delivery_data(delivery: DeliveredMessage) -> dict[str, Any]:
    return {
        **message_data(delivery.message),
        "consumer": delivery.consumer,
        "deliveries": delivery.deliveries,
        "consumer_seq": delivery.consumer_seq,
        "pending": delivery.pending,
    }


@command(consumers, "unpin", example="consumer unpin ORDERS billing workers")
def unpin(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    group: Annotated[str, Argument(help="The priority group.")],
) -> None:
    """Unpin the client of a priority group. Needs server 2.11.

    The server pins the next client that pulls. Fails if the consumer does not have the group.
    """
    run.admin.consumers.unpin(stream, consumer, group)
    noun = f"consumer {consumer} of stream {stream}"
    sentence = f"group {group} of {noun} has no pinned client any more"
    run.out.done(sentence, stream=stream, consumer=consumer, group=group)


@command(consumers, "balance", example="consumer balance ORDERS")
def balance(run: Run, stream: AnyStream = None, force: Force = False) -> None:
    """Let leaders of consumers give way until all servers lead about as many: shows which, and asks."""
    chosen = [stream] if stream else []
    arguments.balance(run, run.admin.consumers, *chosen, force=force)


@command(consumers, "step-down", example="consumer step-down ORDERS billing --preferred n2")
def step_down(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    preferred: Preferred = None,
) -> None:
    """Let the leader of a consumer give way to another server of the cluster.

    Done when it has agreed: the servers elect another one within seconds.
    """
    arguments.step_down(
        run,
        run.admin.consumers,
        {"stream": stream, "consumer": consumer},
        preferred,
    )


@command(consumers, "peer-remove", example="consumer peer-remove ORDERS billing n3")
def remove_peer(
    run: Run,
    stream: StreamName,
    consumer: ConsumerName,
    server: Annotated[str, Argument(help="Name of the server.")],
    evacuate: Annotated[
        bool,
        Option("--evacuate", help="Once another server is up to date."),
    ] = False,
    force: Force = False,
) -> None:
    """Move a consumer off a server; the cluster chooses another one. Needs server 2.15.

    A consumer with one replica may lose its acknowledgements, and deliver its messages again, unless you
    give --evacuate.
    """
    noun = f"consumer {consumer} of stream {stream}"
    run.out.confirm(f"Remove server {server}, and its copy, from {noun}?", force=force)
    run.admin.consumers.remove_peer(stream, consumer, server, evacuate=evacuate)
    once = ", once another one is up to date" if evacuate else ""
    run.out.done(
        f"server {server} no longer keeps {noun}{once}",
        stream=stream,
        consumer=consumer,
        removed=server,
    )
