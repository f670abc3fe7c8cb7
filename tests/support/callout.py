"""An authorization callout: a service that a server asks about each login (ADR-26)."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nkeys  # type: ignore[import-untyped]

from spark_jetstream.admin import CoreMessage, JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.support.identities import Identity, identity, token

_SERVICE = {"user": "service", "password": "x"}


class Callout:
    """A service that accepts each login, and `config` of a server that asks it: an account A with
    JetStream.
    """

    def __init__(self) -> None:
        self._issuer = identity(nkeys.PREFIX_BYTE_ACCOUNT)
        self.config = f"""
            accounts {{ A {{ jetstream: enabled, users: [{json.dumps(_SERVICE)}] }} }}
            authorization {{
                timeout: 60
                auth_callout {{ issuer: {self._issuer.public}, account: A, auth_users: [service] }}
            }}"""

    @contextmanager
    def serving(
        self, server: NatsServer, heard: Callable[[dict[str, Any]], object]
    ) -> Iterator[None]:
        """Answer each request of a server when `heard` has returned, which is called with what the
        server asks.
        """
        admin = JetStreamAdmin(servers=server.url, **_SERVICE)
        with admin, admin.subscribe("$SYS.REQ.USER.AUTH") as requests:

            def serve() -> None:
                for request in requests:
                    assert isinstance(request, CoreMessage)
                    claims = base64.urlsafe_b64decode(request.data.split(b".")[1] + b"==")
                    asked = json.loads(claims)["nats"]
                    heard(asked)
                    requests.reply(request, self._accept(asked))

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            try:
                yield
            finally:
                requests.close()
                thread.join()

    def _accept(self, asked: dict[str, Any]) -> str:
        who = Identity(asked["user_nkey"], "")
        limits: dict[str, Any] = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        user = token(self._issuer, who, "user", type="user", audience="A", **limits)
        server = asked["server_id"]["id"]
        kind = "authorization_response"
        return token(self._issuer, who, "answer", type=kind, audience=server, jwt=user)
