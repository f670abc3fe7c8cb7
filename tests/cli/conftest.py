"""Shared by tests of commands: no settings of the user who runs them, and streams that do not
outlive a test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.cli.field_options import flag
from spark_jetstream.testing import NatsServer
from tests.admin.conftest import Api, admin, api, name
from tests.support.command import Ran, run_command, succeed

Command = Callable[..., Ran]
Start = Callable[..., NatsServer]

__all__ = ["admin", "api", "name"]


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor contexts of whoever runs the tests."""
    for variable in [variable for variable in os.environ if variable.startswith("NATS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def run(request: pytest.FixtureRequest, nats_server: NatsServer) -> Command:
    """`run_command` on the shared server; for commands of the ``GROUP`` of the test's module, if it
    has one.
    """
    return partial(run_command, *getattr(request.module, "GROUP", ()), url=nats_server.url)


@pytest.fixture
def do(request: pytest.FixtureRequest, nats_server: NatsServer) -> Command:
    """`succeed`, likewise."""
    return partial(succeed, *getattr(request.module, "GROUP", ()), url=nats_server.url)


@pytest.fixture
def query_consumer(api: Api) -> Callable[..., None]:
    """A function that makes the consumer of a Spark query: the administration never sends the
    metadata of one.
    """

    def make(stream: str, name: str, **config: Any) -> None:
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

    return make


def written(config: dict[str, Any]) -> Iterator[str]:
    """The options for a configuration, as `rendered` has it."""
    for field, value in config.items():
        option = flag(field)
        if isinstance(value, bool):
            opposite = (
                flag(field.removeprefix("no_")) if field.startswith("no_") else f"--no-{option[2:]}"
            )
            yield option if value else opposite
        elif field == "metadata":
            for key, item in value.items():
                yield from (option, f"{key}={item}")
        elif value and isinstance(value, list) and all(isinstance(item, str) for item in value):
            yield from (option, ",".join(value))
        else:
            yield from (
                option,
                json.dumps(value) if isinstance(value, (dict, list)) else str(value),
            )


def refused(ran: Ran, code: int, *words: str) -> None:
    """That a command ended with this code, said this in a printable line on standard error, and
    printed nothing.
    """
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert [word for word in words if word not in ran.err] == [], ran.err
    assert ran.err.endswith("\n")
    assert ran.err[:-1].isprintable()
