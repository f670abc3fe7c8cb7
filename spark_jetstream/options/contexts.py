"""Contexts of the ``nats`` command line tool, and its ``NATS_*`` variables, as options.

A context is a JSON file, ``$XDG_CONFIG_HOME/nats/context/NAME.json`` (``~/.config`` without that
variable), that the tool writes and ``--context NAME`` uses. The names of its fields, where they are
looked up, which are expanded, and which kind of authentication wins follow
github.com/nats-io/jsm.go, package natscontext; so does what is written.

Only the command line and `JetStreamAdmin.from_environment` use the selected context and the
variables: ``nats context select`` or an exported variable must not change the server of a job.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tempfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.options.servers import ServerLogin, Servers, UserInfo
from spark_jetstream.options.values import (
    did_you_mean,
    hidden,
    quoted_unless_secret,
    revealed,
    unseen,
)
from spark_jetstream.protocol.json_text import json_object

_WINDOWS = (
    "windows_cert_store",
    "windows_cert_match_by",
    "windows_cert_match",
    "windows_ca_certs_match",
)
_UNSUPPORTED = ("socks_proxy", "nsc", *_WINDOWS)
#: Fields that mean the same as one option of ours. The others are `description`, `color_scheme` and
#: the like.
_PLAIN = {
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "apiPrefix",
    "inbox_prefix": "inboxPrefix",
}
_FILES = {"ca": "tlsCaFile", "cert": "tlsCertFile", "key": "tlsKeyFile"}
_LOGIN = {
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "credentialsFile",
    "user_jwt": "jwtSecret",
    "nkey": "nkeySeedFile",
}
_OTHERS = {"url": "servers", "tls_first": "tlsHandshakeFirst"}
_FIELDS = {option: field for field, option in {**_PLAIN, **_FILES, **_LOGIN, **_OTHERS}.items()}
# A new value of one field of a group replaces all of it.
_LOGIN_FIELDS = {*_LOGIN, "user_seed"}
_API_FIELDS = {"jetstream_domain", "jetstream_api_prefix"}
_DATA = re.compile(r"data:[^,]*;base64,(.*)", re.DOTALL)


@unseen
def context_options(given: str | SecretStr) -> dict[str, str]:
    """Return the options that a context defines, by their names in this package, as text.

    ``given`` is a name, or a path to the file (with ``.json`` at its end, or a slash). Secret
    fields may be ``file://``, ``env://`` and ``data:;base64,`` URIs. This function reads their
    targets, but passes the path of a credentials or seed file on as a path.

    Raises `OptionError` (``context``). It repeats no value of a secret field.
    """
    name = str(revealed(given))
    return _options_of(name, _fields(name, _path(name)))


def _options_of(name: str, fields: Mapping[str, Any]) -> dict[str, str]:
    options: dict[str, str] = {}
    for field, option in _PLAIN.items():
        if text := _text(name, fields, field):
            options[option] = text
    for field, option in _FILES.items():
        if path := _text(name, fields, field):
            options[option] = _expand(path)
    if fields.get("tls_first"):
        options["tlsHandshakeFirst"] = "true"
    login = None
    if urls := _text(name, fields, "url"):
        servers, login = _servers(name, urls)
        options["servers"] = ",".join(servers)
    if login is not None:
        # As in the Go client, it comes before all other kinds of authentication.
        return options | _authentication_in_url(name, fields, login)
    return options | _authentication(name, fields)


def context_names() -> list[str]:
    """Return the names of the contexts that the tool has stored, sorted."""
    return sorted(file.stem for file in _folder().glob("*.json"))


@unseen
def selected_context() -> str | None:
    """Return the name of the context that ``nats context select`` chose, None without one.

    Raises `OptionError`.
    """
    chosen = _root() / "context.txt"
    if not os.path.isfile(chosen):
        return None
    text = _read_text(chosen, f"the file {chosen}, which names the selected one,")
    return text.strip() or None


@unseen
def save_context(
    name: str,
    options: Mapping[str, SecretStr],
    description: str | None = None,
) -> Path:
    """Store a context as the tool does, readable by its owner alone; return its file.

    ``options`` are possible ones, by their names in this package. The context keeps all that they
    do not set. The file is written whole or not at all. Raises `OptionError` for an option that a context
    cannot hold, and for a context that could not be used, or written.
    """
    path = _stored(name)
    # Fields that no option sets stay as they are, such as `color_scheme`.
    fields = _fields(name, path) if path.is_file() else {}
    new = _new_fields(options)
    user_in_url = _has_user(name, new.get("url") or _text(name, fields, "url"))
    if user_in_url and new.keys() & _LOGIN_FIELDS:
        raise _error(f'"{name}" has a user in its url, which would count: give option servers, too')
    # Otherwise a login of another kind, which the tool prefers, could stay beside the new one.
    if user_in_url or new.keys() & _LOGIN_FIELDS:
        fields = _without(fields, _LOGIN_FIELDS)
    if new.keys() & _API_FIELDS:
        fields = _without(fields, _API_FIELDS)
    fields |= new
    if description is not None:
        fields["description"] = description
    _options_of(name, fields)  # which raises for a context that could not be used
    # Only a context that can be used is written: the check above raises for any other.
    _write(path, json.dumps(fields, indent=2))
    return path


def _new_fields(options: Mapping[str, SecretStr]) -> dict[str, Any]:
    """Return options as fields of a context. Raises `OptionError` for one that it cannot hold."""
    fields: dict[str, Any] = {}
    for option, value in options.items():
        if option not in _FIELDS:
            message = f"option {option} has no place in a context: give it beside --context"
            raise OptionError(message, option=option)
        fields[_FIELDS[option]] = revealed(value)
    if "tls_first" in fields:
        fields["tls_first"] = fields["tls_first"].lower() == "true"
    return fields


def _has_user(name: str, urls: str) -> bool:
    if not urls:
        return False
    _, login = _servers(name, urls)
    return login is not None


def _without(fields: Mapping[str, Any], dropped: Container[str]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if field not in dropped}


def select_context(name: str) -> None:
    """Let a context be the selected one. Raises `OptionError` when there is none of this name."""
    _stored(name)  # which refuses a path
    _path(name)
    _write(_root() / "context.txt", name)


def remove_context(name: str, *, force: bool = False) -> None:
    """Delete a context.

    Raises `OptionError` when there is none, and for the selected one, unless ``force``.
    """
    _stored(name)  # which refuses a path
    path = _path(name)
    selected = selected_context() == name
    if selected and not force:
        raise _error(f'"{name}" is the selected one: select another one before, or force it')
    path.unlink()
    if selected:
        (_root() / "context.txt").unlink()


def _stored(name: str) -> Path:
    """Return the file of a context. Raises `OptionError` for text that is no name of one."""
    has_forbidden_text = ".." in name or "\0" in name
    if not name.strip() or has_forbidden_text or _is_path(name):
        raise _error(f"a context cannot have the name{quoted_unless_secret(name)}")
    return _folder() / f"{name}.json"


def _is_path(name: str) -> bool:
    """Return whether this is the path of a context's file, and not the context's name."""
    return name.endswith(".json") or "/" in name or os.sep in name


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file that is moved to its place is there as a whole or not at all.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / path.name
            # Nobody else may read it, not even before the content is written.
            draft.touch(mode=0o600)
            draft.write_text(text, "utf-8")
            draft.replace(path)
    except OSError as error:
        raise _error(
            f"{path} cannot be written: {(error.strerror or 'unknown reason').lower()}",
        ) from None


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise _error(
            f"{what} cannot be read: {(error.strerror or 'unknown reason').lower()}",
        ) from None
    except UnicodeDecodeError:
        raise _error(f"{what} is not UTF-8 text") from None


def _root() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config) / "nats"


def _folder() -> Path:
    return _root() / "context"


def _path(name: str) -> Path:
    if _is_path(name):
        path = Path(_at_home(name))
        if os.path.isfile(path):
            return path
        raise _error(f"there is no file{quoted_unless_secret(name)}")
    path = _stored(name)
    if os.path.isfile(path):
        return path
    hint = did_you_mean(name, context_names(), 0.0, quoted=True)
    raise _error(f"there is no context{quoted_unless_secret(name)} in {_folder()}{hint}")


def _fields(name: str, path: Path) -> dict[str, Any]:
    text = _read_text(path, f'"{name}"')
    try:
        fields = json_object(text)
    except ValueError as error:
        raise _error(f'"{name}" {error}') from None
    # Without them the connection would be another one than the tool makes.
    for field in _UNSUPPORTED:
        if fields.get(field):
            raise _error(f'"{name}" sets {field}, which is not supported')
    return fields


def _text(name: str, fields: Mapping[str, Any], field: str) -> str:
    value = fields.get(field) or ""
    if not isinstance(value, str):
        raise _error(f'"{name}" has a field {field} that is not text')
    if field in {"password", "token"}:
        return value  # where blanks count
    return value.strip()


def _servers(name: str, urls: str) -> tuple[tuple[str, ...], UserInfo | None]:
    try:
        return Servers().parse("url", urls), ServerLogin().parse("url", urls)
    except OptionError as error:
        raise _error(f'in "{name}", {str(error).removeprefix("option ")}') from None


def _authentication_in_url(
    name: str,
    fields: Mapping[str, Any],
    login: UserInfo,
) -> dict[str, str]:
    _refuse_token(name, fields, "the user in url")
    options = {option: str(revealed(value)) for option, value in login.given().items()}
    return _not_empty(options)


def _authentication(name: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return one kind of authentication, as the tool chooses it.

    It is the user, else credentials, else an NKey, else a JWT, else the token.
    """
    if user := _text(name, fields, "user"):
        kind = "user"
        options = {"user": user, "password": _secret(name, fields, "password")}
    elif _text(name, fields, "creds"):
        kind = "creds"
        options = _file_or_content(name, fields, "creds", "credentialsFile", "credentialsSecret")
    elif _text(name, fields, "nkey"):
        kind = "nkey"
        options = _file_or_content(name, fields, "nkey", "nkeySeedFile", "nkeySeedSecret")
    elif jwt := _secret(name, fields, "user_jwt"):
        kind = "user_jwt"
        options = _jwt_options(jwt, _secret(name, fields, "user_seed"))
    else:
        return _not_empty({"token": _secret(name, fields, "token")})
    _refuse_token(name, fields, kind)
    return _not_empty(options)


