"""What has to be done to have streams and consumers as they are wanted, and doing it.

A plan is data: it prints as lines of text and as JSON, and can be looked at before it is carried out. Once it is, there
is nothing left to do: the plan that is made next has no changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from spark_jetstream.admin.descriptions import Wanted
from spark_jetstream.admin.models import (
    ConsumerConfig,
    ConsumerInfo,
    Difference,
    Model,
    StreamConfig,
    StreamInfo,
    complaint,
    differences,
    merged,
    readable,
    update_body,
)
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import ApiError, ConsumerNotFound, JetStreamError, StreamExists, StreamNotFound
from spark_jetstream.protocol import jsapi

log = logging.getLogger(__name__)

Config = StreamConfig | ConsumerConfig
Action = Literal["create", "update", "unchanged", "refused"]

_SIGNS: dict[Action, str] = {
    "create": "+ create",
    "update": "~ update",
    "unchanged": "= unchanged",
    "refused": "! cannot update",
}


class PlanOutdated(JetStreamError):
    """Since the plan was made somebody has changed what it is about. Another plan may succeed."""

    retriable: ClassVar[bool] = True


@dataclass(frozen=True)
class Step:
    """What has to be done about one stream, or about one consumer of it.

    ``consumer`` is empty for the stream itself. ``wanted`` is how it is described, ``target`` the whole of what it is
    to become, ``actual`` what it is (None: it is not there). ``reasons`` say why nothing can be done where ``action``
    is "refused", besides those of the ``differences``.
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
        return f"consumer {self.consumer} of stream {self.stream}" if self.consumer else f"stream {self.stream}"

    @property
    def changes(self) -> tuple[str, ...]:
        """Each difference in words, with why it is refused and what it risks; then the other ``reasons``."""
        return (*(difference_words(each) for each in self.differences), *self.reasons)

    def lines(self) -> list[str]:
        """For people: what is done, and below it each field that is set or changed."""
        names = {"name", "durable_name"}
        given = (name for name in self.wanted.field_names if name in self.wanted.model_fields_set - names)
        new = [f"{name}: {readable(getattr(self.wanted, name))}" for name in given] if self.action == "create" else []
        return [f"{_SIGNS[self.action]} {self.what}", *(f"    {each}" for each in (*new, *self.changes))]

    def to_json(self) -> dict[str, Any]:
        """For programs. Values are as the API has them: durations in nanoseconds, sizes in bytes."""
        found: dict[str, Any] = {"stream": self.stream}
        if self.consumer:
            found["consumer"] = self.consumer
        found["action"] = self.action
        if self.action == "create":
            found["config"] = self.target.body()
        found["differences"] = [difference_data(each) for each in self.differences]
        if self.reasons:
            found["reasons"] = list(self.reasons)
        return found


