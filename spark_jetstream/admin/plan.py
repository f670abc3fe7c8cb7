"""Plans: the steps that make streams and consumers as descriptions say, and their execution."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.assets import Config, already_exists, confirm, filter_fault, send
from spark_jetstream.admin.descriptions import Wanted
from spark_jetstream.admin.models.base import complaint, readable
from spark_jetstream.admin.models.changes import Difference, differences, merged
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.errors import ApiError, ConsumerNotFound, JetStreamError, StreamNotFound
from spark_jetstream.protocol import jsapi

log = logging.getLogger(__name__)

Action = Literal["create", "update", "unchanged", "refused"]

# The sign before each step in the text of a plan.
_SIGNS: dict[Action, str] = {"create": "+", "update": "~", "unchanged": "=", "refused": "!"}


class PlanOutdated(JetStreamError):
    """Another client changed a stream or consumer after the plan was made.

    Another plan may succeed.
    """

    retriable: ClassVar[bool] = True


@dataclass(frozen=True)
class Step:
    """One step of a plan: a stream, or, unless ``consumer`` is empty, a consumer of it.

    ``wanted`` is the described configuration, ``target`` the complete one, ``actual`` that of the
    server (None: it does not exist). ``reasons`` say why a step is refused, besides those of the
    ``differences``.
    """

    stream: str
    consumer: str
    action: Action
    wanted: Config
    target: Config
    actual: Config | None = None
    differences: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """``stream ORDERS``, or ``consumer billing of stream ORDERS``."""
        return _what(self.stream, self.consumer)

    @property
    def changes(self) -> tuple[str, ...]:
        """Each difference as text, with its reason or risk; then the other ``reasons``."""
        return (*map(difference_words, self.differences), *self.reasons)

    def lines(self) -> list[str]:
        """Return the step as text: the action, and each field that is set or changed."""
        lines = []
        if self.action == "create":
            # The name is in the first line.
            set_fields = self.wanted.model_fields_set - {"name", "durable_name"}
            for name in self.wanted.field_names:
                if name in set_fields:
                    lines.append(f"{name}: {readable(getattr(self.wanted, name))}")
        lines += self.changes
        action: str = self.action
        if self.action == "refused":
            action = f"cannot {_asked(self)}"
        first = f"{_SIGNS[self.action]} {action} {self.what}"
        return [first, *(f"    {line}" for line in lines)]

    def to_json(self) -> dict[str, Any]:
        """Return the step as data that `json` writes, with the API's values: nanoseconds, bytes."""
        step: dict[str, Any] = {"stream": self.stream}
        if self.consumer:
            step["consumer"] = self.consumer
        step["action"] = self.action
        if self.action == "create":
            step["config"] = self.target.body()
        step["differences"] = [difference_data(difference) for difference in self.differences]
        if self.reasons:
            step["reasons"] = list(self.reasons)
        return step


