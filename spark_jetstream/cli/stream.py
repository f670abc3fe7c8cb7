"""``spark-jetstream stream``: the commands about streams and their messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Exit, Option, Typer

from spark_jetstream.cli import arguments
from spark_jetstream.cli.app import FAILED, Run, command, group, one_of
from spark_jetstream.cli.arguments import (
    ConfigFile,
    DryRun,
    Force,
    Preferred,
    StreamName,
    change,
    with_fields,
)
from spark_jetstream.cli.output import ago, as_data, server_text, to_the_second, were
from spark_jetstream.errors import ServerBusy, printable
from spark_jetstream.protocol.units import counted, sized

if TYPE_CHECKING:
    from spark_jetstream.admin.models.streams import ClusterInfo, StreamInfo, StreamSourceInfo
    from spark_jetstream.admin.plan import Action, Plan

streams = group("stream", "Streams: list, create, change, look into, apply, save, remove.")

# Looking

OfSubject = Annotated[
    str | None,
    Option("--subject", help="Only streams that store this subject, or a part of it."),
]


@command(streams, "ls", example="stream ls --subject 'orders.>'")
def show_all(run: Run, subject: OfSubject = None) -> None:
    """List the streams of the account, with their messages and sizes.

    If a server of a cluster does not answer for its streams, the command lists the others, says so,
    and ends with 1.
    """
    empty = f"no stream stores {subject}" if subject else "there are no streams"
    _list(run, run.admin.streams.infos(subject), empty)


find = Typer()


@command(find, "find", example="find --idle 30d --no-empty")
@command(streams, "find", example="stream find --idle 30d --no-empty")
@with_fields("streams", (), creates=True)
def find_streams(run: Run, fields: dict[str, Any]) -> None:
    """List the streams that meet all criteria. Output and exit code are those of stream ls."""
    _list(run, run.admin.streams.find(**fields), "no stream meets all criteria")


def _list(run: Run, streams: Iterator[StreamInfo], empty: str) -> None:
    infos: list[StreamInfo] = []
    incomplete: ServerBusy | None = None
    try:
        # Not `infos.extend`: the command shows the streams that came before the error.
        for info in streams:
            infos.append(info)
    except ServerBusy as error:
        # Error 10004: a server of the cluster did not answer for its streams.
        if not infos:
            raise
        incomplete = error
    run.out.table(infos, _row, data=as_data, empty=empty)
    # After the table, so that the streams of the others are shown.
    if incomplete is not None:
        raise incomplete


def _row(info: StreamInfo) -> dict[str, object]:
    return {
        "name": info.config.name,
        "storage": info.config.storage,
        "retention": info.config.retention,
        "messages": info.state.messages,
        "size": info.state.bytes,
        "consumers": info.state.consumer_count,
        "last message": to_the_second(info.state.last_ts),
    }


@command(streams, "names", example="stream names")
def show_names(run: Run, subject: OfSubject = None) -> None:
    """Print the names of the streams, one a line. Needs fewer permissions than ls."""
    run.out.names(run.admin.streams.names(subject))


@command(streams, "info", example="stream info ORDERS")
def info(run: Run, stream: StreamName) -> None:
    """Show the configuration and the state of a stream.

    It shows the main fields of the configuration, and those that differ from their defaults. JSON
    is the server's whole reply.
    """
    stream_info = run.admin.streams.load(stream)
    title = f"Stream {stream_info.config.name}"
    run.out.record(_configuration(stream_info), data=as_data(stream_info), title=title)
    run.out.text("")
    run.out.record(_state(stream_info), title="State")
    if stream_info.origins:
        heading = "mirror of" if stream_info.mirror else "source"
        run.out.text("")
        run.out.table(stream_info.origins, partial(_origin_row, heading))


def _origin_row(heading: str, origin: StreamSourceInfo) -> dict[str, object]:
    return {
        heading: origin.name,
        "lag": origin.lag,
        "last sign": ago(origin.active),
        "": origin.error and origin.error.description,
    }


@command(streams, "state", example="stream state ORDERS")
def state(run: Run, stream: StreamName) -> None:
    """Show what a stream holds, and which servers keep it: the second part of info."""
    stream_info = run.admin.streams.load(stream)
    run.out.record(_state(stream_info), data=as_data(stream_info.state), title=f"Stream {stream}")


@command(streams, "gaps", example="stream gaps ORDERS")
def show_gaps(run: Run, stream: StreamName) -> None:
    """List the sequences between the first and the last whose messages are gone: deleted, purged, expired or replaced.

    The server sends the number of each missing message: on a stream with millions of them that is a
    large reply.
    """
    # Only this request has the missing sequences.
    state = run.admin.streams.load(stream, deleted=True).state
    gaps: list[dict[str, int]] = []
    for sequence in state.deleted:
        if not sequence:
            continue  # a server has 0 for a stream that is new
        # The sequences are sorted, so a gap that goes on is the last one.
        if gaps and sequence == gaps[-1]["last"] + 1:
            gaps[-1]["last"] = sequence
            gaps[-1]["messages"] += 1
        else:
            gaps.append({"first": sequence, "last": sequence, "messages": 1})
    run.out.table(gaps, dict, data=dict, empty=f"stream {stream} has no gaps")


@command(streams, "subjects", example="stream subjects ORDERS 'orders.eu.>'")
def show_subjects(
    run: Run,
    stream: StreamName,
    subject: Annotated[
        str,
        Argument(metavar="FILTER", help="Only these; wildcards allowed."),
    ] = ">",
) -> None:
    """List the subjects that have messages, sorted, with the number of messages of each."""
    empty = f"stream {stream} has no messages"
    if subject != ">":
        empty += f" on {subject}"
    counts = run.admin.streams.subjects(stream, subject)
    run.out.table(counts, _subject_row, data=_subject_data, empty=empty)


def _subject_data(count: tuple[str, int]) -> dict[str, object]:
    subject, messages = count
    return {"subject": subject, "messages": messages}


def _subject_row(count: tuple[str, int]) -> dict[str, object]:
    subject, messages = count
    return {"subject": printable(subject), "messages": messages}


_MAIN = (
    "retention", "storage", "num_replicas", "max_age", "max_bytes", "max_msgs",
    "max_msgs_per_subject", "max_msg_size", "max_consumers", "discard", "duplicate_window",
)  # fmt: skip


def _configuration(info: StreamInfo) -> dict[str, object]:
    """Return the main fields, those that differ from their defaults, and the time of creation."""
    from spark_jetstream.cli.field_options import field_words

    config = info.config
    fields = type(config).model_fields
    shown: dict[str, object] = {name: field_words(config, name) for name in ("subjects", *_MAIN)}
    shown["created"] = info.created
    for name in config.field_names:
        default = None  # of a field that only the server knows
        if name in fields:
            # A field that has its default says nothing about the stream.
            default = fields[name].get_default(call_default_factory=True)
        if name != "name" and getattr(config, name) != default:
            shown[name] = field_words(config, name)
    return shown


def _state(info: StreamInfo) -> dict[str, object]:
    state = info.state
    others = [other.name for other in info.alternates if other.name != info.config.name]
    return {
        "messages": f"{state.messages:,}",
        "size": sized(state.bytes),
        "first": _position(state.first_seq, to_the_second(state.first_ts)),
        "last": _position(state.last_seq, to_the_second(state.last_ts)),
        "deleted between": f"{state.num_deleted:,}" if state.num_deleted else "",
        "damaged": counted(len(state.lost.msgs), "message") if state.lost else "",
        "subjects": f"{state.num_subjects:,}",
        "consumers": f"{state.consumer_count:,}",
        "domain": info.domain,
        **_cluster_state(info.cluster),
        "also in": ", ".join(others),
    }


def _cluster_state(cluster: ClusterInfo | None) -> dict[str, object]:
    """Return the servers of a stream, and whether it has no leader, or moves to other servers."""
    from spark_jetstream.admin.models.streams import replicas

    servers = ", ".join(map(server_text, replicas(cluster)))
    if cluster is None:
        return {"servers": servers}
    state = {"cluster": cluster.name, "servers": servers}
    if not cluster.leader:
        state["no leader"] = "nothing can be stored"
    desired = cluster.desired
    if desired and desired.status:
        state["changing"] = desired.status.description or "yes"
    return dict(state)


def _position(sequence: int, time: str) -> str:
    text = f"sequence {sequence:,}"
    return f"{text}, {time}" if time else text


# Creating and changing

_TEMPLATES = ("stream", "work-queue")

NewName = Annotated[str, Argument(help="Name of the new stream.")]
_COMMON = (
    "subjects", "description", "retention", "storage", "num_replicas", "max_age", "max_bytes",
    "max_msgs", "max_msgs_per_subject", "max_msg_size", "discard", "duplicate_window",
    "allow_direct",
)  # fmt: skip


@command(
    streams,
    "add",
    example="stream add ORDERS --subjects 'orders.>' --max-age 30d --max-bytes 10g",
)
@with_fields("stream", _COMMON, without=("name",), creates=True)
def add(
    run: Run,
    name: NewName,
    fields: dict[str, Any],
    config: ConfigFile = None,
    begin_with: Annotated[
        str,
        Option(
            "--template",
            metavar="NAME|FILE",
            help="The template to begin with: stream, work-queue, or a file of your own.",
            autocompletion=one_of(_TEMPLATES),
        ),
    ] = "stream",
    pedantic: arguments.Pedantic = False,
) -> None:
    """Create a stream. One that exists must have this configuration, and stays as it is."""
    from spark_jetstream.admin.descriptions import template
    from spark_jetstream.admin.models.streams import (
        DEFAULT_STREAM,
        DEFAULT_WORK_QUEUE,
        StreamConfig,
    )

    known = {"stream": DEFAULT_STREAM, "work-queue": DEFAULT_WORK_QUEUE}
    begun = known.get(begin_with) or template(begin_with)
    wanted = StreamConfig.parse(
        # Options win over the file, the file over the template, and the argument over all names.
        {**begun, **arguments.file_fields(config), **fields, "name": name},
        f"stream {name}",
    )
    admin = run.admin.streams
    load = partial(admin.load, name)
    make = partial(admin.create, wanted, pedantic=pedantic)
    _print_created(run, *arguments.create(load, make))


@command(streams, "edit", example="stream edit ORDERS --max-age 60d --unset max-bytes --dry-run")
@with_fields("stream", _COMMON, without=("name",))
def edit(
    run: Run,
    stream: StreamName,
    fields: dict[str, Any],
    config: ConfigFile = None,
    pedantic: arguments.Pedantic = False,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Change a stream: shows what changes, and what cannot be undone, and asks.

    An option replaces its field as a whole: all subjects, all metadata. Fields that you do not give
    stay as they are.
    """
    changes = {**arguments.file_fields(config), **fields}
    if not changes:
        raise BadParameter("nothing to change was given: name a field, such as --max-age 30d")
    admin = run.admin.streams
    differences = admin.plan(stream, changes)
    carry_out = partial(admin.update, stream, changes, pedantic=pedantic)
    change(run, {"stream": stream}, differences, carry_out, force=force, dry_run=dry_run)


