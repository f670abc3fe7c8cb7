"""Contexts and variables of the nats command line tool as options."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from spark_jetstream.admin import JetStreamAdmin, environment_options
from spark_jetstream.errors import OptionError
from spark_jetstream.options import ConnectionOptions, SourceOptions
from spark_jetstream.options.contexts import context_options

SECRET = "hunter2-never-shown"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, without XDG_CONFIG_HOME; the folder of its contexts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / ".config" / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, name: str = "prod", /, **fields: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(fields), "utf-8")
    return path


def test_every_field_that_has_a_counterpart(home: Path) -> None:
    unset = ("nsc", "socks_proxy", "jetstream_api_prefix", "jetstream_event_prefix", "color_scheme")
    files = {"cert": "/c.pem", "key": "/k.pem", "ca": "/ca.pem"}
    others = {"description": "production", "windows_ca_certs_match": None, "a_field_of_tomorrow": 7}
    login = {"url": "nats://a:4222, b", "user": "me", "password": "x"}
    names = {"jetstream_domain": "hub", "inbox_prefix": "_INBOX_me", "tls_first": True}
    write(home, **dict.fromkeys(unset, ""), **files, **others, **login, **names)
    assert context_options("prod") == {
        "servers": "nats://a:4222,nats://b",
        "user": "me",
        "password": "x",
        "tlsCertFile": "/c.pem",
        "tlsKeyFile": "/k.pem",
        "tlsCaFile": "/ca.pem",
        "tlsHandshakeFirst": "true",
        "domain": "hub",
        "inboxPrefix": "_INBOX_me",
    }


def test_an_empty_context_is_all_defaults(home: Path) -> None:
    write(home)
    assert context_options("prod") == {}
    assert ConnectionOptions.from_spark({"context": "prod"}) == ConnectionOptions()
    write(home, jetstream_api_prefix="JSA.API.")
    assert ConnectionOptions.from_spark({"context": "prod"}).api_prefix_resolved == "JSA.API"


def test_a_context_is_found_by_name_or_by_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(home, url="nats://by-name")
    assert context_options("prod")["servers"] == "nats://by-name"
    assert (
        context_options(str(path))
        == context_options("~/.config/nats/context/prod.json")
        == context_options("prod")
    )
    other = tmp_path / "xdg" / "nats" / "context"
    other.mkdir(parents=True)
    write(other, url="nats://by-xdg")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert context_options("prod")["servers"] == "nats://by-xdg"


def test_home_and_variables_are_expanded_where_the_tool_expands_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    write(
        home,
        creds="~/me.creds",
        ca="$KEYS/ca.pem",
        cert="${KEYS}/c.pem",
        key="~/k.pem",
        inbox_prefix="$KEYS",
    )
    where = home.parents[2]
    assert context_options("prod") == {
        "credentialsFile": f"{where}/me.creds",
        "tlsCaFile": "/keys/ca.pem",
        "tlsCertFile": "/keys/c.pem",
        "tlsKeyFile": f"{where}/k.pem",
        "inboxPrefix": "$KEYS",
    }
    write(home, nkey="$KEYS/seed.nk")
    assert context_options("prod") == {"nkeySeedFile": "/keys/seed.nk"}


JWT = (
    f"-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n"
    f"-----BEGIN USER NKEY SEED-----\n{SECRET}\n------END USER NKEY SEED------\n"
)
DATA = "data:;base64," + base64.b64encode(SECRET.encode()).decode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"user": "me", "password": "x", "creds": "/c", "nkey": "/n"},
            {"user": "me", "password": "x"},
        ),
        ({"creds": "/c", "nkey": "/n", "user_jwt": "a.b.c"}, {"credentialsFile": "/c"}),
        ({"nkey": "/n", "user_jwt": "a.b.c"}, {"nkeySeedFile": "/n"}),
        ({"user_jwt": "a.b.c", "user_seed": SECRET}, {"credentialsSecret": JWT}),
        ({"token": " t "}, {"token": " t "}),
        (
            {"url": "nats://me:p%40@a", "user": "other", "password": "y"},
            {"user": "me", "password": "p@"},
        ),
        ({"url": "nats://tok@a"}, {"token": "tok"}),
        ({"creds": "file:///c"}, {"credentialsFile": "/c"}),
        ({"creds": "env://THE_SECRET"}, {"credentialsSecret": SECRET}),
        ({"creds": DATA}, {"credentialsSecret": SECRET}),
        ({"nkey": "env://THE_SECRET"}, {"nkeySeedSecret": SECRET}),
        ({"nkey": DATA}, {"nkeySeedSecret": SECRET}),
        ({"token": "env://THE_SECRET"}, {"token": SECRET}),
        ({"token": "file://~/token.txt"}, {"token": SECRET}),
        ({"user": "me", "password": DATA}, {"user": "me", "password": SECRET}),
        ({"user_jwt": "a.b.c", "user_seed": "env://THE_SECRET"}, {"credentialsSecret": JWT}),
        ({"user_jwt": "a.b.c"}, {"jwtSecret": "a.b.c"}),
        ({"user_jwt": "env://THE_SECRET"}, {"jwtSecret": SECRET}),
    ],
)
def test_authentication(
    home: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setenv("THE_SECRET", SECRET)
    (home.parents[2] / "token.txt").write_text(f"{SECRET}\n", "utf-8")
    write(home, **fields)
    resolved = context_options("prod")
    resolved.pop("servers", None)
    assert resolved == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *(
            ({field: "something"}, f'"prod" sets {field}, which is not supported')
            for field in (
                "socks_proxy",
                "nsc",
                "windows_cert_store",
                "windows_cert_match",
                "windows_cert_match_by",
            )
        ),
        ({"windows_ca_certs_match": ["a"]}, "sets windows_ca_certs_match, which is not supported"),
        ({"token": SECRET, "user_jwt": "a.b.c"}, "sets token beside user_jwt"),
        ({"token": SECRET, "user": "me", "password": SECRET}, "sets token beside user"),
        ({"token": SECRET, "creds": "/c"}, "sets token beside creds"),
        ({"token": SECRET, "url": f"nats://me:{SECRET}@a"}, "sets token beside the user in url"),
        ({"token": "op://vault/item"}, "takes token from op://, which is not supported"),
        ({"creds": "nsc://o/a/u"}, "takes creds from nsc://, which is not supported"),
        (
            {"token": "env://NOT_SET"},
            'takes token from the environment variable "NOT_SET", which is not set',
        ),
        (
            {"token": "file:///nowhere"},
            'takes token from the file "/nowhere", which cannot be read',
        ),
        ({"token": f"data:;base64,{SECRET}!"}, "has base64 in token that cannot be decoded"),
        ({"token": f"data:,{SECRET}"}, "has a data: URI in token that is not base64"),
        ({"token": 7}, "has a field token that is not text"),
        (
            {"url": f"nats://me:{SECRET}@a:b"},
            'in "prod", url holds URL number 1 ("nats://a"), in which the port',
        ),
        ({"url": f"nats://me:{SECRET}@a,ws://b"}, 'in "prod", url mixes'),
        (f'{{"token": "{SECRET}"'.encode(), "is not JSON"),
        (f'["{SECRET}"]'.encode(), "is not a JSON object"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"\xff\xfe" + SECRET.encode(), "is not UTF-8 text"),
    ],
)
def test_a_wrong_context_is_an_error_that_shows_no_secret(
    home: Path, content: dict[str, Any] | bytes, words: str
) -> None:
    (home / "prod.json").write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    with pytest.raises(OptionError) as caught:
        ConnectionOptions.from_spark({"context": "prod"})
    assert words in str(caught.value)
    assert str(caught.value).startswith("option context: ")
    assert caught.value.option == "context"
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prd", 'there is no context "prd" in '),
        ("prd", 'did you mean "prod"'),
        ("/nowhere/a.json", 'there is no file "/nowhere/a.json"'),
        ("nowhere.json", 'there is no file "nowhere.json"'),
        ("..", 'a context cannot have the name ".."'),
        (" ", 'a context cannot have the name ""'),
    ],
)
def test_a_context_that_is_not_there(home: Path, name: str, words: str) -> None:
    with pytest.raises(OptionError, match='there is no context "prod" in') as caught:
        context_options("prod")
    assert "did you mean" not in str(caught.value)
    write(home)
    with pytest.raises(OptionError, match=words):
        context_options(name)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (
            {},
            {
                "user": "me",
                "domain": "hub",
                "tls_ca_file": "/ca",
                "tls_cert_file": "/c",
                "tls_key_file": "/k",
            },
        ),
        (
            {"servers": "nats://other"},
            {"servers": ("nats://other",), "user": "me", "password": SecretStr("x")},
        ),
        ({"token": "t"}, {"token": SecretStr("t"), "user": None, "password": None}),
        ({"credentialsFile": "/c"}, {"credentials_file": "/c", "user": None}),
        ({"servers": "nats://you:y@b"}, {"user": "you", "password": SecretStr("y")}),
        ({"servers": "nats://t@b"}, {"user": None, "token": SecretStr("t")}),
        ({"apiPrefix": "JSA.API"}, {"domain": None, "api_prefix": "JSA.API"}),
        ({"tlsCaPem": "pem"}, {"tls_ca_file": None, "tls_ca_pem": "pem", "tls_cert_file": "/c"}),
        (
            {"tlsCertPem": "c", "tlsKeySecret": "k"},
            {"tls_cert_file": None, "tls_key_file": None, "tls_cert_pem": "c"},
        ),
        ({"inboxPrefix": "_I"}, {"inbox_prefix": "_I", "user": "me"}),
    ],
)
def test_options_beside_a_context_win(
    home: Path, own: dict[str, str], expected: dict[str, object]
) -> None:
    login, files = {"user": "me", "password": "x"}, {"ca": "/ca", "cert": "/c", "key": "/k"}
    write(home, url="nats://a", jetstream_domain="hub", inbox_prefix="_INBOX_me", **login, **files)
    resolved = ConnectionOptions.from_spark({"context": "prod", **own})
    assert {name: getattr(resolved, name) for name in expected} == expected


def test_the_login_of_a_contexts_url_is_authentication_too(home: Path) -> None:
    write(home, url="nats://me:x@a")
    assert ConnectionOptions.from_spark({"context": "prod", "token": "t"}).user is None
    kept = ConnectionOptions.from_spark({"context": "prod", "servers": "nats://b"})
    assert (kept.servers, kept.user) == (("nats://b",), "me")


def test_a_contexts_mistake_is_told_as_one(home: Path) -> None:
    write(home, jetstream_domain="a.b", user="me")
    with pytest.raises(
        OptionError, match=r"option domain must be .* \(it comes from option context, prod\)"
    ):
        ConnectionOptions.from_spark({"context": "prod", "token": "t"})
    with pytest.raises(
        OptionError, match=r"user needs password beside it \(it comes from option context, prod\)"
    ):
        ConnectionOptions.from_spark({"context": "prod", "domain": "a"})


def test_executors_do_not_need_the_context(home: Path) -> None:
    path = write(home, url="nats://a", token=SECRET)
    options = SourceOptions.from_spark({"context": "prod", "stream": "A"}, streaming=True)
    path.unlink()
    assert options.connection == ConnectionOptions(servers=("nats://a",), token=SecretStr(SECRET))
    assert "prod" not in repr(options)


# Variables


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"HOME": "/home/me", "NATS_URL": "", "NATS_COLOR": "red"}, {}),
        ({"NATS_URL": "nats://a:1,nats://b:2"}, {"servers": "nats://a:1,nats://b:2"}),
        ({"NATS_USER": "me", "NATS_PASSWORD": "p"}, {"user": "me", "password": "p"}),
        ({"NATS_USER": "me"}, {"token": "me"}),
        ({"NATS_TOKEN": "t"}, {"token": "t"}),
        ({"NATS_USER": "t", "NATS_TOKEN": "t"}, {"token": "t"}),
        ({"NATS_CREDS": "me.creds"}, {"credentialsFile": "me.creds"}),
        ({"NATS_NKEY": "me.nk"}, {"nkeySeedFile": "me.nk"}),
        ({"NATS_CREDS": "me.creds", "NATS_NKEY": "me.nk"}, {"credentialsFile": "me.creds"}),
        ({"NATS_JWT": "a.b.c"}, {"jwtSecret": "a.b.c"}),
        ({"NATS_JWT": "a.b.c", "NATS_SEED": SECRET}, {"credentialsSecret": JWT}),
        (
            {"NATS_JWT": "a.b.c", "NATS_SEED": SECRET, "NATS_NKEY": "me.nk"},
            {"nkeySeedFile": "me.nk"},
        ),
        (
            {"NATS_USER": "me", "NATS_PASSWORD": "p", "NATS_CREDS": "me.creds"},
            {"user": "me", "password": "p"},
        ),
        (
            {"NATS_CA": "ca.pem", "NATS_CERT": "c.pem", "NATS_KEY": "k.pem"},
            {"tlsCaFile": "ca.pem", "tlsCertFile": "c.pem", "tlsKeyFile": "k.pem"},
        ),
        (
            {"NATS_CONTEXT": "production", "NATS_TIMEOUT": "3s"},
            {"context": "production", "requestTimeout": "3s"},
        ),
    ],
)
def test_nats_variables_become_the_options_of_a_connection(
    environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert environment_options(environ) == expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"NATS_PASSWORD": SECRET}, "NATS_PASSWORD is set without NATS_USER"),
        (
            {"NATS_USER": "me", "NATS_PASSWORD": "p", "NATS_TOKEN": SECRET},
            "NATS_USER and NATS_TOKEN",
        ),
        ({"NATS_USER": "me", "NATS_TOKEN": SECRET}, "NATS_USER and NATS_TOKEN"),
        ({"NATS_CREDS": "f", "NATS_TOKEN": SECRET}, "NATS_CREDS and NATS_TOKEN"),
        ({"NATS_JWT": SECRET, "NATS_TOKEN": SECRET}, "NATS_JWT and NATS_TOKEN"),
        ({"NATS_SEED": SECRET}, "NATS_SEED is set without NATS_JWT"),
        ({"NATS_SOCKS_PROXY": SECRET}, "NATS_SOCKS_PROXY"),
    ],
)
def test_unusable_nats_variables_are_an_error_that_names_them(
    environ: dict[str, str], named: str
) -> None:
    with pytest.raises(OptionError, match=named) as caught:
        environment_options(environ)
    assert SECRET not in str(caught.value)


@pytest.fixture
def selection(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two contexts, no variables of the `nats` command, and the file that says which context is
    selected.
    """
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        monkeypatch.delenv(name)
    for name in ("one", "two"):
        write(home, name, url=f"nats://{name}:1", user=name, password="p")
    return home.parent / "context.txt"


