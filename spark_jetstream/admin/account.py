"""The account: what it uses, what it may use, and which server answers."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.account import AccountInfo, Tier
from spark_jetstream.protocol.jsapi import LEVELS


@dataclass(frozen=True)
class ServerInfo:
    """Who answers. ``version`` is that of the server at the other end of the connection; ``api_level`` and ``domain``
    belong to the JetStream that answers, which is another server's behind a leaf node."""

    version: str
    api_level: int
    domain: str
    max_payload: int

    @property
    def api_since(self) -> str:
        """The first server version with this API; ``before 2.11`` for level 0."""
        known = [level for level in LEVELS if level <= self.api_level]
        return LEVELS[max(known)] if known else "before 2.11"


class Account:
    """The account of the connection; ``admin.account``. All methods raise what `Api` raises."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def info(self) -> AccountInfo:
        """What the account uses of JetStream, what it may use, and how many requests it made. `JetStreamNotEnabled`
        when it, or the server, has none."""
        return self._api.account()

    def tiers(self) -> dict[str, Tier]:
        """Usage and limits by the number of replicas (``R1``, ``R3``); of an account without tiers, those of ``""``."""
        info = self.info()
        return info.tiers or {"": info}

    def server(self, info: AccountInfo | None = None) -> ServerInfo:
        """The server, and the level of its API; by ``info``, if that was asked for already."""
        info = info or self.info()
        connection = self._api.connection
        version = ".".join(map(str, connection.server_version))
        return ServerInfo(version, info.api.level, info.domain, connection.max_payload)
