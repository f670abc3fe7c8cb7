"""The description that a server gives of itself, its INFO, and later changes to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from spark_jetstream.protocol.features import Version
from spark_jetstream.protocol.server_info import version_of


class ServerState:
    """The INFO of the server, as later ones have changed it."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.most_bytes = sys.maxsize
        """The largest message that the server accepts, header and payload, in bytes.

        The server tells the limit of the account after the login. So a greater limit than before
        counts only from the answer to a ping on."""

    @property
    def version(self) -> Version:
        """The version; zeros before the first INFO."""
        # `parsed_info` has checked it.
        return version_of(self.info.get("version", "")) or (0, 0, 0)

    def greet(self, info: Mapping[str, Any]) -> None:
        """Take the first INFO of a connection, and forget the INFO of an earlier connection."""
        self.info = {}
        self.learn(info)

    def learn(self, info: Mapping[str, Any]) -> None:
        """Take the fields of an INFO: the limit of the account or user follows the login."""
        self.info = {**self.info, **info}
        self.most_bytes = min(self.most_bytes, self.info["max_payload"])

    def confirm(self) -> None:
        """Note the answer to a ping: the last limit that the server has told counts now."""
        self.most_bytes = self.info["max_payload"]
