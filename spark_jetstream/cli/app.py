"""The parts that all commands share: connection options, ``--json``, and exit codes.

A command is a function whose first parameter is the `Run`; its other parameters are arguments and
options for typer. `command` adds the shared options, so a user may write them anywhere on the line.

``--help``, ``--version`` and completion import all modules of commands. So these import what
connects, and the models, where they use them: in functions.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer import BadParameter, Option
from typer.core import TyperCommand

from spark_jetstream import errors
from spark_jetstream.cli.help import CONNECTION, Command, Group, quick
from spark_jetstream.cli.output import Output

if TYPE_CHECKING:
    from pydantic import SecretStr

    from spark_jetstream.admin.client import JetStreamAdmin
    from spark_jetstream.client.connection import Connection

FAILED, WRONG_USAGE, NOT_REACHED, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: an error, or a check found something; wrong usage; no server, or no reply; Ctrl-C."""

F = TypeVar("F", bound=Callable[..., Any])


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Return a parameter of a command that no function declares."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=annotation,
    )


def _connecting(option: str, flags: str, help: str, kind: type = str) -> inspect.Parameter:
    """Return the parameter of a flag that sets a connection option."""
    how = Option(*flags.split(), help=help, rich_help_panel=CONNECTION)
    annotation: Any = bool | None if kind is bool else str | None
    return keyword(option, Annotated[annotation, how])


CONNECTING = (
    _connecting("servers", "--server -s", "NATS servers, separated by commas."),
    _connecting("context", "--context", "A context of the nats CLI, or the path of one."),
    _connecting("user", "--user", "User name."),
    _connecting(
        "password",
        "--password",
        "Password. Other users of this machine can see it: prefer a context.",
    ),
    _connecting("token", "--token", "Token."),
    _connecting("credentialsFile", "--creds", "Path of a .creds file."),
    _connecting("nkeySeedFile", "--nkey", "Path of a file with a user NKey seed."),
    _connecting("tlsCaFile", "--tlsca", "Path of the CA certificates (PEM)."),
    _connecting("tlsCertFile", "--tlscert", "Path of the client's certificate (PEM)."),
    _connecting("tlsKeyFile", "--tlskey", "Path of the client's key (PEM)."),
    _connecting(
        "tlsHandshakeFirst",
        "--tlsfirst/--no-tlsfirst",
        "TLS before the server says hello.",
        bool,
    ),
    _connecting("domain", "--js-domain", "JetStream domain."),
    _connecting("apiPrefix", "--js-api-prefix", "Prefix of another account's JetStream API."),
    _connecting("inboxPrefix", "--inbox-prefix", "Prefix of the subjects on which replies come."),
    _connecting("requestTimeout", "--timeout", "Time for one request, such as 5s."),
)
_MORE_HELP = "Any connection option of docs/options.md, as name=value."
_MORE = keyword(
    "more",
    Annotated[
        list[str] | None,
        Option("--option", "-o", help=_MORE_HELP, rich_help_panel=CONNECTION),
    ],
)
_AS_JSON = keyword("as_json", Annotated[bool, Option("--json", help="Print JSON.")], False)
_CONTEXT = keyword("ctx", typer.Context, inspect.Parameter.empty)
SHARED = (_AS_JSON, *CONNECTING, _MORE)
"""The parameters of all commands."""


class Run:
    """One run of a command: its connection options and its output."""

    def __init__(self, options: Mapping[str, SecretStr], *, as_json: bool) -> None:
        self.given = dict(options)
        """The connection options of the command line by name, hidden (`values.hidden`)."""
        self.out = Output(as_json=as_json)

    @functools.cached_property
    def admin(self) -> JetStreamAdmin:
        """The `JetStreamAdmin` of the command line, the environment, and the selected context."""
        # Imported modules stay: the collector would look through them for a tenth of the time of a
        # short command.
        gc.disable()
        from spark_jetstream.admin.client import CommandAdmin

        # At its end Python looks for garbage once more, among all that was imported.
        gc.freeze()
        gc.enable()
        return CommandAdmin.from_environment(**self.given)

    def connect(self, patience: float = 0.0) -> Connection:
        """Return the connection of the command: a `Connect` for code of source and sink."""
        # `connect` would wait for a server that is starting: a person wants the error at once.
        from spark_jetstream.client.pool import connect_at_once

        return connect_at_once(self.admin.options)


