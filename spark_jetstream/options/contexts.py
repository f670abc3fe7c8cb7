"""Contexts of the ``nats`` command line tool, and the ``NATS_*`` variables that it honours, as options of this package.

A context is a JSON file, ``$XDG_CONFIG_HOME/nats/context/NAME.json`` (``~/.config`` without that variable), that the
tool writes and ``--context NAME`` uses. The names of its fields, where they are looked up, which are expanded, and
which kind of authentication wins follow github.com/nats-io/jsm.go, package natscontext; so does what is written.

Only the command line and `JetStreamAdmin.from_environment` use the selected context and the variables: ``nats context
select`` or an exported variable must not change the server of a job.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.options.servers import ServerLogin, Servers, UserInfo
from spark_jetstream.options.values import did_you_mean, hidden, quoted_unless_secret, revealed, unseen
from spark_jetstream.protocol.json_text import json_object

_WINDOWS = ("windows_cert_store", "windows_cert_match_by", "windows_cert_match", "windows_ca_certs_match")
_UNSUPPORTED = ("socks_proxy", "nsc", *_WINDOWS)
#: Fields that mean the same as one option of ours. The others are `description`, `color_scheme` and the like.
_PLAIN = {"jetstream_domain": "domain", "jetstream_api_prefix": "apiPrefix", "inbox_prefix": "inboxPrefix"}
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
_FIELDS = {option: field for table in (_PLAIN, _FILES, _LOGIN, _OTHERS) for field, option in table.items()}
# A new value of one field of a group replaces all of it.
_GROUPS = ((*_LOGIN, "user_seed"), ("jetstream_domain", "jetstream_api_prefix"))
_DATA = re.compile(r"data:[^,]*;base64,(.*)", re.DOTALL)


@unseen
def context_options(given: str | SecretStr) -> dict[str, str]:
    """Return the options that a context defines, by their names in this package, as text.

    ``given`` is a name, or a path to the file (with ``.json`` at its end, or a slash). Secret fields may be
    ``file://``, ``env://`` and ``data:;base64,`` URIs. What they point to is read here, but the path of a credentials
    or seed file is passed on as a path.

    Raises `OptionError` (``context``). It repeats no value of a secret field.
    """
    name = str(revealed(given))
    return _options_of(name, _fields(name, _path(name)))


def _options_of(name: str, fields: Mapping[str, Any]) -> dict[str, str]:
    options = {option: text for field, option in _PLAIN.items() if (text := _text(name, fields, field))}
    options |= {option: _expand(text) for field, option in _FILES.items() if (text := _text(name, fields, field))}
    if fields.get("tls_first"):
        options["tlsHandshakeFirst"] = "true"
    urls = _text(name, fields, "url")
    login = None
    if urls:
        servers, login = _servers(name, urls)
        options["servers"] = ",".join(servers)
    return options | _authentication(name, fields, login)


def context_names() -> list[str]:
    """Return the names of the contexts that the tool has stored, sorted."""
    return sorted(file.stem for file in _folder().glob("*.json"))


@unseen
def selected_context() -> str | None:
    """Return the name of the context that ``nats context select`` chose, None without one. Raises `OptionError`."""
    chosen = _root() / "context.txt"
    if not os.path.isfile(chosen):
        return None
    return _read_text(chosen, f"the file {chosen}, which names the selected one,").strip() or None


@unseen
def save_context(name: str, options: Mapping[str, SecretStr], description: str | None = None) -> Path:
    """Store a context as the tool does, readable by its owner alone; return its file.

    ``options`` are possible ones, by their names in this package. What they do not set stays as it is. The file is
    written whole or not at all. Raises `OptionError` for an option that a context cannot hold, and for a context that
    could not be used, or written.
    """
    path = _stored(name)
    fields = _fields(name, path) if path.is_file() else {}
    for option in options.keys() - _FIELDS.keys():
        raise OptionError(f"option {option} has no place in a context: give it beside --context", option=option)
    new: dict[str, Any] = {_FIELDS[option]: revealed(value) for option, value in options.items()}
    url = new.get("url") or _text(name, fields, "url")
    user_in_url = bool(url) and _servers(name, url)[1] is not None
    if user_in_url and new.keys() & set(_GROUPS[0]):
        raise _error(f'"{name}" has a user in its url, which would count: give option servers, too')
    for group in _GROUPS:
        if {*new, *(["user"] if user_in_url else [])} & set(group):
            fields = {field: value for field, value in fields.items() if field not in group}
    if "tls_first" in new:
        new["tls_first"] = new["tls_first"].lower() == "true"
    fields |= new if description is None else {**new, "description": description}
    _options_of(name, fields)
    _write(path, json.dumps(fields, indent=2))
    return path


def select_context(name: str) -> None:
    """Let a context be the selected one. Raises `OptionError` when there is none of this name."""
    _stored(name)  # which refuses a path
    _path(name)
    _write(_root() / "context.txt", name)


def remove_context(name: str, *, force: bool = False) -> None:
    """Delete a context. Raises `OptionError` when there is none, and for the selected one, unless ``force``."""
    _stored(name)  # which refuses a path
    path, selected = _path(name), selected_context() == name
    if selected and not force:
        raise _error(f'"{name}" is the selected one: select another one before, or force it')
    path.unlink()
    if selected:
        (_root() / "context.txt").unlink()


def _stored(name: str) -> Path:
    """Return where the tool keeps the context of a name. Raises `OptionError` for what is no name."""
    if not name.strip() or ".." in name or "/" in name or os.sep in name or "\0" in name or name.endswith(".json"):
        raise _error(f"a context cannot have the name{quoted_unless_secret(name)}")
    return _folder() / f"{name}.json"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / path.name
            draft.touch(mode=0o600)
            draft.write_text(text, "utf-8")
            draft.replace(path)
    except OSError as error:
        raise _error(f"{path} cannot be written: {(error.strerror or 'unknown reason').lower()}") from None


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise _error(f"{what} cannot be read: {(error.strerror or 'unknown reason').lower()}") from None
    except UnicodeDecodeError:
        raise _error(f"{what} is not UTF-8 text") from None


def _root() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "nats"


def _folder() -> Path:
    return _root() / "context"


def _path(name: str) -> Path:
    if name.endswith(".json") or "/" in name or os.sep in name:
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
    for field in _UNSUPPORTED:
        if fields.get(field):
            raise _error(f'"{name}" sets {field}, which is not supported')
    return fields


def _text(name: str, fields: Mapping[str, Any], field: str) -> str:
    value = fields.get(field) or ""
    if not isinstance(value, str):
        raise _error(f'"{name}" has a field {field} that is not text')
    return value.strip() if field not in {"password", "token"} else value


def _servers(name: str, urls: str) -> tuple[tuple[str, ...], UserInfo | None]:
    try:
        return Servers().parse("url", urls), ServerLogin().parse("url", urls)
    except OptionError as error:
        raise _error(f'in "{name}", {str(error).removeprefix("option ")}') from None


def _authentication(name: str, fields: Mapping[str, Any], login: UserInfo | None) -> dict[str, str]:
    """Return one kind of authentication, as the tool chooses: user, else creds, else NKey, else JWT, else token.

    User info in a URL comes before all of them, as in the Go client.
    """

    def secret(field: str) -> str:
        return _resolved(name, field, _text(name, fields, field))

    def file_or_content(field: str, file: str, content: str) -> dict[str, str]:
        text = _text(name, fields, field)
        if not text.startswith("file://") and ("://" in text or text.startswith("data:")):
            return {content: secret(field)}
        return {file: _expand(text.removeprefix("file://"))}

    options: dict[str, str] = {}
    if login is not None:
        kind = "the user in url"
        options = {option: str(revealed(value)) for option, value in login._asdict().items() if value is not None}
    elif user := _text(name, fields, "user"):
        kind, options = "user", {"user": user, "password": secret("password")}
    elif _text(name, fields, "creds"):
        kind, options = "creds", file_or_content("creds", "credentialsFile", "credentialsSecret")
    elif _text(name, fields, "nkey"):
        kind, options = "nkey", file_or_content("nkey", "nkeySeedFile", "nkeySeedSecret")
    elif jwt := secret("user_jwt"):
        kind, options = "user_jwt", _jwt_options(jwt, secret("user_seed"))
    else:
        token = secret("token")
        return {"token": token} if token else {}
    if _text(name, fields, "token"):
        # The tool sends the token in addition, which no options can say.
        raise _error(f'"{name}" sets token beside {kind}, which is not supported')
    return {option: value for option, value in options.items() if value}


def credentials_text(jwt: str, seed: str = "") -> str:
    """Return the content of a ``.creds`` file in the form that nats-py reads; without a seed it holds the JWT alone."""
    content = f"-----BEGIN NATS USER JWT-----\n{jwt.strip()}\n------END NATS USER JWT------\n"
    if not seed:
        return content
    return f"{content}\n-----BEGIN USER NKEY SEED-----\n{seed.strip()}\n------END USER NKEY SEED------\n"


def _jwt_options(jwt: str, seed: str) -> dict[str, str]:
    """Return the option for a JWT and its seed, or for a JWT alone."""
    return {"credentialsSecret": credentials_text(jwt, seed)} if seed else {"jwtSecret": jwt}


def _resolved(name: str, field: str, text: str) -> str:
    """Return a secret field's text, or what its URI points to."""
    if text.startswith("env://"):
        variable = text.removeprefix("env://")
        if not os.environ.get(variable):
            shown_name = quoted_unless_secret(variable)
            raise _error(f'"{name}" takes {field} from the environment variable{shown_name}, which is not set')
        return os.environ[variable]
    if text.startswith("file://"):
        path = text.removeprefix("file://")
        try:
            return Path(_expand(path)).read_text("utf-8").strip()
        except (OSError, ValueError):
            file = f"the file{quoted_unless_secret(path)}"
            raise _error(f'"{name}" takes {field} from {file}, which cannot be read') from None
    if match := _DATA.fullmatch(text):
        try:
            return base64.b64decode(match[1], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _error(f'"{name}" has base64 in {field} that cannot be decoded') from None
    if text.startswith("data:"):
        raise _error(f'"{name}" has a data: URI in {field} that is not base64')
    if text.startswith(("op://", "nsc://")):
        raise _error(f'"{name}" takes {field} from {text.partition(":")[0]}://, which is not supported')
    return text


def _expand(path: str) -> str:
    return os.path.expandvars(_at_home(path))


def _at_home(path: str) -> str:
    # No file has NUL in its name, and who looks for the file says so; `expanduser` raises `ValueError`.
    return path if "\0" in path else os.path.expanduser(path)


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
_NEEDED = {"NATS_PASSWORD": "NATS_USER", "NATS_SEED": "NATS_JWT"}
"""Variables that mean nothing without another one."""
_KINDS = ("NATS_USER", "NATS_CREDS", "NATS_NKEY", "NATS_JWT")
"""The variables that say who logs in, in the order in which the command chooses; beside them there is NATS_TOKEN."""


def environment_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the variables stand for, by their names in this package. An empty variable is not set.

    ``NATS_URL``, ``NATS_CONTEXT``, ``NATS_CA``, ``NATS_CERT``, ``NATS_KEY``, ``NATS_TIMEOUT``, and one kind of
    authentication, chosen as the command does: ``NATS_USER`` with ``NATS_PASSWORD`` (alone, the user is a token), else
    ``NATS_CREDS``, else ``NATS_NKEY``, else ``NATS_JWT`` with ``NATS_SEED`` or alone, else ``NATS_TOKEN``. Raises
    `OptionError`, which repeats no value, for a variable that only the command can honour, and for a token beside
    another kind.
    """
    given = hidden({name: text for name, text in environ.items() if name.startswith("NATS_")})
    del environ  # a traceback with local variables would show it
    return _options(given)


@unseen
def _options(environ: Mapping[str, SecretStr | None]) -> dict[str, str]:
    texts = {name: str(revealed(value)) for name, value in environ.items()}
    given = {name: text for name, text in texts.items() if text.strip()}
    for name, instead in _NOT_IN_ENVIRONMENT.items():
        if name in given:
            raise OptionError(f"the environment variable {name} is set, which is not supported: {instead}")
    for name, other in _NEEDED.items():
        if name in given and other not in given:
            raise OptionError(f"the environment variable {name} is set without {other}")
    token = {"token": given["NATS_TOKEN"]} if "NATS_TOKEN" in given else {}
    kind = next((name for name in _KINDS if name in given), "")
    options = _login_options(kind, given)
    if options and token and options != token:
        # The command sends the token in addition, which no options can say.
        raise OptionError(f"the environment variables {kind} and NATS_TOKEN are two kinds of authentication")
    return {option: given[name] for name, option in PLAIN.items() if name in given} | (options or token)


def _login_options(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for the kind of authentication that one of `_KINDS` stands for; none for ""."""
    if kind == "NATS_USER" and "NATS_PASSWORD" in given:
        return {"user": given["NATS_USER"], "password": given["NATS_PASSWORD"]}
    if kind == "NATS_JWT":
        return _jwt_options(given["NATS_JWT"], given.get("NATS_SEED", ""))
    option = {"NATS_USER": "token", "NATS_CREDS": "credentialsFile", "NATS_NKEY": "nkeySeedFile"}.get(kind)
    return {} if option is None else {option: given[kind]}