def _refuse_token(name: str, fields: Mapping[str, Any], kind: str) -> None:
    """Raise `OptionError` for a token beside another kind of authentication."""
    if _text(name, fields, "token"):
        # The tool sends the token in addition, which no options can say.
        raise _error(f'"{name}" sets token beside {kind}, which is not supported')


def _not_empty(options: Mapping[str, str]) -> dict[str, str]:
    return {option: text for option, text in options.items() if text}


def _secret(name: str, fields: Mapping[str, Any], field: str) -> str:
    return _resolved(name, field, _text(name, fields, field))


def _file_or_content(
    name: str,
    fields: Mapping[str, Any],
    field: str,
    file_option: str,
    content_option: str,
) -> dict[str, str]:
    """Return the option for a field that is the path of a file, or a URI of its content."""
    text = _text(name, fields, field)
    # A file:// URI is a path, which is read again when the file is renewed.
    is_uri = "://" in text or text.startswith("data:")
    if is_uri and not text.startswith("file://"):
        return {content_option: _secret(name, fields, field)}
    return {file_option: _expand(text.removeprefix("file://"))}


def credentials_text(jwt: str, seed: str = "") -> str:
    """Return the content of a ``.creds`` file as nats-py reads it, with a seed or without one."""
    login = f"-----BEGIN NATS USER JWT-----\n{jwt.strip()}\n------END NATS USER JWT------\n"
    if not seed:
        return login
    key = f"-----BEGIN USER NKEY SEED-----\n{seed.strip()}\n------END USER NKEY SEED------\n"
    return f"{login}\n{key}"


