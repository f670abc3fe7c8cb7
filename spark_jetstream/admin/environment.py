"""The ``NATS_*`` variables of the environment that the ``nats`` command honours, as options. Pure.

Only the command line and `JetStreamAdmin.from_environment` look at them. Source and sink never do: a job must not
change its server because somebody exported a variable.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.values import hidden, revealed, unseen

#: Variables that mean the same as one option of ours.
PLAIN = {
    "NATS_URL": "servers",
    "NATS_CONTEXT": "context",
    "NATS_CA": "tlsCaFile",
    "NATS_CERT": "tlsCertFile",
    "NATS_KEY": "tlsKeyFile",
    "NATS_TIMEOUT": "requestTimeout",
}
_UNSUPPORTED = {
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
    for name, instead in _UNSUPPORTED.items():
        if name in given:
            raise OptionError(f"the environment variable {name} is set, which is not supported: {instead}")
    return {option: given[name] for name, option in PLAIN.items() if name in given} | _authentication(given)


def _authentication(given: Mapping[str, str]) -> dict[str, str]:
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
