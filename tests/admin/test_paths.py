"""Paths that no file can have, or at which there is something else than a file: each is one of our
errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, template
from spark_jetstream.admin.ensure import Ensure, described
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.errors import JetStreamError, OptionError
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.spark_process import find_file
from spark_jetstream.testing import NatsServer
from tests.support.publish import Publisher

PAIRS = {"tlsCertFile": "tlsKeyFile", "tlsKeyFile": "tlsCertFile"}
FILES = ("credentialsFile", "nkeySeedFile", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "context")


@pytest.fixture(scope="module")
def filled(nats_server: NatsServer, publisher: Publisher) -> Any:
    """An administrator, with a stream and an object in a bucket; beside the stream of `publisher`,
    which stays.
    """
    with JetStreamAdmin(servers=nats_server.url) as admin:
        admin.streams.create(name="PATHS", subjects=["paths"])
        admin.objects.create("PATHS")
        admin.objects.bucket("PATHS").put("object", b"content")
        yield admin
        admin.streams.delete("PATHS")
        admin.objects.delete("PATHS")


def option(name: str) -> Callable[[JetStreamAdmin, str], object]:
    """Return a function that reads the file of a connection option."""

    def read(admin: JetStreamAdmin, path: str) -> object:
        given = {name: path, **({PAIRS[name]: path} if name in PAIRS else {})}
        return connect_arguments(ConnectionOptions.from_spark(given))

    return read


def secret_of_context(admin: JetStreamAdmin, path: str) -> object:
    """A context whose password is in a file."""
    context = Path("context.json")
    context.write_text(
        json.dumps({"url": "nats://127.0.0.1", "user": "u", "password": f"file://{path}"})
    )
    return JetStreamAdmin(context=str(context))


Use = Callable[[JetStreamAdmin, str], object]
READING: dict[str, Use] = {
    **{name: option(name) for name in FILES},
    "the password of a context": secret_of_context,
    "ensureStream": lambda admin, path: described(
        Ensure(admin.options, path, "error", ("PATHS",)), find_file
    ),
    "template": lambda admin, path: template(path),
    "plan": lambda admin, path: admin.plan(Path(path)),
    "restore": lambda admin, path: admin.streams.restore(path, "PATHSB"),
}
ALL: dict[str, Use] = {
    **READING,
    "put_file": lambda admin, path: admin.objects.bucket("PATHS").put_file(path),
    "backup": lambda admin, path: admin.streams.backup("PATHS", path),
    "get_file": lambda admin, path: admin.objects.bucket("PATHS").get_file("object", path),
    "get_file over it": lambda admin, path: admin.objects.bucket("PATHS").get_file(
        "object", path, overwrite=True
    ),
}
IMPOSSIBLE = {
    "NUL": "a\0b",
    "half of a surrogate pair": "a\ud800b",
    "name": "x" * 300,
    "path": "x/" * 3000 + "x",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where relative paths begin."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", IMPOSSIBLE)
@pytest.mark.parametrize("what", ALL)
def test_a_path_that_no_file_can_have(
    what: str, path: str, filled: JetStreamAdmin, folder: Path
) -> None:
    for given in (IMPOSSIBLE[path], str(folder / IMPOSSIBLE[path])):
        with pytest.raises(JetStreamError) as caught:
            ALL[what](filled, given)
        if what in FILES or what == "ensureStream":
            assert isinstance(caught.value, OptionError)
            assert caught.value.option in (what, PAIRS.get(what))
    assert [file.name for file in folder.iterdir() if file.name != "context.json"] == []


@pytest.mark.parametrize(
    "kind", ["directory", "not UTF-8", "missing", "below a file", "link to itself"]
)
@pytest.mark.parametrize("what", READING)
def test_a_file_that_cannot_be_read(
    what: str, kind: str, filled: JetStreamAdmin, folder: Path
) -> None:
    (folder / "directory").mkdir()
    (folder / "not UTF-8").write_bytes(b"\xff\xfe{}")
    (folder / "link to itself").symlink_to("link to itself")
    path = folder / "not UTF-8" / "file" if kind == "below a file" else folder / kind
    with pytest.raises(JetStreamError):
        READING[what](filled, str(path))


@pytest.mark.parametrize("path", ["", ".", "/", "..", "directory/.."])
def test_a_backup_needs_a_name(path: str, filled: JetStreamAdmin, folder: Path) -> None:
    (folder / "directory").mkdir()
    with pytest.raises(
        OptionError, match=r"^target must be the path of a new backup|exists already"
    ):
        filled.streams.backup("PATHS", path)


def test_only_files_are_replaced(filled: JetStreamAdmin, folder: Path) -> None:
    """Replacing a device such as /dev/null, which root may, would break every other program."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    for name in ("pipe", "link", "."):
        with pytest.raises(
            OptionError, match="exists already, and is not a file: choose another path"
        ):
            filled.objects.bucket("PATHS").get_file("object", folder / name, overwrite=True)
    assert (folder / "pipe").is_fifo()
    assert (folder / "link").is_symlink()
