"""`JetStreamAdmin`: what administers the JetStream of one account."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from spark_jetstream.admin.account import Account
from spark_jetstream.admin.api import Api
from spark_jetstream.admin.consumers import Consumers
from spark_jetstream.admin.environment import PLAIN, environment_options
from spark_jetstream.admin.lag import ConsumerLag, lags
from spark_jetstream.admin.stored import Messages
from spark_jetstream.admin.streams import Streams
from spark_jetstream.connection_options import ConnectionOptions, beside
from spark_jetstream.contexts import context_options, selected_context
from spark_jetstream.errors import OptionError
from spark_jetstream.option_specs import CONNECTION_OPTIONS
from spark_jetstream.option_table import given_options

_NAMES = {spec.name.lower(): spec.name for spec in CONNECTION_OPTIONS}


class JetStreamAdmin:
    """Administers the JetStream of one account::

        with JetStreamAdmin(servers="nats://127.0.0.1:4222") as admin:
            admin.streams.create(DEFAULT_STREAM, name="ORDERS", subjects=["orders.>"])
            for lag in admin.lag():
                print(lag.stream, lag.consumer, lag.total, lag.age)

    ``streams``, ``consumers``, ``messages`` and ``account`` hold the methods. Options are those of ``docs/options.md``
    that say how to connect; their names match in any case. Nothing is asked of a server before the first method is.

    All methods block, and may be called from any thread, where an event loop runs (a notebook), and in a forked child.
    The connection is the one that everything in this process with the same options shares, Spark's readers included; it
    stays open for them when this is closed.
    """

    def __init__(self, **options: object) -> None:
        """`OptionError` for an option that does not exist here, or has a value that it cannot have."""
        self._set_up(ConnectionOptions.from_given(_own(options)))

    @classmethod
    def from_environment(cls, **options: object) -> JetStreamAdmin:
        """As the ``nats`` command would connect: by the variables ``NATS_URL``, ``NATS_CONTEXT`` and so on (see
        `environment_options`), else by the context that ``nats context select`` chose.

        What is given here wins: a user, say, over all that the variables say of authentication, and a context over
        ``NATS_URL``. (The command lets the variable win there; but who names a context must not end up elsewhere.)
        """
        given = _own(options)
        chosen = context_options(given["context"]) if "context" in given else {}
        inherited = beside({**chosen, **given}, environment_options(os.environ))
        if "context" not in {*given, *inherited} and (selected := selected_context()) is not None:
            inherited["context"] = selected
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

    @property
    def options(self) -> ConnectionOptions:
        """How this connects."""
        return self._api.options

    def lag(self, stream: str | None = None, *, ages: bool = True) -> Iterator[ConsumerLag]:
        """How far each consumer of a stream, or of all streams, is behind; sorted by name.

        ``ages`` looks up the oldest message that is not processed, a request for each consumer that is behind.
        """
        return lags(self._api, stream, ages=ages)

    def close(self) -> None:
        """End this; its methods raise `JetStreamError` from now on. May be called again."""
        self._api.close()

    def __enter__(self) -> JetStreamAdmin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<JetStreamAdmin {self.options.display_servers} {self.options.api_prefix_resolved}>"


def _own(options: Mapping[str, Any]) -> dict[str, str]:
    """The options by their proper names. `OptionError` for one that has no meaning here."""
    for name in options:
        if name.lower() not in _NAMES:
            closest = difflib.get_close_matches(name.lower().replace("_", ""), _NAMES, n=1, cutoff=0.0)[0]
            raise OptionError(f"there is no option {name}; did you mean {_NAMES[closest]}", option=name)
    return given_options(options, CONNECTION_OPTIONS)