@dataclass(frozen=True)
class Plan:
    """The steps in their order: each stream, and then its consumers.

    ``given_only`` as for `JetStreamAdmin.plan`.
    """

    steps: tuple[Step, ...]
    given_only: bool = False

    @property
    def changes(self) -> bool:
        """Whether a stream or consumer differs from its description, if refused or not."""
        return any(step.action != "unchanged" for step in self.steps)

    @property
    def refused(self) -> tuple[Step, ...]:
        """The steps that cannot be carried out. With one of them, no step of the plan is."""
        return tuple(step for step in self.steps if step.action == "refused")

    def lines(self) -> list[str]:
        """Return the plan as text."""
        return [line for step in self.steps for line in step.lines()]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as data that `json` writes."""
        return {"changes": self.changes, "steps": [step.to_json() for step in self.steps]}


def make_plan(
    api: Api,
    wanted: Iterable[Wanted],
    *,
    given_only: bool = False,
    any_filter: bool = False,
    note: str = "",
) -> Plan:
    """Compare descriptions with what the server has.

    Raises what `Api` raises, with ``note`` after what was asked.

    A new filter of a consumer that surely matches nothing is refused, unless ``any_filter``.
    """
    work = _Work(api, given_only, note)
    steps: list[Step] = []
    for description in wanted:
        steps += work.steps(description, any_filter=any_filter)
    return Plan(tuple(steps), given_only)


def carry_out(api: Api, plan: Plan, *, note: str = "") -> None:
    """Carry out a plan; each reply of the server is compared with the description.

    Nothing is done when a step is refused. An update reads the configuration again first.

    Raises:
        PlanOutdated: The configuration is neither that of the plan nor the described one.
        JetStreamError: A step is refused; or the server ignored a field; and what `Api` raises.
            Steps that were done stay done, as the error says: make another plan.
    """
    # Nothing is done by halves because of an error that was known before.
    if plan.refused:
        raise JetStreamError(f"nothing was changed{note}: {refusals(plan)}")
    work = _Work(api, plan.given_only, note)
    done: list[str] = []
    for step in plan.steps:
        if step.action == "unchanged":
            continue
        try:
            if step.action == "create":
                work.create(step)
            else:
                work.update(step)
        except JetStreamError as error:
            # The class of the error stays; its text also names the steps that were done
            # (`test_a_plan_that_is_half_done_says_so`).
            if done:
                stays = f"this was done before, and stays: {', '.join(done)}"
                error.args = (f"{error}; {stays}", *error.args[1:])
            raise
        done.append(f"{step.action} {step.what}")


def refusals(plan: Plan) -> str:
    """Return the steps that cannot be carried out, with their reasons, as text."""
    refused = []
    for step in plan.refused:
        refused.append(f"{step.what} cannot be {_asked(step)}d: {', '.join(step.changes)}")
    return "; ".join(refused)


def _asked(step: Step) -> str:
    """Return what a description asks for where something differs."""
    return "create" if step.actual is None else "update"


class _Work:
    """Makes and carries out steps."""

    def __init__(self, api: Api, given_only: bool, note: str) -> None:
        self._api = api
        self._given_only = given_only
        self._note = note

    def steps(self, wanted: Wanted, *, any_filter: bool) -> Iterator[Step]:
        stream = self._step(wanted.stream.name, "", wanted.stream)
        yield stream
        exists = stream.actual is not None
        for consumer in wanted.consumers:
            known = consumer.name or consumer.durable_name
            step = self._step(stream.stream, known, consumer, exists=exists)
            if not any_filter:
                step = self._checked(step, stream.target, step.target, step.actual, exists)
            yield step

    def _checked(self, step: Step, stream: Any, target: Any, actual: Any, exists: bool) -> Step:
        """Return the step of a consumer, refused if a new filter matches nothing of the stream."""
        # Filters that the consumer has already are no reason to refuse another change.
        if actual is not None and set(target.filters) == set(actual.filters):
            return step
        context = f"plan {step.what}{self._note}"
        fault = filter_fault(self._api, stream, target, context, exists=exists)
        if not fault:
            return step
        return replace(step, action="refused", reasons=(*step.reasons, fault))

    def create(self, step: Step) -> None:
        try:
            self._send(step)
        except ApiError as error:
            if not already_exists(error):
                raise
            # Another client was faster. Its stream or consumer may be as described.
            now = self._step(step.stream, step.consumer, step.wanted)
            if now.action != "unchanged":
                raise _outdated(now) from None

    def update(self, step: Step) -> None:
        # Read again: an update replaces the whole configuration, and would undo changes of another
        # client since the plan was made (`test_another_client_updates_it`).
        now = self._step(step.stream, step.consumer, step.wanted)
        # Another client has made the same change.
        if now.action == "unchanged":
            return
        if now.actual is None or now.differences != step.differences or now.action != "update":
            raise _outdated(now)
        try:
            self._send(now)
        except (StreamNotFound, ConsumerNotFound):
            raise PlanOutdated(f"{step.what} was deleted before it could be updated") from None

    def _step(self, stream: str, consumer: str, wanted: Config, *, exists: bool = True) -> Step:
        # A stream that is still to be created has no consumer to ask for.
        actual = self._actual(stream, consumer) if exists else None
        make: Callable[..., Step] = partial(Step, stream, consumer, wanted=wanted, actual=actual)
        if actual is None:
            return make("create", target=wanted)
        changes = tuple(differences(wanted, actual, given_only=self._given_only))
        if not changes:
            return make("unchanged", target=actual)
        target = wanted
        if self._given_only:
            try:
                target = merged(wanted, actual)
            # The given fields contradict others that the stream or consumer has.
            except ValidationError as error:
                reasons = (complaint(error),)
                return make("refused", target=wanted, differences=changes, reasons=reasons)
        # One field that the server cannot change refuses the step as a whole.
        if any(change.refused for change in changes):
            return make("refused", target=target, differences=changes)
        return make("update", target=target, differences=changes)

    def _actual(self, stream: str, consumer: str) -> Config | None:
        """Return the configuration that the server has; None if there is none."""
        context = f"read {_what(stream, consumer)}{self._note}"
        found: StreamInfo | ConsumerInfo | None
        if consumer:
            found = self._api.find(
                ConsumerInfo,
                jsapi.CONSUMER_INFO,
                context=context,
                stream=stream,
                consumer=consumer,
            )
        else:
            found = self._api.find(StreamInfo, jsapi.STREAM_INFO, context=context, stream=stream)
        return None if found is None else found.config

    def _send(self, step: Step) -> None:
        """Send a configuration. Raises `JetStreamError` when the server then has another one."""
        context = f"{step.action} {step.what}{self._note}"
        info = send(self._api, step.stream, step.consumer, step.target, step.actual, context)
        done = f"{step.what} was {step.action}d{self._note}"
        confirm(step.wanted, info.config, done, given_only=self._given_only)
        log.info("%sd %s", step.action, step.what)


def _what(stream: str, consumer: str) -> str:
    if consumer:
        return f"consumer {consumer} of stream {stream}"
    return f"stream {stream}"


def _outdated(now: Step) -> PlanOutdated:
    if now.actual is None:
        change = "it was deleted"
    else:
        change = f"now there is {', '.join(now.changes)}"
    return PlanOutdated(
        f"{now.what} has changed since the plan was made ({change}): make the plan again",
    )


def difference_words(difference: Difference) -> str:
    """Return a difference as text, with why it is refused, or what it risks."""
    if difference.refused:
        return f"{difference} (refused: {difference.refused})"
    if difference.risk:
        return f"{difference} (risk: {difference.risk})"
    return str(difference)


def difference_data(difference: Difference) -> dict[str, Any]:
    """Return a difference as data that `json` writes, with the API's values."""
    data = {
        "field": difference.field,
        "actual": difference.actual,
        "wanted": difference.wanted,
    }
    if difference.refused:
        data["refused"] = difference.refused
    if difference.risk:
        data["risk"] = difference.risk
    return data