def connects_to(**options: object) -> tuple[tuple[str, ...], str | None]:
    resolved = JetStreamAdmin.from_environment(**options).options
    return resolved.servers, resolved.user


def test_which_context_is_taken(selection: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connects_to() == (("nats://127.0.0.1:4222",), None)
    selection.write_text("one\n")
    assert connects_to() == (("nats://one:1",), "one")
    assert JetStreamAdmin().options.servers == ("nats://127.0.0.1:4222",)
    monkeypatch.setenv("NATS_CONTEXT", "two")
    assert connects_to() == (("nats://two:1",), "two")
    assert connects_to(Context="one") == (("nats://one:1",), "one")
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    assert connects_to() == (("nats://elsewhere:1",), "two")
    monkeypatch.setenv("NATS_CONTEXT", "three")
    with pytest.raises(OptionError, match='there is no context "three"'):
        connects_to()


def test_a_selection_that_cannot_be_read(selection: Path) -> None:
    selection.write_bytes(b"\xff\xfe")
    with pytest.raises(
        OptionError, match=r"^option context: the file .*context\.txt, .*, is not UTF-8 text$"
    ):
        connects_to()
    selection.unlink()
    selection.mkdir()
    assert connects_to() == (("nats://127.0.0.1:4222",), None)


def test_an_error_says_that_a_value_comes_from_the_environment(
    selection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_TIMEOUT", "soon")
    with pytest.raises(
        OptionError, match=r"requestTimeout must be .* \(it comes from the environment, NATS_TIMEOU"
    ):
        JetStreamAdmin.from_environment()
    assert JetStreamAdmin.from_environment(requestTimeout="2s").options.request_timeout == 2
    with pytest.raises(OptionError) as caught:
        JetStreamAdmin.from_environment(connectTimeout="soon", requestTimeout="2s")
    assert "environment" not in str(caught.value)
    selection.write_text("gone\n")
    with pytest.raises(
        OptionError, match=r'there is no context "gone" .*\(it comes from nats context select\)$'
    ):
        JetStreamAdmin.from_environment(requestTimeout="2s")
    monkeypatch.setenv("NATS_CONTEXT", "gone")
    with pytest.raises(
        OptionError,
        match=r'there is no context "gone" .*\(it comes from the environment, NATS_CONTEXT',
    ):
        JetStreamAdmin.from_environment(requestTimeout="2s")


@pytest.mark.usefixtures("selection")
def test_given_options_win_over_variables_and_the_selected_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("NATS_CREDS", "/no/such.creds")
    resolved = JetStreamAdmin.from_environment(servers="nats://here:1", TOKEN=SECRET).options
    assert resolved.servers == ("nats://here:1",)
    assert resolved.given() == {"servers", "token"}
    assert SECRET not in repr(resolved)