@command(streams, "copy", example="stream copy ORDERS ORDERS_TEST --subjects 'orders-test.>'")
@with_fields("stream", _COMMON, without=("name",))
def copy(run: Run, stream: StreamName, name: NewName, fields: dict[str, Any]) -> None:
    """Create a stream with the configuration of another one. The messages are not copied.

    Two streams cannot store the same subject, so give it others, or --mirror ORDERS --unset
    subjects.
    """
    admin = run.admin.streams
    load = partial(admin.load, name)
    make = partial(admin.copy, stream, name, **fields)
    _print_created(run, *arguments.create(load, make))


@command(streams, "seal", example="stream seal ORDERS_2025")
def seal(run: Run, stream: StreamName, dry_run: DryRun = False, force: Force = False) -> None:
    """Seal a stream: no message can be added or removed any more, not even by age.

    This cannot be undone.
    """
    admin = run.admin.streams
    differences = admin.plan(stream, sealed=True)
    carry_out = partial(admin.seal, stream)
    change(run, {"stream": stream}, differences, carry_out, force=force, dry_run=dry_run)


def _print_created(run: Run, info: StreamInfo, outcome: str) -> None:
    stores = ", ".join(info.config.subjects) or "what it copies"
    data = {**as_data(info), "did_create": outcome == arguments.CREATED}
    run.out.done(f"stream {info.config.name} {outcome}; it stores {stores}", **data)


