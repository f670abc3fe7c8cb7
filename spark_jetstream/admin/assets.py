"""What `Streams` and `Consumers` do alike with a configuration: create it once, compare it, update it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.changes import Difference, differences, planned
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    PermissionDenied,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi

Info = TypeVar("Info", StreamInfo, ConsumerInfo)


class Asset(Generic[Info]):
    """A stream or a consumer. ``what`` names it in errors, such as ``stream ORDERS``; ``load`` asks the server for it.

    ``send``, an argument of the methods, sends the request that creates or updates it, and returns the reply.
    """

    def __init__(self, api: Api, what: str, load: Callable[[], Info]) -> None:
        self.what = what
        self._api = api
        self._load: Callable[[], Info] = load

    def create(self, wanted: Model, send: Callable[[], Info]) -> Info:
        """Create it; return the existing asset if it equals ``wanted``.

        The server treats ``[]`` and a missing field as different, and refuses the one for the other.

        Raises:
            ApiError: It exists with another configuration; the error lists the differences, if the account may look.
            JetStreamError: The server ignored a field.
        """
        try:
            info = send()
        except ApiError as error:
            if not already_exists(error):
                raise
            return self._existing(error, wanted)
        self._confirm(wanted, info, "created")
        return info

    def load_or_create(self, wanted: Model, create: Callable[[], Info], *, given_only: bool) -> Info:
        """Return the existing asset, else what ``create`` makes. Raises `JetStreamError` if what exists differs."""
        try:
            info = self._load()
        except (StreamNotFound, ConsumerNotFound):
            try:
                return create()
            except ApiError as error:
                if not already_exists(error):
                    raise
                # Another client was faster.
                info = self._load()
        refuse_difference(wanted, info.config, self.what, given_only=given_only)
        return info

    def plan(self, changes: object, fields: Mapping[str, Any]) -> list[Difference]:
        """Return what `update` would change. Raises `OptionError`."""
        return planned(self._load().config, changes, fields, self.what)[1]

    def update(self, changes: object, fields: Mapping[str, Any], send: Callable[[Any, Any], Info]) -> list[Difference]:
        """Change it; return what was changed. ``send`` gets the wanted and the actual configuration.

        Raises `OptionError`, `JetStreamError` as `Streams.update` does.
        """
        actual = self._load().config
        wanted, differing = planned(actual, changes, fields, self.what)
        refused = [f"{change} ({change.refused})" for change in differing if change.refused]
        if refused:
            raise JetStreamError(f"cannot update {self.what}: {'; '.join(refused)}")
        if differing:
            self._api.need_for(wanted, f"update {self.what}")
            self._confirm(wanted, send(wanted, actual), "updated")
        return differing

    def _existing(self, refusal: ApiError, wanted: Model) -> Info:
        """Return what exists if nothing differs. Raises ``refusal``, with the differences if the account may look."""
        try:
            info = self._load()
        except (ApiError, PermissionDenied):
            raise refusal from None
        if changes := _listed(wanted, info.config):
            refusal.args = (f"{refusal}; there -> asked for: {changes}", *refusal.args[1:])
        elif not differences(info.config, wanted):
            return info
        raise refusal

    def _confirm(self, wanted: Model, info: Info, done: str) -> None:
        """Raise `JetStreamError` when the server left out a part; of a consumer without a name it chooses the name."""
        lost = [change for change in differences(wanted, info.config) if change.field != "name" or change.wanted]
        if lost:
            problem = f"the server has not taken all (there -> asked for): {'; '.join(map(str, lost))}"
            raise JetStreamError(f"{self.what} was {done}, but {problem}")


def already_exists(error: ApiError) -> bool:
    """Return whether the server refused to create a stream or consumer because one of that name exists."""
    return isinstance(error, StreamExists) or error.err_code == jsapi.CONSUMER_EXISTS


def refuse_difference(wanted: Model, actual: Model, what: str, *, given_only: bool) -> None:
    """Raise `JetStreamError`, which lists the differences, when the existing configuration is not as wanted."""
    if changes := _listed(wanted, actual, given_only=given_only):
        raise JetStreamError(f"{what} exists with another configuration (there -> asked for): {changes}")


def _listed(wanted: Model, actual: Model, *, given_only: bool = False) -> str:
    return "; ".join(map(str, differences(wanted, actual, given_only=given_only)))
