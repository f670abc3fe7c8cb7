"""Consumers for people: one as a record, many as a table."""

from __future__ import annotations

from collections.abc import Iterable

from spark_jetstream.admin.consumer_models import ConsumerInfo, SequenceInfo
from spark_jetstream.admin.placing import replicas
from spark_jetstream.commands.framework import Run
from spark_jetstream.commands.output import as_data
from spark_jetstream.commands.showing import ago, listed, rounded, server_words, to_the_second
from spark_jetstream.durables import SINCE
from spark_jetstream.units import Nanoseconds


def print_consumers(run: Run, found: Iterable[ConsumerInfo]) -> None:
    """A row for each; as JSON, what the API says."""
    run.out.table(
        found,
        {
            "name": lambda info: info.name,
            "kind": kind,
            "filters": lambda info: ", ".join(info.config.filters),
            "ack": lambda info: info.config.ack_policy,
            "pending": lambda info: info.num_pending,
            "waiting for ack": lambda info: info.num_ack_pending,
            "redelivered": lambda info: info.num_redelivered,
            "created": lambda info: to_the_second(info.created),
            "": remarks,
        },
        data=as_data,
        empty="there are no consumers",
    )


def print_consumer(run: Run, info: ConsumerInfo) -> None:
    """Its configuration and its state; as JSON, what the API says."""
    pairs = {
        "kind": kind(info),
        "created": info.created,
        **{
            name: listed(info.config.own_metadata if name == "metadata" else getattr(info.config, name))
            for name in info.config.field_names
            if name in info.config.model_fields_set and name not in ("name", "durable_name")
        },
    }
    title = f"Consumer {info.name} of stream {info.stream_name}"
    run.out.record(pairs, data=as_data(info), title=title)
    if run.out.as_json:
        return
    run.out.text("")
    state = {
        "to be delivered": f"{info.num_pending:,}",
        "waiting for ack": f"{info.num_ack_pending:,}",
        "redelivered": f"{info.num_redelivered:,}",
        "pulls that wait": "" if info.config.push else f"{info.num_waiting:,}",
        "last delivered": _position(info.delivered, info),
        "all acknowledged up to": _position(info.ack_floor, info),
        "priority groups": "; ".join(_pinned(info)),
        "servers": ", ".join(map(server_words, replicas(info.cluster))),
        "remarks": remarks(info),
    }
    run.out.record(state, data=None, title="State")


def kind(info: ConsumerInfo) -> str:
    """Push or pull, durable or not."""
    return f"{'push' if info.config.push else 'pull'}, {'durable' if info.config.durable_name else 'ephemeral'}"


def remarks(info: ConsumerInfo) -> str:
    """What is special about it now."""
    config = info.config
    found = []
    if config.push:
        group = f" in queue group {config.deliver_group}" if config.deliver_group else ""
        heard = "" if info.push_bound else ", where nobody listens"
        found.append(f"delivers to {config.deliver_subject}{group}{heard}")
    if config.priority_groups:
        found.append(f"{config.priority_policy} in group {', '.join(config.priority_groups)}")
    if SINCE in config.metadata:
        found.append(f"Spark query since {config.metadata[SINCE]}")
    if info.paused:
        found.append(f"paused for {rounded(info.pause_remaining)}")
    return "; ".join(found)


def _position(at: SequenceInfo, info: ConsumerInfo) -> str:
    if not at.consumer_seq and not at.stream_seq:
        return "nothing"
    when = ""
    if at.last_active is not None and not at.last_active.never and not info.ts.never:
        when = f", {ago(Nanoseconds(max(0, info.ts.nanoseconds - at.last_active.nanoseconds)))}"
    return f"stream sequence {at.stream_seq:,}, delivery {at.consumer_seq:,}{when}"


def _pinned(info: ConsumerInfo) -> list[str]:
    return [
        f"{each.group}: pinned to {each.pinned_client_id} since {each.pinned_ts}"
        if each.pinned_client_id
        else f"{each.group}: nobody is pinned"
        for each in info.priority_groups
    ]
