"""From connection options to a login: authentication and TLS.

Everything is checked here before a server is asked. Nothing here imports nats or pyspark, and no
error shows the content of a file or of a secret.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import tempfile
import time
from collections import UserString
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from spark_jetstream.errors import OptionError
from spark_jetstream.options import advice
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.contexts import credentials_text
from spark_jetstream.options.values import quoted_unless_secret, revealed, unseen
from spark_jetstream.protocol.json_text import json_object

_TOKEN = r"\w[\w-]*\.[\w-]+\.[\w-]+"
_BARE_JWT = re.compile(_TOKEN, re.ASCII)
# A dash can be matched by one part only: otherwise a file of nothing but dashes takes minutes.
_JWT = re.compile(
    rf"---BEGIN NATS USER JWT-{{3,}}\s*({_TOKEN})\s+-{{3,}}END NATS USER JWT---", re.ASCII
)
_SEED = re.compile(r"---BEGIN USER NKEY SEED-{3,}\s*([A-Z2-7]+)\s*-{3,}END USER NKEY SEED---")
_HAS_SEED = "USER NKEY SEED"  # in the line before a seed
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(?:(?!-----)[\x00-\x7f])*-----END \1-----")
_MARK = "\ufeff"  # some editors begin a file with it
_MOST = 1 << 20  # bytes; credentials, seeds, keys and CA bundles are far smaller


class Credentials(UserString):
    """The content of a ``.creds`` file. It may hold a JWT alone, which is a bearer token."""

    def __repr__(self) -> str:
        return "Credentials('**********')"

    @property
    def jwt(self) -> str:
        """The JWT."""
        found = _JWT.search(self.data)
        return found[1] if found else ""

    @property
    def seed(self) -> str:
        """The seed; empty without one."""
        found = _SEED.search(self.data)
        return found[1] if found else ""

    @property
    def expires(self) -> int:
        """When the JWT expires, in seconds since the epoch; 0 for never.

        Raises `OptionError` if it cannot be read.
        """
        try:
            expires = _claims(self.data).get("exp")
        except ValueError:
            raise OptionError("the credentials hold a JWT that cannot be read") from None
        return expires if isinstance(expires, int) and expires > 0 else 0

    @property
    def ended(self) -> str:
        """When the JWT expired, as the end of a sentence; empty if it has not, or is unreadable."""
        # This only adds to another error, so an unreadable JWT says nothing here.
        with suppress(OptionError):
            if 0 < self.expires <= time.time():
                return time.strftime(
                    ": their JWT expired at %Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires)
                )
        return ""


@unseen
def connect_arguments(
    options: ConnectionOptions, resolve: Callable[[str], str] = str
) -> dict[str, Any]:
    """Return the arguments that say who we are and how to encrypt, as nats-py calls them.

    `user_credentials` and `nkeys_seed_str` are for `login_fields`, the others for nats-py. A file
    is used under the path given if it exists, else under ``resolve(base name)``: where it would be
    if it was sent along with the job. Raises `OptionError` for a file that is missing, unreadable,
    or holds something else.
    """
    files = _Files(options, resolve)
    arguments: dict[str, Any] = {}
    if options.user is not None and options.password is not None:
        arguments |= {"user": options.user, "password": options.password.get_secret_value()}
    if options.token is not None:
        arguments["token"] = options.token.get_secret_value()
    credentials = files.given("credentials_file", "credentials_secret")
    if credentials is not None:
        arguments["user_credentials"] = Credentials(
            _credentials(credentials.option, credentials.content)
        )
    jwt = files.given("jwt_file", "jwt_secret")
    if jwt is not None:
        arguments["user_credentials"] = Credentials(_jwt(jwt.option, jwt.content))
    nkey = files.given("nkey_seed_file", "nkey_seed_secret")
    if nkey is not None:
        arguments["nkeys_seed_str"] = _seed(nkey.option, nkey.content)
    context = _tls(files)
    if context is not None:
        arguments["tls"] = context
    if options.tls_hostname is not None:
        arguments["tls_hostname"] = options.tls_hostname
    if options.tls_handshake_first:
        arguments["tls_handshake_first"] = True
    return arguments


def login_fields(arguments: Mapping[str, Any], nonce: str | None) -> dict[str, str]:
    """Return the fields of CONNECT for a JWT or a key, with the signature of the server's nonce.

    A server that asks for this login sends a nonce. Without one there are no fields.
    """
    credentials: Credentials | None = arguments.get("user_credentials")
    seed: str | None = arguments.get("nkeys_seed_str")
    if nonce is None:
        return {}
    if credentials is not None:
        # A bearer token needs no signature.
        signature = _signature(credentials.seed, nonce) if credentials.seed else ""
        return {"jwt": credentials.jwt, "sig": signature}
    if seed is not None:
        return {"nkey": _public_key(seed), "sig": _signature(seed, nonce)}
    return {}


def _public_key(seed: str) -> str:
    return str(_key_pair(seed).public_key.decode())


def _signature(seed: str, nonce: str) -> str:
    return base64.b64encode(_key_pair(seed).sign(nonce.encode())).decode()


def _key_pair(seed: str) -> Any:
    import nkeys  # type: ignore[import-untyped]  # noqa: PLC0415  # of the extra

    return nkeys.from_seed(bytearray(seed.encode()))


def mistrust(error: ssl.SSLCertVerificationError, options: ConnectionOptions) -> str:
    """Return why a certificate is not trusted, without the host name that an option asks for."""
    if options.tls_hostname is None:
        return error.verify_message
    # OpenSSL's text ends with the name.
    return error.verify_message.partition(",")[0]


@dataclass(repr=False)
class _Given:
    """A text that an option holds, or that is in the file at ``path``."""

    option: str
    content: str
    path: str | None


@dataclass(repr=False)
class _Files:
    options: ConnectionOptions
    resolve: Callable[[str], str]

    def given(self, file: str, inline: str) -> _Given | None:
        """Return what one of two fields holds, with the name of its option; None without either."""
        names = {spec.field_name: spec.name for spec in self.options.specs}
        path, value = getattr(self.options, file), revealed(getattr(self.options, inline))
        if path is not None:
            return self._read(names[file], path)
        if value is None:
            return None
        return _Given(names[inline], str(value), None)

    def pem(self, label: str, file: str, inline: str) -> _Given | None:
        """Return the same for fields with a certificate or a key: its blocks in PEM form alone."""
        given = self.given(file, inline)
        if given is None:
            return None
        blocks = [block for block in _PEM.finditer(given.content) if block[1].endswith(label)]
        content = "".join(f"{block[0]}\n" for block in blocks)
        if "ENCRYPTED" in content and label == "PRIVATE KEY":
            problem = "holds an encrypted key, which is not supported"
        elif not blocks:
            problem = f"holds no {label.lower()} in PEM form"
        else:
            # OpenSSL does not find a block after a byte order mark.
            path = None if given.content.startswith(_MARK) else given.path
            return _Given(given.option, content, path)
        raise OptionError(f"option {given.option} {problem}", option=given.option)

    def _read(self, option: str, given: str) -> _Given:
        if os.path.isfile(given):
            path = given
        else:
            path = self.resolve(os.path.basename(given))
        if not os.path.isfile(path):
            named = f"option {option} names the file{quoted_unless_secret(given)}"
            raise OptionError(
                f"{named}, which is not here and was not sent with the job", option=option
            )
        try:
            # What counts is ASCII; a comment may have any encoding.
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                content = file.read(_MOST + 1)
        except OSError as error:
            problem = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
        else:
            if len(content) <= _MOST:
                return _Given(option, content, path)
            problem = "is too large for what it should be"
        raise OptionError(f"option {option} names the file {path}, which {problem}", option=option)


def _credentials(option: str, content: str) -> str:
    """Return the content of a ``.creds`` file in its usual form."""
    jwt, seed = _JWT.search(content), _SEED.search(content)
    if jwt is None:
        raise OptionError(
            f"option {option} holds no user JWT between its BEGIN and END lines", option=option
        )
    if seed is not None:
        _check_seed(option, seed[1])
        return credentials_text(jwt[1], seed[1])
    if _HAS_SEED in content:
        raise OptionError(
            f"option {option} holds no user NKey seed between its BEGIN and END lines",
            option=option,
        )
    _check_bearer(option, jwt[1])
    return credentials_text(jwt[1])


def _jwt(option: str, content: str) -> str:
    """Return a bare JWT, or the one between BEGIN and END lines, as a ``.creds`` file has it."""
    if _HAS_SEED in content:
        raise OptionError(
            f"option {option} holds a JWT with its seed: {advice.CREDENTIALS}", option=option
        )
    decorated = _JWT.search(content)
    jwt = decorated[1] if decorated else content.removeprefix(_MARK).strip()
    if not _BARE_JWT.fullmatch(jwt):
        raise OptionError(f"option {option} does not hold a JWT", option=option)
    _check_bearer(option, jwt)
    return credentials_text(jwt)


def _claims(text: str) -> dict[str, Any]:
    """Return the claims of the JWT in a text without other dots before it. Raises `ValueError`."""
    payload = text.split(".")[1]
    return json_object(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def _check_bearer(option: str, jwt: str) -> None:
    """Raise `OptionError` for a JWT whose user must sign the login."""
    try:
        nats = _claims(jwt).get("nats")
    except ValueError:
        raise OptionError(
            f"option {option} holds a JWT that cannot be read", option=option
        ) from None
    if not isinstance(nats, dict) or nats.get("bearer_token") is not True:
        raise OptionError(
            f"option {option} holds a JWT that is no bearer token, and no user NKey seed to sign "
            f"the login with: {advice.CREDENTIALS}",
            option=option,
        )


def _seed(option: str, content: str) -> str:
    """A bare seed, or the one between BEGIN and END lines."""
    decorated = _SEED.search(content)
    seed = decorated[1] if decorated else content.removeprefix(_MARK).strip()
    _check_seed(option, seed)
    return seed


def _check_seed(option: str, seed: str) -> None:
    """Raise `OptionError` for a text that is no seed of a user.

    A seed is base32 of 2 bytes of prefix, 32 of key and 2 of CRC-16, which is little-endian.
    """
    if not re.fullmatch(r"S[A-Z2-7]{57}", seed):
        raise OptionError(f"option {option} does not hold an NKey seed", option=option)
    if not seed.startswith("SU"):
        raise OptionError(
            f"option {option} holds an NKey seed that is not a user's (those begin with SU)",
            option=option,
        )
    # A typing error is found here, before a server refuses the login.
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise OptionError(
            f"option {option} holds an NKey seed with a wrong checksum", option=option
        )


def _tls(files: _Files) -> ssl.SSLContext | None:
    """Return the TLS settings; None if no option asks for any: the system's authorities count."""
    ca = files.pem("CERTIFICATE", "tls_ca_file", "tls_ca_pem")
    cert = files.pem("CERTIFICATE", "tls_cert_file", "tls_cert_pem")
    key = files.pem("PRIVATE KEY", "tls_key_file", "tls_key_secret")
    if ca is None and cert is None:
        return None
    # Only a client certificate: the system's authorities still decide about the server.
    if ca is None:
        context = ssl.create_default_context()
    elif (trusting := _trusting(ca.content)) is not None:
        context = trusting
    else:
        raise OptionError(
            f"option {ca.option} holds a certificate that cannot be read", option=ca.option
        )
    if cert is not None and key is not None:
        _load_chain(context, cert, key)
    return context


