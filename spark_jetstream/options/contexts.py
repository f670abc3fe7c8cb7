"""Contexts of the ``nats`` command line tool, read as options of this package.

A context is a JSON file, ``$XDG_CONFIG_HOME/nats/context/NAME.json`` (``~/.config`` without that variable),
that the tool writes and ``--context NAME`` uses. Field names, the places looked in, what is expanded in which
field, and which kind of authentication wins are those of github.com/nats-io/jsm.go, package natscontext.
Nothing is written.

The context that the tool has selected is used only by who asks for it (`selected_context`): a job must not
change its server because somebody typed ``nats context select``.

The ``NATS_*`` variables of the environment that the ``nats`` command honours, as options. Pure.

Only the command line and `JetStreamAdmin.from_environment` look at them. Source and sink never do: a job must not
change its server because somebody exported a variable.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.options.servers import Login, Servers
from spark_jetstream.options.values import did_you_mean, hidden, revealed, unseen

_UNSUPPORTED = (
    "socks_proxy",
    "nsc",
    "windows_cert_store",
    "windows_cert_match_by",
    "windows_cert_match",
    "windows_ca_certs_match",
)
#: Fields that mean the same as one option of ours. The others are `description`, `color_scheme` and the like.
_PLAIN = {"jetstream_domain": "domain", "jetstream_api_prefix": "apiPrefix", "inbox_prefix": "inboxPrefix"}
_FILES = {"ca": "tlsCaFile", "cert": "tlsCertFile", "key": "tlsKeyFile"}
_DATA = re.compile(r"data:[^,]*;base64,(.*)", re.DOTALL)


@unseen
def context_options(given: str | SecretStr) -> dict[str, str]:
    """The options that a context stands for, by their names in this package, as text.

    ``given`` is a context's name, or a path to its file (recognised by ``.json`` at its end or by a slash).
    Secret fields may be ``file://``, ``env://`` and ``data:;base64,`` URIs. What they point to is read
    here, but the path of a credentials or seed file is passed on as a path. Raises `OptionError` about the
    option ``context``, which shows no value of any field, and the name only of a context that exists.
    """
    name = str(revealed(given))
    path = _path(name)
    fields = _fields(name, path)
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


def selected_context() -> str | None:
    """The name of the context that ``nats context select`` chose; None when there is none. `OptionError`."""
    chosen = _root() / "context.txt"
    if not os.path.isfile(chosen):
        return None
    try:
        return chosen.read_text("utf-8").strip() or None
    except OSError as error:
        fault = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
    except UnicodeDecodeError:
        fault = "is not UTF-8 text"
    raise _error(f"the file {chosen}, which names the selected one, {fault}")


def _root() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "nats"


def _path(name: str) -> Path:
    if name.endswith(".json") or "/" in name or os.sep in name:
        path = Path(os.path.expanduser(name))
        if os.path.isfile(path):
            return path
        raise _error("there is no file at this path")
    folder = _root() / "context"
    path = folder / f"{name}.json"
    if not name.strip() or ".." in name:
        raise _error("a context cannot have this name")
    if os.path.isfile(path):
        return path
    known = sorted(file.stem for file in folder.glob("*.json"))
    hint = did_you_mean(name, known, 0.0, quoted=True)
    raise _error(f"there is no context of this name in {folder}{hint}")


def _fields(name: str, path: Path) -> dict[str, Any]:
    fault = ""
    fields: object = None
    try:
        fields = json.loads(path.read_text("utf-8"))
    except OSError as error:
        fault = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
    except UnicodeDecodeError:
        fault = "is not UTF-8 text"
    except (ValueError, RecursionError):
        fault = "is not valid JSON"
    if not fault and not isinstance(fields, dict):
        fault = "is not a JSON object"
    if fault or not isinstance(fields, dict):
        # Outside the except block: what json's error carries along is the whole file, secrets included.
        raise _error(f'"{name}" {fault}')
    for field in _UNSUPPORTED:
        if fields.get(field):
            raise _error(f'"{name}" sets {field}, which is not supported')
    return fields


def _text(name: str, fields: Mapping[str, Any], field: str) -> str:
    value = fields.get(field) or ""
    if not isinstance(value, str):
        raise _error(f'"{name}" has something else than text in its field {field}')
    return value.strip() if field not in {"password", "token"} else value


def _servers(name: str, urls: str) -> tuple[tuple[str, ...], Login | None]:
    try:
        return Servers().parse("url", urls), Servers().login("url", urls)
    except OptionError as error:
        fault = str(error).removeprefix("option ")
    raise _error(f'in "{name}", {fault}')


def _authentication(name: str, fields: Mapping[str, Any], login: Login | None) -> dict[str, str]:
    """One kind of authentication, as the tool chooses: user, else creds, else NKey, else JWT, else token.

    User info in a URL comes before all of them, as in the Go client.
    """

    def secret(field: str) -> str:
        return _resolved(name, field, _text(name, fields, field))

    found: dict[str, str] = {}
    if login is not None:
        kind, found = "the user in url", _login_options(login)
    elif user := _text(name, fields, "user"):
        kind, found = "user", {"user": user, "password": secret("password")}
    elif creds := _text(name, fields, "creds"):
        kind, found = (
            "creds",
            _file_or_content(creds, "credentialsFile", "credentialsSecret", secret, "creds"),
        )
    elif nkey := _text(name, fields, "nkey"):
        kind, found = "nkey", _file_or_content(nkey, "nkeySeedFile", "nkeySeedSecret", secret, "nkey")
    elif jwt := secret("user_jwt"):
        seed = secret("user_seed")
        if not seed:
            raise _error(f'"{name}" sets user_jwt without user_seed, which is not supported')
        kind, found = "user_jwt", {"credentialsSecret": _credentials(jwt, seed)}
    else:
        token = secret("token")
        return {"token": token} if token else {}
    if _text(name, fields, "token"):
        # The tool sends the token in addition, for which the options have no words.
        raise _error(f'"{name}" sets token beside {kind}, which is not supported')
    return {option: value for option, value in found.items() if value}


def _login_options(login: Login) -> dict[str, str]:
    if login.token is not None:
        return {"token": login.token.get_secret_value()}
    password = login.password.get_secret_value() if login.password else ""
    return {"user": login.user or "", "password": password}


def _file_or_content(text: str, file: str, content: str, secret: Callable[[str], str], field: str) -> dict[str, str]:
    if text.startswith("file://"):
        return {file: _expand(text.removeprefix("file://"))}
    if "://" in text or text.startswith("data:"):
        return {content: secret(field)}
    return {file: _expand(text)}


def _credentials(jwt: str, seed: str) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt.strip()}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.strip()}\n------END USER NKEY SEED------\n"
    )


def _resolved(name: str, field: str, text: str) -> str:
    """A secret field's text, or what its URI points to."""
    fault = ""
    if text.startswith("env://"):
        variable = text.removeprefix("env://")
        if not os.environ.get(variable):
            raise _error(f'"{name}" takes {field} from an environment variable that is not set')
        return os.environ[variable]
    if text.startswith("file://"):
        try:
            return Path(_expand(text.removeprefix("file://"))).read_text("utf-8").strip()
        except (OSError, ValueError):
            fault = f"takes {field} from a file that cannot be read"
    elif match := _DATA.fullmatch(text):
        try:
            return base64.b64decode(match[1], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            fault = f"has base64 in {field} that cannot be decoded"
    elif text.startswith("data:"):
        fault = f"has a data: URI in {field} that is not base64"
    elif text.startswith(("op://", "nsc://")):
        fault = f"takes {field} from {text.partition(':')[0]}://, which is not supported"
    if fault:
        raise _error(f'"{name}" {fault}')
    return text


def _expand(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))


