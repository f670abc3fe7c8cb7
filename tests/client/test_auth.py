"""From options to the arguments of nats-py's connect, and what is refused on the way."""

from __future__ import annotations

import base64
import json
import ssl
import stat
import tempfile
from collections import UserString
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
import trustme

from spark_jetstream.client.auth import Credentials, connect_arguments
from spark_jetstream.errors import OptionError
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.options.contexts import credentials_text

USER_SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
ACCOUNT_SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_ACCOUNT).decode()
WRONG_SEED = USER_SEED[:20] + ("A" if USER_SEED[20] != "A" else "B") + USER_SEED[21:]
JWT = "eyJ0eXAi.eyJqdGki-_.c2ln"
PAYLOADS = ({"nats": {"bearer_token": True}}, {"nats": {"type": "user"}}, {"exp": 1})
BEARER, SIGNED, FOREIGN = (
    f"eyJ0eXAi.{base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip('=')}.c2ln"
    for payload in PAYLOADS
)
CREDS = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

************************* IMPORTANT *************************

-----BEGIN USER NKEY SEED-----
{USER_SEED}
------END USER NKEY SEED------

*************************************************************
"""


def arguments(
    resolve: Callable[[str], str] | None = None, /, **options: object
) -> dict[str, object]:
    made = ConnectionOptions.from_spark({name: str(value) for name, value in options.items()})
    return connect_arguments(made) if resolve is None else connect_arguments(made, resolve)


def refused(**options: object) -> str:
    with pytest.raises(OptionError) as caught:
        arguments(**options)
    message = str(caught.value)
    assert caught.value.option in options
    assert str(caught.value.option) in message
    assert "\n" not in message
    assert caught.value.__context__ is None
    for secret in (USER_SEED, ACCOUNT_SEED, WRONG_SEED, JWT, BEARER, SIGNED, "PRIVATE KEY"):
        assert secret not in message
    return message


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def pems(authority: trustme.CA) -> dict[str, str]:
    """PEM texts: an authority, a client's certificate and key, and another key."""
    client, other = authority.issue_cert("client.example"), authority.issue_cert("other.example")
    return {
        "ca": authority.cert_pem.bytes().decode(),
        "cert": client.cert_chain_pems[0].bytes().decode(),
        "key": client.private_key_pem.bytes().decode(),
        "other": other.private_key_pem.bytes().decode(),
    }


@pytest.fixture
def private_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, which must be empty again at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def parts_of(credentials: object) -> tuple[str, str]:
    """The JWT and the seed."""
    assert isinstance(credentials, Credentials)
    return credentials.jwt, credentials.seed


@pytest.mark.parametrize(
    "content",
    [
        CREDS,
        CREDS.replace("\n", "\r\n"),
        CREDS.replace("\n", " "),
        CREDS.replace("------END", "-----END"),
        CREDS[: CREDS.index("\n\n****")] + CREDS[CREDS.index("\n-----BEGIN USER") :].rstrip("*\n"),
        f"\n\n  {CREDS}",
    ],
    ids=["usual", "crlf", "one line", "five dashes", "no end of line", "blanks in front"],
)
def test_credentials_may_have_any_layout(tmp_path: Path, content: str) -> None:
    path = put(tmp_path / "me.creds", content)
    inline = arguments(credentialsSecret=content)["user_credentials"]
    assert isinstance(inline, UserString)
    assert USER_SEED not in repr(inline)
    assert parts_of(inline) == (JWT, USER_SEED)
    assert parts_of(arguments(credentialsFile=path)["user_credentials"]) == (JWT, USER_SEED)


@pytest.mark.parametrize(
    "payload", ["", "bm90IGpzb24", "eyJleHAiOiAiMSJ9", "eyJleHAiOiA5OTk5OTk5OTk5fQ", "-_"]
)
def test_a_jwt_that_has_not_expired_or_cannot_be_read(payload: str) -> None:
    assert Credentials(credentials_text(f"a.{payload}.c", USER_SEED)).ended == ""


def test_a_bearer_token_needs_no_seed(tmp_path: Path) -> None:
    decorated = credentials_text(BEARER)
    for options in (
        {"jwtSecret": f" {BEARER}\n"},
        {"jwtSecret": decorated},
        {"jwtFile": put(tmp_path / "bare", f"\ufeff{BEARER}\r\n")},
        {"jwtFile": put(tmp_path / "jwt", decorated)},
        {"credentialsSecret": decorated},
        {"credentialsFile": put(tmp_path / "creds", decorated)},
    ):
        given = arguments(**options)["user_credentials"]
        assert isinstance(given, Credentials)
        assert (given.jwt, given.seed) == (BEARER, "")
        assert BEARER not in repr(given)