# Descriptions

_STYLES: dict[Action, str | None] = {
    "create": "green",
    "update": "yellow",
    "unchanged": None,
    "refused": "red",
}


@command(streams, "apply", example="stream apply streams.yaml --check")
def apply(
    run: Run,
    files: Annotated[list[str], Argument(metavar="FILE...", help="Descriptions, as JSON or YAML.")],
    check: Annotated[
        bool,
        Option("--check", help="Change nothing; end with 1 if something differs."),
    ] = False,
    given_only: Annotated[
        bool,
        Option(
            "--given-only",
            help="Leave fields alone that the files do not set; else they get their defaults.",
        ),
    ] = False,
    any_filter: arguments.AnyFilter = False,
    force: Force = False,
) -> None:
    """Create and change streams and consumers as files describe them: shows the plan, asks, and carries it out.

    A description is the configuration of a stream, with a list consumers beside its fields; "stream
    export" writes one. The output of "stream info --json", here or by the nats command, is one too.
    A second run changes nothing. Streams that no file names stay as they are. If a single field
    cannot be changed, the command changes nothing and ends with 1.
    """
    # All requests of the plan only look. Nothing is changed until the user has agreed.
    plan = run.admin.plan(*files, given_only=given_only, any_filter=any_filter)

    def report(sentence: str, *, applied: bool = False) -> None:
        run.out.done(sentence, **plan.to_json(), applied=applied)

    for step in plan.steps:
        for line in step.lines():
            run.out.text(line, style=_STYLES[step.action])
    if plan.refused:
        report("nothing was changed: not all of this is possible")
        raise Exit(FAILED)
    if not plan.changes:
        report("nothing to change")
    elif check:
        report(f"{_counted(plan)} would be changed")
        raise Exit(FAILED)
    else:
        run.out.confirm("Change this?", force=force)
        run.admin.apply(plan)
        report(f"{_counted(plan)} changed", applied=True)