def _jwt_options(jwt: str, seed: str) -> dict[str, str]:
    """Return the option for a JWT and its seed, or for a JWT alone."""
    if seed:
        return {"credentialsSecret": credentials_text(jwt, seed)}
    return {"jwtSecret": jwt}


def _resolved(name: str, field: str, text: str) -> str:
    """Return a secret field's text, or the text that its URI points to."""
    if text.startswith("env://"):
        return _from_environment(name, field, text.removeprefix("env://"))
    if text.startswith("file://"):
        return _from_file(name, field, text.removeprefix("file://"))
    if text.startswith("data:"):
        return _from_data(name, field, text)
    if text.startswith(("op://", "nsc://")):
        scheme = text.partition(":")[0]
        raise _error(f'"{name}" takes {field} from {scheme}://, which is not supported')
    return text


def _from_environment(name: str, field: str, variable: str) -> str:
    if not os.environ.get(variable):
        place = f"the environment variable{quoted_unless_secret(variable)}"
        raise _error(f'"{name}" takes {field} from {place}, which is not set')
    return os.environ[variable]


def _from_file(name: str, field: str, path: str) -> str:
    try:
        return Path(_expand(path)).read_text("utf-8").strip()
    # ValueError: a path with NUL, or content that is no UTF-8.
    except (OSError, ValueError):
        place = f"the file{quoted_unless_secret(path)}"
        raise _error(f'"{name}" takes {field} from {place}, which cannot be read') from None


