"""The servers that a client tries, as a cluster announces them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_jetstream.client.server_pool import ServerPool
from tests.support.client import unowned_wire

GIVEN = ["nats://a:1", "nats://b:2"]


class Client(SimpleNamespace):
    """Keeps the servers as nats-py's client does."""

    def set_server_pool(self, urls: list[str]) -> None:
        self.servers = [urlsplit(url) for url in urls]


def urls_after(*announced: list[str] | None, scheme: str = "nats") -> list[str]:
    given = [url.replace("nats", scheme) for url in GIVEN]
    client: Any = Client(is_closed=False, servers=[urlsplit(url) for url in given])
    pool = ServerPool(given, client)
    for urls in announced:
        pool.learn({"connect_urls": urls}, urlsplit(given[0]))
    return [uri.geturl() for uri in client.servers]


@pytest.mark.parametrize(
    ("announced", "known"),
    [
        (([],), GIVEN),
        ((None,), GIVEN),
        ((["a:1", "c:3", "c:3"],), [*GIVEN, "nats://c:3"]),
        ((["c:3", "d:4"], ["d:4"]), [*GIVEN, "nats://d:4"]),
        ((["c:3"], []), [*GIVEN, "nats://c:3"]),
        (([":3", "none:4"],), GIVEN),
    ],
)
def test_announced_servers_come_and_go_and_given_ones_stay(
    announced: tuple[list[str] | None, ...], known: list[str]
) -> None:
    assert urls_after(*announced) == known


def test_announced_servers_have_the_scheme_of_the_connection() -> None:
    assert urls_after(["c:3"], scheme="wss")[-1] == "wss://c:3"


@pytest.mark.parametrize(
    ("netloc", "host", "name"),
    [
        ("cluster:1", "cluster", "cluster"),
        ("10.0.0.2:1", "10.0.0.2", "cluster"),
        ("other:1", "other", "other"),
    ],
)
def test_a_certificate_of_an_announced_address_has_the_name_of_the_cluster(
    netloc: str, host: str, name: str
) -> None:
    wire = unowned_wire("tls://cluster:1")
    wire._name = "cluster"
    wire._netloc = netloc
    assert wire._certified_name(host) == name