@command(streams, "export", example="stream export ORDERS --yaml > orders.yaml")
def export(
    run: Run,
    stream: StreamName,
    yaml: Annotated[bool, Option("--yaml", help="YAML instead of JSON.")] = False,
) -> None:
    """Describe a stream and its durable consumers in the form that "stream apply" reads.

    JSON has every field as the server has it, with integers of nanoseconds and bytes: "nats stream
    add --config" reads it too. YAML has what is not the default, with durations and sizes as text.
    """
    from spark_jetstream.admin.descriptions import yaml_text

    if yaml and run.out.as_json:
        raise BadParameter("--yaml and --json contradict each other")
    described = run.admin.describe(stream, readable=yaml)
    if yaml:
        run.out.raw(yaml_text(described).encode())
        return
    text = json.dumps(described, indent=2, ensure_ascii=False)
    run.out.raw(f"{text}\n".encode())


def _counted(plan: Plan) -> str:
    """Return the number of streams and of consumers that a plan changes."""
    changed = [step for step in plan.steps if step.action != "unchanged"]
    consumers = len([step for step in changed if step.consumer])
    counts = {"stream": len(changed) - consumers, "consumer": consumers}
    return " and ".join(counted(count, noun) for noun, count in counts.items() if count)


# Backups


@command(streams, "backup", example="stream backup ORDERS /backups/orders-2026-03-01")
def backup(
    run: Run,
    stream: StreamName,
    target: Annotated[
        str,
        Argument(
            help="Where to: a single file when it ends with .tar, else a directory that is made.",
        ),
    ],
    consumers: Annotated[
        bool,
        Option("--consumers/--no-consumers", help="With its consumers."),
    ] = True,
    check: Annotated[
        bool,
        Option("--check", help="Let a server before 2.15 check all messages first."),
    ] = False,
) -> None:
    """Save a stream with its messages and consumers. The target is there when it is complete, and not before.

    It has a checksum, and is what "nats stream restore" reads, too.
    """
    with run.out.progress(f"Saving {stream}") as progress:
        made = run.admin.streams.backup(
            stream,
            target,
            consumers=consumers,
            check=check,
            progress=progress,
        )
    state = made.reply.state
    manifest = made.manifest
    held = f"{counted(state.messages, 'message')} in {sized(manifest.data_bytes)}"
    run.out.done(
        f"stream {stream} was saved at {made.path}: {held}, SHA-256 {manifest.data_sha256}",
        stream=stream,
        path=str(made.path),
        messages=state.messages,
        bytes=int(state.bytes),
        consumers=consumers,
        data_bytes=int(manifest.data_bytes),
        sha256=manifest.data_sha256,
    )


@command(
    streams,
    "restore",
    example="stream restore /backups/orders-2026-03-01 --name ORDERS_OLD --subjects 'old.>'",
)
@with_fields("stream", _COMMON, without=("name",))
def restore(
    run: Run,
    source: Annotated[str, Argument(help="The directory or the .tar file of the backup.")],
    fields: dict[str, Any],
    name: Annotated[str | None, Option(help="Another name for the stream.")] = None,
) -> None:
    """Make a stream again from a backup, with its messages and consumers.

    The backup is checked before anything is sent. Ends with 1, and says so, when the stream is not
    what it was. Options change its configuration: other subjects, where those of the backup belong
    to a stream that exists.
    """
    # The bar runs twice: for checking and for sending.
    with run.out.progress(f"Restoring {name or source}") as progress:
        restored = run.admin.streams.restore(
            source,
            name,
            checking=progress,
            progress=progress,
            **fields,
        )
    state = restored.info.state
    stream = restored.info.config.name
    checked = "it had no checksum"
    if restored.sha256:
        checked = f"its checksum was right, SHA-256 {restored.sha256}"
    messages = counted(state.messages, "message")
    sentence = f"stream {stream} was restored from {source}: {messages}; {checked}"
    for note in restored.notes:
        run.out.note(f"note: {note}")
    for difference in restored.differences:
        run.out.note(f"not as it was: {difference}")
    run.out.done(
        sentence,
        stream=stream,
        messages=state.messages,
        bytes=int(state.bytes),
        consumers=state.consumer_count,
        sha256=restored.sha256 or None,
        differences=list(restored.differences),
        notes=list(restored.notes),
    )
    # A script must not take a stream that differs for a complete restore.
    if restored.differences:
        raise Exit(FAILED)


