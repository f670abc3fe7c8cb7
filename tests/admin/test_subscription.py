"""`JetStreamAdmin.request` and `subscribe`; tests/admin/test_events.py has what becomes of a lost
connection.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_jetstream.admin import CoreMessage, JetStreamAdmin
from spark_jetstream.errors import ConnectionFailed, JetStreamError, OptionError, PermissionDenied
from spark_jetstream.testing import NatsServer
from tests.support.proxy import WireProxy

USERS = """
authorization { users: [
  { user: ann, password: p, permissions: { publish: { deny: ["ask.denied", "_INBOX.>"] } } }
  { user: bob, password: p }
] }
"""


def test_impossible_requests_and_replies_are_errors_before_anything_is_sent(
    admin: JetStreamAdmin, nats_server: NatsServer
) -> None:
    with (
        JetStreamAdmin(servers=nats_server.url) as other,
        other.subscribe("ask.a", timeout=60) as messages,
    ):
        large = b"x" * (1 << 20)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(admin.request, "ask.a", large)
            message = next(messages)
            assert isinstance(message, CoreMessage)
            with pytest.raises(
                JetStreamError,
                match=r"cannot reply to _INBOX.*: with its headers it has 1,048,594 bytes",
            ):
                messages.reply(message, large, {"A": "1"})
            with pytest.raises(OptionError, match='header "A" is not possible'):
                messages.reply(message, "x", {"A": ["1", "2\n3"]})
            messages.reply(message, "é", {"A": "1"})
            (answer,) = asked.result()
        assert (message.data == large, answer.data.decode(), answer.headers) == (
            True,
            "é",
            {"A": ["1"]},
        )
        with pytest.raises(JetStreamError, match=r"cannot request ask\.a: with its headers it has"):
            admin.request("ask.a", large, {"A": "1"})
    with pytest.raises(OptionError, match="replies must be a whole number from 1 on"):
        admin.request("ask.a", replies=0)
    for wrong in ({"timeout": 0}, {"count": 0}, {"queue": "a b"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            admin.subscribe("ask.a", **wrong)


def test_a_connection_that_is_cut_ends_a_request(
    admin: JetStreamAdmin, nats_server: NatsServer
) -> None:
    with (
        WireProxy(nats_server.url) as proxy,
        JetStreamAdmin(servers=proxy.url) as far,
        admin.subscribe("ask.b", timeout=60) as messages,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(far.request, "ask.b")
        next(messages)
        proxy.cut()
        with pytest.raises(
            ConnectionFailed, match=r"cannot request ask\.b: the connection to .* was cut"
        ):
            asked.result()


def test_a_refusal_concerns_what_was_asked_for(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    """A subscription outlives the refusal of other requests, and of its own replies no second one
    is raised.
    """
    url = nats_server_factory(config=USERS).url
    with (
        JetStreamAdmin(servers=url, user="ann", password="p") as ann,
        JetStreamAdmin(servers=url, user="bob", password="p") as bob,
        ann.subscribe("ask", timeout=60) as messages,
        ThreadPoolExecutor(1) as pool,
    ):
        with pytest.raises(PermissionDenied, match=r"the account may not publish to ask\.denied"):
            ann.request("ask.denied")
        asked = pool.submit(bob.request, "ask", b"one")
        message = next(messages)
        assert isinstance(message, CoreMessage)
        assert message.data == b"one"
        with pytest.raises(
            PermissionDenied, match=f"the account may not publish to {message.reply}"
        ) as denied:
            messages.reply(message, b"two")
        assert denied.value.subject == message.reply
        bob_may = CoreMessage("ask", b"", message.reply)
        with bob.subscribe("other") as theirs:
            theirs.reply(bob_may, b"three")
        assert [answer.data for answer in asked.result()] == [b"three"]
        pool.submit(bob.request, "ask", b"four", timeout=0.1)
        following = next(messages)
        assert isinstance(following, CoreMessage)
        assert following.data == b"four"
