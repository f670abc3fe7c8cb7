"""How to reach JetStream: the options that source, sink and admin share, as one frozen model."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import chain
from typing import Any, ClassVar, TypeVar

from pydantic import Field, SecretStr, model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.contexts import context_options
from spark_jetstream.options.names import Prefix
from spark_jetstream.options.servers import (
    WEB_SCHEMES,
    ServerLogin,
    Servers,
    UserInfo,
    address,
    schemes_of,
)
from spark_jetstream.options.specs import (
    FORGOTTEN,
    WHAT,
    Options,
    OptionSpec,
    Side,
    given_options,
    option,
    refuse_elsewhere,
)
from spark_jetstream.options.values import Flag, Seconds, Secret, Text, hidden, revealed, unseen
from spark_jetstream.protocol.jsapi import DEFAULT_PREFIX

Sides = TypeVar("Sides", bound="SideOptions")

# Kinds of authentication, of which one at a time may be given.
_AUTHENTICATION = (
    ("user", "password"),
    ("token",),
    ("credentialsFile", "credentialsSecret"),
    ("jwtFile", "jwtSecret"),
    ("nkeySeedFile", "nkeySeedSecret"),
)
_LOGIN_OPTIONS = frozenset(name for names in _AUTHENTICATION for name in names)
# One option of a group, given beside a context, replaces all options of the group that come from
# the context.
_GROUPS = (
    _LOGIN_OPTIONS,
    frozenset({"domain", "apiPrefix"}),
    frozenset({"tlsCaFile", "tlsCaPem"}),
    frozenset({"tlsCertFile", "tlsCertPem", "tlsKeyFile", "tlsKeySecret"}),
)
_CONTEXT = OptionSpec(
    "name of a `nats` CLI context, or a path to its JSON; options beside it win",
    Text(required=True),
    name="context",
    field_name="context",
)


def _both(given: frozenset[str], some: tuple[str, ...], others: tuple[str, ...]) -> None:
    """Raise `OptionError` when options of only one of the two groups are given."""
    for here, there in ((some, others), (others, some)):
        alone = given.intersection(here)
        if alone and given.isdisjoint(there):
            name = min(alone)
            raise OptionError(f"option {name} needs {' or '.join(there)} beside it", option=name)


class ConnectionOptions(Options):
    """How to reach JetStream. Equal options share one connection in a process.

    User info in a server URL becomes ``user`` and ``password``, or ``token``, and applies to all
    servers, those that the cluster announces included; ``servers`` holds none. The values of a
    ``context`` replace it.
    """

    side: ClassVar[Side] = "connection"
    without_field: ClassVar[tuple[OptionSpec, ...]] = (_CONTEXT,)

    servers: tuple[str, ...] = option(
        "the servers to try, in any order",
        Servers(),
        "nats://127.0.0.1:4222",
    )
    # The login: one of these kinds (`_AUTHENTICATION`). A secret or a file may hold it.
    user: str | None = option("user name, together with `password`", Text(required=True))
    password: SecretStr | None = option("password, together with `user`", Secret())
    token: SecretStr | None = option("token for servers with token authentication", Secret())
    credentials_file: str | None = option("path of a `.creds` file", Text(required=True))
    credentials_secret: SecretStr | None = option("content of a `.creds` file", Secret())
    jwt_file: str | None = option(
        "path of a file with a user JWT that is a bearer token, so that it needs no seed",
        Text(required=True),
    )
    jwt_secret: SecretStr | None = option("user JWT that is a bearer token", Secret())
    nkey_seed_file: str | None = option("path of a file with a user NKey seed", Text(required=True))
    nkey_seed_secret: SecretStr | None = option("user NKey seed", Secret())
    # TLS.
    tls_ca_file: str | None = option(
        "path of the CA certificates (PEM) that servers are checked against",
        Text(required=True),
    )
    tls_ca_pem: str | None = option("the CA certificates themselves", Text(required=True))
    tls_cert_file: str | None = option(
        "path of the client's certificate (PEM)",
        Text(required=True),
    )
    tls_cert_pem: str | None = option("the client's certificate itself", Text(required=True))
    tls_key_file: str | None = option(
        "path of the client's unencrypted key (PEM)",
        Text(required=True),
    )
    tls_key_secret: SecretStr | None = option("the client's key itself", Secret())
    tls_hostname: str | None = option(
        "name to check servers' certificates against, when it is not the host's",
        Text(required=True),
    )
    tls_handshake_first: bool = option(
        "start TLS before the server sends its greeting (INFO)",
        Flag(),
        "false",
    )
    # Subjects: those of the API, and those of replies.
    domain: str | None = option("JetStream domain that holds the streams", Prefix(tokens=1))
    api_prefix: str | None = option(
        "prefix of the API's subjects, to use streams that another account exports",
        Prefix(),
        "$JS.API",
        value=None,
    )
    inbox_prefix: str = option(
        "prefix of the subjects on which the client receives replies",
        Prefix(),
        "_INBOX",
    )
    # How long to wait, and how long to try again.
    connect_timeout: float = option(
        "time to connect and to log in; several servers share it until one greets",
        Seconds("100ms", "10m"),
        "10s",
    )
    request_timeout: float = option(
        "time to wait for the answer to one request",
        Seconds("100ms", "10m"),
        "10s",
    )
    retry_timeout: float = option(
        "how long a task or the planner retries in an outage (restart, leader election, network "
        "cut)",
        Seconds("0s", "1d"),
        "60s",
    )

    @classmethod
    def from_spark(cls, mapping: Mapping[str, object]) -> ConnectionOptions:
        """Return the connection options in ``mapping``, which may hold those of a source or sink.

        Names match in any case. The only files read are that of a ``context`` and those that its
        secret fields name. Raises `OptionError`.
        """
        mapping = hidden(mapping)
        return cls.from_given(given_options(mapping, cls.specs))

    @classmethod
    def from_given(cls, given: Mapping[str, SecretStr]) -> ConnectionOptions:
        """Return the same as `from_spark`, for options by their proper names (`given_options`)."""
        names = cls._names()
        own = {name: value for name, value in given.items() if name in names}
        context = own.pop("context", None)
        if context is None:
            return cls._build(cls._fields_of(own))
        # The user's own options win over those of the context.
        # Only values remain of a context:
        # executors do not have its file (test_executors_do_not_need_the_context).
        inherited = beside(own, hidden(context_options(context)))
        try:
            return cls._build(cls._fields_of({**inherited, **own}))
        except OptionError as error:
            # The user has not given this option: the error must say where it comes from.
            if error.option not in inherited:
                raise
            message = f"{error} (it comes from option context, {revealed(context)})"
            raise OptionError(message, option=error.option) from None

    @model_validator(mode="before")
    @classmethod
    def _take_login(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "servers" not in data:
            return data
        # Before the fields are parsed: then `servers` has lost the user info.
        login = _login(data["servers"])
        if login is None:
            return data
        for spec in cls.specs:
            if spec.name in _LOGIN_OPTIONS and data.get(spec.field_name) is not None:
                raise OptionError(
                    f"options servers, with a user in a URL, and {spec.name} are two kinds of "
                    "authentication",
                    option=spec.name,
                )
        return {**data, **login.given()}

    @model_validator(mode="after")
    def _check_authentication(self) -> ConnectionOptions:
        given = self.given()
        logins = self._logins()
        if len(logins) > 1:
            one = logins[0][0]
            other = logins[1][0]
            message = f"options {one} and {other} are two kinds of authentication"
            raise OptionError(message, option=one)
        _both(given, ("user",), ("password",))
        _both(given, ("tlsCertFile", "tlsCertPem"), ("tlsKeyFile", "tlsKeySecret"))
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> ConnectionOptions:
        schemes = schemes_of(self.servers)
        tls = self._tls_options()
        # Servers are all WebSocket servers, or none of them is (`Servers`).
        if not tls or schemes.isdisjoint(WEB_SCHEMES):
            return self
        for name in ("tlsHostname", "tlsHandshakeFirst"):
            if name in tls:
                message = f"option {name} does not work with ws:// and wss:// URLs"
                raise OptionError(message, option=name)
        if schemes == {"ws"}:
            message = f"option {tls[0]} has no effect with ws:// URLs; use wss://"
            raise OptionError(message, option=tls[0])
        return self

    def _tls_options(self) -> list[str]:
        """Return the names of the options that ask for TLS, in the order of the reference."""
        given = self.given()
        if not self.tls_handshake_first:
            given -= {"tlsHandshakeFirst"}  # given as false
        tls = [spec.name for spec in self.specs if spec.name.startswith("tls")]
        return [name for name in tls if name in given]

    def _logins(self) -> list[list[str]]:
        """Return the options for authentication that are given, by kind."""
        given = self.given()
        by_kind = [[name for name in kind if name in given] for kind in _AUTHENTICATION]
        return [names for names in by_kind if names]

    @property
    def api_prefix_resolved(self) -> str:
        """The prefix of the subjects of the JetStream API, without a dot at the end."""
        if self.domain is not None:
            return f"$JS.{self.domain}.API"
        return self.api_prefix or DEFAULT_PREFIX

    @property
    def requires_tls(self) -> bool:
        """Whether the options ask for encryption: an unencrypted connection must be refused."""
        if self.tls_handshake_first or schemes_of(self.servers) & {"tls", "wss"}:
            return True
        certificates = (self.tls_ca_file, self.tls_ca_pem, self.tls_cert_file, self.tls_cert_pem)
        return any(value is not None for value in (*certificates, self.tls_hostname))

    @property
    def display_servers(self) -> str:
        """The servers as log lines and errors show them."""
        return ", ".join(map(address, self.servers))

    @property
    def authentication_options(self) -> str:
        """The names of the options for authentication that are given, for an error."""
        names = list(chain.from_iterable(self._logins()))
        if not names:
            return "no option for authentication is set"
        noun = "option" if len(names) == 1 else "options"
        return f"{noun} {' and '.join(names)}"


class SideOptions(Options):
    """The base of the options of sources and sinks."""

    connection: ConnectionOptions = Field(default_factory=ConnectionOptions)
    streaming: bool

    @classmethod
    def from_spark(cls: type[Sides], mapping: Mapping[str, object], *, streaming: bool) -> Sides:
        """Return the options, ``connection`` included, for a stream or for a batch.

        Names match in any case. The path that Spark's load(), save() or start() was called with
        stands for option ``stream``. Raises `OptionError`; unknown names come first.
        """
        mapping = hidden(mapping)
        given = given_options(mapping, (*ConnectionOptions.specs, *cls.specs))
        # Unknown and misplaced options come first: their values do not matter.
        refuse_elsewhere(given, cls, streaming=streaming)
        call = "load()" if cls.side == "source" else "save() or start()"
        path = _path(mapping, given, call)
        if path is not None:
            given["stream"] = path
        # Spark (4.0 to 4.3) hands the options of CREATE TABLE to no Python data source.
        if cls.side == "source" and not given:
            raise OptionError(FORGOTTEN, option="stream")
        connection = ConnectionOptions.from_given(given)
        try:
            return cls._build(
                {**cls._fields_of(given), "streaming": streaming, "connection": connection},
            )
        except OptionError as error:
            # The user gave a path and no option `stream`,
            # so the error must say which text it means.
            if path is None or error.option != "stream":
                raise
            problem = OptionError(f"{error} (it is the path of {call})", option="stream")
        raise problem

    def _refuse_with(self, chosen: str, refused: Mapping[str, str]) -> None:
        """Refuse options without a meaning beside the option that says what to read or to write.

        ``refused`` has the alternative to each, or the reason.
        """
        given = self.given()
        for name, reason in refused.items():
            if name in given:
                message = f"option {name} has no meaning with {chosen}: {reason}"
                raise OptionError(message, option=name)


def _path(
    mapping: Mapping[str, SecretStr | None],
    given: Container[str],
    call: str,
) -> SecretStr | None:
    """Return the path that Spark hands over as an option, None if there is none.

    Raises `OptionError` for several paths, and for a path beside an option that names what to read
    or to write.
    """
    keys = {key.lower(): value for key, value in mapping.items()}
    if keys.get("paths") is not None:
        raise OptionError(
            "load() takes one path, the name of a stream: write several streams as one text, "
            'load("ORDERS,RETURNS")',
            option="stream",
        )
    # CREATE TABLE hands over both: there they are the folder of the table.
    if keys.get("path") is None or "location" in keys:
        return None
    for name in WHAT:
        if name in given:
            raise OptionError(
                f"option {name} and the path of {call} exclude each other: the path is the name of "
                "a stream",
                option=name,
            )
    return keys["path"]


@unseen
def _login(servers: object) -> UserInfo | None:
    login: UserInfo | None = ServerLogin().parse("servers", revealed(servers))
    return login


def may_rename_subjects(options: ConnectionOptions) -> bool:
    """Whether another account, or a domain, may rename the subjects of messages."""
    return options.api_prefix_resolved != DEFAULT_PREFIX


def beside(
    own: Mapping[str, SecretStr],
    context: Mapping[str, SecretStr | None],
) -> dict[str, SecretStr]:
    """Return the inherited options, such as those of a context, that the ``own`` leave in force."""
    dropped = set(own)
    if "servers" in own and _login(own["servers"]) is not None:
        dropped.add("user")  # a user in a URL, which replaces any login of the context
    for group in _GROUPS:
        # The groups have no option in common.
        # A new login replaces all of the old one: parts of two would be neither.
        if dropped & group:
            dropped |= group
    kept = {}
    for name, value in context.items():
        if value is not None and name not in dropped:
            kept[name] = value
    return kept
