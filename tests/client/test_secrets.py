"""The value of an option shows nowhere: in no error, repr, log line, or traceback with local
variables.
"""

from __future__ import annotations

import functools
import logging
import pickle
import pprint
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import rich.pretty
import typer.testing
from pydantic import BaseModel
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StringType, StructType
from typer.main import get_command
from typer.testing import CliRunner

from spark_jetstream import errors
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.cli.app import connection_options
from spark_jetstream.cli.main import app
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all
from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.options.specs import Options, OptionSpec

MARK = "hunter2SECRET"
PACKAGE = str(Path(errors.__file__).parent)
SCHEMA = StructType().add("data", BinaryType()).add("subject", StringType())
HERE = "nats://127.0.0.1:1"  # nobody listens there

# Secrets that somebody may paste into the wrong option, each with the marker in it.
PASTED = (
    f"SUA{MARK.upper()}{'A' * 42}",
    f"/run/SU{MARK.upper()}{'A' * 42}",
    f"eyJ0eXAiOiJKV1QiLCJh.{MARK}",
    f"password={MARK}",
    f"user=me passwd: {MARK}",
    f'{{"token": "{MARK}"}}',
    f"Authorization: Basic {MARK}",
    f"Bearer {MARK}",
    f"me:{MARK}@127.0.0.1",
    f"nats://me:{MARK}@127.0.0.1/",
    f"-----BEGIN NATS USER JWT-----\n{MARK}\n------END NATS USER JWT------",
    f"-----BEGIN CERTIFICATE-----\n{MARK}\n-----END CERTIFICATE-----",
    f"-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----",
)
URLS = (
    f"nats://me:{MARK}@127.0.0.1:1",
    f"nats://{MARK}:pw@127.0.0.1:1",
    f"nats://{MARK}@127.0.0.1:1",
    f"nats://127.0.0.1:1?password={MARK}",
    f"nats://127.0.0.1:1/?password={MARK}",
    f"nats://127.0.0.1:1#{MARK}",
    f"nats://127.0.0.1:{MARK}",
    f"nats://127.0.0.1/{MARK}",
    f"ws://127.0.0.1:1/{MARK}",
    f"ws://127.0.0.1:1/?token={MARK}",
    f"nats://me:pass,{MARK}@127.0.0.1",
    f"nats://me:{MARK},word@127.0.0.1",
    f"nats://me:pa/{MARK}@127.0.0.1",
    f"nats://me:{MARK}@a,nats://you:{MARK}2@b",
    f"nats://me:{MARK}@",
    f"nats://:{MARK}@a",
    f"nats://{MARK}:@a",
    f"nats://me:{MARK}@a:port",
    f"nats://me:{MARK}@a,,b",
    f"nats://me:{MARK}@a,http://b",
    f"nats://me:{MARK}@a,",
    f"nats://me:{MARK}@a,ws://b",
    f"me:{MARK}@127.0.0.1",
)


#: Making the command line takes longer than any use of it.
get_command_once = functools.cache(get_command)


def beside(name: str) -> dict[str, str]:
    key, pem = {"tlsKeySecret": MARK}, {"tlsCertPem": MARK}
    return {
        "user": {"password": "x"},
        "password": {"user": "me"},
        "tlsCertFile": key,
        "tlsCertPem": key,
        "tlsKeyFile": pem,
        "tlsKeySecret": pem,
        "tlsHostname": {"servers": "tls://127.0.0.1:1"},
        "ensureStreamOnConflict": {"ensureStream": "{}"},
        **{option: {"bucket": "b"} for option in ("history", "keys")},
        **{option: {"objectBucket": "b"} for option in ("pathGlobFilter", "contentOff")},
    }.get(name, {})


def is_shown(spec: OptionSpec, value: str) -> bool:
    """Whether this is a value that the option may have, of a kind that is shown: a host, a subject,
    a name.
    """
    try:
        return MARK.lower() in str(spec.kind.display(spec.kind.parse(spec.name, value))).lower()
    except errors.OptionError:
        return False


def texts_of(thing: object) -> Iterator[str]:
    """How tools print an object."""
    yield from (
        repr(thing),
        str(thing),
        f"{thing}",
        pprint.pformat(thing),
        rich.pretty.pretty_repr(thing),
    )
    fields = {} if isinstance(thing, BaseModel) else getattr(thing, "__dict__", {})
    yield from (repr(fields), pprint.pformat(fields), rich.pretty.pretty_repr(fields))


def texts_of_error(error: BaseException) -> Iterator[str]:
    """How tools print an error, with the local variables of this package's frames."""
    yield from (str(error), repr(error), repr(error.__dict__), repr(error.args))
    yield str(pickle.loads(pickle.dumps(error)))
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    for frame in traceback.TracebackException.from_exception(error, capture_locals=True).stack:
        if frame.filename.startswith(PACKAGE):
            yield f"{frame.name}: {frame.locals}"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
            for value in trace.tb_frame.f_locals.values():
                yield rich.pretty.pretty_repr(value)
        trace = trace.tb_next


def check(texts: Iterator[str]) -> None:
    for text in texts:
        assert MARK.lower() not in text.lower(), text[:2000]


def reading(options: Mapping[str, str]) -> dict[str, str]:
    """The options with something to read in them."""
    return {**({} if {"bucket", "objectBucket"} & options.keys() else {"stream": "S"}), **options}


def reader(options: Mapping[str, str]) -> Iterator[object]:
    source = JetStreamDataSource(reading(options))
    yield source
    source.schema()
    made = source.reader(SCHEMA)
    yield made
    yield made.partitions()