class _LateCommand(Command):
    """A command that typer makes when its parameters are needed. The list of commands has none."""

    def __init__(self, finished: Callable[[], Callable[..., None]], **settings: Any) -> None:
        super().__init__(**settings)
        # click has set it; the property below has the same name and makes it when it is asked for.
        del self.params
        self._finished = finished

    @functools.cached_property
    def params(self) -> list[Any]:  # type: ignore[override]  # click sets it for other commands
        """The arguments and options."""
        whole = _whole_command(self._finished())
        self.callback = whole.callback
        return quick(whole.params)


def _whole_command(function: Callable[..., None]) -> TyperCommand:
    """Return the command that typer makes from a function, with the shared parameters."""

    def call(ctx: typer.Context, as_json: bool, **given: Any) -> None:
        outer = ctx.obj  # the options before the command: `_root` sets it
        # Options after the command win over those before it.
        options = {**outer["options"], **connection_options(given)}
        function(Run(options, as_json=as_json or outer["as_json"]), **given)

    _, *own = inspect.signature(function, eval_str=True).parameters.values()  # without the `Run`
    by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    # A `Typer` with one command is that command.
    single = typer.Typer(add_completion=False)
    single.command()(signed(call, by_keyword))
    return cast("TyperCommand", typer.main.get_command(single))


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[F], F]:
    """Return a decorator that makes a function a command of ``app``.

    The function's docstring and ``example`` are the help.
    """

    def register(function: F) -> F:
        # typer would read the parameters of all commands for each line, also for completion:
        # test_main.py, test_answers_without_a_server_import_no_large_packages.
        late: Any = functools.partial(_LateCommand, _finisher(function))
        text = unwrapped(inspect.getdoc(function) or "")
        epilog = f"Example: spark-jetstream {example}"
        app.command(name, cls=late, help=text, epilog=epilog)(_no_callback)
        return function

    return register


def _finisher(function: F) -> Callable[[], F]:
    """Return a function that returns a command's function with all of its parameters."""

    def itself() -> F:
        return function

    finished: Callable[[], F] = getattr(function, "finished", itself)  # `with_fields` sets it
    return finished


def _no_callback() -> None:
    """Stand for the callback, which `_LateCommand` has later."""


def one_of(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion of fixed words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def unwrapped(help: str) -> str:
    """Return a docstring with one line for each paragraph; the terminal wraps them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in help.split("\n\n"))


def signed(call: F, parameters: Iterable[inspect.Parameter] = ()) -> F:
    """Give a function the signature for typer: these parameters, ``ctx``, and the shared ones."""
    whole = [*parameters, _CONTEXT, *SHARED]
    call.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]  # typer reads it
    # typer reads annotations and signature separately.
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in whole}
    return call


def group(name: str, help: str) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(name=name, cls=Group, help=help)


def connection_options(given: dict[str, Any]) -> dict[str, SecretStr]:
    """Take the shared parameters out of ``given``; return the connection options that they set."""
    shared = {parameter.name: given.pop(parameter.name, None) for parameter in (*CONNECTING, _MORE)}
    if all(value in (None, []) for value in shared.values()):
        return {}  # without the import of pydantic

    from pydantic import SecretStr

    from spark_jetstream.options.values import hidden

    # Hidden, as all options are until they are parsed.
    pairs = [SecretStr(pair) for pair in shared.pop("more") or ()]
    options = {}
    for pair in pairs:
        name, equals, value = pair.get_secret_value().partition("=")
        if not equals:
            raise BadParameter("the value is not name=value", param_hint="--option")
        # The value may be a secret, and a traceback shows local variables.
        options[name.strip()] = SecretStr(value)
    # A flag of its own wins over the same option in --option.
    for name, flag in hidden(shared).items():
        if flag is not None:
            options[name] = flag
    return options


def exit_code(error: errors.JetStreamError) -> int:
    """Return the exit code for an error."""
    # An option is wrong on the line, in the environment or in a context.
    if isinstance(error, errors.OptionError):
        return WRONG_USAGE
    unreachable = (
        errors.ConnectionFailed,
        errors.AuthenticationFailed,
        errors.RequestTimeout,
        errors.NoResponders,
        errors.OutageError,
    )
    return NOT_REACHED if isinstance(error, unreachable) else FAILED
