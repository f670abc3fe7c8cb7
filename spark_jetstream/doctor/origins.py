"""Where each option of the connection came from: the command line, a variable, a context, a default."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pydantic import SecretStr

from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.doctor.findings import Finding, failed, ok
from spark_jetstream.errors import OptionError
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.contexts import PLAIN, context_options, environment_options, selected_context
from spark_jetstream.options.values import hidden, revealed

_BY_NAME = {spec.name: spec for spec in ConnectionOptions.specs}
_VARIABLES = {option: variable for variable, option in PLAIN.items()}
_LOGIN = frozenset({"user", "password", "token"})
_MORE_VARIABLES = {
    "user": "NATS_USER",
    "password": "NATS_PASSWORD",
    "token": "NATS_TOKEN or NATS_USER",
    "credentialsFile": "NATS_CREDS",
    "nkeySeedFile": "NATS_NKEY",
}


def check_origins(
    options: ConnectionOptions, given: Mapping[str, SecretStr], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """A line for each option that has a value: the value, unless it is secret, and where it comes from.

    ``given`` are those of the command line. The order of precedence is that of `JetStreamAdmin.from_environment`, which
    has made ``options`` of them.
    """
    variables = hidden(environment_options(environ))
    named = given.get("context")
    found = named or variables.get("context") or selected_context()
    described = hidden(context_options(found)) if found else {}
    context = revealed(found)  # it exists, and is no secret that was given by mistake
    if context:
        how = _given("context", given) if named else "the environment" if "context" in variables else "selected"
        yield ok("context", f"{context} ({how})")
    # Who names a context gets all of it; otherwise a variable wins over it.
    layers: list[tuple[Mapping[str, object], str]] = [(variables, ""), (described, f"context {context}")]
    layers = [(given, _given("", given)), *(reversed(layers) if named else layers)]
    for name in sorted(options.given() | {"servers"}, key=list(_BY_NAME).index):
        where = next((words or _variable(name) for held, words in layers if name in held), "")
        if not where and name in _LOGIN:
            where = next((words or "NATS_URL" for held, words in layers if "servers" in held), "") + ", in the URL"
        yield ok(name, f"{_shown(name, options)} ({where or 'default'})")


def check_files(options: ConnectionOptions) -> Iterator[Finding]:
    """Whether files that options name are there, and hold what they should."""
    try:
        connect_arguments(options)
    except OptionError as error:
        yield failed(error.option or "files", str(error), f"correct option {error.option}, or the file")


def _given(name: str, given: Mapping[str, object]) -> str:
    return "command line" if not name or name in given else ""


def _variable(name: str) -> str:
    return f"variable {_VARIABLES.get(name) or _MORE_VARIABLES.get(name, 'NATS_*')}"


def _shown(name: str, options: ConnectionOptions) -> str:
    if name == "servers":
        return options.display_servers
    spec = _BY_NAME[name]
    value = getattr(options, spec.field_name)
    # A file that exists is a path, and no secret given by mistake.
    return value if name.endswith("File") and os.path.isfile(value) else str(spec.display(value))
