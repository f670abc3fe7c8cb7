"""How to reach JetStream: the options that source, sink and admin share, as one frozen model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr, model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.base import Options, build, fields_of
from spark_jetstream.options.contexts import context_options
from spark_jetstream.options.servers import Login, Servers, address
from spark_jetstream.options.specs import AUTHENTICATION, CONNECTION_OPTIONS, given_options
from spark_jetstream.options.values import hidden, revealed, unseen

# What replaces what when an option stands beside a context: one option of a group drops all of the context's.
_GROUPS = (
    frozenset(name for names in AUTHENTICATION.values() for name in names),
    frozenset({"domain", "apiPrefix"}),
    frozenset({"tlsCaFile", "tlsCaPem"}),
    frozenset({"tlsCertFile", "tlsCertPem", "tlsKeyFile", "tlsKeySecret"}),
)
_FIELDS = {spec.name: spec.field_name for spec in CONNECTION_OPTIONS}


def _both(given: frozenset[str], some: tuple[str, ...], others: tuple[str, ...]) -> None:
    for here, there in ((some, others), (others, some)):
        found = given.intersection(here)
        if found and not given.intersection(there):
            name = min(found)
            raise OptionError(f"option {name} needs {' or '.join(there)} beside it", option=name)


class ConnectionOptions(Options):
    """How to reach JetStream. Equal options share one connection in a process.

    User info in a server URL becomes ``user`` and ``password``, or ``token``, and applies to all servers,
    those that the cluster announces included; ``servers`` holds none. A ``context`` has been resolved and
    leaves no trace but its values.
    """

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    credentials_file: str | None = None
    credentials_secret: SecretStr | None = None
    nkey_seed_file: str | None = None
    nkey_seed_secret: SecretStr | None = None
    tls_ca_file: str | None = None
    tls_ca_pem: str | None = None
    tls_cert_file: str | None = None
    tls_cert_pem: str | None = None
    tls_key_file: str | None = None
    tls_key_secret: SecretStr | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    domain: str | None = None
    api_prefix: str | None = None
    inbox_prefix: str = "_INBOX"
    connect_timeout: float = 10.0
    request_timeout: float = 10.0
    retry_timeout: float = 60.0

    @classmethod
    def from_spark(cls, mapping: Mapping[str, object]) -> ConnectionOptions:
        """The connection options in ``mapping``; options of sources and sinks in it are left alone.

        Names match in any case. Reads no file but that of a ``context`` and those that its secret fields point
        to. Raises `OptionError`.
        """
        mapping = hidden(mapping)
        return cls.from_given(given_options(mapping, CONNECTION_OPTIONS))

    @classmethod
    def from_given(cls, given: Mapping[str, SecretStr]) -> ConnectionOptions:
        """As `from_spark`, of options by their proper names (`given_options`)."""
        own = {spec.name: given[spec.name] for spec in CONNECTION_OPTIONS if spec.name in given}
        context = own.pop("context", None)
        if context is None:
            return build(cls, fields_of(own, CONNECTION_OPTIONS))
        inherited = beside(own, hidden(context_options(context)))
        try:
            return build(cls, fields_of({**inherited, **own}, CONNECTION_OPTIONS))
        except OptionError as error:
            if error.option not in inherited:
                raise
            fault = OptionError(f"{error} (it comes from option context, {revealed(context)})", option=error.option)
        raise fault

    @model_validator(mode="before")
    @classmethod
    def _take_login(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "servers" not in data:
            return data
        login = _login(data["servers"])
        if login is None:
            return data
        for names in AUTHENTICATION.values():
            for name in names:
                if data.get(_FIELDS[name]) is not None:
                    raise OptionError(
                        f"options servers, with a user in a URL, and {name} are two kinds of authentication",
                        option=name,
                    )
        return {**data, **{field: value for field, value in login._asdict().items() if value is not None}}

    @model_validator(mode="after")
    def _check_authentication(self) -> ConnectionOptions:
        given = self.given()
        used = [next(name for name in names if name in given) for names in self._kinds(given).values()]
        if len(used) > 1:
            raise OptionError(f"options {used[0]} and {used[1]} are two kinds of authentication", option=used[0])
        _both(given, ("user",), ("password",))
        _both(given, ("tlsCertFile", "tlsCertPem"), ("tlsKeyFile", "tlsKeySecret"))
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> ConnectionOptions:
        given = self.given()
        schemes = {url.partition(":")[0] for url in self.servers}
        tls = [spec.name for spec in CONNECTION_OPTIONS if spec.name.startswith("tls") and spec.name in given]
        if schemes == {"ws"} and tls:
            raise OptionError(f"option {tls[0]} has no effect with ws:// URLs; use wss://", option=tls[0])
        for name in ("tlsHostname", "tlsHandshakeFirst"):
            if schemes & {"ws", "wss"} and getattr(self, _FIELDS[name]):
                raise OptionError(f"option {name} does not work with wss:// URLs", option=name)
        return self

    @staticmethod
    def _kinds(given: frozenset[str]) -> dict[str, tuple[str, ...]]:
        return {kind: names for kind, names in AUTHENTICATION.items() if given.intersection(names)}

    @property
    def api_prefix_resolved(self) -> str:
        """What JetStream's API subjects begin with, without a dot at the end."""
        if self.domain is not None:
            return f"$JS.{self.domain}.API"
        return self.api_prefix or "$JS.API"

    @property
    def requires_tls(self) -> bool:
        """Whether an unencrypted connection would be less than what was asked for."""
        tls = (self.tls_ca_file, self.tls_ca_pem, self.tls_cert_file, self.tls_cert_pem, self.tls_hostname)
        secure = any(url.startswith(("tls:", "wss:")) for url in self.servers)
        return secure or self.tls_handshake_first or any(item is not None for item in tls)

    @property
    def display_servers(self) -> str:
        """The servers as log lines and errors show them."""
        return ", ".join(map(address, self.servers))

    @property
    def authentication_options(self) -> str:
        """Which options say who we are, in words for an error; never their values."""
        given = self.given()
        names = [name for names in self._kinds(given).values() for name in names if name in given]
        if not names:
            return "no option for authentication is set"
        return f"{'option' if len(names) == 1 else 'options'} {' and '.join(names)}"


@unseen
def _login(servers: object) -> Login | None:
    return Servers().login("servers", revealed(servers))


def beside(own: Mapping[str, SecretStr], context: Mapping[str, SecretStr | None]) -> dict[str, SecretStr]:
    """What remains of a context's options (or of others that may be overridden) beside those that the user gave."""
    given = set(own)
    if "servers" in own and _login(own["servers"]) is not None:
        given.add("user")
    dropped = {name for group in _GROUPS if given & group for name in group} | given
    return {name: text for name, text in context.items() if text is not None and name not in dropped}
