"""The variables of the `nats` command, as options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin, environment_options
from spark_jetstream.errors import OptionError

SECRET = "secret-4711"


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
        (
            {"NATS_USER": "me", "NATS_PASSWORD": "p", "NATS_CREDS": "me.creds"},
            {"user": "me", "password": "p"},
        ),
        (
            {"NATS_CA": "ca.pem", "NATS_CERT": "c.pem", "NATS_KEY": "k.pem"},
            {"tlsCaFile": "ca.pem", "tlsCertFile": "c.pem", "tlsKeyFile": "k.pem"},
        ),
        ({"NATS_CONTEXT": "production", "NATS_TIMEOUT": "3s"}, {"context": "production", "requestTimeout": "3s"}),
    ],
)
def test_what_the_variables_stand_for(environ: dict[str, str], expected: dict[str, str]) -> None:
    assert environment_options(environ) == expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"NATS_PASSWORD": SECRET}, "NATS_PASSWORD is set without NATS_USER"),
        ({"NATS_USER": "me", "NATS_PASSWORD": "p", "NATS_TOKEN": SECRET}, "NATS_USER and NATS_TOKEN"),
        ({"NATS_USER": "me", "NATS_TOKEN": SECRET}, "NATS_USER and NATS_TOKEN"),
        ({"NATS_CREDS": "f", "NATS_TOKEN": SECRET}, "NATS_CREDS and NATS_TOKEN"),
        ({"NATS_JWT": SECRET}, "NATS_JWT is set, which is not supported: put JWT and seed into a .creds file"),
        ({"NATS_SEED": SECRET}, "NATS_SEED"),
        ({"NATS_SOCKS_PROXY": SECRET}, "NATS_SOCKS_PROXY"),
    ],
)
def test_what_the_variables_cannot_say(environ: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named) as caught:
        environment_options(environ)
    assert SECRET not in str(caught.value)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two contexts of the `nats` command, and no variables."""
    for name in ("URL", "USER", "PASSWORD", "TOKEN", "CREDS", "NKEY", "CERT", "KEY", "CA", "CONTEXT", "TIMEOUT"):
        monkeypatch.delenv(f"NATS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps({"url": f"nats://{name}:1", "user": name, "password": "p"}))
    return tmp_path / "nats"


def connects_to(**options: object) -> tuple[tuple[str, ...], str | None]:
    found = JetStreamAdmin.from_environment(**options).options
    return found.servers, found.user


def test_which_context_is_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connects_to() == (("nats://127.0.0.1:4222",), None)
    (home / "context.txt").write_text("one\n")
    assert connects_to() == (("nats://one:1",), "one")
    assert JetStreamAdmin().options.servers == ("nats://127.0.0.1:4222",)
    monkeypatch.setenv("NATS_CONTEXT", "two")
    assert connects_to() == (("nats://two:1",), "two")
    assert connects_to(Context="one") == (("nats://one:1",), "one")
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    assert connects_to() == (("nats://elsewhere:1",), "two")
    monkeypatch.setenv("NATS_CONTEXT", "three")
    with pytest.raises(OptionError, match="no context of this name"):
        connects_to()


def test_an_error_says_that_a_value_comes_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_TIMEOUT", "soon")
    with pytest.raises(OptionError, match=r"requestTimeout must be .* \(it comes from the environment, NATS_TIMEOU"):
        JetStreamAdmin.from_environment()
    assert JetStreamAdmin.from_environment(requestTimeout="2s").options.request_timeout == 2
    with pytest.raises(OptionError) as caught:
        JetStreamAdmin.from_environment(connectTimeout="soon", requestTimeout="2s")
    assert "environment" not in str(caught.value)
    (home / "context.txt").write_text("gone\n")
    with pytest.raises(OptionError, match=r"no context of this name .*environment, NATS_CONTEXT"):
        JetStreamAdmin.from_environment(requestTimeout="2s")


def test_what_is_given_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home.is_dir()
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("NATS_CREDS", "/no/such.creds")
    found = JetStreamAdmin.from_environment(servers="nats://here:1", TOKEN=SECRET).options
    assert found.servers == ("nats://here:1",)
    assert found.given() == {"servers", "token"}
    assert SECRET not in repr(found)
