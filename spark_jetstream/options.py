"""Options, parsed once into frozen models.

`ConnectionOptions` says how to reach JetStream, `SourceOptions` what to read and how, `SinkOptions` where to
write and how. All are made with ``from_spark`` from what Spark hands over, on the driver; they are hashable,
pickle to the executors, and hold Python values: durations in seconds (float), sizes in bytes, times in
nanoseconds since the epoch.

Whatever is wrong with an option is an `OptionError` of one sentence that names it. Neither an error (nor
anything reachable from it) nor a ``repr`` holds the value of a secret option or the user info of a URL.

``python -m spark_jetstream.options > docs/options.md`` writes the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spark_jetstream.contexts import context_options
from spark_jetstream.errors import OptionError
from spark_jetstream.names import Servers
from spark_jetstream.option_docs import options_markdown
from spark_jetstream.option_table import (
    AUTHENTICATION,
    CONNECTION_OPTIONS,
    EXCLUSIVE,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    OptionSpec,
    given_options,
    option_name,
    parse_field,
    refuse_elsewhere,
)
from spark_jetstream.values import shown

__all__ = ["ConnectionOptions", "Delivery", "SinkOptions", "SourceOptions", "options_markdown"]

Positions = Literal["earliest", "latest"] | tuple[tuple[str, int], ...]
Delivery = Literal["at-least-once", "deduplicated", "exactly-once"]
Model = TypeVar("Model", bound="_Options")

# What replaces what when an option stands beside a context: one option of a group drops all of the context's.
_GROUPS = (
    frozenset(name for names in AUTHENTICATION.values() for name in names),
    frozenset({"domain", "apiPrefix"}),
    frozenset({"tlsCaFile", "tlsCaPem"}),
    frozenset({"tlsCertFile", "tlsCertPem", "tlsKeyFile", "tlsKeySecret"}),
)
_FIELDS = {spec.name: spec.field_name for spec in CONNECTION_OPTIONS}


def _fields(given: Mapping[str, str], specs: tuple[OptionSpec, ...]) -> dict[str, object]:
    return {spec.field_name: given[spec.name] for spec in specs if spec.name in given}


def _both(given: frozenset[str], some: tuple[str, ...], others: tuple[str, ...]) -> None:
    for here, there in ((some, others), (others, some)):
        found = given.intersection(here)
        if found and not given.intersection(there):
            name = min(found)
            raise OptionError(f"option {name} needs {' or '.join(there)} beside it", option=name)


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)

    @field_validator("*", mode="before")
    @classmethod
    def _parse(cls, value: object, info: ValidationInfo) -> object:
        return parse_field(str(info.field_name), value)

    def _set(self) -> frozenset[str]:
        """The names of the options that were given a value."""
        return frozenset(option_name(field) for field in self.model_fields_set if getattr(self, field) is not None)

    @model_validator(mode="after")
    def _refuse_pairs(self: Model) -> Model:
        given = self._set()
        for one, other in EXCLUSIVE:
            if one in given and other in given:
                raise OptionError(f"options {one} and {other} exclude each other", option=one)
        return self


def _build(model: type[Model], fields: Mapping[str, object]) -> Model:
    """The model, or `OptionError`."""
    try:
        return model.model_validate(fields)
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, OptionError):
            message, option = str(cause), cause.option
        else:
            option = option_name(str(first["loc"][0])) if first["loc"] else None
            message = f"option {option} is not valid: {first['msg'].lower()}"
    # Raised from scratch and outside of the except block: pydantic's error holds all of the input, secrets
    # included, and would be reachable as `__context__`.
    raise OptionError(message, option=option)


class ConnectionOptions(_Options):
    """How to reach JetStream. Equal options share one connection in a process.

    User info in a server URL becomes ``user`` and ``password``, or ``token``, and applies to all servers,
    those that the cluster announces included; ``servers`` holds none. A ``context`` has been resolved and
    leaves no trace but its values.
    """

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    user: str | None = Field(default=None, repr=False)
    password: SecretStr | None = None
    token: SecretStr | None = None
    credentials_file: str | None = None
    credentials_secret: SecretStr | None = None
    nkey_seed_file: str | None = None
    nkey_seed_secret: SecretStr | None = None
    tls_ca_file: str | None = None
    tls_ca_pem: str | None = Field(default=None, repr=False)
    tls_cert_file: str | None = None
    tls_cert_pem: str | None = Field(default=None, repr=False)
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
        return cls._from_given(given_options(mapping, CONNECTION_OPTIONS))

    @classmethod
    def _from_given(cls, given: Mapping[str, str]) -> ConnectionOptions:
        own = {spec.name: given[spec.name] for spec in CONNECTION_OPTIONS if spec.name in given}
        context = own.pop("context", None)
        if context is None:
            return _build(cls, _fields(own, CONNECTION_OPTIONS))
        inherited = _beside(own, context_options(context))
        try:
            return _build(cls, _fields({**inherited, **own}, CONNECTION_OPTIONS))
        except OptionError as error:
            if error.option not in inherited:
                raise
            fault = OptionError(f"{error} (it comes from option context, {context})", option=error.option)
        raise fault

    @model_validator(mode="before")
    @classmethod
    def _take_login(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "servers" not in data:
            return data
        login = Servers().login("servers", data["servers"])
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
        given = self._set()
        used = [next(name for name in names if name in given) for names in self._kinds(given).values()]
        if len(used) > 1:
            raise OptionError(f"options {used[0]} and {used[1]} are two kinds of authentication", option=used[0])
        _both(given, ("user",), ("password",))
        _both(given, ("tlsCertFile", "tlsCertPem"), ("tlsKeyFile", "tlsKeySecret"))
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> ConnectionOptions:
        given = self._set()
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
        return ", ".join(self.servers)

    @property
    def authentication_options(self) -> str:
        """Which options say who we are, in words for an error; never their values."""
        given = self._set()
        names = [name for names in self._kinds(given).values() for name in names if name in given]
        if not names:
            return "no option for authentication is set"
        return f"{'option' if len(names) == 1 else 'options'} {' and '.join(names)}"


class SourceOptions(_Options):
    """What to read, from where to where, and in what portions.

    ``starting_offsets`` and ``ending_offsets`` are a word, or (stream, sequence) pairs, one for each of
    ``streams`` and sorted by name: the first sequence to read, and the first not to read. ``starting_timestamp``,
    when set, wins over ``starting_offsets``, and ``ending_timestamp`` over ``ending_offsets``. ``subjects``
    is empty when nothing is filtered.
    """

    connection: ConnectionOptions = Field(default_factory=ConnectionOptions)
    streaming: bool
    streams: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    starting_offsets: Positions = "earliest"
    starting_timestamp: int | None = None
    ending_offsets: Positions = "latest"
    ending_timestamp: int | None = None
    fail_on_data_loss: bool = True
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_messages_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    min_partitions: int = 1
    max_messages_per_partition: int = 100_000
    fetch_batch: int = 20_000
    fetch_max_bytes: int = 8 * 1024 * 1024
    fetch_timeout: float = 30.0
    include_headers: bool = True

    @classmethod
    def from_spark(cls, mapping: Mapping[str, object], *, streaming: bool) -> SourceOptions:
        """The options of a source, ``connection`` included, for a stream or for a batch.

        Names match in any case. Raises `OptionError` for whatever is wrong, unknown names first.
        """
        given = given_options(mapping, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))
        refuse_elsewhere(given, "source", streaming=streaming)
        if "stream" not in given:
            raise OptionError("option stream is required: the name of the stream to read", option="stream")
        connection = ConnectionOptions._from_given(given)
        return _build(cls, {**_fields(given, SOURCE_OPTIONS), "streaming": streaming, "connection": connection})

    @model_validator(mode="after")
    def _check_positions(self) -> SourceOptions:
        if not self.streaming and self.starting_offsets == "latest":
            raise OptionError(
                "option startingOffsets cannot be latest when reading a batch: nothing would be read",
                option="startingOffsets",
            )
        start = self._check_streams("startingOffsets", self.starting_offsets)
        end = self._check_streams("endingOffsets", self.ending_offsets)
        if self.starting_timestamp is not None:
            if self.ending_timestamp is not None and self.ending_timestamp < self.starting_timestamp:
                raise OptionError("option endingTimestamp is before startingTimestamp", option="endingTimestamp")
            return self
        for stream, first in start.items():
            if end.get(stream, first) < first:
                raise OptionError(
                    f'option endingOffsets stops "{stream}" before {end[stream]}, '
                    f"but startingOffsets begins at {first}",
                    option="endingOffsets",
                )
        return self

    def _check_streams(self, option: str, positions: Positions) -> dict[str, int]:
        if isinstance(positions, str):
            return {}
        found = dict(positions)
        for stream in found:
            if stream not in self.streams:
                raise OptionError(
                    f'option {option} names stream "{stream}", which option stream does not', option=option
                )
        for stream in self.streams:
            if stream not in found:
                raise OptionError(f'option {option} gives no sequence for stream "{stream}"', option=option)
        return found

    @model_validator(mode="after")
    def _check_portions(self) -> SourceOptions:
        least, most = self.min_messages_per_trigger, self.max_messages_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"option minMessagesPerTrigger ({least}) is larger than maxMessagesPerTrigger ({most})",
                option="minMessagesPerTrigger",
            )
        if least is None and "maxTriggerDelay" in self._set():
            raise OptionError(
                "option maxTriggerDelay has no meaning without minMessagesPerTrigger",
                option="maxTriggerDelay",
            )
        return self


class SinkOptions(_Options):
    """Where rows go, how often at most, and what happens to those that are refused.

    ``subject``, when set, wins over the column of that name. ``stream`` is the one that must store the rows.
    ``max_retries`` counts the times a message is sent again. ``write_id`` is None on a stream.
    """

    connection: ConnectionOptions = Field(default_factory=ConnectionOptions)
    streaming: bool
    subject: str | None = None
    stream: str | None = None
    delivery: Delivery = "deduplicated"
    max_in_flight: int = 8000
    ack_timeout: float = 10.0
    max_retries: int = 5
    dead_letter_subject: str | None = None
    write_id: str | None = None

    @classmethod
    def from_spark(cls, mapping: Mapping[str, object], *, streaming: bool) -> SinkOptions:
        """The options of a sink, ``connection`` included, for a stream or for a batch.

        Names match in any case. Raises `OptionError` for whatever is wrong, unknown names first.
        """
        given = given_options(mapping, (*CONNECTION_OPTIONS, *SINK_OPTIONS))
        refuse_elsewhere(given, "sink", streaming=streaming)
        connection = ConnectionOptions._from_given(given)
        return _build(cls, {**_fields(given, SINK_OPTIONS), "streaming": streaming, "connection": connection})

    @model_validator(mode="after")
    def _check_together(self) -> SinkOptions:
        if self.dead_letter_subject is not None and self.dead_letter_subject == self.subject:
            raise OptionError(
                f"option deadLetterSubject must differ from subject, and both are {shown(self.subject)}",
                option="deadLetterSubject",
            )
        if self.write_id is not None and self.delivery == "at-least-once":
            raise OptionError(
                "option writeId has no meaning with delivery at-least-once, which gives messages no ids",
                option="writeId",
            )
        return self


def _beside(own: Mapping[str, str], context: Mapping[str, str]) -> dict[str, str]:
    """What remains of a context's options beside those that the user gave."""
    given = set(own)
    if "servers" in own and Servers().login("servers", own["servers"]) is not None:
        given.add("user")
    dropped = {name for group in _GROUPS if given & group for name in group} | given
    return {name: text for name, text in context.items() if name not in dropped}


if __name__ == "__main__":
    sys.stdout.write(options_markdown())
