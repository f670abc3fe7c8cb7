"""The conditions that must hold after a run of the fault suite, whatever went wrong. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tests.model.losses import names_loss
from tests.model.rows import Wrong, few

#: Faults that queries may fail of: what the server says then. A purge that finds no room fails, and
#: nats-server 2.15.1 then counts messages that are gone.
_REASONS = {
    "disk_full": r"file too large \(code 500|reply makes no sense: \d+ messages and \"0\" deleted "
    r"ones"
}

_NONE: frozenset[str] = frozenset()


def violations(
    stored: Collection[str],
    sent: Collection[str],
    rows: Counter[str],
    level: str | None,
    *,
    excused: Collection[str] = (),
    again: Collection[str] = (),
) -> list[str]:
    """Return what is wrong with the rows that a query has written, in words; nothing for a right
    result.

    `stored` are the messages that the server has acknowledged, `sent` those that it may have: a
    sink has each of the first once, and none that was not sent. `level` is the sink's option
    `delivery`, None for a transactional sink; only `at-least-once` may have a row twice. Those in
    `excused` may be missing, and those in `again` may be repeated.
    """
    kept = set(excused)  # an hour of load has 200,000 messages
    owed = Counter(dict.fromkeys((body for body in stored if body not in kept), 1))
    wrong = Wrong(
        rows,
        owed,
        Counter(dict.fromkeys(sent, 1)),
        exact=level != "at-least-once",
        again=set(again),
    )
    return wrong.lines()


def whole_groups(rows: Sequence[str], parts: int) -> Counter[str]:
    """Return how often a stream has each group, by its rows in their order: ``<group>/<part>``,
    side by side.

    A row outside of a whole group counts by itself.
    """
    found: Counter[str] = Counter()
    at = 0
    while at < len(rows):
        group = rows[at].rpartition("/")[0]
        whole = [f"{group}/{part}" for part in range(parts)] == rows[at : at + parts]
        found[group if whole else rows[at]] += 1
        at += parts if whole else 1
    return found


def whole_copies(rows: Counter[str], copies: int, *, exact: bool) -> Counter[str]:
    """Return how often a stream has each message, if it has this many equal rows for one.

    With `exact` a row that is left over counts by itself, as ``<text> (<left> of <copies>)``.
    Otherwise a message with some rows more counts as one.
    """
    found: Counter[str] = Counter()
    for text, times in rows.items():
        whole, left = divmod(times, copies)
        if whole:
            found[text] = whole
        if left and exact:
            found[f"{text} ({left} of {copies})"] = 1
    return found


def counted(values: Mapping[str, str]) -> Counter[str]:
    """Return how often each message was counted: two digits of the value of its portion's counter."""
    found: Counter[str] = Counter()
    for portion, text in values.items():
        value, number = int(text), 0
        while value:
            value, times = divmod(value, 100)
            found[f"{portion} {number}"] += times
            number += 1
    return +found


def unjustified(errors: Iterable[str], faults: Collection[str]) -> list[str]:
    """Return the errors that a query should not have failed with, given the faults so far."""
    reasons = [_REASONS[fault] for fault in faults if fault in _REASONS]
    return [error for error in errors if not any(re.search(reason, error) for reason in reasons)]


def last_of_each(messages: Mapping[str, str]) -> dict[str, str]:
    """Return the last message of each subject, as an Object Store bucket keeps the last version of
    each object.
    """
    last = {subject: body for body, subject in messages.items()}
    return {body: subject for subject, body in last.items()}


@dataclass(frozen=True)
class Loss:
    """The effect of a fault on a stream that a query reads, and the outcomes that the query may have.

    `gone`: messages that the query had not committed and that it reads, removed by the fault; they
      may be missing.
    `loud`: those of them that the query must report if they are missing; the reader cannot see that
      others went.
    `must` and `may`: the query must, or may, report a loss on this stream, whatever is missing. A
    step without a fault has a `Loss` of nothing for each stream.
    """

    stream: str
    gone: frozenset[str] = _NONE
    loud: frozenset[str] = _NONE
    must: bool = False
    may: bool = False


@dataclass
class Step:
    """One fault as one query saw it, until the query had read everything that was there when the
    fault was over.

    `errors` are those of the package that the query failed with, `warnings` the lines of its job's
    log meanwhile.
    `again`: messages of batches that were not finished, or that a copy of a checkpoint lacks. Unless
      the sink has message ids of the user's, it may store them again as `repeatable` says. `twice`: messages that
    every sink may store again, because its stream has lost them. `damaged`: the query cannot start
    before its checkpoint is mended.
    """

    fault: str
    losses: list[Loss] = field(default_factory=list)
    errors: Sequence[str] = ()
    warnings: Sequence[str] = ()
    again: AbstractSet[str] = _NONE
    twice: AbstractSet[str] = _NONE
    damaged: bool = False

    @property
    def refused(self) -> bool:
        """Whether the sink refused a batch, or an attempt of a task, for its other rows."""
        return any("DeliveryError" in line for line in (*self.errors, *self.warnings))


def repeatable(steps: Iterable[Step], level: str | None, *, own_ids: bool = False) -> set[str]:
    """Return the messages of which a sink may have several rows, by docs/delivery.md.

    `deduplicated` knows a row by its partition, which may be another one when a batch is planned
    anew; `exactly-once` stores rows again only after it has refused their batch. A transactional
    sink has each row once.
    """
    found: set[str] = set()
    for step in steps:
        found |= step.twice
        if (level == "deduplicated" and not own_ids) or (level == "exactly-once" and step.refused):
            found |= step.again
    return found


def unreported(step: Step, rows: Counter[str], *, accepts: bool) -> list[str]:
    """Return which losses of a step the query has kept to itself, in words.

    A query reports a loss by failing, or with `accepts` (failOnDataLoss=false) by a warning. One
    that has failed with the loss on one stream warns of losses on others when it goes on.
    """
    lines, how = (step.warnings, "warned of") if accepts else (step.errors, "failed with")
    if not accepts and any(
        names_loss(error, loss.stream) for error in step.errors for loss in step.losses
    ):
        lines = [*step.errors, *step.warnings]
    wrong = []
    for loss in step.losses:
        silent = sorted(body for body in loss.loud if body not in rows)
        if (silent or loss.must) and not any(names_loss(line, loss.stream) for line in lines):
            wrong.append(
                f"{step.fault}: the query has not {how} a loss on stream {loss.stream}"
                f" ({len(silent)} missing, such as {few(silent)})"
            )
    return wrong


def false_alarms(step: Step, *, accepts: bool, level: str | None) -> list[str]:
    """Return the errors and warnings of a step that nothing justifies, in words."""

    lost = {loss.stream for loss in step.losses if loss.may}

    def justified(error: str) -> bool:
        if "DeliveryError" in error:
            return level == "exactly-once" and bool(step.again or step.twice)
        return step.damaged or (not accepts and any(names_loss(error, stream) for stream in lost))

    whole = {loss.stream for loss in step.losses} - lost
    warned = [
        line
        for line in step.warnings
        if accepts and any(names_loss(line, stream) for stream in whole)
    ]
    failed = [error for error in step.errors if not justified(error)]
    return [f"{step.fault}: {line}" for line in dict.fromkeys([*failed, *warned])]