@dataclass(frozen=True)
class Plan:
    """The steps, in the order in which they are done: each stream, and then its consumers.

    ``given_only``: fields that a description does not set stay as they are; else they get the server's default.
    """

    steps: tuple[Step, ...]
    given_only: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything is not as it is wanted, possible to change or not."""
        return any(step.action != "unchanged" for step in self.steps)

    @property
    def refused(self) -> tuple[Step, ...]:
        """The steps that cannot be done. With any of them a plan is not carried out at all."""
        return tuple(step for step in self.steps if step.action == "refused")

    def lines(self) -> list[str]:
        """The plan as text."""
        return [line for step in self.steps for line in step.lines()]

    def to_json(self) -> dict[str, Any]:
        """The plan as data that `json` writes."""
        return {"changes": self.changes, "steps": [step.to_json() for step in self.steps]}


def make_plan(connection: Connection, wanted: Iterable[Wanted], *, given_only: bool = False, note: str = "") -> Plan:
    """Compare what is wanted with what the server has; nothing is changed.

    Consumers that no description names are left alone. ``note`` goes into errors, behind what was asked. Raises what
    `Connection.api` does.
    """
    work = _Work(connection, given_only, note)
    return Plan(tuple(step for each in wanted for step in work.steps(each)), given_only)


def carry_out(connection: Connection, plan: Plan, *, note: str = "") -> None:
    """Do what the plan says; each answer of the server is compared with what was wanted.

    Nothing is done when a step is refused. Before an update the server is asked once more: `PlanOutdated` when what is
    there is neither what the plan has seen nor what it wants. `JetStreamError` when the server did not do all of it,
    and what `Connection.api` raises; steps that were done before stay done, as the error says: plan again.
    """
    if plan.refused:
        said = "; ".join(f"{step.what} cannot be updated: {', '.join(step.changes)}" for step in plan.refused)
        raise JetStreamError(f"nothing was changed{note}: {said}")
    work = _Work(connection, plan.given_only, note)
    done: list[str] = []
    for step in plan.steps:
        try:
            if step.action == "create":
                work.create(step)
            elif step.action == "update":
                work.update(step)
            else:
                continue
        except JetStreamError as error:
            if done:
                error.args = (f"{error}; this was done before, and stays: {', '.join(done)}", *error.args[1:])
            raise
        done.append(f"{step.action} {step.what}")


class _Work:
    """Requests about streams and consumers, and what they come to."""

    def __init__(self, connection: Connection, given_only: bool, note: str) -> None:
        self._connection = connection
        self._given_only = given_only
        self._note = note

    def steps(self, wanted: Wanted) -> list[Step]:
        name = wanted.stream.name
        found = [self._step(name, "", wanted.stream, self._actual(name, ""))]
        for consumer in wanted.consumers:
            known = consumer.name or consumer.durable_name
            there = None if found[0].actual is None else self._actual(name, known)
            found.append(self._step(name, known, consumer, there))
        return found

    def create(self, step: Step) -> None:
        body = step.target.body()
        try:
            self._answer(step, "create", jsapi.create_request, body)
        except ApiError as error:
            if not isinstance(error, StreamExists) and error.err_code != jsapi.CONSUMER_EXISTS:
                raise
            # Somebody was faster, which is fine if it was for the same.
            now = self._again(step)
            if now.action != "unchanged":
                raise _outdated(now) from None

    def update(self, step: Step) -> None:
        now = self._again(step)
        if now.action == "unchanged":
            return
        if now.actual is None or now.differences != step.differences or now.action != "update":
            raise _outdated(now)
        try:
            self._answer(now, "update", jsapi.update_request, update_body(now.target, now.actual))
        except (StreamNotFound, ConsumerNotFound):
            raise PlanOutdated(f"{step.what} was deleted before it could be updated") from None

    def _again(self, step: Step) -> Step:
        return self._step(step.stream, step.consumer, step.wanted, self._actual(step.stream, step.consumer))

    def _actual(self, stream: str, consumer: str) -> Config | None:
        prefix = self._connection.prefix
        subject = jsapi.consumer_info(prefix, stream, consumer) if consumer else jsapi.stream_info(prefix, stream)
        what = f"consumer {consumer} of stream {stream}" if consumer else f"stream {stream}"
        try:
            return self._ask(subject, b"", f"read {what}", bool(consumer))
        except (StreamNotFound, ConsumerNotFound):
            return None

    def _step(self, stream: str, consumer: str, wanted: Config, actual: Config | None) -> Step:
        make: Callable[..., Step] = partial(Step, stream, consumer, wanted=wanted, actual=actual)
        if actual is None:
            return make("create", target=wanted)
        found = tuple(differences(wanted, actual, given_only=self._given_only))
        if not found:
            return make("unchanged", target=actual)
        try:
            target = merged(wanted, actual) if self._given_only else wanted
        except ValidationError as error:
            return make("refused", target=wanted, differences=found, reasons=(complaint(error),))
        action = "refused" if any(each.refused for each in found) else "update"
        return make(action, target=target, differences=found)

    def _answer(self, step: Step, action: str, consumer_request: Callable[..., bytes], body: dict[str, Any]) -> None:
        """Send a configuration, and see that it is what the server has then."""
        prefix, stream, context = self._connection.prefix, step.stream, f"{action} {step.what}"
        if isinstance(step.target, ConsumerConfig):
            # Only this form of a filter may be part of the subject.
            filters = [step.target.filter_subject] if step.target.filter_subject else []
            subject = jsapi.consumer_create(prefix, stream, step.consumer, filters)
            done = self._ask(subject, consumer_request(stream, body), context, True)
        else:
            make = jsapi.stream_create if action == "create" else jsapi.stream_update
            done = self._ask(make(prefix, stream), jsapi.stream_create_request(body), context, False)
        left = differences(step.wanted, done, given_only=self._given_only)
        if left:
            said = "; ".join(f"{each.field} is {readable(each.actual)}, not {readable(each.wanted)}" for each in left)
            raise JetStreamError(
                f"the server did {context}{self._note}, but not as it was asked to, perhaps because it is too old for "
                f"that: {said}"
            )
        log.info("%sd %s", action, step.what)

    def _ask(self, subject: str, body: bytes, context: str, consumer: bool) -> Config:
        reply = self._connection.api(subject, body, context=f"{context}{self._note}")
        info: StreamInfo | ConsumerInfo = (ConsumerInfo if consumer else StreamInfo).from_server(reply, context)
        return info.config


def _outdated(now: Step) -> PlanOutdated:
    said = "it was deleted" if now.actual is None else f"now there is {', '.join(now.changes)}"
    return PlanOutdated(f"{now.what} has changed since the plan was made ({said}): make the plan again")


def difference_words(difference: Difference) -> str:
    """A difference in words, with why it is refused, or what it risks."""
    notes = [f"refused: {difference.refused}"] if difference.refused else []
    notes += [f"risk: {difference.risk}"] if difference.risk and not difference.refused else []
    return f"{difference} ({'; '.join(notes)})" if notes else str(difference)


def difference_data(difference: Difference) -> dict[str, Any]:
    """A difference as data that `json` writes. Values are as the API has them: nanoseconds, bytes."""
    return {
        "field": difference.field,
        "actual": _plain(difference.actual),
        "wanted": _plain(difference.wanted),
        **({"refused": difference.refused} if difference.refused else {}),
        **({"risk": difference.risk} if difference.risk else {}),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return value.body()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
