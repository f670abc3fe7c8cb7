"""Every way to log in, right and with each thing wrong: the table that the tests try, and that
docs/logins.md shows.

`tools/logins.py` makes the page: run ``make generate`` after a change.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import trustme

from spark_jetstream.errors import (
    AuthenticationFailed,
    JetStreamError,
    OptionError,
    PermissionDenied,
    RowRefused,
    UntrustedServer,
)
from spark_jetstream.testing.process import LOOPBACK
from tests.support.identities import Operator, user

PASSWORD = "right-pass-7f3a@:/ ü"
WRONG = "wrong-pass-91be"
Given = Mapping[str, str | None]


class Kind(NamedTuple):
    """A server: how it knows users, the name of its certificate (none: no TLS), and how it does
    TLS.
    """

    users: str = "users"
    certificate: str = ""
    verify: bool = False
    first: bool = False


class Way(NamedTuple):
    """A way to log in: the server, the scheme of its URL, the right options.

    A value `@name` is a file of the `Realm`: its path in an option that ends with File, else its
    content. The option `login` stands for the user info in the URL.
    """

    server: Kind
    scheme: str
    options: Given


class Case(NamedTuple):
    """Options that differ from those of several ways (None takes one away), and the result.

    Without `error` the login succeeds. In `says` the sign `…` stands for any text. `server` has the
    settings of the server that differ. `uses` has r for reading and w for writing. `tried` is false
    where TLS alone decides how often the client tries: the refusal of its certificate may get lost
    with the connection.
    """

    what: str
    ways: tuple[str, ...]
    given: Given
    error: type[JetStreamError] | None = None
    says: str = ""
    server: Mapping[str, Any] = MappingProxyType({})
    uses: str = "rw"
    tried: bool = True


class Change(NamedTuple):
    """A change while a query reads or writes; `error` ends the query, without one it goes on.

    `step` is done before the server reloads its configuration, or restarts; without one the login
    ends by itself. `then` is done when the client has met what `step` did.
    """

    what: str
    way: str
    step: Callable[[Realm], object] | None
    error: type[JetStreamError] | None = None
    says: str = ""
    uses: str = "rw"
    restart: bool = False
    then: Callable[[Realm], object] | None = None


TLS = Kind(certificate="server")
VERIFY = TLS._replace(verify=True)
LOGIN: Given = {"user": "ann", "password": PASSWORD}
CA: Given = {"tlsCaFile": "@ca.pem"}
CLIENT: Given = {"tlsCertFile": "@client.pem", "tlsKeyFile": "@client.pem"}
FIRST: Given = {"tlsHandshakeFirst": "true"}
WAYS = {
    "password": Way(Kind(), "nats", LOGIN),
    "token": Way(Kind("token"), "nats", {"token": PASSWORD}),
    "NKey": Way(Kind(), "nats", {"nkeySeedFile": "@right.nk"}),
    "credentials": Way(Kind("operator"), "nats", {"credentialsFile": "@right.creds"}),
    "JWT": Way(Kind("operator"), "nats", {"jwtFile": "@bearer.jwt"}),
    "TLS": Way(TLS, "tls", {**CA, **LOGIN}),
    "mutual TLS": Way(VERIFY, "tls", {**CA, **CLIENT, **LOGIN}),
    "TLS first": Way(TLS._replace(first=True), "tls", {**CA, **FIRST, **LOGIN}),
    "mutual TLS first": Way(VERIFY._replace(first=True), "tls", {**CA, **CLIENT, **FIRST, **LOGIN}),
    "WebSocket": Way(Kind(), "ws", LOGIN),
    "WebSocket with TLS": Way(TLS, "wss", {**CA, **LOGIN}),
    "WebSocket with mutual TLS": Way(VERIFY, "wss", {**CA, **CLIENT, **LOGIN}),
}
PASSWORDS = ("password", "TLS", "TLS first", "WebSocket", "WebSocket with TLS")
SECURE = tuple(name for name, way in WAYS.items() if way.server.certificate)
MUTUAL = tuple(name for name, way in WAYS.items() if way.server.verify)
NAMED = ("TLS", "TLS first")  # a WebSocket checks the name in its URL
#: Users that may do all but one thing.
DENIED: dict[str, dict[str, Any]] = {
    "no-inbox": {"subscribe": {"deny": ["_INBOX.>"]}},
    "no-info": {"publish": {"deny": ["$JS.API.STREAM.INFO.S"]}},
    "no-consumer": {"publish": {"deny": ["$JS.API.CONSUMER.CREATE.>"]}},
    "no-pull": {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}},
    "no-rows": {"publish": {"deny": ["s.>"]}},
}
NOT_SIGNED = "unable to get local issuer certificate"
DEMANDED = "the NATS server at … demands a client certificate (options tlsCertFile and tlsKeyFile)"
REFUSED = "the NATS server at … refused the credentials"
BY_PASSWORD = f"{REFUSED} (options user and password)"
BY_FILE = f"{REFUSED} (option credentialsFile)"
UNTRUSTED = "the certificate of … is not trusted (options tlsCaFile, tlsHostname): "
BAD_CLIENT = (
    "the NATS server at … refused the client certificate (options tlsCertFile and tlsKeyFile): "
)
SILENT = "; one that begins with TLS needs option tlsHandshakeFirst"
OTHER_CLIENTS = "the server trusts other clients"
NO_TLS = "TLS is asked for (a tls:// URL or a tls option), and the server offers none"
NO_TLS_FIRST = (
    "the server does not begin with TLS, which option tlsHandshakeFirst or a wss:// URL asks for"
)
MAY_NOT = "the account may not publish to "
CANNOT_STORE = (
    "row … of partition 0 cannot be stored at subject 's.a': the account may not publish to this "
    "subject; …"
)
MAY_NOT_SUBSCRIBE = "the account may not subscribe to _INBOX.> (option inboxPrefix)"
CREATE = "cannot create a consumer on stream S: "
READ_S = "cannot read stream S (option stream): "


def _url(login: str) -> Given:
    return {"user": None, "password": None, "token": None, "login": login}


def _nobody(*ways: str) -> Case:
    given = {name: None for way in ways for name in WAYS[way].options if not name.startswith("tls")}
    return _refused("no login", ways, given, "no option for authentication is set")


def _refused(what: str, ways: tuple[str, ...], given: Given, options: str, why: str = "") -> Case:
    return Case(what, ways, given, AuthenticationFailed, f"{REFUSED} ({options}){why}")


def _jwt(what: str, name: str, why: str = "") -> Case:
    given: Given = {"credentialsFile": f"@{name}.creds"}
    return _refused(what, ("credentials",), given, "option credentialsFile", why)


def _untrusted(
    what: str, ways: tuple[str, ...], why: str, given: Given, certificate: str = "server"
) -> Case:
    return Case(
        what, ways, given, UntrustedServer, f"{UNTRUSTED}{why}", {"certificate": certificate}
    )


def _client(what: str, file: str | None, says: str) -> Case:
    return Case(what, MUTUAL, dict.fromkeys(CLIENT, file), AuthenticationFailed, says, tried=False)


def _plain(what: str, ways: tuple[str, ...], says: str, **server: Any) -> Case:
    return Case(what, ways, {}, UntrustedServer, f"cannot connect to …: {says}", server)


def _denied(
    what: str, who: str, uses: str, says: str, error: type[JetStreamError] = PermissionDenied
) -> Iterator[Case]:
    for way, given in (
        ("password", {"user": who}),
        ("credentials", {"credentialsFile": f"@{who}.creds"}),
    ):
        yield Case(what, (way,), given, error, says, uses=uses)


RIGHT = (
    Case("the options above", tuple(WAYS), {}),
    Case("user and password in the URL", PASSWORDS, _url(f"ann:{quote(PASSWORD, safe='')}")),
    Case("the token in the URL", ("token",), _url(quote(PASSWORD, safe=""))),
    Case("`nkeySeedSecret`", ("NKey",), {"nkeySeedFile": None, "nkeySeedSecret": "@right.nk"}),
    Case(
        "`credentialsSecret`",
        ("credentials",),
        {"credentialsFile": None, "credentialsSecret": "@right.creds"},
    ),
    Case("`jwtSecret`", ("JWT",), {"jwtFile": None, "jwtSecret": "@bearer.jwt"}),
    Case(
        "`credentialsFile` with the JWT alone",
        ("JWT",),
        {"jwtFile": None, "credentialsFile": "@bearer.creds"},
    ),
    Case("`tlsCaPem`", SECURE, {"tlsCaFile": None, "tlsCaPem": "@ca.pem"}),
    Case(
        "`tlsCertPem` and `tlsKeySecret`",
        MUTUAL,
        {**dict.fromkeys(CLIENT), "tlsCertPem": "@client.pem", "tlsKeySecret": "@client.pem"},
    ),
    Case(
        "`tlsHostname`, where the certificate has another name",
        NAMED,
        {"tlsHostname": "nats.example"},
        server={"certificate": "other-host"},
    ),
)
"""Options that log in."""

WRONG_CASES = (
    Case("another password", PASSWORDS, {"password": WRONG}, AuthenticationFailed, BY_PASSWORD),
    Case(
        "another password in the URL",
        PASSWORDS,
        _url(f"ann:{WRONG}"),
        AuthenticationFailed,
        BY_PASSWORD,
    ),
    Case("an unknown user", PASSWORDS, {"user": "nobody"}, AuthenticationFailed, BY_PASSWORD),
    _refused("another token", ("token",), {"token": WRONG}, "option token"),
    _refused("another seed", ("NKey",), {"nkeySeedFile": "@other.nk"}, "option nkeySeedFile"),
    _nobody(*PASSWORDS, "token", "NKey", "credentials", "JWT"),
    _jwt("a JWT that expired", "expired", ": their JWT expired at …"),
    _jwt("a JWT that the account has revoked", "revoked"),
    _jwt("a JWT of an account and an operator that the server does not know", "unknown"),
    _jwt("a JWT with the seed of another user", "mixed"),
    _refused(
        "a JWT that expired",
        ("JWT",),
        {"jwtFile": "@expired.jwt"},
        "option jwtFile",
        ": their JWT expired at …",
    ),
    Case(
        "a JWT without its seed that is no bearer token",
        ("JWT",),
        {"jwtFile": "@right.jwt"},
        OptionError,
        "option jwtFile holds a JWT that is no bearer token, and no user NKey seed to sign the "
        "login with: …",
    ),
    _untrusted(
        "a server's certificate of another authority",
        SECURE,
        NOT_SIGNED,
        {"tlsCaFile": "@stranger.pem"},
    ),
    _untrusted("the same, where no option names one", SECURE, NOT_SIGNED, {"tlsCaFile": None}),
    _untrusted(
        "a server's certificate that has expired", SECURE, "certificate has expired", {}, "expired"
    ),
    _untrusted(
        "a server's certificate for another host",
        SECURE,
        "…certificate is not valid for …",
        {},
        "other-host",
    ),
    _untrusted(
        "another name in `tlsHostname`", NAMED, "Hostname mismatch", {"tlsHostname": "b.example"}
    ),
    _client("no client certificate", None, DEMANDED),
    _client(
        "a client certificate that has expired",
        "@client-expired.pem",
        f"{BAD_CLIENT}certificate expired",
    ),
    _client(
        "a client certificate of an unknown authority",
        "@client-stranger.pem",
        f"{BAD_CLIENT}unknown ca",
    ),
    _plain("a server without TLS", ("TLS",), NO_TLS, certificate=""),
    _plain(
        "a server without TLS",
        ("TLS first", "WebSocket with TLS"),
        NO_TLS_FIRST,
        certificate="",
        first=False,
    ),
    _plain("a server without TLS first", ("TLS first",), NO_TLS_FIRST, first=False),
    *_denied(
        "no permission to subscribe to replies", "no-inbox", "rw", f"{READ_S}{MAY_NOT_SUBSCRIBE}"
    ),
    *_denied(
        "no permission to look at the stream",
        "no-info",
        "r",
        f"{READ_S}{MAY_NOT}$JS.API.STREAM.INFO.S",
    ),
    *_denied(
        "no permission to create a consumer",
        "no-consumer",
        "r",
        f"{CREATE}{MAY_NOT}$JS.API.CONSUMER.CREATE.S.…",
    ),
    *_denied("no permission to pull", "no-pull", "r", f"{MAY_NOT}$JS.API.CONSUMER.MSG.NEXT.S.…"),
    *_denied("no permission to publish the rows", "no-rows", "w", CANNOT_STORE, RowRefused),
)


class Realm:
    """Keys, certificates and credentials as files of a folder, and the configuration of the servers
    that know them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.stranger = trustme.CA(), trustme.CA()
        for name, authority in {
            "ca": self.authority,
            "stranger": self.stranger,
            "clients": self.authority,
        }.items():
            authority.cert_pem.write_to_path(str(folder / f"{name}.pem"))
        for name, host in {
            "server": LOOPBACK,
            "other-host": "nats.example",
            "client": "client@example.org",
        }.items():
            self.issue(name, host)
        self.issue("expired", LOOPBACK, expired=True)
        self.issue("client-expired", "client@example.org", expired=True)
        self.issue("client-stranger", "client@example.org", self.stranger)
        self.operator, self.me = Operator(), user()
        self.users: list[dict[str, Any]] = [dict(LOGIN), {"nkey": self.me.public}]
        self.users += [
            {"user": who, "password": PASSWORD, "permissions": rules}
            for who, rules in DENIED.items()
        ]
        other, revoked = user(), user()
        self.operator.revoked.add(revoked)
        self.write("right.nk", self.me.seed)
        self.write("other.nk", other.seed)
        self.write("expired.creds", self.operator.credentials(user(), lifetime=-60))
        self.write("unknown.creds", Operator().credentials(user()))
        for name, who in {"right": self.me, "revoked": revoked}.items():
            self.write(f"{name}.creds", self.operator.credentials(who))
        self.write(
            "mixed.creds", self.operator.credentials(self.me).replace(self.me.seed, other.seed)
        )
        bearer = self.operator.credentials(user(), bearer_token=True).partition("\n\n")[0]
        self.write("bearer.creds", bearer)
        self.write("bearer.jwt", bearer.splitlines()[1])
        self.write("right.jwt", self.operator.credentials(self.me).splitlines()[1])
        expired = self.operator.credentials(user(), lifetime=-60, bearer_token=True)
        self.write("expired.jwt", expired.splitlines()[1])
        for name, rules in DENIED.items():
            claims = {kind[:3]: rule for kind, rule in rules.items()}  # pub and sub
            self.write(f"{name}.creds", self.operator.credentials(user(), **claims))

    def write(self, name: str, content: str) -> None:
        """Make a file, or give it another content."""
        (self.folder / name).write_text(content)

    def issue(
        self, name: str, host: str, authority: trustme.CA | None = None, *, expired: bool = False
    ) -> None:
        """Make a certificate with its key in one file."""
        day = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
        times: dict[str, Any] = (
            {"not_before": day - datetime.timedelta(days=9), "not_after": day} if expired else {}
        )
        leaf = (authority or self.authority).issue_cert(host, **times)
        leaf.private_key_and_cert_chain_pem.write_to_path(str(self.folder / f"{name}.pem"))

    @property
    def secrets(self) -> set[str]:
        """Return the texts that must show nowhere: passwords, seeds, JWTs, and the lines of keys."""
        found = [PASSWORD[:15], WRONG]  # as far as no text can escape or quote it
        for path in self.folder.iterdir():
            text = path.read_text()
            if path.suffix in (".nk", ".creds", ".jwt"):
                found += [line for line in text.splitlines() if not line.startswith("-")]
            for key in re.findall(r"PRIVATE KEY-----\n(.*?)-----END", text, re.DOTALL):
                found += key.split()
        return {secret for secret in found if len(secret) > 12}

    def config(self, kind: Kind, web: int) -> str:
        """The configuration of a server that also listens for WebSocket clients."""
        users = {
            "users": f"authorization {json.dumps({'users': self.users}, ensure_ascii=False)}",
            "token": f"authorization {{ token: {json.dumps(PASSWORD, ensure_ascii=False)} }}",
            "operator": self.operator.config,
        }[kind.users]
        pem = f"{self.folder}/{kind.certificate}.pem"
        files = f'cert_file: "{pem}"\nkey_file: "{pem}"\nca_file: "{self.folder}/clients.pem"'
        tls = (
            f"tls {{\n{files}\nverify: {json.dumps(kind.verify)}\ntimeout: 60"
            if kind.certificate
            else ""
        )
        first = f"\nhandshake_first: {json.dumps(kind.first)}\n}}"
        listen = f'host: "{LOOPBACK}"\nport: {web}\n' + (f"{tls}\n}}" if tls else "no_tls: true")
        return f"{users}\nwebsocket {{\n{listen}\n}}\n{tls + first if tls else ''}"

    def options(self, way: str, given: Given, ports: tuple[int, int]) -> dict[str, str]:
        """The options of a way, with what is `given` in place of its own."""
        scheme, options = WAYS[way].scheme, {**WAYS[way].options, **given}
        found = {
            name: self._value(name, text) for name, text in options.items() if text is not None
        }
        login = found.pop("login", None)
        address = f"{LOOPBACK}:{ports[scheme.startswith('ws')]}"
        return {
            "servers": f"{scheme}://{address if login is None else f'{login}@{address}'}",
            **found,
        }

    def _value(self, option: str, text: str) -> str:
        file = self.folder / text.removeprefix("@")
        return (
            text
            if not text.startswith("@")
            else str(file)
            if option.endswith("File")
            else file.read_text()
        )

    # Steps of changes

    def password(self) -> None:
        self.users[0]["password"] = "another"

    def no_user(self) -> None:
        del self.users[0]

    def no_permissions(self) -> None:
        self.users[0]["permissions"] = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>", "s.>"]}}

    def revoke(self) -> None:
        self.operator.revoked.add(self.me)

    def renew(self) -> None:
        self.write("right.creds", self.operator.credentials(user()))

    def renew_and_revoke(self) -> None:
        self.renew()
        self.revoke()

    def empty_and_revoke(self) -> None:
        self.write("right.creds", "")
        self.revoke()

    def other_nkey(self) -> None:
        me = user()
        self.users[1]["nkey"] = me.public
        self.write("right.nk", me.seed)

    def other_certificate(self) -> None:
        self.issue("server", LOOPBACK)

    def expired_certificate(self) -> None:
        self.issue("server", LOOPBACK, expired=True)

    def strange_certificate(self) -> None:
        self.issue("server", LOOPBACK, self.stranger)

    def trusted_stranger(self) -> None:
        self.strange_certificate()
        self.stranger.cert_pem.write_to_path(str(self.folder / "ca.pem"))

    def other_clients(self) -> None:
        self.stranger.cert_pem.write_to_path(str(self.folder / "clients.pem"))

    def other_client(self) -> None:
        self.other_clients()
        self.issue("client", "client@example.org", self.stranger)