# Removing


@command(streams, "purge", example="stream purge ORDERS --subject 'orders.eu.>' --keep 10")
def purge(
    run: Run,
    stream: StreamName,
    subject: Annotated[
        str | None,
        Option(help="Only messages on this subject; wildcards allowed."),
    ] = None,
    sequence: Annotated[
        int | None,
        Option(min=0, help="Only messages before this sequence."),
    ] = None,
    keep: Annotated[int | None, Option(min=0, help="Keep this many of the last messages.")] = None,
    force: Force = False,
) -> None:
    """Remove messages of a stream: all of them, unless options choose some."""
    chosen = ""
    if subject is not None:
        chosen += f" on {subject}"
    if sequence is not None:
        chosen += f" before sequence {sequence:,}"
    if keep is not None:
        chosen += f" but the last {keep:,}"
    run.out.confirm(f"Remove all messages{chosen} of stream {stream}?", force=force)
    purged = run.admin.streams.purge(stream, subject=subject, sequence=sequence, keep=keep)
    sentence = f"{counted(purged, 'message')} of stream {stream} {were(purged)} removed"
    run.out.done(sentence, stream=stream, purged=purged)


@command(streams, "rm", example="stream rm ORDERS_TEST --force")
def remove(
    run: Run,
    stream: Annotated[list[str], arguments.stream_argument(help="Names of the streams.")],
    force: Force = False,
) -> None:
    """Delete streams with their messages and their consumers; with --json an object a line."""
    for name in stream:
        if not force:
            state = run.admin.streams.load(name).state
            messages = counted(state.messages, "message")
            consumers = counted(state.consumer_count, "consumer")
            question = f"Delete stream {name} with {messages} and {consumers}?"
            run.out.confirm(question, force=force)
        # One after the other: an error ends the command, and the lines on standard output say which
        # are gone. test_stream.py,
        # test_several_streams_are_deleted_in_turn_up_to_one_that_does_not_exist.
        run.admin.streams.delete(name)
        run.out.lines([name], "stream {} was deleted".format, data=_deleted_data)


def _deleted_data(name: str) -> dict[str, object]:
    return {"stream": name, "deleted": True}


# Servers


@command(streams, "step-down", example="stream step-down ORDERS --preferred n2")
def step_down(run: Run, stream: StreamName, preferred: Preferred = None) -> None:
    """Let the leader of a stream give way to another server of the cluster; they elect one within seconds."""
    arguments.step_down(run, run.admin.streams, {"stream": stream}, preferred)


@command(streams, "balance", example="stream balance")
def balance(run: Run, force: Force = False) -> None:
    """Let leaders of streams give way until all servers lead about as many: shows which, and asks."""
    arguments.balance(run, run.admin.streams, force=force)


@command(streams, "peer-remove", example="stream peer-remove ORDERS n3")
def remove_peer(
    run: Run,
    stream: StreamName,
    server: Annotated[str, Argument(help="Name of the server.")],
    evacuate: Annotated[
        bool,
        Option("--evacuate", help="Once another server has a copy (server 2.15)."),
    ] = False,
    force: Force = False,
) -> None:
    """Remove a server from the peers of a stream; the cluster chooses another one, if it has one."""
    run.out.confirm(f"Remove server {server}, and its copy, from stream {stream}?", force=force)
    run.admin.streams.remove_peer(stream, server, evacuate=evacuate)
    # Without --evacuate the server drops the copy at once: a stream with one replica loses its
    # messages.
    once = ", once another one has a copy" if evacuate else ""
    run.out.done(
        f"server {server} no longer keeps stream {stream}{once}",
        stream=stream,
        removed=server,
    )


@command(streams, "cancel-move", example="stream cancel-move ORDERS")
def cancel_move(run: Run, stream: StreamName, force: Force = False) -> None:
    """Take back a change of servers, replicas or retention that is under way. Needs server 2.15."""
    run.out.confirm(f"Take back the change of stream {stream} that is under way?", force=force)
    run.admin.streams.cancel_move(stream)
    run.out.done(f"stream {stream} goes back to what it was", stream=stream, cancelled=True)
