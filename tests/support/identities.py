"""Identities of a NATS operator, made on the spot: keys, JWTs and `.creds` content (nats-io/jwt,
version 2).
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import nkeys  # type: ignore[import-untyped]

_UNLIMITED = dict.fromkeys(
    [
        "subs",
        "data",
        "payload",
        "imports",
        "exports",
        "conn",
        "leaf",
        "mem_storage",
        "disk_storage",
        "streams",
    ],
    -1,
)


class Identity(NamedTuple):
    """An NKey: the public part and the secret seed, as text."""

    public: str
    seed: str


def identity(prefix: int) -> Identity:
    """A new one: `nkeys.PREFIX_BYTE_USER` and the like."""
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), prefix)
    return Identity(nkeys.from_seed(bytearray(seed)).public_key.decode(), seed.decode())


def user() -> Identity:
    return identity(nkeys.PREFIX_BYTE_USER)


def token(
    issuer: Identity,
    subject: Identity,
    name: str,
    *,
    lifetime: float | None = None,
    audience: str = "",
    **claims: Any,
) -> str:
    """A JWT in which `issuer` says something of `subject`; it expires after `lifetime` seconds."""
    content = {
        **({} if lifetime is None else {"exp": int(time.time() + lifetime)}),
        **({"aud": audience} if audience else {}),
        "jti": secrets.token_hex(16),
        "iat": int(time.time()),
        "iss": issuer.public,
        "sub": subject.public,
        "name": name,
        "nats": {"version": 2, **claims},
    }
    parts = [_encoded({"typ": "JWT", "alg": "ed25519-nkey"}), _encoded(content)]
    signature: bytes = nkeys.from_seed(bytearray(issuer.seed.encode())).sign(
        ".".join(parts).encode()
    )
    return ".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()])


def _encoded(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


class Operator:
    """An operator with one account that has JetStream. `config` is for the server, `credentials`
    for a user.

    `consumers` are the most consumers of a stream by tier, such as R1; without it the account has
    no tiers.
    """

    def __init__(self, consumers: Mapping[str, int] | None = None) -> None:
        self._tiers = {
            tier: {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": most}
            for tier, most in (consumers or {}).items()
        }
        system, operator = identity(nkeys.PREFIX_BYTE_ACCOUNT), identity(nkeys.PREFIX_BYTE_OPERATOR)
        self._operator, self._account = operator, identity(nkeys.PREFIX_BYTE_ACCOUNT)
        # The system account keeps no streams. A server that reloads its configuration wants this
        # part unchanged.
        unstored = {**_UNLIMITED, "mem_storage": 0, "disk_storage": 0, "streams": 0}
        self._head = (
            f"operator: {token(operator, operator, 'OPERATOR', type='operator')}\nsystem_account: "
            f"{system.public}\n"
            f"resolver: MEMORY\nresolver_preload {{\n{self._preload(system, 'SYS', unstored)}\n"
        )
        self.revoked: set[Identity] = set()
        """Users whose JWTs of before the next use of `config` are void."""

    @property
    def config(self) -> str:
        """The server's configuration, with all that is `revoked`."""
        revoked = {who.public: int(time.time()) for who in self.revoked}
        limits: dict[str, Any] = {**_UNLIMITED}
        if self._tiers:
            limits |= {
                **dict.fromkeys(("mem_storage", "disk_storage", "streams"), 0),
                "tiered_limits": self._tiers,
            }
        return f"{self._head}{self._preload(self._account, 'ACCOUNT', limits, revocations=revoked)}\n}}\n"

    def _preload(self, account: Identity, name: str, limits: dict[str, Any], **claims: Any) -> str:
        rest = {"consumer": 0 if not limits["streams"] else -1, "wildcards": True}
        jwt = token(
            self._operator, account, name, type="account", limits={**limits, **rest}, **claims
        )
        return f"{account.public}: {jwt}"

    def credentials(self, who: Identity, lifetime: float | None = None, **rights: Any) -> str:
        """The content of a `.creds` file for a user of the account; the JWT expires after
        `lifetime` seconds.

        `rights` are `pub` and `sub`, each with `allow` and `deny`.
        """
        claims = {"pub": {}, "sub": {}, **rights, "subs": -1, "data": -1, "payload": -1}
        jwt = token(self._account, who, "user", lifetime=lifetime, type="user", **claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{who.seed}\n------END USER NKEY SEED------\n"
        )