def test_seeds(tmp_path: Path) -> None:
    decorated = f"-----BEGIN USER NKEY SEED-----\n{USER_SEED}\n------END USER NKEY SEED------\n"
    assert arguments(nkeySeedSecret=f" {USER_SEED}\n")["nkeys_seed_str"] == USER_SEED
    assert arguments(nkeySeedSecret=decorated)["nkeys_seed_str"] == USER_SEED
    for content in (USER_SEED, decorated, f"\ufeff{USER_SEED}\n"):
        assert (
            arguments(nkeySeedFile=put(tmp_path / "seed", content))["nkeys_seed_str"] == USER_SEED
        )


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        *(
            (option, content, words)
            for seed, words in (
                (USER_SEED[:-1], "does not hold an NKey seed"),
                (ACCOUNT_SEED, "holds an NKey seed that is not a user's"),
                (WRONG_SEED, "holds an NKey seed with a wrong checksum"),
            )
            for option, content in (
                ("nkeySeed", seed),
                ("credentials", CREDS.replace(USER_SEED, seed)),
            )
        ),
        ("nkeySeed", "not a seed", "does not hold an NKey seed"),
        ("credentials", "nothing of the kind", "holds no user JWT"),
        ("credentials", CREDS.replace("USER JWT", "JWT"), "holds no user JWT"),
        ("credentials", CREDS.replace(JWT, "not-a-jwt"), "holds no user JWT"),
        (
            "credentials",
            CREDS[: CREDS.index(USER_SEED)],
            "holds no user NKey seed between its BEGIN and END lines",
        ),
        ("credentials", credentials_text(JWT), "holds a JWT that cannot be read"),
        *(
            (
                option,
                content,
                "holds a JWT that is no bearer token, and no user NKey seed to sign the login with",
            )
            for content in (credentials_text(SIGNED), f"{credentials_text(SIGNED)}\n{USER_SEED}\n")
            for option in ("credentials", "jwt")
        ),
        ("jwt", SIGNED, "holds a JWT that is no bearer token"),
        ("jwt", FOREIGN, "holds a JWT that is no bearer token"),
        ("jwt", JWT, "holds a JWT that cannot be read"),
        ("jwt", CREDS, "holds a JWT with its seed: give both as a .creds file"),
        ("jwt", USER_SEED, "does not hold a JWT"),
        ("jwt", f"{BEARER} {BEARER}", "does not hold a JWT"),
        # Text that a pattern could divide in many ways: it took minutes.
        ("credentials", "-" * (1 << 20), "holds no user JWT"),
        ("credentials", CREDS.replace(f"{JWT}\n", "a.b." + "-" * 900_000), "holds no user JWT"),
        ("credentials", CREDS.replace(USER_SEED, "-" * 900_000), "holds no user NKey seed"),
    ],
)
def test_wrong_seeds_and_credentials(tmp_path: Path, option: str, content: str, words: str) -> None:
    assert words in refused(**{f"{option}Secret": content})
    assert words in refused(**{f"{option}File": put(tmp_path / "file", content)})