def _error(fault: str) -> OptionError:
    return OptionError(f"option context: {fault}", option="context")


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
    "NATS_JWT": "put JWT and seed into a .creds file, and its path into NATS_CREDS",
    "NATS_SEED": "put JWT and seed into a .creds file, and its path into NATS_CREDS",
    "NATS_SOCKS_PROXY": "proxies are not supported",
}


def environment_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The options that the variables stand for, by their names in this package; an empty variable counts as not set.

    ``NATS_URL``, ``NATS_CONTEXT``, ``NATS_CA``, ``NATS_CERT``, ``NATS_KEY``, ``NATS_TIMEOUT``, and one kind of
    authentication, chosen as the command does: ``NATS_USER`` with ``NATS_PASSWORD`` (alone, the user is a token), else
    ``NATS_CREDS``, else ``NATS_NKEY``, else ``NATS_TOKEN``. `OptionError`, which shows no value, for variables that
    the command honours and this package cannot, and for a token beside another kind.
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
    return {option: given[name] for name, option in PLAIN.items() if name in given} | _authentication_of_environment(
        given
    )


def _authentication_of_environment(given: Mapping[str, str]) -> dict[str, str]:
    if "NATS_PASSWORD" in given and "NATS_USER" not in given:
        raise OptionError("the environment variable NATS_PASSWORD is set without NATS_USER")
    token = {"token": given["NATS_TOKEN"]} if "NATS_TOKEN" in given else {}
    found: dict[str, str] = {}
    kind = ""
    if "NATS_PASSWORD" in given:
        kind, found = "NATS_USER", {"user": given["NATS_USER"], "password": given["NATS_PASSWORD"]}
    elif "NATS_USER" in given:
        kind, found = "NATS_USER", {"token": given["NATS_USER"]}
    elif "NATS_CREDS" in given:
        kind, found = "NATS_CREDS", {"credentialsFile": given["NATS_CREDS"]}
    elif "NATS_NKEY" in given:
        kind, found = "NATS_NKEY", {"nkeySeedFile": given["NATS_NKEY"]}
    if found and token and found != token:
        # The command sends the token in addition, for which the options have no words.
        raise OptionError(f"the environment variables {kind} and NATS_TOKEN are two kinds of authentication")
    return found or token