def _from_data(name: str, field: str, uri: str) -> str:
    match = _DATA.fullmatch(uri)
    if match is None:
        raise _error(f'"{name}" has a data: URI in {field} that is not base64')
    try:
        return base64.b64decode(match[1], validate=True).decode()
    # Text that is no base64, or bytes that are no UTF-8.
    except (binascii.Error, UnicodeDecodeError):
        raise _error(f'"{name}" has base64 in {field} that cannot be decoded') from None


def _expand(path: str) -> str:
    return os.path.expandvars(_at_home(path))


def _at_home(path: str) -> str:
    # `expanduser` raises `ValueError` for NUL, which no file has in its name. The caller reports
    # the missing file.
    if "\0" in path:
        return path
    return os.path.expanduser(path)


def _error(problem: str) -> OptionError:
    return OptionError(f"option context: {problem}", option="context")


#: Variables that mean the same as one option of ours.
PLAIN = {
    "NATS_URL": "servers",
    "NATS_CONTEXT": "context",
    "NATS_CA": "tlsCaFile",
    "NATS_CERT": "tlsCertFile",
    "NATS_KEY": "tlsKeyFile",
    "NATS_TIMEOUT": "requestTimeout",
}
_NOT_IN_ENVIRONMENT = {
    "NATS_SOCKS_PROXY": "proxies are not supported",
}
#: Variables that mean nothing without another one.
_NEEDED = {"NATS_PASSWORD": "NATS_USER", "NATS_SEED": "NATS_JWT"}
#: The variables that say who logs in, in the order in which the command chooses.
_KINDS = ("NATS_USER", "NATS_CREDS", "NATS_NKEY", "NATS_JWT")
#: The options for variables that are a login without another variable.
_ALONE = {"NATS_USER": "token", "NATS_CREDS": "credentialsFile", "NATS_NKEY": "nkeySeedFile"}


def environment_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the variables stand for, by their names in this package.

    An empty variable is not set. The variables are ``NATS_URL``, ``NATS_CONTEXT``, ``NATS_CA``,
    ``NATS_CERT``, ``NATS_KEY``, ``NATS_TIMEOUT``, and one kind of authentication. As in the command,
    the first kind that is set counts:

    - ``NATS_USER`` with ``NATS_PASSWORD`` (alone, the user is a token)
    - ``NATS_CREDS``
    - ``NATS_NKEY``
    - ``NATS_JWT`` with ``NATS_SEED`` or alone
    - ``NATS_TOKEN``

    Raises `OptionError`, which repeats no value, for a variable that only the command can honour,
    and for a token beside another kind.
    """
    given = hidden({name: text for name, text in environ.items() if name.startswith("NATS_")})
    del environ  # a traceback with local variables would show it
    return _options(given)


@unseen
def _options(environ: Mapping[str, SecretStr | None]) -> dict[str, str]:
    given = {}
    for name, value in environ.items():
        text = str(revealed(value))
        if text.strip():
            given[name] = text
    for name, instead in _NOT_IN_ENVIRONMENT.items():
        if name in given:
            raise OptionError(
                f"the environment variable {name} is set, which is not supported: {instead}",
            )
    for name, other in _NEEDED.items():
        if name in given and other not in given:
            raise OptionError(f"the environment variable {name} is set without {other}")
    options = {}
    for name, option in PLAIN.items():
        if name in given:
            options[option] = given[name]
    return options | _login_options(given)


def _login_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for one kind of authentication, as the command chooses it, or none."""
    token = {}
    if "NATS_TOKEN" in given:
        token = {"token": given["NATS_TOKEN"]}
    # The first one in the order of the command, which passes over the others.
    kind = next((name for name in _KINDS if name in given), None)
    if kind is None:
        return token
    options = _options_of_kind(kind, given)
    # A user without a password is a token, which may be given twice.
    if token and options != token:
        # The command sends the token in addition, which no options can say.
        raise OptionError(
            f"the environment variables {kind} and NATS_TOKEN are two kinds of authentication",
        )
    return options


def _options_of_kind(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a kind of authentication, one of `_KINDS`."""
    if kind == "NATS_USER" and "NATS_PASSWORD" in given:
        return {"user": given["NATS_USER"], "password": given["NATS_PASSWORD"]}
    if kind == "NATS_JWT":
        return _jwt_options(given["NATS_JWT"], given.get("NATS_SEED", ""))
    return {_ALONE[kind]: given[kind]}
