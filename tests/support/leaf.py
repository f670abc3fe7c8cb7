"""A hub and a leaf node, each a server with a JetStream and a domain of its own, and the link
between them.

with Linked() as linked:
    linked.hub.url, linked.leaf.url  # what clients connect to
    linked.cut()                     # the link is gone; both servers go on by themselves
    linked.mend()
"""

from __future__ import annotations

import contextlib
import functools

from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.support.proxy import WireProxy
from tests.support.publish import Publisher, Refused
from tests.support.reading import wait_until

# Connections may be quiet while a test runs Spark: hence the long ping_interval.
# A leaf node learns other addresses of its hub, and would go round the proxy: hence no_advertise.
_HUB = """
ping_interval: "1h"
jetstream {{ domain: hub }}
leafnodes {{ listen: "{address}", no_advertise: true }}
"""
_LEAF = """
ping_interval: "1h"
jetstream {{ domain: leaf }}
leafnodes {{ reconnect: "100ms", remotes: [{{ url: "{url}" }}] }}
"""


class Linked:
    """Two servers: `hub` (domain `hub`) and `leaf` (domain `leaf`), all in one account."""

    def __init__(self) -> None:
        self._lease = PortLease()
        address = f"{LOOPBACK}:{self._lease.port}"
        self._link = WireProxy(f"nats://{address}")
        self.hub = NatsServer(name="hub", config=_HUB.format(address=address), http_monitor=True)
        self.leaf = NatsServer(
            name="leaf", config=_LEAF.format(url=self._link.url), http_monitor=True
        )

    def server(self, domain: str) -> NatsServer:
        return {"hub": self.hub, "leaf": self.leaf}[domain]

    def other(self, domain: str) -> NatsServer:
        """The server at the other end of the link to this domain."""
        return {"hub": self.leaf, "leaf": self.hub}[domain]

    def wait(self, linked: bool = True) -> None:
        """Wait until each server reaches the JetStream of the other, or, with False, knows that the
        link is gone.
        """
        servers = [server for server in (self.hub, self.leaf) if server.running]
        state = "up" if linked else "down"
        wait_until(
            lambda: all(
                bool(server.monitor("/leafz")["leafnodes"]) is linked for server in servers
            ),
            f"the link is {state}",
        )
        # A server hears a moment later what the other one listens to.
        for domain in ("hub", "leaf") if linked else ():
            with Publisher(self.other(domain).url, f"$JS.{domain}.API") as publisher:
                wait_until(functools.partial(_answers, publisher), f"domain {domain} answers")

    def cut(self) -> None:
        """Cut the link for good; returns when both servers know."""
        self._link.refuse()
        self._link.cut()
        self.wait(linked=False)

    def flicker(self) -> None:
        """Cut the link; it comes back by itself."""
        self._link.cut()

    def mend(self) -> None:
        """Let the link come back after `cut`, and wait for it."""
        self._link.accept()
        self.wait()

    def __enter__(self) -> Linked:
        with contextlib.ExitStack() as stack:
            stack.callback(self._lease.release)
            stack.enter_context(self.hub)
            stack.enter_context(self._link)
            stack.enter_context(self.leaf)
            self.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def _answers(publisher: Publisher) -> bool:
    try:
        return bool(publisher.api("INFO"))
    except Refused:
        return False
