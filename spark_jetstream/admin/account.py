"""The account: its usage, its limits, and the server that answers."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.account import AccountInfo, Tier
from spark_jetstream.protocol.jsapi import LEVELS


@dataclass(frozen=True)
class ServerInfo:
    """The server of the connection, and the JetStream that answers, which is another server's behind a leaf node.

    ``version`` and ``max_payload`` (bytes) are those of the server, ``api_level`` and ``domain`` of the JetStream.
    """

    version: str
    api_level: int
    domain: str
    max_payload: int

    @property
    def api_since(self) -> str:
        """The first version of the server with this API; ``before 2.11`` for level 0."""
        known = [level for level in LEVELS if level <= self.api_level]
        return LEVELS[max(known)] if known else "before 2.11"


class Account:
    """The account of the connection; ``admin.account``. All methods raise what `Api` raises."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def info(self) -> AccountInfo:
        """Return usage, limits and number of requests. Raises `JetStreamNotEnabled` where there is no JetStream."""
        return self._api.account()

    def tiers(self) -> dict[str, Tier]:
        """Return usage and limits by tier (``R1``, ``R3``); of an account without tiers, those of ``""``."""
        info = self.info()
        return info.tiers or {"": info}

    def server(self, info: AccountInfo | None = None) -> ServerInfo:
        """Return the server and its API; ``info`` saves the request where the caller has it."""
        info = info or self.info()
        connection = self._api.connection
        version = ".".join(map(str, connection.server_version))
        return ServerInfo(version, info.api.level, info.domain, connection.max_payload)