def _until(what: str, way: str, step: Any, says: str, **more: Any) -> Change:
    return Change(what, way, step, AuthenticationFailed, says, **more)


def _certificate(what: str, step: Any, why: str = "") -> Change:
    how: dict[str, Any] = {"error": UntrustedServer, "says": f"{UNTRUSTED}{why}"} if why else {}
    return Change(what, "TLS", step, restart=True, **how)


CHANGES = (
    _until("the server gets another password", "password", Realm.password, BY_PASSWORD),
    _until("the server loses the user", "password", Realm.no_user, BY_PASSWORD, uses="rwa"),
    _until(
        "the server loses the user and restarts",
        "password",
        Realm.no_user,
        BY_PASSWORD,
        restart=True,
    ),
    Change(
        "the user loses a permission",
        "password",
        Realm.no_permissions,
        PermissionDenied,
        f"{MAY_NOT}$JS.API.CONSUMER.MSG.NEXT.S.…",
        "r",
    ),
    Change(
        "the user loses a permission",
        "password",
        Realm.no_permissions,
        RowRefused,
        CANNOT_STORE,
        "w",
    ),
    _until("the JWT expires", "credentials", None, f"{BY_FILE}: …expired…", uses="rwa"),
    _until("the account revokes the JWT", "credentials", Realm.revoke, f"{BY_FILE}…"),
    Change(
        "the account revokes the JWT, and the file has a new one",
        "credentials",
        Realm.renew_and_revoke,
    ),
    Change(
        "the account revokes the JWT, and the file is empty before it gets a new one",
        "credentials",
        Realm.empty_and_revoke,
        then=Realm.renew,
    ),
    Change("the server gets another NKey, and the file its seed", "NKey", Realm.other_nkey),
    _certificate(
        "the server gets another certificate, of the same authority", Realm.other_certificate
    ),
    _certificate(
        "the server gets one that has expired", Realm.expired_certificate, "certificate has expired"
    ),
    _certificate("the server gets one of another authority", Realm.strange_certificate, NOT_SIGNED),
    _certificate(
        "the server gets one of another authority, which the file gets too", Realm.trusted_stranger
    ),
    _until(OTHER_CLIENTS, "mutual TLS", Realm.other_clients, f"{BAD_CLIENT}…", restart=True),
    *(
        Change(f"{OTHER_CLIENTS}, and the files get theirs", way, Realm.other_client, restart=True)
        for way in MUTUAL
    ),
)
