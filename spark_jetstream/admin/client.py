"""`JetStreamAdmin`: what administers the JetStream of one account."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import SecretStr

from spark_jetstream.admin.account import Account
from spark_jetstream.admin.api import Api
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.admin.descriptions import description, read_wanted
from spark_jetstream.admin.events import Events
from spark_jetstream.admin.kv import KeyValue
from spark_jetstream.admin.lag import ConsumerLag, OriginLag, lag_of, lags, origin_lags
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.objects import Objects
from spark_jetstream.admin.plan import Plan, carry_out, make_plan
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import OptionError
from spark_jetstream.options.connection import ConnectionOptions, beside
from spark_jetstream.options.contexts import PLAIN, context_options, environment_options, selected_context
from spark_jetstream.options.specs import given_options
from spark_jetstream.options.values import did_you_mean, hidden

_NAMES = {spec.name.lower(): spec.name for spec in ConnectionOptions.specs}


class JetStreamAdmin:
    """Administers the JetStream of one account::

        with JetStreamAdmin(servers="nats://127.0.0.1:4222") as admin:
            admin.streams.create(DEFAULT_STREAM, name="ORDERS", subjects=["orders.>"])
            for lag in admin.lag():
                print(lag.stream, lag.consumer, lag.total, lag.age)

    ``streams``, ``consumers``, ``messages``, ``account``, ``events``, ``kv`` and ``objects`` hold the methods. Options
    are those of ``docs/options.md`` that say how to connect; their names match in any case. Nothing is asked of a
    server before the first method is.

    All methods block, and may be called from any thread, where an event loop runs (a notebook), and in a forked child.
    The connection is the one that everything in this process with the same options shares, Spark's readers included; it
    stays open for them when this is closed.
    """

    def __init__(self, **options: object) -> None:
        """`OptionError` for an option that does not exist here, or has a value that it cannot have."""
        given, lists = hidden(options), _lists(options)
        del options  # a traceback with local variables would show it
        self._set_up(ConnectionOptions.from_given(_own(given, lists)))

    @classmethod
    def from_environment(cls, **options: object) -> JetStreamAdmin:
        """As the ``nats`` command would connect: by the variables ``NATS_URL``, ``NATS_CONTEXT`` and so on (see
        `environment_options`), else by the context that ``nats context select`` chose.

        What is given here wins: a user, say, over all that the variables say of authentication, and a context over
        ``NATS_URL``. (The command lets the variable win there; but who names a context must not end up elsewhere.)
        """
        wanted, lists = hidden(options), _lists(options)
        del options  # a traceback with local variables would show it
        given = _own(wanted, lists)
        chosen = (
            given_options(hidden(context_options(given["context"])), ConnectionOptions.specs)
            if "context" in given
            else {}
        )
        inherited = beside({**chosen, **given}, hidden(environment_options(os.environ)))
        if "context" not in {*given, *inherited} and (selected := selected_context()) is not None:
            inherited["context"] = SecretStr(selected)
        admin = cls.__new__(cls)
        try:
            admin._set_up(ConnectionOptions.from_given({**inherited, **given}))
            return admin
        except OptionError as error:
            variable = next((name for name, option in PLAIN.items() if option == error.option), "NATS_*")
            if error.option not in inherited:
                raise
            said = f"{error} (it comes from the environment, {variable})"
            fault = OptionError(said, option=error.option)
        raise fault

    def _set_up(self, options: ConnectionOptions) -> None:
        self._api = api = Api(options)
        self.streams = Streams(api)
        self.consumers = Consumers(api)
        self.messages = Messages(api)
        self.account = Account(api)
        self.kv = KeyValue(api)
        self.objects = Objects(api)
        self.events = Events(api)

    @property
    def options(self) -> ConnectionOptions:
        """How this connects."""
        return self._api.options

    def lag(
        self, stream: str | None = None, consumer: str | None = None, *, ages: bool = True
    ) -> Iterator[ConsumerLag]:
        """How far each consumer of a stream, or of all streams, is behind, sorted by name; or just one of a stream.

        ``ages`` looks up the oldest message that is not processed, a request for each consumer that is behind.
        `ConsumerNotFound` when the one that is named is not there, `OptionError` when its stream is not named.
        """
        if consumer is None:
            return lags(self._api, stream, ages=ages)
        if stream is None:
            raise OptionError(f"consumer {consumer}: its stream must be named, too")
        return iter([lag_of(self._api, stream, consumer, ages=ages)])

    def origin_lag(self, stream: str | None = None) -> Iterator[OriginLag]:
        """How far a stream, or each of all streams, is behind what it mirrors or copies from its sources; sorted."""
        return origin_lags(self._api, stream)

    def plan(self, *described: str | os.PathLike[str] | Mapping[str, Any], given_only: bool = False) -> Plan:
        """What has to be done to have streams and their consumers as files, or mappings, describe them.

        A description is a stream's configuration with a list ``consumers`` beside its fields; files are YAML where
        their names end in ``.yaml`` or ``.yml``, else JSON, and may hold several. What they do not name is left alone.
        ``given_only``: fields that a description does not set stay as they are; else they get the server's default.

        Nothing is changed. `OptionError` names the file that is wrong.
        """
        wanted = read_wanted(*described, newer=self._api.newer)
        return make_plan(self._api.connection, wanted, given_only=given_only)

    def apply(self, plan: Plan) -> None:
        """Carry a plan out; a plan of the same descriptions has nothing left to do then.

        Nothing is done, and `JetStreamError` raised, when a step is refused, or the server is too old for one.
        `PlanOutdated` when somebody has changed since what the plan is about.
        """
        for step in plan.steps:
            if step.action in ("create", "update"):
                self._api.need_for(step.target, f"{step.action} {step.what}")
        carry_out(self._api.connection, plan)

    def describe(self, stream: str, *, readable: bool = True) -> dict[str, Any]:
        """A stream and its durable consumers, as `plan` takes them. A plan of it for the same server has no changes.

        ``readable``: only what is not the default, with durations and sizes as text. Otherwise every field as the
        server has it, with integers of nanoseconds and bytes: the form that ``nats stream add --config`` reads.
        """
        durable = [each.config for each in self.consumers.infos(stream) if each.config.durable_name]
        return description(self.streams.load(stream).config, durable, readable=readable)

    def close(self) -> None:
        """End this; its methods raise `JetStreamError` from now on. May be called again."""
        self._api.close()

    def __enter__(self) -> JetStreamAdmin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not hasattr(self, "_api"):  # the constructor has failed, and a traceback shows its local variables
            return "<JetStreamAdmin>"
        return f"<JetStreamAdmin {self.options.display_servers} {self.options.api_prefix_resolved}>"


def _lists(options: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the options that have several values."""
    return tuple(name for name, value in options.items() if isinstance(value, (list, tuple)))


def _own(options: Mapping[str, SecretStr | None], lists: tuple[str, ...]) -> dict[str, SecretStr]:
    """The options by their proper names. `OptionError` for one that has no meaning here, or several values."""
    for name in options:
        if name.lower() not in _NAMES:
            hint = did_you_mean(name.replace("_", ""), _NAMES.values(), 0.0)
            raise OptionError(f"there is no option {name}{hint}", option=name)
        option = _NAMES[name.lower()]
        if name in lists and option != "servers":
            raise OptionError(f"option {option} must be a single value, not a list", option=option)
    return given_options(options, ConnectionOptions.specs)