def stream_reader(options: Mapping[str, str]) -> Iterator[object]:
    made: Any = JetStreamDataSource(reading(options)).streamReader(SCHEMA)
    yield made
    yield made.options
    yield pickle.loads(cloudpickle.dumps(made))  # type: ignore[no-untyped-call]
    made.initialOffset()


def admin(options: Mapping[str, str]) -> Iterator[object]:
    with JetStreamAdmin(**options) as made:
        yield made
        yield made.options
        made.account.info()


def arguments(options: Mapping[str, str]) -> Iterator[object]:
    made = JetStreamAdmin(**options).options
    yield made
    connect_arguments(made)


def command_line(options: Mapping[str, str]) -> Iterator[object]:
    given = {"more": [f"{name}={value}" for name, value in options.items()]}
    yield connection_options(given)
    yield given
    result = CliRunner().invoke(
        app, ["stream", "ls", *(f"-o{name}={value}" for name, value in options.items())]
    )
    yield result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


USES: dict[str, Callable[[Mapping[str, str]], Iterator[object]]] = {
    "reader": reader,
    "stream reader": stream_reader,
    "writer": lambda options: iter([JetStreamDataSource(options).writer(SCHEMA, overwrite=False)]),
    "stream writer": lambda options: iter(
        [JetStreamDataSource(options).streamWriter(SCHEMA, overwrite=False)]
    ),
    "admin": admin,
    "environment": lambda options: iter([JetStreamAdmin.from_environment(**options)]),
    "arguments": arguments,
    "command line": command_line,
}


@pytest.fixture(autouse=True)
def clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Connect at once in vain, except where the errors of a real attempt may repeat a URL."""

    async def refuse(
        connection: Connection, patience: float, find_file: Callable[[str], str], **_: bool
    ) -> None:
        connect_arguments(connection.options, resolve=find_file)
        raise errors.ConnectionFailed(f"cannot connect to {connection.options.display_servers}")

    if "servers" not in request.node.name:
        monkeypatch.setattr(Connection, "open", refuse)
    monkeypatch.setattr(typer.testing, "_get_command", get_command_once)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    yield
    close_all()


def check_one(options: dict[str, str], use: str) -> None:
    try:
        for thing in USES[use](options):
            check(texts_of(thing))
    except (errors.JetStreamError, typer.BadParameter) as error:
        check(texts_of_error(error))


# Secrets in their own places, and what fails beside them: at a name, at a value, in two options
# together.
LOGINS = [{**beside(spec.name), spec.name: MARK} for spec in ConnectionOptions.specs if spec.secret]
LOGINS += [{"user": MARK, "password": MARK}, *({"servers": url} for url in URLS[:3])]
CONFLICTS = (
    {"password": MARK},
    {"tlsKeySecret": MARK},
    {"token": MARK, "user": "me", "password": MARK},
    {"credentialsSecret": MARK, "credentialsFile": "/a"},
    {"jwtSecret": MARK, "jwtFile": "/a"},
    {"servers": URLS[0], "token": MARK},
)
WRONG: dict[type[SourceOptions | SinkOptions], tuple[dict[str, str], ...]] = {
    SourceOptions: ({"nonsense": "x"}, {"fetchBatch": "none"}, {"startingOffsets": '{"X": 1}'}),
    SinkOptions: (
        {"subjects": "a"},
        {"delivery": "none"},
        {"domain": "a", "apiPrefix": "b"},
        {"stream": "a,b"},
    ),
}


@pytest.mark.parametrize("model", WRONG)
def test_no_secret_shows_beside_what_is_wrong(model: type[SourceOptions | SinkOptions]) -> None:
    for given in (*CONFLICTS, *({**login, **wrong} for login in LOGINS for wrong in WRONG[model])):
        with pytest.raises(errors.OptionError) as caught:
            model.from_spark({"stream": "S", **given}, streaming=True)
        assert caught.value.__context__ is None
        check(texts_of_error(caught.value))


@pytest.mark.parametrize("login", LOGINS, ids="+".join)
def test_no_text_of_a_login_shows_it(login: dict[str, str]) -> None:
    options = ConnectionOptions.from_spark(login)
    shown = options.model_dump_json(exclude={"user", "tls_cert_pem"})
    check(
        iter((*texts_of(options), shown, options.display_servers, options.authentication_options))
    )


def cases() -> Iterator[Any]:
    """Give the values of each option of a model, and how the model is used."""
    every: dict[type[Options], list[str]] = {
        ConnectionOptions: [*USES],
        SourceOptions: ["reader", "stream reader"],
        SinkOptions: ["writer", "stream writer"],
    }
    for model, uses in every.items():
        for spec in model.specs:
            values = (*PASTED, *URLS) if spec.name == "servers" else PASTED
            given = [
                {**beside(spec.name), spec.name: value}
                for value in values
                if not is_shown(spec, value)
            ]
            yield pytest.param(given, uses, id=f"{model.__name__}-{spec.name}")


@pytest.mark.parametrize(("given", "uses"), list(cases()))
def test_no_option_shows(
    given: list[dict[str, str]], uses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is used in one way as it is, and in two ways together with a value that is wrong."""
    quick = {
        "servers": HERE,
        "connectTimeout": "100ms",
        "requestTimeout": "100ms",
        "retryTimeout": "0s",
    }
    caplog.set_level(logging.DEBUG)
    for number, options in enumerate(given):
        check_one({**quick, **options}, uses[number % len(uses)])
        for shift in (1, len(uses) // 2):
            check_one(
                {**quick, **options, "connectTimeout": f"token={MARK}"},
                uses[(number + shift) % len(uses)],
            )
    check(iter([caplog.text]))
