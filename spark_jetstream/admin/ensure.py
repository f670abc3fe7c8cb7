"""Options `ensureStream` and `ensureStreamOnConflict`: streams made before a query.

Fields of an existing stream that the description does not name stay as they are. Runs on Spark's
driver.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.descriptions import Wanted, file_content, json_document, wanted_in
from spark_jetstream.admin.models.base import readable
from spark_jetstream.admin.plan import Plan, Step, carry_out, make_plan, refusals
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import OptionError, PermissionDenied
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.specs import OnConflict
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol.units import shown

log = logging.getLogger(__name__)

OPTION = "ensureStream"
_NOTE = f" (option {OPTION})"


@dataclass(frozen=True)
class Ensure:
    """The options.

    ``text`` is JSON, or the path of a file; ``streams`` are those of option `stream`.
    """

    connection: ConnectionOptions
    text: str = field(repr=False)
    on_conflict: OnConflict
    streams: tuple[str, ...]


@dataclass(frozen=True)
class EnsureTimes:
    """How long a process remembers that the streams are as described."""

    valid: float = 60.0
    """In seconds of `clock`."""
    clock: Callable[[], float] = time.monotonic


ENSURE_TIMES = EnsureTimes()

# The options that were carried out, and when, by `EnsureTimes.clock`.
_ensured: dict[Ensure, float] = {}


def ensure_streams(
    ensure: Ensure,
    connect: Connect,
    find_file: Callable[[str], str],
    *,
    remembered: bool = False,
    times: EnsureTimes = ENSURE_TIMES,
) -> None:
    """Create the streams that do not exist.

    Option `ensureStreamOnConflict` decides about streams that differ. ``find_file`` returns the
    path of a file on this node. ``remembered``: do nothing when this process has done it less than
    a minute ago.

    Raises:
        OptionError: The description is not possible, or a stream differs.
        PermissionDenied: The account lacks a permission; the error lists all that the option needs.
        JetStreamError: What ``connect`` and `Api` raise.
    """
    # Spark makes a writer for each micro-batch. Each would ask the server
    # (`test_a_query_that_writes_asks_once_a_minute`).
    done = _ensured.get(ensure) if remembered else None
    if done is not None and times.clock() - done < times.valid:
        return
    wanted = described(ensure, find_file)
    # At the start of a query, a server that does not answer is most likely the wrong one. A later
    # micro-batch, in a new process, may meet an outage, and so may a query with a checkpoint.
    options = ensure.connection
    timeout = options.retry_timeout if remembered else options.connect_timeout
    try:
        Requests(connect, timeout).call(
            lambda connection: _attempt(Api(options, connection), wanted, ensure),
        )
    except PermissionDenied as error:
        # The account may not subscribe to its inbox, which permissions of the option do not cure.
        if (error.subject or "").startswith(f"{options.inbox_prefix}."):
            raise
        raise PermissionDenied(
            f"{error}; option {OPTION} needs {_subjects(ensure, wanted)}", subject=error.subject
        ) from None
    # Only success is remembered.
    _ensured[ensure] = times.clock()


def described(ensure: Ensure, find_file: Callable[[str], str]) -> tuple[Wanted, ...]:
    """Return the streams that the option describes.

    Raises `OptionError`, which names the option.
    """
    try:
        return _described(ensure, find_file)
    except OptionError as error:
        problem = str(error)
    raise OptionError(problem, option=OPTION)


def _described(ensure: Ensure, find_file: Callable[[str], str]) -> tuple[Wanted, ...]:
    what = f"option {OPTION}"
    text = ensure.text.strip()
    if text.startswith(("{", "[")):
        documents = [json_document(text, what)]
    else:
        path = find_file(file_path(what, text))
        # A text that is not the path of a file may be misspelt JSON.
        source = f", file {shown(text)}" if os.path.isfile(path) else " (neither JSON nor a file)"
        what = f"{what}{source}"
        documents = file_content(path, what)
    # The only stream of option `stream` needs no name in its description.
    name = ensure.streams[0] if len(ensure.streams) == 1 else None
    wanted = wanted_in(documents, what, name)
    for description in wanted:
        stream = description.stream.name
        if description.consumers:
            problem = "consumers are not made here: remove consumers"
            raise OptionError(f"{what}: stream {stream}: {problem}")
        if ensure.streams and stream not in ensure.streams:
            problem = "is described, which option stream does not name"
            raise OptionError(f"{what}: stream {stream} {problem}")
    return wanted


def _attempt(api: Api, wanted: tuple[Wanted, ...], ensure: Ensure) -> None:
    # given_only: fields that the description does not name stay as they are.
    plan = make_plan(api, wanted, given_only=True, note=_NOTE)
    conflicts = [step for step in plan.steps if step.action in ("update", "refused")]
    if conflicts:
        plan = _resolved(plan, conflicts, ensure.on_conflict)
    carry_out(api, plan, note=_NOTE)
    for step in plan.steps:
        if step.action == "update":
            changes = ", ".join(step.changes)
            log.warning("option %s has updated %s: %s", OPTION, step.what, changes)


def _resolved(plan: Plan, conflicts: list[Step], on_conflict: OnConflict) -> Plan:
    """Return the plan that option `ensureStreamOnConflict` allows. Raises `OptionError`."""
    if on_conflict == "error":
        raise OptionError("; ".join(map(_conflict, conflicts)), option=OPTION)
    if on_conflict == "update":
        if plan.refused:
            advice = "change the description, or set ensureStreamOnConflict to ignore"
            problem = f"option {OPTION}: {refusals(plan)}; {advice}"
            raise OptionError(problem, option=OPTION)
        return plan
    for step in conflicts:
        log.warning(
            "%s is not as option %s describes it, and is left as it is: %s",
            step.what,
            OPTION,
            _differing(step),
        )
    # Only streams that do not exist are left.
    creations = tuple(step for step in plan.steps if step.action == "create")
    return Plan(creations, given_only=True)


def _conflict(step: Step) -> str:
    problem = f"{step.what} is not as option {OPTION} describes it: {_differing(step)}"
    if step.action == "refused":
        refused = [change for change in step.differences if change.refused]
        reasons = [f"{change.field}: {change.refused}" for change in refused]
        listed = ", ".join([*reasons, *step.reasons])
        return (
            f"{problem}; which cannot be changed ({listed}): change the description, or set "
            "ensureStreamOnConflict to ignore"
        )
    # The server can make these changes.
    advice = "change the description, or set ensureStreamOnConflict to update or ignore"
    risks = [f"{change.field}: {change.risk}" for change in step.differences if change.risk]
    warning = f" (with update: {', '.join(risks)})" if risks else ""
    return f"{problem}; {advice}{warning}"


def _differing(step: Step) -> str:
    """Return the fields that differ as text, each with its actual and its wanted value."""
    texts = []
    for change in step.differences:
        actual = readable(change.actual)
        texts.append(f"{change.field} is {actual}, not {readable(change.wanted)}")
    return ", ".join(texts)


def _subjects(ensure: Ensure, wanted: tuple[Wanted, ...]) -> str:
    """Return the subjects that the account must be allowed to publish to, as text."""
    prefix = ensure.connection.api_prefix_resolved
    verbs = ["INFO", "CREATE"]
    if ensure.on_conflict == "update":
        verbs.append("UPDATE")
    subjects = []
    for description in wanted:
        name = description.stream.name
        subjects += [f"{prefix}.STREAM.{verb}.{name}" for verb in verbs]
    return f"{', '.join(subjects[:-1])} and {subjects[-1]}"