def _trusting(certificates: str) -> ssl.SSLContext | None:
    """A context that trusts these authorities and no others; None when they cannot be read."""
    try:
        return ssl.create_default_context(cadata=certificates)
    except (ssl.SSLError, ValueError):
        return None


def _load_chain(context: ssl.SSLContext, cert: _Given, key: _Given) -> None:
    option, problem = key.option, "holds a key that cannot be read"
    with ExitStack() as stack:
        cert_path = cert.path or stack.enter_context(_private_file(cert.content))
        key_path = key.path or stack.enter_context(_private_file(key.content))
        try:
            # A password, though none is needed, so that OpenSSL never asks for one on the terminal.
            context.load_cert_chain(cert_path, key_path, password="")
            return
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                problem = (
                    f"holds a key that does not belong to the certificate of option {cert.option}"
                )
            elif _trusting(cert.content) is None:
                option, problem = cert.option, "holds a certificate that cannot be read"
        except (OSError, ValueError):
            problem = "holds a key that cannot be used"
    raise OptionError(f"option {option} {problem}", option=option)


@contextmanager
def _private_file(content: str) -> Iterator[str]:
    """Write a file that only this user can read, and remove it at the end.

    OpenSSL takes keys from files only.
    """
    descriptor, path = tempfile.mkstemp(prefix="spark-jetstream-", suffix=".pem")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # mkstemp gives mode 0600
            file.write(content)
        yield path
    finally:
        os.unlink(path)
