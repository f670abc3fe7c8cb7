"""Parts of what commands show of streams, consumers and buckets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from spark_jetstream.admin.placing import Replica
from spark_jetstream.admin.rendering import readable
from spark_jetstream.commands.framework import Run
from spark_jetstream.units import Nanoseconds, Timestamp

_SECOND = 1_000_000_000


def print_names(run: Run, names: Iterator[str], empty: str = "") -> None:
    """Names, a line each as they come; as JSON, a list. ``empty`` is said where there are none."""
    if run.out.as_json:
        run.out.record({}, data=list(names))
        return
    first = next(names, None)
    if first is not None:
        run.out.lines(chain([first], names), str, data=str)
    elif empty:
        run.out.note(empty)


def listed(value: object) -> object:
    """Lists without brackets, and pairs as they were written on a command line; anything else as it is."""
    if isinstance(value, tuple):
        return ", ".join(map(readable, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={readable(each)}" for name, each in value.items())
    return value


def server_words(each: Replica) -> str:
    """A server of a cluster, and how it does."""
    if each.leader:
        return f"{each.server} (leader)"
    if each.offline:
        return f"{each.server} (offline)"
    return f"{each.server} ({'current' if each.current else 'outdated'}, {each.lag:,} behind)"


def to_the_second(time: Timestamp) -> str:
    """A time of the server's without its fraction; nothing for one that never was."""
    return "" if time.never else str(time).partition(".")[0].removesuffix("Z") + "Z"


def rounded(span: Nanoseconds) -> Nanoseconds:
    """A duration for people: to the second from a minute on, else to the millisecond."""
    unit = _SECOND if span >= 60 * _SECOND else 1_000_000
    return Nanoseconds((span + unit // 2) // unit * unit)


def ago(span: Nanoseconds | None) -> str:
    """How long ago something was; None, or -1 as the API says it, stands for never."""
    return "never" if span is None or span < 0 else f"{rounded(span)} ago"
