"""Options `ensureStream` and `ensureStreamOnConflict`: streams that are made before they are read or written.

Only the fields that a description names count: everything else of a stream that is there already is left alone. Runs on
the driver.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_jetstream.admin.descriptions import Wanted, file_content, json_document, wanted_in
from spark_jetstream.admin.models.text import readable
from spark_jetstream.admin.plan import Plan, Step, carry_out, make_plan
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import OptionError, PermissionDenied
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.options.specs import OnConflict
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol.units import shown

log = logging.getLogger(__name__)

OPTION = "ensureStream"
_NOTE = f" (option {OPTION})"
_VALID = 60.0  # seconds


@dataclass(frozen=True)
class Ensure:
    """What to make sure of. ``text`` is JSON, or the path of a file; ``streams`` are those of option `stream`."""

    connection: ConnectionOptions
    text: str = field(repr=False)
    on_conflict: OnConflict
    streams: tuple[str, ...]


_ensured: dict[Ensure, float] = {}


def ensure_streams(
    ensure: Ensure,
    connect: Callable[[float], Connection],
    find_file: Callable[[str], str],
    *,
    remembered: bool = False,
) -> None:
    """Create the streams that are missing; what becomes of one that is there and differs, the option says.

    ``connect`` takes the seconds to wait, ``find_file`` says where on this node a file is. ``remembered``: what was
    done less than a minute ago in this process is not looked at again. Raises `OptionError`, `PermissionDenied`, and
    what `connect` and `Connection.api` raise.
    """
    done = _ensured.get(ensure) if remembered else None
    if done is not None and time.monotonic() - done < _VALID:
        return
    wanted = described(ensure, find_file)
    # A server never met is more likely the wrong one; in a streaming write it may be an outage, in a new process.
    options = ensure.connection
    patience = options.retry_timeout if remembered else options.connect_timeout
    try:
        retrying(lambda: _attempt(connect(patience), wanted, ensure), patience)
    except PermissionDenied as error:
        if (error.subject or "").startswith(f"{options.inbox_prefix}."):
            raise
        raise PermissionDenied(
            f"{error}; option {OPTION} needs {_subjects(ensure, wanted)}", subject=error.subject
        ) from None
    _ensured[ensure] = time.monotonic()


def described(ensure: Ensure, find_file: Callable[[str], str]) -> tuple[Wanted, ...]:
    """The streams that the option describes. `OptionError` for whatever is wrong with that."""
    try:
        return _described(ensure, find_file)
    except OptionError as error:
        said = str(error)
    raise OptionError(said, option=OPTION)


def _described(ensure: Ensure, find_file: Callable[[str], str]) -> tuple[Wanted, ...]:
    what, text = f"option {OPTION}", ensure.text.strip()
    if text.startswith(("{", "[")):
        documents = [json_document(text, what)]
    else:
        path = find_file(file_path(what, text))
        # A text that is no path of a file may be anything.
        what = f"{what}, file {shown(text)}" if os.path.isfile(path) else f"{what} (neither JSON nor a file)"
        documents = file_content(path, what)
    name = ensure.streams[0] if len(ensure.streams) == 1 else None
    wanted = wanted_in(documents, what, name)
    for each in wanted:
        if each.consumers:
            raise OptionError(f"{what}: stream {each.stream.name}: consumers are not made here: remove consumers")
        if ensure.streams and each.stream.name not in ensure.streams:
            raise OptionError(f"{what}: stream {each.stream.name} is described, which option stream does not name")
    return wanted


def _attempt(connection: Connection, wanted: tuple[Wanted, ...], ensure: Ensure) -> None:
    plan = make_plan(connection, wanted, given_only=True, note=_NOTE)
    conflicts = [step for step in plan.steps if step.action in ("update", "refused")]
    if ensure.on_conflict == "error" and conflicts:
        raise OptionError("; ".join(map(_conflict, conflicts)), option=OPTION)
    if ensure.on_conflict == "update" and plan.refused:
        said = "; ".join(f"{step.what} cannot be updated: {', '.join(step.changes)}" for step in plan.refused)
        raise OptionError(
            f"option {OPTION}: {said}; change the description, or set ensureStreamOnConflict to ignore", option=OPTION
        )
    if ensure.on_conflict == "ignore":
        for step in conflicts:
            log.warning("%s is not as option %s describes it, and is left so: %s", step.what, OPTION, _differing(step))
        plan = Plan(tuple(step for step in plan.steps if step.action == "create"), given_only=True)
        conflicts = []
    carry_out(connection, plan, note=_NOTE)
    for step in conflicts:
        log.warning("option %s has updated %s: %s", OPTION, step.what, ", ".join(step.changes))


def _conflict(step: Step) -> str:
    advice = "change the description, or set ensureStreamOnConflict to update or ignore"
    if step.action == "refused":
        advice = f"which cannot be changed ({', '.join(_reasons(step))}): change the description, or set "
        advice += "ensureStreamOnConflict to ignore"
    risks = [f"{each.field}: {each.risk}" for each in step.differences if each.risk and step.action == "update"]
    warning = f" (with update: {', '.join(risks)})" if risks else ""
    return f"{step.what} is not as option {OPTION} describes it: {_differing(step)}; {advice}{warning}"


def _differing(step: Step) -> str:
    return ", ".join(
        f"{each.field} is {readable(each.actual)}, not {readable(each.wanted)}" for each in step.differences
    )


def _reasons(step: Step) -> list[str]:
    refused = [f"{each.field}: {each.refused}" for each in step.differences if each.refused]
    return [*refused, *step.reasons]


def _subjects(ensure: Ensure, wanted: tuple[Wanted, ...]) -> str:
    """The least permissions, in words."""
    prefix = ensure.connection.api_prefix_resolved
    verbs = ("INFO", "CREATE", "UPDATE") if ensure.on_conflict == "update" else ("INFO", "CREATE")
    subjects = [f"{prefix}.STREAM.{verb}.{each.stream.name}" for each in wanted for verb in verbs]
    return f"{', '.join(subjects[:-1])} and {subjects[-1]}"