@pytest.mark.parametrize(
    "options",
    [
        *(
            {option: path}
            for option in ("nkeySeedFile", "credentialsFile", "jwtFile", "tlsCaFile")
            for path in ("/nowhere/file", USER_SEED, CREDS, f"/run/{USER_SEED}")
        ),
        {"tlsCertFile": "/nowhere/file", "tlsKeySecret": "x"},
        {
            "tlsKeyFile": "/nowhere/file",
            "tlsCertPem": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        },
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_missing_file_is_refused_and_no_secret_in_its_place_shown(
    options: dict[str, str],
) -> None:
    option, path = next(iter(options.items()))
    shown = ' "/nowhere/file"' if path == "/nowhere/file" else ""
    message = refused(**options)
    assert (
        message
        == f"option {option} names the file{shown}, which is not here and was not sent with the job"
    )


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    assert "does not hold an NKey seed" in refused(nkeySeedFile=put(tmp_path / "a", b"\xff\xfe"))
    assert "holds no certificate in PEM form" in refused(tlsCaFile=put(tmp_path / "empty", ""))
    assert "which is too large" in refused(tlsCaFile=put(tmp_path / "b", b"x" * (1 << 20) + b"x"))


def test_files_sent_with_the_job_are_found_by_their_base_name(tmp_path: Path) -> None:
    sent = put(tmp_path / "me.creds", CREDS)
    asked: list[str] = []

    def resolve(name: str) -> str:
        asked.append(name)
        return str(tmp_path / name)

    for given in ("/home/me/me.creds", sent):
        assert parts_of(arguments(resolve, credentialsFile=given)["user_credentials"]) == (
            JWT,
            USER_SEED,
        )
        assert asked == ["me.creds"]


#: Text that may stand around the blocks of a PEM file.
AROUND: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "comment in UTF-8": ("# Zertifizierungsstelle für Übungen\n".encode(), bytes),
    "comment in Latin-1": ("# Zertifizierungsstelle für Übungen\n".encode("latin-1"), bytes),
    "byte order mark": (b"\xef\xbb\xbf", bytes),
    "byte order mark and CR LF": (b"\xef\xbb\xbf", lambda pem: pem.replace(b"\n", b"\r\n")),
    "text that asks for a password": (b"this one is not ENCRYPTED\n", bytes),
}


@pytest.mark.parametrize(("front", "change"), AROUND.values(), ids=AROUND.keys())
def test_text_around_a_pem_block_is_ignored(
    tmp_path: Path,
    private_files: Path,
    pems: dict[str, str],
    front: bytes,
    change: Callable[[bytes], bytes],
) -> None:
    contents = {item: front + change(pem.encode()) + front for item, pem in pems.items()}
    files = {item: put(tmp_path / f"{item}.pem", content) for item, content in contents.items()}
    texts = {item: content.decode(errors="replace") for item, content in contents.items()}
    for given in (
        {"tlsCaFile": files["ca"], "tlsCertFile": files["cert"], "tlsKeyFile": files["key"]},
        {"tlsCaPem": texts["ca"], "tlsCertPem": texts["cert"], "tlsKeySecret": texts["key"]},
    ):
        context = arguments(**given)["tls"]
        assert isinstance(context, ssl.SSLContext)
        assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("inline", [("cert", "key"), ("cert",), ("key",), ()], ids="+".join)
def test_a_certificate_and_its_key_are_files_or_texts_written_for_this_user_alone(
    tmp_path: Path,
    private_files: Path,
    pems: dict[str, str],
    inline: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, object] = {}
    for item, in_file, as_text in (
        ("cert", "tlsCertFile", "tlsCertPem"),
        ("key", "tlsKeyFile", "tlsKeySecret"),
    ):
        if item in inline:
            options[as_text] = pems[item]
        else:
            options[in_file] = put(tmp_path / f"{item}.pem", pems[item])
    loaded: list[Path] = []

    class Watched(ssl.SSLContext):
        def load_cert_chain(self, *paths: Any, **rest: Any) -> None:
            for path, item in zip(map(Path, paths), ("cert", "key"), strict=True):
                assert path.read_text() == pems[item]
                assert item not in inline or stat.S_IMODE(path.stat().st_mode) == 0o600
                loaded.append(path)
            super().load_cert_chain(*paths, **rest)

    monkeypatch.setattr(ssl, "create_default_context", lambda **_: Watched(ssl.PROTOCOL_TLS_CLIENT))
    assert isinstance(arguments(**options)["tls"], Watched)
    assert len(loaded) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tlsCaPem": "no pem"}, "option tlsCaPem holds no certificate in PEM form"),
        ({"tlsCaPem": "{key}"}, "option tlsCaPem holds no certificate in PEM form"),
        ({"tlsCaPem": "{empty}"}, "option tlsCaPem holds a certificate that cannot be read"),
        ({"tlsCaPem": "{broken}"}, "option tlsCaPem holds a certificate that cannot be read"),
        (
            {"tlsCertPem": "{key}", "tlsKeySecret": "{key}"},
            "option tlsCertPem holds no certificate in PEM form",
        ),
        (
            {"tlsCertPem": "{cert}", "tlsKeySecret": "{cert}"},
            "option tlsKeySecret holds no private key in PEM form",
        ),
        (
            {"tlsCertPem": "{broken}", "tlsKeySecret": "{key}"},
            "option tlsCertPem holds a certificate that cannot",
        ),
        (
            {"tlsCertPem": "{cert}", "tlsKeySecret": "{torn}"},
            "option tlsKeySecret holds a key that cannot be read",
        ),
        (
            {"tlsCertPem": "{cert}", "tlsKeySecret": "{other}"},
            "not belong to the certificate of option tlsCertPem",
        ),
        (
            {"tlsCertPem": "{cert}", "tlsKeySecret": "{encrypted}"},
            "option tlsKeySecret holds an encrypted key",
        ),
        (
            {"tlsCertPem": "{cert}", "tlsKeySecret": "{legacy}"},
            "option tlsKeySecret holds an encrypted key",
        ),
    ],
)
def test_wrong_pem(
    private_files: Path, pems: dict[str, str], options: dict[str, str], words: str
) -> None:
    torn = pems["key"].splitlines()
    texts = {
        **pems,
        "empty": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        "broken": pems["cert"].replace("MII", "AAA"),
        "torn": "\n".join([torn[0], *torn[2:]]),
        "encrypted": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE "
        "KEY-----\n",
        "legacy": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA "
        "PRIVATE KEY-----\n",
    }
    assert words in refused(**{name: text.format(**texts) for name, text in options.items()})
