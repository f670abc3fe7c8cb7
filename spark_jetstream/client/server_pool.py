"""The servers that a client tries: those that the user has given, and those that they announce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client


class ServerPool:
    """Keeps the servers of nats-py's client as a cluster announces them.

    nats-py's own list only grows: in an outage each server that has left would be tried
    (test_servers_that_have_left_a_cluster_are_forgotten). It also makes nats:// URLs of servers
    that are announced over WebSocket (test_another_server_over_websocket).
    """

    def __init__(self, given: Sequence[str], client: Client) -> None:
        self._given = {urlsplit(url).netloc for url in given}
        self._client = client

    def learn(self, info: Mapping[str, Any], connected: Any) -> None:
        """Note the INFO of the server at the URL `connected`.

        A server that is given, or connected, is not forgotten. The order stays: the client tries
        one server after the other.
        """
        announced = _announced(info)
        if not announced or self._client.is_closed:
            return
        # Only for look-ups: the lists below keep the order in which the client tries its servers.
        stay = {*self._given, connected.netloc, *announced}
        known = self._client.servers
        kept = [uri.geturl() for uri in known if uri.netloc in stay]
        new = announced.keys() - {uri.netloc for uri in known}
        added = [f"{connected.scheme}://{netloc}" for netloc in announced if netloc in new]
        if added or len(kept) < len(known):
            self._client.set_server_pool([*kept, *added])


def _announced(info: Mapping[str, Any]) -> dict[str, None]:
    """Return the other servers that an INFO names, in its order and each once."""
    return dict.fromkeys(filter(_has_host, info.get("connect_urls") or ()))


def _has_host(netloc: str) -> bool:
    # nats-py takes the second for a missing one.
    return urlsplit(f"nats://{netloc}").hostname not in (None, "none")
